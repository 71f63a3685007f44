//! What a front end is, and the request it is given. A command line and a configuration yield the same request.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use farbus_io_net::local::runtime_folder;
use farbus_io_net::saving::SavedAttachment;
use farbus_modules::{ModuleSpec, PipelineRecipe};
use farbus_session::reserve::ReservationTerms;

use super::{Attachment, RestoredAttachment};
use crate::broker::{BrokerPolicy, SystemAccess};
use crate::common::networks::IpNetwork;
use crate::common::socket_access::SocketAccess;
use crate::common::socket_place::{SocketListener, SocketLocation, SocketProtocol};
use crate::devices::follow::FollowPolicy;
use crate::importer::client::{ClientConfig, ClientError, DeviceTarget, HOLD, ImporterClient};
use crate::importer::disk::DiskMode;
use crate::importer::options::ahead::PrefetchMode;
use crate::importer::options::cache::DiskCacheMode;
use crate::importer::options::transport::LinkTransport;

/// A way for devices of other machines to appear on this one.
pub trait FrontEnd: Sync {
    /// The word for it in `--via` and `via = `.
    fn name(&self) -> &'static str;

    /// A few words for the help.
    fn summary(&self) -> &'static str;

    /// The protocol of the programs that connect to it; `None` if none connect.
    fn protocol(&self) -> Option<SocketProtocol> {
        None
    }

    /// Whether a device appears at a path that its user may name.
    fn has_path(&self) -> bool {
        false
    }

    /// Whether it shows only disks: these have a [`DiskMode`](crate::importer::disk::DiskMode) and a
    /// [`DiskCacheMode`](crate::importer::options::cache::DiskCacheMode).
    fn is_for_disks(&self) -> bool {
        false
    }

    /// Whether it can take a device that another host has yet to hand over, together with the virtual machine that uses
    /// it.
    fn takes_handed_over(&self) -> bool {
        false
    }

    /// Whether a USB device of this machine can take the place of its device
    /// ([`Handle::usb_swap`](super::AttachmentHandle::usb_swap)): its process reads sysfs then.
    fn takes_twins(&self) -> bool {
        false
    }

    /// What it needs of this machine that a process without rights must ask its broker for.
    fn needs(&self, request: &AttachRequest) -> Vec<FrontEndRequirement>;

    /// The front end that shows `request` on this machine now; `None` if it is this one. Only a front end that chooses
    /// among others overrides it.
    fn choose(&self, request: &AttachRequest, system: &SystemAccess) -> Option<&'static dyn FrontEnd> {
        let _ = (request, system);
        None
    }

    /// Prepares what this machine may lack and what does not need the device. A front end with a
    /// [protocol](Self::protocol) listens from now on; programs that connect wait until the device is there.
    ///
    /// # Errors
    /// [`ClientError::Local`]: no device was taken.
    fn prepare(&self, client: &ImporterClient, request: &AttachRequest) -> Result<FrontEndPreparation, ClientError> {
        self.protocol().map_or(Ok(FrontEndPreparation::default()), |protocol| {
            FrontEndPreparation::listening(client, request, protocol)
        })
    }

    /// Takes the device. Uses up `prepared` if the device was taken; otherwise `prepared` remains for another try.
    ///
    /// # Errors
    /// [`ClientError`]: the exporter keeps the device.
    fn take(
        &self,
        client: &ImporterClient,
        request: &AttachRequest,
        prepared: &mut FrontEndPreparation,
    ) -> Result<Box<dyn Attachment>, ClientError>;

    /// Describes how `request` is attached. A front end that returns the same words in another process can continue the
    /// attachment.
    fn manner(&self, request: &AttachRequest) -> String;

    /// Reads what another process saved of an attachment in the same manner. `ports` are the ports of this kernel that
    /// are known to be ours. The attachment does not run before [`RestoredAttachment::go_on`].
    ///
    /// # Errors
    /// [`ClientError::Local`]: the snapshot is invalid. The other process keeps the attachment.
    fn restore(
        &self,
        client: &ImporterClient,
        request: &AttachRequest,
        ports: &[u32],
        saved: SavedAttachment,
    ) -> Result<Box<dyn RestoredAttachment>, ClientError>;
}

/// What a front end needs of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrontEndRequirement {
    /// Plugging devices into this kernel.
    Kernel,
    /// Mounting in this folder.
    Mount(PathBuf),
    /// Listening at this place, where these users may connect.
    Listen(SocketLocation, SocketAccess),
}

/// What was prepared before the device was taken.
#[derive(Debug, Default)]
pub struct FrontEndPreparation {
    listener: Option<SocketListener>,
    /// Whether the listener was created before the first try.
    is_kept: bool,
}

impl FrontEndPreparation {
    /// Starts listening for programs that speak `protocol`.
    ///
    /// # Errors
    /// [`ClientError::Local`]: why it cannot listen, and what to do.
    fn listening(
        client: &ImporterClient,
        request: &AttachRequest,
        protocol: SocketProtocol,
    ) -> Result<Self, ClientError> {
        Ok(Self { listener: Some(listen(client, request, protocol)?), is_kept: true })
    }

    /// Keeps the listener for another try after the device could not be taken, if it was created before the first try.
    pub(super) fn keep(&mut self, listener: SocketListener) {
        self.listener = self.is_kept.then_some(listener);
    }

    /// The listener; creates it if [`FrontEndPreparation::listening`] has not.
    pub(super) fn listener(
        &mut self,
        client: &ImporterClient,
        request: &AttachRequest,
        protocol: SocketProtocol,
    ) -> Result<SocketListener, ClientError> {
        self.listener.take().map_or_else(|| listen(client, request, protocol), Ok)
    }
}

fn listen(
    client: &ImporterClient,
    request: &AttachRequest,
    protocol: SocketProtocol,
) -> Result<SocketListener, ClientError> {
    let listener = client.system().listen_at(&request.place_of(protocol), &request.access);
    listener.map_err(|error| {
        let is_taken = protocol.is_tcp && error.kind() == std::io::ErrorKind::AddrInUse;
        let next = if is_taken {
            "\n  another attachment may be there: choose another by --listen 127.0.0.1:PORT"
        } else {
            ""
        };
        ClientError::Local(format!("{error}{next}"))
    })
}

/// The front end that the user chose.
#[derive(Clone, Copy)]
pub struct FrontEndChoice(pub(super) &'static dyn FrontEnd);

impl FrontEndChoice {
    /// The front end itself, even if it only chooses among others.
    pub fn named(self) -> &'static dyn FrontEnd {
        self.0
    }

    /// The front end that shows `request` on this machine now.
    pub fn front_end(self, request: &AttachRequest, system: &SystemAccess) -> &'static dyn FrontEnd {
        self.0.choose(request, system).unwrap_or(self.0)
    }

    /// What this machine's kernel lacks, if a front end for disks is chosen for that reason.
    pub fn lacks(self, request: &AttachRequest, system: &SystemAccess) -> Option<String> {
        self.0.choose(request, system).filter(|chosen| chosen.is_for_disks())?;
        system.may_plug().err().map(|why| why.to_string())
    }
}

/// The error of an attempt to take the device of `request`. If the front end was chosen because this kernel `lacks`
/// something, and the device is no disk, then the fault is this machine's.
pub fn explain(
    error: ClientError,
    client: &ImporterClient,
    request: &AttachRequest,
    lacks: Option<&str>,
) -> ClientError {
    match (lacks, &error) {
        (Some(why), ClientError::Device { .. }) => match client.check_is_disk(&request.target) {
            Err(no_disk) => ClientError::Local(format!("{why}\n  {no_disk}")),
            Ok(()) => error,
        },
        _ => error,
    }
}

impl PartialEq for FrontEndChoice {
    fn eq(&self, other: &Self) -> bool {
        self.0.name() == other.0.name()
    }
}

impl Eq for FrontEndChoice {}

impl fmt::Debug for FrontEndChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.name())
    }
}

/// A device of another machine that is to appear on this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachRequest {
    /// The exporter's address, and the device's name on the exporter.
    pub target: DeviceTarget,
    /// The front end.
    pub via: FrontEndChoice,
    /// The folder in which its file appears, by default [`AttachRequest::folder`]; or the link to its terminal.
    pub at: Option<PathBuf>,
    /// Where programs connect to it, for a front end with a protocol.
    pub location: Option<SocketLocation>,
    /// Which users may connect there, if it is a socket.
    pub access: SocketAccess,
    /// Networks whose hosts may connect there, if its programs are otherwise those of this machine's owner and root.
    pub allowed: Vec<IpNetwork>,
    /// Whether another host is to hand it over first, with the virtual machine that uses it.
    pub is_handed_over: bool,
    /// How it is used, if it is a disk.
    pub mode: DiskMode,
    /// What this machine caches of it, if it is a disk.
    pub cache: DiskCacheMode,
    /// The grace period of its session; `None` leaves the choice to the front end.
    pub grace: Option<Duration>,
    /// How long it is held at most while it migrates: see [`ClientConfig::hold`].
    pub hold: Duration,
    /// How many links its session has, from 1 to [`LANES_MAX`](farbus_model::limits::LANES_MAX).
    pub links: u16,
    /// The transport of its links.
    pub over: LinkTransport,
    /// Whether data is fetched before the user asks for it, to hide the distance.
    pub ahead: PrefetchMode,
    /// What its exporter reserves for it.
    pub reservation: Option<ReservationTerms>,
    /// Its modules, the importer's end first.
    pub modules: Vec<ModuleSpec>,
    /// What it is needed for; the exporter is told.
    pub reason: Option<String>,
    /// Which other devices in its port are taken for it.
    pub follow: FollowPolicy,
}

impl AttachRequest {
    /// A request with default options.
    pub fn new(target: DeviceTarget, via: FrontEndChoice) -> Self {
        Self {
            target,
            via,
            at: None,
            location: None,
            access: SocketAccess::default(),
            allowed: Vec::new(),
            is_handed_over: false,
            mode: DiskMode::default(),
            cache: DiskCacheMode::default(),
            grace: None,
            hold: HOLD,
            links: 1,
            over: LinkTransport::default(),
            ahead: PrefetchMode::default(),
            reservation: None,
            modules: Vec::new(),
            reason: None,
            follow: FollowPolicy::default(),
        }
    }

    /// The folder in which its file appears.
    pub fn folder(&self) -> PathBuf {
        let usual = || runtime_folder::path().join(self.target.device.replace('/', "_"));
        self.at.clone().unwrap_or_else(usual)
    }

    /// Checks that other hosts are allowed where it listens for them, and only there.
    ///
    /// # Errors
    /// What to change.
    pub fn check_allowed(&self, front_end: &dyn FrontEnd) -> Result<(), String> {
        let is_tcp = front_end.protocol().is_some_and(|protocol| protocol.is_tcp);
        let is_local = self.location.as_ref().is_none_or(SocketLocation::is_local);
        match (is_tcp, is_local, self.allowed.is_empty()) {
            (false, _, false) => Err("allow (--allow) goes with rfc2217 and tcp: there each program is known".into()),
            (true, true, false) => Err("other hosts may connect (allow), and it listens for this machine alone: \
                                        listen (--listen) at an address that they reach"
                .into()),
            (true, false, true) => {
                Err("no other host could connect: say which (allow, --allow), such as 10.0.0.7 or 10.0.0.0/8".into())
            }
            _ => Ok(()),
        }
    }

    /// Where programs that speak `protocol` connect to it.
    pub fn place_of(&self, protocol: SocketProtocol) -> SocketLocation {
        self.location.clone().unwrap_or_else(|| protocol.default_place(&self.target.device))
    }

    /// What a front end with this protocol needs.
    pub(super) fn needs_of(&self, protocol: SocketProtocol) -> Vec<FrontEndRequirement> {
        vec![FrontEndRequirement::Listen(self.place_of(protocol), self.access.clone())]
    }

    /// Describes how it is attached on this machine now. A process that computes the same words can continue the
    /// attachment.
    pub fn manner(&self, system: &SystemAccess) -> String {
        self.via.front_end(self, system).manner(self)
    }

    /// The options of the client that takes the device. `modules` is the recipe that its modules' words resolve to.
    pub fn client_config(&self, modules: PipelineRecipe) -> ClientConfig {
        ClientConfig {
            grace: self.grace,
            hold: self.hold,
            transport: self.over,
            links: self.links,
            prefetch: self.ahead,
            modules,
            cache: self.cache,
            reservation: self.reservation.clone(),
        }
    }
}

impl BrokerPolicy {
    /// Allows what the given front ends' needs require of this machine.
    pub fn allow_for(&mut self, needs: impl IntoIterator<Item = FrontEndRequirement>) {
        for need in needs {
            match need {
                FrontEndRequirement::Kernel => self.plugs = true,
                FrontEndRequirement::Mount(folder) => self.mounts.push(folder),
                FrontEndRequirement::Listen(location, access) => self.places.push((location, access)),
            }
        }
    }
}

/// Tells the exporter what the device is needed for (`request.reason`), if the exporter has a way to be told.
pub fn tell_reason(client: &ImporterClient, request: &AttachRequest, user: Option<std::net::SocketAddr>) {
    if let Some(reason) = &request.reason
        && let Err(error) = client.explain(&request.target, reason, user)
    {
        tracing::info!(%error, "nobody was told the reason");
    }
}
