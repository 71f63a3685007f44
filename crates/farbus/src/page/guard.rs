//! Which requests are refused before anything is looked at: those that a hostile page makes a browser send, and those
//! of other users.

use hyper::header::{CONTENT_LENGTH, HOST, HeaderMap, HeaderName, ORIGIN, TRANSFER_ENCODING};
use hyper::{Method, StatusCode, Uri};

/// Who is at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// A program of this process's user, or of root.
    Owner,
    /// Somebody else.
    Other,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The status of the answer.
    pub status: StatusCode,
    /// The reason, a line without anything that the client sent.
    pub why: &'static str,
}

fn refuse<T>(status: StatusCode, why: &'static str) -> Result<T, Refusal> {
    Err(Refusal { status, why })
}

/// The names under which a listener is reached: a page whose name an attacker made to resolve to this address (DNS
/// rebinding) sends its own name.
fn is_own_name(host: &str, port: Option<u16>) -> bool {
    let named = |name: &str| match host.strip_prefix(name) {
        Some("") => port.is_none_or(|port| port == 80),
        Some(rest) => rest.strip_prefix(':').is_some_and(|said| port.is_some_and(|port| said == port.to_string())),
        None => false,
    };
    ["localhost", "127.0.0.1", "[::1]"].into_iter().any(named)
}

/// The only value of a header; `None` if it is absent.
fn only<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Option<&'h str>, Refusal> {
    let mut values = headers.get_all(name).iter();
    let value = values.next();
    if values.next().is_some() {
        return refuse(StatusCode::BAD_REQUEST, "a header is there twice");
    }
    let text = value.map(|value| value.to_str()).transpose();
    text.or_else(|_| refuse(StatusCode::BAD_REQUEST, "a header is no text"))
}

/// Whether the request is answered. `port` is the listener's TCP port; a Unix socket has none.
///
/// # Errors
/// [`Refusal`].
pub fn check(
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    client: Client,
    port: Option<u16>,
) -> Result<(), Refusal> {
    let Some(host) = only(headers, &HOST)? else {
        return refuse(StatusCode::BAD_REQUEST, "a request names its host");
    };
    let is_own = is_own_name(host, port);
    if !is_own || uri.authority().is_some_and(|named| !is_own_name(named.as_str(), port)) {
        return refuse(StatusCode::MISDIRECTED_REQUEST, "this page is at localhost alone");
    }
    if method != Method::GET && method != Method::HEAD {
        return refuse(StatusCode::METHOD_NOT_ALLOWED, "nothing is changed here: use the farbus command");
    }
    if headers.contains_key(TRANSFER_ENCODING) || headers.get(CONTENT_LENGTH).is_some_and(|length| length != "0") {
        return refuse(StatusCode::PAYLOAD_TOO_LARGE, "a question has no body here");
    }
    if only(headers, &ORIGIN)?.is_some_and(|origin| origin.strip_prefix("http://") != Some(host)) {
        return refuse(StatusCode::FORBIDDEN, "another page may not ask");
    }
    let fetch = |name: &'static str| only(headers, &HeaderName::from_static(name));
    if let Some(site) = fetch("sec-fetch-site")? {
        // A link on another page may lead here: what it opens is not that page's.
        let is_link = uri.path() == "/"
            && fetch("sec-fetch-mode")? == Some("navigate")
            && fetch("sec-fetch-dest")? == Some("document");
        if site != "same-origin" && site != "none" && !is_link {
            return refuse(StatusCode::FORBIDDEN, "another page may not ask");
        }
    }
    if client != Client::Owner && uri.path() != "/healthz" {
        return refuse(StatusCode::FORBIDDEN, "this page is another user's");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(client: Client, method: &str, uri: &str, lines: &[(&'static str, &str)]) -> u16 {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(HeaderName::from_static(name), value.parse().unwrap());
        }
        let method = method.parse().unwrap();
        let checked = check(&method, &uri.parse().unwrap(), &headers, client, Some(7240));
        checked.map_or_else(|refusal| refusal.status.as_u16(), |()| 200)
    }

    const OWN: (&str, &str) = ("host", "127.0.0.1:7240");

    #[test]
    fn a_name_that_was_made_to_resolve_here_is_refused() {
        let with = |host: &str| checked(Client::Owner, "GET", "/", &[("host", host)]);
        for host in ["127.0.0.1:7240", "localhost:7240", "[::1]:7240"] {
            assert_eq!(with(host), 200, "{host}");
        }
        let foreign = [
            "evil.example:7240",
            "evil.example",
            "localhost.evil.example:7240",
            "127.0.0.1:7241",
            "127.0.0.1",
            "",
            "127.0.0.1:7240@evil.example",
            "localhost:07240",
            "127.0.0.1:",
            "127.0.0.10:7240",
        ];
        for host in foreign {
            assert_eq!(with(host), 421, "{host}");
        }
        assert_eq!(checked(Client::Owner, "GET", "/", &[]), 400);
        assert_eq!(checked(Client::Owner, "GET", "/", &[OWN, ("host", "evil.example")]), 400);
        assert_eq!(checked(Client::Owner, "GET", "http://evil.example/", &[OWN]), 421);
    }

    #[test]
    fn another_page_may_lead_here_and_may_not_read() {
        let from =
            |lines: &[(&'static str, &str)], path| checked(Client::Owner, "GET", path, &[&[OWN], lines].concat());
        let (cross, link) = (("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate"));
        assert_eq!(from(&[("sec-fetch-site", "same-origin")], "/api/v1/status"), 200);
        assert_eq!(from(&[("sec-fetch-site", "none")], "/"), 200);
        assert_eq!(from(&[cross, link, ("sec-fetch-dest", "document")], "/"), 200);
        assert_eq!(from(&[cross, link, ("sec-fetch-dest", "iframe")], "/"), 403);
        assert_eq!(from(&[cross, ("sec-fetch-mode", "no-cors")], "/"), 403);
        assert_eq!(from(&[cross, link, ("sec-fetch-dest", "document")], "/api/v1/status"), 403);
        assert_eq!(from(&[("sec-fetch-site", "same-site")], "/events"), 403, "another port of this machine");
        assert_eq!(from(&[("origin", "http://127.0.0.1:7240")], "/"), 200);
        for origin in ["http://evil.example", "null", "https://127.0.0.1:7240", "http://127.0.0.1:8000"] {
            assert_eq!(from(&[("origin", origin)], "/"), 403, "{origin}");
        }
    }

    #[test]
    fn nothing_but_questions_without_a_body_is_taken() {
        for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "CONNECT", "TRACE", "BREW"] {
            assert_eq!(checked(Client::Owner, method, "/", &[OWN]), 405, "{method}");
        }
        assert_eq!(checked(Client::Owner, "GET", "/", &[OWN, ("content-length", "5")]), 413);
        assert_eq!(checked(Client::Owner, "GET", "/", &[OWN, ("transfer-encoding", "chunked")]), 413);
    }

    #[test]
    fn another_user_learns_only_that_it_runs() {
        assert_eq!(checked(Client::Other, "GET", "/healthz", &[OWN]), 200);
        for path in ["/", "/metrics", "/readyz", "/api/v1/status", "/events", "/healthz/", "/healthz/../metrics"] {
            assert_eq!(checked(Client::Other, "GET", path, &[OWN]), 403, "{path}");
        }
    }
}
