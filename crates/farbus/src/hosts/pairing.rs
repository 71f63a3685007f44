//! Pairs two hosts: one shows a code, and its owner types it on the other.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use farbus_control::failure::{CommandFailure, FailureKind};
use farbus_io_net::discovery::{AnnouncedProtocol, HostAnnouncement};
use farbus_io_net::link::host_address::{PAIRING_PORT, SECURE_PORT};
use farbus_io_net::link::{AcceptedConnection, BoottimeClock, Link, LinkError, TcpLinkListener};
use farbus_io_net::trust::limits::{CODE_TIME_MAX, CODES_A_PAIRING, EXCHANGE_TIME_MAX, TRIES_A_CODE};
use farbus_io_net::trust::{
    AcceptedKeys, AuditEvent as Audited, AuditOutcome, Fingerprint, HandshakeError, KeyProofOutcome, LinkProtocol,
    PairingCode, PairingExchange, PairingProofs, PairingRole, Peer, PeerAdmission, SecureLink, StateError, name_from,
};
use farbus_model::Instant;
use farbus_session::pairing::{PairingConn, PairingEvent, PairingParticipant, PairingRefusal};
use tracing::warn;

use crate::common::socket_place::SocketLocation;
use crate::hosts::mdns::{self, MdnsProcess, MdnsRegistration};
use crate::hosts::questions::send_all;
use crate::hosts::reach::{ANSWER_TIME_MAX, NearbyHostQuery, is_unknown_name};
use crate::hosts::trust::{TrustStore, likely_address};

/// The stack of a thread that pairs. Signatures and curves in a debug build use the most.
const STACK_BYTES: usize = 1 << 20;

/// Why two hosts are not paired.
#[derive(Debug)]
pub enum PairError {
    /// There is no link to the other host.
    Link(LinkError),
    /// The link could not be encrypted.
    Handshake(HandshakeError),
    /// The link was lost, or the other host is silent.
    Lost(io::Error),
    /// The other host does not speak the protocol; a sentence.
    Protocol(String),
    /// The other host refuses.
    Refused(PairingRefusal),
    /// The other host does not know the code: it is not the one that shows it.
    NotProved,
    /// The other host is this host itself.
    Self_,
    /// No host joined in time.
    Expired,
    /// Too many wrong codes were tried.
    Guessed,
    /// This host's own files, or its system, failed.
    Local(String),
}

impl PairError {
    /// The kind of the failure.
    pub fn attribute(&self) -> FailureKind {
        match self {
            PairError::Link(_) | PairError::Lost(_) | PairError::Handshake(HandshakeError::Lost(_)) => {
                FailureKind::Network
            }
            PairError::Expired => FailureKind::Gone,
            PairError::Local(_) => FailureKind::Local,
            _ => FailureKind::Refused,
        }
    }
}

impl From<PairError> for CommandFailure {
    fn from(error: PairError) -> Self {
        CommandFailure::new(error.attribute(), error)
    }
}

impl fmt::Display for PairError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PairError::Link(error) if is_unknown_name(error) => write!(
                f,
                "{error}\n  no name service knows that name, and no 'farbus pair' nearby announces it\n  \
                 type the address that 'farbus pair' shows there"
            ),
            PairError::Link(error) => {
                write!(f, "{error}\n  does 'farbus pair' wait there, and does a firewall let its port through?")
            }
            PairError::Handshake(error) => error.fmt(f),
            PairError::Lost(error) => write!(f, "the link was lost while pairing: {error}"),
            PairError::Protocol(what) => write!(f, "the other side does not speak {}: {what}", LinkProtocol::Pairing.name()),
            PairError::Refused(PairingRefusal::WrongCode) => {
                f.write_str("the code is wrong, or somebody is between the two hosts\n  look at it again; each wrong try is counted there")
            }
            PairError::Refused(refusal) => {
                write!(f, "{refusal}\n  there, 'farbus pair' shows a new one")
            }
            PairError::NotProved => f.write_str(
                "the other side does not know the code: it is not the host that shows it\n  \
                 nothing was paired; take a new code and check the address",
            ),
            PairError::Self_ => f.write_str("that is this very host: its key is the same"),
            PairError::Expired => f.write_str("nobody has joined in time; the code is void\n  type 'farbus pair' again for a new one"),
            PairError::Guessed => write!(
                f,
                "{} wrong codes were tried; somebody may be guessing, so nothing is waited for any more\n  \
                 see the addresses above; type 'farbus pair' again when they are gone",
                TRIES_A_CODE * CODES_A_PAIRING
            ),
            PairError::Local(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for PairError {}

impl From<StateError> for PairError {
    fn from(error: StateError) -> Self {
        PairError::Local(error.to_string())
    }
}

/// What a waiting host has to show its owner.
#[derive(Clone, Debug)]
pub enum PairingProgress {
    /// The code to type on the other host.
    Code(PairingCode),
    /// A host tried a wrong code.
    WrongCode {
        /// The address of that host.
        from: SocketAddr,
        /// How many more tries this code has.
        tries_left: u32,
    },
}

/// Joins the host that shows `code` at `address` (`HOST:PORT`), and adds it to the paired hosts.
///
/// # Errors
/// [`PairError`].
pub fn join(
    trust: &TrustStore,
    address: &str,
    code: &PairingCode,
    name: Option<&str>,
    allow: &[String],
) -> Result<Peer, PairError> {
    let (link, host) = connect(address).map_err(PairError::Link)?;
    let terms = trust.terms(AcceptedKeys::Anybody, &[LinkProtocol::Pairing]);
    let SecureLink { link, peer, .. } = terms.connect(link).map_err(PairError::Handshake)?;
    if peer == trust.fingerprint() {
        return Err(PairError::Self_);
    }
    let exchange = PairingExchange::start(PairingRole::Joins, code, trust.fingerprint(), peer);
    let mut talk =
        PairingConversation::new(&link, PairingConn::new(PairingParticipant::Joiner, trust.name(), exchange.share()))?;
    let theirs = talk.greet(exchange, [Some(trust.name()), None])?;
    match talk.next()? {
        PairingEvent::Proved => {}
        PairingEvent::NotProved => return Err(PairError::NotProved),
        PairingEvent::Refused(refusal) => return Err(PairError::Refused(refusal)),
        PairingEvent::Greeted { .. } => unreachable!("a host greets once"),
    }
    Ok(trust.note(name.unwrap_or(&theirs), peer, format!("{host}:{SECURE_PORT}"), allow)?)
}

/// Connects to `address` (`HOST:PORT`), and returns HOST as it is to be remembered: for a name that no name service
/// knows, the address at which a host of that name announces that it waits.
fn connect(address: &str) -> Result<(Link, String), LinkError> {
    let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
    match Link::connect(address, ANSWER_TIME_MAX) {
        Err(error) if is_unknown_name(&error) => {
            let mut at = mdns::find(&NearbyHostQuery::Pairing(host.to_owned())).ok_or(error)?;
            if let Some(port) = port.parse().ok().filter(|port| *port != PAIRING_PORT) {
                at.set_port(port);
            }
            let link = Link::connect(&at.to_string(), ANSWER_TIME_MAX)?;
            let at = at.to_string();
            Ok((link, at.rsplit_once(':').map_or(at.as_str(), |(host, _)| host).to_owned()))
        }
        connected => connected.map(|link| (link, host.to_owned())),
    }
}

/// Announces that this host waits at `at`, until dropped. `None` if only this machine could connect there, or nothing
/// can be announced: then the other host needs the address.
pub fn announce_waiting(trust: &TrustStore, at: SocketAddr) -> Option<MdnsRegistration> {
    if SocketLocation::Address(at).is_local() {
        return None;
    }
    let wanted = HostAnnouncement {
        kind: AnnouncedProtocol::Pairing,
        port: at.port(),
        addresses: Some(at.ip()).filter(|ip| !ip.is_unspecified()).into_iter().collect(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        fingerprint: Some(trust.fingerprint().to_string()),
    };
    let kept = MdnsProcess::start().and_then(|nearby| MdnsRegistration::keep(nearby, vec![wanted]));
    kept.inspect_err(|error| warn!(%error, "not announced")).ok()
}

/// Shows codes and waits at `listener` until a host has joined, and adds it to the paired hosts.
///
/// # Errors
/// [`PairError`].
pub fn wait_for_host(
    trust: &TrustStore,
    listener: TcpLinkListener,
    name: Option<&str>,
    allow: &[String],
    mut show: impl FnMut(PairingProgress),
) -> Result<Peer, PairError> {
    let local = |error: io::Error| PairError::Local(error.to_string());
    let (news, to_us) = mpsc::channel();
    let clock = BoottimeClock::start();
    let server = Arc::new(PairingServer {
        trust: trust.clone(),
        admission: PeerAdmission::default(),
        clock,
        state: Mutex::new(PairingServerState::fresh(clock.now())),
        news,
    });
    show(PairingProgress::Code(server.state().code.clone()));
    let for_shutdown = listener.try_clone().map_err(local)?;
    let for_thread = Arc::clone(&server);
    thread::Builder::new().name("pair".into()).spawn(move || for_thread.accept_all(&listener)).map_err(local)?;
    let until = clock.now() + CODE_TIME_MAX;
    let ended = loop {
        match to_us.recv_timeout(until - clock.now()) {
            Ok(PairingUpdate::Progress(progress)) => show(progress),
            Ok(PairingUpdate::Joined { fingerprint, theirs, from }) => {
                let name = name.unwrap_or(&theirs);
                break Ok(trust.note(name, fingerprint, likely_address(from), allow)?);
            }
            Ok(PairingUpdate::Guessed) => break Err(PairError::Guessed),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break Err(PairError::Expired),
        }
    };
    server.state().is_over = true;
    for_shutdown.shut_down();
    ended
}

enum PairingUpdate {
    Progress(PairingProgress),
    Joined { fingerprint: Fingerprint, theirs: String, from: SocketAddr },
    Guessed,
}

/// A host that waits with a code.
struct PairingServer {
    trust: TrustStore,
    admission: PeerAdmission,
    clock: BoottimeClock,
    state: Mutex<PairingServerState>,
    news: Sender<PairingUpdate>,
}

struct PairingServerState {
    code: PairingCode,
    tries_left: u32,
    codes_left: u32,
    until: Instant,
    /// Whether a host has joined, or pairing has ended without one.
    is_over: bool,
    /// Whether pairing ended because of too many wrong codes.
    was_guessed_at: bool,
}

impl PairingServerState {
    fn fresh(now: Instant) -> Self {
        Self {
            code: PairingCode::generate(),
            tries_left: TRIES_A_CODE,
            codes_left: CODES_A_PAIRING - 1,
            until: now + CODE_TIME_MAX,
            is_over: false,
            was_guessed_at: false,
        }
    }
}

impl PairingServer {
    fn state(&self) -> MutexGuard<'_, PairingServerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accept_all(self: &Arc<Self>, listener: &TcpLinkListener) {
        while !self.state().is_over {
            match listener.accept() {
                Ok(connection) => self.let_in(connection),
                Err(_) if self.state().is_over => return,
                Err(error) => {
                    warn!(%error, "cannot accept a connection");
                    thread::sleep(Duration::from_millis(100));
                }
            }
        }
    }

    fn let_in(self: &Arc<Self>, connection: AcceptedConnection) {
        let from = connection.from;
        let ticket = match self.admission.enter(from.ip(), self.clock.now()) {
            Ok(ticket) => ticket,
            Err(refusal) => return warn!(%from, "turned away: {refusal}"),
        };
        match connection.link.try_clone() {
            Ok(link) => ticket.on_cut(move || link.shut_down()),
            Err(error) => return warn!(%from, %error, "turned away"),
        }
        let server = Arc::clone(self);
        let meet = move || {
            let result = server.meet(connection);
            let proof = if result.is_ok() { KeyProofOutcome::Given } else { KeyProofOutcome::Failed };
            ticket.leave(server.clock.now(), proof);
            if let Err(error) = result {
                warn!(%from, "not paired: {error}");
                let (address, why) = (from.to_string(), error.to_string());
                server.trust.record(&Audited {
                    address: Some(&address),
                    why: why.lines().next(),
                    ..Audited::new("pair", AuditOutcome::Refused)
                });
            }
            // This comes last: the waiting thread ends the process when it receives it.
            if server.state().was_guessed_at {
                let _ = server.news.send(PairingUpdate::Guessed);
            }
        };
        if let Err(error) = thread::Builder::new().name("pair".into()).stack_size(STACK_BYTES).spawn(meet) {
            warn!(%from, %error, "turned away");
        }
    }

    fn meet(&self, connection: AcceptedConnection) -> Result<(), PairError> {
        let terms = self.trust.terms(AcceptedKeys::Anybody, &[LinkProtocol::Pairing]);
        let SecureLink { link, peer, .. } = terms.accept(connection.link).map_err(PairError::Handshake)?;
        if peer == self.trust.fingerprint() {
            return Err(PairError::Self_);
        }
        let code = self.state().code.clone();
        let exchange = PairingExchange::start(PairingRole::Waits, &code, peer, self.trust.fingerprint());
        let mut talk = PairingConversation::new(
            &link,
            PairingConn::new(PairingParticipant::Waiter, self.trust.name(), exchange.share()),
        )?;
        let theirs = talk.greet(exchange, [None, Some(self.trust.name())])?;
        let is_right = match talk.next()? {
            PairingEvent::Proved => true,
            PairingEvent::NotProved => false,
            PairingEvent::Refused(refusal) => return Err(PairError::Refused(refusal)),
            PairingEvent::Greeted { .. } => unreachable!("a host greets once"),
        };
        match self.judge(&code, is_right, connection.from) {
            Ok(()) => {
                talk.pairing.confirm();
                talk.flush()?;
                link.finish_sending();
                let joined = PairingUpdate::Joined { fingerprint: peer, theirs, from: connection.from };
                // The waiting thread takes the first one, and the state lets only one through.
                let _ = self.news.send(joined);
                Ok(())
            }
            Err(refusal) => {
                talk.pairing.refuse(refusal);
                talk.flush()?;
                link.finish_sending();
                Err(PairError::Refused(refusal))
            }
        }
    }

    /// Judges one proof at a time: even if many arrive together, a code has three tries and is used once.
    fn judge(&self, code: &PairingCode, is_right: bool, from: SocketAddr) -> Result<(), PairingRefusal> {
        let mut state = self.state();
        if state.is_over {
            return Err(PairingRefusal::Taken);
        }
        if state.code != *code || self.clock.now() >= state.until {
            return Err(PairingRefusal::Void);
        }
        if is_right {
            state.is_over = true;
            return Ok(());
        }
        state.tries_left -= 1;
        let mut news = VecDeque::from([PairingUpdate::Progress(PairingProgress::WrongCode {
            from,
            tries_left: state.tries_left,
        })]);
        if state.tries_left == 0 {
            if state.codes_left == 0 {
                state.is_over = true;
                state.was_guessed_at = true;
            } else {
                state.codes_left -= 1;
                state.tries_left = TRIES_A_CODE;
                state.code = PairingCode::generate();
                news.push_back(PairingUpdate::Progress(PairingProgress::Code(state.code.clone())));
            }
        }
        for item in news {
            let _ = self.news.send(item);
        }
        Err(PairingRefusal::WrongCode)
    }
}

/// A pairing on its link.
struct PairingConversation<'a> {
    link: &'a Link,
    pairing: PairingConn,
    clock: BoottimeClock,
    until: Instant,
}

impl<'a> PairingConversation<'a> {
    fn new(link: &'a Link, pairing: PairingConn) -> Result<Self, PairError> {
        let clock = BoottimeClock::start();
        Ok(Self { link, pairing, clock, until: clock.now() + EXCHANGE_TIME_MAX })
    }

    /// Exchanges greetings and computes the proofs over everything that both sides have seen. Returns the name that the
    /// peer gives itself. `names` are those of joiner and waiter, with `None` for the peer's.
    fn greet(&mut self, exchange: PairingExchange, names: [Option<&str>; 2]) -> Result<String, PairError> {
        let (name, share) = match self.next()? {
            PairingEvent::Greeted { name, share } => (name, share),
            PairingEvent::Refused(refusal) => return Err(PairError::Refused(refusal)),
            PairingEvent::Proved | PairingEvent::NotProved => unreachable!("nothing is proved before greetings"),
        };
        let [joiner, waiter] = names.map(|ours| ours.unwrap_or(&name).as_bytes());
        let exporter = self.link.ask_tls(|tls| tls.export_keying_material([0; 32], b"EXPORTER-farbus-pair", None));
        let exporter = exporter.and_then(Result::ok);
        let exporter = exporter.ok_or_else(|| PairError::Protocol("the link is not encrypted".into()))?;
        let proofs = exchange.finish(&share, &[joiner, waiter, &exporter]);
        let PairingProofs { ours, theirs } =
            proofs.ok_or_else(|| PairError::Protocol("its share is no share".into()))?;
        let known_as = name_from(&name).map_err(|error| PairError::Protocol(error.to_string()))?;
        self.pairing.prove(ours, theirs);
        Ok(known_as)
    }

    /// Waits for the next event.
    fn next(&mut self) -> Result<PairingEvent, PairError> {
        let mut piece = [0; 256];
        loop {
            let event = self.pairing.poll_event().map_err(|reject| PairError::Protocol(reject.to_string()))?;
            self.flush()?;
            if let Some(event) = event {
                return Ok(event);
            }
            let left = self.until - self.clock.now();
            if left.is_zero() {
                return Err(PairError::Lost(io::ErrorKind::TimedOut.into()));
            }
            self.link.set_receive_timeout(Some(left)).map_err(PairError::Lost)?;
            match self.link.receive(&mut piece).map_err(PairError::Lost)? {
                0 => return Err(PairError::Protocol("it went away in the middle".into())),
                count => {
                    let taken = self.pairing.handle_received(&piece[..count]);
                    taken.map_err(|reject| PairError::Protocol(reject.to_string()))?;
                }
            }
        }
    }

    fn flush(&mut self) -> Result<(), PairError> {
        let bytes = self.pairing.poll_transmit().to_vec();
        send_all(self.link, &bytes, EXCHANGE_TIME_MAX).map_err(PairError::Lost)?;
        self.pairing.handle_transmitted(bytes.len());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use farbus_io_net::trust::HostFolder;

    use super::*;

    fn server(name: &str) -> (PairingServer, mpsc::Receiver<PairingUpdate>) {
        let folder = std::env::temp_dir().join(format!("farbus-desk-{}-{name}", std::process::id()));
        let trust = TrustStore::at(HostFolder::at(&folder)).unwrap();
        std::fs::remove_dir_all(folder).unwrap();
        let (news, to_us) = mpsc::channel();
        let clock = BoottimeClock::start();
        let state = Mutex::new(PairingServerState::fresh(clock.now()));
        (PairingServer { trust, admission: PeerAdmission::default(), clock, state, news }, to_us)
    }

    fn from() -> SocketAddr {
        "10.0.0.7:4242".parse().unwrap()
    }

    #[test]
    fn right_code_is_void_after_it_expired() {
        let (server, _news) = server("expired");
        let code = server.state().code.clone();
        server.state().until = server.clock.now();
        assert_eq!(server.judge(&code, true, from()), Err(PairingRefusal::Void));
        assert!(!server.state().is_over);
    }

    #[test]
    fn simultaneous_guesses_are_counted_one_by_one() {
        let (server, news) = server("together");
        let first = server.state().code.clone();
        // Fifty hosts got their shares while the first code held, and answer at once.
        let verdicts: Vec<_> = thread::scope(|scope| {
            let guessers: Vec<_> =
                (0..50).map(|_| scope.spawn(|| server.judge(&first, false, from()).unwrap_err())).collect();
            guessers.into_iter().map(|guesser| guesser.join().unwrap()).collect()
        });
        let count = |refusal| verdicts.iter().filter(|&&verdict| verdict == refusal).count();
        assert_eq!((count(PairingRefusal::WrongCode), count(PairingRefusal::Void)), (3, 47));
        assert_eq!(server.judge(&first, true, from()), Err(PairingRefusal::Void), "a void code is void for every host");
        let second = server.state().code.clone();
        assert_eq!(server.judge(&second, true, from()), Ok(()));
        assert_eq!(server.judge(&second, true, from()), Err(PairingRefusal::Taken), "one code, one host");
        let codes =
            news.try_iter().filter(|item| matches!(item, PairingUpdate::Progress(PairingProgress::Code(_)))).count();
        assert_eq!(codes, 1, "a new one was shown");
    }
}
