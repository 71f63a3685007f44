//! Hosts that say what they have in an etcd and follow it there, and exporters that decide who has a device (N8, X9):
//! worlds of partitions, a lost or full etcd, lost and late messages, leases of etcd that end early, clocks that run at
//! different rates, compaction, killed hosts and lies, each from a seed. `FARBUS_SEEDS` of them (300), `FARBUS_SEED`
//! repeats one.
//!
//! The etcd is a model of what etcd promises: calls are done one after the other, each all or not at all; a lease ends
//! after its time by etcd's clock, and its keys with it; a watch tells all changes in their order, unless they are
//! compacted.
//!
//! In every world: no device is ever had by two, whatever the directory says; a host that believes that all is told is
//! right as long as its lease of etcd lives, unless somebody lies; and once the faults are over, every host that lives
//! has said what it has, every view shows that, and nothing is left of the hosts that died.

use std::collections::BTreeMap;
use std::time::Duration;

use farbus_directory::gateway::{
    EtcdCall, EtcdRefusal, EtcdReply, EtcdTransaction, KeyChange, KeyValue, RangeResult, WatchUpdate,
};
use farbus_directory::key::{DirectoryKey, HostId, KeyRange};
use farbus_directory::record::{DeviceRecord, HostRecord, LeaseRecord};
use farbus_directory::{DirectoryFailure, DirectoryFailureKind, DirectoryView, HostPublisher, publisher, view};
use farbus_model::Instant;
use farbus_session::DeviceClaims;
use farbus_session::claims::lease::{LeaseDecision, LeaseHost, LeaseRequest, NOTICE};
use farbus_sim::SimulationRng;

/// How far the time goes on at a time, while faults happen and then.
const TICK: Duration = Duration::from_millis(100);
const CALM_TICK: Duration = Duration::from_millis(500);
/// How long a host waits for an answer.
const PATIENCE: Duration = Duration::from_secs(8);
/// How long what is shown may differ before the host reads its keys again.
const LAG_MAX: Duration = Duration::from_secs(5);
/// How long faults happen.
const FAULTS: Duration = Duration::from_secs(150);
/// How long until all is as it should be: a lease by a slow clock, pauses of hosts that could not write, keep-alives.
const CALM: Duration = Duration::from_secs(240);

#[derive(Clone)]
struct Stored {
    value: Vec<u8>,
    lease: i64,
    revision: i64,
}

/// A change that was done: its revision, its key, and the value that was put.
type Done = (i64, Vec<u8>, Option<Vec<u8>>);

struct Etcd {
    revision: i64,
    keys: BTreeMap<Vec<u8>, Stored>,
    /// When each lease ends, by etcd's clock, and its time.
    leases: BTreeMap<i64, (Instant, Duration)>,
    lease_count: i64,
    log: Vec<Done>,
    compacted: i64,
    is_up: bool,
    is_full: bool,
    /// Its clock in percent of the hosts'.
    rate: u64,
    now: Instant,
}

fn unreachable() -> EtcdRefusal {
    EtcdRefusal::Trouble(DirectoryFailure::new(DirectoryFailureKind::Unreachable, "lost"))
}

impl Etcd {
    fn put(&mut self, key: Vec<u8>, value: Option<Vec<u8>>, lease: i64) {
        let was_there = match &value {
            Some(value) => {
                let stored = Stored { value: value.clone(), lease, revision: self.revision };
                self.keys.insert(key.clone(), stored);
                true
            }
            None => self.keys.remove(&key).is_some(),
        };
        if was_there {
            self.log.push((self.revision, key, value));
        }
    }

    fn end_lease(&mut self, lease: i64) {
        self.leases.remove(&lease);
        let keys: Vec<_> = self.keys.iter().filter(|(_, it)| it.lease == lease).map(|(key, _)| key.clone()).collect();
        self.revision += i64::from(!keys.is_empty());
        keys.into_iter().for_each(|key| self.put(key, None, 0));
    }

    fn advance(&mut self, tick: Duration) {
        self.now = self.now + tick * u32::try_from(self.rate).unwrap() / 100;
        // Without a leader no lease ends.
        let now = self.now;
        let over: Vec<i64> =
            self.leases.iter().filter(|(_, (end, _))| self.is_up && *end <= now).map(|(lease, _)| *lease).collect();
        over.into_iter().for_each(|lease| self.end_lease(lease));
    }

    fn answer(&mut self, call: &EtcdCall) -> Result<EtcdReply, EtcdRefusal> {
        let full = || EtcdRefusal::Trouble(DirectoryFailure::new(DirectoryFailureKind::Full, "full"));
        Ok(match call {
            EtcdCall::Grant { .. } if self.is_full => return Err(full()),
            EtcdCall::Grant { ttl_s } => {
                self.lease_count += 1;
                let ttl = Duration::from_secs(*ttl_s);
                self.leases.insert(self.lease_count, (self.now + ttl, ttl));
                EtcdReply::Granted { lease: self.lease_count, ttl_s: *ttl_s }
            }
            EtcdCall::KeepAlive { lease } => match self.leases.get_mut(lease) {
                Some((end, ttl)) => {
                    *end = self.now + *ttl;
                    EtcdReply::Alive(ttl.as_secs())
                }
                None => EtcdReply::Alive(0),
            },
            EtcdCall::Range { range, revision, .. } => {
                assert_eq!(*revision, 0, "all fits on one page");
                EtcdReply::Found(RangeResult { revision: self.revision, pairs: self.range(range), has_more: false })
            }
            EtcdCall::Change(change) => self.change(change, full)?,
            other => panic!("{other:?}"),
        })
    }

    fn range(&self, range: &KeyRange) -> Vec<KeyValue> {
        let is_in = |key: &&Vec<u8>| match range.to.is_empty() {
            true => **key == range.from,
            false => **key >= range.from && key.as_slice() < range.to.as_bytes(),
        };
        let pair = |(key, it): (&Vec<u8>, &Stored)| {
            let (key, value) = (key.clone(), it.value.clone());
            KeyValue { key, value, lease: it.lease, revision: it.revision }
        };
        self.keys.iter().filter(|(key, _)| is_in(key)).map(pair).collect()
    }

    fn change(&mut self, change: &EtcdTransaction, full: impl Fn() -> EtcdRefusal) -> Result<EtcdReply, EtcdRefusal> {
        let found = self.keys.get(change.guard.as_bytes()).map_or(0, |it| it.revision);
        if found != change.revision {
            return Ok(EtcdReply::Changed { is_done: false, revision: self.revision });
        }
        if self.is_full && !change.puts.is_empty() {
            return Err(full());
        }
        if change.lease != 0 && !self.leases.contains_key(&change.lease) {
            return Err(EtcdRefusal::NoLease);
        }
        self.revision += 1;
        for (key, value) in &change.puts {
            self.put(key.clone().into(), Some(value.clone()), change.lease);
        }
        change.deletes.iter().for_each(|key| self.put(key.clone().into(), None, 0));
        Ok(EtcdReply::Changed { is_done: true, revision: self.revision })
    }
}

/// A call on its way, or its answer.
struct Message {
    at: Instant,
    host: usize,
    is_of_view: bool,
    number: u64,
    what: What,
}

enum What {
    Call(EtcdCall),
    Answer(Result<EtcdReply, EtcdRefusal>),
}

/// The call that is being made, and since when.
type CallUnderWay = Option<(u64, Instant)>;

struct Host {
    id: HostId,
    is_alive: bool,
    is_cut: bool,
    devices: BTreeMap<String, DeviceRecord>,
    claims: BTreeMap<String, DeviceClaims>,
    publisher: HostPublisher,
    publishing: CallUnderWay,
    differs: Option<Instant>,
    view: DirectoryView,
    reading: CallUnderWay,
    /// The next revision of the watch that is open.
    watch: Option<i64>,
}

struct World {
    random: SimulationRng,
    now: Instant,
    etcd: Etcd,
    hosts: Vec<Host>,
    messages: Vec<Message>,
    numbers: u64,
    is_calm: bool,
    has_liar: bool,
    /// Who has a device, and until when, by the answers that users got.
    had: BTreeMap<(usize, String), (usize, Instant)>,
    grants: u32,
}

fn record() -> HostRecord {
    HostRecord { name: "host".to_owned(), ..HostRecord::default() }
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = SimulationRng::new(seed);
        let etcd = Etcd {
            revision: 1,
            keys: BTreeMap::new(),
            leases: BTreeMap::new(),
            lease_count: 0,
            log: Vec::new(),
            compacted: 0,
            is_up: true,
            is_full: false,
            rate: random.between(60, 140),
            now: Instant::from_nanos(1),
        };
        let count = 2 + random.below(3) as usize;
        let hosts = (0..count).map(|number| {
            let id = HostId::new(&["a", "b", "c", "d"][number].repeat(52)).unwrap();
            let names = (0..1 + random.below(3)).map(|device| format!("d{device}"));
            let devices: BTreeMap<_, _> = names.map(|name| (name, free())).collect();
            Host {
                publisher: HostPublisher::new(id.clone(), random.below(u64::MAX)),
                id,
                is_alive: true,
                is_cut: false,
                claims: devices.keys().map(|name| (name.clone(), DeviceClaims::default())).collect(),
                devices,
                publishing: None,
                differs: None,
                view: DirectoryView::new(random.below(u64::MAX)),
                reading: None,
                watch: None,
            }
        });
        let hosts = hosts.collect();
        let has_liar = random.below(4) == 0;
        let (messages, had) = (Vec::new(), BTreeMap::new());
        let now = Instant::from_nanos(1);
        Self { random, now, etcd, hosts, messages, numbers: 0, is_calm: false, has_liar, had, grants: 0 }
    }

    fn once_in(&mut self, count: u64) -> bool {
        self.random.below(count) == 0
    }

    fn some_host(&mut self) -> usize {
        self.random.below(self.hosts.len() as u64) as usize
    }

    fn send(&mut self, host: usize, is_of_view: bool, number: u64, what: What) {
        // Some come when nobody waits for them any more, some never.
        let is_late = !self.is_calm && self.once_in(12);
        let ms = 1 + self.random.below(if is_late { 40_000 } else { 300 });
        if self.is_calm || !self.once_in(40) {
            let at = self.now + Duration::from_millis(ms);
            self.messages.push(Message { at, host, is_of_view, number, what });
        }
    }

    fn deliver(&mut self) {
        let now = self.now;
        let (due, later) = std::mem::take(&mut self.messages).into_iter().partition(|message| message.at <= now);
        self.messages = later;
        let mut due: Vec<Message> = due;
        due.sort_by_key(|message| message.at);
        for Message { host, is_of_view, number, what, .. } in due {
            match what {
                // What is on its way arrives also when its host is cut off or dead meanwhile.
                What::Call(call) if self.etcd.is_up => {
                    let answer = self.etcd.answer(&call);
                    self.send(host, is_of_view, number, What::Answer(answer));
                }
                What::Call(_) => {}
                What::Answer(answer) => {
                    let it = &mut self.hosts[host];
                    let under_way = if is_of_view { &mut it.reading } else { &mut it.publishing };
                    if it.is_cut || under_way.is_none_or(|(awaited, _)| awaited != number) {
                        continue;
                    }
                    *under_way = None;
                    match is_of_view {
                        true => it.view.handle(answer, now),
                        false => it.publisher.handle(answer, now),
                    }
                }
            }
        }
    }

    fn turn(&mut self, host: usize) {
        let now = self.now;
        let it = &mut self.hosts[host];
        if !it.is_alive {
            return;
        }
        let is_late = |call: CallUnderWay| call.is_some_and(|(_, since)| now - since > PATIENCE);
        if is_late(it.publishing) {
            it.publishing = None;
            it.publisher.handle(Err(unreachable()), now);
        }
        if is_late(it.reading) {
            it.reading = None;
            it.view.handle(Err(unreachable()), now);
        }
        it.publisher.want(&record(), it.devices.iter().map(|(name, device)| (name.as_str(), device)));
        if it.publisher.is_shown_by(&it.view) {
            it.differs = None;
        } else if now - *it.differs.get_or_insert(now) > LAG_MAX {
            it.differs = None;
            it.publisher.doubt();
        }
        if let publisher::PublisherStep::Call(call) = it.publisher.poll(now) {
            self.numbers += 1;
            it.publishing = Some((self.numbers, now));
            self.send(host, false, self.numbers, What::Call(call));
        }
        match self.hosts[host].view.poll(now) {
            view::DirectoryViewStep::Call(call) => {
                self.numbers += 1;
                self.hosts[host].reading = Some((self.numbers, now));
                self.send(host, true, self.numbers, What::Call(call));
            }
            view::DirectoryViewStep::Watch(EtcdCall::Watch { revision, .. }) => self.begin_watch(host, revision),
            view::DirectoryViewStep::Watch(other) => panic!("{other:?}"),
            view::DirectoryViewStep::Wait(_) => {}
        }
        self.tell(host);
    }

    fn begin_watch(&mut self, host: usize, revision: i64) {
        let (now, it) = (self.now, &mut self.hosts[host]);
        let EtcdRefusal::Trouble(lost) = unreachable() else { return };
        if it.is_cut || !self.etcd.is_up {
            return it.view.handle_end(lost, now);
        }
        it.view.handle_news(WatchUpdate::Begun(self.etcd.revision), now);
        if !it.view.is_watching() {
            return;
        }
        if revision <= self.etcd.compacted {
            return it.view.handle_news(WatchUpdate::Compacted, now);
        }
        it.watch = Some(revision);
    }

    /// What the watch of a host tells it now.
    fn tell(&mut self, host: usize) {
        let now = self.now;
        let is_lost = !self.is_calm && self.once_in(600);
        let is_slow = !self.is_calm && self.random.below(3) > 0;
        let is_split = self.once_in(3);
        let it = &mut self.hosts[host];
        let Some(next) = it.watch else { return };
        let EtcdRefusal::Trouble(lost) = unreachable() else { return };
        if is_lost || it.is_cut || !self.etcd.is_up {
            it.watch = None;
            return it.view.handle_end(lost, now);
        }
        if is_slow {
            return;
        }
        let new = self.etcd.log.iter().filter(|(revision, ..)| *revision >= next);
        let mut changes: Vec<KeyChange> =
            new.map(|(_, key, value)| KeyChange { key: key.clone(), value: value.clone() }).collect();
        if changes.is_empty() {
            return;
        }
        if is_split {
            let rest = changes.split_off(changes.len() / 2);
            it.view.handle_news(WatchUpdate::Changes { changes, revision: None }, now);
            changes = rest;
        }
        it.view.handle_news(WatchUpdate::Changes { changes, revision: Some(self.etcd.revision) }, now);
        it.watch = Some(self.etcd.revision + 1);
    }

    fn fault(&mut self) {
        match self.random.below(12) {
            0 => self.etcd.is_up = false,
            1..3 => self.etcd.is_up = true,
            3 => self.etcd.is_full = true,
            4 => self.etcd.is_full = false,
            5 => self.etcd.compacted = self.etcd.compacted.max(1 + self.random.below(self.etcd.revision as u64) as i64),
            6 => {
                // It ends although its host lives.
                if let Some(lease) = self.etcd.leases.keys().next_back().copied() {
                    self.etcd.end_lease(lease);
                }
            }
            7 | 8 => {
                let host = self.some_host();
                self.hosts[host].is_cut = !self.hosts[host].is_cut;
            }
            9 | 10 => self.kill_or_start(),
            _ if self.has_liar => self.lie(),
            _ => {}
        }
    }

    /// A process that is killed forgets all that it knew; what it sent may still arrive.
    fn kill_or_start(&mut self) {
        let host = self.some_host();
        let seed = self.random.below(u64::MAX);
        let it = &mut self.hosts[host];
        it.is_alive = !it.is_alive;
        it.publisher = HostPublisher::new(it.id.clone(), seed);
        it.view = DirectoryView::new(seed.rotate_left(7));
        (it.publishing, it.reading, it.watch, it.differs) = (None, None, None, None);
    }

    fn lie(&mut self) {
        let host = self.some_host();
        let key = match self.random.below(3) {
            0 => DirectoryKey::Host(self.hosts[host].id.clone()),
            1 => DirectoryKey::Device(self.hosts[host].id.clone(), "d0".to_owned()),
            _ => DirectoryKey::Device(self.hosts[host].id.clone(), "ghost".to_owned()),
        };
        let value = (self.random.below(2) == 0).then(|| free().to_value());
        self.etcd.revision += 1;
        self.etcd.put(key.to_string().into_bytes(), value, 0);
    }

    /// A user asks the exporter of a device that its view shows, and the exporter decides.
    fn ask_for_a_device(&mut self) {
        let (user, now) = (self.some_host(), self.now);
        let view = &self.hosts[user].view;
        // Also of one that it believes to be taken: what it knows may be old, or a lie.
        let known: Vec<(HostId, String)> =
            view.devices().map(|(host, name, _)| (host.clone(), name.to_owned())).collect();
        if known.is_empty() {
            return;
        }
        let (id, name) = known[self.random.below(known.len() as u64) as usize].clone();
        let Some(host) = self.hosts.iter().position(|host| host.id == id && host.is_alive) else { return };
        // A device that only the directory has.
        let Some(claims) = self.hosts[host].claims.get_mut(&name) else { return };
        while claims.advance(now).is_some() {}
        let who = LeaseHost::paired(&format!("host{user}"));
        let span = Duration::from_secs(10 + self.random.below(60));
        let request =
            LeaseRequest { who, span, priority: 0, reason: None, waits: false, is_provisional: false, notice: NOTICE };
        if let Ok(LeaseDecision::Granted { is_new: true }) = claims.request(&request, now) {
            let until = claims.lease(now).expect("it was granted").until;
            if let Some((other, end)) = self.had.insert((host, name.clone()), (user, until)) {
                assert!(end <= now, "host{other} and host{user} have {name} of host{host} at {now:?}");
            }
            self.grants += 1;
            let lease = LeaseRecord { host: format!("host{user}"), until: format!("{until:?}"), reason: None };
            self.hosts[host].devices.get_mut(&name).expect("it has claims").lease = Some(lease);
        }
    }

    /// Leases that are over are told, and devices are plugged in and out.
    fn change_devices(&mut self) {
        let now = self.now;
        for host in &mut self.hosts {
            for (name, device) in &mut host.devices {
                let claims = host.claims.get_mut(name).expect("each has claims");
                while claims.advance(now).is_some() {}
                if claims.lease(now).is_none() {
                    device.lease = None;
                }
            }
        }
        if !self.is_calm && self.once_in(50) {
            let host = self.some_host();
            let place = self.random.below(3).to_string();
            if let Some(device) = self.hosts[host].devices.get_mut("d0") {
                device.place = Some(place);
            }
        }
    }

    fn expected_entries(&self, host: &Host) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let device = |(name, device): (&String, &DeviceRecord)| {
            (DirectoryKey::Device(host.id.clone(), name.clone()).to_string().into_bytes(), device.to_value())
        };
        let mut entries: BTreeMap<_, _> = host.devices.iter().map(device).collect();
        entries.insert(DirectoryKey::Host(host.id.clone()).to_string().into_bytes(), record().to_value());
        entries
    }

    fn stored(&self, host: &Host) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let range = KeyRange::of_host(&host.id);
        self.etcd.range(&range).into_iter().map(|pair| (pair.key, pair.value)).collect()
    }

    /// A host that believes that all is told is right.
    fn check(&self) {
        for host in self.hosts.iter().filter(|host| host.is_alive && !self.has_liar) {
            let is_kept = host.publisher.lease().is_some_and(|lease| self.etcd.leases.contains_key(&lease));
            if !is_kept || !host.publisher.is_told() {
                continue;
            }
            let mut publisher = host.publisher.clone();
            publisher.want(&record(), host.devices.iter().map(|(name, device)| (name.as_str(), device)));
            if publisher.is_told() {
                let (stored, expected) = (self.stored(host), self.expected_entries(host));
                assert!(stored == expected, "{}: {:?}, not {:?}", host.id, texts(stored), texts(expected));
            }
        }
    }

    fn step(&mut self) {
        let tick = if self.is_calm { CALM_TICK } else { TICK };
        self.now = self.now + tick;
        self.etcd.advance(tick);
        self.deliver();
        if !self.is_calm && self.once_in(30) {
            self.fault();
        }
        if self.once_in(10) {
            self.ask_for_a_device();
        }
        self.change_devices();
        (0..self.hosts.len()).for_each(|host| self.turn(host));
        self.check();
    }

    fn run(&mut self) {
        let faults_end = self.now + FAULTS;
        while self.now < faults_end {
            self.step();
        }
        self.is_calm = true;
        (self.etcd.is_up, self.etcd.is_full) = (true, false);
        self.hosts.iter_mut().for_each(|host| host.is_cut = false);
        let calm_end = self.now + CALM;
        while self.now < calm_end {
            self.step();
        }
        // Leases of devices come and go until here; now all has to come to rest.
        let mut rest = 0;
        while !self.is_right() {
            self.step();
            rest += 1;
            assert!(rest < 120, "a minute later: {}", self.difference());
        }
    }

    fn is_right(&self) -> bool {
        self.difference().is_empty()
    }

    /// What is not as it should be.
    fn difference(&self) -> String {
        let mut all = BTreeMap::new();
        for host in self.hosts.iter().filter(|host| host.is_alive) {
            all.extend(self.expected_entries(host));
        }
        let stored: BTreeMap<_, _> = self.hosts.iter().flat_map(|host| self.stored(host)).collect();
        // A lie about a host that is gone has nobody to put it right.
        let stored = stored.into_iter().filter(|(key, _)| self.has_living_host(key)).collect();
        if texts(all.clone()) != texts(stored) {
            return format!("wanted {:?}", texts(all));
        }
        for host in self.hosts.iter().filter(|host| host.is_alive) {
            let shown = host.view.devices().map(|(id, name, device)| {
                (DirectoryKey::Device(id.clone(), name.to_owned()).to_string().into_bytes(), device.to_value())
            });
            let shown = shown.filter(|(key, _)| self.has_living_host(key)).collect();
            let devices =
                all.clone().into_iter().filter(|(key, _)| key.iter().filter(|byte| **byte == b'/').count() == 4);
            if texts(shown) != texts(devices.collect()) {
                return format!("the view of {} has {} keys: {:?}", host.id, host.view.count(), host.view.trouble());
            }
            if let Some(trouble) = host.publisher.trouble().or(host.view.trouble()) {
                return format!("{}: {trouble}", host.id);
            }
        }
        String::new()
    }

    fn has_living_host(&self, key: &[u8]) -> bool {
        let host = match DirectoryKey::parse(key) {
            Some(DirectoryKey::Host(host) | DirectoryKey::Device(host, _)) => host,
            Some(DirectoryKey::Limit(_)) | None => return false,
        };
        self.hosts.iter().any(|it| it.is_alive && it.id == host)
            || (!self.has_liar && self.hosts.iter().any(|it| it.id == host))
    }
}

fn free() -> DeviceRecord {
    DeviceRecord { state: "available".to_owned(), ..DeviceRecord::default() }
}

fn texts(map: BTreeMap<Vec<u8>, Vec<u8>>) -> BTreeMap<String, String> {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    map.into_iter().map(|(key, value)| (text(key), text(value))).collect()
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

fn seeds() -> std::ops::Range<u64> {
    match number("FARBUS_SEED") {
        Some(seed) => seed..seed + 1,
        None => 1..1 + number("FARBUS_SEEDS").unwrap_or(300),
    }
}

#[test]
fn whatever_the_directory_says_no_device_is_had_by_two_and_after_all_faults_it_says_the_truth() {
    let mut grants = 0;
    for seed in seeds() {
        let mut world = World::new(seed);
        let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.run()));
        if let Err(panic) = run {
            eprintln!("broke with FARBUS_SEED={seed}, at {:?}", world.now);
            std::panic::resume_unwind(panic);
        }
        grants += world.grants;
    }
    println!("{grants} leases were granted");
    assert!(grants > 0);
}
