//! A daemon that goes on in the place of another, and loses nothing that is attached.
//!
//! | the old one | the new one |
//! |---|---|
//! | has its half with rights start this program once more | begins as always, gives its rights away: `here` |
//! | its attachments, and its users' sessions, stop and are written down; passes them on, and the sockets that are listened at | reads all of it; says what it can go on with: `taken`, `ready` |
//! | `go`: from here on there is no way back | goes on with what is attached; its links are made anew |
//! | lets go of its shares, ends | once both halves of the old one have: takes the sockets, shares, and goes on with sessions |
//!
//! Whatever goes wrong before `go`, or takes too long, ends the new one, and the old one goes on: its links were never
//! cut.
//!
//! The old process may be of the previous release. Each process passes over a word that it does not know, with its
//! descriptor, and over fields that it does not know; a field that was added later has a default. A word that a reader
//! may not pass over is therefore never added. Release 0.1.0 passes over fields only: the new process says no other
//! words to it than those below.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use farbus_io::link::{Interest, Listener, wait};
use farbus_io::sys::passing::{Parcel, Passage};
use farbus_model::limits::NBD_CONNECTIONS_MAX;
use farbus_session::snapshot::SNAPSHOT_BYTES_MAX;
use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use super::attachment::Kept;
use super::config::Config;
use super::modules::Workshop;
use crate::broker::SystemAccess;
use crate::frontend::Request;
use crate::saving::{SaveReply, Saved};

/// How long the new one may take to begin: a program to load, a key to read.
pub const BEGINNING_TIME_MAX: Duration = Duration::from_secs(10);
/// How long each may take to answer the other from then on. The kernel waits meanwhile, and its disks give a command 30
/// s.
pub const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);
/// How long the old one's end may take: its disks become durable.
const END_TIME_MAX: Duration = Duration::from_secs(90);
/// More than a configuration names.
const PARCELS_MAX: usize = 4096;
/// More than one attachment has open: an NBD server's clients, and its entrance.
const DESCRIPTORS_MAX: usize = 1 + NBD_CONNECTIONS_MAX;

/// What the two say to each other: JSON, and a descriptor with it where one is said.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
enum Word {
    /// New: it has begun, and has given its rights away.
    Here,
    /// Old: a socket that is listened at, as the configuration says it, or that was passed and is not in use.
    Listener { asked: Option<SocketAddr>, is_secure: bool, is_passed: bool },
    /// Old: what is attached in this manner; its snapshot. So many descriptors follow.
    Attachment { target: String, manner: String, descriptors: usize },
    /// Old: what is open of it.
    Open,
    /// Old: a session of a host that uses what is shared; its snapshot.
    Session,
    /// Old: its owner has let go of it.
    Detached { target: String },
    /// Old: its owner has taken the links to other hosts down.
    Down,
    /// Old: that was all.
    All,
    /// New: it can go on with that.
    Taken { target: String },
    /// New: it can go on with that session.
    TakenSession { number: usize },
    /// New: it can begin.
    Ready,
    /// Old: it has let go.
    Go,
    /// Old: it does not.
    Stay,
    /// What another release says, which means nothing here.
    #[serde(other, skip_serializing)]
    Unknown,
}

/// A socket that is listened at.
pub struct Passed {
    /// As the configuration says it; none if it is not in use.
    pub asked: Option<SocketAddr>,
    /// For paired hosts.
    pub is_secure: bool,
    /// Another handle on it.
    pub listener: Listener,
}

/// An attachment that waits for what becomes of it.
pub struct Leaving {
    /// Its name.
    pub target: String,
    /// How it is attached.
    pub manner: String,
    /// It.
    pub save_reply: SaveReply<Saved>,
}

/// What the new process goes on with.
#[derive(Debug, Default)]
pub struct Taken {
    /// Attachments, by their names.
    pub targets: BTreeSet<String>,
    /// Sessions, by their places among those that were passed on.
    pub sessions: BTreeSet<usize>,
}

/// What the old one passes on.
pub struct Estate {
    /// Sockets.
    pub listeners: Vec<Passed>,
    /// Attachments.
    pub leaving: Vec<Leaving>,
    /// Sessions of those who use what is shared.
    pub sessions: Vec<SaveReply<Vec<u8>>>,
    /// Those that its owner let go of.
    pub detached: Vec<String>,
    /// Whether he has taken the links to other hosts down.
    pub is_down: bool,
}

fn say(passage: &Passage, word: &Word, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
    passage.send(&serde_json::to_vec(word)?, fd)
}

/// The next word that is known.
fn hear(passage: &Passage, until: Instant) -> io::Result<(Word, Option<OwnedFd>)> {
    loop {
        match hear_any(passage, until)? {
            (Word::Unknown, _) => info!("passed over a word of another release of farbus"),
            known => return Ok(known),
        }
    }
}

fn hear_any(passage: &Passage, until: Instant) -> io::Result<(Word, Option<OwnedFd>)> {
    let left = until.saturating_duration_since(Instant::now());
    let mut interests = [Interest::new(passage.as_fd(), false)];
    wait(&mut interests, Some(left))?;
    if !interests[0].readable {
        return Err(io::Error::new(io::ErrorKind::TimedOut, "the other process does not answer in time"));
    }
    let gone = || io::Error::new(io::ErrorKind::UnexpectedEof, "the other process has ended");
    let Parcel { bytes, fd } = passage.receive()?.ok_or_else(gone)?;
    Ok((serde_json::from_slice(&bytes)?, fd))
}

fn unexpected(word: &Word) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the other process said what it should not: {word:?}"))
}

/// The old one's way to the new one.
pub struct Replacement {
    passage: Passage,
}

impl Replacement {
    /// Over the passage to a process that was started.
    pub fn new(passage: Passage) -> Self {
        Self { passage }
    }

    /// Waits until it has begun.
    ///
    /// # Errors
    /// It did not.
    pub fn wait(&self) -> io::Result<()> {
        match hear(&self.passage, Instant::now() + BEGINNING_TIME_MAX)? {
            (Word::Here, _) => Ok(()),
            (word, _) => Err(unexpected(&word)),
        }
    }

    /// Passes all on; what goes on there.
    ///
    /// # Errors
    /// What the system says, or the other process.
    pub fn pass(&self, estate: &Estate) -> io::Result<Taken> {
        for Passed { asked, is_secure, listener } in &estate.listeners {
            let is_passed = listener.is_passed();
            let word = Word::Listener { asked: *asked, is_secure: *is_secure, is_passed };
            say(&self.passage, &word, Some(listener.as_fd()))?;
        }
        for Leaving { target, manner, save_reply } in &estate.leaving {
            let Saved { snapshot, descriptors } = &save_reply.saved;
            let (target, manner) = (target.clone(), manner.clone());
            let word = Word::Attachment { target, manner, descriptors: descriptors.len() };
            say(&self.passage, &word, Some(memory(snapshot)?.as_fd()))?;
            for open in descriptors {
                say(&self.passage, &Word::Open, Some(open.as_fd()))?;
            }
        }
        for session in &estate.sessions {
            say(&self.passage, &Word::Session, Some(memory(&session.saved)?.as_fd()))?;
        }
        for target in &estate.detached {
            say(&self.passage, &Word::Detached { target: target.clone() }, None)?;
        }
        if estate.is_down {
            say(&self.passage, &Word::Down, None)?;
        }
        say(&self.passage, &Word::All, None)?;
        let until = Instant::now() + ANSWER_TIME_MAX;
        let mut taken = Taken::default();
        loop {
            match hear(&self.passage, until)?.0 {
                Word::Taken { target } => drop(taken.targets.insert(target)),
                Word::TakenSession { number } => drop(taken.sessions.insert(number)),
                Word::Ready => return Ok(taken),
                word => return Err(unexpected(&word)),
            }
        }
    }

    /// Lets go.
    ///
    /// # Errors
    /// The other process has ended.
    pub fn go(&self) -> io::Result<()> {
        say(&self.passage, &Word::Go, None)
    }

    /// Does not.
    pub fn stay(&self) {
        // Should it not hear that, it gives up by itself.
        let _ = say(&self.passage, &Word::Stay, None);
    }
}

fn memory(bytes: &[u8]) -> io::Result<OwnedFd> {
    let mut file = std::fs::File::from(memfd_create("snapshot", MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    Ok(file.into())
}

/// What was written into memory; not more of it than a snapshot may have.
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

/// The new one's way to the old one.
pub struct Predecessor {
    passage: Passage,
}

/// What the new one has, once the old one has let go.
#[derive(Default)]
pub struct TakenOver {
    /// Sockets; none is used before the old one has ended.
    pub listeners: Vec<Passed>,
    /// Attachments, yet to begin.
    pub kept: Vec<Kept>,
    /// Those that stay let go of.
    pub detached: BTreeSet<String>,
    /// Links to other hosts stay down.
    pub is_down: bool,
}

/// What this process is asked of a session: whether it can go on with it.
pub type TakeSession<'a> = &'a dyn Fn(&[u8]) -> io::Result<()>;

impl Predecessor {
    /// Over the passage that this process was started with.
    pub fn new(passage: Passage) -> Self {
        Self { passage }
    }

    /// Says that this process has begun, takes what the other passes on, and waits until that has let go. `ports` are
    /// those that the half with rights knows of.
    ///
    /// # Errors
    /// It stays, has ended, or said what it should not: this process is not needed.
    pub fn inherit(
        &self,
        config: &Config,
        workshop: &Workshop,
        system: &SystemAccess,
        ports: &[u32],
        take_session: TakeSession<'_>,
    ) -> io::Result<TakenOver> {
        say(&self.passage, &Word::Here, None)?;
        let mut inherited = TakenOver::default();
        let (mut count, mut sessions) = (0, 0);
        // The other one's attachments come to rest first.
        let until = Instant::now() + 2 * ANSWER_TIME_MAX;
        loop {
            count += 1;
            if count > PARCELS_MAX {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "nobody has so many attachments"));
            }
            match hear(&self.passage, until)? {
                (Word::Listener { asked, is_secure, is_passed }, Some(socket)) => {
                    let listener = if is_passed { Listener::passed(socket.into()) } else { Listener::over(socket) };
                    inherited.listeners.push(Passed { asked, is_secure, listener });
                }
                (Word::Attachment { target, manner, descriptors: count }, Some(memory)) => {
                    let mut descriptors = Vec::new();
                    for _ in 0..count.min(DESCRIPTORS_MAX) {
                        let (Word::Open, Some(open)) = hear(&self.passage, until)? else {
                            return Err(io::Error::new(io::ErrorKind::InvalidData, "what is open of it comes with it"));
                        };
                        descriptors.push(open);
                    }
                    let kept = contents(memory).map_err(|error| error.to_string()).and_then(|snapshot| {
                        let request = wanted(config, &target).ok_or("the configuration does not name it any more")?;
                        if request.manner(system) != manner {
                            return Err(format!("it was attached in another manner: {manner}"));
                        }
                        let saved = Saved { snapshot, descriptors };
                        Kept::restored(request, workshop, system, ports, saved).map_err(|error| error.to_string())
                    });
                    match kept {
                        Ok(kept) => {
                            say(&self.passage, &Word::Taken { target }, None)?;
                            inherited.kept.push(kept);
                        }
                        Err(error) => warn!(target, error, "it is begun anew"),
                    }
                }
                (Word::Session, Some(memory)) => {
                    match contents(memory).and_then(|saved| take_session(&saved)) {
                        Ok(()) => say(&self.passage, &Word::TakenSession { number: sessions }, None)?,
                        Err(error) => warn!(%error, "a session that uses what is shared begins anew"),
                    }
                    sessions += 1;
                }
                (Word::Detached { target }, _) => drop(inherited.detached.insert(target)),
                (Word::Down, _) => inherited.is_down = true,
                (Word::All, _) => break,
                (word, _) => return Err(unexpected(&word)),
            }
        }
        say(&self.passage, &Word::Ready, None)?;
        match hear(&self.passage, Instant::now() + ANSWER_TIME_MAX)? {
            (Word::Go, _) => Ok(inherited),
            (Word::Stay, _) => Err(io::Error::other("the other process goes on")),
            (word, _) => Err(unexpected(&word)),
        }
    }

    /// Waits until the other process has ended, and put in order what it leaves.
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

fn wanted(config: &Config, target: &str) -> Option<Request> {
    config.all_attachments().find(|request| request.target.to_string() == target).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    fn both() -> (Replacement, Predecessor) {
        let (ours, theirs) = Passage::pair().unwrap();
        (Replacement::new(ours), Predecessor::new(Passage::over(theirs)))
    }

    fn estate() -> Estate {
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let asked = Some("127.0.0.1:0".parse().unwrap());
        let listeners = vec![Passed { asked, is_secure: true, listener }];
        let detached = vec!["lab3:3240/disk".into()];
        Estate { listeners, leaving: Vec::new(), sessions: Vec::new(), detached, is_down: true }
    }

    #[test]
    fn what_is_listened_at_and_what_was_let_go_of_is_inherited_once_the_other_lets_go() {
        let (replacement, predecessor) = both();
        let new = thread::spawn(move || {
            predecessor.inherit(&Config::default(), &Workshop::default(), &SystemAccess::Own, &[], &|_| Ok(()))
        });
        replacement.wait().unwrap();
        let estate = estate();
        assert!(replacement.pass(&estate).unwrap().targets.is_empty());
        replacement.go().unwrap();
        let inherited = new.join().unwrap().unwrap();
        let [Passed { asked, is_secure: true, listener }] = &inherited.listeners[..] else { panic!("one socket") };
        assert_eq!(asked, &estate.listeners[0].asked);
        assert_eq!(listener.address().unwrap(), estate.listeners[0].listener.address().unwrap());
        assert!(inherited.detached.contains("lab3:3240/disk") && inherited.is_down);
    }

    #[test]
    fn nothing_is_inherited_from_one_that_stays_or_ends() {
        let (replacement, predecessor) = both();
        let new = thread::spawn(move || {
            predecessor
                .inherit(&Config::default(), &Workshop::default(), &SystemAccess::Own, &[], &|_| Ok(()))
                .map(drop)
        });
        replacement.wait().unwrap();
        replacement.pass(&estate()).unwrap();
        replacement.stay();
        assert!(new.join().unwrap().is_err());
        let (replacement, predecessor) = both();
        let new = thread::spawn(move || {
            predecessor
                .inherit(&Config::default(), &Workshop::default(), &SystemAccess::Own, &[], &|_| Ok(()))
                .map(drop)
        });
        replacement.wait().unwrap();
        drop(replacement);
        assert_eq!(new.join().unwrap().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        let (replacement, predecessor) = both();
        drop(predecessor);
        assert!(replacement.wait().is_err(), "and one that does not come up is not waited for");
    }

    /// What release 0.1.0 says, byte for byte.
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
            let word: Word = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&word).unwrap(), text);
        }
        for (word, text) in [
            (Word::Taken { target: "lab3:3240/disk".into() }, r#"{"say":"taken","target":"lab3:3240/disk"}"#),
            (Word::TakenSession { number: 0 }, r#"{"say":"taken_session","number":0}"#),
            (Word::Ready, r#"{"say":"ready"}"#),
            (Word::Stay, r#"{"say":"stay"}"#),
        ] {
            assert_eq!(serde_json::to_string(&word).unwrap(), text);
        }
    }

    #[test]
    fn words_and_fields_of_another_release_are_passed_over() {
        let (replacement, predecessor) = both();
        let (say_more, socket) = (
            |passage: &Passage, text: &str, fd: Option<BorrowedFd<'_>>| passage.send(text.as_bytes(), fd).unwrap(),
            std::os::unix::net::UnixStream::pair().unwrap().0,
        );
        say_more(&replacement.passage, r#"{"say":"identity","of":"lab3:3240/disk","id":[1,2]}"#, Some(socket.as_fd()));
        say_more(&replacement.passage, r#"{"say":"detached","target":"lab3:3240/disk","since":5}"#, None);
        say_more(&predecessor.passage, r#"{"say":"version","number":14}"#, None);
        let new = thread::spawn(move || {
            predecessor.inherit(&Config::default(), &Workshop::default(), &SystemAccess::Own, &[], &|_| Ok(()))
        });
        replacement.wait().unwrap();
        replacement.pass(&estate()).unwrap();
        replacement.go().unwrap();
        assert!(new.join().unwrap().unwrap().detached.contains("lab3:3240/disk"));
    }

    #[test]
    fn a_snapshot_that_makes_no_sense_is_begun_anew() {
        let (ours, theirs) = Passage::pair().unwrap();
        let predecessor = Predecessor::new(Passage::over(theirs));
        let text = "[[attach]]\ntarget = '127.0.0.1:9/disk'\nvia = 'kernel'";
        let config = Config::parse_file(std::path::Path::new("farbus.toml"), text).unwrap();
        let target = config.attachments[0].target.to_string();
        let new = thread::spawn(move || {
            predecessor.inherit(&config, &Workshop::default(), &SystemAccess::Own, &[3], &|_| Ok(()))
        });
        let (socket, _) = std::os::unix::net::UnixStream::pair().unwrap();
        let (manner, descriptors) = ("kernel".to_owned(), 1);
        let word = Word::Attachment { target, manner, descriptors };
        say(&ours, &word, Some(memory(b"no snapshot").unwrap().as_fd())).unwrap();
        say(&ours, &Word::Open, Some(socket.as_fd())).unwrap();
        say(&ours, &Word::All, None).unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        assert_eq!(hear(&ours, until).unwrap().0, Word::Here);
        assert_eq!(hear(&ours, until).unwrap().0, Word::Ready, "nothing was taken");
        say(&ours, &Word::Go, None).unwrap();
        assert!(new.join().unwrap().unwrap().kept.is_empty());
    }
}
