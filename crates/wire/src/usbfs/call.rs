//! The commands of usbfs, by the numbers of their ioctls.

/// How wide the pointers of the calling program are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PointerWidth {
    /// A program for a 32-bit processor on a kernel of 64 bits (`CONFIG_COMPAT`).
    Bits32,
    /// A program like the kernel.
    Bits64,
}

impl PointerWidth {
    /// Bytes of a pointer.
    pub const fn pointer_bytes(self) -> usize {
        match self {
            PointerWidth::Bits32 => 4,
            PointerWidth::Bits64 => 8,
        }
    }
}

/// A command of usbfs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsbfsIoctl {
    /// USBDEVFS_CONTROL: a control transfer, and wait for its end.
    Control,
    /// USBDEVFS_BULK: a bulk or interrupt transfer, and wait for its end.
    Bulk,
    /// USBDEVFS_RESETEP: forget the halt and the toggle of an endpoint here, without telling the device.
    ResetEndpoint,
    /// USBDEVFS_SETINTERFACE: select an alternate setting.
    SetInterface,
    /// USBDEVFS_SETCONFIGURATION: select a configuration.
    SetConfiguration,
    /// USBDEVFS_GETDRIVER: the driver of an interface.
    GetDriver,
    /// USBDEVFS_SUBMITURB: start a transfer.
    SubmitUrb,
    /// USBDEVFS_DISCARDURB: cancel a transfer.
    DiscardUrb,
    /// USBDEVFS_REAPURB: wait for a finished transfer.
    ReapUrb,
    /// USBDEVFS_REAPURBNDELAY: take a finished transfer, if there is one.
    ReapUrbNoDelay,
    /// USBDEVFS_DISCSIGNAL: send a signal when the device goes.
    DisconnectSignal,
    /// USBDEVFS_CLAIMINTERFACE: take an interface for this open file, unless a driver or another file has it.
    ClaimInterface,
    /// USBDEVFS_RELEASEINTERFACE: give back a claimed interface.
    ReleaseInterface,
    /// USBDEVFS_CONNECTINFO: the device's number, and whether it is slow.
    ConnectInfo,
    /// USBDEVFS_IOCTL: ask the driver of an interface; detaching and attaching drivers among it.
    Ioctl,
    /// USBDEVFS_RESET: reset the device's port.
    Reset,
    /// USBDEVFS_CLEAR_HALT: clear the halt of an endpoint, in the device too.
    ClearHalt,
    /// USBDEVFS_CLAIM_PORT: reserve a port of a hub.
    ClaimPort,
    /// USBDEVFS_RELEASE_PORT: give back a claimed port of a hub.
    ReleasePort,
    /// USBDEVFS_GET_CAPABILITIES: a bit mask of what this usbfs can do.
    GetCapabilities,
    /// USBDEVFS_DISCONNECT_CLAIM: detach the driver and claim, in one step.
    DisconnectClaim,
    /// USBDEVFS_ALLOC_STREAMS: allocate bulk streams on some endpoints of an interface.
    AllocStreams,
    /// USBDEVFS_FREE_STREAMS: free the bulk streams of some endpoints.
    FreeStreams,
    /// USBDEVFS_DROP_PRIVILEGES: from now on only certain interfaces.
    DropPrivileges,
    /// USBDEVFS_GET_SPEED: the speed at which the device runs.
    GetSpeed,
    /// USBDEVFS_CONNINFO_EX, with room for so many bytes.
    ConnectInfoEx(u16),
    /// USBDEVFS_FORBID_SUSPEND: keep the device from being suspended.
    ForbidSuspend,
    /// USBDEVFS_ALLOW_SUSPEND: let the device be suspended when it is idle.
    AllowSuspend,
    /// USBDEVFS_WAIT_FOR_RESUME: wait until a suspended device has resumed.
    WaitForResume,
}

/// `_IOC_WRITE` and `_IOC_READ`: the kernel reads or writes the caller's memory, as the header says. usbfs has some of
/// them the wrong way round.
const WRITE: u32 = 1;
const READ: u32 = 2;

/// The type of all usbfs ioctls.
const KIND: u32 = b'U' as u32;

/// `_IOC` of `include/uapi/asm-generic/ioctl.h`.
const fn number(direction: u32, nr: u32, bytes: u32) -> u32 {
    direction << 30 | bytes << 16 | KIND << 8 | nr
}

/// Number, direction, and bytes of the argument for callers of 64 and of 32 bits.
const TABLE: [(UsbfsIoctl, u32, u32, [u32; 2]); 28] = [
    (UsbfsIoctl::Control, 0, READ | WRITE, [24, 16]),
    (UsbfsIoctl::Bulk, 2, READ | WRITE, [24, 16]),
    (UsbfsIoctl::ResetEndpoint, 3, READ, [4, 4]),
    (UsbfsIoctl::SetInterface, 4, READ, [8, 8]),
    (UsbfsIoctl::SetConfiguration, 5, READ, [4, 4]),
    (UsbfsIoctl::GetDriver, 8, WRITE, [260, 260]),
    (UsbfsIoctl::SubmitUrb, 10, READ, [56, 44]),
    (UsbfsIoctl::DiscardUrb, 11, 0, [0, 0]),
    (UsbfsIoctl::ReapUrb, 12, WRITE, [8, 4]),
    (UsbfsIoctl::ReapUrbNoDelay, 13, WRITE, [8, 4]),
    (UsbfsIoctl::DisconnectSignal, 14, READ, [16, 8]),
    (UsbfsIoctl::ClaimInterface, 15, READ, [4, 4]),
    (UsbfsIoctl::ReleaseInterface, 16, READ, [4, 4]),
    (UsbfsIoctl::ConnectInfo, 17, WRITE, [8, 8]),
    (UsbfsIoctl::Ioctl, 18, READ | WRITE, [16, 12]),
    (UsbfsIoctl::Reset, 20, 0, [0, 0]),
    (UsbfsIoctl::ClearHalt, 21, READ, [4, 4]),
    (UsbfsIoctl::ClaimPort, 24, READ, [4, 4]),
    (UsbfsIoctl::ReleasePort, 25, READ, [4, 4]),
    (UsbfsIoctl::GetCapabilities, 26, READ, [4, 4]),
    (UsbfsIoctl::DisconnectClaim, 27, READ, [264, 264]),
    (UsbfsIoctl::AllocStreams, 28, READ, [8, 8]),
    (UsbfsIoctl::FreeStreams, 29, READ, [8, 8]),
    (UsbfsIoctl::DropPrivileges, 30, WRITE, [4, 4]),
    (UsbfsIoctl::GetSpeed, 31, 0, [0, 0]),
    (UsbfsIoctl::ForbidSuspend, 33, 0, [0, 0]),
    (UsbfsIoctl::AllowSuspend, 34, 0, [0, 0]),
    (UsbfsIoctl::WaitForResume, 35, 0, [0, 0]),
];

impl UsbfsIoctl {
    /// The command with this ioctl number, of a caller with such pointers. `None`: the kernel answers ENOTTY.
    pub fn decode(command: u32, width: PointerWidth) -> Option<Self> {
        let bytes = command >> 16 & 0x3fff;
        if command == number(READ, 32, bytes) {
            return Some(UsbfsIoctl::ConnectInfoEx(bytes as u16));
        }
        let at = usize::from(width == PointerWidth::Bits32);
        let found = TABLE.iter().find(|(_, nr, direction, bytes)| command == number(*direction, *nr, bytes[at]));
        found.map(|(call, ..)| *call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `cc` prints for the macros of the header, on x86-64 and with `-m32`.
    const FROM_THE_HEADER: [(u32, u32, UsbfsIoctl); 14] = [
        (0xc018_5500, 0xc010_5500, UsbfsIoctl::Control),
        (0xc018_5502, 0xc010_5502, UsbfsIoctl::Bulk),
        (0x8004_5503, 0x8004_5503, UsbfsIoctl::ResetEndpoint),
        (0x8008_5504, 0x8008_5504, UsbfsIoctl::SetInterface),
        (0x4104_5508, 0x4104_5508, UsbfsIoctl::GetDriver),
        (0x8038_550a, 0x802c_550a, UsbfsIoctl::SubmitUrb),
        (0x0000_550b, 0x0000_550b, UsbfsIoctl::DiscardUrb),
        (0x4008_550c, 0x4004_550c, UsbfsIoctl::ReapUrb),
        (0x4008_550d, 0x4004_550d, UsbfsIoctl::ReapUrbNoDelay),
        (0xc010_5512, 0xc00c_5512, UsbfsIoctl::Ioctl),
        (0x8004_551a, 0x8004_551a, UsbfsIoctl::GetCapabilities),
        (0x8108_551b, 0x8108_551b, UsbfsIoctl::DisconnectClaim),
        (0x0000_551f, 0x0000_551f, UsbfsIoctl::GetSpeed),
        (0x8018_5520, 0x8018_5520, UsbfsIoctl::ConnectInfoEx(24)),
    ];

    #[test]
    fn commands_have_the_numbers_of_the_kernels_header() {
        for (wide, narrow, call) in FROM_THE_HEADER {
            assert_eq!(UsbfsIoctl::decode(wide, PointerWidth::Bits64), Some(call), "{wide:#x}");
            assert_eq!(UsbfsIoctl::decode(narrow, PointerWidth::Bits32), Some(call), "{narrow:#x}");
        }
    }

    #[test]
    fn a_number_of_the_other_width_is_unknown() {
        assert_eq!(UsbfsIoctl::decode(0x802c_550a, PointerWidth::Bits64), None);
        assert_eq!(UsbfsIoctl::decode(0x8038_550a, PointerWidth::Bits32), None);
        assert_eq!(UsbfsIoctl::decode(0x5401, PointerWidth::Bits64), None);
    }
}
