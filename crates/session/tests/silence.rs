//! Whether the two ends of a session know that the other lives, in made-up time.

use std::time::Duration;

use farbus_model::{BufferPool, Instant};
use farbus_session::native::silence::{BUSY_TICKS, QUIET_TICKS_MAX};
use farbus_session::native::{
    ClassPart, FlowId, FrameHeader, FrameKind, Lane, LaneLimits, MessageUrgency, OutboundMessage, PeerSilence,
    SILENCE_TICK,
};

const HALF_SECOND: Duration = Duration::from_millis(500);
const BEGUN: Instant = Instant::from_nanos(1_000_000_000);

/// One end of a link, which looks at its peer at times of its own.
struct LinkEnd {
    lane: Lane,
    silence: PeerSilence,
    received_bytes: u64,
    next_tick_at: Instant,
    /// When the link counted as lost.
    lost_at: Option<Instant>,
    pings: u32,
}

impl LinkEnd {
    fn new(first_tick_at: Instant) -> Self {
        let mut lane = Lane::new(LaneLimits::DEFAULT);
        lane.handle_linked(0, &mut BufferPool::new(0)).unwrap();
        let (silence, next_tick_at) = (PeerSilence::default(), first_tick_at);
        Self { lane, silence, received_bytes: 0, next_tick_at, lost_at: None, pings: 0 }
    }

    fn look(&mut self, now: Instant, is_busy: bool) {
        if now >= self.next_tick_at {
            self.next_tick_at = now + SILENCE_TICK;
            let is_lost = self.silence.handle_tick(&mut self.lane, self.received_bytes, is_busy);
            self.lost_at = self.lost_at.or(is_lost.then_some(now));
        }
    }

    /// What the link takes now.
    fn transmit(&mut self, now: Instant) -> Vec<u8> {
        let mut sent = Vec::new();
        while self.lane.has_transmit() {
            let bytes: Vec<u8> = self.lane.poll_transmit(now).iter().map(|run| &**run).collect::<Vec<_>>().concat();
            self.lane.handle_transmitted(bytes.len());
            sent.extend(bytes);
        }
        self.pings += u32::from(sent.first() == Some(&FrameKind::Ping.code()));
        sent
    }

    fn hear(&mut self, bytes: &[u8]) {
        self.received_bytes += bytes.len() as u64;
        let mut left = bytes;
        while !left.is_empty() {
            let space = self.lane.receive_space();
            let count = space.len().min(left.len());
            space[..count].copy_from_slice(&left[..count]);
            left = &left[count..];
            self.lane.handle_received(count);
            while self.lane.poll_arrived(&mut BufferPool::new(0)).unwrap().is_some() {}
        }
    }
}

fn message(bytes: usize) -> OutboundMessage {
    OutboundMessage {
        head: FrameHeader::new(FrameKind::Request, 1, 1),
        part: ClassPart::empty(),
        payload: vec![7; bytes].into(),
        urgency: MessageUrgency::Low,
        flow: FlowId(0),
        done_at: None,
    }
}

fn times(span: Duration) -> impl Iterator<Item = Instant> {
    let steps = (span.as_nanos() / HALF_SECOND.as_nanos()) as u32;
    (0..steps).map(|step| BEGUN + HALF_SECOND * step)
}

#[test]
fn two_idle_ends_stay_linked_for_an_hour_and_answer_for_each_other() {
    let hour = Duration::from_secs(3600);
    for offset in 0..8 {
        let [mut near, mut far] = [BEGUN, BEGUN + HALF_SECOND * offset].map(LinkEnd::new);
        for now in times(hour) {
            near.look(now, false);
            far.look(now, false);
            far.hear(&near.transmit(now));
            near.hear(&far.transmit(now));
            far.hear(&near.transmit(now));
        }
        assert_eq!((near.lost_at, far.lost_at), (None, None), "offset {offset}");
        let pings = near.pings + far.pings;
        let ticks = (hour.as_secs() / SILENCE_TICK.as_secs()) as u32;
        assert!((ticks / 3..=ticks).contains(&pings), "offset {offset}: {pings} pings of both in {ticks} ticks");
    }
}

#[test]
fn each_end_of_a_link_that_carries_nothing_knows_it_within_16_s_wherever_the_silence_begins() {
    for offset in 0..8 {
        let [mut near, mut far] = [BEGUN, BEGUN + HALF_SECOND * offset].map(LinkEnd::new);
        let silent_at = BEGUN + Duration::from_secs(10) + HALF_SECOND * offset;
        for now in times(Duration::from_secs(40)) {
            near.look(now, false);
            far.look(now, false);
            let (to_far, to_near) = (near.transmit(now), far.transmit(now));
            if now < silent_at {
                far.hear(&to_far);
                near.hear(&to_near);
            }
        }
        for end in [near, far] {
            let span = end.lost_at.expect("it is noticed") - silent_at;
            let least = SILENCE_TICK * (QUIET_TICKS_MAX - 2);
            assert!((least..=SILENCE_TICK * (QUIET_TICKS_MAX + 1)).contains(&span), "offset {offset}: {span:?}");
        }
    }
}

#[test]
fn no_ping_is_sent_while_bytes_arrive() {
    let mut near = LinkEnd::new(BEGUN);
    let frame = FrameHeader::new(FrameKind::Event, 1, 0).to_bytes();
    for now in times(Duration::from_secs(60)) {
        near.hear(&frame);
        near.look(now, false);
        near.transmit(now);
    }
    assert_eq!((near.pings, near.lost_at), (0, None));
}

/// 8 MiB to a peer at 1 Mbit/s whose way is through buffers that take all of it at once.
#[test]
fn slow_way_with_large_buffers_is_not_taken_for_a_silent_one() {
    let mut near = LinkEnd::new(BEGUN + SILENCE_TICK);
    near.lane.send(message(8 << 20));
    let (mut on_its_way, mut far) = (Vec::new(), LinkEnd::new(BEGUN + Duration::from_secs(3600)));
    let mut passed = 0;
    for now in times(Duration::from_secs(70)) {
        near.look(now, false);
        on_its_way.extend(near.transmit(now));
        let next = on_its_way.len().min(passed + (64 << 10));
        far.hear(&on_its_way[passed..next]);
        passed = next;
        // The peer acknowledges nothing before it has all of it.
    }
    assert!(passed > 8 << 20, "all of it arrived");
    assert_eq!((near.pings, near.lost_at), (1, None));
    near.hear(&far.transmit(BEGUN));
    assert_eq!(near.lane.poll_pong(), Some(0), "the ping came through behind it");
}

#[test]
fn peer_that_waits_for_a_medium_has_two_minutes_more() {
    let mut near = LinkEnd::new(BEGUN);
    times(Duration::from_secs(200)).for_each(|now| near.look(now, true));
    assert_eq!(near.lost_at, Some(BEGUN + SILENCE_TICK * (QUIET_TICKS_MAX + BUSY_TICKS - 1)));
}

/// A process that was stopped, or whose machine slept, finds what its peer sent meanwhile, however many it missed.
#[test]
fn ticks_that_were_missed_count_as_one() {
    let mut near = LinkEnd::new(BEGUN);
    near.look(BEGUN, false);
    near.look(BEGUN + Duration::from_secs(3600), false);
    assert_eq!(near.lost_at, None);
    near.hear(&FrameHeader::new(FrameKind::Event, 1, 0).to_bytes());
    near.look(BEGUN + Duration::from_secs(7200), false);
    assert_eq!(near.lost_at, None);
}
