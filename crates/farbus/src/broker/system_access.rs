//! How a process does what needs rights: itself, or through its broker.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use farbus_control::device::RemoteIdentity;
use farbus_io_linux::frontend::fuse::{FuseMount, FuseMounter, MountError, MountKeeper, MountRemoval, OwnMounter};
use farbus_io_linux::store::{FileStore, OtherUsers};
use farbus_io_linux::sys::scheduling::{give_deadline_back, set_deadline, this_thread};
use farbus_io_linux::sys::tcp_owner::{PeerOwner, peer_owner};
use farbus_io_linux::sys::terminal::TerminalMaster;
use farbus_io_linux::sys::users::user_number;
use farbus_io_linux::sys::vhci::{Vhci, VhciPort};
use farbus_io_net::link::{Link, LinkError, SegmentSize};
use farbus_io_net::local::control_socket::{Question as OwnerQuestion, ask_all, running};
use farbus_io_net::store::frames;
use farbus_io_net::trust::{
    AttachedDevice, DeviceId, DeviceNotes, DiskRetirement, HostFolder, KnownAttachment, KnownLease, KnownNotes,
    NotedDevice, StoredBooking, StoredLease,
};
use farbus_model::UsbSpeed;
use serde_json::Value;

use super::line::BrokerClient;
use super::protocol::{BrokerRequest, FoundRetirement, MountedAt, StoredRetirements, in_ms};
use crate::common::processor_leases::ask_for;
use crate::common::socket_access::SocketAccess;
use crate::common::socket_place::{SocketListener, SocketLocation};
use crate::common::terminal_link;
use crate::devices::identities::{DeviceIdentity, ExpectedImage, IdentityFinder};
use crate::devices::media_journal;
use crate::devices::retirement::{RetirementStep, retirement};
use crate::hosts::known_host::{self, KnownHost};
use crate::hosts::reach::{self, AddressHints, ReachedAddress};

/// About how many disks a broker is asked at a time: a message has room for 400 ids.
const RETIREMENTS_AT_A_TIME: usize = 256;

/// Does what needs rights.
#[derive(Clone, Debug, Default)]
pub enum SystemAccess {
    /// The process does it itself.
    #[default]
    Own,
    /// The broker does it.
    Through(Arc<BrokerClient>),
}

impl SystemAccess {
    /// Returns an access of its own, whose calls do not wait for calls on this one.
    ///
    /// # Errors
    /// The system has no more descriptors or threads.
    pub fn apart(&self) -> io::Result<Self> {
        match self {
            SystemAccess::Own => Ok(SystemAccess::Own),
            SystemAccess::Through(broker) => Ok(SystemAccess::Through(several(broker)?)),
        }
    }

    /// Connects to `host` (`HOST:PORT` or `unix:PATH`), which is not a paired host.
    ///
    /// # Errors
    /// [`LinkError`].
    pub fn connect(&self, host: &str, time_max: Duration, segments: SegmentSize) -> Result<Link, LinkError> {
        let dialled = match self {
            SystemAccess::Own => reach::dial(host, time_max, segments, reach::ask_around),
            SystemAccess::Through(broker) => {
                dial_through(broker, host, time_max, AddressHints { segments, ..AddressHints::default() })
            }
        };
        let (fd, ReachedAddress { place: location, .. }) = dialled?;
        location.link_over(fd).map_err(|source| LinkError { address: host.to_owned(), source })
    }

    /// Connects to a paired host at its most likely address. The host has not proved its key yet.
    ///
    /// # Errors
    /// [`LinkError`].
    pub fn connect_known(
        &self,
        known: &KnownHost,
        time_max: Duration,
        hints: &AddressHints,
    ) -> Result<(Link, ReachedAddress), LinkError> {
        let (fd, found) = match self {
            SystemAccess::Own => reach::dial_known(&known.as_remembered(), time_max, hints, reach::ask_around),
            SystemAccess::Through(broker) => dial_through(broker, known.given_address(), time_max, hints.clone()),
        }?;
        let link = found.place.link_over(fd);
        Ok((link.map_err(|source| LinkError { address: known.given_address().to_owned(), source })?, found))
    }

    /// Opens a UDP socket for a paired host. Returns the host's address, and whether a different one is remembered.
    ///
    /// # Errors
    /// [`LinkError`].
    pub fn datagrams(
        &self,
        known: &KnownHost,
        hints: &AddressHints,
    ) -> Result<(UdpSocket, SocketAddr, bool), LinkError> {
        let failed = |source| LinkError { address: known.given_address().to_owned(), source };
        match self {
            SystemAccess::Own => reach::datagrams(&known.as_remembered(), hints, reach::ask_around),
            SystemAccess::Through(broker) => {
                let question =
                    BrokerRequest::Datagrams { host: known.given_address().to_owned(), hints: hints.clone() };
                let ((to, is_new), fd) = broker.ask(&question, None).map_err(failed)?;
                Ok((fd.ok_or_else(|| failed(io::Error::other("no socket came along")))?.into(), to, is_new))
            }
        }
    }

    /// Stores the address at which a paired host proved its key, if a different one was remembered.
    ///
    /// # Errors
    /// The address cannot be written.
    pub fn remember(&self, known: &KnownHost, at: SocketAddr) -> io::Result<()> {
        match self {
            SystemAccess::Own => known_host::remember(known.given_address(), at),
            SystemAccess::Through(broker) => {
                let question = BrokerRequest::Proved { host: known.given_address().to_owned(), at };
                broker.ask::<Value>(&question, None).map(|_| ())
            }
        }
    }

    /// Listens for programs at `place`, where `access` says who may connect. A broker takes that from its policy, not
    /// from here. A socket's path is removed when this process has ended at the latest.
    ///
    /// # Errors
    /// Why it cannot listen, and what to do.
    pub fn listen_at(&self, location: &SocketLocation, access: &SocketAccess) -> io::Result<SocketListener> {
        match self {
            SystemAccess::Own => location.listen_for(access),
            SystemAccess::Through(broker) => broker.listen_at(location),
        }
    }

    /// Opens a terminal to which `place` leads, a path, until [`SystemAccess::end_terminal`] and while this process is
    /// there.
    ///
    /// # Errors
    /// Why there is none, and what to do.
    pub fn open_terminal(&self, place: &SocketLocation) -> io::Result<TerminalMaster> {
        match self {
            SystemAccess::Own => terminal_link::open(place.path().ok_or(io::ErrorKind::InvalidInput)?),
            SystemAccess::Through(broker) => {
                let (path, master) = broker.ask(&BrokerRequest::OpenTerminal { place: place.clone() }, None)?;
                let master = master.ok_or_else(|| io::Error::other("no terminal came along"))?;
                let opens = broker.ask_for_descriptor(&BrokerRequest::WatchTerminal { place: place.clone() })?;
                Ok(TerminalMaster::passed([master, opens], path))
            }
        }
    }

    /// Drops what no program has read of the terminal of `place`.
    pub fn empty_terminal(&self, place: &SocketLocation) {
        let emptied = match self {
            SystemAccess::Own => place.path().map_or(Ok(()), |link| terminal_link::empty(link)),
            SystemAccess::Through(broker) => {
                broker.ask::<Value>(&BrokerRequest::EmptyTerminal { place: place.clone() }, None).map(|_| ())
            }
        };
        if let Err(error) = emptied {
            tracing::debug!(%place, %error, "the next program may read what the last one left");
        }
    }

    /// Removes what leads to a terminal.
    pub fn end_terminal(&self, place: &SocketLocation, terminal: &Path) {
        match self {
            SystemAccess::Own => place.path().iter().for_each(|link| terminal_link::remove(link, terminal)),
            SystemAccess::Through(broker) => {
                if let Err(error) = broker.ask::<Value>(&BrokerRequest::EndTerminal { place: place.clone() }, None) {
                    tracing::warn!(%place, %error, "the link to a terminal stays until this process ends");
                }
            }
        }
    }

    /// Takes over the place at which another process listened. A socket's path is removed when this process has ended
    /// at the latest.
    ///
    /// # Errors
    /// The policy does not allow the place.
    pub fn take_place(&self, location: &SocketLocation) -> io::Result<()> {
        match self {
            // An address comes with its descriptor; its port may be one that the system chose.
            SystemAccess::Through(broker) if location.path().is_some() => {
                broker.ask::<Value>(&BrokerRequest::TakePlace { place: location.clone() }, None).map(|_| ())
            }
            SystemAccess::Through(_) | SystemAccess::Own => Ok(()),
        }
    }

    /// Leaves the place to another process, so that the path of its socket stays.
    pub fn leave_place(&self, location: &SocketLocation) {
        if let SystemAccess::Through(broker) = self
            && let Err(error) = broker.ask::<Value>(&BrokerRequest::LeavePlace { place: location.clone() }, None)
        {
            tracing::warn!(%location, %error, "the socket may go when this process ends");
        }
    }

    /// Takes over a mount that another process kept.
    ///
    /// # Errors
    /// There is no such mount, or the policy does not allow it.
    pub fn keep_mount(&self, at: &Path) -> io::Result<Arc<dyn MountKeeper>> {
        let SystemAccess::Through(broker) = self else {
            return Err(io::Error::other("only a daemon's other half keeps what another process mounted"));
        };
        let line = several(broker)?;
        let (MountedAt { mount, .. }, _) = line.ask(&BrokerRequest::KeepMount { at: at.to_owned() }, None)?;
        Ok(Arc::new(FarKeeper { mount, line }))
    }

    /// Finds the user of this machine at the other end of a TCP connection.
    ///
    /// # Errors
    /// The kernel does not report it.
    pub fn peer_owner(&self, link: &Link) -> io::Result<PeerOwner> {
        match self {
            SystemAccess::Own => peer_owner(link),
            SystemAccess::Through(broker) => {
                broker.ask(&BrokerRequest::PeerOwner, Some(link.as_fd())).map(|(owner, _)| owner)
            }
        }
    }

    /// Looks up the number (uid) of a user of this machine; `None` if there is no user of this name.
    ///
    /// # Errors
    /// The list of users cannot be read, or the policy does not allow this name.
    pub fn user_number(&self, name: &str) -> io::Result<Option<u32>> {
        match self {
            SystemAccess::Own => user_number(name),
            SystemAccess::Through(broker) => {
                broker.ask(&BrokerRequest::UserNumber { name: name.to_owned() }, None).map(|(number, _)| number)
            }
        }
    }

    /// Opens and locks a disk image; `is_forced`: also if something else on this machine uses it. Of an image that the
    /// broker opens, its policy says that.
    ///
    /// # Errors
    /// Why it cannot be opened, and what to type next.
    pub fn open_image(&self, path: &Path, read_only: bool, is_forced: bool) -> io::Result<FileStore> {
        match self {
            SystemAccess::Own => {
                media_journal::check(path)?;
                FileStore::open_beside(path, read_only, OtherUsers::permitted_if(is_forced)).map_err(io::Error::other)
            }
            SystemAccess::Through(broker) => broker.open_image(path, read_only),
        }
    }

    /// Names images that are going to be opened and identified, so that those which are new are stored at once, and not
    /// one by one.
    pub(crate) fn expect_images(&self, images: Vec<ExpectedImage>) {
        match self {
            SystemAccess::Own => {
                let all = images.into_iter().filter_map(ExpectedImage::evident);
                IdentityFinder::own().expect(&all.collect::<Vec<_>>());
            }
            SystemAccess::Through(broker) => broker.expect_images(images),
        }
    }

    /// Identifies a view of an image that [`SystemAccess::open_image`] has opened.
    pub(crate) fn identify_image(&self, path: &Path, read_only: bool, store: &FileStore, view: &str) -> DeviceIdentity {
        match self {
            SystemAccess::Own => IdentityFinder::own().of_store(store, view),
            SystemAccess::Through(broker) => {
                let (path, view) = (path.to_owned(), view.to_owned());
                broker.identified(&BrokerRequest::IdentifyImage { path, read_only, view })
            }
        }
    }

    /// The common id of all devices made of code that are described by `words`.
    pub(crate) fn identify_made(&self, words: &str) -> DeviceId {
        match self {
            SystemAccess::Own => IdentityFinder::own().of_made(words),
            SystemAccess::Through(broker) => {
                broker.identified(&BrokerRequest::IdentifyMade { words: words.to_owned() }).id
            }
        }
    }

    /// Stores the name of a device, and whether its owner gave it that name.
    pub(crate) fn note_name(&self, device: DeviceId, name: &str, is_named: bool) {
        match self {
            SystemAccess::Own => IdentityFinder::own().note_name(device, name, is_named),
            SystemAccess::Through(broker) => broker.note_name(device, name, is_named),
        }
    }

    /// What the owner says of a device by `farbus label`. `id` is that of a device with a lasting identity.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn notes_of(&self, id: Option<DeviceId>, name: &str) -> io::Result<DeviceNotes> {
        match self {
            SystemAccess::Own => notes_of(id, name),
            SystemAccess::Through(broker) => {
                let question = BrokerRequest::NotesOf { device: id, name: name.to_owned() };
                broker.ask(&question, None).map(|(notes, _)| notes)
            }
        }
    }

    /// Why a disk of another host should not be attached: a swap has moved its data to this machine. `None` if it may
    /// be attached.
    pub(crate) fn objection_to_attaching(&self, title: &str, identity: Option<RemoteIdentity>) -> Option<String> {
        match self {
            SystemAccess::Own => media_journal::objection_to_attaching(title, identity),
            SystemAccess::Through(broker) => {
                let question = BrokerRequest::ObjectionToAttaching { title: title.to_owned(), identity };
                // A broker of an earlier release does not know the question.
                let answer: io::Result<(Option<String>, _)> = broker.ask(&question, None);
                answer.map_or(None, |(why, _)| why)
            }
        }
    }

    /// The device that an attachment of the daemon with this configuration had; `None` if it had none.
    ///
    /// # Errors
    /// It cannot be read, so it is not known.
    pub(crate) fn attached_device(&self, config: &Path, target: &str) -> io::Result<Option<AttachedDevice>> {
        match self {
            SystemAccess::Own => attached_device(config, target),
            SystemAccess::Through(broker) => {
                broker.ask(&BrokerRequest::AttachedDevice { target: target.to_owned() }, None).map(|(device, _)| device)
            }
        }
    }

    /// Stores the device of an attachment of the daemon with this configuration durably, or forgets it.
    ///
    /// # Errors
    /// The former one is stored then.
    pub(crate) fn keep_attached_device(
        &self,
        config: &Path,
        target: &str,
        device: Option<&AttachedDevice>,
    ) -> io::Result<()> {
        match self {
            SystemAccess::Own => keep_attached_device(config, target, device),
            SystemAccess::Through(broker) => {
                let question = BrokerRequest::KeepAttachedDevice { target: target.to_owned(), device: device.cloned() };
                broker.ask::<Value>(&question, None).map(drop)
            }
        }
    }

    /// Notes durably what a host said of a disk that it moves to its own machine, if anything, and returns what is
    /// stored then.
    ///
    /// # Errors
    /// It cannot be noted, or not be read.
    pub(crate) fn retirement(
        &self,
        device: DeviceId,
        step: Option<RetirementStep>,
    ) -> io::Result<Option<DiskRetirement>> {
        match self {
            SystemAccess::Own => retirement_of(device, step.as_ref()),
            SystemAccess::Through(broker) => {
                broker.ask(&BrokerRequest::Retirement { device, step }, None).map(|(stored, _)| stored)
            }
        }
    }

    /// What is stored of disks that hosts have moved, or why that is not known, of those of which something is stored:
    /// what [`SystemAccess::retirement`] tells of one. Asks a broker about many at a time.
    pub(crate) fn retirements(&self, devices: &[DeviceId]) -> BTreeMap<DeviceId, Result<DiskRetirement, String>> {
        let mut all = BTreeMap::new();
        let mut rest = devices;
        while !rest.is_empty() {
            let chunk = &rest[..rest.len().min(RETIREMENTS_AT_A_TIME)];
            let answer = match self {
                SystemAccess::Own => retirements_of(chunk),
                SystemAccess::Through(broker) => {
                    let question = BrokerRequest::Retirements { devices: chunk.to_vec() };
                    broker.ask(&question, None).map(|(stored, _)| stored)
                }
            };
            // A broker of an earlier release does not know the question, and refuses it for one device that it does not
            // know: then there is a question for each.
            let Some(stored) = answer.ok().filter(|stored: &StoredRetirements| stored.count > 0) else {
                for &device in chunk {
                    let found = self.retirement(device, None).map_err(|error| error.to_string()).transpose();
                    all.extend(found.map(|found| (device, found)));
                }
                rest = &rest[chunk.len()..];
                continue;
            };
            all.extend(stored.found.into_iter().filter_map(|FoundRetirement { device, retirement, trouble }| {
                Some((device, retirement.map(Ok).or_else(|| trouble.map(Err))?))
            }));
            rest = &rest[stored.count.min(chunk.len())..];
        }
        all
    }

    /// Reserves a count for the next lease of a shared device durably, as [`KnownLease::reserve`] does.
    ///
    /// # Errors
    /// It cannot be stored.
    pub(crate) fn reserve_lease(
        &self,
        folder: &HostFolder,
        device: DeviceId,
        latest: u64,
        above: u64,
    ) -> io::Result<u64> {
        match self {
            SystemAccess::Own => KnownLease::reserve(folder, device, latest, above).map_err(io::Error::other),
            SystemAccess::Through(broker) => {
                broker.ask(&BrokerRequest::ReserveLease { device, latest, above }, None).map(|(count, _)| count)
            }
        }
    }

    /// Stores the lease of a shared device durably, or that it has none.
    ///
    /// # Errors
    /// It cannot be stored: the former one is, then.
    pub(crate) fn keep_lease(
        &self,
        folder: &HostFolder,
        device: DeviceId,
        lease: Option<StoredLease>,
    ) -> io::Result<()> {
        match self {
            SystemAccess::Own => KnownLease::keep(folder, device, lease).map_err(io::Error::other),
            SystemAccess::Through(broker) => {
                broker.ask::<Value>(&BrokerRequest::KeepLease { device, lease }, None).map(drop)
            }
        }
    }

    /// Stores the leases ahead of time of a shared device durably.
    ///
    /// # Errors
    /// They cannot be stored: the former ones are, then.
    pub(crate) fn keep_bookings(
        &self,
        folder: &HostFolder,
        device: DeviceId,
        bookings: Vec<StoredBooking>,
    ) -> io::Result<()> {
        match self {
            SystemAccess::Own => KnownLease::keep_bookings(folder, device, bookings).map_err(io::Error::other),
            SystemAccess::Through(broker) => {
                broker.ask::<Value>(&BrokerRequest::KeepBookings { device, bookings }, None).map(drop)
            }
        }
    }

    /// Opens the source of a stream's frames.
    ///
    /// # Errors
    /// Why it cannot be opened.
    pub fn open_frames(&self, path: &Path) -> io::Result<OwnedFd> {
        match self {
            SystemAccess::Own => frames::open(path),
            SystemAccess::Through(broker) => broker.open_frames(path),
        }
    }

    /// Checks whether a device could be plugged into this machine's kernel.
    ///
    /// # Errors
    /// Why it could not, and what to type next.
    pub fn may_plug(&self) -> io::Result<()> {
        match self {
            SystemAccess::Own => may_plug(),
            SystemAccess::Through(broker) => broker.ask::<Value>(&BrokerRequest::MayPlug, None).map(|_| ()),
        }
    }

    /// Plugs a device, which speaks USB/IP at the other end of `socket`, into this machine's kernel.
    ///
    /// # Errors
    /// Why it cannot, and what to type next.
    pub fn plug(&self, socket: BorrowedFd<'_>, device_id: u32, speed: UsbSpeed) -> io::Result<VhciPort> {
        match self {
            SystemAccess::Own => {
                let vhci = Vhci::open().map_err(io::Error::other)?;
                vhci.attach(socket, device_id, speed).map_err(io::Error::other)
            }
            SystemAccess::Through(broker) => {
                let question = BrokerRequest::Plug { device_id, speed: speed.name().to_owned() };
                Ok(VhciPort(broker.ask(&question, Some(socket))?.0))
            }
        }
    }

    /// Unplugs the device on `port`.
    ///
    /// # Errors
    /// The error of the system.
    pub fn unplug(&self, port: VhciPort) -> io::Result<()> {
        match self {
            SystemAccess::Own => Vhci::open().and_then(|vhci| vhci.detach(port)).map_err(io::Error::other),
            SystemAccess::Through(broker) => {
                broker.ask::<Value>(&BrokerRequest::Unplug { port: port.0 }, None).map(|_| ())
            }
        }
    }

    /// The drivers of this machine that took the device on `port`, which is ours. `None`: not known yet.
    ///
    /// # Errors
    /// The error of the system.
    pub fn drivers(&self, port: VhciPort) -> io::Result<Option<Vec<String>>> {
        match self {
            SystemAccess::Own => drivers(port),
            SystemAccess::Through(broker) => {
                broker.ask(&BrokerRequest::Drivers { port: port.0 }, None).map(|(drivers, _)| drivers)
            }
        }
    }

    /// Finds the processes that answer their owner here.
    ///
    /// # Errors
    /// They cannot be found.
    pub fn running(&self) -> io::Result<BTreeSet<u32>> {
        match self {
            SystemAccess::Own => running(),
            SystemAccess::Through(broker) => broker.ask(&BrokerRequest::Running, None).map(|(running, _)| running),
        }
    }

    /// Asks these processes to reserve processor time for `owner` while the other end of `lease` is open. Returns the
    /// processes that refused, each with its reason.
    ///
    /// # Errors
    /// The broker cannot be asked.
    pub fn promise(
        &self,
        owner: &str,
        whom: &BTreeSet<u32>,
        reserves: Vec<(u64, u64)>,
        lease: BorrowedFd<'_>,
    ) -> io::Result<Vec<(u32, String)>> {
        match self {
            SystemAccess::Own => Ok(ask_for(owner, whom, &reserves, lease)),
            SystemAccess::Through(broker) => {
                let question = BrokerRequest::Promise { whom: whom.clone(), reserves };
                broker.ask(&question, Some(lease)).map(|(refused, _)| refused)
            }
        }
    }

    /// Gives the calling thread this budget of one processor in each period, or takes it away (`None`).
    ///
    /// # Errors
    /// Why the kernel or the broker denies it; the thread is scheduled as it was before.
    pub fn schedule(&self, time: Option<(Duration, Duration)>) -> io::Result<()> {
        let thread = this_thread();
        match self {
            SystemAccess::Own => set_deadline(thread, time).map_err(io::Error::other),
            SystemAccess::Through(broker) => {
                let [budget_ns, period_ns] = time
                    .map_or([Duration::ZERO; 2], |(budget, period)| [budget, period])
                    .map(|span| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX));
                let thread = thread.as_raw_nonzero().get().cast_unsigned();
                // While it waits for the broker it sleeps, and the kernel would forget its time.
                if time.is_none() {
                    give_deadline_back()?;
                }
                broker.ask::<Value>(&BrokerRequest::Schedule { thread, budget_ns, period_ns }, None).map(|_| ())
            }
        }
    }

    /// Tells the share on this machine that serves the connection `user` what its device is needed for.
    ///
    /// # Errors
    /// No process can be asked.
    pub fn explain(&self, user: &str, reason: &str) -> io::Result<()> {
        let (user, reason) = (user.to_owned(), reason.to_owned());
        match self {
            SystemAccess::Own => ask_all(&OwnerQuestion::Explain { user, reason }).map(|_| ()),
            SystemAccess::Through(broker) => {
                broker.ask::<Value>(&BrokerRequest::Explain { user, reason }, None).map(|_| ())
            }
        }
    }
}

fn dial_through(
    broker: &BrokerClient,
    host: &str,
    time_max: Duration,
    hints: AddressHints,
) -> Result<(OwnedFd, ReachedAddress), LinkError> {
    let failed = |source| LinkError { address: host.to_owned(), source };
    let question = BrokerRequest::Connect { host: host.to_owned(), time_max_ms: in_ms(time_max), hints };
    let (found, fd) = broker.ask::<ReachedAddress>(&question, None).map_err(failed)?;
    Ok((fd.ok_or_else(|| failed(io::Error::other("no connection came along")))?, found))
}

/// What the owner says of a device by `farbus label`.
pub(super) fn notes_of(id: Option<DeviceId>, name: &str) -> io::Result<DeviceNotes> {
    let Ok(folder) = HostFolder::of_user() else { return Ok(DeviceNotes::default()) };
    KnownNotes::of(&folder, &NotedDevice::of(id, name)).map_err(io::Error::other)
}

/// The device that an attachment had; `None` if it had none, or this user has no state folder.
pub(super) fn attached_device(config: &Path, target: &str) -> io::Result<Option<AttachedDevice>> {
    let Ok(folder) = HostFolder::of_user() else { return Ok(None) };
    KnownAttachment::load(&folder, &config.to_string_lossy(), target).map_err(io::Error::other)
}

/// Stores the device of an attachment durably, or forgets it. Without a state folder it is known until the daemon ends.
pub(super) fn keep_attached_device(config: &Path, target: &str, device: Option<&AttachedDevice>) -> io::Result<()> {
    let Ok(folder) = HostFolder::of_user() else { return Ok(()) };
    let config = config.to_string_lossy();
    match device {
        Some(device) => KnownAttachment::keep(&folder, &config, target, device),
        None => KnownAttachment::forget(&folder, &config, target),
    }
    .map_err(io::Error::other)
}

/// Notes what a host said of a disk that it moves to its own machine, if anything, and returns what is stored then.
pub(super) fn retirement_of(device: DeviceId, step: Option<&RetirementStep>) -> io::Result<Option<DiskRetirement>> {
    let folder = HostFolder::of_user().and_then(|folder| folder.opened_once()).map_err(io::Error::other)?;
    retirement(&folder, device, step).map_err(io::Error::other)
}

/// What is stored of disks that hosts have moved: of as many as an answer has room for.
pub(super) fn retirements_of(devices: &[DeviceId]) -> io::Result<StoredRetirements> {
    let folder = HostFolder::of_user().and_then(|folder| folder.opened_once()).map_err(io::Error::other)?;
    StoredRetirements::look_up(devices, |device| retirement(&folder, device, None).map_err(io::Error::other))
}

/// The drivers that took the device on `port`.
pub(super) fn drivers(port: VhciPort) -> io::Result<Option<Vec<String>>> {
    Vhci::open().and_then(|vhci| vhci.drivers(port)).map_err(io::Error::other)
}

/// Checks whether this process could plug a device in.
pub(super) fn may_plug() -> io::Result<()> {
    Vhci::open().map_err(io::Error::other)?;
    match rustix::process::geteuid().is_root() {
        true => Ok(()),
        false => Err(io::Error::new(io::ErrorKind::PermissionDenied, "only root may plug a device into the kernel")),
    }
}

impl FuseMounter for SystemAccess {
    fn mount(&self, at: &Path, read_only: bool) -> Result<FuseMount, MountError> {
        let broker = match self {
            SystemAccess::Own => return OwnMounter.mount(at, read_only),
            SystemAccess::Through(broker) => broker,
        };
        let mount_error = |error: io::Error| MountError::Broker(error.to_string());
        // Several lines, so that an abort does not wait for an unmount.
        let line = several(broker).map_err(mount_error)?;
        let question = BrokerRequest::Mount { at: at.to_owned(), read_only };
        let (MountedAt { mount, at }, device) = line.ask(&question, None).map_err(mount_error)?;
        let device = device.ok_or_else(|| MountError::Broker("no descriptor came along".into()))?;
        Ok(FuseMount { at, device, keeper: Arc::new(FarKeeper { mount, line }) })
    }

    fn owner(&self) -> (u32, u32) {
        match self {
            SystemAccess::Own => OwnMounter.owner(),
            SystemAccess::Through(broker) => broker.owner,
        }
    }
}

/// The broker, on lines on which no question waits for another.
fn several(broker: &Arc<BrokerClient>) -> io::Result<Arc<BrokerClient>> {
    Ok(broker.lines()?.map_or_else(|| Arc::clone(broker), Arc::new))
}

/// A mount that the broker keeps.
#[derive(Debug)]
struct FarKeeper {
    mount: u64,
    line: Arc<BrokerClient>,
}

/// The words for what became of a mount.
const LEFT: [(&str, MountRemoval); 3] =
    [("idle", MountRemoval::Idle), ("busy", MountRemoval::Busy), ("already", MountRemoval::Already)];

/// The word for `left`.
pub(super) fn word_of(left: MountRemoval) -> &'static str {
    LEFT.iter().find(|(_, known)| *known == left).map_or("already", |(word, _)| word)
}

impl MountKeeper for FarKeeper {
    fn set_read_ahead(&self, bytes: usize) {
        let _best_effort = self.line.ask::<Value>(&BrokerRequest::ReadAhead { mount: self.mount, bytes }, None);
    }

    fn leave(&self) -> io::Result<MountRemoval> {
        let (word, _) = self.line.ask::<String>(&BrokerRequest::Leave { mount: self.mount }, None)?;
        let known = LEFT.iter().find(|(known, _)| *known == word);
        known.map(|(_, left)| *left).ok_or_else(|| io::Error::other(format!("'{word}' is no way to leave")))
    }

    fn abort(&self) {
        let _best_effort = self.line.ask::<Value>(&BrokerRequest::Abort { mount: self.mount }, None);
    }
}

impl Drop for FarKeeper {
    fn drop(&mut self) {
        // If this fails, the broker forgets the mount at its own end.
        let _ = self.line.ask::<Value>(&BrokerRequest::Forget { mount: self.mount }, None);
    }
}
