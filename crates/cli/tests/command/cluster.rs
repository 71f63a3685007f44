//! Three paired hosts: one has devices, two may use them.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::harness::{Harness, Running};
use super::trust::{Host, pair};

/// A host with devices, and two that may use them.
pub struct Cluster<'h> {
    pub exporter: Host<'h>,
    pub hosts: [Host<'h>; 2],
    pub address: String,
    pub share: Running,
}

impl<'h> Cluster<'h> {
    pub fn new(harness: &'h Harness, what: &[&str]) -> Self {
        let [exporter, desk, rack] = ["lab3", "desk", "rack"].map(|name| Host { harness, name });
        for importer in [&desk, &rack] {
            pair(&exporter, importer);
            exporter.ok(&["allow", importer.name, "all"]);
        }
        pair(&desk, &rack);
        let share = exporter.start(&[&["share"], what, &["--listen", "none", "--secure", "127.0.0.1:0"]].concat());
        let line = share.wait_for_line("for paired hosts");
        let address = line.split_whitespace().nth(2).unwrap().to_owned();
        Self { exporter, hosts: [desk, rack], address, share }
    }

    /// Runs `farbus attach lab3/DEVICE --via VIA` on a host; returns the process and its socket.
    pub fn lend(&self, at: usize, device: &str, via: &str, arguments: &[&str]) -> (Running, PathBuf) {
        let host = &self.hosts[at];
        let socket = host.harness.path(&format!("{}-{device}.sock", host.name));
        let target = format!("lab3/{device}");
        let words = ["attach", &target, "--address", &self.address, "--via", via, "--socket"];
        let attach = host.start(&[&words[..], &[socket.to_str().unwrap()], arguments].concat());
        attach.wait_for_line(socket.to_str().unwrap());
        (attach, socket)
    }

    /// Says to an attachment of a host that the machine of this process has stopped for good; returns the answer.
    pub fn depart(&self, at: usize, attach: &Running, device: &str) -> Value {
        let socket = format!("run-{}/farbus/{}.sock", self.hosts[at].name, attach.id());
        let mut stream = UnixStream::connect(self.hosts[at].harness.path(&socket)).unwrap();
        let question = json!({ "ask": "depart", "device": device, "process": std::process::id() });
        stream.write_all(format!("{question}\n").as_bytes()).unwrap();
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).unwrap();
        serde_json::from_str(&answer).unwrap()
    }
}
