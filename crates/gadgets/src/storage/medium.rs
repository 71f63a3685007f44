//! A store seen as sectors: ranges are checked here once, and a store's troubles become sense data.

use farbus_model::{BlockStore, StoreError};

use super::sense::Sense;

/// Logical blocks as a command names them: hostile until [`Medium::span`] has seen them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub lba: u64,
    pub blocks: u64,
}

/// Bytes of the store, known to lie inside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub offset: u64,
    pub len: u64,
}

/// The medium.
pub(super) struct Medium {
    store: Box<dyn BlockStore>,
    sector_bytes: u32,
    sectors: u64,
    read_only: bool,
    /// Something was written since the last flush that succeeded.
    dirty: bool,
}

impl Medium {
    /// The whole sectors of `store`.
    pub fn new(store: Box<dyn BlockStore>, sector_bytes: u32, read_only: bool) -> Self {
        let sectors = store.size_bytes() / u64::from(sector_bytes);
        let read_only = read_only || store.is_read_only();
        Self { store, sector_bytes, sectors, read_only, dirty: false }
    }

    pub fn sector_bytes(&self) -> u32 {
        self.sector_bytes
    }

    pub fn sectors(&self) -> u64 {
        self.sectors
    }

    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Where `extent` lies. An empty one may lie right behind the last block.
    pub fn span(&self, extent: Extent) -> Result<Span, Sense> {
        let end = extent.lba.checked_add(extent.blocks).filter(|end| *end <= self.sectors);
        end.ok_or(Sense::LBA_OUT_OF_RANGE)?;
        // Below the store's size, which is 64 bits: cannot overflow.
        let bytes = u64::from(self.sector_bytes);
        Ok(Span { offset: extent.lba * bytes, len: extent.blocks * bytes })
    }

    pub fn read(&mut self, offset: u64, to: &mut [u8]) -> Result<(), Sense> {
        self.store.read_at(offset, to).map_err(|error| self.sense(error, Sense::READ_ERROR, offset))
    }

    pub fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), Sense> {
        // Even a write that fails may have changed something.
        self.dirty = true;
        self.store.write_at(offset, from).map_err(|error| self.sense(error, Sense::WRITE_ERROR, offset))
    }

    /// Another process may have written what was not made durable.
    pub fn assume_written(&mut self) {
        self.dirty = true;
    }

    pub fn discard(&mut self, span: Span) -> Result<(), Sense> {
        self.dirty = true;
        let result = self.store.discard(span.offset, span.len);
        result.map_err(|error| self.sense(error, Sense::WRITE_ERROR, span.offset))
    }

    pub fn write_zeroes(&mut self, span: Span) -> Result<(), Sense> {
        self.dirty = true;
        let result = self.store.write_zeroes(span.offset, span.len);
        result.map_err(|error| self.sense(error, Sense::WRITE_ERROR, span.offset))
    }

    /// Makes every earlier write durable. A failure leaves the medium dirty: the next try is a real one.
    pub fn flush(&mut self) -> Result<(), Sense> {
        if self.dirty {
            // No block to name: it may be any of those written.
            self.store.flush().map_err(|error| sense_of(error, Sense::WRITE_ERROR))?;
            self.dirty = false;
        }
        Ok(())
    }

    fn sense(&self, error: StoreError, medium_error: Sense, offset: u64) -> Sense {
        sense_of(error, medium_error).at(offset / u64::from(self.sector_bytes))
    }
}

fn sense_of(error: StoreError, medium_error: Sense) -> Sense {
    match error {
        StoreError::Medium | StoreError::Lost | StoreError::Invalid => medium_error,
        StoreError::NoSpace => Sense::SPACE_ALLOCATION_FAILED,
        StoreError::ReadOnly => Sense::WRITE_PROTECTED,
        StoreError::Gone => Sense::MEDIUM_NOT_PRESENT,
    }
}
