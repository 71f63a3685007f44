//! How the messages of several pipes are packed into the transfers of one endpoint.

/// How a device marks channels in its transfers. All messages of one direction have one size.
pub trait ChannelCodec: Send {
    /// Bytes of a message.
    fn message_bytes(&self) -> usize;

    /// Classifies a message that arrived.
    fn sort(&mut self, message: &[u8]) -> MessageClass;

    /// Writes the channel into an outgoing message.
    fn address(&mut self, channel: usize, message: &mut [u8]);

    /// Whether the device reports each message that went out ([`MessageClass::WentOut`]); without reports a message
    /// counts as out when its transfer completes.
    fn is_told(&self) -> bool;
}

/// What an incoming message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageClass {
    /// It arrived on a channel.
    Came {
        /// The channel that it arrived on, counted from 0.
        channel: usize,
        /// The device reports that it lost messages before this one.
        has_lost: bool,
    },
    /// It reports that one of ours went out on a channel.
    WentOut {
        /// The channel that it went out on, counted from 0.
        channel: usize,
    },
    /// It belongs to no channel.
    Unknown,
}

/// One channel, whose bytes are cut into messages of one size.
#[derive(Clone, Copy, Debug)]
pub struct SingleChannelCodec {
    /// Bytes of one message.
    pub message_bytes: usize,
}

impl ChannelCodec for SingleChannelCodec {
    fn message_bytes(&self) -> usize {
        self.message_bytes
    }

    fn sort(&mut self, _message: &[u8]) -> MessageClass {
        MessageClass::Came { channel: 0, has_lost: false }
    }

    fn address(&mut self, _channel: usize, _message: &mut [u8]) {}

    fn is_told(&self) -> bool {
        false
    }
}
