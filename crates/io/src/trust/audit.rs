//! Who did what, when, and how it went: a line of JSON each.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use tracing::{info, warn};

use super::fingerprint::Fingerprint;
use super::folder::Folder;
use super::limits::{AUDIT_BYTES_MAX, AUDIT_FILES_MAX};

const AUDIT_FILE: &str = "audit.log";

/// How it went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// Done.
    Ok,
    /// Not allowed.
    Refused,
    /// Tried, and failed.
    Failed,
}

/// One line.
#[derive(Clone, Debug, Serialize)]
pub struct Event<'a> {
    /// What: `connect`, `list`, `attach`, `detach`, `pair`, `unpair`, `allow`, `forbid`.
    pub event: &'a str,
    /// How it went.
    pub outcome: Outcome,
    /// The peer's name, if it is paired.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<&'a str>,
    /// Its key, if it showed one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<Fingerprint>,
    /// Its address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<&'a str>,
    /// The device's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<&'a str>,
    /// Why, if it was refused or failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<&'a str>,
}

impl<'a> Event<'a> {
    /// Nothing but the verb.
    pub fn new(event: &'a str, outcome: Outcome) -> Self {
        Self { event, outcome, peer: None, fingerprint: None, address: None, device: None, why: None }
    }
}

#[derive(Serialize)]
struct Line<'a> {
    at: String,
    #[serde(flatten)]
    event: &'a Event<'a>,
}

/// The log. Several processes may write it; whoever finds it full begins a new file.
#[derive(Debug)]
pub struct Audit {
    folder: Folder,
    bytes_max: u64,
    is_failing: AtomicBool,
}

impl Audit {
    /// The log in `folder`.
    pub fn new(folder: Folder) -> Self {
        Self { folder, bytes_max: AUDIT_BYTES_MAX, is_failing: AtomicBool::new(false) }
    }

    /// Writes a line. A disk that is full stops nobody: it is said once, and again when it is over.
    pub fn record(&self, event: &Event<'_>) {
        match self.write(event) {
            Ok(()) => {
                if self.is_failing.swap(false, Ordering::Relaxed) {
                    info!("the audit log is written again; lines are missing");
                }
            }
            Err(error) => {
                if !self.is_failing.swap(true, Ordering::Relaxed) {
                    let file = self.folder.file(AUDIT_FILE);
                    warn!(file = %file.display(), %error, "the audit log cannot be written; sessions go on without it");
                }
            }
        }
    }

    fn write(&self, event: &Event<'_>) -> io::Result<()> {
        let mut line =
            serde_json::to_vec(&Line { at: timestamp(SystemTime::now()), event }).map_err(io::Error::other)?;
        line.push(b'\n');
        self.folder.make().map_err(|error| io::Error::other(error.what))?;
        let open = || -> io::Result<fs::File> {
            let path = self.folder.file(AUDIT_FILE);
            let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
            self.folder.give(&file).map(|()| file)
        };
        let mut file = open()?;
        if file.metadata()?.len() + line.len() as u64 > self.bytes_max {
            self.rotate(line.len() as u64)?;
            file = open()?;
        }
        // One write: lines of several processes do not mix.
        file.write_all(&line)
    }

    fn rotate(&self, bytes: u64) -> io::Result<()> {
        let _lock = self.folder.lock().map_err(|error| io::Error::other(error.what))?;
        let name = |number: u32| match number {
            0 => self.folder.file(AUDIT_FILE),
            number => self.folder.file(&format!("{AUDIT_FILE}.{number}")),
        };
        // Another process may have done it meanwhile.
        if fs::metadata(name(0))?.len() + bytes <= self.bytes_max {
            return Ok(());
        }
        for number in (0..AUDIT_FILES_MAX).rev() {
            match fs::rename(name(number), name(number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

/// A moment in RFC 3339, UTC, to the millisecond.
pub fn timestamp(time: SystemTime) -> String {
    let since: Duration = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    // Howard Hinnant, "chrono-compatible low-level date algorithms": days since 1 March 0000, in cycles of 400 years.
    let days = days + 719_468;
    let (cycle, day_of_cycle) = (days / 146_097, days % 146_097);
    let year = (day_of_cycle - day_of_cycle / 1460 + day_of_cycle / 36_524 - day_of_cycle / 146_096) / 365;
    let day_of_year = day_of_cycle - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, year) = if month < 10 { (month + 3, year + cycle * 400) } else { (month - 9, year + cycle * 400 + 1) };
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", since.subsec_millis())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("farbus-audit-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        Folder::at(path)
    }

    #[test]
    fn moments_are_written_as_rfc_3339_wants() {
        let at = |seconds| timestamp(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(at(951_827_696), "2000-02-29T12:34:56.000Z");
        assert_eq!(at(4_102_444_799), "2099-12-31T23:59:59.000Z");
    }

    #[test]
    fn the_log_is_lines_of_json_and_stays_within_its_bounds() {
        let folder = folder("rotation");
        let audit = Audit { bytes_max: 1000, ..Audit::new(folder.clone()) };
        for n in 0..200 {
            let device = format!("disk{n}");
            audit.record(&Event { peer: Some("lab3"), device: Some(&device), ..Event::new("attach", Outcome::Ok) });
        }
        let newest = fs::read_to_string(folder.file(AUDIT_FILE)).unwrap();
        let last: serde_json::Value = serde_json::from_str(newest.lines().last().unwrap()).unwrap();
        assert_eq!((&last["event"], &last["outcome"]), (&"attach".into(), &"ok".into()));
        assert_eq!((&last["peer"], &last["device"]), (&"lab3".into(), &"disk199".into()));
        let files: Vec<_> = fs::read_dir(folder.path()).unwrap().flatten().collect();
        assert_eq!(files.len(), 1 + AUDIT_FILES_MAX as usize + 1, "the log, the old ones, and the lock");
        assert!(files.iter().all(|file| file.metadata().unwrap().len() <= 1000));
        fs::remove_dir_all(folder.path()).unwrap();
    }

    #[test]
    fn a_disk_that_takes_nothing_stops_nobody() {
        // What cannot be written to, whoever asks: /dev/full says "no space left".
        let folder = folder("full");
        fs::create_dir_all(folder.path()).unwrap();
        std::os::unix::fs::symlink("/dev/full", folder.file(AUDIT_FILE)).unwrap();
        let audit = Audit::new(folder.clone());
        for _ in 0..3 {
            audit.record(&Event::new("attach", Outcome::Ok));
        }
        assert!(audit.is_failing.load(Ordering::Relaxed));
        fs::remove_file(folder.file(AUDIT_FILE)).unwrap();
        audit.record(&Event::new("attach", Outcome::Ok));
        assert!(!audit.is_failing.load(Ordering::Relaxed));
        fs::remove_dir_all(folder.path()).unwrap();
    }
}
