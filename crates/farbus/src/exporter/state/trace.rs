//! The trace file: the last taps of each session, one line of JSON each.

use std::fs::File;
use std::io::{self, Write};
use std::sync::PoisonError;

use farbus_model::Device;
use farbus_session::Exporter;
use tracing::warn;

use crate::common::ordered_mutex::{ALONE, OrderedMutex};

/// The file that traces are written to, if one is set. One lock, the file's; it is held alone.
#[derive(Default)]
pub struct TraceWriter(OrderedMutex<Option<File>, ALONE>);

impl TraceWriter {
    /// Writes traces to `file` from now on.
    pub fn write_to(&self, file: File) {
        *self.0.lock().expect("no session panics while it writes") = Some(file);
    }

    /// Whether traces are written. Then each tap is worth reading the clock.
    pub fn is_on(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Writes the last taps of a connection that has ended. An error is logged.
    pub fn write(&self, peer: &str, exporter: &Exporter<Box<dyn Device>>) {
        let mut trace = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(file) = trace.as_mut() else { return };
        let mut out = io::BufWriter::new(file);
        for tap in exporter.trace().taps() {
            let (key, endpoint, stage, at) = (tap.key, tap.endpoint, tap.stage.name(), tap.at.as_nanos());
            let line = format_args!(
                r#"{{"peer":"{peer}","endpoint":{endpoint},"seqnum":{key},"stage":"{stage}","at_ns":{at}}}"#
            );
            if let Err(error) = writeln!(out, "{line}") {
                return warn!(%error, "the trace is not complete");
            }
        }
        if let Err(error) = out.flush() {
            warn!(%error, "the trace is not complete");
        }
    }
}
