//! Browsers of other machines: TLS, and the cookie with which one that was let in shows its token.
//!
//! TLS ends in the confined process. It has a key of the page's own: an intruder in that process gets that key, and
//! neither the host's identity nor a token that no browser showed meanwhile.

use std::io;
use std::time::Duration;

use farbus_io_net::trust::PageKey;
use hyper::StatusCode;
use hyper::header::{AUTHORIZATION, COOKIE, HeaderMap, HeaderValue};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::api::refusal::{HttpRefusal, only};
use crate::http::connection::WriteTimeoutStream;
use crate::line::hex;
use crate::line::messages::{AUTHORIZATION_BYTES_MAX, ConfinedPageTls};

/// How the name of a cookie begins that is set over TLS, for this host name alone (RFC 6265bis, 4.1.3.2). Earlier
/// releases called the cookie so.
const COOKIE_NAME: &str = "__Host-farbus";
/// Hexadecimal digits of the certificate's fingerprint in the cookie's name.
const COOKIE_DIGITS: usize = 16;
/// How long a handshake may take: two round trips over a slow network.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(5);
/// What TLS holds of what its client does not take yet, bytes; a record more comes on top.
const UNSENT_BYTES_MAX: usize = 16 << 10;
/// The most that TLS holds for one connection, bytes: a record that arrives, one that is read, and what is not sent.
pub const TLS_BYTES_MAX: usize = 4 * (16 << 10);
/// How much longer a browser keeps its cookie than the token lasts, seconds: so it learns that the token has expired.
const KEPT_LONGER_S: u64 = 86_400;

/// Accepts the handshakes of a page.
pub struct PageTlsAcceptor(TlsAcceptor);

impl PageTlsAcceptor {
    /// With the page's key.
    ///
    /// # Errors
    /// `InvalidData`: key and certificate do not fit.
    pub fn new(begin: &ConfinedPageTls) -> io::Result<Self> {
        let of = |text: &str| hex::decode(text).ok_or(io::ErrorKind::InvalidData);
        let key = PageKey { key: of(&begin.key)?, certificate: of(&begin.certificate)? };
        let config = key.server_config().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        Ok(Self(TlsAcceptor::from(config)))
    }

    /// The connection once its client has done its handshake; `None`: it has not, or not in time.
    pub async fn accept(
        &self,
        stream: WriteTimeoutStream<TcpStream>,
    ) -> Option<TlsStream<WriteTimeoutStream<TcpStream>>> {
        let handshake = self.0.accept_with(stream, |tls| tls.set_buffer_limit(Some(UNSENT_BYTES_MAX)));
        timeout(HANDSHAKE_TIME_MAX, handshake).await.ok()?.ok()
    }
}

/// The cookie of one page.
///
/// A browser keeps one set of cookies for all ports of a host name, and sends all of them to each (RFC 6265, 8.5). So
/// the name has a part of the certificate's fingerprint: pages of two users of one machine do not replace each other's.
/// It hides nothing: what else serves HTTPS at another port of the same host name gets the cookie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CookieName(String);

impl CookieName {
    /// That of the page with this certificate; `fingerprint` as browsers show it.
    pub fn of(fingerprint: &str) -> Self {
        let digits = fingerprint.chars().filter(char::is_ascii_hexdigit).take(COOKIE_DIGITS);
        Self(format!("{COOKIE_NAME}-{}", digits.collect::<String>().to_ascii_lowercase()))
    }

    /// The token in a header with cookies.
    fn token_in(&self, cookies: &str) -> Option<String> {
        let with_name = |name: &str| {
            let mut all = cookies.split(';').filter_map(|cookie| cookie.trim().split_once('='));
            all.find(|(cookie_name, _)| *cookie_name == name).map(|(_, token)| token.to_owned())
        };
        with_name(&self.0).or_else(|| with_name(COOKIE_NAME))
    }

    /// The header that has a browser keep its token; `None`: a token has other characters than ours.
    pub fn set_cookie(&self, token: &str, lasts_s: u64) -> Option<HeaderValue> {
        let is_ours = token.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        let max_age = lasts_s.saturating_add(KEPT_LONGER_S);
        let text = format!("{}={token}; Path=/; Max-Age={max_age}; Secure; HttpOnly; SameSite=Strict", self.0);
        HeaderValue::from_str(&text).ok().filter(|_| is_ours)
    }

    /// The headers that take a browser's token away, also one that an earlier release has set.
    pub fn clear_cookies(&self) -> Vec<HeaderValue> {
        let cleared = |name: &str| format!("{name}=; Path=/; Max-Age=0; Secure; HttpOnly; SameSite=Strict");
        [&self.0, COOKIE_NAME].into_iter().filter_map(|name| HeaderValue::from_str(&cleared(name)).ok()).collect()
    }
}

/// What a request shows as its token.
#[derive(Debug, PartialEq, Eq)]
pub struct RequestToken {
    /// As the header `Authorization` would say it.
    pub authorization: Option<String>,
    /// Whether a cookie says it, which a browser sends by itself.
    pub is_cookie: bool,
}

/// What the request shows; `cookie`: what a cookie is called that counts, if the request has come over TLS.
///
/// # Errors
/// [`HttpRefusal`]: a header is there twice or is no text, or the token is longer than any.
pub fn shown_by(headers: &HeaderMap, cookie: Option<&CookieName>) -> Result<RequestToken, HttpRefusal> {
    let authorization = only(headers, &AUTHORIZATION)?;
    let cookie = match cookie {
        Some(name) => only(headers, &COOKIE)?.and_then(|cookies| name.token_in(cookies)),
        None => None,
    };
    let shown = match (authorization, cookie) {
        (Some(authorization), _) => RequestToken { authorization: Some(authorization.to_owned()), is_cookie: false },
        (None, Some(token)) => RequestToken { authorization: Some(format!("Bearer {token}")), is_cookie: true },
        (None, None) => RequestToken { authorization: None, is_cookie: false },
    };
    match shown.authorization.as_ref().is_some_and(|authorization| authorization.len() > AUTHORIZATION_BYTES_MAX) {
        true => Err(HttpRefusal::of(StatusCode::UNAUTHORIZED, "this is longer than any token")),
        false => Ok(shown),
    }
}

#[cfg(test)]
mod tests {
    use farbus_io_net::trust::PageScope;
    use hyper::header::HeaderName;
    use hyper::{Method, Uri};

    use super::*;
    use crate::api::callers::PageCaller;
    use crate::http::guard::{PageOrigin, check};

    const FINGERPRINT: &str = "0A:1B:2C:3D:4E:5F:60:71:82:93";
    const NAME: &str = "__Host-farbus-0a1b2c3d4e5f6071";

    fn shown(lines: &[(&'static str, &str)], is_tls: bool) -> Result<RequestToken, u16> {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(hyper::header::HeaderName::from_static(name), value.parse().unwrap());
        }
        let name = CookieName::of(FINGERPRINT);
        shown_by(&headers, is_tls.then_some(&name)).map_err(|refusal| refusal.status.as_u16())
    }

    fn of(authorization: &str, is_cookie: bool) -> Result<RequestToken, u16> {
        Ok(RequestToken { authorization: Some(authorization.to_owned()), is_cookie })
    }

    #[test]
    fn a_cookie_counts_over_tls_alone_and_a_header_counts_before_it() {
        let nothing = Ok(RequestToken { authorization: None, is_cookie: false });
        let text = format!("a=b; {NAME}=farbus-page-1-2; c=d");
        let cookie = ("cookie", text.as_str());
        assert_eq!(shown(&[cookie], true), of("Bearer farbus-page-1-2", true));
        assert_eq!(shown(&[cookie], false), nothing);
        assert_eq!(shown(&[cookie, ("authorization", "Bearer x")], true), of("Bearer x", false));
        assert_eq!(shown(&[("cookie", "farbus=1; x__Host-farbus=1; __Host-farbus2=3")], true), nothing);
        assert_eq!(shown(&[cookie, cookie], true), Err(400));
        let long = format!("{NAME}={}", "x".repeat(2 << 10));
        assert_eq!(shown(&[("cookie", long.as_str())], true), Err(401));
    }

    #[test]
    fn the_cookie_of_another_page_of_the_host_counts_for_nothing_and_one_of_an_earlier_release_counts() {
        let others = "__Host-farbus-ffffffffffffffff=farbus-page-3-4";
        assert_eq!(shown(&[("cookie", others)], true), Ok(RequestToken { authorization: None, is_cookie: false }));
        let both = format!("{others}; {NAME}=farbus-page-1-2; __Host-farbus=farbus-page-5-6");
        assert_eq!(shown(&[("cookie", both.as_str())], true), of("Bearer farbus-page-1-2", true));
        assert_eq!(shown(&[("cookie", "__Host-farbus=farbus-page-5-6")], true), of("Bearer farbus-page-5-6", true));
    }

    #[test]
    fn no_script_and_no_other_site_gets_the_cookie() {
        let name = CookieName::of(FINGERPRINT);
        let cookie = name.set_cookie("farbus-page-1f2e3d4c-00ff", 60).unwrap();
        let set_cookie = cookie.to_str().unwrap();
        assert!(
            set_cookie.starts_with(&format!("{NAME}=farbus-page-1f2e3d4c-00ff; Path=/; Max-Age=86460;")),
            "{set_cookie}"
        );
        for word in ["; Secure", "; HttpOnly", "; SameSite=Strict"] {
            assert!(set_cookie.contains(word), "{set_cookie}");
        }
        assert!(!set_cookie.contains("Domain") && name.set_cookie("a; Domain=x", 60).is_none());
        for (cleared, name) in name.clear_cookies().iter().zip([NAME, "__Host-farbus"]) {
            let cleared = cleared.to_str().unwrap();
            assert!(cleared.starts_with(&format!("{name}=; Path=/; Max-Age=0; Secure; HttpOnly;")), "{cleared}");
        }
    }

    /// Whatever a browser sends: a cookie counts over TLS alone, a change with one comes from the page itself, and no
    /// text becomes more than one cookie.
    #[test]
    fn fuzz_requests_of_browsers() {
        const REQUESTS: [&str; 4] = [
            "host: lab3.example:7241\ncookie: a=b; __Host-farbus-0a1b2c3d4e5f6071=farbus-page-0011-2233; c=d\norigin: https://lab3.example:7241\nsec-fetch-site: same-origin\ncontent-type: application/json\ncontent-length: 2",
            "host: lab3.example:7241\nauthorization: Bearer farbus-page-0011-2233\ncontent-type: application/json; charset=utf-8\ncontent-length: 2",
            "host: 127.0.0.1:7241\ncookie: __Host-farbus=x\norigin: https://127.0.0.1:7242\nsec-fetch-site: same-site\ncontent-type: text/plain\ncontent-length: 16384",
            "host: evil.example:7241\norigin: null\nsec-fetch-site: cross-site\nsec-fetch-mode: navigate\nsec-fetch-dest: document\ntransfer-encoding: chunked",
        ];
        const WORDS: [&str; 15] = [
            "__Host-farbus=",
            "__Host-farbus-0a1b2c3d4e5f6071=",
            "__host-farbus=",
            ";",
            "; ",
            ",",
            "\t",
            " ",
            "=",
            "\u{e9}",
            "Bearer ",
            "https://",
            "@",
            ":443",
            "lab3.example:7241",
        ];
        let site = PageOrigin::remote(7241, vec!["lab3.example".into()]);
        let cookie_name = CookieName::of(FINGERPRINT);
        crate::fuzzing::fuzz(env!("CARGO_MANIFEST_DIR"), "fuzz_requests_of_browsers", |input| {
            let scope = input.pick(&[None, Some(PageScope::Read), Some(PageScope::Observe), Some(PageScope::Own)]);
            let is_question = input.once_in(4);
            let text = input.text(&REQUESTS, &WORDS);
            let mut headers = HeaderMap::new();
            for (name, value) in text.split('\n').filter_map(|line| line.split_once(": ")) {
                if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), HeaderValue::from_bytes(value.as_bytes())) {
                    headers.append(name, value);
                }
            }
            if let Ok(shown) = shown_by(&headers, None) {
                assert!(!shown.is_cookie, "{text}");
            }
            let Ok(shown) = shown_by(&headers, Some(&cookie_name)) else { return };
            assert!(
                shown.authorization.as_ref().is_none_or(|authorization| authorization.len() <= AUTHORIZATION_BYTES_MAX),
                "{text}"
            );
            if let Some(token) =
                shown.authorization.as_deref().and_then(|authorization| authorization.strip_prefix("Bearer "))
                && let Some(cookie) = cookie_name.set_cookie(token, 60)
            {
                let cookie = cookie.to_str().unwrap();
                assert!(cookie.split("; ").count() == 6 && !cookie.contains(','), "{cookie}");
            }
            let caller =
                PageCaller { scope, has_token: shown.authorization.is_some(), called: String::new(), until: None };
            let method = if is_question { Method::GET } else { Method::POST };
            let uri = Uri::from_static("/api/v1/actions/release");
            let Ok(passed) = check(&method, &uri, &headers, &caller, (&site, shown.is_cookie)) else { return };
            let one = |name: &str| {
                let all: Vec<_> = headers.get_all(name).iter().map(|value| value.to_str().unwrap()).collect();
                assert!(all.len() < 2, "{text}");
                all.first().copied()
            };
            let host = one("host").unwrap();
            assert!(
                host.eq_ignore_ascii_case("lab3.example:7241") && scope == Some(PageScope::Own) && !is_question,
                "{text}"
            );
            assert!(passed.length <= 16 << 10 && one("transfer-encoding").is_none(), "{text}");
            let (origin, from) = (one("origin"), one("sec-fetch-site"));
            let is_own = from == Some("same-origin") && origin == Some(&format!("https://{host}"));
            let is_program = !shown.is_cookie && caller.has_token && (origin, from) == (None, None);
            assert!(is_own || is_program, "{text}");
        });
    }
}
