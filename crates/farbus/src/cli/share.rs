//! `farbus share`.

use std::fs::File;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use farbus_gadgets::keyboard::Keyboard;
use farbus_gadgets::storage::{Options, Storage};
use farbus_gadgets::zero::{Fill, SourceSink};
use farbus_io::store::FileStore;
use farbus_io::usb::{Obstacle, OpenError, Selector};
use farbus_model::{BlockStore, Command, Speed};
use farbus_session::DeviceRecord;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::Failure;
use super::output::say;
use super::owner::ProcessStatus;
use crate::client::{Attribute, name_of};
use crate::control::{Answer, Door, Question};
use crate::share::{DEFAULT_PORT, Share, ShareError};
use crate::usb::{self, UsbError};

/// Offer devices to other machines until interrupted.
#[derive(Debug, clap::Args)]
#[command(after_help = "WHAT is one of:\n  \
    disk:PATH[,ro][,sector=BYTES]         a USB disk over a file or block device\n  \
    zero[,speed=SPEED][,fill=FILL][,verify]  source and sink; FILL is zeros or mod63 (usbtest pattern=1),\n  \
    \x20                                     SPEED is full, high or super\n  \
    keyboard                              types what 'farbus type' tells it\n  \
    usb:BUSID, usb:VENDOR:PRODUCT, usb:serial=TEXT\n  \
    \x20                                     a real USB device of this machine, taken from its drivers meanwhile\n\n\
    Examples:\n  farbus share disk:backup.img\n  farbus share disk:/dev/sdb,ro zero keyboard\n  \
    farbus share --list                          which USB devices could be shared, and why not\n  \
    farbus share usb:1-1.4 usb:046d:c52b\n  \
    farbus share zero --listen 0.0.0.0:3240      reachable by everybody: see the warning it prints\n\n\
    Linux uses it with:  usbip attach -r HOST -b 1-1   or:  farbus attach HOST/disk")]
pub struct Args {
    /// What to offer; several at once.
    #[arg(required_unless_present = "list")]
    what: Vec<What>,
    /// Show this machine's USB devices, which of them could be shared, and what stands against the others.
    #[arg(long, conflicts_with = "what")]
    list: bool,
    /// With --list: for programs.
    #[arg(long, requires = "list", conflicts_with = "what")]
    json: bool,
    /// Address to listen at; the default is this machine alone.
    #[arg(long, value_name = "ADDR[:PORT]", default_value = "127.0.0.1")]
    listen: String,
    /// Write each session's last requests, stage by stage, to this file (JSON lines).
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

/// A device to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    Disk { path: PathBuf, read_only: bool, sector_bytes: u32 },
    Zero { speed: Speed, fill: Fill, verify: bool },
    Keyboard,
    Usb(Selector),
}

impl FromStr for What {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        if kind == "disk" {
            return disk_from(rest);
        }
        if kind == "usb" {
            return rest.parse().map(What::Usb);
        }
        let mut words = text.split(',');
        match words.next() {
            Some("zero") => zero_from(words),
            Some("keyboard") => match words.next() {
                None => Ok(What::Keyboard),
                Some(word) => Err(format!("keyboard has no option '{word}'")),
            },
            _ => Err(format!("'{text}' is not a device: try disk:PATH, zero, keyboard or usb:BUSID")),
        }
    }
}

fn disk_from(text: &str) -> Result<What, String> {
    let mut words = text.split(',');
    let path = words.next().unwrap_or_default();
    if path.is_empty() {
        return Err("disk needs a path: disk:PATH[,ro]".into());
    }
    let (mut read_only, mut sector_bytes) = (false, 512);
    for word in words {
        match word.split_once('=') {
            None if word == "ro" => read_only = true,
            Some(("sector", bytes)) => {
                let parsed = bytes.parse().ok().filter(|bytes| [512, 1024, 2048, 4096].contains(bytes));
                sector_bytes = parsed.ok_or(format!("a sector has 512, 1024, 2048 or 4096 bytes, not '{bytes}'"))?;
            }
            _ => return Err(format!("disk has no option '{word}': there are ro and sector=BYTES")),
        }
    }
    Ok(What::Disk { path: path.into(), read_only, sector_bytes })
}

fn zero_from<'a>(words: impl Iterator<Item = &'a str>) -> Result<What, String> {
    let (mut speed, mut fill, mut verify) = (Speed::High, Fill::Zeros, false);
    for word in words {
        match word {
            "speed=full" => speed = Speed::Full,
            "speed=high" => speed = Speed::High,
            "speed=super" => speed = Speed::Super,
            "fill=zeros" => fill = Fill::Zeros,
            "fill=mod63" => fill = Fill::Mod63,
            "verify" => verify = true,
            _ => return Err(format!("zero has no option '{word}': there are speed=, fill= and verify")),
        }
    }
    Ok(What::Zero { speed, fill, verify })
}

pub fn run(args: Args) -> Result<(), Failure> {
    if args.list {
        return super::inventory::run(args.json);
    }
    let share = Arc::new(Share::default());
    let mut real = usb::Shared::default();
    let offer_one = |what| offer(&share, &mut real, what);
    let offered: Vec<Vec<DeviceRecord>> = args.what.iter().map(offer_one).collect::<Result<_, _>>()?;
    for record in offered.iter().flatten() {
        println!(
            "{:<10} {}  {:04x}:{:04x}  {} speed",
            name_of(record),
            record.bus_id,
            record.vendor,
            record.product,
            record.speed
        );
    }
    if let Some(path) = &args.trace {
        let file = File::create(path);
        share.trace_to(file.map_err(|error| Failure::local(format!("cannot write {}: {error}", path.display())))?);
    }
    // Signals are caught before anybody can know where we listen.
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(Failure::local)?;
    let address = listen_address(&args.listen)?;
    let address = share.listen(address).map_err(|error| listen_failure(address, &error))?;
    let for_door = Arc::clone(&share);
    let _door = Door::open(move |question| answer(&for_door, address, question)).map_err(Failure::local)?;
    if !address.ip().is_loopback() {
        eprintln!(
            "farbus: warning: {address} is not this machine alone. USB/IP has no password and no encryption:\n  \
             whoever reaches this address can use these devices and read what they say."
        );
    }
    let follower = (!real.is_empty()).then(|| usb::Follower::start(Arc::clone(&share), real)).transpose();
    let follower = follower.map_err(|error| Failure::local(format!("cannot hear what is plugged in: {error}")))?;
    say(format!("listening on {address}   (Ctrl-C ends)"));
    signals.forever().next();
    let real = follower.map(usb::Follower::stop);
    let is_durable = share.stop();
    // Each device went back to its drivers as it was dropped.
    real.into_iter().for_each(|mut real| real.dismiss());
    if is_durable {
        Ok(())
    } else {
        Err(Failure::local("a device did not become durable in time; its last writes may be lost"))
    }
}

fn offer(share: &Share, real: &mut usb::Shared, what: &What) -> Result<Vec<DeviceRecord>, Failure> {
    let one = match *what {
        What::Usb(ref selector) => {
            return real.add(share, selector).map_err(|error| Failure::new(attribute_of(&error), error));
        }
        What::Zero { speed, fill, verify } => share.add("zero", SourceSink::device(speed, fill, verify)),
        What::Keyboard => share.add("keyboard", Keyboard::device()),
        What::Disk { ref path, read_only, sector_bytes } => {
            let store = FileStore::open(path, read_only).map_err(Failure::local)?;
            let name = store.path().display().to_string();
            let product = path.file_name().map_or_else(|| name.clone(), |name| name.to_string_lossy().into_owned());
            let serial = Options::serial_of(&name);
            let read_only = read_only || store.is_read_only();
            let options = Options { read_only, sector_bytes, serial, product, ..Options::default() };
            let disk = Storage::device(Box::new(store), options);
            share.add("disk", disk.map_err(|error| Failure::local(format!("{}: {error}", path.display())))?)
        }
    };
    one.map(|record| vec![record]).map_err(Failure::local)
}

fn attribute_of(error: &UsbError) -> Attribute {
    match error {
        UsbError::NoneFound(_) | UsbError::Open { error: OpenError::Gone, .. } => Attribute::Gone,
        UsbError::Obstacle { obstacle: Obstacle::Unreadable, .. } => Attribute::Device,
        UsbError::Obstacle { obstacle: Obstacle::NoPermission { .. }, .. }
        | UsbError::Open { error: OpenError::NotAllowed { .. }, .. } => Attribute::Local,
        UsbError::Obstacle { .. } | UsbError::Open { error: OpenError::Busy { .. }, .. } => Attribute::Refused,
        UsbError::Open { .. } | UsbError::Share(_) | UsbError::System(_) => Attribute::Local,
    }
}

fn listen_address(text: &str) -> Result<SocketAddr, Failure> {
    let with_port = crate::client::address_of(text);
    with_port.parse().map_err(|_| {
        Failure::local(format!(
            "'{text}' is no address to listen at: try 127.0.0.1, 0.0.0.0:{DEFAULT_PORT} or [::1]:3241"
        ))
    })
}

fn listen_failure(address: SocketAddr, error: &std::io::Error) -> Failure {
    let hint = match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            "\n  another share or usbipd is there: see 'farbus status', or choose --listen ADDR:PORT"
        }
        _ => "",
    };
    Failure::local(format!("cannot listen at {address}: {error}{hint}"))
}

fn answer(share: &Share, address: SocketAddr, question: Question) -> Answer {
    let (device, command) = match question {
        Question::Status => {
            let devices = share.status();
            return ProcessStatus { pid: std::process::id(), role: "share", address: address.to_string(), devices }
                .answer();
        }
        Question::Detach { .. } => return Answer::Unknown,
        Question::Type { device, text } => (device, Command::Type(text)),
        Question::Eject { device } => (device, Command::Eject),
        Question::Insert { device } => (device, Command::Insert),
    };
    match share.command(&device, command) {
        Ok(()) => Answer::Ok(serde_json::Value::Null),
        Err(ShareError::NoDevice(_)) => Answer::Unknown,
        Err(error) => Answer::Refused(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shared_is_read_as_the_help_says() {
        let read = |text: &str| text.parse::<What>();
        let disk = What::Disk { path: "/x:y.img".into(), read_only: true, sector_bytes: 4096 };
        assert_eq!(read("disk:/x:y.img,ro,sector=4096"), Ok(disk));
        assert_eq!(read("keyboard"), Ok(What::Keyboard));
        let zero = What::Zero { speed: Speed::Super, fill: Fill::Mod63, verify: true };
        assert_eq!(read("zero,speed=super,fill=mod63,verify"), Ok(zero));
        assert_eq!(read("usb:046d:c52b"), Ok(What::Usb(Selector::Ids(0x46d, 0xc52b))));
        for wrong in [
            "usb",
            "usb:",
            "usb:usb1",
            "",
            "disk",
            "disk:",
            "disk:x,rw",
            "disk:x,sector=100",
            "zero,speed=ultra",
            "keyboard,de",
            "tape",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
