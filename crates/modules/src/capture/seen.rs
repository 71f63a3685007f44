//! What an observer saw of a transfer.

/// A USB transfer of which an observer saw the end.
#[derive(Clone, Copy, Debug)]
pub struct SeenTransfer<'a> {
    /// Its number in the recording.
    pub id: u64,
    /// The endpoint, with the bit of its direction.
    pub endpoint: u8,
    /// The transfer type as in `bmAttributes` (USB 2.0, table 9-13).
    pub kind: u8,
    /// How it ended, as on the wire.
    pub status: u8,
    /// How many transfers before it were not seen.
    pub missed: u64,
    /// When it ended, nanoseconds since 1970.
    pub unix_ns: u64,
    /// The bytes and the status of each isochronous packet.
    pub packets: &'a [(u32, u8)],
    /// The data that was received. What is beyond 192 KiB is not recorded: Wireshark accepts no longer packet.
    pub data: &'a [u8],
}
