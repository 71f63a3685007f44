//! A network of its own: this machine at one end of a link of known speed, and two other hosts behind a router, each in
//! a namespace. What one of them sends too much is lost at the router, and does not make its sender wait, as in a real
//! network.

use std::{
    net::Ipv4Addr,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};

/// The namespaces, and the shaped link to them; all go when dropped.
pub struct ShapedNetwork {
    router: String,
    server: String,
    stranger: String,
}

/// This machine's end of the shaped link.
pub const HERE: Ipv4Addr = Ipv4Addr::new(10, 211, 47, 1);
/// The router's address.
const ROUTER: Ipv4Addr = Ipv4Addr::new(10, 211, 47, 2);
/// The host behind it that serves.
pub const THERE: Ipv4Addr = Ipv4Addr::new(10, 211, 48, 2);

impl ShapedNetwork {
    /// A link of `mbit` megabits a second each way, behind a queue that holds 30 ms of it: a switch's port.
    pub fn create(mbit: u32) -> Result<Self> {
        let id = std::process::id() % 100_000;
        let named = |part: &str| format!("farbus-bench-{id}-{part}");
        let net = Self { router: named("router"), server: named("server"), stranger: named("stranger") };
        let (router, ours) = (&net.router, format!("fb{id}a"));
        let here = |words: &str| ran(&words.split(' ').collect::<Vec<_>>());
        for namespace in [router, &net.server, &net.stranger] {
            here(&format!("ip netns add {namespace}")).context("a namespace takes root and the iproute2 tools")?;
            here(&format!("ip -n {namespace} link set lo up"))?;
        }
        here(&format!("ip link add {ours} type veth peer name near netns {router}"))?;
        here(&format!("ip address add {HERE}/30 dev {ours}"))?;
        here(&format!("ip link set {ours} up"))?;
        here(&format!("ip -n {router} address add {ROUTER}/30 dev near"))?;
        here(&format!("ip -n {router} link set near up"))?;
        here(&format!("ip netns exec {router} sysctl -qw net.ipv4.ip_forward=1"))?;
        for (host, part) in [(&net.server, 48), (&net.stranger, 49)] {
            here(&format!("ip -n {host} link add cable type veth peer name port{part} netns {router}"))?;
            here(&format!("ip -n {host} address add 10.211.{part}.2/30 dev cable"))?;
            here(&format!("ip -n {router} address add 10.211.{part}.1/30 dev port{part}"))?;
            here(&format!("ip -n {router} link set port{part} up"))?;
            here(&format!("ip -n {host} link set cable up"))?;
            here(&format!("ip -n {host} route add default via 10.211.{part}.1"))?;
            here(&format!("ip route add 10.211.{part}.0/30 via {ROUTER}"))?;
            // No offloading: the shaper and the counters see the packets of an Ethernet.
            let _ = here(&format!("ip netns exec {host} ethtool -K cable tso off gso off gro off"));
        }
        let shape = format!("root tbf rate {mbit}mbit burst 128kb latency 30ms");
        // The last one is where a flow from the other host competes with what this machine sends.
        let at_router = format!("ip netns exec {router} ");
        for (device, at) in [(ours.as_str(), ""), ("near", &at_router), ("port48", &at_router)] {
            let _ = here(&format!("{at}ethtool -K {device} tso off gso off gro off"));
            here(&format!("{at}tc qdisc add dev {device} {shape}"))?;
        }
        Ok(net)
    }

    /// Limits the link towards here to this rate from now on, behind a queue that holds 200 ms of it.
    pub fn narrow(&self, kbit: u32) -> Result<()> {
        let shape = format!("tc qdisc replace dev near root tbf rate {kbit}kbit burst 16kb latency 200ms");
        ran(&format!("ip netns exec {} {shape}", self.router).split(' ').collect::<Vec<_>>())
    }

    /// A command on the host that serves.
    pub fn on_server(&self, program: &Path) -> Command {
        command_in(&self.server, program)
    }

    /// A command on the host that sends the competing traffic.
    pub fn on_stranger(&self, program: &Path) -> Command {
        command_in(&self.stranger, program)
    }
}

/// Two hosts, this machine and one in a namespace, with a long path between them that loses packets; all is removed
/// when dropped.
pub struct LossyNetwork {
    server: String,
}

impl LossyNetwork {
    /// Makes a path with this round trip and these losses each way.
    pub fn create(round_trip_ms: u32, lost_per_mille: u32) -> Result<Self> {
        let id = std::process::id() % 100_000;
        let net = Self { server: format!("farbus-bench-{id}-far") };
        let (server, ours) = (&net.server, format!("fb{id}l"));
        let here = |words: &str| ran(&words.split(' ').collect::<Vec<_>>());
        here(&format!("ip netns add {server}")).context("a namespace takes root and the iproute2 tools")?;
        here(&format!("ip -n {server} link set lo up"))?;
        here(&format!("ip link add {ours} type veth peer name cable netns {server}"))?;
        here(&format!("ip address add {HERE}/30 dev {ours}"))?;
        here(&format!("ip link set {ours} up"))?;
        here(&format!("ip -n {server} address add {ROUTER}/30 dev cable"))?;
        here(&format!("ip -n {server} address add {THERE}/32 dev lo"))?;
        here(&format!("ip -n {server} link set cable up"))?;
        here(&format!("ip route add {THERE}/32 via {ROUTER}"))?;
        // No offloading: a lost packet is one Ethernet packet.
        let each_way = format!("root netem delay {}us limit 100000", round_trip_ms * 500);
        let loss =
            if lost_per_mille == 0 { String::new() } else { format!(" loss {}%", f64::from(lost_per_mille) / 10.0) };
        for (at, device) in [(String::new(), ours.as_str()), (format!("ip netns exec {server} "), "cable")] {
            let _ = here(&format!("{at}ethtool -K {device} tso off gso off gro off"));
            here(&format!("{at}tc qdisc add dev {device} {each_way}{loss}"))
                .context("a long path that loses takes the kernel's netem (module sch_netem), which is not here")?;
        }
        Ok(net)
    }

    /// A command on the far host.
    pub fn on_server(&self, program: &Path) -> Command {
        command_in(&self.server, program)
    }
}

impl Drop for LossyNetwork {
    fn drop(&mut self) {
        // Deleting it also removes both ends of its cable.
        let _ = ran(&["ip", "netns", "delete", &self.server]);
    }
}

fn command_in(namespace: &str, program: &Path) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace]).arg(program);
    command
}

impl Drop for ShapedNetwork {
    fn drop(&mut self) {
        for namespace in [&self.server, &self.stranger, &self.router] {
            let _ = ran(&["ip", "netns", "delete", namespace]);
        }
    }
}

fn ran(words: &[&str]) -> Result<()> {
    let output = Command::new(words[0])
        .args(&words[1..])
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {}", words[0]))?;
    let printed = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {}", words.join(" "), printed.trim());
    Ok(())
}
