//! A disk of another machine as an NBD export of this one.

use std::net::SocketAddr;
use std::sync::Arc;

use farbus_host::RemoteDisk;
use farbus_model::BlockDevice;
use farbus_session::block::StoreDevice;

use super::engine::{NbdServer, Offer};
use super::uri::uri;
use crate::attach::{Ended, Ender, local, local_address};
use crate::client::{Client, ClientError, Target};
use crate::device_port::{Cutter, DevicePort};
use crate::meters::Meters;
use crate::place::{Entrance, Place};

/// A remote disk that programs here use by NBD.
pub struct NbdAttachment {
    server: NbdServer,
    uri: String,
    size_bytes: u64,
    local_address: Option<SocketAddr>,
    cutter: Cutter,
}

impl NbdAttachment {
    /// Takes `target`, which has to be a disk, and offers it at `place`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn new(client: &Client, target: &Target, place: &Place) -> Result<Self, ClientError> {
        let disk = client.open_disk(target)?;
        Self::over(disk, target, client.hands().listen_at(place).map_err(local)?)
    }

    /// Offers a disk that was opened before.
    ///
    /// # Errors
    /// [`ClientError::Local`].
    pub fn over(mut disk: RemoteDisk<DevicePort>, target: &Target, entrance: Entrance) -> Result<Self, ClientError> {
        // A session waits for its next link by itself, and its disk with it.
        let watched = disk.port_mut().plain_link().map_err(local)?;
        let cutter = disk.port_mut().cutter().map_err(local)?;
        let local_address = watched.as_ref().and_then(local_address);
        let sector_bytes = disk.info().block_bytes;
        let device = StoreDevice::new(disk).preferring(sector_bytes);
        let size_bytes = device.info().size_bytes;
        // One at a time, over the network: a clear of its own is never the faster way.
        let offer = Offer {
            name: String::new(),
            description: target.to_string(),
            device: Box::new(device),
            zeroes_fast: false,
        };
        let uri = uri(&entrance.place().map_err(local)?, "");
        let server = NbdServer::new(entrance, vec![offer], watched).map_err(local)?;
        Ok(Self { server, uri, size_bytes, local_address, cutter })
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

    /// What takes the disk from its users without waiting for anything: a second Ctrl-C.
    pub fn cutter(&self) -> Cutter {
        self.cutter.clone()
    }

    /// Serves until it ends.
    pub fn run(self) -> Ended {
        self.server.run()
    }
}
