//! A pipe with a reservation.

use std::borrow::Cow;

#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The share of the granted rate that a device has to send, for the rate to count as tried.
const TRIED_PERCENT: u64 = 90;
/// For so long a pipe has to run before its device's rate is known.
const RATE_NS_MIN: u64 = 1_000_000_000;

/// A pipe in `farbus status`.
#[derive(Default, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "PipeDevice"))]
#[serde(default)]
pub struct PipeStatus {
    /// The device's name.
    pub name: String,
    /// The channel and its direction, in words.
    pub title: String,
    /// `kept`, `not kept`, or `not tried` if the device sends fewer messages than `--rate`, so far.
    pub state: Cow<'static, str>,
    /// The device's host; `here`: this one.
    pub user: String,
    /// For how long it has run, seconds.
    pub used_s: f64,
    /// How well it keeps its promise: what `farbus pipe --json` prints.
    pub pipe: PipeReport,
}

/// How well a pipe kept its promise.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(default)]
pub struct PipeReport {
    /// The number of the device's channel, as `farbus pipe --channel` takes it.
    pub channel: usize,
    /// `in` or `out`.
    pub direction: Cow<'static, str>,
    /// What its thread was granted, and what was denied.
    #[serde(flatten)]
    pub granted: PipeGrant,
    /// Its execution time each period, in nanoseconds.
    pub budget_ns: u64,
    /// Its period, in nanoseconds.
    pub period_ns: u64,
    /// The worst delay of a message in nanoseconds, if no promise is broken.
    pub bound_ns: u64,
    /// The worst delay by the paper's Equation 9, where the message wakes the user thread: `bound_ns` less one period.
    pub equation_9_ns: u64,
    /// The worst delay that occurred, from when the receiving thread had a message until the pipe's function was
    /// finished with it; outgoing, until that thread sent it.
    pub worst_ns: u64,
    /// How the jobs of its thread kept to their periods.
    pub jobs: PipeJobs,
    /// Messages that its function has read or sent.
    pub messages: u64,
    /// Messages for which its buffer had no room.
    pub lost: u64,
    /// How often the device reported that it had lost messages.
    pub device_overruns: u64,
    /// Messages that the device lost, at least: one for each report, if it does not count them.
    pub device_lost: u64,
    /// Bytes of the endpoint's reads that were no whole message, and were dropped.
    pub cut_bytes: u64,
    /// The rate that was granted, in messages a second.
    pub asked_per_s: u64,
    /// The longest lag behind that rate in nanoseconds, while there were more messages to carry.
    pub behind_ns: u64,
    /// Outgoing: messages that the device has sent.
    pub went_out: u64,
    /// The time from its first job to its last one so far, in nanoseconds.
    pub ran_ns: u64,
    /// Whether the other end of a network moves the data by threads without a reservation: what comes late or is lost
    /// there, no bound covers.
    pub is_far_unreserved: bool,
    /// Periods in which the thread of the device's host ran for longer than its reserved time. That host then reserves
    /// more for it, or suspends the reservation.
    pub far_overruns: u64,
}

impl PipeReport {
    /// How many messages a second the device sent, if these are far fewer than were asked for: then it was not tried
    /// whether the pipe carries that rate. `None` as long as it is not known, and for outgoing pipes.
    pub fn fewer_per_s(&self) -> Option<u64> {
        // What is under way at first has not been sent late.
        let ran_ns = self.ran_ns.saturating_sub(self.bound_ns);
        let sent = u128::from(self.messages + self.lost + self.device_lost);
        let per_s = sent * 1_000_000_000 / u128::from(self.ran_ns.max(1));
        let expected = u128::from(self.asked_per_s) * u128::from(ran_ns) / 1_000_000_000;
        let is_fewer = sent * 100 < expected * u128::from(TRIED_PERCENT);
        let is_known = self.direction == "in" && ran_ns >= RATE_NS_MIN;
        (is_known && is_fewer).then(|| u64::try_from(per_s).unwrap_or(u64::MAX))
    }

    /// Whether no message was lost or too late, and the rate was carried as far as there were messages.
    pub fn is_kept(&self) -> bool {
        self.broken().is_empty()
    }

    /// What was not kept, for people; empty if all was.
    pub fn broken(&self) -> Vec<String> {
        let Self { lost, device_lost, cut_bytes, worst_ns, bound_ns, asked_per_s, behind_ns, .. } = *self;
        let ms = |ns: u64| format!("{}.{:03} ms", ns / 1_000_000, ns / 1000 % 1000);
        let (late, bound, behind) = (ms(worst_ns), ms(bound_ns), ms(behind_ns));
        let by_far = if self.is_far_unreserved { ", whose host has no processor time reserved for it" } else { "" };
        let all = [
            (lost > 0, format!("{lost} messages were lost here")),
            (device_lost > 0, format!("the device lost at least {device_lost} messages{by_far}")),
            (cut_bytes > 0, format!("{cut_bytes} bytes were no whole message, and were dropped")),
            (worst_ns > bound_ns, format!("a message was late by {late}, and {bound} were promised")),
            (behind_ns > bound_ns, format!("it fell {behind} behind {asked_per_s} messages/s")),
        ];
        all.into_iter().filter(|(is_so, _)| *is_so).map(|(_, what)| what).collect()
    }
}

/// Counters of a thread's jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "Jobs"))]
#[serde(default)]
pub struct PipeJobs {
    /// Jobs that ran.
    pub ran: u64,
    /// Periods without a job.
    pub missed: u64,
    /// Jobs that ended after their period.
    pub late: u64,
    /// Jobs that took longer than their execution time.
    pub overruns: u64,
    /// The longest time that a job took, in nanoseconds.
    pub longest_ns: u64,
    /// How often the clock jumped, and the thread began anew.
    pub jumps: u64,
    /// The longest time from the beginning of one job to that of the next, in nanoseconds.
    pub apart_ns: u64,
}

/// What a thread was granted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "Granted"))]
#[serde(default)]
pub struct PipeGrant {
    /// The scheduling policy.
    pub policy: String,
    /// What was denied.
    pub warnings: Vec<String>,
}
