//! Words in memory that another process writes, too.
//!
//! Nothing but atomics looks at it: whatever the other does, and whenever, each word is read once and is some number.
//! What is longer than a word is read and written through the descriptor ([`std::os::unix::fs::FileExt`]), which copies
//! it, and fails where memory that has been taken away would end this process.
#![allow(unsafe_code, reason = "a mapping that others write is no reference to plain memory")]

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU32;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// The first words of a file in memory.
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
    /// Maps `count` words from the beginning of `file`, which has them: a file in memory that is sealed against
    /// shrinking.
    ///
    /// # Errors
    /// What the system says.
    pub fn map(file: BorrowedFd<'_>, count: usize) -> io::Result<Self> {
        let bytes = count * size_of::<AtomicU32>();
        let seals = rustix::fs::fcntl_get_seals(file)?;
        if !seals.contains(rustix::fs::SealFlags::SHRINK) || rustix::fs::fstat(file)?.st_size < bytes as i64 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "memory that may become shorter"));
        }
        // These pages are there from now on, whatever becomes of the machine's memory, unless whoever else has the file
        // makes holes in it, which no seal forbids to one who may write: his filter of system calls does.
        rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, bytes as u64)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at a place of the kernel's choice.
        let at = unsafe { mmap(ptr::null_mut(), bytes, protection, MapFlags::SHARED, file, 0) }?;
        let at = NonNull::new(at.cast()).expect("a mapping is not at zero");
        Ok(Self { at, count })
    }

    /// The word at a place.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn word(&self, index: usize) -> &AtomicU32 {
        assert!(index < self.count, "a word lies in its memory");
        // SAFETY: it lies in the mapping, which is as long as this and begins at a page; the memory can be neither
        // shortened (sealed) nor read other than atomically by us, and any bits are a number.
        unsafe { self.at.add(index).as_ref() }
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length, and references to it cannot outlive this.
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
    fn what_one_writes_the_other_sees_and_memory_that_may_shrink_is_none() {
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
