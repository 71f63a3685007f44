//! `--via pty`: a serial port as a terminal's file.

use farbus_io_net::local::runtime_folder;
use farbus_io_net::saving::SavedAttachment;

use super::front_end::{SerialAttachment, no_port, restored};
use super::program_link::{LinkedTerminal, SerialListener};
use super::relay::SerialRelay;
use crate::common::socket_place::{SocketLocation, plain_name};
use crate::frontend::remote_usb::FarDevice;
use crate::frontend::{
    AttachRequest, Attachment, FrontEnd, FrontEndPreparation, FrontEndRequirement, RestoredAttachment,
};
use crate::importer::client::{ClientError, GRACE, ImporterClient, local};

/// `--via pty`: programs open the port as any serial port of this machine.
pub struct TerminalFrontEnd;

/// The link that leads to the terminal of `request`.
fn link_of(request: &AttachRequest) -> SocketLocation {
    let usual = || runtime_folder::path().join(format!("pty-{}", plain_name(&request.target.device)));
    let path = request.at.clone().unwrap_or_else(usual);
    SocketLocation::Socket(std::path::absolute(&path).unwrap_or(path))
}

impl FrontEnd for TerminalFrontEnd {
    fn name(&self) -> &'static str {
        "pty"
    }

    fn summary(&self) -> &'static str {
        "A serial port, as a file"
    }

    fn has_path(&self) -> bool {
        true
    }

    fn needs(&self, request: &AttachRequest) -> Vec<FrontEndRequirement> {
        vec![FrontEndRequirement::Listen(link_of(request), request.access.clone())]
    }

    fn take(
        &self,
        client: &ImporterClient,
        request: &AttachRequest,
        _: &mut FrontEndPreparation,
    ) -> Result<Box<dyn Attachment>, ClientError> {
        let system = client.system().clone();
        let terminal = LinkedTerminal::open(&system, link_of(request)).map_err(local)?;
        let device = FarDevice::open(client, &request.target, GRACE)?;
        match SerialRelay::new(device, SerialListener::Terminal(terminal), false, Vec::new(), system) {
            Ok(relay) => Ok(Box::new(SerialAttachment::over(relay, request)?)),
            Err((error, _)) => Err(no_port(&error, request)),
        }
    }

    fn manner(&self, request: &AttachRequest) -> String {
        format!("pty at {}", link_of(request))
    }

    fn restore(
        &self,
        client: &ImporterClient,
        request: &AttachRequest,
        _: &[u32],
        saved: SavedAttachment,
    ) -> Result<Box<dyn RestoredAttachment>, ClientError> {
        restored(client, request, saved, false, |descriptors, from| {
            let terminal = LinkedTerminal::restore(client.system(), link_of(request), descriptors, from)?;
            Ok(SerialListener::Terminal(terminal))
        })
    }
}
