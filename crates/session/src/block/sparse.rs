//! A store in memory that uses memory only for what was written.

use farbus_model::{BlockStore, StoreError, StoreExtent};

/// Bytes allocated at a time: a read of the usual size fits into one chunk, and it is a sixteenth of a 2 MiB huge page.
const CHUNK_BYTES: usize = 128 << 10;

/// Chunks per shelf of the two-level table: a disk of 16 TiB has 32768 shelves.
const SHELF_CHUNKS: usize = 4096;

type SparseChunk = Option<Box<[u8]>>;

/// A sparse store in memory, of any size: for private changes of a view, and as a disk in tests and measurements.
#[derive(Debug)]
pub struct SparseMemory {
    size_bytes: u64,
    shelves: Vec<Box<[SparseChunk]>>,
    chunks_left: u64,
}

impl SparseMemory {
    /// A store of `size_bytes`, of which at most `written_bytes_max` can be written: further writes fail with
    /// [`StoreError::NoSpace`].
    pub fn new(size_bytes: u64, written_bytes_max: u64) -> Self {
        let shelves = size_bytes.div_ceil((CHUNK_BYTES * SHELF_CHUNKS) as u64) as usize;
        let chunks_left = written_bytes_max.div_ceil(CHUNK_BYTES as u64);
        Self { size_bytes, shelves: vec![Box::default(); shelves], chunks_left }
    }

    fn chunk(&mut self, chunk: usize) -> Option<&mut Box<[u8]>> {
        self.shelves[chunk / SHELF_CHUNKS].get_mut(chunk % SHELF_CHUNKS)?.as_mut()
    }

    /// The chunk, allocated if it was not there.
    fn chunk_to_fill(&mut self, chunk: usize) -> Result<&mut [u8], StoreError> {
        let shelf = &mut self.shelves[chunk / SHELF_CHUNKS];
        if shelf.is_empty() {
            *shelf = vec![None; SHELF_CHUNKS].into();
        }
        let bytes = &mut shelf[chunk % SHELF_CHUNKS];
        if bytes.is_none() {
            self.chunks_left = self.chunks_left.checked_sub(1).ok_or(StoreError::NoSpace)?;
        }
        Ok(bytes.get_or_insert_with(|| vec![0; CHUNK_BYTES].into()))
    }

    /// The pieces of a range: index of the chunk, offset in it, length.
    fn pieces(offset: u64, length: u64) -> impl Iterator<Item = (usize, usize, usize)> {
        let end = offset + length;
        let mut at = offset;
        std::iter::from_fn(move || {
            let into = (at % CHUNK_BYTES as u64) as usize;
            let count = ((CHUNK_BYTES - into) as u64).min(end - at) as usize;
            let chunk = (at / CHUNK_BYTES as u64) as usize;
            at += count as u64;
            (count > 0).then_some((chunk, into, count))
        })
    }
}

impl BlockStore for SparseMemory {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&mut self, offset: u64, to: &mut [u8]) -> Result<(), StoreError> {
        let mut to = to;
        for (chunk, into, count) in Self::pieces(offset, to.len() as u64) {
            let (front, rest) = to.split_at_mut(count);
            match self.chunk(chunk) {
                Some(bytes) => front.copy_from_slice(&bytes[into..into + count]),
                None => front.fill(0),
            }
            to = rest;
        }
        Ok(())
    }

    fn write_at(&mut self, offset: u64, from: &[u8]) -> Result<(), StoreError> {
        let mut from = from;
        for (chunk, into, count) in Self::pieces(offset, from.len() as u64) {
            let (front, rest) = from.split_at(count);
            self.chunk_to_fill(chunk)?[into..into + count].copy_from_slice(front);
            from = rest;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        Ok(())
    }

    fn discard(&mut self, offset: u64, len: u64) -> Result<(), StoreError> {
        for (chunk, into, count) in Self::pieces(offset, len) {
            let slot = self.shelves[chunk / SHELF_CHUNKS].get_mut(chunk % SHELF_CHUNKS);
            let Some(slot) = slot.filter(|bytes| bytes.is_some()) else { continue };
            if count == CHUNK_BYTES {
                *slot = None;
                self.chunks_left += 1;
            } else if let Some(bytes) = slot {
                bytes[into..into + count].fill(0);
            }
        }
        Ok(())
    }

    fn write_zeroes(&mut self, offset: u64, len: u64) -> Result<(), StoreError> {
        for (chunk, into, count) in Self::pieces(offset, len) {
            if let Some(bytes) = self.chunk(chunk) {
                bytes[into..into + count].fill(0);
            }
        }
        Ok(())
    }

    fn extent(&mut self, offset: u64, len: u64) -> Result<StoreExtent, StoreError> {
        let mut first = StoreExtent { length: 0, is_hole: false };
        for (chunk, _, count) in Self::pieces(offset, len) {
            let is_hole = self.chunk(chunk).is_none();
            if first.length > 0 && first.is_hole != is_hole {
                break;
            }
            first = StoreExtent { length: first.length + count as u64, is_hole };
        }
        Ok(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sparse_store_of_16_tib_allocates_only_what_is_written_up_to_its_limit() {
        let size = 16 << 40;
        let mut store = SparseMemory::new(size, 300 << 10);
        store.write_at(size - 3, &[1, 2, 3]).unwrap();
        store.write_at(CHUNK_BYTES as u64 - 1, &[4, 5]).unwrap();
        assert_eq!(store.write_at(1 << 40, &[6]), Err(StoreError::NoSpace));
        let mut bytes = [9; 4];
        store.read_at(size - 4, &mut bytes).unwrap();
        assert_eq!(bytes, [0, 1, 2, 3]);
        store.read_at(CHUNK_BYTES as u64 - 2, &mut bytes).unwrap();
        assert_eq!(bytes, [0, 4, 5, 0]);
        store.discard(0, CHUNK_BYTES as u64 + 1).unwrap();
        store.write_at(1 << 40, &[6]).unwrap();
        store.read_at(CHUNK_BYTES as u64 - 2, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 4]);
    }
}
