//! Tools that flash and debug devices, unmodified and as an ordinary user, inside `farbus run`.

use std::fs;
use std::path::PathBuf;

use super::harness::{Harness, Outcome, has, has_program};
use super::run::{Connection, Lab, can_run, ordinary, wait_until_free};

/// Whether programs can run inside `farbus run` here, and this one is installed.
fn can_run_tool(name: &str) -> bool {
    can_run() && has(name, has_program(name))
}

/// A folder in which the tools may write: that of their user.
fn tools_folder(harness: &Harness) -> PathBuf {
    let folder = ordinary(harness, &[]).get_current_dir().map(PathBuf::from);
    folder.unwrap_or_else(|| harness.path("home"))
}

/// Bytes that do not repeat where a block ends.
fn firmware(bytes: u32) -> Vec<u8> {
    (0..bytes).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

fn assert_says(outcome: &Outcome, code: i32, parts: &[&str]) {
    assert_eq!(outcome.code, Some(code), "{outcome:?}");
    for part in parts {
        assert!(outcome.stdout.contains(part) || outcome.stderr.contains(part), "{part}: {outcome:?}");
    }
}

#[test]
fn dfu_util_reads_back_the_firmware_that_it_wrote() {
    dfu_util_works(Connection::Plain);
}

#[test]
fn dfu_util_reads_back_the_firmware_that_it_wrote_on_a_paired_host() {
    dfu_util_works(Connection::Paired);
}

fn dfu_util_works(connection: Connection) {
    if !can_run_tool("dfu-util") {
        return;
    }
    let harness = Harness::new();
    let lab = Lab::new(&harness, connection, &["dfu"]);
    let listed = lab.run("dfu", &["dfu-util", "-l"]);
    assert_says(&listed, 0, &["Found DFU: [1209:0002]", "name=\"firmware\"", "path=\"1-1\""]);

    let folder = tools_folder(&harness);
    let (first, second) = (firmware(100_000), firmware(4096));
    for (name, bytes) in [("first", &first), ("second", &second), ("large", &firmware((1 << 20) + 1))] {
        fs::write(folder.join(name), bytes).unwrap();
    }
    for (name, bytes) in [("first", &first), ("second", &second)] {
        let written = lab.run("dfu", &["dfu-util", "-D", name]);
        assert_says(&written, 0, &["Download done.", "Done!"]);
        let back = format!("{name}-back");
        assert_says(&lab.run("dfu", &["dfu-util", "-U", &back]), 0, &["Upload done."]);
        assert!(&fs::read(folder.join(&back)).unwrap() == bytes, "{name} is read as it was written");
    }

    // More than it holds: it refuses, the tool says so, and the firmware stays.
    let refused = lab.run("dfu", &["dfu-util", "-D", "large"]);
    assert_ne!(refused.code, Some(0), "{refused:?}");
    let back = lab.run("dfu", &["dfu-util", "-U", "kept"]);
    assert_says(&back, 0, &[]);
    assert!(fs::read(folder.join("kept")).unwrap() == second);
    wait_until_free(&harness, &lab.share);
}

#[test]
fn fastboot_flashes_a_partition_and_is_refused_one_that_does_not_exist() {
    fastboot_flashes(Connection::Plain);
}

#[test]
fn fastboot_flashes_a_partition_and_is_refused_one_that_does_not_exist_on_a_paired_host() {
    fastboot_flashes(Connection::Paired);
}

fn fastboot_flashes(connection: Connection) {
    if !can_run_tool("fastboot") {
        return;
    }
    let harness = Harness::new();
    let lab = Lab::new(&harness, connection, &["fastboot"]);
    let fastboot = |arguments: &[&str]| lab.run("fastboot", &[&["fastboot"], arguments].concat());
    assert_says(&fastboot(&["devices"]), 0, &["0\tfastboot"]);
    assert_says(&fastboot(&["-s", "0", "getvar", "serialno"]), 0, &["serialno: 0"]);
    assert_says(&fastboot(&["getvar", "product"]), 0, &["product: farbus"]);
    assert_says(&fastboot(&["getvar", "all"]), 0, &["max-download-size: 0x1000000", "partition-type:data: raw"]);

    let folder = tools_folder(&harness);
    let image = firmware(3_000_001);
    fs::write(folder.join("image"), &image).unwrap();
    assert_says(&fastboot(&["flash", "data", "image"]), 0, &["Finished."]);
    // What is staged is forgotten when a run gives the device back: one run does both.
    let script = "fastboot oem read data && fastboot get_staged back";
    assert_says(&lab.run("fastboot", &["sh", "-c", script]), 0, &[]);
    assert!(fs::read(folder.join("back")).unwrap() == image, "it is read as it was written");
    let unknown = fastboot(&["flash", "tape", "image"]);
    assert_says(&unknown, 1, &["no such partition: tape"]);
    assert_says(&fastboot(&["erase", "data"]), 0, &["OKAY"]);
    wait_until_free(&harness, &lab.share);
}

/// What OpenOCD has to be told: the probe's interface, and which target is behind it.
const BOARD: &str = "\
adapter driver cmsis-dap
cmsis_dap_backend usb_bulk
transport select swd
adapter speed 4000
swd newdap chip cpu -expected-id 0x2ba01477
dap create chip.dap -chain-position chip.cpu
target create chip.cpu cortex_m -dap chip.dap
gdb_port disabled
tcl_port disabled
telnet_port disabled
init
";

#[test]
fn openocd_halts_a_target_and_reads_back_the_memory_that_it_wrote() {
    openocd_debugs(Connection::Plain);
}

#[test]
fn openocd_halts_a_target_and_reads_back_the_memory_that_it_wrote_on_a_paired_host() {
    openocd_debugs(Connection::Paired);
}

fn openocd_debugs(connection: Connection) {
    if !can_run_tool("openocd") {
        return;
    }
    let harness = Harness::new();
    let lab = Lab::new(&harness, connection, &["cmsis-dap"]);
    let folder = tools_folder(&harness);
    fs::write(folder.join("board.cfg"), BOARD).unwrap();
    let openocd = |commands: &[&str]| {
        let commands = commands.iter().chain(&["shutdown"]).flat_map(|command| ["-c", command]);
        let arguments: Vec<&str> = ["openocd", "-f", "board.cfg"].into_iter().chain(commands).collect();
        lab.run("cmsis-dap", &arguments)
    };
    let found = openocd(&["dap info"]);
    assert_says(&found, 0, &["Cortex-M4 r0p1 processor detected", "CMSIS-DAPv2", "Cortex-M4 SCS", "End of ROM table"]);

    let image = firmware(60_000);
    fs::write(folder.join("image"), &image).unwrap();
    let moved = openocd(&[
        "halt",
        "mww 0 0x20008000",
        "mww 4 0x00000101",
        "load_image image 0x20000000 bin",
        "verify_image image 0x20000000 bin",
        "dump_image back 0x20000000 60000",
        "reset halt",
        "step",
        "bp 0x104 2 hw",
    ]);
    let parts =
        ["verified 60000 bytes", "pc: 0x00000100 msp: 0x20008000", "single-step", "breakpoint set at 0x00000104"];
    assert_says(&moved, 0, &parts);
    assert!(fs::read(folder.join("back")).unwrap() == image, "it is read as it was written");
    assert_says(&openocd(&["mdw 0x40000000"]), 1, &["Failed to read memory at 0x40000000"]);
    wait_until_free(&harness, &lab.share);
}

#[test]
fn pyocd_halts_a_target_and_reads_back_the_memory_that_it_wrote() {
    pyocd_debugs(Connection::Plain);
}

#[test]
fn pyocd_halts_a_target_and_reads_back_the_memory_that_it_wrote_on_a_paired_host() {
    pyocd_debugs(Connection::Paired);
}

fn pyocd_debugs(connection: Connection) {
    if !can_run_tool("pyocd-tool") {
        return;
    }
    let harness = Harness::new();
    let lab = Lab::new(&harness, connection, &["cmsis-dap"]);
    let pyocd = |arguments: &[&str]| lab.run("cmsis-dap", &[&["pyocd-tool"], arguments].concat());
    assert_says(&pyocd(&["list"]), 0, &["farbus CMSIS-DAP probe"]);
    let of_target = |arguments: &[&str]| pyocd(&[&["-H", "-t", "cortex_m"], arguments].concat());
    assert_says(&of_target(&["write32", "0x20000000", "0x12345678", "0xfedcba98"]), 0, &[]);
    assert_says(&of_target(&["read32", "0x20000000", "8"]), 0, &["12345678 fedcba98"]);
    assert_says(&of_target(&["status"]), 0, &["Halted"]);
    assert_says(&of_target(&["reg"]), 0, &["xpsr: 0x01000000"]);
    wait_until_free(&harness, &lab.share);
}
