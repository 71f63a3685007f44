//! Implementations that share no code with farbus or Linux: a client and a server in Python, a server in Rust.

use super::case::{RigCase, expect};
use super::keyboard::{InputEvent, read_back};
use super::storage;
use crate::lab::{AttachClient, CaseEnvironment, MachineBoot};
use crate::peers::InteropServer;
use crate::peers::crate_server::{self, BUS_ID};
use crate::peers::python::{self, PythonPackage};
use crate::{Result, RigError, disk, tool};
use serde_json::{Value, json};
use std::io::{Seek as _, SeekFrom, Write as _};
use std::process::Command;

pub(super) const CASES: &[RigCase] = &[
    RigCase {
        name: "python-disk",
        purpose: "an independent client's own Bulk-Only driver reads a whole disk, checksummed, writes to it, and recovers from a refused read",
        run: client_disk,
    },
    RigCase {
        name: "python-zero",
        purpose: "an independent client moves data both ways over bulk, interrupt and isochronous endpoints",
        run: client_zero,
    },
    RigCase {
        name: "python-keyboard",
        purpose: "an independent client's own HID driver reads what `farbus type` types, key by key",
        run: client_keyboard,
    },
    RigCase {
        name: "python-server-fuse",
        purpose: "a disk of an independent exporter as a file: listed, read whole, checksummed, written; refusals told apart",
        run: server_as_file,
    },
    RigCase {
        name: "python-server-farbus",
        purpose: "a disk of an independent exporter in a kernel: ext4 trees check out both ways",
        run: server_through_kernel,
    },
    RigCase {
        name: "crate-keyboard-farbus",
        purpose: "the crate's own keyboard: listed, usbhid binds, keys arrive at /dev/input",
        run: crate_keyboard,
    },
    RigCase {
        name: "crate-serial-farbus",
        purpose: "the crate's own serial port: listed, cdc_acm binds, text both ways",
        run: crate_serial,
    },
];

const CLIENT: &str = include_str!("../../peers/client.py");
const SERVER: &str = include_str!("../../peers/server.py");

fn python(lab: &CaseEnvironment) -> Result<PythonPackage> {
    let python = PythonPackage::ready(lab.cache())?;
    lab.meet(python::NAME, python.version);
    Ok(python)
}

/// The last line of the client in Python.
fn answer(printed: &str) -> Result<Value> {
    let last = printed.lines().last().unwrap_or_default();
    serde_json::from_str(last)
        .map_err(|error| RigError::Expectation(format!("no JSON at its end ({error}): {printed}")))
}

/// Checks what the client read of the device.
fn expect_answer(answer: &Value, expected: &Value) -> Result<()> {
    let fits = expected.as_object().is_some_and(|expected| expected.iter().all(|(key, value)| answer[key] == *value));
    expect(fits, || format!("expected {expected}, the client says {answer}"))?;
    // Two reads of one descriptor, which have to agree about its length.
    expect(answer["configuration_bytes"] == answer["declared_bytes"], || format!("descriptors are cut: {answer}"))
}

fn client_disk(lab: &CaseEnvironment) -> Result<String> {
    const BYTES: usize = 8 << 20;
    let python = python(lab)?;
    let image = lab.scratch("disk");
    disk::noise(&image, BYTES)?;
    let before = disk::sha256(&image)?;
    let mut share = lab.share(&[format!("disk:{}", image.display()), "zero".into(), "keyboard".into()])?;
    let message = tool::text(&mut python.command(CLIENT, &[&share.port().to_string(), "disk"]))?;
    expect_answer(&answer(&message)?, &json!({ "listed": 3, "inquiry": "farbus", "bytes": BYTES, "sha256": before }))?;
    share.still_runs()?;
    drop(share);
    let bytes = std::fs::read(&image).map_err(RigError::io("read the image"))?;
    let written =
        bytes[..512].iter().all(|byte| *byte == 0xa5) && bytes[BYTES - 512..].iter().all(|byte| *byte == 0x5a);
    expect(written, || "what the client wrote is not in the image".into())?;
    Ok(format!("{} MiB", BYTES >> 20))
}

fn client_zero(lab: &CaseEnvironment) -> Result<String> {
    let python = python(lab)?;
    let mut share = lab.share(&["zero".into()])?;
    let message = tool::text(&mut python.command(CLIENT, &[&share.port().to_string(), "zero"]))?;
    let moved = json!({
        "bulk in": 65536, "bulk out": 65536, "interrupt in": 64, "interrupt out": 64,
        "isochronous in": 16384, "isochronous out": 16384,
    });
    expect_answer(&answer(&message)?, &json!({ "product": "source/sink", "moved": moved }))?;
    share.still_runs()?;
    Ok(String::new())
}

fn client_keyboard(lab: &CaseEnvironment) -> Result<String> {
    // Usage ids of these keys (HID Usage Tables, page 7); Enter tells the client to end.
    const TYPED: [(char, u8); 5] = [('f', 0x09), ('a', 0x04), ('r', 0x15), ('9', 0x26), (' ', 0x2c)];
    let python = python(lab)?;
    let share = lab.share(&["keyboard".into()])?;
    let text: String = TYPED.iter().map(|(character, _)| *character).chain(['\n']).collect();
    // Typed before a client is connected: the keyboard keeps it.
    share.type_text("keyboard", &text)?;
    let message = tool::text(&mut python.command(CLIENT, &[&share.port().to_string(), "keyboard"]))?;
    let pressed: Vec<u8> = TYPED.iter().map(|(_, code)| *code).collect();
    expect_answer(&answer(&message)?, &json!({ "report_bytes": 8, "pressed": pressed }))?;
    Ok(format!("{} keys", TYPED.len()))
}

fn server(lab: &CaseEnvironment, image: &std::path::Path) -> Result<InteropServer> {
    let path = image.to_string_lossy();
    InteropServer::start(python(lab)?.command(SERVER, &[&path]), &lab.log("python.log"))
}

fn server_as_file(lab: &CaseEnvironment) -> Result<String> {
    const BYTES: usize = 8 << 20;
    const PLACE: usize = 3 << 20;
    let farbus = lab.farbus()?;
    let image = lab.scratch("disk");
    disk::noise(&image, BYTES)?;
    let server = server(lab, &image)?;
    let address = format!("127.0.0.1:{}", server.port());
    let listed = farbus.list(&address)?;
    let bus_ids: Vec<&Value> = listed.as_array().into_iter().flatten().map(|device| &device["bus_id"]).collect();
    expect(bus_ids == [&json!("1-1"), &json!("1-2")], || format!("farbus list shows {listed}"))?;
    // A device that does not exist, and one that is no disk.
    for (device, status, word) in [("1-7", 4, "gone"), ("1-2", 6, "device")] {
        let (ended, message) = farbus.attach_refused(&format!("{address}/{device}"))?;
        let fits =
            ended.code() == Some(status) && message.lines().any(|line| line.starts_with(&format!("farbus: {word}: ")));
        expect(fits, || format!("farbus attach of {device} ended with {ended}: {message}"))?;
    }
    let folder = lab.scratch("far");
    let attached = farbus.attach_file(&format!("{address}/1-1"), &folder)?;
    let file = folder.join("disk.img");
    expect(disk::sha256(&file)? == disk::sha256(&image)?, || "the file is not what the exporter has".into())?;
    let new = [0x3c; 70_000];
    std::fs::OpenOptions::new()
        .write(true)
        .open(&file)
        .and_then(|mut file| {
            file.seek(SeekFrom::Start(PLACE as u64))?;
            file.write_all(&new)?;
            file.sync_all()
        })
        .map_err(RigError::io("write through the file"))?;
    attached.detach()?;
    let bytes = std::fs::read(&image).map_err(RigError::io("read the image"))?;
    expect(bytes.len() == BYTES && bytes[PLACE..PLACE + new.len()] == new, || "what was written is not there".into())?;
    Ok(format!("{} MiB read", BYTES >> 20))
}

fn server_through_kernel(lab: &CaseEnvironment) -> Result<String> {
    lab.farbus()?;
    let image = storage::image_with_tree(lab)?;
    let server = server(lab, &image)?;
    let report = lab
        .boot(&MachineBoot {
            script: include_str!("../../guest/storage.sh"),
            modules: storage::MODULES,
            client: AttachClient::Farbus,
            port: Some(server.port()),
            // Its disk accepts an eject and keeps the medium.
            variables: &[("KEEPS_MEDIUM", "yes".into())],
            ..MachineBoot::default()
        })?
        .finish()?;
    storage::judge_guests_tree(lab, &image)?;
    Ok(storage::note(&report.output))
}

fn crate_server(lab: &CaseEnvironment, what: &str) -> Result<InteropServer> {
    lab.meet(crate_server::NAME, crate_server::version().unwrap_or("unknown"));
    let own = std::env::current_exe().map_err(RigError::io("find this program"))?;
    let mut command = Command::new(own);
    command.args(["peer", what]);
    InteropServer::start(command, &lab.log("crate.log"))
}

fn crate_keyboard(lab: &CaseEnvironment) -> Result<String> {
    // The crate's keyboard has keys for letters, digits, space and Enter.
    const TEXT: &str = "Sphinx of black quartz judge my vow 0123456789 bookkeeper AABB";
    let farbus = lab.farbus()?;
    let mut server = crate_server(lab, "keyboard")?;
    let listed = farbus.list(&format!("127.0.0.1:{}", server.port()))?;
    expect(listed[0]["bus_id"] == BUS_ID, || format!("farbus list shows {listed}"))?;
    let mut guest = lab.boot(&MachineBoot {
        script: include_str!("../../guest/keyboard.sh"),
        modules: &["virtio_mmio", "virtio_net", "vhci_hcd", "usbhid", "hid_generic", "evdev"],
        client: AttachClient::Farbus,
        port: Some(server.port()),
        variables: &[("DEVICE", BUS_ID.to_owned())],
        ..MachineBoot::default()
    })?;
    guest.await_word("ready")?;
    server.tell(TEXT)?;
    guest.tell("typed")?;
    let report = guest.finish()?;
    let events: Vec<InputEvent> = report.output.lines().filter_map(InputEvent::parse).collect();
    let (typed, still_down) = read_back(&events);
    expect(typed == TEXT && still_down.is_empty(), || format!("typed {TEXT}, arrived {typed}, {still_down:?} down"))?;
    Ok(format!("{} characters in {} events", TEXT.len(), events.len()))
}

fn crate_serial(lab: &CaseEnvironment) -> Result<String> {
    let farbus = lab.farbus()?;
    let server = crate_server(lab, "serial")?;
    let listed = farbus.list(&format!("127.0.0.1:{}", server.port()))?;
    expect(listed[0]["bus_id"] == BUS_ID, || format!("farbus list shows {listed}"))?;
    let report = lab
        .boot(&MachineBoot {
            script: include_str!("../../guest/crate-serial.sh"),
            modules: &["virtio_mmio", "virtio_net", "vhci_hcd", "cdc_acm"],
            client: AttachClient::Farbus,
            port: Some(server.port()),
            variables: &[("DEVICE", BUS_ID.to_owned())],
            ..MachineBoot::default()
        })?
        .finish()?;
    Ok(storage::note(&report.output))
}
