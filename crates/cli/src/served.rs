//! Tells people where NBD clients find the exports.

use farbus::frontend::NbdExportAddress;
use farbus::frontend::nbd::next_for;
use farbus_control::units::format_bytes;
use serde_json::json;

use super::CommandFailure;
use super::output::{print_json, say};

/// Prints where exports are, and what can be done with the first.
pub fn say_served(exports: &[NbdExportAddress], as_json: bool) -> Result<(), CommandFailure> {
    if as_json {
        return say_exports(exports);
    }
    for NbdExportAddress { uri, name, size_bytes } in exports {
        let name = if name.is_empty() { String::new() } else { format!(" '{name}'") };
        say(format!("serving{name} as {uri} ({})   (Ctrl-C or 'farbus detach' ends)", format_bytes(*size_bytes)));
    }
    let uri = exports.first().map(|first| first.uri.as_str()).unwrap_or_default();
    say(format!("  next: {}", next_for(uri)));
    Ok(())
}

/// Prints where exports are, for programs.
pub fn say_exports(exports: &[NbdExportAddress]) -> Result<(), CommandFailure> {
    print_json(&json!({ "exports": exports }))
}
