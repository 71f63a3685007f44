//! Leases ahead of time: when they begin, what they exclude, and what a change of the clock does to them.

use std::time::Duration;

use farbus_model::Instant;
use farbus_session::DeviceClaims;
use farbus_session::claims::bookings::{BOOKINGS_OF_HOST_MAX, BookRefusal, Booking};
use farbus_session::claims::lease::{LeaseDecision, LeaseEvent, LeaseHost, LeaseRefusal, LeaseRequest, NOTICE};
use farbus_session::claims::{ClaimRefusal, UseEnding, UseMode};

/// What the wall clock shows at moment 0.
const WALL_MS: u64 = 1_795_000_000_000;
const PEERS: [&str; 2] = ["desk (192.0.2.1:1)", "rack (192.0.2.2:1)"];

fn at_s(s: u64) -> Instant {
    Instant::from_nanos(1 + s * 1_000_000_000)
}

fn party(host: &str) -> LeaseHost {
    LeaseHost::paired(host)
}

fn booking(host: &str, from_s: u64, span_s: u64) -> Booking {
    Booking { who: party(host), from_ms: WALL_MS + from_s * 1000, span: Duration::from_secs(span_s), reason: None }
}

fn request(host: &str, span_s: u64) -> LeaseRequest {
    let span = Duration::from_secs(span_s);
    LeaseRequest {
        who: party(host),
        span,
        priority: 0,
        reason: None,
        waits: false,
        is_provisional: false,
        notice: NOTICE,
    }
}

fn claims() -> DeviceClaims {
    let mut claims = DeviceClaims::default();
    claims.note_wall(at_s(0), WALL_MS);
    claims
}

#[test]
fn booking_is_refused_where_it_overlaps_another_or_the_present_lease_of_another_host() {
    let mut claims = claims();
    claims.request(&request("desk", 100), at_s(0)).unwrap();
    let overlaps = |refused, host: &str| matches!(refused, Err(BookRefusal::Overlaps { by, .. }) if by == host);
    assert!(overlaps(claims.book(booking("rack", 99, 10), at_s(0)), "desk"));
    assert_eq!(claims.book(booking("rack", 100, 50), at_s(0)), Ok(()));
    assert_eq!(claims.book(booking("rack", 100, 50), at_s(0)), Ok(()), "the same again changes nothing");
    assert!(overlaps(claims.book(booking("desk", 149, 10), at_s(0)), "rack"));
    assert_eq!(claims.book(booking("desk", 150, 10), at_s(0)), Ok(()));
    let names: Vec<&str> = claims.bookings().iter().map(|booking| booking.who.name()).collect();
    assert_eq!(names, ["rack", "desk"]);
    for (wrong, why) in [
        (Booking { from_ms: WALL_MS - 1, ..booking("rack", 0, 10) }, BookRefusal::When),
        (booking("rack", 91 * 86_400, 10), BookRefusal::When),
        (booking("rack", 200, 0), BookRefusal::Span),
        (booking("rack", 200, 31 * 86_400), BookRefusal::Span),
    ] {
        assert_eq!(claims.book(wrong, at_s(0)), Err(why));
    }
    let many = (0..20).filter(|n| claims.book(booking("rack", 1000 + n * 10, 10), at_s(0)).is_ok()).count();
    assert_eq!(many, BOOKINGS_OF_HOST_MAX - 1);
    assert!(claims.cancel_bookings(&party("rack")) && !claims.cancel_bookings(&party("rack")));
}

#[test]
fn request_and_extension_that_reach_into_a_booking_are_refused_and_shorter_ones_are_not() {
    let mut claims = claims();
    claims.book(booking("rack", 100, 50), at_s(0)).unwrap();
    let refused = claims.request(&request("desk", 101), at_s(0));
    assert_eq!(refused, Err(LeaseRefusal::Booked { by: "rack".into(), within: Duration::from_secs(100) }));
    assert_eq!(claims.request(&request("desk", 50), at_s(0)), Ok(LeaseDecision::Granted { is_new: true }));
    let extended = claims.extend(&party("desk"), Duration::from_secs(100), at_s(10));
    assert!(matches!(extended, Err(LeaseRefusal::Booked { .. })), "{extended:?}");
    assert_eq!(claims.extend(&party("desk"), Duration::from_secs(90), at_s(10)), Ok(at_s(100)));
    assert_eq!(claims.advance(at_s(100)), Some(LeaseEvent::End(UseEnding::Expired)));
    assert_eq!((claims.advance(at_s(100)), claims.poll_timeout()), (Some(LeaseEvent::Begin), Some(at_s(150))));
    assert_eq!(claims.lease(at_s(100)).map(|lease| lease.who.name()), Some("rack"));
}

#[test]
fn use_without_a_lease_is_warned_and_ends_when_a_booking_of_another_host_begins() {
    let mut claims = claims();
    claims.book(booking("rack", 100, 50), at_s(0)).unwrap();
    claims.claim(PEERS[0], UseMode::Exclusive, at_s(1)).unwrap();
    assert_eq!((claims.advance(at_s(39)), claims.poll_timeout()), (None, Some(at_s(40))));
    assert_eq!(claims.advance(at_s(40)), Some(LeaseEvent::Warn(Duration::from_secs(60))));
    assert_eq!(claims.advance(at_s(100)), Some(LeaseEvent::End(UseEnding::Preempted)));
    claims.end(PEERS[0], UseEnding::Preempted, at_s(100));
    assert_eq!(
        claims.claim(PEERS[0], UseMode::Exclusive, at_s(100)),
        Err(ClaimRefusal::Leased),
        "it comes back at once"
    );
    assert_eq!(claims.advance(at_s(100)), Some(LeaseEvent::Begin));
    assert_eq!(claims.claim(PEERS[1], UseMode::Exclusive, at_s(101)), Ok(()));
    assert_eq!(claims.advance(at_s(150)), Some(LeaseEvent::End(UseEnding::Expired)));
}

#[test]
fn host_that_uses_the_device_keeps_it_through_its_own_booking() {
    let mut claims = claims();
    claims.book(booking("desk", 100, 50), at_s(0)).unwrap();
    claims.claim(PEERS[0], UseMode::Exclusive, at_s(1)).unwrap();
    assert_eq!(claims.advance(at_s(99)), None, "nobody is warned of its own booking");
    assert_eq!(claims.advance(at_s(100)), Some(LeaseEvent::Begin));
    assert_eq!((claims.holders().len(), claims.ends_at()), (1, Some(at_s(150))));
    let mut claims = self::claims();
    claims.request(&request("desk", 120), at_s(0)).unwrap();
    claims.book(booking("desk", 100, 50), at_s(0)).unwrap();
    assert_eq!(claims.advance(at_s(100)), Some(LeaseEvent::Begin));
    assert_eq!(claims.ends_at(), Some(at_s(150)), "its lease is prolonged");
}

#[test]
fn booking_begins_when_the_clock_says_so_and_a_lease_keeps_its_time() {
    // Set back by an hour: it begins an hour later.
    let mut claims = claims();
    claims.book(booking("rack", 100, 50), at_s(0)).unwrap();
    claims.note_wall(at_s(50), WALL_MS + 50_000 - 3_600_000);
    assert_eq!((claims.advance(at_s(100)), claims.poll_timeout()), (None, Some(at_s(3700))));
    assert_eq!(claims.advance(at_s(3700)), Some(LeaseEvent::Begin));
    // Set ahead, past its beginning: the present lease of another host keeps its time, and then it begins.
    let mut claims = self::claims();
    claims.book(booking("rack", 100, 1000), at_s(0)).unwrap();
    claims.request(&request("desk", 90), at_s(0)).unwrap();
    claims.note_wall(at_s(50), WALL_MS + 200_000);
    assert_eq!((claims.advance(at_s(50)), claims.poll_timeout()), (None, Some(at_s(90))));
    assert_eq!(claims.advance(at_s(90)), Some(LeaseEvent::End(UseEnding::Expired)));
    assert_eq!(
        (claims.advance(at_s(90)), claims.ends_at()),
        (Some(LeaseEvent::Begin), Some(at_s(950))),
        "to its own end"
    );
    // Set ahead, past its end: it is over.
    let mut claims = self::claims();
    claims.book(booking("rack", 100, 50), at_s(0)).unwrap();
    claims.note_wall(at_s(10), WALL_MS + 150_000);
    assert_eq!((claims.advance(at_s(10)), claims.poll_timeout()), (None, None));
    assert_eq!(claims.request(&request("desk", 500), at_s(10)), Ok(LeaseDecision::Granted { is_new: true }));
}
