//! Observes a device of another host, or reads a stream: events or frames arrive without requests.

use std::fmt::Debug;

use farbus_model::limits::{CONSOLE_BYTES_MAX, CONSOLE_WINDOW, OBSERVED_EVENTS_MAX, URB_BYTES_MAX};
use farbus_model::{Instant, Payload, PayloadAssembler};
use farbus_wire::native::control::{AttachmentEndCause, OpenRequest};
use farbus_wire::native::reserve::ReservationTerms;
use farbus_wire::native::{FrameKind, OutboundMessage, ReceivedFrame, console, stream, usb};

use super::attachment::{AttachmentBase, FrameMeaning};
use super::importer::ImporterAttachment;
use crate::ProtocolViolation;

/// Bytes of an [`Opened`](farbus_wire::native::control::OpenReply): as for a device that is used.
const OPENED_BYTES_MAX: usize = 1 << 20;

/// What can be observed: a USB device, its serial ports, or a stream.
pub trait ObservableDescription: Sized + Debug {
    /// One event or frame.
    type Event: Debug;

    /// Its description.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: the description is not valid.
    fn decode(bytes: &[u8]) -> Result<Self, ProtocolViolation>;

    /// An event from the whole of its message.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: such a device sends no such event.
    fn decode_event(message: Payload) -> Result<Self::Event, ProtocolViolation>;

    /// The number of events that are requested in advance: at most so many wait for their reader.
    fn window(&self) -> u32;

    /// The most bytes of an event.
    fn event_bytes_max(&self) -> usize;
}

impl ObservableDescription for usb::UsbDescription {
    type Event = usb::ObservedTransfer;

    fn decode(bytes: &[u8]) -> Result<Self, ProtocolViolation> {
        Self::decode(bytes)
    }

    fn decode_event(message: Payload) -> Result<usb::ObservedTransfer, ProtocolViolation> {
        usb::ObservedTransfer::decode(message)
    }

    fn window(&self) -> u32 {
        OBSERVED_EVENTS_MAX as u32
    }

    /// The largest transfer, and its packets.
    fn event_bytes_max(&self) -> usize {
        URB_BYTES_MAX as usize + (8 << 10)
    }
}

impl ObservableDescription for console::ConsoleDescription {
    type Event = console::ConsoleOutput;

    fn decode(bytes: &[u8]) -> Result<Self, ProtocolViolation> {
        Self::decode(bytes)
    }

    fn decode_event(message: Payload) -> Result<console::ConsoleOutput, ProtocolViolation> {
        console::ConsoleOutput::decode(message)
    }

    fn window(&self) -> u32 {
        CONSOLE_WINDOW
    }

    /// All that may wait at an exporter: one of a later version may send it in larger pieces.
    fn event_bytes_max(&self) -> usize {
        CONSOLE_BYTES_MAX + console::EVENT_BYTES
    }
}

impl ObservableDescription for stream::StreamDescription {
    type Event = stream::StreamFrame;

    fn decode(bytes: &[u8]) -> Result<Self, ProtocolViolation> {
        Self::decode(bytes)
    }

    fn decode_event(message: Payload) -> Result<stream::StreamFrame, ProtocolViolation> {
        stream::StreamFrame::decode(message)
    }

    fn window(&self) -> u32 {
        Self::window(self)
    }

    fn event_bytes_max(&self) -> usize {
        self.frame_bytes_max as usize + stream::EVENT_BYTES
    }
}

/// A device that is observed.
pub type RemoteObserver = RemoteObservation<usb::UsbDescription>;
/// The serial ports of a device, observed.
pub type RemoteConsole = RemoteObservation<console::ConsoleDescription>;
/// A stream that is read.
pub type RemoteStream = RemoteObservation<stream::StreamDescription>;

/// An observed device or stream.
#[derive(Debug)]
pub struct RemoteObservation<S> {
    attachment: AttachmentBase,
    description: Option<S>,
    /// Events that were requested and have not arrived.
    under_way: u32,
    /// The pieces of an event of which more follows, and its tag.
    arriving: Option<(u16, PayloadAssembler)>,
}

impl<S: ObservableDescription> RemoteObservation<S> {
    /// Opens it as `number`, a number that the session does not use.
    pub fn new(number: u16, open: OpenRequest) -> Self {
        Self::over(AttachmentBase::new(number, open, OPENED_BYTES_MAX))
    }

    /// As `new`; the exporter reserves this first, or does not open it.
    pub fn reserving(number: u16, open: OpenRequest, reservation: ReservationTerms) -> Self {
        Self::over(AttachmentBase::reserving(number, open, OPENED_BYTES_MAX, reservation))
    }

    fn over(attachment: AttachmentBase) -> Self {
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
        self.attachment.say(OutboundMessage::control(FrameKind::Grant, self.attachment.number(), 0, part));
    }

    fn take_in(&mut self, arrived: ReceivedFrame, done: &mut Vec<S::Event>) -> Result<(), ProtocolViolation> {
        let Some(description) = &self.description else {
            return Err(ProtocolViolation::new(
                "kind",
                arrived.head.kind.code().into(),
                "what shows itself says first what it is",
            ));
        };
        let tag = arrived.head.tag;
        let mut pieces = match (arrived.head.kind, self.arriving.take()) {
            (FrameKind::Event, None) => PayloadAssembler::default(),
            (FrameKind::Data, Some((of, pieces))) if of == tag => pieces,
            _ => return Err(ProtocolViolation::new("tag", tag.into(), "one event comes after the other")),
        };
        let bytes = pieces.len() + arrived.body.len();
        if bytes > description.event_bytes_max() {
            return Err(ProtocolViolation::new("event", bytes as u64, "no event is so long"));
        }
        pieces.push(arrived.body);
        if arrived.head.flags.more {
            self.arriving = Some((tag, pieces));
            return Ok(());
        }
        let half = description.window() / 2;
        done.push(S::decode_event(pieces.into_payload())?);
        let unasked = ProtocolViolation::new("event", 0, "no more come than were granted");
        self.under_way = self.under_way.checked_sub(1).ok_or(unasked)?;
        if self.under_way <= half {
            self.want_more();
        }
        Ok(())
    }
}

impl<S: ObservableDescription> ImporterAttachment for RemoteObservation<S> {
    type Done = Vec<S::Event>;

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
        done: &mut Vec<S::Event>,
    ) -> Result<(), ProtocolViolation> {
        match self.attachment.handle_arrived(now, arrived)? {
            FrameMeaning::Opened(opened) => {
                self.description = Some(S::decode(&opened.info)?);
                self.want_more();
                Ok(())
            }
            FrameMeaning::Own(arrived) => self.take_in(arrived, done),
            FrameMeaning::Ended(_) | FrameMeaning::Part => Ok(()),
        }
    }

    fn handle_renewed(&mut self, _now: Instant, _done: &mut Vec<S::Event>) {
        (self.under_way, self.arriving) = (0, None);
        self.attachment.handle_renewed();
    }

    fn handle_over(&mut self, cause: AttachmentEndCause, message: &str, _done: &mut Vec<S::Event>) {
        self.attachment.handle_over(cause, message);
    }
}
