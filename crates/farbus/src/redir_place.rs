//! Where a usbredir guest finds a device: a socket in a folder, or an address.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use farbus_io::link::LocalListener;
use serde::{Deserialize, Serialize};

/// Where `farbus attach --via redir` listens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RedirPlace {
    /// A Unix socket, its owner's alone.
    Socket(PathBuf),
    /// A TCP address.
    Address(SocketAddr),
}

impl RedirPlace {
    /// Listens there.
    ///
    /// # Errors
    /// What the system says, with the place.
    pub fn listen(&self) -> io::Result<LocalListener> {
        let listener = match self {
            RedirPlace::Socket(path) => {
                if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
                    std::fs::create_dir_all(folder)?;
                }
                LocalListener::at(path)
            }
            RedirPlace::Address(address) => LocalListener::on(*address),
        };
        listener.map_err(|error| {
            let hint = match error.kind() {
                io::ErrorKind::AddrInUse => "\n  somebody listens there already: --socket PATH names another place",
                _ => "",
            };
            io::Error::new(error.kind(), format!("cannot wait for a guest at {self}: {error}{hint}"))
        })
    }

    /// The options of QEMU's `-chardev socket` that lead there. A comma in a path is doubled, as QEMU reads it.
    pub fn chardev_options(&self) -> String {
        match self {
            RedirPlace::Socket(path) => format!("path={}", path.display().to_string().replace(',', ",,")),
            RedirPlace::Address(address) => format!("host={},port={}", address.ip(), address.port()),
        }
    }
}

impl fmt::Display for RedirPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RedirPlace::Socket(path) => path.display().fmt(f),
            RedirPlace::Address(address) => address.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qemu_is_told_where() {
        let options = |place: RedirPlace| place.chardev_options();
        assert_eq!(options(RedirPlace::Socket("/run/a,b.sock".into())), "path=/run/a,,b.sock");
        assert_eq!(options(RedirPlace::Address("[::1]:4000".parse().unwrap())), "host=::1,port=4000");
    }
}
