//! A machine that is about to sleep.

use serde_json::json;

use super::harness::{House, PATIENCE, Running, Share, has_fuse, wait_until};

#[test]
fn what_the_kernel_sleeps_with_stays_as_it_is() {
    if !has_fuse() {
        return;
    }
    let house = House::new();
    let image = house.image("image", 1 << 20);
    let share = house.share(&[&format!("disk:{}", image.display())]);
    let (target, at) = (share.target("disk"), house.path("mnt"));
    let text =
        format!("plain.listen = ['127.0.0.1:0']\n[[attach]]\ntarget='{target}'\nvia='fuse'\nat='{}'", at.display());
    let file = house.path("tmp").join("farbus.toml");
    std::fs::write(&file, text).unwrap();
    let _daemon = Share::follow(Running::start(house.command(&["daemon", "--config", file.to_str().unwrap()])));
    let disk = at.join("disk.img");
    wait_until(PATIENCE, "the disk", || disk.exists());
    assert_eq!(house.json(&["daemon", "sleep", "--json"])["asleep"], json!([]));
    assert!(disk.exists(), "it sleeps as it is");
    assert_eq!(house.json(&["daemon", "wake", "--json"]), json!({ "awake": [] }));
    let words = house.run(&["daemon", "wake"]);
    assert!(words.code == Some(0) && words.stdout.contains("[]"), "{words:?}");
}

#[test]
fn a_machine_without_a_daemon_sleeps_as_well() {
    let house = House::new();
    assert_eq!(house.json(&["daemon", "sleep", "--json"])["asleep"], json!([]));
}
