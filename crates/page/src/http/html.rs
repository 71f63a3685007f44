//! The frame of every document. All that a document shows of devices, hosts and reasons was written by others.

use farbus_control::daemon::Elsewhere;
use farbus_io_net::trust::PageScope;
use maud::{Markup, PreEscaped, html};

use crate::api::callers::PageCaller;
use crate::api::routes::LEAVE_AT;
use crate::known::status::CombinedStatus;
use crate::view::{DeviceDetails, DrawingPiece, LiveList, PageView, ViewDigest, whole};

/// The style of the page.
pub const STYLE: &str = include_str!("../view/page.css");
/// The icon of the page, PNG: a browser that may load pictures asks for one.
pub const ICON: &[u8] = include_bytes!("../view/icon.png");
/// The script of the page: it replaces what has changed.
pub const SCRIPT: &str = include_str!("../view/page.js");
/// The script that draws plots over time, on the pages that have some.
pub const PLOTS: &str = include_str!("../view/plots.js");
/// The library that it draws with, and its style; the addresses of both have its version.
pub const UPLOT: &str = include_str!("../view/vendor/uplot/uPlot.iife.min.js");
pub const UPLOT_STYLE: &str = include_str!("../view/vendor/uplot/uPlot.min.css");
/// The version of that: browsers keep its files.
#[cfg(test)]
pub const UPLOT_VERSION: &str = "1.6.32";

const BEGIN: &str = "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
    <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
    <meta name=\"color-scheme\" content=\"light dark\">\n\
    <link rel=\"stylesheet\" href=\"/page.css\">\n<script src=\"/page.js\" defer></script>\n";
const PLOTS_BEGIN: &str = "<link rel=\"stylesheet\" href=\"/uplot-1.6.32.css\">\n\
    <script src=\"/uplot-1.6.32.js\" defer></script>\n<script src=\"/plots.js\" defer></script>\n";
const FOOT: &str = "\n<footer><p>What this page does, it does by the command that it shows. \
    <a href=\"/api/v1/status\">JSON</a> · <a href=\"/metrics\">metrics</a></p>";
const END: &str = "</footer>\n<dialog id=\"sure\" aria-labelledby=\"sure-what\"><p id=\"sure-what\"></p>\n\
    <p><code id=\"sure-line\"></code></p>\n<p><button type=\"button\" id=\"sure-no\">Leave it</button> \
    <button type=\"button\" id=\"sure-yes\">Do it</button></p></dialog>\n</body>\n</html>\n";

/// The parts of the page that the head of each leads to: path and name.
const VIEWS: [(&str, &str); 5] =
    [("/", "Devices"), ("/hosts", "Hosts"), ("/buses", "Buses"), ("/network", "Network"), ("/new", "Share and attach")];

/// Who looks at a document, and what is drawn for them.
#[derive(Clone, Debug)]
pub struct PageViewer {
    /// Who it is, and what they may do.
    pub caller: PageCaller,
    /// Whether it is a browser that was let in: it can sign out.
    pub is_let_in: bool,
}

impl PageViewer {
    /// What they may do.
    pub fn may(&self) -> PageScope {
        self.caller.scope.unwrap_or(PageScope::Read)
    }

    /// What they may do and until when, in words, with the way to sign out; empty for the page's own user.
    fn draw(&self) -> Markup {
        let (may, scope) = match self.may() {
            PageScope::Read => ("may look", "read"),
            PageScope::Observe => ("may look, and record what devices send", "observe"),
            PageScope::Own => ("may do everything", "own"),
        };
        html! {
            @if self.caller.has_token {
                div id="viewer" {
                    p {
                        bdi { (whole(&self.caller.called)) } " " (may) " (scope " code { (scope) } ")"
                        @if let Some(until) = &self.caller.until { ", until " time { (whole(until)) } }
                    }
                    @if self.is_let_in { form method="post" action=(LEAVE_AT) { button { "Sign out" } } }
                }
            }
        }
    }
}

/// The document of a view at an address, and whether there is what it is about. At its foot stands where browsers of
/// other machines find the page, if they do.
pub fn document(
    view: &PageView,
    address: &str,
    status: &CombinedStatus,
    details: Option<&DeviceDetails>,
    (viewer, elsewhere): (&PageViewer, Option<&Elsewhere>),
) -> (bool, String) {
    let drawing = view.draw_with(status, details);
    let version = ViewDigest::of(&drawing).version();
    let main = html! {
        main id="main" tabindex="-1" data-view=(whole(address)) data-version=(format_args!("{version:016x}")) {
            @for piece in &drawing.pieces {
                @match piece {
                    DrawingPiece::Fixed(html) => { (PreEscaped(html)) }
                    DrawingPiece::List(list) => { (list_of(list)) }
                }
            }
        }
    };
    let html = whole_document((&drawing.title, view.path()), view.has_plots(), &main, (viewer, elsewhere));
    (drawing.is_there, html)
}

/// An element with its parts, whose name is the list's.
fn list_of(LiveList { id, element, parts }: &LiveList) -> Markup {
    html! {
        (PreEscaped(format!("<{element} id=\"{id}\" data-parts>")))
        // A space between links.
        @for part in parts { (PreEscaped(&part.html)) "\n" }
        (PreEscaped(format!("</{element}>\n")))
    }
}

/// A document that is no view: its main part is this HTML, and does not change.
pub fn answer(title: &str, content: &Markup, around: (&PageViewer, Option<&Elsewhere>)) -> String {
    let main = html! { main id="main" tabindex="-1" { (content) } };
    whole_document((title, ""), false, &main, around)
}

/// The document around its main part. `current` is the path of the view that it is.
fn whole_document(
    (title, current): (&str, &str),
    has_plots: bool,
    main: &Markup,
    (viewer, elsewhere): (&PageViewer, Option<&Elsewhere>),
) -> String {
    let document = html! {
        (PreEscaped(BEGIN))
        @if has_plots { (PreEscaped(PLOTS_BEGIN)) }
        title { (whole(title)) ": farbus" }
        (PreEscaped("</head>\n<body>\n"))
        header {
            a class="skip" href="#main" { "To the content" }
            a class="brand" href="/" { "farbus" }
            nav aria-label="Views" {
                @for (path, name) in VIEWS {
                    a href=(path) aria-current=[(path == current).then_some("page")] { (name) } " "
                }
            }
            span id="live" role="status" { "as of when it was loaded" }
            (viewer.draw())
        }
        (main)
        (PreEscaped(FOOT))
        @if let Some(Elsewhere { url, fingerprint }) = elsewhere {
            p {
                "On other machines: " (whole(url)) ", for browsers with a code (" code { "farbus page invite" } "). "
                "Its certificate has the SHA-256 fingerprint " code id="fingerprint" { (whole(fingerprint)) }
            }
        }
        (PreEscaped(END))
    };
    document.into_string()
}

/// What was the page's part that changes, before each view had many: the first devices.
pub fn table(status: &CombinedStatus) -> String {
    let drawing = PageView::devices().draw(status);
    drawing.lists().flat_map(|list| &list.parts).map(|part| part.html.as_str()).collect()
}

#[cfg(test)]
pub mod tests {
    use std::path::Path;
    use std::process::Command;

    use serde_json::{Value, json};

    use super::*;
    use crate::api::callers::ClientKind;
    use crate::api::routes;
    use crate::known::status::tests::status;
    use crate::view::encoded;

    /// The page's own user.
    pub fn owner() -> PageViewer {
        let caller = PageCaller::of(None, ClientKind::Owner, || panic!("there is no token")).unwrap();
        PageViewer { caller, is_let_in: false }
    }

    #[test]
    fn one_who_was_let_in_sees_what_they_may_and_until_when_and_no_button_that_they_may_not_press() {
        let device = json!({
            "name": "keyboard", "title": "Keyboard", "bus_id": "1-1", "state": "in use", "is_observable": true,
        });
        let status = status(json!([{ "pid": 7, "role": "daemon", "devices": [device] }]));
        let page = |may: PageScope| {
            let until = Some("2027-01-01T00:00:00Z".to_owned());
            let caller = PageCaller { scope: Some(may), has_token: true, called: "token <b>".into(), until };
            let view = PageView::at("/device/7", Some("name=keyboard")).unwrap().for_scope(may);
            document(
                &view,
                "/",
                &status,
                Some(&DeviceDetails::default()),
                (&PageViewer { caller, is_let_in: true }, None),
            )
            .1
        };
        for (may, forms) in
            [(PageScope::Read, &[][..]), (PageScope::Observe, &["observe"]), (PageScope::Own, &["observe", "release"])]
        {
            let page = page(may);
            let drawn: Vec<&str> =
                ["observe", "release"].into_iter().filter(|name| page.contains(&format!("id=\"do-{name}\""))).collect();
            assert_eq!(drawn, forms, "{may}: {page}");
            assert!(page.contains(&format!("(scope <code>{may}</code>), until <time>2027-01-01T00:00:00Z")), "{page}");
            assert!(page.contains("action=\"/leave\"") && !page.contains("<b>"), "{page}");
            assert!(page.contains("farbus release keyboard"), "what can be typed is shown: {page}");
        }
        let of_owner = document(&PageView::devices(), "/", &status, None, (&owner(), None)).1;
        assert!(!of_owner.contains("/leave"), "{of_owner}");
    }

    #[test]
    fn hostile_texts_add_no_element_and_no_attribute() {
        let evil = "<script>alert(1)</script>\"' onx=1 &lt;\u{202e}\x1b[2J";
        let device = json!({
            "name": evil, "title": evil, "state": "in use", "user": evil, "reason": evil, "interfaces": [evil],
            "waiting": [{ "host": evil }], "failure": { "message": evil }, "used_s": 61.0,
        });
        let benign = json!({
            "name": "a", "title": "a", "state": "in use", "user": "a", "reason": "a", "interfaces": ["a"],
            "waiting": [{ "host": "a" }], "failure": { "message": "a" }, "used_s": 61.0,
        });
        let query = format!("name={}", encoded(evil));
        for (path, query, of_plain) in [("/", "", ""), ("/device/7", query.as_str(), "name=a")] {
            let page_of = |device: &Value, query: &str| {
                let status = status(json!([{ "pid": 7, "role": "share", "devices": [device] }]));
                let address = format!("{path}?{query}");
                document(
                    &PageView::at(path, Some(query)).unwrap(),
                    &address,
                    &status,
                    Some(&DeviceDetails::default()),
                    (&owner(), None),
                )
            };
            let ((is_there, hostile), (_, plain)) = (page_of(&device, query), page_of(&benign, of_plain));
            assert!(is_there, "{path}");
            for sign in ['<', '>', '"'] {
                assert_eq!(hostile.matches(sign).count(), plain.matches(sign).count(), "{sign}: {hostile}");
            }
            assert!(!hostile.contains(['\u{202e}', '\x1b']) && hostile.contains("1 min"));
            assert!(hostile.contains("farbus release $&#39;&lt;script&gt;"), "{hostile}");
        }
    }

    #[test]
    fn nothing_in_the_page_is_inline_or_from_outside() {
        for part in [BEGIN, PLOTS_BEGIN, SCRIPT, PLOTS, UPLOT] {
            assert!(!part.contains("style=") && !part.contains("onload") && !part.contains("innerHTML"), "{part}");
        }
        // What is vendored names its project in a comment.
        let uplot = UPLOT.strip_prefix("/*! https://github.com/leeoniya/uPlot (v1.6.32) */").unwrap();
        for part in [BEGIN, PLOTS_BEGIN, FOOT, END, SCRIPT, STYLE, PLOTS, uplot, UPLOT_STYLE] {
            assert!(!part.contains("://") && !part.contains("src=\"//"), "{part}");
        }
    }
    #[test]
    fn uplot_has_the_checksums_that_are_written_and_the_version_of_its_addresses() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/view/vendor/uplot");
        let mut check = Command::new("sha256sum");
        let output = check.current_dir(&folder).args(["--check", "--strict", "SHA256SUMS"]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        let sums = std::fs::read_to_string(folder.join("SHA256SUMS")).unwrap();
        for file in std::fs::read_dir(&folder).unwrap() {
            let name = file.unwrap().file_name().into_string().unwrap();
            let is_ours = ["README.md", "SHA256SUMS"].contains(&name.as_str());
            assert!(is_ours || sums.lines().any(|line| line.ends_with(&format!("  {name}"))), "{name} has no checksum");
        }
        let readme = std::fs::read_to_string(folder.join("README.md")).unwrap();
        assert!(readme.starts_with(&format!("# uPlot {UPLOT_VERSION}\n")), "{readme}");
        for kind in ["js", "css"] {
            let address = format!("/uplot-{UPLOT_VERSION}.{kind}");
            assert!(UPLOT.starts_with(&format!("/*! https://github.com/leeoniya/uPlot (v{UPLOT_VERSION}) */")));
            assert!(PLOTS_BEGIN.contains(&address) && routes::find(&address).is_some(), "{address}");
        }
    }

    #[test]
    fn only_a_page_with_plots_loads_what_draws_them() {
        let page = |path: &str, query: Option<&str>| {
            document(
                &PageView::at(path, query).unwrap(),
                path,
                &status(json!([])),
                Some(&DeviceDetails::default()),
                (&owner(), None),
            )
            .1
        };
        assert!(page("/device/7", Some("name=a")).contains("/plots.js"));
        for path in ["/", "/buses", "/network"] {
            assert!(!page(path, None).contains("../view/plots.js") && !page(path, None).contains("uplot"), "{path}");
        }
    }
}
