//! Words in memory that another process also writes.
//!
//! The memory is accessed only by atomics: whatever the other process does, and whenever, each word is read once and is
//! some number. Longer data is read and written through the descriptor ([`std::os::unix::fs::FileExt`]), which copies
//! it, and returns an error where accessing vanished memory would end this process.
#![allow(unsafe_code, reason = "a mapping that others write is no reference to plain memory")]

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU32;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// The first words of a memory file.
#[derive(Debug)]
pub struct SharedWords {
    at: NonNull<AtomicU32>,
    count: usize,
}

// SAFETY: it is memory of atomics, owned like a box of them.
unsafe impl Send for SharedWords {}
// SAFETY: as above; atomics may be shared.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// Maps `count` words from the beginning of `file`, which must have them: a memory file that is sealed against
    /// shrinking.
    ///
    /// # Errors
    /// The system's error.
    pub fn map(file: BorrowedFd<'_>, count: usize) -> io::Result<Self> {
        let bytes = count * size_of::<AtomicU32>();
        let seals = rustix::fs::fcntl_get_seals(file)?;
        if !seals.contains(rustix::fs::SealFlags::SHRINK) || rustix::fs::fstat(file)?.st_size < bytes as i64 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "memory that may become shorter"));
        }
        // Allocates these pages for good, even if the machine runs out of memory. Only another process with the file
        // could make holes in it, which no seal prevents if it may write; its system call filter does.
        rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, bytes as u64)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let at = unsafe { mmap(ptr::null_mut(), bytes, protection, MapFlags::SHARED, file, 0) }?;
        let at = NonNull::new(at.cast()).expect("a mapping is not at zero");
        Ok(Self { at, count })
    }

    /// The word at this index.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn word(&self, index: usize) -> &AtomicU32 {
        assert!(index < self.count, "a word lies in its memory");
        // SAFETY: it lies in the mapping, which has this length and begins at a page; the memory cannot be shortened
        // (it is sealed), this process accesses it only atomically, and any bits are a valid number.
        unsafe { self.at.add(index).as_ref() }
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length, and references into it cannot outlive this.
        let _ = unsafe { munmap(self.at.as_ptr().cast(), self.count * size_of::<AtomicU32>()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::Ordering;

    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

    #[test]
    fn words_are_shared_and_unsealed_memory_is_refused() {
        let file = File::from(memfd_create("words", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap());
        file.set_len(4096).unwrap();
        assert!(SharedWords::map(file.as_fd(), 4).is_err(), "it is not sealed");
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW).unwrap();
        assert!(SharedWords::map(file.as_fd(), 1025).is_err(), "it is not so long");
        let words = SharedWords::map(file.as_fd(), 1024).unwrap();
        file.write_all_at(&7u32.to_ne_bytes(), 8).unwrap();
        assert_eq!((words.word(2).load(Ordering::Relaxed), words.word(1023).load(Ordering::Relaxed)), (7, 0));
        words.word(1).store(9, Ordering::Relaxed);
        let mut bytes = [0; 4];
        file.read_exact_at(&mut bytes, 4).unwrap();
        assert_eq!(u32::from_ne_bytes(bytes), 9);
    }
}
