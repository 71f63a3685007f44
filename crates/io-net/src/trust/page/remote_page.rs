//! Where the page for other machines is, for the commands that have to say it: `page-place.json`.

use std::net::SocketAddr;

use farbus_control::notes::is_shown;
use serde::{Deserialize, Serialize};

use crate::trust::state::folder::{HostFolder, StateError};

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
    pub fn load(folder: &HostFolder) -> Result<Option<Self>, StateError> {
        let Some(bytes) = folder.read(PLACE_FILE, PLACE_BYTES_MAX, true)? else { return Ok(None) };
        let damaged = |why: &dyn std::fmt::Display| {
            folder
                .trouble(PLACE_FILE, &format_args!("it is damaged: {why}\n  start the page again: it is written anew"))
        };
        let remote_page: Self = serde_json::from_slice(&bytes).map_err(|error| damaged(&error))?;
        match remote_page.is_whole() {
            true => Ok(Some(remote_page)),
            false => Err(damaged(&"it names no page")),
        }
    }

    /// Whether each part has the form in which it is stored: another user may have written it, and a terminal shows it.
    fn is_whole(&self) -> bool {
        let is_pair = |pair: &str| pair.len() == 2 && pair.bytes().all(|digit| digit.is_ascii_hexdigit());
        let host = self.url.strip_prefix("https://").unwrap_or_default();
        self.listen.parse::<SocketAddr>().is_ok()
            && !host.is_empty()
            && host.chars().all(|c| is_shown(c) && !c.is_whitespace() && !"/?#@\\".contains(c))
            && self.fingerprint.split(':').count() == 32
            && self.fingerprint.split(':').all(is_pair)
    }

    /// Stores the place.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn store(&self, folder: &HostFolder) -> Result<(), StateError> {
        let text = serde_json::to_vec(self).map_err(|error| folder.trouble(PLACE_FILE, &error))?;
        let _lock = folder.lock()?;
        folder.write(PLACE_FILE, &text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trust::records::leases::tests::LeaseScratchFolder;

    #[test]
    fn a_place_that_is_no_page_is_not_shown_to_a_terminal() {
        let scratch = LeaseScratchFolder::new("page-place");
        let (folder, fingerprint) = (&scratch.0, ["0F"; 32].join(":"));
        let page = |url: &str, fingerprint: &str| RemotePage {
            listen: "0.0.0.0:7241".into(),
            url: url.into(),
            fingerprint: fingerprint.into(),
        };
        for url in ["https://lab3.example:7241", "https://192.0.2.7", "https://[2001:db8::7]:7241"] {
            let stored = page(url, &fingerprint);
            stored.store(folder).unwrap();
            assert_eq!(RemotePage::load(folder).unwrap(), Some(stored));
        }
        let wrong =
            ["http://lab3", "https://", "https://a b", "https://lab3\u{1b}[2J", "https://lab3/x", "https://a@b"];
        for url in wrong {
            page(url, &fingerprint).store(folder).unwrap();
            assert!(RemotePage::load(folder).is_err(), "{url}");
        }
        page("https://lab3", &fingerprint.replace(':', "\u{7}")).store(folder).unwrap();
        assert!(RemotePage::load(folder).is_err());
    }
}
