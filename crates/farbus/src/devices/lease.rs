//! The lease of a device, for people and programs.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use farbus_control::lease::{BookedStatus, LeaseAnswer, LeaseStatus};
use farbus_io_net::trust::timestamp;
use farbus_model::Instant;
use farbus_session::claims::bookings::Booking;
use farbus_session::claims::lease::{Lease, NOTICE};
use farbus_session::claims::shortened;

/// The status of a lease at `now`.
pub fn lease_status(lease: &Lease, now: Instant) -> LeaseStatus {
    let left = lease.until - now;
    LeaseStatus {
        host: lease.who.name().to_owned(),
        state: match left <= NOTICE || lease.is_preempted {
            _ if lease.to_confirm.is_some() => "provisional",
            true => "ending",
            false => "held",
        }
        .to_owned(),
        since_s: (now - lease.since).as_secs_f64(),
        left_s: left.as_secs_f64(),
        until: timestamp(SystemTime::now() + left),
        priority: lease.priority,
        reason: lease.reason.clone(),
        number: lease.number,
        is_yours: false,
    }
}

/// A lease without what a terminal would obey: another host wrote these texts.
pub fn readable_lease(lease: LeaseStatus) -> LeaseStatus {
    LeaseStatus {
        host: shortened(&lease.host),
        state: shortened(&lease.state),
        until: shortened(&lease.until),
        reason: lease.reason.as_deref().map(shortened),
        ..lease
    }
}

/// The status of a booking.
pub fn booking_status(booking: &Booking) -> BookedStatus {
    let time = |ms| timestamp(UNIX_EPOCH + Duration::from_millis(ms));
    BookedStatus {
        host: booking.who.name().to_owned(),
        from: time(booking.from_ms),
        until: time(booking.until_ms()),
        reason: booking.reason.clone(),
    }
}

/// A booking without what a terminal would obey: another host wrote these texts.
pub fn readable_booking(booked: BookedStatus) -> BookedStatus {
    BookedStatus {
        host: shortened(&booked.host),
        from: shortened(&booked.from),
        until: shortened(&booked.until),
        reason: booked.reason.as_deref().map(shortened),
    }
}

/// An answer without what a terminal would obey: another host wrote these texts.
pub fn readable_answer(answer: LeaseAnswer) -> LeaseAnswer {
    LeaseAnswer {
        device: shortened(&answer.device),
        state: shortened(&answer.state),
        lease: answer.lease.map(readable_lease),
        user: answer.user.as_deref().map(shortened),
        ..answer
    }
}
