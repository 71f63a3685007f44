//! Browsers of other machines: TLS, and the cookie with which one that was let in shows its token.
//!
//! TLS ends in the confined process. It has a key of the page's own: an intruder in that process gets that key, and
//! neither the host's identity nor a token that no browser showed meanwhile.

use std::io;
use std::time::Duration;

use farbus_io::trust::PageKey;
use hyper::StatusCode;
use hyper::header::{AUTHORIZATION, COOKIE, HeaderMap, HeaderValue};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::api::refusal::{Refusal, only};
use super::line::hex;
use super::line::messages::{AUTHORIZATION_BYTES_MAX, BeginTls};

/// A cookie that only this page may set and get, and no page at another port's name may replace (RFC 6265bis, 4.1.3.2).
const COOKIE_NAME: &str = "__Host-farbus";
/// How long a handshake may take: two round trips over a slow network.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(5);
/// What TLS holds of what its client does not take yet, bytes; a record more comes on top.
const UNSENT_BYTES_MAX: usize = 16 << 10;
/// The most that TLS holds for one connection, bytes: a record that arrives, one that is read, and what is not sent.
pub const TLS_BYTES_MAX: usize = 4 * (16 << 10);
/// How much longer a browser keeps its cookie than the token lasts, seconds: so it learns that the token has expired.
const KEPT_LONGER_S: u64 = 86_400;

/// Accepts the handshakes of a page.
pub struct Acceptor(TlsAcceptor);

impl Acceptor {
    /// With the page's key.
    ///
    /// # Errors
    /// `InvalidData`: key and certificate do not fit.
    pub fn new(begin: &BeginTls) -> io::Result<Self> {
        let of = |text: &str| hex::decode(text).ok_or(io::ErrorKind::InvalidData);
        let key = PageKey { key: of(&begin.key)?, certificate: of(&begin.certificate)? };
        let config = key.server_config().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        Ok(Self(TlsAcceptor::from(config)))
    }

    /// The connection once its client has done its handshake; `None`: it has not, or not in time.
    pub async fn accept(&self, stream: TcpStream) -> Option<TlsStream<TcpStream>> {
        let handshake = self.0.accept_with(stream, |tls| tls.set_buffer_limit(Some(UNSENT_BYTES_MAX)));
        timeout(HANDSHAKE_TIME_MAX, handshake).await.ok()?.ok()
    }
}

/// What a request shows as its token.
#[derive(Debug, PartialEq, Eq)]
pub struct Shown {
    /// As the header `Authorization` would say it.
    pub authorization: Option<String>,
    /// Whether a cookie says it, which a browser sends by itself.
    pub is_cookie: bool,
}

/// What the request shows; `may_be_cookie`: it has come over TLS.
///
/// # Errors
/// [`Refusal`]: a header is there twice or is no text, or the token is longer than any.
pub fn shown_by(headers: &HeaderMap, may_be_cookie: bool) -> Result<Shown, Refusal> {
    let said = only(headers, &AUTHORIZATION)?;
    let cookies = if may_be_cookie { only(headers, &COOKIE)? } else { None };
    let named = |cookie: &'_ str| cookie.trim().strip_prefix(COOKIE_NAME)?.strip_prefix('=').map(str::to_owned);
    let cookie = cookies.and_then(|cookies| cookies.split(';').find_map(named));
    let shown = match (said, cookie) {
        (Some(said), _) => Shown { authorization: Some(said.to_owned()), is_cookie: false },
        (None, Some(token)) => Shown { authorization: Some(format!("Bearer {token}")), is_cookie: true },
        (None, None) => Shown { authorization: None, is_cookie: false },
    };
    match shown.authorization.as_ref().is_some_and(|said| said.len() > AUTHORIZATION_BYTES_MAX) {
        true => Err(Refusal::of(StatusCode::UNAUTHORIZED, "this is longer than any token")),
        false => Ok(shown),
    }
}

/// The header that has a browser keep its token; `None`: a token has other characters than ours.
pub fn set_cookie(token: &str, lasts_s: u64) -> Option<HeaderValue> {
    let is_ours = token.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let max_age = lasts_s.saturating_add(KEPT_LONGER_S);
    let text = format!("{COOKIE_NAME}={token}; Path=/; Max-Age={max_age}; Secure; HttpOnly; SameSite=Strict");
    HeaderValue::from_str(&text).ok().filter(|_| is_ours)
}

/// The header that takes a browser's token away.
pub fn clear_cookie() -> HeaderValue {
    HeaderValue::from_static("__Host-farbus=; Path=/; Max-Age=0; Secure; HttpOnly; SameSite=Strict")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(lines: &[(&'static str, &str)], may_be_cookie: bool) -> Result<Shown, u16> {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(hyper::header::HeaderName::from_static(name), value.parse().unwrap());
        }
        shown_by(&headers, may_be_cookie).map_err(|refusal| refusal.status.as_u16())
    }

    #[test]
    fn a_cookie_counts_over_tls_alone_and_a_header_counts_before_it() {
        let of = |said: &str, is_cookie| Ok(Shown { authorization: Some(said.to_owned()), is_cookie });
        let nothing = Ok(Shown { authorization: None, is_cookie: false });
        let cookie = ("cookie", "a=b; __Host-farbus=farbus-page-1-2; c=d");
        assert_eq!(shown(&[cookie], true), of("Bearer farbus-page-1-2", true));
        assert_eq!(shown(&[cookie], false), nothing);
        assert_eq!(shown(&[cookie, ("authorization", "Bearer x")], true), of("Bearer x", false));
        assert_eq!(shown(&[("cookie", "farbus=1; x__Host-farbus=1; __Host-farbus2=3")], true), nothing);
        assert_eq!(shown(&[cookie, cookie], true), Err(400));
        let long = format!("__Host-farbus={}", "x".repeat(2 << 10));
        assert_eq!(shown(&[("cookie", long.as_str())], true), Err(401));
    }

    #[test]
    fn no_script_and_no_other_site_gets_the_cookie() {
        let cookie = set_cookie("farbus-page-1f2e3d4c-00ff", 60).unwrap();
        let said = cookie.to_str().unwrap();
        assert!(said.starts_with("__Host-farbus=farbus-page-1f2e3d4c-00ff; Path=/; Max-Age=86460;"), "{said}");
        for word in ["; Secure", "; HttpOnly", "; SameSite=Strict"] {
            assert!(said.contains(word), "{said}");
        }
        let cleared = clear_cookie();
        let cleared = cleared.to_str().unwrap();
        assert!(cleared.starts_with(&format!("{COOKIE_NAME}=;")) && cleared.contains("Max-Age=0;"), "{cleared}");
        assert!(!said.contains("Domain") && set_cookie("a; Domain=x", 60).is_none());
    }
}
