//! Frames in shared memory: two rings of descriptors, the regions that these refer to, and a doorbell for the end that
//! sleeps.
//!
//! `docs/modules.md` has the layout. What protects this end from the other:
//!
//! | what is in the memory | how it is read |
//! |---|---|
//! | a counter, a descriptor | once, atomically, then checked; never read again |
//! | a frame's words and payload | copied by the kernel (`pread`) into memory of our own, within the region that they are said to lie in |
//! | where regions lie, which ones are in use | not at all: this end keeps that itself |
//!
//! A payload is not used in place: its bytes could change after they were checked. Copying it through the descriptor
//! and not through a mapping takes 1.5 times as long (1.47 MB: 160 us for 115; 30 kB: 1.7 us for 0.9). In return no
//! memory of this process can be written by another, and none can vanish and crash it.

use std::fs::File;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use farbus_model::module_abi::{self, LENGTH_BYTES, MESSAGE_BYTES, ModuleAbiFrame};
use farbus_model::{Instant, Payload};
use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};

use super::turn::{FRAME_BYTES_MAX, ModuleChannel, ModuleFrame, ReplyReader, TURN_FRAMES_MAX};
use crate::sys::shared_words::SharedWords;

/// The magic number at the beginning of the memory.
const MAGIC: [u32; 2] = [u32::from_le_bytes(*b"farb"), u32::from_le_bytes(*b"ring")];
const VERSION: u32 = 1;
/// Descriptors of a ring; a power of two, so that counters may wrap.
const RING: u32 = 256;
/// Words of a descriptor: where its bytes begin, how many, in which region, how many there may be.
const DESCRIPTOR_WORDS: usize = 4;
/// Bytes before the regions: the counters, and two rings.
const CONTROL_BYTES: usize = 3 * 4096;
const TOLD_RING: usize = 4096;
const SAID_RING: usize = 2 * 4096;
/// Bytes of the host's memory, and of the module's: two of the longest frames, or one and many short ones.
const SIDE_BYTES: usize = (2 * FRAME_BYTES_MAX).next_multiple_of(4096);
/// Regions begin at a cache line.
const REGION_ALIGN: usize = 64;
/// The most regions that a module may keep at once.
const REGIONS_MAX: usize = RING as usize;
/// Spare bytes that a region has after its content, for what a half adds.
const ROOM_BYTES: usize = farbus_model::module::GROWTH_BYTES_MAX;
/// The most rings of the bell in one turn: one for each frame is already twice what is needed.
const BELLS_MAX: usize = 2 * TURN_FRAMES_MAX;
const BELL: u8 = 1;

/// The positions of the counters, in words: each on a cache line of its own with the flag that the same end writes.
mod at {
    /// Descriptors that the host has posted.
    pub const TOLD: usize = 16;
    /// Whether the host sleeps: the module rings when it has posted.
    pub const HOST_SLEEPS: usize = 17;
    /// Descriptors of the module's that the host has read: their bytes belong to the module again.
    pub const READ: usize = 18;
    /// Descriptors that the module has posted.
    pub const SAID: usize = 32;
    /// Whether the module sleeps: the host rings when it has posted or read.
    pub const MODULE_SLEEPS: usize = 33;
}

/// The host's end.
pub struct ModuleRing {
    memory: File,
    words: SharedWords,
    bell: OwnedFd,
    posted: u32,
    read: u32,
    regions: RingRegions,
    /// Rings of the bell in this turn.
    bells: usize,
}

impl ModuleRing {
    /// A ring, and what the module gets of it: the memory and its end of the bell.
    pub fn new() -> io::Result<(Self, OwnedFd, OwnedFd)> {
        let memory = memfd_create("farbus module", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        let memory = File::from(memory);
        memory.set_len((CONTROL_BYTES + 2 * SIDE_BYTES) as u64)?;
        fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let words = SharedWords::map(memory.as_fd(), CONTROL_BYTES / 4)?;
        let offsets = [TOLD_RING, SAID_RING, CONTROL_BYTES, SIDE_BYTES, CONTROL_BYTES + SIDE_BYTES, SIDE_BYTES];
        let header = [MAGIC[0], MAGIC[1], VERSION, RING].into_iter().chain(offsets.map(|offset| offset as u32));
        for (index, value) in header.enumerate() {
            store(words.word(index), value, Ordering::Relaxed);
        }
        let (bell, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let given = memory.try_clone()?.into();
        let regions = RingRegions::over(CONTROL_BYTES..CONTROL_BYTES + SIDE_BYTES);
        Ok((Self { memory, words, bell, posted: 0, read: 0, regions, bells: 0 }, given, theirs))
    }

    /// Puts a frame into a region, and posts it.
    fn tell(&mut self, sent: &ModuleFrame<'_>) -> Result<(), String> {
        let frame = &sent.frame[LENGTH_BYTES..];
        let bytes = frame.len() + sent.payload.len();
        let (number, range) =
            self.regions.give(bytes).ok_or("it keeps what it was given, and there is no room for more")?;
        let room = range.len();
        let mut runs: Vec<IoSlice<'_>> = [frame].into_iter().chain(sent.payload.runs()).map(IoSlice::new).collect();
        write_all_at(&self.memory, &mut runs, range.start).map_err(|error| format!("its memory is none: {error}"))?;
        let descriptor = [range.start, bytes, number as usize, room].map(|word| word as u32);
        let index = TOLD_RING / 4 + (self.posted % RING) as usize * DESCRIPTOR_WORDS;
        for (offset, word) in descriptor.into_iter().enumerate() {
            store(self.words.word(index + offset), word, Ordering::Relaxed);
        }
        self.posted = self.posted.wrapping_add(1);
        store(self.words.word(at::TOLD), self.posted, Ordering::SeqCst);
        self.ring_if_it_sleeps()
    }

    fn ring_if_it_sleeps(&self) -> Result<(), String> {
        if self.words.word(at::MODULE_SLEEPS).swap(0, Ordering::SeqCst) == 0 {
            return Ok(());
        }
        match send(&self.bell, &[BELL], SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            // A module that has a hundred thousand unread rings will not miss this one.
            Ok(_) | Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(()),
            Err(_) => Err(ENDED.to_owned()),
        }
    }

    /// Descriptors that wait to be read.
    fn waiting(&self) -> Result<u32, String> {
        let answered = u32::from_le(self.words.word(at::SAID).load(Ordering::SeqCst));
        match answered.wrapping_sub(self.read) {
            waiting if waiting > RING => Err("its ring runs backwards, or past its end".to_owned()),
            waiting => Ok(waiting),
        }
    }

    /// The next descriptor, and its frame. Its region belongs to the host again in any case.
    fn take(&mut self, reply_reader: &mut ReplyReader<'_>) -> Result<Option<ModuleAbiFrame>, String> {
        let index = SAID_RING / 4 + (self.read % RING) as usize * DESCRIPTOR_WORDS;
        let [start, bytes, number, _] =
            std::array::from_fn(|offset| u32::from_le(self.words.word(index + offset).load(Ordering::Relaxed)));
        let region = match number {
            0 => CONTROL_BYTES + SIDE_BYTES..CONTROL_BYTES + 2 * SIDE_BYTES,
            _ => self.regions.take_back(number).ok_or("it gives back a region that it does not have")?,
        };
        let (start, bytes) = (start as usize, bytes as usize);
        if start < region.start || start > region.end || bytes > region.end - start {
            return Err("it said a frame that does not lie in its region".to_owned());
        }
        reply_reader.count_bytes(bytes)?;
        if bytes == 0 {
            // It returns a region and carries no frame.
            reply_reader.count_frame()?;
            return Ok(None);
        }
        self.read_frame(start, bytes).map(Some)
    }

    /// Reads the frame at this position: its words once, then its payload.
    fn read_frame(&self, start: usize, bytes: usize) -> Result<ModuleAbiFrame, String> {
        let wrong = |module_abi::ModuleAbiError(what)| format!("it said {what}");
        if bytes > FRAME_BYTES_MAX {
            return Err("it said a frame that is longer than any message".to_owned());
        }
        let mut words = Vec::with_capacity(WORDS_BYTES);
        self.read_at(&mut words, start, bytes.min(WORDS_BYTES))?;
        let at = module_abi::payload_at(&words).filter(|at| bytes > WORDS_BYTES && *at <= bytes);
        let Some(at) = at else {
            let rest = bytes - words.len();
            self.read_at(&mut words, start + WORDS_BYTES.min(bytes), rest)?;
            return module_abi::decode(&words).map_err(wrong);
        };
        // A long message: its payload is copied once.
        let known = words.len().min(at);
        words.truncate(known);
        self.read_at(&mut words, start + known, at - known)?;
        let mut payload = Vec::with_capacity(bytes - at);
        self.read_at(&mut payload, start + at, bytes - at)?;
        let mut frame = module_abi::decode(&words).map_err(wrong)?;
        if let ModuleAbiFrame::Message(_, message) = &mut frame {
            message.payload = Payload::from(payload);
        }
        Ok(frame)
    }

    /// Reads so many further bytes, and appends them.
    fn read_at(&self, to: &mut Vec<u8>, start: usize, bytes: usize) -> Result<(), String> {
        let end = to.len() + bytes;
        to.reserve_exact(bytes);
        while to.len() < end {
            let at = start + bytes - (end - to.len());
            match rustix::io::pread(&self.memory, spare_capacity(to), at as u64) {
                Ok(0) => return Err("its memory is none".to_owned()),
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(format!("its memory is none: {error}")),
            }
        }
        to.truncate(end);
        Ok(())
    }

    /// Sleeps until the module rings, unless it has posted something meanwhile.
    fn wait(&mut self, reply_reader: &ReplyReader<'_>) -> Result<(), String> {
        let left = reply_reader.left()?;
        store(self.words.word(at::HOST_SLEEPS), 1, Ordering::SeqCst);
        if self.waiting()? == 0 {
            let span = Timespec::try_from(left).unwrap_or_default();
            match poll(&mut [PollFd::new(&self.bell, PollFlags::IN)], Some(&span)) {
                // What it posted meanwhile without ringing comes too late.
                Ok(0) => drop(reply_reader.left()?),
                Err(Errno::INTR) => {}
                Ok(_) => match self.hear_bells() {
                    // Handle what it posted before it ended first.
                    Err(ended) if ended == ENDED && self.waiting()? > 0 => {}
                    heard => heard?,
                },
                Err(error) => return Err(format!("it cannot be waited for: {error}")),
            }
        }
        store(self.words.word(at::HOST_SLEEPS), 0, Ordering::Relaxed);
        Ok(())
    }

    fn hear_bells(&mut self) -> Result<(), String> {
        let mut bells = [0; 64];
        match rustix::io::read(&self.bell, &mut bells) {
            Ok(0) => Err(ENDED.to_owned()),
            Ok(count) if bells[..count].iter().any(|bell| *bell != BELL) => {
                Err("it says to its doorbell what is no ring".to_owned())
            }
            Ok(count) => {
                self.bells += count;
                if self.bells > BELLS_MAX { Err("it rings without end".to_owned()) } else { Ok(()) }
            }
            Err(Errno::INTR | Errno::WOULDBLOCK) => Ok(()),
            Err(_) => Err(ENDED.to_owned()),
        }
    }
}

const ENDED: &str = "its process has ended";
const GOES_ON: &str = "it goes on after it was done";
/// How many bytes of a frame are read first: the words of a message, most heads, and whole short frames.
const WORDS_BYTES: usize = 512;
const _: () = assert!(WORDS_BYTES > MESSAGE_BYTES);

impl ModuleChannel for ModuleRing {
    fn exchange(
        &mut self,
        sent: &ModuleFrame<'_>,
        reply_reader: &mut ReplyReader<'_>,
    ) -> Result<Option<Instant>, String> {
        self.bells = 0;
        if self.waiting()? > 0 {
            return Err(GOES_ON.to_owned());
        }
        if module_abi::is_start(sent.frame) {
            // Forgets everything from the previous use.
            self.regions.take_all_back();
        }
        self.tell(sent)?;
        loop {
            let waiting = self.waiting()?;
            for left in (0..waiting).rev() {
                let frame = self.take(reply_reader)?;
                self.read = self.read.wrapping_add(1);
                store(self.words.word(at::READ), self.read, Ordering::SeqCst);
                match frame.map(|frame| reply_reader.hear(frame)).transpose()?.flatten() {
                    Some(_) if left > 0 || self.waiting()? > 0 => return Err(GOES_ON.to_owned()),
                    Some(due) => return Ok(due),
                    None => {}
                }
            }
            if waiting > 0 {
                // The module may have waited for room.
                self.ring_if_it_sleeps()?;
            }
            self.wait(reply_reader)?;
        }
    }
}

fn store(word: &AtomicU32, value: u32, ordering: Ordering) {
    word.store(value.to_le(), ordering);
}

fn write_all_at(file: &File, mut runs: &mut [IoSlice<'_>], at: usize) -> io::Result<()> {
    let mut at = at as u64;
    while !runs.is_empty() {
        // Normally one run: the frame and its payload.
        let count = match rustix::io::pwritev(file, &runs[..runs.len().min(RUNS_MAX)], at) {
            Err(Errno::INTR) => 0,
            count => count?,
        };
        at += count as u64;
        IoSlice::advance_slices(&mut runs, count);
    }
    Ok(())
}

/// The most runs of memory in one system call (`UIO_MAXIOV`).
const RUNS_MAX: usize = 1024;

/// The host's memory: which regions the module has.
struct RingRegions {
    all: Range<usize>,
    /// The regions that the module has, by position.
    given: Vec<(u32, Range<usize>)>,
    last_number: u32,
}

impl RingRegions {
    fn over(all: Range<usize>) -> Self {
        Self { all, given: Vec::new(), last_number: 0 }
    }

    /// A region for so many bytes, plus spare room; the lowest, whose memory is most likely allocated already.
    fn give(&mut self, bytes: usize) -> Option<(u32, Range<usize>)> {
        if self.given.len() == REGIONS_MAX {
            return None;
        }
        let bytes = (bytes + ROOM_BYTES).next_multiple_of(REGION_ALIGN);
        let mut start = self.all.start;
        let before = self.given.iter().position(|(_, taken)| {
            let fits = taken.start - start >= bytes;
            if !fits {
                start = taken.end;
            }
            fits
        });
        let range = start..start + bytes;
        if range.end > self.all.end {
            return None;
        }
        // Never the same number twice: a region that was returned stays returned.
        self.last_number = self.last_number.checked_add(1).unwrap_or(1);
        self.given.insert(before.unwrap_or(self.given.len()), (self.last_number, range.clone()));
        Some((self.last_number, range))
    }

    fn take_back(&mut self, number: u32) -> Option<Range<usize>> {
        let at = self.given.iter().position(|(given, _)| *given == number)?;
        Some(self.given.remove(at).1)
    }

    fn take_all_back(&mut self) {
        self.given.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_do_not_overlap_and_come_back_once() {
        let mut regions = RingRegions::over(64..64 + 4 * (ROOM_BYTES + 64));
        let given: Vec<_> = std::iter::from_fn(|| regions.give(10)).collect();
        assert_eq!(given.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [1, 2, 3, 4]);
        for pair in given.windows(2) {
            assert!(pair[0].1.end <= pair[1].1.start && pair[0].1.len() == ROOM_BYTES + 64);
        }
        assert_eq!(regions.take_back(2), Some(given[1].1.clone()));
        assert_eq!((regions.take_back(2), regions.take_back(0), regions.take_back(9)), (None, None, None));
        assert_eq!(regions.give(100), None, "there is no room for so much");
        assert_eq!(
            regions.give(64),
            Some((5, given[1].1.clone())),
            "what came back is given again, under another name"
        );
        regions.take_all_back();
        assert_eq!(regions.give(3 * (ROOM_BYTES + 64)).map(|(number, _)| number), Some(6));
    }

    #[test]
    fn a_module_keeps_no_more_regions_than_it_may() {
        let mut regions = RingRegions::over(0..SIDE_BYTES);
        let given = std::iter::from_fn(|| regions.give(1)).count();
        assert_eq!(given, REGIONS_MAX);
        regions.take_back(7).unwrap();
        assert!(regions.give(FRAME_BYTES_MAX).is_some());
    }
}
