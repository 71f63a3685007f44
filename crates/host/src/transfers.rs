//! Plain requests to a device, any number in flight, each with a timeout: for clients of vendor-specific devices, and
//! the base of the drivers here.

use std::collections::VecDeque;
use std::time::Duration;

use farbus_model::{EpAddr, Instant, Payload, SetupPacket, TransferDirection, Urb, UrbCompletion, UrbId, UrbStatus};

use crate::driver::{DeviceDriver, IdSource};
use crate::limits::WITHDRAWAL_TIMEOUT;

/// Requests in flight. The outcome is the next request that came back; see [`TransferTracker::is_idle`] before waiting
/// for one.
///
/// | what happened | how it comes back |
/// |---|---|
/// | it ended | as it ended |
/// | its time passed; the cancellation was confirmed | [`UrbStatus::TimedOut`] |
/// | its time passed; it ended before the cancellation reached it | as it ended |
/// | cancelled by the caller | [`UrbStatus::Cancelled`], or as it ended |
/// | cancelled, and the cancellation was not answered | [`UrbStatus::TimedOut`], [`TransferTracker::unanswered`] counts it |
#[derive(Debug)]
pub struct TransferTracker {
    ids: IdSource,
    urbs: VecDeque<Urb>,
    cancels: VecDeque<UrbId>,
    flying: Vec<TrackedTransfer>,
    done: VecDeque<UrbCompletion>,
    unanswered: usize,
}

/// What is known of a request in flight.
#[derive(Debug)]
struct TrackedTransfer {
    id: UrbId,
    endpoint: EpAddr,
    direction: TransferDirection,
    setup: SetupPacket,
    length: u32,
    until: Option<Instant>,
    outcome: CancellationCause,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum CancellationCause {
    /// The transfer has not been cancelled.
    Open,
    /// Its time passed.
    Expired,
    /// The caller cancelled it.
    Withdrawn,
}

impl TransferTracker {
    /// Makes an empty one; `ids` gives the requests' ids.
    pub fn new(ids: IdSource) -> Self {
        Self {
            ids,
            urbs: VecDeque::new(),
            cancels: VecDeque::new(),
            flying: Vec::new(),
            done: VecDeque::new(),
            unanswered: 0,
        }
    }

    /// A control request with an IN data stage, or without one.
    pub fn control_in(&mut self, now: Instant, setup: SetupPacket, timeout: Option<Duration>) -> UrbId {
        let urb = Urb::control(self.ids.next_id(), setup, Payload::Empty);
        self.submit(now, urb, timeout)
    }

    /// A control request whose data stage is `payload`, of `setup.length` bytes.
    pub fn control_out(
        &mut self,
        now: Instant,
        setup: SetupPacket,
        payload: Payload,
        timeout: Option<Duration>,
    ) -> UrbId {
        let urb = Urb::control(self.ids.next_id(), setup, payload);
        self.submit(now, urb, timeout)
    }

    /// Up to `length` bytes from a bulk or interrupt endpoint.
    pub fn data_in(&mut self, now: Instant, endpoint: EpAddr, length: u32, timeout: Option<Duration>) -> UrbId {
        let urb = Urb::data_in(self.ids.next_id(), endpoint, length);
        self.submit(now, urb, timeout)
    }

    /// Bytes to a bulk or interrupt endpoint.
    pub fn data_out(&mut self, now: Instant, endpoint: EpAddr, payload: Payload, timeout: Option<Duration>) -> UrbId {
        let urb = Urb::data_out(self.ids.next_id(), endpoint, payload);
        self.submit(now, urb, timeout)
    }

    /// Submits any request, under a new id. Without a `timeout` it waits for ever.
    pub fn submit(&mut self, now: Instant, urb: Urb, timeout: Option<Duration>) -> UrbId {
        let id = urb.id;
        self.flying.push(TrackedTransfer {
            id,
            endpoint: urb.endpoint,
            direction: urb.direction,
            setup: urb.setup,
            length: urb.length,
            until: timeout.map(|timeout| now + timeout),
            outcome: CancellationCause::Open,
        });
        self.urbs.push_back(urb);
        id
    }

    /// Cancels a request. Does nothing if it has come back already or was cancelled before.
    pub fn withdraw(&mut self, now: Instant, id: UrbId) {
        if let Some(at) =
            self.flying.iter().position(|flying| flying.id == id && flying.outcome == CancellationCause::Open)
        {
            self.recall(now, at, CancellationCause::Withdrawn);
        }
    }

    /// Cancels every request.
    pub fn withdraw_all(&mut self, now: Instant) {
        for at in (0..self.flying.len()).rev() {
            if self.flying[at].outcome == CancellationCause::Open {
                self.recall(now, at, CancellationCause::Withdrawn);
            }
        }
    }

    /// Whether no request is in flight and none waits to be read.
    pub fn is_idle(&self) -> bool {
        self.flying.is_empty() && self.done.is_empty()
    }

    /// Whether a request waits to be read.
    pub fn has_outcome(&self) -> bool {
        !self.done.is_empty()
    }

    /// Requests in flight.
    pub fn flying(&self) -> usize {
        self.flying.len()
    }

    /// Requests that were given up because their cancellation was not answered. Their endpoints may still hold them.
    pub fn unanswered(&self) -> usize {
        self.unanswered
    }

    /// Cancels the request at `at`; one that was not sent yet comes back at once.
    fn recall(&mut self, now: Instant, at: usize, outcome: CancellationCause) {
        let flying = &mut self.flying[at];
        if let Some(queued) = self.urbs.iter().position(|urb| urb.id == flying.id) {
            self.urbs.remove(queued);
            let status = if outcome == CancellationCause::Expired { UrbStatus::TimedOut } else { UrbStatus::Cancelled };
            let flying = self.flying.swap_remove(at);
            return self.done.push_back(flying.into_done(status));
        }
        self.cancels.push_back(flying.id);
        flying.outcome = outcome;
        flying.until = Some(now + WITHDRAWAL_TIMEOUT);
    }
}

impl DeviceDriver for TransferTracker {
    type Outcome = UrbCompletion;

    fn poll_submit(&mut self) -> Option<Urb> {
        self.urbs.pop_front()
    }

    fn poll_cancel(&mut self) -> Option<UrbId> {
        self.cancels.pop_front()
    }

    fn handle_done(&mut self, _now: Instant, mut done: UrbCompletion) {
        let Some(at) = self.flying.iter().position(|flying| flying.id == done.id) else { return };
        let flying = self.flying.swap_remove(at);
        // A cancellation that was not passed on yet has nothing left to cancel.
        self.cancels.retain(|id| *id != done.id);
        if flying.outcome == CancellationCause::Expired && done.status == UrbStatus::Cancelled {
            done.status = UrbStatus::TimedOut;
        }
        self.done.push_back(done);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.flying.iter().filter_map(|flying| flying.until).min()
    }

    fn handle_timeout(&mut self, now: Instant) {
        for at in (0..self.flying.len()).rev() {
            let flying = &self.flying[at];
            if flying.until.is_none_or(|until| now < until) {
                continue;
            }
            if flying.outcome == CancellationCause::Open {
                self.recall(now, at, CancellationCause::Expired);
            } else {
                let flying = self.flying.swap_remove(at);
                self.unanswered += 1;
                self.done.push_back(flying.into_done(UrbStatus::TimedOut));
            }
        }
    }

    fn poll_outcome(&mut self) -> Option<UrbCompletion> {
        self.done.pop_front()
    }
}

impl TrackedTransfer {
    /// The end of a request that the device did not end.
    fn into_done(self, status: UrbStatus) -> UrbCompletion {
        UrbCompletion {
            id: self.id,
            endpoint: self.endpoint,
            direction: self.direction,
            setup: self.setup,
            length: self.length,
            status,
            actual: 0,
            payload: Payload::Empty,
            iso: Vec::new(),
            start_frame: 0,
            error_count: 0,
            residence: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDPOINT: EpAddr = EpAddr::from_byte(0x81);
    const SECOND: Duration = Duration::from_secs(1);

    fn flying_one() -> (TransferTracker, Urb) {
        let mut transfers = TransferTracker::new(IdSource::new());
        transfers.data_in(Instant::ZERO, ENDPOINT, 8, Some(SECOND));
        let urb = transfers.poll_submit().unwrap();
        (transfers, urb)
    }

    fn expire(transfers: &mut TransferTracker) {
        let due = transfers.poll_timeout().unwrap();
        transfers.handle_timeout(due);
    }

    #[test]
    fn a_request_whose_time_passed_is_withdrawn_and_comes_back_as_timed_out() {
        let (mut transfers, urb) = flying_one();
        expire(&mut transfers);
        assert_eq!(transfers.poll_cancel(), Some(urb.id));
        assert!(transfers.poll_outcome().is_none());
        transfers.handle_done(Instant::ZERO + SECOND, urb.launch().fail(UrbStatus::Cancelled));
        assert_eq!(transfers.poll_outcome().unwrap().status, UrbStatus::TimedOut);
        assert!(transfers.is_idle());
    }

    #[test]
    fn a_request_that_ends_before_its_withdrawal_arrives_ends_as_it_ended() {
        let (mut transfers, urb) = flying_one();
        expire(&mut transfers);
        transfers.handle_done(Instant::ZERO + SECOND, urb.launch().answer(vec![7].into()));
        assert_eq!(transfers.poll_outcome().unwrap().status, UrbStatus::Ok);
        assert_eq!(transfers.poll_cancel(), None, "there is nothing left to withdraw");
    }

    #[test]
    fn an_unanswered_withdrawal_is_given_up() {
        let (mut transfers, urb) = flying_one();
        transfers.withdraw_all(Instant::ZERO);
        transfers.withdraw(Instant::ZERO, urb.id);
        assert_eq!((transfers.poll_cancel(), transfers.poll_cancel()), (Some(urb.id), None));
        expire(&mut transfers);
        assert_eq!(transfers.poll_outcome().unwrap().status, UrbStatus::TimedOut);
        assert_eq!((transfers.unanswered(), transfers.is_idle()), (1, true));
        transfers.handle_done(Instant::ZERO, urb.launch().fail(UrbStatus::Cancelled));
        assert!(transfers.poll_outcome().is_none(), "it comes too late to be known");
    }

    #[test]
    fn a_request_that_never_left_is_withdrawn_without_a_word() {
        let mut transfers = TransferTracker::new(IdSource::new());
        let id = transfers.data_out(Instant::ZERO, ENDPOINT, vec![1].into(), None);
        transfers.withdraw(Instant::ZERO, id);
        assert!(transfers.poll_submit().is_none() && transfers.poll_cancel().is_none());
        assert_eq!(transfers.poll_outcome().unwrap().status, UrbStatus::Cancelled);
    }
}
