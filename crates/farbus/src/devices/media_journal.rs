//! Journals of swaps, which say which of two media is the device.
//!
//! Each swap has a file in the folder `swaps` of the host's state. Its first line names the media. Each further line
//! says how far the swap came, and the last one counts. A line is made durable before anything relies on it; a line
//! that a power cut tore counts as never written. The file is filled with zeros for all its lines from the start. So
//! writing a line changes data only, and the file system has no metadata to flush, for which all programs that write
//! there would wait.

use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use farbus_control::device::RemoteIdentity;
use farbus_io_net::trust::{DeviceId, FileAccessMode, HostFolder, StateFolder};
use farbus_session::block::swap::{MilestoneJournal, SwapMilestone};
use serde::{Deserialize, Serialize};

/// What is said of a disk of another host that holds a part of a copy.
pub const UNFINISHED: &str = "an unfinished copy of";
/// The folder in the host's state.
const FOLDER: &str = "swaps";
/// The extension of a journal's name.
const SUFFIX: &str = "journal";
/// Room behind the first line, bytes, so that lines can be written even when the disk is full.
const ROOM_BYTES: usize = 4096;
/// The longest journal, bytes. One has a few lines.
const JOURNAL_BYTES_MAX: u64 = 64 << 10;

/// One of the two media, with what is needed to recognize it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwapMedium {
    /// The absolute path, or `memory:SIZE`.
    pub at: PathBuf,
    /// The inode of a file. Another file at the same path is another medium.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inode: Option<u64>,
    /// When the file was created, nanoseconds since 1970, if its file system knows: inodes are reused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub born_ns: Option<u64>,
    /// The identity of a disk of another host, if its exporter told it: a name or an address may be another disk's
    /// later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<RemoteIdentity>,
}

impl SwapMedium {
    /// The medium at a path, whether or not a file exists there.
    pub fn at(path: &Path) -> Self {
        let at = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let about = fs::metadata(&at).ok().filter(fs::Metadata::is_file);
        let inode = about.as_ref().map(MetadataExt::ino);
        let born = about.and_then(|about| about.created().ok()?.duration_since(UNIX_EPOCH).ok());
        Self { at, inode, born_ns: born.and_then(|born| born.as_nanos().try_into().ok()), identity: None }
    }

    /// A medium that is no file.
    pub fn called(name: &str) -> Self {
        Self { at: name.into(), inode: None, born_ns: None, identity: None }
    }

    /// A disk of another host, by the name that it has here. With an identity, the name does not matter.
    pub fn remote(name: &str, identity: Option<RemoteIdentity>) -> Self {
        Self { identity, ..Self::called(name) }
    }

    fn is_of_another_host(&self) -> bool {
        // A path is absolute.
        self.identity.is_some() || (self.at.is_relative() && self.at.to_str().is_some_and(|at| at.contains('/')))
    }

    /// Whether both are the same file, by whatever path, or the same block device, or the same disk of another host.
    fn is(&self, other: &SwapMedium) -> bool {
        if let (Some(one), Some(other)) = (self.identity, other.identity) {
            return one.is_same_content(other);
        }
        let real = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        (self.inode, self.born_ns) == (other.inode, other.born_ns)
            && (self.at == other.at || real(&self.at) == real(&other.at))
    }
}

/// The first line of a journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SwapJournalHeader {
    from: SwapMedium,
    to: SwapMedium,
    /// The devices on the first medium, with their generations once they are on the second.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    devices: Vec<MovedDevice>,
}

/// A device whose medium a swap exchanges.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MovedDevice {
    /// The device's id, which stays the same.
    pub id: DeviceId,
    /// The device's generation once it has moved.
    pub generation: u64,
}

/// Devices that a swap has moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompletedMediumMove {
    /// The medium that they are on now.
    pub to: SwapMedium,
    /// The devices on that medium.
    pub devices: Vec<MovedDevice>,
}

/// A line after the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum SwapJournalLine {
    Copying,
    Switched,
    Abandoned,
}

/// A line that names the second medium better than the first line could: which disk of another host it is was known
/// once it was open. Earlier releases pass over it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct SwapJournalIdentity {
    to: RemoteIdentity,
}

/// The journal of one swap.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SwapJournal {
    /// Later swaps have higher numbers.
    number: u64,
    header: SwapJournalHeader,
    /// The last line; `None` if nothing had been done.
    line: Option<SwapJournalLine>,
}

/// What the journals say about a medium.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MediumStatus {
    /// Nothing speaks against using it.
    Fine,
    /// Its device has moved to this medium; its own contents are old.
    MovedTo(PathBuf),
    /// It holds a part of this medium's contents.
    UnfinishedCopyOf(PathBuf),
}

impl MediumStatus {
    /// Why the medium should not be used, and what to type; `None` if it may be used.
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
pub struct SwapJournalFolder {
    state: HostFolder,
}

/// A journal that has begun. [`SwapJournalWriter`] writes its lines.
#[derive(Debug)]
pub struct StartedSwapJournal {
    /// The file to write to.
    pub file: File,
    folder: StateFolder,
    name: String,
    /// Whether the destination has a part of the copy already.
    pub resumes: bool,
}

impl StartedSwapJournal {
    /// Removes the journal of a swap that did not begin.
    pub fn withdraw(self) {
        // A journal that stays has no line, and so no effect.
        let _ = self.folder.remove(&self.name);
    }
}

impl SwapJournalFolder {
    /// The journals of this user.
    ///
    /// # Errors
    /// The user has no state folder.
    pub fn of_user() -> io::Result<Self> {
        Ok(Self { state: HostFolder::of_user().map_err(io::Error::other)? })
    }

    /// The journals in this state folder.
    pub fn of(state: &Path) -> Self {
        Self { state: HostFolder::at(state) }
    }

    /// Begins the journal of a swap, without a line.
    ///
    /// # Errors
    /// The folder cannot be used.
    pub fn begin(&self, from: &SwapMedium, to: &SwapMedium) -> io::Result<StartedSwapJournal> {
        self.begin_of(from, to, &[])
    }

    /// Begins the journal of a swap that moves these devices.
    ///
    /// # Errors
    /// The folder cannot be used.
    pub fn begin_of(
        &self,
        from: &SwapMedium,
        to: &SwapMedium,
        devices: &[MovedDevice],
    ) -> io::Result<StartedSwapJournal> {
        let folder = self.state.opened_or_made().map_err(io::Error::other)?;
        let folder = folder.subfolder_or_make(FOLDER).map_err(io::Error::other)?;
        let entries = entries(&folder)?;
        let resumes = entries.iter().rfind(|entry| entry.line.is_some() && entry.touches(to)).is_some_and(|entry| {
            entry.header.from.is(from) && entry.header.to.is(to) && entry.line != Some(SwapJournalLine::Switched)
        });
        let mut number = entries.last().map_or(1, |entry| entry.number + 1);
        let (mut file, name) = loop {
            let name = name_of(number);
            match folder.make_file(&name).map_err(io::Error::other)? {
                Some(file) => break (file, name),
                None => number += 1,
            }
        };
        let mut line =
            serde_json::to_vec(&SwapJournalHeader { from: from.clone(), to: to.clone(), devices: devices.to_vec() })?;
        line.push(b'\n');
        line.resize(line.len() + ROOM_BYTES, 0);
        file.write_all(&line)?;
        file.sync_all()?;
        folder.sync().map_err(io::Error::other)?;
        for past in entries.iter().filter(|past| past.is_overruled(&entries)) {
            let _ = folder.remove(&name_of(past.number));
        }
        Ok(StartedSwapJournal { file, folder, name, resumes })
    }

    /// What the journals say about a medium.
    ///
    /// # Errors
    /// The journals cannot be read.
    pub fn status(&self, medium: &SwapMedium) -> io::Result<MediumStatus> {
        let entries = self.folder()?.map_or_else(|| Ok(Vec::new()), |folder| entries(&folder))?;
        Ok(status(&entries, medium))
    }

    /// As [`objection_to_attaching`].
    ///
    /// # Errors
    /// The journals cannot be read.
    pub fn objection_to_attaching(&self, title: &str, identity: Option<RemoteIdentity>) -> io::Result<Option<String>> {
        let entries = self.folder()?.map_or_else(|| Ok(Vec::new()), |folder| entries(&folder))?;
        let medium = SwapMedium::remote(title, identity);
        let Some(SwapJournal { header: SwapJournalHeader { from, to, .. }, line, .. }) = last_about(&entries, &medium)
        else {
            return Ok(None);
        };
        let how_to_use = |medium: &SwapMedium| match medium.is_of_another_host() {
            true => format!("farbus attach {}", medium.at.display()),
            false => format!("farbus nbd block:{}", medium.at.display()),
        };
        let (old, new) = (from.at.display(), to.at.display());
        Ok(match line {
            Some(SwapJournalLine::Switched) if from.is(&medium) => Some(format!(
                "{title} has old data: 'farbus swap' moved it to {new}\n  use that: {}; to attach the old one all the \
                 same, type: farbus swap --forget {old}",
                how_to_use(to)
            )),
            Some(SwapJournalLine::Copying | SwapJournalLine::Abandoned) if to.is(&medium) => Some(format!(
                "{title} is {UNFINISHED} {old}: 'farbus swap' was interrupted\n  use that: {}, and swap again, which \
                 continues; to attach {title} all the same, type: farbus swap --forget {new}",
                how_to_use(from)
            )),
            _ => None,
        })
    }

    /// The devices that swaps have moved, the oldest swap first.
    ///
    /// # Errors
    /// The journals cannot be read.
    pub fn moved(&self) -> io::Result<Vec<CompletedMediumMove>> {
        let entries = self.folder()?.map_or_else(|| Ok(Vec::new()), |folder| entries(&folder))?;
        let switched = entries.into_iter().filter(|entry| entry.line == Some(SwapJournalLine::Switched));
        let moved =
            switched.map(|SwapJournal { header, .. }| CompletedMediumMove { to: header.to, devices: header.devices });
        Ok(moved.filter(|moved| !moved.devices.is_empty()).collect())
    }

    /// Removes the journals that speak against using a medium. Returns whether there were any.
    ///
    /// # Errors
    /// A journal cannot be removed.
    pub fn forget(&self, medium: &SwapMedium) -> io::Result<bool> {
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

    /// The folder of the journals, if it exists.
    fn folder(&self) -> io::Result<Option<StateFolder>> {
        let state = self.state.opened().map_err(io::Error::other)?;
        state.map_or(Ok(None), |state| state.subfolder(FOLDER)).map_err(io::Error::other)
    }
}

fn name_of(number: u64) -> String {
    format!("{number:08}.{SUFFIX}")
}

/// All readable journals, the oldest first.
fn entries(folder: &StateFolder) -> io::Result<Vec<SwapJournal>> {
    let mut entries = Vec::new();
    for name in folder.names().map_err(io::Error::other)? {
        let path = Path::new(&name);
        let is_journal = path.extension().is_some_and(|extension| extension == SUFFIX);
        let number = path.file_stem().and_then(|stem| stem.to_str()?.parse().ok()).filter(|_| is_journal);
        let Some(number) = number else { continue };
        let Some(file) = folder.file(&name, FileAccessMode::Read).map_err(io::Error::other)? else { continue };
        let mut bytes = Vec::new();
        file.take(JOURNAL_BYTES_MAX + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 <= JOURNAL_BYTES_MAX
            && let Some(entry) = SwapJournal::read(number, &bytes)
        {
            entries.push(entry);
        }
    }
    entries.sort_by_key(|entry| entry.number);
    Ok(entries)
}

impl SwapJournal {
    /// Reads a journal. Returns `None` if its first line is incomplete.
    fn read(number: u64, bytes: &[u8]) -> Option<Self> {
        // A line without its end was torn.
        let mut lines = bytes.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n"));
        let header = serde_json::from_slice(lines.next()?).ok()?;
        let mut header: SwapJournalHeader = header;
        let mut last = None;
        for line in lines {
            if let Ok(named) = serde_json::from_slice::<SwapJournalIdentity>(line) {
                header.to.identity = Some(named.to);
            }
            last = serde_json::from_slice(line).ok().or(last);
        }
        Some(Self { number, header, line: last })
    }

    fn touches(&self, medium: &SwapMedium) -> bool {
        self.header.from.is(medium) || self.header.to.is(medium)
    }

    /// Whether later swaps have decided about both media of this one.
    fn is_overruled(&self, all: &[SwapJournal]) -> bool {
        let said_later = |medium: &SwapMedium| {
            all.iter().any(|entry| {
                entry.number > self.number && entry.line == Some(SwapJournalLine::Switched) && entry.touches(medium)
            })
        };
        said_later(&self.header.from) && said_later(&self.header.to)
    }
}

/// The last journal with a line about the medium counts.
fn last_about<'a>(entries: &'a [SwapJournal], medium: &SwapMedium) -> Option<&'a SwapJournal> {
    entries.iter().rfind(|entry| entry.line.is_some() && entry.touches(medium))
}

fn status(entries: &[SwapJournal], medium: &SwapMedium) -> MediumStatus {
    match last_about(entries, medium) {
        Some(SwapJournal { header, line: Some(SwapJournalLine::Switched), .. }) if header.from.is(medium) => {
            MediumStatus::MovedTo(header.to.at.clone())
        }
        Some(SwapJournal { header, line: Some(SwapJournalLine::Copying | SwapJournalLine::Abandoned), .. })
            if header.to.is(medium) =>
        {
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
    // A user without a state folder has swapped nothing.
    let Ok(journals) = SwapJournalFolder::of_user() else { return Ok(()) };
    match journals.status(&SwapMedium::at(path))?.objection(path) {
        Some(why) => Err(io::Error::other(why)),
        None => Ok(()),
    }
}

/// Why a disk of another host should not be attached: a swap has moved its data to this machine. The text says what to
/// type; `None` if it may be attached. A disk without an identity is known by its title alone.
pub fn objection_to_attaching(title: &str, identity: Option<RemoteIdentity>) -> Option<String> {
    // A user without a state folder that can be read has swapped nothing.
    SwapJournalFolder::of_user().and_then(|journals| journals.objection_to_attaching(title, identity)).ok().flatten()
}

/// Writes lines to a journal that was begun by a process that may create files.
#[derive(Debug)]
pub struct SwapJournalWriter {
    file: File,
    /// Where the next line begins, once one was written.
    at: Option<u64>,
}

impl SwapJournalWriter {
    /// Writes to this file, which is open for reading and writing.
    pub fn to(file: File) -> Self {
        Self { file, at: None }
    }

    /// Notes which disk of another host the second medium is, once it is open.
    ///
    /// # Errors
    /// A sentence for a person.
    pub fn name(&mut self, to: RemoteIdentity) -> Result<(), String> {
        let line = serde_json::to_vec(&SwapJournalIdentity { to }).map_err(|error| error.to_string())?;
        self.write(line).map_err(|error| error.to_string())
    }

    fn write(&mut self, mut line: Vec<u8>) -> io::Result<()> {
        // The line is separated even from a torn one before it.
        line.insert(0, b'\n');
        line.push(b'\n');
        let at = self.at.map_or_else(|| self.end(), Ok)?;
        self.at = Some(at + line.len() as u64);
        self.file.write_all_at(&line, at)?;
        self.file.sync_data()
    }

    /// The offset behind the last line.
    fn end(&self) -> io::Result<u64> {
        let mut bytes = Vec::new();
        (&self.file).rewind()?;
        (&self.file).take(JOURNAL_BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last as u64 + 1))
    }
}

impl MilestoneJournal for SwapJournalWriter {
    fn note(&mut self, milestone: SwapMilestone) -> Result<(), String> {
        let line = match milestone {
            SwapMilestone::Copying => SwapJournalLine::Copying,
            SwapMilestone::Switched => SwapJournalLine::Switched,
            SwapMilestone::Abandoned => SwapJournalLine::Abandoned,
        };
        let written = serde_json::to_vec(&line).map_err(io::Error::other).and_then(|line| self.write(line));
        written.map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farbus_io_net::trust::random_device_id;
    use std::fs::OpenOptions;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// A folder with journals and disks that is removed at the end.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new() -> Self {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let name = format!("farbus-swaps-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            let path = std::env::temp_dir().join(name);
            fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn journals(&self) -> SwapJournalFolder {
            SwapJournalFolder::of(&self.0.join("state"))
        }

        fn disk(&self, name: &str) -> SwapMedium {
            let path = self.0.join(name);
            OpenOptions::new().create(true).append(true).open(&path).unwrap();
            SwapMedium::at(&path)
        }

        fn swap(&self, from: &SwapMedium, to: &SwapMedium, milestones: &[SwapMilestone]) -> bool {
            let begun = self.journals().begin(from, to).unwrap();
            let resumes = begun.resumes;
            let mut notes = SwapJournalWriter::to(begun.file);
            milestones.iter().for_each(|milestone| notes.note(*milestone).unwrap());
            resumes
        }

        fn status(&self, medium: &SwapMedium) -> MediumStatus {
            self.journals().status(medium).unwrap()
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    const DONE: [SwapMilestone; 2] = [SwapMilestone::Copying, SwapMilestone::Switched];

    #[test]
    fn latest_journal_line_about_a_medium_counts() {
        let scratch = Scratch::new();
        let (a, b, c) = (scratch.disk("a"), scratch.disk("b"), scratch.disk("c"));
        assert_eq!(scratch.status(&a), MediumStatus::Fine);
        scratch.swap(&a, &b, &[]);
        assert_eq!((scratch.status(&a), scratch.status(&b)), (MediumStatus::Fine, MediumStatus::Fine));
        scratch.swap(&a, &b, &[SwapMilestone::Copying]);
        assert_eq!(scratch.status(&a), MediumStatus::Fine);
        assert_eq!(scratch.status(&b), MediumStatus::UnfinishedCopyOf(a.at.clone()));
        assert!(scratch.swap(&a, &b, &DONE), "it resumes");
        assert_eq!((scratch.status(&a), scratch.status(&b)), (MediumStatus::MovedTo(b.at.clone()), MediumStatus::Fine));
        assert!(!scratch.swap(&b, &c, &[SwapMilestone::Copying, SwapMilestone::Abandoned]));
        assert_eq!(scratch.status(&b), MediumStatus::Fine);
        assert_eq!(scratch.status(&c), MediumStatus::UnfinishedCopyOf(b.at.clone()));
        assert!(!scratch.swap(&b, &a, &DONE), "what is old there is no beginning of a copy");
        assert_eq!((scratch.status(&a), scratch.status(&b)), (MediumStatus::Fine, MediumStatus::MovedTo(a.at.clone())));
        // A journal that no medium depends on is removed.
        scratch.swap(&a, &b, &DONE);
        let count = fs::read_dir(scratch.journals().state.file(FOLDER)).unwrap().count();
        scratch.swap(&b, &a, &DONE);
        scratch.swap(&a, &b, &DONE);
        assert!(fs::read_dir(scratch.journals().state.file(FOLDER)).unwrap().count() <= count + 1);
        assert_eq!(scratch.status(&a), MediumStatus::MovedTo(b.at.clone()));
    }

    #[test]
    fn writing_a_line_does_not_grow_the_file() {
        let scratch = Scratch::new();
        let (a, b) = (scratch.disk("a"), scratch.disk("b"));
        let begun = scratch.journals().begin(&a, &b).unwrap();
        let path = begun.folder.path().join(&begun.name);
        let blocks = || fs::metadata(&path).map(|about| (about.len(), about.blocks())).unwrap();
        let before = blocks();
        // The process that continues need not be the one that began.
        let mut notes = SwapJournalWriter::to(begun.file.try_clone().unwrap());
        notes.note(SwapMilestone::Copying).unwrap();
        notes.note(SwapMilestone::Abandoned).unwrap();
        SwapJournalWriter::to(begun.file).note(SwapMilestone::Switched).unwrap();
        assert_eq!(blocks(), before);
        assert_eq!(scratch.status(&a), MediumStatus::MovedTo(b.at));
        let message = String::from_utf8(fs::read(&path).unwrap()).unwrap();
        assert!(
            message.trim_end_matches('\0').ends_with("\n\"copying\"\n\n\"abandoned\"\n\n\"switched\"\n"),
            "{message:?}"
        );
    }

    #[test]
    fn forgotten_medium_may_be_used_again() {
        let scratch = Scratch::new();
        let (a, b) = (scratch.disk("a"), scratch.disk("b"));
        scratch.swap(&a, &b, &DONE);
        assert!(scratch.status(&a).objection(&a.at).unwrap().contains("farbus swap --forget"));
        assert!(scratch.journals().forget(&a).unwrap());
        assert_eq!(scratch.status(&a), MediumStatus::Fine);
        assert!(!scratch.journals().forget(&b).unwrap());
    }

    #[test]
    fn medium_is_recognized_through_a_link_and_not_after_a_replacement() {
        let scratch = Scratch::new();
        let (a, b) = (scratch.disk("a"), scratch.disk("b"));
        scratch.swap(&a, &b, &DONE);
        std::os::unix::fs::symlink(&a.at, scratch.0.join("link")).unwrap();
        assert_eq!(scratch.status(&scratch.disk("link")), MediumStatus::MovedTo(b.at.clone()));
        // The new file is written beside the old one, so that it gets another inode.
        fs::write(scratch.0.join("new"), "x").unwrap();
        fs::rename(scratch.0.join("new"), &a.at).unwrap();
        assert_eq!(scratch.status(&scratch.disk("a")), MediumStatus::Fine);
        // The new file replaces the old one, and may get the same inode.
        let c = scratch.disk("c");
        scratch.swap(&b, &c, &[SwapMilestone::Copying]);
        fs::remove_file(&c.at).unwrap();
        assert!(c.born_ns.is_none() || scratch.status(&scratch.disk("c")) == MediumStatus::Fine);
        assert_eq!(scratch.status(&scratch.disk("a")), MediumStatus::Fine);
    }

    #[test]
    fn a_disk_of_another_host_that_moved_is_recognized_by_its_identity_under_any_name() {
        const SWAPPED: u64 = 1;
        const ADOPTED: u64 = 1 << 32;
        let scratch = Scratch::new();
        let (id, new) = (random_device_id(), scratch.disk("new"));
        let known = |generation| Some(RemoteIdentity { id, generation });
        let another = Some(RemoteIdentity { id: random_device_id(), generation: 0 });
        let why = |title: &str, identity| scratch.journals().objection_to_attaching(title, identity).unwrap();
        scratch.swap(&SwapMedium::remote("lab/disk", known(0)), &new, &[SwapMilestone::Copying]);
        assert_eq!(why("lab/disk", known(0)), None, "it is complete as long as the copy is not");
        assert!(scratch.swap(&SwapMedium::remote("lab2/disk", known(0)), &new, &DONE), "under another name it resumes");
        let moved = why("attic/old", known(0)).expect("it has old data under any name");
        assert!(moved.contains("attic/old has old data") && moved.contains("--forget lab2/disk"), "{moved}");
        assert!(why("lab2/disk", known(SWAPPED)).is_some(), "its exporter copied what is old");
        assert_eq!(why("lab2/disk", known(ADOPTED)), None, "its owner said that it has other data now");
        assert_eq!(why("lab2/disk", another), None, "another disk has the name now");
        assert!(why("lab2/disk", None).is_some(), "without an identity the name counts");
        assert_eq!(why("lab3/disk", None), None);
        assert!(scratch.journals().forget(&SwapMedium::called("lab2/disk")).unwrap());
        assert_eq!(why("attic/old", known(0)), None);
        // A journal of an earlier release has no identity.
        scratch.swap(&SwapMedium::called("lab/disk"), &new, &DONE);
        assert!(why("lab/disk", known(0)).is_some() && why("lab/disk", None).is_some());
    }

    #[test]
    fn torn_journal_line_does_not_count() {
        let header = br#"{"from":{"at":"/a"},"to":{"at":"/b"}}"#;
        let line = |rest: &[u8]| SwapJournal::read(1, &[&header[..], rest].concat()).map(|entry| entry.line);
        assert_eq!(line(b""), None);
        assert_eq!(line(b"\n"), Some(None));
        assert_eq!(line(b"\n\n\"copying\"\n\n\"switched\"\n"), Some(Some(SwapJournalLine::Switched)));
        for torn in 1..b"\"switched\"\n".len() {
            let torn = &b"\"switched\"\n"[..torn];
            assert_eq!(line(&[b"\n\n\"copying\"\n\n", torn].concat()), Some(Some(SwapJournalLine::Copying)));
            assert_eq!(
                line(&[b"\n\n\"copying\"\n\n", torn, b"\n\"abandoned\"\n"].concat()),
                Some(Some(SwapJournalLine::Abandoned))
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
        scratch.swap(&a, &b, &[SwapMilestone::Copying]);
        fs::write(elsewhere.join("victim"), "{}").unwrap();
        std::os::unix::fs::symlink(elsewhere.join("victim"), folder.join(name_of(2))).unwrap();
        let why = scratch.journals().status(&a).unwrap_err().to_string();
        assert!(why.contains("symbolic link"), "{why}");
    }
}
