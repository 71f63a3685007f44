//! The memory of another process, which waits for an answer meanwhile.
//!
//! The kernel checks access as for `ptrace` (`process_vm_readv(2)`): the same user, and a process that this one may
//! trace.
#![allow(unsafe_code, reason = "rustix has no process_vm_readv")]

use std::io;

/// Reads all of `into` from `address` on, in the memory of the thread `thread`.
///
/// # Errors
/// `EFAULT` if not all of it is there; `EPERM`, `ESRCH`.
pub fn read(thread: u32, address: u64, into: &mut [u8]) -> io::Result<()> {
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: into.len() };
    // SAFETY: `local` is memory of this process that nothing else uses; the kernel checks `remote`, which belongs to
    // another address space.
    let count = unsafe { libc::process_vm_readv(thread.cast_signed(), &raw const local, 1, &raw const remote, 1, 0) };
    whole(count, into.len())
}

/// Writes all of `bytes` from `address` on.
///
/// # Errors
/// As [`read`]. Some of it may have been written.
pub fn write(thread: u32, address: u64, bytes: &[u8]) -> io::Result<()> {
    let local = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: bytes.len() };
    // SAFETY: the kernel only reads `local`; it checks `remote`, which belongs to another address space.
    let count = unsafe { libc::process_vm_writev(thread.cast_signed(), &raw const local, 1, &raw const remote, 1, 0) };
    whole(count, bytes.len())
}

fn whole(count: isize, expected: usize) -> io::Result<()> {
    match usize::try_from(count) {
        Ok(count) if count == expected => Ok(()),
        Ok(_) => Err(rustix::io::Errno::FAULT.into()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_and_written_or_refused_as_a_whole() {
        let (own, mut memory, mut copy) = (std::process::id(), *b"0123456789", [0; 10]);
        read(own, memory.as_ptr() as u64, &mut copy).unwrap();
        assert_eq!(&copy, b"0123456789");
        write(own, memory.as_mut_ptr() as u64, b"abc").unwrap();
        // The kernel wrote it: read it as the kernel would.
        read(own, memory.as_ptr() as u64, &mut copy).unwrap();
        assert_eq!(&copy, b"abc3456789");
        let refused = read(own, 8, &mut copy).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(rustix::io::Errno::FAULT.raw_os_error()));
    }
}
