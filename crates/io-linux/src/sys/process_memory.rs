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

/// The kernel takes at most so many pieces at once (`UIO_MAXIOV`).
const PIECES_MAX: usize = 1024;

/// Writes pieces, each from its address on, with one call of the kernel for 1,024 of them.
///
/// # Errors
/// As [`read`]. Some of it may have been written.
pub fn write(thread: u32, pieces: &[(u64, &[u8])]) -> io::Result<()> {
    pieces.chunks(PIECES_MAX).try_for_each(|pieces| {
        let local = pieces
            .iter()
            .map(|(_, bytes)| libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() });
        let remote = pieces
            .iter()
            .map(|(address, bytes)| libc::iovec { iov_base: *address as *mut libc::c_void, iov_len: bytes.len() });
        let (local, remote) = (local.collect::<Vec<_>>(), remote.collect::<Vec<_>>());
        let count = pieces.len() as libc::c_ulong;
        // SAFETY: the kernel only reads `local`; it checks `remote`, which belongs to another address space.
        let count =
            unsafe { libc::process_vm_writev(thread.cast_signed(), local.as_ptr(), count, remote.as_ptr(), count, 0) };
        whole(count, pieces.iter().map(|(_, bytes)| bytes.len()).sum())
    })
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
        let at = memory.as_mut_ptr() as u64;
        write(own, &[(at, b"abc"), (at + 5, b"fg"), (at + 9, b"")]).unwrap();
        // The kernel wrote it: read it as the kernel would.
        read(own, at, &mut copy).unwrap();
        assert_eq!(&copy, b"abc34fg789");
        let pieces: Vec<(u64, &[u8])> = (0..2 * PIECES_MAX as u64 + 1).map(|n| (at + n % 10, &b"x"[..])).collect();
        write(own, &pieces).unwrap();
        read(own, at, &mut copy).unwrap();
        assert_eq!(&copy, b"xxxxxxxxxx");
        let refused = write(own, &[(at, b"ok"), (8, b"not there")]).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(rustix::io::Errno::FAULT.raw_os_error()));
        let refused = read(own, 8, &mut copy).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(rustix::io::Errno::FAULT.raw_os_error()));
    }
}
