//! Hands a daemon over to its replacement without losing an attachment.
//!
//! | old process | replacement |
//! |---|---|
//! | has its broker start this program once more | begins as always, drops its rights: `here` |
//! | stops and saves its attachments and the sessions of its importers; passes them on, with its listening sockets | reads all of it; says what it can continue: `taken`, `ready` |
//! | `go`: from here on there is no way back | continues the attachments; makes their links anew |
//! | ends its shares, ends | once the old process and its broker have ended: takes the sockets, shares, and continues the sessions |
//!
//! If anything before `go` fails or takes too long, the replacement ends and the old process continues: its links were
//! never cut.
//!
//! The old process may be of the previous release. Each process skips a word that it does not know, with its
//! descriptor, and fields that it does not know; a field that was added later has a default. So a word that a reader
//! must not skip is never added. Release 0.1.0 skips fields only: the replacement says no other words to it than those
//! below.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use farbus::frontend::AttachRequest;
use farbus_io_net::link::{PollInterest, TcpLinkListener, wait};
use farbus_io_net::saving::{SaveReply, SavedAttachment};
use farbus_io_net::sys::passing::{MessageSocket, PassedMessage};
use farbus_io_net::trust::AttachedDevice;
use farbus_model::limits::NBD_CONNECTIONS_MAX;
use farbus_session::snapshot::SNAPSHOT_BYTES_MAX;
use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use super::attachment::{AttachmentContext, ManagedAttachment};
use super::config::DaemonConfig;
use super::requested::PassedShare;

/// How long the replacement may take to begin: it loads a program and reads a key.
pub const BEGINNING_TIME_MAX: Duration = Duration::from_secs(10);
/// How long each process may take to answer the other from then on. The kernel's disks wait meanwhile, and give up a
/// command after 30 s.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);
/// How much longer everything may take for each attachment and session: four times what a slow machine needs.
const ENTRY_TIME_MAX: Duration = Duration::from_millis(15);
/// The longest time for any number of them.
const ALL_TIME_MAX: Duration = Duration::from_secs(20);
/// How long the old process may take to end and make its disks durable.
const END_TIME_MAX: Duration = Duration::from_secs(90);
/// The most parcels that are accepted. No configuration names as many devices.
const PARCELS_MAX: usize = 1 << 16;
/// The most descriptors of one attachment: an NBD server's clients, its listening socket, and its medium.
const DESCRIPTORS_MAX: usize = 2 + NBD_CONNECTIONS_MAX;

/// The words of a handover: JSON, with a descriptor where one is passed.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
enum HandoverMessage {
    /// Replacement: it has begun and dropped its rights.
    Here,
    /// Old: a listening socket, with its address in the configuration, or a passed socket that is not in use.
    Listener {
        #[serde(rename = "asked")]
        configured: Option<SocketAddr>,
        is_secure: bool,
        is_passed: bool,
    },
    /// Old: the snapshot of an attachment of this manner. This many descriptors follow. The last of them may be the
    /// medium that its disk was moved to, or the passage to a broker for the host that has it now; a reader of a
    /// release that does not know such a snapshot refuses it.
    Attachment {
        target: String,
        manner: String,
        descriptors: usize,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        has_medium: bool,
    },
    /// Old: a descriptor of the attachment.
    Open,
    /// Old: the snapshot of a session that uses a device shared here.
    Session,
    /// Old: the owner has detached this device.
    Detached { target: String },
    /// Old: the owner has unshared this entry of the configuration.
    Unshared { name: String },
    /// Old: a file or the lease of the device that the next `shared` describes. A reader that does not know the words
    /// skips both.
    SharedFile,
    /// Old: a device that the owner asked the daemon to share. Its files came before, and then its lease if it has one.
    Shared {
        what: String,
        name: String,
        is_named: bool,
        has_lease: bool,
        /// Of a device that is shared by its port: which one was there first.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        first_in_port: Option<Box<AttachedDevice>>,
    },
    /// Old: the owner has taken down the links to other hosts.
    Down,
    /// Old: that was all.
    All,
    /// Replacement: it can continue this attachment.
    Taken { target: String },
    /// Replacement: it can continue this session.
    TakenSession { number: usize },
    /// Replacement: it can begin.
    Ready,
    /// Old: the replacement takes over now.
    Go,
    /// Old: it continues itself.
    Stay,
    /// A word of another release, which is skipped.
    #[serde(other, skip_serializing)]
    Unknown,
}

/// A listening socket that is passed.
pub struct PassedListener {
    /// Its address in the configuration; `None` if it is not in use.
    pub address: Option<SocketAddr>,
    /// Whether it is for paired hosts.
    pub is_secure: bool,
    /// A duplicate of the socket.
    pub listener: TcpLinkListener,
}

/// A saved attachment that waits for the outcome of the handover.
pub struct OutgoingAttachment {
    /// The name of its target.
    pub target: String,
    /// The manner in which it is attached.
    pub manner: String,
    /// Its snapshot, and the way to answer it.
    pub save_reply: SaveReply<SavedAttachment>,
}

/// What the replacement continues.
#[derive(Debug, Default)]
pub struct HandoverAcceptance {
    /// Attachments, by the names of their targets.
    pub targets: BTreeSet<String>,
    /// Sessions, by their position among those that were passed.
    pub sessions: BTreeSet<usize>,
}

/// What the old process passes on.
pub struct OutgoingHandover {
    /// The listening sockets, open; the replacement continues to accept on them.
    pub listeners: Vec<PassedListener>,
    /// Attachments that were saved and that the replacement continues.
    pub leaving: Vec<OutgoingAttachment>,
    /// Saved sessions of importers that use devices shared here.
    pub sessions: Vec<SaveReply<Vec<u8>>>,
    /// Targets that the owner has detached.
    pub detached: Vec<String>,
    /// Entries of the configuration that the owner has unshared.
    pub unshared: Vec<String>,
    /// Devices that the owner asked the daemon to share.
    pub requested: Vec<PassedShare>,
    /// Whether the owner has taken down the links to other hosts.
    pub is_down: bool,
}

/// How long each process may take to answer the other if so many attachments and sessions are handed over.
pub fn answer_time(entries: usize) -> Duration {
    let more = ENTRY_TIME_MAX.saturating_mul(u32::try_from(entries).unwrap_or(u32::MAX));
    (ANSWER_TIME_MAX + more).min(ALL_TIME_MAX)
}

/// Sends a word, once there is room for it.
fn say(passage: &MessageSocket, word: &HandoverMessage, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut interests = [PollInterest::room(passage.as_fd())];
    wait(&mut interests, Some(ANSWER_TIME_MAX))?;
    if !interests[0].writable {
        return Err(io::Error::new(io::ErrorKind::TimedOut, "the other process does not listen"));
    }
    passage.send(&serde_json::to_vec(word)?, fd)
}

/// Receives the next known word.
fn hear(passage: &MessageSocket, until: Instant) -> io::Result<(HandoverMessage, Option<OwnedFd>)> {
    loop {
        match hear_any(passage, until)? {
            (HandoverMessage::Unknown, _) => info!("passed over a word of another release of farbus"),
            known => return Ok(known),
        }
    }
}

fn hear_any(passage: &MessageSocket, until: Instant) -> io::Result<(HandoverMessage, Option<OwnedFd>)> {
    let left = until.saturating_duration_since(Instant::now());
    let mut interests = [PollInterest::new(passage.as_fd(), false)];
    wait(&mut interests, Some(left))?;
    if !interests[0].readable {
        return Err(io::Error::new(io::ErrorKind::TimedOut, "the other process does not answer in time"));
    }
    let gone = || io::Error::new(io::ErrorKind::UnexpectedEof, "the other process has ended");
    let PassedMessage { bytes, fd } = passage.receive()?.ok_or_else(gone)?;
    Ok((serde_json::from_slice(&bytes)?, fd))
}

fn unexpected(word: &HandoverMessage) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the other process said what it should not: {word:?}"))
}

/// The old process's end of the passage to its replacement.
pub struct ReplacementPassage {
    passage: MessageSocket,
}

impl ReplacementPassage {
    /// Uses the passage to a process that was started.
    pub fn new(passage: MessageSocket) -> Self {
        Self { passage }
    }

    /// Waits until the replacement has begun.
    ///
    /// # Errors
    /// It did not begin in time.
    pub fn wait(&self) -> io::Result<()> {
        match hear(&self.passage, Instant::now() + BEGINNING_TIME_MAX)? {
            (HandoverMessage::Here, _) => Ok(()),
            (word, _) => Err(unexpected(&word)),
        }
    }

    /// Passes everything on. Returns what the replacement can continue.
    ///
    /// # Errors
    /// The passage failed, or the replacement said something unexpected.
    pub fn pass(&self, passed_on: &OutgoingHandover) -> io::Result<HandoverAcceptance> {
        let until = Instant::now() + answer_time(passed_on.leaving.len() + passed_on.sessions.len());
        // The replacement answers while it is still told: a passage has room for some hundred words.
        thread::scope(|scope| {
            let heard =
                thread::Builder::new().name("handover".into()).spawn_scoped(scope, || self.hear_taken(until))?;
            self.say_all(passed_on)?;
            heard.join().map_err(|_| io::Error::other("the answers of the replacement were not read"))?
        })
    }

    fn say_all(&self, passed_on: &OutgoingHandover) -> io::Result<()> {
        for PassedListener { address, is_secure, listener } in &passed_on.listeners {
            let is_passed = listener.is_passed();
            let word = HandoverMessage::Listener { configured: *address, is_secure: *is_secure, is_passed };
            say(&self.passage, &word, Some(listener.as_fd()))?;
        }
        for OutgoingAttachment { target, manner, save_reply } in &passed_on.leaving {
            let SavedAttachment { snapshot, descriptors, medium } = &save_reply.saved;
            let count = descriptors.len() + medium.iter().len();
            let (target, manner) = (target.clone(), manner.clone());
            let word = HandoverMessage::Attachment { target, manner, descriptors: count, has_medium: medium.is_some() };
            say(&self.passage, &word, Some(memory(snapshot)?.as_fd()))?;
            for open in descriptors.iter().chain(medium) {
                say(&self.passage, &HandoverMessage::Open, Some(open.as_fd()))?;
            }
        }
        for session in &passed_on.sessions {
            say(&self.passage, &HandoverMessage::Session, Some(memory(&session.saved)?.as_fd()))?;
        }
        for target in &passed_on.detached {
            say(&self.passage, &HandoverMessage::Detached { target: target.clone() }, None)?;
        }
        for name in &passed_on.unshared {
            say(&self.passage, &HandoverMessage::Unshared { name: name.clone() }, None)?;
        }
        for PassedShare { words, name, is_named, files, lease, first_in_port } in &passed_on.requested {
            for file in files.iter().chain(lease) {
                say(&self.passage, &HandoverMessage::SharedFile, Some(file.as_fd()))?;
            }
            let (what, name, has_lease) = (words.clone(), name.clone(), lease.is_some());
            let first_in_port = first_in_port.clone().map(Box::new);
            say(
                &self.passage,
                &HandoverMessage::Shared { what, name, is_named: *is_named, has_lease, first_in_port },
                None,
            )?;
        }
        if passed_on.is_down {
            say(&self.passage, &HandoverMessage::Down, None)?;
        }
        say(&self.passage, &HandoverMessage::All, None)
    }

    /// What the replacement can continue, as it says one after the other.
    fn hear_taken(&self, until: Instant) -> io::Result<HandoverAcceptance> {
        let mut taken = HandoverAcceptance::default();
        loop {
            match hear(&self.passage, until)?.0 {
                HandoverMessage::Taken { target } => drop(taken.targets.insert(target)),
                HandoverMessage::TakenSession { number } => drop(taken.sessions.insert(number)),
                HandoverMessage::Ready => return Ok(taken),
                word => return Err(unexpected(&word)),
            }
        }
    }

    /// Lets the replacement take over.
    ///
    /// # Errors
    /// The replacement has ended.
    pub fn go(&self) -> io::Result<()> {
        say(&self.passage, &HandoverMessage::Go, None)
    }

    /// Tells the replacement that this process continues.
    pub fn stay(&self) {
        // If the word does not arrive, the replacement gives up by itself.
        let _ = say(&self.passage, &HandoverMessage::Stay, None);
    }
}

fn memory(bytes: &[u8]) -> io::Result<OwnedFd> {
    let mut file = std::fs::File::from(memfd_create("snapshot", MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    Ok(file.into())
}

/// Reads a snapshot from memory, up to its longest length.
fn contents(memory: OwnedFd) -> io::Result<Vec<u8>> {
    let file = std::fs::File::from(memory);
    let length = file.metadata()?.len();
    if length > SNAPSHOT_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a snapshot is longer than one may be"));
    }
    let mut bytes = vec![0; length as usize];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 0)?;
    Ok(bytes)
}

/// The replacement's end of the passage to the old process.
pub struct PredecessorPassage {
    passage: MessageSocket,
}

/// What the replacement has once the old process lets it take over.
#[derive(Default)]
pub struct IncomingHandover {
    /// Listening sockets, not to be used before the old process has ended.
    pub listeners: Vec<PassedListener>,
    /// Attachments that have not begun yet.
    pub kept: Vec<ManagedAttachment>,
    /// Targets that stay detached.
    pub detached: BTreeSet<String>,
    /// Entries of the configuration that stay unshared.
    pub unshared: BTreeSet<String>,
    /// Devices that the owner asked the daemon to share.
    pub requested: Vec<PassedShare>,
    /// Whether the links to other hosts stay down.
    pub is_down: bool,
}

/// Restores a saved session, if this process can continue it.
pub type SessionRestorer<'a> = &'a dyn Fn(&[u8]) -> io::Result<()>;

impl PredecessorPassage {
    /// Uses the passage that this process was started with.
    pub fn new(passage: MessageSocket) -> Self {
        Self { passage }
    }

    /// Says that this process has begun, takes what the old process passes on, and waits for `go`. The broker knows
    /// `ports`.
    ///
    /// # Errors
    /// The old process continues, has ended, or said something unexpected: this process is not needed.
    pub fn inherit(
        &self,
        config: &DaemonConfig,
        keeping: &AttachmentContext<'_>,
        ports: &[u32],
        take_session: SessionRestorer<'_>,
    ) -> io::Result<IncomingHandover> {
        say(&self.passage, &HandoverMessage::Here, None)?;
        let mut inherited = IncomingHandover::default();
        let (mut count, mut sessions) = (0, 0);
        let mut shared_files: Vec<Arc<OwnedFd>> = Vec::new();
        let requests: BTreeMap<String, &AttachRequest> =
            config.all_attachments().map(|request| (request.target.to_string(), request)).collect();
        // The old process's attachments come to rest first. It knows how many there are, and ends what takes too long.
        let mut until = Instant::now() + 2 * ALL_TIME_MAX;
        loop {
            count += 1;
            if count > 1 {
                until = Instant::now() + ANSWER_TIME_MAX;
            }
            if count > PARCELS_MAX {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "nobody has so many attachments"));
            }
            match hear(&self.passage, until)? {
                (HandoverMessage::Listener { configured: address, is_secure, is_passed }, Some(socket)) => {
                    let listener =
                        if is_passed { TcpLinkListener::passed(socket.into()) } else { TcpLinkListener::over(socket) };
                    inherited.listeners.push(PassedListener { address, is_secure, listener });
                }
                (HandoverMessage::Attachment { target, manner, descriptors: count, has_medium }, Some(memory)) => {
                    let mut descriptors = Vec::new();
                    for _ in 0..count.min(DESCRIPTORS_MAX) {
                        let (HandoverMessage::Open, Some(open)) = hear(&self.passage, until)? else {
                            return Err(io::Error::new(io::ErrorKind::InvalidData, "what is open of it comes with it"));
                        };
                        descriptors.push(open);
                    }
                    let medium = if has_medium { descriptors.pop() } else { None };
                    let kept = contents(memory).map_err(|error| error.to_string()).and_then(|snapshot| {
                        let request = requests.get(&target).ok_or("the configuration does not name it any more")?;
                        if request.manner(keeping.system) != manner {
                            return Err(format!("it was attached in another manner: {manner}"));
                        }
                        let saved = SavedAttachment { snapshot, descriptors, medium };
                        ManagedAttachment::restored((*request).clone(), keeping, ports, saved)
                            .map_err(|error| error.to_string())
                    });
                    match kept {
                        Ok(kept) => {
                            say(&self.passage, &HandoverMessage::Taken { target }, None)?;
                            inherited.kept.push(kept);
                        }
                        Err(error) => warn!(target, error, "it is begun anew"),
                    }
                }
                (HandoverMessage::Session, Some(memory)) => {
                    match contents(memory).and_then(|saved| take_session(&saved)) {
                        Ok(()) => say(&self.passage, &HandoverMessage::TakenSession { number: sessions }, None)?,
                        Err(error) => warn!(%error, "a session that uses what is shared begins anew"),
                    }
                    sessions += 1;
                }
                (HandoverMessage::Detached { target }, _) => drop(inherited.detached.insert(target)),
                (HandoverMessage::Unshared { name }, _) => drop(inherited.unshared.insert(name)),
                (HandoverMessage::SharedFile, Some(file)) => shared_files.push(Arc::new(file)),
                (HandoverMessage::Shared { what: words, name, is_named, has_lease, first_in_port }, _) => {
                    let mut files = std::mem::take(&mut shared_files);
                    let lease = if has_lease { files.pop() } else { None };
                    let first_in_port = first_in_port.map(|first| *first);
                    inherited.requested.push(PassedShare { words, name, is_named, files, lease, first_in_port });
                }
                (HandoverMessage::Down, _) => inherited.is_down = true,
                (HandoverMessage::All, _) => break,
                (word, _) => return Err(unexpected(&word)),
            }
        }
        say(&self.passage, &HandoverMessage::Ready, None)?;
        match hear(&self.passage, Instant::now() + ALL_TIME_MAX)? {
            (HandoverMessage::Go, _) => Ok(inherited),
            (HandoverMessage::Stay, _) => Err(io::Error::other("the other process goes on")),
            (word, _) => Err(unexpected(&word)),
        }
    }

    /// Waits until the old process and its broker have ended and cleaned up.
    pub fn wait_for_end(&self) {
        let until = Instant::now() + END_TIME_MAX;
        match hear(&self.passage, until) {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                warn!("the process before this one has not ended; what it shares is tried again later");
            }
            _ => info!("the process before this one has ended"),
        }
    }
}

#[cfg(test)]
mod tests {
    use farbus_io_net::link::ThreadWaker;

    use super::*;
    use crate::modules::ReadyModules;
    use farbus::broker::SystemAccess;

    fn keeping(ready_modules: &ReadyModules) -> AttachmentContext<'_> {
        AttachmentContext { config: "/etc/farbus/farbus.toml".as_ref(), ready_modules, system: &SystemAccess::Own }
    }

    use farbus_io_net::saving::SaveRequester;

    fn both() -> (ReplacementPassage, PredecessorPassage) {
        let (ours, theirs) = MessageSocket::pair().unwrap();
        (ReplacementPassage::new(ours), PredecessorPassage::new(MessageSocket::over(theirs)))
    }

    fn passed_on() -> OutgoingHandover {
        let listener = TcpLinkListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = Some("127.0.0.1:0".parse().unwrap());
        let listeners = vec![PassedListener { address, is_secure: true, listener }];
        let detached = vec!["lab3:3240/disk".into()];
        let file: Arc<OwnedFd> = Arc::new(memory(b"disk").unwrap());
        let share = |name: &str, lease| {
            let (words, name, files) = ("disk:/a.img".to_owned(), name.to_owned(), vec![Arc::clone(&file)]);
            PassedShare { words, name, is_named: true, files, lease, first_in_port: None }
        };
        let requested = vec![share("kept", None), share("leased", Some(Arc::clone(&file)))];
        let unshared = vec!["music".into()];
        let (leaving, sessions) = (Vec::new(), Vec::new());
        OutgoingHandover { listeners, leaving, sessions, detached, unshared, requested, is_down: true }
    }

    #[test]
    fn sockets_and_detached_targets_are_inherited_after_go() {
        let (replacement, predecessor) = both();
        let new = thread::spawn(move || {
            predecessor.inherit(&DaemonConfig::default(), &keeping(&ReadyModules::default()), &[], &|_| Ok(()))
        });
        replacement.wait().unwrap();
        let passed_on = passed_on();
        assert!(replacement.pass(&passed_on).unwrap().targets.is_empty());
        replacement.go().unwrap();
        let inherited = new.join().unwrap().unwrap();
        let shares = inherited.requested.iter().map(|it| (it.name.as_str(), it.files.len(), it.lease.is_some()));
        assert_eq!(shares.collect::<Vec<_>>(), [("kept", 1, false), ("leased", 1, true)]);
        assert!(inherited.unshared.contains("music"));
        let [PassedListener { address, is_secure: true, listener }] = &inherited.listeners[..] else {
            panic!("one socket")
        };
        assert_eq!(address, &passed_on.listeners[0].address);
        assert_eq!(listener.address().unwrap(), passed_on.listeners[0].listener.address().unwrap());
        assert!(inherited.detached.contains("lab3:3240/disk") && inherited.is_down);
    }

    #[test]
    fn replacement_inherits_nothing_if_the_old_process_stays_or_ends() {
        let (replacement, predecessor) = both();
        let new = thread::spawn(move || {
            predecessor
                .inherit(&DaemonConfig::default(), &keeping(&ReadyModules::default()), &[], &|_| Ok(()))
                .map(drop)
        });
        replacement.wait().unwrap();
        replacement.pass(&passed_on()).unwrap();
        replacement.stay();
        assert!(new.join().unwrap().is_err());
        let (replacement, predecessor) = both();
        let new = thread::spawn(move || {
            predecessor
                .inherit(&DaemonConfig::default(), &keeping(&ReadyModules::default()), &[], &|_| Ok(()))
                .map(drop)
        });
        replacement.wait().unwrap();
        drop(replacement);
        assert_eq!(new.join().unwrap().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        let (replacement, predecessor) = both();
        drop(predecessor);
        assert!(replacement.wait().is_err(), "and one that does not come up is not waited for");
    }

    #[test]
    fn more_sessions_than_a_passage_has_room_for_are_handed_over() {
        const SESSIONS: usize = 1000;
        let (replacement, predecessor) = both();
        let new = thread::spawn(move || {
            predecessor.inherit(&DaemonConfig::default(), &keeping(&ReadyModules::default()), &[], &|_| Ok(()))
        });
        replacement.wait().unwrap();
        let wake = Arc::new(ThreadWaker::new().unwrap());
        let taken = thread::scope(|scope| {
            let save = |_| {
                let requester = SaveRequester::new(Arc::clone(&wake));
                let reply = requester.ask();
                scope.spawn(move || requester.requested().map(|request| request.part(b"session".to_vec())));
                reply.wait(Duration::from_secs(60)).unwrap()
            };
            let sessions = (0..SESSIONS).map(save).collect();
            replacement.pass(&OutgoingHandover { sessions, ..passed_on() }).unwrap()
        });
        assert_eq!(taken.sessions.len(), SESSIONS);
        replacement.go().unwrap();
        assert!(new.join().unwrap().is_ok());
        assert!(answer_time(SESSIONS) > answer_time(1) && answer_time(usize::MAX) == ALL_TIME_MAX);
    }

    const WORDS_OF_0_1_0: [&str; 9] = [
        r#"{"say":"here"}"#,
        r#"{"say":"listener","asked":"127.0.0.1:3240","is_secure":false,"is_passed":true}"#,
        r#"{"say":"attachment","target":"lab3:3240/disk","manner":"kernel","descriptors":1}"#,
        r#"{"say":"open"}"#,
        r#"{"say":"session"}"#,
        r#"{"say":"detached","target":"lab3:3240/disk"}"#,
        r#"{"say":"down"}"#,
        r#"{"say":"all"}"#,
        r#"{"say":"go"}"#,
    ];

    #[test]
    fn words_of_the_previous_release_are_read_and_written_the_same() {
        for text in WORDS_OF_0_1_0 {
            let word: HandoverMessage = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&word).unwrap(), text);
        }
        for (word, text) in [
            (
                HandoverMessage::Taken { target: "lab3:3240/disk".into() },
                r#"{"say":"taken","target":"lab3:3240/disk"}"#,
            ),
            (HandoverMessage::TakenSession { number: 0 }, r#"{"say":"taken_session","number":0}"#),
            (HandoverMessage::Ready, r#"{"say":"ready"}"#),
            (HandoverMessage::Stay, r#"{"say":"stay"}"#),
        ] {
            assert_eq!(serde_json::to_string(&word).unwrap(), text);
        }
    }

    #[test]
    fn words_and_fields_of_another_release_are_skipped() {
        let (replacement, predecessor) = both();
        let (say_more, socket) = (
            |passage: &MessageSocket, text: &str, fd: Option<BorrowedFd<'_>>| {
                passage.send(text.as_bytes(), fd).unwrap()
            },
            std::os::unix::net::UnixStream::pair().unwrap().0,
        );
        say_more(&replacement.passage, r#"{"say":"identity","of":"lab3:3240/disk","id":[1,2]}"#, Some(socket.as_fd()));
        say_more(&replacement.passage, r#"{"say":"detached","target":"lab3:3240/disk","since":5}"#, None);
        say_more(&predecessor.passage, r#"{"say":"version","number":14}"#, None);
        let new = thread::spawn(move || {
            predecessor.inherit(&DaemonConfig::default(), &keeping(&ReadyModules::default()), &[], &|_| Ok(()))
        });
        replacement.wait().unwrap();
        replacement.pass(&passed_on()).unwrap();
        replacement.go().unwrap();
        assert!(new.join().unwrap().unwrap().detached.contains("lab3:3240/disk"));
    }

    #[test]
    fn attachment_with_an_invalid_snapshot_is_not_taken() {
        let (ours, theirs) = MessageSocket::pair().unwrap();
        let predecessor = PredecessorPassage::new(MessageSocket::over(theirs));
        let text = "[[attach]]\ntarget = '127.0.0.1:9/disk'\nvia = 'kernel'";
        let config = DaemonConfig::parse_file(std::path::Path::new("farbus.toml"), text).unwrap();
        let target = config.attachments[0].target.to_string();
        let new =
            thread::spawn(move || predecessor.inherit(&config, &keeping(&ReadyModules::default()), &[3], &|_| Ok(())));
        let (socket, _) = std::os::unix::net::UnixStream::pair().unwrap();
        let (manner, descriptors) = ("kernel".to_owned(), 1);
        let word = HandoverMessage::Attachment { target, manner, descriptors, has_medium: false };
        say(&ours, &word, Some(memory(b"no snapshot").unwrap().as_fd())).unwrap();
        say(&ours, &HandoverMessage::Open, Some(socket.as_fd())).unwrap();
        say(&ours, &HandoverMessage::All, None).unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        assert_eq!(hear(&ours, until).unwrap().0, HandoverMessage::Here);
        assert_eq!(hear(&ours, until).unwrap().0, HandoverMessage::Ready, "nothing was taken");
        say(&ours, &HandoverMessage::Go, None).unwrap();
        assert!(new.join().unwrap().unwrap().kept.is_empty());
    }

    /// What the old process says, which may have been taken over.
    #[test]
    fn fuzz_handover_words() {
        const WORDS: [&str; 8] = ["null", "-1", "1e99", "\"say\":", "\\u0000", "[[[[[[", "{", "18446744073709551616"];
        crate::fuzzing::fuzz(env!("CARGO_MANIFEST_DIR"), "fuzz_handover_words", |input| {
            let text = input.text(&WORDS_OF_0_1_0, &WORDS);
            let Ok(word) = serde_json::from_str::<HandoverMessage>(&text) else { return };
            if matches!(word, HandoverMessage::Unknown) {
                return;
            }
            let again = serde_json::to_string(&word).unwrap();
            assert_eq!(
                serde_json::to_string(&serde_json::from_str::<HandoverMessage>(&again).unwrap()).unwrap(),
                again
            );
        });
    }
}
