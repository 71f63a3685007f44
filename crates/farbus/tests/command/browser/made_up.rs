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
}

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
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut asked = String::new();
                let _ = BufReader::new(&stream).read_line(&mut asked);
                let answer = match serde_json::from_str::<Value>(&asked) {
                    Ok(question) if question["ask"] == "status" => {
                        let devices = for_thread.lock().unwrap().clone();
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
        Self { devices }
    }

    /// Changes what it says.
    pub fn change(&self, change: impl FnOnce(&mut Vec<Value>)) {
        change(&mut self.devices.lock().unwrap());
    }
}
