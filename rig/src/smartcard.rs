//! A smart card for QEMU's reader, at the other end of `ccid-card-passthru`'s connection.
//!
//! Protocol: libcacard's `vscard_common.h`: a header of type, reader and length, each 32 bits, big endian, then the
//! data.

use crate::{Result, RigError};
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;

/// The card's answer to reset: direct convention, protocol T=0, six historical bytes.
pub const ATR: [u8; 8] = [0x3b, 0x06, b'f', b'a', b'r', b'b', b'u', b's'];

/// Its answer to the one command that it knows (class 80, instruction 01).
pub const REPLY: &str = "sesame";

const INIT: u32 = 1;
const READER_ADD: u32 = 3;
const ANSWER_TO_RESET: u32 = 5;
const APDU: u32 = 7;

/// Longer than any command that a reader may send.
const MESSAGE_BYTES_MAX: u32 = 1 << 17;

/// Puts the card into the reader that will connect to this socket; it answers until the machine is gone.
pub fn insert(socket: &Path) -> Result<()> {
    let listener = UnixListener::bind(socket).map_err(RigError::io("listen for the card reader"))?;
    std::thread::spawn(move || -> std::io::Result<()> {
        let (line, _) = listener.accept()?;
        converse(line)
    });
    Ok(())
}

fn converse(mut line: impl Read + Write) -> std::io::Result<()> {
    // Magic, version 0.0.2, one word of capabilities.
    send(&mut line, INIT, &[*b"VSCD", 2u32.to_be_bytes(), [0; 4]].concat())?;
    send(&mut line, READER_ADD, b"rig\0")?;
    send(&mut line, ANSWER_TO_RESET, &ATR)?;
    loop {
        let mut header = [0; 12];
        line.read_exact(&mut header)?;
        let word = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let (kind, length) = (word(0), word(8));
        if length > MESSAGE_BYTES_MAX {
            return Err(std::io::ErrorKind::InvalidData.into());
        }
        let mut data = vec![0; length as usize];
        line.read_exact(&mut data)?;
        if kind == APDU {
            send(&mut line, APDU, &answer(&data))?;
        }
    }
}

/// Data and status word: 9000 is success, 6D00 an instruction that it does not know.
fn answer(command: &[u8]) -> Vec<u8> {
    match command {
        [0x80, 0x01, ..] => [REPLY.as_bytes(), &[0x90, 0x00]].concat(),
        _ => vec![0x6d, 0x00],
    }
}

fn send(line: &mut impl Write, kind: u32, data: &[u8]) -> std::io::Result<()> {
    let length = u32::try_from(data.len()).expect("a few bytes");
    line.write_all(&[&kind.to_be_bytes(), &[0; 4], &length.to_be_bytes(), data].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_answered_and_an_unknown_one_refused() {
        assert_eq!(answer(&[0x80, 0x01, 0, 0, 6]), b"sesame\x90\x00");
        assert_eq!(answer(&[0x00, 0xa4, 4, 0]), [0x6d, 0x00]);
        let mut sent = Vec::new();
        send(&mut sent, ANSWER_TO_RESET, &ATR).unwrap();
        assert_eq!(sent[..12], [0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 8]);
        assert_eq!(sent[12..], ATR);
    }
}
