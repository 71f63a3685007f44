//! Why a request is refused, and headers that are there once.

use std::borrow::Cow;

use hyper::StatusCode;
use hyper::header::{HeaderMap, HeaderName};

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpRefusal {
    /// The status of the answer.
    pub status: StatusCode,
    /// The reason, a line without anything that the client sent.
    pub why: Cow<'static, str>,
    /// The methods that are taken instead, if the method is why.
    pub allow: &'static str,
}

impl HttpRefusal {
    /// With this status and reason.
    pub const fn of(status: StatusCode, why: &'static str) -> Self {
        Self { status, why: Cow::Borrowed(why), allow: "GET, HEAD" }
    }
}

/// A refusal with this status and reason.
///
/// # Errors
/// It always returns the refusal.
pub fn refuse<T>(status: StatusCode, why: &'static str) -> Result<T, HttpRefusal> {
    Err(HttpRefusal::of(status, why))
}

/// The only value of a header; `None` if it is absent.
///
/// # Errors
/// [`HttpRefusal`]: it is there twice, or is no text.
pub fn only<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Option<&'h str>, HttpRefusal> {
    let mut values = headers.get_all(name).iter();
    let value = values.next();
    if values.next().is_some() {
        return refuse(StatusCode::BAD_REQUEST, "a header is there twice");
    }
    let text = value.map(|value| value.to_str()).transpose();
    text.or_else(|_| refuse(StatusCode::BAD_REQUEST, "a header is no text"))
}
