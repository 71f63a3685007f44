//! The relations between the lanes of a session, and what an end may not do with them.

use std::time::Duration;

use farbus_model::{Instant, Payload};
use farbus_session::native::control::{AttachmentEndNotice, OpenRequest};
use farbus_session::native::hello::{
    ExporterWelcome, HelloOptions, ImporterHello, LanePosition, SessionId, WelcomeOutcome,
};
use farbus_session::native::{
    ClassPart, ExporterServices, ExporterSession, FrameHeader, FrameKind, GreetingOutcome, ImporterSession, LaneLimits,
    LaneSet, OutboundMessage, ServedExport,
};

const GRACE: Duration = Duration::from_secs(20);
const NOW: Instant = Instant::from_nanos(1_000_000_000);

struct Nothing;

impl ExporterServices for Nothing {
    fn open(
        &mut self,
        _now: Instant,
        _number: u16,
        _open: &OpenRequest,
    ) -> Result<(u64, Box<dyn ServedExport>), AttachmentEndNotice> {
        unreachable!("nobody opens anything")
    }
}

fn begun(links: u16, granted: impl FnOnce(HelloOptions) -> HelloOptions) -> (ImporterSession, ExporterSession) {
    let mut importer = ImporterSession::new(NOW, 7, GRACE, LaneLimits::DEFAULT).over_links(links);
    let hello = importer.hello(0);
    let (exporter, welcome) = ExporterSession::begin(&hello, SessionId([1; 16]), 9, GRACE, LaneLimits::DEFAULT)
        .unwrap_or_else(|refused| panic!("{refused:?}"));
    let welcome = ExporterWelcome { options: granted(welcome.options), ..welcome };
    assert_eq!(importer.handle_welcome(&welcome), Ok(GreetingOutcome::Linked));
    (importer, exporter)
}

fn wanting(importer: &ImporterSession) -> Vec<u16> {
    importer.wanting_links().collect()
}

/// Carries what was sent on one lane to the other end, on the same or another lane.
fn carry(importer: &mut ImporterSession, from: u16, exporter: &mut ExporterSession, to: u16) {
    let lane = importer.lanes_mut().get_mut(from).unwrap();
    let bytes: Vec<u8> = lane.poll_transmit(NOW).iter().map(|run| &**run).collect::<Vec<_>>().concat();
    lane.handle_transmitted(bytes.len());
    let lane = exporter.lanes_mut().get_mut(to).unwrap();
    lane.receive_space()[..bytes.len()].copy_from_slice(&bytes);
    lane.handle_received(bytes.len());
}

/// Carries what waits on a lane there, and the answers back.
fn prove(importer: &mut ImporterSession, exporter: &mut ExporterSession, number: u16) {
    carry(importer, number, exporter, number);
    assert_eq!(exporter.advance(NOW, &mut Nothing), Ok(false));
    let lane = exporter.lanes_mut().get_mut(number).unwrap();
    let bytes: Vec<u8> = lane.poll_transmit(NOW).iter().map(|run| &**run).collect::<Vec<_>>().concat();
    lane.handle_transmitted(bytes.len());
    let lane = importer.lanes_mut().get_mut(number).unwrap();
    lane.receive_space()[..bytes.len()].copy_from_slice(&bytes);
    lane.handle_received(bytes.len());
    while importer.poll_arrived(number).unwrap().is_some() {}
}

#[test]
fn link_that_carries_nothing_does_not_begin_the_grace_period_anew() {
    let second = Duration::from_secs(1);
    let (mut importer, mut exporter) = begun(1, |options| options);
    importer.handle_lost(0, NOW);
    for since_s in [4, 8, 12] {
        exporter.handle_lost(0, NOW + second * since_s);
        let welcome = exporter.resume(&importer.hello(0));
        assert_eq!(importer.handle_welcome(&welcome), Ok(GreetingOutcome::Linked));
        assert!(importer.is_linked() && !importer.has_proved_link(0));
        importer.note_progress(0, NOW + second * since_s);
        importer.handle_lost(0, NOW + second * (since_s + 3));
    }
    assert_eq!(importer.poll_timeout(), Some(NOW + GRACE));
    assert!(importer.is_over(NOW + GRACE));

    // A frame that arrives does, though the link is not proved by that.
    let welcome = exporter.resume(&importer.hello(0));
    assert_eq!(importer.handle_welcome(&welcome), Ok(GreetingOutcome::Linked));
    let lane = importer.lanes_mut().get_mut(0).unwrap();
    let frame = FrameHeader { length: 0, ..FrameHeader::new(FrameKind::Later(200), 1, 0) }.to_bytes();
    lane.receive_space()[..frame.len()].copy_from_slice(&frame);
    lane.handle_received(frame.len());
    assert!(importer.poll_arrived(0).unwrap().is_none());
    importer.note_progress(0, NOW + second * 18);
    assert!(!importer.has_proved_link(0));
    assert_eq!(importer.poll_timeout(), Some(NOW + second * 18 + GRACE));
    importer.note_progress(0, NOW + second * 19);
    assert_eq!(importer.poll_timeout(), Some(NOW + second * 18 + GRACE), "nothing more has passed");
}

#[test]
fn link_that_carries_what_waited_ends_the_grace_period() {
    let (mut importer, mut exporter) = begun(1, |options| options);
    importer.handle_lost(0, NOW);
    exporter.handle_lost(0, NOW);
    let welcome = exporter.resume(&importer.hello(0));
    assert_eq!(importer.handle_welcome(&welcome), Ok(GreetingOutcome::Linked));
    prove(&mut importer, &mut exporter, 0);
    assert!(importer.has_proved_link(0));
    assert_eq!(importer.poll_timeout(), None);
}

#[test]
fn end_that_knows_one_lane_gets_one_and_is_told_of_no_others() {
    let (importer, _) = begun(3, |options| {
        assert_eq!(options.lanes, Some(3));
        // As with an exporter that ignores the request for more lanes.
        HelloOptions { lanes: None, ..options }
    });
    assert_eq!(wanting(&importer), []);
    let (importer, mut exporter) = begun(1, |options| {
        assert_eq!(options.lanes, None);
        options
    });
    assert_eq!(wanting(&importer), []);
    let position = LanePosition { session: SessionId([1; 16]), lane: 1, link: 1, received: 0, incarnation: 7 };
    let welcome = exporter.resume(&ImporterHello::new(position, HelloOptions::default()));
    assert_eq!(welcome.outcome, WelcomeOutcome::Refused, "one was granted");
    assert!(!exporter.is_ended() && exporter.is_linked());
    let (importer, _) = begun(200, |options| options);
    assert_eq!(wanting(&importer), [1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn further_lane_is_lost_alone_and_ends_the_session_only_if_it_stays_away() {
    let (mut importer, mut exporter) = begun(3, |options| options);
    let hello = importer.hello(2);
    let welcome = exporter.resume(&hello);
    assert_eq!(importer.handle_welcome(&welcome), Ok(GreetingOutcome::Linked));
    assert_eq!((wanting(&importer), importer.usable_lanes()), (vec![1], LaneSet::FIRST.with(2)));
    assert_eq!(exporter.resume(&hello).outcome, WelcomeOutcome::Refused, "a straggler does not get a lane back");

    // The other never began, so nothing waits for it.
    assert_eq!(importer.poll_timeout(), None);
    importer.handle_lost(2, NOW);
    exporter.handle_lost(2, NOW);
    assert_eq!(importer.usable_lanes(), LaneSet::FIRST);
    assert!(importer.is_linked() && exporter.is_linked());
    assert_eq!((importer.poll_timeout(), exporter.poll_timeout()), (Some(NOW + GRACE), None));
    let welcome = exporter.resume(&importer.hello(2));
    assert_eq!(importer.handle_welcome(&welcome), Ok(GreetingOutcome::Linked));
    prove(&mut importer, &mut exporter, 2);
    assert_eq!(importer.poll_timeout(), None);

    // The first lane is lost, and new requests use the other.
    importer.handle_lost(0, NOW);
    assert_eq!((wanting(&importer), importer.usable_lanes().contains(0)), (vec![], false));
    assert!(importer.is_over(NOW + GRACE));
}

#[test]
fn session_continues_without_a_lane_that_is_refused() {
    let (mut importer, _) = begun(3, |options| options);
    let answer = |outcome, hello: &ImporterHello| ExporterWelcome {
        version: 1,
        outcome,
        position: hello.position,
        options: HelloOptions::default(),
    };
    let hello = importer.hello(1);
    assert_eq!(importer.handle_welcome(&answer(WelcomeOutcome::Unknown, &hello)), Ok(GreetingOutcome::Without));
    assert_eq!(wanting(&importer), [1, 2], "the first hears what became of the session");
    let hello = importer.hello(1);
    assert_eq!(importer.handle_welcome(&answer(WelcomeOutcome::Refused, &hello)), Ok(GreetingOutcome::Without));
    assert_eq!(wanting(&importer), []);
    // An answer to an earlier greeting.
    let mut late = answer(WelcomeOutcome::Resumed, &hello);
    late.position.session = SessionId([9; 16]);
    assert_eq!(importer.handle_welcome(&late), Ok(GreetingOutcome::Without));
}

#[test]
fn message_on_the_wrong_lane_ends_the_session() {
    let frame = |kind, tag| OutboundMessage {
        payload: Payload::Empty,
        ..OutboundMessage::control(kind, 1, tag, ClassPart::empty())
    };
    for (kind, tag, lane, is_refused) in [
        (FrameKind::Request, 1 << 13, 1, false),
        (FrameKind::Cancel, 1 << 13 | 5, 1, false),
        (FrameKind::Request, 5, 0, false),
        // The tag belongs to another lane.
        (FrameKind::Request, 5, 1, true),
        (FrameKind::Request, 2 << 13, 1, true),
        (FrameKind::Data, 5, 1, true),
        (FrameKind::Request, 1 << 13, 0, true),
        // These kinds are only allowed on the first lane.
        (FrameKind::Close, 0, 1, true),
        (FrameKind::Open, 0, 1, true),
        (FrameKind::Goodbye, 1 << 13, 1, true),
    ] {
        let (mut importer, mut exporter) = begun(2, |options| options);
        let welcome = exporter.resume(&importer.hello(1));
        assert_eq!(importer.handle_welcome(&welcome), Ok(GreetingOutcome::Linked));
        // Sent and received on this lane.
        importer.lanes_mut().get_mut(lane).unwrap().send(frame(kind, tag));
        carry(&mut importer, lane, &mut exporter, lane);
        let heard = exporter.advance(NOW, &mut Nothing);
        assert_eq!(heard.is_err(), is_refused, "{kind:?} {tag:#x} on {lane}: {heard:?}");
        if let Err(reject) = heard {
            assert_eq!(reject.field, "lane");
        }
    }
}
