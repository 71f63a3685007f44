//! What a front end knows of a disk that it shows, besides the device itself.

use std::net::SocketAddr;
use std::sync::Arc;

use farbus_io_net::link::BoottimeClock;
use farbus_model::{BlockCompletion, BlockDevice, BlockInFlight, BlockOp, CompletionQueue, Instant};

use super::AttachmentHandle;
use crate::importer::disk::{DiskConnection, DiskMode, OpenedDisk};
use crate::importer::disk_swap::DiskSwap;
use crate::importer::port::DeviceCutter;
use crate::importer::session::status::SessionStatus;
use crate::link::meters::EngineMeters;

/// A disk whose requests are counted.
pub struct CountedDisk {
    device: Box<dyn BlockDevice>,
    meters: Arc<EngineMeters>,
}

impl CountedDisk {
    /// Counts in `meters` what is asked of `device`.
    pub fn new(device: Box<dyn BlockDevice>, meters: Arc<EngineMeters>) -> Self {
        Self { device, meters }
    }
}

impl farbus_model::BlockLayer for CountedDisk {
    type Inner = dyn BlockDevice;

    fn inner(&self) -> &Self::Inner {
        &*self.device
    }

    fn inner_mut(&mut self) -> &mut Self::Inner {
        &mut *self.device
    }

    fn submit(&mut self, now: Instant, request: BlockInFlight, done: &mut CompletionQueue<BlockCompletion>) {
        let bytes = u64::from(request.length);
        match request.op {
            BlockOp::Read => self.meters.add_request(bytes, 0),
            BlockOp::Write => self.meters.add_request(0, bytes),
            _ => self.meters.add_request(0, 0),
        }
        BlockDevice::submit(&mut *self.device, now, request, done);
    }
}

/// The facts about a disk that do not change while it is shown.
pub struct DiskFacts {
    /// The disk's size, bytes.
    pub size_bytes: u64,
    /// How it is used.
    pub mode: DiskMode,
    /// The local address of the link, which identifies the user to the exporter; `None` in a session.
    pub local_address: Option<SocketAddr>,
    /// Its session, if it is in one.
    pub session: Option<SessionStatus>,
    /// Takes it from its users without waiting.
    pub cutter: DeviceCutter,
    /// Exchanges it for a disk of this machine, if it can be.
    pub swap: Option<DiskSwap>,
    /// Whether a replacement process can continue with it.
    pub is_movable: bool,
}

impl DiskFacts {
    /// Takes an open disk apart: the facts about it, the device, the device's clock, and what to watch meanwhile.
    pub fn of(disk: OpenedDisk) -> (Self, Box<dyn BlockDevice>, BoottimeClock, DiskConnection) {
        let (size_bytes, mode, local_address) = (disk.device.info().size_bytes, disk.mode(), disk.local_address());
        let is_movable = disk.is_movable();
        let OpenedDisk { device, clock, way, cutter, status: session, swap } = disk;
        (Self { size_bytes, mode, local_address, session, cutter, swap, is_movable }, device, clock, way)
    }

    /// Adds to `handle` what the disk and its session can do.
    pub fn steered_by(&self, handle: AttachmentHandle) -> AttachmentHandle {
        handle.in_session(self.session.clone()).swapping_by(self.swap.clone())
    }

    /// `, to be read` if the disk is used read-only.
    pub const fn mode_words(&self) -> &'static str {
        match self.mode {
            DiskMode::Exclusive => "",
            DiskMode::Read => ", to be read",
        }
    }
}
