//! A store for tests: sparse, of any size, counts its calls, and fails on demand.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use farbus_model::{BlockStore, StoreError};

const PAGE: u64 = 4096;

/// A handle; its clones are the same disk.
#[derive(Clone, Default)]
pub struct Disk(Arc<Mutex<State>>);

#[derive(Default)]
pub struct State {
    size_bytes: u64,
    pages: BTreeMap<u64, Box<[u8]>>,
    /// The calls so far.
    pub flushes: u32,
    pub longest_bytes: usize,
    pub discarded_bytes: u64,
    pub zeroed_bytes: u64,
    /// Reads and writes fail that touch a byte at or after this one.
    pub fail_from: Option<(u64, StoreError)>,
    pub fail_flush: Option<StoreError>,
}

impl Disk {
    pub fn new(size_bytes: u64) -> Self {
        let disk = Self::default();
        disk.look().size_bytes = size_bytes;
        disk
    }

    pub fn look(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    pub fn bytes(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.look().each_page(offset, len as u64, |state, page, within, at| {
            if let Some(held) = state.pages.get(&page) {
                bytes[at..at + within.len()].copy_from_slice(&held[within]);
            }
        });
        bytes
    }
}

impl State {
    fn check(&mut self, offset: u64, len: usize) -> Result<(), StoreError> {
        assert!(offset + len as u64 <= self.size_bytes, "a caller keeps inside the size");
        self.longest_bytes = self.longest_bytes.max(len);
        match self.fail_from {
            Some((from, error)) if offset + len as u64 > from => Err(error),
            _ => Ok(()),
        }
    }

    /// Splits a range at the pages: page, range within it, offset within the whole.
    fn each_page(&mut self, offset: u64, len: u64, mut act: impl FnMut(&mut Self, u64, std::ops::Range<usize>, usize)) {
        let mut done = 0;
        while done < len {
            let (page, start) = ((offset + done) / PAGE, (offset + done) % PAGE);
            let n = (PAGE - start).min(len - done);
            act(self, page, start as usize..(start + n) as usize, done as usize);
            done += n;
        }
    }

    fn zero(&mut self, offset: u64, len: u64) {
        self.each_page(offset, len, |state, page, within, _| {
            if let Some(held) = state.pages.get_mut(&page) {
                held[within].fill(0);
            }
        });
    }
}

impl BlockStore for Disk {
    fn size_bytes(&self) -> u64 {
        self.look().size_bytes
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&mut self, offset: u64, to: &mut [u8]) -> Result<(), StoreError> {
        self.look().check(offset, to.len())?;
        to.copy_from_slice(&self.bytes(offset, to.len()));
        Ok(())
    }

    fn write_at(&mut self, offset: u64, from: &[u8]) -> Result<(), StoreError> {
        let mut state = self.look();
        state.check(offset, from.len())?;
        state.each_page(offset, from.len() as u64, |state, page, within, at| {
            let held = state.pages.entry(page).or_insert_with(|| vec![0; PAGE as usize].into());
            let n = within.len();
            held[within].copy_from_slice(&from[at..at + n]);
        });
        Ok(())
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        let mut state = self.look();
        state.flushes += 1;
        state.fail_flush.map_or(Ok(()), Err)
    }

    fn discard(&mut self, offset: u64, len: u64) -> Result<(), StoreError> {
        let mut state = self.look();
        state.check(offset, 0)?;
        assert!(offset + len <= state.size_bytes);
        state.discarded_bytes += len;
        state.zero(offset, len);
        Ok(())
    }

    fn write_zeroes(&mut self, offset: u64, len: u64) -> Result<(), StoreError> {
        let mut state = self.look();
        state.check(offset, 0)?;
        assert!(offset + len <= state.size_bytes);
        state.zeroed_bytes += len;
        state.zero(offset, len);
        Ok(())
    }
}
