//! Snapshots of released versions of farbus, kept as files: a later release must read each of them as the release that
//! wrote it.
//!
//! Files are named `snapshots/VERSION/NAME-NUMBER.PART`. Each version is recorded once, with the code that is released:
//!
//! ```text
//! FARBUS_RECORD_SNAPSHOTS=1 FARBUS_SEEDS=30 cargo test --package farbus-session \
//!     --test native --test isochronous --test reserve
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use farbus_session::snapshot::{VERSION, VERSION_MIN};

/// How many snapshots are kept per name.
const EACH: u32 = 2;
/// Sizes of recorded snapshots, bytes: not trivial, and small enough for a repository.
const BYTES: std::ops::Range<usize> = 100..6000;
/// Sizes of recorded snapshots with sound, bytes.
const SOUND_BYTES: std::ops::Range<usize> = 100..40_000;

/// How many there were in this run, by name.
static RECORDED: Mutex<BTreeMap<String, u32>> = Mutex::new(BTreeMap::new());

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots")
}

/// Records a snapshot of this version, if the tests run for that: every eighth, so that not all are from a world's
/// beginning.
pub fn note(name: &str, parts: &[&[u8]]) {
    note_some(name, parts, &BYTES, 8);
}

/// Records a snapshot with sound, of which there are fewer and larger ones.
#[allow(dead_code, reason = "not every test has sound")]
pub fn note_sound(name: &str, bytes: &[u8]) {
    note_some(name, &[bytes], &SOUND_BYTES, 1);
}

fn note_some(name: &str, parts: &[&[u8]], bytes: &std::ops::Range<usize>, every: u32) {
    let size = parts.iter().map(|part| part.len()).sum();
    if std::env::var_os("FARBUS_RECORD_SNAPSHOTS").is_none() || !bytes.contains(&size) {
        return;
    }
    let mut recorded = RECORDED.lock().unwrap();
    let number = recorded.entry(name.to_owned()).or_default();
    *number += 1;
    if !number.is_multiple_of(every) || *number > every * EACH {
        return;
    }
    let folder = folder().join(VERSION.to_string());
    fs::create_dir_all(&folder).unwrap();
    for (at, part) in parts.iter().enumerate() {
        fs::write(folder.join(format!("{name}-{}.{at}", *number / every)), part).unwrap();
    }
}

/// The snapshots of this name by every version that is read: a title, and the parts.
pub fn all(name: &str) -> Vec<(String, Vec<Vec<u8>>)> {
    let mut all = Vec::new();
    for version in VERSION_MIN..=VERSION {
        for number in 1..=EACH {
            let file = |part: usize| folder().join(version.to_string()).join(format!("{name}-{number}.{part}"));
            let parts: Vec<Vec<u8>> = (0..).map_while(|part| fs::read(file(part)).ok()).collect();
            if !parts.is_empty() {
                all.push((format!("{name}-{number} of version {version}"), parts));
            }
        }
    }
    assert!(all.iter().any(|(title, _)| title.ends_with(&VERSION_MIN.to_string())), "no {name} of the release before");
    all
}
