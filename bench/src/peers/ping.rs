//! The limit for one request at a time: two processes, blocking calls, nothing in between.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    time::{Duration, Instant},
};

use anyhow::Result;

use super::listen::serve_each;
use crate::{load::LoadTally, usbip::TransferTemplate};

/// A connection opens with two little-endian words: the sizes of its requests and of its replies.
pub fn serve(listener: TcpListener) -> Result<()> {
    serve_each(&listener, |mut stream| {
        let mut sizes = [0; 8];
        stream.read_exact(&mut sizes)?;
        let [mut request, reply] =
            [0, 4].map(|at| vec![0; u32::from_le_bytes(sizes[at..at + 4].try_into().expect("four bytes")) as usize]);
        loop {
            stream.read_exact(&mut request)?;
            stream.write_all(&reply)?;
        }
    })
}

/// The client's end: exchanges exactly as many bytes as a USB/IP client would.
pub struct PingClient {
    stream: TcpStream,
    request: Vec<u8>,
    reply: Vec<u8>,
    bytes: usize,
}

impl PingClient {
    pub fn connect(address: SocketAddr, transfer: &TransferTemplate) -> Result<Self> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        let request = vec![0; crate::usbip::HEADER_BYTES + transfer.bytes_out()];
        let reply = vec![0; crate::usbip::HEADER_BYTES + transfer.bytes_in()];
        let sizes = [request.len() as u32, reply.len() as u32].map(u32::to_le_bytes);
        stream.write_all(sizes.as_flattened())?;
        Ok(Self { stream, request, reply, bytes: transfer.bytes })
    }

    pub fn run(&mut self, limit: Duration) -> Result<LoadTally> {
        let mut tally = LoadTally::nothing();
        let began = Instant::now();
        let mut now = began;
        while now - began < limit {
            self.stream.write_all(&self.request)?;
            self.stream.read_exact(&mut self.reply)?;
            let done = Instant::now();
            tally.latency_ns.saturating_record((done - now).as_nanos() as u64);
            tally.urbs += 1;
            now = done;
        }
        tally.bytes = tally.urbs * self.bytes as u64;
        tally.seconds = (now - began).as_secs_f64();
        Ok(tally)
    }
}
