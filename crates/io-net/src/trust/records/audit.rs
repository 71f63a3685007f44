//! The audit log: one line of JSON for each event, with peer, time and result.
//!
//! | file | contents |
//! |---|---|
//! | `audit.log` | everything except refusals |
//! | `refused.log` | refusals |
//! | `grants.log` | a copy of `pair`, `unpair`, `allow` and `forbid` that succeeded |
//!
//! Each has its own size limit and its own old files, so nothing that another host does can push out a line of a later
//! row.
//!
//! **A flood** is counted ([`EventTally`]): of the actions or refusals of one peer, the first of each minute are
//! written, then one line says how many more there were (`count`, `seconds`). Actions of this host's owner are always
//! written.
//!
//! **A full disk** does not stop sessions: they continue without audit lines. The program's own log reports this once,
//! and again when lines can be written. A line that was written in part stays as it is; the next one starts on a new
//! line.

use std::fmt;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use farbus_control::fingerprint::Fingerprint;
use farbus_model::Instant;
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use crate::link::BoottimeClock;
use crate::tally::{EventTally, TallyDecision, TallySummary, WINDOW};
use crate::trust::limits::{
    AUDIT_BYTES_MAX, AUDIT_FILES_MAX, AUDIT_LINES_MAX, AUDIT_LINES_OF_PEER_MAX, REFUSED_LINES_MAX,
    REFUSED_LINES_OF_PEER_MAX,
};
use crate::trust::links::admission::subscriber;
use crate::trust::state::folder::{HostFolder, StateError};

pub(in crate::trust) const AUDIT_FILE: &str = "audit.log";
pub(in crate::trust) const REFUSED_FILE: &str = "refused.log";
pub(in crate::trust) const GRANTS_FILE: &str = "grants.log";
/// The events by which this host's owner grants or withdraws trust.
pub(in crate::trust) const GRANTS: [&str; 4] = ["pair", "unpair", "allow", "forbid"];

/// The result of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AuditOutcome {
    /// It was done.
    Ok,
    /// It was not allowed.
    Refused,
    /// It was tried and failed.
    Failed,
}

/// An event for the audit log, which becomes one line of JSON.
#[derive(Clone, Debug, Serialize)]
pub struct AuditEvent<'a> {
    /// The event: `connect`, `list`, `attach`, `detach`, `pair`, `unpair`, `allow`, `forbid`.
    pub event: &'a str,
    /// Whether the event was carried out, refused, or tried and failed.
    pub outcome: AuditOutcome,
    /// The peer's name, if it is paired.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<&'a str>,
    /// Its key, if it showed one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<Fingerprint>,
    /// Where the peer connects from: its address and port, or a word such as `owner`. `None` if that is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<&'a str>,
    /// The device's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<&'a str>,
    /// The reason, if it was refused or failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<&'a str>,
    /// How many more of this event and outcome there were without a line of their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// Over how many seconds these events were counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
}

impl<'a> AuditEvent<'a> {
    /// An event without any details.
    pub fn new(event: &'a str, outcome: AuditOutcome) -> Self {
        Self {
            event,
            outcome,
            peer: None,
            fingerprint: None,
            address: None,
            device: None,
            why: None,
            count: None,
            seconds: None,
        }
    }

    fn is_grant(&self) -> bool {
        self.outcome == AuditOutcome::Ok && GRANTS.contains(&self.event)
    }
}

/// The events that are counted together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct AuditEventKind {
    event: String,
    outcome: AuditOutcome,
    who: AuditActor,
}

/// Who caused an event.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum AuditActor {
    /// A paired host.
    Peer(Fingerprint, Option<String>),
    /// A peer at this address (for IPv6, in this /64 network).
    Address(IpAddr),
    /// A program of this machine with this name.
    Named(String),
    /// A peer with no known key, address or name.
    Anybody,
}

impl AuditEventKind {
    fn of(event: &AuditEvent<'_>) -> Self {
        let by_address = |address: &str| match address.parse::<SocketAddr>() {
            Ok(address) => AuditActor::Address(subscriber(address.ip())),
            Err(_) => AuditActor::Named(address.chars().take(64).collect()),
        };
        let who = match (event.fingerprint, event.address) {
            (Some(key), _) => AuditActor::Peer(key, event.peer.map(str::to_owned)),
            (None, address) => address.map_or(AuditActor::Anybody, by_address),
        };
        Self { event: event.event.to_owned(), outcome: event.outcome, who }
    }

    fn of_anybody(&self) -> Self {
        Self { who: AuditActor::Anybody, ..self.clone() }
    }
}

#[derive(Serialize)]
struct AuditLogLine<'a> {
    at: String,
    #[serde(flatten)]
    event: &'a AuditEvent<'a>,
}

/// The log. Several processes may write to it; the one that finds it full begins a new file.
#[derive(Debug)]
pub struct AuditLog {
    log: Arc<AuditLogInner>,
}

#[derive(Debug)]
struct AuditLogInner {
    folder: HostFolder,
    bytes_max: u64,
    is_failing: AtomicBool,
    clock: BoottimeClock,
    tally: Mutex<EventTally<AuditEventKind>>,
    /// Whether a thread waits until a summary is due.
    is_waited_for: AtomicBool,
}

/// Writes events to the audit log: this process, or another one that it asks.
pub trait AuditRecorder: fmt::Debug + Send + Sync {
    /// Writes a line, or counts the event for a summary.
    fn record(&self, event: &AuditEvent<'_>);

    /// Writes all summaries, even if their minute is not over: the process ends.
    fn finish(&self) {}
}

impl AuditRecorder for AuditLog {
    fn record(&self, event: &AuditEvent<'_>) {
        AuditLog::record(self, event);
    }

    fn finish(&self) {
        AuditLog::finish(self);
    }
}

impl AuditLog {
    /// The log in `folder`.
    pub fn new(folder: HostFolder) -> Self {
        Self::within(folder, AUDIT_BYTES_MAX, WINDOW)
    }

    fn within(folder: HostFolder, bytes_max: u64, window: Duration) -> Self {
        let (is_failing, is_waited_for) = (AtomicBool::new(false), AtomicBool::new(false));
        let (clock, tally) = (BoottimeClock::start(), Mutex::new(EventTally::over(window)));
        Self { log: Arc::new(AuditLogInner { folder, bytes_max, is_failing, clock, tally, is_waited_for }) }
    }

    /// Writes a line, or counts the event for a summary. Drops the line if the disk is full.
    pub fn record(&self, event: &AuditEvent<'_>) {
        let now = self.log.clock.now();
        self.log.write_due(now);
        let verdict = match event.is_grant() {
            true => TallyDecision::Write,
            false => self.log.judge(event, now),
        };
        match verdict {
            TallyDecision::Write => self.log.put(event),
            TallyDecision::Counted => self.wait_until_due(),
        }
    }

    /// Writes all summaries, even if their minute is not over: the process ends.
    pub fn finish(&self) {
        self.log.write_last();
    }

    /// Starts a thread that writes summaries when they are due, even if there are no further events.
    fn wait_until_due(&self) {
        if self.log.is_waited_for.swap(true, Ordering::AcqRel) {
            return;
        }
        let log = Arc::downgrade(&self.log);
        let spawned = thread::Builder::new().name("audit".into()).stack_size(128 << 10).spawn(move || wait(&log));
        if spawned.is_err() {
            // The next event writes the summary.
            self.log.is_waited_for.store(false, Ordering::Release);
        }
    }
}

fn wait(log: &Weak<AuditLogInner>) {
    loop {
        let span = match log.upgrade() {
            None => return,
            Some(log) => {
                let now = log.clock.now();
                log.write_due(now);
                match log.next_due() {
                    Some(at) => at - now,
                    None => return,
                }
            }
        };
        thread::sleep(span.max(Duration::from_millis(1)));
    }
}

impl AuditLogInner {
    fn tally(&self) -> MutexGuard<'_, EventTally<AuditEventKind>> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When the next summary is due. If there is none, the thread ends, and the next event that is counted starts a new
    /// one.
    fn next_due(&self) -> Option<Instant> {
        let tally = self.tally();
        let due = tally.poll_timeout();
        if due.is_none() {
            self.is_waited_for.store(false, Ordering::Release);
        }
        due
    }

    /// Whether the event gets a line of its own: within the limit of its peer, and within that of all peers together.
    fn judge(&self, event: &AuditEvent<'_>, now: Instant) -> TallyDecision {
        let (of_peer, of_all) = match event.outcome {
            AuditOutcome::Refused => (REFUSED_LINES_OF_PEER_MAX, REFUSED_LINES_MAX),
            AuditOutcome::Ok | AuditOutcome::Failed => (AUDIT_LINES_OF_PEER_MAX, AUDIT_LINES_MAX),
        };
        let kind = AuditEventKind::of(event);
        let anybody = kind.of_anybody();
        let mut tally = self.tally();
        match tally.note(&kind, &anybody, of_peer, now) {
            TallyDecision::Write if kind != anybody => tally.note(&anybody, &anybody, of_all, now),
            verdict => verdict,
        }
    }

    fn write_due(&self, now: Instant) {
        loop {
            let due = self.tally().poll_due(now);
            let Some(due) = due else { return };
            self.put_number(&due);
        }
    }

    /// Writes all summaries, whatever their windows.
    fn write_last(&self) {
        let now = self.clock.now();
        loop {
            let last = self.tally().poll_last(now);
            let Some(last) = last else { return };
            self.put_number(&last);
        }
    }

    fn put_number(&self, TallySummary { kind, count, span }: &TallySummary<AuditEventKind>) {
        let address = match &kind.who {
            AuditActor::Address(address) => Some(address.to_string()),
            AuditActor::Named(name) => Some(name.clone()),
            AuditActor::Peer(..) | AuditActor::Anybody => None,
        };
        let (fingerprint, peer) = match &kind.who {
            AuditActor::Peer(key, name) => (Some(*key), name.as_deref()),
            _ => (None, None),
        };
        let verb = match kind.outcome {
            AuditOutcome::Ok => "done",
            AuditOutcome::Refused => "refused",
            AuditOutcome::Failed => "failed",
        };
        let seconds = (span.as_secs_f64() * 10.0).round() / 10.0;
        let why = format!("{verb} {count} more times in {seconds} s");
        self.put(&AuditEvent {
            peer,
            fingerprint,
            address: address.as_deref(),
            why: Some(&why),
            count: Some(*count),
            seconds: Some(seconds),
            ..AuditEvent::new(&kind.event, kind.outcome)
        });
    }

    fn put(&self, event: &AuditEvent<'_>) {
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

    fn write(&self, event: &AuditEvent<'_>) -> io::Result<()> {
        let mut line = vec![b'\n'];
        serde_json::to_writer(&mut line, &AuditLogLine { at: timestamp(SystemTime::now()), event })?;
        line.push(b'\n');
        if event.is_grant() {
            self.append(GRANTS_FILE, &line)?;
        }
        self.append(if event.outcome == AuditOutcome::Refused { REFUSED_FILE } else { AUDIT_FILE }, &line)
    }

    /// `line` begins and ends with a line break.
    fn append(&self, name: &str, line: &[u8]) -> io::Result<()> {
        let open = || self.folder.append(name).map_err(|error| io::Error::other(error.what));
        let mut file = open()?;
        if file.metadata()?.len() + line.len() as u64 > self.bytes_max {
            self.rotate(name, line.len() as u64)?;
            file = open()?;
        }
        let mut last = [b'\n'];
        let end = file.metadata()?.len();
        if end > 0 {
            file.read_at(&mut last, end - 1)?;
        }
        // One write: lines of several processes do not mix. A line that a full disk cut short is ended first.
        file.write_all(if last == [b'\n'] { &line[1..] } else { line })
    }

    fn rotate(&self, file: &str, bytes: u64) -> io::Result<()> {
        let _lock = self.folder.lock().map_err(|error| io::Error::other(error.what))?;
        let name = |number: u32| match number {
            0 => file.to_owned(),
            number => format!("{file}.{number}"),
        };
        let failed = |error: StateError| io::Error::other(error.what);
        // Another process may have done it meanwhile.
        if self.folder.append(file).map_err(failed)?.metadata()?.len() + bytes <= self.bytes_max {
            return Ok(());
        }
        for number in (0..AUDIT_FILES_MAX).rev() {
            self.folder.rename(&name(number), &name(number + 1)).map_err(failed)?;
        }
        Ok(())
    }
}

impl Drop for AuditLog {
    fn drop(&mut self) {
        // Not when the log itself is dropped: the waiting thread may have it for a moment longer.
        self.log.write_last();
    }
}

/// Formats a moment as RFC 3339, UTC, with milliseconds.
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
    use std::fs;

    fn folder(name: &str) -> HostFolder {
        let path = std::env::temp_dir().join(format!("farbus-audit-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        HostFolder::at(path)
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
        let audit = AuditLog::within(folder.clone(), 1000, WINDOW);
        for n in 0..200 {
            let device = format!("disk{n}");
            audit.record(&AuditEvent {
                peer: Some("lab3"),
                device: Some(&device),
                ..AuditEvent::new("attach", AuditOutcome::Ok)
            });
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
    fn a_line_that_was_torn_does_not_tear_the_next() {
        let folder = folder("torn");
        fs::create_dir_all(folder.path()).unwrap();
        fs::write(folder.file(AUDIT_FILE), "{\"at\":\"2026-").unwrap();
        let audit = AuditLog::new(folder.clone());
        audit.record(&AuditEvent::new("attach", AuditOutcome::Ok));
        audit.record(&AuditEvent::new("detach", AuditOutcome::Ok));
        let text = fs::read_to_string(folder.file(AUDIT_FILE)).unwrap();
        let lines: Vec<_> = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).ok()).collect();
        assert!(matches!(&lines[..], [None, Some(_), Some(last)] if last["event"] == "detach"), "{text}");
        fs::remove_dir_all(folder.path()).unwrap();
    }

    #[test]
    fn unwritable_log_does_not_fail_and_is_written_again_later() {
        // A folder in the file's place, to which not even root can write.
        let folder = folder("full");
        fs::create_dir_all(folder.file(AUDIT_FILE)).unwrap();
        let audit = AuditLog::new(folder.clone());
        for _ in 0..3 {
            audit.record(&AuditEvent::new("attach", AuditOutcome::Ok));
        }
        assert!(audit.log.is_failing.load(Ordering::Relaxed));
        fs::remove_dir(folder.file(AUDIT_FILE)).unwrap();
        audit.record(&AuditEvent::new("attach", AuditOutcome::Ok));
        assert!(!audit.log.is_failing.load(Ordering::Relaxed));
        fs::remove_dir_all(folder.path()).unwrap();
    }

    fn lines(folder: &HostFolder, name: &str) -> Vec<serde_json::Value> {
        let numbered = (1..=AUDIT_FILES_MAX).rev().map(|number| format!("{name}.{number}"));
        let all = numbered.chain([name.to_owned()]).filter_map(|name| fs::read_to_string(folder.file(&name)).ok());
        let text: String = all.collect();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn a_hundred_thousand_refusals_leave_the_pairing_in_the_log_and_are_all_counted() {
        const FLOOD: u64 = 100_000;
        let folder = folder("flood");
        let audit = AuditLog::within(folder.clone(), 20_000, Duration::from_millis(50));
        let peer = Fingerprint::from_bytes([7; 32]);
        let of_peer = |event, outcome| AuditEvent { fingerprint: Some(peer), ..AuditEvent::new(event, outcome) };
        audit.record(&of_peer("pair", AuditOutcome::Ok));
        audit.record(&of_peer("attach", AuditOutcome::Ok));
        for _ in 0..FLOOD {
            audit.record(&AuditEvent { device: Some("1-1"), ..of_peer("attach", AuditOutcome::Refused) });
        }
        drop(audit);
        let kept: Vec<_> = lines(&folder, AUDIT_FILE).iter().map(|line| line["event"].clone()).collect();
        assert_eq!(kept, ["pair", "attach"]);
        assert_eq!(lines(&folder, GRANTS_FILE).len(), 1);
        let refused = lines(&folder, REFUSED_FILE);
        // With such short windows the oldest lines may have been rotated away; nothing is counted twice.
        let counted: u64 = refused.iter().map(|line| line["count"].as_u64().unwrap_or(1)).sum();
        assert!(counted <= FLOOD && counted > 0, "{counted}");
        let last = refused.last().unwrap();
        assert!(last["why"].as_str().unwrap().starts_with("refused "), "{last}");
        fs::remove_dir_all(folder.path()).unwrap();
    }

    #[test]
    fn flood_is_a_few_lines_and_one_correct_count() {
        let folder = folder("number");
        let audit = AuditLog::new(folder.clone());
        for n in 0..10_000u32 {
            let address = format!("10.0.0.9:{}", n % 60_000 + 1);
            audit.record(&AuditEvent { address: Some(&address), ..AuditEvent::new("connect", AuditOutcome::Refused) });
        }
        audit.record(&AuditEvent { address: Some("10.0.0.7:1"), ..AuditEvent::new("connect", AuditOutcome::Refused) });
        drop(audit);
        let refused = lines(&folder, REFUSED_FILE);
        assert_eq!(refused.len(), REFUSED_LINES_OF_PEER_MAX as usize + 2, "the other's line and the number");
        let number = refused.last().unwrap();
        assert_eq!(number["count"], 10_000 - u64::from(REFUSED_LINES_OF_PEER_MAX));
        assert_eq!((&number["address"], &number["event"]), (&"10.0.0.9".into(), &"connect".into()));
        assert!(refused.iter().any(|line| line["address"] == "10.0.0.7:1"), "another's is not lost in it");
        fs::remove_dir_all(folder.path()).unwrap();
    }

    #[test]
    fn summary_is_written_at_the_end_of_its_window_without_further_events() {
        let folder = folder("alone");
        let audit = AuditLog::within(folder.clone(), AUDIT_BYTES_MAX, Duration::from_millis(100));
        for _ in 0..50 {
            audit.record(&AuditEvent {
                address: Some("10.0.0.9:1"),
                ..AuditEvent::new("connect", AuditOutcome::Refused)
            });
        }
        let until = std::time::Instant::now() + Duration::from_secs(20);
        while !lines(&folder, REFUSED_FILE).iter().any(|line| line["count"].is_number()) {
            assert!(std::time::Instant::now() < until, "no number");
            thread::sleep(Duration::from_millis(5));
        }
        drop(audit);
        let counted: u64 = lines(&folder, REFUSED_FILE).iter().map(|line| line["count"].as_u64().unwrap_or(1)).sum();
        assert_eq!(counted, 50);
        fs::remove_dir_all(folder.path()).unwrap();
    }

    #[test]
    fn last_summary_is_written_although_the_waiting_thread_looks_at_the_log_just_then() {
        let folder = folder("last");
        let audit = AuditLog::new(folder.clone());
        for _ in 0..50 {
            audit.record(&AuditEvent {
                address: Some("10.0.0.9:1"),
                ..AuditEvent::new("connect", AuditOutcome::Refused)
            });
        }
        let looking = Arc::clone(&audit.log);
        drop(audit);
        let counted: u64 = lines(&folder, REFUSED_FILE).iter().map(|line| line["count"].as_u64().unwrap_or(1)).sum();
        assert_eq!(counted, 50);
        drop(looking);
        fs::remove_dir_all(folder.path()).unwrap();
    }

    #[test]
    fn many_addresses_at_once_are_bounded_together() {
        let folder = folder("many");
        let audit = AuditLog::new(folder.clone());
        for n in 0..5_000u32 {
            let address = format!("{}:1", IpAddr::from((0x0a00_0000 + n).to_be_bytes()));
            audit.record(&AuditEvent { address: Some(&address), ..AuditEvent::new("connect", AuditOutcome::Refused) });
        }
        drop(audit);
        let refused = lines(&folder, REFUSED_FILE);
        assert_eq!(refused.len(), REFUSED_LINES_MAX as usize + 1);
        let counted: u64 = refused.iter().map(|line| line["count"].as_u64().unwrap_or(1)).sum();
        assert_eq!(counted, 5_000);
        fs::remove_dir_all(folder.path()).unwrap();
    }
}
