//! What one types by mistake is answered with what to type instead.

use std::net::TcpListener;
use std::thread;

use super::harness::{Harness, PATIENCE};
use super::trust::three;

#[test]
fn mistakes_with_hosts_and_devices_are_answered_with_what_to_type() {
    let harness = Harness::new();
    let hosts = three(&harness);
    let [lab3, desk, _] = &hosts;
    let (_share, address) = lab3.share(&["fastboot,name=board"]);
    desk.ok(&["list", "lab3", "--address", &address]);

    let host = desk.run(&["attach", "lab3"]);
    assert!(host.code == Some(4) && host.stderr.contains("what it has: farbus list lab3"), "{host:?}");

    let mut attached = desk.start(&["attach", "lab3/board", "--via", "redir"]);
    attached.wait_for_line("attached at");
    let again = desk.run(&["attach", "lab3/board", "--via", "redir"]);
    assert!(again.code == Some(1) && again.stderr.contains("'farbus status' shows yours"), "{again:?}");
    let elsewhere = harness.path("another.sock");
    let own = desk.run(&["attach", "lab3/board", "--via", "redir", "--socket", elsewhere.to_str().unwrap()]);
    assert!(own.code == Some(3) && own.stderr.contains("in use by this host, desk"), "{own:?}");
    assert!(own.stderr.contains("farbus detach lab3/board") && !own.stderr.contains("--wait"), "{own:?}");
    desk.ok(&["detach", "lab3/board"]);
    attached.wait_for_end(PATIENCE);

    let nobody = desk.run(&["lease", "label:board=none"]);
    assert!(nobody.code == Some(4) && nobody.stderr.contains("and 1 is wanted"), "{nobody:?}");
}

#[test]
fn mistakes_with_ports_and_files_are_answered_with_what_to_type() {
    let harness = Harness::new();
    let unsaid = harness.run(&["run", "lab3/board", "fastboot", "devices"]);
    assert_eq!(unsaid.code, Some(2), "{unsaid:?}");
    assert!(unsaid.stderr.contains("stands behind '--': farbus run lab3/board -- fastboot devices"), "{unsaid:?}");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let page = harness.run(&["page", "--listen", &address]);
    assert!(page.code == Some(1) && page.stderr.contains("--listen or --tls takes another port"), "{page:?}");
    let missing = harness.run(&["daemon", "--config", "nope"]);
    assert!(missing.code == Some(1) && missing.stderr.contains("farbus daemon --help"), "{missing:?}");

    // Takes connections, and says nothing.
    let silent = thread::spawn(move || taken.accept());
    let silence = harness.run(&["list", &address]);
    assert!(silence.code == Some(5) && silence.stderr.contains("it did not answer in time"), "{silence:?}");
    drop(silent.join());
}
