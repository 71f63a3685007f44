//! A bridge between two machines: each has one end, and its own kernel drives it.

use super::case::{RigCase, expect};
use crate::Result;
use crate::lab::{AttachClient, CaseEnvironment, MachineBoot};
use crate::machine::{MachineNetwork, RunningMachine};

pub(super) const CASES: &[RigCase] = &[
    RigCase {
        name: "bridge-hosts",
        purpose: "each of two machines has one end of a shared bridge: `cdc_ncm` drives both, the carrier follows the other end, `ping` and `iperf3` go over it, and raw transfers both ways",
        run: |lab| two_hosts(lab, "bridge,id=rig"),
    },
    RigCase {
        name: "bridge-hosts-super",
        purpose: "the same at SuperSpeed",
        run: |lab| two_hosts(lab, "bridge,speed=super,id=rig"),
    },
    RigCase {
        name: "topology-hosts",
        purpose: "two machines, each with a daemon, are joined by `farbus topology up`, one long before the other: `cdc_ncm` drives both ends, `ping`, `iperf3` and raw transfers, also after both daemons were restarted; down at one the other has no carrier, and up again",
        run: brought_up,
    },
];

/// A case in which two machines use the two ends of a bridge.
macro_rules! joined {
    ($script:literal) => {
        concat!(include_str!("../../guest/bridge-common.sh"), include_str!(concat!("../../guest/", $script)))
    };
}

const MODULES: &[&str] = &["virtio_mmio", "virtio_net", "vhci_hcd", "cdc_ncm"];

/// One end is attached by the stock client, the other by farbus.
fn two_hosts(lab: &CaseEnvironment, what: &str) -> Result<String> {
    let share = lab.share(&[what.into()])?;
    let boot = |role, client, device: &str, own: &str, other: &str| {
        lab.boot(&MachineBoot {
            script: joined!("bridge.sh"),
            modules: MODULES,
            programs: &["ip", "iperf3"],
            client,
            role,
            port: Some(share.port()),
            variables: &[("DEVICE", device.into()), ("OWN", own.into()), ("OTHER", other.into())],
            ..MachineBoot::default()
        })
    };
    let (one, other) = ("10.9.0.1", "10.9.0.2");
    let mut stock = boot("stock", AttachClient::Stock, "1-1", one, other)?;
    let mut ours = boot("farbus", AttachClient::Farbus, "1-2", other, one)?;
    stock.await_word("attached")?;
    ours.await_word("attached")?;
    let address_of_stock = word_after(&stock.take_heard(), "address ");
    let address_of_ours = word_after(&ours.take_heard(), "address ");
    // Locally administered (bit 1 of the first byte), and different at both ends.
    let is_own =
        |address: &str| u8::from_str_radix(address.get(..2).unwrap_or_default(), 16).is_ok_and(|byte| byte & 3 == 2);
    expect(is_own(&address_of_stock) && is_own(&address_of_ours) && address_of_stock != address_of_ours, || {
        format!("the adapters have the addresses {address_of_stock} and {address_of_ours}")
    })?;
    step(&mut stock, "plugged")?;
    step(&mut ours, "plugged")?;
    let figures = carries(&mut stock, &mut ours)?;
    let refused = share.count("bridge-a", "blocks_refused")? + share.count("bridge-b", "blocks_refused")?;
    expect(refused == 0, || format!("{refused} blocks of the kernel's were refused"))?;
    step(&mut stock, "leave")?;
    step(&mut ours, "unplugged")?;
    step(&mut ours, "leave")?;
    for mut guest in [stock, ours] {
        guest.tell("end")?;
        guest.finish()?;
    }
    Ok(figures.join("; "))
}

/// Uses the adapters and raw pairs in both directions; returns figures.
fn carries(one: &mut RunningMachine, other: &mut RunningMachine) -> Result<Vec<String>> {
    let ping = step(other, "ping")?;
    expect(ping.contains("5 packets received"), || format!("pings were lost: {ping}"))?;
    let mut figures = vec![ping.lines().find(|line| line.starts_with("round-trip")).unwrap_or_default().to_owned()];
    for direction in ["there", "back"] {
        step(one, "serve")?;
        let output = step(other, direction)?;
        let rate = word_after(&output, direction);
        expect(rate.trim().parse::<f64>().is_ok_and(|rate| rate > 0.0), || format!("iperf3 moved nothing: {output}"))?;
        figures.push(format!("iperf3 {direction} {rate} Mbit/s"));
    }
    figures.push(raw(one, other)?);
    figures.push(raw(other, one)?);
    Ok(figures)
}

/// Two daemons bring the link between their machines up.
fn brought_up(lab: &CaseEnvironment) -> Result<String> {
    let cable = lab.scratch("cable");
    let boot = |name: &'static str, network, own: &str, other: &str| {
        lab.boot(&MachineBoot {
            script: joined!("topology.sh"),
            modules: MODULES,
            programs: &["ip", "iperf3"],
            client: AttachClient::Farbus,
            role: name,
            network,
            variables: &[("NAME", name.into()), ("OWN", own.into()), ("OTHER", other.into())],
            ..MachineBoot::default()
        })
    };
    let (one, other) = ("10.9.0.1", "10.9.0.2");
    let mut left = boot("left", MachineNetwork::CableFrom(cable.clone()), one, other)?;
    left.await_word("ready")?;
    let mut right = boot("right", MachineNetwork::CableTo(cable), other, one)?;
    right.await_word("ready")?;
    left.begin("code")?;
    let code = left.await_word("code")?;
    right.begin(&format!("join {code}"))?;
    right.await_word("join")?;
    step(&mut left, "joined")?;
    step(&mut left, "daemon")?;
    step(&mut left, "early")?;
    step(&mut right, "daemon")?;
    right.begin("links")?;
    step(&mut left, "links")?;
    right.await_word("links")?;
    let shown = step(&mut right, "shown")?;
    expect(shown.contains("debug target") && shown.contains("vhci port"), || format!("it is shown so: {shown}"))?;
    let figures = carries(&mut left, &mut right)?;
    // Replaces each daemon by another process; the kernels notice nothing.
    for guest in [&mut left, &mut right] {
        step(guest, "restart")?;
    }
    let ping = step(&mut right, "ping")?;
    expect(ping.contains("5 packets received"), || format!("pings were lost after the restarts: {ping}"))?;
    step(&mut right, "down")?;
    step(&mut right, "links")?;
    step(&mut left, "links")?;
    let ping = step(&mut right, "ping")?;
    expect(ping.contains("5 packets received"), || format!("pings were lost when it was up again: {ping}"))?;
    for mut guest in [left, right] {
        guest.tell("end")?;
        guest.finish()?;
    }
    Ok(figures.join("; "))
}

/// Has the guest carry out a step and confirm it; returns what it printed.
fn step(guest: &mut RunningMachine, word: &str) -> Result<String> {
    guest.begin(word)?;
    guest.await_word(word)?;
    Ok(guest.take_heard())
}

/// One machine gives raw bytes, and the other takes them at the same time.
fn raw(giver: &mut RunningMachine, taker: &mut RunningMachine) -> Result<String> {
    taker.begin("take")?;
    step(giver, "give")?;
    taker.await_word("take")?;
    let output = taker.take_heard();
    let line = output.lines().find(|line| line.starts_with("raw received")).unwrap_or_default();
    expect(!line.is_empty(), || format!("nothing was received: {output}"))?;
    Ok(line.to_owned())
}

/// The word that follows `start` at the beginning of a line; of the last such line.
fn word_after(text: &str, start: &str) -> String {
    let mut lines = text.lines().filter_map(|line| line.trim().strip_prefix(start.trim()));
    lines.next_back().and_then(|rest| rest.split_whitespace().next()).unwrap_or_default().to_owned()
}
