//! A disk as a file, in a FUSE file system with one file. It needs no USB support in the kernel.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use farbus_control::units::format_bytes;
use farbus_io_linux::frontend::fuse::{DiskMount, MountHealth, UnservedMount};
use farbus_io_net::link::{Link, PollInterest, wait};
use farbus_io_net::saving::SavedAttachment;
use tracing::warn;

use super::shown_disk::{CountedDisk, DiskFacts};
use super::{
    AttachRequest, Attachment, AttachmentEnd, AttachmentFacts, AttachmentHandle, AttachmentIntroduction, FrontEnd,
    FrontEndPreparation, FrontEndRequirement, RestoredAttachment, StopSignal,
};
use crate::broker::SystemAccess;
use crate::common::write_out::write_out_file_systems;
use crate::frontend::open_users::OpenUsers;
use crate::importer::client::{ClientError, DeviceTarget, ImporterClient, local};
use crate::importer::disk::{DiskConnection, OpenedDisk};
use crate::importer::port::DeviceCutter;
use crate::importer::port::session::{PortWatchOutcome, SessionPort};
use crate::importer::session::status::SessionStatus;
use crate::link::meters::EngineMeters;

/// The name of the file in the mounted folder.
const DISK_FILE: &str = "disk.img";
/// How long a disk may take to become durable when its attachment ends.
const FLUSH_TIME_MAX: Duration = Duration::from_secs(30);
/// How often a session is checked that has no link or is busy with a request.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// How long programs may take to close the file when the attachment ends.
const RELEASE_TIME_MAX: Duration = Duration::from_secs(10);

/// `--via fuse`: the disk appears as a file.
pub struct FuseFrontEnd;

impl FrontEnd for FuseFrontEnd {
    fn name(&self) -> &'static str {
        "fuse"
    }

    fn summary(&self) -> &'static str {
        "As a file"
    }

    fn has_path(&self) -> bool {
        true
    }

    fn is_for_disks(&self) -> bool {
        true
    }

    fn needs(&self, request: &AttachRequest) -> Vec<FrontEndRequirement> {
        vec![FrontEndRequirement::Mount(request.folder())]
    }

    fn take(
        &self,
        client: &ImporterClient,
        request: &AttachRequest,
        _: &mut FrontEndPreparation,
    ) -> Result<Box<dyn Attachment>, ClientError> {
        let disk = OpenedDisk::open(client, &request.target, request.mode)?;
        Ok(Box::new(FileAttachment::over(disk, &request.target, client.system(), &request.folder())?))
    }

    fn manner(&self, request: &AttachRequest) -> String {
        format!("fuse at {}, {}", request.folder().display(), request.mode.as_str())
    }

    fn restore(
        &self,
        client: &ImporterClient,
        request: &AttachRequest,
        _: &[u32],
        mut saved: SavedAttachment,
    ) -> Result<Box<dyn RestoredAttachment>, ClientError> {
        let medium = saved.medium.take();
        let mut known = None;
        let resting = UnservedMount::restore(saved, |device| {
            let (disk, pending) = OpenedDisk::restore(client, &request.target, device, medium)?;
            let (disk, device, clock, way) = DiskFacts::of(disk);
            let meters = Arc::<EngineMeters>::default();
            let device = Box::new(CountedDisk::new(device, Arc::clone(&meters)));
            known = Some((disk, way, meters));
            Ok((device as _, pending, clock))
        });
        let (resting, (disk, way, meters)) = (resting.map_err(local)?, known.expect("its device was restored"));
        Ok(Box::new(RestoredFile { resting, disk, way, meters, target: request.target.clone() }))
    }
}

/// A disk of another machine that is a file here. Another thread serves the file.
pub struct FileAttachment {
    mount: DiskMount,
    disk: DiskFacts,
    way: DiskConnection,
    meters: Arc<EngineMeters>,
    target: DeviceTarget,
    stop: StopSignal,
}

/// A file that another process showed and that is not served at present.
struct RestoredFile {
    resting: UnservedMount,
    disk: DiskFacts,
    way: DiskConnection,
    meters: Arc<EngineMeters>,
    target: DeviceTarget,
}

impl FileAttachment {
    /// Shows an open disk in the folder `at`, which is created if it is missing.
    ///
    /// # Errors
    /// [`ClientError::Local`].
    pub fn over(
        disk: OpenedDisk,
        target: &DeviceTarget,
        system: &SystemAccess,
        at: &Path,
    ) -> Result<Self, ClientError> {
        let (disk, device, clock, way) = DiskFacts::of(disk.with_any_byte());
        let meters = Arc::<EngineMeters>::default();
        let device = Box::new(CountedDisk::new(device, Arc::clone(&meters)));
        let mount = DiskMount::mount_by(system, at, DISK_FILE, device, clock).map_err(local)?;
        Self::at(mount, disk, way, meters, target.clone())
    }

    fn at(
        mount: DiskMount,
        disk: DiskFacts,
        way: DiskConnection,
        meters: Arc<EngineMeters>,
        target: DeviceTarget,
    ) -> Result<Self, ClientError> {
        Ok(Self { mount, disk, way, meters, target, stop: StopSignal::new().map_err(local)? })
    }

    /// The path of the disk's file.
    pub fn file(&self) -> &Path {
        self.mount.file()
    }

    /// Watches a session's link while no request is under way; during a request the session watches it itself.
    fn watch_session(&self, port: &SessionPort) -> AttachmentEnd {
        loop {
            let seen = port.look();
            if let PortWatchOutcome::Ended(end) = seen {
                return AttachmentEnd::by(&end);
            }
            let pause = match &seen {
                PortWatchOutcome::Linked(_) => None,
                PortWatchOutcome::Busy | PortWatchOutcome::Unlinked | PortWatchOutcome::Ended(_) => Some(LOOK_AGAIN),
            };
            let mut interests =
                vec![PollInterest::new(self.mount.event(), false), PollInterest::new(self.stop.wake().as_fd(), false)];
            if let PortWatchOutcome::Linked(link) = &seen {
                interests.push(PollInterest::hangup(link.as_fd()));
            }
            if let Err(error) = wait(&mut interests, pause) {
                return AttachmentEnd::Lost(error.to_string());
            }
            if interests[1].readable && self.stop.was_asked() {
                return AttachmentEnd::Requested;
            }
            if interests[0].readable {
                return self.end_of_mount("the disk failed, or the way to it broke");
            }
        }
    }

    /// Waits for the end of the mount, and of `link` if the device cannot outlive it.
    fn watch(&self, link: Option<&Link>) -> AttachmentEnd {
        loop {
            let mut interests =
                vec![PollInterest::new(self.mount.event(), false), PollInterest::new(self.stop.wake().as_fd(), false)];
            interests.extend(link.map(|link| PollInterest::hangup(link.as_fd())));
            if let Err(error) = wait(&mut interests, None) {
                return AttachmentEnd::Lost(error.to_string());
            }
            if interests[1].readable && self.stop.was_asked() {
                return AttachmentEnd::Requested;
            }
            let is_link_over = interests.get(2).is_some_and(|on_link| on_link.readable);
            if is_link_over || interests[0].readable {
                return self.end_of_mount("the exporter ended the connection, or the way to it broke");
            }
        }
    }

    fn end_of_mount(&self, why: &str) -> AttachmentEnd {
        match (self.mount.health(), self.disk.session.as_ref().and_then(SessionStatus::end)) {
            (MountHealth::Ended, None) => AttachmentEnd::Released,
            (_, Some(end)) => AttachmentEnd::by(&end),
            (_, None) => AttachmentEnd::Lost(why.into()),
        }
    }

    /// Unmounts. Returns a message if written data may be lost.
    fn take_away(&mut self, has_ended: bool) -> Option<String> {
        if has_ended && !self.mount.is_handed_over() {
            self.mount.cutter().cut();
        }
        if !has_ended && self.mount.open_count() > 0 && !write_out_file_systems(FLUSH_TIME_MAX) {
            warn!("file systems have not written everything out in time");
        }
        let mut lost = None;
        match self.mount.unmount_within(FLUSH_TIME_MAX) {
            Ok(result) => {
                if let Err(error) = result.flushed {
                    warn!(%error, "the last writes may not be durable");
                    lost = Some(format!("the last writes may not be durable: {error}"));
                }
                if result.in_use
                    && self.mount.wait_for(MountHealth::Ended, Some(RELEASE_TIME_MAX)) != MountHealth::Ended
                {
                    warn!("programs still have the disk open; they get errors from now on");
                    let count = self.mount.open_count();
                    lost.get_or_insert(format!("what {count} programs that still have it open had not written out"));
                }
            }
            Err(error) => warn!(%error, "the folder stays mounted"),
        }
        lost
    }
}

impl Attachment for FileAttachment {
    fn status(&self) -> AttachmentFacts {
        let (file, disk) = (self.file().display().to_string(), &self.disk);
        let (size, words) = (format_bytes(disk.size_bytes), disk.mode_words());
        let line = format!("{} attached as {file} ({size}{words})", self.target.shown());
        let next =
            format!("losetup --direct-io=on -f --show {file}, or qemu-system-x86_64 -drive file={file},format=raw");
        AttachmentFacts {
            introduction: AttachmentIntroduction { line, next: Some(next), export: None },
            at: file,
            how: "via fuse, as a USB disk",
            mode: Some(disk.mode),
            port: None,
            local_address: disk.local_address,
        }
    }

    fn handle(&self) -> AttachmentHandle {
        let (mount, disk, files) = (self.mount.cutter(), self.disk.cutter.clone(), self.mount.open_files());
        let cutter = DeviceCutter::new(move || {
            mount.cut();
            // Requests under way end too: no thread continues to wait for a link.
            disk.cut();
        });
        self.disk
            .steered_by(AttachmentHandle::new(self.stop.clone()))
            .cutting_by(cutter)
            .metered_by(Arc::clone(&self.meters))
            .saving_by(self.disk.is_movable.then(|| self.mount.save_requester()))
            .used_by(OpenUsers::new(
                move || files.count(),
                "a program has its file open",
                "programs have its file open",
            ))
    }

    fn run(mut self: Box<Self>) -> AttachmentEnd {
        let ended = match &self.way {
            DiskConnection::Link(link) => self.watch(Some(link)),
            DiskConnection::Device { .. } => self.watch(None),
            DiskConnection::Port(port) => self.watch_session(port),
        };
        let lost =
            self.take_away(matches!(ended, AttachmentEnd::Lost(_) | AttachmentEnd::Over(_) | AttachmentEnd::Moved));
        if self.mount.is_handed_over() {
            return AttachmentEnd::HandedOver;
        }
        if let AttachmentEnd::Requested | AttachmentEnd::Released = ended {
            self.way.give_back();
        }
        // Other owners of a cutter hold the link open; cutting ends it for the exporter, too.
        self.disk.cutter.cut();
        match (ended, lost) {
            (AttachmentEnd::Requested | AttachmentEnd::Released, Some(lost)) => AttachmentEnd::Undurable(lost),
            (ended, _) => ended,
        }
    }
}

impl RestoredAttachment for RestoredFile {
    fn go_on(self: Box<Self>, system: &SystemAccess) -> Result<Box<dyn Attachment>, ClientError> {
        let Self { resting, disk, way, meters, target } = *self;
        match system.keep_mount(resting.at()) {
            Ok(keeper) => {
                let mount = resting.go_on(keeper).map_err(local)?;
                Ok(Box::new(FileAttachment::at(mount, disk, way, meters, target)?))
            }
            Err(error) => {
                resting.leave();
                Err(local(error))
            }
        }
    }

    fn leave(self: Box<Self>) {
        self.resting.leave();
    }
}
