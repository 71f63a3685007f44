//! Reads a stream export of another machine, frame by frame.

use std::collections::VecDeque;
use std::{fmt, io};

use farbus_session::native::control::{Cause, Mode};
use farbus_session::native::{RemoteStream, stream};
pub use stream::{Description, Format, Frame, PixelFormat};

use super::ended::report_of;
use crate::common::stop_signal::StopSignal;
use crate::importer::client::{Client, ClientError, FailureKind, FailureReport, Target};
use crate::importer::session::connection::Linked;

/// Which frames a reader wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wanted {
    /// All of them: exclusively; the source waits for this reader.
    #[default]
    All,
    /// The latest ones, beside other readers; the source drops frames for which this reader is too slow.
    Latest,
    /// The same as an observer, beside a reader of all frames, too: if the stream's owner permits that.
    Observed,
}

/// A stream that is being read. It outlives its links; dropping it gives the stream back.
pub struct Frames {
    linked: Linked<RemoteStream>,
    description: Description,
    arrived: Vec<Frame>,
    waiting: VecDeque<Frame>,
}

/// Opens a stream for reading.
///
/// # Errors
/// [`ClientError`].
pub fn open_stream(client: &Client, target: &Target, wanted: Wanted) -> Result<Frames, ClientError> {
    let mode = match wanted {
        Wanted::All => Mode::Exclusive,
        Wanted::Latest => Mode::Read,
        Wanted::Observed => Mode::Observe,
    };
    let mut arrived = Vec::new();
    let linked = client.stream(target, mode, &mut arrived)?;
    let description = linked.remote().description().copied();
    let description = description.ok_or_else(|| ClientError::Local("what was opened is not described".to_owned()))?;
    Ok(Frames { linked, description, arrived, waiting: VecDeque::new() })
}

impl fmt::Debug for Frames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frames").field("description", &self.description).finish_non_exhaustive()
    }
}

impl Frames {
    /// The description of the frames.
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// Ends [`Frames::next_frame`] from any thread.
    pub fn stop_signal(&self) -> StopSignal {
        self.linked.stop_signal()
    }

    /// Waits for the next frame; `None` once another thread has ended the stream by [`Frames::stop_signal`].
    ///
    /// # Errors
    /// Why there is none: the attribute is *gone* when the source has ended.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FailureReport> {
        loop {
            self.waiting.extend(self.arrived.drain(..));
            if let Some(frame) = self.waiting.pop_front() {
                return Ok(Some(frame));
            }
            if let Some(end) = self.linked.end() {
                return if end.cause == Cause::Asked { Ok(None) } else { Err(report_of(end)) };
            }
            self.linked.wait(None).map_err(local)?;
            self.linked.turn(&mut self.arrived);
        }
    }
}

fn local(error: io::Error) -> FailureReport {
    FailureReport::new(FailureKind::Local, error.to_string())
}

impl Drop for Frames {
    fn drop(&mut self) {
        self.linked.close(&mut self.arrived);
    }
}
