//! What the page's description of answers says of values whose types do not say it.

use farbus_io_net::trust::PageScope;
use schemars::generate::SchemaGenerator;
use schemars::{Schema, json_schema};

/// The JSON schema of a [`PageScope`]: a string, one of three words.
pub fn scope(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": [PageScope::Read, PageScope::Observe, PageScope::Own] })
}
