//! Room for what clients have not read yet.

use std::sync::Arc;

use hyper::body::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes with the room that they take until they were sent.
struct BudgetedBytes {
    bytes: Bytes,
    _room: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for BudgetedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Takes room for these bytes, in whole KiB, until the last reference to them is dropped; `None`: too little is left.
pub fn within(bytes: Bytes, room: &Arc<Semaphore>) -> Option<Bytes> {
    let kib = u32::try_from(bytes.len().div_ceil(1 << 10)).unwrap_or(u32::MAX);
    let permit = Arc::clone(room).try_acquire_many_owned(kib).ok()?;
    Some(Bytes::from_owner(BudgetedBytes { bytes, _room: permit }))
}
