//! All devices: a table of those that match, a page of it at a time.

use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::Value;

use super::super::api::offers;
use super::super::shell::NAME_BYTES_MAX;
use super::super::status::Status;
use super::drawing::{Drawing, Keys, List, Part, Piece, key_of};
use super::text::{encoded, escaped, escaped_whole, span, value_in};

/// Rows of a page. `/api/v1/status` has them all.
pub const ROWS_MAX: usize = 100;
/// Characters of a filter.
const FILTER_CHARS_MAX: usize = 100;
/// Hosts that wait for a device, as its row names them.
const WAITING_MAX: usize = 3;

/// Which devices are shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// What they have to contain, in lower case; empty: all are shown.
    filter: String,
    /// The page, from 0.
    page: usize,
}

impl Wanted {
    /// What a query asks for: `q`, the filter, and `page`, from 1.
    pub fn of(query: &str) -> Self {
        let filter = value_in(query, "q").unwrap_or_default().trim().to_lowercase();
        let page = value_in(query, "page").and_then(|page| page.parse::<usize>().ok()).unwrap_or(1);
        Self { filter: filter.chars().take(FILTER_CHARS_MAX).collect(), page: page.saturating_sub(1) }
    }

    /// The address of a page of the same devices.
    fn address_of(&self, page: usize) -> String {
        match self.filter.is_empty() {
            true => format!("/?page={}", page + 1),
            false => format!("/?q={}&amp;page={}", encoded(&self.filter), page + 1),
        }
    }

    fn has(&self, process: &Value, device: &Value) -> bool {
        let texts = ["name", "title", "state", "user", "reason", "ids", "place", "comment", "bus_id"];
        let contains = |value: &Value| value.as_str().is_some_and(|text| text.to_lowercase().contains(&self.filter));
        self.filter.is_empty()
            || texts.iter().any(|name| contains(&device[*name]))
            || contains(&process["host"])
            || device["interfaces"].as_array().into_iter().flatten().any(contains)
            || device["labels"]
                .as_object()
                .into_iter()
                .flatten()
                .any(|(name, value)| name.to_lowercase().contains(&self.filter) || contains(value))
    }

    /// Draws the table of the devices that are wanted, a page of it.
    pub fn draw(&self, status: &Status) -> Drawing {
        let all = status.devices().count();
        let matching: Vec<_> = status.devices().filter(|(process, device)| self.has(process, device)).collect();
        let pages = matching.len().div_ceil(ROWS_MAX).max(1);
        // Devices that went may have left fewer pages.
        let page = self.page.min(pages - 1);
        let mut keys = Keys::default();
        let rows = matching.iter().skip(page * ROWS_MAX).take(ROWS_MAX).map(|(process, device)| {
            let key = keys.take(key_of("device", (process["pid"].as_u64(), device["name"].as_str())));
            Part { html: row(&key, process, device), key }
        });
        let rows: Vec<_> = rows.collect();
        let mut notes = notes(status);
        if all == 0 {
            let hint = "Nothing is shared or attached here. Try: <code>farbus share zero</code>";
            notes.push(part("nothing", format!("<p id=\"nothing\">{hint}</p>")));
        } else {
            let first = page * ROWS_MAX + 1;
            let shown = match (matching.len(), rows.len()) {
                (0, _) => format!("None of {all} devices matches"),
                (matching, shown) if matching == shown => format!("Devices: {shown}"),
                (matching, shown) => format!("Devices {first} to {} of {matching}", first + shown - 1),
            };
            notes.push(part("count", format!("<p id=\"count\">{shown}</p>")));
        }
        let mut ways = Vec::new();
        if page > 0 {
            let way = format!("<a id=\"previous\" rel=\"prev\" href=\"{}\">Previous</a>", self.address_of(page - 1));
            ways.push(part("previous", way));
        }
        if page + 1 < pages {
            let way = format!("<a id=\"next\" rel=\"next\" href=\"{}\">Next</a>", self.address_of(page + 1));
            ways.push(part("next", way));
        }
        let filter = escaped_whole(&self.filter);
        let form = format!(
            "<h1>Devices</h1>\n<form role=\"search\" action=\"/\" method=\"get\"><label for=\"filter\">Filter</label> \
             <input type=\"search\" id=\"filter\" name=\"q\" value=\"{filter}\" maxlength=\"{FILTER_CHARS_MAX}\" \
             autocomplete=\"off\" spellcheck=\"false\"> <button>Show</button></form>\n"
        );
        let headings = ["Device", "What", "State", "User", "Since", "Waiting", "Command"];
        let headings = headings.map(|heading| format!("<th scope=\"col\">{heading}</th>")).concat();
        let table = format!(
            "<table class=\"devices\"><caption>What is shared and attached here</caption>\n<thead><tr>{headings}</tr></thead>\n"
        );
        let pieces = vec![
            Piece::Fixed(form),
            Piece::List(List { id: "notes", element: "div", parts: notes }),
            Piece::Fixed(table),
            Piece::List(List { id: "rows", element: "tbody", parts: rows }),
            Piece::Fixed("</table>\n<nav aria-label=\"Pages of devices\">".into()),
            Piece::List(List { id: "pages", element: "span", parts: ways }),
            Piece::Fixed("</nav>\n".into()),
        ];
        Drawing { title: "Devices".into(), is_there: true, pieces }
    }
}

fn part(key: &str, html: String) -> Part {
    Part { key: key.to_owned(), html }
}

/// What is wrong with the processes.
pub fn notes(status: &Status) -> Vec<Part> {
    let mut notes = Vec::new();
    if let Some(failure) = &status.failure {
        let why = escaped(failure);
        notes.push(part(
            "failure",
            format!("<p id=\"failure\" role=\"alert\">The processes cannot be asked: {why}</p>"),
        ));
    }
    if status.silent > 0 {
        let count = status.silent;
        notes.push(part(
            "silent",
            format!("<p id=\"silent\" role=\"alert\">Processes that gave no status: {count}</p>"),
        ));
    }
    notes
}

/// What an address says besides the name of a device at a daemon: a daemon that is restarted has another number.
pub fn role_of(process: &Value) -> &'static str {
    if process["role"] == "daemon" { "&amp;role=daemon" } else { "" }
}

/// The link to a device's own page; its name alone if that is too long for an address.
pub fn link_to(process: &Value, device: &Value) -> String {
    let name = device["name"].as_str().unwrap_or_default();
    match process["pid"].as_u64().filter(|_| name.len() <= NAME_BYTES_MAX) {
        Some(pid) => {
            let role = role_of(process);
            format!("<a href=\"/device/{pid}?name={}{role}\">{}</a>", encoded(name), escaped(name))
        }
        None => escaped(name),
    }
}

/// A number that changes with what rows show, of all devices.
pub fn fingerprint(status: &Status) -> u64 {
    let mut hasher = DefaultHasher::new();
    (&status.failure, status.silent).hash(&mut hasher);
    for (process, device) in status.devices() {
        (process["pid"].as_u64(), process["host"].as_str()).hash(&mut hasher);
        for text in ["name", "title", "state", "user", "reason"] {
            device[text].as_str().hash(&mut hasher);
        }
        device["failure"]["message"].as_str().hash(&mut hasher);
        device["used_s"].as_f64().map(span).hash(&mut hasher);
        let waiting = device["waiting"].as_array().into_iter().flatten();
        waiting.for_each(|waiting| waiting["host"].as_str().hash(&mut hasher));
    }
    hasher.finish()
}

fn row(key: &str, process: &Value, device: &Value) -> String {
    let text = |name: &str| device[name].as_str().unwrap_or_default();
    let since = device["used_s"].as_f64().map(span).unwrap_or_default();
    let user = match text("reason") {
        "" => escaped(text("user")),
        reason => format!("{}<br><q>{}</q>", escaped(text("user")), escaped(reason)),
    };
    let waiting = device["waiting"].as_array().map(Vec::as_slice).unwrap_or_default();
    let hosts = waiting.iter().filter_map(|waiting| waiting["host"].as_str()).map(escaped).take(WAITING_MAX);
    let mut hosts: Vec<_> = hosts.collect();
    if let Some(more @ 1..) = waiting.len().checked_sub(WAITING_MAX) {
        hosts.push(format!("and {more} more"));
    }
    let failure = device["failure"]["message"].as_str().map(|why| format!("<br>{}", escaped(why)));
    let command = offers::first(process, device).map(|line| format!("<code>{}</code>", escaped_whole(&line)));
    let host = process["host"].as_str().map(|host| format!(" <small>{}</small>", escaped(host)));
    let mut row = String::new();
    let _ = write!(
        row,
        "<tr id=\"{key}\"><th scope=\"row\">{}{}</th><td data-label=\"What\">{} {}</td>\
         <td data-label=\"State\">{}{}</td><td data-label=\"User\">{}</td><td data-label=\"Since\">{since}</td>\
         <td data-label=\"Waiting\">{}</td><td data-label=\"Command\">{}</td></tr>",
        link_to(process, device),
        host.unwrap_or_default(),
        icon(device),
        escaped(text("title")),
        escaped(text("state")),
        failure.unwrap_or_default(),
        if text("user").is_empty() && text("reason").is_empty() { String::new() } else { user },
        hosts.join("<br>"),
        command.unwrap_or_default(),
    );
    row
}

/// A sign for the device's class, and the class in words for those who do not see it.
pub fn icon(device: &Value) -> String {
    let interfaces = device["interfaces"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let classes = interfaces.collect::<Vec<_>>().join(" ").to_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| classes.contains(word));
    let (path, word) = if device["size_bytes"].is_u64() || has(&["storage", "disk"]) {
        ("M2 4h12v8H2zM4 10h4M11 10h1", "disk")
    } else if has(&["audio", "sound", "midi"]) {
        ("M2 6h3l4-4v12l-4-4H2zM11 5q2 3 0 6", "sound")
    } else if has(&["video", "camera", "image"]) {
        ("M1 4h14v9H1zM5 8.500a3 3 0 1 0 6 0a3 3 0 1 0-6 0", "camera")
    } else if has(&["keyboard", "mouse", "hid", "human", "input"]) {
        ("M1 4h14v8H1zM3 6.500h1M6 6.500h1M9 6.500h1M12 6.500h1M4 9.500h8", "input")
    } else if has(&["serial", "communication", "cdc", "modem"]) {
        ("M2 6h11l-3-3M14 10H3l3 3", "serial or network")
    } else if has(&["printer"]) {
        ("M4 6V2h8v4M2 6h12v6h-2M4 12H2V6M4 9h8v5H4z", "printer")
    } else {
        ("M8 14V3L6 5M8 3l2 2M8 10L5 8V6M8 11l3-2V7", "device")
    };
    format!("<svg class=\"icon\" viewBox=\"0 0 16 16\" role=\"img\" aria-label=\"{word}\"><path d=\"{path}\"/></svg>")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::super::html::document;
    use super::super::super::html::tests::owner;
    use super::super::super::status::tests::status;
    use super::super::View;
    use super::super::live::Shown;
    use super::*;

    /// Bytes of a page of devices whose texts are of usual length, and elements of it.
    const PAGE_BYTES_MAX: usize = 100 << 10;
    const PAGE_ELEMENTS_MAX: usize = 3000;
    /// Bytes of a page on which every text is as long as it can be and every character is escaped.
    const HOSTILE_PAGE_BYTES_MAX: usize = 2 << 20;

    fn page(query: &str, processes: Value) -> String {
        document(&View::at("/", Some(query)).unwrap(), query, &status(processes), None, (&owner(), None)).1
    }

    fn thousand() -> Vec<Value> {
        let device = |n: usize| {
            json!({
                "name": format!("board{n}"), "title": "Example Inc. board with a name", "state": "in use",
                "user": "desk (10.0.0.7:40000)", "reason": "nightly", "used_s": 61.0, "interfaces": ["storage"],
                "waiting": [{ "host": "rack" }], "labels": { "rack": format!("r{}", n % 7) },
            })
        };
        (0..1000).map(device).collect()
    }

    #[test]
    fn thousand_devices_make_pages_of_bounded_size() {
        let page = page("", json!([{ "pid": 7, "role": "daemon", "devices": thousand() }]));
        assert!(page.len() < PAGE_BYTES_MAX, "{}", page.len());
        let elements = page.matches('<').count() - page.matches("</").count();
        assert!(elements < PAGE_ELEMENTS_MAX, "{elements}");
        assert_eq!(page.matches("<tr id=").count(), ROWS_MAX);
        assert!(page.contains("Devices 1 to 100 of 1000") && page.contains("href=\"/?page=2\""), "{page}");
        for length in [NAME_BYTES_MAX, 5000] {
            let evil = "'".repeat(length);
            let device = json!({
                "name": evil, "title": evil, "state": "in use", "user": evil, "reason": evil,
                "failure": { "message": evil }, "waiting": vec![json!({ "host": evil }); 20],
            });
            let page = self::page("", json!([{ "pid": 7, "role": "share", "devices": vec![device; 150] }]));
            assert!(page.len() < HOSTILE_PAGE_BYTES_MAX, "{}", page.len());
        }
    }

    #[test]
    fn filter_finds_devices_by_what_is_seen_of_them_and_pages_keep_it() {
        let processes = json!([{ "pid": 7, "role": "daemon", "devices": thousand() }]);
        let rows = |query: &str| {
            let page = page(query, processes.clone());
            (page.matches("<tr id=").count(), page)
        };
        assert_eq!(rows("q=BOARD77").0, 11, "board77 and board770 to board779");
        assert_eq!(rows("q=board999&page=5").0, 1, "a page that there is not");
        let (count, page) = rows("q=r3");
        assert_eq!(count, 100);
        assert!(page.contains("href=\"/?q=r3&amp;page=2\"") && page.contains("Devices 1 to 100 of 143"), "{page}");
        assert!(rows("q=r3&page=2").1.contains("Devices 101 to 143 of 143"));
        let (count, page) = rows("q=%22%3E%3Cscript%3E");
        assert!(count == 0 && page.contains("value=\"&quot;&gt;&lt;script&gt;\""), "{page}");
        assert!(page.contains("None of 1000 devices matches"));
    }

    #[test]
    fn any_change_of_any_device_is_told_to_those_who_follow_no_view() {
        let told =
            |devices: &[Value]| fingerprint(&status(json!([{ "pid": 7, "role": "daemon", "devices": devices }])));
        let mut devices = thousand();
        let before = told(&devices);
        assert_eq!(told(&devices), before);
        devices[999]["state"] = json!("available");
        assert_ne!(told(&devices), before, "one of the tenth page");
    }

    #[test]
    fn change_of_one_device_among_a_thousand_sends_one_row() {
        let view = View::at("/", None).unwrap();
        let mut devices = thousand();
        let shown = Shown::of(&view.draw(&status(json!([{ "pid": 7, "role": "daemon", "devices": devices }]))));
        devices[50]["state"] = json!("available");
        let now = view.draw(&status(json!([{ "pid": 7, "role": "daemon", "devices": devices }])));
        let event = shown.changes_to(&now).unwrap();
        assert_eq!(event.matches("<tr id=").count(), 1);
        assert!(event.len() < 8 << 10, "{}", event.len());
    }
}
