//! `farbus bench` is another program, found beside this one or in PATH.

use std::fs;
use std::path::Path;

use super::harness::{Harness, copy_program, write_script};

/// Writes a `farbus-bench` that prints its arguments.
fn tells_what_it_is_told(folder: &Path) {
    write_script(&folder.join("farbus-bench"), "#!/bin/sh\necho \"told: $*\"\nexit 7\n");
}

#[test]
fn bench_program_beside_farbus_or_in_path_gets_all_arguments_and_sets_exit_code() {
    let harness = Harness::new();
    let [here, elsewhere] = ["here", "elsewhere"].map(|name| {
        let folder = harness.path(name);
        fs::create_dir_all(&folder).unwrap();
        folder
    });
    let farbus = here.join("farbus");
    copy_program(Path::new(env!("CARGO_BIN_EXE_farbus")), &farbus);
    let run = |words: &[&str]| {
        let output = harness.command_of(&farbus, words).env("PATH", &elsewhere).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (code, _, message) = run(&["bench", "device"]);
    assert!(code == Some(1) && message.contains("cargo install --path bench"), "{code:?} {message}");

    tells_what_it_is_told(&elsewhere);
    let expected = format!("told: --farbus {} device links --quick --plots .\n", farbus.display());
    assert_eq!(run(&["bench", "device", "links", "--quick", "--plots", "."]), (Some(7), expected, String::new()));
    let (code, output, _) = run(&["bench", "--quick", "--farbus=/usr/bin/farbus", "deep"]);
    assert_eq!((code, output.as_str()), (Some(7), "told: --quick --farbus=/usr/bin/farbus deep\n"));
    fs::remove_file(elsewhere.join("farbus-bench")).unwrap();
    tells_what_it_is_told(&here);
    assert_eq!(run(&["bench", "list"]).0, Some(7));

    let (code, help, _) = run(&["bench", "--help"]);
    assert!(code == Some(0) && help.contains("farbus bench list") && help.contains("realtime"), "{help}");
    // clap's fish script completes options only.
    for shell in ["bash", "zsh"] {
        let (_, script, _) = run(&["completions", shell]);
        assert!(["round-trip", "block-proxy", "survey"].iter().all(|name| script.contains(name)), "{shell}");
    }
}
