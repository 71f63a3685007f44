//! A process that is none: it says what a test wants on a control socket.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};

use super::super::harness::Harness;

/// The number of such a process; no process of this machine can have it.
pub const PID: u32 = 4_294_967_000;

/// What says it is a share with these devices. What a device has as `seconds` is its latency over time.
pub struct MadeUp {
    devices: Arc<Mutex<Vec<Value>>>,
    before_each: Arc<Mutex<Change>>,
}

type Change = Box<dyn FnMut(&mut Vec<Value>) + Send>;

impl MadeUp {
    /// Answers from now on, until the test ends.
    pub fn start(harness: &Harness, devices: Vec<Value>) -> Self {
        let folder = harness.path("run").join("farbus");
        std::fs::DirBuilder::new().mode(0o700).recursive(true).create(&folder).unwrap();
        let listener = UnixListener::bind(folder.join(format!("{PID}.sock"))).unwrap();
        let mode = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(folder.join(format!("{PID}.sock")), mode).unwrap();
        let devices = Arc::new(Mutex::new(devices));
        let for_thread = Arc::clone(&devices);
        let before_each: Arc<Mutex<Change>> = Arc::new(Mutex::new(Box::new(|_| {})));
        let change_before = Arc::clone(&before_each);
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut line = String::new();
                let _ = BufReader::new(&stream).read_line(&mut line);
                let answer = match serde_json::from_str::<Value>(&line) {
                    Ok(question) if question["ask"] == "status" => {
                        let mut devices = for_thread.lock().unwrap();
                        (change_before.lock().unwrap())(&mut devices);
                        let devices = devices.clone();
                        json!({ "ok": { "pid": PID, "role": "share", "address": "made up", "devices": devices } })
                    }
                    Ok(question) if question["ask"] == "latency" => {
                        let devices = for_thread.lock().unwrap();
                        let its = devices.iter().find(|device| device["name"] == question["device"]);
                        json!({ "ok": { "seconds": its.map(|device| device["seconds"].clone()) } })
                    }
                    _ => json!("unknown"),
                };
                let _ = writeln!(stream, "{answer}");
            }
        });
        Self { devices, before_each }
    }

    /// Changes what it says before each answer from now on: counters that go on by themselves.
    pub fn change_before_each(&self, change: impl FnMut(&mut Vec<Value>) + Send + 'static) {
        *self.before_each.lock().unwrap() = Box::new(change);
    }

    /// Changes what it says.
    pub fn change(&self, change: impl FnOnce(&mut Vec<Value>)) {
        change(&mut self.devices.lock().unwrap());
    }
}
