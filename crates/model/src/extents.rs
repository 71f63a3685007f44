//! Which parts of a range are holes: the answer to [`BlockOp::Map`](crate::BlockOp::Map).

use crate::payload::Payload;

/// Bytes in a row that are all data or all a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreExtent {
    /// How many, from 1.
    pub length: u64,
    /// Whether they read as zeros and take no space. Data may read as zeros, too.
    pub is_hole: bool,
}

/// The extents of a range from its start, in order and without gaps. They may end before the range does: who wants
/// to know the rest asks for it.
///
/// As an answer's payload they have [`ExtentList::BYTES`] bytes, however many they are:
///
/// ```text
///   0 length 4, big-endian   4 1 for a hole, 0 for data 4, big-endian   8 the next one …   then zeros
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtentList(Vec<StoreExtent>);

impl ExtentList {
    /// The most extents of one answer: enough for few round trips, and little memory for each request in flight.
    pub const MAX: usize = 128;
    /// Bytes of an answer's payload.
    pub const BYTES: usize = Self::MAX * Self::EXTENT_BYTES;
    const EXTENT_BYTES: usize = 8;

    /// What a device answers that does not know better: all is data.
    pub fn data(length: u64) -> Self {
        let mut extents = Self::default();
        extents.push(StoreExtent { length, is_hole: false });
        extents
    }

    /// Adds an extent, joined with the one before if both are of the same kind. Returns whether there was room.
    pub fn push(&mut self, extent: StoreExtent) -> bool {
        let is_full = self.0.len() == Self::MAX;
        match self.0.last_mut() {
            _ if extent.length == 0 => {}
            Some(last) if last.is_hole == extent.is_hole => last.length += extent.length,
            _ if is_full => return false,
            _ => self.0.push(extent),
        }
        true
    }

    /// The extents, in order.
    pub fn iter(&self) -> impl Iterator<Item = StoreExtent> {
        self.0.iter().copied()
    }

    /// Bytes from the range's start that they tell of.
    pub fn length(&self) -> u64 {
        self.iter().map(|extent| extent.length).sum()
    }

    /// What they tell of `length` bytes from `from` on.
    #[must_use]
    pub fn cut(&self, from: u64, length: u64) -> Self {
        let (mut part, mut at, end) = (Self::default(), 0, from + length);
        for extent in self.iter() {
            let (start, stop) = (from.max(at), end.min(at + extent.length));
            part.push(StoreExtent { length: stop.saturating_sub(start), ..extent });
            at += extent.length;
        }
        part
    }

    /// Widens the data to whole blocks of `block` bytes: a block that is partly data is data. The range begins and ends
    /// with a block.
    #[must_use]
    pub fn aligned(&self, block: u64) -> Self {
        let (mut whole, mut at, mut covered) = (Self::default(), 0, 0);
        for extent in self.iter() {
            at += extent.length;
            let end = if extent.is_hole { at / block * block } else { at.next_multiple_of(block) };
            whole.push(StoreExtent { length: end.saturating_sub(covered), ..extent });
            covered = covered.max(end);
        }
        if covered == 0 && at > 0 { Self::data(block) } else { whole }
    }

    /// Writes them as an answer's payload, which fills `to`.
    ///
    /// # Panics
    /// If `to` has not [`ExtentList::BYTES`] bytes, or an extent has more than 32 bits can count: a range has not.
    pub fn write(&self, to: &mut [u8]) {
        assert_eq!(to.len(), Self::BYTES, "the payload of such an answer has one size");
        to.fill(0);
        for (extent, to) in self.iter().zip(to.chunks_exact_mut(Self::EXTENT_BYTES)) {
            let length = u32::try_from(extent.length).expect("a range's length fits 32 bits");
            to[..4].copy_from_slice(&length.to_be_bytes());
            to[4..].copy_from_slice(&u32::from(extent.is_hole).to_be_bytes());
        }
    }

    /// An answer's payload.
    pub fn to_payload(&self) -> Payload {
        let mut bytes = vec![0; Self::BYTES];
        self.write(&mut bytes);
        bytes.into()
    }

    /// Reads the payload of the answer about a range of `length` bytes. `None` if it cannot be one.
    pub fn read(payload: &Payload, length: u32) -> Option<Self> {
        let bytes = payload.contiguous();
        if bytes.len() != Self::BYTES {
            return None;
        }
        let mut all = bytes.chunks_exact(Self::EXTENT_BYTES).map(|extent| {
            let word = |at: usize| u32::from_be_bytes(std::array::from_fn(|byte| extent[at + byte]));
            (word(0), word(4))
        });
        let mut extents = Self::default();
        for (length, kind) in all.by_ref().take_while(|extent| *extent != (0, 0)) {
            let extent = StoreExtent { length: length.into(), is_hole: kind == 1 };
            if length == 0 || kind > 1 || !extents.push(extent) {
                return None;
            }
        }
        let covered = extents.length();
        let is_plausible = covered <= length.into() && (covered > 0 || length == 0);
        (is_plausible && all.all(|rest| rest == (0, 0))).then_some(extents)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Positive: data; negative: a hole.
    fn extents(all: &[i64]) -> ExtentList {
        let mut extents = ExtentList::default();
        for length in all {
            assert!(extents.push(StoreExtent { length: length.unsigned_abs(), is_hole: *length < 0 }));
        }
        extents
    }

    #[test]
    fn extents_survive_the_way_as_a_payload() {
        let many: Vec<i64> = (0..128).map(|at| if at % 2 == 0 { 512 } else { -4096 }).collect();
        for all in [&[][..], &[7], &[-i64::from(u32::MAX)], &[512, -512, 1], &many] {
            let extents = extents(all);
            let length = u32::try_from(extents.length()).unwrap();
            assert_eq!(ExtentList::read(&extents.to_payload(), length), Some(extents));
        }
        let mut full = extents(&many);
        assert!(
            full.push(StoreExtent { length: 1, is_hole: true })
                && !full.push(StoreExtent { length: 1, is_hole: false })
        );
    }

    #[test]
    fn payload_that_cannot_be_the_answer_is_none() {
        let good = extents(&[512, -512]).to_payload().into_vec();
        let read = |bytes: &[u8], length| ExtentList::read(&bytes.to_vec().into(), length);
        assert!(read(&good, 1024).is_some() && read(&good, 2048).is_some());
        assert_eq!(read(&good, 1023), None, "more than was asked for");
        assert_eq!(read(&good[1..], 1024), None);
        assert_eq!(read(&[0; ExtentList::BYTES], 1024), None, "it tells nothing");
        for (at, byte) in [(7, 2), (4, 1), (20, 1), (ExtentList::BYTES - 1, 1)] {
            let mut bad = good.clone();
            bad[at] = byte;
            assert_eq!(read(&bad, 1024), None, "byte {at}");
        }
    }

    #[test]
    fn extents_are_cut_and_widened_to_blocks() {
        let all = extents(&[1000, -3000, 96]);
        assert_eq!(all.cut(0, 1 << 20), all);
        assert_eq!(all.cut(500, 1000), extents(&[500, -500]));
        assert_eq!(all.cut(1000, 3000), extents(&[-3000]));
        assert_eq!(all.cut(4096, 1), extents(&[]));
        assert_eq!(all.aligned(1), all);
        assert_eq!(all.aligned(512), extents(&[1024, -2560, 512]));
        assert_eq!(all.aligned(4096), extents(&[4096]));
        assert_eq!(extents(&[-100]).aligned(512), extents(&[512]), "something is told of each range");
        assert_eq!(extents(&[512, -511, 1, -1024]).aligned(512), extents(&[1024, -1024]));
    }
}
