//! Labels, place and comment of devices: given by their owner, kept, seen by other hosts, and asked for.

use std::fs;

use serde_json::{Value, json};

use super::harness::Harness;
use super::restart::{config, exporter};
use super::trust::{Host, three};

/// The names of the devices of lab3 that a query means, as a host sees them.
fn meant(host: &Host<'_>, words: &[&str]) -> Vec<String> {
    let all = host.json(&[&["list", "lab3"], words, &["--json"]].concat());
    all.as_array().unwrap().iter().map(|device| device["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn labels_outlive_the_exporter_and_are_what_other_hosts_find_devices_by() {
    let harness = Harness::new();
    let hosts = three(&harness);
    let [lab3, desk, rack] = &hosts;
    let image = harness.image("disk.img", 1 << 20);
    let what = [&format!("disk:{},name=backup", image.display()), "zero,name=board", "serial,name=console"];
    let (mut share, address) = lab3.share(&what);
    desk.ok(&["list", "lab3", "--address", &address]);
    rack.ok(&["list", "lab3", "--address", &address]);
    let message = lab3.ok(&["label", "board", "board=imx8", "rev=b", "place=shelf 3", "comment=the fan is loud"]);
    assert_eq!(message.trim_end(), "board: board=imx8 rev=b place=shelf 3 \"the fan is loud\"");
    lab3.ok(&["label", "console", "board=imx8"]);
    let labelled = lab3.json(&["label", "backup", "kind=nightly", "--json"]);
    assert_eq!((&labelled["labels"], &labelled["outdated_pids"]), (&json!({ "kind": "nightly" }), &json!([])));

    let listed = desk.json(&["list", "lab3", "name=board", "--json"]);
    assert_eq!(listed[0]["labels"], json!({ "board": "imx8", "rev": "b" }));
    assert_eq!((&listed[0]["place"], &listed[0]["comment"]), (&json!("shelf 3"), &json!("the fan is loud")));
    assert!(desk.ok(&["list", "lab3"]).contains("board=imx8 rev=b place=shelf 3"));
    assert!(desk.ok(&["status", "lab3"]).contains("board: board=imx8 rev=b"));
    assert_eq!(meant(desk, &["label:board=imx8"]), ["board", "console"]);
    assert_eq!(meant(desk, &["label:board=imx*", "class=serial", "free"]), ["console"]);
    desk.ok(&["lease", "lab3/console", "--for", "1m"]);
    assert_eq!(meant(rack, &["label:board", "free"]), ["board"]);
    assert!(rack.ok(&["list", "lab3", "label:board=imx6"]).contains("No device of lab3 is meant"));
    assert!(rack.ok(&["list", "label:kind"]).contains("lab3/backup"), "of all hosts");

    share.kill();
    let (_share, address) = lab3.share(&[what[1], what[2], &format!("disk:{},name=other", image.display())]);
    desk.ok(&["list", "lab3", "--address", &address]);
    assert_eq!(meant(desk, &["label:board"]), ["board", "console"], "a device made of code has them by its name");
    assert_eq!(meant(desk, &["label:kind=nightly"]), ["other"], "a disk that is known again has them by its identity");
    lab3.ok(&["label", "board", "board=", "rev=", "place=", "comment="]);
    assert_eq!(lab3.ok(&["label", "board"]).trim_end(), "board: no label, no place, no comment");
    assert_eq!(meant(desk, &["label:board"]), ["console"]);

    for (words, code, why) in [
        (&["label", "board", "a b=x"][..], 2, "no name of a label"),
        (&["label", "board", "board=\u{1b}[2J"], 2, "not shown"),
        (&["label", "tape", "board=x"], 4, "no device called 'tape'"),
        (&["list", "lab3", "colour=red"], 2, "class=, vendor="),
        (&["list", "lab3", "lab4"], 1, "one host"),
    ] {
        let refused = lab3.run(words);
        assert!(refused.code == Some(code) && refused.stderr.contains(why), "{words:?}: {refused:?}");
    }
    let nine: Vec<String> = (0..9).map(|n| format!("l{n}=x")).collect();
    let refused = lab3.run(&nine.iter().fold(vec!["label", "board"], |words, word| [&words[..], &[word]].concat()));
    assert!(refused.code == Some(3) && refused.stderr.contains("8 labels at most"), "{refused:?}");
}

#[test]
fn labels_of_the_configuration_follow_a_reload_and_come_after_those_of_the_owner() {
    let harness = Harness::new();
    let hosts = three(&harness);
    let [lab3, desk, _] = &hosts;
    let share = |labels: &str| format!("{{what='zero', name='board', labels={labels}, place='shelf 1'}}");
    let (_daemon, _, secure) = exporter(&harness, lab3, &share("{board='imx8', rev='a'}"));
    desk.ok(&["list", "lab3", "--address", &secure]);
    let listed = || -> Value { desk.json(&["list", "lab3", "--json"])[0].clone() };
    assert_eq!(listed()["labels"], json!({ "board": "imx8", "rev": "a" }));
    lab3.ok(&["label", "board", "rev=b"]);
    assert_eq!((&listed()["labels"]["rev"], &listed()["place"]), (&json!("b"), &json!("shelf 1")));

    let changed = share("{board='imx6', rev='c'}");
    let text = format!("secure.listen = ['127.0.0.1:0']\nplain.listen = ['127.0.0.1:0']\nshare = [{changed}]");
    config(&harness.path("tmp"), &text);
    lab3.ok(&["daemon", "reload"]);
    assert_eq!(listed()["labels"], json!({ "board": "imx6", "rev": "b" }));
    lab3.ok(&["label", "board", "rev="]);
    assert_eq!(listed()["labels"]["rev"], "c");

    let stored = harness.path("lab3").join("labels.json");
    fs::write(&stored, "{").unwrap();
    let refused = lab3.run(&["label", "board", "rev=d"]);
    assert!(refused.code == Some(1) && refused.stderr.contains("it is damaged"), "{refused:?}");
    assert_eq!(listed()["labels"]["rev"], "c", "and what is shown stays");
}
