//! The verbs of leases. [`super::lease`] has their table.

use std::time::Duration;

use farbus_model::Instant;

use super::claiming::Claims;
use super::lease::{
    Due, Lease, LeaseRefusal, NOTICE, PRIORITY_MAX, PROVISIONAL, Party, REQUEST_PATIENCE, Request, Requested, SPAN_MAX,
    SPAN_MIN,
};
use super::uses::{Ending, HISTORY_MAX, Holder, Mode, Past, QUEUE_MAX, TRIES_MIN, Waiting, host_of, shortened};

impl Claims {
    /// The lease that a host requested and has at `now`.
    pub fn lease(&self, now: Instant) -> Option<&Lease> {
        self.lease.as_ref().filter(|lease| now < lease.until)
    }

    /// When the present lease ends, or the present use if it is being preempted; `None` if it has no end.
    pub fn ends_at(&self) -> Option<Instant> {
        self.lease.as_ref().map(|lease| lease.until).or(self.use_ends)
    }

    /// Requests a lease, or repeats the request and so keeps its place in the queue. A host that has the lease already
    /// keeps it as it is: an answer that was lost can be asked for again.
    ///
    /// # Errors
    /// [`LeaseRefusal`].
    pub fn request(&mut self, request: &Request, now: Instant) -> Result<Requested, LeaseRefusal> {
        if request.span < SPAN_MIN || request.span > SPAN_MAX {
            return Err(LeaseRefusal::Span);
        }
        if request.priority > PRIORITY_MAX {
            return Err(LeaseRefusal::Priority);
        }
        if self.lease(now).is_some_and(|lease| lease.who == request.who) {
            return Ok(Requested::Granted { is_new: false });
        }
        if let Some(left) = self.kept_out_for(request.who.name(), now) {
            return Err(LeaseRefusal::KeptOut(left));
        }
        self.queue.retain(|waiting| waiting.is_patient(now));
        let others_use = self.holders.iter().any(|holder| Party::of(&holder.who) != request.who);
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
            return Ok(Requested::Granted { is_new: true });
        }
        if !request.waits {
            return Err(LeaseRefusal::Taken { by: self.in_the_way(request.who.name()), until: self.ends_at() });
        }
        let place = self.enter(request, now)?;
        // Who is first in the queue and of a higher priority than the present holder does not wait for its end.
        let present = self.lease.as_ref().map_or(0, |lease| lease.priority);
        if place == 1 && request.priority > present {
            self.preempt(now);
        }
        Ok(Requested::Waits { place, until: self.ends_at() })
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
    fn enter(&mut self, request: &Request, now: Instant) -> Result<usize, LeaseRefusal> {
        let host = request.who.name();
        let known = self.queue.iter().position(|waiting| waiting.host == host);
        let since = known.map_or(now, |at| self.queue[at].since);
        let same = known.filter(|&at| self.queue[at].priority == request.priority);
        if known.is_none() && self.queue.len() >= QUEUE_MAX {
            return Err(LeaseRefusal::QueueFull);
        }
        let waiting = Waiting {
            host: host.to_owned(),
            since,
            asked: now,
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
    pub fn withdraw(&mut self, who: &Party) -> bool {
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

    fn held_by(&mut self, who: &Party, now: Instant) -> Result<&mut Lease, LeaseRefusal> {
        self.lease.as_mut().filter(|lease| now < lease.until && lease.who == *who).ok_or(LeaseRefusal::NotHeld)
    }

    /// Confirms a provisional lease: it lasts from now for as long as it was requested. Returns its end, and whether it
    /// is new: a lease that was confirmed already stays as it is.
    ///
    /// # Errors
    /// [`LeaseRefusal`].
    pub fn confirm(&mut self, who: &Party, now: Instant) -> Result<(Instant, bool), LeaseRefusal> {
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
    pub fn extend(&mut self, who: &Party, span: Duration, now: Instant) -> Result<Instant, LeaseRefusal> {
        if !(SPAN_MIN..=SPAN_MAX).contains(&span) {
            return Err(LeaseRefusal::Span);
        }
        let waiting = self.queue(now).filter(|waiting| waiting.host != who.name()).count();
        let lease = self.held_by(who, now)?;
        if lease.is_preempted {
            return Err(LeaseRefusal::Preempted);
        }
        if lease.to_confirm.is_some() {
            return Err(LeaseRefusal::Provisional);
        }
        if now + span > lease.until {
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
    pub fn give(&mut self, who: &Party, to: &Party, now: Instant) -> Result<(), LeaseRefusal> {
        let is_used = !self.holders.is_empty();
        let lease = self.held_by(who, now)?;
        if lease.to_confirm.is_some() {
            return Err(LeaseRefusal::Provisional);
        }
        if is_used {
            return Err(LeaseRefusal::InUse);
        }
        let former = std::mem::replace(&mut lease.who, to.clone());
        let past = past_of(former, lease, now, Ending::HandedOver);
        (lease.since, lease.number) = (now, 0);
        self.is_warned = false;
        self.queue.retain(|waiting| waiting.host != to.name());
        self.remember_past(past);
        Ok(())
    }

    /// Ends a lease early because its holder needs it no more. Returns whether its uses are to be ended: not those
    /// under a provisional lease.
    ///
    /// # Errors
    /// [`LeaseRefusal`]: also while the host has the device attached, unless `is_forced`.
    pub fn give_up(&mut self, who: &Party, is_forced: bool, now: Instant) -> Result<bool, LeaseRefusal> {
        let is_provisional = self.held_by(who, now)?.to_confirm.is_some();
        if !is_provisional && !self.holders.is_empty() && !is_forced {
            return Err(LeaseRefusal::InUse);
        }
        self.end_lease(Ending::Released, now);
        Ok(!is_provisional)
    }

    /// Ends the present lease, or the present use, [`NOTICE`] from now at the latest. Returns the end; `None` if nobody
    /// has the device.
    pub fn preempt(&mut self, now: Instant) -> Option<Instant> {
        let soon = now + NOTICE;
        if let Some(lease) = &mut self.lease {
            lease.is_preempted |= lease.until > soon;
            lease.until = lease.until.min(soon);
        } else if !self.holders.is_empty() {
            self.use_ends = Some(self.use_ends.map_or(soon, |until| until.min(soon)));
        }
        self.ends_at()
    }

    /// Ends the lease that a host requested, if there is one. Its uses are to be ended.
    pub fn end_lease(&mut self, ending: Ending, now: Instant) {
        if let Some(lease) = self.lease.take().filter(|lease| lease.to_confirm.is_none()) {
            let past = past_of(lease.who.clone(), &lease, now, ending);
            self.remember_past(past);
        }
        self.is_warned = false;
    }

    /// Continues a lease of the process before this one.
    pub fn restore_lease(&mut self, lease: Lease) {
        (self.lease, self.is_warned) = (Some(lease), false);
    }

    /// What is due at `now`.
    pub fn advance(&mut self, now: Instant) -> Option<Due> {
        let until = self.ends_at()?;
        let is_provisional = self.is_provisional();
        if now >= until && is_provisional {
            self.end_lease(Ending::Expired, until);
            return Some(Due::Lapse);
        }
        if now >= until {
            let ending = match &self.lease {
                Some(lease) if !lease.is_preempted => Ending::Expired,
                _ => Ending::Preempted,
            };
            self.end_lease(ending, until);
            self.use_ends = None;
            return Some(Due::End(ending));
        }
        let is_due = !is_provisional && !self.is_warned && !self.holders.is_empty() && now + NOTICE >= until;
        is_due.then(|| {
            self.is_warned = true;
            Due::Warn(until - now)
        })
    }

    /// When [`Claims::advance`] has something next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let until = self.ends_at()?;
        let warn_at = Instant::from_nanos(until.as_nanos().saturating_sub(NOTICE.as_nanos() as u64));
        let warns = !self.is_warned && !self.holders.is_empty() && !self.is_provisional();
        Some(if warns { warn_at } else { until })
    }

    fn is_provisional(&self) -> bool {
        self.lease.as_ref().is_some_and(|lease| lease.to_confirm.is_some())
    }

    pub(super) fn remember_past(&mut self, past: Past) {
        if self.history.len() == HISTORY_MAX {
            self.history.pop_front();
        }
        self.history.push_back(past);
    }
}

fn past_of(who: Party, lease: &Lease, until: Instant, ending: Ending) -> Past {
    let holder = Holder { who: who.name, mode: Mode::Exclusive, since: lease.since, reason: lease.reason.clone() };
    Past { holder, until, ending, remark: None }
}
