//! A device that is replaced by another one while it is used.

use super::bench::DevicePairBench;
use crate::cases::case::{RigCase, expect};
use crate::lab::{AttachClient, CaseEnvironment, MachineBoot};
use crate::{Result, RigError};
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

pub(super) const CASES: &[RigCase] = &[
    RigCase {
        name: "pair-twins",
        purpose: "a serial adapter is swapped for its twin while the other guest has its port open: same device number, silent log, bytes go on",
        run: twins,
    },
    RigCase {
        name: "pair-twins-importer",
        purpose: "a serial adapter that a guest has attached is swapped for one of its own and back while its port is open: same device number, silent log, bytes go on, drivers return",
        run: |lab| twins_of_importer(lab, "--via kernel"),
    },
    RigCase {
        name: "pair-twins-session",
        purpose: "the same of an adapter that is attached in a session",
        run: |lab| twins_of_importer(lab, "--via kernel --grace 20"),
    },
];

const EXPORTER: &str = concat!(
    include_str!("../../../guest/pair/common.sh"),
    include_str!("../../../guest/pair/exporter.sh"),
    include_str!("../../../guest/pair/serve.sh")
);

const EXPORTER_MODULES: &[&str] = &["virtio_mmio", "virtio_net", "xhci_pci", "ftdi_sio"];

/// A controller with these serial adapters, by their names and the sockets of their lines.
fn adapters(of: &[(&str, &Path)]) -> Vec<String> {
    let mut hardware = vec!["-device".to_owned(), "qemu-xhci,id=hc,p2=4,p3=4".to_owned()];
    for (name, socket) in of {
        hardware.extend(["-chardev".to_owned(), format!("socket,id={name},path={}", socket.display())]);
        hardware.extend(["-device".to_owned(), format!("usb-serial,bus=hc.0,chardev={name},serial=rig-{name}")]);
    }
    hardware
}

/// The importing guest swaps what it has attached with these options for an adapter of its own, and back.
fn twins_of_importer(lab: &CaseEnvironment, options: &str) -> Result<String> {
    let [first, second] = ["first", "second"].map(|name| lab.scratch(name));
    let heard = [answer_in_capitals(&first)?, answer_in_capitals(&second)?];
    let exporter = MachineBoot {
        script: EXPORTER,
        modules: EXPORTER_MODULES,
        hardware: adapters(&[("serial", &first)]),
        ..MachineBoot::default()
    };
    let importer = MachineBoot {
        client: AttachClient::Farbus,
        modules: &["xhci_pci"],
        variables: &[("ATTACH_OPTIONS", options.to_owned())],
        hardware: adapters(&[("twin", &second)]),
        ..MachineBoot::default()
    };
    let mut bench = DevicePairBench::set_up_with(lab, exporter, importer, "", &["serial"])?;
    bench.device(
        "serial",
        "use_own_twin ftdi_sio twin",
        |exporter, importer| {
            importer.await_word("twin")?;
            // It was given back while the other guest uses the twin.
            exporter.ask("is_free")?;
            importer.tell("go-on")
        },
        |_| {
            let [first, second] = heard.each_ref().map(|count| count.load(Ordering::Relaxed));
            expect(first > 2000 && second > 1000, || {
                format!("{first} bytes came by the first, {second} by the second")
            })?;
            Ok(format!("{first} bytes by the attached adapter, {second} by the importer's own"))
        },
    );
    bench.verdict()
}

/// The exporting guest swaps what it shares.
fn twins(lab: &CaseEnvironment) -> Result<String> {
    let [first, second] = ["first", "second"].map(|name| lab.scratch(name));
    let heard = [answer_in_capitals(&first)?, answer_in_capitals(&second)?];
    let hardware = adapters(&[("serial", &first), ("twin", &second)]);
    let exporter = MachineBoot { script: EXPORTER, modules: EXPORTER_MODULES, hardware, ..MachineBoot::default() };
    let mut bench =
        DevicePairBench::set_up(lab, exporter, AttachClient::Farbus, &[], "expect_twin twin;", &["serial"])?;
    bench.device(
        "serial",
        "use_twins ftdi_sio",
        |exporter, importer| {
            importer.await_word("ready")?;
            exporter.ask("swap_for 1-1 serial twin")?;
            importer.tell("swapped")
        },
        |_| {
            let [first, second] = heard.each_ref().map(|count| count.load(Ordering::Relaxed));
            expect(first > 1000 && second > 1000, || {
                format!("{first} bytes came by the first, {second} by the second")
            })?;
            Ok(format!("{first} bytes by the first adapter, {second} by the second"))
        },
    );
    bench.verdict()
}

/// Answers in capitals at the other end of a serial line, byte by byte, until the machine is gone. Returns the count of
/// bytes it has read.
pub(in crate::cases) fn answer_in_capitals(socket: &Path) -> Result<Arc<AtomicUsize>> {
    let listener = UnixListener::bind(socket).map_err(RigError::io("listen for the serial line"))?;
    let count = Arc::new(AtomicUsize::new(0));
    let heard = Arc::clone(&count);
    std::thread::spawn(move || -> std::io::Result<()> {
        let (mut line, _) = listener.accept()?;
        let mut bytes = [0; 4096];
        loop {
            let came = line.read(&mut bytes)?;
            if came == 0 {
                return Ok(());
            }
            heard.fetch_add(came, Ordering::Relaxed);
            line.write_all(&bytes[..came].to_ascii_uppercase())?;
        }
    });
    Ok(count)
}
