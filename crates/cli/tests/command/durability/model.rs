//! What each sector of a disk may hold, from what its writer was told. Each sector names its place, its writer and the
//! version of its content.

use super::random::Random;
use super::store::View;

pub const SECTOR: usize = 512;
/// A sector that was never written.
const NEVER: u32 = 0;

/// The content of a sector in this version.
pub fn content(sector: u64, writer: u32, version: u32) -> Vec<u8> {
    if version == NEVER {
        return vec![0; SECTOR];
    }
    let head = [sector.to_le_bytes().to_vec(), writer.to_le_bytes().to_vec(), version.to_le_bytes().to_vec()].concat();
    let mut noise = Random::new(sector << 40 ^ u64::from(writer) << 32 ^ u64::from(version));
    let rest = (head.len()..SECTOR).step_by(8).flat_map(|_| noise.next().to_le_bytes());
    head.iter().copied().chain(rest).collect()
}

/// The version of a sector's content; `None` if it is no content of this sector by this writer.
fn version_of(sector: u64, writer: u32, found: &[u8]) -> Option<u32> {
    let version = u32::from_le_bytes(found[12..16].try_into().unwrap());
    (found == content(sector, writer, version)).then_some(version)
}

#[derive(Clone, Default)]
struct State {
    /// The last version that a flush has covered.
    flushed: u32,
    /// The versions that were written since, whether or not they were answered.
    since: Vec<u32>,
    /// An error was told since the last of them: each of the versions may be there.
    is_uncertain: bool,
    /// The writer read an older version than it had written. An error at the next flush explains it.
    is_suspect: bool,
}

impl State {
    fn expected(&self) -> u32 {
        self.since.last().copied().unwrap_or(self.flushed)
    }

    fn may_be(&self, version: u32) -> bool {
        match self.is_uncertain {
            true => version == self.flushed || self.since.contains(&version),
            false => version == self.expected(),
        }
    }
}

/// What went wrong, in bytes and times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wrong {
    /// Bytes that a flush had covered, and that are not there: neither in this version nor in a later one.
    pub bytes_lost: u64,
    /// Sectors that were read in an older version than the writer had written, without an error by its next flush.
    pub stale_reads: u64,
}

/// The sectors of one writer.
pub struct Sectors {
    writer: u32,
    states: Vec<State>,
    version: u32,
    /// The disk below: what is durable there.
    view: View,
    pub wrong: Wrong,
    /// What went wrong first, for a person.
    pub first: Option<String>,
}

impl Sectors {
    pub fn new(writer: u32, count: usize, view: View) -> Self {
        let states = vec![State::default(); count];
        Self { writer, states, version: NEVER, view, wrong: Wrong::default(), first: None }
    }

    pub fn count(&self) -> u64 {
        self.states.len() as u64
    }

    /// The bytes to write there next. Even a write that is never answered may be stored.
    pub fn next_write(&mut self, first: u64, count: u64) -> Vec<u8> {
        self.version += 1;
        (first..first + count)
            .flat_map(|sector| {
                self.states[sector as usize].since.push(self.version);
                content(sector, self.writer, self.version)
            })
            .collect()
    }

    /// How the write of these sectors ended.
    pub fn written(&mut self, first: u64, count: u64, is_ok: bool) {
        for state in &mut self.states[first as usize..(first + count) as usize] {
            state.is_uncertain = !is_ok;
            state.is_suspect = false;
        }
    }

    /// Compares what was read.
    pub fn read(&mut self, first: u64, found: &[u8]) {
        for (sector, found) in (first..).zip(found.chunks(SECTOR)) {
            let version = version_of(sector, self.writer, found);
            let state = &mut self.states[sector as usize];
            if version.is_some_and(|version| state.may_be(version)) {
                continue;
            }
            let (flushed, expected) = (state.flushed, state.expected());
            match version {
                Some(version) if version >= flushed && version < expected => state.is_suspect = true,
                _ => self.lose(sector, &format!("read {version:?}, flushed {flushed}, written {expected}")),
            }
        }
    }

    /// A flush of everything that was written has succeeded.
    pub fn flushed(&mut self) {
        for sector in 0..self.count() {
            let state = &mut self.states[sector as usize];
            if std::mem::take(&mut state.is_suspect) {
                self.wrong.stale_reads += 1;
                let text = format!("sector {sector}: an older version than {} was read", state.expected());
                self.first.get_or_insert(text);
            }
            if state.is_uncertain || state.since.is_empty() {
                continue;
            }
            state.flushed = state.expected();
            state.since.clear();
            let expected = state.flushed;
            let found = version_of(sector, self.writer, &self.view.durable(sector));
            if found != Some(expected) {
                self.lose(sector, &format!("flushed {expected}, durable {found:?}"));
            }
        }
    }

    /// The writer was told that what it has not flushed may be lost.
    pub fn note_loss_report(&mut self) {
        for state in &mut self.states {
            state.is_uncertain |= !state.since.is_empty();
            state.is_suspect = false;
        }
    }

    /// Compares all that is durable on the disk below.
    pub fn compare_durable(&mut self) {
        for sector in 0..self.count() {
            let found = version_of(sector, self.writer, &self.view.durable(sector));
            let state = &self.states[sector as usize];
            let is_allowed = found.is_some_and(|found| found == state.flushed || state.since.contains(&found));
            if !is_allowed {
                let flushed = state.flushed;
                self.lose(sector, &format!("flushed {flushed}, durable {found:?}"));
            }
        }
    }

    fn lose(&mut self, sector: u64, what: &str) {
        self.wrong.bytes_lost += SECTOR as u64;
        self.first.get_or_insert(format!("writer {}, sector {sector}: {what}", self.writer));
    }
}
