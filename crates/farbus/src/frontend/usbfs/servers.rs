//! Servers that programs ask instead of a device. One that runs outside does not see the devices of a run, and a
//! program inside is answered by it all the same.

use farbus_model::DescriptorSet;

/// ADB, smart-card readers (CCID), and the multiplexer of Apple's devices: class, subclass and protocol.
const ADB: [u8; 3] = [0xff, 0x42, 0x01];
const CARD_READER: u8 = 0x0b;
const APPLE_MULTIPLEXER: [u8; 3] = [0xff, 0xfe, 0x02];

/// Where a server listens.
#[derive(Clone, Copy, Debug)]
enum ServerAddress {
    /// At a TCP port of the loopback.
    Port(u16),
    /// At a Unix socket whose path ends so.
    Socket(&'static str),
}

/// A server that programs ask for devices of a kind.
#[derive(Debug)]
pub struct DeviceServer {
    /// As its users call it.
    pub name: &'static str,
    /// What ends it.
    pub ended_by: &'static str,
    address: ServerAddress,
    is_for: fn([u8; 3]) -> bool,
}

const SERVERS: [DeviceServer; 4] = [
    DeviceServer {
        name: "adb",
        ended_by: "adb kill-server",
        address: ServerAddress::Port(5037),
        is_for: |class| class == ADB,
    },
    DeviceServer {
        name: "pcscd",
        ended_by: "sudo systemctl stop pcscd.socket pcscd",
        address: ServerAddress::Socket("/pcscd/pcscd.comm"),
        is_for: |class| class[0] == CARD_READER,
    },
    DeviceServer {
        name: "scdaemon",
        ended_by: "gpgconf --kill scdaemon",
        address: ServerAddress::Socket("/S.scdaemon"),
        is_for: |class| class[0] == CARD_READER,
    },
    DeviceServer {
        name: "usbmuxd",
        ended_by: "sudo systemctl stop usbmuxd",
        address: ServerAddress::Socket("/run/usbmuxd"),
        is_for: |class| class == APPLE_MULTIPLEXER,
    },
];

/// The servers that run on this machine now and that programs ask for such a device.
pub fn running_for(descriptors: &DescriptorSet) -> Vec<&'static DeviceServer> {
    let interfaces = descriptors.configurations.iter().flat_map(|configuration| &configuration.settings);
    let classes: Vec<[u8; 3]> = interfaces.map(|setting| setting.class).collect();
    let is_meant = |server: &&DeviceServer| classes.iter().any(|class| (server.is_for)(*class));
    let mut meant = SERVERS.iter().filter(is_meant).peekable();
    if meant.peek().is_none() {
        return Vec::new();
    }
    let read = |name: &str| std::fs::read_to_string(format!("/proc/net/{name}")).unwrap_or_default();
    let (tcp, unix) = (read("tcp") + &read("tcp6"), read("unix"));
    meant.filter(|server| listens(server.address, &tcp, &unix)).collect()
}

/// Whether a process listens there, as `/proc/net/tcp` and `/proc/net/unix` have it (proc(5)).
fn listens(address: ServerAddress, tcp: &str, unix: &str) -> bool {
    /// `TCP_LISTEN` and `__SO_ACCEPTCON`.
    const LISTEN: &str = "0A";
    const ACCEPTS: &str = "00010000";
    match address {
        ServerAddress::Port(port) => tcp.lines().any(|line| {
            let mut fields = line.split_whitespace().skip(1);
            let is_it = fields.next().is_some_and(|local| local.ends_with(&format!(":{port:04X}")));
            is_it && fields.nth(1) == Some(LISTEN)
        }),
        ServerAddress::Socket(end) => unix.lines().any(|line| {
            let mut fields = line.split_whitespace().skip(3);
            fields.next() == Some(ACCEPTS) && fields.nth(3).is_some_and(|path| path.ends_with(end))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_that_listen_are_told_from_others() {
        let tcp = "  sl  local_address rem_address   st tx_queue\n   0: 0100007F:13AD 00000000:0000 0A 0:0\n   1: 0100007F:0016 0100007F:13AD 01 0:0\n";
        assert!(listens(ServerAddress::Port(5037), tcp, ""));
        assert!(!listens(ServerAddress::Port(22), tcp, "") && !listens(ServerAddress::Port(5038), tcp, ""));
        let unix = "Num       RefCount Protocol Flags    Type St Inode Path\n\
                    0000000000000000: 00000002 00000000 00010000 0001 01 1234 /run/pcscd/pcscd.comm\n\
                    0000000000000000: 00000003 00000000 00000000 0001 03 1235 /run/usbmuxd\n";
        assert!(listens(ServerAddress::Socket("/pcscd/pcscd.comm"), "", unix));
        assert!(!listens(ServerAddress::Socket("/run/usbmuxd"), "", unix), "that is a connection");
    }
}
