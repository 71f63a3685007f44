//! What this host says of its devices in the directory.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use farbus_control::device::{DeviceStatus, WaitingStatus};
use farbus_directory::record::{DeviceRecord, LeaseRecord, QUEUE_MAX, QueuedRecord};
use farbus_io_net::trust::timestamp;
use farbus_session::claims::host_of;

/// The end of a lease is what is left of it, added to the clock, and the beginning of a use is how long it lasts: they
/// move with the clock's adjustments, and are the same within this time.
const SAME_END: Duration = Duration::from_secs(3);

/// The records of the devices as they were last, so that a record changes only with its device.
#[derive(Debug, Default)]
pub struct PublishedRecords(BTreeMap<String, PublishedDevice>);

#[derive(Debug)]
struct PublishedDevice {
    record: DeviceRecord,
    lease_end: Option<SystemTime>,
    since: Option<SystemTime>,
}

impl PublishedRecords {
    /// Takes the present devices. `keys` are those of the paired hosts, by their names here.
    pub fn update(&mut self, devices: Vec<DeviceStatus>, keys: &BTreeMap<String, String>, now: SystemTime) {
        let mut former = std::mem::take(&mut self.0);
        for device in devices {
            let name = device.name.clone();
            let published = published_device(device, former.remove(&name), keys, now);
            self.0.insert(name, published);
        }
    }

    /// The records by the devices' names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &DeviceRecord)> {
        self.0.iter().map(|(name, device)| (name.as_str(), &device.record))
    }
}

/// The key of the paired host that has a device, if it is one that has it alone.
fn holder_key(device: &DeviceStatus, keys: &BTreeMap<String, String>) -> Option<String> {
    let user = || device.user.as_deref().filter(|user| device.users.is_empty() && user.contains(" ("));
    let host = device.lease.as_ref().map(|lease| lease.host.as_str()).or_else(|| user().map(host_of))?;
    keys.get(host).cloned()
}

fn queued(WaitingStatus { host, priority, for_s, .. }: WaitingStatus) -> QueuedRecord {
    QueuedRecord { host, priority: priority.unwrap_or_default(), for_s }
}

fn published_device(
    device: DeviceStatus,
    former: Option<PublishedDevice>,
    keys: &BTreeMap<String, String>,
    now: SystemTime,
) -> PublishedDevice {
    let holder_key = holder_key(&device, keys);
    let left = device.lease.as_ref().map(|lease| lease.left());
    let mut lease_end = left.map(|left| now + left);
    let used = device.used_s.and_then(|used_s| Duration::try_from_secs_f64(used_s).ok());
    let mut since = used.and_then(|used| now.checked_sub(used));
    let mut record = DeviceRecord {
        bus_id: device.bus_id,
        ids: device.ids,
        title: device.title,
        speed: device.speed,
        interfaces: device.interfaces,
        size_bytes: device.size_bytes,
        state: device.state,
        user: device.user,
        since: since.map(timestamp),
        mode: device.mode,
        lease: device.lease.map(|lease| LeaseRecord { host: lease.host, until: lease.until, reason: lease.reason }),
        waiting: u32::try_from(device.waiting.len()).unwrap_or(u32::MAX),
        queue: device.waiting.into_iter().take(QUEUE_MAX).map(queued).collect(),
        holder_key,
        labels: device.notes.labels,
        place: device.notes.place,
        comment: device.notes.comment,
        id: device.identity.map(|identity| identity.id.to_string()),
        at: String::new(),
    };
    if let Some(former) = former {
        let apart =
            |one: SystemTime, other: SystemTime| one.duration_since(other).unwrap_or_else(|error| error.duration());
        if let (Some(end), Some(known)) = (lease_end, former.lease_end)
            && apart(end, known) < SAME_END
            && let (Some(lease), Some(known)) = (&mut record.lease, &former.record.lease)
            && lease.host == known.host
        {
            lease.until.clone_from(&known.until);
            lease_end = former.lease_end;
        }
        if let (Some(now), Some(known)) = (since, former.since)
            && apart(now, known) < SAME_END
            && record.user == former.record.user
        {
            record.since.clone_from(&former.record.since);
            since = former.since;
        }
        record.at.clone_from(&former.record.at);
        if record == former.record {
            return PublishedDevice { record, lease_end, since };
        }
    }
    record.at = timestamp(now);
    PublishedDevice { record, lease_end, since }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    fn status(extra: &serde_json::Value) -> DeviceStatus {
        let mut status = serde_json::json!({
            "name": "board", "bus_id": "1-2", "title": "", "speed": "full", "ids": "0403:6001",
            "state": "available", "labels": { "board": "imx8" },
        });
        for (key, value) in extra.as_object().unwrap() {
            status[key] = value.clone();
        }
        serde_json::from_value(status).unwrap()
    }

    fn lease(left_s: f64, until: &str) -> serde_json::Value {
        serde_json::json!({ "lease": { "host": "desk", "state": "held", "since_s": 1.0, "left_s": left_s, "until": until } })
    }

    #[test]
    fn record_is_written_anew_only_when_its_device_changes() {
        let at = |s: u64| UNIX_EPOCH + Duration::from_secs(s);
        let mut records = PublishedRecords::default();
        let mut update = |extra: &serde_json::Value, s: u64| {
            records.update(vec![status(extra)], &[("desk".to_owned(), "k".to_owned())].into(), at(s));
            records.iter().next().unwrap().1.clone()
        };
        let none = serde_json::json!({});
        let first = update(&none, 100);
        assert_eq!((first.at.as_str(), &first.labels["board"][..]), ("1970-01-01T00:01:40.000Z", "imx8"));
        assert_eq!(update(&none, 200), first);
        let leased = update(&lease(50.0, "1970-01-01T00:05:00Z"), 250);
        assert_ne!(leased.at, first.at);
        assert_eq!((first.holder_key, leased.holder_key.as_deref()), (None, Some("k")));
        assert_eq!(update(&lease(39.6, "1970-01-01T00:04:59Z"), 260), leased, "the same end, by a clock that was set");
        let extended = update(&lease(139.6, "1970-01-01T00:06:40Z"), 261);
        assert_eq!(extended.lease.unwrap().until, "1970-01-01T00:06:40Z");
        let waits =
            |waits_s: f64| serde_json::json!({ "waiting": [{ "host": "rack", "waits_s": waits_s, "for_s": 60 }] });
        let waiting = update(&waits(1.0), 270);
        let rack = QueuedRecord { host: "rack".to_owned(), priority: 0, for_s: Some(60) };
        assert_eq!((waiting.waiting, &waiting.queue[..]), (1, &[rack][..]));
        assert_eq!(update(&waits(2.0), 271), waiting, "to go on waiting is no change");
        let in_use =
            |used_s: f64| serde_json::json!({ "state": "in use", "user": "desk (10.0.0.7:5)", "used_s": used_s });
        let used = update(&in_use(10.0), 280);
        assert_eq!(used.since.as_deref(), Some("1970-01-01T00:04:30.000Z"));
        assert_eq!(update(&in_use(14.5), 285), used, "to go on using it is no change");
        assert_eq!(used.holder_key.as_deref(), Some("k"));
        let stranger = update(&serde_json::json!({ "state": "in use", "user": "desk" }), 281);
        assert_eq!(stranger.holder_key, None, "a host that is called so is not the paired one");
    }
}
