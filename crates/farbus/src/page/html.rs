//! The frame of every document. All that a document shows of devices, hosts and reasons was written by others.

use std::fmt::Write;

use super::line::messages::Elsewhere;
use super::status::Status;
use super::view::{Details, Piece, Shown, View, escaped_whole};

/// The style of the page.
pub const STYLE: &str = include_str!("page.css");
/// The script of the page: it replaces what has changed.
pub const SCRIPT: &str = include_str!("page.js");

const BEGIN: &str = "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
    <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
    <meta name=\"color-scheme\" content=\"light dark\">\n\
    <link rel=\"stylesheet\" href=\"/page.css\">\n<script src=\"/page.js\" defer></script>\n";
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
    use serde_json::{Value, json};

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
        assert!(!BEGIN.contains("style=") && !BEGIN.contains("onload") && !SCRIPT.contains("innerHTML"));
        for part in [BEGIN, FOOT, END, SCRIPT, STYLE] {
            assert!(!part.contains("://") && !part.contains("src=\"//"), "{part}");
        }
    }
}
