//! State files with any content: each is refused, or read, and what a change then writes is read again.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;

use super::devices::{DeviceId, Devices};
use super::folder::Folder;
use super::leases::KnownLease;
use super::notes::{KnownNotes, NoteChange, NotedDevice};
use super::peers::Peers;
use crate::fuzzing::fuzz;

const ID: &str = "00112233445566778899aabbccddeeff";

const FILES: [&str; 5] = [
    r#"{"peers":[{"name":"desk","fingerprint":"00:11:22:33:44:55:66:77:88:99:aa:bb:cc:dd:ee:ff:00:11:22:33:44:55:66:77:88:99:aa:bb:cc:dd:ee:ff","address":"10.0.0.7:3241","paired":"2026-11-26T00:00:00Z","allow":["disk"],"bound":{"disk":["00112233445566778899aabbccddeeff"]}}]}"#,
    r#"{"devices":[{"id":"00112233445566778899aabbccddeeff","generation":1,"medium":"file:1:2","view":"ro","name":"disk","is_named":true,"seen":"2026-11-26T00:00:00Z"}]}"#,
    r#"{"devices":{"00112233445566778899aabbccddeeff":{"place":"rack 4","comment":"imx8","labels":{"board":"imx8"}}}}"#,
    r#"{"reserved":1900,"ahead":1900,"lease":{"host":"desk","number":8,"boot":1,"since_ms":2,"until_ms":3,"until_unix_ms":4},"bookings":[{"host":"desk","from_unix_ms":1,"span_ms":2}],"retirement":{"by":"k","host":"desk","since":"t"}}"#,
    "00000000000000001900 18446744073709549715\n",
];

const WORDS: [&str; 16] = [
    "null",
    "true",
    "-1",
    "1e999",
    "18446744073709551616",
    "\"\"",
    "[]",
    "{}",
    "\u{202e}",
    "\\u0000",
    "\\ud800",
    "\n",
    "\"reserved\":",
    "\"allow\":\"all\"",
    "[[[[[[[[",
    "\"name\":",
];

#[test]
fn fuzz_state_files() {
    let path = std::env::temp_dir().join(format!("farbus-fuzz-state-{}", std::process::id()));
    let _ = fs::remove_dir_all(&path);
    let folder = Folder::at(path);
    folder.make().unwrap();
    let device: DeviceId = ID.parse().unwrap();
    let (lease, count) = (format!("lease-{ID}.json"), format!("count-{ID}"));
    let names = ["peers.json", "devices.json", "labels.json", &lease, &count];
    fuzz(env!("CARGO_MANIFEST_DIR"), "fuzz_state_files", |input| {
        for name in names {
            let text = input.text(&FILES, &WORDS);
            let mut options = OpenOptions::new();
            let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(folder.file(name)).unwrap();
            file.write_all(text.as_bytes()).unwrap();
        }
        let written = || names.map(|name| fs::read(folder.file(name)).unwrap());
        let before = written();
        let peers = Peers::load(&folder);
        let devices = Devices::load(&folder);
        let known = KnownLease::load(&folder, device);
        assert_eq!(before, written(), "what is read is not changed");

        let changed = Peers::change(&folder, |peers| peers.clone());
        assert_eq!(peers.ok(), changed.ok(), "what is damaged is not replaced");
        let same = Devices::change(&folder, |devices| devices.clone());
        assert_eq!(devices.ok(), same.ok());
        let change: NoteChange = "board=x".parse().unwrap();
        let noted = KnownNotes::change(&folder, &NotedDevice::of(Some(device), "disk"), &[change]);
        if let Ok(Ok(notes)) = noted {
            assert_eq!(KnownNotes::of(&folder, &NotedDevice::of(Some(device), "disk")).unwrap(), notes);
        }
        let Ok(known) = known else {
            assert!(KnownLease::reserve(&folder, device, 5).is_err(), "a damaged file gives no number");
            return;
        };
        let number = KnownLease::reserve(&folder, device, 5).unwrap();
        assert!(number > known.reserved || known.reserved == u64::MAX, "{number} after {}", known.reserved);
        assert_eq!(KnownLease::load(&folder, device).unwrap().reserved, number);
    });
    fs::remove_dir_all(folder.path()).unwrap();
}
