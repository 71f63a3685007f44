//! What is known of the directory of all sites, made readable for `farbus list` and `farbus lease`.
//!
//! It is hearsay: anybody who may write there wrote it. It says whom to ask, and is shown as what it is.

use std::collections::BTreeMap;
use std::time::SystemTime;

use farbus::devices::offer::{ListedDevice, ListedLease, ListedWaiting};
use farbus::devices::usb_names::UsbNames;
use farbus_directory::record::{DeviceRecord, HostRecord, LeaseRecord, LimitRecord, QueuedRecord};
use farbus_io_net::local::time_words::parse_time;
use farbus_io_net::trust::DeviceNotes;
use farbus_session::claims::shortened;
use serde::{Deserialize, Serialize};

/// The directory, as this host's daemon knows it.
#[derive(Debug, Default)]
pub struct SiteCatalogue {
    /// The devices of other hosts.
    pub devices: Vec<SiteDevice>,
    /// The keys of the other hosts that are in it.
    pub hosts: BTreeMap<String, String>,
    /// What one host may have of all devices.
    pub limits: Vec<SiteLimit>,
    /// What is wrong with the directory, if something is.
    pub trouble: Option<String>,
}

/// A device that the directory says another host has.
#[derive(Clone, Debug)]
pub struct SiteDevice {
    /// The key of that host.
    pub host_key: String,
    /// Its name: as it is paired here, or else as it calls itself.
    pub host: String,
    /// Whether it is paired with this host, and can be asked.
    pub is_paired: bool,
    /// What the directory says of the device, made readable.
    pub device: ListedDevice,
}

/// What the directory says that one host may have of all devices.
#[derive(Clone, Debug, Serialize)]
pub struct SiteLimit {
    /// The key of the host.
    pub key: String,
    /// Its name: as it is paired here, or else as it calls itself.
    pub host: String,
    /// How many devices at a time.
    pub devices: Option<u32>,
    /// For how long from now on a lease may be, seconds.
    pub for_s: Option<u64>,
    /// The host that wrote this, by its own name.
    pub by: String,
    /// When: RFC 3339, UTC, by that host's clock.
    pub at: String,
}

#[derive(Deserialize)]
struct DirectoryAnswer {
    own_key: Option<String>,
    #[serde(default)]
    known_hosts: Vec<KnownHost>,
    #[serde(default)]
    known_devices: Vec<KnownDevice>,
    #[serde(default)]
    limits: Vec<KnownLimit>,
    trouble: Option<SiteTrouble>,
}

#[derive(Deserialize)]
struct SiteTrouble {
    message: String,
    next: String,
}

#[derive(Deserialize)]
struct KnownHost {
    key: String,
    #[serde(flatten)]
    record: HostRecord,
}

#[derive(Deserialize)]
struct KnownLimit {
    key: String,
    #[serde(flatten)]
    record: LimitRecord,
}

#[derive(Deserialize)]
struct KnownDevice {
    host_key: String,
    name: String,
    #[serde(flatten)]
    record: DeviceRecord,
}

impl SiteCatalogue {
    /// Reads the answer of a daemon. `paired` are the names of the paired hosts by their keys.
    ///
    /// # Errors
    /// It is no such answer.
    pub fn read(contents: serde_json::Value, paired: &BTreeMap<String, String>) -> serde_json::Result<Self> {
        Ok(Self::of(serde_json::from_value(contents)?, paired, SystemTime::now()))
    }

    fn of(contents: DirectoryAnswer, paired: &BTreeMap<String, String>, now: SystemTime) -> Self {
        let DirectoryAnswer { own_key, known_hosts, known_devices, limits, trouble } = contents;
        let is_other = |key: &String| Some(key) != own_key.as_ref();
        let hosts: BTreeMap<String, String> = known_hosts
            .into_iter()
            .filter(|host| is_other(&host.key))
            .map(|KnownHost { key, record }| {
                let name = paired.get(&key).cloned().unwrap_or_else(|| name_of(&record.name, &key));
                (key, name)
            })
            .collect();
        let devices = known_devices.into_iter().filter_map(|KnownDevice { host_key, name, record }| {
            let host = hosts.get(&host_key)?.clone();
            let is_paired = paired.contains_key(&host_key);
            Some(SiteDevice { host_key, host, is_paired, device: listed(name, record, now) })
        });
        let trouble = trouble.map(|SiteTrouble { message, next }| format!("{}\n  {next}", shortened(&message)));
        let devices = devices.collect();
        let limit = |KnownLimit { key, record }: KnownLimit| {
            let name = || paired.get(&key).or_else(|| hosts.get(&key)).cloned();
            let LimitRecord { devices, for_s, by, at } = record;
            let host = name().unwrap_or_else(|| shortened(&key));
            SiteLimit { host, key: shortened(&key), devices, for_s, by: shortened(&by), at: shortened(&at) }
        };
        Self { devices, limits: limits.into_iter().map(limit).collect(), trouble, hosts }
    }
}

/// The name of a host that is not paired: its own word, so that it looks like no paired host, with its key.
pub fn name_of(text: &str, key: &str) -> String {
    let name: String = shortened(text).chars().map(|c| if c.is_whitespace() || c == '/' { '-' } else { c }).collect();
    format!("{name}({})", key.get(..8).unwrap_or(key))
}

/// A record as a line of a list, without what a terminal would obey.
pub fn listed(name: String, record: DeviceRecord, now: SystemTime) -> ListedDevice {
    let text = |text: String| shortened(&text);
    let (vendor, product) = record.ids.split_once(':').unwrap_or_default();
    let (vendor, product) = (shortened(vendor), shortened(product));
    let names = UsbNames::of_hex(&vendor, &product);
    let lease = record.lease.map(|LeaseRecord { host, until, reason }| {
        // Whole seconds are enough; a span from now on is no time of a record.
        let whole = until.split_once('.').map_or(until.clone(), |(whole, _)| format!("{whole}Z"));
        let end = Some(&whole).filter(|whole| !whole.starts_with('+')).and_then(|whole| parse_time(whole).ok());
        let left_s = end.and_then(|end| end.duration_since(now).ok()).unwrap_or_default().as_secs();
        ListedLease {
            host: text(host),
            state: "held".to_owned(),
            left_s,
            until: text(until),
            reason: reason.map(text),
            is_yours: false,
        }
    });
    let notes = DeviceNotes { labels: record.labels, place: record.place, comment: record.comment };
    ListedDevice {
        vendor_name: names.vendor.map(str::to_owned),
        product_name: names.product.map(str::to_owned),
        title: text(record.title),
        vendor,
        product,
        name,
        bus_id: text(record.bus_id),
        speed: text(record.speed),
        interfaces: record.interfaces.into_iter().map(text).collect(),
        path: String::new(),
        state: Some(text(record.state)),
        user: record.user.map(text),
        mode: record.mode.map(text),
        users: Vec::new(),
        successor: None,
        used_s: None,
        reason: None,
        lease,
        another_in_port: None,
        booked: Vec::new(),
        waiting: usize::try_from(record.waiting).unwrap_or(usize::MAX),
        queue: record.queue.into_iter().map(waiting).collect(),
        notes: notes.readable(),
    }
}

fn waiting(QueuedRecord { host, priority, for_s }: QueuedRecord) -> ListedWaiting {
    ListedWaiting { host: shortened(&host), priority, for_s }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use farbus_session::device_class::DeviceClassName;

    use super::*;

    #[test]
    fn hearsay_is_readable_and_an_unpaired_host_never_looks_like_a_paired_one() {
        let [own, lab3, liar] = ["a", "b", "c"].map(|letter| letter.repeat(52));
        let contents = serde_json::json!({
            "own_key": own,
            "known_hosts": [
                { "key": own, "name": "desk" }, { "key": lab3, "name": "whatever" },
                { "key": liar, "name": "lab3" },
            ],
            "known_devices": [
                { "host_key": own, "name": "mine", "ids": "0403:6001", "state": "available" },
                { "host_key": lab3, "name": "board", "ids": "0403:6001", "state": "available",
                  "user": "a\u{1b}[2J", "waiting": 1, "queue": [{ "host": "r\u{1b}ack", "for_s": 60 }],
                  "lease": { "host": "rack", "until": "1970-01-01T00:02:00.246Z" } },
                { "host_key": liar, "name": "board", "ids": "nonsense", "state": "\u{7}", "title": "x\ny" },
            ],
            "limits": [{ "key": lab3, "devices": 2, "by": "x\u{7}" }, { "key": liar }],
            "trouble": { "message": "a\nb", "next": "c" },
        });
        let contents = serde_json::from_value(contents).unwrap();
        let paired = [(lab3.clone(), "lab3".to_owned())].into();
        let sites = SiteCatalogue::of(contents, &paired, UNIX_EPOCH + Duration::from_secs(60));
        let rows: Vec<_> = sites.devices.iter().map(|it| (it.host.as_str(), it.is_paired)).collect();
        assert_eq!(rows, [("lab3", true), ("lab3(cccccccc)", false)], "and own devices are not hearsay");
        let board = &sites.devices[0].device;
        assert_eq!((board.user.as_deref(), board.waiting), (Some("a [2J"), 1));
        assert_eq!((board.queue[0].host.as_str(), board.queue[0].for_s), ("r ack", Some(60)));
        let limits: Vec<_> = sites.limits.iter().map(|it| (it.host.as_str(), it.devices, it.by.as_str())).collect();
        assert_eq!(limits, [("lab3", Some(2), "x "), ("lab3(cccccccc)", None, "")]);
        assert_eq!(board.lease.as_ref().map(|lease| lease.left_s), Some(60));
        assert!(!board.is_free() && DeviceClassName::SERIAL.is_described(board.ids(), &board.interfaces));
        let lie = &sites.devices[1].device;
        assert_eq!((lie.state.as_deref(), lie.title.as_str(), lie.vendor.as_str()), (Some(" "), "x y", ""));
        assert_eq!(sites.trouble.as_deref(), Some("a b\n  c"));
    }
}
