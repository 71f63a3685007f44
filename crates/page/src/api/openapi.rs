//! The description of all routes in OpenAPI 3.1, made from their table and that of the actions.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::api::actions::PageAction;
use crate::api::routes::{PageEndpoint, RouteMatch, all};
use crate::api::schemas::{self, Description, Info, SchemaExtension};
use crate::pictures::PictureFormat;

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

/// The description of everything that is there; `further` adds schemas ([`schemas::all`]).
pub fn document(further: &[SchemaExtension]) -> Value {
    let paths: Map<String, Value> = all()
        .map(|(path, found)| {
            let method = if found.route.is_change() { "post" } else { "get" };
            (path.clone(), json!({ method: operation(&path, &found) }))
        })
        .collect();
    json!(Description {
        openapi: "3.1.0",
        info: Info {
            title: "farbus",
            version: env!("CARGO_PKG_VERSION"),
            description: "What a user's farbus processes share and attach. Each action is a command line of farbus.",
            license: json!({ "name": "MIT OR Apache-2.0" }),
        },
        paths,
        components: json!({
            "schemas": schemas::all(further),
            "securitySchemes": {
                "token": { "type": "http", "scheme": "bearer", "description": "farbus page token create" },
            },
        }),
    })
}

fn operation(path: &str, found: &RouteMatch) -> Value {
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
        if matches!(found.route.endpoint, PageEndpoint::Device | PageEndpoint::LatencyPart | PageEndpoint::Latency) {
            let of_device = json!({ "name": "name", "in": "query", "required": true, "schema": { "type": "string" } });
            parameters.push(of_device);
        }
        described["parameters"] = json!(parameters);
    }
    if found.route.endpoint == PageEndpoint::LabDevices {
        let parameter = |name: &str, schema: Value, what: &str| json!({ "name": name, "in": "query", "schema": schema, "description": what });
        let text = || json!({ "type": "string" });
        described["parameters"] = json!([
            parameter("q", text(), "What a device has to contain in what is seen of it."),
            parameter("host", text(), "The name of the host that has it."),
            parameter("state", text(), "Its state, in a word: available, leased, in use, attached."),
            parameter("class", text(), "Its class, in a word: disk, sound, camera, input, printer."),
            parameter("page", json!({ "type": "integer", "minimum": 1 }), "Which hundred devices."),
        ]);
    }
    if found.route.endpoint == PageEndpoint::Events {
        let what = "The id of the last event that was received.";
        described["parameters"] = json!([
            { "name": "Last-Event-ID", "in": "header", "schema": { "type": "string" }, "description": what },
        ]);
    }
    if found.route.is_change() {
        let schema = match (found.action, found.route.endpoint) {
            (Some(action), _) => body_of(action),
            (None, PageEndpoint::Enter) => {
                let code =
                    json!({ "type": "string", "description": "The fragment of the URL of 'farbus page invite'." });
                closed(json!({ "code": code }), &["code"])
            }
            (None, _) => closed(json!({}), &[]),
        };
        described["requestBody"] = json!({ "required": true, "content": { "application/json": { "schema": schema } } });
    }
    if let Some(action) = found.action {
        described["x-farbus-command"] = json!(action.words);
    }
    described
}

/// The body of an action.
fn body_of(action: &'static PageAction) -> Value {
    let properties: Map<String, Value> =
        action.parameters.iter().map(|parameter| (parameter.name.to_owned(), parameter.schema())).collect();
    closed(properties.into(), &action.required())
}

/// A body with these properties and no others.
fn closed(properties: Value, required: &[&str]) -> Value {
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

fn responses(found: &RouteMatch) -> Value {
    let is_change = found.route.is_change();
    let mut all: BTreeMap<&str, (&str, Map<String, Value>)> = BTreeMap::new();
    let mut add = |status: &'static str, what: &'static str, kind: &str, schema: Value| {
        let (_, content) = all.entry(status).or_insert((what, Map::new()));
        content.insert(kind.to_owned(), json!({ "schema": schema }));
    };
    let text = || json!({ "type": "string" });
    match (found.route.endpoint, schema_of(found.route.endpoint)) {
        (PageEndpoint::Action, _) => {
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
        (PageEndpoint::Stop, _) => add("202", "It was asked to end.", "application/json", reference("Operation")),
        (_, Some(name)) => add("200", "What is asked for.", "application/json", reference(name)),
        (endpoint, None) => add("200", "What is asked for.", kind_of(endpoint), text()),
    }
    let further = if is_change { REFUSALS_OF_CHANGES } else { &[] };
    for (status, what) in REFUSALS.iter().chain(further) {
        if found.scope().is_some() || *status != "403" || found.route.endpoint == PageEndpoint::Enter {
            add(status, what, "text/plain", text());
        }
    }
    if found.route.endpoint == PageEndpoint::Operation {
        add("404", "No operation has this number, or it is forgotten.", "text/plain", text());
    }
    if found.route.is_for_others() {
        add("404", "It is there for browsers of other machines alone.", "text/plain", text());
    }
    let no_device = "This process has no such device, or does not time it.";
    if found.route.endpoint == PageEndpoint::Latency {
        add("404", no_device, "text/plain", text());
    }
    if found.route.endpoint == PageEndpoint::LatencyPart {
        add("204", no_device, "text/html", text());
    }
    if found.route.endpoint == PageEndpoint::NewestPicture {
        add("200", "What is asked for.", PictureFormat::Jpeg.media_type(), text());
        add("404", "No operation with this number shows a picture now.", "text/plain", text());
    }
    if matches!(found.route.endpoint, PageEndpoint::Recording | PageEndpoint::RecordedText) {
        add("404", "No operation with this number has recorded anything.", "text/plain", text());
    }
    let described = |(status, (what, content)): (&str, (&str, Map<String, Value>))| {
        (status.to_owned(), json!({ "description": what, "content": content }))
    };
    all.into_iter().map(described).collect::<Map<_, _>>().into()
}

/// The content type of an answer that is no JSON.
fn kind_of(endpoint: PageEndpoint) -> &'static str {
    match endpoint {
        PageEndpoint::Page
        | PageEndpoint::HostsPage
        | PageEndpoint::Buses
        | PageEndpoint::Network
        | PageEndpoint::Device
        | PageEndpoint::Table
        | PageEndpoint::LatencyPart
        | PageEndpoint::New
        | PageEndpoint::Form
        | PageEndpoint::Leave
        | PageEndpoint::EnterPage => "text/html",
        PageEndpoint::Line => "application/json",
        PageEndpoint::Style | PageEndpoint::UplotStyle | PageEndpoint::EnterStyle => "text/css",
        PageEndpoint::Script | PageEndpoint::Plots | PageEndpoint::Uplot | PageEndpoint::EnterScript => {
            "text/javascript"
        }
        PageEndpoint::PageEvents | PageEndpoint::Events => "text/event-stream",
        PageEndpoint::Recording => RECORDING_TYPE,
        PageEndpoint::NewestPicture | PageEndpoint::Icon => PictureFormat::Png.media_type(),
        _ => "text/plain",
    }
}

/// The name of the schema of an answer that is JSON.
fn schema_of(endpoint: PageEndpoint) -> Option<&'static str> {
    match endpoint {
        PageEndpoint::Status => Some("Status"),
        PageEndpoint::Hosts => Some("Hosts"),
        PageEndpoint::LabDevices => Some("LabDevices"),
        PageEndpoint::Devices | PageEndpoint::Shares | PageEndpoint::Attachments => Some("Devices"),
        PageEndpoint::Audit => Some("Audit"),
        PageEndpoint::Actions => Some("Actions"),
        PageEndpoint::Operations => Some("Operations"),
        PageEndpoint::Operation => Some("Operation"),
        PageEndpoint::Latency => Some("Latency"),
        PageEndpoint::Description => Some("Description"),
        PageEndpoint::Enter => Some("Entered"),
        PageEndpoint::Action
        | PageEndpoint::Stop
        | PageEndpoint::Recording
        | PageEndpoint::RecordedText
        | PageEndpoint::NewestPicture
        | PageEndpoint::Health
        | PageEndpoint::EnterPage
        | PageEndpoint::EnterScript
        | PageEndpoint::EnterStyle
        | PageEndpoint::New
        | PageEndpoint::Form
        | PageEndpoint::Line
        | PageEndpoint::Leave
        | PageEndpoint::Ready
        | PageEndpoint::Style
        | PageEndpoint::Script
        | PageEndpoint::Plots
        | PageEndpoint::Uplot
        | PageEndpoint::UplotStyle
        | PageEndpoint::Icon
        | PageEndpoint::Page
        | PageEndpoint::HostsPage
        | PageEndpoint::Buses
        | PageEndpoint::Network
        | PageEndpoint::Device
        | PageEndpoint::LatencyPart
        | PageEndpoint::Table
        | PageEndpoint::PageEvents
        | PageEndpoint::Events
        | PageEndpoint::Metrics => None,
    }
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::table;

    #[test]
    fn every_route_and_every_action_is_in_the_description_with_its_method_and_scope() {
        let document = crate::http::answers::description();
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
        let document = crate::http::answers::description();
        let text = document.to_string();
        let mut count = 0;
        for rest in text.split("\"$ref\":\"#/components/schemas/").skip(1) {
            let name = rest.split('"').next().unwrap_or_default();
            assert!(document["components"]["schemas"][name].is_object(), "{name}");
            count += 1;
        }
        assert!(count > 20, "{count}");
    }

    #[test]
    fn every_schema_that_is_named_is_there_once_under_a_name_of_its_own() {
        let document = crate::http::answers::description();
        let schemas = document["components"]["schemas"].as_object().unwrap();
        let text = document.to_string();
        let mut count = 0;
        for rest in text.split("\"$ref\":\"#/components/schemas/").skip(1) {
            let name = rest.split('"').next().unwrap_or_default();
            assert!(schemas.contains_key(name), "{name}");
            count += 1;
        }
        assert!(count > 100, "{count}");
        for name in schemas.keys() {
            assert!(name.bytes().all(|byte| byte.is_ascii_alphabetic()), "another type has the name of {name}");
        }
        let earlier = [
            "Device",
            "Process",
            "Status",
            "Failure",
            "Offer",
            "Devices",
            "Hosts",
            "LabDevices",
            "Latency",
            "Audit",
            "Action",
            "Actions",
            "Operation",
            "Entered",
            "Operations",
            "Wrong",
            "Description",
        ];
        for name in earlier {
            assert!(schemas.contains_key(name), "{name}");
        }
        for closed in ["Failure", "Offer", "Operation", "Wrong", "WrongParameter"] {
            assert_eq!(schemas[closed]["additionalProperties"], false, "{closed}");
        }
        assert!(!text.contains("super::") && !text.contains("[`"), "a link of a docstring");
    }

    #[test]
    fn what_is_absent_rather_than_null_is_neither_required_nor_null() {
        let document = crate::http::answers::description();
        let shared = &document["components"]["schemas"]["SharedDevice"];
        assert_eq!(shared["properties"]["user"]["type"], "string");
        assert_eq!(shared["properties"]["lease"]["$ref"], "#/components/schemas/LeaseStatus");
        let required: Vec<&str> =
            shared["required"].as_array().unwrap().iter().filter_map(|one| one.as_str()).collect();
        assert!(required.contains(&"bus_id") && !required.contains(&"user"), "{required:?}");
        let labels = &shared["properties"]["labels"];
        assert_eq!(labels["additionalProperties"]["type"], "string", "{labels}");
        assert!(shared["properties"]["user"]["description"].is_string());
    }
}
