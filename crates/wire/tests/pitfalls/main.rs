//! Lessons from real USB/IP 0x0111 peers, one test each, where no device is needed to show them. The others are in the
//! tests of the same name in `crates/session`.

mod cuts;
mod errno;
mod handshake;
mod headers;
mod isochronous;
#[path = "../peer/mod.rs"]
mod peer;
mod refusals;
mod unlink;

use farbus_model::descriptor::EndpointDescriptor;
use farbus_model::urb::UrbFlags;
use farbus_model::{
    BufferPool, EpAddr, IsoPacket, Payload, SessionLimits, SetupPacket, TransferDirection, TransferType, Urb,
    UrbCompletion, UrbId, UrbStatus,
};
use farbus_wire::usbip::client::UsbipReply;
use farbus_wire::usbip::{
    DeviceRecord, OpStatus, ProtocolViolation, UsbipClientConn, UsbipRequest, UsbipServerConn, message, status,
};
use peer::{BUS_ID, Checker, DEVID, ECONNRESET, Packet, Reply, RetSubmit, Submit};

/// Endpoint 1 is bulk, 2 interrupt, 3 isochronous, in both directions; there are no others.
fn kind_of(endpoint: EpAddr) -> Option<TransferType> {
    match endpoint.number() {
        0 => Some(TransferType::Control),
        1 => Some(TransferType::Bulk),
        2 => Some(TransferType::Interrupt),
        3 => Some(TransferType::Isochronous),
        _ => None,
    }
}

/// The endpoint of that address, as [`kind_of`] says; `None` for the control pipe.
fn endpoint(address: EpAddr) -> Option<EndpointDescriptor> {
    let kind = kind_of(address).filter(|_| !address.is_control())?;
    Some(EndpointDescriptor { address, kind, packet_bytes_max: 64, packets_per_interval: 1, interval: 4 })
}

/// Small, so that buffers have to grow and limits are reached; a buffer holds the longest device of a list.
const LIMITS: SessionLimits = SessionLimits { receive_bytes: 2048, urbs_in_flight_max: 64, ..SessionLimits::DEFAULT };

/// The exporter's end, with a checker at the other end.
struct Server {
    conn: UsbipServerConn,
    pool: BufferPool,
    checker: Checker,
}

impl Server {
    fn new() -> Self {
        Self::over(UsbipServerConn::new(&LIMITS))
    }

    fn imported() -> Self {
        Self::over(UsbipServerConn::imported(&LIMITS, DEVID))
    }

    fn over(conn: UsbipServerConn) -> Self {
        Self { conn, pool: BufferPool::new(0), checker: Checker::default() }
    }

    fn receive(&mut self, bytes: &[u8]) -> Result<Vec<UsbipRequest>, ProtocolViolation> {
        let mut requests = Vec::new();
        put(bytes, usize::MAX, |chunk| {
            let space = self.conn.receive_space();
            let count = space.len().min(chunk.len());
            space[..count].copy_from_slice(&chunk[..count]);
            self.conn.handle_received(count);
            while let Some(request) = self.conn.poll_request(kind_of)? {
                requests.push(request);
            }
            Ok(count)
        })?;
        Ok(requests)
    }

    fn refusal(&mut self, bytes: &[u8]) -> ProtocolViolation {
        self.receive(bytes).map(|requests| format!("{requests:?}")).expect_err("this is refused")
    }

    /// Sends a submit that has to be accepted.
    fn submit(&mut self, submit: &Submit) -> Urb {
        self.checker.requested(submit, submit.ep == 3);
        match self.receive(&submit.bytes()).expect("this is understood").pop() {
            Some(UsbipRequest::Submit(urb)) => urb,
            other => panic!("a submit, not {other:?}"),
        }
    }

    /// Sends an unlink; returns the request to cancel.
    fn unlink(&mut self, seqnum: u32, victim: u32) -> Option<UrbId> {
        self.checker.unlink_asked(seqnum, victim);
        match self.receive(&peer::unlink(seqnum, victim)).expect("this is understood").pop() {
            None => None,
            Some(UsbipRequest::Unlink(id)) => Some(id),
            other => panic!("an unlink, not {other:?}"),
        }
    }

    fn complete(&mut self, done: UrbCompletion) -> Vec<Reply> {
        self.conn.complete(done, &mut self.pool);
        self.replies()
    }

    fn replies(&mut self) -> Vec<Reply> {
        let bytes = self.sent();
        self.checker.read(&bytes)
    }

    fn sent(&mut self) -> Vec<u8> {
        let bytes: Vec<u8> = self.conn.poll_transmit().iter().flat_map(|run| run.iter().copied()).collect();
        self.conn.handle_transmitted(bytes.len(), &mut self.pool);
        bytes
    }
}

/// The importer's end. Requests still in flight at the end of a test are dropped.
struct Client {
    conn: UsbipClientConn,
    pool: BufferPool,
}

impl Drop for Client {
    fn drop(&mut self) {
        self.conn.abandon(UrbStatus::Gone);
    }
}

impl Client {
    fn new() -> Self {
        Self { conn: UsbipClientConn::new(&LIMITS), pool: BufferPool::new(0) }
    }

    /// A client that has imported a device.
    fn imported() -> Self {
        let mut client = Self::new();
        client.conn.import(BUS_ID);
        client.sent();
        let answers = client.receive(&peer::import_reply(BUS_ID)).unwrap();
        assert!(matches!(&answers[..], [UsbipReply::Imported(Ok(record))] if record.device_id() == DEVID));
        client
    }

    fn receive(&mut self, bytes: &[u8]) -> Result<Vec<UsbipReply>, ProtocolViolation> {
        self.receive_in_steps(bytes, usize::MAX)
    }

    fn receive_in_steps(&mut self, bytes: &[u8], step: usize) -> Result<Vec<UsbipReply>, ProtocolViolation> {
        let mut answers = Vec::new();
        put(bytes, step, |chunk| {
            let space = self.conn.receive_space();
            let count = space.len().min(chunk.len());
            space[..count].copy_from_slice(&chunk[..count]);
            self.conn.handle_received(count);
            while let Some(answer) = self.conn.poll_answer()? {
                answers.push(answer);
            }
            Ok(count)
        })?;
        Ok(answers)
    }

    fn refusal(&mut self, bytes: &[u8]) -> ProtocolViolation {
        self.receive(bytes).map(|answers| format!("{answers:?}")).expect_err("this is refused")
    }

    /// The requests that `bytes` complete.
    fn done(&mut self, bytes: &[u8]) -> Vec<UrbCompletion> {
        let answers = self.receive(bytes).expect("this is understood").into_iter();
        let done = answers.map(|answer| match answer {
            UsbipReply::Done(done) => done,
            other => panic!("a finished request, not {other:?}"),
        });
        done.collect()
    }

    /// Submits; returns the sequence number on the wire.
    fn submit(&mut self, urb: Urb) -> u32 {
        let endpoint = endpoint(urb.endpoint);
        self.conn.submit(urb.launch(), endpoint.as_ref(), &mut self.pool);
        peer::word(&self.sent(), 4)
    }

    /// Cancels; returns the unlink's sequence number on the wire.
    fn unlink(&mut self, id: UrbId) -> u32 {
        self.conn.unlink(id);
        peer::word(&self.sent(), 4)
    }

    fn sent(&mut self) -> Vec<u8> {
        let bytes: Vec<u8> = self.conn.poll_transmit().iter().flat_map(|run| run.iter().copied()).collect();
        self.conn.handle_transmitted(bytes.len(), &mut self.pool);
        bytes
    }
}

/// Passes `bytes` on, at most `step` at a time.
fn put<E>(mut bytes: &[u8], step: usize, mut take: impl FnMut(&[u8]) -> Result<usize, E>) -> Result<(), E> {
    while !bytes.is_empty() {
        let count = take(&bytes[..bytes.len().min(step)])?;
        assert!(count > 0, "there is always room");
        bytes = &bytes[count..];
    }
    Ok(())
}

fn data_in(id: u64, length: u32) -> Urb {
    Urb::data_in(UrbId(id), EpAddr::from_byte(0x81), length)
}

fn iso(id: u64, endpoint: u8, lengths: &[u32]) -> Urb {
    let mut urb = Urb::data_in(UrbId(id), EpAddr::from_byte(endpoint), lengths.iter().sum());
    let mut offset = 0;
    for &length in lengths {
        urb.iso.push(IsoPacket { offset, length, ..IsoPacket::default() });
        offset += length;
    }
    if urb.endpoint.direction() == TransferDirection::Out {
        urb.direction = TransferDirection::Out;
        urb.payload = vec![7; offset as usize].into();
    }
    urb
}
