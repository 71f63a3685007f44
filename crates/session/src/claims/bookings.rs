//! Leases ahead of time: who has a device from a time of day on.
//!
//! | who asks | the time asked for | answer |
//! |---|---|---|
//! | `book` | overlaps another booking, or the present lease of another host | [`BookRefusal::Overlaps`] |
//! | `book` | is over, or further away than [`AHEAD_MAX`] | [`BookRefusal::When`] |
//! | `request`, `extend` | reaches into a booking of another host | refused: [`LeaseRefusal::Booked`](super::lease::LeaseRefusal) |
//! | an attach | is before a booking of another host | granted, and preempted when the booking begins |
//! | any | is in a booking of another host that has begun | it is that host's lease |
//!
//! Bookings are wall clock: milliseconds of Unix time, as the exporter's clock has it at the moment it is asked. If
//! that clock is set, a booking begins when the clock says so. From its beginning it is a lease like any other, and its
//! time is counted by a clock that nobody can set.

use std::fmt;
use std::time::Duration;

use farbus_model::Instant;

use super::lease::{LeaseHost, SPAN_MAX, SPAN_MIN};
use super::uses::shortened;

/// The most bookings of a device.
pub const BOOKINGS_MAX: usize = 64;
/// The most bookings of one host among these.
pub const BOOKINGS_OF_HOST_MAX: usize = 8;
/// How far ahead a device may be booked.
pub const AHEAD_MAX: Duration = Duration::from_secs(90 * 24 * 3600);

/// A lease ahead of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Booking {
    /// The host that gets the lease.
    pub who: LeaseHost,
    /// When it begins, milliseconds of Unix time.
    pub from_ms: u64,
    /// How long it lasts, from [`SPAN_MIN`] to [`SPAN_MAX`].
    pub span: Duration,
    /// What the host wants the device for, in its user's words; `None` if it did not say.
    pub reason: Option<String>,
}

impl Booking {
    /// When it ends, milliseconds of Unix time.
    pub fn until_ms(&self) -> u64 {
        self.from_ms.saturating_add(self.span.as_millis() as u64)
    }

    fn overlaps(&self, from_ms: u64, until_ms: u64) -> bool {
        self.from_ms < until_ms && from_ms < self.until_ms()
    }
}

/// Why a device is not booked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BookRefusal {
    /// It begins in the past, or further away than [`AHEAD_MAX`].
    When,
    /// The span is shorter than [`SPAN_MIN`] or longer than [`SPAN_MAX`].
    Span,
    /// This host has the device for a part of that time.
    Overlaps {
        /// The name of the host that has the device then.
        by: String,
        /// From when, milliseconds of Unix time.
        from_ms: u64,
        /// Until when, milliseconds of Unix time.
        until_ms: u64,
    },
    /// There are so many bookings that no more may be.
    Full,
}

impl fmt::Display for BookRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::When => f.write_str("it has to begin within the next 90 days"),
            Self::Span => f.write_str("a lease is for 1 s to 30 days"),
            Self::Overlaps { by, .. } => write!(f, "{by} has it for a part of that time"),
            Self::Full => {
                write!(f, "{BOOKINGS_OF_HOST_MAX} of this host, or {BOOKINGS_MAX} in all, are booked already")
            }
        }
    }
}

/// The bookings of one device, in the order of their beginnings. No two overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BookingCalendar(Vec<Booking>);

impl BookingCalendar {
    /// Books the device; a host that books the same again changes nothing.
    ///
    /// # Errors
    /// [`BookRefusal`].
    pub fn book(&mut self, booking: Booking, wall_ms: u64) -> Result<(), BookRefusal> {
        if !(SPAN_MIN..=SPAN_MAX).contains(&booking.span) {
            return Err(BookRefusal::Span);
        }
        let latest_ms = wall_ms.saturating_add(AHEAD_MAX.as_millis() as u64);
        if booking.from_ms < wall_ms || booking.from_ms > latest_ms {
            return Err(BookRefusal::When);
        }
        let is_same =
            |other: &Booking| (&other.who, other.from_ms, other.span) == (&booking.who, booking.from_ms, booking.span);
        if self.0.iter().any(is_same) {
            return Ok(());
        }
        if let Some(other) = self.overlapping(booking.from_ms, booking.until_ms()) {
            let (by, from_ms, until_ms) = (other.who.name().to_owned(), other.from_ms, other.until_ms());
            return Err(BookRefusal::Overlaps { by, from_ms, until_ms });
        }
        let of_host = self.0.iter().filter(|other| other.who == booking.who).count();
        if self.0.len() >= BOOKINGS_MAX || of_host >= BOOKINGS_OF_HOST_MAX {
            return Err(BookRefusal::Full);
        }
        let at = self.0.partition_point(|other| other.from_ms < booking.from_ms);
        let reason = booking.reason.as_deref().map(shortened);
        self.0.insert(at, Booking { reason, ..booking });
        Ok(())
    }

    /// Takes away the bookings of a host; only the one that begins then, if `from_ms` is given. Returns whether there
    /// were any.
    pub fn cancel(&mut self, who: &LeaseHost, from_ms: Option<u64>) -> bool {
        let before = self.0.len();
        self.0.retain(|booking| booking.who != *who || from_ms.is_some_and(|from_ms| booking.from_ms != from_ms));
        self.0.len() < before
    }

    /// The bookings, in the order of their beginnings.
    pub fn iter(&self) -> impl Iterator<Item = &Booking> {
        self.0.iter()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The first booking that has a part of this time, milliseconds of Unix time.
    pub fn overlapping(&self, from_ms: u64, until_ms: u64) -> Option<&Booking> {
        self.0.iter().find(|booking| booking.overlaps(from_ms, until_ms))
    }

    /// Takes out the booking that has begun at this time, and forgets those that are over: a clock that was set ahead,
    /// or an exporter that did not run, may have passed them.
    pub fn take_begun(&mut self, wall_ms: u64) -> Option<Booking> {
        self.0.retain(|booking| booking.until_ms() > wall_ms);
        let is_begun = self.0.first().is_some_and(|booking| booking.from_ms <= wall_ms);
        is_begun.then(|| self.0.remove(0))
    }

    /// The bookings of the process before this one; what cannot be is left out.
    pub fn restore(all: Vec<Booking>) -> Self {
        let mut bookings = Self::default();
        for booking in all {
            // They were in the future when they were made.
            let from_ms = booking.from_ms;
            let _ = bookings.book(booking, from_ms);
        }
        bookings
    }
}

/// The moment that is so far away from `now` by a wall clock that shows `wall_ms`.
pub fn moment_of(at_ms: u64, now: Instant, wall_ms: u64) -> Instant {
    now + Duration::from_millis(at_ms.saturating_sub(wall_ms))
}
