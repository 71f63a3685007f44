//! The version that `farbus --version` prints.

use std::sync::OnceLock;

use farbus_io_linux::sys::program_commit::program_commit;

/// The version, and the commit that the program was built from if it is known: `0.2.0 (0123456789ab)`.
pub fn program_version() -> &'static str {
    static VERSION: OnceLock<String> = OnceLock::new();
    let version = env!("CARGO_PKG_VERSION");
    VERSION.get_or_init(|| match program_commit() {
        Some(commit) => format!("{version} ({commit})"),
        None => version.to_owned(),
    })
}
