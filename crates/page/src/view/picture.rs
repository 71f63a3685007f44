//! The picture of a stream, while an operation of this page shows it.

use farbus_control::process::{ProcessDevice, ProcessStatus};
use farbus_io_net::trust::PageScope;
use maud::{Markup, html};

use crate::known::operation::{DrawnOperation, OperationState};
use crate::known::status::CombinedStatus;
use crate::view::forms::ViewReader;
use crate::view::operations::{about, heading, list, stop};
use crate::view::text::{theirs, whole};

/// The greatest number that is believed to be a size of a picture.
const SIDE_MAX: u64 = 16_384;

fn is_picture(operation: &DrawnOperation) -> bool {
    operation.action == "picture"
}

/// The operations of this page that show a device's picture, and how to see it if none does; empty if it has none.
pub fn pictures(
    status: &CombinedStatus,
    process: &ProcessStatus,
    device: &ProcessDevice,
    reader: ViewReader<'_>,
) -> Markup {
    let item = |operation: &DrawnOperation| {
        let (id, progress) = (operation.id, &operation.progress);
        let per_second = progress.per_second;
        html! {
            li id={ "picture-" (id) } data-number=(progress.pictures) {
                (heading(operation))
                @if let Some((width, height)) = size_shown(operation).filter(|_| reader.may >= PageScope::Observe) {
                    p {
                        (width) " × " (height) ", " (format_args!("{per_second:.1}")) " pictures a second. "
                        a href={ "/api/v1/operations/" (id) "/picture" } { "The picture of now" }
                    }
                }
                @if let Some(why) = &progress.ended { p { "It has ended: " (theirs(why)) "." } }
                (stop(operation, reader))
            }
        }
    };
    let all = about(status, process, device).filter(|operation| is_picture(operation));
    let shown = list(all.map(item));
    if shown.0.is_empty() { hint(device) } else { shown }
}

/// What its owner does so that it can be seen; empty if that is offered, or it is nothing with a picture.
fn hint(device: &ProcessDevice) -> Markup {
    let stream = device.shared().filter(|shared| shared.stream.as_ref().is_some_and(|format| format != "bytes"));
    let mut interfaces = device.interfaces().iter();
    html! {
        @if stream.is_some_and(|shared| !shared.is_observable) {
            p { "Its picture is shown here if it is shared with " code { "--observable" } "." }
        } @else if interfaces.any(|class| class == "video") {
            p {
                "The picture of a USB camera is not shown here: the driver of the host that uses it makes it of what the \
                 camera sends. What a program reads of the camera can be shared as a stream, and is shown then: "
                code { "farbus share stream:PATH,size=640x480,format=rgb24 --observable" } "."
            }
        }
    }
}

/// Width and height of the picture that an operation shows now.
fn size_shown(operation: &DrawnOperation) -> Option<(u64, u64)> {
    let progress = &operation.progress;
    let is_side = |pixels: u64| (1..=SIDE_MAX).contains(&pixels);
    let is_shown = operation.state == OperationState::Running && progress.ended.is_none();
    Some((progress.width, progress.height)).filter(|(width, height)| is_shown && is_side(*width) && is_side(*height))
}

/// The pictures themselves: each a part by itself, so that it stays while numbers beside it change. The key of each.
pub fn images(
    status: &CombinedStatus,
    process: &ProcessStatus,
    device: &ProcessDevice,
    reader: ViewReader<'_>,
) -> Vec<(String, Markup)> {
    if reader.may < PageScope::Observe {
        return Vec::new();
    }
    let image = |operation: &DrawnOperation| {
        let (width, height) = size_shown(operation)?;
        let id = operation.id;
        let at = format!("/api/v1/operations/{id}/picture");
        let name: String = device.name().chars().take(160).collect();
        let html = html! {
            figure id={ "image-" (id) } {
                img class="live" src=(at) alt={ "What " (whole(&name)) " shows now" } width=(width) height=(height)
                    data-live=(at) data-follows={ "picture-" (id) };
            }
        };
        Some((format!("image-{id}"), html))
    };
    about(status, process, device).filter(|operation| is_picture(operation)).filter_map(image).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::known::status::tests::{device as device_of, process, status};

    const OWNER: ViewReader<'static> = ViewReader { back: "/", may: PageScope::Own };

    fn with(operation: Value) -> CombinedStatus {
        let mut status = status(json!([]));
        status.operations = vec![serde_json::from_value(operation).unwrap()];
        status
    }

    fn operation(state: &str, progress: Value) -> Value {
        json!({
            "id": 4, "action": "picture", "subject": "cam", "on": { "pid": 7, "name": "cam" }, "command": "farbus stream read --observe --pictures cam",
            "by": "page", "state": state, "begun": "2026-01-01T00:00:00Z", "pid": 77, "progress": progress,
        })
    }

    #[test]
    fn a_picture_is_drawn_while_its_operation_runs_and_has_one() {
        let progress = json!({ "pictures": 9, "width": 640, "height": 480, "per_second": 3.96, "type": "image/png" });
        let device = device_of(json!({ "name": "cam" }));
        let status = with(operation("running", progress.clone()));
        let html = pictures(&status, &process(json!({ "pid": 7 })), &device, OWNER).into_string();
        assert!(html.contains("640 × 480, 4.0 pictures a second") && html.contains("kill 77"), "{html}");
        assert!(html.contains("id=\"picture-4\" data-number=\"9\""), "{html}");
        let [(key, image)] = &images(&status, &process(json!({ "pid": 7 })), &device, OWNER)[..] else { panic!("one") };
        assert_eq!(key, "image-4");
        assert!(
            image.0.contains("src=\"/api/v1/operations/4/picture\" alt=\"What cam shows now\" width=\"640\""),
            "{image:?}"
        );
        // One who may only look sees that it runs, and neither the picture nor a button.
        let looks = ViewReader { may: PageScope::Read, ..OWNER };
        let html = pictures(&status, &process(json!({ "pid": 7 })), &device, looks).into_string();
        assert!(html.contains("id=\"picture-4\"") && !html.contains("<button") && !html.contains("href"), "{html}");
        assert!(images(&status, &process(json!({ "pid": 7 })), &device, looks).is_empty());
        for (state, progress) in [("running", json!({})), ("done", progress.clone()), ("failed", progress.clone())] {
            assert!(
                images(&with(operation(state, progress)), &process(json!({ "pid": 7 })), &device, OWNER).is_empty()
            );
        }
        let mut ended = progress;
        ended["ended"] = json!("nobody has looked for 20 s");
        let status = with(operation("done", ended));
        assert!(
            pictures(&status, &process(json!({ "pid": 7 })), &device, OWNER)
                .0
                .contains("It has ended: <bdi>nobody has looked")
        );
        assert_eq!(
            pictures(&status, &process(json!({ "pid": 7 })), &device_of(json!({ "name": "disk" })), OWNER)
                .into_string(),
            ""
        );
    }

    #[test]
    fn it_is_said_how_a_picture_can_be_seen_that_is_not_offered() {
        let (none, process) = (status(json!([])), ProcessStatus::default());
        let html_of = |device: Value| pictures(&none, &process, &device_of(device), OWNER).into_string();
        assert!(html_of(json!({ "name": "cam", "bus_id": "1", "stream": "rgb24 640x480" })).contains("--observable"));
        assert_eq!(
            html_of(json!({ "name": "cam", "bus_id": "1", "stream": "rgb24 640x480", "is_observable": true })),
            ""
        );
        assert_eq!(html_of(json!({ "name": "cam", "bus_id": "1", "stream": "bytes" })), "", "it is none");
        assert!(html_of(json!({ "name": "cam", "interfaces": ["audio", "video"] })).contains("USB camera"));
        assert_eq!(html_of(json!({ "name": "disk", "interfaces": ["disk"] })), "");
    }

    #[test]
    fn hostile_texts_and_numbers_of_a_picture_add_no_element() {
        let evil = "\"><script>\u{202e}";
        for (number, rate) in [(0, 0.0), (u64::MAX, f64::MAX), (1, -1.0)] {
            let progress =
                json!({ "pictures": number, "width": number, "height": number, "per_second": rate, "ended": evil });
            let status = with(operation("running", progress));
            let html = pictures(&status, &process(json!({ "pid": 7 })), &device_of(json!({ "name": "cam" })), OWNER)
                .into_string();
            assert!(!html.contains("<script") && !html.contains('\u{202e}'), "{html}");
            assert!(
                images(&status, &process(json!({ "pid": 7 })), &device_of(json!({ "name": "cam" })), OWNER).is_empty(),
                "{number}"
            );
        }
        let mut named = operation("running", json!({ "pictures": 1, "width": 8, "height": 8 }));
        named["subject"] = json!(evil);
        named["on"]["name"] = json!(evil);
        let drawn = images(&with(named), &process(json!({ "pid": 7 })), &device_of(json!({ "name": evil })), OWNER);
        assert!(drawn.len() == 1 && !drawn[0].1.0.contains("<script"), "{drawn:?}");
    }
}
