//! Reads recordings with Wireshark's `tshark`.

use std::io::Write as _;
use std::path::Path;
use std::process::Command;

/// The values of these fields, a row for each packet that passes the filter. `None` without tshark, where that is
/// permitted.
pub fn fields(recording: &Path, filter: &str, fields: &[&str]) -> Option<Vec<String>> {
    if !Command::new("tshark").arg("--version").output().is_ok_and(|output| output.status.success()) {
        let must = std::env::var_os("FARBUS_REQUIRE_RIG").is_some_and(|value| value == "1");
        assert!(!must, "tshark is missing: install the package tshark");
        // The test harness shows what macros print of failed tests only.
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED: tshark is missing; install the package tshark to have recordings read by Wireshark"
        );
        return None;
    }
    let mut command = Command::new("tshark");
    command.arg("-r").arg(recording).args(["-Y", filter, "-T", "fields", "-E", "separator=/s"]);
    command.args(["-E", "occurrence=a", "-E", "aggregator=,"]);
    fields.iter().for_each(|field| _ = command.args(["-e", field]));
    let output = command.output().expect("tshark was here just now");
    assert!(output.status.success(), "tshark: {}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).expect("tshark prints text").lines().map(str::to_owned).collect())
}
