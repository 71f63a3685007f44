//! Devices on a listening socket: the exporter's process.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use farbus_io::link::Listener;
use farbus_model::budget::Budget;
use farbus_model::{Command, Device, Limits};
use farbus_session::DeviceRecord;
use farbus_session::block::BlockExport;
use farbus_session::native::Allowed;
use farbus_session::registry::{BlockClass, Entry};
use farbus_session::reserve::Reservation;

use crate::broker::SystemAccess;
pub use crate::common::host_address::DEFAULT_PORT;
use crate::common::processor_leases::Beside;
use crate::common::processor_leases::ProcessorLeases;
use crate::common::socket_place::{Place, SocketListener};
use crate::devices::identities::labels::{DeviceClass, made_here};
use crate::devices::identities::naming::Naming;
pub use crate::devices::status::DeviceStatus;
use crate::exporter::access::audit::Recorder;
use crate::exporter::access::encrypted::SecureListener;
use crate::exporter::access::listener::{Addresses, Listening};
use crate::exporter::access::local_users::LocalUsers;
use crate::exporter::access::networks::Network;
pub use crate::exporter::error::ShareError;
use crate::exporter::state::permissions::ExclusiveUse;
use crate::exporter::state::shared::{Neighbourhood, STACK_BYTES, Shared};
use crate::exporter::swap::Swaps;
use crate::exporter::{connections, owner, restart};
use crate::hosts::trust::Trust;
use crate::saving::Asked;

/// Devices that this process offers to other hosts. They are offered from [`Share::listen`] on; dropping it ends all
/// sessions.
///
/// Devices are named by their name or their bus id.
pub struct Share {
    pub(crate) shared: Arc<Shared>,
    promises: ProcessorLeases,
}

impl Default for Share {
    fn default() -> Self {
        Self::new(Limits::DEFAULT)
    }
}

impl Share {
    /// A share without devices, with these limits on what one link may keep in memory.
    pub fn new(limits: Limits) -> Self {
        let shared = Arc::new(Shared::new(limits));
        let promises = ProcessorLeases::new(Arc::downgrade(&shared.reservations));
        Self { shared, promises }
    }

    /// Offers a device. It gets the name `kind`, with a number behind it if that is taken; the returned record has it.
    ///
    /// # Errors
    /// [`ShareError::BusFull`].
    pub fn add(&self, kind: &str, device: impl Device + 'static) -> Result<DeviceRecord, ShareError> {
        self.offer(Naming::Automatic(kind), Box::new(device), DeviceClass::Usb, made_here())
    }

    /// The same of a device that is a block device, too: paired hosts see it as one, all others as the USB disk
    /// `device`.
    ///
    /// # Errors
    /// [`ShareError::BusFull`].
    #[doc(hidden)]
    pub fn add_block(
        &self,
        kind: &str,
        device: Box<dyn Device>,
        block: BlockClass,
    ) -> Result<DeviceRecord, ShareError> {
        self.offer(Naming::Automatic(kind), device, DeviceClass::Block(block), made_here())
    }

    /// Takes a device off the list that is gone, by its bus id on the wire. One that somebody uses goes with its
    /// session, which notices by itself. Says whether it is off the list.
    pub(crate) fn remove_gone(&self, bus_id: &str) -> bool {
        let mut registry = self.shared.registry.lock();
        registry.remove_idle(bus_id);
        registry.find(bus_id).is_none()
    }

    /// Makes a reservation for every user of a device who asks for none.
    ///
    /// # Errors
    /// [`ShareError::NoDevice`], [`ShareError::Reservation`].
    pub fn reserve(&self, device: &str, reservation: Reservation) -> Result<(), ShareError> {
        self.shared.reservations.own_reservation(device, reservation)
    }

    /// Whoever comes from here may reserve with high criticality, and proves no key. Programs of this machine may if
    /// their user is served ([`Share::serve_local_users`]).
    pub(crate) fn allow_reserve_high(&self, from: Vec<Network>) {
        self.shared.reservations.allow_high(from);
    }

    /// Which users of this machine are served at TCP ports besides the owner and root; connections that are there stay.
    pub(crate) fn serve_local_users(&self, users: LocalUsers) {
        self.shared.permissions.local_peers.serve(users);
    }

    /// Whoever may ask the kernel whose a connection is, once this process may not.
    pub(crate) fn ask_through(&self, system: SystemAccess) {
        self.shared.permissions.local_peers.ask_through(system);
    }

    /// A device (by its bus id on the wire) is on this bus instance; without a word it is on that of all gadgets of its
    /// speed.
    pub(crate) fn place_on(&self, bus_id: &str, bus: String) {
        self.shared.reservations.place_on(bus_id, bus);
    }

    /// Processor time that is reserved for devices here, for tuned pipes of this process to count in: see
    /// [`Processors::beside`](crate::tuned::Processors::beside). The pipes are reported under the name `owner`.
    pub fn beside(&self, owner: &str) -> impl Beside + use<> {
        (Arc::downgrade(&self.shared.reservations), owner.to_owned())
    }

    /// The same of other processes' pipes.
    #[doc(hidden)]
    pub fn promises(&self) -> &ProcessorLeases {
        &self.promises
    }

    /// Serves USB/IP at `address` from now on, unencrypted and to everybody. Returns the address, with the port that
    /// was free if port 0 was asked for.
    ///
    /// # Errors
    /// The address cannot be listened at.
    pub fn listen(&self, address: SocketAddr) -> io::Result<SocketAddr> {
        self.listen_on(Listener::bind(address)?, None)
    }

    /// Serves USB/IP on a socket that listens already, to those who are `allowed` (`None`: everybody); says where.
    ///
    /// # Errors
    /// What the system says of the socket, or of a thread more.
    pub(crate) fn listen_on(&self, listener: Listener, allowed: Option<Vec<Network>>) -> io::Result<SocketAddr> {
        listener.never_wait()?;
        let address = listener.address()?;
        self.listen_at(SocketListener::Tcp(listener), allowed)?;
        Ok(address)
    }

    /// Serves USB/IP, and sessions without keys, at an entrance that never waits: an address, or a Unix socket; says
    /// where.
    ///
    /// # Errors
    /// What the system says of the socket, or of a thread more.
    #[doc(hidden)]
    pub fn listen_at(&self, listener: SocketListener, allowed: Option<Vec<Network>>) -> io::Result<Place> {
        let listening = Arc::new(Listening::new(listener, allowed)?);
        let place = listening.place().clone();
        let (shared, for_thread) = (Arc::clone(&self.shared), Arc::clone(&listening));
        thread::Builder::new()
            .name("listen".into())
            .stack_size(STACK_BYTES)
            .spawn(move || connections::accept_all(&shared, &for_thread))?;
        self.shared.listeners.add(listening);
        Ok(place)
    }

    /// The places that are listened at.
    pub(crate) fn addresses(&self) -> &Addresses {
        &self.shared.listeners
    }

    /// Offers a device no longer. A session that uses it ends first.
    ///
    /// # Errors
    /// [`ShareError::NoDevice`].
    pub fn remove(&self, device: &str) -> Result<(), ShareError> {
        owner::remove(&self.shared, device)
    }

    /// Takes a device back from its user: the session ends, the device is made durable, reset and offered again, to the
    /// same host only after `keep_out`. The history shows `remark`. Returns who the user was.
    ///
    /// # Errors
    /// [`ShareError::NoDevice`], [`ShareError::NotInUse`].
    pub fn take_back(&self, device: &str, remark: Option<&str>, keep_out: Duration) -> Result<String, ShareError> {
        owner::take_back(&self.shared, device, remark, keep_out)
    }

    /// How long what an importer hands over waits for its successor, before it is that importer's again: 20 s unless
    /// this says otherwise.
    #[doc(hidden)]
    pub fn wait_for_successors(&self, span: Duration) {
        self.shared.registry.set_successor_time(span);
    }

    /// The holder whose connection comes from `who` says what it needs its device for. Says whether there is one.
    pub(crate) fn explain(&self, who: &str, reason: &str) -> bool {
        self.shared.registry.lock().explain(who, reason)
    }

    /// Serves paired hosts at `address` from now on, encrypted, each the devices that it is allowed. Returns the
    /// address, with the port that was free if port 0 was asked for.
    ///
    /// # Errors
    /// The address cannot be listened at.
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
    pub(crate) fn listen_secure_on(
        &self,
        listener: Listener,
        datagrams: Option<UdpSocket>,
        trust: Trust,
    ) -> io::Result<()> {
        listener.never_wait()?;
        self.record_by(Recorder::Own(trust.audit()));
        let listening = Arc::new(Listening::new(SocketListener::Tcp(listener), None)?);
        let for_shutdown = Arc::clone(&listening);
        let spawn = |name: &str| thread::Builder::new().name(name.into()).stack_size(STACK_BYTES);
        let (for_recheck, shared) = (trust.clone(), Arc::clone(&self.shared));
        spawn("recheck").spawn(move || connections::recheck(&shared, &for_recheck))?;
        let listener = Arc::new(SecureListener::new(trust, Arc::clone(&self.shared)));
        if let Some(socket) = datagrams {
            listening.accompany(listener.serve_datagrams(socket)?);
        }
        spawn("listen-secure").spawn(move || listener.accept_all(&listening))?;
        self.shared.listeners.add(for_shutdown);
        Ok(())
    }

    /// What those do who prove no key is noted by this one, if nobody notes it yet.
    pub(crate) fn record_by(&self, recorder: Recorder) {
        let _ = self.shared.permissions.recorder.set(recorder);
    }

    /// Allows importers these modules. Without this call they may ask for those that need nothing of this host.
    pub fn allow_modules(&self, modules: Arc<Allowed>) {
        self.shared.serving.allow_modules(modules);
    }

    /// What peers may make this process hold, from now on: peers that are there keep what they have.
    pub(crate) fn set_budget(&self, budget: Budget) {
        self.shared.sessions.accounts.set_budget(budget);
    }

    /// Whether a host that may use a device may also observe what the device sends while another host uses it. Without
    /// this call none may.
    pub fn show(&self, is_observable: bool) {
        self.shared.permissions.set_observable(is_observable);
    }

    /// These devices, by name, are one host's alone from now on, and no others: whatever else hosts are allowed.
    pub(crate) fn lend(&self, lent: BTreeMap<String, ExclusiveUse>) {
        self.shared.permissions.lend(lent);
    }

    /// Hosts that this one is joined with are answered by this, which is said once.
    pub(crate) fn answer_neighbours(&self, neighbourhood: Arc<dyn Neighbourhood>) {
        let _ = self.shared.serving.neighbourhood.set(neighbourhood);
    }

    /// Whether somebody used the device of this name in the process before this one, and is about to go on.
    pub(crate) fn is_inherited(&self, name: &str) -> bool {
        self.shared.predecessor.uses(name)
    }

    /// Writes each session's last taps to `file` when it ends, a line of JSON each: the same key
    /// (connection, endpoint, sequence number) at every hand-off, so that latency by stage falls out.
    pub(crate) fn trace_to(&self, file: File) {
        self.shared.serving.trace.write_to(file);
    }

    /// Every device that is offered, and its user.
    pub fn status(&self) -> Vec<DeviceStatus> {
        owner::status(&self.shared)
    }

    /// Asks a device to do something, such as ejecting its medium, whether it is in use or not.
    ///
    /// # Errors
    /// [`ShareError`].
    pub fn command(&self, device: &str, command: Command) -> Result<(), ShareError> {
        owner::command(&self.shared, device, command)
    }

    /// The swaps of what is shared here.
    pub(crate) fn swaps(&self) -> &Swaps {
        &self.shared.swaps
    }

    /// The device of this name or bus id: its bus id, and what is offered of it if it is a disk.
    ///
    /// # Errors
    /// [`ShareError::NoDevice`].
    #[doc(hidden)]
    pub fn disk(&self, device: &str) -> Result<(String, Option<Arc<BlockExport>>), ShareError> {
        let bus_id = self.shared.registry.bus_id_of(device)?;
        let export = self.shared.registry.lock().block_export(&bus_id);
        Ok((bus_id, export))
    }

    /// Asks every session to be ready for another process.
    pub(crate) fn ask_sessions(&self) -> Vec<Asked<Vec<u8>>> {
        self.shared.native.ask_all()
    }

    /// Goes on, from [`Share::take_up`] on, with a session that another process wrote down.
    ///
    /// # Errors
    /// No session can have stood so, or the system has no more descriptors.
    pub(crate) fn inherit(&self, saved: &[u8], trust: Option<&Trust>) -> io::Result<()> {
        restart::inherit(&self.shared, saved, trust)
    }

    /// Sessions of the process before this one go on.
    pub(crate) fn take_up(&self) {
        restart::take_up(&self.shared);
    }

    /// What another process could not go on with: a sentence for each.
    pub(crate) fn unmovable(&self) -> Vec<String> {
        let registry = self.shared.registry.lock();
        let is_lost = |entry: &Entry<'_>| {
            let is_used = !entry.claims.holders().is_empty();
            entry.block.is_some_and(|block| block.is_lost_with_process(is_used))
        };
        let lost = registry.entries().filter(is_lost);
        lost.map(|entry| format!("what is in memory of {} ends with this process", entry.name)).collect()
    }

    /// Ends all sessions and makes their devices durable. Returns whether all did in time.
    pub fn stop(&self) -> bool {
        self.end(false)
    }

    fn end(&self, is_replaced: bool) -> bool {
        let is_durable = owner::stop(&self.shared, is_replaced);
        self.shared.permissions.recorder.get().into_iter().for_each(Recorder::finish);
        is_durable
    }

    /// The same before another process shares the same devices: sessions' importers are told nothing, and come back to
    /// that.
    pub(crate) fn stop_for_another(&self) -> bool {
        self.end(true)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        owner::stop(&self.shared, false);
    }
}
