//! The answer to a question about the directory: its text is written from the records one by one, since a tree of all
//! values takes many times the memory of the records.

use farbus_directory::key::HostId;
use farbus_directory::record::{DeviceRecord, HostRecord, LimitRecord};
use serde::{Serialize, Serializer};

/// What is answered.
#[derive(Serialize)]
pub(super) struct DirectoryContents<'a, S: Serialize, H: Serialize, D: Serialize, L: Serialize> {
    #[serde(flatten)]
    pub status: S,
    /// The version of what is known.
    pub version: &'a str,
    /// The key of this host.
    pub own_key: Option<&'a str>,
    /// What is known; `None` if the asker has it.
    #[serde(flatten)]
    pub known: Option<KnownRecords<'a, H, D, L>>,
}

/// What is known of the directory.
#[derive(Serialize)]
pub(super) struct KnownRecords<'a, H: Serialize, D: Serialize, L: Serialize> {
    /// The words of the query, if one was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub query: Option<&'a [String]>,
    pub known_hosts: H,
    pub known_devices: D,
    pub limits: L,
}

/// A list, made as it is written.
pub(super) struct LazySequence<F>(pub F);

impl<I: IntoIterator<Item: Serialize>, F: Fn() -> I> Serialize for LazySequence<F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq((self.0)())
    }
}

/// The record of a host, or a limit, with the key of the host.
#[derive(Serialize)]
pub(super) struct HostKeyedRecord<'a, R: Serialize> {
    key: &'a str,
    #[serde(flatten)]
    record: R,
}

/// The record of a device, with the key of its host and its name.
#[derive(Serialize)]
pub(super) struct KeyedDeviceRecord<'a> {
    host_key: &'a str,
    name: &'a str,
    #[serde(flatten)]
    record: DeviceRecord,
}

pub(super) fn host<'a>((key, record): (&'a HostId, HostRecord)) -> HostKeyedRecord<'a, HostRecord> {
    HostKeyedRecord { key: key.as_str(), record }
}

pub(super) fn limit<'a>((key, record): (&'a HostId, LimitRecord)) -> HostKeyedRecord<'a, LimitRecord> {
    HostKeyedRecord { key: key.as_str(), record }
}

pub(super) fn device<'a>((key, name, record): (&'a HostId, &'a str, DeviceRecord)) -> KeyedDeviceRecord<'a> {
    KeyedDeviceRecord { host_key: key.as_str(), name, record }
}
