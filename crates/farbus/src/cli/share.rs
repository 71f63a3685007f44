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
use farbus_model::{BlockStore, Command, Speed};
use farbus_session::DeviceRecord;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::Failure;
use super::listen::{everywhere, listen_address};
use super::output::say;
use super::owner::ProcessStatus;
use crate::address::SECURE_PORT;
use crate::client::name_of;
use crate::control::{Answer, Door, Question};
use crate::share::{DEFAULT_PORT, Share, ShareError};
use crate::trust::Trust;

/// Offer devices to other machines until interrupted.
#[derive(Debug, clap::Args)]
#[command(after_help = "WHAT is one of:\n  \
    disk:PATH[,ro][,sector=BYTES]         a USB disk over a file or block device\n  \
    zero[,speed=SPEED][,fill=FILL][,verify]  source and sink; FILL is zeros or mod63 (usbtest pattern=1),\n  \
    \x20                                     SPEED is full, high or super\n  \
    keyboard                              types what 'farbus type' tells it\n\n\
    Examples:\n  farbus share disk:backup.img\n  farbus share disk:/dev/sdb,ro zero keyboard\n  \
    farbus share disk:backup.img --secure        reachable by paired hosts: see 'farbus pair' and 'farbus allow'\n  \
    farbus share zero --listen 0.0.0.0:3240      reachable by everybody: see the warning it prints\n\n\
    Linux uses it with:  usbip attach -r HOST -b 1-1   or:  farbus attach HOST/disk")]
pub struct Args {
    /// What to offer; several at once.
    #[arg(required = true)]
    what: Vec<What>,
    /// Address to listen at without encryption, 'none' for nowhere; the default is this machine alone.
    #[arg(long, value_name = "ADDR[:PORT]", default_value = "127.0.0.1")]
    listen: String,
    /// Listen for paired hosts too, encrypted; everywhere, unless an address is given. Each may use what 'farbus allow' says.
    #[arg(long, value_name = "ADDR[:PORT]", num_args = 0..=1, default_missing_value = "")]
    secure: Option<String>,
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
}

impl FromStr for What {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        if kind == "disk" {
            return disk_from(rest);
        }
        let mut words = text.split(',');
        match words.next() {
            Some("zero") => zero_from(words),
            Some("keyboard") => match words.next() {
                None => Ok(What::Keyboard),
                Some(word) => Err(format!("keyboard has no option '{word}'")),
            },
            _ => Err(format!("'{text}' is not a device: try disk:PATH, zero or keyboard")),
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
    let share = Arc::new(Share::default());
    for what in &args.what {
        let record = offer(&share, what)?;
        println!(
            "{:<10} {}  {:04x}:{:04x}  {} speed",
            name_of(&record),
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
    let secure = args.secure.as_deref().map(|told| listen_secure(&share, told)).transpose()?;
    let plain = if args.listen == "none" { None } else { Some(listen_plain(&share, &args.listen)?) };
    let Some(address) = plain.or(secure) else {
        return Err(Failure::local("nobody could reach these devices: give --secure, or another --listen than 'none'"));
    };
    let for_door = Arc::clone(&share);
    let _door = Door::open(move |question| answer(&for_door, address, question)).map_err(Failure::local)?;
    if let Some(address) = plain {
        say(format!("listening on {address}   (Ctrl-C ends)"));
    }
    if let Some(address) = secure {
        say(format!("listening on {address} for paired hosts, encrypted   (Ctrl-C ends)"));
    }
    signals.forever().next();
    if share.stop() {
        Ok(())
    } else {
        Err(Failure::local("a device did not become durable in time; its last writes may be lost"))
    }
}

fn listen_plain(share: &Share, told: &str) -> Result<SocketAddr, Failure> {
    let address = listen_address(told, DEFAULT_PORT)?;
    let address = share.listen(address).map_err(|error| listen_failure(address, &error))?;
    if !address.ip().is_loopback() {
        eprintln!(
            "farbus: warning: {address} is not this machine alone. USB/IP has no password and no encryption:\n  \
             whoever reaches this address can use these devices and read what they say."
        );
    }
    Ok(address)
}

fn listen_secure(share: &Share, told: &str) -> Result<SocketAddr, Failure> {
    let trust = Trust::open()?;
    let addresses = if told.is_empty() { everywhere(SECURE_PORT) } else { vec![listen_address(told, SECURE_PORT)?] };
    let mut result = Err(Failure::local("no address to listen at"));
    for address in addresses {
        result = share.listen_secure(address, trust.clone()).map_err(|error| listen_failure(address, &error));
        if result.is_ok() {
            break;
        }
    }
    result
}

fn offer(share: &Share, what: &What) -> Result<DeviceRecord, Failure> {
    match *what {
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
    }
    .map_err(Failure::local)
}

fn listen_failure(address: SocketAddr, error: &std::io::Error) -> Failure {
    let hint = match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            "\n  another share or usbipd is there: see 'farbus status', or choose --listen (--secure) ADDR:PORT"
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
        for wrong in ["", "disk", "disk:", "disk:x,rw", "disk:x,sector=100", "zero,speed=ultra", "keyboard,de", "tape"]
        {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
