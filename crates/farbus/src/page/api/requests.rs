//! The body of a change: read within a limit of size and time, and understood as an object of JSON.

use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;

use hyper::StatusCode;
use hyper::body::{Body as _, Incoming};
use serde_json::{Map, Value};
use tokio::time::timeout;

use super::refusal::Refusal;

/// The longest body of a change, bytes.
pub const BODY_BYTES_MAX: u64 = 16 << 10;
/// How long a client may take to send it.
const BODY_TIME_MAX: Duration = Duration::from_secs(10);

/// The object in the body. `length` is what the client said, and at most [`BODY_BYTES_MAX`].
///
/// # Errors
/// [`Refusal`]: the body is not as long as was said, comes too slowly, or is no object.
pub async fn object_of(body: &mut Incoming, length: u64) -> Result<Map<String, Value>, Refusal> {
    match serde_json::from_slice(&all_of(body, length).await?) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) | Err(_) => Err(Refusal::of(StatusCode::BAD_REQUEST, "the body is no object of JSON")),
    }
}

/// The text of the body, as a form sends it. `length` is what the client said, and at most [`BODY_BYTES_MAX`].
///
/// # Errors
/// [`Refusal`]: the body is not as long as was said, comes too slowly, or is no text.
pub async fn text_of(body: &mut Incoming, length: u64) -> Result<String, Refusal> {
    let text = String::from_utf8(all_of(body, length).await?);
    text.map_err(|_| Refusal::of(StatusCode::BAD_REQUEST, "the body is no text"))
}

async fn all_of(body: &mut Incoming, length: u64) -> Result<Vec<u8>, Refusal> {
    let refused = |status, why| Refusal::of(status, why);
    let all = timeout(BODY_TIME_MAX, bytes_of(body, length)).await;
    let bytes = all.map_err(|_| refused(StatusCode::REQUEST_TIMEOUT, "the body came too slowly"))?;
    bytes.ok_or_else(|| refused(StatusCode::BAD_REQUEST, "the body is not as long as was said"))
}

async fn bytes_of(body: &mut Incoming, length: u64) -> Option<Vec<u8>> {
    let length = usize::try_from(length.min(BODY_BYTES_MAX)).ok()?;
    let mut bytes = Vec::with_capacity(length);
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await {
        let data = frame.ok()?.into_data().ok()?;
        if bytes.len() + data.len() > length {
            return None;
        }
        bytes.extend_from_slice(&data);
    }
    (bytes.len() == length).then_some(bytes)
}
