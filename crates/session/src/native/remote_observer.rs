//! What a device of another host sends to its user, for somebody who looks on.

use farbus_model::limits::OBSERVED_EVENTS_MAX;
use farbus_model::{Instant, Payload};
use farbus_wire::native::control::{Cause, Open};
use farbus_wire::native::usb::{Description, Event};
use farbus_wire::native::{Arrived, Kind, Message};

use super::attachment::{Attachment, Heard};
use super::importer::{Attached, State};
use crate::Reject;

/// Bytes of an [`Opened`](farbus_wire::native::control::Opened): as for a device that is used.
const OPENED_BYTES_MAX: usize = 1 << 20;
/// Bytes of an event: the largest transfer, and its packets.
const EVENT_BYTES_MAX: usize = farbus_model::limits::URB_BYTES_MAX as usize + (8 << 10);
/// Events that are asked for beforehand: what waits for an observer at most.
const GRANTED: u32 = OBSERVED_EVENTS_MAX as u32;

/// A device that is observed.
#[derive(Debug)]
pub struct RemoteObserver {
    attachment: Attachment,
    description: Option<Description>,
    /// Events that were asked for and have not come.
    under_way: u32,
    /// The pieces of an event that goes on, and its tag.
    arriving: Option<(u16, Vec<Payload>, usize)>,
}

impl RemoteObserver {
    /// Asks to observe a device as `number`, one of the session that is not in use.
    pub fn new(number: u16, open: Open) -> Self {
        let attachment = Attachment::new(number, open, OPENED_BYTES_MAX);
        Self { attachment, description: None, under_way: 0, arriving: None }
    }

    /// What the device is, once it was opened.
    pub fn description(&self) -> Option<&Description> {
        self.description.as_ref()
    }

    fn want_more(&mut self) {
        let part = (GRANTED - self.under_way).to_le_bytes().into();
        self.under_way = GRANTED;
        self.attachment.say(Message::control(Kind::Grant, self.attachment.number(), 0, part));
    }

    fn take_in(&mut self, arrived: Arrived, done: &mut Vec<Event>) -> Result<(), Reject> {
        let tag = arrived.head.tag;
        let (mut pieces, mut bytes) = match (arrived.head.kind, self.arriving.take()) {
            (Kind::Event, None) => (Vec::new(), 0),
            (Kind::Data, Some((of, pieces, bytes))) if of == tag => (pieces, bytes),
            _ => return Err(Reject::new("tag", tag.into(), "one event comes after the other")),
        };
        bytes += arrived.body.len();
        if bytes > EVENT_BYTES_MAX {
            return Err(Reject::new("event", bytes as u64, "no transfer brings so much"));
        }
        pieces.push(arrived.body);
        if arrived.head.flags.more {
            self.arriving = Some((tag, pieces, bytes));
            return Ok(());
        }
        done.push(Event::decode(Payload::joined(pieces))?);
        let unasked = Reject::new("event", 0, "no more come than were granted");
        self.under_way = self.under_way.checked_sub(1).ok_or(unasked)?;
        if self.under_way <= GRANTED / 2 {
            self.want_more();
        }
        Ok(())
    }
}

impl Attached for RemoteObserver {
    type Done = Vec<Event>;

    fn handle_arrived(&mut self, _now: Instant, arrived: Arrived, done: &mut Vec<Event>) -> Result<(), Reject> {
        match self.attachment.handle_arrived(arrived)? {
            Heard::Opened(opened) => {
                self.description = Some(Description::decode(&opened.info)?);
                self.want_more();
                Ok(())
            }
            Heard::Own(arrived) => self.take_in(arrived, done),
            Heard::Ended(_) | Heard::Part => Ok(()),
        }
    }

    fn handle_renewed(&mut self, _now: Instant, _done: &mut Vec<Event>) {
        (self.under_way, self.arriving) = (0, None);
        self.attachment.handle_renewed();
    }

    fn handle_over(&mut self, cause: Cause, message: &str, _done: &mut Vec<Event>) {
        self.attachment.handle_over(cause, message);
    }

    fn poll_message(&mut self) -> Option<Message> {
        self.attachment.poll_message()
    }

    fn state(&self) -> &State {
        self.attachment.state()
    }

    fn close(&mut self) {
        self.attachment.close();
    }
}
