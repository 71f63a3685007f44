//! Files that modules write. A thread of its own writes each, so that no data path waits for a disk.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::SystemTime;

use farbus_io_net::store::create_output;
use farbus_modules::{ModuleFileSink, empty_recording};

/// The most bytes that may wait for the disk. Further ones are dropped.
const WAITING_BYTES_MAX: usize = 16 << 20;
const WAITING_BLOCKS_MAX: usize = 4096;

/// A file that is written in the background.
pub struct RecordingFile {
    /// The file, opened while the process had its rights. Its thread is started with the first block, when they are
    /// dropped.
    begun: Mutex<Result<SyncSender<Vec<u8>>, Option<File>>>,
    waiting_bytes: Arc<AtomicUsize>,
}

impl RecordingFile {
    /// Creates or replaces the file. Only its owner may read it, because it holds the device's data.
    ///
    /// # Errors
    /// A sentence for a person.
    pub fn create(path: &Path) -> Result<Self, String> {
        // A recording that nothing passes is a valid one, too.
        let opened = create_output(path, 0o600).and_then(|mut file| file.write_all(&empty_recording()).map(|()| file));
        let file = opened.map_err(|error| format!("it cannot be written: {error}"))?;
        Ok(Self { begun: Mutex::new(Err(Some(file))), waiting_bytes: Arc::default() })
    }
}

fn write_behind(mut file: File, waiting_bytes: Arc<AtomicUsize>) -> Option<SyncSender<Vec<u8>>> {
    let (sender, blocks) = sync_channel::<Vec<u8>>(WAITING_BLOCKS_MAX);
    let write = move || {
        let mut is_good = true;
        for block in blocks {
            // After an error the rest would be at a wrong offset.
            is_good = is_good && file.write_all(&block).is_ok();
            waiting_bytes.fetch_sub(block.len(), Ordering::AcqRel);
            if !is_good {
                return;
            }
        }
    };
    thread::Builder::new().name("recording".into()).spawn(write).ok().map(|_| sender)
}

impl ModuleFileSink for RecordingFile {
    fn put(&self, bytes: Vec<u8>) -> bool {
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(file) = &mut *begun
            && let Some(file) = file.take()
            && let Some(sender) = write_behind(file, Arc::clone(&self.waiting_bytes))
        {
            *begun = Ok(sender);
        }
        let Ok(sender) = &*begun else { return false };
        let length = bytes.len();
        if self.waiting_bytes.fetch_add(length, Ordering::AcqRel) + length <= WAITING_BYTES_MAX {
            match sender.try_send(bytes) {
                Ok(()) => return true,
                Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {}
            }
        }
        self.waiting_bytes.fetch_sub(length, Ordering::AcqRel);
        false
    }

    fn unix_ns(&self) -> u64 {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn blocks_are_written_in_order_and_failures_are_reported() {
        let path = std::env::temp_dir().join(format!("farbus-recording-{}", std::process::id()));
        let recording = RecordingFile::create(&path).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), empty_recording(), "an unused recording is valid");
        let expected = [&empty_recording()[..], b"one two"].concat();
        assert!(recording.put(b"one ".to_vec()) && recording.put(b"two".to_vec()));
        assert!(!recording.put(vec![0; WAITING_BYTES_MAX + 1]), "more than may wait");
        let until = Instant::now() + Duration::from_secs(20);
        while std::fs::read(&path).unwrap() != expected {
            assert!(Instant::now() < until, "it is written in time");
            thread::sleep(Duration::from_millis(5));
        }
        std::fs::remove_file(&path).unwrap();
        assert!(recording.unix_ns() > 1_700_000_000_000_000_000);
        assert!(
            RecordingFile::create(Path::new("/nonexistent/file")).err().unwrap().starts_with("it cannot be written")
        );
        assert!(RecordingFile::create(Path::new("/dev/full")).is_err(), "a full disk is noticed");
    }
}
