//! `farbus observe`: an observer sees what the user gets, and only if the device's owner permits it.

use farbus::client;
use farbus_model::EpAddr;
use serde_json::Value;

use super::harness::{Harness, PATIENCE, Running};
use super::trust::{hosts, pair};

pub fn press(keyboard: &mut farbus_host::RemoteDevice<farbus::client::DevicePort>) -> u8 {
    let mut read = || keyboard.data_in(EpAddr::from_byte(0x81), 8).unwrap().into_vec();
    let pressed = read()[2];
    assert_eq!(read(), [0; 8]);
    pressed
}

#[test]
fn observer_sees_the_keys_that_the_user_gets() {
    let harness = Harness::new();
    let share = harness.share(&["keyboard"]);
    let refused = harness.run(&["observe", &share.target("keyboard")]);
    assert!(refused.code == Some(3) && refused.stderr.contains("--observable"), "{refused:?}");
    drop(share);

    let share = harness.share(&["keyboard", "memory:1M", "--observable"]);
    let mut keyboard = client::open(&share.library_target("keyboard")).unwrap();
    let words = ["observe", &share.target("keyboard"), "--count", "4", "--json"];
    let mut observer = Running::start(harness.command(&words));
    observer.wait_for_line("is observed");
    assert_eq!(harness.run(&["type", "ab"]).code, Some(0));
    assert_eq!([press(&mut keyboard), press(&mut keyboard)], [4, 5], "the user has it as ever");
    let lines = [(); 4].map(|()| serde_json::from_str::<Value>(&observer.wait_for_line("data")).unwrap());
    assert_eq!(observer.wait_for_end(PATIENCE), Some(0), "{}", observer.log());
    let data = [0, 1, 2, 3].map(|at: usize| lines[at]["data"].as_str().unwrap());
    let none = "0000000000000000";
    assert_eq!(data, ["0000040000000000", none, "0000050000000000", none]);
    assert_eq!((&lines[0]["endpoint"], &lines[0]["type"]), (&"81".into(), &"interrupt".into()));

    let refused = harness.run(&["observe", &share.target("memory")]);
    assert!(refused.code == Some(3) && refused.stderr.contains("nothing that is shown"), "{refused:?}");
    let refused = harness.run(&["observe", &share.target("tape")]);
    assert_eq!(refused.code, Some(4), "{refused:?}");
}

#[test]
fn paired_host_observes_until_its_permission_is_taken_back() {
    let harness = Harness::new();
    let [lab3, desk] = hosts(&harness);
    pair(&lab3, &desk);
    let words = ["share", "keyboard", "--listen", "none", "--secure", "127.0.0.1:0", "--observable"];
    let share = lab3.start(&words);
    let line = share.wait_for_line("for paired hosts");
    let address = line.split_whitespace().nth(2).unwrap();
    desk.ok(&["list", "lab3", "--address", address]);
    let refused = desk.run(&["observe", "lab3/keyboard"]);
    assert_eq!(refused.code, Some(3), "what it may not use it does not see: {refused:?}");
    lab3.ok(&["allow", "desk", "keyboard"]);
    let mut observer = desk.start(&["observe", "lab3/keyboard"]);
    observer.wait_for_line("is observed");
    lab3.ok(&["forbid", "desk", "keyboard"]);
    assert_eq!(observer.wait_for_end(PATIENCE), Some(3), "{}", observer.log());
}
