//! Tests that the systemd unit is one that this machine's systemd understands.

use std::path::Path;
use std::process::Command;

#[test]
fn systemd_understands_every_line_of_the_units() {
    let folder = std::env::temp_dir().join(format!("xtask-units-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for name in ["farbus.service", "farbus-confined.service"] {
        let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/systemd").join(name);
        let text = std::fs::read_to_string(unit).unwrap();
        assert!(!text.lines().any(|line| line == "Type=notify-reload"), "systemd 252 ignores notify-reload");
        let copy = folder.join(name);
        // Verification wants the program and the user to be there; which they are says nothing of the unit.
        let text = text.replace("/usr/bin/farbus", "/bin/true").replace("=farbus\n", "=root\n");
        std::fs::write(&copy, text).unwrap();
        match Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&copy).output() {
            Ok(output) => {
                let printed = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success() && printed.is_empty(), "{name}: {printed}");
            }
            Err(_) => eprintln!("SKIPPED: no systemd-analyze here"),
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

/// `systemd-analyze security` rates what a service may still do: 0 is nothing, 10 everything.
#[test]
fn confined_unit_is_hardly_exposed() {
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/systemd/farbus-confined.service");
    let rated = Command::new("systemd-analyze")
        .args(["security", "--offline=yes", "--threshold=30", "--no-pager"])
        .arg(&unit)
        .output();
    match rated {
        Ok(output) => {
            let printed = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && printed.contains("farbus-confined.service"), "{printed}");
        }
        Err(_) => eprintln!("SKIPPED: no systemd-analyze here"),
    }
}
