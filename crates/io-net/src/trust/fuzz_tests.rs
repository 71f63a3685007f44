//! State files with any content: each is refused, or read, and what a change then writes is read again.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::time::{Duration, SystemTime};

use ring::digest::{SHA256, digest};

use super::{PageInvitation, PageTokenList, RemotePage, TOKEN_NAME_CHARS_MAX, is_shown};
use crate::fuzzing::fuzz;
use crate::trust::page::page_key::PageKey;
use crate::trust::records::devices::KnownDeviceList;
use crate::trust::records::leases::KnownLease;
use crate::trust::records::notes::{KnownNotes, NotedDevice};
use crate::trust::records::peers::PairedHostList;
use crate::trust::state::folder::HostFolder;
use farbus_control::identity::DeviceId;
use farbus_control::notes::NoteChange;

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

fn write(folder: &HostFolder, name: &str, text: &str) {
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(folder.file(name)).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

#[test]
fn fuzz_state_files() {
    let path = std::env::temp_dir().join(format!("farbus-fuzz-state-{}", std::process::id()));
    let _ = fs::remove_dir_all(&path);
    let folder = HostFolder::at(path);
    folder.make().unwrap();
    let device: DeviceId = ID.parse().unwrap();
    let (lease, count) = (format!("lease-{ID}.json"), format!("count-{ID}"));
    let names = ["peers.json", "devices.json", "labels.json", &lease, &count];
    fuzz(env!("CARGO_MANIFEST_DIR"), "fuzz_state_files", |input| {
        for name in names {
            write(&folder, name, &input.text(&FILES, &WORDS));
        }
        let written = || names.map(|name| fs::read(folder.file(name)).unwrap());
        let before = written();
        let peers = PairedHostList::load(&folder);
        let devices = KnownDeviceList::load(&folder);
        let known = KnownLease::load(&folder, device);
        assert_eq!(before, written(), "what is read is not changed");

        let changed = PairedHostList::change(&folder, |peers| peers.clone());
        assert_eq!(peers.ok(), changed.ok(), "what is damaged is not replaced");
        let same = KnownDeviceList::change(&folder, |devices| devices.clone());
        assert_eq!(devices.ok(), same.ok());
        let change: NoteChange = "board=x".parse().unwrap();
        let noted = KnownNotes::change(&folder, &NotedDevice::of(Some(device), "disk"), &[change]);
        if let Ok(Ok(notes)) = noted {
            assert_eq!(KnownNotes::of(&folder, &NotedDevice::of(Some(device), "disk")).unwrap(), notes);
        }
        let Ok(known) = known else {
            assert!(KnownLease::reserve(&folder, device, 0, 5).is_err(), "a damaged file gives no number");
            return;
        };
        let number = KnownLease::reserve(&folder, device, 0, 5).unwrap();
        assert!(number > known.reserved || known.reserved == u64::MAX, "{number} after {}", known.reserved);
        assert_eq!(KnownLease::load(&folder, device).unwrap().reserved, number);
    });
    fs::remove_dir_all(folder.path()).unwrap();
}

/// The secret of the token in [`PAGE_FILES`], and the code of the invitation there.
const SECRET: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

/// SHA-256 of a text, as the files have it.
fn hash(text: &str) -> String {
    digest(&SHA256, text.as_bytes()).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The files of a page, which another user may have written where root's daemon serves paired hosts: what lets somebody
/// in is what they say, and what a terminal is shown of them adds nothing to it.
#[test]
fn fuzz_page_files() {
    let now = SystemTime::now();
    let soon_ms = (now + Duration::from_secs(30)).duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis();
    let (of_secret, of_code) = (hash(SECRET), hash(ID));
    let tokens = format!(
        r#"{{"tokens":[{{"id":"00112233","name":"ci","scope":"read","made":"2026-11-26T00:00:00Z","sha256":"{of_secret}"}},{{"id":"44556677","scope":"own","made":"2026-11-26T00:00:00Z","expires":"2036-11-26T00:00:00Z","expires_unix_s":2111184000,"sha256":"{of_secret}"}}]}}"#
    );
    let invitations = format!(
        r#"{{"invitations":[{{"scope":"observe","name":"phone","lasts_s":3600,"until_ms":{soon_ms},"is_used":false,"sha256":"{of_code}"}}]}}"#
    );
    let page_json = r#"{"listen":"0.0.0.0:7241","url":"https://lab3.example:7241","fingerprint":"00:11:22:33:44:55:66:77:88:99:AA:BB:CC:DD:EE:FF:00:11:22:33:44:55:66:77:88:99:AA:BB:CC:DD:EE:FF"}"#;
    let path = std::env::temp_dir().join(format!("farbus-fuzz-page-{}", std::process::id()));
    let _ = fs::remove_dir_all(&path);
    let folder = HostFolder::at(path);
    folder.make().unwrap();
    PageKey::load_or_create(&folder, &["localhost".to_owned()]).unwrap();
    let key = fs::read_to_string(folder.file("page-key.pem")).unwrap();
    let names = ["page-tokens.json", "page-invitations.json", "page-place.json", "page-key.pem"];
    let words = [&WORDS[..], &["\\u001b[2J", "\\u0007", "9223372036854775807", "-----BEGIN CERTIFICATE-----"]].concat();
    let is_name = |name: &str| name.chars().all(is_shown) && name.chars().count() <= TOKEN_NAME_CHARS_MAX;
    fuzz(env!("CARGO_MANIFEST_DIR"), "fuzz_page_files", |input| {
        for (name, text) in names.iter().zip([&tokens, &invitations, page_json, &key]) {
            write(&folder, name, &input.text(&[text], &words));
        }
        let read = |name: &str| fs::read_to_string(folder.file(name)).unwrap();
        let before = names.map(read);
        let loaded = PageTokenList::load(&folder);
        for token in loaded.iter().flat_map(PageTokenList::iter) {
            assert!(is_name(token.called()) && is_name(&token.id) && is_name(&token.made), "{token:?}");
            assert!(token.expires.as_deref().is_none_or(is_name), "{token:?}");
            let shown = format!("farbus-page-{}-{SECRET}", token.id);
            let checked = loaded.as_ref().unwrap().check(&shown, now);
            assert!(checked.is_err() || before[0].contains(&of_secret), "{token:?}");
        }
        let remote_page = RemotePage::load(&folder);
        for page in remote_page.iter().flatten() {
            let texts = [&page.url, &page.listen, &page.fingerprint];
            assert!(
                texts.iter().all(|text| text.chars().all(is_shown)) && page.url.starts_with("https://"),
                "{page:?}"
            );
        }
        if let Ok(Some(key)) = PageKey::load(&folder) {
            let _ = (key.server_config(), key.fingerprint());
        }
        assert_eq!(before, names.map(read), "what is read is not changed");

        let redeemed = PageInvitation::redeem(&folder, ID, now);
        if let Ok(Ok((kept, token, lasts_s))) = &redeemed {
            assert!(before[1].contains(&of_code) && is_name(kept.called()) && kept.expires.is_some(), "{kept:?}");
            assert!(PageInvitation::redeem(&folder, ID, now).unwrap().is_err(), "a code counts once");
            assert!(PageTokenList::load(&folder).unwrap().check(token, now).is_ok() || *lasts_s < 5);
        } else {
            assert_eq!(before[1], read(names[1]), "what is damaged is not replaced");
        }
        if loaded.is_err() {
            assert!(PageTokenList::make(&folder, super::PageScope::Read, None, None).is_err());
            assert_eq!(before[0], read(names[0]), "what is damaged is not replaced");
        }
    });
    fs::remove_dir_all(folder.path()).unwrap();
}
