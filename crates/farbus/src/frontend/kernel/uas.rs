//! A remote disk as the disk that the kernel drives fastest: a USB Attached SCSI gadget, which takes many commands at a
//! time, whatever the exporter's disk is.

use farbus_io_net::saving::SavedAttachment;
use farbus_session::snapshot;
use tracing::debug;

use super::attachment::{KernelSocketPair, restore, restore_device, take_device};
use crate::frontend::kernel::uas_relay::{DEVICE_ID, DiskRelay};
use crate::frontend::{
    AttachRequest, Attachment, FrontEnd, FrontEndPreparation, FrontEndRequirement, RestoredAttachment, StopSignal,
};
use crate::importer::client::{ClientError, DeviceTarget, ImporterClient, local};
use crate::importer::disk::{DiskMode, OpenedDisk};
use crate::importer::options::ahead::PrefetchMode;

/// Kind of its snapshots.
const SNAPSHOT_KIND: u16 = 12;

/// `--via uas`: a gadget disk.
pub struct UasFrontEnd;

impl FrontEnd for UasFrontEnd {
    fn name(&self) -> &'static str {
        "uas"
    }

    fn summary(&self) -> &'static str {
        "Through vhci-hcd, as a disk of ours"
    }

    fn is_for_disks(&self) -> bool {
        true
    }

    fn needs(&self, _: &AttachRequest) -> Vec<FrontEndRequirement> {
        vec![FrontEndRequirement::Kernel]
    }

    fn take(
        &self,
        client: &ImporterClient,
        request: &AttachRequest,
        _: &mut FrontEndPreparation,
    ) -> Result<Box<dyn Attachment>, ClientError> {
        take_disk(client, &request.target, request.mode)
    }

    fn manner(&self, request: &AttachRequest) -> String {
        format!("uas, {}", request.mode.as_str())
    }

    fn restore(
        &self,
        client: &ImporterClient,
        request: &AttachRequest,
        ports: &[u32],
        saved: SavedAttachment,
    ) -> Result<Box<dyn RestoredAttachment>, ClientError> {
        restore_disk(client, &request.target, ports, saved)
    }
}

/// What [`Auto`](crate::frontend::auto::AutoFrontEnd) chooses if the kernel accepts devices: the faster of two ways.
///
/// | the device is | the kernel gets |
/// |---|---|
/// | a Bulk-Only disk and nothing else, on a host with sessions that serves it as a block device | a gadget disk: `uas` is faster nearby, and many times faster from far away |
/// | anything else, or a device whose distance is not to be hidden (`--ahead off`) | the device itself |
pub struct FastestKernelFrontEnd;

impl FrontEnd for FastestKernelFrontEnd {
    fn name(&self) -> &'static str {
        "auto"
    }

    fn summary(&self) -> &'static str {
        "Through vhci-hcd, whichever way is quicker"
    }

    fn needs(&self, _: &AttachRequest) -> Vec<FrontEndRequirement> {
        vec![FrontEndRequirement::Kernel]
    }

    fn take(
        &self,
        client: &ImporterClient,
        request: &AttachRequest,
        _: &mut FrontEndPreparation,
    ) -> Result<Box<dyn Attachment>, ClientError> {
        let target = &request.target;
        if client.config().prefetch == PrefetchMode::Auto && client.is_lone_disk(target)? {
            match take_disk(client, target, DiskMode::Exclusive) {
                // No medium, several units, no block device at the exporter: with the device itself the kernel sees
                // what it is.
                Err(error @ (ClientError::Device { .. } | ClientError::Untrusted { .. } | ClientError::Local(_))) => {
                    debug!(%error, "not a disk of ours");
                }
                taken => return taken,
            }
        }
        take_device(client, target)
    }

    fn takes_twins(&self) -> bool {
        true
    }

    fn manner(&self, _: &AttachRequest) -> String {
        "kernel".to_owned()
    }

    fn restore(
        &self,
        client: &ImporterClient,
        request: &AttachRequest,
        ports: &[u32],
        saved: SavedAttachment,
    ) -> Result<Box<dyn RestoredAttachment>, ClientError> {
        match snapshot::open(&saved.snapshot, SNAPSHOT_KIND).is_ok() {
            true => restore_disk(client, &request.target, ports, saved),
            false => restore_device(client, &request.target, ports, saved),
        }
    }
}

fn take_disk(
    client: &ImporterClient,
    target: &DeviceTarget,
    mode: DiskMode,
) -> Result<Box<dyn Attachment>, ClientError> {
    let socket = KernelSocketPair::open(client)?;
    let disk = OpenedDisk::open(client, target, mode)?;
    let relay = |kernel| DiskRelay::new(kernel, disk, target);
    let stop = StopSignal::new().map_err(local)?;
    socket.plug(client, target, relay, |relay| (DEVICE_ID, relay.speed()), (SNAPSHOT_KIND, stop))
}

fn restore_disk(
    client: &ImporterClient,
    target: &DeviceTarget,
    ports: &[u32],
    mut saved: SavedAttachment,
) -> Result<Box<dyn RestoredAttachment>, ClientError> {
    let (medium, stop) = (saved.medium.take(), StopSignal::new().map_err(local)?);
    restore(client, target, (SNAPSHOT_KIND, ports, stop), saved, |reader, socket| {
        DiskRelay::restore(reader, (socket, medium), client, target).map_err(local)
    })
}
