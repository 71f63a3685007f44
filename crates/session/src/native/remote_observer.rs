//! Observes a device of another host, or reads a stream: events or frames arrive without requests.

use std::fmt::Debug;

use farbus_model::limits::{CONSOLE_BYTES_MAX, CONSOLE_WINDOW, OBSERVED_EVENTS_MAX, URB_BYTES_MAX};
use farbus_model::{Instant, Payload, Pieces};
use farbus_wire::native::control::{Cause, Open};
use farbus_wire::native::reserve::Reservation;
use farbus_wire::native::{Arrived, Kind, Message, console, stream, usb};

use super::attachment::{Attachment, Heard};
use super::importer::Attached;
use crate::Reject;

/// Bytes of an [`Opened`](farbus_wire::native::control::Opened): as for a device that is used.
const OPENED_BYTES_MAX: usize = 1 << 20;

/// What can be observed: a USB device, its serial ports, or a stream.
pub trait Showing: Sized + Debug {
    /// One event or frame.
    type Event: Debug;

    /// Its description.
    ///
    /// # Errors
    /// [`Reject`]: the description is not valid.
    fn decode(bytes: &[u8]) -> Result<Self, Reject>;

    /// An event from the whole of its message.
    ///
    /// # Errors
    /// [`Reject`]: such a device sends no such event.
    fn decode_event(message: Payload) -> Result<Self::Event, Reject>;

    /// The number of events that are requested in advance: at most so many wait for their reader.
    fn window(&self) -> u32;

    /// The most bytes of an event.
    fn event_bytes_max(&self) -> usize;
}

impl Showing for usb::Description {
    type Event = usb::Event;

    fn decode(bytes: &[u8]) -> Result<Self, Reject> {
        Self::decode(bytes)
    }

    fn decode_event(message: Payload) -> Result<usb::Event, Reject> {
        usb::Event::decode(message)
    }

    fn window(&self) -> u32 {
        OBSERVED_EVENTS_MAX as u32
    }

    /// The largest transfer, and its packets.
    fn event_bytes_max(&self) -> usize {
        URB_BYTES_MAX as usize + (8 << 10)
    }
}

impl Showing for console::Description {
    type Event = console::Output;

    fn decode(bytes: &[u8]) -> Result<Self, Reject> {
        Self::decode(bytes)
    }

    fn decode_event(message: Payload) -> Result<console::Output, Reject> {
        console::Output::decode(message)
    }

    fn window(&self) -> u32 {
        CONSOLE_WINDOW
    }

    /// All that may wait at an exporter: one of a later version may send it in larger pieces.
    fn event_bytes_max(&self) -> usize {
        CONSOLE_BYTES_MAX + console::EVENT_BYTES
    }
}

impl Showing for stream::Description {
    type Event = stream::Frame;

    fn decode(bytes: &[u8]) -> Result<Self, Reject> {
        Self::decode(bytes)
    }

    fn decode_event(message: Payload) -> Result<stream::Frame, Reject> {
        stream::Frame::decode(message)
    }

    fn window(&self) -> u32 {
        Self::window(self)
    }

    fn event_bytes_max(&self) -> usize {
        self.frame_bytes_max as usize + stream::EVENT_BYTES
    }
}

/// A device that is observed.
pub type RemoteObserver = Onlooker<usb::Description>;
/// The serial ports of a device, observed.
pub type RemoteConsole = Onlooker<console::Description>;
/// A stream that is read.
pub type RemoteStream = Onlooker<stream::Description>;

/// An observed device or stream.
#[derive(Debug)]
pub struct Onlooker<S> {
    attachment: Attachment,
    description: Option<S>,
    /// Events that were requested and have not arrived.
    under_way: u32,
    /// The pieces of an event of which more follows, and its tag.
    arriving: Option<(u16, Pieces)>,
}

impl<S: Showing> Onlooker<S> {
    /// Opens it as `number`, a number that the session does not use.
    pub fn new(number: u16, open: Open) -> Self {
        Self::over(Attachment::new(number, open, OPENED_BYTES_MAX))
    }

    /// As `new`; the exporter reserves this first, or does not open it.
    pub fn reserving(number: u16, open: Open, reservation: Reservation) -> Self {
        Self::over(Attachment::reserving(number, open, OPENED_BYTES_MAX, reservation))
    }

    fn over(attachment: Attachment) -> Self {
        Self { attachment, description: None, under_way: 0, arriving: None }
    }

    /// Its description; `None` before it is open.
    pub fn description(&self) -> Option<&S> {
        self.description.as_ref()
    }

    fn want_more(&mut self) {
        let Some(window) = self.description.as_ref().map(S::window) else { return };
        let part = (window - self.under_way).to_le_bytes().into();
        self.under_way = window;
        self.attachment.say(Message::control(Kind::Grant, self.attachment.number(), 0, part));
    }

    fn take_in(&mut self, arrived: Arrived, done: &mut Vec<S::Event>) -> Result<(), Reject> {
        let Some(description) = &self.description else {
            return Err(Reject::new(
                "kind",
                arrived.head.kind.code().into(),
                "what shows itself says first what it is",
            ));
        };
        let tag = arrived.head.tag;
        let mut pieces = match (arrived.head.kind, self.arriving.take()) {
            (Kind::Event, None) => Pieces::default(),
            (Kind::Data, Some((of, pieces))) if of == tag => pieces,
            _ => return Err(Reject::new("tag", tag.into(), "one event comes after the other")),
        };
        let bytes = pieces.len() + arrived.body.len();
        if bytes > description.event_bytes_max() {
            return Err(Reject::new("event", bytes as u64, "no event is so long"));
        }
        pieces.push(arrived.body);
        if arrived.head.flags.more {
            self.arriving = Some((tag, pieces));
            return Ok(());
        }
        let half = description.window() / 2;
        done.push(S::decode_event(pieces.into_payload())?);
        let unasked = Reject::new("event", 0, "no more come than were granted");
        self.under_way = self.under_way.checked_sub(1).ok_or(unasked)?;
        if self.under_way <= half {
            self.want_more();
        }
        Ok(())
    }
}

impl<S: Showing> Attached for Onlooker<S> {
    type Done = Vec<S::Event>;

    fn attachment(&self) -> &Attachment {
        &self.attachment
    }

    fn attachment_mut(&mut self) -> &mut Attachment {
        &mut self.attachment
    }

    fn handle_arrived(&mut self, now: Instant, arrived: Arrived, done: &mut Vec<S::Event>) -> Result<(), Reject> {
        match self.attachment.handle_arrived(now, arrived)? {
            Heard::Opened(opened) => {
                self.description = Some(S::decode(&opened.info)?);
                self.want_more();
                Ok(())
            }
            Heard::Own(arrived) => self.take_in(arrived, done),
            Heard::Ended(_) | Heard::Part => Ok(()),
        }
    }

    fn handle_renewed(&mut self, _now: Instant, _done: &mut Vec<S::Event>) {
        (self.under_way, self.arriving) = (0, None);
        self.attachment.handle_renewed();
    }

    fn handle_over(&mut self, cause: Cause, message: &str, _done: &mut Vec<S::Event>) {
        self.attachment.handle_over(cause, message);
    }
}
