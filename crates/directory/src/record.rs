//! The values in etcd: JSON, whose fields are only ever added to. Other hosts write them, and anybody with a password
//! of that etcd can: a text may have any character, but no record is longer than its limits.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// The longest value, bytes.
pub const VALUE_BYTES_MAX: usize = 8 << 10;
/// The longest text of a record, bytes.
const TEXT_BYTES_MAX: usize = 256;
/// The most interfaces, labels and bookings.
const LIST_MAX: usize = 32;
/// The most hosts of a queue that are named: of 32 that may wait.
pub const QUEUE_MAX: usize = 16;

/// What a host says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostRecord {
    /// The name that the host gives itself.
    pub name: String,
    /// The version of its farbus.
    pub farbus: String,
    /// Since when it has been in the directory: RFC 3339, UTC, by its own clock.
    pub since: String,
}

/// A device. The fields are those of `farbus status --json`, without what changes all the time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceRecord {
    /// The bus id on the wire.
    pub bus_id: String,
    /// `vendor:product`, hexadecimal digits.
    pub ids: String,
    /// Manufacturer and product.
    pub title: String,
    /// The speed, in words.
    pub speed: String,
    /// The classes of its interfaces, in words.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<String>,
    /// Size in bytes, if it is a block device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// `available`, `in use` or `moved away`.
    pub state: String,
    /// The user, if it is in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Since when it has been in use: RFC 3339, UTC, by the exporter's clock; absent in records of earlier
    /// releases.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// The mode of use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// The lease that a host requested and has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseRecord>,
    /// How many hosts wait for it.
    #[serde(skip_serializing_if = "is_zero")]
    pub waiting: u32,
    /// The first [`QUEUE_MAX`] of them, in the order in which they are served.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub queue: Vec<QueuedRecord>,
    /// The key of the paired host that has the lease, or, without a lease, uses the device alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder_key: Option<String>,
    /// The labels that its owner gave it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Where it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
    /// What else its owner says of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// The id of the device, which does not depend on its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// When this was written: RFC 3339, UTC, by the exporter's clock.
    pub at: String,
}

/// A lease in a [`DeviceRecord`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LeaseRecord {
    /// The host that has it, by its name at the exporter.
    pub host: String,
    /// When it ends: RFC 3339, UTC, by the exporter's clock.
    pub until: String,
    /// What the host needs the device for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A host that waits, in a [`DeviceRecord`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct QueuedRecord {
    /// The host, by its name at the exporter.
    pub host: String,
    /// The priority of its request, 0 to 9.
    #[serde(skip_serializing_if = "is_no_priority")]
    pub priority: u8,
    /// For how long it wants a lease, seconds; absent for an attach that waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub for_s: Option<u64>,
}

/// What one host may have of all devices that hosts of the directory share. Each of these hosts keeps it, and none
/// allows more than it would without: a host that can write this can take devices away, and give none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LimitRecord {
    /// How many devices it may have at a time, leased or attached; absent: as many as each host's own limit allows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub devices: Option<u32>,
    /// For how long it may have a lease from the moment it asks, seconds; absent: as long as each host's own limit
    /// allows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub for_s: Option<u64>,
    /// The host that wrote this, by its own name.
    pub by: String,
    /// When: RFC 3339, UTC, by that host's clock.
    pub at: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_no_priority(priority: &u8) -> bool {
    *priority == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// Why a value is no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordError {
    /// It has more than [`VALUE_BYTES_MAX`] bytes.
    TooLong,
    /// It is not JSON, or a field has another type.
    NotARecord,
    /// A text has more than 256 bytes.
    LongText,
    /// A list has more than 32 entries, or a queue more than [`QUEUE_MAX`].
    LongList,
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecordError::TooLong => write!(f, "a value has {VALUE_BYTES_MAX} bytes at most"),
            RecordError::NotARecord => f.write_str("not a record of a host, a device or a limit"),
            RecordError::LongText => write!(f, "a text of a record has {TEXT_BYTES_MAX} bytes at most"),
            RecordError::LongList => write!(f, "a list of a record has {LIST_MAX} entries at most"),
        }
    }
}

impl std::error::Error for RecordError {}

fn parse<T: for<'a> Deserialize<'a>>(value: &[u8]) -> Result<T, RecordError> {
    if value.len() > VALUE_BYTES_MAX {
        return Err(RecordError::TooLong);
    }
    // serde takes a list for a record, too.
    match value.trim_ascii_start().starts_with(b"{") {
        true => serde_json::from_slice(value).map_err(|_| RecordError::NotARecord),
        false => Err(RecordError::NotARecord),
    }
}

fn check<'a>(texts: impl IntoIterator<Item = &'a String>) -> Result<(), RecordError> {
    match texts.into_iter().all(|text| text.len() <= TEXT_BYTES_MAX) {
        true => Ok(()),
        false => Err(RecordError::LongText),
    }
}

/// Cuts a text to what a record has room for.
fn cut(text: &mut String) {
    text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
}

impl HostRecord {
    /// Reads the value of a key.
    ///
    /// # Errors
    /// [`RecordError`]: it is none, or is beyond a limit.
    pub fn parse(value: &[u8]) -> Result<Self, RecordError> {
        let record: Self = parse(value)?;
        check([&record.name, &record.farbus, &record.since])?;
        Ok(record)
    }

    /// The value to put, JSON.
    pub fn to_value(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("texts are JSON")
    }
}

impl DeviceRecord {
    /// Reads the value of a key.
    ///
    /// # Errors
    /// [`RecordError`]: it is none, or is beyond a limit.
    pub fn parse(value: &[u8]) -> Result<Self, RecordError> {
        let record: Self = parse(value)?;
        if record.interfaces.len().max(record.labels.len()) > LIST_MAX || record.queue.len() > QUEUE_MAX {
            return Err(RecordError::LongList);
        }
        let Self { bus_id, ids, title, speed, interfaces, state, labels, at, .. } = &record;
        let Self { user, since, mode, place: location, comment, id, lease, holder_key, .. } = &record;
        check([bus_id, ids, title, speed, state, at])?;
        check(interfaces)?;
        check(labels.iter().flat_map(|(name, value)| [name, value]))?;
        check([user, since, mode, location, comment, id, holder_key].into_iter().flatten())?;
        check(record.queue.iter().map(|waiting| &waiting.host))?;
        check(lease.iter().flat_map(|lease| [Some(&lease.host), Some(&lease.until), lease.reason.as_ref()]).flatten())?;
        Ok(record)
    }

    /// The value. A text that is longer than a record has room for is cut off, and so is a list.
    pub fn to_value(&self) -> Vec<u8> {
        let mut record = self.clone();
        record.interfaces.truncate(LIST_MAX);
        record.queue.truncate(QUEUE_MAX);
        record.queue.iter_mut().for_each(|waiting| cut(&mut waiting.host));
        let Self { bus_id, ids, title, speed, interfaces, state, at, .. } = &mut record;
        [bus_id, ids, title, speed, state, at].into_iter().chain(interfaces).for_each(cut);
        let Self { user, mode, place: location, comment, id, lease, .. } = &mut record;
        [user, mode, location, comment, id].into_iter().flatten().for_each(cut);
        if let Some(LeaseRecord { host, until, reason }) = lease {
            [host, until].into_iter().chain(reason).for_each(cut);
        }
        let value = serde_json::to_vec(&record).expect("texts are JSON");
        if value.len() <= VALUE_BYTES_MAX {
            return value;
        }
        // Texts of the greatest length each. What others find the device by comes first.
        (record.queue, record.comment) = (Vec::new(), None);
        record.interfaces.truncate(LIST_MAX / 4);
        serde_json::to_vec(&record).expect("texts are JSON")
    }

    /// Whether a host that asks now is likely to get it: nobody uses it, has a lease of it, or waits for it.
    pub fn is_free(&self) -> bool {
        self.state == "available" && self.lease.is_none() && self.waiting == 0
    }
}

impl LimitRecord {
    /// Reads the value of a key.
    ///
    /// # Errors
    /// [`RecordError`]: it is none, or is beyond a limit.
    pub fn parse(value: &[u8]) -> Result<Self, RecordError> {
        let record: Self = parse(value)?;
        check([&record.by, &record.at])?;
        Ok(record)
    }

    /// The value to put, JSON.
    pub fn to_value(&self) -> Vec<u8> {
        let mut record = self.clone();
        [&mut record.by, &mut record.at].into_iter().for_each(cut);
        serde_json::to_vec(&record).expect("texts are JSON")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn board() -> DeviceRecord {
        DeviceRecord {
            bus_id: "1-2".into(),
            ids: "0403:6001".into(),
            title: "FTDI UART".into(),
            speed: "full".into(),
            interfaces: vec!["vendor specific".into()],
            state: "available".into(),
            labels: [("board".to_owned(), "imx8".to_owned())].into(),
            at: "2026-11-26T22:00:00Z".into(),
            ..DeviceRecord::default()
        }
    }

    #[test]
    fn record_of_a_device_is_stable_json() {
        let text = r#"{"bus_id":"1-2","ids":"0403:6001","title":"FTDI UART","speed":"full","interfaces":["vendor specific"],"state":"available","labels":{"board":"imx8"},"at":"2026-11-26T22:00:00Z"}"#;
        assert_eq!(String::from_utf8(board().to_value()).unwrap(), text);
        assert_eq!(DeviceRecord::parse(text.as_bytes()), Ok(board()));
        let later = text.replacen('{', r#"{"colour":"red","#, 1);
        assert_eq!(DeviceRecord::parse(later.as_bytes()), Ok(board()), "a field of a later release");
        let host = HostRecord { name: "lab3".into(), farbus: "0.2.0".into(), since: "x".into() };
        assert_eq!(host.to_value(), br#"{"name":"lab3","farbus":"0.2.0","since":"x"}"#);
        assert_eq!(HostRecord::parse(&host.to_value()), Ok(host));
    }

    #[test]
    fn record_beyond_its_limits_is_refused_with_the_reason() {
        let long = "x".repeat(257);
        for (value, why) in [
            ("x".repeat(VALUE_BYTES_MAX + 1), RecordError::TooLong),
            ("[]".to_owned(), RecordError::NotARecord),
            ("{\"labels\":3}".to_owned(), RecordError::NotARecord),
            (format!("{{\"user\":\"{long}\"}}"), RecordError::LongText),
            (format!("{{\"labels\":{{\"{long}\":\"\"}}}}"), RecordError::LongText),
            (format!("{{\"lease\":{{\"reason\":\"{long}\"}}}}"), RecordError::LongText),
            (format!("{{\"interfaces\":[{}\"\"]}}", "\"\",".repeat(32)), RecordError::LongList),
            (format!("{{\"queue\":[{}{{}}]}}", "{},".repeat(16)), RecordError::LongList),
            (format!("{{\"queue\":[{{\"host\":\"{long}\"}}]}}"), RecordError::LongText),
            (format!("{{\"holder_key\":\"{long}\"}}"), RecordError::LongText),
            ("{\"queue\":[{\"priority\":300}]}".to_owned(), RecordError::NotARecord),
        ] {
            assert_eq!(DeviceRecord::parse(value.as_bytes()), Err(why), "{value}");
        }
    }

    #[test]
    fn text_that_is_too_long_is_cut_when_it_is_written() {
        let record = DeviceRecord { title: "é".repeat(200), lease: Some(LeaseRecord::default()), ..board() };
        let read = DeviceRecord::parse(&record.to_value()).unwrap();
        assert_eq!(read.title, "é".repeat(128));
    }

    #[test]
    fn record_that_is_written_can_be_read_whatever_its_texts_are() {
        // Quotes take two bytes in JSON.
        for letter in ["\"", "x", "é"] {
            let text = letter.repeat(300);
            let record = DeviceRecord {
                interfaces: vec![text.clone(); 40],
                comment: Some(text.clone()),
                queue: vec![QueuedRecord { host: text.clone(), ..QueuedRecord::default() }; 40],
                ..board()
            };
            let read = DeviceRecord::parse(&record.to_value()).map(|read| read.interfaces.len());
            assert!(matches!(read, Ok(1..)), "{letter:?}: {read:?}");
        }
        let queue: Vec<QueuedRecord> =
            (0..20).map(|number| QueuedRecord { host: format!("host{number}"), ..QueuedRecord::default() }).collect();
        let read = DeviceRecord::parse(&DeviceRecord { queue, waiting: 20, ..board() }.to_value()).unwrap();
        assert_eq!((read.queue.len(), read.queue[15].host.as_str(), read.waiting), (QUEUE_MAX, "host15", 20));
    }

    #[test]
    fn limit_is_stable_json_and_hostile_ones_are_refused() {
        let limit = LimitRecord { devices: Some(3), for_s: Some(14_400), by: "desk".into(), at: "x".into() };
        let text = r#"{"devices":3,"for_s":14400,"by":"desk","at":"x"}"#;
        assert_eq!(String::from_utf8(limit.to_value()).unwrap(), text);
        assert_eq!(LimitRecord::parse(text.as_bytes()), Ok(limit));
        assert_eq!(LimitRecord::parse(b"{\"later\":[1]}"), Ok(LimitRecord::default()));
        for (value, why) in [
            ("x".repeat(VALUE_BYTES_MAX + 1), RecordError::TooLong),
            ("3".to_owned(), RecordError::NotARecord),
            ("{\"devices\":-1}".to_owned(), RecordError::NotARecord),
            ("{\"devices\":4294967296}".to_owned(), RecordError::NotARecord),
            ("{\"for_s\":1.5}".to_owned(), RecordError::NotARecord),
            (format!("{{\"by\":\"{}\"}}", "x".repeat(257)), RecordError::LongText),
        ] {
            assert_eq!(LimitRecord::parse(value.as_bytes()), Err(why), "{value}");
        }
        let long = LimitRecord { by: "é".repeat(200), ..LimitRecord::default() };
        assert_eq!(LimitRecord::parse(&long.to_value()).unwrap().by, "é".repeat(128));
    }
}
