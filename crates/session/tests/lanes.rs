//! What holds between the lanes of a session, and what an end may not do with them.

use std::time::Duration;

use farbus_model::{Instant, Payload};
use farbus_session::native::control::{End, Open};
use farbus_session::native::hello::{Hello, LanePosition, Options, Outcome, SessionId, Welcome};
use farbus_session::native::{
    ExporterSession, ImporterSession, Kind, LaneLimits, LaneSet, Message, Part, Progress, Served, Services,
};

const GRACE: Duration = Duration::from_secs(20);
const NOW: Instant = Instant::from_nanos(1_000_000_000);

struct Nothing;

impl Services for Nothing {
    fn open(&mut self, _now: Instant, _number: u16, _open: &Open) -> Result<(u64, Box<dyn Served>), End> {
        unreachable!("nobody opens anything")
    }
}

fn begun(links: u16, granted: impl FnOnce(Options) -> Options) -> (ImporterSession, ExporterSession) {
    let mut importer = ImporterSession::new(NOW, 7, GRACE, LaneLimits::DEFAULT).over_links(links);
    let hello = importer.hello(0);
    let (exporter, welcome) = ExporterSession::begin(&hello, SessionId([1; 16]), 9, GRACE, LaneLimits::DEFAULT)
        .unwrap_or_else(|refused| panic!("{refused:?}"));
    let welcome = Welcome { options: granted(welcome.options), ..welcome };
    assert_eq!(importer.handle_welcome(&welcome), Ok(Progress::Linked));
    (importer, exporter)
}

fn wanting(importer: &ImporterSession) -> Vec<u16> {
    importer.wanting_links().collect()
}

/// What is sent on one lane arrives there, or on another.
fn carry(importer: &mut ImporterSession, from: u16, exporter: &mut ExporterSession, to: u16) {
    let lane = importer.lanes_mut().get_mut(from).unwrap();
    let bytes: Vec<u8> = lane.poll_transmit(NOW).iter().flat_map(|run| run.to_vec()).collect();
    lane.handle_transmitted(bytes.len());
    let lane = exporter.lanes_mut().get_mut(to).unwrap();
    lane.receive_space()[..bytes.len()].copy_from_slice(&bytes);
    lane.handle_received(bytes.len());
}

#[test]
fn who_knows_of_one_lane_has_one_and_is_told_of_no_other() {
    let (importer, _) = begun(3, |options| {
        assert_eq!(options.lanes, Some(3));
        // As an exporter that passes the wish over.
        Options { lanes: None, ..options }
    });
    assert_eq!(wanting(&importer), []);
    let (importer, mut exporter) = begun(1, |options| {
        assert_eq!(options.lanes, None);
        options
    });
    assert_eq!(wanting(&importer), []);
    let position = LanePosition { session: SessionId([1; 16]), lane: 1, link: 1, received: 0, incarnation: 7 };
    let welcome = exporter.resume(&Hello::new(position, Options::default()));
    assert_eq!(welcome.outcome, Outcome::Refused, "one was granted");
    assert!(!exporter.is_ended() && exporter.is_linked());
    let (importer, _) = begun(200, |options| options);
    assert_eq!(wanting(&importer), [1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn a_further_lane_begins_is_lost_alone_and_ends_the_session_only_if_it_stays_away() {
    let (mut importer, mut exporter) = begun(3, |options| options);
    let hello = importer.hello(2);
    let welcome = exporter.resume(&hello);
    assert_eq!(importer.handle_welcome(&welcome), Ok(Progress::Linked));
    assert_eq!((wanting(&importer), importer.usable_lanes()), (vec![1], LaneSet::FIRST.with(2)));
    assert_eq!(exporter.resume(&hello).outcome, Outcome::Refused, "a straggler does not get a lane back");

    // The other never began: nobody waits for it.
    assert_eq!(importer.poll_timeout(), None);
    importer.handle_lost(2, NOW);
    exporter.handle_lost(2, NOW);
    assert_eq!(importer.usable_lanes(), LaneSet::FIRST);
    assert!(importer.is_linked() && exporter.is_linked());
    assert_eq!((importer.poll_timeout(), exporter.poll_timeout()), (Some(NOW + GRACE), None));
    let welcome = exporter.resume(&importer.hello(2));
    assert_eq!(importer.handle_welcome(&welcome), Ok(Progress::Linked));
    assert_eq!(importer.poll_timeout(), None);

    // The first is lost, and what is new goes on the other.
    importer.handle_lost(0, NOW);
    assert_eq!((wanting(&importer), importer.usable_lanes().contains(0)), (vec![], false));
    assert!(importer.is_over(NOW + GRACE));
}

#[test]
fn a_lane_that_is_not_to_be_had_is_gone_without() {
    let (mut importer, _) = begun(3, |options| options);
    let answer =
        |outcome, hello: &Hello| Welcome { version: 1, outcome, position: hello.position, options: Options::default() };
    let hello = importer.hello(1);
    assert_eq!(importer.handle_welcome(&answer(Outcome::Unknown, &hello)), Ok(Progress::Without));
    assert_eq!(wanting(&importer), [1, 2], "the first hears what became of the session");
    let hello = importer.hello(1);
    assert_eq!(importer.handle_welcome(&answer(Outcome::Refused, &hello)), Ok(Progress::Without));
    assert_eq!(wanting(&importer), []);
    // An answer to a session of before.
    let mut late = answer(Outcome::Resumed, &hello);
    late.position.session = SessionId([9; 16]);
    assert_eq!(importer.handle_welcome(&late), Ok(Progress::Without));
}

#[test]
fn what_comes_on_another_lane_than_it_should_ends_the_session() {
    let frame = |kind, tag| Message { payload: Payload::Empty, ..Message::control(kind, 1, tag, Part::empty()) };
    for (kind, tag, lane, is_refused) in [
        (Kind::Request, 1 << 13, 1, false),
        (Kind::Cancel, 1 << 13 | 5, 1, false),
        (Kind::Request, 5, 0, false),
        // The tag says another.
        (Kind::Request, 5, 1, true),
        (Kind::Request, 2 << 13, 1, true),
        (Kind::Data, 5, 1, true),
        (Kind::Request, 1 << 13, 0, true),
        // These have none but the first.
        (Kind::Close, 0, 1, true),
        (Kind::Open, 0, 1, true),
        (Kind::Goodbye, 1 << 13, 1, true),
    ] {
        let (mut importer, mut exporter) = begun(2, |options| options);
        let welcome = exporter.resume(&importer.hello(1));
        assert_eq!(importer.handle_welcome(&welcome), Ok(Progress::Linked));
        // Said on whichever lane its head says, heard on that one.
        importer.lanes_mut().get_mut(lane).unwrap().send(frame(kind, tag));
        carry(&mut importer, lane, &mut exporter, lane);
        let heard = exporter.advance(NOW, &mut Nothing);
        assert_eq!(heard.is_err(), is_refused, "{kind:?} {tag:#x} on {lane}: {heard:?}");
        if let Err(reject) = heard {
            assert_eq!(reject.field, "lane");
        }
    }
}
