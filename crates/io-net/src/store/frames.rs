//! Frames of one size, from a FIFO, a character device or a file.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, OFlags};

/// How soon a thread that waits for a frame notices that it is to stop.
const GLANCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

const NO_SOURCE: &str = "frames come out of a FIFO, a device or a file";

/// A source of frames.
#[derive(Debug)]
pub struct FrameFile {
    file: File,
    frame_bytes: usize,
}

/// Opens a source of frames. A FIFO's writers may come and go; a file's frames end with the file.
///
/// # Errors
/// The system's error; a directory or a socket has no frames.
pub fn open(path: &Path) -> io::Result<OwnedFd> {
    let kind = fs::metadata(path)?.file_type();
    if !(kind.is_fifo() || kind.is_char_device() || kind.is_file()) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, NO_SOURCE));
    }
    // As long as this process has the FIFO open for writing, it does not end when another writer does.
    let mut options = OpenOptions::new();
    options.read(true).write(kind.is_fifo()).custom_flags(OFlags::NONBLOCK.bits().cast_signed());
    Ok(options.open(path)?.into())
}

/// Checks a source of frames that another process opened as [`open`] does, and passed.
///
/// # Errors
/// It is no source of frames, cannot be read, or would wait where [`FrameFile::read_frame`] must not.
pub fn received(file: OwnedFd) -> io::Result<OwnedFd> {
    let wrong = |what| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode);
    let flags = rustix::fs::fcntl_getfl(&file)?;
    if !matches!(kind, FileType::Fifo | FileType::CharacterDevice | FileType::RegularFile) {
        return wrong(NO_SOURCE);
    }
    if flags & OFlags::RWMODE == OFlags::WRONLY || flags.contains(OFlags::PATH) {
        return wrong("it was not opened for reading");
    }
    if !flags.contains(OFlags::NONBLOCK) {
        return wrong("it was opened without O_NONBLOCK");
    }
    Ok(file)
}

impl FrameFile {
    /// Reads frames of `frame_bytes` bytes from what [`open`] opened.
    pub fn new(file: OwnedFd, frame_bytes: usize) -> Self {
        Self { file: file.into(), frame_bytes }
    }

    /// Waits for the next frame; `None` after the last whole one, or once `is_over` returns true.
    ///
    /// # Errors
    /// The system's error.
    pub fn read_frame(&mut self, is_over: &dyn Fn() -> bool) -> io::Result<Option<Vec<u8>>> {
        let mut frame = vec![0; self.frame_bytes];
        let mut filled = 0;
        while filled < frame.len() {
            match self.file.read(&mut frame[filled..]) {
                Ok(0) => return Ok(None),
                Ok(more) => filled += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let polled = poll(&mut [PollFd::new(&self.file, PollFlags::IN)], Some(&GLANCE));
                    match polled.map_err(io::Error::from) {
                        Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                        _ => {}
                    }
                }
                Err(error) => return Err(error),
            }
            if is_over() {
                return Ok(None);
            }
        }
        Ok(Some(frame))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use rustix::fs::{CWD, Mode, mknodat};

    use super::*;

    #[test]
    fn frames_from_any_writer_are_whole_and_end_with_the_file() {
        let folder = std::env::temp_dir().join(format!("farbus-frames-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let never = || false;
        let fifo = folder.join("fifo");
        mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let mut frames = FrameFile::new(open(&fifo).unwrap(), 4);
        for part in ["ab", "cdef", "gh"] {
            OpenOptions::new().write(true).open(&fifo).unwrap().write_all(part.as_bytes()).unwrap();
        }
        assert_eq!(frames.read_frame(&never).unwrap().as_deref(), Some(&b"abcd"[..]));
        assert_eq!(frames.read_frame(&never).unwrap().as_deref(), Some(&b"efgh"[..]));
        assert_eq!(frames.read_frame(&|| true).unwrap(), None, "nobody wants it any more");
        let file = folder.join("file");
        fs::write(&file, "12345678 and half").unwrap();
        let mut frames = FrameFile::new(open(&file).unwrap(), 8);
        assert!(frames.read_frame(&never).unwrap().is_some() && frames.read_frame(&never).unwrap().is_some());
        assert_eq!(frames.read_frame(&never).unwrap(), None);
        assert!(open(&folder).is_err());
        // One that another process opened has to be opened in the same way.
        let refused = |fd: OwnedFd| received(fd).unwrap_err().to_string();
        assert!(received(open(&fifo).unwrap()).is_ok() && received(open(&file).unwrap()).is_ok());
        assert!(refused(File::open(&file).unwrap().into()).contains("O_NONBLOCK"));
        assert!(refused(File::create(folder.join("new")).unwrap().into()).contains("not opened for reading"));
        assert!(refused(File::open(&folder).unwrap().into()).contains("FIFO"));
        fs::remove_dir_all(&folder).unwrap();
    }
}
