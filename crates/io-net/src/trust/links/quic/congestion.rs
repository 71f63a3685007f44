//! How much a connection has on its way: as Cubic says (RFC 9438), but for losses that do not come from a full queue.
//!
//! Cubic takes each loss for a queue that overflows, so a path that loses 1 of 50 datagrams by itself carries next to
//! nothing. Here a loss counts only where a queue can be seen, by round trips that take longer than they must, or where
//! more is lost than radio and long cables lose (as TCP Veno tells them apart, IEEE JSAC 21(2), 2003).

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn::congestion::{Controller, ControllerFactory, ControllerMetrics, CubicConfig};
use quinn_proto::RttEstimator;

/// Losses count from one of so many bytes on.
const LOST_PART: u64 = 16;
/// What counts as acknowledged before anything is: a first loss is not yet a share of one in sixteen.
const ACKNOWLEDGED_BYTES_MIN: u64 = 64 << 10;
/// How long bytes are counted; older ones count half as much.
const COUNTED_TIME: Duration = Duration::from_millis(500);
/// A queue delays by more than a quarter of the shortest round trip, and by more than this.
const QUEUE_DELAY_MIN: Duration = Duration::from_millis(2);

/// Makes the controller of each connection.
#[derive(Debug, Default)]
pub struct LossTolerantConfig(Arc<CubicConfig>);

impl ControllerFactory for LossTolerantConfig {
    fn build(self: Arc<Self>, now: Instant, datagram_bytes: u16) -> Box<dyn Controller> {
        let cubic = Arc::clone(&self.0).build(now, datagram_bytes);
        Box::new(LossTolerantController { cubic, acknowledged: 0, lost: 0, counted_since: now, is_queueing: false })
    }
}

/// Cubic, and what decides whether it hears of a loss.
struct LossTolerantController {
    cubic: Box<dyn Controller>,
    /// Bytes that arrived, and that did not, lately.
    acknowledged: u64,
    lost: u64,
    counted_since: Instant,
    /// Whether round trips take longer than they must.
    is_queueing: bool,
}

impl LossTolerantController {
    fn count(&mut self, now: Instant, acknowledged: u64, lost: u64) {
        if now.saturating_duration_since(self.counted_since) > COUNTED_TIME {
            self.counted_since = now;
            self.acknowledged /= 2;
            self.lost /= 2;
        }
        self.acknowledged += acknowledged;
        self.lost += lost;
    }

    fn note_round_trips(&mut self, shortest: Duration, smoothed: Duration) {
        self.is_queueing = smoothed > shortest + (shortest / 4).max(QUEUE_DELAY_MIN);
    }

    /// Whether what is lost tells of a queue that overflows.
    fn is_congested(&self) -> bool {
        let sent = self.acknowledged.max(ACKNOWLEDGED_BYTES_MIN) + self.lost;
        self.is_queueing || self.lost * LOST_PART > sent
    }
}

impl Controller for LossTolerantController {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.cubic.on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool, rtt: &RttEstimator) {
        self.count(now, bytes, 0);
        self.note_round_trips(rtt.min(), rtt.get());
        self.cubic.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest: Option<u64>) {
        self.cubic.on_end_acks(now, in_flight, app_limited, largest);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, is_persistent_congestion: bool, lost_bytes: u64) {
        self.count(now, 0, lost_bytes);
        // A router that marks instead of dropping loses no bytes.
        if is_persistent_congestion || lost_bytes == 0 || self.is_congested() {
            self.cubic.on_congestion_event(now, sent, is_persistent_congestion, lost_bytes);
        }
    }

    fn on_mtu_update(&mut self, datagram_bytes: u16) {
        self.cubic.on_mtu_update(datagram_bytes);
    }

    fn window(&self) -> u64 {
        self.cubic.window()
    }

    fn metrics(&self) -> ControllerMetrics {
        self.cubic.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        let Self { acknowledged, lost, counted_since, is_queueing, .. } = *self;
        Box::new(Self { cubic: self.cubic.clone_box(), acknowledged, lost, counted_since, is_queueing })
    }

    fn initial_window(&self) -> u64 {
        self.cubic.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// Counts the losses that it hears of.
    struct LossCounter(Arc<AtomicU32>);

    impl Controller for LossCounter {
        fn on_congestion_event(&mut self, _: Instant, _: Instant, _: bool, _: u64) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }

        fn on_mtu_update(&mut self, _: u16) {}

        fn window(&self) -> u64 {
            1 << 20
        }

        fn clone_box(&self) -> Box<dyn Controller> {
            Box::new(Self(Arc::clone(&self.0)))
        }

        fn initial_window(&self) -> u64 {
            self.window()
        }

        fn into_any(self: Box<Self>) -> Box<dyn Any> {
            self
        }
    }

    const ROUND_TRIP: Duration = Duration::from_millis(30);

    /// How many of 1,000 losses count where one of `all` datagrams is lost and round trips take this long.
    fn counted_losses(all: u64, smoothed: Duration) -> u32 {
        let counted = Arc::<AtomicU32>::default();
        let begin = Instant::now();
        let mut controller = LossTolerantController {
            cubic: Box::new(LossCounter(Arc::clone(&counted))),
            acknowledged: 0,
            lost: 0,
            counted_since: begin,
            is_queueing: false,
        };
        for loss in 0..1000 {
            let now = begin + Duration::from_millis(loss);
            controller.on_congestion_event(now, begin, false, 1452);
            controller.note_round_trips(ROUND_TRIP, smoothed);
            controller.count(now, (all - 1) * 1452, 0);
        }
        counted.load(Ordering::Relaxed)
    }

    #[test]
    fn losses_count_where_round_trips_show_a_queue_or_where_there_are_many() {
        assert_eq!(counted_losses(50, ROUND_TRIP), 0, "2 %, no queue");
        assert_eq!(counted_losses(100, ROUND_TRIP * 5 / 4), 0, "1 %, as much as round trips vary");
        assert!(counted_losses(100, ROUND_TRIP * 13 / 10) > 990, "a queue");
        assert!(counted_losses(10, ROUND_TRIP) > 900, "10 %");
    }

    #[test]
    fn marks_and_long_silence_count_always() {
        let counted = Arc::<AtomicU32>::default();
        let now = Instant::now();
        let mut controller = Arc::<LossTolerantConfig>::default().build(now, 1452);
        let window = controller.window();
        controller.on_congestion_event(now, now, false, 1452);
        assert_eq!(controller.window(), window, "one datagram");
        controller.on_congestion_event(now, now, false, 0);
        assert!(controller.window() < window, "a mark");
        let mut controller = LossTolerantController {
            cubic: Box::new(LossCounter(Arc::clone(&counted))),
            acknowledged: 1 << 20,
            lost: 0,
            counted_since: now,
            is_queueing: false,
        };
        controller.on_congestion_event(now, now, true, 1452);
        assert_eq!(counted.load(Ordering::Relaxed), 1, "nothing arrives");
    }
}
