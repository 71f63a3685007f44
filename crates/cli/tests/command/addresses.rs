//! Which address farbus uses for a paired host, and what changes the remembered one.

use serde_json::Value;

use super::cuts::{Cutter, share_through_a_cutter};
use super::harness::{Harness, PATIENCE, wait_until};
use super::trust::{Host, hosts, pair};

/// The address that `host` remembers for the only host it is paired with.
fn remembered(host: &Host<'_>) -> Value {
    host.json(&["peers", "--json"])[0]["address"].clone()
}

#[test]
fn address_is_remembered_only_after_the_host_proved_its_key_there() {
    let harness = Harness::new();
    let [lab3, desk] = hosts(&harness);
    pair(&lab3, &desk);
    let (_share, address) = lab3.share(&["zero"]);
    let at_first = remembered(&desk);
    // First no host is at the address, then another host; an address on the command line counts for that command only.
    assert_eq!(desk.run(&["list", "lab3", "--address", "127.0.0.1:1"]).code, Some(5));
    assert_eq!(remembered(&desk), at_first);
    let mallory = Host { harness: &harness, name: "mallory" };
    let (_other, elsewhere) = mallory.share(&["zero"]);
    let outcome = desk.run(&["list", "lab3", "--address", &elsewhere]);
    assert!(outcome.code == Some(3) && outcome.stderr.contains("not the host that was paired as"), "{outcome:?}");
    assert_eq!(remembered(&desk), at_first);
    desk.ok(&["list", "lab3", "--address", &address]);
    assert_eq!(remembered(&desk), address);
    let outcome = desk.run(&["list", "nobody", "--address", &address]);
    assert!(outcome.code == Some(1) && outcome.stderr.contains("is not a paired host"), "{outcome:?}");
}

#[test]
fn session_continues_where_its_host_proved_its_key_not_at_the_address_in_the_file() {
    let harness = Harness::new();
    let image = harness.image("image", 4 << 20);
    let ([_lab3, desk], share, cutter) = share_through_a_cutter(&harness, &format!("disk:{}", image.display()));
    let through = cutter.address().to_string();
    let socket = harness.path("disk.sock");
    let at = ["--via", "nbd", "--socket", socket.to_str().unwrap(), "--grace", "30"];
    let attach = desk.start(&[&["attach", "lab3/disk", "--address", &through][..], &at].concat());
    attach.wait_for_line("attached as ");
    // The session's broker wrote the address down.
    wait_until(PATIENCE, "it is remembered", || remembered(&desk) == through.as_str());

    // Neither a wrong address nor a right one on the command line moves the running session.
    assert_eq!(desk.run(&["list", "lab3", "--address", "127.0.0.1:1"]).code, Some(5));
    let direct = Cutter::before(cutter.home());
    let elsewhere = direct.address().to_string();
    desk.ok(&["list", "lab3", "--address", &elsewhere]);
    assert_eq!(remembered(&desk), elsewhere.as_str());
    let (before, others) = (cutter.links(), direct.links());
    cutter.cut();
    attach.assert_logged("linked again");
    assert!(cutter.links() > before && direct.links() == others, "it goes on where it was");

    // The host has left that address: the session goes to where the host was seen since.
    cutter.let_through(false);
    cutter.cut();
    let linked = || attach.log().matches("linked again").count();
    wait_until(PATIENCE, "a link elsewhere", || linked() == 2);
    assert!(direct.links() > others);
    assert!(!share.log().contains("nobody came back"), "{}", share.log());
}

#[test]
fn session_survives_another_host_at_its_exporters_old_address() {
    let harness = Harness::new();
    let image = harness.image("image", 4 << 20);
    let ([_lab3, desk], _share, cutter) = share_through_a_cutter(&harness, &format!("disk:{}", image.display()));
    let through = cutter.address().to_string();
    let socket = harness.path("disk.sock");
    let at = ["--via", "nbd", "--socket", socket.to_str().unwrap(), "--grace", "60"];
    let attach = desk.start(&[&["attach", "lab3/disk", "--address", &through][..], &at].concat());
    attach.wait_for_line("attached as ");
    // For a while, connections to the old address reach another farbus.
    let mallory = Host { harness: &harness, name: "mallory" };
    let (_other, elsewhere) = mallory.share(&["zero"]);
    cutter.lead_to(elsewhere.parse().unwrap());
    let before = cutter.links();
    cutter.cut();
    wait_until(PATIENCE, "it has met the other", || cutter.links() > before + 1);
    cutter.lead_home();
    attach.assert_logged("linked again");
}

#[test]
fn host_or_code_that_can_be_none_is_refused_as_usage_before_anything_is_asked() {
    let harness = Harness::new();
    for (arguments, part) in [
        (&["list", "http://lab3"][..], "type 'lab3' without 'http://'"),
        (&["list", "lab3:70000"], "'70000' in 'lab3:70000' is no port"),
        (&["attach", "http://lab3/disk"], "type 'lab3/disk' without 'http://'"),
        (&["attach", "lab3:usb/disk"], "'usb' in 'lab3:usb' is no port"),
        (&["pair", "lab3", "123"], "123"),
        (&["pair", "lab3:70000", "1234-5678"], "is no port"),
    ] {
        let outcome = harness.run(arguments);
        assert_eq!(outcome.code, Some(2), "{arguments:?}: {outcome:?}");
        assert!(outcome.stderr.contains(part), "{arguments:?}: {outcome:?}");
    }
}
