//! A disk of a session, which is given back when it is dropped.

use farbus_model::{BlockDevice, BlockLayer, BufferPool, Completions};
use farbus_session::native::control::Cause;
use farbus_session::native::{Attached, RemoteBlock};

use crate::importer::session::connection::Linked;

/// A disk of a session, which is given back when it is dropped.
pub(crate) fn session_disk(linked: Linked<RemoteBlock>) -> Box<dyn BlockDevice> {
    Box::new(SessionDisk { linked, is_left: false })
}

struct SessionDisk {
    linked: Linked<RemoteBlock>,
    /// Whether a replacement process continues with it.
    is_left: bool,
}

impl Drop for SessionDisk {
    fn drop(&mut self) {
        if self.is_left {
            return;
        }
        let mut done = Completions::new(BufferPool::new(0));
        self.linked.close(&mut done);
        // Requests that its exporter did not answer in time are dropped: the programs that made them have gone.
        self.linked.remote_mut().handle_over(Cause::Asked, "given back here", &mut done);
        while done.pop().is_some() {}
    }
}

impl BlockLayer for SessionDisk {
    type Inner = Linked<RemoteBlock>;

    fn inner(&self) -> &Linked<RemoteBlock> {
        &self.linked
    }

    fn inner_mut(&mut self) -> &mut Linked<RemoteBlock> {
        &mut self.linked
    }

    fn leave(&mut self) {
        BlockDevice::leave(&mut self.linked);
        self.is_left = true;
    }
}
