//! What schemas say of values whose types do not say it.

use crate::identity::DeviceId;
use schemars::generate::SchemaGenerator;
use schemars::{JsonSchema, Schema, json_schema};
use std::borrow::Cow;

/// A `T`, or null: of a property that may be absent, too.
pub fn or_null<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({ "oneOf": [generator.subschema_for::<T>(), { "type": "null" }] })
}

/// A moment: RFC 3339, UTC.
pub fn moment(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "format": "date-time" })
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
