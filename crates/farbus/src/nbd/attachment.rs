//! A disk of another machine as an NBD export of this one.

use std::net::SocketAddr;
use std::sync::Arc;

use super::engine::{NbdServer, Offer};
use super::uri::uri;
use crate::attach::{Ended, Ender, ended_by};
use crate::client::{Client, ClientError, Target, local};
use crate::device_port::Cutter;
use crate::gate::Gate;
use crate::meters::Meters;
use crate::opened_disk::{DiskMode, OpenedDisk, Way};
use crate::place::{Entrance, Place};
use crate::standing::Standing;

/// A remote disk that programs here use by NBD.
pub struct NbdAttachment {
    server: NbdServer,
    uri: String,
    size_bytes: u64,
    mode: DiskMode,
    local_address: Option<SocketAddr>,
    cutter: Cutter,
    standing: Option<Standing>,
}

impl NbdAttachment {
    /// Takes `target`, which has to be a disk, and offers it at `place`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn new(client: &Client, target: &Target, mode: DiskMode, place: &Place) -> Result<Self, ClientError> {
        let disk = OpenedDisk::open(client, target, mode)?;
        Self::over(disk, target, client.hands().listen_at(place).map_err(local)?)
    }

    /// Offers a disk that was opened before. It ends when the disk's link does, if there is no other after it.
    ///
    /// # Errors
    /// [`ClientError::Local`].
    pub fn over(disk: OpenedDisk, target: &Target, entrance: Entrance) -> Result<Self, ClientError> {
        let (size_bytes, mode, local_address) = (disk.device.info().size_bytes, disk.mode(), disk.local_address());
        let OpenedDisk { device, clock, way, cutter, standing } = disk;
        let watched = match way {
            Way::Link(link) => Some(link),
            // A session waits for its next link by itself, and its disk with it.
            Way::Port(_) | Way::Device => None,
        };
        // Over the network: a clear of its own is never known to be the faster way.
        let offer = Offer { name: String::new(), description: target.to_string(), device, zeroes_fast: false };
        let uri = uri(&entrance.place().map_err(local)?, "");
        let mut server = NbdServer::new(entrance, vec![offer], watched).map_err(local)?.with_clock(clock);
        if let Some(standing) = &standing {
            server = server.movable(standing.clone()).map_err(local)?;
        }
        Ok(Self { server, uri, size_bytes, mode, local_address, cutter, standing })
    }

    /// What clients are given to find it.
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// Its size.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// How it is used.
    pub fn mode(&self) -> DiskMode {
        self.mode
    }

    /// How its session stands, if it has one.
    pub fn standing(&self) -> Option<Standing> {
        self.standing.clone()
    }

    /// What holds it still while who uses it moves, if it has a session.
    pub fn gate(&self) -> Option<Gate> {
        self.server.gate()
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
        let ended = self.server.run();
        // Whoever may still cut it off holds its link, too: to its exporter it ends here.
        self.cutter.cut();
        match (&ended, self.standing.as_ref().and_then(Standing::end)) {
            (Ended::Lost(_), Some(end)) => ended_by(&end),
            _ => ended,
        }
    }
}
