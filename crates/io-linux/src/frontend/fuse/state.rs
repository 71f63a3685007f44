//! The snapshot of a mounted disk's engine: JSON, followed by the device's snapshot.
//!
//! The reader may be of another release. It ignores fields that it does not know, and fields that were added later have
//! defaults; a change that a reader must not ignore makes a new version.

use std::io;
use std::ops::Range;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::handles::{FlushCause, SavedHandles};

/// The version that is written.
pub(super) const STATE_VERSION: u16 = 1;
/// The oldest version that is read: the previous release wrote it.
const STATE_VERSION_MIN: u16 = 1;

/// A mount, and the kernel's open requests.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct FuseDiskSnapshot {
    pub version: u16,
    pub at: PathBuf,
    pub name: String,
    pub owner: (u32, u32),
    pub time: (u64, u32),
    pub next_id: u64,
    pub begun: u64,
    pub durable: u64,
    #[serde(rename = "asked")]
    pub requests: Vec<SavedFuseRequest>,
    #[serde(default)]
    pub handles: SavedHandles,
}

/// A request that the device is carrying out.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SavedFuseRequest {
    pub id: u64,
    /// The kernel's number of the request, if a program waits for it.
    pub unique: Option<u64>,
    pub change: Option<u64>,
    pub covers: Option<u64>,
    #[serde(default)]
    pub ask: Option<FlushCause>,
    pub rest: Range<u64>,
}

impl FuseDiskSnapshot {
    pub fn to_bytes(&self, device: &[u8]) -> io::Result<Vec<u8>> {
        let text = serde_json::to_vec(self)?;
        Ok([&(text.len() as u32).to_le_bytes(), &text[..], device].concat())
    }

    /// Parses a snapshot; the second value is the device's part.
    pub fn from_bytes(bytes: &[u8]) -> io::Result<(Self, &[u8])> {
        let short = || io::Error::new(io::ErrorKind::InvalidData, "it is shorter than it says");
        let (length, rest) = bytes.split_first_chunk::<4>().ok_or_else(short)?;
        let (text, device) = rest.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or_else(short)?;
        let state: Self = serde_json::from_slice(text)?;
        match state.version {
            STATE_VERSION_MIN..=STATE_VERSION => Ok((state, device)),
            other => Err(io::Error::new(io::ErrorKind::InvalidData, format!("version {other} is not known"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_reads_back_and_a_truncated_one_is_refused() {
        let request = SavedFuseRequest {
            id: 7,
            unique: Some(9),
            change: None,
            covers: Some(3),
            ask: Some(FlushCause::Sync(2)),
            rest: 0..8,
        };
        let (owner, time, at, name) = ((0, 1), (2, 3), PathBuf::from("/mnt/a b"), "disk.img".into());
        let mut state = FuseDiskSnapshot {
            version: STATE_VERSION,
            at,
            name,
            owner,
            time,
            next_id: 7,
            begun: 4,
            durable: 3,
            requests: vec![request],
            handles: SavedHandles::default(),
        };
        let bytes = state.to_bytes(b"device").unwrap();
        let (read, device) = FuseDiskSnapshot::from_bytes(&bytes).unwrap();
        assert_eq!((format!("{read:?}"), device), (format!("{state:?}"), &b"device"[..]));
        assert!((0..bytes.len() - 6).all(|end| FuseDiskSnapshot::from_bytes(&bytes[..end]).is_err()));
        state.version += 1;
        let error = FuseDiskSnapshot::from_bytes(&state.to_bytes(b"").unwrap()).unwrap_err();
        assert!(error.to_string().contains("version 2"), "{error}");
    }

    #[test]
    fn state_of_release_0_1_0_is_read_and_fields_of_a_later_release_are_passed_over() {
        let of_0_1_0 = r#"{"version":1,"at":"/mnt/a","name":"disk.img","owner":[0,0],"time":[2,3],"next_id":7,"begun":4,
            "durable":3,"asked":[{"id":7,"unique":9,"change":null,"covers":3,"rest":{"start":0,"end":8}}]}"#;
        let later = of_0_1_0.replace("\"begun\"", "\"epoch\":5,\"begun\"").replace("\"id\"", "\"by\":1,\"id\"");
        for text in [of_0_1_0, &later] {
            let bytes = [&(text.len() as u32).to_le_bytes(), text.as_bytes(), b"device"].concat();
            let (state, device) = FuseDiskSnapshot::from_bytes(&bytes).unwrap();
            assert_eq!((state.next_id, state.requests[0].unique, device), (7, Some(9), &b"device"[..]));
        }
    }
}
