//! The limit for bytes: one TCP stream written and read in pieces of one size, without any protocol.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    time::{Duration, Instant},
};

use anyhow::Result;

use super::listen::serve_each;
use crate::{
    load::LoadTally,
    usbip::{UsbipDirection, read_some},
};

/// Bytes moved between two looks at the clock: some tens of milliseconds, so that the round trip
/// that starts a burst does not count.
const BURST_BYTES: u64 = 128 << 20;

/// A client asks for a burst with three little-endian words of eight bytes: the direction (1: towards the client), the
/// size of a piece, and how many bytes in all. The server answers a burst towards it with one byte once it has read the
/// last of it.
pub fn serve(listener: TcpListener) -> Result<()> {
    serve_each(&listener, |mut stream| serve_bursts(&mut stream))
}

/// Serves bursts over a stream of any kind.
pub fn serve_bursts(stream: &mut (impl Read + Write)) -> Result<()> {
    let mut piece = Vec::new();
    loop {
        let mut order = [0; 24];
        stream.read_exact(&mut order)?;
        let [to_client, piece_bytes, bytes] =
            [0, 8, 16].map(|at| u64::from_le_bytes(order[at..at + 8].try_into().expect("eight bytes")));
        piece.resize(piece_bytes as usize, 0);
        let mut left = bytes;
        while left > 0 {
            let next = left.min(piece_bytes) as usize;
            left -= if to_client == 1 {
                stream.write_all(&piece[..next])?;
                next as u64
            } else {
                read_some(stream, &mut piece[..next])? as u64
            };
        }
        if to_client == 0 {
            stream.write_all(&[1])?;
        }
    }
}

pub struct StreamClient<S = TcpStream> {
    stream: S,
    direction: UsbipDirection,
    piece_bytes: usize,
    /// The server uses pieces of the size asked for; the client receives with the load generator's buffer, so that the
    /// same client faces both servers.
    buffer: Vec<u8>,
}

impl StreamClient {
    pub fn connect(address: SocketAddr, direction: UsbipDirection, piece_bytes: usize) -> Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Self::over(stream, direction, piece_bytes))
    }
}

impl<S: Read + Write> StreamClient<S> {
    pub fn over(stream: S, direction: UsbipDirection, piece_bytes: usize) -> Self {
        let buffer = vec![0; if direction == UsbipDirection::In { crate::load::RECEIVE_BYTES } else { piece_bytes }];
        Self { stream, direction, piece_bytes, buffer }
    }

    pub fn run(&mut self, limit: Duration) -> Result<LoadTally> {
        let mut tally = LoadTally::nothing();
        let began = Instant::now();
        while began.elapsed() < limit {
            self.burst()?;
            tally.bytes += BURST_BYTES;
        }
        tally.urbs = tally.bytes / self.piece_bytes as u64;
        tally.seconds = began.elapsed().as_secs_f64();
        Ok(tally)
    }

    fn burst(&mut self) -> Result<()> {
        let to_client = u64::from(self.direction == UsbipDirection::In);
        let order = [to_client, self.piece_bytes as u64, BURST_BYTES].map(u64::to_le_bytes);
        self.stream.write_all(order.as_flattened())?;
        let mut left = BURST_BYTES;
        match self.direction {
            UsbipDirection::In => {
                while left > 0 {
                    left -= read_some(&mut self.stream, &mut self.buffer)? as u64;
                }
            }
            UsbipDirection::Out => {
                while left > 0 {
                    let next = left.min(self.buffer.len() as u64) as usize;
                    self.stream.write_all(&self.buffer[..next])?;
                    left -= next as u64;
                }
                read_some(&mut self.stream, &mut [0])?;
            }
        }
        Ok(())
    }
}
