//! The bytes of a transfer, stored so that they are copied once and not twice.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// The data of one URB. Cheap to move; has no direction.
#[derive(Clone, Debug, Default)]
pub enum Payload {
    /// No data, for example of an IN request before it completes.
    #[default]
    Empty,
    /// Owned bytes, usually from a [`BufferPool`].
    Bytes(Vec<u8>),
    /// A window on a shared buffer, for example a link's receive buffer.
    Shared(BufferWindow),
    /// Memory lent by a kernel or a device until the last clone is dropped.
    Borrowed(BorrowedMemory),
    /// A fixed pattern, repeated: costs no memory whatever its length.
    Pattern(RepeatedPattern),
    /// Several windows, one behind the other: what arrived in several frames.
    Parts(Vec<BufferWindow>),
}

/// A window on a shared buffer.
#[derive(Clone, Debug)]
pub struct BufferWindow {
    chunk: Arc<[u8]>,
    start: usize,
    len: usize,
}

/// The beginning of lent memory. Opaque here: the lender knows what it is made of, and that nothing writes to it while
/// this is held.
#[derive(Clone)]
pub struct BorrowedMemory {
    memory: Arc<dyn AsRef<[u8]> + Send + Sync>,
    len: usize,
}

impl fmt::Debug for BorrowedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BorrowedMemory").field("len", &self.len).finish_non_exhaustive()
    }
}

impl BorrowedMemory {
    fn bytes(&self) -> &[u8] {
        &(*self.memory).as_ref()[..self.len]
    }
}

impl BufferWindow {
    fn bytes(&self) -> &[u8] {
        &self.chunk[self.start..self.start + self.len]
    }
}

/// Up to this size, making a chunk may take its memory twice for a moment.
const COPIED_BYTES_MAX: usize = 1 << 20;

/// A shared buffer of so many bytes, which are zero, for data that are read into it and handed on without a copy
/// ([`Payload::Shared`]).
pub fn new_chunk(bytes: usize) -> Arc<[u8]> {
    if bytes > COPIED_BYTES_MAX || !cfg!(debug_assertions) {
        // One allocation of a known length: a huge frame takes its size and not three times as much.
        return std::iter::repeat_n(0, bytes).collect();
    }
    // Zeroed pages and a copy: without optimization the iterator is very slow.
    vec![0; bytes].into()
}

/// `unit`, repeated from its start until `len` bytes are made. `unit` is never empty.
#[derive(Clone, Copy, Debug)]
pub struct RepeatedPattern {
    unit: &'static [u8],
    len: usize,
}

impl Payload {
    /// A window on `chunk`.
    ///
    /// # Panics
    /// If `range` does not lie in `chunk`.
    pub fn shared(chunk: &Arc<[u8]>, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= chunk.len(), "a window lies in its chunk");
        if range.is_empty() {
            return Payload::Empty;
        }
        Payload::Shared(BufferWindow { chunk: Arc::clone(chunk), start: range.start, len: range.len() })
    }

    /// The first `len` bytes of lent memory; dropping the last clone gives it back.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn lent(memory: Arc<dyn AsRef<[u8]> + Send + Sync>, len: usize) -> Self {
        assert!(len <= (*memory).as_ref().len(), "a payload lies in its memory");
        if len == 0 { Payload::Empty } else { Payload::Borrowed(BorrowedMemory { memory, len }) }
    }

    /// `len` bytes of `unit` repeated.
    ///
    /// # Panics
    /// If `unit` is empty.
    pub fn pattern(unit: &'static [u8], len: usize) -> Self {
        assert!(!unit.is_empty(), "a pattern has a unit");
        if len == 0 { Payload::Empty } else { Payload::Pattern(RepeatedPattern { unit, len }) }
    }

    /// Joins payloads. Windows are not copied.
    pub fn joined(payloads: impl IntoIterator<Item = Payload>) -> Self {
        let mut all = Payload::Empty;
        payloads.into_iter().for_each(|payload| all.append(payload));
        all
    }

    /// Appends a payload. Windows are not copied.
    pub fn append(&mut self, payload: Payload) {
        match (&mut *self, payload) {
            (_, Payload::Empty) => {}
            (Payload::Empty, payload) => *self = payload,
            (Payload::Parts(parts), Payload::Shared(window)) => parts.push(window),
            (_, payload) => {
                let mut parts = std::mem::take(self).into_windows();
                parts.extend(payload.into_windows());
                *self = Payload::Parts(parts);
            }
        }
    }

    fn into_windows(self) -> Vec<BufferWindow> {
        match self {
            Payload::Empty => Vec::new(),
            Payload::Shared(window) => vec![window],
            Payload::Parts(parts) => parts,
            other => {
                let chunk: Arc<[u8]> = other.into_vec().into();
                vec![BufferWindow { start: 0, len: chunk.len(), chunk }]
            }
        }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Payload::Empty => 0,
            Payload::Bytes(bytes) => bytes.len(),
            Payload::Shared(shared) => shared.len,
            Payload::Borrowed(lent) => lent.len,
            Payload::Pattern(pattern) => pattern.len,
            Payload::Parts(parts) => parts.iter().map(|part| part.len).sum(),
        }
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Keeps the first `len` bytes; does nothing if there are fewer.
    pub fn truncate(&mut self, len: usize) {
        match self {
            Payload::Empty => {}
            Payload::Bytes(bytes) => bytes.truncate(len),
            Payload::Shared(shared) => shared.len = shared.len.min(len),
            Payload::Borrowed(lent) => lent.len = lent.len.min(len),
            Payload::Pattern(pattern) => pattern.len = pattern.len.min(len),
            Payload::Parts(parts) => {
                let mut left = len;
                parts.retain_mut(|part| {
                    part.len = part.len.min(left);
                    left -= part.len;
                    part.len > 0
                });
            }
        }
    }

    /// The bytes as runs of memory, in order: one for all kinds but patterns and parts.
    pub fn runs(&self) -> impl Iterator<Item = &[u8]> {
        (0..).map_while(|index| self.run(index)).filter(|run| !run.is_empty())
    }

    /// Like [`Payload::runs`], for a part of the bytes.
    pub fn runs_within(&self, range: Range<usize>) -> impl Iterator<Item = &[u8]> {
        let (mut skip, mut left) = (range.start, range.len());
        self.runs().filter_map(move |run| {
            let from = skip.min(run.len());
            skip -= from;
            let run = &run[from..];
            let run = &run[..run.len().min(left)];
            left -= run.len();
            (!run.is_empty()).then_some(run)
        })
    }

    fn run(&self, index: usize) -> Option<&[u8]> {
        let whole = match self {
            Payload::Empty => return None,
            Payload::Bytes(bytes) => bytes,
            Payload::Shared(window) => window.bytes(),
            Payload::Borrowed(lent) => lent.bytes(),
            Payload::Pattern(pattern) => {
                let left = pattern.len.checked_sub(index * pattern.unit.len())?;
                return Some(&pattern.unit[..pattern.unit.len().min(left)]).filter(|run| !run.is_empty());
            }
            Payload::Parts(parts) => return parts.get(index).map(BufferWindow::bytes),
        };
        (index == 0).then_some(whole)
    }

    /// The bytes in one piece; copies only a pattern longer than its unit, and parts.
    pub fn contiguous(&self) -> Cow<'_, [u8]> {
        match self {
            Payload::Empty => Cow::Borrowed(&[]),
            Payload::Bytes(bytes) => Cow::Borrowed(bytes),
            Payload::Shared(window) => Cow::Borrowed(window.bytes()),
            Payload::Borrowed(lent) => Cow::Borrowed(lent.bytes()),
            Payload::Pattern(p) if p.len <= p.unit.len() => Cow::Borrowed(&p.unit[..p.len]),
            Payload::Pattern(_) | Payload::Parts(_) => Cow::Owned(self.runs().collect::<Vec<_>>().concat()),
        }
    }

    /// Copies the bytes to the start of `to` and returns how many; stops where either ends.
    pub fn copy_to(&self, to: &mut [u8]) -> usize {
        let mut at = 0;
        for run in self.runs() {
            let n = run.len().min(to.len() - at);
            to[at..at + n].copy_from_slice(&run[..n]);
            at += n;
        }
        at
    }

    /// The bytes as an owned vector, without a copy where they already are one.
    pub fn into_vec(self) -> Vec<u8> {
        match self {
            Payload::Bytes(bytes) => bytes,
            other => other.contiguous().into_owned(),
        }
    }

    /// Copies a window's bytes, or lent ones, into an owned buffer; other kinds stay as they are.
    pub fn own(&mut self) {
        if let Payload::Shared(_) | Payload::Borrowed(_) | Payload::Parts(_) = self {
            *self = Payload::Bytes(self.contiguous().into_owned());
        }
    }

    /// Makes clones cheap: owned bytes become shared memory, without a copy. A shared buffer does not return to a pool.
    pub fn share(&mut self) {
        if let Payload::Bytes(bytes) = self {
            let bytes = std::mem::take(bytes);
            let len = bytes.len();
            *self = Payload::lent(Arc::new(bytes), len);
        }
    }

    /// Takes the first `n` bytes off and returns them; the rest stays. Windows and patterns are
    /// split without a copy (a pattern only where the cut falls on a unit's end).
    pub fn split_front(&mut self, n: usize) -> Payload {
        if n >= self.len() {
            return std::mem::take(self);
        }
        match self {
            Payload::Shared(s) => {
                let front = Payload::shared(&s.chunk, s.start..s.start + n);
                s.start += n;
                s.len -= n;
                front
            }
            Payload::Pattern(p) if n.is_multiple_of(p.unit.len()) => {
                p.len -= n;
                Payload::pattern(p.unit, n)
            }
            Payload::Parts(parts) => {
                let mut left = n;
                let whole =
                    parts.iter().take_while(|part| left.checked_sub(part.len).map(|rest| left = rest).is_some());
                let whole = whole.count();
                let mut front: Vec<BufferWindow> = parts.drain(..whole).collect();
                if left > 0
                    && let Some(part) = parts.first_mut()
                {
                    front.push(BufferWindow { chunk: Arc::clone(&part.chunk), start: part.start, len: left });
                    part.start += left;
                    part.len -= left;
                }
                match <[BufferWindow; 1]>::try_from(front) {
                    Ok([one]) => Payload::Shared(one),
                    Err(front) if front.is_empty() => Payload::Empty,
                    Err(front) => Payload::Parts(front),
                }
            }
            other => {
                let all: Arc<[u8]> = other.contiguous().into_owned().into();
                *other = Payload::shared(&all, n..all.len());
                Payload::shared(&all, 0..n)
            }
        }
    }
}

/// A payload that arrives piece by piece. Large pieces stay where they are; small ones are copied together, so that a
/// peer that cuts a message into tiny pieces makes it take no more memory than its bytes.
#[derive(Debug, Default)]
pub struct PayloadAssembler {
    whole: Payload,
    /// Small pieces, after all others.
    tail: Vec<u8>,
}

/// Pieces below this size are copied.
const SMALL_PIECE_BYTES: usize = 4 << 10;

impl PayloadAssembler {
    /// Appends a piece.
    pub fn push(&mut self, piece: Payload) {
        match piece.len() {
            0 => {}
            // A single piece stays where it is.
            _ if self.is_empty() => self.whole = piece,
            len if len < SMALL_PIECE_BYTES => {
                if matches!(self.whole, Payload::Shared(_)) && self.whole.len() < SMALL_PIECE_BYTES {
                    self.tail = std::mem::take(&mut self.whole).into_vec();
                }
                piece.runs().for_each(|run| self.tail.extend_from_slice(run));
            }
            _ => {
                self.take_tail();
                self.whole.append(piece);
            }
        }
    }

    fn take_tail(&mut self) {
        if !self.tail.is_empty() {
            self.whole.append(std::mem::take(&mut self.tail).into());
        }
    }

    /// Bytes held so far.
    pub fn len(&self) -> usize {
        self.whole.len() + self.tail.len()
    }

    /// Whether no bytes are held.
    pub fn is_empty(&self) -> bool {
        matches!(self.whole, Payload::Empty) && self.tail.is_empty()
    }

    /// The bytes as runs of memory, in order.
    pub fn runs(&self) -> impl Iterator<Item = &[u8]> {
        self.whole.runs().chain(Some(&self.tail[..]).filter(|tail| !tail.is_empty()))
    }

    /// All pieces as one payload.
    pub fn into_payload(mut self) -> Payload {
        self.take_tail();
        self.whole
    }
}

impl From<Payload> for PayloadAssembler {
    fn from(whole: Payload) -> Self {
        Self { whole, tail: Vec::new() }
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Self {
        if bytes.is_empty() { Payload::Empty } else { Payload::Bytes(bytes) }
    }
}

impl From<&[u8]> for Payload {
    fn from(bytes: &[u8]) -> Self {
        bytes.to_vec().into()
    }
}

impl PartialEq for Payload {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.contiguous() == other.contiguous()
    }
}

/// A pool of reusable buffers: the data path allocates while it warms up and then no more.
///
/// Bounded by bytes kept, so that one burst of large transfers does not occupy memory for ever.
#[derive(Debug)]
pub struct BufferPool {
    free: Vec<Vec<u8>>,
    kept_bytes: usize,
    kept_bytes_max: usize,
}

/// The allocation of a larger buffer may fail and is then refused; that of a smaller one must succeed, as everything
/// else needs it too.
const LARGE_BUFFER_BYTES: usize = 1 << 20;

impl BufferPool {
    /// A pool that keeps at most `kept_bytes_max` bytes of idle buffers.
    pub fn new(kept_bytes_max: usize) -> Self {
        Self { free: Vec::new(), kept_bytes: 0, kept_bytes_max }
    }

    /// A buffer of exactly `len` bytes. Its content is whatever an earlier transfer on the same
    /// engine left there (or zeros): overwrite all of it, or truncate to what was written.
    pub fn take(&mut self, len: usize) -> Vec<u8> {
        // The last one put back is the one still in the cache.
        let fits = self.free.iter().rposition(|buffer| buffer.capacity() >= len);
        let mut buffer = match fits {
            Some(at) => self.free.swap_remove(at),
            None => self.free.pop().unwrap_or_default(),
        };
        self.kept_bytes -= buffer.capacity();
        if buffer.capacity() < len {
            // Growing would copy the stale content; a fresh, zeroed one does not.
            return vec![0; len];
        }
        buffer.resize(len, 0);
        buffer
    }

    /// Like [`BufferPool::take`] for a length that a peer chose: `None` if a large buffer cannot be allocated.
    pub fn try_take(&mut self, len: usize) -> Option<Vec<u8>> {
        if len <= LARGE_BUFFER_BYTES || self.free.iter().any(|buffer| buffer.capacity() >= len) {
            return Some(self.take(len));
        }
        let mut buffer = Vec::new();
        buffer.try_reserve_exact(len).ok()?;
        buffer.resize(len, 0);
        Some(buffer)
    }

    /// Returns a buffer to the pool.
    pub fn put(&mut self, buffer: Vec<u8>) {
        let bytes = buffer.capacity();
        if bytes > 0 && self.kept_bytes + bytes <= self.kept_bytes_max {
            self.kept_bytes += bytes;
            self.free.push(buffer);
        }
    }

    /// Returns a payload's buffer to the pool, if the payload owns one.
    pub fn recycle(&mut self, payload: Payload) {
        if let Payload::Bytes(buffer) = payload {
            self.put(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: &[u8] = &[1, 2, 3];

    #[test]
    fn a_pattern_is_its_unit_repeated() {
        let payload = Payload::pattern(UNIT, 7);
        assert_eq!(payload.runs().map(<[u8]>::len).collect::<Vec<_>>(), [3, 3, 1]);
        assert_eq!(payload.contiguous().as_ref(), [1, 2, 3, 1, 2, 3, 1]);
        let mut out = [0; 5];
        assert_eq!(payload.copy_to(&mut out), 5);
        assert_eq!(out, [1, 2, 3, 1, 2]);
    }

    #[test]
    fn every_kind_splits_and_truncates_alike() {
        let chunk: Arc<[u8]> = vec![9, 1, 2, 3, 1, 2, 3, 9].into();
        let lent = Payload::lent(Arc::new([1, 2, 3, 1, 2, 3, 9]), 6);
        let window = Payload::shared(&chunk, 1..7);
        let parts = Payload::joined([Payload::shared(&chunk, 1..3), vec![3].into(), Payload::shared(&chunk, 4..7)]);
        assert!(matches!(&parts, Payload::Parts(parts) if parts.len() == 3));
        let kinds = [Payload::from(vec![1, 2, 3, 1, 2, 3]), window, lent, Payload::pattern(UNIT, 6), parts];
        for payload in kinds {
            for cut in 0..=7 {
                let mut rest = payload.clone();
                let front = rest.split_front(cut);
                assert_eq!(front.len(), cut.min(6));
                assert_eq!([front.into_vec(), rest.into_vec()].concat(), [1, 2, 3, 1, 2, 3]);
                let mut short = payload.clone();
                short.truncate(cut);
                assert_eq!(short.into_vec(), &[1, 2, 3, 1, 2, 3][..cut.min(6)]);
                let within = payload.runs_within(cut.min(4)..6).collect::<Vec<_>>().concat();
                assert_eq!(within, &[1, 2, 3, 1, 2, 3][cut.min(4)..]);
                assert_eq!(payload.runs_within(1..1 + cut.min(5)).map(<[u8]>::len).sum::<usize>(), cut.min(5));
            }
        }
    }

    #[test]
    fn lent_memory_is_held_until_the_last_clone_is_dropped() {
        let memory: Arc<Vec<u8>> = Arc::new(vec![1, 2, 3]);
        let payload = Payload::lent(Arc::<Vec<u8>>::clone(&memory), 2);
        let mut other = payload.clone();
        drop(payload);
        assert_eq!((Arc::strong_count(&memory), other.contiguous().as_ref()), (2, [1, 2].as_slice()));
        other.own();
        assert_eq!((Arc::strong_count(&memory), other), (1, Payload::from(vec![1, 2])));
        assert!(matches!(Payload::lent(memory, 0), Payload::Empty));
    }

    #[test]
    fn a_pool_hands_the_same_memory_out_again_and_keeps_its_bound() {
        let mut pool = BufferPool::new(100);
        let first = pool.take(64);
        let at = first.as_ptr();
        pool.put(first);
        let second = pool.take(32);
        assert_eq!((second.as_ptr(), second.len()), (at, 32));
        pool.put(second);
        pool.put(vec![0; 1000]);
        assert!(pool.kept_bytes <= 100);
        assert_eq!(pool.take(1000).len(), 1000);
        assert_eq!(pool.try_take(2 << 20).map(|buffer| buffer.len()), Some(2 << 20));
        assert_eq!(pool.try_take(isize::MAX as usize), None, "it is refused, and nobody's process ends");
    }

    #[test]
    fn pieces_of_any_size_become_the_whole_and_small_ones_hold_no_chunk() {
        let chunk: Arc<[u8]> = (0..64_000_u32).map(|at| (at / 7) as u8).collect();
        for cuts in [vec![1; 3000], vec![5000, 1, 1, 5000, 4095, 4096, 3], vec![64_000], vec![3, 60_000], Vec::new()] {
            let (mut pieces, mut at) = (PayloadAssembler::default(), 0);
            for len in &cuts {
                pieces.push(Payload::shared(&chunk, at..at + len));
                pieces.push(Payload::Empty);
                at += len;
            }
            assert_eq!((pieces.len(), pieces.is_empty()), (at, cuts.is_empty()));
            assert_eq!(pieces.runs().collect::<Vec<_>>().concat(), chunk[..at]);
            if cuts.len() == 3000 {
                assert_eq!(Arc::strong_count(&chunk), 1, "it was copied");
            }
            assert_eq!(pieces.into_payload().contiguous().as_ref(), &chunk[..at]);
        }
    }
}
