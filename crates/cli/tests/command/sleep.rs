//! `farbus daemon sleep` and `wake`, for a machine that suspends.

use serde_json::json;

use super::harness::{Harness, PATIENCE, Running, Share, has_fuse, wait_until};

#[test]
fn fuse_disk_stays_attached_while_the_machine_sleeps() {
    if !has_fuse() {
        return;
    }
    let harness = Harness::new();
    let image = harness.image("image", 1 << 20);
    let share = harness.share(&[&format!("disk:{}", image.display())]);
    let (target, at) = (share.target("disk"), harness.path("mnt"));
    let text =
        format!("plain.listen = ['127.0.0.1:0']\n[[attach]]\ntarget='{target}'\nvia='fuse'\nat='{}'", at.display());
    let file = harness.path("tmp").join("farbus.toml");
    std::fs::write(&file, text).unwrap();
    let _daemon = Share::follow(Running::start(harness.command(&["daemon", "--config", file.to_str().unwrap()])));
    let disk = at.join("disk.img");
    wait_until(PATIENCE, "the disk", || disk.exists());
    assert_eq!(harness.json(&["daemon", "sleep", "--json"])["asleep"], json!([]));
    assert!(disk.exists(), "it sleeps as it is");
    assert_eq!(harness.json(&["daemon", "wake", "--json"]), json!({ "awake": [] }));
    let words = harness.run(&["daemon", "wake"]);
    assert!(words.code == Some(0) && words.stdout.contains("[]"), "{words:?}");
}

#[test]
fn sleep_hook_succeeds_without_a_daemon() {
    let harness = Harness::new();
    assert_eq!(harness.json(&["daemon", "sleep", "--json"])["asleep"], json!([]));
}
