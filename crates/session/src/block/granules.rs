//! A set of equal pieces of a disk, one bit each.

use std::sync::atomic::{AtomicU64, Ordering};

use farbus_model::limits::{SWAP_GRANULE_BYTES_MIN, SWAP_GRANULES_MAX};

/// A set of a disk's granules, which several threads may change at once.
#[derive(Debug)]
pub(super) struct GranuleSet {
    size_bytes: u64,
    granule_bytes: u64,
    words: Box<[AtomicU64]>,
}

/// A run of neighbouring granules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GranuleRun {
    pub offset: u64,
    pub bytes: u64,
}

impl GranuleRun {
    pub fn end(self) -> u64 {
        self.offset + self.bytes
    }
}

impl GranuleSet {
    /// The empty set for a disk of `size_bytes`. A larger disk has larger granules, which bounds the number of bits.
    pub fn none_of(size_bytes: u64) -> Self {
        let granule_bytes = size_bytes.div_ceil(SWAP_GRANULES_MAX).next_power_of_two().max(SWAP_GRANULE_BYTES_MIN);
        let words = size_bytes.div_ceil(granule_bytes).div_ceil(64);
        let words = (0..words).map(|_| AtomicU64::new(0)).collect();
        Self { size_bytes, granule_bytes, words }
    }

    /// The set of all granules.
    pub fn all_of(size_bytes: u64) -> Self {
        let all = Self::none_of(size_bytes);
        all.add(0, size_bytes);
        all
    }

    pub fn granule_bytes(&self) -> u64 {
        self.granule_bytes
    }

    /// The words that a range touches, with the range's bits in each.
    fn touched(&self, offset: u64, length: u64) -> impl Iterator<Item = (&AtomicU64, u64)> {
        // An empty range touches nothing.
        let end = (offset + length).div_ceil(self.granule_bytes) * u64::from(length > 0);
        let first = offset / self.granule_bytes;
        (first / 64..end.div_ceil(64)).map(move |word| {
            let from = first.max(word * 64) % 64;
            let to = (end - 1).min(word * 64 + 63) % 64;
            (&self.words[word as usize], (u64::MAX >> (63 - to)) & (u64::MAX << from))
        })
    }

    /// Adds every granule that the range touches; returns how many were not in the set.
    pub fn add(&self, offset: u64, length: u64) -> u64 {
        let mut added = 0;
        for (word, bits) in self.touched(offset, length) {
            // Bits that are set already need no exclusive cache line. `Release` pairs with the `AcqRel` of `remove`:
            // the thread that takes a bit sees the change that it stands for.
            if word.load(Ordering::Relaxed) & bits != bits {
                let before = word.fetch_or(bits, Ordering::Release);
                added += u64::from((bits & !before).count_ones());
            }
        }
        added
    }

    /// Whether it contains every granule that the range touches.
    pub fn has_all(&self, offset: u64, length: u64) -> bool {
        self.touched(offset, length).all(|(word, bits)| word.load(Ordering::Acquire) & bits == bits)
    }

    /// Whether it contains the granule at `offset`.
    pub fn has(&self, offset: u64) -> bool {
        let at = offset / self.granule_bytes;
        self.words[(at / 64) as usize].load(Ordering::Acquire) & 1 << (at % 64) != 0
    }

    /// Removes and returns the first granule from `offset` on, with the neighbours behind it up to `bytes_max` in total
    /// (at least one granule).
    pub fn take(&self, offset: u64, bytes_max: u64) -> Option<GranuleRun> {
        let first = self.find(offset / self.granule_bytes)?;
        let mut end = first + 1;
        self.remove(first);
        while (end + 1 - first) * self.granule_bytes <= bytes_max && self.remove(end) {
            end += 1;
        }
        let offset = first * self.granule_bytes;
        Some(GranuleRun { offset, bytes: (end * self.granule_bytes).min(self.size_bytes) - offset })
    }

    fn find(&self, from: u64) -> Option<u64> {
        let mut mask = u64::MAX << (from % 64);
        for (at, word) in self.words.iter().enumerate().skip((from / 64) as usize) {
            let bits = word.load(Ordering::Relaxed) & mask;
            if bits != 0 {
                return Some(at as u64 * 64 + u64::from(bits.trailing_zeros()));
            }
            mask = u64::MAX;
        }
        None
    }

    /// Removes a granule; returns whether it was in the set.
    fn remove(&self, at: u64) -> bool {
        let bit = 1 << (at % 64);
        let Some(word) = self.words.get((at / 64) as usize) else { return false };
        word.load(Ordering::Relaxed) & bit != 0 && word.fetch_and(!bit, Ordering::AcqRel) & bit != 0
    }

    /// Total size of the granules in the set.
    pub fn bytes(&self) -> u64 {
        self.bytes_of(self.words.iter().map(|word| u64::from(word.load(Ordering::Relaxed).count_ones())).sum())
    }

    /// Total size of the granules in the set, which are so many.
    fn bytes_of(&self, granules: u64) -> u64 {
        let last = self.size_bytes.saturating_sub(1);
        let beyond = (last / self.granule_bytes + 1) * self.granule_bytes - self.size_bytes;
        let has_last = self.size_bytes > 0 && self.has(last);
        granules * self.granule_bytes - if has_last { beyond } else { 0 }
    }
}

/// A set of granules that one thread changes, which knows its size: an empty one is not searched, and a turn that looks
/// what is left does not read the bits of a whole disk (4 MiB for the largest).
#[derive(Debug)]
pub(super) struct CountedGranuleSet {
    set: GranuleSet,
    /// Granules in the set.
    count: u64,
}

impl CountedGranuleSet {
    /// The empty set for a disk of `size_bytes`.
    pub fn none_of(size_bytes: u64) -> Self {
        Self { set: GranuleSet::none_of(size_bytes), count: 0 }
    }

    /// The set of all granules.
    pub fn all_of(size_bytes: u64) -> Self {
        let mut all = Self::none_of(size_bytes);
        all.add(0, size_bytes);
        all
    }

    pub fn granule_bytes(&self) -> u64 {
        self.set.granule_bytes
    }

    /// Adds every granule that the range touches; offset and length in bytes.
    pub fn add(&mut self, offset: u64, length: u64) {
        self.count += self.set.add(offset, length);
    }

    /// Whether it contains every granule that the range touches.
    pub fn has_all(&self, offset: u64, length: u64) -> bool {
        self.set.has_all(offset, length)
    }

    /// Whether it contains the granule at `offset`.
    pub fn has(&self, offset: u64) -> bool {
        self.set.has(offset)
    }

    /// Takes the first run from `offset` on, as [`GranuleSet::take`]; `None` if there is none.
    pub fn take(&mut self, offset: u64, bytes_max: u64) -> Option<GranuleRun> {
        let run = (self.count > 0).then(|| self.set.take(offset, bytes_max)).flatten()?;
        self.count -= run.bytes.div_ceil(self.set.granule_bytes);
        Some(run)
    }

    /// As [`CountedGranuleSet::take`]; behind the last granule the search continues with the first one.
    pub fn take_around(&mut self, offset: u64, bytes_max: u64) -> Option<GranuleRun> {
        self.take(offset, bytes_max).or_else(|| self.take(0, bytes_max))
    }

    /// Total size of the granules in the set.
    pub fn bytes(&self) -> u64 {
        self.set.bytes_of(self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRANULE: u64 = SWAP_GRANULE_BYTES_MIN;

    #[test]
    fn granules_of_the_largest_disk_need_a_few_mebibytes() {
        for size in [1, 1 << 30, (2 << 40) + 1, 16 << 40] {
            let none = GranuleSet::none_of(size);
            assert!(none.words.len() * 8 <= 4 << 20, "{} words for {size} bytes", none.words.len());
            assert_eq!(none.bytes(), 0);
        }
        assert_eq!(GranuleSet::none_of(128 << 30).granule_bytes(), GRANULE);
        assert_eq!(GranuleSet::none_of(16 << 40).granule_bytes(), 128 * GRANULE);
    }

    #[test]
    fn added_granules_are_taken_once_in_runs() {
        let size = 200 * GRANULE + 77;
        let set = GranuleSet::none_of(size);
        set.add(0, 0);
        set.add(63 * GRANULE - 1, 2 * GRANULE);
        set.add(size - 1, 1);
        assert_eq!(set.bytes(), 3 * GRANULE + 77);
        assert!(set.has(62 * GRANULE) && set.has(65 * GRANULE - 1) && !set.has(65 * GRANULE));
        assert!(set.has_all(62 * GRANULE, 3 * GRANULE) && set.has_all(64 * GRANULE + 5, 1) && set.has_all(GRANULE, 0));
        assert!(!set.has_all(62 * GRANULE, 3 * GRANULE + 1) && !set.has_all(0, size));
        assert_eq!(set.take(0, 2 * GRANULE), Some(GranuleRun { offset: 62 * GRANULE, bytes: 2 * GRANULE }));
        assert_eq!(set.take(63 * GRANULE, 1), Some(GranuleRun { offset: 64 * GRANULE, bytes: GRANULE }));
        assert_eq!(set.take(0, u64::MAX), Some(GranuleRun { offset: 200 * GRANULE, bytes: 77 }));
        assert_eq!((set.take(0, 1), set.bytes()), (None, 0));
    }

    #[test]
    fn a_counted_set_has_the_size_that_its_bits_add_up_to() {
        for size in [GRANULE, 129 * GRANULE - 1, 200 * GRANULE + 77] {
            let mut set = CountedGranuleSet::all_of(size);
            assert_eq!(set.bytes(), size);
            let mut state = 7u64;
            for turn in 0..2000 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let (offset, length) = ((state >> 20) % size, (state >> 50) % (9 * GRANULE));
                match turn % 3 {
                    0 => set.add(offset, length.min(size - offset)),
                    1 => drop(set.take_around(offset, length)),
                    _ => drop(set.take(offset, length)),
                }
                assert_eq!(set.bytes(), set.set.bytes(), "turn {turn} of {size}");
            }
            while set.take_around(size / 2, u64::MAX).is_some() {}
            assert_eq!((set.bytes(), set.set.bytes(), set.count), (0, 0, 0));
        }
    }

    #[test]
    fn all_granules_of_a_disk_add_up_to_its_size() {
        for size in [1, GRANULE, 64 * GRANULE, 64 * GRANULE + 1, 129 * GRANULE - 1] {
            let all = GranuleSet::all_of(size);
            assert_eq!(all.bytes(), size);
            let mut taken = 0;
            while let Some(run) = all.take(taken, 1 << 20) {
                assert_eq!(run.offset, taken);
                taken = run.end();
            }
            assert_eq!(taken, size);
        }
    }
}
