//! The tables of `docs/control.md`: each type as its schema describes it.
//!
//! The page is written by hand but for the lines between `<!-- types: NAME… -->` and `<!-- end -->`.

use std::fmt::Write as _;

use serde_json::{Map, Value};

use crate::failure::FailureKind;
use crate::reference::document::{DEFINITIONS, DEFINITIONS_PATH, type_of};

const BEGIN: &str = "<!-- types: ";
const BEGIN_END: &str = " -->";
const END: &str = "<!-- end -->";
/// The type whose docstrings begin with the processes that answer.
const QUESTIONS: &str = "Question";
/// The words that have an exit code.
const FAILURES: &str = "FailureKind";
/// What stands between an event's meaning and the fields that it has.
const FIELDS: &str = " Fields: ";
/// Properties whose value is the name of a variant.
const TAGS: [&str; 2] = ["ask", "do"];

/// The page with its tables made anew. `document` is [`document()`](crate::reference::document::document).
///
/// # Errors
/// A sentence for a person: a type is not there, or a mark of the end is missing.
pub fn page(text: &str, document: &Value) -> Result<String, String> {
    let mut written = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let _ = writeln!(written, "{line}");
        let Some(names) = line.strip_prefix(BEGIN).and_then(|rest| rest.strip_suffix(BEGIN_END)) else { continue };
        written.push('\n');
        for name in names.split_whitespace() {
            let schema = &document[DEFINITIONS][name];
            if !schema.is_object() {
                return Err(format!("'{line}': there is no type {name}"));
            }
            section(document, name, schema, &mut written);
        }
        if !lines.any(|line| line == END) {
            return Err(format!("'{line}': no line '{END}' follows"));
        }
        let _ = writeln!(written, "{END}");
    }
    Ok(written)
}

/// A type: its heading, what it is, and its table.
fn section(document: &Value, name: &str, schema: &Value, into: &mut String) {
    let _ = writeln!(into, "### `{name}`\n");
    if let Some(what) = description(schema) {
        let _ = writeln!(into, "{what}\n");
    }
    let (head, rows) = match (schema["properties"].as_object(), list(&schema["oneOf"])) {
        (Some(properties), _) => (vec!["field", "kind", "meaning"], fields(schema, properties)),
        (None, []) => (vec!["kind", "meaning"], list(&schema["anyOf"]).iter().map(kinds).collect()),
        (None, variants) if variants.iter().all(|variant| variant["const"].is_string()) => words(name, variants),
        (None, variants) => acts(document, name, variants),
    };
    row(&head.iter().map(|&cell| cell.to_owned()).collect::<Vec<_>>(), into);
    let _ = writeln!(into, "|{}", "---|".repeat(head.len()));
    rows.iter().for_each(|cells| row(cells, into));
    into.push('\n');
}

type ReferenceTable = (Vec<&'static str>, Vec<Vec<String>>);

fn row(cells: &[String], into: &mut String) {
    for cell in cells {
        let _ = write!(into, "| {}{}", cell.replace('|', "\\|"), if cell.is_empty() { "" } else { " " });
    }
    into.push_str("|\n");
}

/// The fields of an object: those that are always there in the order of their declaration, then the others.
fn fields(schema: &Value, properties: &Map<String, Value>) -> Vec<Vec<String>> {
    let describe = |(name, property, is_required): (&str, &Value, bool)| {
        let absent = if is_required { "" } else { ", may be absent" };
        let kind = if is_required { kind(property) } else { kind(&without_null(property)) };
        vec![format!("`{name}`"), format!("{kind}{absent}"), description(property).unwrap_or_default().to_owned()]
    };
    in_order(schema, properties).into_iter().map(describe).collect()
}

/// Properties with their names, and whether they are required.
fn in_order<'a>(schema: &'a Value, properties: &'a Map<String, Value>) -> Vec<(&'a str, &'a Value, bool)> {
    let required: Vec<&str> = list(&schema["required"]).iter().filter_map(Value::as_str).collect();
    let first = required.iter().filter_map(|name| properties.get_key_value(*name));
    let others = properties.iter().filter(|(name, _)| !required.contains(&name.as_str()));
    first.chain(others).map(|(name, property)| (name.as_str(), property, required.contains(&name.as_str()))).collect()
}

/// Words that stand for something.
fn words(name: &str, variants: &[Value]) -> ReferenceTable {
    let mut head = vec!["word", "meaning"];
    let word = |variant: &Value| format!("`{}`", variant["const"].as_str().unwrap_or_default());
    let meaning = |variant: &Value| description(variant).unwrap_or_default().to_owned();
    let mut rows: Vec<Vec<String>> = variants.iter().map(|variant| vec![word(variant), meaning(variant)]).collect();
    if rows.iter().any(|row| row[1].contains(FIELDS)) {
        head.push("fields");
        for row in &mut rows {
            let (what, fields) = row[1].split_once(FIELDS).unwrap_or((&row[1], ""));
            *row = vec![row[0].clone(), what.to_owned(), fields.trim_end_matches('.').to_owned()];
        }
    }
    if name == FAILURES {
        head.push("exit code");
        for (row, variant) in rows.iter_mut().zip(variants) {
            let kind = serde_json::from_value::<FailureKind>(variant["const"].clone());
            row.push(kind.map(|kind| kind.exit_code().to_string()).unwrap_or_default());
        }
    }
    (head, rows)
}

/// What is sent, in one of several forms.
fn acts(document: &Value, name: &str, variants: &[Value]) -> ReferenceTable {
    let is_question = name == QUESTIONS;
    let describe = |variant: &Value| {
        let what = description(variant).unwrap_or_default();
        let (who, what) = if is_question { what.split_once(": ").unwrap_or(("", what)) } else { ("", what) };
        let mut meaning = capital(what);
        let properties = variant["properties"].as_object();
        for (field, property, is_required) in properties.map(|all| in_order(variant, all)).unwrap_or_default() {
            let Some(what) = description(property) else { continue };
            let absent = if is_required { "" } else { " (may be absent)" };
            let _ = write!(meaning, " `{field}`{absent}: {}", small(what));
        }
        if is_question && let Some(answer) = variant["properties"]["ask"]["const"].as_str() {
            let answer = type_of(document, answer);
            let _ = answer.map(|answer| write!(meaning, " The answer's `ok`: {}.", link(answer)));
        }
        let sent = format!("`{}`", example(document, variant));
        if is_question { vec![sent, who.to_lowercase(), meaning] } else { vec![sent, meaning] }
    };
    let head = if is_question { vec!["question", "answered by", "meaning"] } else { vec!["JSON", "meaning"] };
    (head, variants.iter().map(describe).collect())
}

/// One of several types that are told apart by what they have.
fn kinds(variant: &Value) -> Vec<String> {
    vec![kind(variant), description(variant).unwrap_or_default().to_owned()]
}

/// The JSON of a value, with words in capitals for what may be different.
fn example(document: &Value, schema: &Value) -> String {
    if let Some(word) = schema.get("const") {
        return word.to_string();
    }
    if let Some(name) = reference(schema) {
        let is_word = list(&document[DEFINITIONS][name]["oneOf"]).iter().any(|one| one["const"].is_string());
        return if is_word { "WORD".to_owned() } else { name.to_uppercase() };
    }
    let one = |schema: &Value| example(document, schema);
    if let Some(properties) = schema["properties"].as_object() {
        let mut all = in_order(schema, properties);
        // A tag comes first.
        all.sort_by_key(|(name, ..)| !TAGS.contains(name));
        let all = all.iter().map(|(name, property, _)| format!("\"{name}\":{}", one(property)));
        return format!("{{{}}}", all.collect::<Vec<_>>().join(","));
    }
    let union = list(&schema["anyOf"]).iter().find(|one| one["type"] != "null");
    match (word_of(schema), union) {
        ("string", _) => "TEXT".to_owned(),
        ("integer" | "number", _) => "N".to_owned(),
        ("boolean", _) => "B".to_owned(),
        ("array", _) => match list(&schema["prefixItems"]) {
            [] => format!("[{}…]", one(&schema["items"])),
            each => format!("[{}]", each.iter().map(one).collect::<Vec<_>>().join(",")),
        },
        ("object", _) => format!("{{NAME:{}…}}", one(&schema["additionalProperties"])),
        (_, Some(schema)) => one(schema),
        _ => "VALUE".to_owned(),
    }
}

/// What a value is, for people.
fn kind(schema: &Value) -> String {
    if let Some(name) = reference(schema) {
        return link(name);
    }
    let union = [list(&schema["anyOf"]), list(&schema["oneOf"])].concat();
    if !union.is_empty() {
        return union.iter().map(kind).collect::<Vec<_>>().join(" or ");
    }
    let or_null = list(&schema["type"]).iter().any(|kind| kind == "null");
    let words = match word_of(schema) {
        "string" => "text".to_owned(),
        "integer" | "number" => "number".to_owned(),
        "boolean" => "true or false".to_owned(),
        "null" => "null".to_owned(),
        "array" => format!("list of {}", several(&schema["items"])),
        "object" => format!("{} by name", several(&schema["additionalProperties"])),
        _ => "any value".to_owned(),
    };
    if or_null { format!("{words} or null") } else { words }
}

/// What several values are.
fn several(schema: &Value) -> String {
    let kind = kind(schema);
    if matches!(kind.as_str(), "text" | "number") { format!("{kind}s") } else { kind }
}

/// The first type of a schema that is not null.
fn word_of(schema: &Value) -> &str {
    match &schema["type"] {
        Value::String(kind) => kind,
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).find(|kind| *kind != "null").unwrap_or_default(),
        _ => "",
    }
}

/// A schema of a field that may be absent: that it may be null, too, says nothing.
fn without_null(schema: &Value) -> Value {
    let mut schema = schema.clone();
    if let Some(Value::Array(kinds)) = schema.get_mut("type") {
        kinds.retain(|kind| kind != "null");
    }
    if let Some(Value::Array(all)) = schema.get_mut("anyOf") {
        all.retain(|one| one["type"] != "null");
    }
    schema
}

fn reference(schema: &Value) -> Option<&str> {
    schema["$ref"].as_str()?.strip_prefix(DEFINITIONS_PATH)
}

fn link(name: &str) -> String {
    format!("[{name}](#{})", name.to_lowercase())
}

fn description(schema: &Value) -> Option<&str> {
    schema["description"].as_str()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

/// A sentence behind a colon. A name in capitals stays as it is.
fn small(text: &str) -> String {
    let mut letters = text.chars();
    if text.chars().nth(1).is_some_and(char::is_uppercase) {
        return text.to_owned();
    }
    letters.next().map(|first| first.to_lowercase().chain(letters).collect()).unwrap_or_default()
}
