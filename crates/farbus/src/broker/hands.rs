//! How a process gets at what needs rights: by itself, or by the half that kept them.

use std::collections::BTreeSet;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use farbus_io::frontend::fuse::{Keeper, Left, MountError, Mounted, Mounter, OwnMounter};
use farbus_io::link::{Link, LinkError};
use farbus_io::store::{FileStore, frames};
use farbus_io::sys::vhci::{Port, Vhci};
use farbus_model::Speed;
use serde_json::Value;

use super::line::Broker;
use super::protocol::{MountedAt, Question, in_ms};
use crate::control::{Question as OwnerQuestion, ask_all, running};
use crate::place::{Entrance, Place};
use crate::promises::ask_for;
use crate::reach;
use crate::swap::journal;

/// Whoever acts for a process.
#[derive(Clone, Debug, Default)]
pub enum Hands {
    /// The process itself.
    #[default]
    Own,
    /// Its other half.
    Through(Arc<Broker>),
}

impl Hands {
    /// Hands that wait for nothing that others are asked.
    ///
    /// # Errors
    /// If the system has no more descriptors or threads.
    pub fn apart(&self) -> io::Result<Self> {
        match self {
            Hands::Own => Ok(Hands::Own),
            Hands::Through(broker) => Ok(Hands::Through(Arc::new(broker.line()?))),
        }
    }

    /// Connects to `host` (`HOST:PORT`, the name of a paired host with any port, or `unix:PATH`).
    ///
    /// # Errors
    /// [`LinkError`].
    pub fn connect(&self, host: &str, time_max: Duration) -> Result<Link, LinkError> {
        let failed = |source| LinkError { address: host.to_owned(), source };
        let (fd, peer) = match self {
            Hands::Own => reach::dial(host, time_max, reach::announced)?,
            Hands::Through(broker) => {
                let question = Question::Connect { host: host.to_owned(), time_max_ms: in_ms(time_max) };
                let (peer, fd) = broker.ask::<Place>(&question, None).map_err(failed)?;
                (fd.ok_or_else(|| failed(io::Error::other("no connection came along")))?, peer)
            }
        };
        peer.link_over(fd).map_err(failed)
    }

    /// A socket for datagrams to a paired host, and where that may be.
    ///
    /// # Errors
    /// [`LinkError`].
    pub fn datagrams(&self, host: &str) -> Result<(UdpSocket, SocketAddr), LinkError> {
        let failed = |source| LinkError { address: host.to_owned(), source };
        match self {
            Hands::Own => reach::datagrams(host, reach::announced),
            Hands::Through(broker) => {
                let (to, fd) = broker.ask(&Question::Datagrams { host: host.to_owned() }, None).map_err(failed)?;
                Ok((fd.ok_or_else(|| failed(io::Error::other("no socket came along")))?.into(), to))
            }
        }
    }

    /// Listens for programs at `place`; a socket's path is removed at the latest when this process has ended.
    ///
    /// # Errors
    /// What stands against it, with what to do.
    pub fn listen_at(&self, place: &Place) -> io::Result<Entrance> {
        match self {
            Hands::Own => place.listen(),
            Hands::Through(broker) => broker.listen_at(place),
        }
    }

    /// What another process listened at is listened at here: a socket's path is removed at the latest when this process has ended.
    ///
    /// # Errors
    /// If it is not meant to be listened at.
    pub fn take_place(&self, place: &Place) -> io::Result<()> {
        match self {
            Hands::Own => Ok(()),
            Hands::Through(broker) => {
                broker.ask::<Value>(&Question::TakePlace { place: place.clone() }, None).map(|_| ())
            }
        }
    }

    /// Another process listens there from now on: its path stays.
    pub fn leave_place(&self, place: &Place) {
        if let Hands::Through(broker) = self
            && let Err(error) = broker.ask::<Value>(&Question::LeavePlace { place: place.clone() }, None)
        {
            tracing::warn!(%place, %error, "the socket may go when this process ends");
        }
    }

    /// Keeps a mount that another process kept.
    ///
    /// # Errors
    /// If it is not there, or nobody's to be kept here.
    pub fn keep_mount(&self, at: &Path) -> io::Result<Arc<dyn Keeper>> {
        let Hands::Through(broker) = self else {
            return Err(io::Error::other("only a daemon's other half keeps what another process mounted"));
        };
        let (line, for_abort) = (broker.line()?, broker.line()?);
        let (MountedAt { mount, .. }, _) = line.ask(&Question::KeepMount { at: at.to_owned() }, None)?;
        Ok(Arc::new(FarKeeper { mount, line, for_abort }))
    }

    /// Opens a disk image and locks it.
    ///
    /// # Errors
    /// What stands against it, with what to type next.
    pub fn open_image(&self, path: &Path, read_only: bool) -> io::Result<FileStore> {
        match self {
            Hands::Own => {
                journal::check(path)?;
                FileStore::open(path, read_only).map_err(io::Error::other)
            }
            Hands::Through(broker) => broker.open_image(path, read_only),
        }
    }

    /// Opens what a stream's frames come from.
    ///
    /// # Errors
    /// What stands against it.
    pub fn open_frames(&self, path: &Path) -> io::Result<OwnedFd> {
        match self {
            Hands::Own => frames::open(path),
            Hands::Through(broker) => broker.open_frames(path),
        }
    }

    /// Whether something could be plugged into this machine's kernel.
    ///
    /// # Errors
    /// What stands against it, with what to type next.
    pub fn may_plug(&self) -> io::Result<()> {
        match self {
            Hands::Own => may_plug(),
            Hands::Through(broker) => broker.ask::<Value>(&Question::MayPlug, None).map(|_| ()),
        }
    }

    /// Plugs what speaks USB/IP at the other end of `socket` into this machine's kernel.
    ///
    /// # Errors
    /// What stands against it, with what to type next.
    pub fn plug(&self, socket: BorrowedFd<'_>, device_id: u32, speed: Speed) -> io::Result<Port> {
        match self {
            Hands::Own => {
                let vhci = Vhci::open().map_err(io::Error::other)?;
                vhci.attach(socket, device_id, speed).map_err(io::Error::other)
            }
            Hands::Through(broker) => {
                let question = Question::Plug { device_id, speed: speed.name().to_owned() };
                Ok(Port(broker.ask(&question, Some(socket))?.0))
            }
        }
    }

    /// Unplugs what is on `port`.
    ///
    /// # Errors
    /// What the system says.
    pub fn unplug(&self, port: Port) -> io::Result<()> {
        match self {
            Hands::Own => Vhci::open().and_then(|vhci| vhci.detach(port)).map_err(io::Error::other),
            Hands::Through(broker) => broker.ask::<Value>(&Question::Unplug { port: port.0 }, None).map(|_| ()),
        }
    }

    /// The processes that answer their owner here.
    ///
    /// # Errors
    /// If they cannot be found.
    pub fn running(&self) -> io::Result<BTreeSet<u32>> {
        match self {
            Hands::Own => running(),
            Hands::Through(broker) => broker.ask(&Question::Running, None).map(|(running, _)| running),
        }
    }

    /// Tells these processes what `owner` is to have of this host's processors while the other end of `lease` is open: who refused, and why.
    ///
    /// # Errors
    /// If nobody can be asked.
    pub fn promise(
        &self,
        owner: &str,
        whom: &BTreeSet<u32>,
        reserves: Vec<(u64, u64)>,
        lease: BorrowedFd<'_>,
    ) -> io::Result<Vec<(u32, String)>> {
        match self {
            Hands::Own => Ok(ask_for(owner, whom, &reserves, lease)),
            Hands::Through(broker) => {
                let question = Question::Promise { whom: whom.clone(), reserves };
                broker.ask(&question, Some(lease)).map(|(refused, _)| refused)
            }
        }
    }

    /// Tells a share on this machine whose user's connection comes from `user` what its device is needed for.
    ///
    /// # Errors
    /// If nobody can be asked.
    pub fn explain(&self, user: &str, reason: &str) -> io::Result<()> {
        let (user, reason) = (user.to_owned(), reason.to_owned());
        match self {
            Hands::Own => ask_all(&OwnerQuestion::Explain { user, reason }).map(|_| ()),
            Hands::Through(broker) => broker.ask::<Value>(&Question::Explain { user, reason }, None).map(|_| ()),
        }
    }
}

/// Whether this process could plug something in.
pub(super) fn may_plug() -> io::Result<()> {
    Vhci::open().map_err(io::Error::other)?;
    match rustix::process::geteuid().is_root() {
        true => Ok(()),
        false => Err(io::Error::new(io::ErrorKind::PermissionDenied, "only root may plug a device into the kernel")),
    }
}

impl Mounter for Hands {
    fn mount(&self, at: &Path, read_only: bool) -> Result<Mounted, MountError> {
        let broker = match self {
            Hands::Own => return OwnMounter.mount(at, read_only),
            Hands::Through(broker) => broker,
        };
        let told = |error: io::Error| MountError::Told(error.to_string());
        // Two lines: whoever cuts a mount off does not wait for whoever takes it away.
        let (line, for_abort) = (broker.line().map_err(told)?, broker.line().map_err(told)?);
        let question = Question::Mount { at: at.to_owned(), read_only };
        let (MountedAt { mount, at }, device) = line.ask(&question, None).map_err(told)?;
        let device = device.ok_or_else(|| MountError::Told("no descriptor came along".into()))?;
        Ok(Mounted { at, device, keeper: Arc::new(FarKeeper { mount, line, for_abort }) })
    }

    fn owner(&self) -> (u32, u32) {
        match self {
            Hands::Own => OwnMounter.owner(),
            Hands::Through(broker) => broker.owner,
        }
    }
}

/// A mount that the other half keeps.
#[derive(Debug)]
struct FarKeeper {
    mount: u64,
    line: Broker,
    for_abort: Broker,
}

/// What became of a mount, in a word.
const LEFT: [(&str, Left); 3] = [("idle", Left::Idle), ("busy", Left::Busy), ("already", Left::Already)];

/// The word for it.
pub(super) fn word_of(left: Left) -> &'static str {
    LEFT.iter().find(|(_, known)| *known == left).map_or("already", |(word, _)| word)
}

impl Keeper for FarKeeper {
    fn set_read_ahead(&self, bytes: usize) {
        let _best_effort = self.line.ask::<Value>(&Question::ReadAhead { mount: self.mount, bytes }, None);
    }

    fn leave(&self) -> io::Result<Left> {
        let (word, _) = self.line.ask::<String>(&Question::Leave { mount: self.mount }, None)?;
        let known = LEFT.iter().find(|(known, _)| *known == word);
        known.map(|(_, left)| *left).ok_or_else(|| io::Error::other(format!("'{word}' is no way to leave")))
    }

    fn abort(&self) {
        let _best_effort = self.for_abort.ask::<Value>(&Question::Abort { mount: self.mount }, None);
    }
}

impl Drop for FarKeeper {
    fn drop(&mut self) {
        // The other half forgets it at its own end at the latest.
        let _ = self.line.ask::<Value>(&Question::Forget { mount: self.mount }, None);
    }
}
