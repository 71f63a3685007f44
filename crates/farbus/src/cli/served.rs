//! Where NBD clients find what is served to them, as a person is told.

use serde::Serialize;

use super::Failure;
use super::output::{print_json, say};
use super::owner::format_bytes;

/// An export, as its clients find it.
#[derive(Clone, Debug, Serialize)]
pub struct Served {
    /// What clients are given.
    pub uri: String,
    /// Its name; empty if it is the only one.
    pub name: String,
    /// Its size.
    pub size_bytes: u64,
}

/// Says where exports are, and what can be done with the first.
pub fn say_served(what: &str, served: &[Served], as_json: bool) -> Result<(), Failure> {
    if as_json {
        return print_json(&serde_json::json!({ "exports": served }));
    }
    for Served { uri, name, size_bytes } in served {
        let name = if name.is_empty() { String::new() } else { format!(" '{name}'") };
        say(format!("{what}{name} as {uri} ({})   (Ctrl-C or 'farbus detach' ends)", format_bytes(*size_bytes)));
    }
    let uri = served.first().map(|first| first.uri.as_str()).unwrap_or_default();
    say(format!(
        "  next: nbdcopy --progress '{uri}' copy.img, or \
         qemu-system-x86_64 -drive 'file={uri},format=raw,if=virtio'"
    ));
    Ok(())
}
