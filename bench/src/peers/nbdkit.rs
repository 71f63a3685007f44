//! `nbdkit memory`, and an NBD client that reads one block at a time.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use super::listen::{ANY_LOOPBACK_PORT, START_MAX};
use crate::placement::Placement;

const NBD_MAGIC: u64 = 0x4e42_444d_4147_4943;
const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
const OPT_GO: u32 = 7;
const REP_ACK: u32 = 1;
const REP_INFO: u32 = 3;
const INFO_EXPORT: u16 = 0;
/// FIXED_NEWSTYLE and NO_ZEROES.
const CLIENT_FLAGS: u32 = 0b11;

#[derive(Clone, Copy)]
enum Verb {
    Read = 0,
    Write = 1,
}

/// A running `nbdkit memory`, killed when dropped.
pub struct Nbdkit {
    child: Child,
    address: SocketAddr,
}

impl Nbdkit {
    pub fn start(bytes: u64, placement: Placement) -> Result<Self> {
        // nbdkit cannot choose a port and tell, so one is found first and given back.
        let address = TcpListener::bind(ANY_LOOPBACK_PORT)?.local_addr()?;
        let mut command = Command::new("nbdkit");
        command
            .args(["--foreground", "--exit-with-parent", "--ipaddr", "127.0.0.1"])
            .args(["--port", &address.port().to_string(), "memory", &bytes.to_string()])
            .stdin(Stdio::null());
        let child = placement
            .start_server(&mut command)
            .context("nbdkit (Debian package nbdkit) is the peer of the storage target")?;
        let nbdkit = Self { child, address };
        let began = Instant::now();
        while TcpStream::connect(address).is_err() {
            ensure!(began.elapsed() < START_MAX, "nbdkit does not listen on {address}");
            thread::sleep(Duration::from_millis(10));
        }
        Ok(nbdkit)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn connect(&self) -> Result<Nbd> {
        Nbd::negotiate(TcpStream::connect(self.address)?)
    }
}

impl Drop for Nbdkit {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The default export of an NBD server, used with simple replies and one request at a time.
pub struct Nbd {
    stream: TcpStream,
    pub bytes: u64,
    cookie: u64,
}

impl Nbd {
    fn negotiate(mut stream: TcpStream) -> Result<Self> {
        stream.set_nodelay(true)?;
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting)?;
        ensure!(greeting[..8] == NBD_MAGIC.to_be_bytes(), "not an NBD server");
        ensure!(greeting[8..16] == OPTION_MAGIC.to_be_bytes(), "not a newstyle NBD server");

        let mut go = Vec::new();
        go.extend(CLIENT_FLAGS.to_be_bytes());
        go.extend(OPTION_MAGIC.to_be_bytes());
        go.extend(OPT_GO.to_be_bytes());
        // An empty name and no information requests.
        go.extend(6_u32.to_be_bytes());
        go.extend([0; 6]);
        stream.write_all(&go)?;

        let mut bytes = None;
        loop {
            let mut head = [0; 20];
            stream.read_exact(&mut head)?;
            ensure!(head[..8] == OPTION_REPLY_MAGIC.to_be_bytes(), "not a reply to an option");
            let kind = u32::from_be_bytes(head[12..16].try_into().expect("four bytes"));
            let length = u32::from_be_bytes(head[16..20].try_into().expect("four bytes"));
            ensure!(length <= 4096, "an option reply of {length} bytes");
            let mut data = vec![0; length as usize];
            stream.read_exact(&mut data)?;
            match kind {
                REP_ACK => break,
                REP_INFO if data.len() == 12 && data[..2] == INFO_EXPORT.to_be_bytes() => {
                    bytes = Some(u64::from_be_bytes(data[2..10].try_into().expect("eight bytes")));
                }
                REP_INFO => {}
                other => anyhow::bail!("the NBD server refused the export: {other:#x}"),
            }
        }
        let bytes = bytes.context("the NBD server did not tell the size of the export")?;
        Ok(Self { stream, bytes, cookie: 0 })
    }

    pub fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.request(Verb::Read, offset, buffer.len())?;
        self.reply()?;
        self.stream.read_exact(buffer)?;
        Ok(())
    }

    pub fn write_at(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        self.request(Verb::Write, offset, data.len())?;
        self.stream.write_all(data)?;
        self.reply()
    }

    fn request(&mut self, verb: Verb, offset: u64, length: usize) -> Result<()> {
        self.cookie += 1;
        let mut request = [0; 28];
        request[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        request[6..8].copy_from_slice(&(verb as u16).to_be_bytes());
        request[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        request[16..24].copy_from_slice(&offset.to_be_bytes());
        request[24..28].copy_from_slice(&(length as u32).to_be_bytes());
        self.stream.write_all(&request)?;
        Ok(())
    }

    fn reply(&mut self) -> Result<()> {
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply)?;
        ensure!(reply[..4] == SIMPLE_REPLY_MAGIC.to_be_bytes(), "not a simple reply: {reply:02x?}");
        ensure!(reply[4..8] == [0; 4], "the NBD server answered with error {:02x?}", &reply[4..8]);
        ensure!(reply[8..] == self.cookie.to_be_bytes(), "the reply to another request");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_to_nbdkit_is_read_back() {
        let Ok(nbdkit) = Nbdkit::start(1 << 20, Placement::Free) else {
            eprintln!("skipped: nbdkit is not installed");
            return;
        };
        let mut nbd = nbdkit.connect().expect("an export");
        assert_eq!(nbd.bytes, 1 << 20);
        nbd.write_at(4096, &[7; 8192]).expect("written");
        let mut buffer = vec![0; 8192];
        nbd.read_at(8192, &mut buffer).expect("read");
        assert_eq!((buffer[0], buffer[4095], buffer[4096]), (7, 7, 0));
        assert!(nbd.read_at(1 << 20, &mut buffer).is_err());
    }
}
