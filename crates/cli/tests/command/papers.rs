//! `farbus papers` is another program, found beside this one or in PATH, or built by cargo in a tree of the sources.

use std::fs;
use std::path::Path;

use super::harness::{Harness, copy_program, write_script};

#[test]
fn papers_program_gets_all_arguments_and_in_a_source_tree_cargo_builds_it() {
    let harness = Harness::new();
    let [here, elsewhere, tree] = ["here", "elsewhere", "tree"].map(|name| {
        let folder = harness.path(name);
        fs::create_dir_all(&folder).unwrap();
        folder
    });
    let farbus = here.join("farbus");
    copy_program(Path::new(env!("CARGO_BIN_EXE_farbus")), &farbus);
    let run = |folder: &Path, words: &[&str]| {
        let output = harness.command_of(&farbus, words).current_dir(folder).env("PATH", &elsewhere).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (code, _, message) = run(&here, &["papers", "--list"]);
    assert!(code == Some(1) && message.contains("cargo install --path papers"), "{code:?} {message}");

    write_script(&elsewhere.join("cargo"), "#!/bin/sh\necho \"cargo: $*\"\n");
    fs::create_dir_all(tree.join("papers")).unwrap();
    fs::write(tree.join("papers/Cargo.toml"), "[package]\nname = \"farbus-papers\"\n").unwrap();
    let (code, output, message) = run(&tree, &["papers", "2005", "figure-9"]);
    assert_eq!(code, Some(0), "{message}");
    assert!(output.starts_with("cargo: run --release") && output.ends_with(" 2005 figure-9\n"), "{output}");

    write_script(&elsewhere.join("farbus-papers"), "#!/bin/sh\necho \"got: $*\"\nexit 7\n");
    let expected = format!("got: --farbus {} 2023 table-4 --quick\n", farbus.display());
    assert_eq!(run(&tree, &["papers", "2023", "table-4", "--quick"]), (Some(7), expected, String::new()));
    let (code, output, _) = run(&here, &["papers", "--farbus=/usr/bin/farbus", "--list"]);
    assert_eq!((code, output.as_str()), (Some(7), "got: --farbus=/usr/bin/farbus --list\n"));
}
