//! Programs that use a disk: an NBD client, and a process that has the disk's file open.
//!
//! The file is open in a process of its own: every process that a test starts holds its files for a moment, and their
//! closing flushes, so that a test whose disk does not answer could start no exporter.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::super::harness::{Harness, wait_until};

/// A request that is not answered within this time has hung. A stop of 60 s, a restart and a busy machine take less.
pub const HANGS: Duration = Duration::from_secs(180);

/// A program that uses a disk, one request at a time.
pub trait Client: Send {
    /// Opens the disk, which was attached there.
    fn open(&mut self) -> io::Result<()>;
    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    fn read(&mut self, offset: u64, length: usize) -> io::Result<Vec<u8>>;
    fn flush(&mut self) -> io::Result<()>;
}

/// Whether an error is the disk's answer to one request; otherwise its front end has ended.
pub fn is_answer(error: &io::Error) -> bool {
    // EPERM is NBD's EROFS; then EIO, ENOSPC, EROFS and ENOLINK.
    const ANSWERS: [i32; 5] = [1, 5, 28, 30, 67];
    error.raw_os_error().is_some_and(|code| ANSWERS.contains(&code))
}

/// Whether an error says that a request was not answered in time.
pub fn is_hang(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// An NBD client.
pub struct Nbd {
    socket: PathBuf,
    stream: Option<UnixStream>,
    cookie: u64,
}

impl Nbd {
    pub fn new(socket: PathBuf) -> Self {
        Self { socket, stream: None, cookie: 0 }
    }

    fn ask(&mut self, command: u16, offset: u64, length: usize, payload: &[u8]) -> io::Result<Vec<u8>> {
        let stream = self.stream.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        self.cookie += 1;
        let mut bytes = 0x2560_9513u32.to_be_bytes().to_vec();
        bytes.extend([0, 0]);
        bytes.extend(command.to_be_bytes());
        bytes.extend(self.cookie.to_be_bytes());
        bytes.extend(offset.to_be_bytes());
        bytes.extend((length as u32).to_be_bytes());
        bytes.extend(payload);
        stream.write_all(&bytes)?;
        let mut reply = [0; 16];
        stream.read_exact(&mut reply)?;
        assert_eq!(reply[..4], 0x6744_6698u32.to_be_bytes());
        assert_eq!(reply[8..], self.cookie.to_be_bytes());
        match u32::from_be_bytes(reply[4..8].try_into().unwrap()) {
            0 => {
                let mut data = vec![0; if command == 0 { length } else { 0 }];
                stream.read_exact(&mut data)?;
                Ok(data)
            }
            // ESHUTDOWN: the server ends.
            108 => Err(io::ErrorKind::ConnectionAborted.into()),
            // NBD has no number for a lost link.
            error => Err(io::Error::from_raw_os_error(error as i32)),
        }
    }
}

impl Client for Nbd {
    fn open(&mut self) -> io::Result<()> {
        let mut stream = UnixStream::connect(&self.socket)?;
        stream.set_read_timeout(Some(HANGS))?;
        stream.read_exact(&mut [0; 18])?;
        stream.write_all(&3u32.to_be_bytes())?;
        stream.write_all(&[&b"IHAVEOPT"[..], &1u32.to_be_bytes(), &0u32.to_be_bytes()].concat())?;
        stream.read_exact(&mut [0; 10])?;
        self.stream = Some(stream);
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.ask(1, offset, bytes.len(), bytes).map(drop)
    }

    fn read(&mut self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        self.ask(0, offset, length, &[])
    }

    fn flush(&mut self) -> io::Result<()> {
        self.ask(3, 0, 0, &[]).map(drop)
    }
}

/// Tells a process of this program that it is to use files, and where it is asked to.
pub const FILES_OF: &str = "FARBUS_TEST_FILES_OF";
const TEST: &str = "durability::clients::process_that_uses_a_file_for_another_test";
const OPEN: u8 = 1;
const WRITE: u8 = 2;
const READ: u8 = 3;
const FLUSH: u8 = 4;

/// A process that has the disk's file open.
pub struct FileUser {
    file: PathBuf,
    stream: UnixStream,
    process: Child,
}

impl FileUser {
    pub fn start(harness: &Harness, name: &str, file: PathBuf) -> Self {
        let socket = harness.path(name);
        let listener = UnixListener::bind(&socket).unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([TEST, "--exact"]).env(FILES_OF, &socket).stdout(Stdio::null());
        let process = command.spawn().unwrap();
        let stream = listener.accept().unwrap().0;
        stream.set_read_timeout(Some(HANGS)).unwrap();
        Self { file, stream, process }
    }

    fn ask(&mut self, op: u8, offset: u64, length: usize, payload: &[u8]) -> io::Result<Vec<u8>> {
        let head = [&[op][..], &offset.to_le_bytes(), &(length as u64).to_le_bytes()].concat();
        self.stream.write_all(&head)?;
        self.stream.write_all(payload)?;
        let mut error = [0; 4];
        self.stream.read_exact(&mut error)?;
        match i32::from_le_bytes(error) {
            0 => {
                let mut data = vec![0; if op == READ { length } else { 0 }];
                self.stream.read_exact(&mut data)?;
                Ok(data)
            }
            code => Err(io::Error::from_raw_os_error(code)),
        }
    }
}

impl Drop for FileUser {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Client for FileUser {
    fn open(&mut self) -> io::Result<()> {
        let path = self.file.to_str().unwrap().to_owned();
        self.ask(OPEN, 0, path.len(), path.as_bytes()).map(drop)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.ask(WRITE, offset, bytes.len(), bytes).map(drop)
    }

    fn read(&mut self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        self.ask(READ, offset, length, &[])
    }

    fn flush(&mut self) -> io::Result<()> {
        self.ask(FLUSH, 0, 0, &[]).map(drop)
    }
}

/// Does what another test asks, until that ends.
fn use_files(socket: &Path) -> io::Result<()> {
    const O_DIRECT: i32 = rustix::fs::OFlags::DIRECT.bits() as i32;
    let mut asker = UnixStream::connect(socket)?;
    let mut file: Option<File> = None;
    loop {
        let mut head = [0; 17];
        asker.read_exact(&mut head)?;
        let offset = u64::from_le_bytes(head[1..9].try_into().unwrap());
        let mut bytes = vec![0; u64::from_le_bytes(head[9..].try_into().unwrap()) as usize];
        if matches!(head[0], OPEN | WRITE) {
            asker.read_exact(&mut bytes)?;
        }
        let gone = || io::Error::from(io::ErrorKind::NotConnected);
        let answer = match (head[0], &file) {
            (OPEN, _) => {
                // The old one first: its mount may be gone.
                file = None;
                let path = String::from_utf8(bytes.clone()).unwrap();
                let opened = OpenOptions::new().read(true).write(true).custom_flags(O_DIRECT).open(path);
                opened.map(|opened| file = Some(opened))
            }
            (_, None) => Err(gone()),
            (WRITE, Some(file)) => file.write_all_at(&bytes, offset),
            (READ, Some(file)) => file.read_exact_at(&mut bytes, offset),
            (_, Some(file)) => file.sync_data(),
        };
        let code = answer.as_ref().err().map_or(0, |error| error.raw_os_error().unwrap_or(107));
        asker.write_all(&code.to_le_bytes())?;
        if head[0] == READ && code == 0 {
            asker.write_all(&bytes)?;
        }
    }
}

#[test]
fn process_that_uses_a_file_for_another_test() {
    let Some(socket) = std::env::var_os(FILES_OF) else { return };
    let ended = use_files(Path::new(&socket)).unwrap_err();
    assert_eq!(ended.kind(), io::ErrorKind::UnexpectedEof, "the other test ends: {ended}");
}

/// Opens a disk that is attached, or about to be.
pub fn open_soon(client: &mut dyn Client, is_over: impl Fn() -> bool) {
    wait_until(HANGS, "the disk opens", || client.open().is_ok() || is_over());
}
