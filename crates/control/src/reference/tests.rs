//! Both documents are what the types make of them, and the schemas describe what the types write.

use std::path::PathBuf;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::daemon::{DirectoryLimitReport, ReloadReport, RestartReport, SleepReport, WakeReport};
use crate::descriptors::DescriptorTree;
use crate::event::{EventKind, LatestEvents};
use crate::lease::{self, LeaseAct, LeaseAnswer};
use crate::notes::DeviceNotes;
use crate::process::{self, ProcessStatus};
use crate::question::{Answer, Question};
use crate::reference::document::{DEFINITIONS, document, text};
use crate::reference::tables;
use crate::session::Seconds;
use crate::share::{ShareReport, UnshareReport};
use crate::swap::SwapStatus;
use crate::topology::TopologyStatus;

/// Set to write the documents instead of comparing them.
const BLESS: &str = "FARBUS_BLESS";
/// The words by which a question says who answers it.
const PROCESSES: [&str; 7] = ["all", "share", "attach", "daemon", "nbd", "pipe", "run"];
/// A text that is an id of a device.
const ID: &str = "0123456789abcdef0011223344556677";

/// What `farbus status --json` of release 0.1.0 printed of a share, an attachment, an NBD server and a daemon.
const RELEASE_0_1_0: &str = include_str!("../../tests/recorded/status-0.1.0.json");
/// Questions as programs and earlier releases write them: with null, and without what may be absent.
const QUESTIONS: [&str; 8] = [
    r#"{"ask":"version"}"#,
    r#"{"ask":"events"}"#,
    r#"{"ask":"detach","device":null}"#,
    r#"{"ask":"detach"}"#,
    r#"{"ask":"release","device":"disk","reason":null}"#,
    r#"{"ask":"swap","device":"disk","to":"block:/b","rate":null,"peer":null}"#,
    r#"{"ask":"topology","act":"up"}"#,
    r#"{"ask":"promise","owner":"a","reserves":[[100000,1000000]]}"#,
];

/// Reads a value as its type and writes it again.
type Again = fn(Value) -> Value;

fn again<T: Serialize + DeserializeOwned>(value: Value) -> Value {
    let read: T = serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{error}: {value}"));
    serde_json::to_value(&read).unwrap()
}

/// Everything that is sent, by its name in the document.
const ALL: [(&str, Again); 18] = [
    ("question", again::<Question>),
    ("lease-act", again::<LeaseAct>),
    ("answer", again::<Answer>),
    ("lease-answer", again::<LeaseAnswer>),
    ("status", again::<ProcessStatus>),
    ("events", again::<LatestEvents>),
    ("descriptors", again::<DescriptorTree>),
    ("latency", again::<Seconds>),
    ("share", again::<ShareReport>),
    ("label", again::<DeviceNotes>),
    ("swap-status", again::<SwapStatus>),
    ("unshare", again::<UnshareReport>),
    ("reload", again::<ReloadReport>),
    ("restart", again::<RestartReport>),
    ("sleep", again::<SleepReport>),
    ("wake", again::<WakeReport>),
    ("topology", again::<TopologyStatus>),
    ("directory-limit", again::<DirectoryLimitReport>),
];

fn path(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs")).join(name)
}

#[test]
fn documents_are_what_the_types_make_of_them() {
    let page = std::fs::read_to_string(path("control.md")).unwrap();
    let page = tables::page(&page, &document()).unwrap();
    for (name, should) in [("control.schema.json", text()), ("control.md", page)] {
        if std::env::var_os(BLESS).is_some() {
            std::fs::write(path(name), should).unwrap();
            continue;
        }
        let is = std::fs::read_to_string(path(name)).unwrap_or_default();
        let differs = is.lines().zip(should.lines()).find(|(is, should)| is != should);
        assert!(
            is == should,
            "docs/{name} differs from the types, first at {differs:#?}: type '{BLESS}=1 cargo test -p farbus-control'"
        );
    }
}

#[test]
fn every_type_has_a_table_on_the_page() {
    let page = std::fs::read_to_string(path("control.md")).unwrap();
    let document = document();
    let missing = document[DEFINITIONS].as_object().unwrap().keys();
    let missing: Vec<&String> = missing.filter(|name| !page.contains(&format!("\n### `{name}`\n"))).collect();
    assert_eq!(missing, [""; 0], "docs/control.md: name these types in a line '<!-- types: … -->'");
}

#[test]
fn page_with_an_unknown_type_or_without_an_end_is_refused() {
    let document = document();
    let message = tables::page("<!-- types: Device Mood -->\n<!-- end -->\n", &document).unwrap_err();
    assert_eq!(message, "'<!-- types: Device Mood -->': there is no type Mood");
    let message = tables::page("<!-- types: Device -->\n\nold\n", &document).unwrap_err();
    assert_eq!(message, "'<!-- types: Device -->': no line '<!-- end -->' follows");
    let prose = "# Prose\n\n| a table by hand |\n";
    assert_eq!(tables::page(prose, &document).unwrap(), prose);
}

#[test]
fn every_question_says_who_answers_it() {
    let document = document();
    for question in document[DEFINITIONS]["Question"]["oneOf"].as_array().unwrap() {
        let description = question["description"].as_str().unwrap();
        let (who, _) = description.split_once(": ").unwrap_or_default();
        let is_known = |who: &str| PROCESSES.contains(&who.to_lowercase().as_str());
        assert!(who.split(", ").all(is_known), "{description}: begin with processes and a colon, of {PROCESSES:?}");
    }
}

#[test]
fn every_field_and_word_has_a_meaning() {
    let document = document();
    let mut lack = Vec::new();
    for (name, schema) in document[DEFINITIONS].as_object().unwrap() {
        let variants = schema["oneOf"].as_array().or(schema["anyOf"].as_array());
        for schema in std::iter::once(schema).chain(variants.into_iter().flatten()) {
            lack.extend(schema["description"].is_null().then(|| name.clone()));
            for (field, property) in schema["properties"].as_object().into_iter().flatten() {
                let is_tag = property.get("const").is_some() || name == "Answer";
                lack.extend((!is_tag && property["description"].is_null()).then(|| format!("{name}.{field}")));
            }
        }
    }
    assert_eq!(lack, [""; 0]);
    let text = document.to_string();
    assert!(!text.contains("[`") && !text.contains("`]("), "a link of a docstring");
}

#[test]
fn schemas_accept_what_the_types_write_and_have_no_field_more() {
    let document = document();
    for (name, again) in ALL {
        let schema = &document["properties"][name];
        for full in samples(&document, schema, "", true) {
            let written = again(full.clone());
            // A field of the schema that the type does not have would be lost.
            assert_eq!(written, full, "{name}");
            fits(&document, schema, &written).unwrap_or_else(|why| panic!("{name}: {why} in {written}"));
        }
        for least in samples(&document, schema, "", false) {
            fits(&document, schema, &least).unwrap_or_else(|why| panic!("{name}: {why} in {least}"));
            let written = again(least);
            fits(&document, schema, &written).unwrap_or_else(|why| panic!("{name}: {why} in {written}"));
        }
    }
    let sent = document["properties"].as_object().unwrap();
    assert!(sent.keys().all(|name| ALL.iter().any(|(known, _)| known == name)), "name all of {sent:?}");
}

#[test]
fn schemas_know_every_field_of_recorded_json() {
    let document = document();
    let check = |name: &str, value: &Value| fits(&document, &document["properties"][name], value);
    assert_eq!(check("status", &process::tests::daemon()), Ok(()));
    for text in lease::tests::ACTS {
        assert_eq!(check("lease-act", &serde_json::from_str(text).unwrap()), Ok(()), "{text}");
    }
    for text in QUESTIONS {
        assert_eq!(check("question", &serde_json::from_str(text).unwrap()), Ok(()), "{text}");
    }
}

#[test]
fn schemas_know_every_field_that_release_0_1_0_writes() {
    let document = document();
    let recorded: Vec<Value> = serde_json::from_str(RELEASE_0_1_0).unwrap();
    let schema = &document["properties"]["status"];
    for process in recorded {
        assert_eq!(describes(&document, schema, &process, false), Ok(()), "{process}");
        assert_eq!(fits(&document, schema, &again::<ProcessStatus>(process)), Ok(()));
    }
}

#[test]
fn schemas_refuse_what_the_types_do_not_write() {
    let document = document();
    let refused = |name: &str, value: Value| fits(&document, &document["properties"][name], &value).unwrap_err();
    assert!(refused("question", json!({ "ask": "mood" })).contains("none fits"));
    assert!(refused("question", json!({ "ask": "latency" })).contains("'device' is missing"));
    assert!(refused("question", json!({ "ask": "latency", "device": 3 })).contains("device: 3 is no string"));
    assert!(refused("label", json!({ "colour": "red" })).contains("'colour' is not described"));
    assert!(
        refused("events", json!({ "last": 1, "missed": 0, "events": [{ "number": 1 }] })).contains("'at' is missing")
    );
}

#[test]
fn every_kind_of_event_is_in_the_schema_under_its_word() {
    let document = document();
    let kinds = document[DEFINITIONS]["EventKind"]["oneOf"].as_array().unwrap();
    for kind in kinds {
        let read: EventKind = serde_json::from_value(kind["const"].clone()).unwrap();
        assert_eq!(read.as_str(), kind["const"]);
        assert_ne!(read, EventKind::Other);
        assert!(kind["description"].as_str().unwrap().contains(" Fields: `"), "{kind}");
    }
    assert_eq!(kinds.len(), EventKind::Ended as usize + 1);
}

/// Values that a schema describes, each alternative once: with everything that they may have, or with the least.
fn samples(document: &Value, schema: &Value, name: &str, is_full: bool) -> Vec<Value> {
    if let Some(constant) = schema.get("const") {
        return vec![constant.clone()];
    }
    if let Some(at) = schema["$ref"].as_str() {
        return samples(document, document.pointer(&at[1..]).unwrap(), name, is_full);
    }
    if let Some(all) = schema["oneOf"].as_array().or(schema["anyOf"].as_array()) {
        let all = all.iter().filter(|schema| schema["type"] != "null");
        return all.flat_map(|schema| samples(document, schema, name, is_full)).collect();
    }
    let list = |schema: &Value| samples(document, schema, name, is_full);
    let kind = schema["type"].as_array().map_or(&schema["type"], |kinds| &kinds[0]);
    match kind.as_str() {
        Some("string") if matches!(name, "id" | "bound") => vec![json!(ID)],
        Some("string") if name == "fingerprint" => vec![json!("a".repeat(52))],
        Some("string") => vec![json!("text")],
        Some("integer") => vec![json!(1)],
        Some("number") => vec![json!(1.5)],
        Some("boolean") => vec![json!(true)],
        Some("array") => match schema["prefixItems"].as_array() {
            Some(each) => vec![each.iter().map(|schema| list(schema).remove(0)).collect()],
            None => vec![list(&schema["items"]).into()],
        },
        Some("object") if schema["properties"].is_null() => {
            vec![json!({ "name": list(&schema["additionalProperties"])[0] })]
        }
        Some("object") => objects(document, schema, is_full),
        _ => vec![json!({ "anything": 1 })],
    }
}

fn objects(document: &Value, schema: &Value, is_full: bool) -> Vec<Value> {
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    let fields: Vec<(&String, Vec<Value>)> = schema["properties"]
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(name, _)| is_full || required.iter().any(|one| one == name.as_str()))
        .map(|(name, schema)| (name, samples(document, schema, name, is_full)))
        .collect();
    let count = fields.iter().map(|(_, values)| values.len()).max().unwrap_or(1);
    let one = |at: usize| -> Map<String, Value> {
        fields.iter().map(|(name, values)| ((*name).clone(), values[at % values.len()].clone())).collect()
    };
    (0..count).map(|at| one(at).into()).collect()
}

/// Whether a schema describes a value, as far as the document's words go. A field that it does not describe is refused.
fn fits(document: &Value, schema: &Value, value: &Value) -> Result<(), String> {
    describes(document, schema, value, true)
}

/// Whether a schema describes a value; `is_whole`: no field is missing. A value of an earlier release lacks what was
/// added since.
fn describes(document: &Value, schema: &Value, value: &Value, is_whole: bool) -> Result<(), String> {
    let fits = |schema: &Value, value: &Value| describes(document, schema, value, is_whole);
    if let Some(at) = schema["$ref"].as_str() {
        return fits(document.pointer(&at[1..]).ok_or_else(|| format!("no {at}"))?, value);
    }
    if let Some(all) = schema["oneOf"].as_array().or(schema["anyOf"].as_array()) {
        let whys: Vec<String> = all.iter().filter_map(|schema| fits(schema, value).err()).collect();
        return if whys.len() < all.len() { Ok(()) } else { Err(format!("none fits: {whys:?}")) };
    }
    if schema.get("const").is_some_and(|constant| constant != value) {
        return Err(format!("{value} is not {}", schema["const"]));
    }
    let one = std::slice::from_ref(&schema["type"]);
    let kinds = schema["type"].as_array().map_or(one, Vec::as_slice);
    let is_of = |kind: &Value| match kind.as_str() {
        Some("string") => value.is_string(),
        Some("integer") => value.is_u64() || value.is_i64(),
        Some("number") => value.is_number(),
        Some("boolean") => value.is_boolean(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        Some("null") => value.is_null(),
        _ => true,
    };
    if !kinds.iter().any(is_of) {
        return Err(format!(
            "{value} is no {}",
            kinds.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" or ")
        ));
    }
    for item in value.as_array().into_iter().flatten() {
        fits(&schema["items"], item)?;
    }
    let Some(fields) = value.as_object().filter(|_| kinds[0] == "object") else { return Ok(()) };
    let required = schema["required"].as_array().filter(|_| is_whole);
    for name in required.into_iter().flatten().filter_map(Value::as_str) {
        fields.get(name).ok_or_else(|| format!("'{name}' is missing"))?;
    }
    for (name, value) in fields {
        let known = schema["properties"]
            .get(name)
            .or(schema.get("additionalProperties").filter(|additional| additional.is_object()));
        let known = known.ok_or_else(|| format!("'{name}' is not described"))?;
        fits(known, value).map_err(|why| format!("{name}: {why}"))?;
    }
    Ok(())
}
