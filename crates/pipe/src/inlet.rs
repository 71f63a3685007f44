//! Where the function of one pipe puts messages that another device is to send: a host that only passes data on needs
//! no second thread.

use std::sync::Arc;

use farbus_io_linux::sys::scheduling::now_ns;
use farbus_model::TransferDirection;
use farbus_realtime::pipe::{PathSegment, PipeQuality, worst_ns};

use super::endpoint::PipeEndpoint;
use super::error::PipeError;

/// The outgoing end of a channel, for the function of another pipe.
pub struct PipeInlet {
    endpoint: Arc<PipeEndpoint>,
    channel: usize,
}

impl PipeInlet {
    /// Opens the outgoing end of a channel.
    ///
    /// # Errors
    /// [`PipeError`].
    pub fn open(endpoint: &Arc<PipeEndpoint>, channel: usize, quality: &PipeQuality) -> Result<Self, PipeError> {
        endpoint.claim(channel, TransferDirection::Out, quality, |_, _| Ok(u64::MAX))?;
        Ok(Self { endpoint: Arc::clone(endpoint), channel })
    }

    /// Sends a message, if there is room and it has the endpoint's size.
    pub fn put(&self, message: &[u8]) -> bool {
        let size = self.endpoint.message_bytes();
        message.len() == size && self.endpoint.shared().put(self.channel, size, message, now_ns()) == 1
    }

    /// The stages of a message's way from here, after those of the pipe whose function puts it in.
    pub fn stages(&self) -> [PathSegment; 3] {
        let server = PathSegment::Server { period_ns: self.endpoint.period_ns() };
        [server, server, self.endpoint.transfer()]
    }

    /// Whether no message was lost here, or waited longer than the stages allow.
    pub fn is_kept(&self) -> bool {
        let counts = self.endpoint.shared().counts_of(self.channel, TransferDirection::Out);
        counts.lost == 0 && counts.waited_ns <= worst_ns(&self.stages())
    }

    /// Messages for which there was no room.
    pub fn lost(&self) -> u64 {
        self.endpoint.shared().counts_of(self.channel, TransferDirection::Out).lost
    }
}

impl Drop for PipeInlet {
    fn drop(&mut self) {
        self.endpoint.release(self.channel, TransferDirection::Out);
    }
}
