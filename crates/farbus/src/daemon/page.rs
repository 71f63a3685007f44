//! The daemon's page (`[page]`): a process of its own, which the broker starts and which ends with this one.
//!
//! The daemon has given away what a page needs: to ask other processes, and to start programs. So the page is
//! `farbus page`, started with the broker's rights; nothing of it runs here but the thread that keeps it.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::str::FromStr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use farbus_io::sys::passing::Passage;
use rustix::net::{Shutdown, shutdown};
use serde_json::{Value, json};
use toml::Spanned;
use tracing::{info, warn};

use super::spec::Wrong;
use crate::broker::Broker;

/// After what time a page that has ended is started again.
const RESTART_PAUSE: Duration = Duration::from_secs(5);

/// Where the configuration wants a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PagePlace {
    /// At an address of the loopback.
    Loopback(SocketAddr),
    /// At a socket in the owner's runtime folder.
    Socket,
}

impl FromStr for PagePlace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "unix" {
            return Ok(Self::Socket);
        }
        let allowed = "\"unix\", or an address of the loopback with its port: \"127.0.0.1:7240\"";
        match text.parse::<SocketAddr>() {
            Ok(address) if address.ip().is_loopback() => Ok(Self::Loopback(address)),
            Ok(address) => Err(format!("{address} is not this machine's alone, and the page is: say {allowed}")),
            Err(_) => Err(format!("'{text}' is no place for the page: say {allowed}")),
        }
    }
}

impl PagePlace {
    /// The place that the configuration says.
    ///
    /// # Errors
    /// [`Wrong`]: what may be said, and where.
    pub fn from_config(said: &Spanned<String>) -> Result<Self, Wrong> {
        said.get_ref().parse().map_err(|message| (Some(said.span()), message))
    }

    /// The arguments of the page's process.
    pub fn arguments(&self) -> Vec<String> {
        let at = match self {
            Self::Loopback(address) => vec!["--listen".to_owned(), address.to_string()],
            Self::Socket => vec!["--socket".to_owned()],
        };
        ["page".to_owned(), "--of-daemon".to_owned()].into_iter().chain(at).collect()
    }
}

#[derive(Debug, Default)]
struct Has {
    wanted: Option<PagePlace>,
    /// The passage to the page's process: the page ends when it is shut down.
    running: Option<OwnedFd>,
    /// Where the page is, once it says so.
    at: Option<String>,
    failure: Option<String>,
    is_ending: bool,
}

#[derive(Debug, Default)]
struct State {
    has: Mutex<Has>,
    changed: Condvar,
}

impl State {
    fn has(&self) -> MutexGuard<'_, Has> {
        self.has.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The daemon's page, as the configuration wants it.
#[derive(Debug)]
pub struct Page {
    broker: Arc<Broker>,
    state: Arc<State>,
    is_begun: Mutex<bool>,
}

impl Page {
    /// No page yet; `broker` is a line of its own.
    pub fn new(broker: Arc<Broker>) -> Self {
        Self { broker, state: Arc::default(), is_begun: Mutex::default() }
    }

    /// Starts, moves or ends the page as the configuration wants it. The broker has read that configuration.
    pub fn follow(&self, wanted: Option<PagePlace>) {
        let mut has = self.state.has();
        if has.wanted == wanted {
            return;
        }
        has.wanted = wanted;
        end_running(&mut has);
        drop(has);
        self.state.changed.notify_all();
        let mut is_begun = self.is_begun.lock().unwrap_or_else(PoisonError::into_inner);
        if wanted.is_some() && !*is_begun {
            let (broker, state) = (Arc::clone(&self.broker), Arc::clone(&self.state));
            let begun = thread::Builder::new().name("page".into()).spawn(move || keep(&broker, &state));
            *is_begun = begun.inspect_err(|error| warn!(%error, "there is no page")).is_ok();
        }
    }

    /// Where the page is, or why it is nowhere; `None`: the configuration wants none.
    pub fn status(&self) -> Option<Value> {
        let has = self.state.has();
        has.wanted.map(|_| json!({ "at": has.at, "failure": has.failure }))
    }

    /// Ends the page: the daemon ends.
    pub fn end(&self) {
        let mut has = self.state.has();
        has.is_ending = true;
        end_running(&mut has);
        drop(has);
        self.state.changed.notify_all();
    }
}

fn end_running(has: &mut Has) {
    (has.at, has.failure) = (None, None);
    if let Some(running) = has.running.take() {
        // One that has ended is fine.
        let _ = shutdown(&running, Shutdown::Both);
    }
}

/// Keeps the page running while it is wanted.
fn keep(broker: &Broker, state: &State) {
    loop {
        let has = state.changed.wait_while(state.has(), |has| has.wanted.is_none() && !has.is_ending);
        let mut has = has.unwrap_or_else(PoisonError::into_inner);
        if has.is_ending {
            return;
        }
        let wanted = has.wanted;
        let begun = broker.page().and_then(|passage| Ok((passage.try_clone()?, Passage::over(passage))));
        match begun {
            Ok((running, passage)) => {
                has.running = Some(running);
                drop(has);
                hear(&passage, state, wanted);
            }
            Err(error) => {
                has.failure = Some(error.to_string());
                drop(has);
                warn!(%error, "the page cannot be started; tried again");
            }
        }
        let has = state.has();
        let is_as_it_was = |has: &mut Has| has.wanted == wanted && !has.is_ending;
        drop(state.changed.wait_timeout_while(has, RESTART_PAUSE, is_as_it_was));
    }
}

/// Hears what the page says of itself, until it ends.
fn hear(passage: &Passage, state: &State, wanted: Option<PagePlace>) {
    let heard = || -> io::Result<Option<Value>> {
        let Some(parcel) = passage.receive()? else { return Ok(None) };
        Ok(Some(serde_json::from_slice(&parcel.bytes)?))
    };
    while let Ok(Some(said)) = heard() {
        let mut has = state.has();
        if has.wanted != wanted {
            continue;
        }
        let text = |name: &str| said[name].as_str().map(str::to_owned);
        (has.at, has.failure) = (text("at"), text("failure"));
        match (&has.at, &has.failure) {
            (Some(at), _) => info!(at, "the page is there"),
            (None, Some(why)) => warn!(why, "there is no page; tried again"),
            (None, None) => {}
        }
    }
    let mut has = state.has();
    if has.wanted == wanted {
        has.running = None;
        has.at = None;
        has.failure.get_or_insert_with(|| "its process has ended; it is started again".to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_this_machines_alone() {
        let words = |text: &str| text.parse::<PagePlace>().map(|place| place.arguments().join(" "));
        assert_eq!(words("127.0.0.1:7240"), Ok("page --of-daemon --listen 127.0.0.1:7240".to_owned()));
        assert_eq!(words("[::1]:80"), Ok("page --of-daemon --listen [::1]:80".to_owned()));
        assert_eq!(words("unix"), Ok("page --of-daemon --socket".to_owned()));
        for wrong in ["0.0.0.0:7240", "192.0.2.1:7240", "127.0.0.1", "lab3:7240", "unix:/run/page", ""] {
            assert!(words(wrong).unwrap_err().contains("127.0.0.1:7240"), "{wrong}");
        }
    }
}
