//! Whether large packets pass on the way to a host: some paths drop them without saying so.

use std::io;
use std::time::{Duration, Instant};

use farbus_io_net::link::{BoottimeClock, Link, SEGMENT_BYTES_MIN, SegmentSize};
use farbus_session::native::{
    ClassPart, FlowId, FrameHeader, FrameKind, GreetingOutcome, ImporterSession, LaneLimits, MessageUrgency,
    OutboundMessage,
};

use super::error::{ClientError, lost};
use super::opening::ImporterClient;
use crate::link::greeting;
use crate::link::link_set::LinkSet;

/// How long the data may take: several times as long as a lost packet delays them.
const PASS_TIME_MAX: Duration = Duration::from_secs(6);
/// Bytes that are sent: many segments.
const PROBE_BYTES: usize = 48 << 10;
/// A kind of frame that every peer counts and skips.
const SKIPPED_KIND: FrameKind = FrameKind::Later(200);
/// The number of the ping that follows the data.
const PROBE_PING: u64 = 3;

/// Which packets reach a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathFinding {
    /// Packets as large as the networks at both ends take.
    Whole,
    /// Segments of this many bytes, and no larger ones.
    Bounded(u16),
}

impl ImporterClient {
    /// Sends data to a host (`HOST:PORT`) in large packets and, if they do not arrive, in small ones. Its farbus skips
    /// them. What comes from there is not looked at.
    ///
    /// # Errors
    /// [`ClientError`]: no link, no session, or neither arrives.
    pub fn probe_path(&self, address: &str) -> Result<PathFinding, ClientError> {
        let pass = |segments| {
            let link = self.connector().connect_session(address, segments)?;
            pass(link).map_err(|source| lost(address, source))
        };
        match pass(SegmentSize::OfNetworks) {
            Ok(()) => Ok(PathFinding::Whole),
            Err(ClientError::Lost { .. }) => {
                pass(SegmentSize::Bounded).map(|()| PathFinding::Bounded(SEGMENT_BYTES_MIN))
            }
            Err(error) => Err(error),
        }
    }
}

/// Sends data and a ping in a session without a device, and waits for the pong.
fn pass(link: Link) -> io::Result<()> {
    let clock = BoottimeClock::start();
    let mut incarnation = [0; 8];
    farbus_io_net::trust::fill_random(&mut incarnation);
    let incarnation = u64::from_le_bytes(incarnation);
    let mut session = ImporterSession::new(clock.now(), incarnation, Duration::ZERO, LaneLimits::SPARING);
    let wrong = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    let welcome = greeting::greet(&link, &session.hello(0), PASS_TIME_MAX)?;
    match session.handle_welcome(&welcome).map_err(|reject| wrong(reject.to_string()))? {
        GreetingOutcome::Linked => {}
        other => return Err(wrong(format!("it begins no session: {other:?}"))),
    }
    session.send(OutboundMessage {
        head: FrameHeader::new(SKIPPED_KIND, 0, 0),
        part: ClassPart::empty(),
        payload: vec![0; PROBE_BYTES].into(),
        urgency: MessageUrgency::Low,
        flow: FlowId(0),
        done_at: None,
    });
    session.lane_mut().ping(PROBE_PING);
    let mut link_set = LinkSet::new()?;
    link_set.put(0, link)?;
    let until = Instant::now() + PASS_TIME_MAX;
    while session.lane_mut().poll_pong() != Some(PROBE_PING) {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        link_set.send(0, session.lane_mut(), clock)?;
        link_set.wait(session.lane_mut(), Some(left), false)?;
        if link_set.receive(0, session.lane_mut())? == Some(0) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        while session.poll_arrived(0).map_err(|reject| wrong(reject.to_string()))?.is_some() {}
    }
    session.goodbye();
    link_set.send(0, session.lane_mut(), clock)?;
    if let Some(link) = link_set.link() {
        link.finish_sending();
    }
    Ok(())
}
