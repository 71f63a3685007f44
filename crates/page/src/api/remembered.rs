//! The table of operations: how many run, which are remembered, and whose has to go when it is full.
//!
//! Nobody loses a recording, or an operation that runs, because somebody else begins one: a caller that has as many as
//! it may loses its own oldest. Callers that are not owners have less, and owners have places that no other takes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem::discriminant;
use std::os::fd::OwnedFd;

use farbus_control::failure::FailureReport;
use farbus_control::schema::moment;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::api::callers::PageCaller;
use crate::api::kept::OperationOutput;
use crate::api::picture::PICTURES_MAX;
use crate::known::operation::{On, OperationState};

/// Operations that are remembered; the oldest that has ended is forgotten of the caller that has most.
pub const REMEMBERED_MAX: usize = 96;
/// Commands that run at a time because somebody waits for their end.
pub const RUNNING_MAX: usize = 16;
/// Commands that run as long as what they began: each is a process and a thread.
pub const LASTING_MAX: usize = 48;
/// Recordings that are kept, of all callers. Each has so many ([`OperationTable::has_room_for`]) and loses its own
/// oldest that has ended; if none has, it begins no further one.
pub const RECORDINGS_MAX: usize = 12;
/// Consoles that are kept, in the same way.
pub const CONSOLES_MAX: usize = RECORDINGS_MAX;
/// Recordings that are kept of one caller that is an owner, and of all of them.
const RECORDINGS_OF_OWNER_MAX: usize = 4;
const RECORDINGS_OF_OWNERS_MAX: usize = 8;
/// Recordings that are kept of one caller that is no owner, and of all such callers together.
const RECORDINGS_OF_OTHER_MAX: usize = 2;
const RECORDINGS_OF_OTHERS_MAX: usize = RECORDINGS_MAX - RECORDINGS_OF_OWNERS_MAX;
/// Streams that one caller that is no owner looks at, at a time.
const PICTURES_OF_OTHER_MAX: usize = 2;
/// Readers of what an operation keeps that are remembered; of a further one each question has a line in the log.
const READERS_MAX: usize = 256;
/// Characters of a reader's name.
const READER_CHARS_MAX: usize = 256;
/// Operations that are remembered of one caller that is no owner.
const REMEMBERED_OF_ONE_MAX: usize = 8;

const _: () = assert!(
    REMEMBERED_MAX > RUNNING_MAX + LASTING_MAX + RECORDINGS_MAX + CONSOLES_MAX + PICTURES_MAX,
    "in a full table there is one that has ended and has no recording"
);

/// An action that was begun.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Operation {
    /// Its number in this process; the first is 1.
    pub id: u64,
    /// The name of the action.
    pub action: &'static str,
    /// What it is about, as its command line names it: a device, or what is shared.
    pub subject: String,
    /// The device that it is about, once it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on: Option<On>,
    /// The command line that does the same.
    pub command: String,
    /// Who asked for it.
    pub by: String,
    /// How far it is.
    pub state: OperationState,
    /// When it began: RFC 3339, UTC.
    #[schemars(schema_with = "moment")]
    pub begun: String,
    /// The process of its command, while that runs. A share or an attachment goes on after it is done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// How far it is: what `farbus swap --json` says; of a recording or a console, how many `bytes` it has had and
    /// whether it `is_full`; of a stream that is looked at, how many `pictures` came, their `width`, `height`, `type`
    /// and how many `per_second`, and why it `ended`, if the page ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Map<String, Value>>")]
    pub progress: Option<Value>,
    /// What the command printed with `--json`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<Value>,
    /// What it warned of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warnings: Option<String>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<FailureReport>,
    /// Whether the command line was not as farbus takes it; `failure` says how.
    #[serde(skip)]
    pub is_misused: bool,
}

/// The operations, the oldest first, and the commands that run.
#[derive(Debug, Default)]
pub struct OperationTable {
    /// The number of the latest.
    last: u64,
    /// Those that are remembered.
    pub all: VecDeque<RememberedOperation>,
    /// Commands whose operation is not done yet.
    running: usize,
    /// Commands that run as long as what they began, from their beginning to their end.
    lasting: usize,
}

/// An operation, and what is known of it here alone.
#[derive(Debug)]
pub struct RememberedOperation {
    /// What is told of it.
    pub operation: Operation,
    /// Whether an owner began it.
    pub is_owners: bool,
    /// The process, so that no other one is ended in its place.
    pub process: Option<OwnedFd>,
    /// What is kept of what a device sent.
    pub kept: OperationOutput,
    /// Who has read the text, or looked at the picture: the audit log has a line of each.
    pub has_read: BTreeSet<String>,
    /// Who has stopped it.
    pub stopped_by: Option<String>,
}

impl RememberedOperation {
    fn is_over(&self) -> bool {
        self.operation.pid.is_none()
    }

    /// Whether `by` has not read or looked before.
    pub fn is_first_look(&mut self, by: &str) -> bool {
        let by: String = by.chars().take(READER_CHARS_MAX).collect();
        let is_first = !self.has_read.contains(&by);
        if is_first && self.has_read.len() < READERS_MAX {
            self.has_read.insert(by);
        }
        is_first
    }
}

impl OperationTable {
    /// The operation with this number.
    pub fn find(&self, id: u64) -> Option<&RememberedOperation> {
        self.all.iter().find(|remembered| remembered.operation.id == id)
    }

    /// The operation with this number, to be changed; `None`: it is not remembered.
    pub fn find_mut(&mut self, id: u64) -> Option<&mut RememberedOperation> {
        self.all.iter_mut().find(|remembered| remembered.operation.id == id)
    }

    /// Takes the places of one more command. Returns the number of its operation; `None`: too many run.
    pub fn take_place(&mut self, is_lasting: bool) -> Option<u64> {
        if self.running >= RUNNING_MAX || (is_lasting && self.lasting >= LASTING_MAX) {
            return None;
        }
        self.running += 1;
        self.lasting += usize::from(is_lasting);
        self.last += 1;
        Some(self.last)
    }

    /// An operation is done, has failed, or did not begin.
    pub fn free_running(&mut self) {
        self.running -= 1;
    }

    /// A command has ended that ran as long as what it began, or did not begin.
    pub fn free_lasting(&mut self) {
        self.lasting -= 1;
    }

    /// Whether there is room for one more recording, or console, of a caller. Its own oldest that has ended is
    /// forgotten if that makes room, or else one of a caller that `counts` no more: nobody who may still come for one
    /// loses it.
    pub fn has_room_for(&mut self, kept: &OperationOutput, caller: &PageCaller, counts: &dyn Fn(&str) -> bool) -> bool {
        if !kept.is_some() {
            return true;
        }
        if kept.screen().is_some() {
            return self.has_room_for_a_picture(caller);
        }
        let (of_one_max, all_max) = match caller.is_owner() {
            true => (RECORDINGS_OF_OWNER_MAX, RECORDINGS_OF_OWNERS_MAX),
            false => (RECORDINGS_OF_OTHER_MAX, RECORDINGS_OF_OTHERS_MAX),
        };
        let is_own = |remembered: &RememberedOperation| remembered.operation.by == caller.called;
        let kind = discriminant(kept);
        let is_alike =
            |one: &&RememberedOperation| discriminant(&one.kept) == kind && one.is_owners == caller.is_owner();
        let all = || self.all.iter().filter(is_alike);
        let own = all().filter(|remembered| is_own(remembered)).count();
        if own < of_one_max && all().count() < all_max {
            return true;
        }
        let can_go = |remembered: &RememberedOperation| is_alike(&remembered) && remembered.is_over();
        let is_left = |remembered: &RememberedOperation| own < of_one_max && !counts(&remembered.operation.by);
        let oldest = self.all.iter().position(|remembered| can_go(remembered) && is_own(remembered));
        let oldest = oldest.or_else(|| self.all.iter().position(|one| can_go(one) && is_left(one)));
        let Some(oldest) = oldest.and_then(|at| self.all.get_mut(at)) else { return false };
        oldest.kept = OperationOutput::Nothing;
        true
    }

    /// Whether there is room for one more stream that is looked at. Nothing is kept of one that has ended.
    fn has_room_for_a_picture(&self, caller: &PageCaller) -> bool {
        let runs = || self.all.iter().filter(|one| one.kept.screen().is_some());
        let own = runs().filter(|one| one.operation.by == caller.called).count();
        runs().count() < PICTURES_MAX && (caller.is_owner() || own < PICTURES_OF_OTHER_MAX)
    }

    /// Remembers one more operation. Those that run, and recordings, stay.
    pub fn remember(&mut self, remembered: RememberedOperation) {
        let by = remembered.operation.by.clone();
        let of_it = |one: &&RememberedOperation| one.operation.by == by;
        if !remembered.is_owners && self.all.iter().filter(of_it).count() >= REMEMBERED_OF_ONE_MAX {
            self.forget_oldest_of(&by);
        }
        if self.all.len() >= REMEMBERED_MAX {
            let mut ended: BTreeMap<&str, usize> = BTreeMap::new();
            for one in self.all.iter().filter(|one| one.is_over() && !one.kept.is_some()) {
                *ended.entry(&one.operation.by).or_default() += 1;
            }
            if let Some(most) = ended.into_iter().max_by_key(|(_, count)| *count).map(|(by, _)| by.to_owned()) {
                self.forget_oldest_of(&most);
            }
        }
        self.all.push_back(remembered);
    }

    fn forget_oldest_of(&mut self, by: &str) {
        let is_its = |one: &RememberedOperation| one.operation.by == by && one.is_over() && !one.kept.is_some();
        if let Some(oldest) = self.all.iter().position(is_its) {
            self.all.remove(oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use farbus_io_net::trust::PageScope;

    use super::*;
    use crate::api::transcript::RecordingTranscript;

    fn caller(called: &str, scope: PageScope) -> PageCaller {
        PageCaller { scope: Some(scope), has_token: true, called: called.to_owned(), until: None }
    }

    fn recording() -> OperationOutput {
        OperationOutput::Recording(vec![1], RecordingTranscript::default())
    }

    /// An operation of `by`; one that runs has a process.
    fn operation(id: u64, by: &str, runs: bool, is_recording: bool) -> RememberedOperation {
        let operation = Operation {
            id,
            action: if is_recording { "observe" } else { "detach" },
            subject: "disk".into(),
            on: None,
            command: String::new(),
            by: by.to_owned(),
            state: if runs { OperationState::Running } else { OperationState::Done },
            begun: String::new(),
            pid: runs.then_some(7),
            progress: None,
            answer: None,
            warnings: None,
            failure: None,
            is_misused: false,
        };
        RememberedOperation {
            operation,
            is_owners: by == "page",
            process: None,
            kept: if is_recording { recording() } else { OperationOutput::Nothing },
            has_read: BTreeSet::new(),
            stopped_by: None,
        }
    }

    fn recorded(table: &OperationTable) -> Vec<(u64, &str)> {
        let kept = table.all.iter().filter(|one| one.kept.is_some());
        kept.map(|one| (one.operation.id, one.operation.by.as_str())).collect()
    }

    #[test]
    fn commands_that_last_are_counted_from_their_beginning() {
        let mut table = OperationTable::default();
        // They begin at the same time, and none of them is done yet.
        let begun = (0..RUNNING_MAX).filter(|_| table.take_place(true).is_some()).count();
        assert_eq!((begun, table.take_place(true)), (RUNNING_MAX, None));
        (0..RUNNING_MAX).for_each(|_| table.free_running());
        let mut lasting = begun;
        while table.take_place(true).is_some() {
            lasting += 1;
            if lasting % RUNNING_MAX == 0 {
                (0..RUNNING_MAX).for_each(|_| table.free_running());
            }
        }
        assert_eq!(lasting, LASTING_MAX);
        assert!(table.take_place(false).is_some(), "one that is brief has a place");
        table.free_lasting();
        assert!(table.take_place(true).is_some());
    }

    #[test]
    fn an_operation_that_runs_is_never_forgotten_and_neither_is_one_with_a_recording() {
        let mut table = OperationTable::default();
        let runs_max = (RUNNING_MAX + LASTING_MAX) as u64;
        (0..runs_max).for_each(|id| table.remember(operation(id, "page", true, false)));
        let kept = runs_max + RECORDINGS_MAX as u64;
        (runs_max..kept).for_each(|id| table.remember(operation(id, "page", false, true)));
        (kept..1000).for_each(|id| table.remember(operation(id, "page", false, false)));
        assert_eq!(table.all.len(), REMEMBERED_MAX);
        assert!((0..kept).all(|id| table.find(id).is_some()));
        assert!(table.find(kept).is_none() && table.find(999).is_some(), "the oldest that has ended is");
    }

    #[test]
    fn who_may_observe_loses_operations_of_its_own_and_takes_none_from_others() {
        let mut table = OperationTable::default();
        (0..20).for_each(|id| table.remember(operation(id, "page", false, false)));
        (20..1000).for_each(|id| table.remember(operation(id, "token eve", false, false)));
        assert!((0..20).all(|id| table.find(id).is_some()));
        assert_eq!(table.all.iter().filter(|one| one.operation.by == "token eve").count(), REMEMBERED_OF_ONE_MAX);
        // Many tokens: the one that has the most loses its oldest.
        for token in 0..100 {
            table.remember(operation(1000 + token, &format!("token {token}"), false, false));
        }
        assert_eq!(table.all.len(), REMEMBERED_MAX);
        assert!(table.find(1099).is_some() && table.all.iter().any(|one| one.operation.by == "page"));
    }

    #[test]
    fn a_caller_loses_its_own_oldest_recording_and_never_anothers() {
        let (owner, eve) = (caller("page", PageScope::Own), caller("token eve", PageScope::Observe));
        let mut table = OperationTable::default();
        let mut id = 0;
        let mut begin = |table: &mut OperationTable, caller: &PageCaller, runs: bool, counts: &dyn Fn(&str) -> bool| {
            let has_room = table.has_room_for(&recording(), caller, counts);
            id += 1;
            if has_room {
                table.remember(operation(id, &caller.called, runs, true));
            }
            has_room
        };
        let all_count = |_: &str| true;
        assert!(begin(&mut table, &owner, false, &all_count));
        for _ in 0..10 {
            assert!(begin(&mut table, &eve, false, &all_count));
        }
        assert_eq!(recorded(&table), [(1, "page"), (10, "token eve"), (11, "token eve")]);
        // Others fill what is theirs together; owners have room all the same.
        for name in ["token a", "token b", "token c"] {
            begin(&mut table, &caller(name, PageScope::Observe), false, &all_count);
        }
        assert_eq!(recorded(&table).len(), 1 + RECORDINGS_OF_OTHERS_MAX);
        assert!(!begin(&mut table, &caller("token d", PageScope::Observe), false, &all_count));
        for _ in 1..RECORDINGS_OF_OWNER_MAX {
            assert!(begin(&mut table, &owner, true, &all_count));
        }
        assert!(begin(&mut table, &owner, true, &all_count), "its oldest has ended, and goes");
        assert!(!begin(&mut table, &owner, true, &all_count), "all of its own run");
        // A token that was revoked comes for nothing any more.
        let before = recorded(&table).len();
        assert!(begin(&mut table, &caller("token d", PageScope::Observe), false, &|by| by != "token eve"));
        assert_eq!(recorded(&table).len(), before);
        assert!(!recorded(&table).contains(&(10, "token eve")) && recorded(&table).contains(&(11, "token eve")));
    }
}
