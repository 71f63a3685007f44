//! Memory that the kernel lends for transfers: a controller fills it, and it is sent from there without a copy.
//!
//! usbfs copies every other buffer twice, into its own memory and out of it; memory that was mapped from its descriptor
//! it uses directly (`usbdev_mmap`, `find_memory_area`). A lease is *held* by the code that wants a transfer into it,
//! *filled* while usbfs has it, and then readable until the last reader has dropped it. The types keep these states
//! apart: only [`FilledUsbfsBuffer`] has bytes.
#![allow(unsafe_code, reason = "memory that a device writes cannot be a slice while it does")]

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A mapping. Its memory stays with the kernel until every transfer into it has ended, even if this goes before
/// (`dec_usb_memory_use_count`).
struct UsbfsMapping {
    at: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is memory, owned like a box; the types below control who may read and write it when.
unsafe impl Send for UsbfsMapping {}
// SAFETY: as above; shared references only read, and only when no transfer is in progress.
unsafe impl Sync for UsbfsMapping {}

impl Drop for UsbfsMapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `UsbfsBufferPool::map` with this length, and no reference into it exists any more.
        let _ = unsafe { munmap(self.at.as_ptr().cast(), self.bytes) };
    }
}

/// Memory for one transfer, to which nothing else has access.
pub struct UsbfsBuffer(Arc<UsbfsMapping>);

/// Lent memory that a transfer has filled.
#[derive(Clone)]
pub struct FilledUsbfsBuffer(Arc<UsbfsMapping>);

impl fmt::Debug for UsbfsBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UsbfsBuffer").field("bytes", &self.0.bytes).finish()
    }
}

impl fmt::Debug for FilledUsbfsBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FilledUsbfsBuffer").field("bytes", &self.0.bytes).finish()
    }
}

impl UsbfsBuffer {
    /// The address to which the kernel is to write.
    pub fn address(&self) -> *mut u8 {
        self.0.at.as_ptr()
    }

    /// How many bytes it may write there.
    pub fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// The kernel has written, and will not write any more: the caller knows that from the kernel.
    pub(super) fn filled(self) -> FilledUsbfsBuffer {
        FilledUsbfsBuffer(self.0)
    }

    /// Fills the memory as a controller would; for tests.
    #[cfg(test)]
    pub fn fill(self, bytes: &[u8]) -> FilledUsbfsBuffer {
        assert!(bytes.len() <= self.0.bytes, "no more than there is room for");
        // SAFETY: there is enough room, and nothing else has access to it.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.address(), bytes.len()) };
        self.filled()
    }
}

impl AsRef<[u8]> for FilledUsbfsBuffer {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: mapped and initialized (the kernel zeroes what it maps). It is not written: it becomes a lease again
        // only after this, the last reference, is dropped (`UsbfsBufferPool::take`).
        unsafe { slice::from_raw_parts(self.0.at.as_ptr(), self.0.bytes) }
    }
}

/// The memory that one device's descriptor has lent.
#[derive(Default)]
pub struct UsbfsBufferPool {
    mappings: Vec<Arc<UsbfsMapping>>,
    bytes: usize,
}

impl UsbfsBufferPool {
    /// Lends memory of at least `bytes`, as long as all together stays below `bytes_max`; maps more from `file` if
    /// needed (`None`: anonymous memory).
    ///
    /// # Errors
    /// The system's error: no memory, or no permission to map.
    pub fn take(
        &mut self,
        file: Option<BorrowedFd<'_>>,
        bytes: usize,
        bytes_max: usize,
    ) -> io::Result<Option<UsbfsBuffer>> {
        // Whole pages, and few sizes, so that returned memory can be used again.
        let bytes = bytes.next_power_of_two().max(4096);
        // Nothing else has it: neither a transfer nor a reader.
        let is_free = |mapping: &mut Arc<UsbfsMapping>| mapping.bytes == bytes && Arc::get_mut(mapping).is_some();
        if let Some(at) = self.mappings.iter_mut().position(is_free) {
            return Ok(Some(UsbfsBuffer(Arc::clone(&self.mappings[at]))));
        }
        if self.bytes + bytes > bytes_max {
            return Ok(None);
        }
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let at = match file {
            Some(file) => unsafe { mmap(ptr::null_mut(), bytes, protection, MapFlags::SHARED, file, 0) },
            None => unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), bytes, protection, MapFlags::PRIVATE) },
        }?;
        let at = NonNull::new(at.cast()).expect("a mapping is not at zero");
        let mapping = Arc::new(UsbfsMapping { at, bytes });
        self.mappings.push(Arc::clone(&mapping));
        self.bytes += bytes;
        Ok(Some(UsbfsBuffer(mapping)))
    }

    /// Unmaps memory that is not in use.
    pub fn give_back(&mut self) {
        self.mappings.retain_mut(|mapping| Arc::get_mut(mapping).is_none());
        self.bytes = self.mappings.iter().map(|mapping| mapping.bytes).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_lent_again_after_its_last_reader_is_gone() {
        let mut leases = UsbfsBufferPool::default();
        let mut take = || leases.take(None, 5000, 16384).unwrap();
        let first = take().unwrap();
        let address = first.address();
        let second = take().unwrap();
        assert_ne!(second.address(), address);
        assert!(take().is_none(), "there is a bound");
        let filled = first.fill(b"hello");
        assert_eq!((&filled.as_ref()[..6], filled.as_ref().len()), (b"hello\0".as_slice(), 8192));
        let reader = filled.clone();
        drop(filled);
        assert!(take().is_none(), "somebody looks at it");
        drop(reader);
        assert_eq!(take().unwrap().address(), address);
        leases.give_back();
        assert_eq!(leases.bytes, 8192, "a transfer may be on its way into the second");
        drop(second);
        leases.give_back();
        assert_eq!((leases.bytes, leases.mappings.len()), (0, 0));
    }

    #[test]
    fn failed_mapping_is_an_error() {
        use std::os::fd::AsFd;
        let null = std::fs::File::open("/proc/self/status").unwrap();
        assert!(UsbfsBufferPool::default().take(Some(null.as_fd()), 1, 1 << 20).is_err());
    }
}
