//! The exporter's exports and their users: exclusive use by default (U13), several readers where a device allows it
//! (N6).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use farbus_model::{DescriptorSet, Device, ExportIdentity, Instant, NamedCounters, UsbSpeed};
use farbus_wire::native::control;
use farbus_wire::native::usb::UsbDescription;
use farbus_wire::usbip::{DeviceRecord, OpStatus};

use crate::block::BlockExport;
use crate::claims::lease::LeaseEvent;
use crate::claims::{ClaimHolder, ClaimRefusal, DeviceClaims, UseEnding, UseMode};
use crate::console;
use crate::observe::{DeviceObservers, ObservedDevice, sends_events};
use crate::stream::FramePublisher;

/// The exports. This is the only state that engines share; its owner puts a lock around it.
#[derive(Default)]
pub struct ExportRegistry {
    exports: Vec<RegisteredExport>,
    /// Device numbers given so far, by name: a device that comes back under its name gets its number again, and no
    /// other device gets it.
    numbers: BTreeMap<String, u32>,
    /// The first number that was never given.
    fresh: u32,
    /// The claims on devices that have gone and may come back, by bus id and identity.
    absent: BTreeMap<(String, u128), DeviceClaims>,
}

struct RegisteredExport {
    name: String,
    title: String,
    record: DeviceRecord,
    /// What its users read of it, for its owner while a user has it.
    descriptors: Arc<DescriptorSet>,
    /// Its class as a USB device; `None` while a user has it.
    device: Option<Box<dyn Device>>,
    /// Its class as a block device.
    block: Option<BlockClass>,
    /// Its class as a stream of frames.
    stream: Option<StreamClass>,
    /// What observers of the device get; `None` if it has nothing to observe.
    show: Option<ExportObservers>,
    tally: Option<NamedCounters>,
    identity: Option<ExportIdentity>,
    claims: DeviceClaims,
    /// Whether its claims stay while it is gone.
    keeps_claims: bool,
    /// Whether it was retired and goes with its last user.
    is_leaving: bool,
}

/// Makes a new USB disk for a block device.
pub type UsbDiskFactory = Box<dyn Fn() -> Result<Box<dyn Device>, String> + Send>;

/// The block class of a device that is also a USB disk.
pub struct BlockClass {
    /// What its users open.
    pub export: Arc<BlockExport>,
    /// Makes a new USB disk, after a user with private changes.
    pub renew: UsbDiskFactory,
}

impl fmt::Debug for BlockClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.export.fmt(f)
    }
}

/// A claimed block device. Call [`ExportRegistry::release`] when its use ends.
#[derive(Clone, Debug)]
pub struct ClaimedBlock {
    /// Its record, for the client that claimed it.
    pub record: DeviceRecord,
    /// The export to open.
    pub export: Arc<BlockExport>,
    /// The mode to open it in.
    pub mode: UseMode,
}

/// The stream class of a device that is also a USB device. It closes for its readers when it is withdrawn.
#[derive(Debug)]
pub struct StreamClass(pub FramePublisher);

impl Drop for StreamClass {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// A device's audience, and the description that each observer gets first. Dropping it closes the audience.
struct ExportObservers {
    audience: DeviceObservers,
    /// `None` if only its serial ports send.
    events: Option<Vec<u8>>,
    /// `None` if it has no serial port.
    console: Option<Vec<u8>>,
}

impl Drop for ExportObservers {
    fn drop(&mut self) {
        self.audience.close();
    }
}

/// A device that can be observed.
#[derive(Clone, Debug)]
pub struct ObservableDevice {
    /// Where to add an observer.
    pub audience: DeviceObservers,
    /// The device's [`UsbDescription`], or that of its [console](farbus_wire::native::console::ConsoleDescription),
    /// encoded.
    pub description: Vec<u8>,
}

/// Why a device cannot be claimed by a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClassRefusal {
    /// There is no device of that name.
    NoDevice,
    /// The device does not have this class.
    Class,
    /// Another user holds it or comes first.
    Busy,
}

/// A claimed USB device. Give it back with [`ExportRegistry::release`].
pub struct ClaimedUsb {
    /// Its record, for the client that claimed it.
    pub record: DeviceRecord,
    /// The device itself.
    pub device: Box<dyn Device>,
}

/// An export, as a listing shows it.
#[derive(Clone, Debug)]
pub struct ExportEntry<'a> {
    /// Its name, unique in the registry.
    pub name: &'a str,
    /// Manufacturer and product.
    pub title: &'a str,
    /// How a USB/IP device list describes it.
    pub record: &'a DeviceRecord,
    /// Its holder; the first, if there are several.
    pub holder: Option<&'a ClaimHolder>,
    /// Its claims: holders, queue and history.
    pub claims: &'a DeviceClaims,
    /// Its block class, if it has one.
    pub block: Option<&'a BlockExport>,
    /// Where its frames are shown, if it has a stream class.
    pub stream: Option<&'a FramePublisher>,
    /// Its identity; `None` until [`ExportRegistry::identify`] was called.
    pub identity: Option<ExportIdentity>,
    /// The counters that its device keeps for its owner; `None` if it keeps none.
    pub tally: Option<&'a NamedCounters>,
    /// Whether it sends something that observers are shown (requirement N6): [`ExportRegistry::observe`] finds it, or
    /// [`ExportRegistry::observe_stream`].
    pub has_observable: bool,
    /// Whether it has a serial port whose output observers are shown: [`ExportRegistry::console`] finds it.
    pub has_console: bool,
}

/// What a record's path says about the use of its device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InUse {
    /// The host that uses it, as the exporter names it.
    pub user: String,
    /// How long it has been used, seconds.
    pub used_s: u64,
    /// What is left of a lease of it, seconds, if the host has that and does not use the device at present.
    pub lease_left_s: Option<u64>,
}

/// Device numbers have 7 bits on a bus (USB 2.0 §9.4.6), and so have ours. Number 1 is the root hub.
const DEVICES_PER_BUS: u32 = 126;
/// Virtual buses. When their numbers are used up, numbers of withdrawn devices are reused.
const BUSES_MAX: u32 = 255;
/// Most devices at once: readers refuse longer lists (as ours does), and the list would take megabytes.
pub const DEVICES_MAX: usize = 4096;
/// Most devices that have gone and whose claims are kept.
const ABSENT_MAX: usize = 1024;
/// The beginning of a farbus record's path; the name follows.
pub const PATH_PREFIX: &str = "/farbus/";
/// Most bytes of a path on the wire, without its NUL.
const PATH_BYTES_MAX: usize = 255;

impl ExportRegistry {
    /// Offers `device` under a name that begins with `kind`; returns its record. `None` if there are [`DEVICES_MAX`]
    /// already. A virtual bus has 126 numbers; further devices go on the next bus.
    pub fn add(&mut self, kind: &str, device: Box<dyn Device>) -> Option<&DeviceRecord> {
        self.add_with(kind, device, None, None)
    }

    /// Offers a device that also has a block class; otherwise as [`ExportRegistry::add`].
    pub fn add_block(&mut self, kind: &str, device: Box<dyn Device>, block: BlockClass) -> Option<&DeviceRecord> {
        self.add_with(kind, device, Some(block), None)
    }

    /// Offers a device that also has a stream class; otherwise as [`ExportRegistry::add`].
    pub fn add_stream(&mut self, kind: &str, device: Box<dyn Device>, stream: StreamClass) -> Option<&DeviceRecord> {
        self.add_with(kind, device, None, Some(stream))
    }

    fn add_with(
        &mut self,
        kind: &str,
        device: Box<dyn Device>,
        block: Option<BlockClass>,
        stream: Option<StreamClass>,
    ) -> Option<&DeviceRecord> {
        if self.exports.len() >= DEVICES_MAX {
            return None;
        }
        let name = self.free_name(kind);
        let at = self.number_of(&name);
        let (bus, number) = (1 + at / DEVICES_PER_BUS, 1 + at % DEVICES_PER_BUS);
        let all = device.descriptors();
        let first = all.configurations.first();
        let interfaces: Vec<_> = first.map(|c| c.interfaces().map(|i| i.class).collect()).unwrap_or_default();
        let record = DeviceRecord {
            path: format!("{PATH_PREFIX}{name}"),
            bus_id: format!("{bus}-{number}"),
            bus,
            device: number + 1,
            speed: device.speed(),
            vendor: all.device.vendor,
            product: all.device.product,
            device_bcd: all.device.device_bcd,
            class: all.device.class,
            configuration: first.map_or(0, |c| c.value),
            configurations: all.device.configurations,
            interface_count: interfaces.len() as u8,
            interfaces,
        };
        let title = all.title();
        let descriptors = Arc::new(all.clone());
        let events = sends_events(&device).then(|| described(&*device, &record));
        let console = console::described(&console::ports(all)).map(|ports| ports.encode());
        let tally = device.tally();
        let audience = DeviceObservers::default();
        let (device, show) = match ObservedDevice::new(device, audience.clone()) {
            Ok(observed) => {
                (Box::new(observed) as Box<dyn Device>, Some(ExportObservers { audience, events, console }))
            }
            Err(device) => (device, None),
        };
        let (device, claims) = (Some(device), DeviceClaims::default());
        self.exports.push(RegisteredExport {
            name,
            title,
            record,
            descriptors,
            device,
            block,
            stream,
            show,
            tally,
            identity: None,
            claims,
            keeps_claims: false,
            is_leaving: false,
        });
        self.exports.last().map(|export| &export.record)
    }

    /// The number that this name had before, or a new one as long as there are any: a client that remembers a withdrawn
    /// device finds that device or none.
    fn number_of(&mut self, name: &str) -> u32 {
        if let Some(&at) = self.numbers.get(name) {
            return at;
        }
        let at = if self.fresh < BUSES_MAX * DEVICES_PER_BUS {
            self.fresh += 1;
            self.fresh - 1
        } else {
            let exports = &self.exports;
            self.numbers.retain(|name, _| exports.iter().any(|export| export.name == *name));
            let is_free = |at: &u32| !self.numbers.values().any(|used| used == at);
            (0..self.fresh).find(is_free).expect("there are fewer devices than numbers")
        };
        self.numbers.insert(name.to_owned(), at);
        at
    }

    /// `kind`, or `kind2`, `kind3`, …
    fn free_name(&self, kind: &str) -> String {
        let is_free = |name: &String| self.exports.iter().all(|export| export.name != *name);
        let numbered = (2..).map(|number| format!("{kind}{number}"));
        std::iter::once(kind.to_owned()).chain(numbered).find(is_free).expect("numbers do not end")
    }

    /// All exports, held or not, in the order in which they were added.
    pub fn entries(&self) -> impl Iterator<Item = ExportEntry<'_>> {
        self.exports.iter().map(|export| ExportEntry {
            name: &export.name,
            title: &export.title,
            record: &export.record,
            holder: export.claims.holder(),
            claims: &export.claims,
            block: export.block.as_ref().map(|block| &*block.export),
            stream: export.stream.as_ref().map(|StreamClass(stage)| stage),
            identity: export.identity,
            tally: export.tally.as_ref(),
            has_observable: export.stream.is_some() || export.show.as_ref().is_some_and(|show| show.events.is_some()),
            has_console: export.show.as_ref().is_some_and(|show| show.console.is_some()),
        })
    }

    /// Sets the identity of device `bus_id`. Returns whether such a device is on offer.
    pub fn identify(&mut self, bus_id: &str, identity: ExportIdentity) -> bool {
        let export = self.export_mut(bus_id);
        export.map(|export| export.identity = Some(identity)).is_some()
    }

    /// The identity of device `bus_id`; `None` if there is no such device, or it has no identity.
    pub fn identity(&self, bus_id: &str) -> Option<ExportIdentity> {
        self.exports.iter().find(|export| export.record.bus_id == bus_id)?.identity
    }

    /// The descriptors of a device, in use or not, and its speed.
    pub fn descriptors(&self, bus_id: &str) -> Option<(Arc<DescriptorSet>, UsbSpeed)> {
        let export = self.exports.iter().find(|export| export.record.bus_id == bus_id)?;
        Some((Arc::clone(&export.descriptors), export.record.speed))
    }

    /// The block class of a device, in use or not.
    pub fn block_export(&self, bus_id: &str) -> Option<Arc<BlockExport>> {
        let export = self.exports.iter().find(|export| export.record.bus_id == bus_id)?;
        export.block.as_ref().map(|block| Arc::clone(&block.export))
    }

    /// The records of all exports that are not retired. A device in use is listed; importing it gives *busy*. The path
    /// of its record says who uses it, or has a lease of it, and for how long; [`name_of`] and [`in_use`] read it.
    pub fn records(&self, now: Instant) -> Vec<DeviceRecord> {
        let offered = self.exports.iter().filter(|export| !export.is_leaving);
        offered
            .map(|export| {
                let mut record = export.record.clone();
                let lessee = export.claims.lease(now).map(|lease| (lease.who.name(), lease.since, Some(lease.until)));
                let user = export.claims.holder().map(|holder| (holder.who.as_str(), holder.since, None));
                if let Some((who, since, until)) = user.or(lessee) {
                    let lease = until.map(|until| format!(";lease_s={}", (until - now).as_secs())).unwrap_or_default();
                    // An earlier release takes a lessee for a user.
                    let use_ = format!(";user={who};used_s={}{lease}", (now - since).as_secs());
                    // A name with one of our separators would be misread.
                    let is_plain = !who.contains([';', '=']);
                    if is_plain && record.path.len() + use_.len() <= PATH_BYTES_MAX {
                        record.path.push_str(&use_);
                    }
                }
                record
            })
            .collect()
    }

    /// Claims a device for `who` as a USB device: one user at a time.
    ///
    /// # Errors
    /// [`OpStatus::Busy`] while another user holds it or comes first ([`DeviceClaims`]), [`OpStatus::NoDevice`] if there is
    /// none.
    pub fn claim(&mut self, bus_id: &str, who: &str, now: Instant) -> Result<ClaimedUsb, OpStatus> {
        let export = self.export_mut(bus_id).filter(|export| !export.is_leaving).ok_or(OpStatus::NoDevice)?;
        let Some(device) = export.device.take() else {
            export.claims.refuse(who, now);
            return Err(OpStatus::Busy);
        };
        let mode = export.block.as_ref().map(|block| block.export.mode(control::AttachmentMode::Exclusive));
        match export.claims.claim(who, mode.unwrap_or_default(), now) {
            Ok(()) => Ok(ClaimedUsb { record: export.record.clone(), device }),
            Err(ClaimRefusal::Held | ClaimRefusal::Leased | ClaimRefusal::Waited | ClaimRefusal::KeptOut) => {
                export.device = Some(device);
                Err(OpStatus::Busy)
            }
        }
    }

    /// Claims a block device for `who`, in the mode that `asked` gives with its view.
    ///
    /// # Errors
    /// [`ClassRefusal`]: no such device, not a block device, or busy.
    pub fn claim_block(
        &mut self,
        bus_id: &str,
        who: &str,
        mode: control::AttachmentMode,
        now: Instant,
    ) -> Result<ClaimedBlock, ClassRefusal> {
        let class = |export: &RegisteredExport| {
            let block = export.block.as_ref()?;
            Some((Arc::clone(&block.export), block.export.mode(mode)))
        };
        let (record, export, mode) = self.claim_by(bus_id, who, now, class)?;
        Ok(ClaimedBlock { record, export, mode })
    }

    /// Claims a stream for `who`: exclusively, to get every frame, or beside other readers.
    ///
    /// # Errors
    /// [`ClassRefusal`]: no such device, not a stream, or busy.
    pub fn claim_stream(
        &mut self,
        bus_id: &str,
        who: &str,
        mode: control::AttachmentMode,
        now: Instant,
    ) -> Result<(FramePublisher, UseMode), ClassRefusal> {
        let mode = if mode == control::AttachmentMode::Exclusive { UseMode::Exclusive } else { UseMode::Read };
        let class = |export: &RegisteredExport| Some((export.stream.as_ref()?.0.clone(), mode));
        self.claim_by(bus_id, who, now, class).map(|(_, stage, mode)| (stage, mode))
    }

    /// Claims a device by one of its classes, if it has that class.
    fn claim_by<T>(
        &mut self,
        bus_id: &str,
        who: &str,
        now: Instant,
        class: impl FnOnce(&RegisteredExport) -> Option<(T, UseMode)>,
    ) -> Result<(DeviceRecord, T, UseMode), ClassRefusal> {
        let export = self.export_mut(bus_id).filter(|export| !export.is_leaving).ok_or(ClassRefusal::NoDevice)?;
        let (what, mode) = class(export).ok_or(ClassRefusal::Class)?;
        export.claims.claim(who, mode, now).map_err(|refusal| match refusal {
            ClaimRefusal::Held | ClaimRefusal::Leased | ClaimRefusal::Waited | ClaimRefusal::KeptOut => {
                ClassRefusal::Busy
            }
        })?;
        Ok((export.record.clone(), what, mode))
    }

    /// What an observer of a device needs, whether the device is in use or not; `None` if there is no such device, or
    /// it has nothing to observe.
    pub fn observe(&self, bus_id: &str) -> Option<ObservableDevice> {
        self.observable(bus_id, |show| show.events.as_ref())
    }

    /// What an observer of a device's serial ports needs; `None` if there is no such device, or it has none.
    pub fn console(&self, bus_id: &str) -> Option<ObservableDevice> {
        self.observable(bus_id, |show| show.console.as_ref())
    }

    fn observable(
        &self,
        bus_id: &str,
        of: impl FnOnce(&ExportObservers) -> Option<&Vec<u8>>,
    ) -> Option<ObservableDevice> {
        let export = self.exports.iter().find(|export| export.record.bus_id == bus_id && !export.is_leaving)?;
        let show = export.show.as_ref()?;
        Some(ObservableDevice { audience: show.audience.clone(), description: of(show)?.clone() })
    }

    /// Where the frames of a stream are shown, for an observer that claims nothing; `None` if there is no such device,
    /// or it is no stream.
    pub fn observe_stream(&self, bus_id: &str) -> Option<FramePublisher> {
        let export = self.exports.iter().find(|export| export.record.bus_id == bus_id && !export.is_leaving)?;
        export.stream.as_ref().map(|StreamClass(stage)| stage.clone())
    }

    /// Ends the use of a device by `who`, who gives back the USB device if it took that. A retired device is withdrawn
    /// with its last user.
    ///
    /// # Panics
    /// If `who` has not claimed it.
    pub fn release(
        &mut self,
        bus_id: &str,
        who: &str,
        device: Option<Box<dyn Device>>,
        ending: UseEnding,
        now: Instant,
    ) {
        let export = self.export_mut(bus_id).expect("an export is not withdrawn while held");
        let mode = export.claims.end(who, ending, now).expect("who gives it back has claimed it");
        if let Some(device) = device {
            assert!(export.device.is_none(), "a device is given back once");
            export.device = Some(export.renewed(device, mode));
        }
        if export.is_leaving && export.is_idle() {
            self.withdraw(bus_id);
        }
    }

    /// Retires a device: withdraws it at once if it has no user, otherwise with the end of its use, which the caller
    /// must bring about. Returns whether it is withdrawn; `None` if there is no such device.
    pub fn retire(&mut self, bus_id: &str) -> Option<bool> {
        let export = self.export_mut(bus_id)?;
        export.is_leaving = true;
        let is_idle = export.is_idle();
        if is_idle {
            self.withdraw(bus_id);
        }
        Some(is_idle)
    }

    /// The record of a device.
    pub fn record(&self, bus_id: &str) -> Option<DeviceRecord> {
        self.exports.iter().find(|export| export.record.bus_id == bus_id).map(|export| export.record.clone())
    }

    /// The claims on a device, for its owner to change.
    pub fn claims_mut(&mut self, bus_id: &str) -> Option<&mut DeviceClaims> {
        Some(&mut self.export_mut(bus_id)?.claims)
    }

    /// What is due of the leases at `now`, when the wall clock shows `wall_ms`, with the bus ids of the devices.
    pub fn advance_leases(&mut self, now: Instant, wall_ms: u64) -> Vec<(String, LeaseEvent)> {
        let due = |export: &mut RegisteredExport| {
            export.claims.note_wall(now, wall_ms);
            Some((export.record.bus_id.clone(), export.claims.advance(now)?))
        };
        self.exports.iter_mut().filter_map(due).collect()
    }

    /// When [`ExportRegistry::advance_leases`] has something next.
    pub fn next_lease_event(&self) -> Option<Instant> {
        self.exports.iter().filter_map(|export| export.claims.poll_timeout()).min()
    }

    /// Records what the holder `who` needs its device for, whichever device that is. Returns whether there is such a
    /// holder.
    pub fn explain(&mut self, who: &str, reason: &str) -> bool {
        self.exports.iter_mut().any(|export| export.claims.explain(who, reason))
    }

    fn export_mut(&mut self, bus_id: &str) -> Option<&mut RegisteredExport> {
        self.exports.iter_mut().find(|export| export.record.bus_id == bus_id)
    }

    /// Withdraws a claimed device that could not be given back.
    pub fn withdraw(&mut self, bus_id: &str) {
        self.exports.retain(|export| export.record.bus_id != bus_id);
    }

    /// Keeps the claims on a device while it is gone, for when it comes back under its bus id and with its identity;
    /// and takes those that were kept of it. Call it before any host can see the device, once it is identified.
    pub fn keep_claims(&mut self, bus_id: &str) {
        let Some(id) = self.identity(bus_id).map(|identity| identity.id) else { return };
        let kept = self.absent.remove(&(bus_id.to_owned(), id));
        if let Some(export) = self.export_mut(bus_id) {
            export.keeps_claims = true;
            export.claims = kept.unwrap_or_default();
        }
    }

    /// Withdraws a device that is gone, of which a user may not know yet.
    pub fn withdraw_gone(&mut self, bus_id: &str, now: Instant) {
        let Some(at) = self.exports.iter().position(|export| export.record.bus_id == bus_id) else { return };
        let export = self.exports.remove(at);
        if let Some(identity) = export.identity.filter(|_| export.keeps_claims && !export.is_leaving)
            && self.absent.len() < ABSENT_MAX
        {
            self.absent.insert((export.record.bus_id, identity.id), export.claims.without_device(now));
        }
    }

    /// Withdraws an idle device because it is gone; a held one is withdrawn by its user's session, which notices by
    /// itself. Returns whether it was there and idle.
    pub fn remove_idle(&mut self, bus_id: &str, now: Instant) -> bool {
        let is_idle = |export: &RegisteredExport| export.record.bus_id == bus_id && export.is_idle();
        let was_idle = self.exports.iter().any(is_idle);
        if was_idle {
            self.withdraw_gone(bus_id, now);
        }
        was_idle
    }

    /// Withdraws all idle devices and returns them.
    pub fn close(&mut self) -> Vec<Box<dyn Device>> {
        let idle = self.exports.extract_if(.., |export| export.is_idle());
        idle.filter_map(|export| export.device).collect()
    }

    /// The bus id of the device with this name or bus id.
    pub fn find(&self, name: &str) -> Option<&str> {
        let export = self.exports.iter().find(|export| export.name == name || export.record.bus_id == name)?;
        Some(&export.record.bus_id)
    }

    /// A device without users, for its owner's commands.
    pub fn idle_device(&mut self, bus_id: &str) -> Option<&mut Box<dyn Device>> {
        self.export_mut(bus_id).filter(|export| export.is_idle())?.device.as_mut()
    }
}

/// The description that a session sends first about a device.
fn described(device: &dyn Device, record: &DeviceRecord) -> Vec<u8> {
    let all = device.descriptors();
    UsbDescription {
        bus_id: record.bus_id.clone(),
        bus: record.bus,
        device: record.device,
        speed: device.speed(),
        descriptor: all.device.to_bytes(),
        configuration: record.configuration,
        alternates: Vec::new(),
        configurations: all.configurations.iter().map(|configuration| configuration.bytes.clone()).collect(),
    }
    .encode()
}

impl RegisteredExport {
    fn is_idle(&self) -> bool {
        self.claims.holders().is_empty()
    }

    /// After a user with private changes, the next user gets a new device without them.
    fn renewed(&self, device: Box<dyn Device>, mode: UseMode) -> Box<dyn Device> {
        match &self.block {
            Some(block) if mode == UseMode::Scratch => (block.renew)().unwrap_or(device),
            _ => device,
        }
    }
}

/// The name of a device: its export name if the exporter is a farbus, otherwise its bus id.
pub fn name_of(record: &DeviceRecord) -> &str {
    let name = record.path.strip_prefix(PATH_PREFIX).map(|rest| rest.split(';').next().unwrap_or_default());
    name.unwrap_or(&record.bus_id)
}

/// Whether the exporter of a device is a farbus.
pub fn is_of_farbus(record: &DeviceRecord) -> bool {
    record.path.starts_with(PATH_PREFIX)
}

/// Who uses a device, if its exporter says so.
pub fn in_use(record: &DeviceRecord) -> Option<InUse> {
    let mut words = record.path.strip_prefix(PATH_PREFIX)?.split(';').skip(1);
    let user = words.next()?.strip_prefix("user=")?.to_owned();
    let used_s = words.next()?.strip_prefix("used_s=")?.parse().ok()?;
    let lease_left_s = words.next().and_then(|word| word.strip_prefix("lease_s=")?.parse().ok());
    Some(InUse { user, used_s, lease_left_s })
}
