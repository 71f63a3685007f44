//! What schemas say of values whose types do not say it, and how docstrings read in them.

use crate::fingerprint::Fingerprint;
use crate::identity::DeviceId;
use schemars::generate::SchemaGenerator;
use schemars::{JsonSchema, Schema, json_schema};
use serde_json::Value;
use std::borrow::Cow;

/// A `T`, or null: of a property that may be absent, too.
pub fn or_null<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({ "oneOf": [generator.subschema_for::<T>(), { "type": "null" }] })
}

/// A moment: RFC 3339, UTC.
pub fn moment(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "format": "date-time" })
}

/// Takes out what says nothing to readers of a value: defaults, and null for what is absent rather than null. A
/// docstring becomes one line without links.
pub fn plain(schema: &mut Schema) {
    plain_to_write(schema);
    let required: Vec<Value> = schema.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        let optional = properties.iter_mut().filter(|(name, _)| !required.iter().any(|one| one == name.as_str()));
        optional.for_each(|(_, property)| never_null(property));
    }
}

/// Changes a type's schema for those who write the value: they may write null for what may be absent.
pub fn plain_to_write(schema: &mut Schema) {
    schema.remove("default");
    if let Some(Value::String(text)) = schema.get_mut("description") {
        *text = in_a_line(text);
    }
}

/// A docstring as one line, without links.
pub fn in_a_line(text: &str) -> String {
    let lines = text.split('\n').map(str::trim).filter(|line| !line.is_empty());
    let text = lines.collect::<Vec<_>>().join(" ").replace("[`", "`");
    let mut parts = text.split("`]");
    let mut line = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        line.push('`');
        // Where the link leads.
        line += part.strip_prefix('(').and_then(|rest| rest.split_once(')')).map_or(part, |(_, rest)| rest);
    }
    line
}

/// A property that is absent where its field is `None`.
fn never_null(property: &mut Value) {
    let Some(property) = property.as_object_mut() else { return };
    if let Some(Value::Array(kinds)) = property.get_mut("type") {
        kinds.retain(|kind| kind != "null");
        if let [kind] = &mut kinds[..] {
            property["type"] = kind.take();
        }
    }
    if let Some(Value::Array(all)) = property.get_mut("anyOf") {
        all.retain(|schema| schema["type"] != "null");
        if let [Value::Object(schema)] = &mut all[..] {
            let schema = std::mem::take(schema);
            property.remove("anyOf");
            property.extend(schema);
        }
    }
}

impl JsonSchema for DeviceId {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "DeviceId".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        String::json_schema(generator)
    }
}

impl JsonSchema for Fingerprint {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Fingerprint".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        String::json_schema(generator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn docstring_is_one_line_without_links() {
        let text = "The mode, as [`mode`](super::Status::mode)\n  of [`Status`].\n\nOr `[a]`.";
        assert_eq!(in_a_line(text), "The mode, as `mode` of `Status`. Or `[a]`.");
    }
}
