//! Where the page for other machines is, for the commands that have to say it: `page-place.json`.

use serde::{Deserialize, Serialize};

use super::folder::{Folder, StateError};

const PLACE_FILE: &str = "page-place.json";
/// The largest such file that is read.
const PLACE_BYTES_MAX: u64 = 64 << 10;

/// Where a page listens for browsers of other machines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemotePage {
    /// The address that it listens on.
    pub listen: String,
    /// Its URL for other machines, without a path: `https://lab3:7241`.
    pub url: String,
    /// The fingerprint of its certificate, as browsers show it.
    pub fingerprint: String,
}

impl RemotePage {
    /// The place that was stored last; `None`: none was.
    ///
    /// # Errors
    /// [`StateError`]: the file cannot be read, or is damaged.
    pub fn load(folder: &Folder) -> Result<Option<Self>, StateError> {
        let Some(bytes) = folder.read(PLACE_FILE, PLACE_BYTES_MAX, true)? else { return Ok(None) };
        serde_json::from_slice(&bytes).map(Some).map_err(|error| {
            folder.trouble(
                PLACE_FILE,
                &format_args!("it is damaged: {error}\n  start the page again: it is written anew"),
            )
        })
    }

    /// Stores the place.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn store(&self, folder: &Folder) -> Result<(), StateError> {
        let text = serde_json::to_vec(self).map_err(|error| folder.trouble(PLACE_FILE, &error))?;
        let _lock = folder.lock()?;
        folder.write(PLACE_FILE, &text)
    }
}
