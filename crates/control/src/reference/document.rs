//! The JSON Schema document of everything that is sent: draft 2020-12.

use schemars::Schema;
use schemars::generate::{SchemaGenerator, SchemaSettings};
use schemars::transform::RecursiveTransform;
use serde_json::{Map, Value, json};

use crate::daemon::{DirectoryLimitReport, ReloadReport, RestartReport, SleepReport, WakeReport};
use crate::descriptors::DescriptorTree;
use crate::event::LatestEvents;
use crate::lease::{LeaseAct, LeaseAnswer};
use crate::notes::DeviceNotes;
use crate::process::ProcessStatus;
use crate::question::{Answer, Question};
use crate::schema::{plain, plain_to_write};
use crate::session::Seconds;
use crate::share::{ShareReport, UnshareReport};
use crate::swap::SwapStatus;
use crate::topology::TopologyStatus;

/// Where the schemas of types are in the document.
pub const DEFINITIONS: &str = "$defs";
/// The beginning of a reference to one of them.
pub const DEFINITIONS_PATH: &str = "#/$defs/";

const DESCRIPTION: &str = "What farbus's processes tell each other and programs (docs/control.md). Each property is one \
    thing that is sent: 'question' is a line to a control socket, 'answer' is a line from it, and the others are the value \
    of its 'ok', by the name of the question. 'lease-act' and 'lease-answer' are what paired hosts send each other. A \
    later release adds questions, fields and words: pass over what you do not know.";

/// A thing that is sent: its name in the document, and what makes its schema.
type SchemaEntry = (&'static str, fn(&mut SchemaGenerator) -> Schema);

/// What a program writes. An optional field may be absent or null.
const WRITTEN: [SchemaEntry; 2] = [
    ("question", SchemaGenerator::subschema_for::<Question>),
    ("lease-act", SchemaGenerator::subschema_for::<LeaseAct>),
];
/// What farbus writes; except for the answers themselves, by the name of the question whose answer it is.
const READ: [SchemaEntry; 16] = [
    ("answer", SchemaGenerator::subschema_for::<Answer>),
    ("lease-answer", SchemaGenerator::subschema_for::<LeaseAnswer>),
    ("status", SchemaGenerator::subschema_for::<ProcessStatus>),
    ("events", SchemaGenerator::subschema_for::<LatestEvents>),
    ("descriptors", SchemaGenerator::subschema_for::<DescriptorTree>),
    ("latency", SchemaGenerator::subschema_for::<Seconds>),
    ("share", SchemaGenerator::subschema_for::<ShareReport>),
    ("label", SchemaGenerator::subschema_for::<DeviceNotes>),
    ("swap-status", SchemaGenerator::subschema_for::<SwapStatus>),
    ("unshare", SchemaGenerator::subschema_for::<UnshareReport>),
    ("reload", SchemaGenerator::subschema_for::<ReloadReport>),
    ("restart", SchemaGenerator::subschema_for::<RestartReport>),
    ("sleep", SchemaGenerator::subschema_for::<SleepReport>),
    ("wake", SchemaGenerator::subschema_for::<WakeReport>),
    ("topology", SchemaGenerator::subschema_for::<TopologyStatus>),
    ("directory-limit", SchemaGenerator::subschema_for::<DirectoryLimitReport>),
];

/// The document: the schemas of all types by name, and what is sent.
pub fn document() -> Value {
    let (mut properties, mut definitions) = written();
    let (read, read_definitions) = read();
    properties.extend(read);
    // No type is both written and read: a test looks at that.
    definitions.extend(read_definitions);
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The control protocol of farbus",
        "description": DESCRIPTION,
        "type": "object",
        "properties": properties,
        DEFINITIONS: definitions,
    })
}

/// What a program writes, and the types of which it consists.
fn written() -> (Map<String, Value>, Map<String, Value>) {
    let settings = SchemaSettings::draft2020_12().for_deserialize();
    schemas(&WRITTEN, settings.with_transform(RecursiveTransform(plain_to_write)))
}

/// What farbus writes, and the types of which it consists.
fn read() -> (Map<String, Value>, Map<String, Value>) {
    schemas(&READ, SchemaSettings::draft2020_12().for_serialize().with_transform(RecursiveTransform(plain)))
}

fn schemas(entries: &[SchemaEntry], settings: SchemaSettings) -> (Map<String, Value>, Map<String, Value>) {
    let mut generator = settings.into_generator();
    let all = entries.iter().map(|(name, schema)| ((*name).to_owned(), schema(&mut generator).to_value()));
    let all = all.collect();
    (all, generator.take_definitions(true))
}

/// The document, as `docs/control.schema.json` has it.
pub fn text() -> String {
    format!("{:#}\n", document())
}

/// The name of the type of what is sent under this name: a question's name stands for the value of its answer.
pub fn type_of<'a>(document: &'a Value, entry: &str) -> Option<&'a str> {
    document["properties"][entry]["$ref"].as_str()?.strip_prefix(DEFINITIONS_PATH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_type_is_both_written_and_read() {
        let ((_, written), (_, read)) = (written(), read());
        let both: Vec<&String> = written.keys().filter(|name| read.contains_key(*name)).collect();
        assert_eq!(both, [""; 0]);
    }
}
