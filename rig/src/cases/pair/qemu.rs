//! Every device that QEMU emulates, on a USB 3 controller and on USB 2 controllers.

use super::bench::{DevicePairBench, judge_tree};
use crate::cases::case::{RigCase, expect};
use crate::cases::keyboard::{InputEvent, read_back};
use crate::lab::{AttachClient, CaseEnvironment, MachineBoot};
use crate::machine::RunningMachine;
use crate::prerequisites::CARD_READER_DRIVER;
use crate::{Result, RigError, disk, smartcard};
use serde_json::json;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(super) const CASES: &[RigCase] = &[
    RigCase {
        name: "pair-xhci",
        purpose: "ten devices on xHCI shared from one guest and used in another through `farbus attach`: stick, UAS, DVD, keyboard, \
                  tablet, sound, serial, network, smart card, MTP",
        run: |lab| devices(lab, &XHCI),
    },
    RigCase {
        name: "pair-ehci",
        purpose: "the same devices on EHCI and its OHCI companion, through stock usbip",
        run: |lab| devices(lab, &EHCI),
    },
];

/// A machine's controllers and devices.
struct QemuHardware {
    controllers: &'static [&'static str],
    /// High speed and above.
    fast: &'static [(&'static str, &'static str)],
    /// The bus of devices of full speed, as a QEMU property.
    slow: &'static str,
    /// The least part of a tone that has to sound. When a busy machine is late, QEMU's OHCI skips frames and their
    /// data.
    tone_min: f64,
    /// Whether the card is used. QEMU's OHCI ends the reader's answer with no bytes, for local users too.
    card_answers: bool,
    client: AttachClient,
}

/// Ports 1 to 4 are SuperSpeed. A UAS device needs streams there, which USB/IP does not have, so it is plugged into a
/// USB 2 port.
const XHCI: QemuHardware = QemuHardware {
    controllers: &["qemu-xhci,id=hc,p2=12,p3=4"],
    fast: &[("stick", "bus=hc.0,port=1"), ("disc", "bus=hc.0,port=2"), ("uas", "bus=hc.0,port=5")],
    slow: "bus=hc.0",
    tone_min: 0.95,
    card_answers: true,
    client: AttachClient::Farbus,
};

/// One controller for fast devices, another whose companion takes the slow ones: OHCI, because UHCI has its registers
/// in an I/O space that a microvm's PCI bus does not have.
const EHCI: QemuHardware = QemuHardware {
    controllers: &["usb-ehci,id=hc", "ich9-usb-ehci1,id=slow", "pci-ohci,masterbus=slow.0,firstport=0,num-ports=6"],
    fast: &[],
    slow: "bus=slow.0",
    tone_min: 0.85,
    card_answers: false,
    client: AttachClient::Stock,
};

/// In the order in which they are shared.
const NAMES: [&str; 10] = ["stick", "uas", "disc", "keyboard", "tablet", "sound", "serial", "net", "card", "files"];

const EXPORTER: &str = concat!(
    include_str!("../../../guest/pair/common.sh"),
    include_str!("../../../guest/pair/exporter.sh"),
    include_str!("../../../guest/pair/serve.sh")
);

/// The exporter's own drivers are bound first, so that they have to be unbound.
const EXPORTER_MODULES: &[&str] = &[
    "virtio_mmio",
    "virtio_net",
    "xhci_pci",
    "ehci_pci",
    "ohci_pci",
    "usb_storage",
    "uas",
    "sd_mod",
    "sr_mod",
    "usbhid",
    "hid_generic",
    "evdev",
    "snd_usb_audio",
    "ftdi_sio",
    "cdc_ether",
    "rndis_host",
    "cdc_subset",
];

/// Programs of the importing machine: those for smart cards, with the files they open by name, and those for MTP.
const PROGRAMS: &[&str] = &[
    "mtp-files",
    "mtp-getfile",
    "/usr/lib/x86_64-linux-gnu/gconv/gconv-modules.cache",
    "/usr/lib/x86_64-linux-gnu/gconv/UTF-16.so",
    "pcscd",
    "opensc-tool",
    "/usr/lib/x86_64-linux-gnu/libpcsclite.so.1",
    "/usr/lib/pcsc/drivers/ifd-ccid.bundle/Contents/Info.plist",
    CARD_READER_DRIVER,
];

/// Files on the host's side of the devices.
struct MediaFiles {
    stick: PathBuf,
    uas: PathBuf,
    disc: PathBuf,
    files: PathBuf,
    sound: PathBuf,
    line: PathBuf,
    card: PathBuf,
}

fn devices(lab: &CaseEnvironment, machine: &QemuHardware) -> Result<String> {
    lab.farbus()?;
    let media = MediaFiles::make(lab)?;
    answer_in_capitals(&media.line)?;
    smartcard::insert(&media.card)?;
    let exporter = MachineBoot {
        script: EXPORTER,
        modules: EXPORTER_MODULES,
        hardware: machine.hardware(&media),
        ..MachineBoot::default()
    };
    let mut bench = DevicePairBench::set_up(lab, exporter, machine.client, PROGRAMS, "", &NAMES)?;
    bench.device("stick", "use_disk usb-storage", |_, _| Ok(()), |_| judge_tree(lab, &media.stick, "stick"));
    bench.device("uas", "use_disk uas", |_, _| Ok(()), |_| judge_tree(lab, &media.uas, "uas"));
    bench.simple("disc", "use_disc");
    bench.device("keyboard", "use_input", type_keys, judge_keys);
    bench.device("tablet", "use_input", point, judge_pointing);
    bench.device("sound", "use_audio", |_, _| Ok(()), |_| judge_sound(&media.sound, machine.tone_min));
    bench.simple("serial", "use_serial ftdi_sio");
    bench.simple("net", "use_net 10.0.3.15 10.0.3.2");
    let atr: Vec<String> = smartcard::ATR.iter().map(|byte| format!("{byte:02x}")).collect();
    let reply = if machine.card_answers { smartcard::REPLY } else { "" };
    bench.simple("card", &format!("use_card {} {reply}", atr.join(":")));
    bench.simple("files", "use_files");
    bench.verdict()
}

impl MediaFiles {
    fn make(lab: &CaseEnvironment) -> Result<Self> {
        const DISK_BYTES: u64 = 64 << 20;
        let tree = lab.scratch("tree");
        disk::tree(&tree)?;
        let mut media = Self {
            stick: lab.scratch("stick"),
            uas: lab.scratch("uas"),
            disc: lab.scratch("disc"),
            files: lab.scratch("files"),
            sound: lab.scratch("wav"),
            line: lab.scratch("tty"),
            card: lab.scratch("card"),
        };
        disk::ext4(&media.stick, DISK_BYTES, &tree)?;
        disk::ext4(&media.uas, DISK_BYTES, &tree)?;
        disk::disc(&media.disc, &tree)?;
        disk::few_files(&media.files)?;
        // QEMU requires an absolute path here.
        media.files = std::fs::canonicalize(&media.files).map_err(RigError::io("find the folder of files"))?;
        Ok(media)
    }
}

impl QemuHardware {
    /// QEMU's arguments for all ten. The serial number is the name that the scripts know a device by.
    fn hardware(&self, media: &MediaFiles) -> Vec<String> {
        let bus_of = |name: &str| self.fast.iter().find(|(other, _)| *other == name).map_or("bus=hc.0", |(_, bus)| bus);
        let fast = |name: &str, device: &str| format!("{device},{},serial=rig-{name}", bus_of(name));
        let slow = |name: &str, device: &str| format!("{device},{},serial=rig-{name}", self.slow);
        let mut arguments: Vec<String> = Vec::new();
        let mut add = |option: &str, value: String| arguments.extend([option.to_owned(), value]);
        for controller in self.controllers {
            add("-device", (*controller).to_owned());
        }
        add("-blockdev", raw("stickmedium", &media.stick, ""));
        add("-device", fast("stick", "usb-storage,drive=stickmedium,removable=on"));
        add("-blockdev", raw("uasmedium", &media.uas, ""));
        add("-device", fast("uas", "usb-uas,id=uas"));
        add("-device", "scsi-hd,bus=uas.0,drive=uasmedium".into());
        add("-blockdev", raw("discmedium", &media.disc, ",read-only=on"));
        add("-device", fast("disc", "usb-bot,id=bot"));
        add("-device", "scsi-cd,bus=bot.0,drive=discmedium".into());
        add("-device", fast("keyboard", "usb-kbd"));
        add("-device", fast("tablet", "usb-tablet"));
        add("-audiodev", format!("wav,id=room,path={}", media.sound.display()));
        add("-device", slow("sound", "usb-audio,audiodev=room"));
        add("-chardev", format!("socket,id=line,path={}", media.line.display()));
        add("-device", slow("serial", "usb-serial,chardev=line"));
        add("-netdev", "user,id=far,net=10.0.3.0/24".into());
        add("-device", slow("net", "usb-net,netdev=far"));
        add("-chardev", format!("socket,id=card,path={}", media.card.display()));
        add("-device", slow("card", "usb-ccid,id=reader"));
        add("-device", "ccid-card-passthru,bus=reader.0,chardev=card".into());
        add("-device", fast("files", &format!("usb-mtp,rootdir={}", media.files.display())));
        arguments
    }
}

fn raw(node: &str, image: &Path, more: &str) -> String {
    format!("driver=raw,node-name={node},file.driver=file,file.filename={}{more}", image.display())
}

/// Answers in capitals at the other end of the serial line, until the machine is gone.
fn answer_in_capitals(socket: &Path) -> Result<()> {
    let listener = UnixListener::bind(socket).map_err(RigError::io("listen for the serial line"))?;
    std::thread::spawn(move || -> std::io::Result<()> {
        let (mut line, _) = listener.accept()?;
        for message in BufReader::new(line.try_clone()?).lines() {
            line.write_all(format!("{}\n", message?.to_uppercase()).as_bytes())?;
        }
        Ok(())
    });
    Ok(())
}

/// Names of keys, and their characters.
const KEYS: [(&str, &str); 6] = [("f", "f"), ("shift-a", "A"), ("r", "r"), ("spc", " "), ("shift-1", "!"), ("7", "7")];

fn type_keys(exporter: &mut RunningMachine, importer: &mut RunningMachine) -> Result<()> {
    importer.await_word("ready")?;
    for (key, _) in KEYS {
        exporter.command(&format!("sendkey {key} 60"))?;
        std::thread::sleep(Duration::from_millis(150));
    }
    importer.tell("played")
}

fn judge_keys(printed: &str) -> Result<String> {
    let events: Vec<InputEvent> = printed.lines().filter_map(InputEvent::parse).collect();
    let (typed, still_down) = read_back(&events);
    let expected: String = KEYS.iter().map(|(_, character)| *character).collect();
    expect(typed == expected && still_down.is_empty(), || {
        format!("typed {expected}, arrived {typed}, {still_down:?} down")
    })?;
    Ok(format!("{} characters in {} events", typed.len(), events.len()))
}

/// Positions of the pen, in the tablet's own units (0 to 32767).
const PLACES: [(i32, i32); 3] = [(1000, 2000), (16_384, 8192), (32_000, 31_000)];

fn point(exporter: &mut RunningMachine, importer: &mut RunningMachine) -> Result<()> {
    importer.await_word("ready")?;
    let absolute = |axis: &str, value: i32| json!({"type": "abs", "data": {"axis": axis, "value": value}});
    let button = |down: bool| json!({"type": "btn", "data": {"button": "left", "down": down}});
    for (x, y) in PLACES {
        for events in [json!([absolute("x", x), absolute("y", y)]), json!([button(true)]), json!([button(false)])] {
            exporter.execute("input-send-event", &json!({ "events": events }))?;
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    importer.tell("played")
}

fn judge_pointing(printed: &str) -> Result<String> {
    const EV_KEY: u16 = 1;
    const EV_ABS: u16 = 3;
    const ABS_X: u16 = 0;
    const ABS_Y: u16 = 1;
    const BTN_LEFT: u16 = 0x110;
    let events: Vec<InputEvent> = printed.lines().filter_map(InputEvent::parse).collect();
    let along = |axis| events.iter().filter(move |e| e.kind == EV_ABS && e.code == axis).map(|event| event.value);
    let positions: Vec<(i32, i32)> = along(ABS_X).zip(along(ABS_Y)).collect();
    let clicks = events.iter().filter(|e| e.kind == EV_KEY && e.code == BTN_LEFT && e.value == 1).count();
    expect(positions == PLACES && clicks == PLACES.len(), || format!("the pen was at {positions:?}, {clicks} clicks"))?;
    Ok(format!("{} places, {clicks} clicks", positions.len()))
}

/// Checks how much of three seconds was recorded. After a header of 44 bytes come 16-bit samples of two channels.
fn judge_sound(heard: &Path, share_min: f64) -> Result<String> {
    let bytes = std::fs::read(heard).map_err(RigError::io("read what the sound card played"))?;
    let samples = bytes.get(44..).unwrap_or_default().chunks_exact(4).map(|s| i16::from_le_bytes([s[0], s[1]]));
    let loud = samples.filter(|sample| sample.unsigned_abs() > 256).count();
    let share = loud as f64 / f64::from(3 * 44_100);
    expect((share_min..=1.05).contains(&share), || format!("{loud} samples of the tone sounded, {share:.2} of all"))?;
    Ok(format!("{:.1} % of it sounded at the card", 100.0 * share))
}
