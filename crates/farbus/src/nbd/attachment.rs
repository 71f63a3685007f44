//! A disk of another machine as an NBD export of this one.

use std::net::SocketAddr;
use std::sync::Arc;

use farbus_io::link::{Clock, Link};

use super::engine::{NbdServer, Offer};
use super::uri::uri;
use crate::attach::{Ended, Ender, ended_by};
use crate::broker::Hands;
use crate::client::{Client, ClientError, Target, local};
use crate::device_port::Cutter;
use crate::gate::Gate;
use crate::meters::Meters;
use crate::opened_disk::{DiskMode, OpenedDisk, Way};
use crate::parting::{Parter, Saved};
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
    hands: Hands,
    /// Whether another process can go on with it.
    is_movable: bool,
}

impl NbdAttachment {
    /// Takes `target`, which has to be a disk, and offers it at `place`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn new(client: &Client, target: &Target, mode: DiskMode, place: &Place) -> Result<Self, ClientError> {
        let disk = OpenedDisk::open(client, target, mode)?;
        let entrance = client.hands().listen_at(place).map_err(local)?;
        Ok(Self { hands: client.hands().clone(), ..Self::over(disk, target, entrance)? })
    }

    /// Offers a disk that was opened before. It ends when the disk's link does, if there is no other after it.
    ///
    /// # Errors
    /// [`ClientError::Local`].
    pub fn over(disk: OpenedDisk, target: &Target, entrance: Entrance) -> Result<Self, ClientError> {
        let (shown, offer, watched) = Shown::of(disk, target);
        let clock = shown.clock;
        let server = NbdServer::new(entrance, vec![offer], watched).map_err(local)?.with_clock(clock);
        shown.through(server)
    }

    /// What another process offered at `place`: nothing happens before it runs.
    ///
    /// # Errors
    /// [`ClientError::Local`]: no attachment can have stood so.
    pub fn restore(client: &Client, target: &Target, place: &Place, saved: Saved) -> Result<Self, ClientError> {
        let mut dial = Some(client.redial(target)?);
        let mut all = None;
        let server = NbdServer::restore(saved, place, |device| {
            let dial = dial.take().expect("an attachment has one device");
            let (disk, pending) = OpenedDisk::restore(dial, device)?;
            let (shown, offer, _) = Shown::of(disk, target);
            let clock = shown.clock;
            all = Some(shown);
            Ok((offer, pending, clock))
        });
        let (server, shown) = (server.map_err(local)?, all.expect("its device was restored"));
        let attachment = shown.through(server)?;
        Ok(Self { hands: client.hands().clone(), ..attachment })
    }

    /// It does not run here after all: whoever had it keeps it.
    pub fn leave(self) {
        self.server.leave();
    }

    /// The other process has let go.
    ///
    /// # Errors
    /// [`ClientError::Local`]: nobody is to be listened for there.
    pub fn go_on(self) -> Result<Self, ClientError> {
        let kept = self.server.entrance().place().and_then(|place| self.hands.take_place(&place));
        match kept {
            Ok(()) => Ok(self),
            Err(error) => {
                self.leave();
                Err(local(error))
            }
        }
    }

    /// What makes it ready for another process, if it can be.
    pub fn parter(&self) -> Option<Parter<Saved>> {
        self.is_movable.then(|| self.server.parter())
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
        let place = self.server.entrance().place();
        let ended = self.server.run();
        if matches!(ended, Ended::HandedOver) {
            place.iter().for_each(|place| self.hands.leave_place(place));
            return ended;
        }
        // Whoever may still cut it off holds its link, too: to its exporter it ends here.
        self.cutter.cut();
        match (&ended, self.standing.as_ref().and_then(Standing::end)) {
            (Ended::Lost(_), Some(end)) => ended_by(&end),
            _ => ended,
        }
    }
}

/// What is known of a disk besides its device.
struct Shown {
    clock: Clock,
    size_bytes: u64,
    mode: DiskMode,
    local_address: Option<SocketAddr>,
    cutter: Cutter,
    standing: Option<Standing>,
    is_movable: bool,
}

impl Shown {
    /// With it what is offered, and the link that is the end when it ends.
    fn of(disk: OpenedDisk, target: &Target) -> (Self, Offer, Option<Link>) {
        let (size_bytes, mode, local_address) = (disk.device.info().size_bytes, disk.mode(), disk.local_address());
        let is_movable = disk.is_movable();
        let OpenedDisk { device, clock, way, cutter, standing } = disk;
        let watched = match way {
            Way::Link(link) => Some(link),
            // A session waits for its next link by itself, and its disk with it.
            Way::Port(_) | Way::Device { .. } => None,
        };
        // Over the network: a clear of its own is never known to be the faster way.
        let offer = Offer { name: String::new(), description: target.to_string(), device, zeroes_fast: false };
        (Self { clock, size_bytes, mode, local_address, cutter, standing, is_movable }, offer, watched)
    }

    fn through(self, mut server: NbdServer) -> Result<NbdAttachment, ClientError> {
        let Self { size_bytes, mode, local_address, cutter, standing, is_movable, .. } = self;
        if let Some(standing) = &standing {
            server = server.movable(standing.clone()).map_err(local)?;
        }
        let uri = uri(&server.entrance().place().map_err(local)?, "");
        let hands = Hands::Own;
        let all = NbdAttachment { server, uri, size_bytes, mode, local_address, cutter, standing, hands, is_movable };
        Ok(all)
    }
}
