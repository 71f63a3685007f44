//! A UDP flow without congestion control, which congests a link.

use std::{
    net::UdpSocket,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

/// Sends UDP to `ADDRESS/BYTES_PER_SECOND` until it is ended.
pub fn serve(target: &str) -> Result<()> {
    const PACKET: [u8; 1200] = [0; 1200];
    let (address, rate) = target.split_once('/').context("a flood is told where to and how fast")?;
    let rate: u64 = rate.parse()?;
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect(address)?;
    println!("listening on {}", socket.local_addr()?);
    let began = Instant::now();
    let mut sent = 0;
    loop {
        let due = (began.elapsed().as_secs_f64() * rate as f64) as u64;
        while sent + PACKET.len() as u64 <= due {
            // Packets that a full queue drops count as sent: that is congestion.
            let _ = socket.send(&PACKET);
            sent += PACKET.len() as u64;
        }
        thread::sleep(Duration::from_micros(500));
    }
}
