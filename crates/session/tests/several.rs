//! Requests for several devices at once, at exporters that share no store (requirement X9): worlds of users, exporters,
//! slow and lost messages, and restarts of both, each from a seed. `FARBUS_SEEDS` of them (300), `FARBUS_SEED` repeats
//! one.
//!
//! In every world: no device is held for longer than [`PROVISIONAL`] by a host that does not have all of what it asks
//! for, but for the time that lost messages cost; no two hosts have one device; what a host that died had is free after
//! [`PROVISIONAL`], unless it died while it confirmed; and in the end every user had all that it wanted.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

use farbus_model::Instant;
use farbus_session::DeviceClaims;
use farbus_session::claims::lease::{LeaseDecision, LeaseHost, LeaseRefusal, LeaseRequest, NOTICE, PROVISIONAL};
use farbus_session::claims::several::{ANSWER_TIME, JointLease, JointLeaseAnswer, JointLeaseStep, JointLeaseVerb};

#[path = "native/random.rs"]
mod random;

use random::Random;

const SPAN: Duration = Duration::from_secs(30);

/// What happens at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The user goes on with this request.
    Turn(usize, u32),
    /// A question reaches the exporter of the device with this index of the user's request. The answer may be lost.
    Reaches { user: usize, request: u32, part: usize, ask: u8, asked_at: u64, is_lost: bool },
    /// Its answer reaches the user.
    Answers { user: usize, request: u32, part: usize, heard: u8, asked_at: u64 },
    /// The user needs its devices no more.
    Releases(usize),
    /// The process of the user is killed, and begins anew.
    Dies(usize),
    /// The exporter with this number is restarted: it forgets what is not stored.
    Restarts(usize),
}

const ASKS: [JointLeaseVerb; 3] = [JointLeaseVerb::Provisional, JointLeaseVerb::Confirm, JointLeaseVerb::Release];
const HEARD: [JointLeaseAnswer; 6] = [
    JointLeaseAnswer::Done { is_provisional: true },
    JointLeaseAnswer::Done { is_provisional: false },
    JointLeaseAnswer::HadBefore,
    JointLeaseAnswer::NotNow,
    JointLeaseAnswer::Never,
    JointLeaseAnswer::Nothing,
];

struct User {
    several: Option<JointLease>,
    /// The devices that it asks for, in the order of their keys.
    devices: Vec<usize>,
    wanted: usize,
    /// The number of its request: answers to an earlier one are not heard.
    request: u32,
    /// How many requests it has yet to make.
    left: u32,
    /// Messages that were lost since it has a part.
    losses: u32,
    is_confirming: bool,
    /// Devices that it may have for the whole time, because it died while it confirmed, or could not release them.
    stranded: BTreeSet<usize>,
    had: u32,
}

struct World {
    random: Random,
    now: Instant,
    events: BinaryHeap<Reverse<(Instant, u64, Event)>>,
    order: u64,
    devices: Vec<DeviceClaims>,
    exporters: usize,
    users: Vec<User>,
    /// Since when a user has a device without all others of its request, and when that lease ends.
    partial: BTreeMap<(usize, usize), (Instant, Instant)>,
    longest: Duration,
    deaths: u32,
    is_lossy: bool,
}

fn party(user: usize) -> LeaseHost {
    LeaseHost::paired(&format!("host{user}"))
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

impl World {
    fn new(seed: u64, is_lossy: bool) -> Self {
        let mut random = Random::new(seed);
        let exporters = 2 + random.below(4) as usize;
        let devices = (0..exporters * (1 + random.below(2) as usize)).map(|_| DeviceClaims::default()).collect();
        let user = |_| User {
            several: None,
            devices: Vec::new(),
            wanted: 0,
            request: 0,
            left: 2,
            losses: 0,
            is_confirming: false,
            stranded: BTreeSet::new(),
            had: 0,
        };
        let users = (0..2 + random.below(5) as usize).map(user).collect();
        let mut world = Self {
            random,
            now: Instant::from_nanos(1),
            events: BinaryHeap::new(),
            order: 0,
            devices,
            exporters,
            users,
            partial: BTreeMap::new(),
            longest: Duration::ZERO,
            deaths: 0,
            is_lossy,
        };
        for user in 0..world.users.len() {
            world.begin(user);
        }
        for _ in 0..3 {
            let (user, exporter) = (world.random.below(7) as usize, world.random.below(6) as usize);
            let (early, late) = (ms(world.random.below(60_000)), ms(world.random.below(60_000)));
            if is_lossy && user < world.users.len() {
                world.later(early, Event::Dies(user));
            }
            world.later(late, Event::Restarts(exporter));
        }
        world
    }

    fn later(&mut self, span: Duration, event: Event) {
        self.order += 1;
        self.events.push(Reverse((self.now + span, self.order, event)));
    }

    /// A user asks for some of some devices.
    fn begin(&mut self, user: usize) {
        let count = self.devices.len();
        let requested: BTreeSet<usize> =
            (0..self.random.pick(&[2_u64, 3, 4])).map(|_| self.random.below(count as u64) as usize).collect();
        let devices: Vec<usize> = requested.into_iter().collect();
        let wanted =
            if self.random.once_in(3) { 1 + self.random.below(devices.len() as u64) as usize } else { devices.len() };
        let seed = self.random.next();
        let it = &mut self.users[user];
        it.request += 1;
        it.several = Some(JointLease::new(devices.len(), wanted, true, seed));
        (it.devices, it.wanted, it.losses, it.is_confirming) = (devices, wanted, 0, false);
        let (span, request) = (ms(self.random.below(3000)), it.request);
        self.later(span, Event::Turn(user, request));
    }

    fn turn(&mut self, user: usize) {
        let now = self.now;
        let Some(several) = &mut self.users[user].several else { return };
        match several.poll(now) {
            JointLeaseStep::Ask(part, ask) => {
                self.users[user].is_confirming = ask == JointLeaseVerb::Confirm;
                let request = self.users[user].request;
                let is_lost = self.is_lossy && self.random.once_in(15);
                let ask = ASKS.iter().position(|known| *known == ask).unwrap() as u8;
                let reaches = Event::Reaches { user, request, part, ask, asked_at: now.as_nanos(), is_lost };
                let delay = ms(1 + self.random.below(200));
                // A question that is lost is not heard; otherwise its answer may be.
                if is_lost {
                    self.users[user].losses += 1;
                }
                if !is_lost || self.random.once_in(2) {
                    self.later(delay, reaches);
                }
                if is_lost {
                    let nothing = Event::Answers { user, request, part, heard: 5, asked_at: now.as_nanos() };
                    self.later(ANSWER_TIME, nothing);
                }
            }
            JointLeaseStep::Pause(until) => {
                self.users[user].losses = 0;
                let request = self.users[user].request;
                self.later(until - now, Event::Turn(user, request));
            }
            JointLeaseStep::Done => {
                let user_ = &mut self.users[user];
                user_.had += 1;
                user_.is_confirming = false;
                for part in user_.several.as_ref().unwrap().granted() {
                    let lease = self.devices[user_.devices[part]].lease(now);
                    let is_its = lease.is_some_and(|lease| lease.who == party(user) && lease.to_confirm.is_none());
                    // What it had before may end at any time.
                    let had_before = user_.stranded.contains(&user_.devices[part]);
                    assert!(is_its || had_before, "host{user} was told that it has {}", user_.devices[part]);
                }
                user_.several = None;
                let span = ms(1000 + self.random.below(10_000));
                self.later(span, Event::Releases(user));
            }
            JointLeaseStep::Failed => {
                // Only what cannot be released ends a request that waits.
                let user_ = &mut self.users[user];
                let stranded = user_.several.take().unwrap().stranded();
                assert!(!stranded.is_empty() && user_.losses > 0, "host{user} gave up");
                user_.stranded.extend(stranded.iter().map(|&part| user_.devices[part]));
                self.begin(user);
            }
        }
    }

    /// As an exporter answers.
    fn answer(&mut self, user: usize, device: usize, ask: JointLeaseVerb) -> JointLeaseAnswer {
        let (claims, who, now) = (&mut self.devices[device], party(user), self.now);
        while claims.advance(now).is_some() {}
        let heard = match ask {
            JointLeaseVerb::Provisional => {
                let request = LeaseRequest {
                    who: who.clone(),
                    span: SPAN,
                    priority: 0,
                    reason: None,
                    waits: false,
                    is_provisional: true,
                    notice: NOTICE,
                };
                match claims.request(&request, now) {
                    Ok(LeaseDecision::Granted { is_new: true }) => JointLeaseAnswer::Done { is_provisional: true },
                    Ok(LeaseDecision::Granted { is_new: false }) => {
                        let is_provisional = claims.lease(now).is_some_and(|lease| lease.to_confirm.is_some());
                        if is_provisional { JointLeaseAnswer::NotNow } else { JointLeaseAnswer::HadBefore }
                    }
                    Ok(LeaseDecision::Waits { .. }) => unreachable!("it does not wait"),
                    Err(LeaseRefusal::Taken { .. }) => JointLeaseAnswer::NotNow,
                    Err(other) => unreachable!("{other}"),
                }
            }
            JointLeaseVerb::Confirm => claims
                .confirm(&who, now)
                .map_or(JointLeaseAnswer::NotNow, |_| JointLeaseAnswer::Done { is_provisional: false }),
            JointLeaseVerb::Release => claims
                .give_up(&who, false, now)
                .map_or(JointLeaseAnswer::NotNow, |_| JointLeaseAnswer::Done { is_provisional: false }),
        };
        assert!(claims.holders().is_empty(), "a lease is no use");
        heard
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Turn(user, request) if self.users[user].request == request => self.turn(user),
            // Its process was killed meanwhile.
            Event::Turn(..) => {}
            Event::Reaches { user, request, part, ask, asked_at, is_lost } => {
                if self.users[user].request != request {
                    return;
                }
                let heard = self.answer(user, self.users[user].devices[part], ASKS[ask as usize]);
                if !is_lost {
                    let heard = HEARD.iter().position(|known| *known == heard).unwrap() as u8;
                    let delay = ms(1 + self.random.below(200));
                    self.later(delay, Event::Answers { user, request, part, heard, asked_at });
                }
            }
            Event::Answers { user, request, part, heard, asked_at } => {
                let it = &mut self.users[user];
                if let Some(several) = it.several.as_mut().filter(|_| it.request == request) {
                    several.handle(part, HEARD[heard as usize], Instant::from_nanos(asked_at));
                    self.turn(user);
                }
            }
            Event::Releases(user) => {
                let now = self.now;
                for claims in &mut self.devices {
                    let _ = claims.give_up(&party(user), true, now);
                }
                self.users[user].stranded.clear();
                self.users[user].left -= 1;
                if self.users[user].left > 0 {
                    self.begin(user);
                }
            }
            Event::Dies(user) => {
                if self.users[user].several.is_some() {
                    self.deaths += 1;
                    let it = &mut self.users[user];
                    if it.is_confirming || it.several.as_ref().is_some_and(|several| !several.granted().is_empty()) {
                        it.stranded.extend(it.devices.iter().copied());
                    }
                    self.begin(user);
                }
            }
            Event::Restarts(exporter) => {
                let (now, exporters) = (self.now, self.exporters);
                for (_, claims) in self.devices.iter_mut().enumerate().filter(|(at, _)| at % exporters == exporter) {
                    let stored = claims.lease(now).filter(|lease| lease.to_confirm.is_none()).cloned();
                    *claims = DeviceClaims::default();
                    stored.into_iter().for_each(|lease| claims.restore_lease(lease));
                }
            }
        }
    }

    fn check(&mut self) {
        let now = self.now;
        for user in 0..self.users.len() {
            let has = |device: &usize| self.devices[*device].lease(now).is_some_and(|lease| lease.who == party(user));
            let it = &self.users[user];
            let held: Vec<usize> = (0..self.devices.len()).filter(has).collect();
            let of_request = held.iter().filter(|device| it.devices.contains(device)).count();
            let has_all = of_request >= it.wanted;
            for device in 0..self.devices.len() {
                if has_all || !held.contains(&device) || it.stranded.contains(&device) {
                    self.partial.remove(&(user, device));
                    continue;
                }
                let lease = self.devices[device].lease(now).expect("it is held");
                let entry = self.partial.entry((user, device)).or_insert((now, lease.until));
                // The one before has ended meanwhile, and this is another.
                let since = if lease.since >= entry.1 { now } else { entry.0 };
                *entry = (since, lease.until);
                let most = PROVISIONAL + ANSWER_TIME * it.losses;
                assert!(now - since <= most, "host{user} has {device} alone for {:?}", now - since);
                if it.losses == 0 {
                    self.longest = self.longest.max(now - since);
                }
            }
        }
    }

    /// Runs until every user had all that it wanted. Returns how long that took.
    fn run(&mut self) -> Duration {
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            // What ends by itself ends between two events, too.
            self.now = at;
            self.happen(event);
            self.check();
            assert!(at < Instant::from_nanos(3_600_000_000_000), "nobody gets on");
        }
        let now = self.now;
        self.now - Instant::from_nanos(1).min(now)
    }
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().map_or(otherwise, |text| text.parse().expect("a number"))
}

fn seeds() -> std::ops::RangeInclusive<u64> {
    match number("FARBUS_SEED", 0) {
        0 => 1..=number("FARBUS_SEEDS", 300),
        seed => seed..=seed,
    }
}

fn run_all(is_lossy: bool) -> (Duration, Duration, u32) {
    let (mut slowest, mut longest, mut deaths) = (Duration::ZERO, Duration::ZERO, 0);
    for seed in seeds() {
        let mut world = World::new(seed, is_lossy);
        let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.run()));
        let took = run.unwrap_or_else(|panic| {
            eprintln!("broke with FARBUS_SEED={seed}, at {:?}", world.now);
            std::panic::resume_unwind(panic)
        });
        for (user, it) in world.users.iter().enumerate() {
            assert_eq!((it.left, it.had >= 2), (0, true), "host{user} of seed {seed}");
        }
        (slowest, longest) = (slowest.max(took), longest.max(world.longest));
        deaths += world.deaths;
    }
    (slowest, longest, deaths)
}

#[test]
fn users_of_several_devices_all_get_them_and_hold_no_part_for_longer_than_the_provisional_time() {
    let (slowest, longest, _) = run_all(false);
    println!("the slowest world took {slowest:?}, the longest part {longest:?}");
    assert!(longest > Duration::ZERO && longest <= PROVISIONAL);
}

#[test]
fn lost_messages_and_deaths_of_users_leave_no_part_behind_but_what_was_being_confirmed() {
    let (slowest, longest, deaths) = run_all(true);
    println!("the slowest world took {slowest:?}, the longest part {longest:?}, {deaths} deaths");
    assert!(deaths > 0 && longest <= PROVISIONAL);
}

#[test]
fn request_that_does_not_wait_releases_what_it_got_and_fails_at_the_first_refusal() {
    let at = Instant::from_nanos(1);
    let mut several = JointLease::new(3, 3, false, 1);
    assert_eq!(several.poll(at), JointLeaseStep::Ask(0, JointLeaseVerb::Provisional));
    several.handle(0, JointLeaseAnswer::Done { is_provisional: true }, at);
    assert_eq!(several.poll(at), JointLeaseStep::Ask(1, JointLeaseVerb::Provisional));
    several.handle(1, JointLeaseAnswer::NotNow, at);
    assert_eq!(several.poll(at), JointLeaseStep::Ask(0, JointLeaseVerb::Release), "the third is not asked for");
    several.handle(0, JointLeaseAnswer::Done { is_provisional: false }, at);
    assert_eq!((several.poll(at), several.granted(), several.stranded()), (JointLeaseStep::Failed, vec![], vec![]));
}

#[test]
fn lease_that_this_host_had_before_counts_and_is_not_released_with_the_others() {
    let at = Instant::from_nanos(1);
    let mut several = JointLease::new(3, 3, false, 1);
    for (part, heard) in [
        (0, JointLeaseAnswer::HadBefore),
        (1, JointLeaseAnswer::Done { is_provisional: true }),
        (2, JointLeaseAnswer::NotNow),
    ] {
        assert_eq!(several.poll(at), JointLeaseStep::Ask(part, JointLeaseVerb::Provisional));
        several.handle(part, heard, at);
    }
    assert_eq!(several.poll(at), JointLeaseStep::Ask(1, JointLeaseVerb::Release), "the first is left as it is");
    several.handle(1, JointLeaseAnswer::Nothing, at);
    assert_eq!((several.poll(at), several.stranded()), (JointLeaseStep::Failed, vec![]), "the second ends by itself");
}

#[test]
fn confirmed_lease_whose_host_is_not_reached_any_more_is_named() {
    let at = Instant::from_nanos(1);
    let mut several = JointLease::new(2, 2, true, 1);
    for part in 0..2 {
        assert_eq!(several.poll(at), JointLeaseStep::Ask(part, JointLeaseVerb::Provisional));
        several.handle(part, JointLeaseAnswer::Done { is_provisional: true }, at);
    }
    assert_eq!(several.poll(at), JointLeaseStep::Ask(0, JointLeaseVerb::Confirm));
    several.handle(0, JointLeaseAnswer::Done { is_provisional: false }, at);
    assert_eq!(several.poll(at), JointLeaseStep::Ask(1, JointLeaseVerb::Confirm));
    several.handle(1, JointLeaseAnswer::NotNow, at);
    for _ in 0..3 {
        assert_eq!(several.poll(at), JointLeaseStep::Ask(0, JointLeaseVerb::Release));
        several.handle(0, JointLeaseAnswer::Nothing, at);
    }
    assert_eq!((several.poll(at), several.stranded()), (JointLeaseStep::Failed, vec![0]));
}

#[test]
fn provisional_lease_ends_by_itself_and_takes_the_device_from_nobody() {
    use farbus_session::claims::UseMode;
    use farbus_session::claims::lease::LeaseEvent;
    let at_s = |s: u64| Instant::from_nanos(1 + s * 1_000_000_000);
    let mut claims = DeviceClaims::default();
    let peer = "host0 (192.0.2.1:1)";
    claims.claim(peer, UseMode::Exclusive, at_s(0)).unwrap();
    let who = party(0);
    let request = LeaseRequest {
        who: who.clone(),
        span: SPAN,
        priority: 0,
        reason: None,
        waits: false,
        is_provisional: true,
        notice: NOTICE,
    };
    claims.request(&request, at_s(1)).unwrap();
    assert_eq!(claims.extend(&who, SPAN, at_s(2)), Err(LeaseRefusal::Provisional));
    assert_eq!(claims.give(&who, &party(1), at_s(2)), Err(LeaseRefusal::Provisional));
    assert_eq!(
        claims.request(&request, at_s(9)),
        Ok(LeaseDecision::Granted { is_new: false }),
        "asking does not prolong it"
    );
    assert_eq!((claims.advance(at_s(10)), claims.poll_timeout()), (None, Some(at_s(11))), "nobody is warned");
    assert_eq!(claims.confirm(&who, at_s(11)), Err(LeaseRefusal::NotHeld));
    assert_eq!((claims.advance(at_s(11)), claims.advance(at_s(11))), (Some(LeaseEvent::Lapse), None));
    assert_eq!((claims.holders().len(), claims.history().count()), (1, 0));
    claims.request(&request, at_s(12)).unwrap();
    assert_eq!(claims.confirm(&who, at_s(20)), Ok((at_s(50), true)));
    assert_eq!(claims.confirm(&who, at_s(21)), Ok((at_s(50), false)), "an answer that was lost can be asked for again");
}
