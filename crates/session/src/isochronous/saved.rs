//! Parts of a stream's snapshot, with their limits.

use std::time::Duration;

use farbus_model::{EndpointDescriptor, Urb};

use super::orders::is_own;
use crate::ProtocolViolation;
use crate::snapshot::{FieldReader, SnapshotWriter};

/// Limit of the distance between two packets of a stream in a snapshot: twice what is requested ahead plus what waits
/// to be handed over.
const SPREAD_MAX: u64 = 1 << 20;

/// Writes a duration.
pub fn save_span(span: Duration, to: &mut SnapshotWriter) {
    to.u64(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX));
}

/// Reads a duration of at most `most`.
///
/// # Errors
/// [`ProtocolViolation`]: it is longer.
pub fn restore_span(
    field: &'static str,
    most: Duration,
    from: &mut FieldReader<'_>,
) -> Result<Duration, ProtocolViolation> {
    let ns = from.u64(field)?;
    let span = Duration::from_nanos(ns);
    if span > most { Err(ProtocolViolation::new(field, ns, "no stream has a longer one")) } else { Ok(span) }
}

/// Reads the distance of a packet from another, in packets.
///
/// # Errors
/// [`ProtocolViolation`]: it is out of range.
pub fn restore_place(field: &'static str, from: &mut FieldReader<'_>) -> Result<u64, ProtocolViolation> {
    let position = from.u64(field)?;
    if position > SPREAD_MAX {
        Err(ProtocolViolation::new(field, position, "a stream's packets lie together"))
    } else {
        Ok(position)
    }
}

/// Reads a request of a stream at `endpoint`.
///
/// # Errors
/// [`ProtocolViolation`]: it is not a request of this stream.
pub fn restore_urb(endpoint: &EndpointDescriptor, from: &mut FieldReader<'_>) -> Result<Urb, ProtocolViolation> {
    let urb = from.urb()?;
    let is_its = urb.endpoint == endpoint.address && urb.direction == endpoint.address.direction();
    if !is_its || urb.iso.is_empty() || is_own(urb.id) || !urb.payload.is_empty() {
        return Err(ProtocolViolation::new("request", urb.id.0, "it is one of its stream's, and was sent"));
    }
    Ok(urb)
}
