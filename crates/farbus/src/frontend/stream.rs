//! Reads a stream export of another machine, frame by frame.

use std::collections::VecDeque;
use std::{fmt, io};

use farbus_session::native::control::{AttachmentEndCause, AttachmentMode};
use farbus_session::native::{RemoteStream, stream};
pub use stream::{PixelFormat, StreamDescription, StreamFormat, StreamFrame};

use super::ended::report_of;
use crate::common::stop_signal::StopSignal;
use crate::importer::client::{ClientError, DeviceTarget, FailureKind, FailureReport, ImporterClient};
use crate::importer::session::connection::LinkedDevice;

/// Which frames a reader wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FrameSelection {
    /// All of them: exclusively; the source waits for this reader.
    #[default]
    All,
    /// The latest ones, beside other readers; the source drops frames for which this reader is too slow.
    Latest,
    /// The latest ones, as an observer, even beside a reader of all frames. The stream's owner has to permit observers.
    Observed,
}

/// A stream that is being read. It outlives its links; dropping it gives the stream back.
pub struct RemoteStreamReader {
    linked: LinkedDevice<RemoteStream>,
    description: StreamDescription,
    arrived: Vec<StreamFrame>,
    waiting: VecDeque<StreamFrame>,
}

/// Opens a stream for reading.
///
/// # Errors
/// [`ClientError`].
pub fn open_stream(
    client: &ImporterClient,
    target: &DeviceTarget,
    wanted: FrameSelection,
) -> Result<RemoteStreamReader, ClientError> {
    let mode = match wanted {
        FrameSelection::All => AttachmentMode::Exclusive,
        FrameSelection::Latest => AttachmentMode::Read,
        FrameSelection::Observed => AttachmentMode::Observe,
    };
    let mut arrived = Vec::new();
    let linked = client.stream(target, mode, &mut arrived)?;
    let description = linked.remote().description().copied();
    let description = description.ok_or_else(|| ClientError::Local("what was opened is not described".to_owned()))?;
    Ok(RemoteStreamReader { linked, description, arrived, waiting: VecDeque::new() })
}

impl fmt::Debug for RemoteStreamReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteStreamReader").field("description", &self.description).finish_non_exhaustive()
    }
}

impl RemoteStreamReader {
    /// The description of the frames.
    pub fn description(&self) -> &StreamDescription {
        &self.description
    }

    /// Ends [`RemoteStreamReader::next_frame`] from any thread.
    pub fn stop_signal(&self) -> StopSignal {
        self.linked.stop_signal()
    }

    /// Waits for the next frame; `None` once another thread has ended the stream by
    /// [`RemoteStreamReader::stop_signal`].
    ///
    /// # Errors
    /// Why there is none: the attribute is *gone* when the source has ended.
    pub fn next_frame(&mut self) -> Result<Option<StreamFrame>, FailureReport> {
        loop {
            self.waiting.extend(self.arrived.drain(..));
            if let Some(frame) = self.waiting.pop_front() {
                return Ok(Some(frame));
            }
            if let Some(end) = self.linked.end() {
                return if end.cause == AttachmentEndCause::Requested { Ok(None) } else { Err(report_of(end)) };
            }
            self.linked.wait(None).map_err(local)?;
            self.linked.turn(&mut self.arrived);
        }
    }
}

fn local(error: io::Error) -> FailureReport {
    FailureReport::new(FailureKind::Local, error.to_string())
}

impl Drop for RemoteStreamReader {
    fn drop(&mut self) {
        self.linked.close(&mut self.arrived);
    }
}
