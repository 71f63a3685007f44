//! `farbus conform importer`, that is `farbus-conform importer`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::ValueEnum;
use farbus_conform::importer::{self, ProbeExporter};
use farbus_control::failure::CommandFailure;
use farbus_control::host_address::DEFAULT_PORT;
use farbus_gadgets::audio::AudioGadget;
use farbus_gadgets::keyboard::KeyboardGadget;
use farbus_gadgets::storage::{StorageGadget, StorageOptions};
use farbus_gadgets::zero::{SourcePattern, SourceSink};
use farbus_model::block::MemoryStore;
use farbus_model::{Device, UsbSpeed};
use serde_json::json;

use crate::common::{CommonArgs, could_not_run};
use crate::output::say;
use crate::server::{ImporterProcess, KitServer};

/// Bytes of the made-up disk: little, as there is one for each exporter that is played.
const DISK_BYTES: usize = 4 << 20;
/// Its serial number; a disk needs twelve digits.
const SERIAL: &str = "C0F0C0F0C0F0";

/// Hold an importer against what it owes its exporters.
///
/// The kit listens and offers a made-up device under several bus ids. The exporter of 1-1 is right; the others are
/// wrong in one way each. Attach the importer to each of them: by hand, in any order, or let --with do it. The kit
/// reports what the importer made of each, and whether what it sent kept the rules.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Without --with the kit shows the bus ids and waits until the importer was attached to each, or for Ctrl-C. 'skipped': it was not attached to that one. 'not applicable': it sent nothing of this kind.\n\n\
    Examples:\n  \
    farbus conform importer                            attach it to 1-1 to 1-10\n  \
    farbus conform importer --device keyboard --json > result.json\n  \
    farbus conform importer --with 'usbip attach -r {host} -b {busid}; sleep 9'\n  \
    farbus conform importer --with 'farbus attach {address}/{busid} --via fuse'\n  \
    farbus conform importer --listen 0.0.0.0               for another machine\n  \
    farbus conform importer --list\n\n\
    Exit codes: 0 no claim that binds is false, 1 some are, 2 it could not run."
)]
pub struct Args {
    /// Where to listen: ADDR[:PORT]. Port 0 takes a free one. For importers of other machines: 0.0.0.0.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:3240", value_parser = address)]
    listen: SocketAddr,
    /// What the device is.
    #[arg(long, value_enum, default_value_t)]
    device: ConformGadget,
    /// Command that attaches the importer, run by a shell for each bus id.
    ///
    /// {address}, {host}, {port} and {busid} stand for the exporter and its device. The command and what it started
    /// are interrupted once nothing more is to be seen, and killed after --timeout.
    #[arg(long, value_name = "COMMAND")]
    with: Option<String>,
    /// How long the importer works with the device of the right exporter, in s; with --with.
    #[arg(long, value_name = "SECONDS", default_value_t = 3, value_parser = clap::value_parser!(u64).range(0..=600))]
    work: u64,
    #[command(flatten)]
    pub common: CommonArgs,
}

/// A made-up device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum ConformGadget {
    /// A disk of 4 MiB, empty.
    #[default]
    Disk,
    /// A keyboard: an interrupt endpoint.
    Keyboard,
    /// A sound card: isochronous endpoints.
    Audio,
    /// The source/sink device of the kernel's usbtest.
    Zero,
}

fn address(text: &str) -> Result<SocketAddr, String> {
    let bare = || text.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, DEFAULT_PORT));
    text.parse().or_else(|_| bare()).map_err(|_| format!("'{text}' is no address: ADDR or ADDR:PORT, as in 10.0.0.7"))
}

impl ConformGadget {
    fn make(self) -> Box<dyn Device> {
        match self {
            ConformGadget::Disk => disk(),
            ConformGadget::Keyboard => Box::new(KeyboardGadget::device()),
            ConformGadget::Audio => Box::new(AudioGadget::device(UsbSpeed::High)),
            ConformGadget::Zero => Box::new(SourceSink::device(UsbSpeed::High, SourcePattern::Zeros, false)),
        }
    }
}

fn disk() -> Box<dyn Device> {
    let options =
        StorageOptions { serial: SERIAL.to_owned(), product: "conformance".to_owned(), ..StorageOptions::default() };
    let disk = StorageGadget::device(Box::new(MemoryStore::new(vec![0; DISK_BYTES])), options);
    Box::new(disk.expect("these options make a disk"))
}

pub fn run(args: &Args) -> Result<(), CommandFailure> {
    let Args { listen, device, with, work, common } = args;
    let checks = importer::checks();
    common.known(&checks)?;
    if common.list {
        common.show_checks(&checks);
        return Ok(());
    }
    let stage = ProbeExporter::new(|| device.make(), &common.only, common.patience());
    let bus_ids: Vec<&str> = stage.probes().map(|probe| probe.bus_id).collect();
    let mut server = KitServer::bind(*listen, stage).map_err(|error| could_not_run(format!("{listen}: {error}")))?;
    let address = server.address();
    let stop = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGINT, Arc::clone(&stop)).map_err(could_not_run)?;
    signal_hook::flag::register(signal_hook::consts::SIGTERM, Arc::clone(&stop)).map_err(could_not_run)?;
    let is_stopped = || stop.load(Ordering::Acquire);
    match with {
        None => {
            let line =
                format!("listening on {address}; attach the importer to each of {} (Ctrl-C ends)", bus_ids.join(", "));
            // Standard output is for the JSON alone.
            if common.json {
                eprintln!("{line}")
            } else {
                say(line)
            }
            server.serve_until(None, |stage| is_stopped() || stage.is_done()).map_err(could_not_run)?;
        }
        Some(command) => {
            for bus_id in bus_ids {
                let attached = ImporterProcess::start(command, reached_at(address), bus_id).map_err(could_not_run)?;
                // An importer that never asks for the device is not waited for twice.
                let most = common.patience() * 2;
                let seen = |stage: &ProbeExporter| is_stopped() || stage.is_settled(bus_id);
                server.serve_until(Some(most), seen).map_err(could_not_run)?;
                if bus_id == importer::PROBES[0].bus_id {
                    let working = Some(Duration::from_secs(*work));
                    server.serve_until(working, |_| is_stopped()).map_err(could_not_run)?;
                }
                attached.interrupt();
                server.serve_while(common.patience(), || !attached.has_ended()).map_err(could_not_run)?;
                drop(attached);
                server.serve_until_left(common.patience()).map_err(could_not_run)?;
                if is_stopped() {
                    break;
                }
            }
        }
    }
    let report = server.stage().report(&common.only);
    let subject =
        json!({ "address": address.to_string(), "command": with, "device": format!("{device:?}").to_lowercase() });
    common.show("importer", &subject, &report)
}

/// Where this machine reaches a socket that listens at any address.
fn reached_at(address: SocketAddr) -> SocketAddr {
    match address.ip().is_unspecified() {
        true => SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), address.port()),
        false => address,
    }
}
