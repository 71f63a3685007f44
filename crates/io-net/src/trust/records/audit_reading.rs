//! Reads the audit log: everything that is kept, or what was added since.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;

use serde_json::{Map, Value};

use super::audit::{AUDIT_FILE, GRANTS, GRANTS_FILE, REFUSED_FILE};
use crate::trust::limits::{AUDIT_BYTES_MAX, AUDIT_FILES_MAX};
use crate::trust::state::folder::{HostFolder, StateError};
use crate::trust::state::state_folder::FileAccessMode;

/// A line of the audit log.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedEvent(Map<String, Value>);

impl RecordedEvent {
    /// A field that is a text: `at`, `event`, `outcome`, `peer`, `fingerprint`, `address`, `device`, `why`.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.as_str()
    }

    /// Whether this host's owner granted or withdrew trust.
    pub fn is_grant(&self) -> bool {
        self.text("event").is_some_and(|event| GRANTS.contains(&event))
    }

    /// Parses a line; `None` for one that a full disk cut short.
    fn parse(line: &[u8]) -> Option<Self> {
        match serde_json::from_slice(line).ok()? {
            Value::Object(fields) => Some(Self(fields)),
            _ => None,
        }
    }
}

/// The line, as JSON.
impl fmt::Display for RecordedEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(&self.0).map_err(|_| fmt::Error)?)
    }
}

/// How far a file was read.
#[derive(Debug)]
struct AuditFilePosition {
    name: &'static str,
    /// The inode of the file that has this name; 0 if there is none.
    inode: u64,
    bytes: u64,
}

/// Reads the audit log of a state folder, from its first line that is kept to its last, and then what is added.
#[derive(Debug)]
pub struct AuditReader {
    folder: HostFolder,
    positions: [AuditFilePosition; 2],
}

impl AuditReader {
    /// Begins to read the log in `folder`, which need not exist yet.
    pub fn new(folder: HostFolder) -> Self {
        let positions = [AUDIT_FILE, REFUSED_FILE].map(|name| AuditFilePosition { name, inode: 0, bytes: 0 });
        Self { folder, positions }
    }

    /// Every line that is kept, the earliest first. [`AuditReader::read_added`] continues after the last.
    ///
    /// # Errors
    /// [`StateError`]: the folder belongs to somebody else, or a file cannot be read.
    pub fn read_all(&mut self) -> Result<Vec<RecordedEvent>, StateError> {
        let mut events = Vec::new();
        for position in &mut self.positions {
            for number in (1..=AUDIT_FILES_MAX).rev() {
                let old = open(&self.folder, &format!("{}.{number}", position.name))?;
                read_from(old, 0, &mut events).map_err(|error| trouble(&self.folder, position.name, &error))?;
            }
            *position = AuditFilePosition { inode: 0, bytes: 0, ..*position };
            read_on(&self.folder, position, &mut events)?;
        }
        // Grants that later lines have pushed out of the log are kept as copies.
        let known: BTreeSet<String> = events.iter().filter(|event| event.is_grant()).map(ToString::to_string).collect();
        let mut grants = Vec::new();
        for number in (0..=AUDIT_FILES_MAX).rev() {
            let name = if number == 0 { GRANTS_FILE.to_owned() } else { format!("{GRANTS_FILE}.{number}") };
            let file = open(&self.folder, &name)?;
            read_from(file, 0, &mut grants).map_err(|error| trouble(&self.folder, &name, &error))?;
        }
        events.extend(grants.into_iter().filter(|grant| !known.contains(&grant.to_string())));
        sort(&mut events);
        Ok(events)
    }

    /// The lines that were added since the last call, the earliest first.
    ///
    /// # Errors
    /// As [`AuditReader::read_all`].
    pub fn read_added(&mut self) -> Result<Vec<RecordedEvent>, StateError> {
        let mut events = Vec::new();
        for position in &mut self.positions {
            read_on(&self.folder, position, &mut events)?;
        }
        sort(&mut events);
        Ok(events)
    }
}

/// RFC 3339 in UTC with a fixed number of digits: the order of the texts is that of the times.
fn sort(events: &mut [RecordedEvent]) {
    events.sort_by(|a, b| a.text("at").cmp(&b.text("at")));
}

fn open(folder: &HostFolder, name: &str) -> Result<Option<File>, StateError> {
    let Some(opened) = folder.opened()? else { return Ok(None) };
    Ok(opened.file(name, FileAccessMode::Read)?)
}

fn trouble(folder: &HostFolder, name: &str, error: &io::Error) -> StateError {
    StateError { path: folder.file(name), what: error.to_string() }
}

/// Reads on where `position` is. If the log was rotated meanwhile, first reads the rest of the renamed file.
fn read_on(
    folder: &HostFolder,
    position: &mut AuditFilePosition,
    events: &mut Vec<RecordedEvent>,
) -> Result<(), StateError> {
    let failed = |error: io::Error| trouble(folder, position.name, &error);
    let file = open(folder, position.name)?;
    let inode_of = |file: &File| file.metadata().map(|about| about.ino());
    let inode = file.as_ref().map(inode_of).transpose().map_err(failed)?.unwrap_or(0);
    if inode != position.inode {
        for number in 1..=AUDIT_FILES_MAX {
            let renamed = open(folder, &format!("{}.{number}", position.name))?;
            let Some(renamed) = renamed.filter(|_| position.inode != 0) else { break };
            if inode_of(&renamed).map_err(failed)? == position.inode {
                read_from(Some(renamed), position.bytes, events).map_err(failed)?;
                break;
            }
        }
        (position.inode, position.bytes) = (inode, 0);
    }
    position.bytes += read_from(file, position.bytes, events).map_err(failed)?;
    Ok(())
}

/// Reads the complete lines of a file from `offset` on. Returns how many bytes they have.
fn read_from(file: Option<File>, offset: u64, events: &mut Vec<RecordedEvent>) -> io::Result<u64> {
    let Some(mut file) = file else { return Ok(0) };
    file.seek(SeekFrom::Start(offset))?;
    let mut bytes = Vec::new();
    // A file exceeds its limit by one line at most.
    file.take(2 * AUDIT_BYTES_MAX).read_to_end(&mut bytes)?;
    let end = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
    events.extend(bytes[..end].split(|&byte| byte == b'\n').filter_map(RecordedEvent::parse));
    Ok(end as u64)
}

#[cfg(test)]
mod tests {
    use super::super::audit::{AuditEvent, AuditLog, AuditOutcome};
    use super::*;
    use std::fs;
    use std::io::Write;

    fn folder(name: &str) -> HostFolder {
        let path = std::env::temp_dir().join(format!("farbus-audit-reading-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        HostFolder::at(path)
    }

    fn devices(events: &[RecordedEvent]) -> Vec<&str> {
        events.iter().filter_map(|event| event.text("device")).collect()
    }

    #[test]
    fn all_lines_are_read_in_order_and_then_what_is_added() {
        let folder = folder("order");
        let mut reader = AuditReader::new(folder.clone());
        assert_eq!(reader.read_all().unwrap(), [], "there is no folder yet");
        let audit = AuditLog::new(folder.clone());
        let put =
            |device, outcome| audit.record(&AuditEvent { device: Some(device), ..AuditEvent::new("attach", outcome) });
        put("a", AuditOutcome::Ok);
        std::thread::sleep(std::time::Duration::from_millis(2));
        put("b", AuditOutcome::Refused);
        std::thread::sleep(std::time::Duration::from_millis(2));
        put("c", AuditOutcome::Ok);
        assert_eq!(devices(&reader.read_all().unwrap()), ["a", "b", "c"]);
        assert_eq!(reader.read_added().unwrap(), []);
        put("d", AuditOutcome::Refused);
        assert_eq!(devices(&reader.read_added().unwrap()), ["d"]);
        assert_eq!(devices(&reader.read_all().unwrap()), ["a", "b", "c", "d"]);
        fs::remove_dir_all(folder.path()).unwrap();
    }

    #[test]
    fn nothing_is_missed_or_repeated_when_the_log_is_rotated_or_cut_short() {
        let folder = folder("rotation");
        let audit = AuditLog::new(folder.clone());
        let put =
            |device| audit.record(&AuditEvent { device: Some(device), ..AuditEvent::new("attach", AuditOutcome::Ok) });
        put("a");
        let mut reader = AuditReader::new(folder.clone());
        assert_eq!(devices(&reader.read_all().unwrap()), ["a"]);
        put("b");
        fs::rename(folder.file(AUDIT_FILE), folder.file("audit.log.1")).unwrap();
        put("c");
        let mut half = fs::OpenOptions::new().append(true).open(folder.file(AUDIT_FILE)).unwrap();
        half.write_all(b"{\"at\":\"2").unwrap();
        assert_eq!(devices(&reader.read_added().unwrap()), ["b", "c"]);
        put("d");
        assert_eq!(devices(&reader.read_added().unwrap()), ["d"], "the line that was cut short is passed over");
        assert_eq!(devices(&reader.read_all().unwrap()), ["a", "b", "c", "d"]);
        fs::remove_dir_all(folder.path()).unwrap();
    }

    #[test]
    fn grant_that_was_pushed_out_of_the_log_is_still_read_once() {
        let folder = folder("grants");
        let audit = AuditLog::new(folder.clone());
        audit.record(&AuditEvent { peer: Some("lab3"), ..AuditEvent::new("pair", AuditOutcome::Ok) });
        let mut reader = AuditReader::new(folder.clone());
        assert_eq!(reader.read_all().unwrap().len(), 1);
        fs::remove_file(folder.file(AUDIT_FILE)).unwrap();
        let kept = reader.read_all().unwrap();
        assert_eq!((kept.len(), kept[0].text("peer"), kept[0].is_grant()), (1, Some("lab3"), true));
        fs::remove_dir_all(folder.path()).unwrap();
    }
}
