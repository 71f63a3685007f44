//! A request for several devices at once, at exporters that share no store: all of them, or none.
//!
//! The host that wants them asks one device after the other for a *provisional* lease, which ends by itself after
//! [`PROVISIONAL`], and never waits for a device while it has another:
//!
//! | state | what is asked for | next |
//! |---|---|---|
//! | trying | a provisional lease of each device, in the order of their keys | enough of them: confirming. Too few are left, or it took too long: releasing |
//! | confirming | to confirm each lease | all confirmed: done. One refused, or its host not reached: releasing |
//! | releasing | to release what was granted | pausing; or failed, if asking again changes nothing |
//! | pausing | nothing, for a time by chance that grows with the tries | trying |
//!
//! Two hosts that want the same devices meet at the first of them, because both ask in one order. The one that fails
//! there has nothing to release. What cannot be reached to be released ends by itself.
//!
//! A host that dies while it confirms keeps what it has confirmed: no exporter knows of the others. Everything else is
//! free after [`PROVISIONAL`].
//!
//! Time is an argument, and chance is a seed.

use std::time::Duration;

use farbus_model::Instant;

use super::lease::PROVISIONAL;

/// The most devices of a request, granted or not.
pub const DEVICES_MAX: usize = 64;
/// How long a host may take for an answer. What it was asked may be done even if it takes longer.
pub const ANSWER_TIME: Duration = Duration::from_secs(2);
/// When trying ends, after the first grant.
const TRY_TIME: Duration = Duration::from_secs(4);
/// When no further lease is confirmed, after the first grant: what was confirmed then is released in time even if
/// the last answer does not come.
const CONFIRM_TIME: Duration = Duration::from_secs(6);
/// The pause after the first try, at most.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// The pause after many tries, at most.
const PAUSE_MAX: Duration = Duration::from_secs(8);
/// How often a host that is not reached is asked to release what it confirmed. Those that are reached do not wait
/// for it.
const ROUNDS: u32 = 3;

/// What to ask the host of a device for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JointLeaseVerb {
    /// A provisional lease, without waiting.
    Provisional,
    /// To confirm it.
    Confirm,
    /// To release it.
    Release,
}

/// What the host of a device answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JointLeaseAnswer {
    /// It is done. A host of an earlier release grants a lease that needs no confirmation.
    Done {
        /// Whether the lease waits for its confirmation.
        is_provisional: bool,
    },
    /// This host had a lease of the device before, by another request. It is left as it is.
    HadBefore,
    /// Not now: another host has it, or the lease has ended.
    NotNow,
    /// Never: there is no such device, or this host may not have it.
    Never,
    /// No answer came. Whether it was done is not known.
    Nothing,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JointLeaseStep {
    /// Ask the host of the device with this index; tell [`JointLease::handle`] what it answered.
    Ask(usize, JointLeaseVerb),
    /// Wait until then.
    Pause(Instant),
    /// The leases of all [`JointLease::granted`] devices are this host's.
    Done,
    /// Nothing is this host's, but for what [`JointLease::stranded`] says.
    Failed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JointLeaseMember {
    Untried,
    /// Not now, or never.
    Refused,
    HadBefore,
    Provisional,
    Confirmed,
    /// No answer came: it may have been granted.
    Unknown,
    /// It may have been confirmed, and its host is not reached.
    Stranded,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JointLeasePhase {
    Trying(usize),
    Confirming(usize),
    /// The next device, in this round. What was confirmed is released first: all else ends by itself.
    Releasing(usize, u32),
    Pausing(Instant),
    Over,
}

/// A request for several devices.
#[derive(Debug)]
pub struct JointLease {
    parts: Vec<JointLeaseMember>,
    wanted: usize,
    state: JointLeasePhase,
    /// When the first grant of this try was asked for.
    began: Option<Instant>,
    tries: u32,
    /// Whether to try again.
    goes_on: bool,
    /// The devices that can never be had.
    never: Vec<usize>,
    chance: u64,
}

impl JointLease {
    /// Asks for `wanted` of `count` devices, which the caller has in the order of their keys. `waits`: tries until they
    /// are had.
    ///
    /// # Panics
    /// There are no or too many devices ([`DEVICES_MAX`]), or more are wanted than there are.
    pub fn new(count: usize, wanted: usize, waits: bool, seed: u64) -> Self {
        assert!((1..=count).contains(&wanted) && count <= DEVICES_MAX, "{wanted} of {count}");
        Self {
            parts: vec![JointLeaseMember::Untried; count],
            wanted,
            state: JointLeasePhase::Trying(0),
            began: None,
            tries: 0,
            goes_on: waits,
            never: Vec::new(),
            chance: seed,
        }
    }

    /// The devices of which this host has the lease, in their order.
    pub fn granted(&self) -> Vec<usize> {
        self.all(|part| matches!(part, JointLeaseMember::Confirmed | JointLeaseMember::HadBefore))
    }

    /// The devices that were leased by this request; of the others that are granted this host had the lease before.
    pub fn confirmed(&self) -> Vec<usize> {
        self.all(|part| part == JointLeaseMember::Confirmed)
    }

    /// The devices of which this host may have a confirmed lease that it could not release.
    pub fn stranded(&self) -> Vec<usize> {
        self.all(|part| part == JointLeaseMember::Stranded)
    }

    /// The devices that another host has, as the last try found.
    pub fn refused(&self) -> Vec<usize> {
        self.all(|part| part == JointLeaseMember::Refused)
    }

    fn all(&self, is_it: impl Fn(JointLeaseMember) -> bool) -> Vec<usize> {
        (0..self.parts.len()).filter(|&at| is_it(self.parts[at])).collect()
    }

    fn count(&self, is_it: impl Fn(JointLeaseMember) -> bool) -> usize {
        self.parts.iter().filter(|part| is_it(**part)).count()
    }

    /// Gives up: what was granted is released.
    pub fn interrupt(&mut self) {
        self.goes_on = false;
        if self.state != JointLeasePhase::Over {
            self.state = JointLeasePhase::Releasing(0, 0);
        }
    }

    /// What to do at `now`.
    pub fn poll(&mut self, now: Instant) -> JointLeaseStep {
        loop {
            match self.state {
                JointLeasePhase::Trying(at) => {
                    let has = self.count(|part| {
                        matches!(
                            part,
                            JointLeaseMember::Provisional | JointLeaseMember::Confirmed | JointLeaseMember::HadBefore
                        )
                    });
                    let is_late = self.began.is_some_and(|began| now >= began + TRY_TIME);
                    let untried = self.count(|part| part == JointLeaseMember::Untried);
                    match self.parts.get(at) {
                        _ if has == self.wanted => self.state = JointLeasePhase::Confirming(0),
                        _ if is_late || has + untried < self.wanted => self.state = JointLeasePhase::Releasing(0, 0),
                        Some(JointLeaseMember::Untried) => return JointLeaseStep::Ask(at, JointLeaseVerb::Provisional),
                        Some(_) => self.state = JointLeasePhase::Trying(at + 1),
                        None => self.state = JointLeasePhase::Releasing(0, 0),
                    }
                }
                JointLeasePhase::Confirming(at) => match self.parts.get(at) {
                    None => {
                        self.state = JointLeasePhase::Over;
                        return JointLeaseStep::Done;
                    }
                    Some(JointLeaseMember::Provisional)
                        if self.began.is_some_and(|began| now >= began + CONFIRM_TIME) =>
                    {
                        self.state = JointLeasePhase::Releasing(0, 0);
                    }
                    Some(JointLeaseMember::Provisional) => return JointLeaseStep::Ask(at, JointLeaseVerb::Confirm),
                    Some(_) => self.state = JointLeasePhase::Confirming(at + 1),
                },
                JointLeasePhase::Releasing(at, round) => match self.parts.get(at) {
                    None if round == ROUNDS => self.end_of_try(now),
                    None => self.state = JointLeasePhase::Releasing(0, round + 1),
                    Some(JointLeaseMember::Confirmed) if round == ROUNDS => self.parts[at] = JointLeaseMember::Stranded,
                    Some(JointLeaseMember::Confirmed) => return JointLeaseStep::Ask(at, JointLeaseVerb::Release),
                    Some(JointLeaseMember::Provisional | JointLeaseMember::Unknown) if round == ROUNDS => {
                        return JointLeaseStep::Ask(at, JointLeaseVerb::Release);
                    }
                    Some(_) => self.state = JointLeasePhase::Releasing(at + 1, round),
                },
                JointLeasePhase::Pausing(until) if now < until => return JointLeaseStep::Pause(until),
                JointLeasePhase::Pausing(_) => {
                    for (at, part) in self.parts.iter_mut().enumerate() {
                        *part = if self.never.contains(&at) {
                            JointLeaseMember::Refused
                        } else {
                            JointLeaseMember::Untried
                        };
                    }
                    (self.state, self.began) = (JointLeasePhase::Trying(0), None);
                }
                JointLeasePhase::Over => {
                    let is_done = self.granted().len() >= self.wanted;
                    return if is_done { JointLeaseStep::Done } else { JointLeaseStep::Failed };
                }
            }
        }
    }

    /// The host of the device with this index answered what [`JointLeaseStep::Ask`] said; `asked_at` is when it was
    /// asked.
    pub fn handle(&mut self, at: usize, heard: JointLeaseAnswer, asked_at: Instant) {
        match self.state {
            JointLeasePhase::Trying(_) => {
                self.parts[at] = match heard {
                    JointLeaseAnswer::Done { is_provisional: true } => JointLeaseMember::Provisional,
                    JointLeaseAnswer::Done { is_provisional: false } => JointLeaseMember::Confirmed,
                    JointLeaseAnswer::HadBefore => JointLeaseMember::HadBefore,
                    JointLeaseAnswer::NotNow | JointLeaseAnswer::Never => JointLeaseMember::Refused,
                    JointLeaseAnswer::Nothing => JointLeaseMember::Unknown,
                };
                if heard == JointLeaseAnswer::Never {
                    self.never.push(at);
                }
                if matches!(heard, JointLeaseAnswer::Done { .. } | JointLeaseAnswer::Nothing) {
                    self.began.get_or_insert(asked_at);
                }
                self.state = JointLeasePhase::Trying(at + 1);
            }
            JointLeasePhase::Confirming(_) => match heard {
                JointLeaseAnswer::Done { .. } | JointLeaseAnswer::HadBefore => {
                    self.parts[at] = JointLeaseMember::Confirmed;
                    self.state = JointLeasePhase::Confirming(at + 1);
                }
                JointLeaseAnswer::NotNow | JointLeaseAnswer::Never => {
                    self.parts[at] = JointLeaseMember::Refused;
                    self.state = JointLeasePhase::Releasing(0, 0);
                }
                JointLeaseAnswer::Nothing => {
                    // It may be confirmed: it is released like one that is.
                    self.parts[at] = JointLeaseMember::Confirmed;
                    self.state = JointLeasePhase::Releasing(0, 0);
                }
            },
            JointLeasePhase::Releasing(_, round) => {
                // A confirmed lease whose host is not reached is asked for again in the next round.
                if heard != JointLeaseAnswer::Nothing || self.parts[at] != JointLeaseMember::Confirmed {
                    self.parts[at] = JointLeaseMember::Refused;
                }
                self.state = JointLeasePhase::Releasing(at + 1, round);
            }
            JointLeasePhase::Pausing(_) | JointLeasePhase::Over => {}
        }
    }

    fn end_of_try(&mut self, now: Instant) {
        self.tries += 1;
        let can_be_had = self.parts.len() - self.never.len() >= self.wanted;
        let is_stranded = self.parts.contains(&JointLeaseMember::Stranded);
        if !self.goes_on || !can_be_had || is_stranded {
            // What this host had before is none of this request's.
            self.parts
                .iter_mut()
                .filter(|part| **part == JointLeaseMember::HadBefore)
                .for_each(|part| *part = JointLeaseMember::Refused);
            self.state = JointLeasePhase::Over;
            return;
        }
        let most = PAUSE_MAX.min(PAUSE_MIN * 2_u32.pow((self.tries - 1).min(8)));
        let most_ms = most.as_millis() as u64;
        // From a quarter of it to all of it: those that met do not meet again.
        let pause_ms = most_ms / 4 + self.random() % (most_ms - most_ms / 4);
        self.state = JointLeasePhase::Pausing(now + Duration::from_millis(pause_ms));
    }

    /// SplitMix64 (Steele, Lea, Flood 2014).
    fn random(&mut self) -> u64 {
        self.chance = self.chance.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.chance;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
}

/// The last confirmation and one release may take [`ANSWER_TIME`] each.
const _: () = assert!(CONFIRM_TIME.as_secs() + 2 * ANSWER_TIME.as_secs() <= PROVISIONAL.as_secs());
