//! Over what a paired host is reached.

use std::fmt;
use std::str::FromStr;

/// What the links of a session run over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkTransport {
    /// TLS over TCP.
    #[default]
    Tcp,
    /// QUIC: for networks that lose much, or change their address.
    Quic,
}

impl LinkTransport {
    /// All of them.
    pub const ALL: [LinkTransport; 2] = [LinkTransport::Tcp, LinkTransport::Quic];

    /// The word for it in options.
    pub fn as_str(self) -> &'static str {
        match self {
            LinkTransport::Tcp => "tcp",
            LinkTransport::Quic => "quic",
        }
    }
}

impl fmt::Display for LinkTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for LinkTransport {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = LinkTransport::ALL.into_iter().find(|over| over.as_str() == text);
        known.ok_or_else(|| format!("'{text}' is no way to a host: there are tcp and quic"))
    }
}
