//! What a daemon says of the links between this host and others.

use std::borrow::Cow;
use std::path::PathBuf;

#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::failure::FailureReport;
#[cfg(feature = "schema")]
use crate::schema::or_null;

/// The links of a host, as its part of a plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(default)]
pub struct TopologyStatus {
    /// `up`; `coming` while a link is not up; `down` if the owner said so; `no plan` if there is none at `plan`.
    pub state: Cow<'static, str>,
    /// Which of the plan's hosts this one is.
    pub host: String,
    /// Where the plan is read.
    pub plan: PathBuf,
    /// This host's links to others.
    pub links: Vec<TopologyLinkStatus>,
    /// How far this host's part is brought up; absent without a plan.
    #[serde(flatten)]
    pub part: Option<TopologyPartStatus>,
}

/// How far a host's part of a plan is brought up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
pub struct TopologyPartStatus {
    /// Whether this host begins in a cycle.
    pub is_leader: bool,
    /// In how many steps all hosts of the plan are joined.
    pub steps: usize,
    /// Whether this host's own port is available to others.
    pub is_enabled: bool,
    /// The hosts whose message or port it waits for.
    pub waits_for: Vec<String>,
    /// The host that has this host's port and should not; null unless a host ignores the order.
    #[cfg_attr(feature = "schema", schemars(schema_with = "or_null::<String>"))]
    pub stray: Option<String>,
}

/// A link between this host and another.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(default)]
pub struct TopologyLinkStatus {
    /// The other host, by its name in the plan.
    pub to: String,
    /// The other host, as it is paired here.
    pub peer: String,
    /// `debug target`, `debug host` or `bridge`.
    pub role: Cow<'static, str>,
    /// Whether both hosts have their ends, and the other host was heard less than 4 s ago.
    pub is_up: bool,
    /// This host's end: `HOST:PORT/DEVICE`.
    pub device: String,
    /// Whether the device is offered, if this host shares it; null if the other host does.
    pub is_shared: Option<bool>,
    /// The state of the attachment; `not yet` before its turn.
    pub state: String,
    /// Where the device appears; null while it appears nowhere.
    pub at: Option<String>,
    /// Why it is not attached; null if nothing failed.
    #[cfg_attr(feature = "schema", schemars(schema_with = "or_null::<FailureReport>"))]
    pub failure: Option<FailureReport>,
    /// How long ago the other host was heard, in seconds; null if never.
    pub heard_s: Option<f64>,
    /// Why the other host cannot be reached, while it is missing; else null.
    pub trouble: Option<String>,
}
