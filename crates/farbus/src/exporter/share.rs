//! Shares devices on listening sockets: the exporter's public interface.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use farbus_control::descriptors::DescriptorTree;
pub use farbus_control::device::DeviceStatus;
use farbus_control::reservation::BusStatus;
use farbus_io_net::link::TcpLinkListener;
pub use farbus_io_net::link::host_address::DEFAULT_PORT;
use farbus_io_net::saving::PendingSaveReply;
use farbus_io_net::trust::{AuditRecorder, DeviceNotes};
use farbus_model::budget::MemoryBudget;
use farbus_model::{Device, OwnerCommand, SessionLimits};
use farbus_session::DeviceRecord;
use farbus_session::block::BlockExport;
use farbus_session::native::AllowedModules;
use farbus_session::registry::{BlockClass, ExportEntry};
use farbus_session::reserve::ReservationTerms;
use farbus_session::stream::FramePublisher;

use crate::broker::{BrokerClient, SystemAccess};
use crate::common::networks::IpNetwork;
use crate::common::processor_leases::ProcessorAdmission;
use crate::common::processor_leases::ProcessorLeases;
use crate::common::socket_place::{SocketListener, SocketLocation};
use crate::devices::descriptors::descriptor_tree;
use crate::devices::identities::labels::{DeviceClass, made_here};
use crate::devices::identities::naming::DeviceNaming;
use crate::exporter::access::encrypted::SecureListener;
use crate::exporter::access::listener::{ExporterListener, ExporterListenerSet};
use crate::exporter::access::local_users::LocalUsers;
pub use crate::exporter::error::ShareError;
use crate::exporter::state::lease_limits::{LeaseLimit, SiteLimitSource};
use crate::exporter::state::note_book::ConfiguredNotes;
use crate::exporter::state::permissions::ExclusiveUse;
use crate::exporter::state::shared::{ExporterState, NeighbourResponder, STACK_BYTES};
use crate::exporter::swap::ExportSwaps;
use crate::exporter::{connections, leasing, owner, restart};
use crate::hosts::trust::TrustStore;

/// How many leases a broker stores at once. The disk stores those of many devices together.
const LEASES_STORED_AT_ONCE: usize = 64;

/// Devices that this process offers to other hosts, from [`Share::listen`] on. Dropping it ends all sessions.
///
/// Methods take a device's name or its bus id.
pub struct Share {
    pub(crate) shared: Arc<ExporterState>,
    promises: ProcessorLeases,
}

impl Default for Share {
    fn default() -> Self {
        Self::new(SessionLimits::DEFAULT)
    }
}

impl Share {
    /// Creates a share without devices. `limits` bounds what one link may keep in memory.
    pub fn new(limits: SessionLimits) -> Self {
        let shared = Arc::new(ExporterState::new(limits));
        let promises = ProcessorLeases::new(Arc::downgrade(&shared.reservations));
        Self { shared, promises }
    }

    /// Offers a device. Its name is `kind`, with a number appended if that is taken; the returned record has the name.
    ///
    /// # Errors
    /// [`ShareError::BusFull`].
    pub fn add(&self, kind: &str, device: impl Device + 'static) -> Result<DeviceRecord, ShareError> {
        self.offer(DeviceNaming::Automatic(kind), Box::new(device), DeviceClass::Usb, made_here())
    }

    /// Offers a device with a block class: paired hosts use it as a block device, all others as the USB disk `device`.
    /// Its name is chosen as in [`Share::add`].
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
        self.offer(DeviceNaming::Automatic(kind), device, DeviceClass::Block(block), made_here())
    }

    /// Removes an unplugged device, named by its bus id, if it is idle. A device in use is removed by its session,
    /// which notices the loss itself. Returns whether the device is off the list.
    pub(crate) fn remove_gone(&self, bus_id: &str) -> bool {
        let mut registry = self.shared.registry.lock();
        registry.remove_idle(bus_id, self.shared.serving.clock.now());
        registry.find(bus_id).is_none()
    }

    /// Makes a reservation for every user of a device that asks for none.
    ///
    /// # Errors
    /// [`ShareError::NoDevice`], [`ShareError::Reservation`].
    pub fn reserve(&self, device: &str, reservation: ReservationTerms) -> Result<(), ShareError> {
        self.shared.reservations.own_reservation(device, reservation)
    }

    /// Lets hosts in these networks reserve with high criticality without proving a key. Programs of this machine may
    /// if their user is served ([`Share::serve_local_users`]).
    pub fn allow_reserve_high(&self, from: Vec<IpNetwork>) {
        self.shared.reservations.allow_high(from);
    }

    /// Sets which users of this machine are served at TCP ports besides the owner and root. Existing connections stay.
    pub fn serve_local_users(&self, users: LocalUsers) {
        self.shared.permissions.local_peers.serve(users);
    }

    /// Asks the kernel through `system` which user made a connection, and for processor time for threads that serve
    /// devices, for a process without these rights.
    pub fn ask_through(&self, system: SystemAccess) {
        self.shared.permissions.local_peers.ask_through(system.clone());
        self.shared.registry.notes.read_through(system.clone());
        self.shared.reservations.ask_through(system);
    }

    /// Has a broker write leases, for a process without that right.
    ///
    /// # Errors
    /// The system has no more descriptors or threads.
    pub fn write_leases_through(&self, broker: &BrokerClient) -> io::Result<()> {
        let lines = broker.lines_up_to(LEASES_STORED_AT_ONCE)?;
        self.shared.registry.store.write_through(SystemAccess::Through(Arc::new(lines)));
        Ok(())
    }

    /// Shows what `farbus label` stored of devices that are offered from now on.
    pub fn show_labels(&self, system: SystemAccess) {
        self.shared.registry.notes.read_through(system);
    }

    /// Sets how many devices one host may have here, and for how long.
    pub fn limit_leases(&self, own: LeaseLimit) {
        self.shared.lease_limits.configure(own);
    }

    /// Keeps the limits of the directory, too. Only the first call has an effect.
    pub fn limit_leases_by(&self, site: Arc<dyn SiteLimitSource>) {
        self.shared.lease_limits.ask(site);
    }

    /// Sets what the configuration says of devices.
    pub fn configure_notes(&self, configured: ConfiguredNotes) {
        self.shared.registry.notes.configure(configured);
    }

    /// Shows of a device what `farbus label` stored just now. Returns all that is shown of it.
    ///
    /// # Errors
    /// [`ShareError::NoDevice`].
    pub(crate) fn label(&self, device: &str, notes: DeviceNotes) -> Result<DeviceNotes, ShareError> {
        let registry = &self.shared.registry;
        let bus_id = registry.bus_id_of(device)?;
        registry.notes.put(&bus_id, notes);
        let name = registry.device_name(&bus_id).ok_or_else(|| ShareError::NoDevice(device.to_owned()))?;
        Ok(registry.notes.of(&bus_id, &name))
    }

    /// Notes the bus instance of a device, named by its bus id. Without this call a device is on the bus of all gadgets
    /// of its speed.
    pub(crate) fn place_on(&self, bus_id: &str, bus: String) {
        self.shared.reservations.place_on(bus_id, bus);
    }

    /// A ledger of processor time for tuned pipes of this process, shared with the reservations of devices here: see
    /// `Processors::beside` of `farbus-pipe`. The pipes are listed under the name `owner`.
    pub fn beside(&self, owner: &str) -> impl ProcessorAdmission + use<> {
        (Arc::downgrade(&self.shared.reservations), owner.to_owned())
    }

    /// The processor leases of other processes' tuned pipes.
    #[doc(hidden)]
    pub fn promises(&self) -> &ProcessorLeases {
        &self.promises
    }

    /// Serves USB/IP at `address` from now on, without encryption and to all hosts. Returns the address; port 0 is
    /// replaced by the port that was chosen.
    ///
    /// # Errors
    /// The system cannot listen at the address.
    pub fn listen(&self, address: SocketAddr) -> io::Result<SocketAddr> {
        self.listen_on(TcpLinkListener::bind(address)?, None)
    }

    /// Serves USB/IP on an existing listening socket, for the networks in `allowed` (`None`: all). Returns the address.
    ///
    /// # Errors
    /// The socket failed, or the system has no more threads.
    pub(crate) fn listen_on(
        &self,
        listener: TcpLinkListener,
        allowed: Option<Vec<IpNetwork>>,
    ) -> io::Result<SocketAddr> {
        listener.never_wait()?;
        let address = listener.address()?;
        self.listen_at(SocketListener::Tcp(listener), allowed)?;
        Ok(address)
    }

    /// Serves USB/IP, and sessions without keys, on a non-blocking TCP or Unix socket. Returns its address or path.
    ///
    /// # Errors
    /// The socket failed, or the system has no more threads.
    #[doc(hidden)]
    pub fn listen_at(&self, listener: SocketListener, allowed: Option<Vec<IpNetwork>>) -> io::Result<SocketLocation> {
        let listening = Arc::new(ExporterListener::new(listener, allowed)?);
        let location = listening.location().clone();
        let (shared, for_thread) = (Arc::clone(&self.shared), Arc::clone(&listening));
        thread::Builder::new()
            .name("listen".into())
            .stack_size(STACK_BYTES)
            .spawn(move || connections::accept_all(&shared, &for_thread))?;
        self.shared.listeners.add(listening);
        Ok(location)
    }

    /// The listening sockets.
    pub fn addresses(&self) -> &ExporterListenerSet {
        &self.shared.listeners
    }

    /// Stops offering a device. A session that uses it ends first.
    ///
    /// # Errors
    /// [`ShareError::NoDevice`].
    pub fn remove(&self, device: &str) -> Result<(), ShareError> {
        owner::remove(&self.shared, device)
    }

    /// Takes a device back from its user: ends the session, flushes and resets the device, and offers it again, but to
    /// the same host only after `keep_out`. The history shows `remark`. Returns the user.
    ///
    /// # Errors
    /// [`ShareError::NoDevice`], [`ShareError::NotInUse`].
    pub fn take_back(&self, device: &str, remark: Option<&str>, keep_out: Duration) -> Result<String, ShareError> {
        owner::take_back(&self.shared, device, remark, keep_out)
    }

    /// Sets how long a handed over device waits for its successor at most before it returns to the importer that handed
    /// it over; that importer may have a shorter limit. The default is 20 s.
    pub fn wait_for_successors(&self, span: Duration) {
        self.shared.registry.set_successor_time(span);
    }

    /// Stores the reason why the holder that connects from `who` needs its device. Returns whether there is such a
    /// holder.
    pub(crate) fn explain(&self, who: &str, reason: &str) -> bool {
        self.shared.registry.lock().explain(who, reason)
    }

    /// Serves paired hosts at `address` from now on, encrypted, and each with the devices that it may use. Returns the
    /// address; port 0 is replaced by the port that was chosen.
    ///
    /// # Errors
    /// The system cannot listen at the address.
    pub fn listen_secure(&self, address: SocketAddr, trust: TrustStore) -> io::Result<SocketAddr> {
        let listener = TcpLinkListener::bind(address)?;
        let address = listener.address()?;
        self.listen_secure_on(listener, trust)?;
        Ok(address)
    }

    /// Serves paired hosts on an existing listening socket. Returns what serves them by QUIC as well.
    ///
    /// # Errors
    /// The system has no more threads or descriptors.
    pub fn listen_secure_on(&self, listener: TcpLinkListener, trust: TrustStore) -> io::Result<QuicBeside> {
        listener.never_wait()?;
        self.record_by(trust.audit());
        if let Err(error) = trust.peers() {
            tracing::error!(%error, "no paired host is served before this is mended");
        }
        leasing::keep_in(&self.shared, trust.folder().clone());
        self.shared.permissions.set_trust(trust.clone());
        let listening = Arc::new(ExporterListener::new(SocketListener::Tcp(listener), None)?);
        let for_shutdown = Arc::clone(&listening);
        let spawn = |name: &str| thread::Builder::new().name(name.into()).stack_size(STACK_BYTES);
        let (for_recheck, shared) = (trust.clone(), Arc::clone(&self.shared));
        spawn("recheck").spawn(move || connections::recheck(&shared, &for_recheck))?;
        let listener = Arc::new(SecureListener::new(trust, Arc::clone(&self.shared)));
        let beside = QuicBeside { listening: Arc::clone(&listening), listener: Arc::clone(&listener) };
        spawn("listen-secure").spawn(move || listener.accept_all(&listening))?;
        self.shared.listeners.add(for_shutdown);
        Ok(beside)
    }

    /// Sets who writes the audit log for users that prove no key. Only the first call has an effect.
    pub fn record_by(&self, recorder: Arc<dyn AuditRecorder>) {
        let _ = self.shared.permissions.recorder.set(recorder);
    }

    /// Sets the modules that importers may ask for. By default these are the modules that need nothing of this host.
    pub fn allow_modules(&self, modules: Arc<AllowedModules>) {
        self.shared.serving.allow_modules(modules);
    }

    /// Sets how much memory peers may make this process hold. Connected peers keep their budget.
    pub fn set_budget(&self, budget: MemoryBudget) {
        self.shared.sessions.accounts.set_budget(budget);
    }

    /// Sets how long the peer of a plain connection may be silent before its device is offered again; it holds for
    /// connections made from now on. The default is [`PLAIN_SILENCE`](farbus_io_net::link::PLAIN_SILENCE).
    pub fn limit_plain_silence(&self, silence_max: Duration) {
        self.shared.serving.limit_plain_silence(silence_max);
    }

    /// Sets whether a host that may use a device may also observe what the device sends while another host uses it. The
    /// default is no.
    pub fn show(&self, is_observable: bool) {
        self.shared.permissions.set_observable(is_observable);
    }

    /// Sets the devices, by name, that only one host may use, whatever else hosts are allowed. All other devices lose
    /// that restriction.
    pub fn lend(&self, lent: BTreeMap<String, ExclusiveUse>) {
        self.shared.permissions.lend(lent);
    }

    /// Sets who answers the questions of neighbouring hosts about links between hosts. Only the first call has an
    /// effect.
    pub fn answer_neighbours(&self, neighbourhood: Arc<dyn NeighbourResponder>) {
        let _ = self.shared.serving.neighbourhood.set(neighbourhood);
    }

    /// Whether the device of this name was in use in the process before this one, and its session is yet to continue.
    pub fn is_inherited(&self, name: &str) -> bool {
        self.shared.predecessor.uses(name)
    }

    /// Writes each session's last taps to `file` when the session ends, one line of JSON each. The key (connection,
    /// endpoint, sequence number) is the same at every stage, so the latency of each stage can be computed.
    pub fn trace_to(&self, file: File) {
        self.shared.serving.trace.write_to(file);
    }

    /// Every device that is offered, with its user.
    pub fn status(&self) -> Vec<DeviceStatus> {
        owner::status(&self.shared)
    }

    /// What is reserved on each bus.
    pub fn buses(&self) -> Vec<BusStatus> {
        self.shared.reservations.ledger().buses()
    }

    /// The descriptors of a device, in use or not.
    ///
    /// # Errors
    /// [`ShareError::NoDevice`].
    pub(crate) fn descriptors(&self, device: &str) -> Result<DescriptorTree, ShareError> {
        let bus_id = self.shared.registry.bus_id_of(device)?;
        let found = self.shared.registry.lock().descriptors(&bus_id);
        let (descriptors, speed) = found.ok_or_else(|| ShareError::NoDevice(device.to_owned()))?;
        Ok(descriptor_tree(&descriptors, speed))
    }

    /// Sends a command to a device, such as ejecting its medium, whether the device is in use or not.
    ///
    /// # Errors
    /// [`ShareError`].
    pub fn command(&self, device: &str, command: OwnerCommand) -> Result<(), ShareError> {
        owner::command(&self.shared, device, command)
    }

    /// The swaps of the devices that are shared here.
    pub(crate) fn swaps(&self) -> &ExportSwaps {
        &self.shared.swaps
    }

    /// The bus id of a device, and its block export if it is a disk.
    ///
    /// # Errors
    /// [`ShareError::NoDevice`].
    #[doc(hidden)]
    pub fn disk(&self, device: &str) -> Result<(String, Option<Arc<BlockExport>>), ShareError> {
        let bus_id = self.shared.registry.bus_id_of(device)?;
        let export = self.shared.registry.lock().block_export(&bus_id);
        Ok((bus_id, export))
    }

    /// Asks every session to save itself for another process.
    pub fn ask_sessions(&self) -> Vec<PendingSaveReply<Vec<u8>>> {
        self.shared.native.ask_all()
    }

    /// Restores a session that another process saved. It continues at [`Share::take_up`].
    ///
    /// # Errors
    /// The saved bytes describe no possible session, or the system has no more descriptors.
    pub fn inherit(&self, saved: &[u8], trust: Option<&TrustStore>) -> io::Result<()> {
        restart::inherit(&self.shared, saved, trust)
    }

    /// Continues the restored sessions.
    pub fn take_up(&self) {
        restart::take_up(&self.shared);
    }

    /// What a replacement process could not continue: one sentence for each device.
    pub fn unmovable(&self) -> Vec<String> {
        let registry = self.shared.registry.lock();
        let is_lost = |entry: &ExportEntry<'_>| {
            let is_used = !entry.claims.holders().is_empty();
            entry.block.is_some_and(|block| block.is_lost_with_process(is_used))
        };
        let lost = registry.entries().filter(is_lost);
        let lost = lost.map(|entry| format!("what is in memory of {} ends with this process", entry.name));
        let read = registry.entries().filter(|entry| entry.stream.is_some_and(FramePublisher::is_busy));
        lost.chain(read.map(|entry| format!("frames of {} are being read", entry.name))).collect()
    }

    /// Whether the frames of the stream of this name are being read.
    pub fn is_being_read(&self, name: &str) -> bool {
        let registry = self.shared.registry.lock();
        registry.entries().any(|entry| entry.name == name && entry.stream.is_some_and(FramePublisher::is_busy))
    }

    /// Ends all sessions and makes their devices durable. Returns whether all sessions ended in time.
    pub fn stop(&self) -> bool {
        self.end(false)
    }

    fn end(&self, is_replaced: bool) -> bool {
        let is_durable = owner::stop(&self.shared, is_replaced);
        self.shared.permissions.recorder.get().into_iter().for_each(|recorder| recorder.finish());
        is_durable
    }

    /// Ends all sessions before another process shares the same devices. Importers are told nothing, and reconnect to
    /// that process. Returns whether all sessions ended in time.
    pub fn stop_for_another(&self) -> bool {
        self.end(true)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        owner::stop(&self.shared, false);
    }
}

/// Serves the paired hosts of a listening socket by QUIC, at the UDP port of the same number.
pub struct QuicBeside {
    listening: Arc<ExporterListener>,
    listener: Arc<SecureListener<ExporterState>>,
}

impl QuicBeside {
    /// Serves them on this socket.
    ///
    /// # Errors
    /// The system has no more threads or descriptors.
    pub fn serve(&self, socket: UdpSocket) -> io::Result<()> {
        self.listening.accompany(self.listener.serve_datagrams(socket)?);
        Ok(())
    }

    /// Whether the listening socket is served no more.
    pub fn is_closed(&self) -> bool {
        self.listening.is_closed()
    }
}
