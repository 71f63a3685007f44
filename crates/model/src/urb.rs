//! A USB request block: submitted once, answered exactly once.
//!
//! A request has three shapes and each step consumes the one before it:
//!
//! | shape | who holds it | next |
//! |---|---|---|
//! | [`Urb`] | the requester, or a queue in front of the device | [`Urb::launch`] |
//! | [`UrbInFlight`] | the device | [`UrbInFlight::done`] and its shorthands |
//! | [`UrbCompletion`] | the requester again | read it |
//!
//! Dropping an unanswered [`UrbInFlight`] is a bug of farbus: it panics where debug assertions are on, and elsewhere it
//! is left with [`take_lost`], which the engine turns into a cancelled completion, counted and logged.

use std::cell::RefCell;
use std::time::Duration;

use crate::payload::Payload;
use crate::usb::{EpAddr, SetupPacket, TransferDirection};

/// Names a request among those in flight on one device. Chosen by the requester.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UrbId(pub u64);

/// Options of a request (the stable USBIP_URB_* bits that carry meaning for a device).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UrbFlags {
    /// A short IN transfer is an error.
    pub short_not_ok: bool,
    /// Isochronous: as soon as possible rather than at `start_frame`.
    pub iso_asap: bool,
    /// Bulk OUT: end with a zero-length packet if the last one is full.
    pub zero_packet: bool,
}

/// One packet of an isochronous URB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IsoPacket {
    /// Where the packet lies in the requester's buffer, bytes.
    pub offset: u32,
    /// Space (IN) or size (OUT), bytes.
    pub length: u32,
    /// Bytes that moved, 0 to `length`; 0 before the request completes.
    pub actual: u32,
    /// How this packet ended.
    pub status: UrbStatus,
}

/// A request: one transfer on one endpoint.
#[derive(Clone, Debug)]
pub struct Urb {
    /// The requester's name for it.
    pub id: UrbId,
    /// The endpoint it goes to.
    pub endpoint: EpAddr,
    /// Direction of the data, the setup packet's for control.
    pub direction: TransferDirection,
    /// Bytes to send, or space for IN.
    pub length: u32,
    /// The bytes to send; empty for IN. Isochronous OUT: the whole buffer, packets at their offsets.
    pub payload: Payload,
    /// Control only; all zeros elsewhere.
    pub setup: SetupPacket,
    /// Isochronous only; empty elsewhere.
    pub iso: Vec<IsoPacket>,
    /// Isochronous without [`UrbFlags::iso_asap`]: the frame to start in.
    pub start_frame: u32,
    /// The polling interval that the requester states, in (micro)frames; 0 for control and bulk.
    pub interval: u32,
    /// The stream number, from 1, on a bulk endpoint with streams (USB 3.2 §4.4.6.4); 0 elsewhere. USB/IP has no field
    /// for it.
    pub stream: u16,
    /// Options of the transfer; all off by default.
    pub flags: UrbFlags,
}

impl Urb {
    /// A control request; `payload` is its OUT data stage (of `setup.length` bytes) or empty.
    pub fn control(id: UrbId, setup: SetupPacket, payload: Payload) -> Self {
        let length = u32::from(setup.length);
        Self { setup, payload, ..Self::plain(id, EpAddr::CONTROL, setup.direction(), length) }
    }

    /// A bulk or interrupt OUT transfer.
    pub fn data_out(id: UrbId, endpoint: EpAddr, payload: Payload) -> Self {
        let length = u32::try_from(payload.len()).expect("a URB's length fits 32 bits");
        Self { payload, ..Self::plain(id, endpoint, TransferDirection::Out, length) }
    }

    /// A bulk or interrupt IN transfer with room for `length` bytes.
    pub fn data_in(id: UrbId, endpoint: EpAddr, length: u32) -> Self {
        Self::plain(id, endpoint, TransferDirection::In, length)
    }

    fn plain(id: UrbId, endpoint: EpAddr, direction: TransferDirection, length: u32) -> Self {
        Self {
            id,
            endpoint,
            direction,
            length,
            payload: Payload::Empty,
            setup: SetupPacket::default(),
            iso: Vec::new(),
            start_frame: 0,
            interval: 0,
            stream: 0,
            flags: UrbFlags::default(),
        }
    }

    /// Hands the request to a device: from here on it has to be answered.
    pub fn launch(self) -> UrbInFlight {
        UrbInFlight { urb: Some(self) }
    }
}

/// A request that a device holds and owes an answer to.
#[derive(Debug)]
pub struct UrbInFlight {
    /// `None` only after it was answered.
    urb: Option<Urb>,
}

impl std::ops::Deref for UrbInFlight {
    type Target = Urb;

    fn deref(&self) -> &Urb {
        self.urb.as_ref().expect("an unanswered request holds its URB")
    }
}

impl UrbInFlight {
    /// Takes the OUT data, leaving none; the length stays.
    pub fn take_payload(&mut self) -> Payload {
        std::mem::take(&mut self.urb.as_mut().expect("an unanswered request holds its URB").payload)
    }

    /// Copies the OUT data out of a buffer that is not its own, so that it may be kept.
    pub fn own_payload(&mut self) {
        let urb = self.urb.as_mut().expect("an unanswered request holds its URB");
        urb.payload.own();
    }

    /// Answers with `status`, `actual` bytes moved and (IN) those bytes.
    ///
    /// # Panics
    /// If more moved than was asked for, or IN data does not match `actual`: a device's bug.
    pub fn done(mut self, status: UrbStatus, actual: u32, payload: Payload) -> UrbCompletion {
        let urb = self.urb.take().expect("an unanswered request holds its URB");
        assert!(actual <= urb.length, "{:?}: moved {actual} of {} bytes", urb.endpoint, urb.length);
        match urb.direction {
            TransferDirection::In => assert_eq!(payload.len(), actual as usize, "IN data is what moved"),
            TransferDirection::Out => assert!(payload.is_empty(), "an OUT transfer returns no data"),
        }
        UrbCompletion {
            id: urb.id,
            endpoint: urb.endpoint,
            direction: urb.direction,
            setup: urb.setup,
            length: urb.length,
            status,
            actual,
            payload,
            iso: urb.iso,
            start_frame: urb.start_frame,
            error_count: 0,
            residence: None,
        }
    }

    /// Answers IN with these bytes.
    pub fn answer(self, payload: Payload) -> UrbCompletion {
        let actual = u32::try_from(payload.len()).expect("a URB's length fits 32 bits");
        self.done(UrbStatus::Ok, actual, payload)
    }

    /// Answers OUT: the device took all of it.
    pub fn accept(self) -> UrbCompletion {
        let actual = self.length;
        self.done(UrbStatus::Ok, actual, Payload::Empty)
    }

    /// Answers that the request failed and no bytes moved.
    pub fn fail(self, status: UrbStatus) -> UrbCompletion {
        self.done(status, 0, Payload::Empty)
    }

    /// Answers an isochronous request: its packets with their `actual` and `status`, and for IN
    /// the packets' data one behind the other without the gaps.
    ///
    /// # Panics
    /// If the packets' count changed or their sum does not match the data: a device's bug.
    pub fn done_iso(self, packets: Vec<IsoPacket>, payload: Payload) -> UrbCompletion {
        assert_eq!(packets.len(), self.iso.len(), "as many packets come back as were sent");
        let actual = packets.iter().map(|packet| packet.actual).sum();
        let error_count = packets.iter().filter(|packet| packet.status != UrbStatus::Ok).count();
        let mut done = self.done(UrbStatus::Ok, actual, payload);
        done.iso = packets;
        done.error_count = error_count as u32;
        done
    }

    /// Takes the request back from a device that never began it; only queues may do so.
    pub fn recall(mut self) -> Urb {
        self.urb.take().expect("an unanswered request holds its URB")
    }
}

thread_local! {
    /// Requests dropped unanswered on this thread. An engine and its device share a thread.
    static LOST: RefCell<Vec<Urb>> = const { RefCell::new(Vec::new()) };
}

impl Drop for UrbInFlight {
    fn drop(&mut self) {
        if let Some(mut urb) = self.urb.take() {
            // The answer needs its packets, not its data.
            urb.payload = Payload::Empty;
            let (id, endpoint) = (urb.id, urb.endpoint);
            LOST.with_borrow_mut(|lost| lost.push(urb));
            debug_assert!(std::thread::panicking(), "{id:?} on {endpoint:?} was dropped unanswered");
        }
    }
}

/// The requests dropped unanswered on this thread since the last call. Always empty unless a
/// device has a bug; allocates nothing then.
pub fn take_lost() -> Vec<Urb> {
    LOST.with_borrow_mut(std::mem::take)
}

/// An answered request.
#[derive(Clone, Debug, PartialEq)]
pub struct UrbCompletion {
    /// The requester's name for it.
    pub id: UrbId,
    /// The endpoint it went to.
    pub endpoint: EpAddr,
    /// Direction of the data.
    pub direction: TransferDirection,
    /// The setup packet of a control request; zeros for other transfer types.
    pub setup: SetupPacket,
    /// Bytes asked for.
    pub length: u32,
    /// How it ended.
    pub status: UrbStatus,
    /// Bytes that moved, 0 to `length`; isochronous: the sum of its packets.
    pub actual: u32,
    /// The bytes that came IN. Isochronous: packets one behind the other, without gaps.
    pub payload: Payload,
    /// The packets of an isochronous request with their results; empty for other transfer types.
    pub iso: Vec<IsoPacket>,
    /// Isochronous: the frame it started in.
    pub start_frame: u32,
    /// Isochronous: packets that failed.
    pub error_count: u32,
    /// How long a device elsewhere had the request, if that was measured there: from its arrival in full to its end.
    pub residence: Option<Duration>,
}

/// How a transfer ended. These are values and not errors: a device may well answer with a stall.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum UrbStatus {
    /// It succeeded; fewer bytes than asked for may have moved.
    #[default]
    Ok,
    /// The endpoint is halted, or a control request was refused (STALL handshake).
    Stall,
    /// IN ended early and the requester had declared that an error.
    Short,
    /// The device sent more than there was space for (babble).
    Overflow,
    /// The transaction failed on the bus: bit stuffing, no answer, wrong PID.
    Protocol,
    /// A packet arrived with a wrong checksum.
    Crc,
    /// Memory or controller could not keep up: data under- or overrun.
    DataRate,
    /// The device did not answer in time.
    TimedOut,
    /// Cancelled by the requester.
    Cancelled,
    /// Cancelled because the device was reset, shut down or its endpoint disabled.
    Shutdown,
    /// The device is no longer there.
    Gone,
    /// The request is invalid for this endpoint.
    Invalid,
    /// No credit: the limits of the session do not allow one more request now.
    NoCredit,
    /// Isochronous: the packet was not transferred in its interval.
    IsoMissed,
    /// Any other failure.
    Other,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn urb(id: u64) -> UrbInFlight {
        Urb::data_in(UrbId(id), EpAddr::from_byte(0x81), 8).launch()
    }

    #[test]
    fn an_answer_consumes_the_request() {
        let done = urb(1).answer(vec![1, 2, 3].into());
        assert_eq!((done.id, done.status, done.actual), (UrbId(1), UrbStatus::Ok, 3));
        assert_eq!(urb(2).fail(UrbStatus::Stall).status, UrbStatus::Stall);
        assert!(take_lost().is_empty());
    }

    #[test]
    fn a_request_dropped_unanswered_is_found() {
        let dropped = std::panic::catch_unwind(|| drop(urb(7)));
        assert_eq!(dropped.is_err(), cfg!(debug_assertions));
        assert_eq!(take_lost().iter().map(|urb| urb.id).collect::<Vec<_>>(), [UrbId(7)]);
    }

    #[test]
    #[should_panic(expected = "moved 9 of 8")]
    fn a_device_cannot_answer_more_than_was_asked() {
        urb(1).answer(vec![0; 9].into());
    }
}
