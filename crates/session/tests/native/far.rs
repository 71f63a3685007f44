//! A user of the device, with a layer that hides its distance.

use std::time::Duration;

use farbus_model::{CompletionQueue, Device, Instant, UrbId, UrbInFlight};
use farbus_session::far::{FarLayer, FarLayerConfig};
use farbus_session::native::{
    AttachmentBase, AttachmentState, ImporterAttachment, ImporterSession, MovableAttachment, RemoteUsb,
};
use farbus_session::{ProtocolViolation, snapshot};
use farbus_wire::native::control::AttachmentEndCause;
use farbus_wire::native::{LaneSet, OutboundMessage, ReceivedFrame};
use farbus_wire::snapshot::SnapshotWriter;

use crate::kernel::KIND;
use crate::random::Random;
use crate::recorded;
use crate::usb::Driver;
use crate::world::{LIMITS, World, spoil};

/// Receives ahead wherever that is allowed.
const PLAN: FarLayerConfig = FarLayerConfig { near_max: Duration::ZERO, ..FarLayerConfig::within(256) };

pub struct Near(FarLayer<RemoteUsb>);

impl Near {
    pub fn new(remote: RemoteUsb) -> Self {
        Self(FarLayer::new(remote, PLAN))
    }

    fn saved(world: &mut World<Self>) -> Vec<u8> {
        let now = world.now;
        let mut to = SnapshotWriter::new(KIND);
        let mut nobody = CompletionQueue::new(farbus_model::BufferPool::new(0));
        world.remote.0.act(now, &mut nobody, |remote, _| world.importer.save(now, remote, &mut to));
        assert!(nobody.is_empty(), "writing it down ends nothing");
        world.remote.0.save(&mut to);
        let saved = to.into_bytes();
        recorded::note("far", &[&saved]);
        saved
    }

    /// Checks that a snapshot of an earlier release is read completely.
    pub fn is_read(now: Instant, saved: &[u8]) -> Result<(), ProtocolViolation> {
        let (_, far) = Self::restored(now, saved)?;
        far.hand_over().hand_over();
        Ok(())
    }

    fn restored(now: Instant, saved: &[u8]) -> Result<(ImporterSession, FarLayer<RemoteUsb>), ProtocolViolation> {
        let mut from = snapshot::open(saved, KIND)?;
        let (importer, remote) = ImporterSession::restore::<RemoteUsb>(now, LIMITS, &mut from)?;
        let requests = remote.in_flight_of();
        let far = FarLayer::restore(now, remote, PLAN, requests, &mut from).map_err(|(mut remote, reject)| {
            remote.hand_over();
            reject
        })?;
        match from.end("snapshot") {
            Ok(()) => Ok((importer, far)),
            Err(reject) => {
                far.hand_over().hand_over();
                Err(reject)
            }
        }
    }

    /// Damages a snapshot: it must be refused, or its restored user must keep working. Returns whether it was refused.
    pub fn spoil(world: &mut World<Self>, random: &mut Random) -> bool {
        let mut saved = Self::saved(world);
        for _ in 0..1 + random.below(3) {
            spoil(&mut saved, random);
        }
        let Ok((mut importer, mut far)) = Self::restored(world.now, &saved) else { return true };
        assert_eq!(importer.hello(0).position.lane, 0);
        let mut done = CompletionQueue::new(farbus_model::BufferPool::new(0));
        far.act(world.now, &mut done, |remote, done| remote.handle_renewed(world.now, done));
        far.act(world.now, &mut done, |remote, done| remote.handle_over(AttachmentEndCause::Gone, "enough", done));
        let left = far.in_flight_of(far.device().in_flight_of());
        assert!(left.is_empty(), "everything was answered: {left:?}");
        false
    }
}

impl Driver for Near {
    const RESETS_AT_ONCE: bool = true;
    const HAS_ONE_LENGTH: bool = true;

    fn remote(&self) -> &RemoteUsb {
        self.0.device()
    }

    fn owes(&self) -> usize {
        self.0.in_flight_of(self.remote().in_flight_of()).len()
    }

    fn submit(&mut self, now: Instant, urb: UrbInFlight, done: &mut CompletionQueue) {
        Device::submit(&mut self.0, now, urb, done);
    }

    fn cancel(&mut self, now: Instant, id: UrbId, done: &mut CompletionQueue) {
        Device::cancel(&mut self.0, now, id, done);
    }

    fn reset(&mut self, now: Instant, done: &mut CompletionQueue) {
        Device::reset(&mut self.0, now, done);
    }

    fn pump(&mut self, now: Instant, _is_all: bool, done: &mut CompletionQueue) {
        if *self.remote().state() == AttachmentState::Open {
            self.0.begin(now, done);
        }
    }

    fn move_on(world: &mut World<Self>, is_meant: bool) {
        let saved = Self::saved(world);
        if !is_meant {
            return;
        }
        let (importer, far) = Self::restored(world.now, &saved).unwrap();
        std::mem::replace(&mut world.remote.0, far).hand_over().hand_over();
        world.importer = importer;
        world.cut();
    }
}

impl ImporterAttachment for Near {
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
        done: &mut CompletionQueue,
    ) -> Result<(), ProtocolViolation> {
        self.0.act(now, done, |remote, done| remote.handle_arrived(now, arrived, done))
    }

    fn handle_renewed(&mut self, now: Instant, done: &mut CompletionQueue) {
        self.0.act(now, done, |remote, done| remote.handle_renewed(now, done));
    }

    /// Its devices are all of one exporter.
    fn note_exporter(&mut self, _incarnation: u64) {}

    fn handle_over(&mut self, cause: AttachmentEndCause, message: &str, done: &mut CompletionQueue) {
        self.0.act(Instant::ZERO, done, |remote, done| remote.handle_over(cause, message, done));
    }

    fn poll_message(&mut self) -> Option<OutboundMessage> {
        let mut nobody = CompletionQueue::new(farbus_model::BufferPool::new(0));
        let message = self.0.act(Instant::ZERO, &mut nobody, |remote, _| remote.poll_message());
        assert!(nobody.is_empty(), "speaking ends nothing");
        message
    }

    fn poll_timeout(&self) -> Option<Instant> {
        Device::poll_timeout(&self.0)
    }

    fn handle_timeout(&mut self, now: Instant, done: &mut CompletionQueue) {
        Device::handle_timeout(&mut self.0, now, done);
    }

    fn use_lanes(&mut self, usable: LaneSet) {
        let mut nobody = CompletionQueue::new(farbus_model::BufferPool::new(0));
        self.0.act(Instant::ZERO, &mut nobody, |remote, _| remote.use_lanes(usable));
    }

    fn close(&mut self) {
        let mut nobody = CompletionQueue::new(farbus_model::BufferPool::new(0));
        self.0.act(Instant::ZERO, &mut nobody, |remote, _| remote.close());
    }
}
