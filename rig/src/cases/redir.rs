//! A device on a virtual machine's own controller: QEMU's `usb-redir`, connected to `farbus attach --via redir` on the
//! host.

use super::case::{RigCase, expect, free_port};
use super::exporters::past_own_oopses;
use super::pair::answer_in_capitals;
use super::usbfs::xhci;
use super::{keyboard, storage, testusb};
use crate::farbus::{AttachProcess, ShareProcess};
use crate::lab::{AttachClient, CaseEnvironment, MachineBoot};
use crate::machine::RunningMachine;
use crate::{Result, disk};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

pub(super) const CASES: &[RigCase] = &[
    RigCase {
        name: "redir-storage",
        purpose: "QEMU plugs the disk into a guest that knows no USB/IP: usb-storage binds, ext4 trees check out both ways, eject; detached, it is gone",
        run: tree,
    },
    RigCase {
        name: "redir-keyboard",
        purpose: "what `farbus type` types arrives at /dev/input of such a guest, key by key, and no key stays down",
        run: typing,
    },
    RigCase {
        name: "redir-zero",
        purpose: "29 of the 30 tests of testusb pass on `zero` in such a guest: unlink, interrupt and isochronous both ways among them",
        run: source_and_sink,
    },
    RigCase {
        name: "redir-lost-guest",
        purpose: "a guest loses power in mid-read: the next one on the same socket has the disk, whole, and no answer to anybody else",
        run: lost_guest,
    },
    RigCase {
        name: "redir-lost-server",
        purpose: "the exporter dies in mid-transfer: the disk leaves the guest, and `farbus attach` says why",
        run: lost_server,
    },
    RigCase {
        name: "redir-migrate",
        purpose: "a guest under load migrates live from one QEMU to another and back, --times: same device number, no reset, no error, trees check out",
        run: migrate,
    },
    RigCase {
        name: "redir-twin",
        purpose: "a lent serial adapter is swapped for one of the importer and back: same device number, silent log, bytes go on; the twin is pulled: it is gone",
        run: twin,
    },
    RigCase {
        name: "redir-stub",
        purpose: "a keyboard of the kernel's own exporter, on plain USB/IP, in such a guest: its interrupt requests state their interval, and each key arrives",
        run: stub,
    },
];

/// The modules for a disk on the guest's own controller.
const DISK_MODULES: &[&str] = &["usb_storage", "sd_mod", "crc32c_generic", "ext4"];

/// A machine with a controller, with the device that `farbus attach` offers at its socket.
fn plugged_in(
    lab: &CaseEnvironment,
    share: &ShareProcess,
    device: &str,
    boot: &MachineBoot,
) -> Result<(AttachProcess, RunningMachine)> {
    let socket = lab.scratch("guest.sock");
    let attached = share.lend(device, &socket, &lab.log("attach.log"))?;
    Ok((attached, plug_into(lab, &socket, boot)?))
}

/// A machine with a controller, with the device at the socket.
fn plug_into(lab: &CaseEnvironment, socket: &Path, boot: &MachineBoot) -> Result<RunningMachine> {
    let chardev = ["-chardev".to_owned(), format!("socket,id=far,path={}", socket.display())];
    let hardware = [chardev.to_vec(), xhci(&["usb-redir,chardev=far,bus=hc.0"]), boot.hardware.clone()].concat();
    let modules = [&["virtio_mmio", "virtio_net", "xhci_pci"], boot.modules].concat();
    lab.boot(&MachineBoot {
        script: boot.script,
        modules: &modules,
        client: AttachClient::Redir,
        patience: boot.patience,
        variables: boot.variables,
        role: boot.role,
        hardware,
        ..MachineBoot::default()
    })
}

fn tree(lab: &CaseEnvironment) -> Result<String> {
    let image = storage::image_with_tree(lab)?;
    let mut share = lab.share(&[format!("disk:{}", image.display())])?;
    let (attached, mut guest) = plugged_in(
        lab,
        &share,
        "disk",
        &MachineBoot {
            script: include_str!("../../guest/storage.sh"),
            modules: DISK_MODULES,
            ..MachineBoot::default()
        },
    )?;
    guest.await_word("detach")?;
    attached.detach()?;
    let report = guest.finish()?;
    share.still_runs()?;
    storage::judge_guests_tree(lab, &image)?;
    Ok(storage::note(&report.output))
}

fn lost_guest(lab: &CaseEnvironment) -> Result<String> {
    let image = lab.scratch("disk");
    disk::noise(&image, 32 << 20)?;
    let mut share = lab.share(&[format!("disk:{}", image.display())])?;
    let socket = lab.scratch("guest.sock");
    let attached = share.lend("disk", &socket, &lab.log("attach.log"))?;
    let boot = |script| {
        let variables = &[("SUM", disk::sha256(&image)?)];
        plug_into(lab, &socket, &MachineBoot { script, modules: DISK_MODULES, variables, ..MachineBoot::default() })
    };
    let mut guest = boot(include_str!("../../guest/lost-client.sh"))?;
    guest.await_word("reading")?;
    std::thread::sleep(Duration::from_millis(200));
    guest.cut_power();
    let mut guest = boot(include_str!("../../guest/lost-client-after.sh"))?;
    guest.await_word("detach")?;
    attached.detach()?;
    guest.finish()?;
    share.still_runs()?;
    Ok(String::new())
}

fn lost_server(lab: &CaseEnvironment) -> Result<String> {
    let image = lab.scratch("disk");
    disk::noise(&image, 32 << 20)?;
    let mut share = lab.share(&[format!("disk:{}", image.display())])?;
    let boot = MachineBoot {
        script: include_str!("../../guest/lost-server.sh"),
        modules: DISK_MODULES,
        ..MachineBoot::default()
    };
    let (attached, mut guest) = plugged_in(lab, &share, "disk", &boot)?;
    guest.await_word("reading")?;
    std::thread::sleep(Duration::from_millis(200));
    share.cut();
    let cut = Instant::now();
    guest.await_word("gone")?;
    let gone = cut.elapsed();
    let status = attached.end()?;
    expect(status.code() == Some(5), || format!("farbus attach ended with {status}"))?;
    guest.finish()?;
    Ok(format!("gone from the guest after {} ms", gone.as_millis()))
}

/// One machine has two adapters, shares one and lends it to another machine, whose QEMU connects to it.
fn twin(lab: &CaseEnvironment) -> Result<String> {
    lab.farbus()?;
    let [first, second] = ["first", "second"].map(|name| lab.scratch(name));
    let heard = [answer_in_capitals(&first)?, answer_in_capitals(&second)?];
    let mut hardware = xhci(&[]);
    for (name, socket) in [("first", &first), ("second", &second)] {
        hardware.extend(["-chardev".to_owned(), format!("socket,id={name},path={}", socket.display())]);
        let device = format!("usb-serial,bus=hc.0,chardev={name},serial=rig-{name},id=serial-{name}");
        hardware.extend(["-device".to_owned(), device]);
    }
    let modules = &["virtio_mmio", "virtio_net", "xhci_pci", "ftdi_sio"];
    let patience = Duration::from_secs(400);
    let mut importer = lab.boot(&MachineBoot {
        script: include_str!("../../guest/redir-twin.sh"),
        modules,
        client: AttachClient::Farbus,
        patience,
        hardware,
        role: "importer",
        ..MachineBoot::default()
    })?;
    importer.await_word("lent")?;
    let port = free_port()?;
    importer.command(&format!("hostfwd_add net tcp:127.0.0.1:{port}-:4000"))?;
    let mut hardware = xhci(&[]);
    hardware.extend(["-chardev".to_owned(), format!("socket,id=far,host=127.0.0.1,port={port}")]);
    hardware.extend(["-device".to_owned(), "usb-redir,id=far,chardev=far,bus=hc.0".to_owned()]);
    let mut guest = lab.boot(&MachineBoot {
        script: include_str!("../../guest/redir-twin-guest.sh"),
        modules,
        patience,
        hardware,
        role: "guest",
        ..MachineBoot::default()
    })?;
    for (ready, change, changed) in [("plugged", "swap", "swapped"), ("next", "back", "restored")] {
        guest.await_word(ready)?;
        importer.tell(change)?;
        importer.await_word(changed)?;
        guest.tell(changed)?;
    }
    guest.await_word("last")?;
    importer.tell("again")?;
    importer.await_word("unplug")?;
    importer.command("device_del serial-second")?;
    importer.await_word("ended")?;
    let report = guest.finish()?;
    importer.finish()?;
    let [first, second] = heard.each_ref().map(|count| count.load(Ordering::Relaxed));
    expect(first > 1000 && second > 1000, || format!("{first} bytes came by the first, {second} by the second"))?;
    Ok(storage::note(&report.output))
}

fn migrate(lab: &CaseEnvironment) -> Result<String> {
    let image = storage::image_with_tree(lab)?;
    let mut share = lab.share(&[format!("disk:{}", image.display())])?;
    let socket = lab.scratch("guest.sock");
    let attached = share.lend("disk", &socket, &lab.log("attach.log"))?;
    let moves = 2 * lab.times();
    let incoming = format!("unix:{}", lab.scratch("incoming").display());
    let boot = |role: &str, incoming: Option<&str>| {
        let arguments = incoming.map(|at| ["-incoming".to_owned(), at.to_owned()]);
        let script = include_str!("../../guest/redir-migrate.sh");
        let hardware = arguments.into_iter().flatten().collect();
        let patience = Duration::from_secs(180 + 30 * u64::from(moves));
        let boot = MachineBoot { script, modules: DISK_MODULES, role, hardware, patience, ..MachineBoot::default() };
        plug_into(lab, &socket, &boot)
    };
    let mut guest = boot("0", None)?;
    guest.await_word("ready")?;
    let mut held_ms = Vec::new();
    for position in 1..=moves {
        std::thread::sleep(Duration::from_secs(2));
        // It connects at once, and waits until it gets the device.
        let next = boot(&position.to_string(), Some(&incoming))?;
        std::thread::sleep(Duration::from_secs(1));
        let start = Instant::now();
        share.hold("disk")?;
        guest.migrate(&incoming, Duration::from_secs(60))?;
        guest.cut_power();
        held_ms.push(start.elapsed().as_millis().to_string());
        guest = next;
    }
    guest.tell_wherever("enough")?;
    let passes = guest.await_word("done")?;
    guest.await_word("detach")?;
    attached.detach()?;
    guest.finish()?;
    share.still_runs()?;
    storage::judge_guests_tree(lab, &image)?;
    Ok(format!("{passes} passes of the load; held for {} ms", held_ms.join(", ")))
}

fn typing(lab: &CaseEnvironment) -> Result<String> {
    let share = lab.share(&["keyboard".into()])?;
    let (attached, mut guest) = plugged_in(
        lab,
        &share,
        "keyboard",
        &MachineBoot {
            script: include_str!("../../guest/keyboard.sh"),
            modules: &["usbhid", "hid_generic", "evdev"],
            ..MachineBoot::default()
        },
    )?;
    guest.await_word("ready")?;
    share.type_text("keyboard", keyboard::TEXT)?;
    guest.tell("typed")?;
    guest.await_word("detach")?;
    attached.detach()?;
    keyboard::judge(&guest.finish()?.output)
}

/// What is typed at the keyboard of the machine with the kernel's exporter: keys that QEMU's monitor knows by name.
const TYPED_AT_STUB: &str = "the quick brown fox 0123456789";

fn stub(lab: &CaseEnvironment) -> Result<String> {
    past_own_oopses(|| stub_once(lab))
}

/// The kernel's exporter does not survive an unlink: the keyboard is read until its machine's power is cut.
fn stub_once(lab: &CaseEnvironment) -> Result<String> {
    let farbus = lab.farbus()?;
    let mut exporter = lab.boot(&MachineBoot {
        script: include_str!("../../guest/redir-stub.sh"),
        modules: &["virtio_mmio", "virtio_net", "xhci_pci", "usbhid", "hid_generic", "usbip_host"],
        hardware: xhci(&["usb-kbd,bus=hc.0"]),
        role: "exporter",
        ..MachineBoot::default()
    })?;
    let bus_id = exporter.await_word("offered")?;
    let port = free_port()?;
    exporter.command(&format!("hostfwd_add net tcp:127.0.0.1:{port}-:3240"))?;
    let socket = lab.scratch("guest.sock");
    let attached = farbus.lend(&format!("127.0.0.1:{port}/{bus_id}"), &socket, &lab.log("attach.log"))?;
    let mut guest = plug_into(
        lab,
        &socket,
        &MachineBoot {
            script: include_str!("../../guest/keyboard.sh"),
            modules: &["usbhid", "hid_generic", "evdev"],
            role: "guest",
            ..MachineBoot::default()
        },
    )?;
    guest.await_word("ready")?;
    for key in TYPED_AT_STUB.chars() {
        let name = if key == ' ' { "spc".to_owned() } else { key.to_string() };
        exporter.command(&format!("sendkey {name} 40"))?;
        std::thread::sleep(Duration::from_millis(80));
    }
    guest.tell("typed")?;
    guest.await_word("detach")?;
    exporter.cut_power();
    attached.end()?;
    keyboard::judge_text(&guest.finish()?.output, TYPED_AT_STUB)
}

fn source_and_sink(lab: &CaseEnvironment) -> Result<String> {
    let mut share = lab.share(&["zero".into()])?;
    let (attached, mut guest) = plugged_in(
        lab,
        &share,
        "zero",
        &MachineBoot {
            script: include_str!("../../guest/redir-zero.sh"),
            modules: &["usbtest"],
            patience: Duration::from_secs(240),
            ..MachineBoot::default()
        },
    )?;
    let seconds = guest.await_word("pass")?;
    guest.await_word("detach")?;
    attached.detach()?;
    let passed = testusb::passed(&guest.finish()?.output);
    share.still_runs()?;
    // Not 24: it waits for ever for transfers that QEMU's controller has lost, with any device.
    expect((0..30).all(|test| test == 24 || passed.contains(&test)), || format!("only {passed:?} passed"))?;
    Ok(format!("{} tests in {seconds} s", passed.len()))
}
