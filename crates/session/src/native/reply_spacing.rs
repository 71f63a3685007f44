//! When replies of interrupt endpoints share a segment of a far link.
//!
//! TCP counts its congestion window in segments, however small they are. Linux begins with ten for each round trip
//! (RFC 6928), and again after an idle time (RFC 2861, `tcp_slow_start_after_idle`). A mouse with 1000 reports a
//! second, each in a segment of its own, uses ten up in 10 ms. The next reports then wait for an acknowledgement: at a
//! round trip of 100 ms, for 90 ms. It takes four round trips until the window has grown enough.
//!
//! [`ReplySpacing`] therefore spreads the window over the round trip. A reply is held while the last segment is younger
//! than the round trip divided by the window, and goes out together with those that come meanwhile. With ten segments,
//! a reply waits for a tenth of a round trip at most. No order of sending has a better worst case, because ten segments
//! must last until the first of them is acknowledged, a round trip later.
//!
//! Anything else that is to be sent takes the held replies with it at once.

use std::time::Duration;

use farbus_model::Instant;

use super::Lane;

/// Links with a shorter round trip never hold: a tenth of it is no more than half a polling interval of a fast mouse.
const ROUND_TRIP_MIN: Duration = Duration::from_millis(5);
/// How often a link that was nearer than that, or has no window, is looked at again.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Replies are not held for less: the window suffices for 2000 of them a second.
const HOLD_MIN: Duration = Duration::from_micros(500);
/// Replies are not held for longer, however small the window has become by losses.
const HOLD_MAX: Duration = Duration::from_millis(50);
/// Replies of this many bytes fill a segment of most networks, and are not held.
const HELD_BYTES_MAX: usize = 1200;

/// What a link's transport can send now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkWindow {
    /// The smoothed round trip to the peer.
    pub round_trip: Duration,
    /// How many segments may be unacknowledged.
    pub segments: u32,
}

/// Decides when the replies of one link are sent.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReplySpacing {
    /// When the link last took bytes.
    sent_at: Option<Instant>,
    /// The link is not looked at before this moment.
    next_look_at: Option<Instant>,
}

impl ReplySpacing {
    /// Until when what waits on `lane` is held. `None`: send it now. `window` reads the window of the lane's link, and
    /// returns `None` if the link does not count segments.
    pub fn hold_until(
        &mut self,
        now: Instant,
        lane: &Lane,
        window: impl FnOnce() -> Option<LinkWindow>,
    ) -> Option<Instant> {
        let sent_at = self.sent_at.filter(|at| now - *at < HOLD_MAX)?;
        let is_held = lane.may_defer() && lane.waiting_bytes() < HELD_BYTES_MAX;
        if !is_held || self.next_look_at.is_some_and(|at| now < at) {
            return None;
        }
        let Some(window) = window().filter(|window| window.round_trip >= ROUND_TRIP_MIN) else {
            self.next_look_at = Some(now + LOOK_EVERY);
            return None;
        };
        let span = (window.round_trip / window.segments.max(1)).min(HOLD_MAX);
        Some(sent_at + span).filter(|until| span >= HOLD_MIN && now < *until)
    }

    /// Notes that the link took bytes.
    pub fn note_sent(&mut self, now: Instant) {
        self.sent_at = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::{ClassPart, FrameKind, LaneLimits, OutboundMessage};
    use farbus_model::BufferPool;

    const FAR: LinkWindow = LinkWindow { round_trip: Duration::from_millis(100), segments: 10 };
    const SPAN: Duration = Duration::from_millis(10);

    fn message() -> OutboundMessage {
        OutboundMessage::control(FrameKind::Reply, 1, 1, ClassPart::empty())
    }

    /// A lane of which a reply was sent just now, with another one that waits.
    fn just_sent(now: Instant) -> (Lane, ReplySpacing) {
        let (mut lane, mut spacing) = (Lane::new(LaneLimits::DEFAULT), ReplySpacing::default());
        lane.handle_linked(0, &mut BufferPool::new(0)).expect("nothing was sent before");
        lane.send_deferrable(message());
        assert_eq!(spacing.hold_until(now, &lane, || Some(FAR)), None, "the first one is not held");
        transmit(&mut lane, &mut spacing, now);
        lane.send_deferrable(message());
        (lane, spacing)
    }

    fn transmit(lane: &mut Lane, spacing: &mut ReplySpacing, now: Instant) {
        let count = lane.poll_transmit(now).iter().map(|run| run.len()).sum();
        lane.handle_transmitted(count);
        spacing.note_sent(now);
    }

    #[test]
    fn reply_is_held_for_a_segments_share_of_the_round_trip() {
        let now = Instant::ZERO + Duration::from_secs(1);
        let (lane, mut spacing) = just_sent(now);
        assert_eq!(spacing.hold_until(now + SPAN / 2, &lane, || Some(FAR)), Some(now + SPAN));
        assert_eq!(spacing.hold_until(now + SPAN, &lane, || Some(FAR)), None);
        let wide = LinkWindow { segments: 50, ..FAR };
        assert_eq!(spacing.hold_until(now, &lane, || Some(wide)), Some(now + SPAN / 5));
        let shrunk = LinkWindow { segments: 1, ..FAR };
        assert_eq!(spacing.hold_until(now, &lane, || Some(shrunk)), Some(now + HOLD_MAX));
        let wider = LinkWindow { segments: 250, ..FAR };
        assert_eq!(spacing.hold_until(now, &lane, || Some(wider)), None, "the window suffices");
    }

    #[test]
    fn any_other_message_takes_the_held_reply_with_it() {
        let now = Instant::ZERO + Duration::from_secs(1);
        let urgent: [fn(&mut Lane); 2] = [|lane| lane.send(message()), |lane| lane.ping(1)];
        for send in urgent {
            let (mut lane, mut spacing) = just_sent(now);
            send(&mut lane);
            assert!(lane.has_transmit());
            assert_eq!(spacing.hold_until(now, &lane, || Some(FAR)), None);
            transmit(&mut lane, &mut spacing, now);
            assert!(!lane.has_transmit(), "both went");
            lane.send_deferrable(message());
            assert!(spacing.hold_until(now, &lane, || Some(FAR)).is_some(), "what comes later is held again");
        }
    }

    #[test]
    fn replies_go_at_once_over_the_next_link_and_in_a_full_segment() {
        let now = Instant::ZERO + Duration::from_secs(1);
        let (mut lane, mut spacing) = just_sent(now);
        while lane.waiting_bytes() < HELD_BYTES_MAX {
            assert!(spacing.hold_until(now, &lane, || Some(FAR)).is_some());
            lane.send_deferrable(message());
        }
        assert_eq!(spacing.hold_until(now, &lane, || Some(FAR)), None);
        let (mut lane, mut spacing) = just_sent(now);
        lane.handle_lost();
        lane.handle_linked(0, &mut BufferPool::new(0)).expect("nothing arrived");
        assert!(lane.has_transmit());
        assert_eq!(spacing.hold_until(now, &lane, || Some(FAR)), None);
    }

    #[test]
    fn near_link_and_link_without_a_window_are_looked_at_once_a_second() {
        let now = Instant::ZERO + Duration::from_secs(1);
        for window in [None, Some(LinkWindow { round_trip: Duration::from_millis(4), segments: 1 })] {
            let (lane, mut spacing) = just_sent(now);
            assert_eq!(spacing.hold_until(now, &lane, || window), None);
            assert_eq!(spacing.hold_until(now, &lane, || panic!("it was looked at just now")), None);
            spacing.note_sent(now + LOOK_EVERY);
            assert!(spacing.hold_until(now + LOOK_EVERY, &lane, || Some(FAR)).is_some());
        }
    }
}
