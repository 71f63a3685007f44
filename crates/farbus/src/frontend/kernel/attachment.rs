//! A device in this machine's kernel: plugged into a port of `vhci_hcd`.
//!
//! The kernel's messages arrive on a socket pair, and only answers that the protocol allows go back (CVE-2026-31607).
//! farbus carries each of them, also to an exporter that speaks plain USB/IP alone: the kernel never has the exporter's
//! socket. One of two relays lies between the kernel and the device:
//!
//! | relay | the device is | it outlives its link | a replacement can continue it | a twin can replace it |
//! |---|---|---|---|---|
//! | [`DeviceRelay`] | over plain USB/IP | no | no | yes |
//! | [`DeviceRelay`] | in a session | yes | yes | yes |
//! | [`DiskRelay`](super::uas_relay::DiskRelay) | a disk in a session, shown as a USB Attached SCSI gadget | yes | yes | the disk moves |

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use farbus_io_linux::sys::vhci::VhciPort;
use farbus_io_net::link::{Link, PollInterest, wait_exactly};
use farbus_io_net::saving::{SaveDecision, SaveRequester, SavedAttachment};
use farbus_io_net::trust::LinkTraffic;
use farbus_model::{Device, UsbSpeed};
use farbus_session::ProtocolViolation;
use farbus_session::snapshot::{self, FieldReader, SnapshotWriter};
use tracing::warn;

use crate::broker::SystemAccess;
use crate::frontend::drivers::PortDriverLookup;
use crate::frontend::kernel::device_relay::DeviceRelay;
use crate::frontend::kernel::relay_loop::{KERNEL, KernelRelay, RelayFacts, RelayStopCause};
use crate::frontend::remote_usb::FarDevice;
use crate::frontend::usb_swap::{SwapUsb, UsbSwap};
use crate::frontend::{
    AttachRequest, Attachment, AttachmentEnd, AttachmentFacts, AttachmentHandle, AttachmentIntroduction, FrontEnd,
    FrontEndPreparation, FrontEndRequirement, RestoredAttachment, StopSignal,
};
use crate::importer::client::{ClientError, DeviceTarget, GRACE, ImporterClient, local};
use crate::link::meters::EngineMeters;

/// Kind of the snapshots of a device in a session.
const SNAPSHOT_KIND: u16 = 1;

/// `--via kernel`: the device itself.
pub struct KernelFrontEnd;

impl FrontEnd for KernelFrontEnd {
    fn name(&self) -> &'static str {
        "kernel"
    }

    fn summary(&self) -> &'static str {
        "Through vhci-hcd"
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
        take_device(client, &request.target)
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
        restore_device(client, &request.target, ports, saved)
    }
}

/// Takes `target` as it is: in a session, or over plain USB/IP if there is to be no session.
///
/// # Errors
/// [`ClientError`].
pub(super) fn take_device(client: &ImporterClient, target: &DeviceTarget) -> Result<Box<dyn Attachment>, ClientError> {
    let socket = KernelSocketPair::open(client)?;
    let device = FarDevice::open(client, target, GRACE)?;
    let of_device = (device.device_id(), Device::speed(&device));
    let stop = StopSignal::new().map_err(local)?;
    let swap = UsbSwap::new(client, target, stop.shared_wake());
    let relay = |kernel| Ok(DeviceRelay::new(kernel, SwapUsb::new(device, swap), client.config().prefetch));
    socket.plug(client, target, relay, |_| of_device, (SNAPSHOT_KIND, stop))
}

/// Restores what [`take_device`] returned in another process.
pub(super) fn restore_device(
    client: &ImporterClient,
    target: &DeviceTarget,
    ports: &[u32],
    saved: SavedAttachment,
) -> Result<Box<dyn RestoredAttachment>, ClientError> {
    let stop = StopSignal::new().map_err(local)?;
    let swap = UsbSwap::new(client, target, stop.shared_wake());
    restore(client, target, (SNAPSHOT_KIND, ports, stop), saved, |reader, socket| {
        DeviceRelay::restore(reader, socket, client.redial(target, LinkTraffic::Prompt)?, swap).map_err(local)
    })
}

/// A socket pair for the kernel, with both ends unused. It is opened before any device is taken, because it finds out
/// what this machine lacks.
pub(super) struct KernelSocketPair {
    ours: Link,
    theirs: OwnedFd,
}

impl KernelSocketPair {
    /// Makes the pair.
    ///
    /// # Errors
    /// [`ClientError::Local`]: this kernel takes no devices, or this user may not plug them in.
    pub fn open(client: &ImporterClient) -> Result<Self, ClientError> {
        client.system().may_plug().map_err(local)?;
        let (ours, theirs) = Link::pair(KERNEL).map_err(local)?;
        Ok(Self { ours, theirs })
    }

    /// Gives our end to a relay and the other end to the kernel, with the device's id and speed.
    pub fn plug<R: KernelRelay + 'static>(
        self,
        client: &ImporterClient,
        target: &DeviceTarget,
        relay: impl FnOnce(Link) -> Result<R, ClientError>,
        of: impl FnOnce(&R) -> (u32, UsbSpeed),
        (kind, stop): (u16, StopSignal),
    ) -> Result<Box<dyn Attachment>, ClientError> {
        let relay = relay(self.ours)?;
        let (device_id, speed) = of(&relay);
        let system = client.system().clone();
        let port = system.plug(self.theirs.as_fd(), device_id, speed).map_err(local)?;
        Ok(Box::new(KernelAttachment::new(relay, target, (system, port), kind, stop)))
    }
}

/// Restores an attachment that another process saved, if its snapshot has this kind and it is at one of these ports.
pub(super) fn restore<R: KernelRelay + 'static>(
    client: &ImporterClient,
    target: &DeviceTarget,
    (kind, ports, stop): (u16, &[u32], StopSignal),
    saved: SavedAttachment,
    restore: impl FnOnce(FieldReader<'_>, OwnedFd) -> Result<R, ClientError>,
) -> Result<Box<dyn RestoredAttachment>, ClientError> {
    let wrong = |reject: ProtocolViolation| ClientError::Local(reject.to_string());
    let SavedAttachment { snapshot, descriptors, .. } = saved;
    let mut reader = snapshot::open(&snapshot, kind).map_err(wrong)?;
    let port = reader.u32("port").map_err(wrong)?;
    if !ports.contains(&port) {
        return Err(ClientError::Local(format!("port {port} is not known to be its")));
    }
    let [socket] = <[OwnedFd; 1]>::try_from(descriptors)
        .map_err(|_| ClientError::Local("an attachment has its socket, and no other".into()))?;
    let relay = restore(reader, socket)?;
    let at = (client.system().clone(), VhciPort(port));
    Ok(Box::new(KernelAttachment::new(relay, target, at, kind, stop)))
}

/// A device that is plugged into this machine's kernel, and the relay to it.
pub(super) struct KernelAttachment<R> {
    relay: R,
    /// The facts about the relay that do not change.
    relayed: RelayFacts,
    target: DeviceTarget,
    system: SystemAccess,
    port: VhciPort,
    /// Kind of its snapshots.
    kind: u16,
    stop: StopSignal,
    save_requester: SaveRequester<SavedAttachment>,
    meters: Arc<EngineMeters>,
}

impl<R: KernelRelay> KernelAttachment<R> {
    /// An attachment at a port of a kernel. `stop` ends it, and its wake is rung by what else its relay has to look at.
    pub(super) fn new(
        relay: R,
        target: &DeviceTarget,
        (system, port): (SystemAccess, VhciPort),
        kind: u16,
        stop: StopSignal,
    ) -> Self {
        let save_requester = SaveRequester::new(stop.shared_wake());
        let (relayed, meters, target) = (relay.relayed(), Arc::default(), target.clone());
        Self { relay, relayed, target, system, port, kind, stop, save_requester, meters }
    }

    /// Relays until the attachment ends or a replacement process takes it over.
    fn relay(mut self) -> AttachmentEnd {
        let end = loop {
            if self.stop.hears() {
                break None;
            }
            if let Some(asker) = self.save_requester.requested() {
                let mut to = SnapshotWriter::new(self.kind);
                to.u32(self.port.0);
                match self.relay.save(&mut to) {
                    Ok(Some(socket)) => {
                        let (snapshot, descriptors) = (to.into_bytes(), vec![socket]);
                        let saved = SavedAttachment { snapshot, descriptors, medium: None };
                        if asker.part(saved) == SaveDecision::Go {
                            self.relay.hand_over();
                            return AttachmentEnd::HandedOver;
                        }
                    }
                    // No answer tells the asking thread that it cannot be saved.
                    Ok(None) => {}
                    Err(end) => break Some(end),
                }
            }
            if let Err(end) = self.relay.turn(PollInterest::new(self.stop.wake().as_fd(), false), &self.meters) {
                break Some(end);
            }
        };
        let is_durable = self.relay.close();
        self.relayed.usb_swap.iter().for_each(UsbSwap::finish);
        match end.map_or(AttachmentEnd::Requested, ended_by) {
            AttachmentEnd::Requested | AttachmentEnd::Released if !is_durable => {
                AttachmentEnd::Undurable("the last writes may not be durable".into())
            }
            ended => ended,
        }
    }
}

/// Maps the reason why a relay stopped to the end of its attachment.
fn ended_by(stop: RelayStopCause) -> AttachmentEnd {
    match stop {
        RelayStopCause::Released => AttachmentEnd::Released,
        RelayStopCause::Fault(fault) => AttachmentEnd::Lost(format!("the kernel said what it should not: {fault}")),
        RelayStopCause::Ended(ended) => *ended,
        RelayStopCause::Gone => AttachmentEnd::Lost("the device is gone".into()),
    }
}

impl<R: KernelRelay> Attachment for KernelAttachment<R> {
    fn status(&self) -> AttachmentFacts {
        let at = format!("vhci port {}", self.port.0);
        AttachmentFacts {
            introduction: AttachmentIntroduction {
                line: format!("{} attached at {at}", self.target.shown()),
                ..AttachmentIntroduction::default()
            },
            at,
            how: self.relayed.how,
            mode: self.relayed.mode,
            port: Some(self.port),
            local_address: self.relayed.local_address,
        }
    }

    fn handle(&self) -> AttachmentHandle {
        let RelayFacts { session, cutter, swap, usb_swap, is_movable, .. } = self.relayed.clone();
        let handle = AttachmentHandle::new(self.stop.clone())
            .in_session(session)
            .swapping_by(swap)
            .saving_by(is_movable.then(|| self.save_requester.clone()))
            .metered_by(Arc::clone(&self.meters))
            .driven_by(PortDriverLookup::on(self.port, self.system.clone(), self.relayed.lacks_streams));
        let handle = match usb_swap {
            Some(swap) => handle.swapping_usb_by(swap),
            None => handle,
        };
        match cutter {
            Some(cutter) => handle.cutting_by(cutter),
            None => handle,
        }
    }

    /// Relays until the attachment ends, then unplugs the device.
    fn run(self: Box<Self>) -> AttachmentEnd {
        wait_exactly();
        let (system, port) = (self.system.clone(), self.port);
        let ended = self.relay();
        if !matches!(ended, AttachmentEnd::HandedOver | AttachmentEnd::Released)
            && let Err(error) = system.unplug(port)
        {
            warn!(%error, "the kernel did not let go of its port");
        }
        ended
    }
}

impl<R: KernelRelay> RestoredAttachment for KernelAttachment<R>
where
    R: 'static,
{
    fn go_on(self: Box<Self>, _: &SystemAccess) -> Result<Box<dyn Attachment>, ClientError> {
        Ok(self)
    }

    fn leave(self: Box<Self>) {
        self.relay.hand_over();
    }
}
