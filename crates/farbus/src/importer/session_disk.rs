//! A disk of a session, which is given back when it is dropped.

use farbus_model::{BlockDevice, BlockLayer, BufferPool, CompletionQueue};
use farbus_session::native::control::AttachmentEndCause;
use farbus_session::native::{ImporterAttachment, RemoteBlock};

use crate::importer::session::connection::LinkedDevice;

/// A disk of a session, which is given back when it is dropped.
pub(crate) fn session_disk(linked: LinkedDevice<RemoteBlock>) -> Box<dyn BlockDevice> {
    Box::new(SessionDisk { linked, is_left: false })
}

struct SessionDisk {
    linked: LinkedDevice<RemoteBlock>,
    /// Whether a replacement process continues with it.
    is_left: bool,
}

impl Drop for SessionDisk {
    fn drop(&mut self) {
        if self.is_left {
            return;
        }
        let mut done = CompletionQueue::new(BufferPool::new(0));
        self.linked.close(&mut done);
        // Requests that its exporter did not answer in time are dropped: the programs that made them have gone.
        self.linked.remote_mut().handle_over(AttachmentEndCause::Requested, "given back here", &mut done);
        while done.pop().is_some() {}
    }
}

impl BlockLayer for SessionDisk {
    type Inner = LinkedDevice<RemoteBlock>;

    fn inner(&self) -> &LinkedDevice<RemoteBlock> {
        &self.linked
    }

    fn inner_mut(&mut self) -> &mut LinkedDevice<RemoteBlock> {
        &mut self.linked
    }

    fn leave(&mut self) {
        BlockDevice::leave(&mut self.linked);
        self.is_left = true;
    }
}
