//! The verbs of leases. [`super::lease`] has their table.

use std::time::Duration;

use farbus_model::Instant;

use super::bookings::{BookRefusal, Booking, BookingCalendar, moment_of};
use super::claiming::DeviceClaims;
use super::lease::{
    Lease, LeaseDecision, LeaseEvent, LeaseHost, LeaseRefusal, LeaseRequest, NOTICE, PRIORITY_MAX, PROVISIONAL,
    REQUEST_PATIENCE, SPAN_MAX, SPAN_MIN,
};
use super::uses::{
    ClaimHolder, HISTORY_MAX, PastUse, QUEUE_MAX, QueuedHost, TRIES_MIN, UseEnding, UseMode, host_of, shortened,
};

impl DeviceClaims {
    /// The lease that a host requested and has at `now`.
    pub fn lease(&self, now: Instant) -> Option<&Lease> {
        self.lease.as_ref().filter(|lease| now < lease.until)
    }

    /// When the present lease ends, or the present use if it is being preempted; `None` if it has no end.
    pub fn ends_at(&self) -> Option<Instant> {
        let use_ends = || self.use_ends.into_iter().chain(self.use_is_booked_at()).min();
        self.lease.as_ref().map(|lease| lease.until).or_else(use_ends)
    }

    /// Notes what the wall clock shows, milliseconds of Unix time. Bookings begin by it.
    pub fn note_wall(&mut self, now: Instant, wall_ms: u64) {
        self.wall = Some((now, wall_ms));
    }

    fn wall_at(&self, now: Instant) -> Option<u64> {
        self.wall.map(|(at, wall_ms)| wall_ms.saturating_add((now - at).as_millis() as u64))
    }

    /// The leases ahead of time.
    pub fn bookings(&self) -> &BookingCalendar {
        &self.bookings
    }

    /// Continues the bookings of the process before this one.
    pub fn restore_bookings(&mut self, bookings: BookingCalendar) {
        self.bookings = bookings;
    }

    /// Books the device.
    ///
    /// # Errors
    /// [`BookRefusal`].
    pub fn book(&mut self, booking: Booking, now: Instant) -> Result<(), BookRefusal> {
        let wall_ms = self.wall_at(now).unwrap_or_default();
        if let Some(lease) = self.lease(now).filter(|lease| lease.who != booking.who && booking.from_ms >= wall_ms) {
            let until_ms = wall_ms.saturating_add((lease.until - now).as_millis() as u64);
            if booking.from_ms < until_ms {
                return Err(BookRefusal::Overlaps { by: lease.who.name().to_owned(), from_ms: wall_ms, until_ms });
            }
        }
        self.bookings.book(booking, wall_ms)
    }

    /// Takes away all bookings of a host. Returns whether there were any.
    pub fn cancel_bookings(&mut self, who: &LeaseHost) -> bool {
        self.bookings.cancel(who, None)
    }

    /// The booking whose time it is, if it has not become a lease yet.
    pub(super) fn booking_that_began(&self, now: Instant) -> Option<&Booking> {
        let wall_ms = self.wall_at(now)?;
        self.bookings.overlapping(wall_ms, wall_ms.saturating_add(1))
    }

    /// Why a host cannot have the device for so long from now: another has booked it.
    fn refused_by_booking(&self, who: &LeaseHost, span: Duration, now: Instant) -> Option<LeaseRefusal> {
        let wall_ms = self.wall_at(now)?;
        let until_ms = wall_ms.saturating_add(span.as_millis() as u64);
        let mut others = self.bookings.iter().filter(|booking| booking.who != *who);
        let booking = others.find(|booking| booking.from_ms < until_ms && booking.until_ms() > wall_ms)?;
        let within = Duration::from_millis(booking.from_ms.saturating_sub(wall_ms));
        Some(LeaseRefusal::Booked { by: booking.who.name().to_owned(), within })
    }

    /// When the present use ends because another host has booked the device.
    fn use_is_booked_at(&self) -> Option<Instant> {
        let (at, wall_ms) = self.wall?;
        let is_of_another = |booking: &&Booking| {
            self.holders.iter().any(|holder| LeaseHost::of(&holder.who) != booking.who) && booking.until_ms() > wall_ms
        };
        self.bookings.iter().find(is_of_another).map(|booking| moment_of(booking.from_ms, at, wall_ms))
    }

    /// Makes the booking that has begun a lease, if nobody else has the device. Returns whether it did.
    fn begin_booking(&mut self, now: Instant) -> bool {
        let Some(wall_ms) = self.wall_at(now) else { return false };
        let Some(booking) = self.booking_that_began(now) else { return false };
        let is_of_another = self.holders.iter().any(|holder| LeaseHost::of(&holder.who) != booking.who);
        let is_leased = self.lease.as_ref().is_some_and(|lease| lease.who != booking.who || lease.to_confirm.is_some());
        if is_of_another || is_leased {
            return false;
        }
        let Some(Booking { who, reason, from_ms, span }) = self.bookings.take_begun(wall_ms) else { return false };
        let until_ms = from_ms.saturating_add(span.as_millis() as u64);
        let until = moment_of(until_ms, now, wall_ms);
        match &mut self.lease {
            Some(lease) => lease.until = lease.until.max(until),
            None => {
                self.lease = Some(Lease {
                    who,
                    since: now,
                    until,
                    priority: 0,
                    reason,
                    number: 0,
                    is_preempted: false,
                    to_confirm: None,
                });
            }
        }
        (self.is_warned, self.use_ends) = (false, None);
        true
    }

    /// Requests a lease, or repeats the request and so keeps its place in the queue. A host that has the lease already
    /// keeps it is: an answer that was lost can be asked for again.
    ///
    /// # Errors
    /// [`LeaseRefusal`].
    pub fn request(&mut self, request: &LeaseRequest, now: Instant) -> Result<LeaseDecision, LeaseRefusal> {
        if request.span < SPAN_MIN || request.span > SPAN_MAX {
            return Err(LeaseRefusal::Span);
        }
        if request.priority > PRIORITY_MAX {
            return Err(LeaseRefusal::Priority);
        }
        if self.lease(now).is_some_and(|lease| lease.who == request.who) {
            return Ok(LeaseDecision::Granted { is_new: false });
        }
        if let Some(left) = self.kept_out_for(request.who.name(), now) {
            return Err(LeaseRefusal::KeptOut(left));
        }
        if let Some(refusal) = self.refused_by_booking(&request.who, request.span, now) {
            return Err(refusal);
        }
        self.queue.retain(|waiting| waiting.is_patient(now));
        let others_use = self.holders.iter().any(|holder| LeaseHost::of(&holder.who) != request.who);
        let is_free = self.lease(now).is_none() && !others_use && self.is_next(request.who.name(), request.priority);
        // The end of a former lease is reported before the next one begins.
        if is_free && self.lease.is_none() && self.use_ends.is_none() {
            self.queue.retain(|waiting| waiting.host != request.who.name());
            self.lease = Some(Lease {
                who: request.who.clone(),
                since: now,
                until: now + if request.is_provisional { PROVISIONAL } else { request.span },
                priority: request.priority,
                reason: request.reason.as_deref().map(shortened),
                number: 0,
                is_preempted: false,
                to_confirm: request.is_provisional.then_some(request.span),
            });
            self.is_warned = false;
            return Ok(LeaseDecision::Granted { is_new: true });
        }
        if !request.waits {
            return Err(LeaseRefusal::Taken { by: self.in_the_way(request.who.name()), until: self.ends_at() });
        }
        let position = self.enter(request, now)?;
        // Who is first in the queue and of a higher priority than the present holder does not wait for its end.
        let present = self.lease.as_ref().map_or(0, |lease| lease.priority);
        if position == 1 && request.priority > present {
            self.preempt(now, request.notice);
        }
        Ok(LeaseDecision::Waits { position, until: self.ends_at() })
    }

    /// Who has the device or waits for it before `host`.
    fn in_the_way(&self, host: &str) -> String {
        let lease = self.lease.as_ref().map(|lease| lease.who.name());
        let user = self.holders.iter().map(|holder| host_of(&holder.who));
        let waits = self.queue.iter().map(|waiting| waiting.host.as_str());
        lease.into_iter().chain(user).chain(waits).find(|other| *other != host).unwrap_or("another host").to_owned()
    }

    /// Whether nobody who waits comes before `host`.
    fn is_next(&self, host: &str, priority: u8) -> bool {
        let mut ahead = self.queue.iter().take_while(|waiting| waiting.host != host);
        !ahead.any(|waiting| waiting.is_waiting() && waiting.priority >= priority)
    }

    /// Enters a request in the queue; returns its place, from 1.
    fn enter(&mut self, request: &LeaseRequest, now: Instant) -> Result<usize, LeaseRefusal> {
        let host = request.who.name();
        let known = self.queue.iter().position(|waiting| waiting.host == host);
        let since = known.map_or(now, |at| self.queue[at].since);
        let same = known.filter(|&at| self.queue[at].priority == request.priority);
        if known.is_none() && self.queue.len() >= QUEUE_MAX {
            return Err(LeaseRefusal::QueueFull);
        }
        let waiting = QueuedHost {
            host: host.to_owned(),
            since,
            asked_at: now,
            tries: TRIES_MIN,
            priority: request.priority,
            patience: REQUEST_PATIENCE,
            span: Some(request.span),
        };
        if let Some(at) = same {
            self.queue[at] = waiting;
        } else {
            self.queue.retain(|waiting| waiting.host != host);
            let at = self.queue.iter().position(|other| other.priority < request.priority);
            self.queue.insert(at.unwrap_or(self.queue.len()), waiting);
        }
        Ok(self.place_of(host).expect("it was entered just now"))
    }

    /// The place of a host in the queue, from 1; `None` if it does not wait.
    pub fn place_of(&self, host: &str) -> Option<usize> {
        let mut waiting = self.queue.iter().filter(|waiting| waiting.is_waiting());
        waiting.position(|waiting| waiting.host == host).map(|at| at + 1)
    }

    /// A host that waits leaves the queue. Returns whether it was there.
    pub fn withdraw(&mut self, who: &LeaseHost) -> bool {
        let before = self.queue.len();
        self.queue.retain(|waiting| waiting.host != who.name());
        self.queue.len() < before
    }

    /// Notes the fencing number of the lease that was granted last.
    pub fn set_number(&mut self, number: u64) {
        if let Some(lease) = &mut self.lease {
            lease.number = number;
        }
    }

    fn held_by(&mut self, who: &LeaseHost, now: Instant) -> Result<&mut Lease, LeaseRefusal> {
        self.lease.as_mut().filter(|lease| now < lease.until && lease.who == *who).ok_or(LeaseRefusal::NotHeld)
    }

    /// Confirms a provisional lease: it lasts from now for as long as it was requested. Returns its end, and whether it
    /// is new: a lease that was confirmed already stays as it is.
    ///
    /// # Errors
    /// [`LeaseRefusal`].
    pub fn confirm(&mut self, who: &LeaseHost, now: Instant) -> Result<(Instant, bool), LeaseRefusal> {
        let lease = self.held_by(who, now)?;
        let confirmed = lease.to_confirm.take();
        if let Some(span) = confirmed {
            (lease.since, lease.until) = (now, now + span);
        }
        Ok((lease.until, confirmed.is_some()))
    }

    /// Moves the end of a lease to `span` from now, unless it is later already. Returns the end.
    ///
    /// # Errors
    /// [`LeaseRefusal`].
    pub fn extend(&mut self, who: &LeaseHost, span: Duration, now: Instant) -> Result<Instant, LeaseRefusal> {
        if !(SPAN_MIN..=SPAN_MAX).contains(&span) {
            return Err(LeaseRefusal::Span);
        }
        let waiting = self.queue(now).filter(|waiting| waiting.host != who.name()).count();
        let booked = self.refused_by_booking(who, span, now);
        let lease = self.held_by(who, now)?;
        if lease.is_preempted {
            return Err(LeaseRefusal::Preempted);
        }
        if lease.to_confirm.is_some() {
            return Err(LeaseRefusal::Provisional);
        }
        if now + span > lease.until {
            if let Some(refusal) = booked {
                return Err(refusal);
            }
            if waiting > 0 {
                return Err(LeaseRefusal::OthersWait(waiting));
            }
            lease.until = now + span;
        }
        let until = lease.until;
        self.is_warned = self.is_warned && until <= now + NOTICE;
        Ok(until)
    }

    /// Gives the rest of a lease to another host. The caller sets a new number, so that the former holder is fenced
    /// off.
    ///
    /// # Errors
    /// [`LeaseRefusal`]: also while the host has the device attached.
    pub fn give(&mut self, who: &LeaseHost, to: &LeaseHost, now: Instant) -> Result<(), LeaseRefusal> {
        let is_used = !self.holders.is_empty();
        let lease = self.held_by(who, now)?;
        if lease.to_confirm.is_some() {
            return Err(LeaseRefusal::Provisional);
        }
        if is_used {
            return Err(LeaseRefusal::InUse);
        }
        let ended = lease.clone();
        let former = std::mem::replace(&mut lease.who, to.clone());
        let past = past_of(former, lease, now, UseEnding::HandedOver);
        (lease.since, lease.number) = (now, 0);
        self.is_warned = false;
        self.queue.retain(|waiting| waiting.host != to.name());
        self.remember_past(past);
        self.ended_lease = Some(ended);
        Ok(())
    }

    /// Ends a lease early because its holder needs it no more. Returns whether its uses are to be ended: not those
    /// under a provisional lease.
    ///
    /// # Errors
    /// [`LeaseRefusal`]: also while the host has the device attached, unless `is_forced`.
    pub fn give_up(&mut self, who: &LeaseHost, is_forced: bool, now: Instant) -> Result<bool, LeaseRefusal> {
        let is_provisional = self.held_by(who, now)?.to_confirm.is_some();
        if !is_provisional && !self.holders.is_empty() && !is_forced {
            return Err(LeaseRefusal::InUse);
        }
        self.end_lease(UseEnding::Released, now);
        Ok(!is_provisional)
    }

    /// Ends the present lease, or the present use, `notice` from now at the latest. Returns the end; `None` if nobody
    /// has the device.
    pub fn preempt(&mut self, now: Instant, notice: Duration) -> Option<Instant> {
        let soon = now + notice;
        if let Some(lease) = &mut self.lease {
            lease.is_preempted |= lease.until > soon;
            lease.until = lease.until.min(soon);
        } else if !self.holders.is_empty() {
            self.use_ends = Some(self.use_ends.map_or(soon, |until| until.min(soon)));
        }
        self.ends_at()
    }

    /// Ends the lease that a host requested, if there is one. Its uses are to be ended.
    pub fn end_lease(&mut self, ending: UseEnding, now: Instant) {
        if let Some(lease) = self.lease.take().filter(|lease| lease.to_confirm.is_none()) {
            let past = past_of(lease.who.clone(), &lease, now, ending);
            self.remember_past(past);
            self.ended_lease = Some(lease);
        }
        self.is_warned = false;
    }

    /// The lease that ended last, once: for a record of it.
    pub fn take_ended_lease(&mut self) -> Option<Lease> {
        self.ended_lease.take()
    }

    /// Continues a lease of the process before this one.
    pub fn restore_lease(&mut self, lease: Lease) {
        (self.lease, self.ended_lease, self.is_warned) = (Some(lease), None, false);
    }

    /// What is due at `now`.
    pub fn advance(&mut self, now: Instant) -> Option<LeaseEvent> {
        if self.begin_booking(now) {
            return Some(LeaseEvent::Begin);
        }
        let until = self.ends_at()?;
        let is_provisional = self.is_provisional();
        if now >= until && is_provisional {
            self.end_lease(UseEnding::Expired, until);
            return Some(LeaseEvent::Lapse);
        }
        if now >= until {
            let ending = match &self.lease {
                Some(lease) if !lease.is_preempted => UseEnding::Expired,
                _ => UseEnding::Preempted,
            };
            self.end_lease(ending, until);
            self.use_ends = None;
            return Some(LeaseEvent::End(ending));
        }
        let is_due = !is_provisional && !self.is_warned && !self.holders.is_empty() && now + NOTICE >= until;
        is_due.then(|| {
            self.is_warned = true;
            LeaseEvent::Warn(until - now)
        })
    }

    /// When [`DeviceClaims::advance`] has something next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.end_timeout().into_iter().chain(self.booking_timeout()).min()
    }

    /// When the next booking begins, unless another host has the device then.
    fn booking_timeout(&self) -> Option<Instant> {
        let (at, wall_ms) = self.wall?;
        let booking = self.bookings.iter().find(|booking| booking.until_ms() > wall_ms)?;
        let from = moment_of(booking.from_ms, at, wall_ms);
        let lease = self.lease.as_ref().filter(|lease| lease.who != booking.who || lease.to_confirm.is_some());
        Some(lease.map_or(from, |lease| lease.until.max(from)))
    }

    fn end_timeout(&self) -> Option<Instant> {
        let until = self.ends_at()?;
        let warn_at = Instant::from_nanos(until.as_nanos().saturating_sub(NOTICE.as_nanos() as u64));
        let warns = !self.is_warned && !self.holders.is_empty() && !self.is_provisional();
        Some(if warns { warn_at } else { until })
    }

    fn is_provisional(&self) -> bool {
        self.lease.as_ref().is_some_and(|lease| lease.to_confirm.is_some())
    }

    pub(super) fn remember_past(&mut self, past: PastUse) {
        if self.history.len() == HISTORY_MAX {
            self.history.pop_front();
        }
        self.history.push_back(past);
    }
}

fn past_of(who: LeaseHost, lease: &Lease, until: Instant, ending: UseEnding) -> PastUse {
    let holder =
        ClaimHolder { who: who.name, mode: UseMode::Exclusive, since: lease.since, reason: lease.reason.clone() };
    PastUse { holder, until, ending, remark: None }
}
