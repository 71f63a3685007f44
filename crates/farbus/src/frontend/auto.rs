//! The default front end: this machine's kernel if it accepts devices.

use farbus_io_net::saving::SavedAttachment;

use super::fuse::FuseFrontEnd;
use super::kernel::FastestKernelFrontEnd;
use super::{AttachRequest, Attachment, FrontEnd, FrontEndPreparation, FrontEndRequirement, RestoredAttachment};
use crate::broker::SystemAccess;
use crate::frontend::redir::RedirFrontEnd;
use crate::importer::client::{ClientError, ImporterClient};

/// `--via auto`: the kernel; otherwise a file, or a usbredir socket if `request` names a place to listen at.
pub struct AutoFrontEnd;

/// The front end that is used if the kernel accepts no devices.
fn without_kernel(request: &AttachRequest) -> &'static dyn FrontEnd {
    if request.location.is_some() { &RedirFrontEnd } else { &FuseFrontEnd }
}

fn chosen(request: &AttachRequest, system: &SystemAccess) -> &'static dyn FrontEnd {
    if system.may_plug().is_ok() { &FastestKernelFrontEnd } else { without_kernel(request) }
}

impl FrontEnd for AutoFrontEnd {
    fn name(&self) -> &'static str {
        "auto"
    }

    fn summary(&self) -> &'static str {
        "Whichever there is"
    }

    fn needs(&self, request: &AttachRequest) -> Vec<FrontEndRequirement> {
        let mut needs = FastestKernelFrontEnd.needs(request);
        needs.extend(without_kernel(request).needs(request));
        needs
    }

    fn takes_twins(&self) -> bool {
        RedirFrontEnd.takes_twins()
    }

    fn choose(&self, request: &AttachRequest, system: &SystemAccess) -> Option<&'static dyn FrontEnd> {
        Some(chosen(request, system))
    }

    fn prepare(&self, client: &ImporterClient, request: &AttachRequest) -> Result<FrontEndPreparation, ClientError> {
        chosen(request, client.system()).prepare(client, request)
    }

    fn take(
        &self,
        client: &ImporterClient,
        request: &AttachRequest,
        prepared: &mut FrontEndPreparation,
    ) -> Result<Box<dyn Attachment>, ClientError> {
        chosen(request, client.system()).take(client, request, prepared)
    }

    /// The manner of the front end without a kernel: a replacement can only continue with what both processes have.
    /// [`AttachRequest::manner`] asks the chosen front end.
    fn manner(&self, request: &AttachRequest) -> String {
        without_kernel(request).manner(request)
    }

    fn restore(
        &self,
        client: &ImporterClient,
        request: &AttachRequest,
        ports: &[u32],
        saved: SavedAttachment,
    ) -> Result<Box<dyn RestoredAttachment>, ClientError> {
        chosen(request, client.system()).restore(client, request, ports, saved)
    }
}
