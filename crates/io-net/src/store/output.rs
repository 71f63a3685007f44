//! Creates files that the user named: recordings, traces, results.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use crate::trust::{FileAccessMode, FolderError, StateFolder};

/// Creates the file or truncates it, with this mode less the umask. In a folder of the user's own or root's, whatever
/// has that name is written to, as by any program. In a folder where other users can create files, such as `/tmp`, it
/// is a new file for its owner alone, or an existing one of the user with a single name: no link is followed, and no
/// pipe or device is written to. If root runs this, the file belongs to the owner of the folder.
///
/// # Errors
/// What is there instead, or the system's error.
pub fn create_output(path: &Path, mode: u32) -> io::Result<File> {
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let refused = |error: FolderError| io::Error::new(io::ErrorKind::PermissionDenied, error.why.to_string());
    let Some((folder, is_others)) = StateFolder::open_shared(folder).map_err(refused)? else {
        return Err(io::ErrorKind::NotFound.into());
    };
    if !is_others {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOCTTY;
        return Ok(rustix::fs::openat(folder.descriptor(), name, flags, Mode::from_raw_mode(mode))?.into());
    }
    let name = name.to_str().ok_or(io::ErrorKind::InvalidInput)?;
    let file = folder.file_or_make(name, FileAccessMode::ReadWrite).map_err(refused)?;
    file.set_len(0)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Write;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};

    #[test]
    fn link_in_a_folder_of_others_is_not_written_through_and_one_in_an_own_folder_is() {
        let scratch = std::env::temp_dir().join(format!("farbus-output-{}", std::process::id()));
        let (own, others) = (scratch.join("own"), scratch.join("others"));
        fs::create_dir(&scratch).unwrap();
        fs::set_permissions(&scratch, fs::Permissions::from_mode(0o755)).unwrap();
        for folder in [&own, &others] {
            fs::create_dir(folder).unwrap();
        }
        fs::set_permissions(&own, fs::Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(&others, fs::Permissions::from_mode(0o1777)).unwrap();
        let victim = scratch.join("victim");
        fs::write(&victim, "whole").unwrap();
        for folder in [&own, &others] {
            symlink(&victim, folder.join("link")).unwrap();
            fs::hard_link(&victim, folder.join("hard")).unwrap();
            rustix::fs::mknodat(rustix::fs::CWD, folder.join("pipe"), rustix::fs::FileType::Fifo, Mode::RWXU, 0)
                .unwrap();
        }
        for name in ["link", "hard", "pipe"] {
            let why = create_output(&others.join(name), 0o644).unwrap_err();
            assert_eq!(why.kind(), io::ErrorKind::PermissionDenied, "{name}: {why}");
            assert_eq!(fs::read_to_string(&victim).unwrap(), "whole", "{name}");
        }
        for _ in 0..2 {
            create_output(&others.join("new"), 0o644).unwrap().write_all(b"12").unwrap();
            assert_eq!(fs::read(others.join("new")).unwrap(), b"12");
        }
        create_output(&own.join("link"), 0o644).unwrap().write_all(b"through").unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "through");
        assert!(create_output(Path::new("/dev/null"), 0o644).is_ok());
        if rustix::process::geteuid().is_root() {
            fs::remove_dir_all(&others).unwrap();
            fs::create_dir(&others).unwrap();
            chown(&others, Some(1600), Some(1600)).unwrap();
            create_output(&others.join("new"), 0o644).unwrap();
            assert_eq!(fs::metadata(others.join("new")).unwrap().uid(), 1600);
            symlink(&own, others.join("elsewhere")).unwrap();
            rustix::fs::chownat(
                rustix::fs::CWD,
                others.join("elsewhere"),
                Some(rustix::fs::Uid::from_raw(1600)),
                None,
                rustix::fs::AtFlags::SYMLINK_NOFOLLOW,
            )
            .unwrap();
            assert!(create_output(&others.join("elsewhere/new"), 0o644).is_err() && !own.join("new").exists());
        }
        fs::remove_dir_all(scratch).unwrap();
    }
}
