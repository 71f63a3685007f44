//! Follows what all hosts say in the directory.
//!
//! The order of steps:
//!
//! | step | call | then |
//! |---|---|---|
//! | 1 | read the layout's number | none there: the directory is empty; another: nothing is read |
//! | 2 | read all keys, a page at a time, all at the revision of the first | compacted meanwhile: begin again |
//! | 3 | watch from the next revision on | a lost watch: watch again from where it was; compacted: step 2 |
//!
//! What was known stays while keys are read again, and while the directory is away: [`DirectoryView::heard`] says how
//! old it is.
//!
//! There is room for so many keys. One host has a part of it at most; the hosts that [`DirectoryView::prefer`] names
//! come first: where there is no room for a key of theirs, others' keys go. After some were left out, all is read again
//! when others have gone, and else every few minutes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use farbus_model::Instant;

use crate::gateway::{EtcdCall, EtcdRefusal, EtcdReply, RangeResult, WatchUpdate};
use crate::key::{DirectoryKey, HostId, KeyRange, check_format};
use crate::pace::RetryBackoff;
use crate::record::{DeviceRecord, HostRecord, LimitRecord};
use crate::room::DirectoryQuota;
use crate::trouble::{DirectoryFailure, DirectoryFailureKind};

/// How many keys are read at once.
const PAGE: u32 = 1000;
/// After so long, all is read again if some keys were left out.
const READ_AGAIN_AFTER: Duration = Duration::from_secs(300);
/// After so long without reading again for room, the next time is soon.
const CALM: Duration = Duration::from_secs(600);

/// A watch that went on for so long was none that failed: the pause after its end is short. One that ends sooner, as
/// where there is no leader, is begun later each time.
const LASTED: Duration = Duration::from_secs(10);

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirectoryViewStep {
    /// Make this call, and pass its answer to [`DirectoryView::handle`].
    Call(EtcdCall),
    /// Begin this watch: pass what it says to [`DirectoryView::handle_news`], and its end to
    /// [`DirectoryView::handle_end`].
    Watch(EtcdCall),
    /// Nothing until this moment.
    Wait(Option<Instant>),
}

/// What all hosts say.
#[derive(Clone, Debug)]
pub struct DirectoryView {
    entries: BTreeMap<DirectoryKey, DirectoryEntry>,
    room: DirectoryQuota,
    /// The hosts whose keys come first.
    preferred: BTreeSet<HostId>,
    /// How often all keys were read. An entry of an earlier time was not there at the last.
    epoch: u32,
    /// Another number with each change of what is known.
    version: u64,
    state: DirectoryViewPhase,
    is_busy: bool,
    /// Values that were no records, and keys that were none, since all keys were read last.
    unfit: usize,
    /// Whether keys were left out since all were read last.
    is_overfull: bool,
    /// Whether that was because all of the room was taken, and not because a host had its part.
    was_full: bool,
    /// Whether what was not there at the last reading was forgotten during this one.
    is_old_forgotten: bool,
    /// When all is read again because keys were left out.
    read_again_at: Option<Instant>,
    /// When it was, last.
    read_again: Option<Instant>,
    /// The pauses between that.
    reading_pace: RetryBackoff,
    heard: Option<Instant>,
    /// When the watch that goes on has begun.
    begun: Option<Instant>,
    is_complete: bool,
    pace: RetryBackoff,
    trouble: Option<DirectoryFailure>,
}

#[derive(Clone, Debug)]
struct DirectoryEntry {
    value: Box<[u8]>,
    epoch: u32,
    /// The key of the host that has the device, if it is a device that a paired host has.
    holder: Option<HostId>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum DirectoryViewPhase {
    Format,
    /// Reads these ranges, the last one first, at this revision (0: the present one).
    Reading {
        ranges: Vec<KeyRange>,
        revision: i64,
        /// Whether only the hosts that come first are read any more.
        is_narrowed: bool,
    },
    /// Follows from this revision on.
    Following {
        revision: i64,
    },
}

impl DirectoryViewPhase {
    fn reading() -> Self {
        DirectoryViewPhase::Reading { ranges: vec![KeyRange::everything()], revision: 0, is_narrowed: false }
    }
}

impl DirectoryView {
    /// Nothing is known yet. `seed` makes the pauses of this host differ from those of others.
    pub fn new(seed: u64) -> Self {
        Self {
            entries: BTreeMap::new(),
            room: DirectoryQuota::default(),
            preferred: BTreeSet::new(),
            epoch: 1,
            version: seed,
            state: DirectoryViewPhase::Format,
            is_busy: false,
            unfit: 0,
            is_overfull: false,
            was_full: false,
            is_old_forgotten: false,
            read_again_at: None,
            read_again: None,
            reading_pace: RetryBackoff::new(seed.rotate_left(16)),
            heard: None,
            begun: None,
            is_complete: false,
            pace: RetryBackoff::new(seed),
            trouble: None,
        }
    }

    /// A number that is another one after each change of an entry. It begins with the seed of [`DirectoryView::new`],
    /// so that it is not that of an earlier view.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Whether all keys were read once.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// When the directory was heard last.
    pub fn heard(&self) -> Option<Instant> {
        self.heard
    }

    /// Why what is known is not what is there, if it is not.
    pub fn trouble(&self) -> Option<&DirectoryFailure> {
        self.trouble.as_ref()
    }

    /// How many values and keys were none of farbus's.
    pub fn unfit(&self) -> usize {
        self.unfit
    }

    /// The hosts, by their keys. What they say of themselves is a claim.
    pub fn hosts(&self) -> impl Iterator<Item = (&HostId, HostRecord)> {
        self.entries.iter().filter_map(|(key, entry)| match key {
            DirectoryKey::Host(host) => Some((host, HostRecord::parse(&entry.value).ok()?)),
            DirectoryKey::Device(..) | DirectoryKey::Limit(_) => None,
        })
    }

    /// The limits of the leases of a host, if there are any. They are a claim: they may keep a host from having a
    /// device, and give it none.
    pub fn limit_of(&self, host: &HostId) -> Option<LimitRecord> {
        let entry = self.entries.get(&DirectoryKey::Limit(host.clone()))?;
        LimitRecord::parse(&entry.value).ok()
    }

    /// All limits, by the hosts whose leases they limit.
    pub fn limits(&self) -> impl Iterator<Item = (&HostId, LimitRecord)> {
        self.entries.iter().rev().map_while(|(key, entry)| match key {
            DirectoryKey::Limit(host) => Some((host, LimitRecord::parse(&entry.value).ok()?)),
            DirectoryKey::Host(_) | DirectoryKey::Device(..) => None,
        })
    }

    /// How many devices a host has, of other hosts than `but`, by what these say.
    pub fn devices_held_by(&self, holder: &HostId, but: Option<&HostId>) -> usize {
        let is_its = |(host, _, entry): &(&HostId, &str, &DirectoryEntry)| {
            entry.holder.as_ref() == Some(holder) && Some(*host) != but
        };
        self.present_devices().filter(is_its).count()
    }

    /// How many hosts and devices are known.
    pub fn counts(&self) -> (usize, usize) {
        let hosts = self.entries.keys().take_while(|key| matches!(key, DirectoryKey::Host(_))).count();
        (hosts, self.present_devices().count())
    }

    fn present_devices(&self) -> impl Iterator<Item = (&HostId, &str, &DirectoryEntry)> {
        let mut present: Option<&HostId> = None;
        self.entries.iter().filter_map(move |(key, entry)| match key {
            DirectoryKey::Host(_) | DirectoryKey::Limit(_) => None,
            DirectoryKey::Device(host, name) => {
                if present != Some(host) {
                    self.entries.get(&DirectoryKey::Host(host.clone()))?;
                    present = Some(host);
                }
                Some((host, name.as_str(), entry))
            }
        })
    }

    /// The devices: the host's key, the name there, and what the directory says of it. A device whose host is not there
    /// is left out.
    pub fn devices(&self) -> impl Iterator<Item = (&HostId, &str, DeviceRecord)> {
        self.present_devices()
            .filter_map(|(host, name, entry)| Some((host, name, DeviceRecord::parse(&entry.value).ok()?)))
    }

    /// The keys of a host with their values.
    pub(crate) fn values_of(&self, host: &HostId) -> impl Iterator<Item = (&DirectoryKey, &[u8])> {
        let own = self.entries.get_key_value(&DirectoryKey::Host(host.clone()));
        let from = DirectoryKey::Device(host.clone(), String::new());
        let is_its = move |key: &DirectoryKey| matches!((key, &from), (DirectoryKey::Device(one, _), DirectoryKey::Device(other, _)) if one == other);
        let devices = self.entries.range(DirectoryKey::Device(host.clone(), String::new())..);
        own.into_iter().chain(devices.take_while(move |(key, _)| is_its(key))).map(|(key, entry)| (key, &*entry.value))
    }

    /// How many keys are known.
    pub fn count(&self) -> usize {
        self.entries.len()
    }

    /// Whether the watch that [`DirectoryView::poll`] asked for goes on.
    pub fn is_watching(&self) -> bool {
        self.is_busy && matches!(self.state, DirectoryViewPhase::Following { .. })
    }

    /// The keys of these hosts come first from now on.
    pub fn prefer(&mut self, hosts: BTreeSet<HostId>, now: Instant) {
        if hosts != self.preferred {
            self.preferred = hosts;
            if self.is_overfull {
                self.read_again_soon(now);
            }
        }
    }

    /// Begins to read all again, if keys were left out and it is time; then no watch goes on.
    pub fn handle_timeout(&mut self, now: Instant) {
        let is_due = self.read_again_at.is_some_and(|at| at <= now);
        if !is_due || !matches!(self.state, DirectoryViewPhase::Following { .. }) {
            return;
        }
        if self.read_again.is_none_or(|last| now - last > CALM) {
            self.reading_pace.succeed();
        }
        self.reading_pace.fail(now);
        (self.read_again, self.read_again_at) = (Some(now), None);
        (self.state, self.is_busy, self.begun) = (DirectoryViewPhase::reading(), false, None);
    }

    fn read_again_soon(&mut self, now: Instant) {
        let soon = self.reading_pace.pause(now).unwrap_or(now);
        self.read_again_at = Some(self.read_again_at.map_or(soon, |at| at.min(soon)));
    }

    /// What to do next.
    pub fn poll(&mut self, now: Instant) -> DirectoryViewStep {
        self.handle_timeout(now);
        if self.is_busy {
            return DirectoryViewStep::Wait(None);
        }
        if let Some(pause) = self.pace.pause(now) {
            return DirectoryViewStep::Wait(Some(pause));
        }
        self.is_busy = true;
        let everything = KeyRange::everything();
        match &self.state {
            DirectoryViewPhase::Format => {
                DirectoryViewStep::Call(EtcdCall::Range { range: KeyRange::format(), limit: 1, revision: 0 })
            }
            DirectoryViewPhase::Reading { ranges, revision, .. } => {
                let range = ranges.last().cloned().unwrap_or(everything);
                // A range of one key has no end.
                let limit = if range.to.is_empty() { 1 } else { PAGE };
                DirectoryViewStep::Call(EtcdCall::Range { range, limit, revision: *revision })
            }
            DirectoryViewPhase::Following { revision } => {
                DirectoryViewStep::Watch(EtcdCall::Watch { range: everything, revision: *revision })
            }
        }
    }

    /// Handles the answer to a call.
    pub fn handle(&mut self, answer: Result<EtcdReply, EtcdRefusal>, now: Instant) {
        if !std::mem::take(&mut self.is_busy) {
            return;
        }
        match answer {
            Ok(EtcdReply::Found(found)) => match self.handle_found(found, now) {
                Ok(()) => self.heard = Some(now),
                Err(trouble) => self.fail(trouble, now),
            },
            Ok(_) => self
                .fail(DirectoryFailure::new(DirectoryFailureKind::NotEtcd, "the answer is that to another call"), now),
            Err(EtcdRefusal::Compacted) => {
                // Pages at a revision that is gone: from the beginning, and not at once, since it may happen again.
                self.state = DirectoryViewPhase::reading();
                self.pace.fail(now);
            }
            Err(EtcdRefusal::NoLease | EtcdRefusal::OldToken) => {
                self.fail(
                    DirectoryFailure::new(
                        DirectoryFailureKind::Unreachable,
                        "a call was not done, and may be made again",
                    ),
                    now,
                );
            }
            Err(EtcdRefusal::Trouble(trouble)) => self.fail(trouble, now),
        }
    }

    fn handle_found(&mut self, found: RangeResult, now: Instant) -> Result<(), DirectoryFailure> {
        match &mut self.state {
            DirectoryViewPhase::Format => {
                if let Some(pair) = found.pairs.first() {
                    check_format(&pair.value)?;
                }
                self.state = DirectoryViewPhase::reading();
            }
            DirectoryViewPhase::Reading { ranges, revision, is_narrowed } => {
                let (mut ranges, revision, is_narrowed) = (std::mem::take(ranges), *revision, *is_narrowed);
                let range = ranges.pop().unwrap_or_else(KeyRange::everything);
                let is_first = revision == 0;
                let revision = if is_first { found.revision } else { revision };
                if is_first {
                    (self.epoch, self.unfit) = (self.epoch.wrapping_add(1), 0);
                    (self.is_overfull, self.was_full, self.is_old_forgotten) = (false, false, false);
                }
                let last = found.pairs.last().map(|pair| pair.key.clone());
                for pair in found.pairs {
                    self.put(&pair.key, &pair.value);
                }
                let is_narrow = is_narrowed || self.is_overfull;
                if is_narrow && !is_narrowed {
                    ranges = self.preferred_ranges();
                } else if let Some(mut from) = last.filter(|_| found.has_more) {
                    if from < range.from {
                        self.state = DirectoryViewPhase::Reading { ranges: vec![range], revision, is_narrowed };
                        return Err(DirectoryFailure::new(
                            DirectoryFailureKind::NotEtcd,
                            "the keys of a page are not in order",
                        ));
                    }
                    from.push(0);
                    ranges.push(KeyRange { from, to: range.to });
                }
                if ranges.is_empty() {
                    self.forget_old();
                    self.is_complete = true;
                    self.state = DirectoryViewPhase::Following { revision: revision.saturating_add(1) };
                    self.read_again_at = self.is_overfull.then(|| now + READ_AGAIN_AFTER);
                } else {
                    self.state = DirectoryViewPhase::Reading { ranges, revision, is_narrowed: is_narrow };
                }
                self.note_overfull(now);
            }
            DirectoryViewPhase::Following { .. } => {}
        }
        Ok(())
    }

    /// Handles a line of the watch.
    pub fn handle_news(&mut self, news: WatchUpdate, now: Instant) {
        let DirectoryViewPhase::Following { revision: next } = &mut self.state else { return };
        match news {
            WatchUpdate::Changes { changes, revision } => {
                if let Some(revision) = revision {
                    *next = (*next).max(revision.saturating_add(1));
                }
                for change in changes {
                    match change.value {
                        Some(value) => self.put(&change.key, &value),
                        None => self.remove(&change.key),
                    }
                }
                self.heard = Some(now);
                self.pace.succeed();
                self.note_overfull(now);
            }
            WatchUpdate::Begun(revision) if revision.saturating_add(1) < *next => {
                // A member that lags behind, or another history: a watch of what is to come would say nothing.
                let message = "the directory has forgotten what it said: all is read again";
                self.handle_end(DirectoryFailure::new(DirectoryFailureKind::Unreachable, message), now);
                self.state = DirectoryViewPhase::reading();
            }
            WatchUpdate::Begun(_) => {
                // Nothing may change for long: the directory is followed again, and says so.
                (self.heard, self.begun) = (Some(now), Some(now));
                self.note_overfull(now);
            }
            WatchUpdate::Compacted => {
                self.state = DirectoryViewPhase::reading();
                self.is_busy = false;
            }
            WatchUpdate::Ended(why) => {
                let message = format!("the directory ended what it tells: {}", why.escape_debug());
                self.handle_end(DirectoryFailure::new(DirectoryFailureKind::Unreachable, message), now);
            }
        }
    }

    /// Handles the end of the watch.
    pub fn handle_end(&mut self, why: DirectoryFailure, now: Instant) {
        if matches!(self.state, DirectoryViewPhase::Following { .. }) && std::mem::take(&mut self.is_busy) {
            if self.begun.take().is_some_and(|begun| now - begun > LASTED) {
                self.pace.succeed();
            }
            self.fail(why, now);
        }
    }

    fn fail(&mut self, trouble: DirectoryFailure, now: Instant) {
        if trouble.kind == DirectoryFailureKind::OtherFormat {
            // Keys of another layout say nothing.
            self.state = DirectoryViewPhase::Format;
            self.version = self.version.wrapping_add(1);
            self.entries.clear();
            self.room = DirectoryQuota::default();
        }
        self.trouble = Some(trouble);
        self.pace.fail(now);
    }

    /// A directory that is heard is in no trouble, unless it has too much.
    fn note_overfull(&mut self, now: Instant) {
        if !self.is_overfull {
            self.trouble = None;
            return;
        }
        let was_told = self.trouble.as_ref().is_some_and(|trouble| trouble.kind == DirectoryFailureKind::TooMuch);
        if !was_told {
            // Looked for once: it takes as long as there are hosts.
            let largest = self.room.largest();
            let of =
                largest.map(|(host, keys)| format!("; the most, {keys} keys, are of the host with the key {host}"));
            let message = "the directory has more hosts and devices than farbus keeps in memory: some are not shown, those \
                           of paired hosts last";
            self.trouble = Some(DirectoryFailure::new(
                DirectoryFailureKind::TooMuch,
                format!("{message}{}", of.unwrap_or_default()),
            ));
        }
        if !matches!(self.state, DirectoryViewPhase::Following { .. }) {
            return;
        }
        self.read_again_at.get_or_insert(now + READ_AGAIN_AFTER);
        if self.was_full && self.room.is_roomy() {
            self.read_again_soon(now);
            self.handle_timeout(now);
        }
    }

    fn put(&mut self, key: &[u8], value: &[u8]) {
        let read = |key: DirectoryKey| {
            let holder = match &key {
                DirectoryKey::Host(_) => HostRecord::parse(value).ok().map(|_| None),
                DirectoryKey::Device(..) => DeviceRecord::parse(value).ok().map(|record| record.holder_key),
                DirectoryKey::Limit(_) => LimitRecord::parse(value).ok().map(|_| None),
            };
            Some((key, holder?.and_then(|holder| HostId::new(&holder))))
        };
        let Some((key, holder)) = DirectoryKey::parse(key).and_then(read) else {
            self.unfit = self.unfit.saturating_add(1);
            // What was there before is not there any more.
            return self.remove(key);
        };
        if !self.make_room(&key, value.len()) {
            self.is_overfull = true;
            return self.take(&key);
        }
        let former = self.entries.get(&key).map(|entry| entry.value.len());
        self.room.add(key.host(), former, value.len());
        let former = self.entries.insert(key, DirectoryEntry { value: value.into(), epoch: self.epoch, holder });
        if former.is_none_or(|former| *former.value != *value) {
            self.version = self.version.wrapping_add(1);
        }
    }

    /// Makes room for a value of so many bytes. Returns whether there is.
    fn make_room(&mut self, key: &DirectoryKey, bytes: usize) -> bool {
        let host = key.host();
        let former = self.entries.get(key).map(|entry| entry.value.len());
        if !self.room.fits_share(host, former, bytes) {
            return false;
        }
        if self.room.fits(former, bytes) {
            return true;
        }
        if matches!(self.state, DirectoryViewPhase::Reading { .. })
            && !std::mem::replace(&mut self.is_old_forgotten, true)
        {
            // What was not read again yet may have gone.
            self.forget_those(|this, key, entry| entry.epoch != this.epoch && !this.preferred.contains(key.host()));
            if self.room.fits(former, bytes) {
                return true;
            }
        }
        self.was_full = true;
        if self.preferred.contains(host) {
            self.is_overfull = true;
            self.displace();
        }
        let former = self.entries.get(key).map(|entry| entry.value.len());
        self.room.fits(former, bytes)
    }

    /// Forgets keys of the hosts that have the most and do not come first.
    fn displace(&mut self) {
        let mut hosts = self.room.by_weight(|host| self.preferred.contains(host));
        while let Some(host) = hosts.pop().filter(|_| !self.room.has_slack()) {
            let devices = self.values_of(&host).map(|(key, _)| key.clone());
            let mut keys: Vec<DirectoryKey> = devices.chain([DirectoryKey::Limit(host.clone())]).collect();
            while let Some(key) = keys.pop().filter(|_| !self.room.has_slack()) {
                self.take(&key);
            }
        }
    }

    /// What is read of the hosts that come first.
    fn preferred_ranges(&self) -> Vec<KeyRange> {
        let of_host = |host: &HostId| [KeyRange::of_key(&DirectoryKey::Limit(host.clone())), KeyRange::of_host(host)];
        self.preferred.iter().flat_map(of_host).collect()
    }

    fn remove(&mut self, key: &[u8]) {
        if let Some(key) = DirectoryKey::parse(key) {
            self.take(&key);
        }
    }

    fn take(&mut self, key: &DirectoryKey) {
        if let Some(entry) = self.entries.remove(key) {
            self.room.remove(key.host(), entry.value.len());
            self.version = self.version.wrapping_add(1);
        }
    }

    /// Forgets what was not there when all keys were read last.
    fn forget_old(&mut self) {
        self.forget_those(|this, _, entry| entry.epoch != this.epoch);
    }

    fn forget_those(&mut self, is_meant: impl Fn(&Self, &DirectoryKey, &DirectoryEntry) -> bool) {
        let those: Vec<DirectoryKey> =
            self.entries.iter().filter(|(key, entry)| is_meant(self, key, entry)).map(|(key, _)| key.clone()).collect();
        those.iter().for_each(|key| self.take(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::{KeyChange, KeyValue};
    use crate::room::{BYTES_MAX, KEYS_MAX};

    const NOW: Instant = Instant::from_nanos(1_000_000_000);

    fn host(letter: &str) -> HostId {
        HostId::new(&letter.repeat(52)).unwrap()
    }

    fn page(keys: &[String], revision: i64, has_more: bool) -> Result<EtcdReply, EtcdRefusal> {
        let pair = |key: &String| KeyValue { key: key.clone().into(), value: b"{}".to_vec(), lease: 7, revision };
        Ok(EtcdReply::Found(RangeResult { revision, pairs: keys.iter().map(pair).collect(), has_more }))
    }

    fn call(view: &mut DirectoryView) -> EtcdCall {
        match view.poll(NOW) {
            DirectoryViewStep::Call(call) => call,
            step => panic!("{step:?}"),
        }
    }

    fn names(view: &DirectoryView) -> Vec<String> {
        view.devices().map(|(host, name, _)| format!("{}/{name}", &host.as_str()[..1])).collect()
    }

    fn keys(hosts: &[&str], devices: &[(&str, &str)]) -> Vec<String> {
        let hosts = hosts.iter().map(|letter| DirectoryKey::Host(host(letter)).to_string());
        let devices =
            devices.iter().map(|(letter, name)| DirectoryKey::Device(host(letter), (*name).to_owned()).to_string());
        let mut keys: Vec<String> = hosts.chain(devices).collect();
        keys.sort();
        keys
    }

    /// A view that follows from revision 6 on.
    fn following() -> DirectoryView {
        let mut view = DirectoryView::new(1);
        call(&mut view);
        view.handle(page(&[], 3, false), NOW);
        call(&mut view);
        view.handle(page(&keys(&["a"], &[("a", "board")]), 5, true), NOW);
        assert!(!view.is_complete());
        let EtcdCall::Range { range, revision, .. } = call(&mut view) else { panic!("not a page") };
        assert_eq!((range.from.ends_with(b"/board\0"), revision), (true, 5));
        view.handle(page(&keys(&["b"], &[("b", "disk")]), 8, false), NOW);
        assert!(view.is_complete());
        view
    }

    fn watch(view: &mut DirectoryView, now: Instant) -> i64 {
        match view.poll(now) {
            DirectoryViewStep::Watch(EtcdCall::Watch { revision, .. }) => revision,
            step => panic!("{step:?}"),
        }
    }

    #[test]
    fn pages_of_one_revision_are_read_and_then_followed() {
        let mut view = following();
        assert_eq!(names(&view), ["a/board", "b/disk"]);
        assert_eq!(watch(&mut view, NOW), 6);
        let version = view.version();
        let put = KeyChange { key: keys(&[], &[("b", "cam")])[0].clone().into(), value: Some(b"{}".to_vec()) };
        let gone = KeyChange { key: keys(&["a"], &[])[0].clone().into(), value: None };
        view.handle_news(WatchUpdate::Changes { changes: vec![put.clone(), gone], revision: Some(9) }, NOW);
        let changed = view.version();
        assert_ne!(changed, version);
        view.handle_news(WatchUpdate::Changes { changes: vec![put], revision: Some(9) }, NOW);
        assert_eq!(view.version(), changed, "what was known before is no change");
        assert_eq!(names(&view), ["b/cam", "b/disk"], "a device without its host is not shown");
        assert_eq!((view.counts(), view.count()), ((1, 2), 4));
        view.handle_end(DirectoryFailure::new(DirectoryFailureKind::Unreachable, "lost"), NOW);
        assert_eq!(view.trouble().unwrap().message, "lost");
        assert_eq!(names(&view), ["b/cam", "b/disk"], "what was known stays");
        let DirectoryViewStep::Wait(Some(pause)) = view.poll(NOW) else { panic!("no pause") };
        assert_eq!(watch(&mut view, pause), 10, "nothing is missed and nothing told twice");
    }

    #[test]
    fn compaction_between_reading_and_watching_means_reading_again() {
        let mut view = following();
        watch(&mut view, NOW);
        view.handle_news(WatchUpdate::Compacted, NOW);
        let EtcdCall::Range { revision: 0, .. } = call(&mut view) else { panic!("not from the beginning") };
        assert_eq!(names(&view), ["a/board", "b/disk"], "what was known stays meanwhile");
        view.handle(page(&keys(&["b"], &[("b", "disk")]), 20, false), NOW);
        assert_eq!((names(&view), watch(&mut view, NOW)), (vec!["b/disk".to_owned()], 21));
        assert!(view.trouble().is_none());
    }

    #[test]
    fn directory_that_was_replaced_is_read_again() {
        let mut view = following();
        watch(&mut view, NOW);
        view.handle_news(WatchUpdate::Begun(2), NOW);
        let DirectoryViewStep::Wait(Some(pause)) = view.poll(NOW) else { panic!("no pause") };
        let DirectoryViewStep::Call(EtcdCall::Range { revision: 0, .. }) = view.poll(pause) else {
            panic!("not from the beginning")
        };
    }

    #[test]
    fn compaction_between_two_pages_means_beginning_again_after_a_pause() {
        let mut view = DirectoryView::new(1);
        call(&mut view);
        view.handle(page(&[], 3, false), NOW);
        call(&mut view);
        view.handle(page(&keys(&["a"], &[]), 5, true), NOW);
        call(&mut view);
        view.handle(Err(EtcdRefusal::Compacted), NOW);
        let DirectoryViewStep::Wait(Some(pause)) = view.poll(NOW) else { panic!("no pause") };
        let DirectoryViewStep::Call(EtcdCall::Range { revision: 0, .. }) = view.poll(pause) else {
            panic!("not from the beginning")
        };
    }

    #[test]
    fn hostile_keys_and_values_are_counted_and_not_kept() {
        let mut view = following();
        watch(&mut view, NOW);
        let changes = [
            (&b"/farbus/1/x"[..], &b"{}"[..]),
            (b"/farbus/1/\xff\x1b", b"{}"),
            (keys(&[], &[("b", "disk")])[0].clone().as_bytes(), b"{\"labels\":7}"),
            (keys(&[], &[("b", "big")])[0].clone().as_bytes(), &[b'x'; 9000]),
        ]
        .map(|(key, value)| KeyChange { key: key.to_vec(), value: Some(value.to_vec()) });
        view.handle_news(WatchUpdate::Changes { changes: changes.to_vec(), revision: Some(9) }, NOW);
        assert_eq!((names(&view), view.unfit()), (vec!["a/board".to_owned()], 4));
    }

    #[test]
    fn foreign_key_at_the_end_of_a_page_hides_nothing_behind_it() {
        for foreign in [[&b"/farbus/1/aaa"[..], &[b'x'; 9000]].concat(), b"/farbus/1/aaa\xff".to_vec()] {
            let mut view = DirectoryView::new(1);
            call(&mut view);
            view.handle(page(&[], 3, false), NOW);
            call(&mut view);
            let pair = KeyValue { key: foreign.clone(), value: Vec::new(), lease: 0, revision: 4 };
            view.handle(Ok(EtcdReply::Found(RangeResult { revision: 5, pairs: vec![pair], has_more: true })), NOW);
            let EtcdCall::Range { range, .. } = call(&mut view) else { panic!("not a page") };
            assert_eq!(range.from, [&foreign[..], &[0]].concat());
            view.handle(page(&keys(&["b"], &[("b", "disk")]), 5, false), NOW);
            assert_eq!((names(&view), view.unfit(), view.is_complete()), (vec!["b/disk".to_owned()], 1, true));
        }
    }

    #[test]
    fn memory_of_a_view_is_limited_and_it_says_so() {
        let mut view = following();
        watch(&mut view, NOW);
        let value = format!("{{\"title\":\"{}\",\"x\":\"{}\"}}", "t".repeat(200), "x".repeat(7000)).into_bytes();
        for number in 0..BYTES_MAX / 7000 + 10 {
            let key = DirectoryKey::Device(host("b"), format!("d{number}")).to_string().into();
            let changes = vec![KeyChange { key, value: Some(value.clone()) }];
            view.handle_news(WatchUpdate::Changes { changes, revision: Some(9) }, NOW);
        }
        assert!(
            view.room.held().bytes <= BYTES_MAX / 4 && view.count() < BYTES_MAX / 4 / 7000 + 3,
            "a host has its part"
        );
        assert_eq!(view.trouble().unwrap().kind, DirectoryFailureKind::TooMuch);
    }

    fn numbered(number: usize) -> HostId {
        let letters: String = format!("{number:06}").bytes().map(|digit| char::from(b'a' + digit - b'0')).collect();
        HostId::new(&format!("{letters}{}", "x".repeat(46))).unwrap()
    }

    fn change(view: &mut DirectoryView, key: &DirectoryKey, value: Option<&str>, now: Instant) {
        let changes = vec![KeyChange { key: key.to_string().into(), value: value.map(Into::into) }];
        view.handle_news(WatchUpdate::Changes { changes, revision: Some(9) }, now);
    }

    /// A view that follows and has as many keys of strangers, each a host of its own, as there is room for.
    fn flooded() -> DirectoryView {
        let mut view = following();
        watch(&mut view, NOW);
        for number in 0..KEYS_MAX {
            change(&mut view, &DirectoryKey::Host(numbered(number)), Some("{}"), NOW);
        }
        assert_eq!((view.count(), view.trouble().unwrap().kind), (KEYS_MAX, DirectoryFailureKind::TooMuch));
        view
    }

    #[test]
    fn keys_that_were_left_out_are_read_when_those_that_took_the_room_have_gone() {
        let mut view = flooded();
        change(&mut view, &DirectoryKey::Device(host("b"), "late".into()), Some("{}"), NOW);
        assert!(!names(&view).contains(&"b/late".to_owned()), "there is no room for it");
        let mut gone = 0;
        while view.is_watching() {
            change(&mut view, &DirectoryKey::Host(numbered(gone)), None, NOW);
            gone += 1;
        }
        assert!(gone < KEYS_MAX / 3, "{gone}");
        let EtcdCall::Range { revision: 0, .. } = call(&mut view) else { panic!("not from the beginning") };
        view.handle(page(&keys(&["a", "b"], &[("a", "board"), ("b", "late")]), 20, false), NOW);
        assert_eq!((names(&view), view.trouble()), (vec!["a/board".to_owned(), "b/late".to_owned()], None));
        assert_eq!(view.count(), 4);
    }

    #[test]
    fn view_that_is_too_full_again_and_again_is_read_again_less_and_less_often() {
        let mut view = flooded();
        let mut now = NOW;
        let mut pauses = Vec::new();
        for _ in 0..8 {
            for number in 0..KEYS_MAX / 2 {
                change(&mut view, &DirectoryKey::Host(numbered(number)), None, now);
            }
            let before = now;
            while view.is_watching() {
                now = now + Duration::from_millis(100);
                view.handle_timeout(now);
            }
            pauses.push(now - before);
            call(&mut view);
            view.handle(page(&keys(&["a"], &[]), 20, false), now);
            watch(&mut view, now);
            for number in 0..=KEYS_MAX {
                change(&mut view, &DirectoryKey::Host(numbered(number)), Some("{}"), now);
            }
            assert_eq!(view.trouble().unwrap().kind, DirectoryFailureKind::TooMuch);
        }
        assert!(pauses[0] < Duration::from_millis(200) && pauses[7] > Duration::from_secs(7), "{pauses:?}");
        now = now + READ_AGAIN_AFTER;
        view.handle_timeout(now);
        assert!(!view.is_watching(), "also if nothing goes");
    }

    #[test]
    fn keys_of_hosts_that_come_first_displace_others_and_are_read_although_there_is_no_room() {
        let mut view = flooded();
        view.prefer([host("p"), host("q")].into(), NOW);
        let EtcdCall::Range { revision: 0, .. } = call(&mut view) else { panic!("not from the beginning") };
        // As many strangers, before these hosts, as there is room for, and more.
        let strangers: Vec<String> =
            (0..KEYS_MAX + 10).map(|number| DirectoryKey::Host(numbered(number)).to_string()).collect();
        view.handle(page(&strangers, 20, true), NOW);
        let mut ranges = Vec::new();
        while let DirectoryViewStep::Call(EtcdCall::Range { range, revision, .. }) = view.poll(NOW) {
            assert_eq!(revision, 20);
            let of = |letter: &str| range == KeyRange::of_host(&host(letter));
            let found = if of("p") { keys(&["p"], &[("p", "board")]) } else { Vec::new() };
            ranges.push(range);
            view.handle(page(&found, 20, false), NOW);
        }
        assert_eq!(ranges.len(), 4, "of each host its keys, and its limit: {ranges:?}");
        assert_eq!(names(&view), ["p/board"]);
        assert!(view.is_watching() && view.count() <= KEYS_MAX);
        assert_eq!(view.trouble().unwrap().kind, DirectoryFailureKind::TooMuch);
        // And so are those that come later.
        change(&mut view, &DirectoryKey::Host(host("q")), Some("{}"), NOW);
        change(&mut view, &DirectoryKey::Device(host("q"), "disk".into()), Some("{}"), NOW);
        change(&mut view, &DirectoryKey::Limit(host("q")), Some("{\"devices\":2}"), NOW);
        assert_eq!(names(&view), ["p/board", "q/disk"]);
        assert_eq!(view.limit_of(&host("q")).and_then(|limit| limit.devices), Some(2));
    }

    #[test]
    fn one_host_has_a_part_of_the_room_and_leaves_the_rest_to_others() {
        let mut view = following();
        watch(&mut view, NOW);
        for number in 0..KEYS_MAX {
            change(&mut view, &DirectoryKey::Device(host("a"), format!("d{number}")), Some("{}"), NOW);
        }
        assert_eq!(view.trouble().unwrap().kind, DirectoryFailureKind::TooMuch);
        assert!(view.trouble().unwrap().message.contains(&"a".repeat(52)), "it says whose they are");
        change(&mut view, &DirectoryKey::Device(host("b"), "late".into()), Some("{}"), NOW);
        assert!(names(&view).contains(&"b/late".to_owned()));
        assert!(view.is_watching(), "there is room, and reading again would change nothing");
    }

    #[test]
    fn directory_of_another_format_is_not_read() {
        let mut view = DirectoryView::new(1);
        call(&mut view);
        let pair = KeyValue { key: b"/farbus/format".to_vec(), value: b"7".to_vec(), lease: 0, revision: 1 };
        view.handle(Ok(EtcdReply::Found(RangeResult { revision: 1, pairs: vec![pair], has_more: false })), NOW);
        assert_eq!(view.trouble().unwrap().kind, DirectoryFailureKind::OtherFormat);
        assert!(!view.is_complete() && view.heard().is_none());
    }

    #[test]
    fn watch_that_begins_again_ends_the_trouble_although_nothing_changes() {
        let mut view = following();
        let mut now = NOW;
        let mut pauses = Vec::new();
        // Lost at once, again and again: later each time. Then after it went on for a while.
        for lasted in [0, 0, 0, 0, 0, 11].map(Duration::from_secs) {
            watch(&mut view, now);
            view.handle_news(WatchUpdate::Begun(5), now);
            assert_eq!((view.trouble(), view.heard()), (None, Some(now)));
            now = now + lasted;
            view.handle_end(DirectoryFailure::new(DirectoryFailureKind::Unreachable, "lost"), now);
            assert_eq!(view.trouble().unwrap().message, "lost");
            let DirectoryViewStep::Wait(Some(until)) = view.poll(now) else { panic!("no pause") };
            pauses.push(until - now);
            now = until;
        }
        assert!(pauses[4] > Duration::from_secs(3) && pauses[5] < Duration::from_secs(1), "{pauses:?}");
    }

    #[test]
    fn limits_and_holders_are_followed_and_are_no_hosts_or_devices() {
        let mut view = following();
        watch(&mut view, NOW);
        let mut change = |key: DirectoryKey, value: Option<&str>| {
            let changes = vec![KeyChange { key: key.to_string().into(), value: value.map(Into::into) }];
            view.handle_news(WatchUpdate::Changes { changes, revision: Some(9) }, NOW);
        };
        let held = format!("{{\"holder_key\":\"{}\"}}", host("d"));
        change(DirectoryKey::Device(host("a"), "board".into()), Some(&held));
        change(DirectoryKey::Device(host("b"), "disk".into()), Some(&held));
        change(DirectoryKey::Device(host("b"), "cam".into()), Some("{\"holder_key\":\"nobody\"}"));
        change(DirectoryKey::Limit(host("d")), Some("{\"devices\":2}"));
        change(DirectoryKey::Limit(host("e")), Some("{\"devices\":\"many\"}"));
        assert_eq!((view.counts(), view.unfit()), ((2, 3), 1));
        assert_eq!(view.devices_held_by(&host("d"), None), 2);
        assert_eq!(view.devices_held_by(&host("d"), Some(&host("b"))), 1);
        assert_eq!(view.limit_of(&host("d")).and_then(|limit| limit.devices), Some(2));
        assert_eq!((view.limit_of(&host("e")), view.limits().count()), (None, 1));
        let gone = vec![KeyChange { key: DirectoryKey::Limit(host("d")).to_string().into(), value: None }];
        view.handle_news(WatchUpdate::Changes { changes: gone, revision: Some(10) }, NOW);
        assert_eq!(view.limit_of(&host("d")), None);
    }

    #[test]
    fn any_bytes_of_keys_and_values_are_refused_or_kept_within_their_limits() {
        let mut dice = 0x9e37_79b9_7f4a_7c15_u64;
        let mut roll = |below: usize| {
            dice ^= dice << 13;
            dice ^= dice >> 7;
            dice ^= dice << 17;
            usize::try_from(dice >> 33).unwrap() % below
        };
        let keys = [
            DirectoryKey::Host(host("a")),
            DirectoryKey::Device(host("a"), "board".into()),
            DirectoryKey::Limit(host("a")),
        ];
        let values = [
            r#"{"name":"a","queue":[{"host":"x","priority":3,"for_s":60}],"holder_key":"k","devices":3,"for_s":5}"#,
            r#"{"lease":{"host":"x","until":"y","reason":"z"},"labels":{"a":"b"},"interfaces":["c"],"waiting":1}"#,
        ];
        let mut view = following();
        watch(&mut view, NOW);
        let mut kept = 0;
        for _ in 0..20_000 {
            let mut key = keys[roll(3)].to_string().into_bytes();
            let mut value = values[roll(2)].as_bytes().to_vec();
            for bytes in [&mut key, &mut value] {
                for _ in 0..roll(3) {
                    let at = roll(bytes.len());
                    match roll(3) {
                        0 => bytes[at] = u8::try_from(roll(256)).unwrap(),
                        1 => drop(bytes.remove(at)),
                        _ => bytes.truncate(at.max(1)),
                    }
                }
            }
            let before = view.unfit();
            let changes = vec![KeyChange { key: key.clone(), value: Some(value) }];
            view.handle_news(WatchUpdate::Changes { changes, revision: Some(9) }, NOW);
            let is_kept = view.unfit() == before;
            assert_eq!(view.entries.keys().any(|known| known.to_string().as_bytes() == key), is_kept);
            kept += usize::from(is_kept);
        }
        assert!(kept > 1000 && view.unfit() > 1000, "{kept}");
        // All that was kept can be read.
        assert_eq!(
            view.limits().count(),
            view.entries.keys().filter(|key| matches!(key, DirectoryKey::Limit(_))).count()
        );
        assert_eq!(view.devices().count(), view.counts().1);
    }
}
