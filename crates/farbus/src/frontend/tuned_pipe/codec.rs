//! How the messages of several pipes lie in the transfers of one endpoint.

/// A device's way of writing channels into its transfers. Messages have one size, each way.
pub trait Codec: Send {
    /// Bytes of a message.
    fn message_bytes(&self) -> usize;

    /// What a message that came is.
    fn sort(&mut self, message: &[u8]) -> Sorted;

    /// Writes into a message that is to go to which channel it goes.
    fn address(&mut self, channel: usize, message: &mut [u8]);

    /// Whether the device says of each message that it went out ([`Sorted::WentOut`]); without that a message is out
    /// when its transfer is.
    fn is_told(&self) -> bool;
}

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sorted {
    /// It came on a channel.
    Came {
        /// Which.
        channel: usize,
        /// The device says that it lost some before this.
        has_lost: bool,
    },
    /// One of ours went out on a channel.
    WentOut {
        /// Which.
        channel: usize,
    },
    /// Nobody's.
    Unknown,
}

/// One channel, whose bytes are cut into messages of a size.
#[derive(Clone, Copy, Debug)]
pub struct Whole {
    /// Of one message.
    pub message_bytes: usize,
}

impl Codec for Whole {
    fn message_bytes(&self) -> usize {
        self.message_bytes
    }

    fn sort(&mut self, _message: &[u8]) -> Sorted {
        Sorted::Came { channel: 0, has_lost: false }
    }

    fn address(&mut self, _channel: usize, _message: &mut [u8]) {}

    fn is_told(&self) -> bool {
        false
    }
}
