//! Taking a device from another machine.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use farbus_host::storage::BULK_ONLY;
use farbus_host::{DiskError, Enumerate, IdSource, Options, Port, PortError, RemoteDisk, RemoteError, run};
use farbus_io::link::{Link, LinkError};
use farbus_io::trust::{HandshakeError, Protocol};
use farbus_model::{BufferPool, Completions, Device, Limits};
use farbus_modules::Recipe;
use farbus_session::importer::Greeting;
use farbus_session::native::{
    Attached, Piped, RemoteBlock, RemoteObserver, RemoteStream, RemoteUsb, control as native, stream::Frame, usb::Event,
};
use farbus_session::registry::{InUse, in_use};
use farbus_session::reserve::Reservation;
use farbus_session::{DeviceRecord, Handshake, OpStatus, Reject, RemoteDevice};

use crate::address::LOCAL;
pub use crate::address::address_of;
use crate::ahead::Ahead;
use crate::broker::Hands;
use crate::cache::Cache;
use crate::device_port::DevicePort;
pub use crate::failure::{Attribute, FailureReport};
use crate::known_host::{KnownHost, KnownHostError};
use crate::linked::{Dial, Linked, Redial};
use crate::listed::Listed;
use crate::modules::through;
use crate::over::Over;
use crate::port::{LOST, RemotePort};
use crate::questions::{Answer, Lines, Question};
use crate::session_port::SessionPort;
pub use crate::session_record::name_of;

/// How long an exporter may take to answer before it counts as unreachable.
pub const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);

/// How long a host is asked what became of a device whose link has ended.
const AFTERWARDS_TIME_MAX: Duration = Duration::from_secs(1);

/// Why a device was not had.
#[derive(Debug)]
pub enum ClientError {
    /// No link.
    Link(LinkError),
    /// The link broke, or stayed silent too long.
    Lost {
        /// To whom.
        address: String,
        /// What the system said.
        source: io::Error,
    },
    /// One of the two does not trust the other.
    Untrusted {
        /// Who.
        address: String,
        /// A sentence for a person.
        what: String,
    },
    /// The exporter closed the connection in mid-sentence.
    Closed {
        /// Who.
        address: String,
    },
    /// The exporter does not speak the protocol.
    Protocol {
        /// Who.
        address: String,
        /// What it said.
        reject: Reject,
    },
    /// It refused the device.
    Refused {
        /// What was asked for.
        target: Target,
        /// Its word for why.
        status: OpStatus,
        /// Who uses it, if its exporter says so.
        user: Option<InUse>,
    },
    /// It has no device of that name.
    NoDevice {
        /// What was asked for.
        target: Target,
        /// What there is instead.
        offered: Vec<String>,
    },
    /// The device cannot be used as asked.
    Device {
        /// Which.
        target: Target,
        /// A sentence for a person.
        what: String,
    },
    /// This machine lacks something.
    Local(String),
}

impl ClientError {
    /// Whose trouble it is.
    pub fn attribute(&self) -> Attribute {
        match self {
            ClientError::Link(_) | ClientError::Lost { .. } | ClientError::Closed { .. } => Attribute::Network,
            ClientError::Refused { status: OpStatus::NoDevice, .. } | ClientError::NoDevice { .. } => Attribute::Gone,
            ClientError::Refused { status: OpStatus::DeviceError, .. } => Attribute::Device,
            ClientError::Refused { .. } | ClientError::Untrusted { .. } => Attribute::Refused,
            ClientError::Protocol { .. } | ClientError::Device { .. } => Attribute::Device,
            ClientError::Local(_) => Attribute::Local,
        }
    }
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClientError::Link(error) if error.address.starts_with(LOCAL) => {
                let why = match error.source.kind() {
                    io::ErrorKind::PermissionDenied => "it is for others: its owner says to whom it is open",
                    _ => "nobody shares there: 'farbus share … --listen unix:PATH' does",
                };
                write!(f, "{error}\n  {why}")
            }
            ClientError::Link(error) => {
                write!(
                    f,
                    "{error}\n  is 'farbus share' (or usbipd) running there, and does a firewall let {} through?",
                    { error.address.rsplit(':').next().unwrap_or_default() }
                )
            }
            ClientError::Lost { address, source } => write!(f, "the link to {address} was lost: {source}"),
            ClientError::Untrusted { address, what } => write!(f, "{address}: {what}"),
            ClientError::Closed { address } => write!(f, "{address} closed the connection"),
            ClientError::Protocol { address, reject } => {
                write!(f, "{address} does not speak USB/IP as it should: {reject}")
            }
            ClientError::Refused { target, status: OpStatus::Busy, user } => {
                match user {
                    Some(InUse { user, used_s }) => write!(f, "{target} is in use by {user} since {used_s} s")?,
                    None => write!(f, "{target} is in use")?,
                }
                write!(
                    f,
                    "\n  one user at a time: 'farbus attach {target} --wait' waits for it, \
                     'farbus release {}' where it is shared takes it back",
                    target.device
                )
            }
            ClientError::Refused { target, status, .. } => write!(f, "{target} was refused: {status}"),
            ClientError::NoDevice { target, offered } if offered.is_empty() => {
                write!(
                    f,
                    "{} offers no device at all\n  where the device is, 'farbus share' ('usbip bind' for usbipd) offers it",
                    target.address
                )
            }
            ClientError::NoDevice { target, offered } => {
                write!(f, "{} offers no '{}', but {}", target.address, target.device, offered.join(", "))
            }
            ClientError::Device { target, what } => write!(f, "{target}: {what}"),
            ClientError::Local(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for ClientError {}

impl From<KnownHostError> for ClientError {
    fn from(error: KnownHostError) -> Self {
        match error {
            KnownHostError::Lost { address, source } => ClientError::Lost { address, source },
            KnownHostError::Untrusted { address, what } => ClientError::Untrusted { address, what },
            KnownHostError::Local(what) => ClientError::Local(what),
        }
    }
}

/// A device on a host: `HOST[:PORT]/DEVICE`, or at a socket of this machine: `unix:PATH/DEVICE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// `HOST:PORT`, `unix:PATH`.
    pub address: String,
    /// Name or bus id.
    pub device: String,
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // A path has slashes of its own, a device's name has none.
        let parts = if text.starts_with(LOCAL) { text.rsplit_once('/') } else { text.split_once('/') };
        match parts {
            Some((host, device)) if !host.is_empty() && host != LOCAL && !device.is_empty() => {
                Ok(Self { address: address_of(host), device: device.to_owned() })
            }
            _ => Err(format!(
                "'{text}' is not HOST[:PORT]/DEVICE, such as lab3/disk or 10.0.0.7:3240/1-1, nor unix:PATH/DEVICE"
            )),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.device)
    }
}

/// Remembers that the paired host which `target` (`NAME:PORT`) names is now at `moved` (`HOST[:PORT]`).
///
/// # Errors
/// [`ClientError::Local`] if it names no paired host: then nothing would tell a false address from a right one.
pub fn remember_address(target: &str, moved: &str) -> Result<(), ClientError> {
    Ok(crate::known_host::remember_address(target, moved)?)
}

/// Takes devices from other machines.
#[derive(Clone, Debug)]
pub struct Client {
    hands: Hands,
    /// As somebody said it.
    grace: Option<Duration>,
    /// Of one session.
    links: u16,
    over: Over,
    /// What is done about their distance.
    ahead: Ahead,
    /// What its devices go through.
    recipe: Recipe,
    /// What is kept here of its disks.
    cache: Cache,
    /// What is reserved for its devices.
    reservation: Option<Reservation>,
    /// Who a host is, found out while the files that say so could be read.
    pinned: Option<(String, Option<Arc<KnownHost>>)>,
}

/// How long a kernel's USB device of a paired host outlives its link unless somebody says otherwise: less than the 30 s after which
/// Linux's usb-storage gives a command up, by the time that it takes to go on (U11).
pub const GRACE: Duration = Duration::from_secs(20);
/// The same of a disk that is driven here and shown by FUSE or NBD: no kernel's timer runs.
pub const GRACE_DISK: Duration = Duration::from_secs(60);
/// A session carries one device here: its attachment's number.
const ATTACHMENT: u16 = 1;

impl Default for Client {
    fn default() -> Self {
        Self::through(Hands::Own)
    }
}

impl Client {
    /// One that connects, plugs in and mounts through `hands`.
    pub fn through(hands: Hands) -> Self {
        Self {
            hands,
            grace: None,
            links: 1,
            over: Over::default(),
            ahead: Ahead::default(),
            recipe: Recipe::default(),
            cache: Cache::default(),
            reservation: None,
            pinned: None,
        }
    }

    /// One for a single host (`HOST:PORT`), which needs no files any more.
    ///
    /// # Errors
    /// [`ClientError::Local`] if the list of paired hosts cannot be read.
    pub fn for_host(address: &str, hands: Hands) -> Result<Self, ClientError> {
        let known = KnownHost::find(address)?.map(Arc::new);
        Ok(Self { pinned: Some((address.to_owned(), known)), ..Self::through(hands) })
    }

    /// Whoever acts for it.
    pub fn hands(&self) -> &Hands {
        &self.hands
    }

    /// The devices that `address` (`HOST:PORT`) offers.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn list(&self, address: &str) -> Result<Vec<DeviceRecord>, ClientError> {
        self.list_within(address, ANSWER_TIME_MAX)
    }

    /// The same, with less patience.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn list_within(&self, address: &str, time_max: Duration) -> Result<Vec<DeviceRecord>, ClientError> {
        let link = self.connect_within(address, time_max)?;
        let mut handshake = Handshake::list(Limits::DEFAULT);
        match converse(&link, &mut handshake)? {
            Greeting::Devices(devices) => Ok(devices),
            Greeting::Imported(_) | Greeting::Refused(_) => unreachable!("a list was asked for"),
        }
    }

    /// The same as a list shows it: a paired host says more of its devices, who uses each and since when.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn offers(&self, address: &str, time_max: Duration) -> Result<Vec<Listed>, ClientError> {
        match self.ask(address, &Question::List, time_max)? {
            Some(Answer::Devices(devices)) => Ok(devices.into_iter().map(Listed::from).collect()),
            Some(Answer::Refused(what)) => Err(ClientError::Untrusted { address: address.to_owned(), what }),
            Some(Answer::Done | Answer::Topology(_)) | None => {
                Ok(self.list_within(address, time_max)?.iter().map(Listed::from).collect())
            }
        }
    }

    /// Tells an exporter what its device is needed for: a paired host over its encrypted link, one on this machine as its owner
    /// would. Plain USB/IP has no word for it. `user` is our end of the link that carries the device.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn explain(&self, target: &Target, reason: &str, user: Option<SocketAddr>) -> Result<(), ClientError> {
        let question = Question::Explain { device: target.device.clone(), reason: reason.to_owned() };
        if self.ask(&target.address, &question, ANSWER_TIME_MAX)?.is_none()
            && let Some(user) = user
        {
            let told = self.hands.explain(&user.to_string(), reason);
            told.map_err(|error| ClientError::Local(error.to_string()))?;
        }
        Ok(())
    }

    /// Asks a paired host something of its devices; `None` if `address` names no paired host.
    fn ask(&self, address: &str, question: &Question, time_max: Duration) -> Result<Option<Answer>, ClientError> {
        let Some(known) = self.known(address)? else { return Ok(None) };
        let link = self.connect_to(&known, Protocol::Control, time_max)?;
        let lost = |source| lost(link.peer(), source);
        let mut lines = Lines::over(&link, time_max).map_err(lost)?;
        lines.send(question).map_err(lost)?;
        let line = lines.receive().map_err(lost)?.ok_or_else(|| ClientError::Closed { address: known.described() })?;
        let answer = serde_json::from_slice(&line);
        answer.map(Some).map_err(|error| lost(io::Error::new(io::ErrorKind::InvalidData, error)))
    }

    /// A link on which a paired host is asked one thing after the other ([`Lines`]); `None` if `address` names no paired host.
    pub(crate) fn ask_often(&self, address: &str, time_max: Duration) -> Result<Option<Link>, ClientError> {
        let Some(known) = self.known(address)? else { return Ok(None) };
        self.connect_to(&known, Protocol::Control, time_max).map(Some)
    }

    /// Takes a device: a link, and what speaks on it.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn import(&self, target: &Target) -> Result<(Link, RemoteDevice), ClientError> {
        // Linux's usbipd leaves a device that is in use out of its list, and says so to whoever asks for it by its bus id.
        let (bus_id, unlisted) = match self.resolve(target) {
            Ok(record) => (record.bus_id, None),
            Err(error @ ClientError::NoDevice { .. }) if may_be_bus_id(&target.device) => {
                (target.device.clone(), Some(error))
            }
            Err(error) => return Err(error),
        };
        let link = self.connect_within(&target.address, ANSWER_TIME_MAX)?;
        let mut handshake = Handshake::import(Limits::DEFAULT, &bus_id);
        match (converse(&link, &mut handshake)?, unlisted) {
            (Greeting::Imported(record), _) => Ok((link, handshake.into_device(record))),
            // What there is instead helps more than that this is not there.
            (Greeting::Refused(status), Some(unlisted))
                if status != OpStatus::Busy && status != OpStatus::DeviceError =>
            {
                Err(unlisted)
            }
            (Greeting::Refused(status), _) => {
                // USB/IP says busy and no more; a list of ours says by whom.
                let is_busy = status == OpStatus::Busy;
                let user = is_busy.then(|| self.resolve(target).ok().as_ref().and_then(in_use)).flatten();
                Err(ClientError::Refused { target: target.clone(), status, user })
            }
            (Greeting::Devices(_), _) => unreachable!("an import was asked for"),
        }
    }

    /// The record of a device that is named by name or bus id.
    fn resolve(&self, target: &Target) -> Result<DeviceRecord, ClientError> {
        let mut devices = self.list(&target.address)?;
        let named = |record: &DeviceRecord| name_of(record) == target.device || record.bus_id == target.device;
        match devices.iter().position(named) {
            Some(at) => Ok(devices.swap_remove(at)),
            None => {
                let offered = devices.iter().map(|record| name_of(record).to_owned()).collect();
                Err(ClientError::NoDevice { target: target.clone(), offered })
            }
        }
    }

    /// Whether this is a Bulk-Only disk and nothing else, of a host with which there are sessions.
    ///
    /// # Errors
    /// [`ClientError`].
    pub(crate) fn is_lone_disk(&self, target: &Target) -> Result<bool, ClientError> {
        if self.grace_for(&target.address, GRACE_DISK)?.is_zero() {
            return Ok(false);
        }
        // Of one that is not on the list the attempt says why.
        Ok(self.resolve(target).is_ok_and(|record| record.interfaces == [BULK_ONLY]))
    }

    /// Why a link that carried a device ended, seen from here and now: its host is asked once more, briefly.
    pub fn why_lost(&self, target: &Target) -> Attribute {
        match self.list_within(&target.address, AFTERWARDS_TIME_MAX) {
            Ok(devices) if devices.iter().any(|d| name_of(d) == target.device || d.bus_id == target.device) => {
                Attribute::Refused
            }
            Ok(_) => Attribute::Gone,
            Err(_) => Attribute::Network,
        }
    }

    /// Takes a device and reads its descriptors, leaving it unconfigured for another host.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn enumerate(&self, target: &Target) -> Result<(Link, RemoteDevice), ClientError> {
        let (link, device) = self.import(target)?;
        let speed = device.speed();
        let mut port = RemotePort::new(link, device).map_err(|error| ClientError::Local(error.to_string()))?;
        let mut driver = Enumerate::new(port.now(), IdSource::new(), speed);
        let descriptors = run(&mut driver, &mut port).map_err(|error| unreachable(target, error))?;
        let descriptors =
            descriptors.map_err(|error| ClientError::Device { target: target.clone(), what: error.to_string() })?;
        let (link, mut device) = port.into_parts();
        device.set_descriptors(descriptors);
        link.set_receive_timeout(None).map_err(|error| ClientError::Local(error.to_string()))?;
        Ok((link, device))
    }

    /// Takes a device, reads its descriptors, selects its first configuration: ready for transfers.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn open(&self, target: &Target) -> Result<farbus_host::RemoteDevice<DevicePort>, ClientError> {
        let (speed, descriptors, port) = match self.session(target, GRACE_DISK)? {
            Some(linked) => {
                let (speed, descriptors) = (linked.speed(), linked.descriptors().clone());
                (speed, descriptors, DevicePort::Session(SessionPort::new(linked)))
            }
            None => {
                let (link, device) = self.enumerate(target)?;
                let (speed, descriptors) = (device.speed(), device.descriptors().clone());
                let port = RemotePort::new(link, device).map_err(|error| ClientError::Local(error.to_string()))?;
                (speed, descriptors, DevicePort::Plain(Box::new(port)))
            }
        };
        farbus_host::RemoteDevice::enumerated(port, speed, descriptors).map_err(|error| match error {
            RemoteError::Port(error) => unreachable(target, error),
            error => ClientError::Device { target: target.clone(), what: error.to_string() },
        })
    }

    /// Takes a disk: imported, configured, brought up.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn open_disk(&self, target: &Target) -> Result<RemoteDisk<DevicePort>, ClientError> {
        let disk = self.open(target)?.into_disk(Options::default());
        disk.map_err(|error| match error {
            DiskError::Port(error) => unreachable(target, error),
            error => ClientError::Device { target: target.clone(), what: error.to_string() },
        })
    }

    /// Takes a device in a session, which outlives its links for as long as [`Client::outlive`] said, else `usual`. `None` if no
    /// session is wanted: unless somebody said otherwise there is one with paired hosts and at sockets of this machine alone, because
    /// others may not speak our protocol.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn session(&self, target: &Target, usual: Duration) -> Result<Option<Linked<RemoteUsb>>, ClientError> {
        let asked = (native::Class::USB, native::Mode::Exclusive);
        let grace = self.grace_for(&target.address, usual)?;
        if grace.is_zero() {
            return Ok(None);
        }
        let mut done = Completions::new(BufferPool::new(0));
        let linked = match &self.reservation {
            Some(reservation) => {
                let ask = |number, open| RemoteUsb::reserving(number, open, reservation.clone());
                self.begin(target, asked, grace, ask, &mut done)?
            }
            None => self.begin(target, asked, grace, RemoteUsb::new, &mut done)?,
        };
        self.opened(target, linked).map(Some)
    }

    /// Takes a block device in a session; whether its exporter gave it is [`Linked::end`]'s to say.
    pub(crate) fn begin_block(
        &self,
        target: &Target,
        mode: native::Mode,
        grace: Duration,
    ) -> Result<Linked<RemoteBlock>, ClientError> {
        let (asked, mut done) = ((native::Class::BLOCK, mode), Completions::new(BufferPool::new(0)));
        match self.reservation.clone() {
            Some(wished) => {
                let ask = |number, open| RemoteBlock::reserving(number, open, wished);
                self.begin(target, asked, grace, ask, &mut done)
            }
            None => self.begin(target, asked, grace, RemoteBlock::new, &mut done),
        }
    }

    /// Takes a device once it is handed over to this host, with luggage that begins like this: it is there when
    /// [`Attached::state`] says so.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn inherit(
        &self,
        target: &Target,
        luggage: [u8; native::LUGGAGE_NAME_BYTES],
        usual: Duration,
    ) -> Result<Linked<RemoteUsb>, ClientError> {
        let grace = self.grace_of_heir(target, usual)?;
        let (dial, described) = self.dial(target)?;
        let remote =
            RemoteUsb::heir(ATTACHMENT, asked_for(target, native::Class::USB, native::Mode::Exclusive), luggage);
        let remote = Piped::new(remote, through(&self.recipe));
        Linked::begin(self.links, dial, remote, grace).map_err(|source| lost(&described, source))
    }

    /// The same of a block device, which may be read before that ([`Standing::is_expected`](crate::standing::Standing::is_expected)).
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn inherit_block(&self, target: &Target, usual: Duration) -> Result<Linked<RemoteBlock>, ClientError> {
        let grace = self.grace_of_heir(target, usual)?;
        let mut done = Completions::new(BufferPool::new(0));
        let asked = (native::Class::BLOCK, native::Mode::Exclusive);
        let linked = self.begin(target, asked, grace, RemoteBlock::heir, &mut done)?;
        self.opened(target, linked)
    }

    fn grace_of_heir(&self, target: &Target, usual: Duration) -> Result<Duration, ClientError> {
        match self.grace_for(&target.address, usual)? {
            Duration::ZERO => {
                Err(ClientError::Local("what is inherited comes in a session, from a paired host".to_owned()))
            }
            grace => Ok(grace),
        }
    }

    /// Looks on at what a device sends to its user; what it shows before this returns is in `seen`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn observe(&self, target: &Target, seen: &mut Vec<Event>) -> Result<Linked<RemoteObserver>, ClientError> {
        let asked = (native::Class::USB, native::Mode::Observe);
        let grace = self.grace.unwrap_or(GRACE);
        let linked = self.begin(target, asked, grace, RemoteObserver::new, seen)?;
        self.opened(target, linked)
    }

    /// Reads a stream of frames: all of it, alone and waited for, if this is exclusive; else the latest of it, beside others. What came
    /// before this returns is in `frames`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn stream(
        &self,
        target: &Target,
        mode: native::Mode,
        frames: &mut Vec<Frame>,
    ) -> Result<Linked<RemoteStream>, ClientError> {
        let grace = self.grace.unwrap_or(GRACE);
        let asked = (native::Class::STREAM, mode);
        let linked = match self.reservation.clone() {
            Some(wished) => {
                let ask = |number, open| RemoteStream::reserving(number, open, wished);
                self.begin(target, asked, grace, ask, frames)?
            }
            None => self.begin(target, asked, grace, RemoteStream::new, frames)?,
        };
        self.opened(target, linked)
    }

    /// How long a session with this host is to outlive its link; zero is none at all.
    pub(crate) fn grace_for(&self, address: &str, usual: Duration) -> Result<Duration, ClientError> {
        if self.links > 1 && !self.recipe.is_empty() {
            let message = "what goes through modules goes over one link: leave --links or --module out";
            return Err(ClientError::Local(message.into()));
        }
        if let Some(grace) = self.grace {
            return match grace.is_zero() && self.over == Over::Quic {
                true => Err(ClientError::Local("QUIC carries sessions: give it a --grace of more than 0".into())),
                false if grace.is_zero() && self.links > 1 => {
                    Err(ClientError::Local("several links go with sessions: give it a --grace of more than 0".into()))
                }
                false if grace.is_zero() && !self.recipe.is_empty() => {
                    Err(ClientError::Local("modules go with sessions: give it a --grace of more than 0".into()))
                }
                false if grace.is_zero() && self.reservation.is_some() => {
                    Err(ClientError::Local("reservations go with sessions: give it a --grace of more than 0".into()))
                }
                false => Ok(grace),
            };
        }
        // Whoever shares at a socket is a farbus; and who asks for modules or several links asks for a session.
        let is_asked_for = !self.recipe.is_empty() || self.links > 1 || self.reservation.is_some();
        let has_sessions = address.starts_with(LOCAL) || is_asked_for || self.known(address)?.is_some();
        Ok(if has_sessions { usual } else { Duration::ZERO })
    }

    /// Begins a session for one device: whether its exporter gave it is [`Linked::end`]'s to say.
    pub(crate) fn begin<A: Attached>(
        &self,
        target: &Target,
        (class, mode): (native::Class, native::Mode),
        grace: Duration,
        attached: impl FnOnce(u16, native::Open) -> A,
        done: &mut A::Done,
    ) -> Result<Linked<A>, ClientError> {
        let (dial, described) = self.dial(target)?;
        let attached = attached(ATTACHMENT, asked_for(target, class, mode));
        let attached = Piped::new(attached, through(&self.recipe));
        Linked::open_over(self.links, dial, attached, grace, done).map_err(|source| lost(&described, source))
    }

    /// Makes links to a device's exporter, whose name for people comes with it. The first is made already.
    fn dial(&self, target: &Target) -> Result<(Dial, String), ClientError> {
        let known = self.known(&target.address)?;
        let described = known.as_ref().map_or_else(|| target.address.clone(), |known| known.described());
        let mut connect = self.connector(target, known)?;
        // The first link says best what is wrong with the way.
        let mut first = Some(connect()?);
        let mut redial = redialler(connect);
        Ok((Box::new(move || first.take().map_or_else(&mut redial, Ok)), described))
    }

    fn opened<A: Attached>(&self, target: &Target, linked: Linked<A>) -> Result<Linked<A>, ClientError> {
        match linked.end() {
            None => Ok(linked),
            Some(end) => Err(self.refusal(target, end)),
        }
    }

    /// Makes links for a session that there is already, with the device's exporter.
    ///
    /// # Errors
    /// [`ClientError::Local`].
    pub(crate) fn redial(&self, target: &Target) -> Result<Redial, ClientError> {
        let known = self.known(&target.address)?;
        let dial = Box::new(redialler(self.connector(target, known)?));
        Ok(Redial { dial, through: through(&self.recipe) })
    }

    /// Whoever waits for a link does not keep others waiting who need something else.
    fn connector(
        &self,
        target: &Target,
        known: Option<Arc<KnownHost>>,
    ) -> Result<impl FnMut() -> Result<Link, ClientError> + Send + 'static, ClientError> {
        if self.over == Over::Quic && known.is_none() {
            let what = format!("QUIC is for paired hosts, and {} is none: see 'farbus pair'", target.address);
            return Err(ClientError::Local(what));
        }
        let hands = self.hands.apart().map_err(|error| ClientError::Local(error.to_string()))?;
        let (apart, address) = (Self { hands, ..self.clone() }, target.address.clone());
        Ok(move || match &known {
            Some(known) if apart.over == Over::Quic => {
                let (socket, to) = apart.hands.datagrams(known.asked()).map_err(ClientError::Link)?;
                Ok(known.encrypt_datagrams(socket, to)?)
            }
            Some(known) => apart.connect_to(known, Protocol::Session, ANSWER_TIME_MAX),
            None => apart.hands.connect(&address, ANSWER_TIME_MAX).map_err(ClientError::Link),
        })
    }

    /// An exporter's no, in our words.
    pub(crate) fn refusal(&self, target: &Target, end: &native::End) -> ClientError {
        let (target, what) = (target.clone(), end.message.clone());
        match end.cause {
            native::Cause::Busy => {
                let user = self.resolve(&target).ok().as_ref().and_then(in_use);
                ClientError::Refused { target, status: OpStatus::Busy, user }
            }
            native::Cause::Gone => {
                let devices = self.list(&target.address).unwrap_or_default();
                let offered = devices.iter().map(|record| name_of(record).to_owned()).collect();
                ClientError::NoDevice { target, offered }
            }
            native::Cause::Device => ClientError::Device { target, what },
            native::Cause::Network => lost(&target.address, io::Error::other(what)),
            native::Cause::Refused
            | native::Cause::Stale
            | native::Cause::Asked
            | native::Cause::Class
            | native::Cause::Module
            | native::Cause::Reservation => ClientError::Untrusted { address: target.to_string(), what },
        }
    }

    /// How long a session is to outlive its link; not at all takes devices by plain USB/IP, over an encrypted link all the same.
    pub fn outlive(&mut self, grace: Duration) {
        self.grace = Some(grace);
    }

    /// Over how many links a session is, as far as its exporter grants them.
    pub fn take_links(&mut self, links: u16) {
        self.links = links;
    }

    /// What the devices that it takes go through.
    pub fn go_through(&mut self, recipe: Recipe) {
        self.recipe = recipe;
    }

    /// What is kept here of the disks that it takes.
    pub fn keep(&mut self, cache: Cache) {
        self.cache = cache;
    }

    /// What is reserved at its exporter for each device that it takes.
    pub fn reserve(&mut self, reservation: Option<Reservation>) {
        self.reservation = reservation;
    }

    pub(crate) fn cache(&self) -> Cache {
        self.cache
    }

    /// Over what sessions reach their hosts.
    pub fn travel(&mut self, over: Over) {
        self.over = over;
    }

    /// What is done about its devices' distance, those in sessions that this kernel uses.
    pub fn ask_ahead(&mut self, ahead: Ahead) {
        self.ahead = ahead;
    }

    /// The same.
    pub fn ahead(&self) -> Ahead {
        self.ahead
    }

    /// The paired host that an address names.
    fn known(&self, address: &str) -> Result<Option<Arc<KnownHost>>, ClientError> {
        match &self.pinned {
            Some((pinned, known)) if pinned == address => Ok(known.clone()),
            _ => Ok(KnownHost::find(address)?.map(Arc::new)),
        }
    }

    /// An encrypted link to a paired host.
    fn connect_to(&self, known: &KnownHost, protocol: Protocol, time_max: Duration) -> Result<Link, ClientError> {
        let failed = |error| ClientError::Link(LinkError { address: known.address().to_owned(), ..error });
        Ok(known.encrypt(self.hands.connect(known.asked(), time_max).map_err(failed)?, protocol)?)
    }

    /// A link to `address`: encrypted if that is the name of a paired host, and then never otherwise.
    fn connect_within(&self, address: &str, time_max: Duration) -> Result<Link, ClientError> {
        let link = match self.known(address)? {
            Some(known) => self.connect_to(&known, Protocol::UsbIp, time_max)?,
            None => self.hands.connect(address, time_max).map_err(ClientError::Link)?,
        };
        link.set_receive_timeout(Some(time_max)).map_err(|source| lost(address, source))?;
        Ok(link)
    }
}

fn asked_for(target: &Target, class: native::Class, mode: native::Mode) -> native::Open {
    native::Open { class, mode, epoch: 0, name: target.device.clone(), reason: String::new() }
}

/// Says of a link that was not had whether another try may bring one.
fn redialler(
    mut connect: impl FnMut() -> Result<Link, ClientError> + Send + 'static,
) -> impl FnMut() -> io::Result<Link> + Send + 'static {
    move || {
        connect().map_err(|error| {
            let kind = match &error {
                ClientError::Untrusted { .. } => io::ErrorKind::PermissionDenied,
                _ => io::ErrorKind::Other,
            };
            io::Error::new(kind, error.to_string())
        })
    }
}

/// The devices that `address` (`HOST:PORT`) offers.
///
/// # Errors
/// [`ClientError`].
pub fn list(address: &str) -> Result<Vec<DeviceRecord>, ClientError> {
    Client::default().list(address)
}

/// Takes a device: a link, and what speaks on it.
///
/// # Errors
/// [`ClientError`].
pub fn import(target: &Target) -> Result<(Link, RemoteDevice), ClientError> {
    Client::default().import(target)
}

/// Takes a device, reads its descriptors, selects its first configuration: ready for transfers.
///
/// # Errors
/// [`ClientError`].
pub fn open(target: &Target) -> Result<farbus_host::RemoteDevice<DevicePort>, ClientError> {
    Client::default().open(target)
}

/// Takes a disk: imported, configured, brought up.
///
/// # Errors
/// [`ClientError`].
pub fn open_disk(target: &Target) -> Result<RemoteDisk<DevicePort>, ClientError> {
    Client::default().open_disk(target)
}

pub(crate) fn local_address(link: &Link) -> Option<SocketAddr> {
    rustix::net::getsockname(link.as_fd()).ok()?.try_into().ok()
}

pub(crate) fn local(error: impl fmt::Display) -> ClientError {
    ClientError::Local(error.to_string())
}

/// Whether an exporter other than farbus may call a device so: `1-1.4`, `usbip-vudc.0`, and never a name like `disk`.
fn may_be_bus_id(device: &str) -> bool {
    device.len() < 32 && device.contains('-') && device.ends_with(|last: char| last.is_ascii_digit())
}

/// A device that was ours, and whose exporter then fell silent, went away or broke the rules.
fn unreachable(target: &Target, error: PortError) -> ClientError {
    let address = target.address.clone();
    match error {
        PortError::Gone => ClientError::Closed { address },
        PortError::World(what) => {
            let what = what.strip_prefix(LOST).unwrap_or(&what).to_owned();
            ClientError::Lost { address, source: io::Error::other(what) }
        }
        error @ (PortError::Peer(_) | PortError::Idle) => {
            ClientError::Device { target: target.clone(), what: error.to_string() }
        }
    }
}

/// A link that failed before the device was ours; on an encrypted one that may be the peer's word.
fn lost(address: &str, source: io::Error) -> ClientError {
    let address = address.to_owned();
    match HandshakeError::of_link(&source) {
        Some(HandshakeError::Refused) => ClientError::Untrusted {
            address,
            what: "it does not know this host's key (any more)\n  pair again: 'farbus pair' there, 'farbus pair HOST CODE' here"
                .into(),
        },
        Some(error) => ClientError::Untrusted { address, what: error.to_string() },
        None => ClientError::Lost { address, source },
    }
}

/// Sends a handshake's question and waits for its answer.
fn converse(link: &Link, handshake: &mut Handshake) -> Result<Greeting, ClientError> {
    let address = || link.peer().to_owned();
    let lost = |source| lost(link.peer(), source);
    loop {
        if handshake.has_transmit() {
            // A handshake is smaller than any socket's buffer.
            let sent = link.try_send(&handshake.poll_transmit()).map_err(lost)?.unwrap_or(0);
            handshake.handle_transmitted(sent);
        }
        let count = link.receive(handshake.receive_space()).map_err(lost)?;
        if count == 0 {
            return Err(ClientError::Closed { address: address() });
        }
        let greeting = handshake.handle_received(count);
        if let Some(greeting) = greeting.map_err(|reject| ClientError::Protocol { address: address(), reject })? {
            return Ok(greeting);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read_as_people_write_them() {
        let read = |text: &str| text.parse::<Target>().map(|t| (t.address, t.device));
        assert_eq!(read("lab3/disk"), Ok(("lab3:3240".into(), "disk".into())));
        assert_eq!(read("10.0.0.7:99/1-1"), Ok(("10.0.0.7:99".into(), "1-1".into())));
        assert_eq!(read("::1/zero"), Ok(("[::1]:3240".into(), "zero".into())));
        assert_eq!(read("[::1]:5/zero"), Ok(("[::1]:5".into(), "zero".into())));
        assert_eq!(read("unix:/run/x.sock/disk"), Ok(("unix:/run/x.sock".into(), "disk".into())));
        assert!(read("lab3").is_err() && read("unix:/disk").is_err() && read("unix:disk").is_err());
    }

    #[test]
    fn only_what_looks_like_a_bus_id_is_asked_for_unlisted() {
        for bus_id in ["1-1", "1-1.4", "usbip-vudc.0", "0-0-0"] {
            assert!(may_be_bus_id(bus_id), "{bus_id}");
        }
        for name in ["disk", "disk2", "my-disk", "a-name-that-is-far-longer-than-31-1"] {
            assert!(!may_be_bus_id(name), "{name}");
        }
    }

    #[test]
    fn an_exporter_s_word_says_whose_trouble_it_is() {
        let attribute = |status| {
            let target = "lab3/1-1".parse().unwrap();
            ClientError::Refused { target, status, user: None }.attribute()
        };
        assert_eq!(attribute(OpStatus::Busy), Attribute::Refused);
        assert_eq!(attribute(OpStatus::NotAvailable), Attribute::Refused);
        assert_eq!(attribute(OpStatus::NoDevice), Attribute::Gone);
        assert_eq!(attribute(OpStatus::DeviceError), Attribute::Device);
        assert_eq!(attribute(OpStatus::Error), Attribute::Refused);
    }
}
