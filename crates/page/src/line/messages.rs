//! What the two processes of a page say to each other.

use farbus_control::daemon::Elsewhere;
use farbus_io_net::trust::PageScope;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::api::journal::JournalEventKind;
use crate::api::routes::{self, PageEndpoint};
use crate::known::lab::LabInventory;
use crate::known::status::ProcessStatuses;

/// The longest message to the process that has the rights, bytes: twice a body and twice a header's line, for a text is
/// longer in JSON.
pub const QUESTION_BYTES_MAX: usize = 128 << 10;
/// The longest message to the confined process, bytes.
pub const ANSWER_BYTES_MAX: usize = 32 << 20;
/// The longest token with its scheme, bytes. A longer one is none.
pub const AUTHORIZATION_BYTES_MAX: usize = 1 << 10;

/// The first message to the confined process; the line comes with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfinedPageConfig {
    /// The TCP port at which clients connect; `None` for a Unix socket.
    pub port: Option<u16>,
    /// Tells the numbers of this page's events from those of an earlier one.
    pub epoch: u64,
    /// What it needs for browsers of other machines; `None`: it has clients of this machine.
    pub tls: Option<ConfinedPageTls>,
    /// Where browsers of other machines find the page, if they do: what is said of it at the foot of each view.
    pub elsewhere: Option<Elsewhere>,
}

/// What a process needs that speaks TLS.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfinedPageTls {
    /// The page's key, PKCS #8, in hexadecimal.
    pub key: String,
    /// Its certificate, DER, in hexadecimal.
    pub certificate: String,
    /// The names and addresses under which the page is asked for, besides the address that a client has reached.
    pub names: Vec<String>,
}

impl std::fmt::Debug for ConfinedPageTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConfinedPageTls").field("names", &self.names).finish_non_exhaustive()
    }
}

/// For whom something is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientCredentials {
    /// The number with which the connection was passed.
    pub client: u64,
    /// The header of that name, if there is one.
    pub authorization: Option<String>,
    /// What the process with the rights has said that it may do. That process believes none of this.
    #[serde(skip)]
    pub scope: Option<PageScope>,
}

/// What the confined process says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConfinedMessage {
    /// It has given its rights away: the first message.
    Confined {
        /// What it still has, if that is more than it should have.
        still_has: Option<String>,
    },
    /// It asks something for a client.
    Question {
        /// Comes back with the answer.
        id: u64,
        /// For whom it asks.
        by: ClientCredentials,
        /// What it asks.
        question: PageQuestion,
    },
    /// It has closed a connection.
    Closed {
        /// The connection's number.
        client: u64,
    },
    /// Nobody needs what was followed under this number any more.
    Unfollow {
        /// The number that [`PageQuestion::Follow`] gave.
        follow: u64,
    },
}

/// What is wanted with a status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StatusExtent {
    /// What this user's processes say.
    #[default]
    Processes,
    /// What is known of other hosts, too.
    Lab,
    /// What is known of other hosts, too; it waits for hosts that have not answered in the last 90 s, but not for long.
    Answered,
}

/// What needs rights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PageQuestion {
    /// Who the client is, and what it may do.
    Who,
    /// Let a browser of another machine in.
    Enter {
        /// The code that it shows.
        code: String,
    },
    /// Note in the audit log that a change was refused.
    Refused {
        /// The reason, for a person.
        why: String,
    },
    /// What the processes say.
    Status {
        /// The version that is known; 0: none.
        known: u64,
        /// What is wanted with it.
        #[serde(default)]
        wanted: StatusExtent,
    },
    /// Send what the processes say, whenever they are asked, until [`ConfinedMessage::Unfollow`].
    Follow {
        /// A number that is not followed yet.
        follow: u64,
        /// Send events, too: those that were not sent yet before the answer, and others as they come.
        events: bool,
    },
    /// What a device's process says of it.
    Details {
        /// The number of the process that has the device.
        pid: u32,
        /// The device's name.
        name: String,
    },
    /// How long the requests of a device took in each of the last seconds.
    Latency {
        /// The number of the process that has the device attached.
        pid: u32,
        /// The device's name.
        name: String,
    },
    /// End the token that the client shows.
    Leave,
    /// What can be chosen in the forms that share and attach a device.
    Choices,
    /// The hosts that are paired with this one.
    Hosts,
    /// The latest lines of the audit log.
    Audit,
    /// The latest operations.
    Operations,
    /// One of them.
    Operation {
        /// The number that the operation was given when it began.
        id: u64,
    },
    /// What one of them has recorded.
    Recording {
        /// The number that the operation was given when it began.
        id: u64,
    },
    /// The latest of what one of them has recorded, as text.
    RecordedText {
        /// The number that the operation was given when it began.
        id: u64,
    },
    /// The newest picture that one of them shows.
    Picture {
        /// The number that the operation was given when it began.
        id: u64,
    },
    /// Do what a POST to this path does.
    Change {
        /// The path of the request, without its query.
        path: String,
        /// The fields of the request's body.
        given: Map<String, Value>,
    },
}

impl PageQuestion {
    /// Whether it waits for nothing and is answered at once, in the order in which it is asked: it takes no place.
    pub fn is_quick(&self) -> bool {
        matches!(self, PageQuestion::Who | PageQuestion::Refused { .. } | PageQuestion::Follow { .. })
    }

    /// What a client must be allowed, for this to be answered; `None`: nothing.
    pub fn needs(&self) -> Option<PageScope> {
        let of = |endpoint| {
            // A route without a scope is everybody's, and none of these is.
            Some(routes::scope_of(endpoint).unwrap_or(PageScope::Own))
        };
        match self {
            PageQuestion::Who | PageQuestion::Enter { .. } | PageQuestion::Refused { .. } => None,
            PageQuestion::Status { .. } => of(PageEndpoint::Status),
            PageQuestion::Follow { .. } => of(PageEndpoint::Events),
            PageQuestion::Details { .. } => of(PageEndpoint::Device),
            PageQuestion::Latency { .. } => of(PageEndpoint::Latency),
            PageQuestion::Leave => of(PageEndpoint::Leave),
            // It names the devices that are plugged in here, which a share of the page would name.
            PageQuestion::Choices => Some(PageScope::Own),
            PageQuestion::Hosts => of(PageEndpoint::Hosts),
            PageQuestion::Audit => of(PageEndpoint::Audit),
            PageQuestion::Operations => of(PageEndpoint::Operations),
            PageQuestion::Operation { .. } => of(PageEndpoint::Operation),
            PageQuestion::Recording { .. } => of(PageEndpoint::Recording),
            PageQuestion::RecordedText { .. } => of(PageEndpoint::RecordedText),
            PageQuestion::Picture { .. } => of(PageEndpoint::NewestPicture),
            // What is nowhere is looked for by those alone that may change everything.
            PageQuestion::Change { path, .. } => routes::find(path).map_or(Some(PageScope::Own), |found| found.scope()),
        }
    }
}

/// What the process that has the rights says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BrokerMessage {
    /// The answer to a question.
    Answer {
        /// The number of the question.
        id: u64,
        /// What was found, done or refused.
        answer: PageAnswer,
    },
    /// A client may have nothing more: the token that it showed was revoked, or has expired.
    Ended {
        /// The connection's number.
        client: u64,
    },
    /// What is known of other hosts. It comes before the status with which it is shown.
    Lab(Box<LabInventory>),
    /// What the processes said: it is followed, or was asked for.
    Status(ProcessStatuses),
    /// Events, without a gap.
    Events {
        /// The number of the first.
        first: u64,
        /// Each with its data.
        events: Vec<(JournalEventKind, String)>,
    },
}

/// What the process with rights says to a question.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PageAnswer {
    /// It was done; what was asked for came before, if it is a status.
    Done,
    /// Who the client is.
    Who {
        /// What it may do; `None`: learn that the page runs.
        scope: Option<PageScope>,
        /// Whether that is because of a token.
        has_token: bool,
        /// The name in the log.
        called: String,
        /// When its token ends, RFC 3339, UTC; `None`: when it is revoked, or it has none.
        #[serde(default)]
        until: Option<String>,
    },
    /// A browser was let in.
    Entered {
        /// The token that it shows from now on.
        token: String,
        /// What it may do.
        scope: PageScope,
        /// For how long, seconds.
        lasts_s: u64,
    },
    /// The value that was asked for.
    Value(Value),
    /// Bytes, in hexadecimal.
    Bytes(String),
    /// What became of a change.
    Changed {
        /// The status of the answer.
        status: u16,
        /// The body of the response.
        body: Value,
    },
    /// Nothing was done.
    Refused {
        /// The status of the answer.
        status: u16,
        /// The reason, a line.
        why: String,
    },
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nobody_without_a_scope_gets_an_answer_of_the_processes_or_changes_anything() {
        let Value::Object(given) = json!({ "device": "disk" }) else { panic!("an object") };
        let change = |path: &str| PageQuestion::Change { path: path.to_owned(), given: given.clone() };
        for question in [
            PageQuestion::Status { known: 0, wanted: StatusExtent::Answered },
            PageQuestion::Follow { follow: 1, events: true },
            PageQuestion::Details { pid: 7, name: "disk".into() },
            PageQuestion::Latency { pid: 7, name: "disk".into() },
            PageQuestion::Hosts,
            PageQuestion::Operations,
            PageQuestion::Operation { id: 1 },
        ] {
            assert_eq!(question.needs(), Some(PageScope::Read), "{question:?}");
        }
        // To stop an operation takes what its action takes, too.
        let of_observers = [
            PageQuestion::Recording { id: 1 },
            PageQuestion::RecordedText { id: 1 },
            change("/api/v1/operations/1/stop"),
            PageQuestion::Picture { id: 1 },
            change("/api/v1/actions/observe"),
            change("/api/v1/actions/console"),
            change("/api/v1/actions/picture"),
        ];
        for question in of_observers {
            assert_eq!(question.needs(), Some(PageScope::Observe), "{question:?}");
        }
        for question in
            [PageQuestion::Audit, change("/api/v1/actions/release"), change("/api/v1/actions/reboot"), change("")]
        {
            assert_eq!(question.needs(), Some(PageScope::Own), "{question:?}");
        }
    }

    /// What the confined process, which may have been taken over, says to the other one.
    #[test]
    fn fuzz_questions_of_a_page() {
        const LINES: [&str; 6] = [
            r#"{"confined":{"still_has":null}}"#,
            r#"{"asked":{"id":1,"by":{"client":1,"authorization":null},"question":"who"}}"#,
            r#"{"asked":{"id":2,"by":{"client":1,"authorization":"Bearer x"},"question":{"status":{"known":7}}}}"#,
            r#"{"asked":{"id":3,"by":{"client":1,"authorization":null},"question":{"change":{"path":"/","given":{}}}}}"#,
            r#"{"unfollow":{"follow":1}}"#,
            r#"{"asked":{"id":4,"by":{"client":1,"authorization":null},"question":{"enter":{"code":"00"}}}}"#,
        ];
        const WORDS: [&str; 8] =
            ["null", "-1", "1e99", "18446744073709551616", "\"question\":", "\\u0000", "[[[[[[", "{"];
        crate::fuzzing::fuzz(env!("CARGO_MANIFEST_DIR"), "fuzz_questions_of_a_page", |input| {
            let line = input.text(&LINES, &WORDS);
            let Ok(message) = serde_json::from_str::<ConfinedMessage>(&line) else { return };
            let again = serde_json::from_str::<ConfinedMessage>(&serde_json::to_string(&message).unwrap()).unwrap();
            // A fraction in a body may change its last digit.
            let has_body = matches!(&message, ConfinedMessage::Question { question: PageQuestion::Change { .. }, .. });
            assert!(has_body || again == message, "{line}");
        });
    }
}
