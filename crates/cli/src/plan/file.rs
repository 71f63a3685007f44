//! Reads the files that plans are made from.

use std::fs;
use std::path::Path;

use serde::de::DeserializeOwned;

use super::super::output::CommandFailure;

/// The largest file that is read: a plan of everything a bus can have is a tenth of it.
const BYTES_MAX: u64 = 1 << 20;

/// Parses TOML; an error names its source (`name`), the line and the problem.
pub fn parse<T: DeserializeOwned>(name: &str, text: &str) -> Result<T, CommandFailure> {
    toml::from_str(text).map_err(|error| CommandFailure::local(format!("{name}: {}", error.to_string().trim_end())))
}

/// The text in `path`.
pub fn text(path: &Path) -> Result<String, CommandFailure> {
    let shown = path.display();
    let length = fs::metadata(path).map_err(|error| CommandFailure::local(format!("{shown}: {error}")))?.len();
    if length > BYTES_MAX {
        return Err(CommandFailure::local(format!("{shown}: {length} bytes: a plan has at most {BYTES_MAX}")));
    }
    fs::read_to_string(path).map_err(|error| CommandFailure::local(format!("{shown}: {error}")))
}

/// Writes a drawing.
pub fn write(path: &Path, text: &str) -> Result<(), CommandFailure> {
    fs::write(path, text).map_err(|error| CommandFailure::local(format!("{}: {error}", path.display())))
}
