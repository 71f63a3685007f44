//! A kernel in that world: it speaks USB/IP to an exporter over the session's device, through a socket that takes
//! random amounts.

use farbus_model::{CompletionQueue, Device, Instant, SessionLimits, UrbId, UrbInFlight};
use farbus_session::importer::HandshakeAnswer;
use farbus_session::native::{AttachmentBase, ImporterAttachment, ImporterSession, MovableAttachment, RemoteUsb};
use farbus_session::{
    DeviceRecord, ExportOffers, Exporter, ImportHandshake, OpStatus, PortResetPolicy, ProtocolViolation, RemoteDevice,
};
use farbus_wire::native::control::AttachmentEndCause;
use farbus_wire::native::{LaneSet, OutboundMessage, ReceivedFrame};
use farbus_wire::snapshot::{self, SnapshotWriter};

use crate::random::Random;
use crate::recorded;
use crate::usb::{Driver, record};
use crate::world::{LIMITS, World, spoil};

/// Snapshot kind of these tests.
pub const KIND: u16 = 0xff01;

/// The kernel, the socket pair, and the exporter at its other end.
pub struct Kernel {
    client: Option<RemoteDevice>,
    exporter: Option<Exporter<RemoteUsb>>,
    /// Bytes from and to the kernel.
    up: Vec<u8>,
    down: Vec<u8>,
    random: Random,
}

impl Kernel {
    pub fn new(now: Instant, remote: RemoteUsb, seed: u64) -> Self {
        let exporter =
            Exporter::imported(now, SessionLimits::DEFAULT, record().device_id(), remote, PortResetPolicy::ResetDevice);
        Self { client: None, exporter: Some(exporter), up: Vec::new(), down: Vec::new(), random: Random::new(seed) }
    }

    /// The snapshots for another process: the session with its device, and the connection.
    fn saved(world: &mut World<Self>) -> [Vec<u8>; 2] {
        let now = world.now;
        let (mut session, mut exporter) = (SnapshotWriter::new(KIND), SnapshotWriter::new(KIND));
        world.remote.device(now, |remote, _| world.importer.save(now, remote, &mut session));
        world.remote.exporter.as_mut().unwrap().save(now, &mut exporter);
        let saved = [session.into_bytes(), exporter.into_bytes()];
        recorded::note("kernel", &[&saved[0], &saved[1]]);
        saved
    }

    /// Checks that a snapshot of an earlier release is read completely.
    pub fn is_read(now: Instant, saved: &[Vec<u8>; 2]) -> Result<(), ProtocolViolation> {
        let (_, exporter) = Self::restored(now, saved)?;
        if let Some(mut remote) = exporter.hand_over() {
            remote.hand_over();
        }
        Ok(())
    }

    /// Restores both in another process.
    fn restored(
        now: Instant,
        saved: &[Vec<u8>; 2],
    ) -> Result<(ImporterSession, Exporter<RemoteUsb>), ProtocolViolation> {
        let mut reader = snapshot::open(&saved[0], KIND)?;
        let (importer, mut remote) = ImporterSession::restore::<RemoteUsb>(now, LIMITS, &mut reader)?;
        let restore = || {
            reader.end("snapshot")?;
            snapshot::open(&saved[1], KIND)
        };
        let mut reader = match restore() {
            Ok(reader) => reader,
            Err(reject) => {
                remote.hand_over();
                return Err(reject);
            }
        };
        let (limits, on_reset) = (SessionLimits::DEFAULT, PortResetPolicy::ResetDevice);
        match Exporter::restore(now, limits, on_reset, remote, RemoteUsb::in_flight_of, &mut reader) {
            Ok(exporter) => Ok((importer, exporter)),
            Err((mut remote, reject)) => {
                remote.hand_over();
                Err(reject)
            }
        }
    }

    /// Damages a snapshot: it must be refused, or its restored user must keep working. Returns whether it was refused.
    pub fn spoil(world: &mut World<Self>, random: &mut Random) -> bool {
        let now = world.now;
        let mut saved = Self::saved(world);
        for _ in 0..1 + random.below(3) {
            let part = random.below(2) as usize;
            spoil(&mut saved[part], random);
        }
        let Ok((mut importer, mut exporter)) = Self::restored(now, &saved) else { return true };
        let hello = importer.hello(0);
        assert_eq!(hello.position.lane, 0);
        let _ = exporter.advance(now, &mut Nothing);
        exporter.with_device(now, |remote, done| {
            Device::reset(remote, now, done);
            remote.handle_renewed(now, done);
            remote.handle_over(AttachmentEndCause::Gone, "enough", done);
        });
        let _ = exporter.advance(now, &mut Nothing);
        while exporter.has_transmit() {
            let count = exporter.poll_transmit().iter().map(|run| run.len()).sum();
            exporter.handle_transmitted(count);
        }
        assert_eq!(exporter.device().unwrap().in_flight(), 0, "everything was answered");
        exporter.finish(now);
        false
    }

    fn exporter(&self) -> &Exporter<RemoteUsb> {
        self.exporter.as_ref().unwrap()
    }

    fn device<T>(&mut self, now: Instant, act: impl FnOnce(&mut RemoteUsb, &mut CompletionQueue) -> T) -> T {
        self.exporter.as_mut().unwrap().with_device(now, act).unwrap()
    }

    /// The kernel's device, once it was imported.
    fn client(&mut self) -> &mut RemoteDevice {
        let descriptors = self.exporter.as_ref().unwrap().device().unwrap().descriptors().clone();
        self.client.get_or_insert_with(|| {
            let mut handshake = ImportHandshake::import(SessionLimits::DEFAULT, "1-1");
            let count: usize = handshake.poll_transmit().iter().map(|run| run.len()).sum();
            handshake.handle_transmitted(count);
            let mut reply = [0x01, 0x11, 0, 3, 0, 0, 0, 0].to_vec();
            record().encode(false, &mut reply);
            handshake.receive_space()[..reply.len()].copy_from_slice(&reply);
            let greeting = handshake.handle_received(reply.len()).unwrap();
            let Some(HandshakeAnswer::Imported(record)) = greeting else { panic!("imported, not {greeting:?}") };
            let mut client = handshake.into_device(record);
            client.set_descriptors(descriptors);
            client
        })
    }

    /// Carries up to `most` bytes in each direction of each step.
    fn carry(&mut self, now: Instant, most: usize, done: &mut CompletionQueue) {
        self.client();
        let (client, exporter) = (self.client.as_mut().unwrap(), self.exporter.as_mut().unwrap());
        let mut bytes: Vec<u8> = client.poll_transmit().iter().map(|run| &**run).collect::<Vec<_>>().concat();
        bytes.truncate(most);
        client.handle_transmitted(bytes.len(), done);
        self.up.extend(bytes);
        let space = exporter.receive_space();
        let count = self.up.len().min(most).min(space.len());
        for (to, from) in space.iter_mut().zip(self.up.drain(..count)) {
            *to = from;
        }
        exporter.handle_received(count);
        exporter.advance(now, &mut Nothing).expect("a kernel that behaves");
        let mut bytes: Vec<u8> = exporter.poll_transmit().iter().map(|run| &**run).collect::<Vec<_>>().concat();
        bytes.truncate(most);
        exporter.handle_transmitted(bytes.len());
        self.down.extend(bytes);
        let space = client.receive_space();
        let count = self.down.len().min(most).min(space.len());
        for (to, from) in space.iter_mut().zip(self.down.drain(..count)) {
            *to = from;
        }
        client.handle_received(count, done).expect("an exporter that behaves");
    }
}

impl Driver for Kernel {
    const RESETS_AT_ONCE: bool = false;

    fn remote(&self) -> &RemoteUsb {
        self.exporter().device().unwrap()
    }

    fn submit(&mut self, now: Instant, urb: UrbInFlight, done: &mut CompletionQueue) {
        self.client().submit(now, urb, done);
    }

    fn cancel(&mut self, now: Instant, id: UrbId, done: &mut CompletionQueue) {
        self.client().cancel(now, id, done);
    }

    fn reset(&mut self, _now: Instant, _done: &mut CompletionQueue) {
        unreachable!("USB/IP has no word for it");
    }

    fn pump(&mut self, now: Instant, is_all: bool, done: &mut CompletionQueue) {
        if is_all {
            for _ in 0..8 {
                self.carry(now, usize::MAX, done);
            }
        } else {
            let most = self.random.pick(&[1, 47, 48, 49, 1000, 70_000, usize::MAX]);
            self.carry(now, most, done);
        }
    }

    fn move_on(world: &mut World<Self>, is_meant: bool) {
        let saved = Self::saved(world);
        if !is_meant {
            return;
        }
        let (importer, exporter) = Self::restored(world.now, &saved).unwrap();
        let old = world.remote.exporter.replace(exporter);
        old.unwrap().hand_over().unwrap().hand_over();
        world.importer = importer;
        world.cut();
    }
}

impl ImporterAttachment for Kernel {
    type Done = CompletionQueue;

    fn attachment(&self) -> &AttachmentBase {
        self.remote().attachment()
    }

    fn attachment_mut(&mut self) -> &mut AttachmentBase {
        unreachable!("its device is used through a closure")
    }

    fn handle_arrived(
        &mut self,
        now: Instant,
        arrived: ReceivedFrame,
        _done: &mut CompletionQueue,
    ) -> Result<(), ProtocolViolation> {
        self.device(now, |remote, done| remote.handle_arrived(now, arrived, done))
    }

    fn handle_renewed(&mut self, now: Instant, _done: &mut CompletionQueue) {
        self.device(now, |remote, done| remote.handle_renewed(now, done));
    }

    /// Its devices are all of one exporter.
    fn note_exporter(&mut self, _incarnation: u64) {}

    fn handle_over(&mut self, cause: AttachmentEndCause, message: &str, _done: &mut CompletionQueue) {
        self.device(Instant::ZERO, |remote, done| remote.handle_over(cause, message, done));
    }

    fn poll_message(&mut self) -> Option<OutboundMessage> {
        self.device(Instant::ZERO, |remote, _| remote.poll_message())
    }

    fn use_lanes(&mut self, usable: LaneSet) {
        self.device(Instant::ZERO, |remote, _| remote.use_lanes(usable));
    }

    fn close(&mut self) {
        self.device(Instant::ZERO, |remote, _| remote.close());
    }
}

/// Offers no list and no import, because a kernel asks for neither.
struct Nothing;

impl<D> ExportOffers<D> for Nothing {
    fn list(&mut self) -> Vec<DeviceRecord> {
        Vec::new()
    }

    fn claim(&mut self, _bus_id: &str) -> Result<(DeviceRecord, D), OpStatus> {
        Err(OpStatus::NotAvailable)
    }
}
