//! The exact count of a device's latest lease, which is stored before each lease is given.
//!
//! Somebody waits for the device meanwhile, so this is one write in place, to a file that has its size: a third of the
//! time that replacing a file takes. Two records, in sectors of their own, are written in turn: a power cut leaves at
//! least the one before.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};

use farbus_control::identity::DeviceId;
use rustix::fs::{FlockOperation, flock};

use crate::trust::state::folder::{HostFolder, StateError};
use crate::trust::state::state_folder::FileAccessMode;

/// Where the second record is, bytes: no medium writes half of what is so far from the first.
const APART: usize = 4096;
/// A count in 20 digits, its complement, and two separators.
const RECORD_BYTES: usize = 42;
const FILE_BYTES: usize = APART + RECORD_BYTES;

/// The count that was stored last; `None` if none was, or neither record is whole.
///
/// # Errors
/// [`StateError`]: the file cannot be read.
pub fn read(folder: &HostFolder, device: DeviceId) -> Result<Option<u64>, StateError> {
    Ok(read_bytes(folder, device)?.and_then(|bytes| counts(&bytes).into_iter().flatten().max()))
}

/// Keeps other processes and threads from storing anything of this device until dropped. The file is there from then
/// on.
///
/// # Errors
/// [`StateError`]: the file cannot be opened for writing.
pub fn lock(folder: &HostFolder, device: DeviceId) -> Result<File, StateError> {
    let name = file_of(device);
    let opened = folder.opened_or_made()?;
    loop {
        let file = opened.file_or_make(&name, FileAccessMode::ReadWrite)?;
        flock(&file, FlockOperation::LockExclusive).map_err(|errno| folder.trouble(&name, &errno))?;
        let number = |file: &File| file.metadata().map(|about| about.ino()).ok();
        // An earlier version replaces the file, and may have done so while this one waited.
        if opened.file(&name, FileAccessMode::Read)?.is_some_and(|now| number(&now) == number(&file)) {
            return Ok(file);
        }
    }
}

/// Stores the count durably, in the file that [`lock`] opened. It is higher than the one before.
///
/// # Errors
/// [`StateError`]; the one before is stored then, or this one.
pub fn write(folder: &HostFolder, device: DeviceId, file: &File, count: u64) -> Result<(), StateError> {
    let (name, record) = (file_of(device), record(count));
    let trouble = |error: std::io::Error| folder.trouble(&name, &error);
    let found = read_bytes(folder, device)?.map(|bytes| counts(&bytes)).filter(|counts| *counts != [None; 2]);
    let Some(found) = found else {
        let mut bytes = vec![b' '; FILE_BYTES];
        bytes[..RECORD_BYTES].copy_from_slice(&record);
        file.write_all_at(&bytes, 0).and_then(|()| file.set_len(FILE_BYTES as u64)).map_err(trouble)?;
        file.sync_all().map_err(trouble)?;
        return Ok(folder.opened_or_made()?.sync()?);
    };
    // The record that is older, or not whole.
    let offset = if found[0] < found[1] { 0 } else { APART as u64 };
    file.write_all_at(&record, offset).and_then(|()| file.sync_data()).map_err(trouble)
}

fn file_of(device: DeviceId) -> String {
    format!("count-{device}")
}

fn read_bytes(folder: &HostFolder, device: DeviceId) -> Result<Option<[u8; FILE_BYTES]>, StateError> {
    let name = file_of(device);
    let Some(opened) = folder.opened()? else { return Ok(None) };
    let Some(mut file) = opened.file(&name, FileAccessMode::Read)? else { return Ok(None) };
    let mut bytes = [0; FILE_BYTES];
    match file.read_exact(&mut bytes) {
        Ok(()) => Ok(Some(bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(folder.trouble(&name, &error)),
    }
}

fn record(count: u64) -> [u8; RECORD_BYTES] {
    let mut record = [b'\n'; RECORD_BYTES];
    record.iter_mut().zip(format!("{count:020} {:020}", !count).bytes()).for_each(|(to, from)| *to = from);
    record
}

/// What the two records say; `None` for one that is not whole.
fn counts(bytes: &[u8; FILE_BYTES]) -> [Option<u64>; 2] {
    [0, APART].map(|at| {
        let written = &bytes[at..at + RECORD_BYTES];
        let count = std::str::from_utf8(&written[..20]).ok()?.parse().ok()?;
        (record(count) == written).then_some(count)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trust::random_device_id;
    use crate::trust::records::leases::KnownLease;
    use crate::trust::records::leases::tests::LeaseScratchFolder;
    use std::fs;

    fn store(folder: &HostFolder, device: DeviceId, count: u64) {
        write(folder, device, &lock(folder, device).unwrap(), count).unwrap();
    }

    #[test]
    fn a_write_that_was_cut_off_leaves_the_count_before() {
        let LeaseScratchFolder(folder) = &LeaseScratchFolder::new("cut");
        let device = random_device_id();
        assert_eq!(read(folder, device).unwrap(), None);
        let file = folder.file(&file_of(device));
        for count in [3, 4, 9, 10_000_000_000] {
            let before = read(folder, device).unwrap();
            store(folder, device, count);
            let after = fs::read(&file).unwrap();
            assert_eq!((read(folder, device).unwrap(), after.len()), (Some(count), FILE_BYTES));
            let at = after.windows(20).position(|digits| digits == format!("{count:020}").as_bytes()).unwrap();
            for whole in 0..RECORD_BYTES {
                let mut cut = after.clone();
                cut[at + whole..at + RECORD_BYTES].fill(0);
                fs::write(&file, &cut).unwrap();
                assert_eq!(read(folder, device).unwrap(), before, "{count} cut off after {whole} bytes");
            }
            fs::write(&file, after).unwrap();
        }
    }

    #[test]
    fn counts_that_many_threads_store_at_once_are_all_different() {
        let LeaseScratchFolder(folder) = &LeaseScratchFolder::new("many");
        let device = random_device_id();
        let reserve = || (0..50).map(|_| KnownLease::reserve(folder, device, 0, 7).unwrap()).collect::<Vec<u64>>();
        let mut all: Vec<u64> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(reserve)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        all.sort_unstable();
        assert_eq!(all, (8..208).collect::<Vec<u64>>());
    }

    #[test]
    fn a_file_of_anything_else_has_no_count_and_is_replaced() {
        let LeaseScratchFolder(folder) = &LeaseScratchFolder::new("else");
        let device = random_device_id();
        let file = folder.file(&file_of(device));
        for content in [Vec::new(), vec![b'7'; 100], vec![0xff; FILE_BYTES], vec![b'9'; 3 * FILE_BYTES]] {
            folder.make().unwrap();
            fs::write(&file, content).unwrap();
            assert_eq!(read(folder, device).unwrap(), None);
            store(folder, device, 5);
            store(folder, device, 6);
            assert_eq!(read(folder, device).unwrap(), Some(6));
        }
    }
}
