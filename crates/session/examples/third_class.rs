//! A device class that is neither USB nor block: a thermometer.
//!
//! A class has two parts: its exporting end ([`Served`]) and its importing end ([`Attached`]). The session does
//! everything else: it opens and closes attachments, and loses nothing when a link is lost. Here both ends of a session
//! are in one process, and the link between them is cut while readings are on their way.

use std::time::Duration;

use farbus_model::{Identity, Instant, Payload, Readiness};
use farbus_session::Reject;
use farbus_session::native::control::{Cause, Class, Credit, End, Mode, Open};
use farbus_session::native::hello::SessionId;
use farbus_session::native::{
    Arrived, Attached, Attachment, ExporterSession, Flow, Head, Heard, ImporterSession, Kind, LaneLimits, Lanes,
    Message, Progress, Served, Services, State, Urgency,
};

/// Class codes from 128 on are for private use.
const THERMOMETER: Class = Class(200);
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

impl Served for Thermometer {
    fn credit(&self) -> Credit {
        Credit { requests: 4, bytes: 64 }
    }

    fn description(&self) -> Vec<u8> {
        250_u32.to_le_bytes().to_vec()
    }

    fn handle_arrived(&mut self, now: Instant, arrived: Arrived, lanes: &mut Lanes) -> Result<(), Reject> {
        match arrived.head.kind {
            Kind::Grant => {
                let more = arrived.body.contiguous().as_ref().try_into().map(u32::from_le_bytes);
                let more = more.map_err(|_| Reject::new("grant", arrived.body.len() as u64, "it has 4 bytes"))?;
                if self.granted == 0 {
                    self.next = now + EVERY;
                }
                self.granted = self.granted.saturating_add(more);
            }
            Kind::Request => self.say(Kind::Reply, arrived.head.tag, lanes),
            _ => {}
        }
        Ok(())
    }

    fn handle_ready(&mut self, now: Instant, lanes: &mut Lanes) {
        while self.granted > 0 && self.next <= now {
            self.granted -= 1;
            self.next = self.next + EVERY;
            self.millidegrees += 250;
            self.say(Kind::Event, 0, lanes);
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        (self.granted > 0).then_some(self.next)
    }

    fn readiness(&self) -> Option<&Readiness> {
        None
    }

    fn poll_end(&mut self) -> Option<End> {
        None
    }

    fn finish(self: Box<Self>, _now: Instant) {}
}

impl Thermometer {
    fn say(&self, kind: Kind, tag: u16, lanes: &mut Lanes) {
        lanes.send(Message {
            head: Head::new(kind, self.attachment, tag),
            part: self.millidegrees.to_le_bytes().into(),
            payload: Payload::Empty,
            urgency: Urgency::High,
            flow: Flow(self.attachment.into()),
            done_at: None,
        });
    }
}

/// The exporter's devices.
struct Shelf;

impl Services for Shelf {
    /// A device without an identity is not opened again after the exporter is restarted.
    fn identity(&mut self, _open: &Open) -> Option<Identity> {
        Some(Identity { id: 13, generation: 0 })
    }

    fn open(&mut self, now: Instant, number: u16, open: &Open) -> Result<(u64, Box<dyn Served>), End> {
        if (open.class, open.name.as_str()) != (THERMOMETER, "window") {
            return Err(End { cause: Cause::Gone, message: format!("there is no '{}' here", open.name) });
        }
        Ok((1, Box::new(Thermometer { attachment: number, millidegrees: 20_000, granted: 0, next: now })))
    }
}

/// The importing end: collects readings, and grants a few at a time.
struct Readings {
    attachment: Attachment,
    step_millidegrees: u32,
    under_way: u32,
}

impl Readings {
    fn new(name: &str) -> Self {
        let (name, reason) = (name.to_owned(), "to show how".to_owned());
        let open = Open { class: THERMOMETER, mode: Mode::Read, epoch: 0, name, reason };
        Self { attachment: Attachment::new(1, open, 64), step_millidegrees: 0, under_way: 0 }
    }

    fn want_more(&mut self) {
        let part = (GRANTED - self.under_way).to_le_bytes().into();
        self.under_way = GRANTED;
        self.attachment.say(Message::control(Kind::Grant, self.attachment.number(), 0, part));
    }
}

impl Attached for Readings {
    type Done = Vec<i32>;

    fn attachment(&self) -> &Attachment {
        &self.attachment
    }

    fn attachment_mut(&mut self) -> &mut Attachment {
        &mut self.attachment
    }

    fn handle_arrived(&mut self, now: Instant, arrived: Arrived, done: &mut Vec<i32>) -> Result<(), Reject> {
        let wrong = |bytes: usize| Reject::new("reading", bytes as u64, "it has 4 bytes");
        match self.attachment.handle_arrived(now, arrived)? {
            Heard::Opened(opened) => {
                let step = opened.info.as_slice().try_into().map_err(|_| wrong(opened.info.len()))?;
                self.step_millidegrees = u32::from_le_bytes(step);
                self.want_more();
            }
            Heard::Own(arrived) if arrived.head.kind == Kind::Event => {
                let reading = arrived.body.contiguous().as_ref().try_into();
                done.push(i32::from_le_bytes(reading.map_err(|_| wrong(arrived.body.len()))?));
                let unasked = Reject::new("event", 0, "no more come than were granted");
                self.under_way = self.under_way.checked_sub(1).ok_or(unasked)?;
                if self.under_way <= GRANTED / 2 {
                    self.want_more();
                }
            }
            Heard::Own(_) | Heard::Ended(_) | Heard::Part => {}
        }
        Ok(())
    }

    fn handle_renewed(&mut self, _now: Instant, _done: &mut Vec<i32>) {
        self.under_way = 0;
        self.attachment.handle_renewed();
    }

    fn handle_over(&mut self, cause: Cause, message: &str, _done: &mut Vec<i32>) {
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
    assert_eq!(importer.handle_welcome(&welcome)?, Progress::Linked);

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
            assert_eq!(importer.handle_welcome(&welcome)?, Progress::Linked);
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
    assert!(matches!(window.state(), State::Ended(end) if end.cause == Cause::Asked));
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
) -> Result<usize, Reject> {
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
