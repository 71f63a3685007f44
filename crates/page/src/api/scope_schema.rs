//! What the page's description of answers says of values whose types do not say it.

use farbus_io_net::trust::Scope;
use schemars::generate::SchemaGenerator;
use schemars::{Schema, json_schema};

/// A [`Scope`].
pub fn scope(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": [Scope::Read, Scope::Observe, Scope::Own] })
}
