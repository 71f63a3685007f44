//! A medium whose requests the test can delay or refuse.

use std::ops::Range;
use std::sync::Arc;

use farbus_model::{BlockMedium, BlockStore, StoreError};

/// A request that is about to be made to a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreAccess {
    Read,
    Write,
}

type Watcher = dyn Fn(StoreAccess, Range<u64>) -> Result<(), StoreError> + Send + Sync;

/// A medium that asks a callback before each read and write.
pub struct Watched<M> {
    medium: M,
    watcher: Arc<Watcher>,
}

impl<M: BlockMedium> Watched<M> {
    pub fn new(
        medium: M,
        watcher: impl Fn(StoreAccess, Range<u64>) -> Result<(), StoreError> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self { medium, watcher: Arc::new(watcher) })
    }
}

impl<M: BlockMedium> BlockMedium for Watched<M> {
    fn open(&self) -> Result<Box<dyn BlockStore>, String> {
        Ok(Box::new(WatchedStore { store: self.medium.open()?, watcher: Arc::clone(&self.watcher) }))
    }

    fn preferred_bytes(&self) -> u32 {
        self.medium.preferred_bytes()
    }
}

struct WatchedStore {
    store: Box<dyn BlockStore>,
    watcher: Arc<Watcher>,
}

impl BlockStore for WatchedStore {
    fn size_bytes(&self) -> u64 {
        self.store.size_bytes()
    }

    fn is_read_only(&self) -> bool {
        self.store.is_read_only()
    }

    fn read_at(&mut self, offset: u64, to: &mut [u8]) -> Result<(), StoreError> {
        (self.watcher)(StoreAccess::Read, offset..offset + to.len() as u64)?;
        self.store.read_at(offset, to)
    }

    fn write_at(&mut self, offset: u64, from: &[u8]) -> Result<(), StoreError> {
        (self.watcher)(StoreAccess::Write, offset..offset + from.len() as u64)?;
        self.store.write_at(offset, from)
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        self.store.flush()
    }

    fn discard(&mut self, offset: u64, len: u64) -> Result<(), StoreError> {
        self.store.discard(offset, len)
    }

    fn write_zeroes(&mut self, offset: u64, len: u64) -> Result<(), StoreError> {
        self.store.write_zeroes(offset, len)
    }
}
