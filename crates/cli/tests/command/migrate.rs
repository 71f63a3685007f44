//! `farbus migrate`: a disk goes from one importer to the other, and to no other host in between.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

use super::harness::{Harness, PATIENCE, has_fuse, wait_until};
use super::trust::three;

#[test]
fn a_disk_goes_to_another_host_with_all_that_was_written_and_back() {
    if !has_fuse() {
        return;
    }
    let harness = Harness::new();
    let [lab3, desk, rack] = three(&harness);
    let share = lab3.start(&["share", "memory:4M", "--listen", "none", "--secure", "127.0.0.1:0"]);
    let line = share.wait_for_line("for paired hosts");
    let address = line.split_whitespace().nth(2).unwrap().to_owned();
    let mounts = [harness.path("at-desk"), harness.path("at-rack")];
    let words = |at: usize| {
        ["attach", "lab3/memory", "--via", "fuse", "--at", mounts[at].to_str().unwrap(), "--address", &address]
    };
    let block = |round: u8| vec![round; 64 << 10];
    let mut hosts = [(&desk, 0), (&rack, 1)].into_iter().cycle();
    let (first, at) = hosts.next().unwrap();
    let mut attach = first.start(&words(at));
    attach.wait_for_line("attached as");
    let mut from = (first, at);
    for round in 1..=3u8 {
        let file = OpenOptions::new().read(true).write(true).open(mounts[from.1].join("disk.img")).unwrap();
        let mut found = vec![9; 64 << 10];
        file.read_exact_at(&mut found, 0).unwrap();
        assert!(found == block(round - 1), "what the other host wrote last, in round {round}");
        // No flush is made: the migration flushes.
        file.write_all_at(&block(round), 0).unwrap();
        drop(file);

        let to = hosts.next().unwrap();
        let message = from.0.ok(&["migrate", "lab3/memory", "--to", to.0.name]);
        assert!(message.contains("waits for"), "{message}");
        let twice = from.0.run(&["migrate", "lab3/memory", "--to", to.0.name]);
        assert!(twice.code == Some(3) && twice.stderr.contains("handed over already"), "{twice:?}");
        let refused = from.0.run(&["attach", "lab3/memory", "--via", "fuse", "--at", "/dev/null"]);
        assert_eq!(refused.code, Some(3), "it waits for somebody else: {refused:?}");
        let there = to.0.start(&[&words(to.1)[..], &["--wait=60"]].concat());
        there.wait_for_line("attached as");
        assert_eq!(attach.wait_for_end(PATIENCE), Some(0), "{}", attach.log());
        attach.wait_for_line("handed over");
        attach = there;
        from = to;
    }
    let history = lab3.json(&["status", "--json"])[0]["devices"][0]["history"].clone();
    assert_eq!(history[0]["ended"], "handed over", "{history}");
    let refused = from.0.run(&["migrate", "lab3/memory", "--to", "nobody"]);
    assert!(refused.code == Some(1) && refused.stderr.contains("farbus peers"), "{refused:?}");
    from.0.ok(&["detach"]);
    let is_free = || lab3.json(&["status", "--json"])[0]["devices"][0]["state"] == "available";
    wait_until(PATIENCE, "it is given back", is_free);
}
