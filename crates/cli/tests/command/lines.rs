//! What is printed: tables, help, usage, completions and man pages.

use super::harness::Harness;

#[test]
fn the_papers_table_1_is_printed_to_the_digit() {
    let harness = Harness::new();
    let outcome = harness.run(&["plan", "bandwidth", "--speed", "full", "--kind", "bulk"]);
    let numbers: Vec<Vec<&str>> = outcome.stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    let table_1 = [
        ["1", "107000", "1%", "107", "2", "107"],
        ["2", "200000", "1%", "100", "0", "200"],
        ["4", "352000", "1%", "88", "4", "352"],
        ["8", "568000", "1%", "71", "9", "568"],
        ["16", "816000", "2%", "51", "21", "816"],
        ["32", "1056000", "3%", "33", "15", "1056"],
        ["64", "1216000", "5%", "19", "37", "1216"],
    ];
    let start = numbers.iter().position(|line| *line == table_1[0]).expect("the first row is there");
    assert_eq!(numbers[start..start + 7], table_1);

    let json = harness.json(&["plan", "bandwidth", "--speed", "full", "--kind", "bulk", "--json"]);
    let rows = json["tables"][0]["rows"].as_array().unwrap();
    let names = [
        "data_payload_bytes",
        "bandwidth_bytes_per_s_max",
        "interval_share_percent",
        "transfers_per_interval_max",
        "remaining_bytes",
        "useful_bytes_per_interval",
    ];
    for (row, expected) in rows.iter().zip(table_1) {
        let found = names.map(|name| row[name].as_u64().unwrap());
        assert_eq!(found, expected.map(|cell| cell.trim_end_matches('%').parse::<u64>().unwrap()));
    }
    assert_eq!(rows.len(), table_1.len());
}

#[test]
fn a_bus_is_planned_from_a_file_or_refused_with_what_is_missing() {
    let harness = Harness::new();
    let file = harness.path("car.toml");
    let endpoint = |name: &str, budget_bytes: u32| {
        format!(
            "[[endpoint]]\nname = \"{name}\"\nkind = \"bulk\"\npacket_bytes = 1024\nperiod = 1\nbudget_bytes = {budget_bytes}\n"
        )
    };
    let write = |text: String| std::fs::write(&file, text).unwrap();
    let (path, drawing) = (file.to_str().unwrap(), harness.path("car.svg"));
    write(format!("speed = \"super\"\n{}{}", endpoint("board", 8192), endpoint("lidar", 8192)));
    let json = harness.json(&["plan", "schedule", path, "--json", "--svg", drawing.to_str().unwrap()]);
    assert_eq!(json["reservation_ps"], 16 * 2_144_000);
    let sound = harness.json(&["plan", "schedule", path, "--mode", "sound", "--json"]);
    assert_eq!(sound["reservation_ps"], 16 * 1_778_400);
    assert_eq!(json["endpoints"][1]["latency_ns"], 125_000);
    assert!(std::fs::read_to_string(&drawing).unwrap().starts_with("<svg "));

    write(format!("speed = \"super\"\n{}", endpoint("board", 80_000)));
    let outcome = harness.run(&["plan", "schedule", path]);
    assert_eq!(outcome.code, Some(3), "{outcome:?}");
    assert!(outcome.stderr.contains("board is not admitted") && outcome.stderr.contains("are missing"), "{outcome:?}");
    let outcome = harness.run(&["plan", "schedule", path, "--json"]);
    assert!(outcome.stdout.contains("\"attribute\": \"refused\""), "{outcome:?}");

    write("speed = \"super\"\nendpoints = []".into());
    let outcome = harness.run(&["plan", "schedule", path]);
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert!(outcome.stderr.contains("car.toml") && outcome.stderr.contains("line 2"), "{outcome:?}");
}

/// Table 2 of "Real-Time USB Networking and Device I/O" (2023) by one command, and every other example by its own.
#[test]
fn each_example_of_a_plan_runs_by_the_command_that_the_list_prints() {
    let harness = Harness::new();
    let examples = harness.json(&["plan", "examples", "--json"]);
    let examples = examples.as_array().unwrap();
    assert!(examples.len() > 10);
    for example in examples {
        let command = example["command"].as_str().unwrap();
        let outcome = harness.run(&command.split(' ').skip(1).collect::<Vec<_>>());
        assert!(outcome.code == Some(0) && !outcome.stdout.is_empty(), "{command}: {outcome:?}");
        let printed = harness.run(&["plan", "examples", example["name"].as_str().unwrap()]);
        assert_eq!(printed.stdout.trim_end(), example["text"].as_str().unwrap().trim_end());
    }
    let table_2 = harness.run(&["plan", "schedule", "--example", "table-2-3"]);
    let bulk = table_2.stdout.lines().find(|line| line.trim_start().starts_with("b1 ")).unwrap();
    assert!(bulk.trim_end().ends_with("20 passes           4  500.000"), "{bulk}");
    assert!(table_2.stdout.contains("end to end: 5500.000 us at the worst"), "{table_2:?}");
    let list = harness.run(&["plan", "topology", "--example", "list"]);
    assert!(list.stdout.lines().count() == 4 && list.stdout.contains("--example figure-5c"), "{list:?}");
    let wrong = harness.run(&["plan", "pipe", "--example", "table-2-1"]);
    assert!(wrong.code == Some(1) && wrong.stderr.contains("there are section-5, table-7"), "{wrong:?}");
}

#[test]
fn arguments_without_a_meaning_are_usage_errors() {
    let harness = Harness::new();
    for arguments in [
        &["share"][..],
        &["share", "tape"],
        &["share", "disk:"],
        &["share", "usb:"],
        &["share", "usb:1-1:1.0"],
        &["share", "--list", "zero"],
        &["attach", "no-device:3240"],
        &["attach", "host/disk", "--via", "magic"],
        &["plan", "bandwidth", "--speed", "warp"],
        &["nonsense"],
        &[],
    ] {
        let outcome = harness.run(arguments);
        assert_eq!(outcome.code, Some(2), "{arguments:?}: {outcome:?}");
        assert!(outcome.stdout.is_empty() && outcome.stderr.contains("--help"), "{arguments:?}: {outcome:?}");
    }
}

#[test]
fn every_verb_helps_and_has_a_man_page() {
    let harness = Harness::new();
    let folder = harness.path("man");
    assert_eq!(harness.run(&["man", folder.to_str().unwrap()]).code, Some(0));
    let help = harness.run(&["--help"]).stdout;
    let verbs: Vec<_> = help
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_whitespace().next())
        .filter(|verb| *verb != "help")
        .collect();
    assert!(verbs.contains(&"share") && verbs.contains(&"demo") && !verbs.contains(&"man"), "{verbs:?}");
    for verb in verbs {
        assert_eq!(harness.run(&[verb, "--help"]).code, Some(0), "{verb}");
        let page = std::fs::read_to_string(folder.join(format!("farbus-{verb}.1"))).unwrap();
        assert!(page.contains(".TH"), "{verb}: {page}");
    }
}

#[test]
fn each_shell_gets_a_script_of_its_own() {
    let harness = Harness::new();
    for (shell, mark) in [("bash", "complete -F"), ("zsh", "#compdef farbus"), ("fish", "complete -c farbus")] {
        let outcome = harness.run(&["completions", shell]);
        assert!(outcome.code == Some(0) && outcome.stdout.contains(mark), "{shell}: {outcome:?}");
    }
}

#[test]
fn a_usb_device_that_is_not_plugged_in_is_reported_as_gone_even_where_the_port_is_taken() {
    let harness = Harness::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().to_string();
    for listen in [&[][..], &["--listen", "127.0.0.1:0"], &["--listen", &port]] {
        let outcome = harness.run(&[&["share", "usb:ffff:fffe"], listen].concat());
        assert_eq!(outcome.code, Some(4), "{outcome:?}");
        assert!(outcome.stderr.contains("no USB device is usb:ffff:fffe\n  'farbus share --list'"), "{outcome:?}");
    }
}

#[test]
fn the_list_of_usb_devices_is_for_people_and_for_programs() {
    let harness = Harness::new();
    assert!(harness.json(&["share", "--list", "--json"]).is_array());
    let outcome = harness.run(&["share", "--list"]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(!outcome.stdout.is_empty());
}
