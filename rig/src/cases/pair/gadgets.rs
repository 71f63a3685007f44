//! Devices that a Linux kernel makes (configfs gadgets), each plugged into the same machine by `dummy_hcd`.

use super::bench::DevicePairBench;
use crate::cases::case::{RigCase, expect};
use crate::cases::keyboard::{InputEvent, read_back};
use crate::cases::testusb;
use crate::lab::{AttachClient, CaseEnvironment, MachineBoot};
use crate::machine::RunningMachine;
use crate::{Result, RigError};
use std::cell::RefCell;

pub(super) const CASES: &[RigCase] = &[RigCase {
    name: "pair-gadgets",
    purpose: "seven of Linux's gadgets on dummy_hcd shared from one guest and used in another: disk, ACM serial, NCM network, HID \
              keyboard, printer, MIDI, source/sink under testusb",
    run: gadgets,
}];

/// In the order in which they are shared.
const NAMES: [&str; 7] = ["disk", "acm", "ncm", "hid", "printer", "midi", "zero"];

const EXPORTER: &str = concat!(
    include_str!("../../../guest/pair/common.sh"),
    include_str!("../../../guest/pair/exporter.sh"),
    include_str!("../../../guest/pair/gadgets.sh"),
    include_str!("../../../guest/pair/serve.sh")
);

/// The functions, and the drivers that are bound before the devices are shared. The script loads `dummy_hcd`, with
/// seven ports.
const EXPORTER_MODULES: &[&str] = &[
    "virtio_mmio",
    "virtio_net",
    "usb_f_mass_storage",
    "usb_f_acm",
    "usb_f_ncm",
    "usb_f_hid",
    "usb_f_printer",
    "usb_f_midi",
    "usb_f_ss_lb",
    "usb_storage",
    "sd_mod",
    "loop",
    "crc32c_generic",
    "ext4",
    "cdc_acm",
    "cdc_ncm",
    "usbhid",
    "hid_generic",
    "evdev",
    "usblp",
    "snd_usb_audio",
    "usbtest",
];

/// Keys by their HID usage, octal for the script's `printf`, and their characters.
const KEYS: [(&str, char); 6] = [("11", 'f'), ("4", 'a'), ("25", 'r'), ("5", 'b'), ("30", 'u'), ("26", 's')];

fn gadgets(lab: &CaseEnvironment) -> Result<String> {
    let exporter = MachineBoot { script: EXPORTER, modules: EXPORTER_MODULES, ..MachineBoot::default() };
    let mut bench = DevicePairBench::set_up(lab, exporter, AttachClient::Farbus, &["amidi"], "make_gadgets;", &NAMES)?;
    bench.simple("disk", "use_disk usb-storage");
    if lab.tries("disk") {
        bench.step("disk file", |exporter, _| {
            let files = exporter.ask("check_disk")?;
            Ok(format!("{} files in the file behind it", files.trim()))
        });
    }
    let answers = |words: &'static str| {
        move |exporter: &mut RunningMachine, _: &mut RunningMachine| exporter.ask(words).map(drop)
    };
    let by_itself = |_: &str| Ok(String::new());
    bench.device("acm", "use_serial cdc_acm", answers("answer_serial"), by_itself);
    bench.device("ncm", "use_net 10.0.5.2 10.0.5.1", answers("answer_pings"), by_itself);
    bench.device(
        "hid",
        "use_input",
        |exporter, importer| {
            importer.await_word("ready")?;
            let codes: Vec<&str> = KEYS.iter().map(|(code, _)| *code).collect();
            exporter.ask(&format!("press {}", codes.join(" ")))?;
            importer.tell("played")
        },
        judge_keys,
    );
    let page = RefCell::new(String::new());
    bench.device(
        "printer",
        "use_printer",
        |exporter, importer| {
            importer.await_word("ready")?;
            exporter.begin("receive_page")?;
            exporter.await_word("ready")?;
            importer.tell("print")?;
            importer.await_word("printed")?;
            exporter.tell("printed")?;
            *page.borrow_mut() = exporter.outcome()?;
            importer.tell("done")
        },
        |printed| {
            let (sent, came) = (checksum(printed)?, checksum(&page.borrow())?);
            expect(sent == came, || format!("the page that came out is another: {sent} sent, {came} came"))?;
            Ok("the page came out whole".into())
        },
    );
    bench.device(
        "midi",
        "use_midi",
        |exporter, importer| {
            importer.await_word("ready")?;
            exporter.ask("answer_midi 15")?;
            importer.tell("play")
        },
        by_itself,
    );
    bench.device(
        "zero",
        "use_tests",
        |_, _| Ok(()),
        |printed| {
            let passed = testusb::passed(printed);
            // As `kernel-testusb`: the gadget and its controller have neither isochronous nor interrupt endpoints.
            expect((0..=14).chain(17..=21).all(|test| passed.contains(&test)), || {
                format!("only {passed:?} passed:\n{printed}")
            })?;
            Ok(format!("{} tests", passed.len()))
        },
    );
    bench.verdict()
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

fn checksum(printed: &str) -> Result<String> {
    let line = printed.lines().find_map(|line| line.strip_prefix("sha256: "));
    line.map(str::to_owned).ok_or_else(|| RigError::Expectation(format!("no checksum in what was said:\n{printed}")))
}
