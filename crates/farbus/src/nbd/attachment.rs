//! A disk of another machine as an NBD export of this one.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use farbus_host::RemoteDisk;
use farbus_io::link::Link;
use farbus_model::BlockDevice;
use farbus_session::block::StoreDevice;

use super::engine::{NbdServer, Offer};
use super::entrance::Entrance;
use crate::attach::{Ended, Ender, local, local_address};
use crate::broker::Hands;
use crate::client::{Client, ClientError, Target};
use crate::control::folder;
use crate::meters::Meters;
use crate::port::RemotePort;

/// Where NBD clients are to come in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// At a Unix socket, for their owner alone.
    Socket(PathBuf),
    /// At an address.
    Address(SocketAddr),
}

impl Place {
    /// The path to be removed at the end, if there is one.
    pub fn path(&self) -> Option<&PathBuf> {
        match self {
            Place::Socket(path) => Some(path),
            Place::Address(_) => None,
        }
    }

    /// Listens there.
    ///
    /// # Errors
    /// What stands against it, with what to type next.
    pub fn open(&self, hands: &Hands) -> io::Result<Entrance> {
        match self {
            Place::Socket(path) => Ok(Entrance::Local(hands.listen_at(path)?)),
            Place::Address(address) => Entrance::tcp(*address)
                .map_err(|error| io::Error::new(error.kind(), format!("cannot listen at {address}: {error}"))),
        }
    }
}

/// Where a device's socket is unless somebody says otherwise: among those that belong to what runs, and told from them by its name.
pub fn default_socket(device: &str) -> PathBuf {
    folder().join(format!("nbd-{}.sock", device.replace('/', "_")))
}

/// A remote disk that programs here use by NBD.
pub struct NbdAttachment {
    server: NbdServer,
    uri: String,
    size_bytes: u64,
    local_address: Option<SocketAddr>,
    link: Option<Link>,
}

impl NbdAttachment {
    /// Takes `target`, which has to be a disk, and offers it at `place`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn new(client: &Client, target: &Target, place: &Place) -> Result<Self, ClientError> {
        let disk = client.open_disk(target)?;
        Self::over(disk, target, place.open(client.hands()).map_err(local)?)
    }

    /// Offers a disk that was opened before.
    ///
    /// # Errors
    /// [`ClientError::Local`].
    pub fn over(mut disk: RemoteDisk<RemotePort>, target: &Target, entrance: Entrance) -> Result<Self, ClientError> {
        let link = disk.port_mut().link().map_err(local)?;
        let sector_bytes = disk.info().block_bytes;
        let device = StoreDevice::new(disk).preferring(sector_bytes);
        Self::of(Box::new(device), target, entrance, Some(link))
    }

    /// Offers any block device that `target` turned out to be. It ends when `link` breaks, if that is given: a device that
    /// outlives its links has none to be watched.
    ///
    /// # Errors
    /// [`ClientError::Local`].
    pub fn of(
        device: Box<dyn BlockDevice>,
        target: &Target,
        entrance: Entrance,
        link: Option<Link>,
    ) -> Result<Self, ClientError> {
        let size_bytes = device.info().size_bytes;
        let local_address = link.as_ref().and_then(local_address);
        let watched = link.as_ref().map(Link::try_clone).transpose().map_err(local)?;
        // Over the network: a clear of its own is never known to be the faster way.
        let offer = Offer { name: String::new(), description: target.to_string(), device, zeroes_fast: false };
        let server = NbdServer::new(entrance, vec![offer], watched).map_err(local)?;
        let uri = server.entrance().uri("").map_err(local)?;
        Ok(Self { server, uri, size_bytes, local_address, link })
    }

    /// What clients are given to find it.
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// Its size.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// What ends it.
    pub fn ender(&self) -> Ender {
        self.server.ender()
    }

    /// What passes through, for status.
    pub fn meters(&self) -> Arc<Meters> {
        self.server.meters()
    }

    /// Our end of the link, as the exporter sees its user.
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.local_address
    }

    /// A second handle on the link, if there is one to be watched: for whoever does not wait for a disk that does not answer.
    ///
    /// # Errors
    /// If the system has no more descriptors.
    pub fn link(&self) -> io::Result<Option<Link>> {
        self.link.as_ref().map(Link::try_clone).transpose()
    }

    /// Serves until it ends.
    pub fn run(self) -> Ended {
        self.server.run()
    }
}
