//! The body of a change: read within a limit of size and time, and understood as an object of JSON.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;

use hyper::StatusCode;
use hyper::body::{Body as _, Incoming};
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use serde_json::{Map, Value};
use tokio::time::timeout;

use crate::api::refusal::HttpRefusal;

/// The longest body of a change, bytes.
pub const BODY_BYTES_MAX: u64 = 16 << 10;
/// How long a client may take to send it.
const BODY_TIME_MAX: Duration = Duration::from_secs(10);

/// The object in the body. `length` is what the client said, and at most [`BODY_BYTES_MAX`].
///
/// # Errors
/// [`HttpRefusal`]: the body is not as long as was said, comes too slowly, or is no object.
pub async fn object_of(body: &mut Incoming, length: u64) -> Result<Map<String, Value>, HttpRefusal> {
    let object = serde_json::from_slice(&all_of(body, length).await?);
    object.map(|UniqueObject(object)| object).map_err(|error| {
        let is_twice = error.to_string().starts_with(TWICE);
        let why = if is_twice { "the body has a name twice" } else { "the body is no object of JSON" };
        HttpRefusal::of(StatusCode::BAD_REQUEST, why)
    })
}

/// What is wrong with an object that has a name twice.
const TWICE: &str = "a name is there twice";

/// An object that has each name once: of two, one program takes the first and another the last.
struct UniqueObject(Map<String, Value>);

impl<'de> Deserialize<'de> for UniqueObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectVisitor;

        impl<'de> Visitor<'de> for ObjectVisitor {
            type Value = UniqueObject;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object that has each name once")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<UniqueObject, A::Error> {
                let mut object = Map::new();
                while let Some((name, value)) = entries.next_entry::<String, Value>()? {
                    if object.contains_key(&name) {
                        return Err(A::Error::custom(TWICE));
                    }
                    object.insert(name, value);
                }
                Ok(UniqueObject(object))
            }
        }

        deserializer.deserialize_map(ObjectVisitor)
    }
}

/// The text of the body, as a form sends it. `length` is what the client said, and at most [`BODY_BYTES_MAX`].
///
/// # Errors
/// [`HttpRefusal`]: the body is not as long as was said, comes too slowly, or is no text.
pub async fn text_of(body: &mut Incoming, length: u64) -> Result<String, HttpRefusal> {
    let text = String::from_utf8(all_of(body, length).await?);
    text.map_err(|_| HttpRefusal::of(StatusCode::BAD_REQUEST, "the body is no text"))
}

async fn all_of(body: &mut Incoming, length: u64) -> Result<Vec<u8>, HttpRefusal> {
    let refused = |status, why| HttpRefusal::of(status, why);
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

#[cfg(test)]
mod tests {
    use super::UniqueObject;

    #[test]
    fn an_object_with_a_name_twice_and_what_is_no_object_are_refused() {
        let is_taken = |text: &str| serde_json::from_str::<UniqueObject>(text).is_ok();
        assert!(is_taken(r#"{"device":"a","reason":"b"}"#) && is_taken("{}"));
        for text in [r#"{"device":"a","device":"b"}"#, r#"{"a":1,"\u0061":2}"#, "[]", "7", r#"{"a":1}{"#, ""] {
            assert!(!is_taken(text), "{text}");
        }
    }
}
