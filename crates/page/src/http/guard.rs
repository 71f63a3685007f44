//! Which requests are refused before anything is looked at: those that a hostile page makes a browser send, and those
//! of other users.

use std::net::IpAddr;

use farbus_io_net::trust::PageScope;
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderName, ORIGIN, TRANSFER_ENCODING};
use hyper::{Method, StatusCode, Uri};

use crate::api::callers::PageCaller;
use crate::api::refusal::{HttpRefusal, only, refuse};
use crate::api::requests::BODY_BYTES_MAX;
use crate::api::routes::{self, RouteMatch};

/// How a page is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageOrigin {
    /// The listener's TCP port; a Unix socket has none.
    port: Option<u16>,
    /// The names and addresses for browsers of other machines; `None`: the page is this machine's, without TLS.
    names: Option<Vec<String>>,
}

impl PageOrigin {
    /// A page of this machine alone, at this TCP port; a Unix socket has none.
    pub fn local(port: Option<u16>) -> Self {
        Self { port, names: None }
    }

    /// A page for other machines, over TLS.
    pub fn remote(port: u16, names: Vec<String>) -> Self {
        Self { port: Some(port), names: Some(names) }
    }

    /// Adds the address of the machine that the client has reached to the page's names, if the page is remote.
    pub fn reached_at(mut self, address: IpAddr) -> Self {
        let text = if address.is_ipv6() { format!("[{address}]") } else { address.to_string() };
        self.names.iter_mut().for_each(|names| names.push(text.clone()));
        self
    }

    /// Whether its clients are browsers of other machines.
    pub fn is_remote(&self) -> bool {
        self.names.is_some()
    }

    fn scheme(&self) -> &'static str {
        if self.is_remote() { "https://" } else { "http://" }
    }

    /// Whether a request is for this page by this name: a page whose name an attacker made to resolve to this address
    /// (DNS rebinding) sends its own name.
    fn is_own_name(&self, host: &str) -> bool {
        let usual = if self.is_remote() { 443 } else { 80 };
        let named = |name: &str| match host.get(..name.len()).filter(|part| part.eq_ignore_ascii_case(name)) {
            Some(_) if host.len() == name.len() => self.port.is_none_or(|port| port == usual),
            Some(_) => host[name.len()..]
                .strip_prefix(':')
                .is_some_and(|part| self.port.is_some_and(|port| part == port.to_string())),
            None => false,
        };
        match &self.names {
            Some(names) => names.iter().any(|name| named(name)),
            None => ["localhost", "127.0.0.1", "[::1]"].into_iter().any(named),
        }
    }
}

/// A request that is answered.
#[derive(Clone, Copy, Debug)]
pub struct AdmittedRequest {
    /// What is asked for.
    pub found: RouteMatch,
    /// The length of the body, bytes; 0 for a question.
    pub length: u64,
}

/// Whether the request to this site is answered, and by what. A browser that shows its token as a cookie sends it
/// whatever page asks: with `has_cookie` a change has to come from this page itself.
///
/// # Errors
/// [`HttpRefusal`].
pub fn check(
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    caller: &PageCaller,
    (site, has_cookie): (&PageOrigin, bool),
) -> Result<AdmittedRequest, HttpRefusal> {
    let Some(host) = only(headers, &HOST)? else {
        return refuse(StatusCode::BAD_REQUEST, "a request names its host");
    };
    let is_own = site.is_own_name(host);
    if !is_own || uri.authority().is_some_and(|named| !site.is_own_name(named.as_str())) {
        let why = match site.is_remote() {
            true => "this page has another name: its owner names it with 'farbus page --name'",
            false => "this page is at localhost alone",
        };
        return refuse(StatusCode::MISDIRECTED_REQUEST, why);
    }
    let found = routes::find(uri.path()).filter(|found| site.is_remote() || !found.route.is_for_others());
    let needed = found.map_or(Some(PageScope::Read), |found| found.scope());
    if needed > caller.scope {
        return refuse(
            StatusCode::FORBIDDEN,
            match caller.has_token {
                true => "this token may not do that",
                false if site.is_remote() => "this page lets a browser in that has a code: farbus page invite",
                false => "this page is another user's",
            },
        );
    }
    let is_question = method == Method::GET || method == Method::HEAD;
    let Some(found) = found else {
        return match is_question || routes::find(uri.path()).is_some() {
            true => refuse(StatusCode::NOT_FOUND, "nothing is here"),
            false => refuse(StatusCode::METHOD_NOT_ALLOWED, "nothing is changed here"),
        };
    };
    if !found.route.takes(method) {
        let why = if is_question { "this changes something: POST" } else { "nothing is changed here" };
        return Err(HttpRefusal {
            allow: found.route.methods(),
            ..HttpRefusal::of(StatusCode::METHOD_NOT_ALLOWED, why)
        });
    }
    let length = match (found.route.is_form(), found.route.is_change()) {
        (true, _) => check_form(headers, host, site)?,
        (false, true) => check_change(headers, host, caller, (site, has_cookie))?,
        (false, false) => 0,
    };
    if !found.route.is_change() {
        check_question(uri, headers, (site, host))?;
    }
    Ok(AdmittedRequest { found, length })
}

fn fetch<'h>(headers: &'h HeaderMap, name: &'static str) -> Result<Option<&'h str>, HttpRefusal> {
    only(headers, &HeaderName::from_static(name))
}

fn check_question(uri: &Uri, headers: &HeaderMap, (site, host): (&PageOrigin, &str)) -> Result<(), HttpRefusal> {
    if headers.contains_key(TRANSFER_ENCODING) || headers.get(CONTENT_LENGTH).is_some_and(|length| length != "0") {
        return refuse(StatusCode::PAYLOAD_TOO_LARGE, "a question has no body here");
    }
    if only(headers, &ORIGIN)?.is_some_and(|origin| origin.strip_prefix(site.scheme()) != Some(host)) {
        return refuse(StatusCode::FORBIDDEN, "another page may not ask");
    }
    if let Some(from) = fetch(headers, "sec-fetch-site")? {
        // A link on another page may lead here: what it opens is not that page's.
        let is_link = (uri.path() == "/" || (site.is_remote() && uri.path() == "/enter"))
            && fetch(headers, "sec-fetch-mode")? == Some("navigate")
            && fetch(headers, "sec-fetch-dest")? == Some("document");
        if from != "same-origin" && from != "none" && !is_link {
            return refuse(StatusCode::FORBIDDEN, "another page may not ask");
        }
    }
    Ok(())
}

/// Whether a change is asked for by this page itself or by a program, and not by another page in a browser. Returns
/// the length of its body.
fn check_change(
    headers: &HeaderMap,
    host: &str,
    caller: &PageCaller,
    (site, has_cookie): (&PageOrigin, bool),
) -> Result<u64, HttpRefusal> {
    match (only(headers, &ORIGIN)?, fetch(headers, "sec-fetch-site")?) {
        (Some(origin), Some("same-origin")) if origin.strip_prefix(site.scheme()) == Some(host) => {}
        // No browser says neither, and none shows a token or reaches the socket by itself.
        (None, None) if (caller.has_token && !has_cookie) || site.port.is_none() => {}
        (None, None) => {
            return refuse(StatusCode::FORBIDDEN, "a program shows a token here, or comes over 'farbus page --socket'");
        }
        _ => return refuse(StatusCode::FORBIDDEN, "another page may not ask"),
    }
    // No form of another page can have this type without asking first, and that question is refused.
    if !has_type(headers, "application/json")? {
        return refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, "say: Content-Type: application/json");
    }
    length_of(headers)
}

/// Whether a form was sent by a document of this page. A program sends none. Returns the length of its body.
///
/// A browser says `Origin: null` of a form whose document has the policy `no-referrer`, as this page's have (Fetch,
/// "append a request `Origin` header"). The other headers, which no script and no form can set, then have to say that
/// this page's own document is left for the answer: a document without an origin of its own (a sandboxed frame, a data:
/// URL) is cross-site there, and so is a form that was redirected here.
fn check_form(headers: &HeaderMap, host: &str, site: &PageOrigin) -> Result<u64, HttpRefusal> {
    let is_same = fetch(headers, "sec-fetch-site")? == Some("same-origin");
    let is_own = match only(headers, &ORIGIN)? {
        Some("null") => {
            fetch(headers, "sec-fetch-mode")? == Some("navigate")
                && fetch(headers, "sec-fetch-dest")? == Some("document")
        }
        Some(origin) => origin.strip_prefix(site.scheme()) == Some(host),
        None => false,
    };
    if !is_same || !is_own {
        return refuse(StatusCode::FORBIDDEN, "another page may not ask");
    }
    if !has_type(headers, "application/x-www-form-urlencoded")? {
        return refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, "this is for forms of the page: programs use /api/v1");
    }
    length_of(headers)
}

/// Whether a body has this type, as UTF-8.
fn has_type(headers: &HeaderMap, wanted: &str) -> Result<bool, HttpRefusal> {
    let kind = only(headers, &CONTENT_TYPE)?.unwrap_or_default();
    let (kind, parameters) = kind.split_once(';').unwrap_or((kind, ""));
    let is_utf8 = parameters.trim().is_empty() || parameters.trim().eq_ignore_ascii_case("charset=utf-8");
    Ok(kind.trim().eq_ignore_ascii_case(wanted) && is_utf8)
}

/// The length that a body is said to have.
fn length_of(headers: &HeaderMap) -> Result<u64, HttpRefusal> {
    let length = only(headers, &CONTENT_LENGTH)?.filter(|_| !headers.contains_key(TRANSFER_ENCODING));
    let Some(length) = length else {
        return refuse(StatusCode::LENGTH_REQUIRED, "say how long the body is: Content-Length");
    };
    match length.parse() {
        Ok(length) if length <= BODY_BYTES_MAX => Ok(length),
        _ => refuse(StatusCode::PAYLOAD_TOO_LARGE, "a body has 16384 bytes at most"),
    }
}

#[cfg(test)]
mod tests {
    use farbus_io_net::trust::PageTokenList;

    use super::*;
    use crate::api::callers::ClientKind;

    fn checked(client: ClientKind, method: &str, uri: &str, lines: &[(&'static str, &str)]) -> u16 {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(HeaderName::from_static(name), value.parse().unwrap());
        }
        let authorization = headers.get("authorization").map(|authorization| authorization.to_str().unwrap());
        let caller = PageCaller::of(authorization, client, || Ok(PageTokenList::default()));
        let checked =
            caller.and_then(|caller| of_caller(&caller, method, uri, &headers, &PageOrigin::local(Some(7240))));
        checked.map_or_else(|refusal| refusal.status.as_u16(), |_| 200)
    }

    fn of_caller(
        caller: &PageCaller,
        method: &str,
        uri: &str,
        headers: &HeaderMap,
        site: &PageOrigin,
    ) -> Result<AdmittedRequest, HttpRefusal> {
        check(&method.parse().unwrap(), &uri.parse().unwrap(), headers, caller, (site, false))
    }

    const OWN: (&str, &str) = ("host", "127.0.0.1:7240");

    #[test]
    fn a_name_that_was_made_to_resolve_here_is_refused() {
        let with = |host: &str| checked(ClientKind::Owner, "GET", "/", &[("host", host)]);
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
        assert_eq!(checked(ClientKind::Owner, "GET", "/", &[]), 400);
        assert_eq!(checked(ClientKind::Owner, "GET", "/", &[OWN, ("host", "evil.example")]), 400);
        assert_eq!(checked(ClientKind::Owner, "GET", "http://evil.example/", &[OWN]), 421);
    }

    #[test]
    fn another_page_may_lead_here_and_may_not_read() {
        let from =
            |lines: &[(&'static str, &str)], path| checked(ClientKind::Owner, "GET", path, &[&[OWN], lines].concat());
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
            assert_eq!(checked(ClientKind::Owner, method, "/", &[OWN]), 405, "{method}");
        }
        assert_eq!(checked(ClientKind::Owner, "GET", "/", &[OWN, ("content-length", "5")]), 413);
        assert_eq!(checked(ClientKind::Owner, "GET", "/", &[OWN, ("transfer-encoding", "chunked")]), 413);
    }

    #[test]
    fn another_user_learns_only_that_it_runs() {
        assert_eq!(checked(ClientKind::Other, "GET", "/healthz", &[OWN]), 200);
        for path in ["/", "/metrics", "/readyz", "/api/v1/status", "/events", "/healthz/", "/healthz/../metrics"] {
            assert_eq!(checked(ClientKind::Other, "GET", path, &[OWN]), 403, "{path}");
        }
    }

    /// The status of a change that a browser's page at the page's own address would ask for, with other headers in
    /// place of its own; `None` leaves one out.
    fn change(instead: &[(&'static str, Option<&str>)], caller: &PageCaller, port: Option<u16>) -> u16 {
        change_at((&PageOrigin::local(port), false), instead, caller)
    }

    fn change_at(at: (&PageOrigin, bool), instead: &[(&'static str, Option<&str>)], caller: &PageCaller) -> u16 {
        changed("/api/v1/actions/release", at, instead, caller)
    }

    fn changed(
        path: &str,
        at: (&PageOrigin, bool),
        instead: &[(&'static str, Option<&str>)],
        caller: &PageCaller,
    ) -> u16 {
        let own = [
            ("host", "127.0.0.1:7240"),
            ("origin", "http://127.0.0.1:7240"),
            ("sec-fetch-site", "same-origin"),
            ("content-type", "application/json"),
            ("content-length", "2"),
        ];
        let mut headers = HeaderMap::new();
        for (name, value) in own {
            let other = instead.iter().find(|(named, _)| *named == name).map(|(_, value)| *value);
            if let Some(value) = other.unwrap_or(Some(value)) {
                headers.append(HeaderName::from_static(name), value.parse().unwrap());
            }
        }
        for (name, value) in instead.iter().filter(|(name, _)| own.iter().all(|(own, _)| own != name)) {
            headers.append(HeaderName::from_static(name), value.unwrap_or_default().parse().unwrap());
        }
        let checked = check(&Method::POST, &path.parse::<Uri>().unwrap(), &headers, caller, at);
        checked.map_or_else(|refusal| refusal.status.as_u16(), |_| 200)
    }

    fn owner() -> PageCaller {
        PageCaller { scope: Some(PageScope::Own), has_token: false, called: "page".into(), until: None }
    }

    #[test]
    fn a_change_comes_from_the_page_itself_or_from_a_program_that_no_page_can_be() {
        let by_browser = |instead: &[(&'static str, Option<&str>)]| change(instead, &owner(), Some(7240));
        assert_eq!(by_browser(&[]), 200);
        assert_eq!(by_browser(&[("content-type", Some("application/json; charset=UTF-8"))]), 200);
        for origin in ["http://evil.example", "null", "https://127.0.0.1:7240", "http://127.0.0.1:8000", ""] {
            assert_eq!(by_browser(&[("origin", Some(origin))]), 403, "{origin}");
        }
        for site in ["cross-site", "same-site", "none", ""] {
            assert_eq!(by_browser(&[("sec-fetch-site", Some(site))]), 403, "{site}");
        }
        assert_eq!(by_browser(&[("origin", None)]), 403);
        assert_eq!(by_browser(&[("sec-fetch-site", None)]), 403);
        assert_eq!(by_browser(&[("host", Some("evil.example:7240"))]), 421, "rebinding");
        // Forms send these without asking first.
        for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""] {
            assert_eq!(by_browser(&[("content-type", Some(kind))]), 415, "{kind}");
        }
        assert_eq!(by_browser(&[("content-type", Some("application/json; charset=utf-16"))]), 415);
        let neither = [("origin", None), ("sec-fetch-site", None)];
        let with_token = PageCaller { has_token: true, ..owner() };
        assert_eq!(change(&neither, &owner(), Some(7240)), 403, "it could be an old browser");
        assert_eq!(change(&neither, &with_token, Some(7240)), 200);
        assert_eq!(change(&[&neither[..], &[("host", Some("localhost"))]].concat(), &owner(), None), 200, "the socket");
        assert_eq!(change(&[("origin", Some("http://evil.example"))], &with_token, Some(7240)), 403);
    }

    #[test]
    fn a_form_is_taken_from_a_document_of_this_page_alone() {
        let form = |path: &str, instead: &[(&'static str, Option<&str>)]| {
            let of_document = [
                ("origin", Some("null")),
                ("sec-fetch-mode", Some("navigate")),
                ("sec-fetch-dest", Some("document")),
                ("content-type", Some("application/x-www-form-urlencoded")),
            ];
            let site = PageOrigin::local(Some(7240));
            // The first of each name counts.
            let mut named: Vec<_> = instead.to_vec();
            named.extend(of_document.into_iter().filter(|(name, _)| instead.iter().all(|(other, _)| other != name)));
            changed(path, (&site, false), &named, &PageCaller { has_token: true, ..owner() })
        };
        for path in ["/do/release", "/do/stop/7", "/leave"] {
            assert_eq!(form(path, &[]), 200, "{path}");
            assert_eq!(form(path, &[("origin", Some("http://127.0.0.1:7240"))]), 200, "{path}");
            for origin in [Some("http://evil.example"), Some("http://127.0.0.1:8000"), Some(""), None] {
                assert_eq!(form(path, &[("origin", origin)]), 403, "{path} {origin:?}");
            }
            for site in [Some("cross-site"), Some("same-site"), Some("none"), None] {
                assert_eq!(form(path, &[("sec-fetch-site", site)]), 403, "{path} {site:?}");
            }
            // A frame or a script of a document without an origin.
            assert_eq!(form(path, &[("sec-fetch-dest", Some("iframe"))]), 403, "{path}");
            assert_eq!(form(path, &[("sec-fetch-mode", Some("cors"))]), 403, "{path}");
            assert_eq!(form(path, &[("origin", None), ("sec-fetch-site", None)]), 403, "{path}: no program");
            for kind in ["text/plain", "application/json", "multipart/form-data; boundary=x"] {
                assert_eq!(form(path, &[("content-type", Some(kind))]), 415, "{path} {kind}");
            }
            assert_eq!(form(path, &[("content-length", Some("16385"))]), 413, "{path}");
        }
    }

    #[test]
    fn a_cookie_changes_something_from_the_page_itself_alone() {
        let site = PageOrigin::remote(7241, vec!["lab3.example".into()]);
        let bearer = PageCaller { has_token: true, ..owner() };
        let own = [
            ("host", Some("lab3.example:7241")),
            ("origin", Some("https://lab3.example:7241")),
            ("sec-fetch-site", Some("same-origin")),
        ];
        let with = |has_cookie, instead: &[(&'static str, Option<&str>)]| {
            change_at((&site, has_cookie), &[instead, &own[..]].concat(), &bearer)
        };
        assert_eq!(with(true, &[]), 200);
        for origin in ["http://lab3.example:7241", "https://lab3.example", "https://evil.example:7241", "null"] {
            assert_eq!(with(true, &[("origin", Some(origin))]), 403, "{origin}");
        }
        assert_eq!(with(true, &[("sec-fetch-site", Some("same-site"))]), 403, "another port");
        let neither = [("origin", None), ("sec-fetch-site", None)];
        assert_eq!(with(true, &neither), 403, "a browser sends a cookie by itself");
        assert_eq!(with(false, &neither), 200, "and a header never");
    }

    #[test]
    fn a_page_for_other_machines_has_the_names_that_it_was_given_and_the_address_that_was_reached() {
        let site = PageOrigin::remote(7241, vec!["lab3.example".into()]).reached_at("2001:db8::7".parse().unwrap());
        for host in ["lab3.example:7241", "LAB3.example:7241", "[2001:db8::7]:7241"] {
            assert!(site.is_own_name(host), "{host}");
        }
        let foreign =
            ["lab3.example", "localhost:7241", "127.0.0.1:7241", "lab3.example.evil:7241", "[2001:db8::8]:7241"];
        for host in foreign {
            assert!(!site.is_own_name(host), "{host}");
        }
        assert!(PageOrigin::remote(443, vec!["lab3.example".into()]).is_own_name("lab3.example"));
    }

    #[test]
    fn a_stranger_of_another_machine_gets_where_codes_are_shown_and_nothing_else() {
        let site = PageOrigin::remote(7241, vec!["lab3.example".into()]);
        let stranger = PageCaller { scope: None, has_token: false, called: "another machine".into(), until: None };
        let status_of = |caller: &PageCaller, site: &PageOrigin, path: &str| {
            let mut headers = HeaderMap::new();
            headers
                .insert(HOST, if site.is_remote() { "lab3.example:7241" } else { "localhost:7240" }.parse().unwrap());
            of_caller(caller, "GET", path, &headers, site).map_or_else(|refusal| refusal.status.as_u16(), |_| 200)
        };
        for path in ["/enter", "/enter.js", "/enter.css", "/healthz"] {
            assert_eq!(status_of(&stranger, &site, path), 200, "{path}");
        }
        for path in ["/", "/page.js", "/page.css", "/metrics", "/events", "/api/v1/status", "/else"] {
            assert_eq!(status_of(&stranger, &site, path), 403, "{path}");
        }
        assert_eq!(
            status_of(&owner(), &PageOrigin::local(Some(7240)), "/enter"),
            404,
            "it is there for other machines"
        );
    }

    #[test]
    fn the_length_of_a_change_is_known_and_limited_before_it_is_read() {
        let with = |instead: &[(&'static str, Option<&str>)]| change(instead, &owner(), Some(7240));
        assert_eq!(with(&[("content-length", None)]), 411);
        assert_eq!(with(&[("transfer-encoding", Some("chunked"))]), 411);
        assert_eq!(with(&[("content-length", Some("16384"))]), 200);
        for long in ["16385", "18446744073709551616", "-1", "x"] {
            assert_eq!(with(&[("content-length", Some(long))]), 413, "{long}");
        }
    }

    #[test]
    fn a_scope_that_is_too_small_or_a_token_that_is_none_changes_nothing() {
        for scope in [Some(PageScope::Read), Some(PageScope::Observe), None] {
            let caller = PageCaller { scope, has_token: scope.is_some(), called: String::new(), until: None };
            assert_eq!(change(&[], &caller, Some(7240)), 403, "{scope:?}");
        }
        let with =
            |authorization: &str| checked(ClientKind::Owner, "GET", "/", &[OWN, ("authorization", authorization)]);
        for authorization in ["Bearer farbus-page-x", "Bearer ", "Basic b3duZXI6", "farbus-page-x", ""] {
            assert_eq!(with(authorization), 401, "{authorization}: even of the owner");
        }
    }
}
