//! How the distance to a device is hidden.

use std::fmt;
use std::str::FromStr;

/// Whether a far device is asked for data before its user asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ahead {
    /// As far as its class allows, and its distance makes it worth while.
    #[default]
    Auto,
    /// Never: all that is asked of it is what its user asks.
    Off,
}

impl Ahead {
    /// All of them.
    pub const ALL: [Ahead; 2] = [Ahead::Auto, Ahead::Off];

    /// The word for it in options.
    pub fn as_str(self) -> &'static str {
        match self {
            Ahead::Auto => "auto",
            Ahead::Off => "off",
        }
    }
}

impl fmt::Display for Ahead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Ahead {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Ahead::ALL.into_iter().find(|ahead| ahead.as_str() == text);
        known.ok_or_else(|| format!("'{text}' is no way to ask: there are auto and off"))
    }
}
