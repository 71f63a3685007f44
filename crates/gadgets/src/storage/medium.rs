//! A store as sectors: checks ranges once, and turns errors of the store into sense data.

use farbus_model::{BlockStore, StoreError};

use super::sense::SenseReport;

/// Logical blocks as a command names them: untrusted until [`SectorGeometry::span`] has checked them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LbaRange {
    pub lba: u64,
    pub blocks: u64,
}

/// Bytes of the store, checked to lie inside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StoreSpan {
    pub offset: u64,
    pub len: u64,
}

/// The block geometry that commands refer to.
#[derive(Clone, Copy, Debug)]
pub(super) struct SectorGeometry {
    pub sector_bytes: u32,
    pub sectors: u64,
    pub is_read_only: bool,
    /// Whether space can be given back.
    pub is_thin: bool,
}

impl SectorGeometry {
    /// The whole sectors of `size_bytes` bytes.
    pub fn new(size_bytes: u64, sector_bytes: u32, is_read_only: bool) -> Self {
        Self { sector_bytes, sectors: size_bytes / u64::from(sector_bytes), is_read_only, is_thin: true }
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        self.sectors * u64::from(self.sector_bytes)
    }

    /// The place of `extent`. An empty one may lie right after the last block.
    pub fn span(&self, extent: LbaRange) -> Result<StoreSpan, SenseReport> {
        let end = extent.lba.checked_add(extent.blocks).filter(|end| *end <= self.sectors);
        end.ok_or(SenseReport::LBA_OUT_OF_RANGE)?;
        // Below the store's size, which is 64 bits: cannot overflow.
        let bytes = u64::from(self.sector_bytes);
        Ok(StoreSpan { offset: extent.lba * bytes, len: extent.blocks * bytes })
    }

    /// The sense data for an error of the store at `offset`.
    pub fn sense(&self, error: StoreError, medium_error: SenseReport, offset: u64) -> SenseReport {
        sense_of(error, medium_error).at(offset / u64::from(self.sector_bytes))
    }
}

/// The store behind a logical unit, with its block size and whether it holds unflushed writes.
pub(super) struct GadgetMedium {
    store: Box<dyn BlockStore>,
    pub geometry: SectorGeometry,
    /// Whether something was written since the last successful flush.
    dirty: bool,
}

impl GadgetMedium {
    /// The whole sectors of `store`.
    pub fn new(store: Box<dyn BlockStore>, sector_bytes: u32, read_only: bool) -> Self {
        let geometry = SectorGeometry::new(store.size_bytes(), sector_bytes, read_only || store.is_read_only());
        let geometry = SectorGeometry { is_thin: store.trims(), ..geometry };
        Self { store, geometry, dirty: false }
    }

    pub fn read(&mut self, offset: u64, to: &mut [u8]) -> Result<(), SenseReport> {
        self.store.read_at(offset, to).map_err(|error| self.geometry.sense(error, SenseReport::READ_ERROR, offset))
    }

    pub fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), SenseReport> {
        // Even a write that fails may have changed something.
        self.dirty = true;
        self.store.write_at(offset, from).map_err(|error| self.geometry.sense(error, SenseReport::WRITE_ERROR, offset))
    }

    /// Another process may have written data that was not flushed.
    pub fn assume_written(&mut self) {
        self.dirty = true;
    }

    pub fn discard(&mut self, span: StoreSpan) -> Result<(), SenseReport> {
        self.dirty = true;
        let result = self.store.discard(span.offset, span.len);
        result.map_err(|error| self.geometry.sense(error, SenseReport::WRITE_ERROR, span.offset))
    }

    /// Declares the content of the span unneeded.
    pub fn trim(&mut self, span: StoreSpan) -> Result<(), SenseReport> {
        self.dirty = true;
        let result = self.store.trim(span.offset, span.len);
        result.map_err(|error| self.geometry.sense(error, SenseReport::WRITE_ERROR, span.offset))
    }

    pub fn write_zeroes(&mut self, span: StoreSpan) -> Result<(), SenseReport> {
        self.dirty = true;
        let result = self.store.write_zeroes(span.offset, span.len);
        result.map_err(|error| self.geometry.sense(error, SenseReport::WRITE_ERROR, span.offset))
    }

    /// Makes every earlier write durable. A failure leaves the medium dirty: the next try is a real one.
    pub fn flush(&mut self) -> Result<(), SenseReport> {
        if self.dirty {
            // No block can be named: it may be any of those written.
            self.store.flush().map_err(|error| sense_of(error, SenseReport::WRITE_ERROR))?;
            self.dirty = false;
        }
        Ok(())
    }
}

/// The sense data for an error where no block can be named.
pub(super) fn sense_of(error: StoreError, medium_error: SenseReport) -> SenseReport {
    match error {
        StoreError::Medium | StoreError::Lost | StoreError::Invalid => medium_error,
        StoreError::NoSpace => SenseReport::SPACE_ALLOCATION_FAILED,
        StoreError::ReadOnly => SenseReport::WRITE_PROTECTED,
        StoreError::Gone => SenseReport::MEDIUM_NOT_PRESENT,
    }
}
