//! A program that has a source/sink device by usbfs, from a kernel or from farbus. It runs inside `farbus run`, and is
//! told by lines on its standard input what to do.

use std::{
    io::{BufRead, BufReader, Write},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use farbus::model::{TransferType, UrbFlags, UrbStatus};
use farbus_io_linux::sys::usbfs::{ReapOutcome, UsbfsDevice, UsbfsPayload, UsbfsTransfer};

use crate::{load::LoadTally, usbip::UsbipDirection};

/// The hidden subcommand.
pub const VERB: &str = "inside";

/// The setup packet that asks for the device's descriptor.
const GET_DEVICE_DESCRIPTOR: [u8; 8] = [0x80, 6, 0, 1, 0, 0, DESCRIPTOR_BYTES as u8, 0];
const DESCRIPTOR_BYTES: usize = 18;

/// How long a transfer may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the program does for a while.
#[derive(Clone, Copy, Debug)]
pub enum UsbfsWorkload {
    /// The cheapest command that is answered at once, without the device: what a request costs by itself.
    Ask,
    /// The device's descriptor, again and again.
    Control,
    /// Bulk transfers of this many bytes, so many at once.
    Bulk(UsbipDirection, usize, usize),
}

/// The program, seen from outside.
pub struct UsbfsProgram {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl UsbfsProgram {
    /// Starts it with the device at `address`.
    pub fn start(farbus: &Path, address: SocketAddr, busid: &str) -> Result<Self> {
        let mut command = Command::new(farbus);
        command.args(["run", &format!("{address}/{busid}"), "--"]);
        Self::over(command)
    }

    /// Starts it by a command of `farbus run` that lacks the program.
    pub fn over(mut command: Command) -> Result<Self> {
        let mut child = command
            .arg(std::env::current_exe()?)
            .arg(VERB)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start farbus run")?;
        let to = child.stdin.take().context("no standard input")?;
        let from = BufReader::new(child.stdout.take().context("no standard output")?);
        Ok(Self { child, to, from })
    }

    /// The process that answers the program.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Has it work for a while.
    pub fn run(&mut self, work: UsbfsWorkload, slice: Duration) -> Result<LoadTally> {
        let nanoseconds = slice.as_nanos();
        match work {
            UsbfsWorkload::Ask => writeln!(self.to, "ask 0 1 {nanoseconds}")?,
            UsbfsWorkload::Control => writeln!(self.to, "control {DESCRIPTOR_BYTES} 1 {nanoseconds}")?,
            UsbfsWorkload::Bulk(direction, bytes, depth) => {
                let word = if direction == UsbipDirection::In { "in" } else { "out" };
                writeln!(self.to, "{word} {bytes} {depth} {nanoseconds}")?;
            }
        }
        let mut line = String::new();
        self.from.read_line(&mut line)?;
        let mut words = line.split_whitespace();
        let mut number = || words.next().and_then(|word| word.parse::<u64>().ok()).context("farbus run has ended");
        let mut tally = LoadTally::nothing();
        (tally.urbs, tally.bytes) = (number()?, number()?);
        tally.seconds = number()? as f64 / 1e9;
        while let (Ok(value), Ok(count)) = (number(), number()) {
            tally.latency_ns.record_n(value, count)?;
        }
        Ok(tally)
    }
}

impl Drop for UsbfsProgram {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Is the program.
pub fn serve() -> Result<()> {
    let mut usbfs = UsbfsDevice::open(&node()?)?;
    usbfs.calls().claim(0)?;
    for line in std::io::stdin().lines() {
        let line = line?;
        let words: Vec<&str> = line.split(' ').collect();
        let [word, bytes, depth, nanoseconds] = words[..] else { bail!("not a line of work: {line}") };
        let (bytes, depth, slice) = (bytes.parse()?, depth.parse()?, Duration::from_nanos(nanoseconds.parse()?));
        let tally = match word {
            "ask" => ask(&usbfs, slice)?,
            "control" => transfer(&mut usbfs, TransferType::Control, UsbipDirection::In, (bytes, depth), slice)?,
            "in" => transfer(&mut usbfs, TransferType::Bulk, UsbipDirection::In, (bytes, depth), slice)?,
            _ => transfer(&mut usbfs, TransferType::Bulk, UsbipDirection::Out, (bytes, depth), slice)?,
        };
        let mut answer = format!("{} {} {}", tally.urbs, tally.bytes, (tally.seconds * 1e9) as u64);
        for value in tally.latency_ns.iter_recorded() {
            answer += &format!(" {} {}", value.value_iterated_to(), value.count_at_value());
        }
        println!("{answer}");
    }
    Ok(())
}

/// The node of the last device: the first is the root hub.
fn node() -> Result<PathBuf> {
    let bus = std::fs::read_dir("/dev/bus/usb")?.flatten().next().context("there is no bus")?;
    let nodes = std::fs::read_dir(bus.path())?.flatten().map(|entry| entry.path());
    nodes.max().context("there is no device")
}

fn ask(usbfs: &UsbfsDevice, slice: Duration) -> Result<LoadTally> {
    let mut tally = LoadTally::nothing();
    let began = Instant::now();
    let mut last = began;
    while last - began < slice {
        ensure!(usbfs.is_connected(), "the device is gone");
        let now = Instant::now();
        tally.latency_ns.record((now - last).as_nanos() as u64)?;
        tally.urbs += 1;
        last = now;
    }
    tally.seconds = (last - began).as_secs_f64();
    Ok(tally)
}

/// Keeps `depth` transfers of `bytes` in flight.
fn transfer(
    usbfs: &mut UsbfsDevice,
    kind: TransferType,
    direction: UsbipDirection,
    (bytes, depth): (usize, usize),
    slice: Duration,
) -> Result<LoadTally> {
    let mut tally = LoadTally::nothing();
    let (sent, mut packets) = (vec![0; bytes], Vec::new());
    let room = match kind {
        TransferType::Control => [GET_DEVICE_DESCRIPTOR.as_slice(), &sent].concat(),
        _ => sent.clone(),
    };
    let began = Instant::now();
    let mut begun = vec![began; depth];
    let mut under_way = 0;
    for (slot, at) in begun.iter_mut().enumerate() {
        *at = Instant::now();
        submit(usbfs, slot, kind, direction, &sent, room.clone())?;
        under_way += 1;
    }
    while under_way > 0 {
        let done = match usbfs.reap(&mut packets) {
            ReapOutcome::Done(done) => done,
            ReapOutcome::Nothing => {
                usbfs.wait(PATIENCE);
                continue;
            }
            ReapOutcome::Gone => bail!("the device is gone"),
        };
        ensure!(done.status == UrbStatus::Ok && done.actual as usize == bytes, "a transfer failed: {done:?}");
        let now = Instant::now();
        tally.latency_ns.record((now - begun[done.slot]).as_nanos() as u64)?;
        tally.urbs += 1;
        tally.bytes += bytes as u64;
        under_way -= 1;
        if now - began < slice {
            begun[done.slot] = now;
            submit(usbfs, done.slot, kind, direction, &sent, done.buffer)?;
            under_way += 1;
        }
    }
    tally.seconds = began.elapsed().as_secs_f64();
    Ok(tally)
}

fn submit(
    usbfs: &mut UsbfsDevice,
    slot: usize,
    kind: TransferType,
    direction: UsbipDirection,
    sent: &[u8],
    room: Vec<u8>,
) -> Result<()> {
    let (endpoint, data) = match (kind, direction) {
        (TransferType::Control, _) => (0x80, UsbfsPayload::In(room)),
        (_, UsbipDirection::In) => (0x81, UsbfsPayload::In(room)),
        (_, UsbipDirection::Out) => (0x01, UsbfsPayload::Out(sent)),
    };
    let transfer =
        UsbfsTransfer { kind, endpoint, flags: UrbFlags::default(), data, packets: &[], start_frame: 0, stream: 0 };
    usbfs.submit(slot, transfer).map_err(|status| anyhow::anyhow!("a transfer was refused: {status:?}"))
}
