//! The front end that is used unless somebody names another: this machine's kernel, where there is one that takes
//! devices.

use super::fuse::Fuse;
use super::kernel::Quickest;
use super::{Attachment, FrontEnd, Need, Prepared, Request, Restored};
use crate::broker::SystemAccess;
use crate::frontend::redir::Redir;
use crate::importer::client::{Client, ClientError};
use crate::saving::Saved;

/// `--via auto`: the kernel; else a file, or a socket for virtual machines if `request` names one.
pub struct Auto;

/// The one that is used without a kernel.
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

    /// Without a kernel, for a process can only go on with what is there for both: [`Request::manner`] asks the chosen
    /// one.
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
