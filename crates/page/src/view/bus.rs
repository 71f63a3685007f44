//! The buses of this machine, drawn: what is reserved of each (micro)frame, and what is free.

use farbus_control::process::ProcessStatus;
use farbus_control::reservation::{BusStatus, PlaceStatus};
use maud::{Markup, PreEscaped, html};

use crate::known::status::CombinedStatus;
use crate::view::bus_drawing::{BusDrawing, COLUMNS_MAX, EndpointDrawing, SvgPicture};
use crate::view::devices::{note, notes};
use crate::view::drawing::{DrawingPiece, ElementIds, LiveElement, LiveList, ViewDrawing, key_of};
use crate::view::text::{table, theirs, whole};

/// Buses that are drawn, of all processes together.
const BUSES_MAX: usize = 8;
/// Endpoints of a bus that are drawn and listed.
const PLACES_MAX: usize = 32;
/// Characters of a name in a picture.
const NAME_CHARS_MAX: usize = 40;

/// The buses on which something is reserved.
pub fn draw(status: &CombinedStatus) -> ViewDrawing {
    let mut keys = ElementIds::default();
    let all = || status.processes.iter().flat_map(|process| process.buses.iter().map(move |bus| (process, bus)));
    let mut parts = notes(status);
    parts.extend(all().take(BUSES_MAX).map(|(process, bus)| {
        let key = keys.take(key_of("bus", (process.pid, &bus.bus)));
        LiveElement { html: section(&key, process, bus).into_string(), key }
    }));
    let more = all().skip(BUSES_MAX).count();
    if more > 0 {
        parts.push(note("more", html! { "Further buses, which " code { "farbus status --json" } " shows: " (more) }));
    }
    if all().next().is_none() {
        let line = "farbus share zero --reserve zero:bytes=512,period=8";
        parts.push(note("nothing", html! { "Nothing is reserved on a bus here. Try: " code { (line) } }));
    }
    let pieces = vec![
        DrawingPiece::Fixed("<h1>Buses</h1>\n".into()),
        DrawingPiece::List(LiveList { id: "buses", element: "div", parts }),
        DrawingPiece::Fixed(
            "<p>What another set of endpoints would get: <code>farbus plan schedule</code></p>\n".into(),
        ),
    ];
    ViewDrawing { title: "Buses".into(), is_there: true, pieces }
}

/// A name of others in a picture.
fn short(name: &str) -> Markup {
    whole(&name.chars().take(NAME_CHARS_MAX).collect::<String>())
}

fn section(key: &str, process: &ProcessStatus, bus: &BusStatus) -> Markup {
    let unit = if matches!(&*bus.speed, "low" | "full") { "frame" } else { "microframe" };
    let places = || bus.places.iter().take(PLACES_MAX);
    let name_of = |PlaceStatus { device, endpoint, .. }: &PlaceStatus| match endpoint {
        Some(endpoint) => format!("{device}, endpoint {endpoint}"),
        None => device.clone(),
    };
    let BusStatus { interval_ps, asynchronous_ps, cycle, .. } = *bus;
    let drawing = BusDrawing {
        interval_ps,
        asynchronous_ps,
        cycle,
        unit,
        drawings: places()
            .map(|place| EndpointDrawing {
                name_escaped: short(&name_of(place)).into_string(),
                start: place.start,
                every: place.every,
                time_ps: place.time_ps,
            })
            .collect(),
    };
    let SvgPicture { elements, width, height } = drawing.draw();
    let us = |ps: u64| format!("{:.1} µs", ps as f64 / 1_000_000.0);
    let free = || bus.free_ps.iter().copied();
    let (least, most) = (free().min().unwrap_or_default(), free().max().unwrap_or_default());
    let summary = format!(
        "Each {unit} has {}; {} of it are kept for bulk and control, and between {} and {} can still be reserved. \
         The schedule repeats after {cycle} of them.",
        us(interval_ps),
        us(asynchronous_ps),
        us(least),
        us(most)
    );
    let rows: Vec<_> = places()
        .map(|place| {
            vec![
                theirs(&name_of(place)),
                html! { (place.start) " of each " (place.every) },
                html! { (place.packets) },
                html! { (us(place.time_ps)) },
            ]
        })
        .collect();
    html! {
        section id=(key) {
            h2 {
                (theirs(&bus.bus)) ", of "
                @if let Some(host) = process.host() { (theirs(host)) ", " }
                "process " (process.pid)
            }
            p { (summary) @if cycle > COLUMNS_MAX { " The first " (COLUMNS_MAX) " are drawn." } }
            div class="picture" tabindex="0" role="group" aria-label="Picture of the schedule" {
                svg class="bus" width=(width) height=(height) viewBox={ "0 0 " (width) " " (height) } role="img"
                    aria-labelledby={ (key) "-title " (key) "-what" } {
                    title id={ (key) "-title" } { "Schedule of " (short(&bus.bus)) }
                    desc id={ (key) "-what" } { (summary) " The table below has each endpoint." }
                    (PreEscaped(elements))
                }
            }
            (table("What is reserved", &["Endpoint", unit, "Packets", "Time each"], &rows))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::known::status::tests::status;

    fn html(buses: Value) -> String {
        let drawing = draw(&status(json!([{ "pid": 7, "role": "share", "devices": [], "buses": buses }])));
        drawing.lists().flat_map(|list| &list.parts).map(|part| part.html.as_str()).collect()
    }

    #[test]
    fn each_microframe_is_drawn_with_what_is_reserved_in_it() {
        let place = |device: &str, start, every| json!({ "device": device, "start": start, "every": every, "packets": 2, "time_ps": 30_000_000 });
        let html = html(json!([{
            "bus": "gadgets, high speed", "speed": "high", "interval_ps": 125_000_000, "cycle": 4,
            "asynchronous_ps": 25_000_000, "free_ps": [10_000_000, 40_000_000, 10_000_000, 40_000_000],
            "places": [place("camera", 0, 2), place("<evil>", 1, 4)],
        }]));
        assert_eq!(html.matches("<title>free</title>").count(), 4, "{html}");
        assert_eq!(html.matches("<title>camera</title>").count(), 2, "{html}");
        assert_eq!(html.matches("<title>&lt;evil&gt;</title>").count(), 1, "{html}");
        assert!(
            html.contains("between 10.0 µs and 40.0 µs can still be reserved") && !html.contains("<evil>"),
            "{html}"
        );
        assert!(html.contains("<th scope=\"row\"><bdi>camera</bdi></th>") && html.contains("0 of each 2"), "{html}");
    }

    #[test]
    fn numbers_of_a_process_that_make_no_sense_make_a_picture_of_bounded_size() {
        let answer = json!({ "device": "x".repeat(9000), "start": 0, "every": 0, "time_ps": u64::MAX });
        let bus = json!({
            "bus": "y".repeat(9000), "speed": "?", "interval_ps": 0, "cycle": 0, "asynchronous_ps": u64::MAX,
            "free_ps": [u64::MAX], "places": vec![answer.clone(); 500],
        });
        assert!(html(json!([bus])).len() < 64 << 10);
        let bus = json!({ "bus": "b", "cycle": u32::MAX, "interval_ps": 1, "places": vec![answer; 500] });
        let html = html(json!(vec![bus; 100]));
        assert!(html.len() < 4 << 20 && html.contains("shows: 92"), "{}", html.len());
    }
}
