//! What happens in all processes of an owner, asked again and again: what `farbus events` shows.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::SystemTime;

use crate::local::control_socket::{Answer, Question, ask_all, running};
use crate::local::events::{Event, EventKind, LatestEvents};
use crate::trust::timestamp;

/// An event and its process.
pub type ProcessEvent = (Event, u32);

/// The number of the last event of each process that is known.
#[derive(Debug, Default)]
pub struct ProcessEventCursors {
    known: BTreeMap<u32, u64>,
}

/// What has happened since the last time.
#[derive(Debug, Default)]
pub struct ProcessEventBatch {
    /// The events, the earliest first.
    pub happened: Vec<ProcessEvent>,
    /// Processes with the number of events that came too fast to be asked for.
    pub missed: Vec<(u32, u64)>,
}

impl ProcessEventCursors {
    /// Asks all processes what happened since they were asked last; the first time, for everything that they keep.
    ///
    /// # Errors
    /// The runtime folder cannot be read.
    pub fn ask(&mut self) -> io::Result<ProcessEventBatch> {
        let mut new = ProcessEventBatch::default();
        // One question goes to all: what each has after the least number is sorted out here. A new process is asked for
        // everything that it keeps.
        let all_known = running()?.iter().all(|pid| self.known.contains_key(pid));
        let after = self.known.values().copied().min().filter(|_| all_known).unwrap_or(0);
        let mut answered = BTreeSet::new();
        for (pid, answer) in ask_all(&Question::Events { after })? {
            answered.insert(pid);
            // A process of an earlier release does not know the question.
            let Answer::Ok(value) = answer else { continue };
            let Ok(latest) = serde_json::from_value::<LatestEvents>(value) else { continue };
            if after > 0 && !self.known.contains_key(&pid) {
                // It has begun meanwhile, and is asked for everything next time.
                continue;
            }
            let seen = self.known.insert(pid, latest.last);
            let of_process = latest.events.into_iter().filter(|event| event.number > seen.unwrap_or(0));
            let missed = seen.filter(|seen| latest.last > *seen).map_or(0, |_| latest.missed);
            if missed > 0 {
                new.missed.push((pid, missed));
            }
            new.happened.extend(of_process.map(|event| (event, pid)));
        }
        // What a process published just before its end may not have been asked for in time.
        let ended: Vec<u32> = self.known.keys().copied().filter(|pid| !answered.contains(pid)).collect();
        for pid in ended {
            self.known.remove(&pid);
            let at = timestamp(SystemTime::now());
            new.happened.push((Event { at, ..Event::new(EventKind::Ended).how(format!("process {pid}")) }, pid));
        }
        new.happened.sort_by(|(a, _), (b, _)| a.at.cmp(&b.at));
        Ok(new)
    }
}
