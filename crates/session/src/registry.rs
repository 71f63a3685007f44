//! What is on offer and who holds it: exclusive use by default (U13), many readers where a device can have them (N6).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use farbus_model::{Device, Identity, Instant, Tally};
use farbus_wire::native::control;
use farbus_wire::native::usb::Description;
use farbus_wire::usbip::{DeviceRecord, OpStatus};

use crate::block::BlockExport;
use crate::claims::{Claims, Ending, Holder, Mode, Refusal};
use crate::observe::{Audience, Observed};
use crate::stream::Stage;

/// Devices on offer. The one thing that engines share; its owner puts a lock around it.
#[derive(Default)]
pub struct Registry {
    exports: Vec<Export>,
    /// Numbers given so far, by name: a device that comes back under its name has its number again, and no other gets
    /// it.
    numbers: BTreeMap<String, u32>,
    /// The first number that was never given.
    fresh: u32,
}

struct Export {
    name: String,
    title: String,
    record: DeviceRecord,
    /// Its class as a USB device; `None` while somebody holds that.
    device: Option<Box<dyn Device>>,
    /// Its class as a block device.
    block: Option<BlockClass>,
    /// Its class as a stream of frames.
    stream: Option<StreamClass>,
    /// Who may look on, and at what; none where nothing is shown.
    show: Option<Show>,
    tally: Option<Tally>,
    identity: Option<Identity>,
    claims: Claims,
    /// It is on offer no more and goes when its user does.
    is_leaving: bool,
}

/// Makes the USB class of a block device, as new.
pub type Renew = Box<dyn Fn() -> Result<Box<dyn Device>, String> + Send>;

/// A block device, beside its class as a USB disk.
pub struct BlockClass {
    /// What its users open.
    pub export: Arc<BlockExport>,
    /// Makes the other class; asked for when a user of it had changes of his own.
    pub renew: Renew,
}

impl fmt::Debug for BlockClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.export.fmt(f)
    }
}

/// A block device that was claimed; say so with [`Registry::release`] when it is not used any more.
#[derive(Clone, Debug)]
pub struct ClaimedBlock {
    /// Its record, as the claimer is told.
    pub record: DeviceRecord,
    /// What to open.
    pub export: Arc<BlockExport>,
    /// How.
    pub mode: Mode,
}

/// A source of frames, beside its class as a USB device. It is over for its readers when it is withdrawn.
#[derive(Debug)]
pub struct StreamClass(pub Stage);

impl Drop for StreamClass {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// A device's audience, and what everybody in it is told first. It closes with it.
struct Show {
    audience: Audience,
    description: Vec<u8>,
}

impl Drop for Show {
    fn drop(&mut self) {
        self.audience.close();
    }
}

/// A device that may be looked on at.
#[derive(Clone, Debug)]
pub struct Observable {
    /// Where seats are.
    pub audience: Audience,
    /// What the device is, as [`Description`] encodes it.
    pub description: Vec<u8>,
}

/// Why a device is not had by the class that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClassRefusal {
    /// There is none of that name.
    NoDevice,
    /// It has no such class.
    Class,
    /// Somebody holds it, or comes first.
    Busy,
}

/// A device that was claimed; give it back with [`Registry::release`].
pub struct Claimed {
    /// Its record, as the claimer is told.
    pub record: DeviceRecord,
    /// The device itself.
    pub device: Box<dyn Device>,
}

/// One line of a listing.
#[derive(Clone, Debug)]
pub struct Entry<'a> {
    /// Its name, unique here.
    pub name: &'a str,
    /// Manufacturer and product.
    pub title: &'a str,
    /// Its record.
    pub record: &'a DeviceRecord,
    /// Who holds it.
    pub holder: Option<&'a Holder>,
    /// Who holds it, waits for it, had it.
    pub claims: &'a Claims,
    /// What it is as a block device, if it is one.
    pub block: Option<&'a BlockExport>,
    /// Whether it is a stream of frames.
    pub is_stream: bool,
    /// Which device it is; `None` while nobody has said so ([`Registry::identify`]).
    pub identity: Option<Identity>,
    /// What it counts of itself.
    pub tally: Option<&'a Tally>,
}

/// What a record's path says of the use of its device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InUse {
    /// By whom.
    pub user: String,
    /// For how long, seconds.
    pub used_s: u64,
}

/// Device numbers are 7 bits on a bus (USB 2.0 §9.4.6) and so are ours.
/// Number 1 is its root hub's.
const DEVICES_PER_BUS: u32 = 126;
/// Virtual buses. Beyond, numbers of devices that have gone are given again.
const BUSES_MAX: u32 = 255;
/// Devices at once: a list of more is refused by its reader (as ours does), and takes megabytes.
pub const DEVICES_MAX: usize = 4096;
/// A record's path starts so, and goes on with the name.
pub const PATH_PREFIX: &str = "/farbus/";
/// Bytes of a path on the wire, its NUL left out.
const PATH_BYTES_MAX: usize = 255;

impl Registry {
    /// Offers `device` under a name that begins with `kind`; says which. `None` when there are [`DEVICES_MAX`].
    /// A bus has 126 numbers; the next devices are on the next bus.
    pub fn add(&mut self, kind: &str, device: Box<dyn Device>) -> Option<&DeviceRecord> {
        self.add_with(kind, device, None, None)
    }

    /// The same of a device that is a block device, too.
    pub fn add_block(&mut self, kind: &str, device: Box<dyn Device>, block: BlockClass) -> Option<&DeviceRecord> {
        self.add_with(kind, device, Some(block), None)
    }

    /// The same of a device that is a stream of frames, too.
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
        let description = described(&*device, &record);
        let tally = device.tally();
        let audience = Audience::default();
        let (device, show) = match Observed::new(device, audience.clone()) {
            Ok(observed) => (Box::new(observed) as Box<dyn Device>, Some(Show { audience, description })),
            Err(device) => (device, None),
        };
        let (device, claims) = (Some(device), Claims::default());
        self.exports.push(Export {
            name,
            title,
            record,
            device,
            block,
            stream,
            show,
            tally,
            identity: None,
            claims,
            is_leaving: false,
        });
        self.exports.last().map(|export| &export.record)
    }

    /// The number that this name had before, or a fresh one as long as there are any: a peer that remembers a device
    /// that was withdrawn finds that one or nothing.
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

    /// Everything on offer, held or not, in the order of its coming.
    pub fn entries(&self) -> impl Iterator<Item = Entry<'_>> {
        self.exports.iter().map(|export| Entry {
            name: &export.name,
            title: &export.title,
            record: &export.record,
            holder: export.claims.holder(),
            claims: &export.claims,
            block: export.block.as_ref().map(|block| &*block.export),
            is_stream: export.stream.is_some(),
            identity: export.identity,
            tally: export.tally.as_ref(),
        })
    }

    /// Sets which device `bus_id` is. Returns whether such a device is on offer.
    pub fn identify(&mut self, bus_id: &str, identity: Identity) -> bool {
        let export = self.export_mut(bus_id);
        export.map(|export| export.identity = Some(identity)).is_some()
    }

    /// Which device `bus_id` is; `None` if there is none of that bus id, or it has no identity.
    pub fn identity(&self, bus_id: &str) -> Option<Identity> {
        self.exports.iter().find(|export| export.record.bus_id == bus_id)?.identity
    }

    /// What is offered of a block device, whoever uses it.
    pub fn block_export(&self, bus_id: &str) -> Option<Arc<BlockExport>> {
        let export = self.exports.iter().find(|export| export.record.bus_id == bus_id)?;
        export.block.as_ref().map(|block| Arc::clone(&block.export))
    }

    /// The records of everything on offer. A device in use is listed: it is there, and an import says *busy*. Its path,
    /// which is text for people, says by whom and for how long; [`name_of`] and [`in_use`] read it.
    pub fn records(&self, now: Instant) -> Vec<DeviceRecord> {
        let offered = self.exports.iter().filter(|export| !export.is_leaving);
        offered
            .map(|export| {
                let mut record = export.record.clone();
                if let Some(holder) = export.claims.holder() {
                    let use_ = format!(";user={};used_s={}", holder.who, (now - holder.since).as_secs());
                    // A name with our own mark in it would be read as something else.
                    let is_plain = !holder.who.contains([';', '=']);
                    if is_plain && record.path.len() + use_.len() <= PATH_BYTES_MAX {
                        record.path.push_str(&use_);
                    }
                }
                record
            })
            .collect()
    }

    /// Takes a device for `who`, as a USB device: one user at a time.
    ///
    /// # Errors
    /// [`OpStatus::Busy`] while somebody holds it or comes first ([`Claims`]), [`OpStatus::NoDevice`] if there is none.
    pub fn claim(&mut self, bus_id: &str, who: &str, now: Instant) -> Result<Claimed, OpStatus> {
        let export = self.export_mut(bus_id).filter(|export| !export.is_leaving).ok_or(OpStatus::NoDevice)?;
        let Some(device) = export.device.take() else {
            export.claims.refuse(who, now);
            return Err(OpStatus::Busy);
        };
        let mode = export.block.as_ref().map(|block| block.export.mode(control::Mode::Exclusive));
        match export.claims.claim(who, mode.unwrap_or_default(), now) {
            Ok(()) => Ok(Claimed { record: export.record.clone(), device }),
            Err(Refusal::Held | Refusal::Waited | Refusal::KeptOut) => {
                export.device = Some(device);
                Err(OpStatus::Busy)
            }
        }
    }

    /// Takes a block device for `who`, who wants to use it as `asked`.
    ///
    /// # Errors
    /// [`ClassRefusal`].
    pub fn claim_block(
        &mut self,
        bus_id: &str,
        who: &str,
        asked: control::Mode,
        now: Instant,
    ) -> Result<ClaimedBlock, ClassRefusal> {
        let class = |export: &Export| {
            let block = export.block.as_ref()?;
            Some((Arc::clone(&block.export), block.export.mode(asked)))
        };
        let (record, export, mode) = self.claim_by(bus_id, who, now, class)?;
        Ok(ClaimedBlock { record, export, mode })
    }

    /// Takes a stream for `who`: exclusively, to get all of it, or beside others who read.
    ///
    /// # Errors
    /// [`ClassRefusal`].
    pub fn claim_stream(
        &mut self,
        bus_id: &str,
        who: &str,
        asked: control::Mode,
        now: Instant,
    ) -> Result<(Stage, Mode), ClassRefusal> {
        let mode = if asked == control::Mode::Exclusive { Mode::Exclusive } else { Mode::Read };
        let class = |export: &Export| Some((export.stream.as_ref()?.0.clone(), mode));
        self.claim_by(bus_id, who, now, class).map(|(_, stage, mode)| (stage, mode))
    }

    /// Takes a device by one of its faces, if it has that.
    fn claim_by<T>(
        &mut self,
        bus_id: &str,
        who: &str,
        now: Instant,
        class: impl FnOnce(&Export) -> Option<(T, Mode)>,
    ) -> Result<(DeviceRecord, T, Mode), ClassRefusal> {
        let export = self.export_mut(bus_id).filter(|export| !export.is_leaving).ok_or(ClassRefusal::NoDevice)?;
        let (what, mode) = class(export).ok_or(ClassRefusal::Class)?;
        export.claims.claim(who, mode, now).map_err(|refusal| match refusal {
            Refusal::Held | Refusal::Waited | Refusal::KeptOut => ClassRefusal::Busy,
        })?;
        Ok((export.record.clone(), what, mode))
    }

    /// What is needed to look on at a device, whoever uses it; `None` if there is none of that name, or it shows
    /// nothing.
    pub fn observe(&self, bus_id: &str) -> Option<Observable> {
        let export = self.exports.iter().find(|export| export.record.bus_id == bus_id && !export.is_leaving)?;
        let Show { audience, description } = export.show.as_ref()?;
        Some(Observable { audience: audience.clone(), description: description.clone() })
    }

    /// `who` uses a device no more, and gives back what it took of it: the USB device. One that is leaving goes with
    /// its last user.
    ///
    /// # Panics
    /// If it was not claimed: only its claimer has it to give.
    pub fn release(&mut self, bus_id: &str, who: &str, device: Option<Box<dyn Device>>, ending: Ending, now: Instant) {
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

    /// Takes a device off the lists, at once if nobody uses it and else with the end of its use, which is the caller's
    /// to bring about. Says whether it is gone; `None` if there is none.
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
    pub fn claims_mut(&mut self, bus_id: &str) -> Option<&mut Claims> {
        Some(&mut self.export_mut(bus_id)?.claims)
    }

    /// The holder called `who`, whichever device it has, says what for. Says whether there is one.
    pub fn explain(&mut self, who: &str, reason: &str) -> bool {
        self.exports.iter_mut().any(|export| export.claims.explain(who, reason))
    }

    fn export_mut(&mut self, bus_id: &str) -> Option<&mut Export> {
        self.exports.iter_mut().find(|export| export.record.bus_id == bus_id)
    }

    /// Takes a claimed device off the list: it could not be given back.
    pub fn withdraw(&mut self, bus_id: &str) {
        self.exports.retain(|export| export.record.bus_id != bus_id);
    }

    /// Takes an idle device off the list, because it is gone; one that somebody holds is withdrawn by its holder's
    /// session, which notices by itself. Says whether it was there and idle.
    pub fn remove_idle(&mut self, bus_id: &str) -> bool {
        let before = self.exports.len();
        self.exports.retain(|export| export.record.bus_id != bus_id || !export.is_idle());
        self.exports.len() < before
    }

    /// Takes everything that nobody holds off the list, to be given back where it came from.
    pub fn close(&mut self) -> Vec<Box<dyn Device>> {
        let idle = self.exports.extract_if(.., |export| export.is_idle());
        idle.filter_map(|export| export.device).collect()
    }

    /// The bus id of the device that is called `name` (or has that bus id).
    pub fn find(&self, name: &str) -> Option<&str> {
        let export = self.exports.iter().find(|export| export.name == name || export.record.bus_id == name)?;
        Some(&export.record.bus_id)
    }

    /// A device that nobody holds, for its owner to command.
    pub fn idle_device(&mut self, bus_id: &str) -> Option<&mut Box<dyn Device>> {
        self.export_mut(bus_id).filter(|export| export.is_idle())?.device.as_mut()
    }
}

/// What a session says of a device first.
fn described(device: &dyn Device, record: &DeviceRecord) -> Vec<u8> {
    let all = device.descriptors();
    Description {
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

impl Export {
    fn is_idle(&self) -> bool {
        self.claims.holders().is_empty()
    }

    /// The changes of a user who had his own are nobody else's.
    fn renewed(&self, device: Box<dyn Device>, mode: Mode) -> Box<dyn Device> {
        match &self.block {
            Some(block) if mode == Mode::Scratch => (block.renew)().unwrap_or(device),
            _ => device,
        }
    }
}

/// The name of a device: what its exporter calls it if that is a farbus, else its bus id.
pub fn name_of(record: &DeviceRecord) -> &str {
    let name = record.path.strip_prefix(PATH_PREFIX).map(|rest| rest.split(';').next().unwrap_or_default());
    name.unwrap_or(&record.bus_id)
}

/// Who uses a device, as far as its exporter says it.
pub fn in_use(record: &DeviceRecord) -> Option<InUse> {
    let mut words = record.path.strip_prefix(PATH_PREFIX)?.split(';').skip(1);
    let user = words.next()?.strip_prefix("user=")?.to_owned();
    Some(InUse { user, used_s: words.next()?.strip_prefix("used_s=")?.parse().ok()? })
}
