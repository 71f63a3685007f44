//! What a front end is, and what is asked of one: a command line and a configuration come to the same request.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use farbus_modules::{Asked, Recipe};
use farbus_session::reserve::Reservation;

use super::{Attachment, Restored};
use crate::broker::{BrokerPolicy, SystemAccess};
use crate::common::runtime_folder;
use crate::common::socket_place::{Place, Protocol, SocketListener};
use crate::importer::client::{Client, ClientConfig, ClientError, Target};
use crate::importer::disk::DiskMode;
use crate::importer::options::ahead::Ahead;
use crate::importer::options::cache::Cache;
use crate::importer::options::transport::Over;
use crate::saving::Saved;

/// A way for devices of other machines to appear on this one.
pub trait FrontEnd: Sync {
    /// Its word in `--via` and `via = `.
    fn name(&self) -> &'static str;

    /// A few words for the help.
    fn summary(&self) -> &'static str;

    /// What programs speak that connect to it; `None` if none do.
    fn protocol(&self) -> Option<Protocol> {
        None
    }

    /// Whether a device appears in a folder that its user may name.
    fn has_folder(&self) -> bool {
        false
    }

    /// Whether it shows disks alone: these have a [`DiskMode`](crate::importer::disk::DiskMode), and a
    /// [`Cache`](crate::importer::options::cache::Cache).
    fn is_for_disks(&self) -> bool {
        false
    }

    /// Whether it takes a device that another host is yet to hand over, with the virtual machine that has it.
    fn takes_handed_over(&self) -> bool {
        false
    }

    /// What it needs of this machine that a process without rights has to ask for.
    fn needs(&self, request: &Request) -> Vec<Need>;

    /// The front end that shows `request` here and now: itself (`None`), unless it only chooses among others.
    fn choose(&self, request: &Request, system: &SystemAccess) -> Option<&'static dyn FrontEnd> {
        let _ = (request, system);
        None
    }

    /// Makes ready what may be missing on this machine and does not need the device: a front end with a
    /// [protocol](Self::protocol) listens from now on, and programs that connect wait until the device is there.
    ///
    /// # Errors
    /// [`ClientError::Local`]: nothing was taken from anybody.
    fn prepare(&self, client: &Client, request: &Request) -> Result<Prepared, ClientError> {
        self.protocol()
            .map_or(Ok(Prepared::default()), |protocol| Prepared::listening(client, &request.place_of(protocol)))
    }

    /// Takes the device. What is `prepared` is used if the device was had, and stays for another try otherwise.
    ///
    /// # Errors
    /// [`ClientError`]: the device is its exporter's as before.
    fn take(
        &self,
        client: &Client,
        request: &Request,
        prepared: &mut Prepared,
    ) -> Result<Box<dyn Attachment>, ClientError>;

    /// How `request` is attached, in words that the same front end of another process understands: with the same words
    /// it can go on.
    fn manner(&self, request: &Request) -> String;

    /// Reads what another process saved of an attachment in the same manner; `ports` are those of this kernel that are
    /// known to be ours. Nothing happens before [`Restored::go_on`].
    ///
    /// # Errors
    /// [`ClientError::Local`]: no attachment can have stood so. The other process keeps it.
    fn restore(
        &self,
        client: &Client,
        request: &Request,
        ports: &[u32],
        saved: Saved,
    ) -> Result<Box<dyn Restored>, ClientError>;
}

/// What a front end needs of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Need {
    /// To plug devices into this kernel.
    Kernel,
    /// To mount something in this folder.
    Mount(PathBuf),
    /// To listen at this place.
    Listen(Place),
}

/// What was made ready before the device was taken.
#[derive(Debug, Default)]
pub struct Prepared {
    listener: Option<SocketListener>,
    /// Whether it was made before the first try.
    is_kept: bool,
}

impl Prepared {
    /// Listens at the place of `request` already.
    ///
    /// # Errors
    /// [`ClientError::Local`]: what stands against that, with what to do.
    fn listening(client: &Client, place: &Place) -> Result<Self, ClientError> {
        Ok(Self { listener: Some(listen(client, place)?), is_kept: true })
    }

    /// The device was not had: the entrance stays for another try, if it was made before the first.
    pub(super) fn keep(&mut self, listener: SocketListener) {
        self.listener = self.is_kept.then_some(listener);
    }

    /// The entrance; listens now if nobody did before.
    pub(super) fn listener(&mut self, client: &Client, place: &Place) -> Result<SocketListener, ClientError> {
        self.listener.take().map_or_else(|| listen(client, place), Ok)
    }
}

fn listen(client: &Client, place: &Place) -> Result<SocketListener, ClientError> {
    client.system().listen_at(place).map_err(|error| ClientError::Local(error.to_string()))
}

/// The front end that somebody named.
#[derive(Clone, Copy)]
pub struct Via(pub(super) &'static dyn FrontEnd);

impl Via {
    /// As it was named.
    pub fn named(self) -> &'static dyn FrontEnd {
        self.0
    }

    /// The one that shows `request` here and now.
    pub fn front_end(self, request: &Request, system: &SystemAccess) -> &'static dyn FrontEnd {
        self.0.choose(request, system).unwrap_or(self.0)
    }
}

impl PartialEq for Via {
    fn eq(&self, other: &Self) -> bool {
        self.0.name() == other.0.name()
    }
}

impl Eq for Via {}

impl fmt::Debug for Via {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.name())
    }
}

/// A device of another machine that is to appear here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The exporter's address and the device's name there.
    pub target: Target,
    /// How it appears.
    pub via: Via,
    /// The folder in which its file appears; [`Request::folder`] where nobody named one.
    pub at: Option<PathBuf>,
    /// Where programs find it, if they connect to it.
    pub place: Option<Place>,
    /// Whether another host is to hand it over first, with the virtual machine that has it.
    pub is_handed_over: bool,
    /// How it is used, if it is a disk.
    pub mode: DiskMode,
    /// What is kept here of it, if it is a disk.
    pub cache: Cache,
    /// How long it outlives its link; none leaves that to the front end.
    pub grace: Option<Duration>,
    /// Over how many links its session is, from 1 to [`LANES_MAX`](farbus_model::limits::LANES_MAX).
    pub links: u16,
    /// Over what its links are made.
    pub over: Over,
    /// What is done about its distance.
    pub ahead: Ahead,
    /// What is reserved for it at its exporter.
    pub reservation: Option<Reservation>,
    /// What it goes through, its user's end first.
    pub modules: Vec<Asked>,
    /// What it is needed for, as its exporter is told.
    pub reason: Option<String>,
}

impl Request {
    /// A device as it appears unless somebody says otherwise.
    pub fn new(target: Target, via: Via) -> Self {
        Self {
            target,
            via,
            at: None,
            place: None,
            is_handed_over: false,
            mode: DiskMode::default(),
            cache: Cache::default(),
            grace: None,
            links: 1,
            over: Over::default(),
            ahead: Ahead::default(),
            reservation: None,
            modules: Vec::new(),
            reason: None,
        }
    }

    /// The folder in which it appears as a file.
    pub fn folder(&self) -> PathBuf {
        let usual = || runtime_folder::path().join(self.target.device.replace('/', "_"));
        self.at.clone().unwrap_or_else(usual)
    }

    /// Where programs that speak `protocol` connect to it.
    pub fn place_of(&self, protocol: Protocol) -> Place {
        self.place.clone().unwrap_or_else(|| protocol.default_place(&self.target.device))
    }

    /// How it is attached here and now, in words that another process understands: one that says the same can go on
    /// with it.
    pub fn manner(&self, system: &SystemAccess) -> String {
        self.via.front_end(self, system).manner(self)
    }

    /// The options of the client that takes the device. `modules` is what was made of its modules' words.
    pub fn client_config(&self, modules: Recipe) -> ClientConfig {
        ClientConfig {
            grace: self.grace,
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
    /// Allows what is needed of this machine to show `request` by one of its front ends.
    pub fn allow_for(&mut self, needs: impl IntoIterator<Item = Need>) {
        for need in needs {
            match need {
                Need::Kernel => self.plugs = true,
                Need::Mount(folder) => self.mounts.push(folder),
                Need::Listen(place) => self.places.push(place),
            }
        }
    }
}

/// Tells an exporter what its device is needed for, as far as it can be told. `request.reason` says it.
pub fn tell_reason(client: &Client, request: &Request, user: Option<std::net::SocketAddr>) {
    if let Some(reason) = &request.reason
        && let Err(error) = client.explain(&request.target, reason, user)
    {
        tracing::info!(%error, "nobody was told the reason");
    }
}
