//! Where the workspace is.

use std::path::{Path, PathBuf};

/// The workspace's root: the folder above xtask's own.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("xtask stands in a folder of the workspace").to_owned()
}
