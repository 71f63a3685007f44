//! The relay between this machine's kernel and a remote disk that is a disk of ours there: one that takes many commands at a time
//! (USB Attached SCSI), whatever its exporter has.

use std::time::Duration;

use farbus_gadgets::Emulated;
use farbus_gadgets::storage::{AttachedScsi, Options};
use farbus_io::link::{Interest, Link, Watched, wait};
use farbus_model::{Command, Device, Limits, Speed};
use farbus_session::{Exporter, OnReset};
use tracing::warn;

use crate::client::{ClientError, Target};
use crate::device_port::Cutter;
use crate::engine::span_until;
use crate::kernel_side::{KernelSide, Stop, Turn};
use crate::meters::Meters;
use crate::opened_disk::{DiskMode, OpenedDisk, Way};
use crate::standing::Standing;

/// What the kernel calls it: bus 1, device 1, as nothing else is on its bus.
pub const DEVICE_ID: u32 = 1 << 16 | 1;

/// How long what was written may take to be durable when it ends.
const DURABLE_TIME_MAX: Duration = Duration::from_secs(20);

/// The relay.
pub struct DiskRelay {
    side: KernelSide<Emulated<AttachedScsi>>,
    cutter: Cutter,
    standing: Option<Standing>,
    mode: DiskMode,
}

impl DiskRelay {
    /// Between a kernel and a disk that was opened.
    ///
    /// # Errors
    /// [`ClientError::Local`]: it has no sectors that a disk has, or its host has no block devices: then a driver that waits for each of its
    /// requests would be in between, and nothing gained.
    pub fn new(kernel: Link, disk: OpenedDisk, target: &Target) -> Result<Self, ClientError> {
        let mode = disk.mode();
        let OpenedDisk { device, clock, way, cutter, standing } = disk;
        if !matches!(way, Way::Device { .. }) {
            return Err(ClientError::Local(format!(
                "{target} can be had as a USB disk alone, which takes one command at a time whatever it is shown as: --via uas wants a \
                 disk of a farbus that drives it, with a session (a paired host, or --grace SECONDS)\n  \
                 try: --via kernel"
            )));
        }
        let options = Options {
            product: target.device.clone(),
            serial: Options::serial_of(&target.to_string()),
            read_only: mode == DiskMode::Read,
            ..Options::default()
        };
        let disk = AttachedScsi::device(device, options).map_err(|error| {
            ClientError::Local(format!("{target}: no disk for a kernel: {error}\n  try: --via fuse"))
        })?;
        let exporter = Exporter::imported(clock.now(), Limits::DEFAULT, DEVICE_ID, disk, OnReset::ResetDevice);
        Ok(Self { side: KernelSide::new(kernel, exporter, clock), cutter, standing, mode })
    }

    /// The speed that it is plugged in with.
    pub fn speed(&self) -> Speed {
        self.side.device().speed()
    }

    /// How its session stands, if it has one.
    pub fn standing(&self) -> Option<Standing> {
        self.standing.clone()
    }

    /// How the disk is used.
    pub fn mode(&self) -> DiskMode {
        self.mode
    }

    /// One turn: does what can be done, waits for what comes next, on `ender` too.
    ///
    /// # Errors
    /// [`Stop`]: it was the last.
    pub fn turn(&mut self, ender: Interest<'_>, meters: &Meters) -> Turn {
        let standing = &self.standing;
        self.side.turn(ender, meters, |disk| {
            let end = standing.as_ref().and_then(Standing::end).map(Stop::Ended);
            end.or_else(|| disk.is_gone().then_some(Stop::Gone))
        })
    }

    /// Gives the disk back; what the kernel still waits for ends as gone, as far as its socket takes it.
    pub fn close(&mut self) {
        let now = self.side.clock.now();
        self.side.exporter.with_device(now, |disk, done| disk.reset(now, done));
        self.side.say_the_rest(now);
        if !self.make_durable() {
            warn!("the last writes may not be durable");
        }
        self.cutter.cut();
    }

    /// What the kernel was told is written is, where it is: whether that is known.
    fn make_durable(&mut self) -> bool {
        let clock = self.side.clock;
        let until = clock.now() + DURABLE_TIME_MAX;
        let sync = |disk: &mut Emulated<AttachedScsi>, done: &mut _| disk.command(clock.now(), &Command::Sync, done);
        if !matches!(self.side.exporter.with_device(clock.now(), sync), Some(Ok(()))) {
            return false;
        }
        loop {
            let now = clock.now();
            self.side.exporter.with_device(now, |disk, done| disk.end_turn(now, done));
            let disk = self.side.device();
            if disk.function().is_quiet() || disk.is_gone() || now >= until {
                return disk.function().is_quiet() && !disk.is_gone();
            }
            let due = disk.poll_timeout().map_or(until, |due| due.min(until));
            let on_device = disk.readiness().map(Watched::interest);
            let Some(Some(on_device)) = on_device else { return false };
            if wait(&mut [on_device], Some(span_until(due, now))).is_err() {
                return false;
            }
            let now = clock.now();
            self.side.exporter.handle_ready(now);
            if self.side.device().poll_timeout().is_some_and(|due| due <= now) {
                self.side.exporter.with_device(now, |disk, done| disk.handle_timeout(now, done));
            }
        }
    }
}
