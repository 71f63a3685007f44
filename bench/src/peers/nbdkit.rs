//! `nbdkit memory` and `qemu-nbd`, and an NBD client that keeps a given number of blocks in flight.

use std::{
    collections::{HashSet, VecDeque},
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use super::listen::{ANY_LOOPBACK_PORT, START_MAX};
use crate::{
    load::{LoadTally, RECEIVE_BYTES},
    placement::CpuPlacement,
};

const NBD_MAGIC: u64 = 0x4e42_444d_4147_4943;
const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
const REQUEST_BYTES: usize = 28;
const REPLY_BYTES: usize = 16;
const FLUSH: u16 = 3;
const OPT_GO: u32 = 7;
const REP_ACK: u32 = 1;
const REP_INFO: u32 = 3;
const INFO_EXPORT: u16 = 0;
/// FIXED_NEWSTYLE and NO_ZEROES.
const CLIENT_FLAGS: u32 = 0b11;

/// What a block request does, with its number in NBD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockVerb {
    Read = 0,
    Write = 1,
}

impl BlockVerb {
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// A running third-party NBD server, killed when dropped.
pub struct NbdPeer {
    child: Child,
    address: SocketAddr,
}

impl NbdPeer {
    /// Starts `nbdkit memory`: a disk of so many bytes.
    pub fn nbdkit(bytes: u64, placement: CpuPlacement) -> Result<Self> {
        Self::nbdkit_with(&["memory", &bytes.to_string()], placement)
    }

    /// `nbdkit nbd` in front of another server.
    pub fn nbdkit_proxy(behind: SocketAddr, placement: CpuPlacement) -> Result<Self> {
        Self::nbdkit_with(&["nbd", &format!("uri=nbd://{behind}/")], placement)
    }

    fn nbdkit_with(plugin: &[&str], placement: CpuPlacement) -> Result<Self> {
        // nbdkit cannot choose a port and announce it, so one is found first and released.
        let address = TcpListener::bind(ANY_LOOPBACK_PORT)?.local_addr()?;
        let mut command = Command::new("nbdkit");
        command
            .args(["--foreground", "--exit-with-parent", "--ipaddr", "127.0.0.1"])
            .args(["--port", &address.port().to_string()])
            .args(plugin)
            .stdin(Stdio::null());
        let child = placement
            .start_server(&mut command)
            .context("nbdkit (Debian package nbdkit) is the peer of the storage target")?;
        Self { child, address }.when_it_listens()
    }

    /// `qemu-nbd` over an image.
    pub fn qemu(image: &Path, placement: CpuPlacement) -> Result<Self> {
        let address = TcpListener::bind(ANY_LOOPBACK_PORT)?.local_addr()?;
        let mut command = Command::new("qemu-nbd");
        command
            .args(["--persistent", "--shared=8", "--format=raw", "--bind=127.0.0.1"])
            .arg(format!("--port={}", address.port()))
            .arg(image)
            .stdin(Stdio::null());
        let child = placement.start_server(&mut command).context("qemu-nbd (Debian package qemu-utils) is a peer")?;
        Self { child, address }.when_it_listens()
    }

    fn when_it_listens(self) -> Result<Self> {
        let began = Instant::now();
        while TcpStream::connect(self.address).is_err() {
            ensure!(began.elapsed() < START_MAX, "nobody listens on {}", self.address);
            thread::sleep(Duration::from_millis(10));
        }
        Ok(self)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn connect(&self) -> Result<NbdLoadClient> {
        NbdLoadClient::connect(self.address)
    }
}

impl Drop for NbdPeer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The default export of an NBD server, used with simple replies.
pub struct NbdLoadClient<S = TcpStream> {
    stream: S,
    pub bytes: u64,
    cookie: u64,
    seed: u64,
}

impl NbdLoadClient {
    pub fn connect(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Self::negotiate(stream)
    }
}

impl<S: Read + Write> NbdLoadClient<S> {
    /// Chooses the default export of the server at the other end.
    pub fn negotiate(mut stream: S) -> Result<Self> {
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
        Ok(Self { stream, bytes, cookie: 0, seed: 1 })
    }

    pub fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.request(BlockVerb::Read, offset, buffer.len())?;
        self.reply()?;
        self.stream.read_exact(buffer)?;
        Ok(())
    }

    pub fn write_at(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        self.request(BlockVerb::Write, offset, data.len())?;
        self.stream.write_all(data)?;
        self.reply()
    }

    /// Writes `data` in requests of `piece` bytes that are all in flight together, as a kernel writes a large record.
    pub fn write_in_pieces(&mut self, offset: u64, data: &[u8], piece: usize) -> Result<()> {
        let first = self.cookie;
        for (at, part) in data.chunks(piece).enumerate() {
            self.request(BlockVerb::Write, offset + (at * piece) as u64, part.len())?;
            self.stream.write_all(part)?;
        }
        // Servers answer in any order.
        let mut missing: HashSet<u64> = (first + 1..=self.cookie).collect();
        while !missing.is_empty() {
            let cookie = self.any_reply()?;
            ensure!(missing.remove(&cookie), "the reply to another request");
        }
        Ok(())
    }

    /// Makes every write durable.
    pub fn flush(&mut self) -> Result<()> {
        self.cookie += 1;
        let mut head = request_header(BlockVerb::Read, self.cookie, 0, 0);
        head[6..8].copy_from_slice(&FLUSH.to_be_bytes());
        self.stream.write_all(&head)?;
        self.reply()
    }

    /// Keeps `depth` requests of `bytes` in flight until the time is over, at offsets one after the other or at random.
    pub fn run(
        &mut self,
        verb: BlockVerb,
        bytes: usize,
        depth: usize,
        random: bool,
        limit: Duration,
    ) -> Result<LoadTally> {
        let blocks = self.bytes / bytes as u64;
        let mut tally = LoadTally::nothing();
        let mut sent_at = VecDeque::with_capacity(depth);
        let mut buffer = vec![0; RECEIVE_BYTES.max(2 * (bytes + REPLY_BYTES))];
        let (mut start, mut end) = (0, 0);
        let block = vec![0xa5; if matches!(verb, BlockVerb::Write) { bytes } else { 0 }];
        let mut sending = Vec::with_capacity(depth * (REQUEST_BYTES + block.len()));
        let reply_bytes = REPLY_BYTES + if matches!(verb, BlockVerb::Read) { bytes } else { 0 };
        let began = Instant::now();
        let mut now = began;
        // Answers may come out of order, but these servers answer requests of one size in order: latencies are those of
        // the oldest.
        while now - began < limit || !sent_at.is_empty() {
            sending.clear();
            while sent_at.len() < depth && now - began < limit {
                self.cookie += 1;
                let position = if random { self.random() } else { self.cookie };
                let head = request_header(verb, self.cookie, position % blocks * bytes as u64, bytes);
                sending.extend_from_slice(&head);
                sending.extend_from_slice(&block);
                sent_at.push_back(now);
            }
            self.stream.write_all(&sending)?;
            if end - start < reply_bytes {
                buffer.copy_within(start..end, 0);
                (start, end) = (0, end - start);
            }
            let count = self.stream.read(&mut buffer[end..])?;
            ensure!(count > 0, "the NBD server hung up");
            end += count;
            now = Instant::now();
            while end - start >= reply_bytes {
                let reply = &buffer[start..start + REPLY_BYTES];
                ensure!(reply[..4] == SIMPLE_REPLY_MAGIC.to_be_bytes(), "not a simple reply: {reply:02x?}");
                ensure!(reply[4..8] == [0; 4], "the NBD server answered with error {:02x?}", &reply[4..8]);
                start += reply_bytes;
                let since = sent_at.pop_front().context("a reply that nobody asked for")?;
                tally.latency_ns.saturating_record((now - since).as_nanos() as u64);
                tally.urbs += 1;
                tally.bytes += bytes as u64;
            }
        }
        tally.seconds = (now - began).as_secs_f64();
        Ok(tally)
    }

    /// SplitMix64 (Steele, Lea, Flood 2014).
    fn random(&mut self) -> u64 {
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.seed;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn request(&mut self, verb: BlockVerb, offset: u64, length: usize) -> Result<()> {
        self.cookie += 1;
        self.stream.write_all(&request_header(verb, self.cookie, offset, length))?;
        Ok(())
    }

    fn reply(&mut self) -> Result<()> {
        ensure!(self.any_reply()? == self.cookie, "the reply to another request");
        Ok(())
    }

    /// The request that the next reply, which has no data, is to.
    fn any_reply(&mut self) -> Result<u64> {
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply)?;
        ensure!(reply[..4] == SIMPLE_REPLY_MAGIC.to_be_bytes(), "not a simple reply: {reply:02x?}");
        ensure!(reply[4..8] == [0; 4], "the NBD server answered with error {:02x?}", &reply[4..8]);
        Ok(u64::from_be_bytes(reply[8..].try_into().expect("eight bytes")))
    }
}

fn request_header(verb: BlockVerb, cookie: u64, offset: u64, length: usize) -> [u8; REQUEST_BYTES] {
    let mut request = [0; REQUEST_BYTES];
    request[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
    request[6..8].copy_from_slice(&(verb as u16).to_be_bytes());
    request[8..16].copy_from_slice(&cookie.to_be_bytes());
    request[16..24].copy_from_slice(&offset.to_be_bytes());
    request[24..28].copy_from_slice(&(length as u32).to_be_bytes());
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_written_to_nbdkit_are_read_back() {
        let Ok(nbdkit) = NbdPeer::nbdkit(1 << 20, CpuPlacement::Free) else {
            eprintln!("skipped: nbdkit is not installed");
            return;
        };
        let mut nbd = nbdkit.connect().expect("an export");
        assert_eq!(nbd.bytes, 1 << 20);
        nbd.write_at(4096, &[7; 8192]).expect("written");
        let mut buffer = vec![0; 8192];
        nbd.read_at(8192, &mut buffer).expect("read");
        assert_eq!((buffer[0], buffer[4095], buffer[4096]), (7, 7, 0));
        for (verb, random) in [(BlockVerb::Write, true), (BlockVerb::Read, false)] {
            let tally = nbd.run(verb, 4096, 32, random, Duration::from_millis(20)).expect("answered");
            assert!(tally.urbs >= 32 && tally.bytes == tally.urbs * 4096);
        }
        let data: Vec<u8> = (0..10_000_u32).map(|at| at as u8).collect();
        nbd.write_in_pieces(4096, &data[..8192], 4096).expect("written");
        nbd.flush().expect("durable");
        nbd.read_at(4096, &mut buffer).expect("still in step");
        assert!(buffer == data[..8192]);
        assert!(nbd.read_at(1 << 20, &mut buffer).is_err());
    }
}
