//! The schemas of answers, generated from their types: JSON Schema 2020-12, which OpenAPI 3.1 uses.

use farbus_control::device::WaitingStatus;
use farbus_control::lease::BookedStatus;
use farbus_control::process::ProcessStatus;
use farbus_control::schema::plain;
use farbus_io_net::trust::PageScope;
use schemars::JsonSchema;
use schemars::generate::{SchemaGenerator, SchemaSettings};
use schemars::transform::RecursiveTransform;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::api::doing::{OperationAnswer, OperationListAnswer, WrongBody};
use crate::api::offers::Offer;
use crate::api::scope_schema::scope;
use crate::known::lab::LabDevice;

/// Adds schemas of types that are not known here.
pub type SchemaExtension = fn(&mut SchemaGenerator);

/// Where schemas are in the description.
const AT: &str = "/components/schemas";

/// The schemas of all answers, by name. `further` adds those of the answers that the page makes of what processes say.
pub fn all(further: &[SchemaExtension]) -> Map<String, Value> {
    let settings = SchemaSettings::draft2020_12().for_serialize().with(|settings| {
        settings.definitions_path = AT.into();
        settings.meta_schema = None;
        settings.transforms = vec![Box::new(RecursiveTransform(plain))];
    });
    let mut generator = settings.into_generator();
    further.iter().for_each(|add| add(&mut generator));
    for add in [
        SchemaGenerator::subschema_for::<Status>,
        SchemaGenerator::subschema_for::<OperationAnswer<'_>>,
        SchemaGenerator::subschema_for::<OperationListAnswer>,
        SchemaGenerator::subschema_for::<Entered>,
        SchemaGenerator::subschema_for::<WrongBody<'_>>,
        SchemaGenerator::subschema_for::<Description>,
    ] {
        add(&mut generator);
    }
    generator.take_definitions(true)
}

/// What every process of this user says of itself.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "only its schema is used")]
struct Status(Vec<ProcessStatus>);

/// A process that has a device.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ProcessPlace<'a> {
    /// Its process id.
    pid: u32,
    /// What it does, in a word.
    role: &'a str,
    /// Where it listens, or what it is attached to.
    address: &'a str,
}

impl<'a> ProcessPlace<'a> {
    /// The place of a process.
    pub fn of(process: &'a ProcessStatus) -> Self {
        Self { pid: process.pid, role: &process.role, address: &process.address }
    }
}

/// A device of any host.
#[derive(JsonSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only its schema is used")]
pub enum LabRow {
    /// A device of a process of this user.
    Own(OwnRow),
    /// A device of another host.
    Other(OtherRow),
}

/// What is said of a device of any host.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "only its schema is used")]
struct RowStatus {
    /// The name of its host.
    host: String,
    /// Its state, in a word.
    state: String,
    /// Its class, in a word.
    class: String,
    /// Who uses it or has a lease of it.
    user: Option<String>,
    /// What its user has it for, in the user's words.
    reason: Option<String>,
    /// What can be done with it.
    actions: Vec<Offer>,
}

/// A device of a process of this user.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "only its schema is used")]
pub struct OwnRow {
    #[serde(flatten)]
    status: RowStatus,
    /// The name under which it is shared or attached.
    name: String,
    /// What it is, in words.
    title: String,
    /// The process that shares it or has attached it.
    process: ProcessPlace<'static>,
    /// How many hosts wait for it.
    waiting: usize,
    /// The hosts that wait for it, in the order in which they are served.
    queue: Vec<WaitingStatus>,
    /// Leases of it ahead of time.
    booked: Vec<BookedStatus>,
    /// When the lease of it ends: RFC 3339, UTC.
    leased_until: Option<String>,
    /// Who says this: this host.
    #[schemars(extend("const" = "here"))]
    from: String,
}

/// A device of another host.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "only its schema is used")]
pub struct OtherRow {
    #[serde(flatten)]
    device: LabDevice,
    /// The name of its host.
    host: String,
    /// Its class, in a word.
    class: String,
    /// What can be done with it.
    actions: Vec<Offer>,
    /// Who says this.
    from: crate::known::lab::Source,
    /// When its host, or the directory about it, was heard last: seconds since 1970 by this host's clock.
    heard_s: Option<u64>,
    /// What a command attaches to use it; null if no command can.
    target: Option<String>,
}

/// A browser was let in.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Entered {
    /// What it may do.
    #[schemars(schema_with = "scope")]
    pub scope: PageScope,
    /// For how long, seconds.
    pub lasts_s: u64,
}

/// A description in OpenAPI.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Description {
    /// The version of OpenAPI.
    pub openapi: &'static str,
    /// Name, version and licence of the program that is described.
    pub info: Info,
    /// The operations, by path and method.
    pub paths: Map<String, Value>,
    /// Schemas and security schemes, by name.
    pub components: Value,
}

/// The program that a description is of.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Info {
    /// The name of the program.
    pub title: &'static str,
    /// The version of farbus.
    pub version: &'static str,
    /// What it is, in a sentence.
    pub description: &'static str,
    /// Its licence, by its SPDX expression.
    pub license: Value,
}
