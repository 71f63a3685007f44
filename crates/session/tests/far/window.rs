//! A TCP connection's congestion window, as Linux counts it with `reno`: in segments, however small they are.

use std::collections::VecDeque;
use std::time::Duration;

use farbus_model::Instant;
use farbus_session::native::{Lane, LinkWindow, ReplySpacing};

/// Segments at the beginning and after an idle time (RFC 6928, `TCP_INIT_CWND`).
pub const SEGMENTS_FIRST: u32 = 10;
/// Bytes of a full segment on Ethernet.
const SEGMENT_BYTES: usize = 1448;
/// Beyond this multiple of the round trip, nothing was sent for longer than the retransmission time.
const IDLE_ROUND_TRIPS: u32 = 3;

/// How the connection of a test behaves.
#[derive(Clone, Copy, Debug)]
pub struct WindowPlan {
    /// Segments at the beginning.
    pub segments_first: u32,
    /// Whether the window shrinks to [`SEGMENTS_FIRST`] after an idle time (`net.ipv4.tcp_slow_start_after_idle`).
    pub restarts: bool,
    /// Whether replies are spaced, as the exporter does.
    pub is_spaced: bool,
}

/// One direction of a connection: the sender's socket, and what is unacknowledged.
pub struct TcpWindow {
    plan: WindowPlan,
    round_trip: Duration,
    segments: u32,
    socket: VecDeque<u8>,
    /// When each segment on its way is acknowledged.
    acknowledged_at: VecDeque<Instant>,
    /// The most segments that were on their way since the last one was acknowledged.
    most_out: u32,
    sent_at: Instant,
    spacing: ReplySpacing,
    held_until: Option<Instant>,
}

impl TcpWindow {
    pub fn new(plan: WindowPlan, round_trip: Duration) -> Self {
        Self {
            plan,
            round_trip,
            segments: plan.segments_first,
            socket: VecDeque::new(),
            acknowledged_at: VecDeque::new(),
            most_out: 0,
            sent_at: Instant::ZERO,
            spacing: ReplySpacing::default(),
            held_until: None,
        }
    }

    /// Whether what waits on the lane is held for now.
    pub fn holds(&mut self, now: Instant, lane: &Lane) -> bool {
        let window = LinkWindow { round_trip: self.round_trip, segments: self.segments };
        let held_until = self.spacing.hold_until(now, lane, || Some(window));
        self.held_until = held_until.filter(|_| self.plan.is_spaced);
        self.held_until.is_some()
    }

    /// The sender writes to its socket.
    pub fn write(&mut self, now: Instant, bytes: &[u8]) {
        self.spacing.note_sent(now);
        self.socket.extend(bytes);
    }

    /// When [`TcpWindow::poll_segment`] may have a segment, or a hold ends.
    pub fn poll_timeout(&self) -> Option<Instant> {
        [self.acknowledged_at.front().copied(), self.held_until].into_iter().flatten().min()
    }

    /// The next segment that the window lets out.
    pub fn poll_segment(&mut self, now: Instant) -> Option<Vec<u8>> {
        while self.acknowledged_at.front().is_some_and(|at| *at <= now) {
            self.acknowledged_at.pop_front();
            // In slow start the window grows only while it is used (`tcp_is_cwnd_limited`).
            self.segments += u32::from(self.segments < 2 * self.most_out);
        }
        let is_idle = now - self.sent_at > self.round_trip * IDLE_ROUND_TRIPS;
        if self.acknowledged_at.is_empty() && is_idle {
            self.most_out = 0;
            self.segments = if self.plan.restarts { self.segments.min(SEGMENTS_FIRST) } else { self.segments };
        }
        if self.socket.is_empty() || self.acknowledged_at.len() >= self.segments as usize {
            return None;
        }
        self.acknowledged_at.push_back(now + self.round_trip);
        self.most_out = self.most_out.max(self.acknowledged_at.len() as u32);
        self.sent_at = now;
        Some(self.socket.drain(..self.socket.len().min(SEGMENT_BYTES)).collect())
    }
}
