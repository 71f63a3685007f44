//! All devices: a table of those that match, a page of it at a time.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use farbus_io_net::trust::PageScope;
use maud::{Markup, PreEscaped, html};

use crate::known::lab::LabInventory;
use crate::known::status::CombinedStatus;
use crate::view::drawing::{DrawingPiece, ElementIds, LiveElement, LiveList, ViewDrawing};
use crate::view::forms::ViewReader;
use crate::view::rows::{CLASSES, DeviceRow, rows};
use crate::view::text::{encoded, span, theirs, value_in, whole};

/// Rows of a page. `/api/v1/status` has them all.
pub const ROWS_MAX: usize = 100;
/// Characters of a filter.
const FILTER_CHARS_MAX: usize = 100;
/// Hosts among which the filter chooses.
const HOSTS_MAX: usize = 200;
/// The states among which it chooses.
const STATES: [&str; 8] = ["available", "leased", "in use", "attached", "link lost", "held", "moved away", "failed"];

/// Which devices are shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceListQuery {
    /// What they have to contain, in lower case; empty: all are shown.
    filter: String,
    /// The host that has them, if one is meant.
    host: String,
    /// Their state, if one is meant.
    state: String,
    /// Their class, if one is meant.
    class: String,
    /// The page, from 0.
    page: usize,
    /// What the one who looks may do.
    may: PageScope,
}

/// The devices that are wanted, a page of them.
pub struct DeviceListPage<'a> {
    /// How many devices there are.
    pub all: usize,
    /// How many of them are wanted.
    pub matching: usize,
    /// How many pages these make, one at least.
    pub pages: usize,
    /// The page, from 0: the last one if there are fewer than were thought.
    pub page: usize,
    /// The devices of that page.
    pub rows: Vec<DeviceRow<'a>>,
}

impl DeviceListQuery {
    /// What a query asks for: `q`, the filter, `host`, `state` and `class`, and `page`, from 1.
    pub fn of(query: &str) -> Self {
        let text = |name| -> String {
            value_in(query, name).unwrap_or_default().trim().chars().take(FILTER_CHARS_MAX).collect()
        };
        let page = value_in(query, "page").and_then(|page| page.parse::<usize>().ok()).unwrap_or(1);
        let (filter, host, state, class) = (text("q").to_lowercase(), text("host"), text("state"), text("class"));
        Self { filter, host, state, class, page: page.saturating_sub(1), may: PageScope::Own }
    }

    /// Sets what the reader may do; the view leaves out the forms of what it may not.
    #[must_use]
    pub fn for_scope(self, may: PageScope) -> Self {
        Self { may, ..self }
    }

    /// The address of a page of the same devices.
    fn address_of(&self, page: usize) -> String {
        let fields = [("q", &self.filter), ("host", &self.host), ("state", &self.state), ("class", &self.class)];
        let fields = fields.into_iter().filter(|(_, text)| !text.is_empty());
        let query: String = fields.map(|(name, text)| format!("{name}={}&", encoded(text))).collect();
        format!("/?{query}page={}", page + 1)
    }

    fn has(&self, row: &DeviceRow<'_>) -> bool {
        let is = |wanted: &str, text: &str| wanted.is_empty() || wanted == text;
        is(&self.host, row.host())
            && is(&self.state, row.state())
            && (self.class.is_empty() || row.is_of_class(&self.class))
            && (self.filter.is_empty() || row.contains(&self.filter))
    }

    /// Finds the devices that are wanted, one page of them.
    pub fn find<'a>(&self, status: &'a CombinedStatus) -> DeviceListPage<'a> {
        let rows = rows(status);
        let all = rows.len();
        let matching: Vec<_> = rows.into_iter().filter(|row| self.has(row)).collect();
        let pages = matching.len().div_ceil(ROWS_MAX).max(1);
        // Devices that went may have left fewer pages.
        let page = self.page.min(pages - 1);
        let count = matching.len();
        let rows = matching.into_iter().skip(page * ROWS_MAX).take(ROWS_MAX).collect();
        DeviceListPage { all, matching: count, pages, page, rows }
    }

    /// The form that asks for them.
    fn form(&self, status: &CombinedStatus) -> Markup {
        let hosts: BTreeSet<&str> = rows(status).iter().map(DeviceRow::host).collect();
        let hosts: Vec<&str> = hosts.into_iter().take(HOSTS_MAX).collect();
        html! {
            h1 { "Devices" }
            form role="search" action="/" method="get" {
                label for="filter" { "Filter" } " "
                input type="search" id="filter" name="q" value=(whole(&self.filter)) maxlength=(FILTER_CHARS_MAX)
                    autocomplete="off" spellcheck="false";
                (choice("host", "Host", &hosts, &self.host))
                (choice("state", "State", &STATES, &self.state))
                (choice("class", "Class", &CLASSES.map(|(class, _)| class), &self.class))
                " " button { "Show" }
            }
        }
    }

    /// Draws the table of the devices that are wanted, a page of it.
    pub fn draw(&self, status: &CombinedStatus) -> ViewDrawing {
        let found = self.find(status);
        let DeviceListPage { all, pages, page, .. } = found;
        let mut keys = ElementIds::default();
        let back = self.address_of(page);
        let reader = ViewReader { back: &back, may: self.may };
        let drawn = found.rows.iter().map(|row| {
            let key = keys.take(row.key());
            LiveElement { html: row.drawn(&key, status, reader).into_string(), key }
        });
        let rows: Vec<_> = drawn.collect();
        let mut notes = notes(status);
        let first = page * ROWS_MAX + 1;
        notes.push(match (all, found.matching, rows.len()) {
            (0, ..) => {
                note("nothing", html! { "Nothing is shared or attached here. Try: " code { "farbus share zero" } })
            }
            (_, 0, _) => note("count", html! { "None of " (all) " devices matches" }),
            (_, matching, shown) if matching == shown => note("count", html! { "Devices: " (shown) }),
            (.., shown) => {
                note("count", html! { "Devices " (first) " to " (first + shown - 1) " of " (found.matching) })
            }
        });
        notes.extend(notes_of_others(&status.lab));
        let previous = page.checked_sub(1).map(|page| ("previous", "prev", "Previous", page));
        let next = (page + 1 < pages).then_some(("next", "next", "Next", page + 1));
        let way =
            |(key, rel, word, page)| part(key, html! { a id=(key) rel=(rel) href=(self.address_of(page)) { (word) } });
        let ways = previous.into_iter().chain(next).map(way).collect();
        let caption = "What is shared and attached here, and what other hosts have";
        let headings = ["Device", "Host", "What", "State", "User", "Since", "Waiting", "Command"];
        let pieces = vec![
            DrawingPiece::Fixed(self.form(status).into_string()),
            DrawingPiece::List(LiveList { id: "notes", element: "div", parts: notes }),
            table_begin("<table class=\"devices\">", caption, &headings),
            DrawingPiece::List(LiveList { id: "rows", element: "tbody", parts: rows }),
            DrawingPiece::Fixed("</table>\n<nav aria-label=\"Pages of devices\">".into()),
            DrawingPiece::List(LiveList { id: "pages", element: "span", parts: ways }),
            DrawingPiece::Fixed("</nav>\n".into()),
        ];
        ViewDrawing { title: "Devices".into(), is_there: true, pieces }
    }
}

/// A table up to its rows, which follow it as a list. `tag` is its first tag.
pub fn table_begin(tag: &'static str, caption: &str, headings: &[&str]) -> DrawingPiece {
    let head = html! {
        (PreEscaped(tag))
        caption { (caption) }
        thead { tr { @for heading in headings { th scope="col" { (heading) } } } }
    };
    DrawingPiece::Fixed(head.into_string())
}

/// A choice of one of these, or of all.
fn choice(name: &str, heading: &str, all: &[&str], chosen: &str) -> Markup {
    let absent = (!chosen.is_empty() && !all.contains(&chosen)).then_some(chosen);
    html! {
        " " label for=(name) { (heading) } " "
        select id=(name) name=(name) {
            option value="" { "all" }
            @for option in all.iter().copied().chain(absent) {
                option value=(whole(option)) selected[option == chosen] { (whole(option)) }
            }
        }
    }
}

/// A part with an element whose id is its key.
pub fn part(key: &str, html: Markup) -> LiveElement {
    LiveElement { key: key.to_owned(), html: html.into_string() }
}

/// A paragraph about what is shown.
pub fn note(key: &str, content: Markup) -> LiveElement {
    part(key, html! { p id=(key) { (content) } })
}

/// A paragraph about what is wrong.
fn alert(key: &str, content: Markup) -> LiveElement {
    part(key, html! { p id=(key) role="alert" { (content) } })
}

/// What is wrong with what is known of other hosts.
fn notes_of_others(lab: &LabInventory) -> Vec<LiveElement> {
    let mut notes = Vec::new();
    if let Some(trouble) = &lab.trouble {
        notes.push(alert("trouble", html! { "What the directory said may be old: " (theirs(trouble)) }));
    }
    if lab.left_out > 0 {
        let what = "Further devices of other hosts, which are not shown";
        notes.push(note("left-out", html! { (what) ": " (lab.left_out) ". See them all: " code { "farbus list" } }));
    }
    notes
}

/// What is wrong with the processes.
pub fn notes(status: &CombinedStatus) -> Vec<LiveElement> {
    let mut notes = Vec::new();
    if let Some(failure) = &status.failure {
        notes.push(alert("failure", html! { "The processes cannot be asked: " (theirs(failure)) }));
    }
    if status.silent > 0 {
        notes.push(alert("silent", html! { "Processes that gave no status: " (status.silent) }));
    }
    notes
}

/// A number that changes with what rows show, of all devices.
pub fn fingerprint(status: &CombinedStatus) -> u64 {
    let mut hasher = DefaultHasher::new();
    (&status.failure, status.silent, status.lab.mark).hash(&mut hasher);
    for (process, device) in status.devices() {
        (process.pid, process.host()).hash(&mut hasher);
        (device.name(), device.title(), device.state(), device.user(), device.reason()).hash(&mut hasher);
        device.failure().map(|failure| &failure.message).hash(&mut hasher);
        device.used_s().map(span).hash(&mut hasher);
        device.lease().map(|lease| &lease.host).hash(&mut hasher);
        device.waiting().iter().for_each(|waiting| waiting.host.hash(&mut hasher));
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::http::html::document;
    use crate::http::html::tests::owner;
    use crate::known::lab::tests::{host, lab_device};
    use crate::known::lab::{LabHost, Source};
    use crate::known::status::tests::status;
    use crate::shell::NAME_BYTES_MAX;
    use crate::view::PageView;
    use crate::view::live::ViewDigest;

    /// Bytes of a page of devices whose texts are of usual length, and elements of it.
    const PAGE_BYTES_MAX: usize = 100 << 10;
    const PAGE_ELEMENTS_MAX: usize = 3000;
    /// Bytes of a page with devices of other hosts, whose rows have a button each.
    const LAB_PAGE_BYTES_MAX: usize = 150 << 10;
    /// Bytes of a page on which every text is as long as it can be and every character is escaped.
    const HOSTILE_PAGE_BYTES_MAX: usize = 2 << 20;

    fn page(query: &str, processes: Value) -> String {
        document(&PageView::at("/", Some(query)).unwrap(), query, &status(processes), None, (&owner(), None)).1
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

    /// The page with the devices of these hosts.
    fn page_of_lab(query: &str, hosts: Vec<LabHost>) -> String {
        let mut status = status(json!([]));
        status.lab = Arc::new(LabInventory { own_name: "desk".into(), hosts, ..LabInventory::default() });
        status.now_s = 1000;
        document(&PageView::at("/", Some(query)).unwrap(), query, &status, None, (&owner(), None)).1
    }

    /// A thousand devices of fifty hosts.
    fn laboratory() -> Vec<LabHost> {
        let device = |n: usize| {
            lab_device(json!({
                "name": format!("board{n}"), "title": "Example Inc. board with a name", "used_s": 61,
                "state": if n.is_multiple_of(2) { "available" } else { "in use" },
                "user": (!n.is_multiple_of(2)).then_some("rack"),
                "interfaces": [if n.is_multiple_of(4) { "storage" } else { "audio" }], "place": "shelf 3",
                "labels": { "board": "imx8" }, "queue": [{ "host": "rack", "priority": 5 }], "waiting": 2,
            }))
        };
        (0..50)
            .map(|n| LabHost { from: Source::Directory, ..host(&format!("lab{n:02}"), (0..20).map(device).collect()) })
            .collect()
    }

    #[test]
    fn thousand_devices_of_fifty_hosts_make_pages_of_bounded_size() {
        let page = page_of_lab("", laboratory());
        assert!(page.len() < LAB_PAGE_BYTES_MAX, "{}", page.len());
        let elements = page.matches('<').count() - page.matches("</").count();
        assert!(elements < PAGE_ELEMENTS_MAX, "{elements}");
        assert_eq!(page.matches("<tr id=").count(), ROWS_MAX);
        assert!(page.contains("Devices 1 to 100 of 1000") && page.contains("rack</bdi> (priority 5)<br>and 1 more"));
        assert_eq!(page.matches("farbus attach lab00/board").count(), 10, "those that nobody uses");
        let some = page_of_lab("host=lab07&state=in+use&class=audio", laboratory());
        assert!(some.contains("Devices: 10") && some.contains("<option value=\"lab07\" selected>"), "{some}");
        let second = page_of_lab("class=disk&page=2", laboratory());
        assert!(second.contains("Devices 101 to 200 of 250") && second.contains("/?class=disk&amp;page=3"), "{second}");
    }

    #[test]
    fn hostile_names_of_other_hosts_and_their_devices_add_no_element_and_no_attribute() {
        let page = |text: &str| {
            let device = lab_device(json!({
                "name": text, "title": text, "ids": text, "state": text, "user": text, "reason": text, "place": text,
                "interfaces": [text], "labels": { text: text }, "queue": [{ "host": text }], "waiting": 1,
                "booked": [{ "host": text, "from": text, "until": text }], "used_s": 1,
            }));
            let free = lab_device(json!({ "name": text, "state": "available" }));
            let host = LabHost { failure: Some(text.into()), heard_s: Some(1), ..host(text, vec![device, free]) };
            page_of_lab("", vec![host])
        };
        let evil = "<script>alert(1)</script>\"' onx=1 &lt;\u{202e}";
        let (hostile, plain) = (page(evil), page("a"));
        assert!(plain.contains("farbus attach a/a"), "{plain}");
        for sign in ['<', '>', '"'] {
            assert!(!hostile.contains("/do/attach"), "what has a slash in its name is not attached: {hostile}");
            assert!(!hostile.contains("<script>alert") && !hostile.contains('\u{202e}'), "{sign} {hostile}");
        }
        let evil = "x\"' onx=1 <b>&$(id)`id`";
        let hostile = page(evil);
        for sign in ['<', '>', '"'] {
            assert_eq!(hostile.matches(sign).count(), plain.matches(sign).count(), "{sign}: {hostile}");
        }
        assert!(hostile.contains("name=\"target\" value=\"x&quot;&#39; onx=1 &lt;b&gt;"), "{hostile}");
    }

    #[test]
    fn what_is_attached_here_is_one_row_with_the_class_that_its_host_says_and_this_host_as_its_user() {
        let device = json!({ "name": "board", "title": "lab3/board", "state": "attached", "user": "lab3:3241" });
        let mut status = status(
            json!([{ "pid": 7, "role": "daemon", "host": "desk", "config": "/c", "takes": [], "devices": [device] }]),
        );
        let there = lab_device(json!({ "name": "board", "state": "in use", "user": "desk", "interfaces": ["audio"] }));
        let other = lab_device(json!({ "name": "spare", "state": "available" }));
        status.lab =
            Arc::new(LabInventory { hosts: vec![host("lab3", vec![there, other])], ..LabInventory::default() });
        let page = document(&PageView::at("/", None).unwrap(), "", &status, None, (&owner(), None)).1;
        assert_eq!(page.matches("<tr id=").count(), 2, "{page}");
        assert!(page.contains("aria-label=\"audio\"") && page.contains("<td data-label=\"User\"><bdi>desk</bdi>"));
        assert!(page.contains("<td data-label=\"Host\"><bdi>lab3</bdi>"), "{page}");
    }

    #[test]
    fn a_device_that_is_leased_and_not_used_is_shown_as_leased() {
        let lease = json!({ "host": "rack", "until": "2026-11-27T08:00:00Z" });
        let device = json!({ "name": "a", "bus_id": "1-1", "state": "available", "lease": lease });
        let page = page("", json!([{ "pid": 7, "role": "share", "devices": [device] }]));
        assert!(page.contains("<bdi>leased</bdi><br><small>until <bdi>2026-11-27 08:00</bdi> UTC"), "{page}");
        assert!(page.contains("<td data-label=\"User\"><bdi>rack</bdi>"), "{page}");
    }

    #[test]
    fn own_device_shows_its_labels_as_those_of_other_hosts_do() {
        let device = json!({
            "name": "a", "bus_id": "1-1", "state": "available", "place": "rack 2", "labels": { "soc": "imx8" },
        });
        let page = page("", json!([{ "pid": 7, "role": "daemon", "devices": [device] }]));
        assert!(page.contains("<small><bdi>rack 2, soc=imx8</bdi></small>"), "{page}");
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
        let digests =
            |devices: &[Value]| fingerprint(&status(json!([{ "pid": 7, "role": "daemon", "devices": devices }])));
        let mut devices = thousand();
        let before = digests(&devices);
        assert_eq!(digests(&devices), before);
        devices[999]["state"] = json!("available");
        assert_ne!(digests(&devices), before, "one of the tenth page");
    }

    #[test]
    fn change_of_one_device_among_a_thousand_sends_one_row() {
        let view = PageView::at("/", None).unwrap();
        let mut devices = thousand();
        let shown = ViewDigest::of(&view.draw(&status(json!([{ "pid": 7, "role": "daemon", "devices": devices }]))));
        devices[50]["state"] = json!("available");
        let now = view.draw(&status(json!([{ "pid": 7, "role": "daemon", "devices": devices }])));
        let event = shown.changes_to(&now).unwrap();
        assert_eq!(event.matches("<tr id=").count(), 1);
        assert!(event.len() < 8 << 10, "{}", event.len());
    }
}
