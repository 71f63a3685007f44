//! The default front end: this machine's kernel if it accepts devices.

use farbus_io_net::saving::Saved;

use super::fuse::Fuse;
use super::kernel::Quickest;
use super::{Attachment, FrontEnd, Need, Prepared, Request, Restored};
use crate::broker::SystemAccess;
use crate::frontend::redir::Redir;
use crate::importer::client::{Client, ClientError};

/// `--via auto`: the kernel; otherwise a file, or a usbredir socket if `request` names a place to listen at.
pub struct Auto;

/// The front end that is used if the kernel accepts no devices.
fn without_kernel(request: &Request) -> &'static dyn FrontEnd {
    if request.place.is_some() { &Redir } else { &Fuse }
}

fn chosen(request: &Request, system: &SystemAccess) -> &'static dyn FrontEnd {
    if system.may_plug().is_ok() { &Quickest } else { without_kernel(request) }
}

impl FrontEnd for Auto {
    fn name(&self) -> &'static str {
        "auto"
    }

    fn summary(&self) -> &'static str {
        "Whichever there is"
    }

    fn needs(&self, request: &Request) -> Vec<Need> {
        let mut needs = Quickest.needs(request);
        needs.extend(without_kernel(request).needs(request));
        needs
    }

    fn takes_twins(&self) -> bool {
        Redir.takes_twins()
    }

    fn choose(&self, request: &Request, system: &SystemAccess) -> Option<&'static dyn FrontEnd> {
        Some(chosen(request, system))
    }

    fn prepare(&self, client: &Client, request: &Request) -> Result<Prepared, ClientError> {
        chosen(request, client.system()).prepare(client, request)
    }

    fn take(
        &self,
        client: &Client,
        request: &Request,
        prepared: &mut Prepared,
    ) -> Result<Box<dyn Attachment>, ClientError> {
        chosen(request, client.system()).take(client, request, prepared)
    }

    /// The manner of the front end without a kernel: a replacement can only continue with what both processes have.
    /// [`Request::manner`] asks the chosen front end.
    fn manner(&self, request: &Request) -> String {
        without_kernel(request).manner(request)
    }

    fn restore(
        &self,
        client: &Client,
        request: &Request,
        ports: &[u32],
        saved: Saved,
    ) -> Result<Box<dyn Restored>, ClientError> {
        chosen(request, client.system()).restore(client, request, ports, saved)
    }
}
