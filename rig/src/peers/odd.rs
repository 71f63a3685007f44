//! A USB/IP server, of this program's own, whose devices are nothing but descriptors that break the specification.
//!
//! Their bytes are those of `crates/host/tests/common/mutated.rs`: what a kernel makes of them is kept beside that
//! crate's tests, which compare farbus's reading with it.

#[path = "../../../crates/host/tests/common/mutated.rs"]
mod mutated;
#[path = "../../../crates/host/tests/common/rng.rs"]
mod rng;

pub use self::mutated::{ODD_DEVICES, odd_device};

use crate::{Result, RigError};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

/// Replies of the operations of USB/IP (`usbip_network.h`).
const REPLY_IMPORT: [u8; 8] = [1, 0x11, 0, 3, 0, 0, 0, 0];
const SUPER: u32 = 5;
const LOW: u32 = 1;

/// Serves device `1-N`, made of the number N, to each client, for as long as this process runs. Returns the
/// port of the loopback.
///
/// # Errors
/// The system's error.
pub fn serve() -> Result<u16> {
    let cannot = |error| RigError::io("serve odd devices")(error);
    let listener = TcpListener::bind("127.0.0.1:0").map_err(cannot)?;
    let port = listener.local_addr().map_err(cannot)?.port();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(io::Result::ok) {
            // A client that goes ends its connection alone.
            thread::spawn(move || answer(stream).is_ok());
        }
    });
    Ok(port)
}

/// The device descriptor of the device of this number, which is its product, too.
fn device_descriptor(seed: u64, speed: u32, configurations: usize) -> [u8; 18] {
    let [low, high] = (seed as u16 + 1).to_le_bytes();
    let (version, packet) = match speed {
        SUPER => (3, 9),
        LOW => (2, 8),
        _ => (2, 64),
    };
    [18, 1, 0, version, 0, 0, 0, packet, 0x09, 0x12, low, high, 0, 1, 0, 0, 0, configurations as u8]
}

fn answer(mut stream: TcpStream) -> io::Result<()> {
    let mut request = [0; 40];
    stream.read_exact(&mut request)?;
    let name = request[8..].split(|byte| *byte == 0).next().unwrap_or_default();
    let seed = str::from_utf8(name).ok().and_then(|name| name.strip_prefix("1-")?.parse().ok());
    let seed: u64 = seed.ok_or(io::ErrorKind::InvalidData)?;
    let (speed, configurations) = odd_device(seed);
    let device = device_descriptor(seed, speed, configurations.len());
    let mut record = vec![0; 312];
    record[..4].copy_from_slice(b"/odd");
    record[256..256 + name.len()].copy_from_slice(name);
    record[288..300].copy_from_slice(&[[0, 0, 0, 1], [0, 0, 0, 2], speed.to_be_bytes()].concat());
    record[300..312].copy_from_slice(&[0x12, 0x09, device[11], device[10], 1, 0, 0, 0, 0, 1, device[17], 0]);
    stream.write_all(&[&REPLY_IMPORT[..], &record].concat())?;
    loop {
        let mut header = [0; 48];
        stream.read_exact(&mut header)?;
        let word = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let (is_unlink, is_in, endpoint, length) = (word(0) == 2, word(12) == 1, word(16), word(24) as usize);
        if is_unlink {
            let cancelled = (-104_i32).to_be_bytes();
            stream.write_all(&[&[0, 0, 0, 4][..], &header[4..8], &[0; 12], &cancelled, &[0; 24]].concat())?;
            continue;
        }
        if !is_in {
            stream.read_exact(&mut vec![0; length])?;
        }
        // An endpoint besides the control pipe never has anything.
        if endpoint != 0 {
            continue;
        }
        let mut data = match header[40..] {
            [0x80, 6, _, 1, ..] => Some(device.to_vec()),
            [0x80, 6, index, 2, ..] => configurations.get(usize::from(index)).cloned(),
            [0x00, 9, ..] | [0x01, 11, ..] => Some(Vec::new()),
            _ => None,
        };
        let status = if data.is_some() { 0_i32 } else { -32 };
        data.iter_mut().for_each(|data| data.truncate(length));
        let data = data.unwrap_or_default();
        let actual = (data.len() as u32).to_be_bytes();
        let head = [&[0, 0, 0, 3][..], &header[4..8], &[0; 12], &status.to_be_bytes(), &actual, &[0; 20]].concat();
        stream.write_all(&[head, data].concat())?;
    }
}
