//! `farbus observe`.

mod console;
mod hex;

use std::io::{self, Write as _};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use farbus::broker::confined::{give_rights_away, start_broker};
use farbus::broker::{BrokerPolicy, SystemAccess};
use farbus::frontend::over;
use farbus::frontend::report_of;
use farbus::importer::client::{ClientConfig, DeviceTarget, ImporterClient};
use farbus::importer::discovery::local_shares::{resolve, target_from};
use farbus::importer::session::connection::LinkedDevice;
use farbus_io_linux::sys::confine::ConfinementNeeds;
use farbus_model::{TransferType, UrbStatus};
use farbus_modules::{SeenTransfer, usb_section};
use farbus_session::native::ImporterAttachment;
use farbus_session::native::control::AttachmentEndCause;
use farbus_session::native::usb::{ObservedTransfer, status_code};
use serde::Serialize;

use self::console::ConsolePrinter;
use self::hex::hex;
use super::CommandFailure;
use super::ending::{EndCondition, EndingSignal};
use super::output::say;

/// Transfer types as in `bmAttributes` (USB 2.0, table 9-13).
const ISOCHRONOUS: u8 = 1;
/// The transfer type of interrupt endpoints, as in `bmAttributes` (USB 2.0, table 9-13).
const INTERRUPT: u8 = 3;

/// See what a device of another host sends to its user.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "farbus shows copies of what interrupt and isochronous endpoints send while another host uses the device. The user of the device notices nothing. An observer that reads too slowly is told how many transfers it missed.\n\n\
        With --console it shows what the device's serial ports send, as text (CDC-ACM, FTDI, CP210x, CH340/341, PL2303). Escape sequences and control characters are left out, and so is what the user of the device types.\n\n\
        The owner has to permit it: 'farbus share … --observable', or 'observable = true' in the daemon's file.\n\n\
        Examples:\n  farbus observe lab3/keyboard\n  farbus observe lab3/mouse --count 100 --json | jq -r .data\n  \
        farbus observe lab3/keyboard --pcapng > keys.pcapng\n  \
        farbus observe lab3/serial --console"
)]
pub struct Args {
    /// [HOST[:PORT]/]DEVICE; HOST may be the name of a paired host.
    #[arg(value_parser = target_from)]
    target: DeviceTarget,
    /// End after so many transfers; with --console, pieces of text.
    #[arg(long, value_name = "NUMBER")]
    count: Option<u64>,
    /// Print each as a line of JSON, for programs.
    #[arg(long)]
    pub json: bool,
    /// Write a recording for Wireshark (pcapng) to standard output.
    #[arg(long, conflicts_with = "json")]
    pcapng: bool,
    /// Show what the device's serial ports send, as text.
    #[arg(long, conflicts_with = "pcapng")]
    console: bool,
    /// Keep the rights of the user who started it.
    #[arg(long)]
    no_sandbox: bool,
}

/// A transfer, as JSON.
#[derive(Serialize)]
struct TransferRecord {
    /// Seconds since the first transfer that was shown.
    at_s: f64,
    endpoint: String,
    #[serde(rename = "type")]
    kind: &'static str,
    /// `ok`, or the error.
    status: String,
    /// How many transfers before this one were not shown.
    missed: u32,
    /// The bytes of each packet of an isochronous transfer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    packets: Vec<u32>,
    /// The bytes that the device sent, in hexadecimal digits.
    data: String,
}

pub fn run(args: &Args) -> Result<(), CommandFailure> {
    let ending = EndCondition::new()?;
    let target = &resolve(args.target.clone())?;
    let broker_policy = BrokerPolicy { hosts: vec![target.address.clone()], ..BrokerPolicy::default() };
    let system = if args.no_sandbox {
        SystemAccess::Own
    } else {
        SystemAccess::Through(Arc::new(start_broker(&broker_policy)?))
    };
    let client = ImporterClient::for_host(&target.address, system, ClientConfig::default())?;
    if !args.no_sandbox {
        give_rights_away(&ConfinementNeeds::default())?;
    }
    if args.console {
        let mut seen = Vec::new();
        let linked = client.console(target, &mut seen)?;
        let ended_by = begin(target, &linked, ending, args.json)?;
        let mut console = ConsolePrinter::new(linked.remote().description(), args.json);
        let mut since_ns = None;
        return follow(target, linked, seen, (args.count, ended_by), |output| {
            let at_ns = output.moment_ns.saturating_sub(*since_ns.get_or_insert(output.moment_ns));
            console.print(output, at_ns)
        });
    }
    let mut seen = Vec::new();
    let linked = client.observe(target, &mut seen)?;
    let ended_by = begin(target, &linked, ending, !args.pcapng)?;
    let mut recording =
        if args.pcapng { Some(TransferRecording::begin().map_err(CommandFailure::local)?) } else { None };
    let mut since_ns = None;
    follow(target, linked, seen, (args.count, ended_by), |event| {
        let at_ns = event.moment_ns.saturating_sub(*since_ns.get_or_insert(event.moment_ns));
        match &mut recording {
            Some(recording) => recording.add(event, at_ns),
            None => show(event, at_ns, args.json),
        }
    })
}

/// Says that it is observed, where nothing else stands in its way, and lets a signal end that.
///
/// # Errors
/// A signal came before.
fn begin<A: ImporterAttachment>(
    target: &DeviceTarget,
    linked: &LinkedDevice<A>,
    mut ending: EndCondition,
    to_output: bool,
) -> Result<EndingSignal, CommandFailure> {
    if let Some(signal) = ending.signal() {
        return Err(CommandFailure::interrupted(signal, format!("{target} is not observed")));
    }
    let stop_signal = linked.stop_signal();
    let ended_by = ending.tell(move || stop_signal.end());
    let line = format!("{target} is observed   (Ctrl-C ends)");
    if to_output {
        say(line)
    } else {
        eprintln!("{line}")
    }
    Ok(ended_by)
}

/// Shows what arrives, until it ends or nobody reads it.
fn follow<A, E>(
    target: &DeviceTarget,
    mut linked: LinkedDevice<A>,
    mut seen: Vec<E>,
    (count, ended_by): (Option<u64>, EndingSignal),
    mut show: impl FnMut(&E) -> io::Result<()>,
) -> Result<(), CommandFailure>
where
    A: ImporterAttachment<Done = Vec<E>>,
{
    let mut left = count.unwrap_or(u64::MAX);
    while left > 0 {
        for event in seen.drain(..) {
            // The reader has closed the pipe: end, too.
            left = if show(&event).is_ok() { left.saturating_sub(1) } else { 0 };
            if left == 0 {
                break;
            }
        }
        if let Some(end) = linked.end() {
            let shown = count.map_or(0, |count| count - left);
            return match end.cause {
                AttachmentEndCause::Requested => ended_by.check(shown, count),
                _ => Err(over(target, &report_of(end))),
            };
        }
        if left > 0 {
            linked.wait(None).map_err(CommandFailure::local)?;
            linked.turn(&mut seen);
        }
    }
    linked.close(&mut seen);
    Ok(())
}

/// A recording on standard output.
struct TransferRecording {
    /// When it began, nanoseconds since 1970: the exporter's clock says only what lies between its events.
    began_ns: u64,
    count: u64,
}

impl TransferRecording {
    fn begin() -> io::Result<Self> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        write_out(&usb_section())?;
        Ok(Self { began_ns: u64::try_from(since.as_nanos()).unwrap_or_default(), count: 0 })
    }

    fn add(&mut self, event: &ObservedTransfer, at_ns: u64) -> io::Result<()> {
        self.count += 1;
        let unix_ns = self.began_ns.saturating_add(at_ns);
        let kind = if event.kind == TransferType::Interrupt { INTERRUPT } else { ISOCHRONOUS };
        let packets: Vec<_> = event.packets.iter().map(|&(bytes, status)| (bytes, status_code(status))).collect();
        let transfer = SeenTransfer {
            id: self.count,
            endpoint: event.endpoint.as_byte(),
            kind,
            status: status_code(event.status),
            missed: event.missed.into(),
            unix_ns,
            packets: &packets,
            data: &event.data.contiguous(),
        };
        write_out(&transfer.recorded())
    }
}

/// Writes to standard output at once: somebody may read it while it grows.
fn write_out(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}

fn show(event: &ObservedTransfer, at_ns: u64, as_json: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let at_s = at_ns as f64 / 1e9;
    let endpoint = format!("{:02x}", event.endpoint.as_byte());
    let kind = if event.kind == TransferType::Interrupt { "interrupt" } else { "isochronous" };
    let status = format!("{:?}", event.status).to_lowercase();
    let bytes = event.data.contiguous();
    if as_json {
        let packets = event.packets.iter().map(|&(bytes, _)| bytes).collect();
        let line =
            TransferRecord { at_s, endpoint, kind, status, missed: event.missed, packets, data: hex(&bytes, "") };
        serde_json::to_writer(&mut out, &line)?;
        return writeln!(out);
    }
    if event.missed > 0 {
        writeln!(out, "{:>12}  {} transfers were missed", "", event.missed)?;
    }
    let wrong = if event.status == UrbStatus::Ok { String::new() } else { format!("  {status}") };
    let what = if event.packets.is_empty() {
        hex(&bytes, " ")
    } else {
        let failed = event.packets.iter().filter(|(_, status)| *status != UrbStatus::Ok).count();
        let failed = if failed > 0 { format!(", {failed} failed") } else { String::new() };
        format!("{} bytes in {} packets{failed}", bytes.len(), event.packets.len())
    };
    writeln!(out, "{at_s:>12.6}  {endpoint}  {kind}{wrong}  {what}")
}
