//! Real devices: farbus exports what QEMU plugs into the guest, through usbfs.
//!
//! Exporter and importer are one guest, over its loopback: the device's own driver sees it twice, once before farbus
//! took it and once behind vhci.

use super::case::{RigCase, expect, free_port};
use super::keyboard::{InputEvent, read_back};
use super::{storage, testusb};
use crate::lab::{AttachClient, CaseEnvironment, MachineBoot};
use crate::{Result, RigError, disk, tool};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

pub(super) const CASES: &[RigCase] = &[
    RigCase {
        name: "usbfs-storage-stock",
        purpose: "an xHCI stick through usbfs: ext4 trees check out both ways, eject works, its driver gets it back",
        run: |lab| stick(lab, AttachClient::Stock),
    },
    RigCase {
        name: "usbfs-storage-farbus",
        purpose: "the same through `farbus attach --via kernel`",
        run: |lab| stick(lab, AttachClient::Farbus),
    },
    RigCase {
        name: "usbfs-lsusb",
        purpose: "keyboard, stick, sound card, serial and network adapter: `lsusb -v` is identical on both sides",
        run: same_to_lsusb,
    },
    RigCase {
        name: "usbfs-keyboard-stock",
        purpose: "keys pressed on the machine's own keyboard arrive at /dev/input by way of usbfs",
        run: typing,
    },
    RigCase {
        name: "usbfs-serial-stock",
        purpose: "text both ways through an FTDI adapter and usbfs",
        run: |lab| serial(lab, AttachClient::Stock),
    },
    RigCase {
        name: "usbfs-serial-farbus",
        purpose: "the same through `farbus attach --via kernel`",
        run: |lab| serial(lab, AttachClient::Farbus),
    },
    RigCase {
        name: "usbfs-serial-tcp",
        purpose: "the same at a TCP port, in a guest without vhci-hcd",
        run: serial_at_a_port,
    },
    RigCase {
        name: "usbfs-audio-stock",
        purpose: "`aplay` of a tone through isochronous usbfs: all of it sounds at the sound card",
        run: audio,
    },
    RigCase {
        name: "usbfs-testusb-stock",
        purpose: "testusb on the kernel's own gadget through usbfs: all that the gadget supports, unlink tests included",
        run: |lab| gadget(lab, AttachClient::Stock),
    },
    RigCase {
        name: "usbfs-testusb-farbus",
        purpose: "the same through `farbus attach --via kernel`",
        run: |lab| gadget(lab, AttachClient::Farbus),
    },
    RigCase {
        name: "usbfs-reset-stock",
        purpose: "USB resets of a stick behind usbfs during a big read: the real port is reset, the read has the right data",
        run: resets,
    },
    RigCase {
        name: "usbfs-killed",
        purpose: "an exporter that is killed leaves nothing to clean: the importer's device goes, the stick has its driver again",
        run: killed,
    },
    RigCase {
        name: "usbfs-unplug-stock",
        purpose: "a stick pulled in mid-read is gone from both sides and from the list; plugged in again it is shared again",
        run: |lab| unplug(lab, AttachClient::Stock),
    },
    RigCase {
        name: "usbfs-unplug-farbus",
        purpose: "the same through `farbus attach --via kernel`",
        run: |lab| unplug(lab, AttachClient::Farbus),
    },
    RigCase {
        name: "usbfs-in-port",
        purpose: "boards that become another device in their ports and back, 12 times, away for 0 to 5 s: a program, the kernel and \
                  a virtual machine see the new one in place of the old one each time, under the same name and bus id",
        run: |lab| in_port(lab, 12),
    },
    RigCase { name: "usbfs-in-port-often", purpose: "the same, 100 times", run: |lab| in_port(lab, 100) },
];

/// A SuperSpeed controller with these devices on it.
pub(super) fn xhci(devices: &[&str]) -> Vec<String> {
    let all = std::iter::once(&"qemu-xhci,id=hc,p2=8,p3=8").chain(devices);
    all.flat_map(|device| ["-device".to_owned(), (*device).to_owned()]).collect()
}

/// The image as a removable stick's medium.
pub(super) fn medium(image: &Path) -> [String; 2] {
    ["-blockdev".into(), format!("driver=raw,node-name=medium,file.driver=file,file.filename={}", image.display())]
}

pub(super) const STICK: &str = "usb-storage,bus=hc.0,port=1,drive=medium,removable=on,id=stick";

fn stick(lab: &CaseEnvironment, client: AttachClient) -> Result<String> {
    lab.farbus()?;
    let image = storage::image_with_tree(lab)?;
    let script = concat!(
        include_str!("../../guest/usbfs-storage.sh"),
        include_str!("../../guest/storage.sh"),
        include_str!("../../guest/usbfs-storage-after.sh")
    );
    let hardware = [xhci(&[STICK]), medium(&image).into()].concat();
    let modules = [storage::MODULES, &["xhci_pci"]].concat();
    let report =
        lab.boot(&MachineBoot { script, modules: &modules, client, hardware, ..MachineBoot::default() })?.finish()?;
    storage::judge_guests_tree(lab, &image)?;
    Ok(storage::note(&report.output))
}

fn same_to_lsusb(lab: &CaseEnvironment) -> Result<String> {
    lab.farbus()?;
    let image = lab.scratch("disk");
    disk::noise(&image, 1 << 20)?;
    let devices = [
        STICK,
        "usb-kbd,bus=hc.0",
        "usb-audio,bus=hc.0,audiodev=none",
        "usb-serial,bus=hc.0,chardev=nobody",
        "usb-net,bus=hc.0,netdev=far",
    ];
    let others = ["-audiodev", "none,id=none", "-chardev", "file,id=nobody,path=/dev/null", "-netdev", "user,id=far"];
    let hardware = [medium(&image).into(), others.map(str::to_owned).into(), xhci(&devices)].concat();
    let report = lab
        .boot(&MachineBoot {
            script: include_str!("../../guest/usbfs-lsusb.sh"),
            modules: &["xhci_pci", "vhci_hcd", "usb_storage", "usbhid", "hid_generic", "ftdi_sio", "snd_usb_audio"],
            client: AttachClient::Stock,
            variables: &[("DEVICES", devices.len().to_string())],
            hardware,
            ..MachineBoot::default()
        })?
        .finish()?;
    let same = report.output.lines().filter(|line| line.starts_with("same: ")).count();
    expect(same == devices.len(), || format!("only {same} devices were compared:\n{}", report.output))?;
    Ok(format!("{same} devices"))
}

fn typing(lab: &CaseEnvironment) -> Result<String> {
    const KEYS: [(&str, &str); 12] = [
        ("f", "f"),
        ("shift-a", "A"),
        ("r", "r"),
        ("b", "b"),
        ("u", "u"),
        ("s", "s"),
        ("spc", " "),
        ("1", "1"),
        ("shift-1", "!"),
        ("minus", "-"),
        ("l", "l"),
        ("l", "l"),
    ];
    lab.farbus()?;
    let script = concat!(
        include_str!("../../guest/usbfs-keyboard.sh"),
        include_str!("../../guest/keyboard.sh"),
        include_str!("../../guest/usbfs-keyboard-after.sh")
    );
    let modules = ["xhci_pci", "vhci_hcd", "usbhid", "hid_generic", "evdev"];
    let hardware = xhci(&["usb-kbd,bus=hc.0"]);
    let mut guest = lab.boot(&MachineBoot { script, modules: &modules, hardware, ..MachineBoot::default() })?;
    guest.await_word("ready")?;
    for (key, _) in KEYS {
        guest.command(&format!("sendkey {key} 40"))?;
        std::thread::sleep(Duration::from_millis(120));
    }
    guest.tell("typed")?;
    let report = guest.finish()?;
    let events: Vec<InputEvent> = report.output.lines().filter_map(InputEvent::parse).collect();
    let (typed, still_down) = read_back(&events);
    let expected: String = KEYS.iter().map(|(_, character)| *character).collect();
    expect(typed == expected && still_down.is_empty(), || {
        format!("typed {expected}, arrived {typed}, {still_down:?} down")
    })?;
    Ok(format!("{} characters in {} events", typed.len(), events.len()))
}

fn serial(lab: &CaseEnvironment, client: AttachClient) -> Result<String> {
    on_the_line(
        lab,
        &MachineBoot {
            script: include_str!("../../guest/usbfs-serial.sh"),
            modules: &["xhci_pci", "vhci_hcd", "ftdi_sio"],
            client,
            ..MachineBoot::default()
        },
    )
}

fn serial_at_a_port(lab: &CaseEnvironment) -> Result<String> {
    on_the_line(
        lab,
        &MachineBoot {
            script: include_str!("../../guest/usbfs-serial-tcp.sh"),
            modules: &["xhci_pci", "ftdi_sio"],
            client: AttachClient::Farbus,
            variables: &[("ATTACH_OPTIONS", "--via tcp".to_owned())],
            ..MachineBoot::default()
        },
    )
}

/// Boots a guest with an FTDI adapter, at the other end of whose line somebody answers in capitals.
fn on_the_line(lab: &CaseEnvironment, boot: &MachineBoot<'_>) -> Result<String> {
    lab.farbus()?;
    let socket = lab.scratch("tty");
    let listener = UnixListener::bind(&socket).map_err(RigError::io("listen for the serial line"))?;
    // Answers in capitals at the other end of the line, until the machine is gone.
    std::thread::spawn(move || -> std::io::Result<()> {
        let (mut line, _) = listener.accept()?;
        for text in BufReader::new(line.try_clone()?).lines() {
            line.write_all(format!("{}\n", text?.to_uppercase()).as_bytes())?;
        }
        Ok(())
    });
    let chardev = ["-chardev".to_owned(), format!("socket,id=line,path={}", socket.display())];
    let report = lab
        .boot(&MachineBoot {
            hardware: [chardev.into(), xhci(&["usb-serial,bus=hc.0,chardev=line"])].concat(),
            ..boot.clone()
        })?
        .finish()?;
    Ok(storage::note(&report.output))
}

fn audio(lab: &CaseEnvironment) -> Result<String> {
    lab.farbus()?;
    let heard = lab.scratch("wav");
    let audiodev = ["-audiodev".to_owned(), format!("wav,id=room,path={}", heard.display())];
    let report = lab
        .boot(&MachineBoot {
            script: include_str!("../../guest/usbfs-audio.sh"),
            modules: &["xhci_pci", "vhci_hcd", "snd_usb_audio"],
            hardware: [audiodev.into(), xhci(&["usb-audio,bus=hc.0,audiodev=room"])].concat(),
            ..MachineBoot::default()
        })?
        .finish()?;
    let bytes = std::fs::read(&heard).map_err(RigError::io("read what the sound card played"))?;
    // After a header of 44 bytes come 16-bit samples of any rate and channels: how much of it is not silence?
    let samples = bytes.get(44..).unwrap_or_default().chunks_exact(4).map(|s| i16::from_le_bytes([s[0], s[1]]));
    let loud = samples.filter(|sample| sample.unsigned_abs() > 256).count();
    let share = loud as f64 / f64::from(3 * 44_100);
    expect(share >= 0.95, || format!("only {loud} samples of the tone sounded:\n{}", report.output))?;
    Ok(format!("{}, {loud} samples of it at the sound card", storage::note(&report.output)))
}

fn gadget(lab: &CaseEnvironment, client: AttachClient) -> Result<String> {
    lab.farbus()?;
    let report = lab
        .boot(&MachineBoot {
            script: include_str!("../../guest/usbfs-testusb.sh"),
            modules: &["dummy_hcd", "usb_f_ss_lb", "vhci_hcd", "usbtest"],
            client,
            ..MachineBoot::default()
        })?
        .finish()?;
    let passed = testusb::passed(&report.output);
    // As `kernel-testusb`: the gadget and its controller have neither isochronous nor interrupt endpoints.
    expect((0..=14).chain(17..=21).all(|test| passed.contains(&test)), || {
        format!("only {passed:?} passed:\n{}", report.output)
    })?;
    Ok(format!("{} tests, {}", passed.len(), storage::note(&report.output)))
}

fn resets(lab: &CaseEnvironment) -> Result<String> {
    lab.farbus()?;
    let image = lab.scratch("disk");
    disk::noise(&image, 16 << 20)?;
    let script = concat!(
        include_str!("../../guest/usbfs-storage.sh"),
        "dmesg -c >/dev/null\n",
        include_str!("../../guest/reset.sh"),
        include_str!("../../guest/usbfs-storage-after.sh")
    );
    let modules = [storage::MODULES, &["xhci_pci"]].concat();
    let report = lab
        .boot(&MachineBoot {
            script,
            modules: &modules,
            variables: &[("SUM", disk::sha256(&image)?)],
            hardware: [medium(&image).into(), xhci(&[STICK])].concat(),
            ..MachineBoot::default()
        })?
        .finish()?;
    let by = |controller: &str| {
        report.output.lines().filter(|l| l.contains("reset SuperSpeed") && l.contains(controller)).count()
    };
    let (far, near) = (by("vhci_hcd"), by("xhci_hcd"));
    expect(far >= 3 && near >= far, || format!("{far} resets asked for, {near} made:\n{}", report.output))?;
    Ok(format!("{far} resets asked for, {near} made"))
}

fn killed(lab: &CaseEnvironment) -> Result<String> {
    lab.farbus()?;
    let image = lab.scratch("disk");
    disk::noise(&image, 16 << 20)?;
    let modules = [storage::MODULES, &["xhci_pci"]].concat();
    let report = lab
        .boot(&MachineBoot {
            script: concat!(include_str!("../../guest/usbfs-storage.sh"), include_str!("../../guest/usbfs-killed.sh")),
            modules: &modules,
            hardware: [medium(&image).into(), xhci(&[STICK])].concat(),
            ..MachineBoot::default()
        })?
        .finish()?;
    Ok(storage::note(&report.output))
}

fn unplug(lab: &CaseEnvironment, client: AttachClient) -> Result<String> {
    const READ_BYTES: usize = 16 * (128 << 10);
    lab.farbus()?;
    let image = lab.scratch("disk");
    disk::noise(&image, 32 << 20)?;
    let head = lab.scratch("head");
    let bytes = std::fs::read(&image).map_err(RigError::io("read the image"))?;
    std::fs::write(&head, &bytes[..READ_BYTES]).map_err(RigError::io("write the image's beginning"))?;
    let sum = tool::text(Command::new("sh").arg("-c").arg(format!("sha256sum <{}", head.display())))?;
    let modules = [storage::MODULES, &["xhci_pci"]].concat();
    let mut guest = lab.boot(&MachineBoot {
        script: include_str!("../../guest/usbfs-unplug.sh"),
        modules: &modules,
        client,
        variables: &[("SUM", sum.trim().to_owned())],
        hardware: [medium(&image).into(), xhci(&[STICK])].concat(),
        ..MachineBoot::default()
    })?;
    guest.await_word("reading")?;
    std::thread::sleep(Duration::from_millis(200));
    guest.command("device_del stick")?;
    let pulled = Instant::now();
    guest.await_word("pulled")?;
    let gone = pulled.elapsed();
    guest.command(&format!("device_add {STICK}"))?;
    guest.tell("plugged")?;
    guest.finish()?;
    Ok(format!("gone everywhere after {} ms", gone.as_millis()))
}

/// Each of the boards becomes another device so many times.
fn in_port(lab: &CaseEnvironment, changes: usize) -> Result<String> {
    lab.farbus()?;
    let port = free_port()?;
    let chardev = format!("socket,id=far,host=127.0.0.1,port={port},reconnect=1");
    let hardware = [vec!["-chardev".to_owned(), chardev], xhci(&["usb-redir,chardev=far,bus=hc.0"])].concat();
    let variables = [("GAPS", gaps(changes).join(" ")), ("A", "0525:a4a0".to_owned()), ("B", "1209:0002".to_owned())];
    let mut guest = lab.boot(&MachineBoot {
        script: include_str!("../../guest/usbfs-in-port.sh"),
        modules: &["virtio_mmio", "virtio_net", "xhci_pci", "dummy_hcd", "usb_f_ss_lb", "vhci_hcd", "fuse"],
        variables: &variables,
        hardware,
        patience: Duration::from_secs(1800),
        ..MachineBoot::default()
    })?;
    guest.await_word("lent")?;
    guest.command(&format!("hostfwd_add net tcp:127.0.0.1:{port}-:4000"))?;
    guest.tell("connected")?;
    Ok(storage::note(&guest.finish()?.output))
}

/// For how long a board is away each time, seconds: 0 to 5, most of them short, the same in each run.
fn gaps(changes: usize) -> Vec<String> {
    let mut random: u64 = 0x5eed;
    let mut below = |bound: u64| {
        // Knuth's MMIX generator; its upper bits are the good ones.
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % bound
    };
    let gap_ms = |at: usize, below: &mut dyn FnMut(u64) -> u64| match at % 50 {
        0 => 5000,
        1 | 2 => 1000 + below(2000),
        3..=9 => 300 + below(700),
        10..=29 => 0,
        _ => below(300),
    };
    let mut all: Vec<u64> = (0..changes).map(|at| gap_ms(at, &mut below)).collect();
    for at in (1..all.len()).rev() {
        all.swap(at, below(at as u64 + 1) as usize);
    }
    all.iter().map(|ms| format!("{}.{:03}", ms / 1000, ms % 1000)).collect()
}
