//! A Bulk-Only disk as a driver of a few lines: over usbfs, and over a usbredir connection.

use std::io;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use farbus::model::{EpAddr, Payload};
use farbus_session::redir::usbredir::message::DataPacket;
use farbus_session::redir::usbredir::{RedirMessage, RedirStatus};
use nusb::MaybeFuture;
use nusb::transfer::{Buffer, Bulk, In, Out};

use super::redir::Guest;

/// The class code of storage devices.
const STORAGE: u8 = 8;
/// The endpoints of farbus's own disk.
const FROM_DISK: u8 = 0x81;
const TO_DISK: u8 = 0x01;
const SECTOR: u64 = 512;
/// A transfer that takes longer has hung.
const TRANSFER_MAX: Duration = Duration::from_secs(150);

/// The two bulk endpoints of a storage device.
pub trait BulkPipes {
    fn bulk_out(&mut self, bytes: Vec<u8>) -> io::Result<()>;
    /// Reads `length` bytes at most.
    fn bulk_in(&mut self, length: usize) -> io::Result<Vec<u8>>;
}

/// A disk behind two bulk endpoints, one command at a time (USB Mass Storage Class, Bulk-Only Transport 1.0).
pub struct BulkOnlyDisk<P> {
    pipes: P,
    tag: u32,
}

impl<P: BulkPipes> BulkOnlyDisk<P> {
    /// Takes the disk into use.
    pub fn open(pipes: P) -> io::Result<Self> {
        let mut disk = Self { pipes, tag: 0 };
        disk.wait_until_ready()?;
        Ok(disk)
    }

    /// Sends a command block, moves its data and checks its status.
    fn command(&mut self, block: &[u8], out: Option<&[u8]>, length: usize) -> io::Result<Vec<u8>> {
        self.tag += 1;
        let mut wrapper = b"USBC".to_vec();
        wrapper.extend(self.tag.to_le_bytes());
        wrapper.extend((out.map_or(length, <[u8]>::len) as u32).to_le_bytes());
        wrapper.extend([if out.is_some() { 0 } else { 0x80 }, 0, block.len() as u8]);
        wrapper.extend(block);
        wrapper.resize(31, 0);
        self.pipes.bulk_out(wrapper)?;
        let data = match out {
            Some([]) => Vec::new(),
            Some(bytes) => self.pipes.bulk_out(bytes.to_vec()).map(|()| Vec::new())?,
            None => self.pipes.bulk_in(length)?,
        };
        let status = self.pipes.bulk_in(13)?;
        let is_ours = status.len() == 13 && status.starts_with(b"USBS") && status[4..8] == self.tag.to_le_bytes();
        match (is_ours, status.last()) {
            (true, Some(0)) => Ok(data),
            // A command that failed: a write to a disk that is read-only, for example.
            (true, Some(1)) => Err(io::Error::from_raw_os_error(5)),
            _ => Err(io::Error::other(format!("an answer out of order: {status:?}"))),
        }
    }

    fn transfer_block(operation: u8, offset: u64, length: usize) -> [u8; 10] {
        let (at, count) = ((offset / SECTOR) as u32, (length as u64 / SECTOR) as u16);
        let [a, b, c, d] = at.to_be_bytes();
        let [high, low] = count.to_be_bytes();
        [operation, 0, a, b, c, d, 0, high, low, 0]
    }

    pub fn read(&mut self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let bytes = self.command(&Self::transfer_block(0x28, offset, length), None, length)?;
        if bytes.len() == length { Ok(bytes) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.command(&Self::transfer_block(0x2a, offset, bytes.len()), Some(bytes), 0).map(drop)
    }

    /// TEST UNIT READY, until the disk has told that it is new.
    fn wait_until_ready(&mut self) -> io::Result<()> {
        self.command(&[0; 6], Some(&[]), 0).or_else(|_| self.command(&[0; 6], Some(&[]), 0)).map(drop)
    }

    /// Makes all written data durable, with SYNCHRONIZE CACHE(10).
    pub fn synchronize(&mut self) -> io::Result<()> {
        self.command(&[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0], Some(&[]), 0).map(drop)
    }
}

/// The pipes of the storage device that this process sees, by usbfs.
pub struct UsbfsPipes {
    out: nusb::Endpoint<Bulk, Out>,
    back: nusb::Endpoint<Bulk, In>,
}

impl UsbfsPipes {
    pub fn claim() -> io::Result<Self> {
        let is_storage = |device: &nusb::DeviceInfo| device.interfaces().any(|interface| interface.class() == STORAGE);
        let found = nusb::list_devices().wait()?.find(is_storage).ok_or(io::ErrorKind::NotFound)?;
        let interface = found.open().wait()?.detach_and_claim_interface(0).wait()?;
        Ok(Self { out: interface.endpoint(TO_DISK)?, back: interface.endpoint(FROM_DISK)? })
    }
}

impl BulkPipes for UsbfsPipes {
    fn bulk_out(&mut self, bytes: Vec<u8>) -> io::Result<()> {
        self.out.submit(bytes.into());
        let done = self.out.wait_next_complete(TRANSFER_MAX).ok_or(io::ErrorKind::TimedOut)?;
        done.status.map_err(io::Error::other)
    }

    fn bulk_in(&mut self, length: usize) -> io::Result<Vec<u8>> {
        // A transfer has whole packets of 512 bytes.
        self.back.submit(Buffer::new(length.next_multiple_of(512)));
        let done = self.back.wait_next_complete(TRANSFER_MAX).ok_or(io::ErrorKind::TimedOut)?;
        done.status.map_err(io::Error::other)?;
        Ok(done.buffer.into_vec())
    }
}

/// The pipes of the device that a guest of a virtual machine's emulator has by usbredir.
pub struct RedirPipes {
    guest: Guest<UnixStream>,
    id: u64,
}

impl RedirPipes {
    /// The guest has configured the device.
    pub fn new(guest: Guest<UnixStream>) -> Self {
        Self { guest, id: 100 }
    }

    fn bulk(&mut self, endpoint: u8, length: usize, payload: Payload) -> io::Result<DataPacket> {
        self.id += 1;
        let outcome = RedirStatus::Success;
        let endpoint = EpAddr::from_byte(endpoint);
        let packet = DataPacket { endpoint, outcome, length: length as u32, stream: 0, payload };
        self.guest.try_say(self.id, RedirMessage::Bulk(packet))?;
        loop {
            let packet = self.guest.hear().ok_or(io::ErrorKind::ConnectionAborted)?;
            match packet.message {
                RedirMessage::Bulk(answer) if packet.id == self.id => match answer.outcome {
                    RedirStatus::Success => return Ok(answer),
                    outcome => return Err(io::Error::other(format!("{outcome:?}"))),
                },
                RedirMessage::DeviceDisconnect => return Err(io::ErrorKind::NotConnected.into()),
                _ => {}
            }
        }
    }
}

impl BulkPipes for RedirPipes {
    fn bulk_out(&mut self, bytes: Vec<u8>) -> io::Result<()> {
        let length = bytes.len();
        let answer = self.bulk(TO_DISK, length, bytes.into())?;
        if answer.length as usize == length { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    fn bulk_in(&mut self, length: usize) -> io::Result<Vec<u8>> {
        Ok(self.bulk(FROM_DISK, length, Payload::Empty)?.payload.into_vec())
    }
}
