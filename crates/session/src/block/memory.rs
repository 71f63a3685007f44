//! A memory medium that several users open.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farbus_model::{BlockMedium, BlockStore, StoreError, StoreExtent};

use super::sparse::SparseMemory;

/// Preferred request size, bytes: a page, as for a file.
const PREFERRED_BYTES: u32 = 4096;

/// Memory that several users may have open at once, each by its own handle.
#[derive(Clone, Debug)]
pub struct MemoryMedium(Arc<Mutex<SparseMemory>>);

impl MemoryMedium {
    /// Wraps this memory.
    pub fn new(memory: SparseMemory) -> Self {
        Self(Arc::new(Mutex::new(memory)))
    }

    fn memory(&self) -> MutexGuard<'_, SparseMemory> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BlockMedium for MemoryMedium {
    fn open(&self) -> Result<Box<dyn BlockStore>, String> {
        Ok(Box::new(self.clone()))
    }

    fn preferred_bytes(&self) -> u32 {
        PREFERRED_BYTES
    }
}

impl BlockStore for MemoryMedium {
    fn size_bytes(&self) -> u64 {
        self.memory().size_bytes()
    }

    fn is_read_only(&self) -> bool {
        self.memory().is_read_only()
    }

    fn read_at(&mut self, offset: u64, to: &mut [u8]) -> Result<(), StoreError> {
        self.memory().read_at(offset, to)
    }

    fn write_at(&mut self, offset: u64, from: &[u8]) -> Result<(), StoreError> {
        self.memory().write_at(offset, from)
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        self.memory().flush()
    }

    fn discard(&mut self, offset: u64, len: u64) -> Result<(), StoreError> {
        self.memory().discard(offset, len)
    }

    fn write_zeroes(&mut self, offset: u64, len: u64) -> Result<(), StoreError> {
        self.memory().write_zeroes(offset, len)
    }

    fn extent(&mut self, offset: u64, len: u64) -> Result<StoreExtent, StoreError> {
        self.memory().extent(offset, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_of_one_memory_medium_share_its_content() {
        let medium = MemoryMedium::new(SparseMemory::new(1 << 20, 1 << 20));
        let (mut one, mut other) = (medium.open().unwrap(), medium.open().unwrap());
        one.write_at(77, b"here").unwrap();
        let mut bytes = [0; 4];
        other.read_at(77, &mut bytes).unwrap();
        assert_eq!((&bytes, other.size_bytes()), (b"here", 1 << 20));
    }
}
