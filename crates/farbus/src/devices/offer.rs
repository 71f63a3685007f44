//! An offered device, as `farbus list` shows it.

use std::time::{Duration, SystemTime};

use crate::devices::lease::{readable_booking, readable_lease};
use farbus_control::device::{AnotherInPortStatus, DeviceStatus, UserStatus, WaitingStatus};
use farbus_control::lease::{BookedStatus, LeaseStatus};
use farbus_io_net::trust::{DeviceNotes, timestamp};
use farbus_session::DeviceRecord;
use farbus_session::claims::shortened;
use farbus_session::registry::{InUse, PATH_PREFIX, in_use};
use serde::Serialize;

use crate::devices::class_words::{classes, name_of};
use crate::devices::usb_names::UsbNames;

/// One of several users of a device in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ListedUser {
    /// The user, as people write it.
    pub user: String,
    /// The mode of use.
    pub mode: String,
    /// For how long, seconds.
    pub used_s: u64,
}

/// The lease of a device in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ListedLease {
    /// The host that has it.
    pub host: String,
    /// `held`, or `ending` in its last minute.
    pub state: String,
    /// How much is left, seconds.
    pub left_s: u64,
    /// When it ends: RFC 3339, UTC, by the exporter's clock.
    pub until: String,
    /// What the host needs the device for, as it wrote it; absent if it gave no reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Whether this host has it.
    pub is_yours: bool,
}

/// A host that waits for a device, in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ListedWaiting {
    /// The host, by its name at the exporter.
    pub host: String,
    /// The priority of its request, 0 to 9.
    pub priority: u8,
    /// For how long it wants a lease, seconds; absent for an attach that waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub for_s: Option<u64>,
}

impl From<WaitingStatus> for ListedWaiting {
    fn from(WaitingStatus { host, priority, for_s, .. }: WaitingStatus) -> Self {
        Self { host: shortened(&host), priority: priority.unwrap_or_default(), for_s }
    }
}

impl From<LeaseStatus> for ListedLease {
    fn from(lease: LeaseStatus) -> Self {
        let left_s = lease.left().as_secs();
        let LeaseStatus { host, state, until, reason, is_yours, .. } = readable_lease(lease);
        Self { host, state, left_s, until, reason, is_yours }
    }
}

/// One device in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ListedDevice {
    /// The name on its exporter.
    pub name: String,
    /// The bus id on its exporter.
    pub bus_id: String,
    /// The vendor id, four hexadecimal digits.
    pub vendor: String,
    /// The product id, four hexadecimal digits.
    pub product: String,
    /// The vendor's name by the USB ID Repository, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vendor_name: Option<String>,
    /// The product's name by the USB ID Repository, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub product_name: Option<String>,
    /// The speed, in words.
    pub speed: String,
    /// The classes of its interfaces, in words.
    pub interfaces: Vec<String>,
    /// Where the exporter says it is plugged in; absent in lists over an encrypted link.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub path: String,
    /// `available` or `in use`; absent if the exporter does not report it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// How it is used: `exclusive`, `read` or `scratch`; absent if the exporter does not report it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// The user, if it is in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// All users, if there are several; the first one is `user`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<ListedUser>,
    /// The host that it waits for, if its user has handed it over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub successor: Option<String>,
    /// For how long it has been in use, seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_s: Option<u64>,
    /// What its user needs it for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The lease of it that a host has, whether it uses the device or not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<ListedLease>,
    /// Set if it is another device in its port than the one that its exporter's share stands for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub another_in_port: Option<AnotherInPortStatus>,
    /// Leases of it ahead of time, in the order of their beginnings.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub booked: Vec<BookedStatus>,
    /// How many hosts wait for it.
    #[serde(skip_serializing_if = "is_zero")]
    pub waiting: usize,
    /// Those of them that are known by name, in the order in which they are served.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub queue: Vec<ListedWaiting>,
    /// Labels, place and comment, as its owner gave them.
    #[serde(flatten)]
    pub notes: DeviceNotes,
    /// Manufacturer and product by the device's own strings, as far as its host says.
    #[serde(skip)]
    pub title: String,
}

impl From<UserStatus> for ListedUser {
    fn from(UserStatus { user, mode, used_s, .. }: UserStatus) -> Self {
        // The cast of a float saturates.
        Self { user, mode, used_s: used_s.max(0.0) as u64 }
    }
}

impl ListedDevice {
    /// Its state in a table: how several may use it, and whether its user has handed it over.
    pub fn state_in_words(&self) -> String {
        match (self.state.as_deref(), self.mode.as_deref()) {
            (Some(_), _) if self.successor.is_some() => "handed over".to_owned(),
            (Some("available"), _) if self.lease.is_some() => "leased".to_owned(),
            (Some(state), Some(mode @ ("read" | "scratch"))) => format!("{state}, {mode}"),
            (state, _) => state.unwrap_or_default().to_owned(),
        }
    }

    /// Whether a host that asks now gets it: nobody uses it, has a lease of it, or waits for it.
    pub fn is_free(&self) -> bool {
        self.state.as_deref() == Some("available") && self.lease.is_none() && self.waiting == 0
    }

    /// Who waits, in the order in which they are served; of many the first three.
    pub fn queue_in_words(&self) -> String {
        let first: Vec<&str> = self.queue.iter().take(3).map(|waiting| waiting.host.as_str()).collect();
        match self.waiting.saturating_sub(first.len()) {
            0 => first.join(", "),
            more if first.is_empty() => format!("{more} hosts"),
            more => format!("{} and {more} more", first.join(", ")),
        }
    }

    /// Its vendor and product ids; zero where its host says none.
    pub fn ids(&self) -> (u16, u16) {
        let id = |text: &str| u16::from_str_radix(text, 16).unwrap_or_default();
        (id(&self.vendor), id(&self.product))
    }

    /// What it is: the classes of its interfaces, and its name by its ids if it has no strings of its own.
    pub fn what(&self) -> String {
        let classes = self.interfaces.join(", ");
        match (&self.vendor_name, &self.product_name) {
            (Some(vendor), Some(product)) if self.title.is_empty() => format!("{classes} ({vendor} {product})"),
            _ => classes,
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl From<&DeviceRecord> for ListedDevice {
    /// Reads a plain USB/IP record. An exporter of farbus reports more, in the record's path.
    fn from(record: &DeviceRecord) -> Self {
        let user = in_use(record);
        // A lessee is not a user.
        let (lessee, user): (Option<InUse>, _) = match user {
            Some(InUse { lease_left_s: Some(_), .. }) => (user, None),
            _ => (None, user),
        };
        let lease = lessee.map(|InUse { user, lease_left_s, .. }| {
            let left_s = lease_left_s.unwrap_or_default();
            ListedLease {
                host: user,
                state: "held".to_owned(),
                left_s,
                until: timestamp(SystemTime::now() + Duration::from_secs(left_s)),
                reason: None,
                is_yours: false,
            }
        });
        let state = match user {
            Some(_) => Some("in use"),
            None => record.path.starts_with(PATH_PREFIX).then_some("available"),
        };
        let names = UsbNames::of(record.vendor, record.product);
        Self {
            name: name_of(record).to_owned(),
            bus_id: record.bus_id.clone(),
            vendor: format!("{:04x}", record.vendor),
            product: format!("{:04x}", record.product),
            vendor_name: names.vendor.map(str::to_owned),
            product_name: names.product.map(str::to_owned),
            speed: record.speed.to_string(),
            interfaces: classes(record),
            path: record.path.clone(),
            state: state.map(str::to_owned),
            used_s: user.as_ref().map(|user| user.used_s),
            user: user.map(|user| user.user),
            mode: None,
            users: Vec::new(),
            successor: None,
            reason: None,
            lease,
            another_in_port: None,
            booked: Vec::new(),
            waiting: 0,
            queue: Vec::new(),
            notes: DeviceNotes::default(),
            title: String::new(),
        }
    }
}

impl From<DeviceStatus> for ListedDevice {
    /// Reads the status that a paired host reports.
    fn from(status: DeviceStatus) -> Self {
        let (vendor, product) = status.ids.split_once(':').unwrap_or_default();
        // An earlier release on the other host sends none.
        let names = UsbNames::of_hex(vendor, product);
        Self {
            vendor_name: names.vendor.map(str::to_owned),
            product_name: names.product.map(str::to_owned),
            title: status.title,
            vendor: vendor.to_owned(),
            product: product.to_owned(),
            name: status.name,
            bus_id: status.bus_id,
            speed: status.speed,
            interfaces: status.interfaces,
            path: String::new(),
            state: Some(status.state),
            user: status.user,
            mode: status.mode,
            users: status.users.into_iter().map(ListedUser::from).collect(),
            successor: status.successor,
            // The cast of a float saturates.
            used_s: status.used_s.map(|used_s| used_s.max(0.0) as u64),
            reason: status.reason,
            lease: status.lease.map(ListedLease::from),
            another_in_port: status.another_in_port.map(|another| *another),
            booked: status.booked.into_iter().map(readable_booking).collect(),
            waiting: status.waiting.len(),
            queue: status.waiting.into_iter().map(ListedWaiting::from).collect(),
            notes: status.notes.readable(),
        }
    }
}
