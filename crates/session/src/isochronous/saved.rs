//! What another process is told of a stream, and what cannot have been.

use std::time::Duration;

use farbus_model::{Endpoint, Urb};

use super::orders::is_own;
use crate::Reject;
use crate::snapshot::{Reader, Writer};

/// How far two packets of one stream are from each other at most: what is asked, and what waits to be handed over,
/// twice.
const SPREAD_MAX: u64 = 1 << 20;

/// Writes a span down.
pub fn save_span(span: Duration, to: &mut Writer) {
    to.u64(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX));
}

/// As [`save_span`] wrote it, of less than `most`.
///
/// # Errors
/// [`Reject`].
pub fn restore_span(field: &'static str, most: Duration, from: &mut Reader<'_>) -> Result<Duration, Reject> {
    let ns = from.u64(field)?;
    let span = Duration::from_nanos(ns);
    if span > most { Err(Reject::new(field, ns, "no stream has a longer one")) } else { Ok(span) }
}

/// How far a packet is behind another.
///
/// # Errors
/// [`Reject`].
pub fn restore_place(field: &'static str, from: &mut Reader<'_>) -> Result<u64, Reject> {
    let place = from.u64(field)?;
    if place > SPREAD_MAX { Err(Reject::new(field, place, "a stream's packets lie together")) } else { Ok(place) }
}

/// A request of a stream at `endpoint`.
///
/// # Errors
/// [`Reject`].
pub fn restore_urb(endpoint: &Endpoint, from: &mut Reader<'_>) -> Result<Urb, Reject> {
    let urb = from.urb()?;
    let is_its = urb.endpoint == endpoint.address && urb.direction == endpoint.address.direction();
    if !is_its || urb.iso.is_empty() || is_own(urb.id) || !urb.payload.is_empty() {
        return Err(Reject::new("request", urb.id.0, "it is one of its stream's, and was sent"));
    }
    Ok(urb)
}
