//! Each host that is known: this one, those that are paired with it, those nearby, and those in the directory.

use maud::{Markup, html};

use crate::known::lab::{LabHost, LabInventory, Source};
use crate::known::status::CombinedStatus;
use crate::view::devices::{note, notes, table_begin};
use crate::view::drawing::{DrawingPiece, ElementIds, LiveElement, LiveList, ViewDrawing, key_of};
use crate::view::rows::{HERE, ago};
use crate::view::text::{encoded, theirs, whole};

/// Hosts that are listed.
const HOSTS_MAX: usize = 200;
/// Words of a permission that are shown.
const WORDS_MAX: usize = 8;
/// Characters of a fingerprint that are shown: eight are as many as people compare.
const FINGERPRINT_CHARS: usize = 8;
const HEADINGS: [&str; 8] = ["Host", "Address", "Key", "Last heard", "Known by", "Devices", "Used", "May use here"];

/// Draws a table of all hosts that are known.
pub fn draw(status: &CombinedStatus) -> ViewDrawing {
    let lab = &*status.lab;
    let mut keys = ElementIds::default();
    let mut rows = vec![LiveElement { key: keys.take("host-own".into()), html: own(status).into_string() }];
    for host in lab.hosts.iter().take(HOSTS_MAX) {
        let key = keys.take(key_of("host", (&host.key, &host.name, &host.address)));
        rows.push(LiveElement { html: row(&key, host, status.now_s).into_string(), key });
    }
    let mut notes = notes(status);
    let looked = match lab.looked_s {
        None => html! { "Other hosts are being asked." },
        Some(_) if lab.hosts.is_empty() => html! {
            "No other host is paired with this one, nearby or in a directory. Pair one: " code { "farbus pair" }
        },
        Some(_) => html! {
            "Hosts are asked every ten seconds while somebody looks; what a directory says is followed as it changes."
        },
    };
    notes.push(note("looked", looked));
    if let Some(more @ 1..) = lab.hosts.len().checked_sub(HOSTS_MAX) {
        notes.push(note("more", html! { "Further hosts: " (more) }));
    }
    let pieces = vec![
        DrawingPiece::Fixed("<h1>Hosts</h1>\n".into()),
        DrawingPiece::List(LiveList { id: "notes", element: "div", parts: notes }),
        table_begin("<table>", "Every host that is known", &HEADINGS),
        DrawingPiece::List(LiveList { id: "rows", element: "tbody", parts: rows }),
        DrawingPiece::Fixed("</table>\n".into()),
    ];
    ViewDrawing { title: "Hosts".into(), is_there: true, pieces }
}

fn key(fingerprint: Option<&str>) -> Markup {
    let Some(all) = fingerprint else { return Markup::default() };
    let first: String = all.chars().take(FINGERPRINT_CHARS).collect();
    html! { code title=(whole(all)) { (whole(&first)) } }
}

/// The row of a host, with a cell below each of the [`HEADINGS`].
fn cells(id: &str, cells: [Markup; HEADINGS.len()]) -> Markup {
    let [host, others @ ..] = cells;
    html! {
        tr id=(id) {
            th scope="row" { (host) }
            @for (heading, cell) in HEADINGS[1..].iter().zip(others) { td data-label=(heading) { (cell) } }
        }
    }
}

/// This host, by what its processes share.
fn own(status: &CombinedStatus) -> Markup {
    let LabInventory { own_name, own_key, .. } = &*status.lab;
    let shared = status.devices().filter(|(_, device)| device.shared().is_some());
    let (mut devices, mut used) = (0_usize, 0_usize);
    for (_, device) in shared {
        devices += 1;
        used += usize::from(device.state() == "in use");
    }
    let name = if own_name.is_empty() { HERE } else { own_name };
    let (name, none) = (html! { (theirs(name)) " " small { (HERE) } }, Markup::default);
    let (devices, used) = (html! { (devices) }, html! { (used) });
    cells("host-own", [name, none(), key(own_key.as_deref()), none(), none(), devices, used, none()])
}

fn row(id: &str, host: &LabHost, now_s: u64) -> Markup {
    let known = [(host.paired.is_some(), "paired"), (host.is_found, "nearby"), (host.is_in_directory, "directory")];
    let known: Vec<&str> = known.into_iter().filter(|(is_so, _)| *is_so).map(|(_, word)| word).collect();
    let ((devices, used), is_said) = (host.counts(), host.from != Source::Nobody);
    let more = host.may_use.len().saturating_sub(WORDS_MAX);
    cells(
        id,
        [
            html! {
                (theirs(&host.name))
                @if let Some(version) = &host.farbus { " " small { (theirs(version)) } }
            },
            host.address.as_deref().map(theirs).unwrap_or_default(),
            key(host.key.as_deref()),
            html! {
                @if let Some(heard_s) = host.heard_s { (ago(now_s.saturating_sub(heard_s))) }
                @if let Some(why) = &host.failure { br; small { (theirs(why)) } }
            },
            html! { (known.join(", ")) },
            html! { @if is_said { a href={ "/?host=" (encoded(&host.name)) } { (devices) } } },
            html! { @if is_said { (used) } },
            html! {
                @if host.paired.is_some() && host.may_use.is_empty() { "nothing" }
                @for (at, word) in host.may_use.iter().take(WORDS_MAX).enumerate() {
                    @if at > 0 { ", " }
                    (theirs(word))
                }
                @if more > 0 { ", and " (more) " more" }
            },
        ],
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::known::lab::tests::{host, lab_device};
    use crate::known::status::tests::status;

    fn drawn(hosts: Vec<LabHost>) -> String {
        let mut status = status(json!([{ "pid": 7, "role": "share", "devices": [
            { "name": "a", "bus_id": "1-1", "state": "in use" }, { "name": "b", "bus_id": "1-2", "state": "available" },
        ] }]));
        status.now_s = 1000;
        status.lab =
            Arc::new(LabInventory { own_name: "desk".into(), looked_s: Some(1000), hosts, ..LabInventory::default() });
        draw(&status).lists().flat_map(|list| &list.parts).map(|part| part.html.as_str()).collect()
    }

    #[test]
    fn a_host_is_shown_with_what_it_has_and_may_and_when_it_was_heard() {
        let used = lab_device(json!({ "name": "board", "state": "in use" }));
        let lab3 = LabHost {
            key: Some("abcdefghijkl".into()),
            address: Some("10.0.0.3:3241".into()),
            paired: Some("2026-11-01".into()),
            may_use: vec!["disk".into()],
            heard_s: Some(800),
            failure: Some("no answer".into()),
            is_in_directory: true,
            ..host("lab3", vec![used])
        };
        let html = drawn(vec![lab3, LabHost { called: None, from: Source::Nobody, ..host("new", vec![]) }]);
        for part in
            ["10.0.0.3:3241", ">abcdefgh</code>", "3 min ago", "no answer", "paired, directory", "<bdi>disk</bdi>"]
        {
            assert!(html.contains(part), "{part}: {html}");
        }
        assert!(html.contains("<a href=\"/?host=lab3\">1</a></td><td data-label=\"Used\">1</td>"), "{html}");
        assert!(html.contains("<td data-label=\"Devices\">2</td><td data-label=\"Used\">1</td>"), "this one: {html}");
    }

    #[test]
    fn a_thousand_hosts_with_hostile_names_make_a_table_of_bounded_size() {
        let evil = "<script>\"'&".repeat(50);
        let of = |n: usize| LabHost {
            key: Some(format!("{n}{evil}")),
            address: Some(evil.clone()),
            may_use: vec![evil.clone(); 100],
            failure: Some(evil.clone()),
            ..host(&format!("{n}{evil}"), vec![])
        };
        let html = drawn((0..1000).map(of).collect());
        assert!(html.len() < 4 << 20 && !html.contains("<script>"), "{}", html.len());
        assert!(html.contains("Further hosts: 800"));
    }
}
