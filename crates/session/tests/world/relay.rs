//! The arrangement in front of a kernel: an exporter over a remote device over another exporter.

use farbus_model::{BufferPool, CompletionQueue, Device, EpAddr, Instant, SessionLimits, UrbStatus};
use farbus_session::importer::HandshakeAnswer;
use farbus_session::{ImportHandshake, PortResetPolicy, ProtocolViolation, RemoteDevice};

use super::loopback::Loopback;
use super::peer::{self, BUS_ID, Submit};
use super::scripted::{Manners, Scripted};

/// A remote device after its handshake with an exporter of `device`.
pub fn remote(device: &impl Device, limits: SessionLimits) -> RemoteDevice {
    let mut handshake = ImportHandshake::import(limits, BUS_ID);
    let count: usize = handshake.poll_transmit().iter().map(|run| run.len()).sum();
    handshake.handle_transmitted(count);
    let mut reply = peer::op(0x0111, 0x0003, 0);
    super::loopback::record(device).encode(false, &mut reply);
    let space = handshake.receive_space();
    space[..reply.len()].copy_from_slice(&reply);
    let greeting = handshake.handle_received(reply.len()).expect("an import reply");
    let Some(HandshakeAnswer::Imported(record)) = greeting else { panic!("imported, not {greeting:?}") };
    let mut remote = handshake.into_device(record);
    remote.set_descriptors(device.descriptors().clone());
    remote
}

/// A kernel's connection (`near`), the remote device behind it, a link, and the exporter that has the device (`far`).
/// Bytes cross the link when the test moves them.
pub struct Relay {
    pub near: Loopback<RemoteDevice>,
    pub far: Loopback<Scripted>,
}

impl Relay {
    /// A relay with a configured device.
    pub fn new(manners: Manners, limits: SessionLimits) -> Self {
        let device = Scripted::new(manners);
        let near = Loopback::imported_by(remote(&device, limits), limits, PortResetPolicy::PassOn);
        let mut relay = Self { near, far: Loopback::imported(device, limits) };
        relay.near.submit(&Submit::control(u32::MAX, peer::setup::set_configuration(1)));
        relay.settle();
        relay.far.device(|device, done| {
            device.complete(EpAddr::CONTROL, done);
        });
        relay.settle();
        assert_eq!(relay.near.checker.ret_submit(u32::MAX).status, 0);
        relay
    }

    /// At most `most` bytes go to the far end; `false` if there are none.
    pub fn carry_there(&mut self, most: usize) -> bool {
        let bytes = self.near.device(|remote, done| {
            let bytes: Vec<u8> = remote.poll_transmit().iter().flat_map(|run| run.iter().copied()).take(most).collect();
            remote.handle_transmitted(bytes.len(), done);
            bytes
        });
        self.far.receive(&bytes).expect("a remote device breaks no rule");
        !bytes.is_empty()
    }

    /// At most `most` bytes come from the far end; `false` if there are none.
    pub fn carry_back(&mut self, most: usize) -> bool {
        let bytes = self.far.read_bytes(most);
        self.far.advance().expect("reading breaks no rule");
        self.near.device(|remote, done| receive(remote, &bytes, done)).expect("an exporter breaks no rule");
        !bytes.is_empty()
    }

    /// Carries everything in both directions until nothing is left.
    pub fn settle(&mut self) {
        while self.carry_there(ALL) | self.carry_back(ALL) | !self.near.read().is_empty() {}
    }

    /// Ends both connections; returns the parts.
    pub fn end(self) -> (RemoteDevice, Scripted, peer::Checker) {
        let (remote, checker) = self.near.end();
        (remote, self.far.end().0, checker)
    }
}

/// Delivers bytes to a remote device.
pub fn receive(
    remote: &mut RemoteDevice,
    mut bytes: &[u8],
    done: &mut CompletionQueue,
) -> Result<(), ProtocolViolation> {
    while !bytes.is_empty() {
        let space = remote.receive_space();
        let count = space.len().min(bytes.len());
        assert!(count > 0, "there is always room");
        space[..count].copy_from_slice(&bytes[..count]);
        remote.handle_received(count, done)?;
        bytes = &bytes[count..];
    }
    Ok(())
}

/// Completions for a device.
pub fn completions() -> CompletionQueue {
    CompletionQueue::new(BufferPool::new(0))
}

/// The statuses of everything that a remote device had when its link is lost.
pub fn lose(remote: &mut RemoteDevice) -> Vec<UrbStatus> {
    let mut done = completions();
    remote.handle_lost(&mut done);
    std::iter::from_fn(|| done.pop()).map(|done| done.status).collect()
}

/// No limit of bytes.
pub const ALL: usize = usize::MAX;

/// A moment, where it does not matter.
pub const NOW: Instant = Instant::ZERO;
