//! The practical ceiling: a USB/IP source/sink server that does nothing but batch.
//!
//! One thread, one receive for as many commands as have come, one send for all their replies, a
//! payload that is never copied or made. It keeps no state, checks nothing and cancels nothing, so a
//! real server cannot be expected to beat it, only to come near.

use std::{
    io::{IoSlice, Read, Write},
    net::{TcpListener, TcpStream},
};

use anyhow::{Result, bail, ensure};

use super::listen::serve_each;
use crate::{
    load::write_all_vectored,
    usbip::{self, CMD_SUBMIT, CMD_UNLINK, HEADER_BYTES, RET_SUBMIT, RET_UNLINK, read_some, word},
};

pub const BUSID: &str = "1-1";
const DEVID: [u8; 8] = [0, 0, 0, 1, 0, 0, 0, 1];
const RECEIVE_BYTES: usize = 256 * 1024;
const TRANSFER_BYTES_MAX: usize = 4 << 20;
/// Two slices a reply; `writev` takes 1024.
const REPLIES_MAX: usize = 512;

pub fn serve(listener: TcpListener) -> Result<()> {
    serve_each(&listener, |mut stream| {
        offer(&mut stream)?;
        ReferenceConnection::new(stream).serve()
    })
}

fn offer(stream: &mut TcpStream) -> Result<()> {
    let mut request = [0; 40];
    stream.read_exact(&mut request)?;
    ensure!(request[2..4] == usbip::OP_REQ_IMPORT.to_be_bytes(), "only an import is answered");
    let mut reply = [0; 8 + usbip::DEVICE_BYTES];
    reply[..2].copy_from_slice(&usbip::VERSION.to_be_bytes());
    reply[2..4].copy_from_slice(&usbip::OP_REP_IMPORT.to_be_bytes());
    let device = &mut reply[8..];
    device[256..256 + BUSID.len()].copy_from_slice(BUSID.as_bytes());
    device[288..296].copy_from_slice(&DEVID);
    // High speed.
    device[299] = 3;
    stream.write_all(&reply)?;
    Ok(())
}

struct ReferenceConnection {
    stream: TcpStream,
    receive: Vec<u8>,
    /// Bytes received and not yet parsed, at the start of `receive`.
    received: usize,
    /// An OUT command whose data has not all come, and how much of it is missing.
    sinking: Option<([u8; HEADER_BYTES], usize)>,
    zeros: Vec<u8>,
}

impl ReferenceConnection {
    fn new(stream: TcpStream) -> Self {
        Self { stream, receive: vec![0; RECEIVE_BYTES], received: 0, sinking: None, zeros: vec![0; TRANSFER_BYTES_MAX] }
    }

    fn serve(&mut self) -> Result<()> {
        let mut replies = Vec::with_capacity(REPLIES_MAX);
        loop {
            self.received += read_some(&mut self.stream, &mut self.receive[self.received..])?;
            self.take_apart(&mut replies)?;
            self.reply(&replies)?;
            replies.clear();
        }
    }

    fn take_apart(&mut self, replies: &mut Vec<([u8; HEADER_BYTES], usize)>) -> Result<()> {
        let mut rest = &self.receive[..self.received];
        loop {
            if let Some((reply, missing)) = &mut self.sinking {
                let sunk = rest.len().min(*missing);
                *missing -= sunk;
                rest = &rest[sunk..];
                if *missing > 0 {
                    break;
                }
                replies.push((*reply, 0));
                self.sinking = None;
            }
            let Some((command, after)) = rest.split_first_chunk::<HEADER_BYTES>() else { break };
            rest = after;
            match answer(command)? {
                ReferenceReply::Now(reply, payload_bytes) => replies.push((reply, payload_bytes)),
                ReferenceReply::AfterSinking(reply, bytes) => self.sinking = Some((reply, bytes)),
            }
        }
        let left = rest.len();
        self.receive.copy_within(self.received - left..self.received, 0);
        self.received = left;
        Ok(())
    }

    fn reply(&mut self, replies: &[([u8; HEADER_BYTES], usize)]) -> Result<()> {
        let mut slices = [IoSlice::new(&[]); 2 * REPLIES_MAX];
        for replies in replies.chunks(REPLIES_MAX) {
            let mut used = 0;
            for (header, payload_bytes) in replies {
                slices[used] = IoSlice::new(header);
                used += 1;
                if *payload_bytes > 0 {
                    slices[used] = IoSlice::new(&self.zeros[..*payload_bytes]);
                    used += 1;
                }
            }
            write_all_vectored(&mut self.stream, &mut slices[..used])?;
        }
        Ok(())
    }
}

enum ReferenceReply {
    /// A header and this many zeros.
    Now([u8; HEADER_BYTES], usize),
    /// A header, once this many bytes have been taken.
    AfterSinking([u8; HEADER_BYTES], usize),
}

fn answer(command: &[u8; HEADER_BYTES]) -> Result<ReferenceReply> {
    let mut reply = [0; HEADER_BYTES];
    reply[4..8].copy_from_slice(&command[4..8]);
    match word(command, 0) {
        CMD_SUBMIT => {
            let bytes = word(command, 24) as usize;
            ensure!(bytes <= TRANSFER_BYTES_MAX, "a transfer of {bytes} bytes");
            reply[..4].copy_from_slice(&RET_SUBMIT.to_be_bytes());
            reply[24..28].copy_from_slice(&command[24..28]);
            let into_device = word(command, 12) == 0;
            Ok(if into_device { ReferenceReply::AfterSinking(reply, bytes) } else { ReferenceReply::Now(reply, bytes) })
        }
        CMD_UNLINK => {
            // Nothing is ever pending, so every victim has been answered already.
            reply[..4].copy_from_slice(&RET_UNLINK.to_be_bytes());
            Ok(ReferenceReply::Now(reply, 0))
        }
        other => bail!("command {other:#x}"),
    }
}
