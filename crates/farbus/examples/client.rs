//! A client of a remote device: control requests, and how fast bulk data passes.
//!
//! Name a source/sink device that somebody shares (`farbus share zero` on HOST: `HOST/zero`); without one it shares its
//! own.

use std::time::Instant;

use farbus::gadgets::zero::{SourcePattern, SourceSink};
use farbus::model::{EpAddr, SetupPacket, UsbSpeed};
use farbus::{Share, client};

const SOURCE: EpAddr = EpAddr::from_byte(0x81);
const SINK: EpAddr = EpAddr::from_byte(0x01);
/// Vendor requests of the device: remember these bytes, and give them back.
const REMEMBER: SetupPacket = SetupPacket { request_type: 0x40, request: 0x5b, value: 0, index: 0, length: 0 };
const RECALL: SetupPacket = SetupPacket { request_type: 0xc0, request: 0x5c, value: 0, index: 0, length: 64 };

const TRANSFERS: usize = 500;
const TRANSFER_BYTES: usize = 128 << 10;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let share = Share::default();
    let target = match std::env::args().nth(1) {
        Some(target) => target,
        None => {
            share.add("zero", SourceSink::device(UsbSpeed::High, SourcePattern::Zeros, false))?;
            format!("{}/zero", share.listen(([127, 0, 0, 1], 0).into())?)
        }
    };
    let mut device = client::open(&target.parse()?)?;
    println!("{target}: {}", device.descriptors().title());

    device.control_out(REMEMBER, b"a word to remember".as_slice())?;
    let recalled = device.control_in(RECALL)?;
    assert_eq!(recalled.into_vec(), b"a word to remember");

    let started = Instant::now();
    for _ in 0..TRANSFERS {
        let data = device.data_in(SOURCE, TRANSFER_BYTES as u32)?;
        assert_eq!(data.len(), TRANSFER_BYTES);
    }
    say_rate("in", started);

    let started = Instant::now();
    for _ in 0..TRANSFERS {
        let taken = device.data_out(SINK, vec![0; TRANSFER_BYTES])?;
        assert_eq!(taken as usize, TRANSFER_BYTES);
    }
    say_rate("out", started);
    Ok(())
}

fn say_rate(direction: &str, started: Instant) {
    let bytes_per_s = (TRANSFERS * TRANSFER_BYTES) as f64 / started.elapsed().as_secs_f64();
    println!("  bulk {direction}: {:.0} MB/s, one transfer of 128 KiB at a time", bytes_per_s / 1e6);
}
