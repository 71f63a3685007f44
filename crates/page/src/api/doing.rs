//! Does what a change asks for, and says what became of it.

use std::time::Duration;

use farbus_control::failure::FailureKind;
use farbus_control::schema::or_null;
use hyper::StatusCode;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};
use tokio::time::timeout;

use crate::api::actions::WrongParameter;
use crate::api::callers::PageCaller;
use crate::api::operations::{self, OperationRegistry};
use crate::api::refusal::HttpRefusal;
use crate::api::remembered::Operation;
use crate::api::routes::{OPERATIONS_AT, RouteMatch};
use crate::known::operation::OperationState;

/// How long the end of a command that takes seconds is waited for; then it goes on as an operation.
const BRIEF_TIME_MAX: Duration = Duration::from_secs(30);

/// The device that a caller who is no owner wants to observe: it may only if the page lists the device. What a command
/// line names otherwise, the page's user would connect to.
pub fn has_to_be_listed<'g>(found: &RouteMatch, caller: &PageCaller, given: &'g Map<String, Value>) -> Option<&'g str> {
    found.action.filter(|_| !caller.is_owner())?;
    Some(given.get("target").and_then(Value::as_str).unwrap_or_default())
}

/// Does it. Returns the status of the answer and its body. `counts`: whether somebody who began an operation still has
/// a token.
///
/// # Errors
/// [`OperationRefusal`]: nothing was done.
pub async fn change(
    operations: &OperationRegistry,
    found: RouteMatch,
    caller: &PageCaller,
    given: &Map<String, Value>,
    counts: &(dyn Fn(&str) -> bool + Sync),
) -> Result<(StatusCode, Value), HttpRefusal> {
    let Some(action) = found.action else { return stop(operations, found.number, caller) };
    let command = match action.command(given) {
        Ok(command) => command,
        Err(wrong) => return Ok((StatusCode::BAD_REQUEST, json!(WrongBody { wrong: &wrong }))),
    };
    let (id, mut ended) = operations.begin(command, caller, counts).map_err(|refusal| match refusal {
        operations::OperationRefusal::TooMany => {
            HttpRefusal::of(StatusCode::SERVICE_UNAVAILABLE, "too many actions run")
        }
        operations::OperationRefusal::TooManyRecordings => {
            let why = "as many recordings are kept as this caller may have: stop one, and its oldest makes room";
            HttpRefusal::of(StatusCode::SERVICE_UNAVAILABLE, why)
        }
        operations::OperationRefusal::System(why) => {
            tracing::warn!(why, "an action cannot be begun");
            HttpRefusal::of(StatusCode::INTERNAL_SERVER_ERROR, "the action cannot be begun: the page's log says why")
        }
    })?;
    if action.is_brief() {
        // Its thread tells the end before it ends.
        let _ = timeout(BRIEF_TIME_MAX, ended.wait_for(|has_ended| *has_ended)).await;
    }
    let gone = || HttpRefusal::of(StatusCode::INTERNAL_SERVER_ERROR, "too many actions run: this one is forgotten");
    let operation = operations.find(id).ok_or_else(gone)?;
    Ok((status_of(&operation), json!(OperationAnswer::of(&operation))))
}

fn stop(operations: &OperationRegistry, id: u64, caller: &PageCaller) -> Result<(StatusCode, Value), HttpRefusal> {
    let is_own = operations.find(id).is_none_or(|operation| operation.by == caller.called);
    if !caller.is_owner() && !is_own {
        return Err(HttpRefusal::of(StatusCode::FORBIDDEN, "this token may not stop that"));
    }
    let nothing = HttpRefusal::of(StatusCode::NOT_FOUND, "no operation with this number has a command that runs");
    let stopped = operations.stop(id, &caller.called, None).ok_or(nothing)?;
    let command = stopped.pid.map(|pid| format!("kill {pid}"));
    Ok((StatusCode::ACCEPTED, json!(OperationAnswer { stopped_by: Some(command), ..OperationAnswer::of(&stopped) })))
}

/// What is wrong with the body of a request.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Wrong", deny_unknown_fields)]
pub struct WrongBody<'a> {
    /// What is wrong.
    wrong: &'a WrongParameter,
}

/// An operation, as answers have it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Operation", deny_unknown_fields)]
pub struct OperationAnswer<'a> {
    #[serde(flatten)]
    operation: &'a Operation,
    /// Where it can be asked about; in the answer to a change.
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<String>,
    /// The command line that does the same as the request to stop it; null if its command ran no more.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "or_null::<String>")]
    stopped_by: Option<Option<String>>,
}

/// The operations that are remembered.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Operations")]
pub struct OperationListAnswer {
    /// The latest first.
    #[schemars(with = "Vec<OperationAnswer<'_>>")]
    pub operations: Vec<Operation>,
}

impl<'a> OperationAnswer<'a> {
    /// An operation in the answer to a change.
    fn of(operation: &'a Operation) -> Self {
        Self { operation, at: Some(format!("{OPERATIONS_AT}{}", operation.id)), stopped_by: None }
    }
}

/// The status of the answer: what became of the operation so far.
fn status_of(operation: &Operation) -> StatusCode {
    match (operation.state, &operation.failure) {
        (OperationState::Running, _) => StatusCode::ACCEPTED,
        (OperationState::Done, _) => StatusCode::OK,
        (OperationState::Failed, _) if operation.is_misused => StatusCode::BAD_REQUEST,
        (OperationState::Failed, failure) => match failure.as_ref().map(|failure| failure.attribute) {
            Some(FailureKind::Refused) => StatusCode::CONFLICT,
            Some(FailureKind::Gone) => StatusCode::NOT_FOUND,
            Some(FailureKind::Network | FailureKind::Device) => StatusCode::BAD_GATEWAY,
            Some(FailureKind::Local) | None => StatusCode::INTERNAL_SERVER_ERROR,
        },
    }
}
