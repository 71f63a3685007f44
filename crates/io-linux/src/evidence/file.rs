//! The evidence of a regular file.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, StatxFlags, fstat, fstatfs, fstatvfs, statx};

use super::text::{DeviceEvidence, hex};
use crate::sys::file_handle::{file_handle, file_system_uuid, xfs_uuid};

/// File systems whose `f_fsid` derives from a stored UUID, or is random for each mount (tmpfs): ext2 to ext4, btrfs,
/// ZFS, tmpfs. With other file systems it may be a device number, which another device may have after the next start.
const FSID_IS_UUID: [u64; 4] = [0xef53, 0x9123_683e, 0x2fc1_2fc1, 0x0102_1994];
const XFS: u64 = 0x5846_5342;
/// FUSE numbers its files anew with each mount.
const FUSE: u64 = 0x6573_5546;

/// The evidence of an open file.
pub fn of(file: BorrowedFd<'_>) -> io::Result<DeviceEvidence> {
    let size = fstat(file)?.st_size;
    if let (Some(system), Ok(handle)) = (file_system(file)?, file_handle(file)) {
        let (kind, bytes) = (handle.kind, hex(&handle.bytes));
        return Ok(DeviceEvidence::stable(&format!("file fs={system} handle={kind}:{bytes} size={size}")));
    }
    let about = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS | StatxFlags::BTIME)?;
    let (device, inode, born) = (
        format_args!("{}:{}", about.stx_dev_major, about.stx_dev_minor),
        about.stx_ino,
        format_args!("{}.{:09}", about.stx_btime.tv_sec, about.stx_btime.tv_nsec),
    );
    Ok(DeviceEvidence::passing(&format!("file device={device} inode={inode} born={born} size={size}")))
}

/// The id of its file system, if that is permanent.
fn file_system(file: BorrowedFd<'_>) -> io::Result<Option<String>> {
    let kind = fstatfs(file)?.f_type as u64 & 0xffff_ffff;
    if FSID_IS_UUID.contains(&kind) {
        let fsid = fstatvfs(file)?.f_fsid;
        return Ok((fsid != 0).then(|| format!("{kind:x}:{fsid:016x}")));
    }
    let uuid = match kind {
        FUSE => None,
        XFS => xfs_uuid(file).or_else(|| file_system_uuid(file)),
        _ => file_system_uuid(file),
    };
    Ok(uuid.map(|uuid| format!("{kind:x}:{}", hex(&uuid))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::os::fd::AsFd;

    #[test]
    fn a_file_keeps_its_evidence_when_it_is_renamed_and_no_other_file_has_it() {
        let folder = std::env::temp_dir().join(format!("farbus-evidence-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = |name: &str| folder.join(name);
        let of_path = |name: &str| of(File::open(path(name)).unwrap().as_fd()).unwrap();
        fs::write(path("a"), [1; 4096]).unwrap();
        let evidence = of_path("a");
        fs::copy(path("a"), path("copy")).unwrap();
        assert_ne!(of_path("copy"), evidence);
        fs::rename(path("a"), path("b")).unwrap();
        assert_eq!(of_path("b"), evidence);
        fs::write(path("b"), [2; 4096]).unwrap();
        assert_eq!(of_path("b"), evidence, "what is in it is not looked at");
        File::options().write(true).open(path("b")).unwrap().set_len(8192).unwrap();
        assert_ne!(of_path("b"), evidence, "another size is another medium");
        fs::remove_file(path("b")).unwrap();
        fs::write(path("b"), [1; 4096]).unwrap();
        assert_ne!(
            of_path("b"),
            evidence,
            "a file that is made anew is another one, also where its inode number is given again"
        );
        fs::remove_dir_all(folder).unwrap();
    }
}
