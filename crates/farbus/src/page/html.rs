//! The frame of every document. All that a document shows of devices, hosts and reasons was written by others.

use std::fmt::Write;

use super::line::messages::Elsewhere;
use super::status::Status;
use super::view::{Details, Piece, Shown, View, escaped_whole};

/// The style of the page.
pub const STYLE: &str = include_str!("page.css");
/// The icon of the page, PNG: a browser that may load pictures asks for one.
pub const ICON: &[u8] = include_bytes!("icon.png");
/// The script of the page: it replaces what has changed.
pub const SCRIPT: &str = include_str!("page.js");
/// The script that draws plots over time, on the pages that have some.
pub const PLOTS: &str = include_str!("plots.js");
/// The library that it draws with, and its style; the addresses of both have its version.
pub const UPLOT: &str = include_str!("vendor/uplot/uPlot.iife.min.js");
pub const UPLOT_STYLE: &str = include_str!("vendor/uplot/uPlot.min.css");
/// The version of that: browsers keep its files.
#[cfg(test)]
pub const UPLOT_VERSION: &str = "1.6.32";

const BEGIN: &str = "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
    <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
    <meta name=\"color-scheme\" content=\"light dark\">\n\
    <link rel=\"stylesheet\" href=\"/page.css\">\n<script src=\"/page.js\" defer></script>\n";
const PLOTS_BEGIN: &str = "<link rel=\"stylesheet\" href=\"/uplot-1.6.32.css\">\n\
    <script src=\"/uplot-1.6.32.js\" defer></script>\n<script src=\"/plots.js\" defer></script>\n";
const FOOT: &str = "</main>\n<footer><p>What this page does, it does by the command that it shows. \
    <a href=\"/api/v1/status\">JSON</a> · <a href=\"/metrics\">metrics</a></p>";
const END: &str = "</footer>\n</body>\n</html>\n";

/// The parts of the page that the head of each leads to: path and name.
const VIEWS: [(&str, &str); 4] = [("/", "Devices"), ("/hosts", "Hosts"), ("/buses", "Buses"), ("/network", "Network")];

/// The document of a view at an address, and whether there is what it is about. At its foot stands where browsers of
/// other machines find the page, if they do.
pub fn document(
    view: &View,
    address: &str,
    status: &Status,
    details: Option<&Details>,
    elsewhere: Option<&Elsewhere>,
) -> (bool, String) {
    let drawing = view.draw_with(status, details);
    let mut out = String::from(BEGIN);
    if view.has_plots() {
        out.push_str(PLOTS_BEGIN);
    }
    let version = Shown::of(&drawing).version();
    let _ = write!(
        out,
        "<title>{}: farbus</title>\n</head>\n<body>\n<header><a class=\"skip\" href=\"#main\">To the content</a>\n\
         <a class=\"brand\" href=\"/\">farbus</a>\n<nav aria-label=\"Views\">",
        escaped_whole(&drawing.title)
    );
    for (path, name) in VIEWS {
        let current = if path == view.path() { " aria-current=\"page\"" } else { "" };
        let _ = write!(out, "<a href=\"{path}\"{current}>{name}</a> ");
    }
    let _ = write!(
        out,
        "</nav>\n<span id=\"live\" role=\"status\">as of when it was loaded</span></header>\n\
         <main id=\"main\" tabindex=\"-1\" data-view=\"{}\" data-version=\"{version:016x}\">\n",
        escaped_whole(address)
    );
    for piece in drawing.pieces {
        match piece {
            Piece::Fixed(html) => out.push_str(&html),
            Piece::List(list) => {
                let _ = write!(out, "<{} id=\"{}\" data-parts>", list.element, list.id);
                for part in list.parts {
                    out.push_str(&part.html);
                    out.push('\n');
                }
                let _ = writeln!(out, "</{}>", list.element);
            }
        }
    }
    out.push_str(FOOT);
    if let Some(Elsewhere { url, fingerprint }) = elsewhere {
        let _ = write!(
            out,
            "\n<p>On other machines: {}, for browsers with a code (<code>farbus page invite</code>). \
             Its certificate has the SHA-256 fingerprint <code id=\"fingerprint\">{}</code></p>",
            escaped_whole(url),
            escaped_whole(fingerprint)
        );
    }
    out.push_str(END);
    (drawing.is_there, out)
}

/// What was the page's part that changes, before each view had many: the first devices.
pub fn table(status: &Status) -> String {
    let drawing = View::devices().draw(status);
    drawing.lists().flat_map(|list| &list.parts).map(|part| part.html.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use serde_json::{Value, json};

    use super::super::api::routes;
    use super::super::status::tests::status;
    use super::super::view::encoded;
    use super::*;

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
                document(&View::at(path, Some(query)).unwrap(), &address, &status, Some(&Details::default()), None)
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
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/page/vendor/uplot");
        let mut check = Command::new("sha256sum");
        let said = check.current_dir(&folder).args(["--check", "--strict", "SHA256SUMS"]).output().unwrap();
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stdout));
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
            document(&View::at(path, query).unwrap(), path, &status(json!([])), Some(&Details::default()), None).1
        };
        assert!(page("/device/7", Some("name=a")).contains("/plots.js"));
        for path in ["/", "/buses", "/network"] {
            assert!(!page(path, None).contains("plots.js") && !page(path, None).contains("uplot"), "{path}");
        }
    }
}
