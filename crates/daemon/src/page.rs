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

use farbus::broker::BrokerClient;
use farbus::common::page_address::{NAMES_MAX, site_name, tls_address};
use farbus_control::daemon::{Elsewhere, PageStatus};
use farbus_io_net::sys::passing::MessageSocket;
use rustix::net::{Shutdown, shutdown};
use serde::Deserialize;
use toml::Spanned;
use tracing::{info, warn};

use super::spec::SpannedError;

/// After what time a page that has ended is started again.
const RESTART_PAUSE: Duration = Duration::from_secs(5);

/// Where the configuration wants a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DaemonPageAddress {
    /// At an address of the loopback.
    Loopback(SocketAddr),
    /// At a socket in the owner's runtime folder.
    Socket,
}

impl FromStr for DaemonPageAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "unix" {
            return Ok(Self::Socket);
        }
        let allowed = "\"unix\", or an address of the loopback with its port: \"127.0.0.1:7240\"";
        match text.parse::<SocketAddr>() {
            Ok(address) if address.ip().is_loopback() => Ok(Self::Loopback(address)),
            Ok(address) => Err(format!(
                "{address} is not this machine's alone: say {allowed}\n  \
                 browsers of other machines come over TLS: tls = \"{address}\""
            )),
            Err(_) => Err(format!("'{text}' is no place for the page: say {allowed}")),
        }
    }
}

/// The page that the configuration wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedPage {
    /// Where it is on this machine.
    pub address: DaemonPageAddress,
    /// Where browsers of other machines reach it, if they may.
    pub tls: Option<SocketAddr>,
    /// The names that they ask for.
    pub names: Vec<String>,
    /// Whether its processes that speak HTTP are confined.
    pub is_sandboxed: bool,
}

/// The table `[page]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PageTable {
    listen: Spanned<String>,
    tls: Option<Spanned<String>>,
    #[serde(default)]
    names: Vec<Spanned<String>>,
    #[serde(default = "yes")]
    sandbox: bool,
}

const fn yes() -> bool {
    true
}

impl WantedPage {
    /// The page that the configuration says.
    ///
    /// # Errors
    /// [`SpannedError`]: what may be said, and where.
    pub fn from_config(page_table: &PageTable) -> Result<Self, SpannedError> {
        fn parsed<T>(value: &Spanned<String>, parse: impl Fn(&str) -> Result<T, String>) -> Result<T, SpannedError> {
            parse(value.get_ref()).map_err(|message| (Some(value.span()), message))
        }
        let tls = page_table.tls.as_ref().map(|tls| parsed(tls, tls_address)).transpose()?;
        let names = page_table.names.iter().map(|name| parsed(name, site_name)).collect::<Result<Vec<_>, _>>()?;
        if let Some(name) = page_table.names.first().filter(|_| tls.is_none()) {
            return Err((Some(name.span()), "names are for browsers of other machines: say tls = ADDRESS, too".into()));
        }
        if let Some(name) = page_table.names.get(NAMES_MAX) {
            return Err((Some(name.span()), format!("a page has {NAMES_MAX} names at most")));
        }
        let address = parsed(&page_table.listen, str::parse)?;
        Ok(Self { address, tls, names, is_sandboxed: page_table.sandbox })
    }

    /// The arguments of the page's process.
    pub fn arguments(&self) -> Vec<String> {
        let mut all = vec!["page".to_owned(), "--of-daemon".to_owned()];
        match self.address {
            DaemonPageAddress::Loopback(address) => all.extend(["--listen".to_owned(), address.to_string()]),
            DaemonPageAddress::Socket => all.push("--socket".to_owned()),
        }
        all.extend(self.tls.iter().flat_map(|address| ["--tls".to_owned(), address.to_string()]));
        all.extend(self.names.iter().flat_map(|name| ["--name".to_owned(), name.clone()]));
        all.extend(Some("--no-sandbox".to_owned()).filter(|_| !self.is_sandboxed));
        all
    }
}

#[derive(Debug, Default)]
struct DaemonPageState {
    wanted: Option<WantedPage>,
    /// The passage to the page's process: the page ends when it is shut down.
    running: Option<OwnedFd>,
    /// Where the page is, once it says so.
    at: Option<String>,
    /// Where browsers of other machines find it, and how they know it.
    elsewhere: Option<Elsewhere>,
    failure: Option<String>,
    is_ending: bool,
}

#[derive(Debug, Default)]
struct DaemonPageInner {
    has: Mutex<DaemonPageState>,
    changed: Condvar,
}

impl DaemonPageInner {
    fn has(&self) -> MutexGuard<'_, DaemonPageState> {
        self.has.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The daemon's page, as the configuration wants it.
#[derive(Debug)]
pub struct DaemonPage {
    broker: Arc<BrokerClient>,
    state: Arc<DaemonPageInner>,
    is_begun: Mutex<bool>,
}

impl DaemonPage {
    /// No page yet; `broker` is a line of its own.
    pub fn new(broker: Arc<BrokerClient>) -> Self {
        Self { broker, state: Arc::default(), is_begun: Mutex::default() }
    }

    /// Starts, moves or ends the page as the configuration wants it. The broker has read that configuration.
    pub fn follow(&self, wanted: Option<WantedPage>) {
        let is_wanted = wanted.is_some();
        let mut has = self.state.has();
        if has.wanted == wanted {
            return;
        }
        has.wanted = wanted;
        end_running(&mut has);
        drop(has);
        self.state.changed.notify_all();
        let mut is_begun = self.is_begun.lock().unwrap_or_else(PoisonError::into_inner);
        if is_wanted && !*is_begun {
            let (broker, state) = (Arc::clone(&self.broker), Arc::clone(&self.state));
            let begun = thread::Builder::new().name("page".into()).spawn(move || keep(&broker, &state));
            *is_begun = begun.inspect_err(|error| warn!(%error, "there is no page")).is_ok();
        }
    }

    /// Where the page is, or why it is nowhere; `None`: the configuration wants none.
    pub fn status(&self) -> Option<PageStatus> {
        let has = self.state.has();
        has.wanted.as_ref().map(|wanted| PageStatus {
            at: has.at.clone(),
            failure: has.failure.clone(),
            elsewhere: wanted.tls.map(|_| has.elsewhere.clone()),
        })
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

fn end_running(has: &mut DaemonPageState) {
    (has.at, has.failure, has.elsewhere) = (None, None, None);
    if let Some(running) = has.running.take() {
        // One that has ended is fine.
        let _ = shutdown(&running, Shutdown::Both);
    }
}

/// Keeps the page running while it is wanted.
fn keep(broker: &BrokerClient, state: &DaemonPageInner) {
    loop {
        let has = state.changed.wait_while(state.has(), |has| has.wanted.is_none() && !has.is_ending);
        let mut has = has.unwrap_or_else(PoisonError::into_inner);
        if has.is_ending {
            return;
        }
        let wanted = has.wanted.clone();
        let begun = broker.page().and_then(|passage| Ok((passage.try_clone()?, MessageSocket::over(passage))));
        match begun {
            Ok((running, passage)) => {
                has.running = Some(running);
                drop(has);
                hear(&passage, state, &wanted);
            }
            Err(error) => {
                has.failure = Some(error.to_string());
                drop(has);
                warn!(%error, "the page cannot be started; tried again");
            }
        }
        let has = state.has();
        let is_as_it_was = |has: &mut DaemonPageState| has.wanted == wanted && !has.is_ending;
        drop(state.changed.wait_timeout_while(has, RESTART_PAUSE, is_as_it_was));
    }
}

/// Hears what the page says of itself, until it ends.
fn hear(passage: &MessageSocket, state: &DaemonPageInner, wanted: &Option<WantedPage>) {
    let heard = || -> io::Result<Option<PageStatus>> {
        let Some(parcel) = passage.receive()? else { return Ok(None) };
        Ok(Some(serde_json::from_slice(&parcel.bytes)?))
    };
    while let Ok(Some(status)) = heard() {
        let mut has = state.has();
        if has.wanted != *wanted {
            continue;
        }
        (has.at, has.failure, has.elsewhere) = (status.at, status.failure, status.elsewhere.flatten());
        match (&has.at, &has.failure) {
            (Some(at), _) => info!(at, "the page is there"),
            (None, Some(why)) => warn!(why, "there is no page; tried again"),
            (None, None) => {}
        }
    }
    let mut has = state.has();
    if has.wanted == *wanted {
        has.running = None;
        (has.at, has.elsewhere) = (None, None);
        has.failure.get_or_insert_with(|| "its process has ended; it is started again".to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_this_machines_alone() {
        for (text, address) in [
            ("127.0.0.1:7240", DaemonPageAddress::Loopback(([127, 0, 0, 1], 7240).into())),
            ("[::1]:80", DaemonPageAddress::Loopback((std::net::Ipv6Addr::LOCALHOST, 80).into())),
            ("unix", DaemonPageAddress::Socket),
        ] {
            assert_eq!(text.parse(), Ok(address));
        }
        for wrong in ["0.0.0.0:7240", "192.0.2.1:7240", "127.0.0.1", "lab3:7240", "unix:/run/page", ""] {
            assert!(wrong.parse::<DaemonPageAddress>().unwrap_err().contains("127.0.0.1:7240"), "{wrong}");
        }
    }

    #[test]
    fn a_page_is_started_as_the_configuration_says() {
        let arguments_of = |text: &str| {
            let table: PageTable = toml::from_str(text).unwrap();
            WantedPage::from_config(&table).map(|page| page.arguments().join(" ")).map_err(|(_, message)| message)
        };
        assert_eq!(arguments_of("listen = 'unix'"), Ok("page --of-daemon --socket".into()));
        assert_eq!(arguments_of("listen = '[::1]:80'"), Ok("page --of-daemon --listen [::1]:80".into()));
        assert_eq!(
            arguments_of(
                "listen = '127.0.0.1:7240'\ntls = '0.0.0.0:7241'\nnames = ['lab3.example', '192.0.2.7']\nsandbox = false"
            ),
            Ok("page --of-daemon --listen 127.0.0.1:7240 --tls 0.0.0.0:7241 --name lab3.example --name 192.0.2.7 \
                --no-sandbox"
                .into())
        );
        assert!(arguments_of("listen = 'unix'\nnames = ['lab3']").unwrap_err().contains("tls = ADDRESS"));
        assert!(arguments_of("listen = 'unix'\ntls = 'lab3'").unwrap_err().contains("0.0.0.0:7241"));
        assert!(arguments_of("listen = 'unix'\ntls = '0.0.0.0:1'\nnames = ['a/b']").unwrap_err().contains("a/b"));
    }
}
