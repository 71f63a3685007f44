//! Keeps what one host says of itself and its devices true in the directory.
//!
//! The order of steps, each once the one before has been answered:
//!
//! | step | call | why |
//! |---|---|---|
//! | 1 | read the layout's number, or write it if there is none | keys of another layout are left alone |
//! | 2 | grant a lease | what a host says goes when the host does |
//! | 3 | read this host's keys | a process before this one left some; the revision of the host's key is the guard |
//! | 4 | write what differs, in pieces, guarded | |
//! | 5 | keep the lease, at a third of its time | with nothing to say, this is all that is sent, and no write of etcd's |
//!
//! **The guard.** A write whose answer was lost may have been done, may be done later, or never. So each write demands
//! that the host's key is as this process saw it last, and writes that key, too: a write that arrives late finds it
//! changed, and does nothing. After a lost answer and after a refused guard the host's keys are read again (step 3). If
//! the host's key is still as it was before a write that was not answered, something is written in any case: until then
//! that write may come.
//!
//! An end of the lease while the host lives (the directory was away, or the host slept) only means to begin again at
//! step 2: the exporter, not the directory, decides who has a device.

use std::collections::BTreeMap;
use std::time::Duration;

use farbus_model::Instant;

use crate::gateway::{EtcdCall, EtcdRefusal, EtcdReply, EtcdTransaction};
use crate::key::{DirectoryKey, FORMAT, FORMAT_KEY, HostId, KeyRange, check_format, is_device_name};
use crate::pace::RetryBackoff;
use crate::record::{DeviceRecord, HostRecord};
use crate::trouble::{DirectoryFailure, DirectoryFailureKind};
use crate::view::DirectoryView;

/// How long a host's keys stay when it is not heard of, seconds. A cluster of etcd that loses a member has another
/// leader after a few.
pub const TTL_S: u64 = 60;
/// The most keys that are written at once. etcd takes 128 by default.
const KEYS_AT_ONCE_MAX: usize = 100;
/// The most bytes of values that are written at once. etcd takes 1.5 MiB by default.
const BYTES_AT_ONCE_MAX: usize = 512 << 10;
/// The most devices of a host in the directory.
pub const DEVICES_MAX: usize = 4096;
/// How long after a write the next one begins at the earliest: changes in between go together.
const WRITE_EVERY: Duration = Duration::from_millis(250);
/// How many guards in a row may be refused before another process is suspected.
const CONTENDED_AFTER: u32 = 5;

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PublisherStep {
    /// Make this call, and pass its answer to [`HostPublisher::handle`].
    Call(EtcdCall),
    /// Nothing until this moment, or until [`HostPublisher::want`] is called.
    Wait(Option<Instant>),
}

/// Publishes one host. A call is made at a time.
#[derive(Clone, Debug)]
pub struct HostPublisher {
    host: HostId,
    wanted: BTreeMap<DirectoryKey, Vec<u8>>,
    /// What is there under this lease, as far as is known.
    stored: BTreeMap<DirectoryKey, Vec<u8>>,
    /// Keys there that are not under this lease.
    left: Vec<DirectoryKey>,
    call: Option<PendingPublisherCall>,
    is_format_read: bool,
    must_write_format: bool,
    lease: Option<i64>,
    ttl: Duration,
    alive_at: Instant,
    /// The revision of the host's key; `None`: to be read.
    guard: Option<i64>,
    /// The revision that a write demanded of which no answer came: as long as the key has it, that write may be done.
    unanswered: Option<i64>,
    refused_guards: u32,
    write_not_before: Instant,
    pace: RetryBackoff,
    trouble: Option<DirectoryFailure>,
}

/// The call that is being made.
#[derive(Clone, Debug)]
enum PendingPublisherCall {
    Format,
    WriteFormat,
    Grant,
    Alive,
    Own,
    Write { puts: Vec<(DirectoryKey, Vec<u8>)>, deletes: Vec<DirectoryKey> },
}

impl HostPublisher {
    /// Nothing is said yet. `seed` makes the pauses of this host differ from those of others.
    pub fn new(host: HostId, seed: u64) -> Self {
        Self {
            host,
            wanted: BTreeMap::new(),
            stored: BTreeMap::new(),
            left: Vec::new(),
            call: None,
            is_format_read: false,
            must_write_format: false,
            lease: None,
            ttl: Duration::from_secs(TTL_S),
            alive_at: Instant::ZERO,
            guard: None,
            unanswered: None,
            refused_guards: 0,
            write_not_before: Instant::ZERO,
            pace: RetryBackoff::new(seed),
            trouble: None,
        }
    }

    /// What is to be said from now on. Devices whose name no key can have, and those beyond [`DEVICES_MAX`], are left
    /// out.
    pub fn want<'a>(&mut self, host: &HostRecord, devices: impl IntoIterator<Item = (&'a str, &'a DeviceRecord)>) {
        let device = |(name, record): (&str, &DeviceRecord)| {
            (DirectoryKey::Device(self.host.clone(), name.to_owned()), record.to_value())
        };
        let devices = devices.into_iter().filter(|(name, _)| is_device_name(name)).take(DEVICES_MAX).map(device);
        self.wanted = devices.collect();
        self.wanted.insert(DirectoryKey::Host(self.host.clone()), host.to_value());
    }

    /// The lease under which this host's keys are.
    pub fn lease(&self) -> Option<i64> {
        self.lease
    }

    /// Why the directory is not as it should be, if it is not.
    pub fn trouble(&self) -> Option<&DirectoryFailure> {
        self.trouble.as_ref()
    }

    /// Whether all that is wanted is there, as far as is known.
    pub fn is_told(&self) -> bool {
        let is_writing = matches!(self.call, Some(PendingPublisherCall::Write { .. }));
        let is_sure = self.guard.is_some() && self.unanswered.is_none() && !is_writing;
        is_sure && self.lease.is_some() && self.stored == self.wanted && self.left.is_empty()
    }

    /// Whether a view that follows the directory shows what this host says, as far as it is there. What it shows lags
    /// behind, by less than [`HostPublisher::doubt`] is to be called after.
    pub fn is_shown_by(&self, view: &DirectoryView) -> bool {
        let wanted = self.wanted.iter().map(|(key, value)| (key, value.as_slice()));
        !self.is_told() || !view.is_watching() || view.values_of(&self.host).eq(wanted)
    }

    /// Reads this host's keys again, and writes those that another process removed or changed.
    pub fn doubt(&mut self) {
        if self.call.is_none() {
            self.guard = None;
        }
    }

    /// What to do next.
    pub fn poll(&mut self, now: Instant) -> PublisherStep {
        if self.call.is_some() {
            return PublisherStep::Wait(None);
        }
        if let Some(pause) = self.pace.pause(now) {
            return PublisherStep::Wait(Some(pause));
        }
        let (pending, call) = match self.lease {
            _ if self.must_write_format => (PendingPublisherCall::WriteFormat, write_format()),
            _ if !self.is_format_read => {
                (PendingPublisherCall::Format, EtcdCall::Range { range: KeyRange::format(), limit: 1, revision: 0 })
            }
            None => (PendingPublisherCall::Grant, EtcdCall::Grant { ttl_s: TTL_S }),
            Some(lease) if now >= self.alive_at => (PendingPublisherCall::Alive, EtcdCall::KeepAlive { lease }),
            Some(_) if self.guard.is_none() => (
                PendingPublisherCall::Own,
                EtcdCall::Range { range: KeyRange::of_host(&self.host), limit: 0, revision: 0 },
            ),
            Some(_) if self.is_told() => return PublisherStep::Wait(Some(self.alive_at)),
            Some(_) if now < self.write_not_before => {
                return PublisherStep::Wait(Some(self.write_not_before.min(self.alive_at)));
            }
            Some(lease) => self.write(lease),
        };
        self.call = Some(pending);
        PublisherStep::Call(call)
    }

    /// Whether only a write that is done ends the trouble.
    fn must_be_written(&self) -> bool {
        let is_of_writes = matches!(
            self.trouble.as_ref().map(|trouble| trouble.kind),
            Some(DirectoryFailureKind::Full | DirectoryFailureKind::Permission | DirectoryFailureKind::Contended)
        );
        is_of_writes && !self.is_told()
    }

    /// The next piece of what differs.
    fn write(&self, lease: i64) -> (PendingPublisherCall, EtcdCall) {
        let own = DirectoryKey::Host(self.host.clone());
        let mut puts = vec![(own.clone(), self.wanted.get(&own).cloned().unwrap_or_default())];
        let mut bytes = 0;
        let differs = self.wanted.iter().filter(|(key, value)| **key != own && self.stored.get(*key) != Some(*value));
        for (key, value) in differs.take(KEYS_AT_ONCE_MAX) {
            bytes += value.len();
            if bytes > BYTES_AT_ONCE_MAX {
                break;
            }
            puts.push((key.clone(), value.clone()));
        }
        let old = self.stored.keys().chain(&self.left).filter(|key| !self.wanted.contains_key(*key));
        let deletes: Vec<DirectoryKey> = old.take(KEYS_AT_ONCE_MAX.saturating_sub(puts.len())).cloned().collect();
        let change = EtcdTransaction {
            guard: own.to_string(),
            revision: self.guard.unwrap_or_default(),
            lease,
            puts: puts.iter().map(|(key, value)| (key.to_string(), value.clone())).collect(),
            deletes: deletes.iter().map(ToString::to_string).collect(),
        };
        (PendingPublisherCall::Write { puts, deletes }, EtcdCall::Change(change))
    }

    /// Handles the answer to the call that [`HostPublisher::poll`] asked for last.
    pub fn handle(&mut self, answer: Result<EtcdReply, EtcdRefusal>, now: Instant) {
        let Some(pending) = self.call.take() else { return };
        match answer {
            Ok(reply) => {
                let is_write = matches!(
                    pending,
                    PendingPublisherCall::Write { .. }
                        | PendingPublisherCall::Grant
                        | PendingPublisherCall::WriteFormat
                );
                let done = self.handle_reply(pending, reply, now);
                match done {
                    // That keys can be read says nothing of writes that failed.
                    Ok(()) if !is_write && self.must_be_written() => {}
                    Ok(()) => {
                        self.pace.succeed();
                        self.trouble = None;
                    }
                    Err(trouble) => self.fail(trouble, now),
                }
            }
            Err(EtcdRefusal::NoLease) => self.forget_lease(),
            Err(EtcdRefusal::Compacted | EtcdRefusal::OldToken) => {
                self.fail(
                    DirectoryFailure::new(
                        DirectoryFailureKind::Unreachable,
                        "a call was not done, and may be made again",
                    ),
                    now,
                );
            }
            Err(EtcdRefusal::Trouble(trouble)) => {
                // Whether it was done is not known.
                if matches!(pending, PendingPublisherCall::Write { .. }) {
                    (self.unanswered, self.guard) = (self.guard.take(), None);
                }
                self.fail(trouble, now);
            }
        }
    }

    fn handle_reply(
        &mut self,
        call: PendingPublisherCall,
        reply: EtcdReply,
        now: Instant,
    ) -> Result<(), DirectoryFailure> {
        match (call, reply) {
            (PendingPublisherCall::Format, EtcdReply::Found(found)) => match found.pairs.first() {
                None => self.must_write_format = true,
                Some(pair) => {
                    check_format(&pair.value)?;
                    self.is_format_read = true;
                }
            },
            // If another host wrote it first, it is read.
            (PendingPublisherCall::WriteFormat, EtcdReply::Changed { .. }) => self.must_write_format = false,
            (PendingPublisherCall::Grant, EtcdReply::Granted { lease, ttl_s }) => {
                self.guard = None;
                self.ttl = Duration::from_secs(ttl_s.min(TTL_S));
                self.lease = Some(lease);
                self.alive_at = now + self.ttl / 3;
            }
            (PendingPublisherCall::Alive, EtcdReply::Alive(0)) => self.forget_lease(),
            (PendingPublisherCall::Alive, EtcdReply::Alive(_)) => self.alive_at = now + self.ttl / 3,
            (PendingPublisherCall::Own, EtcdReply::Found(found)) => {
                let own = DirectoryKey::Host(self.host.clone());
                (self.stored, self.left) = (BTreeMap::new(), Vec::new());
                let mut guard = 0;
                for pair in found.pairs {
                    let Some(key) = DirectoryKey::parse(&pair.key) else { continue };
                    if key == own {
                        guard = pair.revision;
                    }
                    match Some(pair.lease) == self.lease {
                        true => drop(self.stored.insert(key, pair.value)),
                        false => self.left.push(key),
                    }
                }
                self.guard = Some(guard);
                // It was done, or another was: it cannot be done any more.
                self.unanswered = self.unanswered.filter(|revision| *revision == guard);
            }
            (PendingPublisherCall::Write { puts, deletes }, EtcdReply::Changed { is_done: true, revision }) => {
                self.left.retain(|key| !deletes.contains(key) && !puts.iter().any(|(put, _)| put == key));
                deletes.iter().for_each(|key| drop(self.stored.remove(key)));
                self.stored.extend(puts);
                (self.guard, self.unanswered, self.refused_guards) = (Some(revision), None, 0);
                self.write_not_before = now + WRITE_EVERY;
            }
            (PendingPublisherCall::Write { .. }, EtcdReply::Changed { is_done: false, .. }) => {
                self.guard = None;
                self.refused_guards += 1;
                if self.refused_guards >= CONTENDED_AFTER {
                    let message = "another process with this host's key writes to the directory, too";
                    return Err(DirectoryFailure::new(DirectoryFailureKind::Contended, message));
                }
            }
            _ => {
                return Err(DirectoryFailure::new(DirectoryFailureKind::NotEtcd, "the answer is that to another call"));
            }
        }
        Ok(())
    }

    /// The directory may be another one by now, so that it is looked at from the beginning.
    fn forget_lease(&mut self) {
        self.is_format_read = false;
        self.lease = None;
        self.guard = None;
        self.stored.clear();
        self.left.clear();
    }

    fn fail(&mut self, trouble: DirectoryFailure, now: Instant) {
        if trouble.kind == DirectoryFailureKind::OtherFormat {
            self.is_format_read = false;
        }
        self.trouble = Some(trouble);
        self.pace.fail(now);
    }
}

/// Writes the layout's number if there is none.
fn write_format() -> EtcdCall {
    EtcdCall::Change(EtcdTransaction {
        guard: FORMAT_KEY.to_owned(),
        revision: 0,
        lease: 0,
        puts: vec![(FORMAT_KEY.to_owned(), FORMAT.into())],
        deletes: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::{KeyChange, KeyValue, RangeResult, WatchUpdate};

    const fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn publisher() -> HostPublisher {
        let mut publisher = HostPublisher::new(HostId::new(&"a".repeat(52)).unwrap(), 1);
        want(&mut publisher, &["board"]);
        publisher
    }

    fn want(publisher: &mut HostPublisher, devices: &[&str]) {
        let record = DeviceRecord::default();
        publisher.want(&HostRecord::default(), devices.iter().map(|name| (*name, &record)));
    }

    fn call(publisher: &mut HostPublisher, now: Instant) -> EtcdCall {
        match publisher.poll(now) {
            PublisherStep::Call(call) => call,
            PublisherStep::Wait(until) => panic!("waits until {until:?}"),
        }
    }

    fn change(publisher: &mut HostPublisher, now: Instant) -> EtcdTransaction {
        let EtcdCall::Change(change) = call(publisher, now) else { panic!("no change") };
        change
    }

    fn found(pairs: Vec<KeyValue>) -> Result<EtcdReply, EtcdRefusal> {
        Ok(EtcdReply::Found(RangeResult { revision: 9, pairs, has_more: false }))
    }

    fn pair(key: &str, value: &[u8], lease: i64, revision: i64) -> KeyValue {
        KeyValue { key: key.into(), value: value.into(), lease, revision }
    }

    /// A publisher that has said all that it has to.
    fn up_to_date_publisher() -> HostPublisher {
        let mut publisher = publisher();
        assert!(matches!(call(&mut publisher, at(0)), EtcdCall::Range { .. }));
        publisher.handle(found(vec![pair(FORMAT_KEY, b"1", 0, 1)]), at(0));
        assert_eq!(call(&mut publisher, at(0)), EtcdCall::Grant { ttl_s: 60 });
        publisher.handle(Ok(EtcdReply::Granted { lease: 7, ttl_s: 60 }), at(0));
        assert!(matches!(call(&mut publisher, at(0)), EtcdCall::Range { .. }));
        publisher.handle(found(vec![]), at(0));
        let first = change(&mut publisher, at(0));
        assert_eq!((first.revision, first.lease, first.puts.len(), first.deletes.len()), (0, 7, 2, 0));
        publisher.handle(Ok(EtcdReply::Changed { is_done: true, revision: 12 }), at(0));
        assert!(publisher.is_told());
        publisher
    }

    #[test]
    fn with_nothing_to_say_only_the_lease_is_kept() {
        let mut publisher = up_to_date_publisher();
        assert_eq!(publisher.poll(at(0)), PublisherStep::Wait(Some(at(20_000))));
        assert_eq!(call(&mut publisher, at(20_000)), EtcdCall::KeepAlive { lease: 7 });
        publisher.handle(Ok(EtcdReply::Alive(60)), at(20_100));
        assert_eq!(publisher.poll(at(20_100)), PublisherStep::Wait(Some(at(40_100))));
    }

    #[test]
    fn changes_within_a_quarter_of_a_second_are_written_together_and_guarded() {
        let mut publisher = up_to_date_publisher();
        want(&mut publisher, &["disk"]);
        assert_eq!(publisher.poll(at(100)), PublisherStep::Wait(Some(at(250))));
        want(&mut publisher, &["disk", "a b", "probe"]);
        let change = change(&mut publisher, at(250));
        assert_eq!((change.revision, change.puts.len(), change.deletes.len()), (12, 3, 1), "a key has no blank");
        publisher.handle(Ok(EtcdReply::Changed { is_done: true, revision: 15 }), at(250));
        assert!(publisher.is_told());
    }

    #[test]
    fn write_without_an_answer_is_made_again_only_after_reading_what_is_there() {
        let mut publisher = up_to_date_publisher();
        want(&mut publisher, &["disk"]);
        change(&mut publisher, at(300));
        let lost = DirectoryFailure::new(DirectoryFailureKind::Unreachable, "lost");
        publisher.handle(Err(EtcdRefusal::Trouble(lost.clone())), at(300));
        assert_eq!(publisher.trouble(), Some(&lost));
        let PublisherStep::Wait(Some(pause)) = publisher.poll(at(300)) else { panic!("no pause") };
        assert!(matches!(call(&mut publisher, pause), EtcdCall::Range { .. }));
        let own = DirectoryKey::Host(publisher.host.clone()).to_string();
        // It was not done yet, and is not wanted any more: it must not be done later.
        let mut other = publisher.clone();
        want(&mut other, &["board"]);
        let value = DeviceRecord::default().to_value();
        let before =
            vec![pair(&own, &HostRecord::default().to_value(), 7, 12), pair(&format!("{own}/board"), &value, 7, 12)];
        other.handle(found(before), pause);
        assert!(!other.is_told());
        assert_eq!(change(&mut other, pause).puts.len(), 1, "the guard is changed");
        other.handle(Ok(EtcdReply::Changed { is_done: true, revision: 13 }), pause);
        assert!(other.is_told());
        // It was done: only its answer was lost.
        let device = DeviceRecord::default().to_value();
        let done =
            vec![pair(&own, &HostRecord::default().to_value(), 7, 13), pair(&format!("{own}/disk"), &device, 7, 13)];
        publisher.handle(found(done), pause);
        assert!(publisher.is_told() && publisher.trouble().is_none());
    }

    #[test]
    fn lease_that_ended_while_the_host_lives_is_replaced_and_all_is_written_anew() {
        let mut publisher = up_to_date_publisher();
        call(&mut publisher, at(90_000));
        publisher.handle(Ok(EtcdReply::Alive(0)), at(90_000));
        call(&mut publisher, at(90_000));
        publisher.handle(found(vec![pair(FORMAT_KEY, b"1", 0, 1)]), at(90_000));
        assert_eq!(call(&mut publisher, at(90_000)), EtcdCall::Grant { ttl_s: 60 });
        publisher.handle(Ok(EtcdReply::Granted { lease: 8, ttl_s: 60 }), at(90_000));
        call(&mut publisher, at(90_000));
        // A key of the process before, under a lease of its own, and one that is wanted no more.
        let own = DirectoryKey::Host(publisher.host.clone()).to_string();
        publisher.handle(found(vec![pair(&own, b"{}", 7, 40), pair(&format!("{own}/old"), b"{}", 7, 40)]), at(90_000));
        let change = change(&mut publisher, at(90_000));
        assert_eq!((change.revision, change.lease, change.puts.len()), (40, 8, 2));
        assert_eq!(change.deletes, [format!("{own}/old")]);
        publisher.handle(Err(EtcdRefusal::NoLease), at(90_000));
        assert!(publisher.lease().is_none());
        assert!(matches!(call(&mut publisher, at(90_000)), EtcdCall::Range { .. }));
    }

    #[test]
    fn keys_of_another_format_are_left_alone() {
        let mut publisher = publisher();
        call(&mut publisher, at(0));
        publisher.handle(found(vec![pair(FORMAT_KEY, b"2\x1b", 0, 1)]), at(0));
        let trouble = publisher.trouble().unwrap();
        assert_eq!(trouble.kind, DirectoryFailureKind::OtherFormat);
        assert!(trouble.message.contains("format '2\\u{1b}'") && trouble.message.contains("knows format 1"));
        let PublisherStep::Wait(Some(pause)) = publisher.poll(at(0)) else { panic!("it goes on") };
        assert!(matches!(call(&mut publisher, pause), EtcdCall::Range { .. }), "it is only looked at again");
    }

    #[test]
    fn keys_that_another_process_changed_or_removed_are_written_again() {
        let mut publisher = up_to_date_publisher();
        let own = DirectoryKey::Host(publisher.host.clone()).to_string();
        let mut view = DirectoryView::new(1);
        let now = at(1000);
        let values: Vec<KeyValue> =
            publisher.wanted.iter().map(|(key, value)| pair(&key.to_string(), value, 7, 12)).collect();
        assert!(publisher.is_shown_by(&view), "it has read nothing");
        for found in [found(vec![]), found(values.clone())] {
            view.poll(now);
            view.handle(found, now);
        }
        view.poll(now);
        assert!(view.is_watching() && publisher.is_shown_by(&view));
        let lie = KeyChange { key: format!("{own}/board").into(), value: Some(b"{}".to_vec()) };
        view.handle_news(WatchUpdate::Changes { changes: vec![lie], revision: Some(13) }, now);
        assert!(!publisher.is_shown_by(&view));
        publisher.doubt();
        assert!(matches!(call(&mut publisher, now), EtcdCall::Range { .. }));
        // The other process has removed the host's key, and has put a device under no lease.
        publisher.handle(found(vec![pair(&format!("{own}/board"), b"{}", 0, 13)]), now);
        let change = change(&mut publisher, now);
        assert_eq!((change.revision, change.puts.len(), change.deletes.len()), (0, 2, 0));
        publisher.handle(Ok(EtcdReply::Changed { is_done: true, revision: 14 }), now);
        assert!(publisher.is_told());
    }

    #[test]
    fn format_is_written_where_there_is_none_and_read_again() {
        let mut publisher = publisher();
        call(&mut publisher, at(0));
        publisher.handle(found(vec![]), at(0));
        let change = change(&mut publisher, at(0));
        assert_eq!((change.guard.as_str(), change.revision, change.lease), (FORMAT_KEY, 0, 0));
        publisher.handle(Ok(EtcdReply::Changed { is_done: false, revision: 3 }), at(0));
        assert!(matches!(call(&mut publisher, at(0)), EtcdCall::Range { .. }));
    }

    #[test]
    fn full_directory_is_in_trouble_until_a_write_is_done_and_is_asked_less_often() {
        let mut publisher = up_to_date_publisher();
        want(&mut publisher, &["disk"]);
        let mut now = at(300);
        let mut pauses = Vec::new();
        for _ in 0..6 {
            change(&mut publisher, now);
            let full = DirectoryFailure::new(DirectoryFailureKind::Full, "mvcc: database space exceeded");
            publisher.handle(Err(EtcdRefusal::Trouble(full)), now);
            let PublisherStep::Wait(Some(until)) = publisher.poll(now) else { panic!("no pause") };
            pauses.push(until - now);
            now = until;
            if matches!(publisher.lease(), Some(lease) if matches!(publisher.poll(now), PublisherStep::Call(EtcdCall::KeepAlive { lease: kept }) if kept == lease))
            {
                publisher.handle(Ok(EtcdReply::Alive(60)), now);
                call(&mut publisher, now);
            }
            publisher.handle(found(vec![]), now);
            assert_eq!(publisher.trouble().unwrap().kind, DirectoryFailureKind::Full);
        }
        assert!(pauses[5] > Duration::from_secs(7), "{pauses:?}");
        change(&mut publisher, now);
        publisher.handle(Ok(EtcdReply::Changed { is_done: true, revision: 60 }), now);
        assert!(publisher.is_told() && publisher.trouble().is_none());
    }

    #[test]
    fn two_processes_with_one_key_are_noticed() {
        let mut publisher = up_to_date_publisher();
        want(&mut publisher, &["disk"]);
        let mut now = at(300);
        for _ in 0..CONTENDED_AFTER {
            change(&mut publisher, now);
            publisher.handle(Ok(EtcdReply::Changed { is_done: false, revision: 50 }), now);
            if let PublisherStep::Wait(Some(pause)) = publisher.poll(now) {
                now = pause;
                call(&mut publisher, now);
            }
            publisher.handle(found(vec![]), now);
            if publisher.trouble().is_some() {
                break;
            }
        }
        assert!(publisher.refused_guards >= CONTENDED_AFTER - 1);
    }

    #[test]
    fn many_devices_are_written_in_pieces_that_etcd_takes() {
        let mut publisher = up_to_date_publisher();
        let names: Vec<String> = (0..1000).map(|number| format!("d{number}")).collect();
        want(&mut publisher, &names.iter().map(String::as_str).collect::<Vec<_>>());
        let mut now = at(1000);
        for revision in 20.. {
            match publisher.poll(now) {
                PublisherStep::Call(EtcdCall::Change(change)) => {
                    assert!(change.puts.len() + change.deletes.len() <= 128);
                    publisher.handle(Ok(EtcdReply::Changed { is_done: true, revision }), now);
                }
                PublisherStep::Wait(Some(until)) if !publisher.is_told() => now = until,
                step => {
                    assert!(publisher.is_told(), "{step:?}");
                    break;
                }
            }
        }
        assert!(now < at(4000), "{now:?}");
    }
}
