//! Hosts of one network without a name service: they find each other by name, and by addresses of their link.

use std::fs;
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;

use super::harness::{Harness, Outcome, PATIENCE, Running, finish, has, wait_until};
use super::network::{Network, command_in};
use super::trust::{Host, hosts};

/// lab3 is the router; desk is the host at its near end.
struct Nearby<'a> {
    harness: &'a Harness,
    network: &'a Network,
    lab3: Host<'a>,
    desk: Host<'a>,
}

impl<'a> Nearby<'a> {
    fn new(harness: &'a Harness, network: &'a Network) -> Self {
        let [lab3, desk] = hosts(harness);
        Self { harness, network, lab3, desk }
    }

    fn on_lab3(&self, arguments: &[&str]) -> Command {
        self.lab3.equip(command_in(self.harness, &self.network.router, arguments))
    }

    fn on_desk(&self, arguments: &[&str]) -> Outcome {
        finish(self.desk.equip(command_in(self.harness, &self.network.near, arguments)), PATIENCE)
    }

    /// What `farbus list` shows on desk, as soon as it contains `part`.
    fn listed_with(&self, part: &str) -> String {
        let mut text = String::new();
        wait_until(PATIENCE, "it is listed", || {
            text = self.on_desk(&["list"]).stdout;
            text.contains(part)
        });
        text
    }
}

fn end(mut process: Running) {
    process.signal(Signal::INT);
    assert_eq!(process.wait_for_end(PATIENCE), Some(0), "{}", process.log());
}

#[test]
fn hosts_pair_by_name_without_a_name_service_and_stay_one_host_when_renamed() {
    let network = Network::lay("names");
    if !has("network namespaces", network.is_some()) {
        return;
    }
    let network = network.expect("looked at just now");
    let harness = Harness::new();
    let nearby = Nearby::new(&harness, &network);
    assert!(nearby.on_desk(&["list"]).stdout.contains("nobody nearby announces anything"), "it is so");

    // A host that serves paired hosts is shown, with the line to type.
    let secure = ["share", "zero", "--listen", "none", "--secure", "10.111.2.1:0"];
    let share = Running::start(nearby.on_lab3(&secure));
    let text = nearby.listed_with("lab3 (10.111.2.1) serves paired hosts");
    assert!(text.contains("farbus pair lab3 CODE") && !text.contains("obody nearby"), "{text}");
    end(share);

    let unknown = nearby.on_desk(&["pair", "nobody7", "0000-0000"]);
    assert!(unknown.stderr.contains("no name service knows that name"), "{unknown:?}");
    assert!(unknown.code == Some(5) && !unknown.stderr.contains("firewall"), "{unknown:?}");
    let unknown = nearby.on_desk(&["list", "nobody7"]);
    assert!(unknown.stderr.contains("no name service knows that name"), "{unknown:?}");
    assert!(unknown.code == Some(5) && !unknown.stderr.contains("firewall"), "{unknown:?}");

    let mut waiting = Running::start(nearby.on_lab3(&["pair", "--listen", "0.0.0.0:0", "--allow", "zero", "--json"]));
    let line: Value = serde_json::from_str(&waiting.wait_for_line("\"code\"")).unwrap();
    let addresses: Vec<&str> = line["addresses"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(addresses.iter().any(|address| address.starts_with("10.111.2.1:")), "{line}");
    let paired = nearby.on_desk(&["pair", "lab3", line["code"].as_str().unwrap()]);
    assert_eq!((paired.code, waiting.wait_for_end(PATIENCE)), (Some(0), Some(0)), "{paired:?}");
    let peers: Value = serde_json::from_str(&nearby.on_desk(&["peers", "--json"]).stdout).unwrap();
    assert!(peers[0]["address"].as_str().unwrap().starts_with("10.111."), "what can be found again: {peers}");

    // It is called b2 now, and serves everybody, too.
    let both = ["share", "zero", "--listen", "10.111.2.1:0", "--secure", "10.111.2.1:0"];
    let mut renamed = nearby.on_lab3(&both);
    renamed.env("FARBUS_NAME", "b2");
    let share = Running::start(renamed);
    let text = nearby.listed_with("lab3/zero");
    assert!(!text.contains("b2"), "it is one host: {text}");
    end(share);
}

#[test]
fn plain_share_announces_itself_unless_it_is_not_to() {
    let network = Network::lay("plain");
    if !has("network namespaces", network.is_some()) {
        return;
    }
    let network = network.expect("looked at just now");
    let harness = Harness::new();
    let nearby = Nearby::new(&harness, &network);
    let share = Running::start(nearby.on_lab3(&["share", "zero", "--listen", "0.0.0.0:0"]));
    nearby.listed_with("lab3/zero");
    end(share);
    let silent = ["share", "zero", "--listen", "0.0.0.0:0", "--no-announce"];
    let share = Running::start(nearby.on_lab3(&silent));
    share.wait_for_line("listening on");
    assert!(nearby.on_desk(&["list"]).stdout.contains("nobody nearby announces anything"));
    end(share);
}

/// The address that an interface has for its own link, once it may be used.
fn link_local(namespace: &str, interface: &str) -> String {
    let mut address = String::new();
    wait_until(PATIENCE, "the interface has an address", || {
        let mut show = Command::new("ip");
        show.args(["-n", namespace, "-6", "-o", "addr", "show", "dev", interface, "scope", "link", "-tentative"]);
        let text = finish(show, PATIENCE).stdout;
        address = text.split_whitespace().find_map(|word| word.strip_suffix("/64")).unwrap_or_default().to_owned();
        !address.is_empty()
    });
    address
}

#[test]
fn address_of_a_link_is_taken_wherever_an_address_is_typed() {
    let network = Network::lay("scoped");
    if !has("network namespaces", network.is_some()) {
        return;
    }
    let network = network.expect("looked at just now");
    let harness = Harness::new();
    let nearby = Nearby::new(&harness, &network);
    let far = link_local(&network.router, "near");
    link_local(&network.near, "cable");
    let here = format!("[{far}%near]:0");
    let image = harness.image("disk.img", 1 << 20);
    let disk = format!("disk:{},name=disk", image.display());
    let share = Running::start(nearby.on_lab3(&["share", &disk, "zero", "--listen", &here]));
    let line = share.wait_for_line("listening on ");
    let port = line.split_whitespace().nth(2).and_then(|address| address.rsplit_once(':')).unwrap().1.to_owned();
    let host = format!("[{far}%cable]:{port}");
    for typed in [&host, &format!("{far}%cable:{port}")] {
        let listed = nearby.on_desk(&["list", typed]);
        assert!(listed.code == Some(0) && listed.stdout.contains("zero"), "{typed}: {listed:?}");
    }
    let ran = nearby.on_desk(&["run", &format!("{host}/zero"), "--", "true"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let socket = harness.path("disk.sock");
    let target = format!("{host}/disk");
    let words = ["attach", &target, "--via", "nbd", "--socket", socket.to_str().unwrap()];
    let attach = Running::start(nearby.desk.equip(command_in(&harness, &network.near, &words)));
    attach.wait_for_line("attached");
    end(attach);

    let config = harness.path("farbus.toml");
    let words = format!("plain.listen = []\nsecure.listen = []\n[[attach]]\ntarget = '{target}'\nvia = 'nbd'\n");
    fs::write(&config, format!("{words}socket = '{}'\n", socket.display())).unwrap();
    let daemon =
        nearby.desk.equip(command_in(&harness, &network.near, &["daemon", "--config", config.to_str().unwrap()]));
    let daemon = Running::start(daemon);
    wait_until(PATIENCE, "the daemon attaches it", || socket.exists());
    end(daemon);
    end(share);

    let waiting_at = format!("[{far}%near]");
    let mut waiting = Running::start(nearby.on_lab3(&["pair", "--listen", &waiting_at, "--json"]));
    let line: Value = serde_json::from_str(&waiting.wait_for_line("\"code\"")).unwrap();
    let paired = nearby.on_desk(&["pair", &format!("[{far}%cable]"), line["code"].as_str().unwrap()]);
    assert_eq!((paired.code, waiting.wait_for_end(PATIENCE)), (Some(0), Some(0)), "{paired:?}");
    let peers: Value = serde_json::from_str(&nearby.on_desk(&["peers", "--json"]).stdout).unwrap();
    assert_eq!(peers[0]["address"], format!("[{far}%cable]:3241"), "{peers}");
}
