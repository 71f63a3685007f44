//! Where programs are to find a device, from a command line.

use std::path::Path;

use farbus::common::listen_words::place_said;
use farbus::common::socket_access::{SocketAccess, SocketGroup, SocketMode};
use farbus::common::socket_place::{SocketLocation, SocketProtocol};

use super::CommandFailure;

/// Who may connect at the Unix socket that `--socket` names.
#[derive(Debug, clap::Args)]
pub struct SocketAccessArgs {
    /// Mode of the --socket: 600, 660 or 666.
    ///
    /// 600: its owner and root may connect. 660: its group, too. 666: every user of this machine. The folders above the
    /// socket have to let them in as well; the runtime folder does not, so this goes with --socket. [default: 600; with
    /// --socket-group 660]
    #[arg(long, value_name = "MODE", requires = "socket", conflicts_with = "listen")]
    socket_mode: Option<SocketMode>,
    /// Group of the --socket.
    ///
    /// A name or number, such as 'kvm' for a virtual machine of libvirt's. Unless you are root you have to be a member.
    #[arg(long, value_name = "GROUP", requires = "socket", conflicts_with = "listen", value_parser = SocketGroup::known)]
    socket_group: Option<SocketGroup>,
}

impl SocketAccessArgs {
    /// What the options say.
    ///
    /// # Errors
    /// The mode keeps the group out.
    pub fn access(&self) -> Result<SocketAccess, CommandFailure> {
        SocketAccess::from_settings(self.socket_mode, self.socket_group.clone()).map_err(CommandFailure::local)
    }
}

/// Where programs that speak `protocol` are to find `device`: at `--socket`, at `--listen`, or at the default place.
/// Warns of an address that other machines can reach.
pub fn place_told(
    protocol: SocketProtocol,
    socket: Option<&Path>,
    listen: Option<&str>,
    device: &str,
) -> Result<SocketLocation, CommandFailure> {
    let location = place_said(protocol, socket, listen, device)?;
    if let Some(exposure) = protocol.exposure(&location) {
        eprintln!("farbus: warning: {exposure}");
    }
    Ok(location)
}
