//! Which users of this machine are served without encryption at a TCP port.
//!
//! A port of the loopback is open to every user of a machine, and what is offered there may be its owner's disk. So
//! each connection from this machine is checked against its user, whom the kernel reports
//! ([`farbus_io_linux::sys::tcp_owner`]). A connection that a program forwards, as `ssh -L` or a container's proxy
//! does, belongs to that program's user.

use std::collections::BTreeSet;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};
use std::{fmt, io};

use farbus_io_linux::sys::tcp_owner::PeerOwner;
use farbus_io_net::link::Link;
use farbus_io_net::local::runtime_folder;

use crate::broker::SystemAccess;
use crate::common::socket_place::ConnectionOrigin;

/// A user of this machine, or all of them, as a person names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalUser {
    /// By name, as `/etc/passwd` has it.
    Name(String),
    /// By the user's number (uid).
    Number(u32),
    /// Every user of this machine.
    All,
}

impl FromStr for LocalUser {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_word = |byte: u8| byte.is_ascii_graphic() && !b":,/".contains(&byte);
        match text {
            "all" => Ok(Self::All),
            _ if text.is_empty() || text.len() > 64 || !text.bytes().all(is_word) => {
                Err(format!("'{text}' is no user: a name, a number, or 'all'"))
            }
            _ => Ok(text.parse().map_or_else(|_| Self::Name(text.to_owned()), Self::Number)),
        }
    }
}

impl fmt::Display for LocalUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Number(number) => number.fmt(f),
            Self::All => f.write_str("all"),
        }
    }
}

/// Which of this machine's users are served. The owner of the process and root always are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalUsers {
    others: BTreeSet<u32>,
    is_open: bool,
}

impl LocalUsers {
    /// The owner, root, and `users`; `number_of` looks up a name's number (uid).
    ///
    /// # Errors
    /// No user has that name, or `number_of` failed.
    pub fn of(users: &[LocalUser], number_of: impl Fn(&str) -> io::Result<Option<u32>>) -> Result<Self, String> {
        let mut found = Self::default();
        for user in users {
            match user {
                LocalUser::All => found.is_open = true,
                LocalUser::Number(number) => drop(found.others.insert(*number)),
                LocalUser::Name(name) => {
                    let number = number_of(name).map_err(|error| format!("who '{name}' is cannot be read: {error}"))?;
                    let missing = || {
                        format!(
                            "no user of this machine is called '{name}'\n  one whom /etc/passwd does not know: say the number (id -u {name})"
                        )
                    };
                    found.others.insert(number.ok_or_else(missing)?);
                }
            }
        }
        Ok(found)
    }

    /// Whether the user with this number (uid) is served.
    pub fn serves(&self, user: u32) -> bool {
        self.is_open || user == 0 || user == runtime_folder::owner() || self.others.contains(&user)
    }
}

/// Why a connection from this machine is closed unread.
#[derive(Debug)]
pub enum NotServed {
    /// The connection belongs to this user (uid), who is not served.
    User(u32),
    /// The connecting program has closed its socket already, so its user cannot be found.
    Closed,
    /// The connection came from this machine, and the kernel does not report its user.
    Unknown(io::Error),
}

impl fmt::Display for NotServed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(user) => write!(
                f,
                "user {user} of this machine is not served here: 'farbus share --local-users {user}', in a daemon's file \
                 local_users = [\"{user}\"] in [plain], would"
            ),
            Self::Closed => f.write_str("its program has closed it, so whose it was cannot be known"),
            Self::Unknown(error) => write!(f, "which user of this machine it is cannot be known: {error}"),
        }
    }
}

impl std::error::Error for NotServed {}

/// Finds out which user of this machine made a connection, and whether that user is served.
#[derive(Debug, Default)]
pub struct LocalPeers {
    users: Mutex<LocalUsers>,
    /// Asks the kernel, directly or through the broker.
    system: Mutex<SystemAccess>,
}

impl LocalPeers {
    /// Sets which users are served from now on. Existing connections stay.
    pub fn serve(&self, users: LocalUsers) {
        *self.users.lock().unwrap_or_else(PoisonError::into_inner) = users;
    }

    /// Asks the kernel through `system` from now on.
    pub fn ask_through(&self, system: SystemAccess) {
        *self.system.lock().unwrap_or_else(PoisonError::into_inner) = system;
    }

    /// Whether the user with this number (uid) is served.
    pub fn serves(&self, user: u32) -> bool {
        self.users.lock().unwrap_or_else(PoisonError::into_inner).serves(user)
    }

    /// Finds the origin of a connection, with its user if it came from this machine.
    ///
    /// # Errors
    /// [`NotServed`] if the user is not served or cannot be found.
    pub fn recognize(&self, link: &Link, from: ConnectionOrigin) -> Result<ConnectionOrigin, NotServed> {
        let ConnectionOrigin::Address(address) = from else { return Ok(from) };
        let owner = self.system.lock().unwrap_or_else(PoisonError::into_inner).peer_owner(link);
        match owner {
            Ok(PeerOwner::User(user)) if self.serves(user) => Ok(ConnectionOrigin::Own(address, user)),
            Ok(PeerOwner::User(user)) => Err(NotServed::User(user)),
            Ok(PeerOwner::Closed) => Err(NotServed::Closed),
            Err(error) if address.ip().to_canonical().is_loopback() => Err(NotServed::Unknown(error)),
            Ok(PeerOwner::Elsewhere) | Err(_) => Ok(from),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_and_root_are_always_served_and_others_only_if_named() {
        let number_of = |name: &str| Ok((name == "ann").then_some(4000));
        let of = |words: &[&str]| {
            let users: Result<Vec<LocalUser>, _> = words.iter().map(|word| word.parse()).collect();
            LocalUsers::of(&users?, number_of)
        };
        let own = rustix::process::geteuid().as_raw();
        let nobody = of(&[]).unwrap();
        assert!(nobody.serves(own) && nobody.serves(0) && !nobody.serves(4000) && !nobody.serves(u32::MAX));
        let two = of(&["ann", "4001"]).unwrap();
        assert!(two.serves(4000) && two.serves(4001) && !two.serves(4002));
        assert!(of(&["all"]).unwrap().serves(4002));
        assert!(of(&["bob"]).unwrap_err().contains("say the number"));
        for wrong in ["", "a b", "a:b", "a,b"] {
            assert!(of(&[wrong]).is_err(), "{wrong}");
        }
    }
}
