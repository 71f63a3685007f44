//! Room in the state folder for changes that make a file no larger, such as one that takes a permission away: they work
//! on a full disk, too.
//!
//! The file `spare` has as many bytes as the largest of the others. Where a file cannot be replaced by a new one, the
//! new contents are written into this room, and the two files change names: the former contents are the spare room
//! then, so it never gets less than the next such change needs. Nobody reads it.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

use rustix::fs::{FlockOperation, flock};

use super::state_folder::{FileAccessMode, FolderError, StateFolder};

const SPARE_FILE: &str = "spare";
/// Room is kept in pages: as much as file systems give at least.
const PAGE_BYTES: u64 = 4096;

/// Keeps room for a file of this size from now on. Without room for that, none more is kept.
pub(in crate::trust) fn keep(folder: &StateFolder, bytes: usize) {
    // What cannot be kept is missed when the disk is full, and the change is refused then.
    let _ = try_keep(folder, bytes as u64);
}

fn try_keep(folder: &StateFolder, bytes: u64) -> io::Result<()> {
    let needed = bytes.max(1).next_multiple_of(PAGE_BYTES);
    let had = folder.file(SPARE_FILE, FileAccessMode::Read).map_err(other)?;
    if had.is_some_and(|file| file.metadata().is_ok_and(|about| about.len() >= needed)) {
        return Ok(());
    }
    drop(folder.file_or_make(SPARE_FILE, FileAccessMode::ReadWrite).map_err(other)?);
    let Some(file) = locked(folder).map_err(other)? else { return Ok(()) };
    grow(&file, needed)
}

/// Makes the file so large that no further room is needed to write so many bytes over it.
fn grow(file: &File, needed: u64) -> io::Result<()> {
    let before = file.metadata()?.len();
    let more = vec![0; usize::try_from(needed.saturating_sub(before)).unwrap_or_default()];
    let grown = file.write_all_at(&more, before).and_then(|()| file.sync_data());
    grown.inspect_err(|_| {
        let _ = file.set_len(before);
    })
}

/// Replaces the file `name` by these bytes in the room that was kept, atomically and durably.
///
/// # Errors
/// There is no spare room, or too little, or the system's error. Nothing is changed then.
pub(in crate::trust) fn replace(folder: &StateFolder, name: &str, bytes: &[u8]) -> io::Result<()> {
    let file = locked(folder).map_err(other)?.ok_or(io::ErrorKind::NotFound)?;
    let room = file.metadata()?.len();
    // Another file may have been replaced just now, and what that left of the room not be back yet.
    grow(&file, bytes.len() as u64)?;
    file.write_all_at(bytes, 0)?;
    file.set_len(bytes.len() as u64)?;
    file.sync_all()?;
    folder.exchange(SPARE_FILE, name).map_err(other)?;
    folder.sync().map_err(other)?;
    // What the new contents left of the room.
    drop(file);
    keep(folder, usize::try_from(room).unwrap_or_default());
    Ok(())
}

fn other(error: FolderError) -> io::Error {
    io::Error::other(error.to_string())
}

/// The spare file, which nobody else writes or renames until it is dropped; `None` if there is none.
fn locked(folder: &StateFolder) -> Result<Option<File>, FolderError> {
    let number = |file: &File| file.metadata().map(|about| about.ino()).ok();
    loop {
        let Some(file) = folder.file(SPARE_FILE, FileAccessMode::ReadWrite)? else { return Ok(None) };
        if flock(&file, FlockOperation::LockExclusive).is_err() {
            return Ok(None);
        }
        // It may have become another file while this process waited.
        if folder.file(SPARE_FILE, FileAccessMode::Read)?.is_some_and(|now| number(&now) == number(&file)) {
            return Ok(Some(file));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::trust::records::leases::tests::LeaseScratchFolder;
    use std::fs;

    #[test]
    fn a_file_that_gets_no_larger_is_replaced_although_none_can_be_made() {
        let LeaseScratchFolder(folder) = &LeaseScratchFolder::new("spare");
        let text = |length: usize| vec![b'x'; length];
        folder.write("a.json", &text(6000)).unwrap();
        folder.write("b.json", &text(10)).unwrap();
        // As on a full disk: no file that would replace another can be made.
        for name in ["a.json.new", "b.json.new", "c.json.new"] {
            fs::create_dir(folder.file(name)).unwrap();
        }
        let read = |name: &str| fs::read(folder.file(name)).unwrap();
        for length in [6000, 5999, 4000, 1] {
            folder.write("a.json", &text(length)).unwrap();
            assert_eq!(read("a.json"), text(length));
            folder.write("b.json", &text(10)).unwrap();
            assert_eq!(read("b.json"), text(10));
        }
        assert!(folder.write("a.json", &text(2)).is_err(), "it would be larger");
        assert!(folder.write("c.json", &text(1)).is_err(), "it would be new");
        assert_eq!(read("a.json"), text(1));
        assert!(!folder.file("c.json").exists());
    }

    #[test]
    fn many_threads_that_share_the_room_write_what_each_means() {
        let LeaseScratchFolder(folder) = &LeaseScratchFolder::new("spare-many");
        let names = ["a", "b", "c", "d"];
        for name in names {
            folder.write(name, &[b' '; 500]).unwrap();
            fs::create_dir(folder.file(&format!("{name}.new"))).unwrap();
        }
        std::thread::scope(|scope| {
            for name in names {
                scope.spawn(move || {
                    for length in (1..200).rev() {
                        let text = name.repeat(length);
                        folder.write(name, text.as_bytes()).unwrap();
                        assert_eq!(fs::read_to_string(folder.file(name)).unwrap(), text);
                    }
                });
            }
        });
    }
}
