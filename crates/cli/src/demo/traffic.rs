//! Reads a disk of the lab without end, as a program of its user does: over NBD (the NBD protocol, *fixed newstyle*).

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Bytes of one read, and the pause after it: some MB a second, which takes little of a processor.
const READ_BYTES: u32 = 64 << 10;
const PAUSE: Duration = Duration::from_millis(25);
/// How long an answer may take before it is asked whether this is over.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);

const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const OPTION_EXPORT_NAME: u32 = 1;
const FLAGS_FIXED_NEWSTYLE_NO_ZEROES: u32 = 3;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;

/// Reads the disk at this socket on a thread of its own until it is over. A connection that ends is made again.
///
/// # Errors
/// There can be no further thread.
pub fn start(socket: PathBuf, is_over: Arc<AtomicBool>) -> io::Result<JoinHandle<()>> {
    let read = move || {
        while !is_over.load(Ordering::Relaxed) {
            let _ = read_all(&socket, &is_over);
            thread::sleep(PAUSE);
        }
    };
    thread::Builder::new().name("traffic".into()).spawn(read)
}

fn read_all(socket: &PathBuf, is_over: &AtomicBool) -> io::Result<()> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(ANSWER_TIME_MAX))?;
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting)?;
    let mut hello = FLAGS_FIXED_NEWSTYLE_NO_ZEROES.to_be_bytes().to_vec();
    hello.extend(OPTION_MAGIC.to_be_bytes());
    hello.extend(OPTION_EXPORT_NAME.to_be_bytes());
    // The export without a name.
    hello.extend(0_u32.to_be_bytes());
    stream.write_all(&hello)?;
    let mut export = [0; 10];
    stream.read_exact(&mut export)?;
    let size = export[..8].iter().fold(0_u64, |size, byte| size << 8 | u64::from(*byte));
    let (mut offset, mut data) = (0_u64, vec![0; READ_BYTES as usize]);
    while !is_over.load(Ordering::Relaxed) && size >= READ_BYTES.into() {
        let mut request = REQUEST_MAGIC.to_be_bytes().to_vec();
        // No flags, the command READ.
        request.extend([0; 4]);
        request.extend(offset.to_be_bytes());
        request.extend(offset.to_be_bytes());
        request.extend(READ_BYTES.to_be_bytes());
        stream.write_all(&request)?;
        let mut reply = [0; 16];
        stream.read_exact(&mut reply)?;
        if reply[..4] != REPLY_MAGIC.to_be_bytes() || reply[4..8] != [0; 4] {
            return Err(io::ErrorKind::InvalidData.into());
        }
        stream.read_exact(&mut data)?;
        offset = (offset + u64::from(READ_BYTES)) % (size / u64::from(READ_BYTES) * u64::from(READ_BYTES));
        thread::sleep(PAUSE);
    }
    Ok(())
}
