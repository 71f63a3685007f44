//! Programs that use a disk: an NBD client, a guest of a virtual machine's emulator, and a process that has the disk's
//! file open, drives it by usbfs or opens it by farbus's library.
//!
//! A file is open in a process of its own: every process that a test starts holds its files for a moment, and their
//! closing flushes, so that a test whose disk does not answer could start no exporter.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use farbus::client::{self, DevicePort};
use farbus::host::RemoteDisk;
use farbus::model::BlockStore;

use super::bulk_only::{BulkOnlyDisk, BulkPipes, UsbfsPipes};
use super::harness::{Harness, wait_until};

/// A request that is not answered within this time has hung. A stop of 60 s, a restart and a busy machine take less.
pub const HANGS: Duration = Duration::from_secs(180);

/// A program that uses a disk, one request at a time.
pub trait Client: Send {
    /// Opens the disk, which was attached there.
    fn open(&mut self) -> io::Result<()>;
    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    fn read(&mut self, offset: u64, length: usize) -> io::Result<Vec<u8>>;
    fn flush(&mut self) -> io::Result<()>;

    /// What the disk's USB device says of itself to programs that look below `/sys`: manufacturer, product and serial
    /// number, a line each.
    fn strings(&mut self) -> io::Result<String> {
        Err(io::ErrorKind::Unsupported.into())
    }
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

/// Tells a process of this program that it is to use a disk, and where it is asked to.
pub const DISK_OF: &str = "FARBUS_TEST_DISK_OF";
const TEST: &str = "disk_clients::process_that_uses_a_disk_for_another_test";
const OPEN: u8 = 1;
const WRITE: u8 = 2;
const READ: u8 = 3;
const FLUSH: u8 = 4;
const STRINGS: u8 = 5;
/// What an answer to [`STRINGS`] is filled up to.
const STRINGS_BYTES: usize = 1024;

/// How a process of this program reaches a disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reach {
    /// As a file or a block device, past the kernel's cache.
    File(PathBuf),
    /// As the only storage device on the USB that the process sees, by usbfs.
    Usbfs,
    /// By farbus's library: HOST/DEVICE.
    Library(String),
}

impl Reach {
    fn encode(&self) -> String {
        match self {
            Self::File(path) => format!("file {}", path.to_str().unwrap()),
            Self::Usbfs => "usbfs ".to_owned(),
            Self::Library(target) => format!("library {target}"),
        }
    }

    fn decode(text: &str) -> Self {
        match text.split_once(' ').expect("a kind and what is meant") {
            ("file", path) => Self::File(path.into()),
            ("usbfs", _) => Self::Usbfs,
            ("library", target) => Self::Library(target.to_owned()),
            other => panic!("{other:?}"),
        }
    }

    fn open(&self) -> io::Result<Box<dyn OpenDisk>> {
        const O_DIRECT: i32 = rustix::fs::OFlags::DIRECT.bits() as i32;
        Ok(match self {
            Self::File(path) => {
                let open = |writes| OpenOptions::new().read(true).write(writes).custom_flags(O_DIRECT).open(path);
                let is_read_only = |error: &io::Error| matches!(error.raw_os_error(), Some(13 | 30));
                Box::new(open(true).or_else(|error| if is_read_only(&error) { open(false) } else { Err(error) })?)
            }
            Self::Usbfs => Box::new(BulkOnlyDisk::open(UsbfsPipes::claim()?)?),
            Self::Library(target) => Box::new(client::open_disk(&target.parse().unwrap()).map_err(io::Error::other)?),
        })
    }
}

/// A disk that a process has open.
trait OpenDisk {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    fn read_at(&mut self, offset: u64, bytes: &mut [u8]) -> io::Result<()>;
    fn flush(&mut self) -> io::Result<()>;
}

/// Room for so many bytes where a kernel's disk takes them past its cache.
fn aligned(room: &mut Vec<u8>, length: usize) -> &mut [u8] {
    const ALIGNMENT: usize = 4096;
    room.resize(length + ALIGNMENT, 0);
    let from = room.as_ptr().align_offset(ALIGNMENT);
    &mut room[from..from + length]
}

impl OpenDisk for File {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut room = Vec::new();
        let aligned = aligned(&mut room, bytes.len());
        aligned.copy_from_slice(bytes);
        self.write_all_at(aligned, offset)
    }

    fn read_at(&mut self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let mut room = Vec::new();
        let aligned = aligned(&mut room, bytes.len());
        self.read_exact_at(aligned, offset)?;
        bytes.copy_from_slice(aligned);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sync_data()
    }
}

impl<P: BulkPipes> OpenDisk for BulkOnlyDisk<P> {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write(offset, bytes)
    }

    fn read_at(&mut self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        bytes.copy_from_slice(&self.read(offset, bytes.len())?);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.synchronize()
    }
}

impl OpenDisk for RemoteDisk<DevicePort> {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        BlockStore::write_at(self, offset, bytes).map_err(io::Error::other)
    }

    fn read_at(&mut self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        BlockStore::read_at(self, offset, bytes).map_err(io::Error::other)
    }

    fn flush(&mut self) -> io::Result<()> {
        BlockStore::flush(self).map_err(io::Error::other)
    }
}

/// A process that uses a disk for a test.
pub struct DiskUser {
    reach: Reach,
    stream: UnixStream,
    process: Option<Child>,
}

impl DiskUser {
    /// Starts a process that has the file open.
    pub fn start(harness: &Harness, name: &str, file: PathBuf) -> Self {
        let (listener, words) = Self::prepare(harness, name);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).env(DISK_OF, harness.path(name)).stdout(Stdio::null());
        let process = command.spawn().unwrap();
        let stream = listener.accept().unwrap().0;
        let mut user = Self::over(stream, Reach::File(file));
        user.process = Some(process);
        user
    }

    /// Where a process will say that it is ready, and the command line that makes it one. Its environment has to have
    /// [`DISK_OF`], the path of the socket.
    pub fn prepare(harness: &Harness, name: &str) -> (UnixListener, Vec<String>) {
        let listener = UnixListener::bind(harness.path(name)).unwrap();
        let this = std::env::current_exe().unwrap().to_str().unwrap().to_owned();
        (listener, [this.as_str(), TEST, "--exact", "--nocapture"].map(str::to_owned).to_vec())
    }

    /// The process at the other end of a connection.
    pub fn over(stream: UnixStream, reach: Reach) -> Self {
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(HANGS)).unwrap();
        Self { reach, stream, process: None }
    }

    fn ask(&mut self, op: u8, offset: u64, length: usize, payload: &[u8]) -> io::Result<Vec<u8>> {
        let head = [&[op][..], &offset.to_le_bytes(), &(length as u64).to_le_bytes()].concat();
        self.stream.write_all(&head)?;
        self.stream.write_all(payload)?;
        let mut error = [0; 4];
        self.stream.read_exact(&mut error)?;
        match i32::from_le_bytes(error) {
            0 => {
                let mut data = vec![0; if matches!(op, READ | STRINGS) { length } else { 0 }];
                self.stream.read_exact(&mut data)?;
                Ok(data)
            }
            code => Err(io::Error::from_raw_os_error(code)),
        }
    }
}

impl Drop for DiskUser {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

impl Client for DiskUser {
    fn open(&mut self) -> io::Result<()> {
        let reach = self.reach.encode();
        self.ask(OPEN, 0, reach.len(), reach.as_bytes()).map(drop)
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

    fn strings(&mut self) -> io::Result<String> {
        let answer = self.ask(STRINGS, 0, STRINGS_BYTES, &[])?;
        Ok(String::from_utf8_lossy(&answer).trim_end_matches('\0').to_owned())
    }
}

/// The strings of the only storage device on the USB that this process sees.
fn strings_of_storage() -> io::Result<String> {
    let devices = std::fs::read_dir("/sys/bus/usb/devices")?.flatten().map(|entry| entry.path());
    let is_storage = |device: &PathBuf| {
        let interface = format!("{}:1.0/bInterfaceClass", device.file_name().unwrap_or_default().display());
        std::fs::read_to_string(device.join(interface)).is_ok_and(|class| class.trim() == "08")
    };
    let device = devices.into_iter().find(is_storage).ok_or(io::ErrorKind::NotFound)?;
    ["manufacturer", "product", "serial"].iter().map(|name| std::fs::read_to_string(device.join(name))).collect()
}

/// Does what another test asks, until that ends.
fn use_disk(socket: &Path) -> io::Result<()> {
    let mut asker = UnixStream::connect(socket)?;
    let mut disk: Option<Box<dyn OpenDisk>> = None;
    loop {
        let mut head = [0; 17];
        asker.read_exact(&mut head)?;
        let offset = u64::from_le_bytes(head[1..9].try_into().unwrap());
        let mut bytes = vec![0; u64::from_le_bytes(head[9..].try_into().unwrap()) as usize];
        if matches!(head[0], OPEN | WRITE) {
            asker.read_exact(&mut bytes)?;
        }
        let answer = match (head[0], &mut disk) {
            (STRINGS, _) => strings_of_storage().map(|text| bytes[..text.len()].copy_from_slice(text.as_bytes())),
            (OPEN, _) => {
                // The old one first: its mount may be gone.
                drop(disk.take());
                let reach = Reach::decode(&String::from_utf8(bytes.clone()).unwrap());
                reach.open().map(|opened| disk = Some(opened))
            }
            (_, None) => Err(io::ErrorKind::NotConnected.into()),
            (WRITE, Some(disk)) => disk.write_at(offset, &bytes),
            (READ, Some(disk)) => disk.read_at(offset, &mut bytes),
            (_, Some(disk)) => disk.flush(),
        };
        if let Err(error) = &answer {
            eprintln!("the disk's user: {error}");
        }
        let code = answer.as_ref().err().map_or(0, |error| error.raw_os_error().unwrap_or(107));
        asker.write_all(&code.to_le_bytes())?;
        if matches!(head[0], READ | STRINGS) && code == 0 {
            asker.write_all(&bytes)?;
        }
    }
}

#[test]
fn process_that_uses_a_disk_for_another_test() {
    let Some(socket) = std::env::var_os(DISK_OF) else { return };
    let ended = use_disk(Path::new(&socket)).unwrap_err();
    assert_eq!(ended.kind(), io::ErrorKind::UnexpectedEof, "the other test ends: {ended}");
}

/// Opens a disk that is attached, or about to be.
pub fn open_soon(client: &mut dyn Client, is_over: impl Fn() -> bool) {
    wait_until(HANGS, "the disk opens", || client.open().is_ok() || is_over());
}
