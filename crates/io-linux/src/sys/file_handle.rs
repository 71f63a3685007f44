//! File handles and file system ids: properties of an open file that do not depend on its name.

#![allow(unsafe_code, reason = "calls that neither the standard library nor rustix has")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Bytes of the longest handle (`MAX_HANDLE_SZ`, include/linux/exportfs.h).
const HANDLE_BYTES_MAX: usize = 128;
/// `FS_IOC_GETFSUUID` of include/uapi/linux/fs.h, since Linux 6.9: `_IOR(0x15, 0, struct fsuuid2)`, which has 17 bytes.
const GET_FS_UUID: libc::Ioctl = ioctl_read(0x15, 0, size_of::<FsUuid>());
/// `XFS_IOC_FSGEOMETRY_V1` of libxfs/xfs_fs.h: `_IOR('X', 100, struct xfs_fsop_geom_v1)`.
const XFS_GEOMETRY: libc::Ioctl = ioctl_read(b'X', 100, size_of::<XfsGeometry>());
/// `LOOP_GET_STATUS64` of include/uapi/linux/loop.h.
const LOOP_GET_STATUS: libc::Ioctl = 0x4c05;

const fn ioctl_read(kind: u8, number: u8, bytes: usize) -> libc::Ioctl {
    const READ: usize = 2;
    ((READ << 30) | (bytes << 16) | ((kind as usize) << 8) | number as usize) as libc::Ioctl
}

/// A file's handle, from `name_to_handle_at(2)`: its type and its bytes. It identifies the file on its file system
/// whatever path leads to it, and never a file that is created later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileHandle {
    /// The type, whose meaning only the file system knows.
    pub kind: i32,
    /// The opaque bytes.
    pub bytes: Vec<u8>,
}

#[repr(C)]
struct RawHandle {
    bytes: u32,
    kind: i32,
    handle: [u8; HANDLE_BYTES_MAX],
}

/// A file system's UUID (`struct fsuuid2`, linux/fs.h).
#[repr(C)]
#[derive(Default)]
struct FsUuid {
    length: u8,
    uuid: [u8; 16],
}

/// `struct xfs_fsop_geom_v1`, of which only the UUID is read.
#[repr(C, align(8))]
struct XfsGeometry {
    before: [u8; 64],
    uuid: [u8; 16],
    after: [u8; 32],
}

/// `struct loop_info64`, of which only the first fields are read.
#[repr(C, align(8))]
struct LoopStatus {
    device: u64,
    inode: u64,
    rest: [u8; 216],
}

/// Returns the handle of an open file.
///
/// # Errors
/// `EOPNOTSUPP` if the file system has none; other errors of the kernel.
pub fn file_handle(file: impl AsFd) -> io::Result<FileHandle> {
    let mut raw = RawHandle { bytes: HANDLE_BYTES_MAX as u32, kind: 0, handle: [0; HANDLE_BYTES_MAX] };
    let mut mount: libc::c_int = 0;
    // SAFETY: the path is a C string, and both destinations live until the call returns; `bytes` says how much room
    // there is.
    let result = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            file.as_fd().as_raw_fd(),
            c"".as_ptr(),
            &raw mut raw,
            &raw mut mount,
            libc::AT_EMPTY_PATH,
        )
    };
    match result {
        0 => {
            Ok(FileHandle { kind: raw.kind, bytes: raw.handle[..(raw.bytes as usize).min(HANDLE_BYTES_MAX)].to_vec() })
        }
        _ => Err(io::Error::last_os_error()),
    }
}

/// The UUID of the file system that an open file is on, if the kernel reports it.
pub fn file_system_uuid(file: impl AsFd) -> Option<[u8; 16]> {
    let mut uuid = FsUuid::default();
    // SAFETY: the kernel writes a `struct fsuuid2`, which `FsUuid` is.
    let result = unsafe { libc::ioctl(file.as_fd().as_raw_fd(), GET_FS_UUID, &raw mut uuid) };
    (result == 0 && uuid.length == 16 && uuid.uuid != [0; 16]).then_some(uuid.uuid)
}

/// The UUID of the XFS file system that an open file is on; works on kernels that do not report it for every file
/// system.
pub fn xfs_uuid(file: impl AsFd) -> Option<[u8; 16]> {
    let mut geometry = XfsGeometry { before: [0; 64], uuid: [0; 16], after: [0; 32] };
    // SAFETY: the kernel writes a `struct xfs_fsop_geom_v1`, which is as large as this.
    let result = unsafe { libc::ioctl(file.as_fd().as_raw_fd(), XFS_GEOMETRY, &raw mut geometry) };
    (result == 0 && geometry.uuid != [0; 16]).then_some(geometry.uuid)
}

/// The device number and inode number of the file behind an open loop device.
pub fn loop_backing(device: impl AsFd) -> Option<(u64, u64)> {
    let mut status = LoopStatus { device: 0, inode: 0, rest: [0; 216] };
    // SAFETY: the kernel writes a `struct loop_info64`, which is as large as this.
    let result = unsafe { libc::ioctl(device.as_fd().as_raw_fd(), LOOP_GET_STATUS, &raw mut status) };
    (result == 0).then_some((status.device, status.inode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_are_as_large_as_the_kernels() {
        assert_eq!((size_of::<FsUuid>(), size_of::<XfsGeometry>(), size_of::<LoopStatus>()), (17, 112, 232));
        assert_eq!((GET_FS_UUID, XFS_GEOMETRY), (0x8011_1500, 0x8070_5864));
    }
}
