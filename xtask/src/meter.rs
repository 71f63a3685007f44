//! Counts what this process and its children print.
//!
//! A log that is too long to be read hides what it says: 23 MB of one warning once did. The meter puts pipes in the
//! place of standard output and standard error and passes on what comes. On a terminal it does nothing: colours and
//! progress stay as they are.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, IsTerminal as _, PipeReader, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Different lines that are told apart; a step that prints more of them does not repeat one.
const LINES_MAX: usize = 20_000;
/// A line's beginning tells it.
const LINE_BYTES_MAX: usize = 200;
/// How long a reader may take to look again whether its pipe is empty.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// What was printed in a while.
#[derive(Debug, Default)]
pub struct PrintedOutput {
    pub bytes: u64,
    lines: HashMap<Vec<u8>, u64>,
    rest: Vec<u8>,
}

/// Tells how long nothing was printed.
#[derive(Clone)]
pub struct SilenceClock(Arc<Mutex<Instant>>);

impl SilenceClock {
    pub fn silent_for(&self) -> Duration {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }

    fn hears(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}

impl PrintedOutput {
    fn add(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        for part in bytes.split_inclusive(|&byte| byte == b'\n') {
            let room = LINE_BYTES_MAX.saturating_sub(self.rest.len());
            self.rest.extend(part.iter().take(room).filter(|&&byte| byte != b'\n'));
            if part.ends_with(b"\n") {
                let line = std::mem::take(&mut self.rest);
                if let Some(count) = self.lines.get_mut(&line) {
                    *count += 1;
                } else if self.lines.len() < LINES_MAX {
                    self.lines.insert(line, 1);
                }
            }
        }
    }

    /// The line that was printed most often, and how often.
    fn most_frequent(&self) -> Option<(u64, String)> {
        let lines = self.lines.iter().filter(|(line, _)| !line.is_empty());
        lines.max_by_key(|(_, count)| **count).map(|(line, count)| (*count, String::from_utf8_lossy(line).into_owned()))
    }

    /// What to say if this is more than `max` bytes.
    pub fn complaint(&self, max: u64) -> Option<String> {
        (self.bytes > max).then(|| {
            let often = self.most_frequent().map(|(count, line)| format!("; most often, {count} times: {line}"));
            format!(
                "it printed {} bytes, and {max} are allowed (xtask/gate.toml){}",
                self.bytes,
                often.unwrap_or_default()
            )
        })
    }
}

/// What is printed goes through this until it is dropped.
pub struct OutputMeter {
    out: (OwnedFd, Arc<OutputPipe>),
    err: (OwnedFd, Arc<OutputPipe>),
    printed: Arc<Mutex<PrintedOutput>>,
    clock: SilenceClock,
}

/// One of the two pipes.
struct OutputPipe {
    reader: OwnedFd,
    is_waiting: AtomicBool,
}

impl OutputMeter {
    /// Begins; nothing if standard output is a terminal.
    ///
    /// # Errors
    /// There are no more descriptors.
    pub fn start() -> io::Result<Option<OutputMeter>> {
        if io::stdout().is_terminal() {
            return Ok(None);
        }
        let (out, err) = (io::stdout().as_fd().try_clone_to_owned()?, io::stderr().as_fd().try_clone_to_owned()?);
        let printed = Arc::new(Mutex::new(PrintedOutput::default()));
        let clock = SilenceClock(Arc::new(Mutex::new(Instant::now())));
        let (out_pipe, out_writer) = pass_on(&out, &printed, &clock)?;
        // What goes into one file keeps its order.
        let is_one = is_one_file(&out, &err)?;
        let (err_pipe, err_writer) =
            if is_one { (Arc::clone(&out_pipe), out_writer.try_clone()?) } else { pass_on(&err, &printed, &clock)? };
        rustix::stdio::dup2_stdout(&out_writer)?;
        rustix::stdio::dup2_stderr(&err_writer)?;
        Ok(Some(OutputMeter { out: (out, out_pipe), err: (err, err_pipe), printed, clock }))
    }

    /// Tells how long nothing was printed.
    pub fn clock(&self) -> SilenceClock {
        self.clock.clone()
    }

    /// What was printed since this was asked before.
    pub fn take(&self) -> PrintedOutput {
        self.settle();
        std::mem::take(&mut self.printed.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until all that was printed is passed on.
    fn settle(&self) {
        let _ = io::stdout().flush();
        for (_, pipe) in [&self.out, &self.err] {
            // Twice: a reader that has just taken the last bytes has not said so yet.
            let mut quiet = 0;
            while quiet < 2 {
                let is_empty = rustix::io::ioctl_fionread(&pipe.reader).unwrap_or(0) == 0;
                quiet = if is_empty && pipe.is_waiting.load(Ordering::Acquire) { quiet + 1 } else { 0 };
                std::thread::sleep(LOOK_AGAIN);
            }
        }
    }
}

impl Drop for OutputMeter {
    fn drop(&mut self) {
        self.settle();
        let _ = rustix::stdio::dup2_stdout(&self.out.0);
        let _ = rustix::stdio::dup2_stderr(&self.err.0);
    }
}

fn is_one_file(one: &OwnedFd, other: &OwnedFd) -> io::Result<bool> {
    let id = |descriptor: &OwnedFd| -> io::Result<(u64, u64)> {
        let metadata = File::from(descriptor.try_clone()?).metadata()?;
        Ok((metadata.dev(), metadata.ino()))
    };
    Ok(id(one)? == id(other)?)
}

/// A pipe whose bytes are counted and passed on to `to`, and its writing end.
fn pass_on(
    to: &OwnedFd,
    printed: &Arc<Mutex<PrintedOutput>>,
    clock: &SilenceClock,
) -> io::Result<(Arc<OutputPipe>, OwnedFd)> {
    let (reader, writer) = io::pipe()?;
    let pipe =
        Arc::new(OutputPipe { reader: reader.as_fd().try_clone_to_owned()?, is_waiting: AtomicBool::new(false) });
    let (to, printed, shared) = (File::from(to.try_clone()?), Arc::clone(printed), Arc::clone(&pipe));
    let clock = clock.clone();
    std::thread::spawn(move || copy(reader, to, &printed, &clock, &shared));
    Ok((pipe, writer.into()))
}

fn copy(mut reader: PipeReader, mut to: File, printed: &Mutex<PrintedOutput>, clock: &SilenceClock, pipe: &OutputPipe) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        pipe.is_waiting.store(true, Ordering::Release);
        let count = match reader.read(&mut buffer) {
            Ok(0) => return,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return,
        };
        pipe.is_waiting.store(false, Ordering::Release);
        clock.hears();
        // A log that cannot be written stops no test.
        let _ = to.write_all(&buffer[..count]);
        printed.lock().unwrap_or_else(PoisonError::into_inner).add(&buffer[..count]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_bytes_name_the_line_that_repeats() {
        let mut printed = PrintedOutput::default();
        printed.add(b"one\nwarning: no sou");
        printed.add(b"nd\nwarning: no sound\n");
        assert_eq!(printed.bytes, 40);
        assert_eq!(printed.complaint(40), None);
        let complaint = printed.complaint(39).unwrap();
        assert!(
            complaint.contains("40 bytes") && complaint.ends_with("most often, 2 times: warning: no sound"),
            "{complaint}"
        );
    }

    #[test]
    fn a_flood_of_different_lines_takes_bounded_memory() {
        let mut printed = PrintedOutput::default();
        for number in 0..3 * LINES_MAX {
            printed.add(format!("{number}{}\n", "x".repeat(2 * LINE_BYTES_MAX)).as_bytes());
        }
        assert_eq!(printed.lines.len(), LINES_MAX);
        assert!(printed.lines.keys().all(|line| line.len() <= LINE_BYTES_MAX));
    }

    #[test]
    fn what_is_passed_on_is_counted_and_arrives() {
        let file = std::env::temp_dir().join(format!("xtask-meter-{}", std::process::id()));
        let printed = Arc::new(Mutex::new(PrintedOutput::default()));
        let to = OwnedFd::from(File::create(&file).unwrap());
        let clock = SilenceClock(Arc::new(Mutex::new(Instant::now())));
        let (_pipe, writer) = pass_on(&to, &printed, &clock).unwrap();
        let mut command = std::process::Command::new("echo");
        let status = command.arg("from a child").stdout(writer).status().unwrap();
        drop(command);
        assert!(status.success());
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        while printed.lock().unwrap().bytes < 13 && std::time::Instant::now() < deadline {
            std::thread::sleep(LOOK_AGAIN);
        }
        let text = std::fs::read_to_string(&file);
        let _ = std::fs::remove_file(&file);
        assert_eq!((text.unwrap().as_str(), printed.lock().unwrap().bytes), ("from a child\n", 13));
    }
}
