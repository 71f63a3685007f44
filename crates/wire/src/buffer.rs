//! Receive and send buffers: received bytes are not moved, and payloads are sent from where they lie.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

use arrayvec::ArrayVec;
use farbus_model::limits::{CREDIT_BYTES_MAX, RECEIVE_BUFFERS_KEPT_MAX};
use farbus_model::{BufferPool, Payload, new_chunk};

use crate::snapshot::SnapshotWriter;

/// Received bytes that are not parsed yet, in one shared chunk, so that a payload can be passed on as a window instead
/// of a copy.
#[derive(Debug)]
pub(crate) struct ReceiveBuffer {
    chunk: Arc<[u8]>,
    start: usize,
    end: usize,
    /// Bytes the frame at `start` needs, as far as is known.
    wanted: usize,
    capacity: usize,
    /// The size of the chunk until bytes have filled what they were offered; at most `capacity`.
    first: usize,
    /// Whether they have.
    is_filled: bool,
    /// The size of the last space.
    offered: usize,
    /// The length limit of a frame, if following frames are received together with the first.
    ahead: Option<usize>,
    /// Chunks left behind while windows pointed at them; reused once the windows are gone.
    left: Vec<Arc<[u8]>>,
    /// Bytes of `left`.
    left_bytes: usize,
    /// How many unused chunks are kept.
    left_max: usize,
    /// Windows hold [`BORROWED_BYTES_MAX`] of chunks: further payloads are copied.
    is_at_limit: bool,
    /// Bytes parsed since that was last checked.
    unchecked: usize,
    /// Payloads up to this size are copied rather than lent.
    copied_max: usize,
    /// Payloads are copied while the chunk holds no more than this.
    lone_max: usize,
}

/// A frame at least this large is received up to its end, plus the next header, and no further, so that no part of the
/// next frame has to be moved.
const LARGE_FRAME_BYTES: usize = 32 << 10;
/// A remainder this small is cheaper to move than to work around.
const SMALL_REST_BYTES: usize = 4 << 10;
/// A chunk that grew to this many times the capacity is kept: 4 MiB by default, so that transfers of 1 MiB, which FUSE
/// and large disks make, find their chunk again. A larger chunk is freed.
const KEPT_GROWTH_MAX: usize = 16;
/// Chunks kept for reuse.
const CHUNKS_LEFT_MAX: usize = 4;
/// Bytes of chunks that windows may hold, however little of each they show: the largest credit. Otherwise a peer that
/// sends a little data among much that is dropped would have a chunk held with each.
const BORROWED_BYTES_MAX: usize = CREDIT_BYTES_MAX;

impl ReceiveBuffer {
    /// Makes a buffer of `capacity` bytes that grows only as bytes arrive. It takes memory when bytes are to be
    /// received.
    pub fn new(capacity: usize) -> Self {
        let (chunk, left_max) = (Arc::default(), CHUNKS_LEFT_MAX);
        Self {
            chunk,
            is_at_limit: false,
            unchecked: 0,
            start: 0,
            end: 0,
            wanted: 0,
            capacity,
            first: capacity,
            is_filled: false,
            offered: 0,
            ahead: None,
            left: Vec::new(),
            left_bytes: 0,
            left_max,
            copied_max: 0,
            lone_max: 0,
        }
    }

    /// Receives many frames at once, whatever the first one needs: for frames that are always small compared with the
    /// buffer.
    pub fn ahead(mut self, frame_bytes_max: usize) -> Self {
        self.ahead = Some(frame_bytes_max);
        self.keeping_many()
    }

    /// Begins with a chunk of `bytes`; takes one of the full capacity as soon as so much arrives that it fills.
    pub fn beginning_with(mut self, bytes: usize) -> Self {
        self.first = bytes.min(self.capacity);
        self
    }

    /// Keeps many chunks: for a user that keeps windows for a while, as a relay does.
    pub fn keeping_many(mut self) -> Self {
        self.left_max = RECEIVE_BUFFERS_KEPT_MAX;
        self
    }

    /// Drops what is there, and frees its memory until bytes are to be received again.
    pub fn release(&mut self) {
        (self.chunk, self.start, self.end, self.wanted) = (Arc::default(), 0, 0, 0);
        (self.left, self.left_bytes, self.is_at_limit) = (Vec::new(), 0, false);
        (self.is_filled, self.offered) = (false, 0);
    }

    /// Bytes of all chunks, including those that windows show and those kept for reuse.
    pub fn chunk_bytes(&self) -> usize {
        self.chunk.len() + self.left_bytes
    }

    /// How many bytes the chunks grow by until a frame of `count` bytes is complete.
    pub fn growth_to(&self, count: usize) -> usize {
        if count <= self.chunk.len() { 0 } else { count.next_power_of_two() }
    }

    /// Frees the unused chunks.
    pub fn trim(&mut self) {
        self.left.retain_mut(|chunk| Arc::get_mut(chunk).is_none());
        self.left_bytes = self.left.iter().map(|chunk| chunk.len()).sum();
        if self.start == self.end && self.chunk.len() > self.capacity && Arc::get_mut(&mut self.chunk).is_some() {
            (self.chunk, self.start, self.end) = (Arc::default(), 0, 0);
        }
    }

    /// The space for the next bytes. Never empty. `header_bytes` is the size of the protocol's header.
    pub fn space(&mut self, header_bytes: usize) -> &mut [u8] {
        if self.chunk.is_empty() {
            self.chunk = new_chunk(if self.is_filled { self.capacity } else { self.first });
        } else if self.is_filled && self.chunk.len() < self.capacity {
            self.leave_chunk(self.capacity);
        }
        // There may be hundreds of chunks, and no more than a chunk's bytes are copied that could be lent.
        if self.is_at_limit && self.unchecked >= self.capacity {
            self.see_who_looks();
        }
        let have = self.end - self.start;
        let wanted = self.wanted.max(header_bytes);
        if have == 0 {
            self.move_rest_to(0);
        } else if have <= SMALL_REST_BYTES || self.start + wanted > self.chunk.len() {
            self.make_room(wanted);
        }
        if Arc::get_mut(&mut self.chunk).is_none() {
            self.leave_chunk(self.chunk.len());
        }
        let (end, all) = (self.end, self.chunk.len());
        // A frame that begins before this offset ends within the chunk, and is not moved to another one.
        let last_begin = self.ahead.map_or(0, |frame_bytes_max| all - frame_bytes_max.min(all / 2));
        let limit = if end < last_begin {
            last_begin
        } else if self.ahead.is_some() || self.wanted >= LARGE_FRAME_BYTES {
            (self.start + self.wanted.max(header_bytes) + header_bytes).min(all)
        } else {
            all
        };
        self.offered = limit - end;
        let chunk = Arc::get_mut(&mut self.chunk).expect("a chunk that others look at was left just now");
        &mut chunk[end..limit]
    }

    /// Reports that `count` bytes were put into [`ReceiveBuffer::space`].
    pub fn received(&mut self, count: usize) {
        self.end += count;
        self.is_filled |= count > 0 && count == self.offered;
        debug_assert!(self.end <= self.chunk.len());
    }

    /// Restores bytes that another process had received.
    pub fn refill(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            self.want(self.bytes().len() + bytes.len());
            let space = self.space(1);
            let count = space.len().min(bytes.len());
            space[..count].copy_from_slice(&bytes[..count]);
            self.received(count);
            bytes = &bytes[count..];
        }
    }

    /// The unparsed bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.chunk[self.start..self.end]
    }

    /// The frame at the front needs `count` bytes in all. The caller has checked it against a limit.
    pub fn want(&mut self, count: usize) {
        self.wanted = count;
    }

    /// Copies payloads up to this size: for a user that keeps payloads for long, and would keep a chunk with each.
    pub fn copying(mut self, copied_max: usize) -> Self {
        self.copied_max = copied_max;
        self
    }

    /// Copies payloads up to this size if they arrived nearly alone: of many that arrived together, one chunk is kept
    /// for all.
    pub fn copying_lone(mut self, copied_max: usize) -> Self {
        self.lone_max = copied_max;
        self
    }

    /// A window on bytes at the front, relative to it, as far as they are there.
    pub fn window(&self, range: Range<usize>) -> Payload {
        if range.len() <= self.copied_max || self.end <= self.lone_max {
            return self.bytes()[range].into();
        }
        if self.is_at_limit {
            // A chunk of its own: code that joins or splits payloads would make one of a plain copy, by copying again.
            let copied: Arc<[u8]> = self.bytes()[range].into();
            return Payload::shared(&copied, 0..copied.len());
        }
        Payload::shared(&self.chunk, self.start + range.start..self.start + range.end)
    }

    /// Drops the first `count` bytes, which were parsed.
    pub fn consume(&mut self, count: usize) {
        self.start += count;
        self.unchecked += count;
        self.wanted = 0;
        debug_assert!(self.start <= self.end);
    }

    fn make_room(&mut self, wanted: usize) {
        let have = self.end - self.start;
        if wanted <= self.chunk.len() {
            self.move_rest_to(0);
        } else if have == self.chunk.len() {
            // Doubles what has arrived: a peer's announced length alone reserves nothing.
            self.leave_chunk((self.chunk.len() * 2).min(wanted.next_power_of_two()));
        } else {
            self.move_rest_to(0);
        }
    }

    fn move_rest_to(&mut self, at: usize) {
        if self.start == at {
            return;
        }
        let (start, end) = (self.start, self.end);
        if start == end {
            if self.chunk.len() > self.capacity * KEPT_GROWTH_MAX {
                // One huge frame does not occupy memory for ever.
                self.chunk = new_chunk(self.capacity);
            }
            (self.start, self.end) = (at, at);
        } else if let Some(chunk) = Arc::get_mut(&mut self.chunk) {
            chunk.copy_within(start..end, at);
            (self.start, self.end) = (at, at + end - start);
        } else {
            self.leave_chunk(self.chunk.len());
        }
    }

    /// Continues in another chunk of `bytes`, and moves the unparsed rest there.
    fn leave_chunk(&mut self, bytes: usize) {
        let reusable = self.left.iter_mut().position(|chunk| chunk.len() >= bytes && Arc::get_mut(chunk).is_some());
        let mut next = match reusable {
            Some(at) => self.left.swap_remove(at),
            None => new_chunk(bytes),
        };
        let rest = self.end - self.start;
        let room = Arc::get_mut(&mut next).expect("a chunk that nobody else looks at");
        room[..rest].copy_from_slice(&self.chunk[self.start..self.end]);
        let old = std::mem::replace(&mut self.chunk, next);
        (self.start, self.end) = (0, rest);
        self.left.push(old);
        self.see_who_looks();
    }

    /// Frees unused chunks that are too many or too large, and checks whether windows hold too much.
    fn see_who_looks(&mut self) {
        let (mut idle, mut lent_bytes, mut left_bytes) = (0, 0, 0);
        let (left_max, bytes_max) = (self.left_max, self.capacity * KEPT_GROWTH_MAX);
        self.left.retain_mut(|chunk| {
            let is_idle = Arc::get_mut(chunk).is_some();
            lent_bytes += if is_idle { 0 } else { chunk.len() };
            idle += usize::from(is_idle);
            let is_kept = !is_idle || (idle <= left_max && chunk.len() <= bytes_max);
            left_bytes += if is_kept { chunk.len() } else { 0 };
            is_kept
        });
        (self.left_bytes, self.unchecked) = (left_bytes, 0);
        self.is_at_limit = lent_bytes >= BORROWED_BYTES_MAX;
    }
}

/// Bytes waiting to be sent: headers in one arena, payloads where they lie.
#[derive(Debug, Default)]
pub(crate) struct SendBuffer {
    arena: Vec<u8>,
    /// Arena bytes already sent.
    arena_sent: usize,
    pieces: VecDeque<SendSegment>,
    /// Bytes of the first piece that were sent already.
    piece_sent: usize,
    bytes: usize,
}

#[derive(Debug)]
enum SendSegment {
    /// This many bytes of the arena, after those of the pieces before.
    Arena(usize),
    Payload(Payload),
}

/// A payload up to this size is copied behind its header, which saves the kernel one run of memory.
const INLINE_PAYLOAD_BYTES: usize = 512;
/// Runs of memory in one send. Linux accepts 1024; 128 hold 32 replies of 128 KiB patterns.
pub const RUNS_MAX: usize = 128;

/// Runs of memory to send in one call, in order; a list on the stack.
pub type SendSlices<'a> = ArrayVec<IoSlice<'a>, RUNS_MAX>;

impl SendBuffer {
    /// Appends header bytes.
    pub fn put(&mut self, bytes: &[u8]) {
        self.arena.extend_from_slice(bytes);
        self.bytes += bytes.len();
        match self.pieces.back_mut() {
            Some(SendSegment::Arena(len)) => *len += bytes.len(),
            _ => self.pieces.push_back(SendSegment::Arena(bytes.len())),
        }
    }

    /// Appends a payload.
    pub fn put_payload(&mut self, payload: Payload, pool: &mut BufferPool) {
        if payload.len() <= INLINE_PAYLOAD_BYTES {
            for run in payload.runs() {
                self.put(run);
            }
            pool.recycle(payload);
        } else {
            self.bytes += payload.len();
            self.pieces.push_back(SendSegment::Payload(payload));
        }
    }

    /// Saves all waiting bytes.
    pub fn save(&self, to: &mut SnapshotWriter) {
        to.count(self.bytes);
        let (mut arena_at, mut skip) = (self.arena_sent, self.piece_sent);
        for piece in &self.pieces {
            match piece {
                SendSegment::Arena(len) => {
                    to.raw(&self.arena[arena_at..arena_at + len - skip]);
                    arena_at += len - skip;
                }
                SendSegment::Payload(payload) => payload.runs_within(skip..payload.len()).for_each(|run| to.raw(run)),
            }
            skip = 0;
        }
    }

    /// Bytes that wait to be sent: headers and payloads.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Header bytes waiting, including small payloads: these grow when a peer never reads.
    pub fn header_bytes(&self) -> usize {
        self.arena.len() - self.arena_sent
    }

    /// The runs of memory to send next, in order; at most [`RUNS_MAX`].
    pub fn runs(&self) -> SendSlices<'_> {
        let mut runs = SendSlices::new();
        self.runs_into(&mut runs);
        runs
    }

    /// As [`SendBuffer::runs`], into an empty list.
    pub fn runs_into<'a>(&'a self, runs: &mut SendSlices<'a>) {
        let mut arena_at = self.arena_sent;
        let mut skip = self.piece_sent;
        for piece in &self.pieces {
            match piece {
                SendSegment::Arena(len) => {
                    let left = len - skip;
                    runs.push(IoSlice::new(&self.arena[arena_at..arena_at + left]));
                    arena_at += left;
                    skip = 0;
                }
                SendSegment::Payload(payload) => {
                    for run in payload.runs() {
                        let from = skip.min(run.len());
                        skip -= from;
                        if from < run.len() {
                            runs.push(IoSlice::new(&run[from..]));
                        }
                        if runs.is_full() {
                            return;
                        }
                    }
                }
            }
            if runs.is_full() {
                break;
            }
        }
    }

    /// Reports that `count` bytes were sent; buffers go back to `pool`.
    pub fn sent(&mut self, mut count: usize, pool: &mut BufferPool) {
        assert!(count <= self.bytes, "no more was sent than was there");
        self.bytes -= count;
        while let Some(piece) = self.pieces.front() {
            let left = match piece {
                SendSegment::Arena(len) => len - self.piece_sent,
                SendSegment::Payload(payload) => payload.len() - self.piece_sent,
            };
            let now = left.min(count);
            if matches!(piece, SendSegment::Arena(_)) {
                self.arena_sent += now;
            }
            if now < left {
                self.piece_sent += now;
                break;
            }
            count -= now;
            self.piece_sent = 0;
            if let Some(SendSegment::Payload(payload)) = self.pieces.pop_front() {
                pool.recycle(payload);
            }
        }
        if self.pieces.is_empty() {
            self.arena.clear();
            self.arena_sent = 0;
        } else if self.arena_sent > INLINE_PAYLOAD_BYTES * RUNS_MAX {
            self.arena.drain(..self.arena_sent);
            self.arena_sent = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(incoming: &mut ReceiveBuffer, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let space = incoming.space(4);
            assert!(!space.is_empty(), "there is always room");
            let n = space.len().min(bytes.len());
            space[..n].copy_from_slice(&bytes[..n]);
            incoming.received(n);
            bytes = &bytes[n..];
        }
    }

    #[test]
    fn a_window_outlives_what_is_received_after_it() {
        let mut incoming = ReceiveBuffer::new(64);
        push(&mut incoming, &[1; 10]);
        let window = incoming.window(0..10);
        incoming.consume(10);
        push(&mut incoming, &[2; 60]);
        assert_eq!(window.into_vec(), [1; 10]);
        assert_eq!(incoming.bytes(), [2; 60]);
    }

    #[test]
    fn copied_payload_frees_the_chunk_for_the_next_bytes() {
        for (copied_max, is_reused) in [(0, false), (9, false), (10, true)] {
            let mut incoming = ReceiveBuffer::new(64).copying(copied_max);
            incoming.space(1);
            let chunk = incoming.chunk.as_ptr();
            let kept: Vec<Payload> = (0..100)
                .map(|n| {
                    push(&mut incoming, &[n; 10]);
                    let payload = incoming.window(0..10);
                    incoming.consume(10);
                    payload
                })
                .collect();
            assert_eq!(incoming.chunk.as_ptr() == chunk, is_reused, "{copied_max}");
            assert!(kept.into_iter().zip(0..100).all(|(payload, n)| payload.into_vec() == [n; 10]));
        }
    }

    #[test]
    fn lone_payload_is_copied_and_many_together_share_a_chunk() {
        let mut incoming = ReceiveBuffer::new(64).copying_lone(20);
        incoming.space(1);
        let mut kept = Vec::new();
        let mut receive = |times: usize| {
            let chunk = incoming.chunk.as_ptr();
            push(&mut incoming, &[7; 10].repeat(times));
            for _ in 0..times {
                kept.push(incoming.window(0..10));
                incoming.consume(10);
            }
            push(&mut incoming, &[0]);
            incoming.consume(1);
            incoming.chunk.as_ptr() == chunk
        };
        assert_eq!([receive(1), receive(2), receive(6)], [true, true, false]);
        assert!(kept.into_iter().all(|payload| payload.into_vec() == [7; 10]));
    }

    #[test]
    fn windows_hold_no_more_chunks_than_a_credit_however_little_they_show() {
        let mut incoming = ReceiveBuffer::new(256 << 10).ahead(64 << 10);
        let mut kept = Vec::new();
        for n in 0..400 {
            push(&mut incoming, &[n as u8; 60 << 10]);
            kept.push((n as u8, incoming.window(0..8)));
            incoming.consume(60 << 10);
        }
        let held: usize = incoming.left.iter().map(|chunk| chunk.len()).sum();
        assert!(held <= BORROWED_BYTES_MAX + (1 << 20), "{held}");
        let (_, mut joined) = kept.pop().expect("the last one was copied");
        let copied = joined.runs().next().expect("eight bytes").as_ptr();
        joined.append(Payload::shared(&Arc::from([0; 8]), 0..8));
        assert_eq!(joined.runs().next().expect("and eight").as_ptr(), copied, "a copy is not copied again");
        assert!(kept.iter().all(|(n, payload)| payload.contiguous().as_ref() == [*n; 8]));
        kept.clear();
        for _ in 0..6 {
            push(&mut incoming, &[1; 60 << 10]);
            incoming.consume(60 << 10);
        }
        assert!(!incoming.is_at_limit && incoming.left.len() <= RECEIVE_BUFFERS_KEPT_MAX, "and they are given back");
        incoming.release();
        assert!(incoming.chunk.is_empty() && incoming.left.is_empty());
    }

    #[test]
    fn a_frame_larger_than_the_buffer_grows_it_only_as_it_arrives() {
        let mut incoming = ReceiveBuffer::new(64);
        push(&mut incoming, &[1; 8]);
        incoming.want(1000);
        assert!(incoming.space(4).len() <= 64);
        push(&mut incoming, &[1; 500]);
        assert!(incoming.chunk.len() <= 1024, "{}", incoming.chunk.len());
        push(&mut incoming, &[1; 492]);
        assert_eq!(incoming.bytes(), [1; 1000]);
        incoming.consume(1000);
        push(&mut incoming, &[3]);
        assert_eq!((incoming.bytes(), incoming.chunk.len()), ([3].as_slice(), 1024), "and is kept");
        incoming.consume(1);
        incoming.want(2000);
        push(&mut incoming, &[1; 2000]);
        incoming.consume(2000);
        push(&mut incoming, &[3]);
        assert_eq!((incoming.bytes(), incoming.chunk.len()), ([3].as_slice(), 64), "but a huge one is let go");
    }

    #[test]
    fn sent_bytes_are_in_order_whatever_is_taken_at_a_time() {
        let mut pool = BufferPool::new(1 << 20);
        for step in [1, 7, 48, 600, 5000] {
            let mut outgoing = SendBuffer::default();
            let mut expected: Vec<u8> = Vec::new();
            for n in 0..40u8 {
                outgoing.put(&[n; 48]);
                expected.extend([n; 48]);
                let payload = vec![n; usize::from(n) * 30];
                expected.extend(&payload);
                outgoing.put_payload(payload.into(), &mut pool);
            }
            let mut got: Vec<u8> = Vec::new();
            while outgoing.len() > 0 {
                let part: Vec<u8> = outgoing.runs().iter().flat_map(|run| run.iter().copied()).take(step).collect();
                assert!(!part.is_empty());
                outgoing.sent(part.len(), &mut pool);
                got.extend(part);
            }
            assert_eq!(got, expected);
            assert_eq!((outgoing.header_bytes(), outgoing.arena.len()), (0, 0));
        }
    }
}
