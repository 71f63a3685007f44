//! The bus behind a channel of a device.

/// What a bus behind a channel carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelBus {
    /// Its bit rate; 0 if it is off.
    pub bits_per_s: u32,
    /// The most messages a second, each as short as it can be.
    pub messages_per_s_max: u64,
}
