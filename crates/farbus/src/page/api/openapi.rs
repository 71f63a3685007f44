//! The description of all routes in OpenAPI 3.1, made from their table and that of the actions.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::actions::Action;
use super::routes::{Endpoint, Found, all};
use crate::common::pictures::Kind;

/// What a refusal is: a line of text.
const REFUSALS: &[(&str, &str)] = &[
    ("400", "The request is no request."),
    ("401", "The token is none of this page, was revoked, or has expired."),
    ("403", "Another page asks, another user, or a token that may not."),
    ("421", "The page has another name, or another port."),
    ("500", "Something of this machine failed."),
    ("503", "Too many ask at a time, or the processes cannot be asked."),
];
/// What it is besides, of a change.
const REFUSALS_OF_CHANGES: &[(&str, &str)] = &[
    ("404", "There is no such operation."),
    ("408", "The body came too slowly."),
    ("411", "The length of the body is missing."),
    ("413", "The body is too long."),
    ("415", "The body is no application/json."),
];
/// What became of an action that failed.
const FAILURES: &[(&str, &str)] = &[
    ("400", "A parameter is wrong, or some exclude each other."),
    ("404", "The device or host is not there."),
    ("409", "It was refused."),
    ("500", "It failed here."),
    ("502", "The network or the device failed."),
];

/// The content type of a recording.
pub const RECORDING_TYPE: &str = "application/x-pcapng";

/// The description of everything that is there.
pub fn document() -> Value {
    let paths: Map<String, Value> = all()
        .map(|(path, found)| {
            let method = if found.route.is_change() { "post" } else { "get" };
            (path.clone(), json!({ method: operation(&path, &found) }))
        })
        .collect();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "farbus",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "What a user's farbus processes share and attach. Each action is a command line of farbus.",
            "license": { "name": "MIT OR Apache-2.0" },
        },
        "paths": paths,
        "components": {
            "schemas": schemas(),
            "securitySchemes": {
                "token": { "type": "http", "scheme": "bearer", "description": "farbus page token create" },
            },
        },
    })
}

fn operation(path: &str, found: &Found) -> Value {
    let id = match found.action {
        Some(action) => action.name.to_owned(),
        None => format!("{:?}", found.route.endpoint).to_lowercase(),
    };
    let summary = found.action.map_or(found.route.summary, |action| action.summary);
    let mut described = json!({ "operationId": id, "summary": summary, "responses": responses(found) });
    if let Some(scope) = found.scope() {
        // Without a token the page's own user has every scope.
        described["security"] = json!([{ "token": [] }, {}]);
        described["x-farbus-scope"] = json!(scope);
    }
    if path.contains("{id}") {
        let schema = json!({ "type": "integer", "minimum": 0 });
        let mut parameters = vec![json!({ "name": "id", "in": "path", "required": true, "schema": schema })];
        if matches!(found.route.endpoint, Endpoint::Device | Endpoint::LatencyPart | Endpoint::Latency) {
            let of_device = json!({ "name": "name", "in": "query", "required": true, "schema": { "type": "string" } });
            parameters.push(of_device);
        }
        described["parameters"] = json!(parameters);
    }
    if found.route.endpoint == Endpoint::Events {
        let what = "The id of the last event that was received.";
        described["parameters"] = json!([
            { "name": "Last-Event-ID", "in": "header", "schema": { "type": "string" }, "description": what },
        ]);
    }
    if found.route.is_change() {
        let code =
            [("code", json!({ "type": "string", "description": "The fragment of the URL of 'farbus page invite'." }))];
        let known = if found.route.endpoint == Endpoint::Enter { &code[..] } else { &[] };
        let schema = found.action.map_or_else(|| closed(known, &[]), body_of);
        described["requestBody"] = json!({ "required": true, "content": { "application/json": { "schema": schema } } });
    }
    if let Some(action) = found.action {
        described["x-farbus-command"] = json!(action.words);
    }
    described
}

/// The body of an action.
fn body_of(action: &'static Action) -> Value {
    let properties: Map<String, Value> =
        action.parameters.iter().map(|parameter| (parameter.name.to_owned(), parameter.schema())).collect();
    json!({
        "type": "object", "properties": properties, "required": action.required(), "additionalProperties": false,
    })
}

fn responses(found: &Found) -> Value {
    let is_change = found.route.is_change();
    let mut all: BTreeMap<&str, (&str, Map<String, Value>)> = BTreeMap::new();
    let mut add = |status: &'static str, what: &'static str, kind: &str, schema: Value| {
        let (_, content) = all.entry(status).or_insert((what, Map::new()));
        content.insert(kind.to_owned(), json!({ "schema": schema }));
    };
    let text = || json!({ "type": "string" });
    match (found.route.endpoint, schema_of(found.route.endpoint)) {
        (Endpoint::Action, _) => {
            add("200", "It is done.", "application/json", reference("Operation"));
            add("202", "It was begun; its end is an event.", "application/json", reference("Operation"));
            for (status, what) in FAILURES {
                let schema = match *status {
                    "400" => json!({ "anyOf": [reference("Wrong"), reference("Operation")] }),
                    _ => reference("Operation"),
                };
                add(status, what, "application/json", schema);
            }
        }
        (Endpoint::Stop, _) => add("202", "It was asked to end.", "application/json", reference("Operation")),
        (_, Some(name)) => add("200", "What is asked for.", "application/json", reference(name)),
        (endpoint, None) => add("200", "What is asked for.", kind_of(endpoint), text()),
    }
    let further = if is_change { REFUSALS_OF_CHANGES } else { &[] };
    for (status, what) in REFUSALS.iter().chain(further) {
        if found.scope().is_some() || *status != "403" || found.route.endpoint == Endpoint::Enter {
            add(status, what, "text/plain", text());
        }
    }
    if found.route.endpoint == Endpoint::Operation {
        add("404", "No operation has this number, or it is forgotten.", "text/plain", text());
    }
    if found.route.is_for_others() {
        add("404", "It is there for browsers of other machines alone.", "text/plain", text());
    }
    if matches!(found.route.endpoint, Endpoint::Latency | Endpoint::LatencyPart) {
        add("404", "This process has no such device, or does not time it.", "text/plain", text());
    }
    if found.route.endpoint == Endpoint::NewestPicture {
        add("200", "What is asked for.", Kind::Jpeg.media_type(), text());
        add("404", "No operation with this number shows a picture now.", "text/plain", text());
    }
    if matches!(found.route.endpoint, Endpoint::Recording | Endpoint::RecordedText) {
        add("404", "No operation with this number has recorded anything.", "text/plain", text());
    }
    let described = |(status, (what, content)): (&str, (&str, Map<String, Value>))| {
        (status.to_owned(), json!({ "description": what, "content": content }))
    };
    all.into_iter().map(described).collect::<Map<_, _>>().into()
}

/// The content type of an answer that is no JSON.
fn kind_of(endpoint: Endpoint) -> &'static str {
    match endpoint {
        Endpoint::Page
        | Endpoint::Buses
        | Endpoint::Network
        | Endpoint::Device
        | Endpoint::Table
        | Endpoint::LatencyPart
        | Endpoint::New
        | Endpoint::Form
        | Endpoint::Leave
        | Endpoint::EnterPage => "text/html",
        Endpoint::Line => "application/json",
        Endpoint::Style | Endpoint::UplotStyle | Endpoint::EnterStyle => "text/css",
        Endpoint::Script | Endpoint::Plots | Endpoint::Uplot | Endpoint::EnterScript => "text/javascript",
        Endpoint::PageEvents | Endpoint::Events => "text/event-stream",
        Endpoint::Recording => RECORDING_TYPE,
        Endpoint::NewestPicture | Endpoint::Icon => Kind::Png.media_type(),
        _ => "text/plain",
    }
}

/// The name of the schema of an answer that is JSON.
fn schema_of(endpoint: Endpoint) -> Option<&'static str> {
    match endpoint {
        Endpoint::Status => Some("Status"),
        Endpoint::Hosts => Some("Hosts"),
        Endpoint::Devices | Endpoint::Shares | Endpoint::Attachments => Some("Devices"),
        Endpoint::Audit => Some("Audit"),
        Endpoint::Actions => Some("Actions"),
        Endpoint::Operations => Some("Operations"),
        Endpoint::Operation => Some("Operation"),
        Endpoint::Latency => Some("Latency"),
        Endpoint::Description => Some("Description"),
        Endpoint::Enter => Some("Entered"),
        Endpoint::Action
        | Endpoint::Stop
        | Endpoint::Recording
        | Endpoint::RecordedText
        | Endpoint::NewestPicture
        | Endpoint::Health
        | Endpoint::EnterPage
        | Endpoint::EnterScript
        | Endpoint::EnterStyle
        | Endpoint::New
        | Endpoint::Form
        | Endpoint::Line
        | Endpoint::Leave
        | Endpoint::Ready
        | Endpoint::Style
        | Endpoint::Script
        | Endpoint::Plots
        | Endpoint::Uplot
        | Endpoint::UplotStyle
        | Endpoint::Icon
        | Endpoint::Page
        | Endpoint::Buses
        | Endpoint::Network
        | Endpoint::Device
        | Endpoint::LatencyPart
        | Endpoint::Table
        | Endpoint::PageEvents
        | Endpoint::Events
        | Endpoint::Metrics => None,
    }
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

/// An object with these properties, of which those in `optional` may be absent. Later releases may add some.
fn object(required: &[(&str, Value)], optional: &[(&str, Value)]) -> Value {
    let properties: Map<String, Value> =
        required.iter().chain(optional).map(|(name, schema)| ((*name).to_owned(), schema.clone())).collect();
    let required: Vec<&str> = required.iter().map(|(name, _)| *name).collect();
    json!({ "type": "object", "properties": properties, "required": required })
}

/// The same, and nothing else.
fn closed(required: &[(&str, Value)], optional: &[(&str, Value)]) -> Value {
    let mut schema = object(required, optional);
    schema["additionalProperties"] = json!(false);
    schema
}

fn list(of: Value) -> Value {
    json!({ "type": "array", "items": of })
}

fn schemas() -> Value {
    let text = || json!({ "type": "string" });
    let text_or_null = || json!({ "type": ["string", "null"] });
    let number = || json!({ "type": "integer", "minimum": 0 });
    let time = || json!({ "type": "string", "format": "date-time" });
    let anything = || json!({});
    let of_process = || [("pid", number()), ("role", text()), ("address", text())];
    let device = json!({
        "type": "object", "properties": { "name": text(), "state": text() }, "required": ["name", "state"],
        "description": "As 'farbus status --json' has it: docs/control.md, Status.",
    });
    let process = object(&[&of_process()[..], &[("devices", list(reference("Device")))]].concat(), &[]);
    let us = || json!({ "type": "number", "minimum": 0 });
    let percentiles = || object(&[("p50", us()), ("p99", us()), ("p999", us())], &[]);
    let second = object(
        &[
            ("ago_s", number()),
            ("timed", number()),
            ("all_us", percentiles()),
            ("network_us", percentiles()),
            ("bus_us", percentiles()),
            ("back_end_us", percentiles()),
        ],
        &[("number", number())],
    );
    let attributes = ["device", "network", "refused", "gone", "local"];
    json!({
        "Device": device,
        "Process": process,
        "Status": list(reference("Process")),
        "Failure": closed(&[("attribute", json!({ "enum": attributes })), ("message", text())], &[("limit", text())]),
        "Offer": closed(
            &[("action", text()), ("summary", text()), ("parameters", anything()), ("missing", list(text()))],
            &[("command", text())],
        ),
        "Devices": object(
            &[
                ("devices", list(object(
                    &[
                        ("process", object(&of_process(), &[])),
                        ("device", reference("Device")),
                        ("actions", list(reference("Offer"))),
                    ],
                    &[],
                ))),
                ("left_out", number()),
                ("silent", number()),
            ],
            &[],
        ),
        "Hosts": object(
            &[
                ("name", text()),
                ("farbus", text()),
                ("paired", list(object(
                    &[
                        ("name", text()),
                        ("fingerprint", text()),
                        ("address", text_or_null()),
                        ("paired", text()),
                        ("may_use", list(text())),
                        ("may_reserve_high", list(text())),
                    ],
                    &[],
                ))),
            ],
            &[],
        ),
        "Latency": object(&[("seconds", list(second))], &[]),
        "Audit": object(
            &[
                ("lines", list(object(&[("at", time()), ("event", text()), ("outcome", text())], &[]))),
                ("earlier", number()),
            ],
            &[],
        ),
        "Action": object(
            &[
                ("name", text()),
                ("summary", text()),
                ("scope", json!({ "enum": ["read", "observe", "own"] })),
                ("command", list(text())),
                ("is_long", json!({ "type": "boolean" })),
                ("required", list(text())),
                ("parameters", json!({ "type": "object" })),
            ],
            &[],
        ),
        "Actions": object(&[("actions", list(reference("Action")))], &[]),
        "Operation": closed(
            &[
                ("id", number()),
                ("action", text()),
                ("subject", text()),
                ("command", text()),
                ("by", text()),
                ("state", json!({ "enum": ["running", "done", "failed"] })),
                ("begun", time()),
            ],
            &[
                ("on", object(&[("pid", number()), ("name", text())], &[])),
                ("pid", number()),
                ("progress", json!({ "type": "object" })),
                ("answer", anything()),
                ("warnings", text()),
                ("failure", reference("Failure")),
                ("at", text()),
                ("stopped_by", text_or_null()),
            ],
        ),
        "Entered": object(&[("scope", json!({ "enum": ["read", "observe", "own"] })), ("lasts_s", number())], &[]),
        "Operations": object(&[("operations", list(reference("Operation")))], &[]),
        "Wrong": closed(&[("wrong", closed(&[("message", text())], &[("parameter", text())]))], &[]),
        "Description": object(&[("openapi", text()), ("info", anything()), ("paths", anything())], &[]),
    })
}

#[cfg(test)]
mod tests {
    use super::super::table;
    use super::*;

    #[test]
    fn every_route_and_every_action_is_in_the_description_with_its_method_and_scope() {
        let document = document();
        assert_eq!(document["openapi"], "3.1.0");
        let mut ids = std::collections::BTreeSet::new();
        for (path, found) in all() {
            let method = if found.route.is_change() { "post" } else { "get" };
            let described = &document["paths"][&path];
            assert_eq!(described.as_object().map(Map::len), Some(1), "{path}");
            let described = &described[method];
            assert!(ids.insert(described["operationId"].to_string()), "{path}");
            assert_eq!(described["x-farbus-scope"], json!(found.scope()), "{path}");
            assert!(described["responses"].as_object().is_some_and(|all| all.len() >= 6), "{path}");
        }
        assert_eq!(document["paths"].as_object().map(Map::len), Some(all().count()));
        for action in table::all() {
            let path = format!("/api/v1/actions/{}", action.name);
            let body = &document["paths"][&path]["post"]["requestBody"]["content"]["application/json"]["schema"];
            assert_eq!(body["properties"].as_object().map(Map::len), Some(action.parameters.len()), "{path}");
            assert_eq!(body["required"], json!(action.required()), "{path}");
        }
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let document = document();
        let text = document.to_string();
        let mut count = 0;
        for rest in text.split("\"$ref\":\"#/components/schemas/").skip(1) {
            let name = rest.split('"').next().unwrap_or_default();
            assert!(document["components"]["schemas"][name].is_object(), "{name}");
            count += 1;
        }
        assert!(count > 20, "{count}");
    }
}
