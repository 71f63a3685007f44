//! What a daemon has and what its configuration asks for: the difference is made good, the rest is left alone.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};

use farbus_io::discovery::{self, Announcement, Announcer, Kind};
use farbus_io::link::Listener;
use farbus_io::service::Manager;
use serde_json::{Value, json};
use tracing::{info, warn};

use super::super::Failure;
use super::super::owner::ProcessStatus;
use super::super::share::{self, What, listen_failure, offer};
use super::attachment::Kept;
use super::config::{Config, Shared};
use super::real::Real;
use crate::allow::Network;
use crate::client::{FailureReport, Target, name_of};
use crate::control::{Answer, Question};
use crate::share::Share;
use crate::usb;

/// Addresses that may always connect to a plain listener: this machine's own.
const OURSELVES: [&str; 2] = ["127.0.0.0/8", "::1"];

/// The daemon, as its threads see it.
pub struct Desk {
    path: PathBuf,
    share: Share,
    manager: Manager,
    has: Mutex<Has>,
}

/// What runs.
struct Has {
    config: Config,
    /// Listeners that were passed and are not in use.
    passed: Vec<Listener>,
    /// As the configuration says, and as it is (port 0 takes a free one).
    listeners: Vec<(SocketAddr, SocketAddr)>,
    announcer: Option<Announcer>,
    /// Why it is not announced.
    unannounced: Option<String>,
    shares: BTreeMap<String, Offered>,
    real: Real,
    attachments: BTreeMap<String, Kept>,
}

/// A device of the configuration.
struct Offered {
    shared: Shared,
    /// Its name in the lists, or why it is not there.
    result: Result<String, FailureReport>,
}

/// What a change came to.
#[derive(Debug, Default)]
pub struct Changes {
    added: Vec<String>,
    removed: Vec<String>,
}

impl Desk {
    /// Nothing runs yet; [`Desk::apply`] begins.
    pub fn new(path: PathBuf, share: Share, manager: Manager, passed: Vec<Listener>) -> Self {
        let config = Config {
            listen: vec![],
            allow: vec![],
            announce: true,
            shares: vec![],
            rules: vec![],
            attachments: vec![],
        };
        let has = Has {
            config,
            passed,
            listeners: vec![],
            announcer: None,
            unannounced: None,
            shares: BTreeMap::new(),
            real: Real::default(),
            attachments: BTreeMap::new(),
        };
        Self { path, share, manager, has: Mutex::new(has) }
    }

    fn has(&self) -> MutexGuard<'_, Has> {
        self.has.lock().expect("no change panics")
    }

    /// The way to the service manager.
    pub fn manager(&self) -> &Manager {
        &self.manager
    }

    /// Sockets that were passed and that the configuration does not name: whoever connects there waits for ever.
    pub fn unused(&self) -> Vec<SocketAddr> {
        self.has().passed.iter().filter_map(|listener| listener.address().ok()).collect()
    }

    /// Where it listens.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.has().listeners.iter().map(|(_, address)| *address).collect()
    }

    /// Reads the configuration again. What stays in it is not touched: sessions go on.
    ///
    /// # Errors
    /// [`Failure`]: nothing has changed if the file is wrong, and what could be done was done otherwise.
    pub fn reload(&self) -> Result<Changes, Failure> {
        self.manager.reloading();
        let result = Config::read(&self.path).map_err(Failure::local).and_then(|config| self.apply(config));
        match &result {
            Ok(changes) => info!(added = ?changes.added, removed = ?changes.removed, "reloaded"),
            Err(failure) => warn!("not reloaded: {failure}"),
        }
        self.manager.ready(&self.summary());
        result
    }

    /// Makes what runs what `config` says.
    ///
    /// # Errors
    /// If an address cannot be listened at. Devices that cannot be had are tried again later, and shown.
    pub fn apply(&self, config: Config) -> Result<Changes, Failure> {
        let mut has = self.has();
        let mut changes = Changes::default();
        self.listen(&mut has, &config, &mut changes)?;
        announce(&mut has, config.announce);
        self.offer_all(&mut has, &config.shares, &mut changes);
        has.real.look(&self.share, &config);
        attach_all(&mut has, &config, &mut changes);
        has.config = config;
        Ok(changes)
    }

    /// New addresses first: if one cannot be had, nothing was taken away.
    fn listen(&self, has: &mut Has, config: &Config, changes: &mut Changes) -> Result<(), Failure> {
        let mut fresh: Vec<(SocketAddr, Listener)> = Vec::new();
        for &address in &config.listen {
            if !has.listeners.iter().any(|(asked, _)| *asked == address) {
                fresh.push((address, listener_at(&mut has.passed, address)?));
            }
        }
        has.listeners.retain(|(asked, address)| {
            let stays = config.listen.contains(asked);
            if stays {
                self.share.allow(*address, allowed_at(*address, &config.allow));
            } else {
                self.share.close(*address);
                changes.removed.push(address.to_string());
            }
            stays
        });
        for (asked, listener) in fresh {
            let allowed = listener.address().map(|address| allowed_at(address, &config.allow));
            let listens = allowed.and_then(|allowed| self.share.listen_on(listener, allowed));
            let address = listens.map_err(|error| listen_failure(asked, &error))?;
            has.listeners.push((asked, address));
            changes.added.push(address.to_string());
        }
        Ok(())
    }

    fn offer_all(&self, has: &mut Has, shares: &[Shared], changes: &mut Changes) {
        let stays = |offered: &Offered| shares.contains(&offered.shared);
        for (name, offered) in has.shares.extract_if(.., |_, offered| !stays(offered)) {
            if let Ok(listed) = &offered.result
                && let Err(error) = self.share.remove(listed)
            {
                warn!(name, %error, "was not there to be removed");
            }
            changes.removed.push(name);
        }
        for shared in shares.iter().filter(|shared| !matches!(shared.what, What::Usb(_))) {
            if !has.shares.contains_key(&shared.name) {
                let result = self.offer(shared);
                if let Err(failure) = &result {
                    warn!(name = shared.name, "not shared: {}; tried again later", failure.message);
                }
                changes.added.push(shared.name.clone());
                has.shares.insert(shared.name.clone(), Offered { shared: shared.clone(), result });
            }
        }
    }

    fn offer(&self, shared: &Shared) -> Result<String, FailureReport> {
        let offered = offer(&self.share, &mut usb::Shared::default(), &shared.name, &shared.what)
            .map_err(|failure| failure.report())?;
        Ok(offered.first().map(|record| name_of(record).to_owned()).unwrap_or_default())
    }

    /// What could not be had is tried again, and what was plugged in or pulled out is seen.
    pub fn try_again(&self) {
        let mut has = self.has();
        let Has { real, config, .. } = &mut *has;
        real.look(&self.share, config);
        for (name, offered) in has.shares.iter_mut().filter(|(_, offered)| offered.result.is_err()) {
            offered.result = self.offer(&offered.shared);
            if offered.result.is_ok() {
                info!(name, "shared at last");
            }
        }
        // Its network may have come up.
        let is_wished = has.config.announce;
        announce(&mut has, is_wished);
    }

    /// Answers its owner.
    pub fn answer(&self, question: Question) -> Answer {
        match question {
            Question::Status => self.status(),
            Question::Reload => match self.reload() {
                Ok(changes) => Answer::Ok(json!({ "added": changes.added, "removed": changes.removed })),
                Err(failure) => Answer::Failed(failure.report()),
            },
            Question::Detach { device: Some(device) } => self.detach(&device),
            Question::Detach { device: None } => Answer::Unknown,
            other => share::answer(&self.share, SocketAddr::from(([127, 0, 0, 1], 0)), other),
        }
    }

    fn detach(&self, device: &str) -> Answer {
        let asked = device.parse::<Target>().ok();
        let is_it = |target: &Target| device == target.device || asked.as_ref() == Some(target);
        match self.has().attachments.values().find(|kept| is_it(&kept.spec().target)) {
            Some(kept) => {
                kept.detach();
                Answer::Ok(Value::Null)
            }
            None => Answer::Unknown,
        }
    }

    fn status(&self) -> Answer {
        let has = self.has();
        let mut devices: Vec<Value> = self.share.status().iter().map(|status| json!(status)).collect();
        for (name, offered) in &has.shares {
            if let Err(failure) = &offered.result {
                devices.push(json!({ "name": name, "state": "failed", "failure": failure }));
            }
        }
        devices.extend(has.real.failures());
        for kept in has.attachments.values() {
            let (status, failure) = kept.status();
            let mut status = json!(status);
            if let Some(failure) = failure {
                status["failure"] = json!(failure);
            }
            devices.push(status);
        }
        let address = has.listeners.first().map(|(_, address)| address.to_string()).unwrap_or_default();
        ProcessStatus { pid: std::process::id(), role: "daemon", address, devices }.answer()
    }

    /// A line for the service manager.
    pub fn summary(&self) -> String {
        let has = self.has();
        let shared = has.shares.values().filter(|offered| offered.result.is_ok()).count() + has.real.count();
        format!("{shared} shared, {} attachments", has.attachments.len())
    }

    /// Ends everything in good order. Says whether all devices became durable in time.
    pub fn stop(&self) -> bool {
        self.has().announcer = None;
        let attachments = std::mem::take(&mut self.has().attachments);
        // All begin to end before the first is waited for.
        attachments.values().for_each(Kept::end);
        drop(attachments);
        self.share.stop()
    }
}

/// Tells hosts nearby where plain USB/IP is served, as far as it is not for this machine alone.
fn announce(has: &mut Has, is_wished: bool) {
    let mut wanted: Vec<Announcement> = Vec::new();
    for (_, address) in has.listeners.iter().filter(|(_, at)| is_wished && !at.ip().is_loopback()) {
        let port = address.port();
        let known = wanted.iter().position(|announcement| announcement.port == port);
        let at = known.unwrap_or_else(|| {
            let version = env!("CARGO_PKG_VERSION").to_owned();
            let addresses = Vec::new();
            wanted.push(Announcement { kind: Kind::Plain, port, addresses, version, fingerprint: None });
            wanted.len() - 1
        });
        // No address means all of them.
        let is_all = address.ip().is_unspecified() || (known.is_some() && wanted[at].addresses.is_empty());
        match is_all {
            true => wanted[at].addresses.clear(),
            false => wanted[at].addresses.push(address.ip()),
        }
    }
    if wanted.is_empty() {
        has.announcer = None;
        return;
    }
    let result = match &mut has.announcer {
        Some(announcer) => announcer.announce(&wanted),
        none => Announcer::new(&discovery::own_name(), discovery::PORT)
            .and_then(|announcer| none.insert(announcer).announce(&wanted)),
    };
    let trouble = result.err().map(|error| error.to_string());
    // The same trouble again is no news.
    if let Some(error) = trouble.as_ref().filter(|_| trouble != has.unannounced) {
        warn!(error, "not announced");
    }
    has.unannounced = trouble;
}

fn attach_all(has: &mut Has, config: &Config, changes: &mut Changes) {
    let stays = |kept: &Kept| config.attachments.contains(kept.spec());
    let gone: Vec<_> = has.attachments.extract_if(.., |_, kept| !stays(kept)).collect();
    gone.iter().for_each(|(_, kept)| kept.end());
    changes.removed.extend(gone.into_iter().map(|(name, _)| name));
    for spec in &config.attachments {
        let name = spec.target.to_string();
        if let Some(kept) = has.attachments.get(&name) {
            kept.resume();
            continue;
        }
        match Kept::start(spec.clone()) {
            Ok(kept) => {
                has.attachments.insert(name.clone(), kept);
                changes.added.push(name);
            }
            Err(error) => warn!(target = name, %error, "not attached"),
        }
    }
}

fn listener_at(passed: &mut Vec<Listener>, address: SocketAddr) -> Result<Listener, Failure> {
    let at = passed.iter().position(|listener| listener.address().is_ok_and(|passed| passed == address));
    match at {
        Some(at) => Ok(passed.swap_remove(at)),
        None => Listener::bind(address).map_err(|error| listen_failure(address, &error)),
    }
}

/// Who may connect at an address: everybody on the loopback, which is this machine alone.
fn allowed_at(address: SocketAddr, allow: &[Network]) -> Option<Vec<Network>> {
    let ourselves = OURSELVES.iter().map(|text| text.parse().expect("a constant that a test reads"));
    (!address.ip().is_loopback()).then(|| ourselves.chain(allow.iter().copied()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_is_open_and_another_address_is_for_its_list_and_ourselves() {
        let allow = ["10.0.0.0/8".parse().unwrap()];
        assert_eq!(allowed_at("127.0.0.1:3240".parse().unwrap(), &allow), None);
        let allowed = allowed_at("0.0.0.0:3240".parse().unwrap(), &allow).unwrap();
        let admits = |address: &str| allowed.iter().any(|network| network.contains(address.parse().unwrap()));
        assert!(admits("127.0.0.1") && admits("::1") && admits("10.1.1.1") && !admits("192.0.2.1"));
    }
}
