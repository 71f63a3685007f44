//! `farbus share`.

use std::fs::File;
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use farbus_gadgets::audio::Audio;
use farbus_gadgets::bridge;
use farbus_gadgets::can::{self, Can};
use farbus_gadgets::keyboard::Keyboard;
use farbus_gadgets::serial::Serial;
use farbus_gadgets::storage::{Options, Storage};
use farbus_gadgets::zero::{Fill, SourceSink};
use farbus_io::link::Listener;
use farbus_io::sys::confine::Needs;
use farbus_io::usb::{Hotplug, Selector};
use farbus_model::{Command, Speed};
use farbus_modules::Asked;
use farbus_session::DeviceRecord;
use farbus_session::block::BlockExport;
use farbus_session::native::control::Mode;
use farbus_session::registry::{BlockFace, Renew};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tracing::warn;

use super::Failure;
use super::confined::{give_rights_away, start_broker};
use super::listen::{everywhere, listen_address, listen_place};
use super::output::say;
use super::owner::ProcessStatus;
use crate::address::SECURE_PORT;
use crate::allow::Network;
use crate::block::BlockSpec;
use crate::broker::{Hands, Mandate};
use crate::client::{Attribute, FailureReport, name_of};
use crate::control::{Answer, Door, Question};
use crate::modules::allowed;
use crate::place::{Entrance, Place, SocketMode};
use crate::reserve::{Wish, together};
use crate::share::{DEFAULT_PORT, Share, ShareError};
use crate::streams::StreamSpec;
use crate::trust::Trust;
use crate::usb;

/// Offer devices to other machines until interrupted.
#[derive(Debug, clap::Args)]
#[command(after_help = "WHAT is one of:\n  \
    disk:PATH[,ro][,sector=BYTES]         a disk over a file or block device: a block device for paired hosts,\n  \
    \x20                                     a USB disk for all others; one user who writes, or many who read\n  \
    disk:PATH,offset=BYTES,size=BYTES     a part of it\n  \
    disk:PATH,scratch[=BYTES|=/PATH]      every user sees changes of his own, which go away; the file stays as it is\n  \
    block:…, memory:SIZE                  the same, called 'block'; a disk in memory\n  \
    zero[,speed=SPEED][,fill=FILL][,verify]  source and sink; FILL is zeros or mod63 (usbtest pattern=1),\n  \
    \x20                                     SPEED is full, high or super\n  \
    keyboard                              types what 'farbus type' tells it\n  \
    serial[,speed=SPEED]                  a serial line with a loopback plug: what is sent comes back\n  \
    can[,channels=N][,traffic=SHARES]     a USB-CAN adapter, a bus behind each channel; traffic=10/20x has a unit take 10 %\n  \
    \x20                                     of the first and 20 % of the second, with long identifiers\n  \
    bridge[,speed=SPEED][,id=TEXT]        a cable between two hosts: each attaches one end, bridge-a or bridge-b, and has a network\n  \
    \x20                                     adapter and a raw pair of endpoints; addresses follow from this host's name, or from TEXT\n  \
    audio[,speed=SPEED]                   a sound card: its microphone hears a tone, 'farbus status' counts what is played\n  \
    stream:pattern[,size=640x480][,format=rgb24][,rate=30]\n  \
    \x20                                     frames of a test picture; 'farbus stream read' reads them\n  \
    stream:PATH,size=WxH[,format=FORMAT][,rate=FPS], stream:PATH,frame=BYTES\n  \
    \x20                                     frames out of a FIFO, a device, a file; FORMAT is rgb24, grey or yuyv\n  \
    usb:BUSID, usb:VENDOR:PRODUCT, usb:serial=TEXT\n  \
    \x20                                     a real USB device of this machine, taken from its drivers meanwhile\n\n\
    Examples:\n  farbus share disk:backup.img\n  farbus share disk:/dev/sdb,ro zero keyboard\n  \
    farbus share --list                          which USB devices could be shared, and why not\n  \
    farbus share usb:1-1.4 usb:046d:c52b\n  \
    farbus share disk:backup.img --secure        reachable by paired hosts: see 'farbus pair' and 'farbus allow'\n  \
    farbus share zero --listen 0.0.0.0:3240      reachable by everybody: see the warning it prints\n  \
    farbus share zero --listen unix:/run/zero.sock --socket-mode 660\n  \
    \x20                                     at a socket, for its owner and group: containers, sandboxes\n\n\
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
    /// Where to listen without encryption, 'none' for nowhere; may be given more than once. The default is this machine alone.
    #[arg(long, value_name = "ADDR[:PORT]|unix:PATH", default_value = "127.0.0.1")]
    listen: Vec<String>,
    /// Who may connect at a unix:PATH, as a file's mode: 600 its owner, 660 its group too, 666 every user of this machine.
    #[arg(long, value_name = "MODE", default_value = "600")]
    socket_mode: SocketMode,
    /// Listen for paired hosts too, encrypted; everywhere, unless an address is given. Each may use what 'farbus allow' says.
    #[arg(long, value_name = "ADDR[:PORT]", num_args = 0..=1, default_missing_value = "")]
    secure: Option<String>,
    /// Whoever may use a device may look on at what it sends while another uses it ('farbus observe'): what somebody types, too.
    #[arg(long)]
    observable: bool,
    /// A module that importers may ask for besides those that need nothing of this host: see 'farbus module'. May be given more than
    /// once.
    #[arg(long, value_name = "NAME[:KEY=VALUE,…]")]
    allow_module: Vec<Asked>,
    /// What is reserved for whoever uses a device, by its name: bytes each period (in microframes; in frames at full speed) of its bus and of
    /// a processor. May be given more than once; an importer may ask for something else ('farbus attach --reserve').
    #[arg(long, value_name = "DEVICE:bytes=N,period=N[,criticality=low][,endpoint=0x83]")]
    reserve: Vec<OwnWish>,
    /// Whoever comes from there without a key may reserve with high criticality too, as programs of this machine do; for paired hosts
    /// 'farbus allow --reserve-high' says it. May be given more than once.
    #[arg(long, value_name = "ADDR[/BITS]")]
    reserve_high: Vec<Network>,
    /// Write each session's last requests, stage by stage, to this file (JSON lines).
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Keep the rights it was started with. Without this, what hears the network runs as nobody, sees no files
    /// and makes no connections.
    #[arg(long)]
    no_sandbox: bool,
}

/// A device to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A disk; `kind` is what it is called unless somebody names it.
    Disk {
        spec: BlockSpec,
        sector_bytes: u32,
        kind: &'static str,
    },
    Zero {
        speed: Speed,
        fill: Fill,
        verify: bool,
    },
    Keyboard,
    Serial {
        speed: Speed,
    },
    Audio {
        speed: Speed,
    },
    Can(can::Settings),
    Bridge(bridge::Settings),
    Stream(StreamSpec),
    Usb(Selector),
}

impl FromStr for What {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        match kind {
            "disk" => return disk_from("disk", "block:", rest),
            "block" => return disk_from("block", "block:", rest),
            "memory" => return disk_from("memory", "memory:", rest),
            _ => {}
        }
        if kind == "stream" {
            return rest.parse().map(What::Stream);
        }
        if kind == "usb" {
            return rest.parse().map(What::Usb);
        }
        let mut words = text.split(',');
        match words.next() {
            Some("can") => text["can".len()..].trim_start_matches(',').parse().map(What::Can),
            Some("bridge") => text["bridge".len()..].trim_start_matches(',').parse().map(What::Bridge),
            Some("zero") => zero_from(words),
            Some("keyboard") => match words.next() {
                None => Ok(What::Keyboard),
                Some(word) => Err(format!("keyboard has no option '{word}'")),
            },
            Some("audio") => Ok(What::Audio { speed: speed_from("audio", Speed::Full, words)? }),
            Some("serial") => Ok(What::Serial { speed: speed_from("serial", Speed::High, words)? }),
            _ => Err(format!(
                "'{text}' is not a device: try disk:PATH, zero, keyboard, serial, can, bridge, audio, stream:pattern or usb:BUSID"
            )),
        }
    }
}

/// A block device's words (`scheme` with `text`), and a USB disk's `sector=`.
fn disk_from(kind: &'static str, scheme: &str, text: &str) -> Result<What, String> {
    let mut sector_bytes = 512;
    let mut words = Vec::new();
    for word in text.split(',') {
        match word.split_once('=') {
            Some(("sector", bytes)) => {
                let parsed = bytes.parse().ok().filter(|bytes| [512, 1024, 2048, 4096].contains(bytes));
                sector_bytes = parsed.ok_or(format!("a sector has 512, 1024, 2048 or 4096 bytes, not '{bytes}'"))?;
            }
            _ => words.push(word),
        }
    }
    if words.first().is_none_or(|path| path.is_empty()) {
        let example = if kind == "memory" { "a size: memory:1G" } else { "a path: disk:PATH[,ro]" };
        return Err(format!("{kind} needs {example}"));
    }
    let spec: BlockSpec = format!("{scheme}{}", words.join(",")).parse()?;
    Ok(What::Disk { spec, sector_bytes, kind })
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

/// The words of a device that has nothing but a speed.
fn speed_from<'a>(what: &str, usual: Speed, words: impl Iterator<Item = &'a str>) -> Result<Speed, String> {
    let mut speed = usual;
    for word in words {
        match word {
            "speed=full" => speed = Speed::Full,
            "speed=high" => speed = Speed::High,
            _ => return Err(format!("{what} has no option '{word}': there are speed=full and speed=high")),
        }
    }
    Ok(speed)
}

pub fn run(args: Args) -> Result<(), Failure> {
    if args.list {
        return super::inventory::run(args.json);
    }
    let share = Arc::new(Share::default());
    let (door, knocks) = Door::hang().map_err(Failure::local)?;
    let told = args.listen.iter().filter(|told| *told != "none");
    let plain = told.map(|told| bind_plain(told, args.socket_mode)).collect::<Result<Vec<_>, _>>()?;
    let paths = plain.iter().filter_map(|(_, place)| place.path().cloned());
    let remove = paths.chain([door.path().to_owned()]).collect();
    let usb: Vec<String> = args.what.iter().filter_map(What::usb).map(Selector::to_string).collect();
    let mandate = Mandate { remove, usb, ..Mandate::default() };
    let has_usb = !mandate.usb.is_empty();
    let broker = if has_usb || !args.no_sandbox { Some(Arc::new(start_broker(&mandate)?)) } else { None };
    let mut real = broker.clone().filter(|_| has_usb).map(usb::Shared::new);
    let offer_one = |what: &What| offer(&share, &mut real, &Hands::Own, what.kind(), what);
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
    reserve(&share, &args.reserve)?;
    share.allow_reserve_high(args.reserve_high);
    share.show(args.observable);
    share.allow_modules(allowed(&args.allow_module).map_err(Failure::local)?);
    if let Some(path) = &args.trace {
        let file = File::create(path);
        share.trace_to(file.map_err(|error| Failure::local(format!("cannot write {}: {error}", path.display())))?);
    }
    // Signals are caught before anybody can know where we listen.
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(Failure::local)?;
    let secure = args.secure.as_deref().map(bind_secure).transpose()?;
    let addresses = plain.iter().map(|(_, place)| place.as_host());
    let Some(address) = addresses.chain(secure.as_ref().map(|secure| secure.address.to_string())).next() else {
        return Err(Failure::local("nobody could reach these devices: give --secure, or another --listen than 'none'"));
    };
    // All that needs rights is open: they are given away before the first thread that may hear a stranger.
    let deaf = |error| Failure::local(format!("cannot hear what is plugged in: {error}"));
    let hotplug = has_usb.then(Hotplug::new).transpose().map_err(deaf)?;
    if !args.no_sandbox {
        // One that follows real devices reads what there is in sysfs; one for paired hosts reads whom it knows, and writes its log.
        let readable = if has_usb { vec!["/sys".into()] } else { Vec::new() };
        let state = secure.as_ref().map(|secure| secure.trust.folder().path().to_owned());
        give_rights_away(&Needs { readable, state, ..Needs::default() })?;
    }
    let for_door = Arc::clone(&share);
    door.open(knocks, move |question| answer(&for_door, &address, question)).map_err(Failure::local)?;
    for (entrance, place) in plain {
        share.listen_at(entrance, None).map_err(Failure::local)?;
        say(format!("listening on {}   (Ctrl-C ends)", place.as_host()));
    }
    if let Some(Secure { listener, datagrams, address, trust }) = secure {
        share.listen_secure_on(listener, datagrams, trust).map_err(Failure::local)?;
        say(format!("listening on {address} for paired hosts, encrypted   (Ctrl-C ends)"));
    }
    let follower = real.map(|real| usb::Follower::start(Arc::clone(&share), real, hotplug)).transpose();
    let mut follower = follower.map_err(deaf)?;
    signals.forever().next();
    follower.iter_mut().for_each(usb::Follower::stop);
    let is_durable = share.stop();
    // Each device went back to its drivers as it was dropped.
    follower.into_iter().for_each(usb::Follower::dismiss);
    drop(broker);
    if is_durable {
        Ok(())
    } else {
        Err(Failure::local("a device did not become durable in time; its last writes may be lost"))
    }
}

/// What somebody wants reserved for a device that he shares.
#[derive(Clone, Debug, PartialEq, Eq)]
struct OwnWish {
    device: String,
    wish: Wish,
}

impl FromStr for OwnWish {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (device, wish) = text
            .split_once(':')
            .ok_or_else(|| format!("'{text}' does not say for which device: zero:bytes=1024,period=8"))?;
        Ok(Self { device: device.to_owned(), wish: wish.parse()? })
    }
}

fn reserve(share: &Share, all: &[OwnWish]) -> Result<(), Failure> {
    let mut devices: Vec<&str> = all.iter().map(|own| own.device.as_str()).collect();
    devices.dedup();
    for device in devices {
        let wishes: Vec<Wish> = all.iter().filter(|own| own.device == device).map(|own| own.wish.clone()).collect();
        if let Some(reservation) = together(&wishes).map_err(Failure::local)? {
            share.reserve(device, reservation).map_err(|error| Failure::new(Attribute::Refused, error))?;
        }
    }
    Ok(())
}

fn bind_plain(told: &str, mode: SocketMode) -> Result<(Entrance, Place), Failure> {
    let asked = listen_place(told, DEFAULT_PORT)?;
    let entrance = asked.listen_for(mode).map_err(|error| listen_failure(&asked, &error))?;
    let place = entrance.place().map_err(Failure::local)?;
    if let Place::Address(address) = place
        && !place.is_local()
    {
        eprintln!(
            "farbus: warning: {address} is not this machine alone. USB/IP has no password and no encryption:\n  \
             whoever reaches this address can use these devices and read what they say."
        );
    }
    Ok((entrance, place))
}

/// Where paired hosts come to.
struct Secure {
    listener: Listener,
    datagrams: Option<UdpSocket>,
    address: SocketAddr,
    trust: Trust,
}

fn bind_secure(told: &str) -> Result<Secure, Failure> {
    let trust = Trust::open()?;
    let addresses = if told.is_empty() { everywhere(SECURE_PORT) } else { vec![listen_address(told, SECURE_PORT)?] };
    let mut result = Err(Failure::local("no address to listen at"));
    for address in addresses {
        result = bind(address);
        if result.is_ok() {
            break;
        }
    }
    let (listener, address) = result?;
    let datagrams = UdpSocket::bind(address);
    let datagrams = datagrams.inspect_err(|error| warn!(%address, %error, "no QUIC: its port is not to be had")).ok();
    Ok(Secure { listener, datagrams, address, trust })
}

fn bind(address: SocketAddr) -> Result<(Listener, SocketAddr), Failure> {
    let listener = Listener::bind(address).map_err(|error| listen_failure(&Place::Address(address), &error))?;
    let address = listener.address().map_err(Failure::local)?;
    Ok((listener, address))
}

impl What {
    /// The real device that it means, if it means one.
    pub fn usb(&self) -> Option<&Selector> {
        match self {
            What::Usb(selector) => Some(selector),
            _ => None,
        }
    }

    /// The disk images that it needs, and whether each is only to be read.
    pub fn images(&self) -> impl Iterator<Item = (&Path, bool)> {
        let spec = match self {
            What::Disk { spec, .. } => Some(spec),
            _ => None,
        };
        spec.into_iter().flat_map(BlockSpec::images)
    }

    /// What it reads frames from, if it does.
    pub fn frames(&self) -> Option<&Path> {
        match self {
            What::Stream(spec) => spec.path(),
            _ => None,
        }
    }

    /// What its name begins with if nobody names it.
    pub fn kind(&self) -> &'static str {
        match self {
            What::Disk { kind, .. } => kind,
            What::Zero { .. } => "zero",
            What::Keyboard => "keyboard",
            What::Serial { .. } => "serial",
            What::Audio { .. } => "audio",
            What::Can(_) => "can",
            What::Bridge(_) => "bridge",
            What::Stream(_) => "stream",
            What::Usb(_) => "usb",
        }
    }
}

/// Offers a device under a name that begins with `name`; real devices have names of their own, and may be several; a bridge is two.
pub fn offer(
    share: &Share,
    real: &mut Option<usb::Shared>,
    hands: &Hands,
    name: &str,
    what: &What,
) -> Result<Vec<DeviceRecord>, Failure> {
    let one = match *what {
        What::Usb(ref selector) => {
            let real = real.as_mut().expect("whoever offers real devices has somebody who opens them");
            return real.add(share, selector).map_err(|error| Failure::new(error.attribute(), error));
        }
        What::Bridge(ref settings) => return offer_bridge(share, settings, name),
        What::Zero { speed, fill, verify } => share.add(name, SourceSink::device(speed, fill, verify)),
        What::Keyboard => share.add(name, Keyboard::device()),
        What::Serial { speed } => share.add(name, Serial::device(speed)),
        What::Audio { speed } => share.add(name, Audio::device(speed)),
        What::Can(ref settings) => share.add(name, Can::device(settings)),
        What::Stream(ref spec) => {
            let (stage, device) = spec.open(hands).map_err(Failure::local)?;
            share.add_stream(name, device, stage)
        }
        What::Disk { ref spec, sector_bytes, .. } => {
            let export = Arc::new(spec.export(hands).map_err(Failure::local)?);
            let (product, serial) = (spec.name(), Options::serial_of(&spec.identity()));
            let options = Options { sector_bytes, serial, product, ..Options::default() };
            let face = BlockFace { renew: usb_face(Arc::clone(&export), options), export };
            let disk = (face.renew)().map_err(|error| Failure::local(format!("{spec}: {error}")))?;
            share.add_block(name, disk, face)
        }
    };
    one.map(|record| vec![record]).map_err(Failure::local)
}

/// Both ends, under names that nothing here has: two bridges of one host differ in their names, and so in their addresses.
fn offer_bridge(share: &Share, settings: &bridge::Settings, name: &str) -> Result<Vec<DeviceRecord>, Failure> {
    let listed = share.status();
    let is_free = |name: &String| listed.iter().all(|device| device.name != format!("{name}-a"));
    let numbered = (2..).map(|number| format!("{name}{number}"));
    let name = std::iter::once(name.to_owned()).chain(numbered).find(is_free).expect("numbers do not end");
    let ends = crate::bridge::open(settings, &name).map_err(Failure::local)?;
    let add = |(which, end)| share.add(&format!("{name}{which}"), end);
    ends.into_iter().map(add).collect::<Result<_, _>>().map_err(Failure::local)
}

/// Makes a block device's face as a USB disk.
fn usb_face(export: Arc<BlockExport>, options: Options) -> Renew {
    let mode = export.mode(Mode::Exclusive);
    let read_only = export.info().is_read_only;
    Box::new(move || {
        let store = export.open_store(mode)?;
        let disk = Storage::device(store, Options { read_only, ..options.clone() });
        Ok(Box::new(disk.map_err(|error| error.to_string())?))
    })
}

pub fn listen_failure(place: &Place, error: &std::io::Error) -> Failure {
    let hint = match (place, error.kind()) {
        // What is wrong with a path says itself what to do.
        (Place::Socket(_), _) => return Failure::local(error),
        (Place::Address(_), std::io::ErrorKind::AddrInUse) => {
            "\n  another share or usbipd is there: see 'farbus status', or choose --listen (--secure) ADDR:PORT"
        }
        _ => "",
    };
    Failure::local(format!("cannot listen at {place}: {error}{hint}"))
}

/// Answers what is asked of shared devices.
pub fn answer(share: &Share, address: &str, question: Question) -> Answer {
    let (device, command) = match question {
        Question::Status => {
            let devices = share.status();
            return ProcessStatus { pid: std::process::id(), role: "share", address: address.to_owned(), devices }
                .answer();
        }
        Question::Version
        | Question::Detach { .. }
        | Question::Hold { .. }
        | Question::Pause { .. }
        | Question::Resume { .. }
        | Question::Migrate { .. }
        | Question::Reload
        | Question::Restart { .. }
        | Question::Sleep { .. }
        | Question::Topology { .. }
        | Question::Wake => return Answer::Unknown,
        Question::Release { device, reason, keep_out_s } => {
            let taken = share.take_back(&device, reason.as_deref(), Duration::from_secs(keep_out_s));
            return answer_to(taken.map(|user| serde_json::json!({ "user": user })));
        }
        Question::Explain { user, reason } => {
            return if share.explain(&user, &reason) { Answer::Ok(serde_json::Value::Null) } else { Answer::Unknown };
        }
        question @ (Question::Swap { .. } | Question::SwapStatus { .. } | Question::SwapCancel { .. }) => {
            return super::swap::answer(share, question);
        }
        Question::Promise { owner, reserves, files } => {
            return match files.take() {
                Ok([lease]) => share.promises().keep(&owner, &reserves, lease),
                Err(error) => Answer::Refused(error.to_string()),
            };
        }
        Question::Type { device, text } => (device, Command::Type(text)),
        Question::Eject { device } => (device, Command::Eject),
        Question::Insert { device } => (device, Command::Insert),
    };
    answer_to(share.command(&device, command).map(|()| serde_json::Value::Null))
}

fn answer_to(result: Result<serde_json::Value, ShareError>) -> Answer {
    let failed = |attribute, error: ShareError| Answer::Failed(FailureReport { attribute, message: error.to_string() });
    match result {
        Ok(value) => Answer::Ok(value),
        Err(ShareError::NoDevice(_)) => Answer::Unknown,
        Err(error @ ShareError::NotInUse(_)) => failed(Attribute::Gone, error),
        Err(error @ ShareError::Silent) => failed(Attribute::Device, error),
        Err(error) => Answer::Refused(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shared_is_read_as_the_help_says() {
        let read = |text: &str| text.parse::<What>();
        let disk = |spec: &str, sector_bytes, kind| What::Disk { spec: spec.parse().unwrap(), sector_bytes, kind };
        assert_eq!(read("disk:/x:y.img,ro,sector=4096"), Ok(disk("block:/x:y.img,ro", 4096, "disk")));
        assert_eq!(read("block:/x,scratch"), Ok(disk("block:/x,scratch", 512, "block")));
        assert_eq!(read("memory:1G"), Ok(disk("memory:1G", 512, "memory")));
        assert_eq!(read("keyboard"), Ok(What::Keyboard));
        assert_eq!(read("serial"), Ok(What::Serial { speed: Speed::High }));
        assert_eq!(read("serial,speed=full"), Ok(What::Serial { speed: Speed::Full }));
        assert_eq!(read("audio"), Ok(What::Audio { speed: Speed::Full }));
        assert_eq!(read("audio,speed=high"), Ok(What::Audio { speed: Speed::High }));
        assert_eq!(read("bridge"), Ok(What::Bridge(bridge::Settings::default())));
        assert_eq!(read("can,traffic=paper"), Ok(What::Can(can::Settings::paper())));
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
            "block:",
            "memory",
            "memory:x",
            "disk:x,sector=100",
            "zero,speed=ultra",
            "keyboard,de",
            "audio,speed=super",
            "bridge,tape",
            "stream:",
            "tape",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
