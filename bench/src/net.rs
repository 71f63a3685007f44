//! A network of its own: this machine at one end, a namespace at the other, and between them a link of known speed.

use std::{
    net::Ipv4Addr,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};

/// A namespace behind a shaped link; both go when dropped.
pub struct Net {
    namespace: String,
}

/// This machine's end.
pub const HERE: Ipv4Addr = Ipv4Addr::new(10, 211, 47, 1);
/// The namespace's.
pub const THERE: Ipv4Addr = Ipv4Addr::new(10, 211, 47, 2);

impl Net {
    /// A link of `mbit` megabits a second each way, behind a queue that holds 30 ms of it: a switch's port.
    pub fn create(mbit: u32) -> Result<Self> {
        let id = std::process::id() % 100_000;
        let net = Self { namespace: format!("farbus-bench-{id}") };
        let (ours, theirs) = (format!("fb{id}a"), format!("fb{id}b"));
        let inside = &net.namespace;
        let here = |words: &str| ran(&words.split(' ').collect::<Vec<_>>());
        here(&format!("ip netns add {inside}")).context("a namespace takes root and the iproute2 tools")?;
        here(&format!("ip link add {ours} type veth peer name {theirs} netns {inside}"))?;
        here(&format!("ip address add {HERE}/30 dev {ours}"))?;
        here(&format!("ip link set {ours} up"))?;
        here(&format!("ip -n {inside} address add {THERE}/30 dev {theirs}"))?;
        here(&format!("ip -n {inside} link set {theirs} up"))?;
        here(&format!("ip -n {inside} link set lo up"))?;
        // A packet is a packet: what the shaper and the counters see is what an Ethernet would.
        let shape = format!("root tbf rate {mbit}mbit burst 128kb latency 30ms");
        for (device, at) in [(&ours, String::new()), (&theirs, format!("ip netns exec {inside} "))] {
            let _ = here(&format!("{at}ethtool -K {device} tso off gso off gro off"));
            here(&format!("{at}tc qdisc add dev {device} {shape}"))?;
        }
        Ok(net)
    }

    /// A command in the namespace.
    pub fn command(&self, program: &std::path::Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace]).arg(program);
        command
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        let _ = ran(&["ip", "netns", "delete", &self.namespace]);
    }
}

fn ran(words: &[&str]) -> Result<()> {
    let output = Command::new(words[0])
        .args(&words[1..])
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {}", words[0]))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {}", words.join(" "), said.trim());
    Ok(())
}
