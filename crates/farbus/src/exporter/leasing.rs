//! Leases of the shared devices: carries out what hosts and the owner ask for, ends leases in time, and fences their
//! former holders off.
//!
//! The order at an end: a later number is reserved and stored, so that the former holder's number is refused from now
//! on, also when its link comes back; then the sessions that use the device end, which writes out what they have sent;
//! then the device is offered to the next.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, UNIX_EPOCH};

use farbus_control::failure::{FailureKind, FailureReport};
use farbus_control::lease::{LeaseAct, LeaseAnswer, LeaseStatus};
use farbus_io_net::link::unix_ms;
use farbus_io_net::local::events::{Event, EventKind, publish};
use farbus_io_net::trust::{AuditOutcome, Fingerprint, timestamp};
use farbus_model::Instant;
use farbus_session::ExportRegistry;
use farbus_session::claims::bookings::{BookRefusal, Booking};
use farbus_session::claims::lease::{Lease, LeaseDecision, LeaseEvent, LeaseHost, LeaseRefusal, LeaseRequest};
use farbus_session::claims::{DeviceClaims, UseEnding};
use tracing::{debug, info, warn};

use crate::devices::lease::lease_status;
use crate::exporter::owner::end_users_of;
use crate::exporter::state::lease_limits::{ExceededLeaseLimit, HostLeaseLimits, held_by};
use crate::exporter::state::registry::DeviceRegistry;
use crate::exporter::state::shared::{ExporterState, STACK_BYTES};
use crate::hosts::trust::AuditedUse;

/// How late an end may be noticed after the machine has slept; a sleeping thread does not count that time.
const LATE_MAX: Duration = Duration::from_secs(1);

/// The host that asks for something about a lease, and what it may ask for.
pub struct LeaseRequester {
    /// The asking host, as the lease names its holder.
    pub who: LeaseHost,
    /// Its key, by which its limits are known.
    pub key: Fingerprint,
    /// Whether it may ask for a priority above 0.
    pub may_prefer: bool,
}

/// Does what a host asks for about the lease of the device with this bus id. `to` is the host of [`LeaseAct::Give`], if
/// it is a paired one that may use the device.
///
/// # Errors
/// [`FailureReport`]: why it is not done.
pub fn act(
    shared: &Arc<ExporterState>,
    bus_id: &str,
    asking: &LeaseRequester,
    act: LeaseAct,
    to: Option<(LeaseHost, Fingerprint)>,
) -> Result<LeaseAnswer, FailureReport> {
    let LeaseRequester { who, key, may_prefer } = asking;
    let now = shared.serving.clock.now();
    // The directory's view is asked before the registry is locked.
    let limits = shared.lease_limits.of(Some(key));
    with_claims(&shared.registry, bus_id, |claims| claims.note_wall(now, unix_ms()))?;
    let actor = LeaseActor { shared, bus_id, who, may_prefer: *may_prefer, now, limits: &limits };
    let use_of = match &act {
        LeaseAct::Request { .. } | LeaseAct::Confirm => Some(AuditedUse::Lease),
        LeaseAct::Book { .. } => Some(AuditedUse::Book),
        LeaseAct::Extend { .. } => Some(AuditedUse::LeaseExtend),
        LeaseAct::Withdraw | LeaseAct::Give { .. } | LeaseAct::Release { .. } => None,
    };
    let done = actor.act(act, to);
    if let (Some(use_of), Err(failure)) = (use_of, &done) {
        let why = failure.message.lines().next().unwrap_or_default();
        shared.permissions.record_lease(use_of, AuditOutcome::Refused, bus_id, who, why);
    }
    done
}

/// A host that acts on the lease of a device.
#[derive(Clone, Copy)]
struct LeaseActor<'a> {
    shared: &'a Arc<ExporterState>,
    bus_id: &'a str,
    who: &'a LeaseHost,
    /// Whether it may ask with a priority above 0.
    may_prefer: bool,
    now: Instant,
    /// What it may have, as the directory limits it.
    limits: &'a HostLeaseLimits,
}

impl LeaseActor<'_> {
    fn act(self, act: LeaseAct, to: Option<(LeaseHost, Fingerprint)>) -> Result<LeaseAnswer, FailureReport> {
        match act {
            LeaseAct::Request { for_s, priority, reason, waits, provisional } => {
                self.request(for_s, priority, reason, waits, provisional)
            }
            LeaseAct::Confirm => self.confirm(),
            LeaseAct::Book { from_unix_ms, for_s, reason } => self.book(from_unix_ms, for_s, reason),
            LeaseAct::Withdraw => self.withdraw(),
            LeaseAct::Extend { for_s } => self.extend(for_s),
            LeaseAct::Give { .. } => self.give(to),
            LeaseAct::Release { force } => self.release(force),
        }
    }

    fn request(
        self,
        for_s: u64,
        priority: u8,
        reason: Option<String>,
        waits: bool,
        provisional: bool,
    ) -> Result<LeaseAnswer, FailureReport> {
        let Self { shared, bus_id, who, now, limits, may_prefer, .. } = self;
        let registry = &shared.registry;
        if priority > 0 && !may_prefer {
            return Err(refused("a priority above 0 needs its owner's permission: farbus allow --reserve-high"));
        }
        let span = Duration::from_secs(for_s);
        let (is_provisional, notice) = (provisional, limits.preempt_notice());
        let request = LeaseRequest { who: who.clone(), span, priority, reason, waits, is_provisional, notice };
        let (before, requested, is_used) = {
            let mut registry = registry.lock();
            let held = held_by(&registry, who, bus_id, now);
            let claims = claims_of(&mut registry, bus_id)?;
            // What it has already it keeps, and its answer may be asked for again.
            if claims.lease(now).is_none_or(|lease| lease.who != *who) {
                let checked = limits.check_devices(held).and_then(|()| limits.check_span(span));
                checked.map_err(|exceeded| {
                    claims.withdraw(who);
                    over(bus_id, who, exceeded)
                })?;
            }
            let before = claims.lease(now).cloned();
            let requested = claims.request(&request, now);
            // Its own sessions keep their number: they are not fenced off by the lease of their host.
            (before, requested, !claims.holders().is_empty())
        };
        let requested = requested.map_err(|refusal| refused_by(&refusal, Some(waits)))?;
        let is_new = requested == (LeaseDecision::Granted { is_new: true });
        if is_new && !provisional {
            granted(shared, bus_id, who, is_used)?;
        }
        if matches!(requested, LeaseDecision::Waits { .. }) && priority > 0 {
            // It may end the present lease early.
            keep_or_restore(shared, bus_id, before).inspect_err(|_| {
                let _ = with_claims(registry, bus_id, |claims| claims.withdraw(who));
            })?;
        }
        watch(shared);
        let (state, position) = match requested {
            LeaseDecision::Granted { .. } => ("held", None),
            LeaseDecision::Waits { position, .. } => ("waiting", Some(position)),
        };
        Ok(LeaseAnswer { is_new: Some(is_new), ..answer(shared, bus_id, who, state, position)? })
    }

    fn confirm(self) -> Result<LeaseAnswer, FailureReport> {
        let Self { shared, bus_id, who, now, .. } = self;
        let registry = &shared.registry;
        let confirmed = with_claims(registry, bus_id, |claims| {
            claims.confirm(who, now).map(|(_, is_new)| (is_new, !claims.holders().is_empty()))
        })?;
        let (is_new, is_used) = confirmed.map_err(|refusal| refused_by(&refusal, None))?;
        if is_new {
            granted(shared, bus_id, who, is_used)?;
        }
        watch(shared);
        Ok(LeaseAnswer { is_new: Some(is_new), ..answer(shared, bus_id, who, "held", None)? })
    }

    fn book(self, from_unix_ms: u64, for_s: u64, reason: Option<String>) -> Result<LeaseAnswer, FailureReport> {
        let Self { shared, bus_id, who, now, limits, .. } = self;
        let registry = &shared.registry;
        let span = Duration::from_secs(for_s);
        limits.check_span(span).map_err(|exceeded| over(bus_id, who, exceeded))?;
        let booking = Booking { who: who.clone(), from_ms: from_unix_ms, span, reason };
        let from = timestamp(UNIX_EPOCH + Duration::from_millis(from_unix_ms));
        let booked_words = format!("from {from} {}", until_words(booking.until_ms(), booking.reason.as_deref()));
        let ahead = had_meanwhile(&registry.lock(), &booking, bus_id, now, unix_ms());
        limits.check_devices(ahead).map_err(|exceeded| over(bus_id, who, exceeded))?;
        let booked = with_claims(registry, bus_id, |claims| claims.book(booking, now))?;
        booked.map_err(|refusal| refused(book_refusal(&refusal)))?;
        if let Err(error) = registry.keep_bookings(bus_id) {
            // What would be forgotten is not booked.
            with_claims(registry, bus_id, |claims| claims.cancel_bookings(who))?;
            return Err(report(FailureKind::Local, format!("the booking cannot be stored: {error}")));
        }
        info!(device = bus_id, host = who.name(), "booked");
        record(shared, AuditedUse::Book, bus_id, who, &booked_words);
        watch(shared);
        answer(shared, bus_id, who, "booked", None)
    }

    fn withdraw(self) -> Result<LeaseAnswer, FailureReport> {
        let Self { shared, bus_id, who, .. } = self;
        let registry = &shared.registry;
        let state = with_claims(registry, bus_id, |claims| claims.withdraw(who))?;
        answer(shared, bus_id, who, if state { "withdrawn" } else { "released" }, None)
    }

    fn extend(self, for_s: u64) -> Result<LeaseAnswer, FailureReport> {
        let Self { shared, bus_id, who, now, limits, .. } = self;
        let registry = &shared.registry;
        limits.check_span(Duration::from_secs(for_s)).map_err(|exceeded| over(bus_id, who, exceeded))?;
        let (before, extended) = with_claims(registry, bus_id, |claims| {
            (claims.lease(now).cloned(), claims.extend(who, Duration::from_secs(for_s), now))
        })?;
        extended.map_err(|refusal| refused_by(&refusal, None))?;
        keep_or_restore(shared, bus_id, before)?;
        watch(shared);
        let answered = answer(shared, bus_id, who, "held", None)?;
        if let Some(lease) = &answered.lease {
            record(shared, AuditedUse::LeaseExtend, bus_id, who, &format!("until {}", lease.until));
        }
        Ok(answered)
    }

    fn give(self, to: Option<(LeaseHost, Fingerprint)>) -> Result<LeaseAnswer, FailureReport> {
        let Self { shared, bus_id, who, now, .. } = self;
        let registry = &shared.registry;
        let to = to.ok_or_else(|| refused("that host is not paired with this one, or may not use the device"))?;
        let (to, key) = to;
        let limits = shared.lease_limits.of(Some(&key));
        let (before, given) = {
            let mut registry = registry.lock();
            let held = held_by(&registry, &to, bus_id, now);
            let claims = claims_of(&mut registry, bus_id)?;
            let left = claims.lease(now).map_or(Duration::ZERO, |lease| lease.until - now);
            let checked = limits.check_devices(held).and_then(|()| limits.check_span(left));
            checked.map_err(|exceeded| over(bus_id, &to, exceeded))?;
            (claims.lease(now).cloned(), claims.give(who, &to, now))
        };
        given.map_err(|refusal| refused_by(&refusal, None))?;
        info!(device = bus_id, from = who.name(), to = to.name(), "its lease was given to another host");
        granted(shared, bus_id, &to, false).inspect_err(|_| {
            // It is its holder's still, as it is stored.
            if let (Some(before), Some(claims)) = (before, registry.lock().claims_mut(bus_id)) {
                claims.restore_lease(before);
            }
        })?;
        shared.permissions.record_lease_end(bus_id, UseEnding::HandedOver);
        watch(shared);
        answer(shared, bus_id, who, "given", None)
    }

    fn release(self, force: bool) -> Result<LeaseAnswer, FailureReport> {
        let Self { shared, bus_id, who, now, .. } = self;
        let registry = &shared.registry;
        let (released, users) = with_claims(registry, bus_id, |claims| {
            let users = users_of(claims);
            (claims.give_up(who, force, now), users)
        })?;
        if released == Err(LeaseRefusal::NotHeld)
            && with_claims(registry, bus_id, |claims| claims.cancel_bookings(who))?
        {
            // It has no lease yet: its bookings are what it gives up.
            keep_bookings(shared, bus_id);
            record(shared, AuditedUse::BookEnd, bus_id, who, "given up");
            return answer(shared, bus_id, who, "released", None);
        }
        if released.map_err(|refusal| refused_by(&refusal, None))? {
            ended(shared, bus_id, UseEnding::Released, &users);
        }
        answer(shared, bus_id, who, "released", None)
    }
}

fn with_claims<T>(
    registry: &DeviceRegistry,
    bus_id: &str,
    act: impl FnOnce(&mut DeviceClaims) -> T,
) -> Result<T, FailureReport> {
    claims_of(&mut registry.lock(), bus_id).map(act)
}

fn claims_of<'r>(registry: &'r mut ExportRegistry, bus_id: &str) -> Result<&'r mut DeviceClaims, FailureReport> {
    registry.claims_mut(bus_id).ok_or_else(|| report(FailureKind::Gone, "no such device is shared here"))
}

/// How many other devices the host of a booking has, or has booked, at some moment of it.
fn had_meanwhile(registry: &ExportRegistry, booking: &Booking, but: &str, now: Instant, wall_ms: u64) -> usize {
    let has = |claims: &DeviceClaims| {
        let until_ms = |until: Instant| wall_ms.saturating_add((until - now).as_millis() as u64);
        let is_his = |lease: &&Lease| lease.who == booking.who && until_ms(lease.until) > booking.from_ms;
        let booked = claims.bookings().iter().filter(|other| other.who == booking.who);
        let mut meanwhile =
            booked.filter(|other| other.from_ms < booking.until_ms() && booking.from_ms < other.until_ms());
        claims.lease(now).filter(is_his).is_some() || meanwhile.next().is_some()
    };
    registry.entries().filter(|entry| entry.record.bus_id != but && has(entry.claims)).count()
}

/// The refusal to a host that would exceed a limit.
fn over(bus_id: &str, who: &LeaseHost, exceeded: ExceededLeaseLimit) -> FailureReport {
    info!(device = bus_id, host = who.name(), limit = exceeded.name, "refused: its limit is reached");
    exceeded.report()
}

fn report(attribute: FailureKind, message: impl Into<String>) -> FailureReport {
    FailureReport::new(attribute, message.into())
}

fn refused(message: impl Into<String>) -> FailureReport {
    report(FailureKind::Refused, message)
}

/// A refusal, with what to type next.
fn refused_by(refusal: &LeaseRefusal, waits: Option<bool>) -> FailureReport {
    let next = match refusal {
        LeaseRefusal::Taken { .. } if waits == Some(false) => "\n  wait for it: leave out --no-wait",
        LeaseRefusal::InUse => "\n  detach it first, or end its use: --force",
        LeaseRefusal::NotHeld => "\n  see who has it: farbus lease list",
        _ => "",
    };
    refused(format!("{refusal}{next}"))
}

/// Why a device is not booked, with times.
fn book_refusal(refusal: &BookRefusal) -> String {
    match refusal {
        BookRefusal::Overlaps { from_ms, until_ms, .. } => {
            let time = |ms: &u64| timestamp(UNIX_EPOCH + Duration::from_millis(*ms));
            format!("{refusal}: {} to {}\n  see: farbus lease list", time(from_ms), time(until_ms))
        }
        _ => refusal.to_string(),
    }
}

fn keep_bookings(shared: &ExporterState, bus_id: &str) {
    if let Err(error) = shared.registry.keep_bookings(bus_id) {
        warn!(device = bus_id, %error, "its bookings are not stored, and end with this process");
    }
}

/// A booking has begun: its lease gets a number and is stored.
fn begun(shared: &ExporterState, bus_id: &str) {
    keep_bookings(shared, bus_id);
    let now = shared.serving.clock.now();
    let began = with_claims(&shared.registry, bus_id, |claims| {
        let lease = claims.lease(now)?;
        Some((lease.who.clone(), lease.number > 0, !claims.holders().is_empty()))
    });
    match began {
        // The host had it already, and has it for longer now.
        Ok(Some((_, true, _))) => {
            if let Err(error) = keep(shared, bus_id) {
                // The booking is stored still: after a restart it begins again.
                warn!(device = bus_id, %error, "that its lease is longer is not stored");
            }
        }
        Ok(Some((who, false, is_used))) => {
            if let Err(failure) = granted(shared, bus_id, &who, is_used) {
                warn!(device = bus_id, failure.message, "a booking is not honoured");
            }
        }
        Ok(None) | Err(_) => {}
    }
}

/// Numbers and stores a lease that was granted just now. `keeps_number`: its host uses the device already.
fn granted(shared: &ExporterState, bus_id: &str, who: &LeaseHost, keeps_number: bool) -> Result<(), FailureReport> {
    let registry = &shared.registry;
    let key = registry.key_of(bus_id);
    let known = keeps_number.then(|| registry.leases().latest(&key)).flatten();
    let number = match known {
        Some(number) => Ok(number),
        None => registry.next_lease(bus_id),
    };
    let stored = number.map_err(|error| error.to_string()).and_then(|number| {
        let lease = {
            let mut registry = registry.lock();
            let claims = registry.claims_mut(bus_id).ok_or("no such device is shared here")?;
            claims.set_number(number);
            claims.lease(shared.serving.clock.now()).cloned()
        };
        registry.keep_lease(bus_id, lease.as_ref(), shared.serving.clock.now()).map_err(|error| error.to_string())
    });
    if let Err(error) = stored {
        // A lease that would be forgotten is none.
        if let Some(claims) = registry.lock().claims_mut(bus_id) {
            claims.end_lease(UseEnding::Released, shared.serving.clock.now());
            claims.take_ended_lease();
        }
        return Err(report(FailureKind::Local, format!("the lease cannot be stored: {error}")));
    }
    info!(device = bus_id, host = who.name(), "leased");
    let now = shared.serving.clock.now();
    let lease =
        with_claims(registry, bus_id, |claims| claims.lease(now).map(|lease| (lease.until, lease.reason.clone())));
    if let Ok(Some((until, reason))) = lease {
        let until_ms = unix_ms().saturating_add((until - now).as_millis() as u64);
        record(shared, AuditedUse::Lease, bus_id, who, &until_words(until_ms, reason.as_deref()));
        let event = Event::of(EventKind::Leased, name_of(shared, bus_id)).host(who.name());
        let event = event.how(until_words(until_ms, None));
        publish(match reason {
            Some(reason) => event.why(reason),
            None => event,
        });
    }
    Ok(())
}

/// Stores the present lease of a device, after a change.
fn keep(shared: &ExporterState, bus_id: &str) -> io::Result<()> {
    let now = shared.serving.clock.now();
    let lease = shared.registry.lock().claims_mut(bus_id).and_then(|claims| claims.lease(now).cloned());
    // What is not confirmed is forgotten with this process.
    let lease = lease.filter(|lease| lease.to_confirm.is_none());
    shared.registry.keep_lease(bus_id, lease.as_ref(), now)
}

/// Stores a change of the lease that a device has, or takes the change back: `before` is the lease as it was.
fn keep_or_restore(shared: &ExporterState, bus_id: &str, before: Option<Lease>) -> Result<(), FailureReport> {
    let Err(error) = keep(shared, bus_id) else { return Ok(()) };
    if let (Some(before), Some(claims)) = (before, shared.registry.lock().claims_mut(bus_id)) {
        claims.restore_lease(before);
    }
    warn!(device = bus_id, %error, "refused: a change of its lease cannot be stored");
    Err(report(
        FailureKind::Local,
        format!("the change cannot be stored: {error}\n  where it is shared, make room first"),
    ))
}

/// The users of a device, as its claims name them.
fn users_of(claims: &DeviceClaims) -> Vec<String> {
    claims.holders().iter().map(|holder| holder.who.clone()).collect()
}

/// What remains to be done when a lease has ended: nothing of it is stored, its holder is fenced off, its uses end:
/// those of `users`, who had the device at that moment. Another host may have it by now.
fn ended(shared: &ExporterState, bus_id: &str, ending: UseEnding, users: &[String]) {
    info!(device = bus_id, how = ending.as_str(), "its lease has ended");
    shared.permissions.record_lease_end(bus_id, ending);
    let fenced = end_users_of(shared, bus_id, None, ending, Some(users));
    if let Err(error) = fenced.and(keep(shared, bus_id)) {
        // Who had it could come back after a restart of this process, and until the lease would have ended. The next
        // host does not get the device before a number is stored that refuses the former one.
        warn!(device = bus_id, %error, "that its lease has ended is not stored");
    }
}

/// Writes a line of the audit log about a lease.
fn record(shared: &ExporterState, use_of: AuditedUse, bus_id: &str, who: &LeaseHost, why: &str) {
    shared.permissions.record_lease(use_of, AuditOutcome::Ok, bus_id, who, why);
}

/// Until when, and what for.
fn until_words(until_ms: u64, reason: Option<&str>) -> String {
    let until = timestamp(UNIX_EPOCH + Duration::from_millis(until_ms));
    match reason.filter(|reason| !reason.is_empty()) {
        Some(reason) => format!("until {until}, for: {reason}"),
        None => format!("until {until}"),
    }
}

fn name_of(shared: &ExporterState, bus_id: &str) -> String {
    shared.registry.device_name(bus_id).unwrap_or_else(|| bus_id.to_owned())
}

fn answer(
    shared: &ExporterState,
    bus_id: &str,
    who: &LeaseHost,
    state: &str,
    position: Option<usize>,
) -> Result<LeaseAnswer, FailureReport> {
    let now = shared.serving.clock.now();
    let device = name_of(shared, bus_id);
    with_claims(&shared.registry, bus_id, |claims| {
        let lease =
            claims.lease(now).map(|lease| LeaseStatus { is_yours: lease.who == *who, ..lease_status(lease, now) });
        let user = claims.holder().filter(|_| lease.is_none()).map(|holder| holder.who.clone());
        let ends_in_s = claims.ends_at().map(|until| (until - now).as_secs_f64());
        LeaseAnswer { device, state: state.to_owned(), lease, user, place: position, ends_in_s, is_new: None }
    })
}

/// Restores what was stored of the leases of a device that was offered just now.
pub fn restore(shared: &Arc<ExporterState>, bus_id: &str) {
    let now = shared.serving.clock.now();
    match shared.registry.load_lease(bus_id, now) {
        Ok((lease, bookings)) if !bookings.is_empty() => {
            if let Some(claims) = shared.registry.lock().claims_mut(bus_id) {
                claims.note_wall(now, unix_ms());
                claims.restore_bookings(bookings);
                lease.into_iter().for_each(|lease| claims.restore_lease(lease));
            }
            watch(shared);
        }
        Ok((Some(lease), _)) => {
            info!(device = bus_id, host = lease.who.name(), "leased, since before this process");
            if let Some(claims) = shared.registry.lock().claims_mut(bus_id) {
                claims.restore_lease(lease);
            }
            watch(shared);
        }
        // What was kept while the device was gone may have an end.
        Ok((None, _)) => watch(shared),
        Err(error) => {
            warn!(device = bus_id, %error, "nobody can attach it: what was stored of its leases is not known")
        }
    }
}

/// Keeps leases in this host's folder from now on, and restores those of the devices that are shared already.
pub fn keep_in(shared: &Arc<ExporterState>, folder: farbus_io_net::trust::HostFolder) {
    if !shared.registry.store.keep_in(folder) {
        return;
    }
    let all: Vec<String> = shared.registry.lock().entries().map(|entry| entry.record.bus_id.clone()).collect();
    all.iter().for_each(|bus_id| restore(shared, bus_id));
}

/// Does what is due of all leases. Returns for how long nothing is; `None` if no lease has an end.
fn advance(shared: &ExporterState) -> Option<Duration> {
    let now = shared.serving.clock.now();
    let due: Vec<(String, LeaseEvent, Vec<String>)> = {
        let mut registry = shared.registry.lock();
        let due = registry.advance_leases(now, unix_ms());
        let with_users = |(bus_id, due): (String, LeaseEvent)| {
            let users = registry.claims_mut(&bus_id).map(|claims| users_of(claims)).unwrap_or_default();
            (bus_id, due, users)
        };
        due.into_iter().map(with_users).collect()
    };
    for (bus_id, due, users) in due {
        match due {
            LeaseEvent::Warn(left) => {
                let left_s = left.as_secs_f64().ceil();
                warn!(device = bus_id, left_s, "the lease of its user ends soon");
                shared.sessions.holders_of(&bus_id).iter().for_each(|session| session.leave_lease_left(left));
                publish(Event::of(EventKind::LeaseEnding, name_of(shared, &bus_id)).how(format!("in {left_s} s")));
            }
            LeaseEvent::Begin => begun(shared, &bus_id),
            LeaseEvent::Lapse => debug!(device = bus_id, "a provisional lease was not confirmed"),
            LeaseEvent::End(ending) => ended(shared, &bus_id, ending, &users),
        }
    }
    let next = shared.registry.lock().next_lease_event()?;
    Some(next - shared.serving.clock.now())
}

/// Makes sure that a thread ends leases in time, as long as there are some.
pub fn watch(shared: &Arc<ExporterState>) {
    let registry = &shared.registry;
    if registry.lock().next_lease_event().is_none() || !registry.begin_watching() {
        return;
    }
    let weak = Arc::downgrade(shared);
    let run = move || {
        while let Some(shared) = weak.upgrade() {
            if shared.sessions.is_stopping() {
                return;
            }
            let Some(span) = advance(&shared) else {
                shared.registry.end_watching();
                // A lease that began meanwhile found this thread.
                watch(&shared);
                return;
            };
            drop(shared);
            thread::sleep(span.min(LATE_MAX));
        }
    };
    if let Err(error) = thread::Builder::new().name("leases".into()).stack_size(STACK_BYTES).spawn(run) {
        warn!(%error, "leases do not end in time");
        registry.end_watching();
    }
}
