//! The data of a read.

use farbus_model::Payload;

/// The bytes of one read, in the buffers where they arrived: nothing is copied before the reader asks for it.
#[derive(Clone, Debug, Default)]
pub struct ReadData {
    /// One payload per command; rarely more than one.
    first: Payload,
    rest: Vec<Payload>,
    /// Bytes at the front that belong to the first sector and were not asked for.
    skip: usize,
    len: usize,
}

impl ReadData {
    /// Makes space for `len` bytes after `skip` others.
    pub(super) fn new(skip: usize, len: usize) -> Self {
        Self { skip, len, ..Self::default() }
    }

    pub(super) fn push(&mut self, payload: Payload) {
        if self.first.is_empty() { self.first = payload } else { self.rest.push(payload) }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing was asked for.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes as runs of memory, in order.
    pub fn runs(&self) -> impl Iterator<Item = &[u8]> {
        let (mut skip, mut left) = (self.skip, self.len);
        let runs = std::iter::once(&self.first).chain(&self.rest).flat_map(Payload::runs);
        runs.filter_map(move |run| {
            let skipped = skip.min(run.len());
            skip -= skipped;
            let run = &run[skipped..];
            let run = &run[..run.len().min(left)];
            left -= run.len();
            (!run.is_empty()).then_some(run)
        })
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

    /// The bytes as one payload, where they arrived.
    pub fn into_payload(self) -> Payload {
        let (skip, len) = (self.skip, self.len);
        let mut all = Payload::joined(self.into_pieces().filter(|piece| !piece.is_empty()));
        if skip > 0 {
            all.split_front(skip);
        }
        all.truncate(len);
        all
    }

    /// The payloads, for the owner of the buffers.
    pub fn into_pieces(self) -> impl Iterator<Item = Payload> {
        std::iter::once(self.first).chain(self.rest)
    }
}
