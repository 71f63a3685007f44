//! Basic usbredir types: capabilities, outcomes, and parsing of numbers.

use farbus_model::UrbStatus;

/// An end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedirRole {
    /// It has the device.
    Host,
    /// It uses the device.
    Guest,
}

impl RedirRole {
    /// The other end.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            RedirRole::Host => RedirRole::Guest,
            RedirRole::Guest => RedirRole::Host,
        }
    }
}

/// A capability. It is used only where both ends have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedirCapability {
    /// USB 3 bulk streams, and their number in `ep_info`.
    BulkStreams = 0,
    /// `device_connect` has a `bcdDevice` field.
    ConnectDeviceVersion = 1,
    /// `filter_filter` and `filter_reject`.
    Filter = 2,
    /// The guest answers `device_disconnect` with `device_disconnect_ack`.
    DeviceDisconnectAck = 3,
    /// `ep_info` has packet sizes.
    EpInfoMaxPacketSize = 4,
    /// Packets' ids have 64 bits.
    Ids64 = 5,
    /// A bulk packet's length has 32 bits.
    BulkLength32 = 6,
    /// Bulk data is received ahead.
    BulkReceiving = 7,
}

/// A set of capabilities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RedirCapabilitySet(u32);

impl RedirCapabilitySet {
    /// No capabilities: what an end has until it has said hello.
    pub const NONE: RedirCapabilitySet = RedirCapabilitySet(0);

    /// Decodes the wire's first word; later words are for future capabilities.
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// As the wire's word.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Adds a capability.
    #[must_use]
    pub const fn with(self, capability: RedirCapability) -> Self {
        Self(self.0 | 1 << capability as u32)
    }

    /// Whether the capability is in the set.
    pub const fn has(self, capability: RedirCapability) -> bool {
        self.0 & 1 << capability as u32 != 0
    }

    /// The capabilities of both sets.
    #[must_use]
    pub const fn common(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

/// The outcome of a transfer or a request (`usb_redir_success` and so on).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedirStatus {
    /// All is well.
    Success,
    /// The guest cancelled the transfer before it ended.
    Cancelled,
    /// The request is invalid.
    Invalid,
    /// The transfer failed on the bus, or for a reason without a status of its own.
    IoError,
    /// The endpoint is halted, or the request was refused.
    Stall,
    /// The device did not answer in time.
    TimedOut,
    /// The device sent more than there was space for.
    Babble,
    /// A number of a later version: some error.
    Unknown(u8),
}

impl RedirStatus {
    /// The wire's number.
    pub const fn code(self) -> u8 {
        match self {
            RedirStatus::Success => 0,
            RedirStatus::Cancelled => 1,
            RedirStatus::Invalid => 2,
            RedirStatus::IoError => 3,
            RedirStatus::Stall => 4,
            RedirStatus::TimedOut => 5,
            RedirStatus::Babble => 6,
            RedirStatus::Unknown(code) => code,
        }
    }

    /// From the wire's number.
    pub const fn from_code(code: u8) -> Self {
        match code {
            0 => RedirStatus::Success,
            1 => RedirStatus::Cancelled,
            2 => RedirStatus::Invalid,
            3 => RedirStatus::IoError,
            4 => RedirStatus::Stall,
            5 => RedirStatus::TimedOut,
            6 => RedirStatus::Babble,
            _ => RedirStatus::Unknown(code),
        }
    }
}

impl From<UrbStatus> for RedirStatus {
    fn from(status: UrbStatus) -> Self {
        match status {
            // An isochronous packet that was not transferred is sent as one without bytes.
            UrbStatus::Ok | UrbStatus::Short | UrbStatus::IsoMissed => RedirStatus::Success,
            UrbStatus::Cancelled | UrbStatus::Shutdown => RedirStatus::Cancelled,
            UrbStatus::Invalid => RedirStatus::Invalid,
            UrbStatus::Stall => RedirStatus::Stall,
            UrbStatus::TimedOut => RedirStatus::TimedOut,
            UrbStatus::Overflow => RedirStatus::Babble,
            // `device_disconnect` reports a device that is gone.
            UrbStatus::Protocol
            | UrbStatus::Crc
            | UrbStatus::DataRate
            | UrbStatus::Gone
            | UrbStatus::NoCredit
            | UrbStatus::Other => RedirStatus::IoError,
        }
    }
}

/// Reads numbers of a header whose size was checked.
#[derive(Debug)]
pub(super) struct RedirHeaderReader<'a>(pub &'a [u8]);

impl RedirHeaderReader<'_> {
    pub fn u8(&mut self) -> u8 {
        u8::from_le_bytes(self.take())
    }

    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }

    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (number, rest) = self.0.split_first_chunk().expect("a header's size was checked before it is read");
        self.0 = rest;
        *number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_survives_the_wire() {
        for code in 0..=255 {
            assert_eq!(RedirStatus::from_code(code).code(), code);
        }
        assert_eq!(RedirStatus::from(UrbStatus::Overflow), RedirStatus::Babble);
    }

    #[test]
    fn common_capabilities_are_those_of_both() {
        let ours = RedirCapabilitySet::NONE.with(RedirCapability::Filter).with(RedirCapability::Ids64);
        let common = ours.common(RedirCapabilitySet::from_bits(u32::MAX ^ 1 << 2));
        assert!(common.has(RedirCapability::Ids64) && !common.has(RedirCapability::Filter));
        assert_eq!(ours.bits(), 0b10_0100);
    }
}
