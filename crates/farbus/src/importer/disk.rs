//! A disk of another machine, opened: a block device, whichever way it is had.
//!
//! | its host | it is had as | and outlives its link |
//! |---|---|---|
//! | has a session with us, and offers it as a block device | a block device of the session | yes |
//! | has a session with us, and offers it as a USB disk alone | a USB disk that is driven here | yes |
//! | speaks plain USB/IP | the same | no |

use std::io;
use std::net::SocketAddr;
use std::str::FromStr;

use farbus_host::RemoteDisk;
use farbus_io::link::{Clock, Link};
use farbus_model::{BlockDevice, BufferPool, Completions, Pending};
use farbus_session::Reject;
use farbus_session::block::{AHEAD_KIND, ANY_BYTE_KIND, Ahead, AnyByte, BEHIND_KIND, Behind, StoreDevice};
use farbus_session::native::control::{Cause, End, Mode};
use farbus_session::native::{Attached, RemoteBlock};
use farbus_session::snapshot;

use crate::importer::client::{Client, ClientError, GRACE_DISK, Target, local, local_address};
use crate::importer::options::cache::Cache;
use crate::importer::port::session::SessionPort;
use crate::importer::port::{Cutter, DevicePort};
use crate::importer::session::connection::{BLOCK_KIND, Linked, Redial, SessionStop};
use crate::importer::session::status::SessionStatus;

/// How a disk is to be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiskMode {
    /// By us alone, who may change it.
    #[default]
    Exclusive,
    /// By us and others, none of whom changes it.
    Read,
}

impl DiskMode {
    /// Its word.
    pub const fn as_str(self) -> &'static str {
        match self {
            DiskMode::Exclusive => "exclusive",
            DiskMode::Read => "read",
        }
    }
}

impl FromStr for DiskMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [DiskMode::Exclusive, DiskMode::Read].into_iter().find(|mode| mode.as_str() == text).ok_or_else(|| {
            format!("'{text}' is no mode: there are exclusive (one who may write) and read (many who may not)")
        })
    }
}

/// What ends a disk that was opened, besides its user here.
pub enum Way {
    /// A link that is the end when it ends.
    Link(Link),
    /// A session that somebody has to look after while nobody asks anything of the disk.
    Port(SessionPort),
    /// A session that its device looks after.
    Device {
        /// Whether another process can go on with it: not through modules.
        is_movable: bool,
    },
}

/// A disk, for whichever front end shows it.
pub struct OpenedDisk {
    /// The disk.
    pub device: Box<dyn BlockDevice>,
    /// Whose moments it is told.
    pub clock: Clock,
    /// What to watch while it is used.
    pub way: Way,
    /// What takes it from its users, from any thread.
    pub cutter: Cutter,
    /// How its session stands, if it has one.
    pub status: Option<SessionStatus>,
}

impl OpenedDisk {
    /// Takes `target`, which has to be a disk, whichever way it can be had.
    ///
    /// # Errors
    /// [`ClientError`]; to be read beside others it has to be a block device.
    pub fn open(client: &Client, target: &Target, mode: DiskMode) -> Result<Self, ClientError> {
        let asked = match mode {
            DiskMode::Exclusive => Mode::Exclusive,
            DiskMode::Read => Mode::Read,
        };
        let grace = client.grace_period(&target.address, GRACE_DISK)?;
        if !grace.is_zero() {
            match client.block(target, asked, grace)? {
                Ok(linked) => return Ok(Self::block(linked).with(client.config().cache)),
                // Silently: there are devices that are USB and nothing else.
                Err(end) if end.cause == Cause::Class => {}
                // What its exporter does not drive may be driven here: the first of several units, say.
                Err(end) if end.cause == Cause::Device && mode == DiskMode::Exclusive => {}
                Err(end) => return Err(client.refusal(target, &end)),
            }
        }
        match mode {
            DiskMode::Exclusive => Self::usb(client.open_disk(target)?),
            DiskMode::Read => Err(client.refusal(target, &usb_has_one_user())),
        }
    }

    /// Takes `target` as soon as it is handed over to this host; it may be read before that.
    ///
    /// # Errors
    /// [`ClientError`]; it has to be had as a block device.
    pub fn inherit(client: &Client, target: &Target) -> Result<Self, ClientError> {
        client.inherit_block(target, GRACE_DISK).map(|linked| Self::block(linked).with(client.config().cache))
    }

    /// A USB disk that was opened before.
    ///
    /// # Errors
    /// [`ClientError::Local`].
    pub fn usb(mut disk: RemoteDisk<DevicePort>) -> Result<Self, ClientError> {
        let cutter = disk.port_mut().cutter().map_err(local)?;
        let (way, status) = match disk.port_mut() {
            DevicePort::Plain(port) => (Way::Link(port.link().map_err(local)?), None),
            DevicePort::Session(port) => (Way::Port(port.clone()), Some(port.ask(Linked::status))),
        };
        let sector_bytes = disk.info().block_bytes;
        let device = Box::new(StoreDevice::new(disk).preferring(sector_bytes));
        Ok(Self { device, clock: Clock::start(), way, cutter, status })
    }

    /// A block device of a session.
    pub fn block(linked: Linked<RemoteBlock>) -> Self {
        let (clock, status, cutter) = (linked.clock(), linked.status(), Cutter::of(linked.session_stop()));
        let way = Way::Device { is_movable: linked.is_movable() };
        Self { device: Box::new(SessionDisk { linked, is_left: false }), clock, way, cutter, status: Some(status) }
    }

    /// The same, of which so much is kept here.
    fn with(self, cache: Cache) -> Self {
        let device = match cache {
            Cache::None => self.device,
            Cache::Ahead => Box::new(Ahead::new(self.device)),
            // What is read of what has not arrived is never fetched.
            Cache::Writeback => Box::new(Ahead::new(Behind::new(self.device))),
        };
        Self { device, ..self }
    }

    /// As another process saved its device; with it what that was asked. Nothing happens before its first turn.
    ///
    /// # Errors
    /// None can have stood so, or the system has no more threads or descriptors.
    pub fn restore(redial: Redial, saved: &[u8]) -> io::Result<(Self, Pending)> {
        Self::restore_from(redial, saved, LAYERS)
    }

    /// The same with these layers at most, of which each is there or not.
    fn restore_from(redial: Redial, saved: &[u8], layers: &[u16]) -> io::Result<(Self, Pending)> {
        let [kind, rest @ ..] = layers else { return Self::restore_block(redial, saved) };
        let Ok(mut reader) = snapshot::open(saved, *kind) else { return Self::restore_from(redial, saved, rest) };
        let mut known = None;
        let device = |bytes: &[u8]| {
            let (Self { device, clock, way, cutter, status }, pending) =
                Self::restore_from(redial, bytes, rest).map_err(Wrong)?;
            known = Some((clock, way, cutter, status));
            Ok((device, pending))
        };
        let restored: Result<(Box<dyn BlockDevice>, Pending), Wrong> = match *kind {
            ANY_BYTE_KIND => AnyByte::restore(&mut reader, device).map(|(any, pending)| (Box::new(any) as _, pending)),
            AHEAD_KIND => Ahead::restore(&mut reader, device).map(|(ahead, pending)| (Box::new(ahead) as _, pending)),
            _ => Behind::restore(&mut reader, device).map(|(behind, pending)| (Box::new(behind) as _, pending)),
        };
        let (mut device, pending) = restored.map_err(|Wrong(error)| error)?;
        if let Err(reject) = reader.end("device") {
            device.leave();
            return Err(Wrong::from(reject).0);
        }
        let (clock, way, cutter, status) = known.expect("it was restored");
        Ok((Self { device, clock, way, cutter, status }, pending))
    }

    fn restore_block(redial: Redial, saved: &[u8]) -> io::Result<(Self, Pending)> {
        let mut reader = snapshot::open(saved, BLOCK_KIND).map_err(|reject| Wrong::from(reject).0)?;
        let mut linked = Linked::<RemoteBlock>::restore(redial, &mut reader)?;
        if let Err(reject) = reader.end("device") {
            linked.leave();
            return Err(Wrong::from(reject).0);
        }
        let asked = linked.remote().requests();
        let pending = asked.map(|asked| (asked.id, (asked.op, asked.offset, asked.length))).collect();
        Ok((Self::block(linked), pending))
    }

    /// Whether another process can go on with it.
    pub fn is_movable(&self) -> bool {
        matches!(self.way, Way::Device { is_movable: true })
    }

    /// The same, asked for any byte, as a file's users do.
    #[must_use]
    pub fn with_any_byte(self) -> Self {
        match self.device.info().block_bytes {
            1 => self,
            _ => Self { device: Box::new(AnyByte::new(self.device)), ..self },
        }
    }

    /// How it is used.
    pub fn mode(&self) -> DiskMode {
        if self.device.info().is_read_only { DiskMode::Read } else { DiskMode::Exclusive }
    }

    /// Our end of the link, as the exporter sees its user; none of a session, whose links come and go.
    pub fn local_address(&self) -> Option<SocketAddr> {
        if let Way::Link(link) = &self.way { local_address(link) } else { None }
    }
}

impl Cutter {
    fn of(session_stop: SessionStop) -> Self {
        Self::new(move || session_stop.quit())
    }
}

/// What another process saved is nothing that can have been.
struct Wrong(io::Error);

impl From<Reject> for Wrong {
    fn from(reject: Reject) -> Self {
        Self(io::Error::new(io::ErrorKind::InvalidData, reject.to_string()))
    }
}

/// What lies over a disk of a session, the uppermost first.
const LAYERS: &[u16] = &[ANY_BYTE_KIND, AHEAD_KIND, BEHIND_KIND];

/// A disk of a session, which is given back when nobody wants it any more.
struct SessionDisk {
    linked: Linked<RemoteBlock>,
    /// Another process goes on with it.
    is_left: bool,
}

impl Drop for SessionDisk {
    fn drop(&mut self) {
        if self.is_left {
            return;
        }
        let mut done = Completions::new(BufferPool::new(0));
        self.linked.close(&mut done);
        // What its exporter did not answer in time is owed to nobody: whoever asked has gone.
        self.linked.remote_mut().handle_over(Cause::Asked, "let go of here", &mut done);
        while done.pop().is_some() {}
    }
}

impl farbus_model::BlockLayer for SessionDisk {
    type Inner = Linked<RemoteBlock>;

    fn inner(&self) -> &Linked<RemoteBlock> {
        &self.linked
    }

    fn inner_mut(&mut self) -> &mut Linked<RemoteBlock> {
        &mut self.linked
    }

    fn leave(&mut self) {
        BlockDevice::leave(&mut self.linked);
        self.is_left = true;
    }
}

/// Why a disk that can only be had as a USB disk is not read beside others.
fn usb_has_one_user() -> End {
    let message = "it can be had as a USB disk alone, which has one user: --mode read wants a disk that a farbus shares \
                   ('disk:PATH' or 'block:PATH'), with a session (a paired host, or --grace SECONDS)";
    End { cause: Cause::Refused, message: message.to_owned() }
}
