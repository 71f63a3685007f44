//! What is on offer and who holds it: exclusive use by default (U13).

use std::collections::BTreeMap;

use farbus_model::{Device, Instant};
use farbus_wire::usbip::{DeviceRecord, OpStatus};

/// Devices on offer. The one thing that engines share; its owner puts a lock around it.
#[derive(Default)]
pub struct Registry {
    exports: Vec<Export>,
    /// Numbers given so far, by name: a device that comes back under its name has its number again, and no other gets it.
    numbers: BTreeMap<String, u32>,
}

struct Export {
    name: String,
    title: String,
    record: DeviceRecord,
    /// `None` while somebody holds it.
    device: Option<Box<dyn Device>>,
    holder: Option<Holder>,
}

/// Who holds a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The peer's address, as people write it.
    pub who: String,
    /// Since when.
    pub since: Instant,
}

/// A device that was claimed; give it back with [`Registry::release`].
pub struct Claimed {
    /// Its record, as the claimer is told.
    pub record: DeviceRecord,
    /// The device itself.
    pub device: Box<dyn Device>,
}

/// One line of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Its name, unique here.
    pub name: &'a str,
    /// Manufacturer and product.
    pub title: &'a str,
    /// Its record.
    pub record: &'a DeviceRecord,
    /// Who holds it.
    pub holder: Option<&'a Holder>,
}

/// The bus that all our exports are on.
const BUS: u32 = 1;
/// Device numbers are 7 bits on a bus (USB 2.0 §9.4.6) and so are ours.
/// Number 1 is its root hub's.
const DEVICES_MAX: u32 = 126;
/// A record's path starts so, and goes on with the name.
pub const PATH_PREFIX: &str = "/farbus/";

impl Registry {
    /// Offers `device` under a name that begins with `kind`; says which. `None` when the bus is full.
    pub fn add(&mut self, kind: &str, device: Box<dyn Device>) -> Option<&DeviceRecord> {
        let name = self.free_name(kind);
        let next = self.numbers.len() as u32 + 1;
        let number = self.numbers.get(&name).copied().unwrap_or(next);
        if number > DEVICES_MAX {
            return None;
        }
        self.numbers.insert(name.clone(), number);
        let all = device.descriptors();
        let first = all.configurations.first();
        let interfaces: Vec<_> = first.map(|c| c.interfaces().map(|i| i.class).collect()).unwrap_or_default();
        let record = DeviceRecord {
            path: format!("{PATH_PREFIX}{name}"),
            bus_id: format!("{BUS}-{number}"),
            bus: BUS,
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
        self.exports.push(Export { name, title, record, device: Some(device), holder: None });
        self.exports.last().map(|export| &export.record)
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
            holder: export.holder.as_ref(),
        })
    }

    /// The records of everything on offer. A device in use is listed: it is there, and an import says *busy*.
    pub fn records(&self) -> Vec<DeviceRecord> {
        self.exports.iter().map(|export| export.record.clone()).collect()
    }

    /// Takes a device for `who`.
    ///
    /// # Errors
    /// [`OpStatus::Busy`] while somebody holds it, [`OpStatus::NoDevice`] if there is none.
    pub fn claim(&mut self, bus_id: &str, who: &str, now: Instant) -> Result<Claimed, OpStatus> {
        let export = self.exports.iter_mut().find(|export| export.record.bus_id == bus_id);
        let export = export.ok_or(OpStatus::NoDevice)?;
        let device = export.device.take().ok_or(OpStatus::Busy)?;
        export.holder = Some(Holder { who: who.to_owned(), since: now });
        Ok(Claimed { record: export.record.clone(), device })
    }

    /// Gives a claimed device back.
    ///
    /// # Panics
    /// If it was not claimed: only its claimer has it to give.
    pub fn release(&mut self, bus_id: &str, device: Box<dyn Device>) {
        let export = self.exports.iter_mut().find(|export| export.record.bus_id == bus_id);
        let export = export.expect("an export is not withdrawn while held");
        assert!(export.device.is_none(), "a device is given back once");
        export.device = Some(device);
        export.holder = None;
    }

    /// Takes a claimed device off the list: it could not be given back.
    pub fn withdraw(&mut self, bus_id: &str) {
        self.exports.retain(|export| export.record.bus_id != bus_id);
    }

    /// Takes an idle device off the list, because it is gone; one that somebody holds is withdrawn by its holder's
    /// session, which notices by itself. Says whether it was there and idle.
    pub fn remove_idle(&mut self, bus_id: &str) -> bool {
        let before = self.exports.len();
        self.exports.retain(|export| export.record.bus_id != bus_id || export.device.is_none());
        self.exports.len() < before
    }

    /// Takes everything that nobody holds off the list, to be given back where it came from.
    pub fn close(&mut self) -> Vec<Box<dyn Device>> {
        let idle = self.exports.extract_if(.., |export| export.device.is_some());
        idle.filter_map(|export| export.device).collect()
    }

    /// The bus id of the device that is called `name` (or has that bus id).
    pub fn find(&self, name: &str) -> Option<&str> {
        let export = self.exports.iter().find(|export| export.name == name || export.record.bus_id == name)?;
        Some(&export.record.bus_id)
    }

    /// A device that nobody holds, for its owner to command.
    pub fn idle_device(&mut self, bus_id: &str) -> Option<&mut Box<dyn Device>> {
        self.exports.iter_mut().find(|export| export.record.bus_id == bus_id)?.device.as_mut()
    }
}
