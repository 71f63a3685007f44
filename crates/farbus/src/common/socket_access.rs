//! Which users of this machine may connect at a Unix socket: its file mode and its group.

use std::fmt;
use std::io;
use std::str::FromStr;

use farbus_io_linux::sys::users::group_number;
use farbus_io_net::link::{MODE_BITS, OWNER_ALONE};
use serde::{Deserialize, Serialize};

/// The bit of a mode that lets the group connect.
const GROUP_CONNECTS: u32 = 0o020;
/// The mode of a socket that has a group and of which no mode was said.
const OWNER_AND_GROUP: u32 = 0o660;

/// The file mode of a Unix socket, which decides who may connect. The default is its owner only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketMode(u32);

impl Default for SocketMode {
    fn default() -> Self {
        Self(OWNER_ALONE)
    }
}

impl FromStr for SocketMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mode = u32::from_str_radix(text, 8)
            .ok()
            .filter(|mode| mode & !MODE_BITS == 0 && mode & OWNER_ALONE == OWNER_ALONE);
        mode.map(Self).ok_or_else(|| {
            format!(
                "'{text}' is no mode of a socket: 600 is its owner, 660 its group too, 666 every user of this machine"
            )
        })
    }
}

/// A group of this machine, as a person names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SocketGroup {
    /// By name, as `/etc/group` has it.
    Name(String),
    /// By the group's number (gid).
    Number(u32),
}

impl SocketGroup {
    /// Parses a group of which this machine knows the number.
    ///
    /// # Errors
    /// A sentence: it is no name of a group, or no group has the name.
    pub fn known(text: &str) -> Result<Self, String> {
        let group: Self = text.parse()?;
        group.number().map(|_| group).map_err(|error| error.to_string())
    }

    /// The group's number (gid).
    ///
    /// # Errors
    /// No group has the name, or the groups cannot be read.
    fn number(&self) -> io::Result<u32> {
        match self {
            Self::Number(number) => Ok(*number),
            Self::Name(name) => group_number(name)?.ok_or_else(|| {
                let message = format!(
                    "no group of this machine is called '{name}'\n  one that /etc/group does not know: say its number (getent group {name})"
                );
                io::Error::new(io::ErrorKind::InvalidInput, message)
            }),
        }
    }
}

impl FromStr for SocketGroup {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_word = |byte: u8| byte.is_ascii_graphic() && !b":,/".contains(&byte);
        match text.is_empty() || text.len() > 64 || !text.bytes().all(is_word) {
            true => Err(format!("'{text}' is no group: a name or a number")),
            // chown(2) takes the greatest number for "leave it is".
            false if text.parse() == Ok(u32::MAX) => Err(format!("{text} is the number of no group")),
            false => Ok(text.parse().map_or_else(|_| Self::Name(text.to_owned()), Self::Number)),
        }
    }
}

impl fmt::Display for SocketGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Number(number) => number.fmt(f),
        }
    }
}

/// Which users may connect at a Unix socket. The default is its owner only (and root).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketAccess {
    mode: SocketMode,
    group: Option<SocketGroup>,
}

impl SocketAccess {
    /// The mode and group that a person said. A group without a mode may connect.
    ///
    /// # Errors
    /// A sentence: the mode keeps the group out.
    pub fn from_settings(mode: Option<SocketMode>, group: Option<SocketGroup>) -> Result<Self, String> {
        let usual = if group.is_some() { SocketMode(OWNER_AND_GROUP) } else { SocketMode::default() };
        let mode = mode.unwrap_or(usual);
        match &group {
            Some(group) if mode.0 & GROUP_CONNECTS == 0 => {
                Err(format!("mode {:o} keeps the group {group} out: 660 lets it connect", mode.0))
            }
            _ => Ok(Self { mode, group }),
        }
    }

    /// The permission bits of the socket's file.
    pub(super) fn mode(&self) -> u32 {
        self.mode.0
    }

    /// The number (gid) of the group that the socket is given to, if it is given to one.
    ///
    /// # Errors
    /// No group has the name, or the groups cannot be read.
    pub(super) fn group_number(&self) -> io::Result<Option<u32>> {
        self.group.as_ref().map(SocketGroup::number).transpose()
    }
}

impl From<SocketMode> for SocketAccess {
    fn from(mode: SocketMode) -> Self {
        Self { mode, group: None }
    }
}

/// Describes what differs from the default: `, mode 660, group kvm`.
impl fmt::Display for SocketAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.mode != SocketMode::default() {
            write!(f, ", mode {:o}", self.mode.0)?;
        }
        self.group.iter().try_for_each(|group| write!(f, ", group {group}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mode_of_a_socket_is_its_owners_at_least_and_runs_nothing() {
        assert_eq!("0660".parse(), Ok(SocketMode(0o660)));
        for wrong in ["", "777", "060", "8", "rw", "1660"] {
            assert!(wrong.parse::<SocketMode>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn group_may_connect_unless_the_mode_contradicts() {
        let access = |mode: Option<&str>, group: Option<&str>| {
            SocketAccess::from_settings(
                mode.map(|mode| mode.parse().unwrap()),
                group.map(|group| group.parse().unwrap()),
            )
        };
        assert_eq!(access(None, None), Ok(SocketAccess::default()));
        assert_eq!(access(None, Some("kvm")).unwrap().to_string(), ", mode 660, group kvm");
        assert_eq!(access(Some("666"), Some("108")).unwrap().to_string(), ", mode 666, group 108");
        assert_eq!(access(None, None).unwrap().to_string(), "", "earlier releases describe a socket like this");
        assert!(access(Some("600"), Some("kvm")).unwrap_err().contains("660 lets it connect"));
        assert_eq!(access(None, Some("108")).unwrap().group_number().unwrap(), Some(108));
    }

    #[test]
    fn unknown_group_is_refused_with_what_to_say_instead() {
        assert_eq!(SocketGroup::known("root"), Ok(SocketGroup::Name("root".into())));
        assert!(SocketGroup::known("no-such-group").unwrap_err().contains("getent group no-such-group"));
        for wrong in ["", "a b", "a:b", "a,b"] {
            assert!(SocketGroup::known(wrong).unwrap_err().contains("a name or a number"), "{wrong}");
        }
        assert!(SocketGroup::known("4294967295").unwrap_err().contains("no group"), "it would change nothing");
    }
}
