//! Devices on a listening socket: the exporter's process.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::Duration;

use farbus_io::link::Listener;
use farbus_model::{Command, Device, Limits};
use farbus_session::DeviceRecord;
use farbus_session::block::BlockExport;
use farbus_session::native::Allowed;
use farbus_session::registry::{BlockFace, Entry, StreamFace};
use farbus_session::reserve::Reservation;
use farbus_session::stream::Stage;

pub use crate::address::DEFAULT_PORT;
use crate::allow::Network;
pub use crate::device_status::{DeviceStatus, PastStatus, UserStatus, WaitingStatus};
use crate::door::Door;
use crate::listening::{Addresses, Listening};
use crate::parting::Asked;
use crate::place::{Entrance, Place};
use crate::promises::Promises;
pub use crate::share_error::ShareError;
use crate::shared::{Lent, Neighbourhood, STACK_BYTES, Shared};
use crate::swap::Swaps;
use crate::trust::Trust;
use crate::tuned::Beside;

/// Devices that are being shared. Dropping it ends all sessions.
pub struct Share {
    shared: Arc<Shared>,
    promises: Promises,
}

impl Default for Share {
    fn default() -> Self {
        Self::new(Limits::DEFAULT)
    }
}

impl Share {
    /// Nothing is shared yet.
    pub fn new(limits: Limits) -> Self {
        let shared = Arc::new(Shared::new(limits));
        let promises = Promises::new(Arc::downgrade(&shared));
        Self { shared, promises }
    }

    /// Offers a device under a name that begins with `kind`; returns its record.
    ///
    /// # Errors
    /// [`ShareError::BusFull`].
    pub fn add(&self, kind: &str, device: impl Device + 'static) -> Result<DeviceRecord, ShareError> {
        let mut registry = self.shared.registry();
        registry.add(kind, Box::new(device)).cloned().ok_or(ShareError::BusFull)
    }

    /// The same of a device that is a block device, too: paired hosts see it as one, all others as the USB disk `device`.
    ///
    /// # Errors
    /// [`ShareError::BusFull`].
    pub fn add_block(&self, kind: &str, device: Box<dyn Device>, block: BlockFace) -> Result<DeviceRecord, ShareError> {
        let mut registry = self.shared.registry();
        registry.add_block(kind, device, block).cloned().ok_or(ShareError::BusFull)
    }

    /// The same of a device that is a stream of frames, which hosts read in sessions; `device` says to all others what it is.
    ///
    /// # Errors
    /// [`ShareError::BusFull`].
    pub fn add_stream(&self, kind: &str, device: Box<dyn Device>, stage: Stage) -> Result<DeviceRecord, ShareError> {
        let mut registry = self.shared.registry();
        registry.add_stream(kind, device, StreamFace(stage)).cloned().ok_or(ShareError::BusFull)
    }

    /// Takes a device off the list that is gone, by its bus id on the wire. One that somebody uses goes with its session, which
    /// notices by itself. Says whether it is off the list.
    pub fn remove_gone(&self, bus_id: &str) -> bool {
        let mut registry = self.shared.registry();
        registry.remove_idle(bus_id);
        registry.find(bus_id).is_none()
    }

    /// Reserves something for whoever uses a device, until he asks for something else.
    ///
    /// # Errors
    /// [`ShareError::NoDevice`], [`ShareError::Reservation`].
    pub fn reserve(&self, device: &str, reservation: Reservation) -> Result<(), ShareError> {
        self.shared.own_reservation(device, reservation)
    }

    /// Whoever comes from here may reserve with high criticality, and proves no key. Programs of this machine always may.
    pub fn allow_reserve_high(&self, from: Vec<Network>) {
        *self.shared.reserve_high.lock().unwrap_or_else(PoisonError::into_inner) = from;
    }

    /// A device (by its bus id on the wire) is on this bus instance; without a word it is on that of all gadgets of its speed.
    pub fn place_on(&self, bus_id: &str, bus: String) {
        let mut buses = self.shared.buses.lock().unwrap_or_else(PoisonError::into_inner);
        buses.insert(bus_id.to_owned(), bus);
    }

    /// What processors carry is one matter for what is reserved here and for tuned pipes of this process, which go by the name of `owner`:
    /// [`Processors::beside`](crate::tuned::Processors::beside).
    pub fn beside(&self, owner: &str) -> impl Beside + use<> {
        (Arc::downgrade(&self.shared), owner.to_owned())
    }

    /// The same of other processes' pipes.
    pub fn promises(&self) -> &Promises {
        &self.promises
    }

    /// Serves USB/IP at `address` from now on; says where (port 0 takes a free one).
    ///
    /// # Errors
    /// What the system says of the address.
    pub fn listen(&self, address: SocketAddr) -> io::Result<SocketAddr> {
        self.listen_on(Listener::bind(address)?, None)
    }

    /// Serves USB/IP on a socket that listens already, to those who are `allowed` (`None`: everybody); says where.
    ///
    /// # Errors
    /// What the system says of the socket, or of a thread more.
    pub fn listen_on(&self, listener: Listener, allowed: Option<Vec<Network>>) -> io::Result<SocketAddr> {
        listener.never_wait()?;
        let address = listener.address()?;
        self.listen_at(Entrance::Tcp(listener), allowed)?;
        Ok(address)
    }

    /// Serves USB/IP, and sessions without keys, at an entrance that never waits: an address, or a Unix socket; says where.
    ///
    /// # Errors
    /// What the system says of the socket, or of a thread more.
    pub fn listen_at(&self, entrance: Entrance, allowed: Option<Vec<Network>>) -> io::Result<Place> {
        let listening = Arc::new(Listening::new(entrance, allowed)?);
        let place = listening.place().clone();
        let (shared, for_thread) = (Arc::clone(&self.shared), Arc::clone(&listening));
        thread::Builder::new()
            .name("listen".into())
            .stack_size(STACK_BYTES)
            .spawn(move || shared.accept_all(&for_thread))?;
        self.shared.listeners.add(listening);
        Ok(place)
    }

    /// The places that are listened at.
    pub fn addresses(&self) -> &Addresses {
        &self.shared.listeners
    }

    /// Takes a device (by name or bus id) off the lists; a session that uses it is ended first.
    ///
    /// # Errors
    /// [`ShareError::NoDevice`].
    pub fn remove(&self, device: &str) -> Result<(), ShareError> {
        self.shared.remove(device)
    }

    /// Takes a device back from whoever uses it: the session is ended, the device is reset, made durable and offered
    /// again, but to its user's host only after `keep_out`. `remark` goes into the history. Says whom it was taken from.
    ///
    /// # Errors
    /// [`ShareError::NoDevice`], [`ShareError::NotInUse`].
    pub fn take_back(&self, device: &str, remark: Option<&str>, keep_out: Duration) -> Result<String, ShareError> {
        self.shared.take_back(device, remark, keep_out)
    }

    /// How long what an importer hands over waits for its heir, before it is that importer's again: 20 s unless this says otherwise.
    pub fn wait_for_heirs(&self, span: Duration) {
        self.shared.set_heir_time(span);
    }

    /// The holder whose connection comes from `who` says what it needs its device for. Says whether there is one.
    pub fn explain(&self, who: &str, reason: &str) -> bool {
        self.shared.registry().explain(who, reason)
    }

    /// Serves paired hosts at `address` from now on, each what it is allowed; says where (port 0 takes a free one).
    ///
    /// # Errors
    /// What the system says of the address.
    pub fn listen_secure(&self, address: SocketAddr, trust: Trust) -> io::Result<SocketAddr> {
        let listener = Listener::bind(address)?;
        let address = listener.address()?;
        self.listen_secure_on(listener, None, trust)?;
        Ok(address)
    }

    /// Serves paired hosts on a socket that listens already, and by QUIC on one for datagrams.
    ///
    /// # Errors
    /// If the system has no more threads or descriptors.
    pub fn listen_secure_on(&self, listener: Listener, datagrams: Option<UdpSocket>, trust: Trust) -> io::Result<()> {
        listener.never_wait()?;
        let listening = Arc::new(Listening::new(Entrance::Tcp(listener), None)?);
        let for_shutdown = Arc::clone(&listening);
        let spawn = |name: &str| thread::Builder::new().name(name.into()).stack_size(STACK_BYTES);
        let (for_recheck, shared) = (trust.clone(), Arc::clone(&self.shared));
        spawn("recheck").spawn(move || shared.recheck(&for_recheck))?;
        let door = Arc::new(Door::new(trust, Arc::clone(&self.shared)));
        if let Some(socket) = datagrams {
            listening.accompany(door.serve_datagrams(socket)?);
        }
        spawn("listen-secure").spawn(move || door.accept_all(&listening))?;
        self.shared.listeners.add(for_shutdown);
        Ok(())
    }

    /// Importers may ask for these modules; else for those that need nothing of this host.
    pub fn allow_modules(&self, modules: Arc<Allowed>) {
        *self.shared.modules.lock().unwrap_or_else(PoisonError::into_inner) = Some(modules);
    }

    /// Whether who may use a device may look on at what it sends while another uses it; else nobody may.
    pub fn show(&self, is_observable: bool) {
        self.shared.is_observable.store(is_observable, Ordering::Release);
    }

    /// These devices, by name, are one host's alone from now on, and no others: whatever else hosts are allowed.
    pub(crate) fn lend(&self, lent: BTreeMap<String, Lent>) {
        self.shared.lend(lent);
    }

    /// Hosts that this one is joined with are answered by this, which is said once.
    pub(crate) fn answer_neighbours(&self, neighbourhood: Arc<dyn Neighbourhood>) {
        let _ = self.shared.neighbourhood.set(neighbourhood);
    }

    /// Whether somebody used the device of this name in the process before this one, and is about to go on.
    pub(crate) fn is_inherited(&self, name: &str) -> bool {
        self.shared.is_name_reserved(name)
    }

    /// Writes each session's last taps to `file` when it ends, a line of JSON each: the same key
    /// (connection, endpoint, sequence number) at every hand-off, so that latency by stage falls out.
    pub fn trace_to(&self, file: File) {
        *self.shared.trace.lock().expect("no session panics while it writes") = Some(file);
    }

    /// Every shared device and its user.
    pub fn status(&self) -> Vec<DeviceStatus> {
        self.shared.status()
    }

    /// Asks something of a device by name or bus id, in use or not.
    ///
    /// # Errors
    /// [`ShareError`].
    pub fn command(&self, device: &str, command: Command) -> Result<(), ShareError> {
        self.shared.command(device, command)
    }

    /// The swaps of what is shared here.
    pub fn swaps(&self) -> &Swaps {
        &self.shared.swaps
    }

    /// The device of this name or bus id: its bus id, and what is offered of it if it is a disk.
    ///
    /// # Errors
    /// [`ShareError::NoDevice`].
    pub fn disk(&self, device: &str) -> Result<(String, Option<Arc<BlockExport>>), ShareError> {
        let bus_id = self.shared.bus_id_of(device)?;
        let export = self.shared.registry().block_export(&bus_id);
        Ok((bus_id, export))
    }

    /// Asks every session to be ready for another process.
    pub fn ask_sessions(&self) -> Vec<Asked<Vec<u8>>> {
        self.shared.ask_sessions()
    }

    /// Goes on, from [`Share::take_up`] on, with a session that another process wrote down.
    ///
    /// # Errors
    /// No session can have stood so, or the system has no more descriptors.
    pub fn inherit(&self, saved: &[u8], trust: Option<&Trust>) -> io::Result<()> {
        self.shared.inherit_session(saved, trust)
    }

    /// Sessions of the process before this one go on.
    pub fn take_up(&self) {
        self.shared.take_up();
    }

    /// What another process could not go on with: a sentence for each.
    pub fn unmovable(&self) -> Vec<String> {
        let registry = self.shared.registry();
        let is_lost = |entry: &Entry<'_>| {
            let is_used = !entry.claims.holders().is_empty();
            entry.block.is_some_and(|block| block.is_lost_with_process(is_used))
        };
        let lost = registry.entries().filter(is_lost);
        lost.map(|entry| format!("what is in memory of {} ends with this process", entry.name)).collect()
    }

    /// Ends all sessions and makes their devices durable. Returns whether all did in time.
    pub fn stop(&self) -> bool {
        self.shared.stop(false)
    }

    /// The same before another process shares the same devices: sessions' importers are told nothing, and come back to that.
    pub fn stop_for_another(&self) -> bool {
        self.shared.stop(true)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.shared.stop(false);
    }
}
