//! Leases in every order of events: request, grant, expiry, extension, loss of a link and its return, preemption, and a
//! restart of either end (requirement X9).
//!
//! Two users and one device: every order of `FARBUS_DEPTH` events (4). Ten users and twenty devices: worlds from seeds,
//! `FARBUS_SEEDS` of them (300; the soak runs 20,000), `FARBUS_SEED` repeats one.
//!
//! After each event: nobody uses a device that another host has a lease of, or uses; numbers only grow; a number that
//! was fenced off is refused for ever, also by the process after a restart; and the end of a lease moves to a later
//! time only when its holder extends it.

use std::collections::BTreeSet;
use std::time::Duration;

use farbus_model::{ExportIdentity, Instant};
use farbus_session::claims::lease::{Lease, LeaseDecision, LeaseEvent, LeaseHost, LeaseRequest, NOTICE};
use farbus_session::claims::{DeviceClaims, UseEnding, UseMode};
use farbus_session::leases::{DeviceKey, DeviceLeases, LeaseEntitlement};

#[path = "native/random.rs"]
mod random;

use random::Random;

/// Long enough that a step of time passes no whole lease.
const SPAN: Duration = Duration::from_secs(150);
const STEP: Duration = Duration::from_secs(50);
const KEY: Option<[u8; 32]> = None;

/// What a user's host knows: a restart of the host forgets it.
#[derive(Clone, Copy, Default)]
struct Importer {
    /// The number under which it has, or had, the device.
    number: u64,
    /// Whether it believes that it has the device attached.
    is_attached: bool,
}

/// One device at its exporter, and what its users know of it.
struct Device {
    key: DeviceKey,
    claims: DeviceClaims,
    leases: DeviceLeases<()>,
    /// What is on the exporter's disk.
    reserved: u64,
    stored: Option<Lease>,
    importers: Vec<Importer>,
    /// Numbers that were fenced off.
    fenced: BTreeSet<u64>,
    latest: u64,
    /// The end of the lease as it was last granted, extended or shortened.
    until: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Request(usize),
    Prefer(usize),
    Extend(usize),
    Release(usize),
    Give(usize),
    Attach(usize),
    Detach(usize),
    /// The link is lost for longer than its grace: the exporter ends the use, the importer does not know.
    Lost(usize),
    /// The link comes back, and the importer opens again under the number that it knows.
    Back(usize),
    ImporterRestarts(usize),
    ExporterRestarts,
    OwnerPreempts,
    Time,
}

fn events(users: usize) -> Vec<Event> {
    use Event as E;
    let per_user = [E::Request, E::Prefer, E::Extend, E::Release, E::Give, E::Attach, E::Detach, E::Lost, E::Back];
    let of = |user| per_user.iter().map(move |event| event(user)).chain([E::ImporterRestarts(user)]);
    let mut all: Vec<Event> = (0..users).flat_map(of).collect();
    all.extend([E::ExporterRestarts, E::OwnerPreempts, E::Time]);
    all
}

fn name(user: usize) -> String {
    format!("host{user}")
}

/// A peer as the exporter's sessions name it: each of its links comes from another port.
fn peer(user: usize) -> String {
    format!("{} (192.0.2.{user}:{})", name(user), 1000 + user)
}

impl Device {
    fn new(number: u128, users: usize) -> Self {
        let key = DeviceKey::of("1-1", Some(ExportIdentity { id: number, generation: 0 }));
        Self {
            key,
            claims: DeviceClaims::default(),
            leases: DeviceLeases::after(1000),
            reserved: 0,
            stored: None,
            importers: vec![Importer::default(); users],
            fenced: BTreeSet::new(),
            latest: 0,
            until: None,
        }
    }

    /// As the exporter does it: the count is stored before the number is given.
    fn next_number(&mut self) -> u64 {
        self.reserved = self.reserved.max(self.leases.last_count()) + 1;
        let number = self.leases.give_reserved(&self.key, self.reserved);
        assert!(number > self.latest, "numbers only grow");
        if self.latest > 0 {
            self.fenced.insert(self.latest);
        }
        self.latest = number;
        number
    }

    fn store(&mut self, now: Instant) {
        self.stored = self.claims.lease(now).cloned();
    }

    /// What the exporter does when a lease has ended: the number first, then the sessions.
    fn end_users(&mut self, ending: UseEnding, now: Instant) {
        self.next_number();
        let users: Vec<String> = self.claims.holders().iter().map(|holder| holder.who.clone()).collect();
        for who in users {
            self.claims.end(&who, ending, now);
        }
        self.store(now);
    }

    fn request(&mut self, user: usize, priority: u8, now: Instant) {
        let who = LeaseHost::paired(&name(user));
        let request = LeaseRequest {
            who,
            span: SPAN,
            priority,
            reason: None,
            waits: true,
            is_provisional: false,
            notice: NOTICE,
        };
        let before = self.claims.ends_at();
        match self.claims.request(&request, now).unwrap() {
            LeaseDecision::Granted { is_new: true } => {
                // A host that uses the device already keeps its number.
                let known = self.leases.latest(&self.key).filter(|_| !self.claims.holders().is_empty());
                let number = known.unwrap_or_else(|| self.next_number());
                self.claims.set_number(number);
                self.until = Some(now + SPAN);
                self.store(now);
            }
            LeaseDecision::Granted { is_new: false } => assert_eq!(self.claims.ends_at(), before, "it stays as it is"),
            LeaseDecision::Waits { position, .. } => {
                assert!(position >= 1);
                if self.claims.ends_at() != before {
                    assert!(priority > 0 && self.claims.ends_at() <= Some(now + NOTICE), "it was preempted");
                    self.until = self.until.min(self.claims.ends_at());
                }
            }
        }
    }

    /// An importer opens the device, naming the number that it knows.
    fn open(&mut self, user: usize, named: u64, now: Instant) {
        let worth = self.leases.worth(&self.key, KEY, named, true);
        if self.fenced.contains(&named) {
            assert_eq!(worth, LeaseEntitlement::Stale, "{named} was fenced off");
        }
        self.importers[user].is_attached = worth == LeaseEntitlement::Nothing
            && !self.claims.holders().iter().any(|holder| holder.who == peer(user))
            && self.claims.claim(&peer(user), UseMode::Exclusive, now).is_ok();
        if self.importers[user].is_attached {
            self.importers[user].number = self.next_number();
        }
    }

    fn happen(&mut self, event: Event, now: Instant) {
        let party = |user| LeaseHost::paired(&name(user));
        match event {
            Event::Request(user) => self.request(user, 0, now),
            Event::Prefer(user) => self.request(user, 3, now),
            Event::Extend(user) => {
                if let Ok(until) = self.claims.extend(&party(user), SPAN, now) {
                    assert!(Some(until) >= self.until, "an extension does not shorten");
                    self.until = Some(until);
                    self.store(now);
                }
            }
            Event::Release(user) => {
                if self.claims.give_up(&party(user), true, now).is_ok() {
                    self.end_users(UseEnding::Released, now);
                }
            }
            Event::Give(user) => {
                let to = (user + 1) % self.importers.len();
                if self.claims.give(&party(user), &party(to), now).is_ok() {
                    let number = self.next_number();
                    self.claims.set_number(number);
                    self.store(now);
                }
            }
            Event::Attach(user) => self.open(user, 0, now),
            Event::Back(user) => {
                let Importer { number, is_attached } = self.importers[user];
                if is_attached && number > 0 {
                    self.open(user, number, now);
                }
            }
            Event::Detach(user) | Event::ImporterRestarts(user) => {
                self.claims.end(&peer(user), UseEnding::Detached, now);
                self.importers[user].is_attached = false;
                if event == Event::ImporterRestarts(user) {
                    self.importers[user] = Importer::default();
                }
            }
            Event::Lost(user) => drop(self.claims.end(&peer(user), UseEnding::Lost, now)),
            Event::ExporterRestarts => {
                // The time of day was set back meanwhile: only what was stored keeps the numbers growing.
                (self.claims, self.leases) = (DeviceClaims::default(), DeviceLeases::after(1));
                self.leases.note_reserved(&self.key, self.reserved);
                if let Some(lease) = self.stored.clone() {
                    self.until = Some(lease.until);
                    self.claims.restore_lease(lease);
                }
            }
            Event::OwnerPreempts => {
                if let Some(until) = self.claims.preempt(now, NOTICE) {
                    self.until = self.until.map(|before| before.min(until));
                }
            }
            Event::Time => {}
        }
    }

    /// What the exporter's thread does.
    fn advance(&mut self, now: Instant) {
        while let Some(due) = self.claims.advance(now) {
            match due {
                LeaseEvent::Lapse | LeaseEvent::Begin => {
                    unreachable!("nobody asks for several devices, or ahead of time")
                }
                LeaseEvent::Warn(left) => assert!(left <= NOTICE && !self.claims.holders().is_empty()),
                LeaseEvent::End(ending) => {
                    assert!(matches!(ending, UseEnding::Expired | UseEnding::Preempted));
                    self.end_users(ending, now);
                }
            }
        }
        assert!(self.claims.poll_timeout().is_none_or(|next| next > now), "nothing that is due is left");
    }

    fn check(&self, now: Instant) {
        let holders: BTreeSet<LeaseHost> =
            self.claims.holders().iter().map(|holder| LeaseHost::of(&holder.who)).collect();
        assert!(self.claims.holders().len() <= 1, "two use it");
        if let Some(lease) = self.claims.lease(now) {
            assert!(holders.iter().all(|who| *who == lease.who), "used by another than its lessee");
            assert_eq!(Some(lease.until), self.until, "its end moved by itself");
            assert!(lease.number > 0, "it has a number");
        }
    }
}

fn play(order: &[Event]) {
    let (mut device, mut now) = (Device::new(7, 2), Instant::from_nanos(1));
    for &event in order {
        if event == Event::Time {
            now = now + STEP;
        }
        // The exporter's thread may be late by any number of events, but for those that need it to have run.
        device.happen(event, now);
        device.advance(now);
        device.check(now);
    }
    // Whatever happened, the device is had by somebody in the end.
    for _ in 0..8 {
        now = now + STEP;
        device.advance(now);
    }
    (0..2).for_each(|user| device.happen(Event::Detach(user), now));
    device.request(1, 0, now);
    assert_eq!(device.claims.lease(now).map(|lease| lease.who.name()), Some("host1"), "{order:?}");
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().map_or(otherwise, |text| text.parse().expect("a number"))
}

#[test]
fn two_users_of_one_device_in_every_order_of_events_never_both_have_it() {
    let all = events(2);
    let depth = number("FARBUS_DEPTH", 4) as usize;
    let mut order = vec![0_usize; depth];
    let mut orders = 0_u64;
    loop {
        let events: Vec<Event> = order.iter().map(|&at| all[at]).collect();
        if let Err(panic) = std::panic::catch_unwind(|| play(&events)) {
            eprintln!("broke in the order {events:?}");
            std::panic::resume_unwind(panic);
        }
        orders += 1;
        let Some(at) = order.iter().rposition(|&at| at + 1 < all.len()) else { break };
        order[at] += 1;
        order[at + 1..].fill(0);
    }
    assert_eq!(orders, (all.len() as u64).pow(depth as u32));
    println!("{orders} orders of {depth} events");
}

#[test]
fn ten_users_of_twenty_devices_never_have_one_together() {
    let all = events(10);
    let seeds = match number("FARBUS_SEED", 0) {
        0 => 1..=number("FARBUS_SEEDS", 300),
        seed => seed..=seed,
    };
    let (mut grants, mut ends) = (0, 0);
    for seed in seeds {
        let mut random = Random::new(seed);
        let mut devices: Vec<Device> = (1..=20).map(|number| Device::new(number, 10)).collect();
        let mut now = Instant::from_nanos(1);
        for _ in 0..400 {
            let event = random.pick(&all);
            let device = &mut devices[random.below(20) as usize];
            let before = device.claims.history().count();
            device.happen(event, now);
            device.advance(now);
            device.check(now);
            grants += u64::from(device.claims.lease(now).is_some());
            ends += (device.claims.history().count() - before.min(device.claims.history().count())) as u64;
            if random.once_in(4) {
                now = now + Duration::from_secs(random.below(30));
                for device in &mut devices {
                    device.advance(now);
                    device.check(now);
                }
            }
        }
    }
    assert!(grants > 0 && ends > 0, "the worlds are not idle: {grants} {ends}");
    println!("{grants} events under a lease, {ends} ends");
}

#[test]
fn holder_is_warned_once_a_minute_before_the_end_and_again_after_an_extension() {
    let at_s = |s: u64| Instant::from_nanos(1 + s * 1_000_000_000);
    let mut claims = DeviceClaims::default();
    let who = LeaseHost::paired("host0");
    let span = Duration::from_secs(600);
    let request = LeaseRequest {
        who: who.clone(),
        span,
        priority: 0,
        reason: None,
        waits: false,
        is_provisional: false,
        notice: NOTICE,
    };
    claims.request(&request, at_s(0)).unwrap();
    assert_eq!(claims.poll_timeout(), Some(at_s(600)), "nobody uses it, so nobody is warned");
    claims.claim(&peer(0), UseMode::Exclusive, at_s(1)).unwrap();
    assert_eq!(claims.poll_timeout(), Some(at_s(540)));
    assert_eq!(claims.advance(at_s(539)), None);
    assert_eq!(claims.advance(at_s(540)), Some(LeaseEvent::Warn(Duration::from_secs(60))));
    assert_eq!(claims.advance(at_s(541)), None);
    assert_eq!(claims.extend(&who, span, at_s(550)), Ok(at_s(1150)));
    assert_eq!(claims.advance(at_s(1095)), Some(LeaseEvent::Warn(Duration::from_secs(55))));
    assert_eq!(claims.advance(at_s(1150)), Some(LeaseEvent::End(UseEnding::Expired)));
    let past = claims.history().last().unwrap();
    assert_eq!((past.holder.who.as_str(), past.until, past.ending), ("host0", at_s(1150), UseEnding::Expired));
}

#[test]
fn client_of_a_lower_priority_is_preempted_after_a_minute_even_without_a_lease_of_its_own() {
    let at_s = |s: u64| Instant::from_nanos(1 + s * 1_000_000_000);
    let mut claims = DeviceClaims::default();
    // A stock USB/IP client has no name, and never asked for a lease.
    claims.claim("192.0.2.9:4711", UseMode::Exclusive, at_s(0)).unwrap();
    let who = LeaseHost::paired("host0");
    let request =
        LeaseRequest { who, span: SPAN, priority: 1, reason: None, waits: true, is_provisional: false, notice: NOTICE };
    let waits = LeaseDecision::Waits { position: 1, until: Some(at_s(70)) };
    assert_eq!(claims.request(&request, at_s(10)), Ok(waits.clone()));
    assert_eq!(claims.request(&request, at_s(15)), Ok(waits), "asking again does not shorten it");
    assert_eq!(claims.advance(at_s(15)), Some(LeaseEvent::Warn(Duration::from_secs(55))));
    assert_eq!(claims.advance(at_s(70)), Some(LeaseEvent::End(UseEnding::Preempted)));
    claims.end("192.0.2.9:4711", UseEnding::Preempted, at_s(70));
    assert_eq!(
        claims.claim("192.0.2.9:4712", UseMode::Exclusive, at_s(71)).map_err(drop),
        Ok(()),
        "nobody asks any more"
    );
}

#[test]
fn paired_host_is_not_the_host_at_the_address_that_is_its_name() {
    let mut claims = DeviceClaims::default();
    let now = Instant::from_nanos(1);
    let who = LeaseHost::paired("192.0.2.9");
    claims
        .request(
            &LeaseRequest {
                who,
                span: SPAN,
                priority: 0,
                reason: None,
                waits: false,
                is_provisional: false,
                notice: NOTICE,
            },
            now,
        )
        .unwrap();
    assert!(claims.claim("192.0.2.9:4711", UseMode::Exclusive, now).is_err());
    assert_eq!(claims.claim("192.0.2.9 (10.0.0.1:4711)", UseMode::Exclusive, now), Ok(()));
}
