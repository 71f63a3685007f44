//! How the distance to a device is hidden.

use std::fmt;
use std::str::FromStr;

/// Whether a far device is asked for data before its user asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrefetchMode {
    /// As far as its class allows, and its distance makes it worth while.
    #[default]
    Auto,
    /// Never: all that is asked of it is what its user asks.
    Off,
}

impl PrefetchMode {
    /// All of them.
    pub const ALL: [PrefetchMode; 2] = [PrefetchMode::Auto, PrefetchMode::Off];

    /// The word for it in options.
    pub fn as_str(self) -> &'static str {
        match self {
            PrefetchMode::Auto => "auto",
            PrefetchMode::Off => "off",
        }
    }
}

impl fmt::Display for PrefetchMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for PrefetchMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = PrefetchMode::ALL.into_iter().find(|ahead| ahead.as_str() == text);
        known.ok_or_else(|| format!("'{text}' is no way to ask: there are auto and off"))
    }
}
