//! What is remembered of swaps: which of two media the device is.
//!
//! A file for each swap in the folder `swaps` of the host's state. Its first line says which media; each line after it
//! how far the swap came, and the last one counts. A line is made durable before whatever it says is relied on; one
//! that a power cut tore has never been said. The file has room for all its lines from the start, zeros that were
//! written: to say something changes nothing but data, so that the file system has nothing else to make durable, for
//! which everybody who writes there would wait.

use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use farbus_io::trust::{Access, DeviceId, Folder, StateFolder};
use farbus_session::block::swap::{Journal, Milestone};
use serde::{Deserialize, Serialize};

/// The folder in the host's state.
const FOLDER: &str = "swaps";
/// What a file's name ends with.
const SUFFIX: &str = "journal";
/// Room behind the first line, bytes. When the disk is full a line can be written all the same.
const ROOM_BYTES: usize = 4096;
/// A journal has a few lines; what is longer is none.
const JOURNAL_BYTES_MAX: u64 = 64 << 10;

/// One of the two media, as it is found again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Medium {
    /// Where it is: an absolute path as it was given, or `memory:SIZE`.
    pub at: PathBuf,
    /// A file's number on its file system. Another file at the same path is another medium.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inode: Option<u64>,
    /// When the file was made, nanoseconds since 1970, where its file system knows: numbers are given again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub born_ns: Option<u64>,
}

impl Medium {
    /// The medium at a path. A file that is not there is one that is nowhere.
    pub fn at(path: &Path) -> Self {
        let at = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let about = fs::metadata(&at).ok().filter(fs::Metadata::is_file);
        let inode = about.as_ref().map(MetadataExt::ino);
        let born = about.and_then(|about| about.created().ok()?.duration_since(UNIX_EPOCH).ok());
        Self { at, inode, born_ns: born.and_then(|born| born.as_nanos().try_into().ok()) }
    }

    /// A medium that is no file.
    pub fn called(name: &str) -> Self {
        Self { at: name.into(), inode: None, born_ns: None }
    }

    /// Whether both are the same: the same file, whatever way leads to it, or the same device.
    fn is(&self, other: &Medium) -> bool {
        let real = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        (self.inode, self.born_ns) == (other.inode, other.born_ns)
            && (self.at == other.at || real(&self.at) == real(&other.at))
    }
}

/// The first line of a journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Header {
    from: Medium,
    to: Medium,
    /// The devices that are on the first, as they are once they are on the second.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    devices: Vec<MovedDevice>,
}

/// A device whose medium a swap exchanges.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MovedDevice {
    /// The device's id, which stays.
    pub id: DeviceId,
    /// Its generation once it has moved.
    pub generation: u64,
}

/// Devices that a swap has moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Where they are now.
    pub to: Medium,
    /// The devices on that medium.
    pub devices: Vec<MovedDevice>,
}

/// The lines after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Line {
    Copying,
    Switched,
    Abandoned,
}

/// What is remembered of one swap.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    /// Later swaps have higher numbers.
    number: u64,
    header: Header,
    /// The last line; none if nothing had been done.
    line: Option<Line>,
}

/// What the swaps of this host say of a medium.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MediumStatus {
    /// Nothing that is against using it.
    Fine,
    /// The device that it was is another medium now; what it holds is old.
    MovedTo(PathBuf),
    /// It holds a part of what another one holds.
    UnfinishedCopyOf(PathBuf),
}

impl MediumStatus {
    /// Why a medium should not be used, and what to type.
    pub fn objection(&self, path: &Path) -> Option<String> {
        let path = path.display();
        match self {
            MediumStatus::Fine => None,
            MediumStatus::MovedTo(to) => Some(format!(
                "{path} is old: 'farbus swap' moved its device to {to}\n  use block:{to} instead; \
                 to use the old one all the same, type: farbus swap --forget {path}",
                to = to.display()
            )),
            MediumStatus::UnfinishedCopyOf(of) => Some(format!(
                "{path} is an unfinished copy of {of}: 'farbus swap' was interrupted\n  use {of} and swap again, \
                 which continues; to use {path} all the same, type: farbus swap --forget {path}",
                of = of.display()
            )),
        }
    }
}

/// The journals of a host.
#[derive(Clone, Debug)]
pub struct Journals {
    state: Folder,
}

/// A journal that is begun: [`Notes`] writes it.
#[derive(Debug)]
pub struct Begun {
    /// To go on with.
    pub file: File,
    folder: StateFolder,
    name: String,
    /// Whether the destination has a part of the copy already.
    pub resumes: bool,
}

impl Begun {
    /// There is no swap after all.
    pub fn withdraw(self) {
        // If it stays, it says nothing: it has no line.
        let _ = self.folder.remove(&self.name);
    }
}

impl Journals {
    /// Those of this user.
    ///
    /// # Errors
    /// If there is no folder for them.
    pub fn of_user() -> io::Result<Self> {
        Ok(Self { state: Folder::of_user().map_err(io::Error::other)? })
    }

    /// Those of the host whose state this folder has.
    pub fn of(state: &Path) -> Self {
        Self { state: Folder::at(state) }
    }

    /// Begins that of a swap; nothing is said by it yet.
    ///
    /// # Errors
    /// What the system says of the folder.
    pub fn begin(&self, from: &Medium, to: &Medium) -> io::Result<Begun> {
        self.begin_of(from, to, &[])
    }

    /// The same; it moves these devices.
    ///
    /// # Errors
    /// What the system says of the folder.
    pub fn begin_of(&self, from: &Medium, to: &Medium, devices: &[MovedDevice]) -> io::Result<Begun> {
        let folder = self.state.opened_or_made().map_err(io::Error::other)?;
        let folder = folder.subfolder_or_make(FOLDER).map_err(io::Error::other)?;
        let entries = entries(&folder)?;
        let resumes = entries.iter().rfind(|entry| entry.line.is_some() && entry.touches(to)).is_some_and(|entry| {
            entry.header.from.is(from) && entry.header.to.is(to) && entry.line != Some(Line::Switched)
        });
        let mut number = entries.last().map_or(1, |entry| entry.number + 1);
        let (mut file, name) = loop {
            let name = name_of(number);
            match folder.make_file(&name).map_err(io::Error::other)? {
                Some(file) => break (file, name),
                None => number += 1,
            }
        };
        let mut line = serde_json::to_vec(&Header { from: from.clone(), to: to.clone(), devices: devices.to_vec() })?;
        line.push(b'\n');
        line.resize(line.len() + ROOM_BYTES, 0);
        file.write_all(&line)?;
        file.sync_all()?;
        folder.sync().map_err(io::Error::other)?;
        for past in entries.iter().filter(|past| past.is_overruled(&entries)) {
            let _ = folder.remove(&name_of(past.number));
        }
        Ok(Begun { file, folder, name, resumes })
    }

    /// What is said of a medium.
    ///
    /// # Errors
    /// If the journals cannot be read.
    pub fn status(&self, medium: &Medium) -> io::Result<MediumStatus> {
        let entries = self.folder()?.map_or_else(|| Ok(Vec::new()), |folder| entries(&folder))?;
        Ok(status(&entries, medium))
    }

    /// The devices that swaps have moved, the oldest swap first.
    ///
    /// # Errors
    /// If the journals cannot be read.
    pub fn moved(&self) -> io::Result<Vec<Moved>> {
        let entries = self.folder()?.map_or_else(|| Ok(Vec::new()), |folder| entries(&folder))?;
        let switched = entries.into_iter().filter(|entry| entry.line == Some(Line::Switched));
        let moved = switched.map(|Entry { header, .. }| Moved { to: header.to, devices: header.devices });
        Ok(moved.filter(|moved| !moved.devices.is_empty()).collect())
    }

    /// Forgets whatever is against using a medium; says whether there was something.
    ///
    /// # Errors
    /// If a journal cannot be removed.
    pub fn forget(&self, medium: &Medium) -> io::Result<bool> {
        let Some(folder) = self.folder()? else { return Ok(false) };
        let mut entries = entries(&folder)?;
        let mut forgotten = false;
        while status(&entries, medium) != MediumStatus::Fine {
            let at = entries.iter().rposition(|entry| entry.line.is_some() && entry.touches(medium));
            let Some(at) = at else { break };
            folder.remove(&name_of(entries.remove(at).number)).map_err(io::Error::other)?;
            forgotten = true;
        }
        Ok(forgotten)
    }

    /// Where they are, if there were any.
    fn folder(&self) -> io::Result<Option<StateFolder>> {
        let state = self.state.opened().map_err(io::Error::other)?;
        state.map_or(Ok(None), |state| state.subfolder(FOLDER)).map_err(io::Error::other)
    }
}

fn name_of(number: u64) -> String {
    format!("{number:08}.{SUFFIX}")
}

/// All that can be read, the oldest first.
fn entries(folder: &StateFolder) -> io::Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for name in folder.names().map_err(io::Error::other)? {
        let path = Path::new(&name);
        let is_journal = path.extension().is_some_and(|extension| extension == SUFFIX);
        let number = path.file_stem().and_then(|stem| stem.to_str()?.parse().ok()).filter(|_| is_journal);
        let Some(number) = number else { continue };
        let Some(file) = folder.file(&name, Access::Read).map_err(io::Error::other)? else { continue };
        let mut bytes = Vec::new();
        file.take(JOURNAL_BYTES_MAX + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 <= JOURNAL_BYTES_MAX
            && let Some(entry) = Entry::read(number, &bytes)
        {
            entries.push(entry);
        }
    }
    entries.sort_by_key(|entry| entry.number);
    Ok(entries)
}

impl Entry {
    /// `None` for one that was never begun.
    fn read(number: u64, bytes: &[u8]) -> Option<Self> {
        // What has no end was torn.
        let mut lines = bytes.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n"));
        let header = serde_json::from_slice(lines.next()?).ok()?;
        let line = lines.filter_map(|line| serde_json::from_slice(line).ok()).next_back();
        Some(Self { number, header, line })
    }

    fn touches(&self, medium: &Medium) -> bool {
        self.header.from.is(medium) || self.header.to.is(medium)
    }

    /// Whether a later one says something of both its media.
    fn is_overruled(&self, all: &[Entry]) -> bool {
        let said_later = |medium: &Medium| {
            all.iter()
                .any(|entry| entry.number > self.number && entry.line == Some(Line::Switched) && entry.touches(medium))
        };
        said_later(&self.header.from) && said_later(&self.header.to)
    }
}

/// The last that was said of a medium counts.
fn status(entries: &[Entry], medium: &Medium) -> MediumStatus {
    let last = entries.iter().rfind(|entry| entry.line.is_some() && entry.touches(medium));
    match last {
        Some(Entry { header, line: Some(Line::Switched), .. }) if header.from.is(medium) => {
            MediumStatus::MovedTo(header.to.at.clone())
        }
        Some(Entry { header, line: Some(Line::Copying | Line::Abandoned), .. }) if header.to.is(medium) => {
            MediumStatus::UnfinishedCopyOf(header.from.at.clone())
        }
        _ => MediumStatus::Fine,
    }
}

/// Refuses a medium that a swap left behind.
///
/// # Errors
/// A sentence that says what to type.
pub fn check(path: &Path) -> io::Result<()> {
    // Who has no state has swapped nothing.
    let Ok(journals) = Journals::of_user() else { return Ok(()) };
    match journals.status(&Medium::at(path))?.objection(path) {
        Some(why) => Err(io::Error::other(why)),
        None => Ok(()),
    }
}

/// Goes on with a journal that somebody else has begun, who may make files.
#[derive(Debug)]
pub struct Notes {
    file: File,
    /// Where the next line begins, once one was written.
    at: Option<u64>,
}

impl Notes {
    /// In this file, which is open for reading and writing.
    pub fn to(file: File) -> Self {
        Self { file, at: None }
    }

    /// Behind everything that was said.
    fn end(&self) -> io::Result<u64> {
        let mut said = Vec::new();
        (&self.file).rewind()?;
        (&self.file).take(JOURNAL_BYTES_MAX).read_to_end(&mut said)?;
        Ok(said.iter().rposition(|byte| *byte != 0).map_or(0, |last| last as u64 + 1))
    }
}

impl Journal for Notes {
    fn note(&mut self, milestone: Milestone) -> Result<(), String> {
        let line = match milestone {
            Milestone::Copying => Line::Copying,
            Milestone::Switched => Line::Switched,
            Milestone::Abandoned => Line::Abandoned,
        };
        let mut write = || -> io::Result<()> {
            let mut bytes = serde_json::to_vec(&line)?;
            // Should a line before have been torn, this one is whole all the same.
            bytes.insert(0, b'\n');
            bytes.push(b'\n');
            let at = self.at.map_or_else(|| self.end(), Ok)?;
            self.at = Some(at + bytes.len() as u64);
            self.file.write_all_at(&bytes, at)?;
            self.file.sync_data()
        };
        write().map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::OpenOptions;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// A folder with journals and disks that goes away.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new() -> Self {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let name = format!("farbus-swaps-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            let path = std::env::temp_dir().join(name);
            fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn journals(&self) -> Journals {
            Journals::of(&self.0.join("state"))
        }

        fn disk(&self, name: &str) -> Medium {
            let path = self.0.join(name);
            OpenOptions::new().create(true).append(true).open(&path).unwrap();
            Medium::at(&path)
        }

        fn swap(&self, from: &Medium, to: &Medium, milestones: &[Milestone]) -> bool {
            let begun = self.journals().begin(from, to).unwrap();
            let resumes = begun.resumes;
            let mut notes = Notes::to(begun.file);
            milestones.iter().for_each(|milestone| notes.note(*milestone).unwrap());
            resumes
        }

        fn status(&self, medium: &Medium) -> MediumStatus {
            self.journals().status(medium).unwrap()
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    const DONE: [Milestone; 2] = [Milestone::Copying, Milestone::Switched];

    #[test]
    fn the_last_that_was_said_of_a_medium_counts() {
        let scratch = Scratch::new();
        let (a, b, c) = (scratch.disk("a"), scratch.disk("b"), scratch.disk("c"));
        assert_eq!(scratch.status(&a), MediumStatus::Fine);
        scratch.swap(&a, &b, &[]);
        assert_eq!((scratch.status(&a), scratch.status(&b)), (MediumStatus::Fine, MediumStatus::Fine));
        scratch.swap(&a, &b, &[Milestone::Copying]);
        assert_eq!(scratch.status(&a), MediumStatus::Fine);
        assert_eq!(scratch.status(&b), MediumStatus::UnfinishedCopyOf(a.at.clone()));
        assert!(scratch.swap(&a, &b, &DONE), "it resumes");
        assert_eq!((scratch.status(&a), scratch.status(&b)), (MediumStatus::MovedTo(b.at.clone()), MediumStatus::Fine));
        assert!(!scratch.swap(&b, &c, &[Milestone::Copying, Milestone::Abandoned]));
        assert_eq!(scratch.status(&b), MediumStatus::Fine);
        assert_eq!(scratch.status(&c), MediumStatus::UnfinishedCopyOf(b.at.clone()));
        assert!(!scratch.swap(&b, &a, &DONE), "what is old there is no beginning of a copy");
        assert_eq!((scratch.status(&a), scratch.status(&b)), (MediumStatus::Fine, MediumStatus::MovedTo(a.at.clone())));
        // A journal that nothing hangs on goes.
        scratch.swap(&a, &b, &DONE);
        let count = fs::read_dir(scratch.journals().state.file(FOLDER)).unwrap().count();
        scratch.swap(&b, &a, &DONE);
        scratch.swap(&a, &b, &DONE);
        assert!(fs::read_dir(scratch.journals().state.file(FOLDER)).unwrap().count() <= count + 1);
        assert_eq!(scratch.status(&a), MediumStatus::MovedTo(b.at.clone()));
    }

    #[test]
    fn a_line_takes_no_room_that_the_file_had_not() {
        let scratch = Scratch::new();
        let (a, b) = (scratch.disk("a"), scratch.disk("b"));
        let begun = scratch.journals().begin(&a, &b).unwrap();
        let path = begun.folder.path().join(&begun.name);
        let blocks = || fs::metadata(&path).map(|about| (about.len(), about.blocks())).unwrap();
        let before = blocks();
        // Whoever goes on need not be who began.
        let mut notes = Notes::to(begun.file.try_clone().unwrap());
        notes.note(Milestone::Copying).unwrap();
        notes.note(Milestone::Abandoned).unwrap();
        Notes::to(begun.file).note(Milestone::Switched).unwrap();
        assert_eq!(blocks(), before);
        assert_eq!(scratch.status(&a), MediumStatus::MovedTo(b.at));
        let said = String::from_utf8(fs::read(&path).unwrap()).unwrap();
        assert!(said.trim_end_matches('\0').ends_with("\n\"copying\"\n\n\"abandoned\"\n\n\"switched\"\n"), "{said:?}");
    }

    #[test]
    fn what_is_forgotten_may_be_used() {
        let scratch = Scratch::new();
        let (a, b) = (scratch.disk("a"), scratch.disk("b"));
        scratch.swap(&a, &b, &DONE);
        assert!(scratch.status(&a).objection(&a.at).unwrap().contains("farbus swap --forget"));
        assert!(scratch.journals().forget(&a).unwrap());
        assert_eq!(scratch.status(&a), MediumStatus::Fine);
        assert!(!scratch.journals().forget(&b).unwrap());
    }

    #[test]
    fn another_file_at_the_same_path_is_another_medium_and_a_link_to_it_is_the_same() {
        let scratch = Scratch::new();
        let (a, b) = (scratch.disk("a"), scratch.disk("b"));
        scratch.swap(&a, &b, &DONE);
        std::os::unix::fs::symlink(&a.at, scratch.0.join("link")).unwrap();
        assert_eq!(scratch.status(&scratch.disk("link")), MediumStatus::MovedTo(b.at.clone()));
        // Beside it, so that it gets another number.
        fs::write(scratch.0.join("new"), "x").unwrap();
        fs::rename(scratch.0.join("new"), &a.at).unwrap();
        assert_eq!(scratch.status(&scratch.disk("a")), MediumStatus::Fine);
        // In its place, where it may get the same.
        let c = scratch.disk("c");
        scratch.swap(&b, &c, &[Milestone::Copying]);
        fs::remove_file(&c.at).unwrap();
        assert!(c.born_ns.is_none() || scratch.status(&scratch.disk("c")) == MediumStatus::Fine);
        assert_eq!(scratch.status(&scratch.disk("a")), MediumStatus::Fine);
    }

    #[test]
    fn a_line_that_was_torn_has_never_been_said() {
        let header = br#"{"from":{"at":"/a"},"to":{"at":"/b"}}"#;
        let line = |rest: &[u8]| Entry::read(1, &[&header[..], rest].concat()).map(|entry| entry.line);
        assert_eq!(line(b""), None);
        assert_eq!(line(b"\n"), Some(None));
        assert_eq!(line(b"\n\n\"copying\"\n\n\"switched\"\n"), Some(Some(Line::Switched)));
        for torn in 1..b"\"switched\"\n".len() {
            let torn = &b"\"switched\"\n"[..torn];
            assert_eq!(line(&[b"\n\n\"copying\"\n\n", torn].concat()), Some(Some(Line::Copying)));
            assert_eq!(
                line(&[b"\n\n\"copying\"\n\n", torn, b"\n\"abandoned\"\n"].concat()),
                Some(Some(Line::Abandoned))
            );
        }
        assert_eq!(line(b"\n\0\0\0\0\n"), Some(None));
    }

    #[test]
    fn link_in_place_of_the_folder_or_of_a_journal_is_not_followed() {
        let scratch = Scratch::new();
        let (a, b) = (scratch.disk("a"), scratch.disk("b"));
        let elsewhere = scratch.0.join("elsewhere");
        fs::create_dir_all(&elsewhere).unwrap();
        fs::create_dir(scratch.0.join("state")).unwrap();
        let folder = scratch.journals().state.file(FOLDER);
        std::os::unix::fs::symlink(&elsewhere, &folder).unwrap();
        assert!(scratch.journals().begin(&a, &b).is_err() && scratch.journals().status(&a).is_err());
        assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
        fs::remove_file(&folder).unwrap();
        scratch.swap(&a, &b, &[Milestone::Copying]);
        fs::write(elsewhere.join("victim"), "{}").unwrap();
        std::os::unix::fs::symlink(elsewhere.join("victim"), folder.join(name_of(2))).unwrap();
        let why = scratch.journals().status(&a).unwrap_err().to_string();
        assert!(why.contains("symbolic link"), "{why}");
    }
}
