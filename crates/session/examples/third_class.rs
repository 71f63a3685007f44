//! A device class that is neither USB nor block: a thermometer.
//!
//! A class has two parts: its exporting end ([`ServedExport`]) and its importing end ([`ImporterAttachment`]). The
//! session does everything else: it opens and closes attachments, and loses nothing when a link is lost. Here both ends
//! of a session are in one process, and the link between them is cut while readings are on their way.

use std::time::Duration;

use farbus_model::{ExportIdentity, Instant, Payload, ReadinessSource};
use farbus_session::ProtocolViolation;
use farbus_session::native::control::{
    AttachmentClass, AttachmentCredit, AttachmentEndCause, AttachmentEndNotice, AttachmentMode, OpenRequest,
};
use farbus_session::native::hello::SessionId;
use farbus_session::native::{
    AttachmentBase, AttachmentState, ExporterServices, ExporterSession, FlowId, FrameHeader, FrameKind, FrameMeaning,
    GreetingOutcome, ImporterAttachment, ImporterSession, LaneArray, LaneLimits, MessageUrgency, OutboundMessage,
    ReceivedFrame, ServedExport,
};

/// Class codes from 128 on are for private use.
const THERMOMETER: AttachmentClass = AttachmentClass(200);
/// Interval between readings, while the importer has granted some.
const EVERY: Duration = Duration::from_millis(100);
/// Readings that are granted at a time.
const GRANTED: u32 = 4;

/// The exporting end. Description: thousandths of a degree per step, 4 bytes. Request: empty; reply: the temperature, 4
/// bytes. Event: a reading, 4 bytes, as many as were granted.
struct Thermometer {
    attachment: u16,
    millidegrees: i32,
    granted: u32,
    next: Instant,
}

impl ServedExport for Thermometer {
    fn credit(&self) -> AttachmentCredit {
        AttachmentCredit { requests: 4, bytes: 64 }
    }

    fn description(&self) -> Vec<u8> {
        250_u32.to_le_bytes().to_vec()
    }

    fn handle_arrived(
        &mut self,
        now: Instant,
        arrived: ReceivedFrame,
        lanes: &mut LaneArray,
    ) -> Result<(), ProtocolViolation> {
        match arrived.head.kind {
            FrameKind::Grant => {
                let more = arrived.body.contiguous().as_ref().try_into().map(u32::from_le_bytes);
                let more =
                    more.map_err(|_| ProtocolViolation::new("grant", arrived.body.len() as u64, "it has 4 bytes"))?;
                if self.granted == 0 {
                    self.next = now + EVERY;
                }
                self.granted = self.granted.saturating_add(more);
            }
            FrameKind::Request => self.say(FrameKind::Reply, arrived.head.tag, lanes),
            _ => {}
        }
        Ok(())
    }

    fn handle_ready(&mut self, now: Instant, lanes: &mut LaneArray) {
        while self.granted > 0 && self.next <= now {
            self.granted -= 1;
            self.next = self.next + EVERY;
            self.millidegrees += 250;
            self.say(FrameKind::Event, 0, lanes);
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        (self.granted > 0).then_some(self.next)
    }

    fn readiness(&self) -> Option<&ReadinessSource> {
        None
    }

    fn poll_end(&mut self) -> Option<AttachmentEndNotice> {
        None
    }

    fn finish(self: Box<Self>, _now: Instant) {}
}

impl Thermometer {
    fn say(&self, kind: FrameKind, tag: u16, lanes: &mut LaneArray) {
        lanes.send(OutboundMessage {
            head: FrameHeader::new(kind, self.attachment, tag),
            part: self.millidegrees.to_le_bytes().into(),
            payload: Payload::Empty,
            urgency: MessageUrgency::High,
            flow: FlowId(self.attachment.into()),
            done_at: None,
        });
    }
}

/// The exporter's devices.
struct Shelf;

impl ExporterServices for Shelf {
    /// A device without an identity is not opened again after the exporter is restarted.
    fn identity(&mut self, _open: &OpenRequest) -> Option<ExportIdentity> {
        Some(ExportIdentity { id: 13, generation: 0 })
    }

    fn open(
        &mut self,
        now: Instant,
        number: u16,
        open: &OpenRequest,
    ) -> Result<(u64, Box<dyn ServedExport>), AttachmentEndNotice> {
        if (open.class, open.name.as_str()) != (THERMOMETER, "window") {
            return Err(AttachmentEndNotice {
                cause: AttachmentEndCause::Gone,
                message: format!("there is no '{}' here", open.name),
            });
        }
        Ok((1, Box::new(Thermometer { attachment: number, millidegrees: 20_000, granted: 0, next: now })))
    }
}

/// The importing end: collects readings, and grants a few at a time.
struct Readings {
    attachment: AttachmentBase,
    step_millidegrees: u32,
    under_way: u32,
}

impl Readings {
    fn new(name: &str) -> Self {
        let (name, reason) = (name.to_owned(), "to show how".to_owned());
        let open = OpenRequest { class: THERMOMETER, mode: AttachmentMode::Read, epoch: 0, name, reason };
        Self { attachment: AttachmentBase::new(1, open, 64), step_millidegrees: 0, under_way: 0 }
    }

    fn want_more(&mut self) {
        let part = (GRANTED - self.under_way).to_le_bytes().into();
        self.under_way = GRANTED;
        self.attachment.say(OutboundMessage::control(FrameKind::Grant, self.attachment.number(), 0, part));
    }
}

impl ImporterAttachment for Readings {
    type Done = Vec<i32>;

    fn attachment(&self) -> &AttachmentBase {
        &self.attachment
    }

    fn attachment_mut(&mut self) -> &mut AttachmentBase {
        &mut self.attachment
    }

    fn handle_arrived(
        &mut self,
        now: Instant,
        arrived: ReceivedFrame,
        done: &mut Vec<i32>,
    ) -> Result<(), ProtocolViolation> {
        let wrong = |bytes: usize| ProtocolViolation::new("reading", bytes as u64, "it has 4 bytes");
        match self.attachment.handle_arrived(now, arrived)? {
            FrameMeaning::Opened(opened) => {
                let step = opened.info.as_slice().try_into().map_err(|_| wrong(opened.info.len()))?;
                self.step_millidegrees = u32::from_le_bytes(step);
                self.want_more();
            }
            FrameMeaning::Own(arrived) if arrived.head.kind == FrameKind::Event => {
                let reading = arrived.body.contiguous().as_ref().try_into();
                done.push(i32::from_le_bytes(reading.map_err(|_| wrong(arrived.body.len()))?));
                let unasked = ProtocolViolation::new("event", 0, "no more come than were granted");
                self.under_way = self.under_way.checked_sub(1).ok_or(unasked)?;
                if self.under_way <= GRANTED / 2 {
                    self.want_more();
                }
            }
            FrameMeaning::Own(_) | FrameMeaning::Ended(_) | FrameMeaning::Part => {}
        }
        Ok(())
    }

    fn handle_renewed(&mut self, _now: Instant, _done: &mut Vec<i32>) {
        self.under_way = 0;
        self.attachment.handle_renewed();
    }

    fn handle_over(&mut self, cause: AttachmentEndCause, message: &str, _done: &mut Vec<i32>) {
        self.attachment.handle_over(cause, message);
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const GRACE: Duration = Duration::from_secs(20);
    let (id, limits) = (SessionId([7; 16]), LaneLimits::DEFAULT);
    let mut now = Instant::ZERO;
    let mut importer = ImporterSession::new(now, 1, GRACE, limits);
    let begun = ExporterSession::begin(&importer.hello(0), id, 2, GRACE, limits);
    let (mut exporter, welcome) = begun.map_err(|refusal| format!("{:?}", refusal.outcome))?;
    assert_eq!(importer.handle_welcome(&welcome)?, GreetingOutcome::Linked);

    let mut window = Readings::new("window");
    let mut readings = Vec::new();
    for tick in 0..20 {
        now = now + EVERY / 2;
        if tick == 8 {
            // The link is cut with half a reading on its way. On the next link each end says what it has received.
            let cut = exchange(now, &mut importer, &mut exporter, &mut window, &mut readings, Some(5))?;
            println!("the link is cut, {cut} bytes of a frame had arrived");
            importer.handle_lost(0, now);
            exporter.handle_lost(0, now);
            now = now + Duration::from_secs(3);
            let welcome = exporter.resume(&importer.hello(0));
            assert_eq!(importer.handle_welcome(&welcome)?, GreetingOutcome::Linked);
        }
        exchange(now, &mut importer, &mut exporter, &mut window, &mut readings, None)?;
    }
    println!("readings: {readings:?}, a step is {}", window.step_millidegrees);
    assert!(readings.len() >= 9, "they went on after the cut");
    for pair in readings.windows(2) {
        assert_eq!(pair[1] - pair[0], 250, "each came once, in order, across the cut");
    }

    window.close();
    exchange(now, &mut importer, &mut exporter, &mut window, &mut readings, None)?;
    assert!(matches!(window.state(), AttachmentState::Ended(end) if end.cause == AttachmentEndCause::Requested));
    assert_eq!(exporter.attachments(), 0);
    Ok(())
}

/// Carries everything that is waiting in both directions; with `most`, only that many bytes reach the importer. Returns
/// how many bytes it carried last.
fn exchange(
    now: Instant,
    importer: &mut ImporterSession,
    exporter: &mut ExporterSession,
    window: &mut Readings,
    readings: &mut Vec<i32>,
    most: Option<usize>,
) -> Result<usize, ProtocolViolation> {
    exporter.handle_ready(now);
    loop {
        while let Some(message) = window.poll_message() {
            importer.send(message);
        }
        let out = importer.lane_mut().poll_transmit(now).iter().flat_map(|run| run.to_vec()).collect::<Vec<_>>();
        importer.lane_mut().handle_transmitted(out.len());
        exporter.lane_mut().receive_space()[..out.len()].copy_from_slice(&out);
        exporter.lane_mut().handle_received(out.len());
        while exporter.advance(now, &mut Shelf)? {}

        let back = exporter.lane_mut().poll_transmit(now).iter().flat_map(|run| run.to_vec()).collect::<Vec<_>>();
        exporter.lane_mut().handle_transmitted(back.len());
        let heard = back.len().min(most.unwrap_or(usize::MAX));
        importer.lane_mut().receive_space()[..heard].copy_from_slice(&back[..heard]);
        importer.lane_mut().handle_received(heard);
        while let Some(arrived) = importer.poll_arrived(0)? {
            window.handle_arrived(now, arrived, readings)?;
        }
        if most.is_some() || (out.is_empty() && back.is_empty()) {
            return Ok(heard);
        }
    }
}
