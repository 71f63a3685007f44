//! All limits of farbus, with the reason for each number.

use core::time::Duration;

/// Packets in one isochronous URB: what Linux and usbip-win2 accept (kernel `USBIP_MAX_ISO_PACKETS`).
pub const ISO_PACKETS_MAX: u32 = 1024;

/// Bytes of one URB's buffer. Linux's usbfs and usb-storage stay far below; usbip implementations have no common limit.
/// Sixteen MiB is twice what the largest known client (a scanner driver's bulk read) asks for.
pub const URB_BYTES_MAX: u32 = 16 << 20;

/// Isochronous or bulk URBs that a usbredir guest may have one stream keep in flight: what `usbredirserver` allows, and
/// all that QEMU asks for.
pub const STREAM_URBS_MAX: u8 = 16;
/// Packets in each of them.
pub const STREAM_PACKETS_PER_URB_MAX: u8 = 32;
/// Interrupt packets received ahead of a usbredir guest: a quarter of a second of a mouse's. None is dropped.
pub const INTERRUPTS_AHEAD_MAX: usize = 256;

/// Transfers of one endpoint that are received ahead of its user, on the exporter or here: those of a serial line at 3
/// Mbit/s in 0.16 s, with 64 bytes each.
pub const AHEAD_URBS_MAX: usize = 1024;
/// Bytes received ahead: those of a network adapter at 80 Mbit/s in 0.1 s.
pub const AHEAD_BYTES_MAX: usize = 1 << 20;

/// How long data fetched ahead from a disk stays valid, by the importer's clock, which continues while the machine
/// sleeps. For as long, an exporter gives the device of a lost importer to no other. This is longer than a client on a
/// bad network takes to read the next 128 KiB, and shorter than a person waits for a device.
pub const FETCHED_TIME_MAX: Duration = Duration::from_secs(4);

/// Memory that a kernel maps for one real device's transfers. Linux counts it against the 16 MiB for all devices
/// (`usbfs_memory_mb`) while it is mapped: enough for a disk's transfers in flight, with space left for other devices.
pub const BORROWED_BYTES_MAX: usize = 4 << 20;

/// Bytes of one read or write of a store, so that its answer needs no more memory than a URB's.
pub const BLOCK_REQUEST_BYTES_MAX: u32 = URB_BYTES_MAX;
/// Ranges that a scratch view remembers as zeros; a file system that is discarded piece by piece makes far fewer.
pub const SCRATCH_ZEROED_MAX: usize = 1 << 16;
/// Bytes of which a scratch view tells at a time where its holes are: it looks at each sector.
pub const SCRATCH_MAPPED_BYTES_MAX: u64 = 64 << 20;

/// The smallest unit in which a swap records changes, bytes: a page, because with larger units a load of small random
/// writes dirties faster than the swap copies. A disk of more than 128 GiB has larger units.
pub const SWAP_GRANULE_BYTES_MIN: u64 = 4 << 10;
/// The most units of a swap: 4 MiB of bits.
pub const SWAP_GRANULES_MAX: u64 = 32 << 20;
/// Bytes that a swap copies at a time: enough for a disk's full speed, and little enough that a cancellation takes
/// effect soon.
pub const SWAP_RUN_BYTES_MAX: u64 = 256 << 10;
/// Bytes that a swap of far devices has on their way at a time: 40 MB/s over 100 ms, and little enough that requests of
/// the device's users need not wait long behind them.
pub const SWAP_FLIGHT_BYTES_MAX: u64 = 4 << 20;

/// Bytes of one NBD read or write, as a server announces it: what the specification lets a client ask for that was told
/// no limit ("Block size constraints": 2^25).
pub const NBD_ANNOUNCED_BYTES_MAX: u32 = 32 << 20;
/// Bytes of one NBD read or write that is carried out. Clients that read no limit ask for more than is announced: the
/// reference implementation's tests for 50 MB.
pub const NBD_REQUEST_BYTES_MAX: u32 = 64 << 20;
/// Bytes of an NBD request that are submitted to the device at a time, so that the first part of a long one is carried
/// out while the rest arrives: eight times the largest that programs ask for by default.
pub const NBD_PIECE_BYTES_MAX: u32 = 2 << 20;
/// Unanswered NBD requests of one connection; beyond, the server stops reading it. Linux's client keeps 128, nbdcopy
/// 64.
pub const NBD_REQUESTS_MAX: usize = 256;
/// Payload bytes of one NBD connection, held by the device or being returned; beyond, the server stops reading it.
/// Twice 32 requests of 256 KiB, which nbdcopy makes at once.
pub const NBD_PAYLOAD_BYTES_MAX: usize = 16 << 20;
/// Bytes of one NBD option: the longest name (4096) and as many queries.
pub const NBD_OPTION_BYTES_MAX: u32 = 16 << 10;
/// Options that an NBD client may send before it uses an export: what nbdkit allows.
pub const NBD_OPTIONS_MAX: u32 = 32;
/// NBD connections to one server at a time. nbdcopy opens 4, qemu-img up to 16.
pub const NBD_CONNECTIONS_MAX: usize = 16;
/// What all NBD clients of a process may hold together, bytes: as much as a paired host that uses devices
/// ([`crate::budget::MemoryBudget::DEFAULT`]).
pub const NBD_CLIENTS_BYTES_MAX: usize = 256 << 20;
/// What each NBD client holds of that from the beginning, bytes: a receive buffer, and requests of usual sizes. It
/// takes more while there is any.
pub const NBD_CLIENT_BYTES: usize = 1 << 20;
/// Observers of one device: as many as watch one user in a lab.
pub const OBSERVERS_MAX: usize = 16;
/// Events that wait for one observer: a second of an isochronous stream, a quarter of a second of a fast mouse.
pub const OBSERVED_EVENTS_MAX: usize = 256;
/// Bytes of the events that wait for one observer: eight camera transfers of 128 KiB.
pub const OBSERVED_BYTES_MAX: usize = 1 << 20;
/// Events that an observer may grant in advance.
pub const OBSERVED_GRANT_MAX: u32 = 4096;
/// Serial ports of a device whose console is observed: as many IN endpoints as a device may have.
pub const CONSOLE_PORTS_MAX: usize = 15;
/// Bytes of a console that wait for one observer, and as many on its link: more than five seconds at 115,200 bit/s.
pub const CONSOLE_BYTES_MAX: usize = 64 << 10;
/// Bytes of a console in one event: what waits for an observer is sent in pieces of at most so many.
pub const CONSOLE_EVENT_BYTES_MAX: usize = 4 << 10;
/// Events of a console that wait for one observer: with several ports that send in turn, each piece is one.
pub const CONSOLE_EVENTS_MAX: usize = 256;
/// Events of a console that an observer requests in advance: twice what waits, in the largest pieces.
pub const CONSOLE_WINDOW: u32 = 32;
/// Bytes of one frame of a stream: a picture of 2048 x 2048 points in 32 bits.
pub const FRAME_BYTES_MAX: u32 = 16 << 20;
/// Bytes of frames under way to one reader, and as many that wait for a grant; two frames whatever their size.
pub const FRAMES_BYTES_MAX: u32 = 16 << 20;
/// Frames under way to one reader, and as many that wait for a grant.
pub const FRAMES_MAX: u32 = 64;

/// Bytes of the transfers of one device that a program has by usbfs, from their submission until they are reaped. A
/// kernel has 16 MiB for all (`usbfs_memory_mb`), which the depth that a far device needs would use up alone.
pub const USBFS_DEVICE_BYTES_MAX: u64 = 64 << 20;
/// Bytes of the transfers of all devices that a program has by usbfs, from their submission until they are reaped.
pub const USBFS_BYTES_MAX: u64 = 256 << 20;

/// Bytes of one FUSE read or write: what Linux allows (`fs.fuse.max_pages_limit`, 256 pages).
pub const FUSE_REQUEST_BYTES_MAX: u32 = 1 << 20;
/// FUSE requests that a device has at a time; beyond, the kernel keeps its next ones. As many as the kernel may have
/// under way without a waiting program; a loop device keeps half of them busy.
pub const FUSE_REQUESTS_MAX: usize = 64;

/// Lanes of one session, each with a link of its own. With eight, one more lane adds little. A tag has three bits for
/// the lane.
pub const LANES_MAX: u16 = 8;

/// The largest credit of one device, bytes in flight: what a disk moves in 50 ms at 1.3 GB/s.
pub const CREDIT_BYTES_MAX: usize = 64 << 20;
/// The largest credit of one USB device, bytes in flight: twice the 16 MiB that Linux's usbfs permits its programs.
pub const USB_CREDIT_BYTES_MAX: usize = 32 << 20;
/// The smallest credit: one request of a kernel's disk driver. One request may be larger if it is alone.
pub const CREDIT_BYTES_MIN: usize = 128 << 10;

/// What one session may hold. Summed by [`SessionLimits::bytes_max`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionLimits {
    /// Requests in flight or queued. Linux's usb-storage needs 1, uas 30, testusb 32, a camera about 64.
    pub urbs_in_flight_max: usize,
    /// Payload bytes of all requests together: submitted to the device or being returned. Beyond, a request is refused.
    pub payload_bytes_max: usize,
    /// Reply bytes waiting for the link, beyond which no further request is started; its header waits. Half a
    /// second-level cache, so that data is sent while it is still in the cache.
    pub reply_bytes_backlog: usize,
    /// Header bytes waiting for a peer that keeps sending and never reads; beyond, it is cut off.
    pub reply_header_bytes_max: usize,
    /// Receive buffer: large enough that 32 requests of 4 KiB arrive in one read.
    pub receive_bytes: usize,
    /// A payload up to this length is copied out of the receive buffer; a longer one is lent from it. An NBD connection
    /// copies only payloads that arrived nearly alone.
    pub copied_bytes_max: usize,
    /// Idle buffers kept for reuse.
    pub pool_bytes: usize,
    /// What an encrypted link buffers: bytes received and not decrypted, decrypted and not taken, encrypted and not
    /// sent. A plain link buffers nothing.
    pub link_bytes: usize,
}

impl SessionLimits {
    /// The default of a session.
    pub const DEFAULT: SessionLimits = SessionLimits {
        urbs_in_flight_max: 4096,
        payload_bytes_max: USB_CREDIT_BYTES_MAX,
        reply_bytes_backlog: 512 << 10,
        reply_header_bytes_max: 2 << 20,
        receive_bytes: 256 << 10,
        copied_bytes_max: 0,
        pool_bytes: 4 << 20,
        link_bytes: 512 << 10,
    };

    /// For a session that relays what it receives, and keeps it until 256 KiB are acknowledged: it lends few payloads,
    /// so that receive buffers can be reused.
    pub const RELAYED: SessionLimits = SessionLimits { copied_bytes_max: 64 << 10, ..SessionLimits::DEFAULT };

    /// The most memory that a session's payloads can take; the sum names every holder.
    pub const fn bytes_max(&self) -> usize {
        // Bytes received and not yet parsed; a large frame's buffer doubles as it arrives.
        self.receive_bytes + 2 * URB_BYTES_MAX as usize
            // Requests and replies, the one request that exceeds the limit, and refusals behind them.
            + self.payload_bytes_max + URB_BYTES_MAX as usize + self.reply_header_bytes_max
            // Idle buffers.
            + self.pool_bytes
            // Mapped and idle.
            + BORROWED_BYTES_MAX
            // TLS.
            + self.link_bytes
    }
}

/// Receive buffers kept for reuse by a relaying session: 32 requests of 128 KiB, twice, in buffers of 256 KiB.
pub const RECEIVE_BUFFERS_KEPT_MAX: usize = 32;

/// The most memory that the payloads of one NBD connection can take.
pub const fn nbd_bytes_max(receive_bytes: usize, pool_bytes: usize) -> usize {
    // Bytes received and not yet parsed: a piece's buffer doubles as it arrives.
    receive_bytes + 2 * NBD_PIECE_BYTES_MAX as usize
        // Requests and replies, and the one read that is held whole although it exceeds the limit.
        + NBD_PAYLOAD_BYTES_MAX + NBD_REQUEST_BYTES_MAX as usize
        // Idle buffers.
        + pool_bytes + RECEIVE_BUFFERS_KEPT_MAX * receive_bytes
}

impl Default for SessionLimits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Bytes of a telnet sub-negotiation: the longest that serial ports have is a name.
pub const TELNET_OPTION_BYTES_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_bounded() {
        assert!(SessionLimits::DEFAULT.bytes_max() < 96 << 20, "{}", SessionLimits::DEFAULT.bytes_max());
        let nbd = nbd_bytes_max(SessionLimits::DEFAULT.receive_bytes, SessionLimits::DEFAULT.pool_bytes);
        assert!(nbd < 104 << 20, "{nbd}");
    }
}
