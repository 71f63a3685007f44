//! The contract of a block store: a file, a block device, memory.

use std::fmt;

use crate::extents::StoreExtent;

/// Bytes at offsets, with a fixed size. Offsets and lengths are bytes; every call lies inside the
/// size, which the caller has checked (a violation is the caller's bug and may panic).
pub trait BlockStore: Send {
    /// Size in bytes.
    fn size_bytes(&self) -> u64;

    /// Whether writing is refused.
    fn is_read_only(&self) -> bool;

    /// Fills `to` from `offset`.
    ///
    /// # Errors
    /// [`StoreError`] when the medium fails; `to` is then undefined.
    fn read_at(&mut self, offset: u64, to: &mut [u8]) -> Result<(), StoreError>;

    /// Writes `from` at `offset`. Durable only after [`BlockStore::flush`].
    ///
    /// # Errors
    /// [`StoreError`] when the medium fails or has no space.
    fn write_at(&mut self, offset: u64, from: &[u8]) -> Result<(), StoreError>;

    /// Makes every earlier write durable.
    ///
    /// # Errors
    /// [`StoreError`] when durability cannot be promised.
    fn flush(&mut self) -> Result<(), StoreError>;

    /// Gives the space back; the range reads as zeros from now on. A store that cannot punch holes
    /// writes zeros.
    ///
    /// # Errors
    /// [`StoreError`] when the medium fails.
    fn discard(&mut self, offset: u64, len: u64) -> Result<(), StoreError>;

    /// Makes the range read as zeros, keeping its space.
    ///
    /// # Errors
    /// [`StoreError`] when the medium fails.
    fn write_zeroes(&mut self, offset: u64, len: u64) -> Result<(), StoreError>;

    /// Whether [`BlockStore::trim`] gives anything back.
    fn trims(&self) -> bool {
        true
    }

    /// Declares the content of the range unneeded. The store gives the space back where that costs no writing; until
    /// the range is written again, its content is undefined.
    ///
    /// # Errors
    /// [`StoreError`] when the medium fails.
    fn trim(&mut self, offset: u64, len: u64) -> Result<(), StoreError> {
        self.discard(offset, len)
    }

    /// The first extent of the range, of which it ends at the latest at the range's end. A store that cannot tell says
    /// that all is data.
    ///
    /// # Errors
    /// [`StoreError`] when the medium fails.
    fn extent(&mut self, offset: u64, len: u64) -> Result<StoreExtent, StoreError> {
        let _ = offset;
        Ok(StoreExtent { length: len, is_hole: false })
    }
}

impl<T: BlockStore + ?Sized> BlockStore for Box<T> {
    fn size_bytes(&self) -> u64 {
        (**self).size_bytes()
    }

    fn is_read_only(&self) -> bool {
        (**self).is_read_only()
    }

    fn read_at(&mut self, offset: u64, to: &mut [u8]) -> Result<(), StoreError> {
        (**self).read_at(offset, to)
    }

    fn write_at(&mut self, offset: u64, from: &[u8]) -> Result<(), StoreError> {
        (**self).write_at(offset, from)
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        (**self).flush()
    }

    fn discard(&mut self, offset: u64, len: u64) -> Result<(), StoreError> {
        (**self).discard(offset, len)
    }

    fn write_zeroes(&mut self, offset: u64, len: u64) -> Result<(), StoreError> {
        (**self).write_zeroes(offset, len)
    }

    fn trims(&self) -> bool {
        (**self).trims()
    }

    fn trim(&mut self, offset: u64, len: u64) -> Result<(), StoreError> {
        (**self).trim(offset, len)
    }

    fn extent(&mut self, offset: u64, len: u64) -> Result<StoreExtent, StoreError> {
        (**self).extent(offset, len)
    }
}

/// A store that several users open at once, each with a handle of its own: each reads what the others wrote. The code
/// that gives out the handles decides which of them may write.
pub trait BlockMedium: Send + Sync {
    /// Opens one more handle.
    ///
    /// # Errors
    /// A sentence for a person: the system has no more descriptors.
    fn open(&self) -> Result<Box<dyn BlockStore>, String>;

    /// The preferred request size, bytes: a power of two.
    fn preferred_bytes(&self) -> u32;
}

/// What went wrong with a medium, in the words a storage command can report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// The medium failed to read or write at that place.
    Medium,
    /// No space left behind a thinly provisioned store.
    NoSpace,
    /// The store is read-only.
    ReadOnly,
    /// The store no longer exists.
    Gone,
    /// The link to the store was lost: the network's fault, not the medium's (requirement N10).
    Lost,
    /// The request is invalid for this store.
    Invalid,
}

impl StoreError {
    /// Ordered by [`StoreError::code`], from 1.
    const BY_CODE: [Self; 6] = [Self::Medium, Self::NoSpace, Self::ReadOnly, Self::Gone, Self::Lost, Self::Invalid];

    /// The number that stands for this error in a snapshot, from 1.
    pub fn code(self) -> u8 {
        1 + Self::BY_CODE.iter().position(|known| *known == self).expect("all of them are there") as u8
    }

    /// The error with this number, if there is one.
    pub fn of_code(code: u8) -> Option<Self> {
        Self::BY_CODE.get(usize::from(code).checked_sub(1)?).copied()
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StoreError::Medium => "the medium failed",
            StoreError::NoSpace => "no space left on the medium",
            StoreError::ReadOnly => "the medium is read-only",
            StoreError::Gone => "the medium is gone",
            StoreError::Lost => "the way to the medium was lost",
            StoreError::Invalid => "the medium cannot be asked that",
        })
    }
}

impl std::error::Error for StoreError {}

/// A store in memory, for tests and scratch disks.
#[derive(Clone, Debug)]
pub struct MemoryStore {
    bytes: Vec<u8>,
    read_only: bool,
}

impl MemoryStore {
    /// A writable store that holds `bytes`.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self { bytes, read_only: false }
    }

    /// Makes the store refuse writes.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    /// The store's content.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn range(&mut self, offset: u64, len: u64) -> Result<&mut [u8], StoreError> {
        if self.read_only {
            return Err(StoreError::ReadOnly);
        }
        Ok(&mut self.bytes[offset as usize..(offset + len) as usize])
    }
}

impl BlockStore for MemoryStore {
    fn size_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn read_at(&mut self, offset: u64, to: &mut [u8]) -> Result<(), StoreError> {
        to.copy_from_slice(&self.bytes[offset as usize..][..to.len()]);
        Ok(())
    }

    fn write_at(&mut self, offset: u64, from: &[u8]) -> Result<(), StoreError> {
        self.range(offset, from.len() as u64)?.copy_from_slice(from);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        Ok(())
    }

    fn discard(&mut self, offset: u64, len: u64) -> Result<(), StoreError> {
        self.write_zeroes(offset, len)
    }

    fn write_zeroes(&mut self, offset: u64, len: u64) -> Result<(), StoreError> {
        self.range(offset, len)?.fill(0);
        Ok(())
    }
}
