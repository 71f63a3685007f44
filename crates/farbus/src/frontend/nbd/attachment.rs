//! A disk of another machine as an NBD export of this one.

use farbus_control::units::format_bytes;
use farbus_io_net::link::{BoottimeClock, Link};
use farbus_io_net::saving::SavedAttachment;

use super::engine::{NbdExport, NbdServer};
use super::uri::uri;
use crate::broker::SystemAccess;
use crate::common::socket_place::{SocketListener, SocketProtocol};
use crate::frontend::open_users::OpenUsers;
use crate::frontend::shown_disk::DiskFacts;
use crate::frontend::{
    AttachRequest, Attachment, AttachmentEnd, AttachmentFacts, AttachmentHandle, AttachmentIntroduction, FrontEnd,
    FrontEndPreparation, FrontEndRequirement, NbdExportAddress, RestoredAttachment,
};
use crate::importer::client::{ClientError, DeviceTarget, ImporterClient, local};
use crate::importer::disk::{DiskConnection, OpenedDisk};
use crate::importer::session::status::SessionStatus;

/// What its clients speak; IANA assigned the port.
pub const PROTOCOL: SocketProtocol = SocketProtocol { name: "NBD", word: "nbd", port: 10809, is_tcp: false };

/// `--via nbd`: an export, for programs that speak NBD.
pub struct NbdFrontEnd;

impl FrontEnd for NbdFrontEnd {
    fn name(&self) -> &'static str {
        "nbd"
    }

    fn summary(&self) -> &'static str {
        "As an NBD server's export"
    }

    fn protocol(&self) -> Option<SocketProtocol> {
        Some(PROTOCOL)
    }

    fn is_for_disks(&self) -> bool {
        true
    }

    fn takes_handed_over(&self) -> bool {
        true
    }

    fn needs(&self, request: &AttachRequest) -> Vec<FrontEndRequirement> {
        request.needs_of(PROTOCOL)
    }

    fn take(
        &self,
        client: &ImporterClient,
        request: &AttachRequest,
        prepared: &mut FrontEndPreparation,
    ) -> Result<Box<dyn Attachment>, ClientError> {
        let disk = match request.is_handed_over {
            true => OpenedDisk::inherit(client, &request.target)?,
            false => OpenedDisk::open(client, &request.target, request.mode)?,
        };
        let listener = prepared.listener(client, request, PROTOCOL)?;
        let attachment = NbdAttachment::over(disk, &request.target, listener, client.system().clone())?;
        Ok(Box::new(NbdAttachment { is_handed_over: request.is_handed_over, ..attachment }))
    }

    fn manner(&self, request: &AttachRequest) -> String {
        let (location, mode) = (request.place_of(PROTOCOL).as_host(), request.mode.as_str());
        format!("nbd at {location}, {mode}{}", request.access)
    }

    fn restore(
        &self,
        client: &ImporterClient,
        request: &AttachRequest,
        _: &[u32],
        mut saved: SavedAttachment,
    ) -> Result<Box<dyn RestoredAttachment>, ClientError> {
        let mut medium = saved.medium.take();
        let mut known = None;
        let server = NbdServer::restore(saved, &request.place_of(PROTOCOL), |device| {
            let (disk, pending) = OpenedDisk::restore(client, &request.target, device, medium.take())?;
            let (disk, offer, clock, _) = taken_apart(disk, &request.target);
            known = Some(disk);
            Ok((offer, pending, clock))
        });
        let (server, disk) = (server.map_err(local)?, known.expect("its device was restored"));
        Ok(Box::new(NbdAttachment::through(server, disk, &request.target, client.system().clone())?))
    }
}

/// A disk of another machine that programs here use by NBD.
struct NbdAttachment {
    server: NbdServer,
    disk: DiskFacts,
    target: DeviceTarget,
    uri: String,
    system: SystemAccess,
    /// Whether another host has yet to hand it over.
    is_handed_over: bool,
}

impl NbdAttachment {
    /// Offers an open disk. The attachment ends when the disk's link ends, if the disk cannot outlive its link.
    fn over(
        disk: OpenedDisk,
        target: &DeviceTarget,
        listener: SocketListener,
        system: SystemAccess,
    ) -> Result<Self, ClientError> {
        let (disk, offer, clock, watched) = taken_apart(disk, target);
        let server = NbdServer::new(listener, vec![offer], watched).map_err(local)?.with_clock(clock);
        Self::through(server, disk, target, system)
    }

    fn through(
        mut server: NbdServer,
        disk: DiskFacts,
        target: &DeviceTarget,
        system: SystemAccess,
    ) -> Result<Self, ClientError> {
        server = server.cut_by(disk.cutter.clone());
        if let Some(session) = &disk.session {
            server = server.movable(session.clone()).map_err(local)?;
        }
        let uri = uri(&server.listener().location().map_err(local)?, "");
        Ok(Self { server, disk, target: target.clone(), uri, system, is_handed_over: false })
    }
}

/// Takes an open disk apart: what is known of it, the NBD offer, its clock, and the link it ends with, if there is one.
fn taken_apart(disk: OpenedDisk, target: &DeviceTarget) -> (DiskFacts, NbdExport, BoottimeClock, Option<Link>) {
    let (disk, device, clock, way) = DiskFacts::of(disk);
    let watched = match way {
        DiskConnection::Link(link) => Some(link),
        // A session, and its disk, wait for the next link by themselves.
        DiskConnection::Port(_) | DiskConnection::Device { .. } => None,
    };
    // Over the network, a request that writes zeros is not known to be faster than writing them.
    let offer = NbdExport { name: target.device.clone(), description: target.to_string(), device, zeroes_fast: false };
    (disk, offer, clock, watched)
}

/// What to type to use the export at `uri`.
pub fn next_for(uri: &str) -> String {
    format!(
        "nbdcopy --progress '{uri}' copy.img, or \
         qemu-system-x86_64 -drive 'file={uri},format=raw,if=virtio'"
    )
}

impl Attachment for NbdAttachment {
    fn status(&self) -> AttachmentFacts {
        let (uri, size_bytes) = (&self.uri, self.disk.size_bytes);
        let how = if self.is_handed_over { "to be handed over, and read meanwhile," } else { "attached" };
        let (words, size) = (self.disk.mode_words(), format_bytes(size_bytes));
        let introduction = AttachmentIntroduction {
            line: format!("{} {how}{words} as {uri} ({size})", self.target.shown()),
            next: Some(next_for(uri)),
            export: Some(NbdExportAddress { uri: uri.clone(), name: String::new(), size_bytes }),
        };
        AttachmentFacts {
            introduction,
            at: uri.clone(),
            how: "via nbd, as a USB disk",
            mode: Some(self.disk.mode),
            port: None,
            local_address: self.disk.local_address,
        }
    }

    fn handle(&self) -> AttachmentHandle {
        let clients = self.server.open_clients();
        let users = OpenUsers::new(move || clients.count(), "an NBD client is connected", "NBD clients are connected");
        self.disk
            .steered_by(AttachmentHandle::new(self.server.stop()))
            .cutting_by(self.disk.cutter.clone())
            .holding_by(self.server.hold_handle())
            .connected_to(self.server.connected())
            .saving_by(self.disk.is_movable.then(|| self.server.save_requester()))
            .metered_by(self.server.meters())
            .used_by(users.waited_for())
    }

    fn run(self: Box<Self>) -> AttachmentEnd {
        let location = self.server.listener().location();
        let ended = self.server.run();
        if matches!(ended, AttachmentEnd::HandedOver) {
            location.iter().for_each(|location| self.system.leave_place(location));
            return ended;
        }
        // Other owners of a cutter hold the link open; cutting ends it for the exporter, too.
        self.disk.cutter.cut();
        match (&ended, self.disk.session.as_ref().and_then(SessionStatus::end)) {
            (AttachmentEnd::Lost(_), Some(end)) => AttachmentEnd::by(&end),
            _ => ended,
        }
    }
}

impl RestoredAttachment for NbdAttachment {
    fn go_on(self: Box<Self>, system: &SystemAccess) -> Result<Box<dyn Attachment>, ClientError> {
        let kept = self.server.listener().location().and_then(|location| system.take_place(&location));
        match kept {
            Ok(()) => Ok(self),
            Err(error) => {
                self.leave();
                Err(local(error))
            }
        }
    }

    fn leave(self: Box<Self>) {
        self.server.leave();
    }
}
