//! Limits the program's own log: of similar lines, the first in each minute are written, and the rest are counted in
//! one line.
//!
//! Lines are similar if the same place in the code writes them about the same peer. Lines of the levels *debug* and
//! *trace*, which a person asks for with `FARBUS_LOG`, are never limited.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use farbus_io_net::link::BoottimeClock;
use farbus_io_net::tally::{EventTally, TallyDecision, TallySummary};
use farbus_io_net::trust::subscriber;
use farbus_model::Instant;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber, warn};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Lines a minute of one place in the code about one peer: more than a person reads.
const LINES_OF_PEER_MAX: u32 = 60;
/// Lines a minute of one place in the code about all peers together.
const LINES_MAX: u32 = 240;
/// Characters of a peer's name, and of the example in a line that counts others.
const TEXT_MAX: usize = 120;

/// Drops the excess lines of a flood. It has to be the outermost layer of a subscriber.
#[derive(Clone, Debug, Default)]
pub struct LogLimit(Arc<LogLimitInner>);

#[derive(Debug)]
struct LogLimitInner {
    clock: BoottimeClock,
    state: Mutex<LogLimitState>,
    is_waited_for: AtomicBool,
}

#[derive(Debug, Default)]
struct LogLimitState {
    tally: EventTally<LogLineKey>,
    /// The first dropped line of each place in the code, by the place's address.
    examples: BTreeMap<usize, String>,
}

/// A place in the code, and the peer that a line is about; empty for all peers together.
type LogLineKey = (usize, String);

impl Default for LogLimitInner {
    fn default() -> Self {
        Self { clock: BoottimeClock::start(), state: Mutex::default(), is_waited_for: AtomicBool::new(false) }
    }
}

impl<S: Subscriber> Layer<S> for LogLimit {
    fn event_enabled(&self, event: &Event<'_>, _context: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        if *metadata.level() > Level::INFO || metadata.target() == module_path!() {
            return true;
        }
        let mut fields = LogLineFields::default();
        event.record(&mut fields);
        let callsite = std::ptr::from_ref(metadata).addr();
        let is_written = self.0.judge(callsite, &fields.peer, &fields.message, self.0.clock.now());
        if !is_written {
            self.tell_when_due();
        }
        is_written
    }
}

impl LogLimit {
    /// Starts a thread that writes the counts, because nothing can be logged from within the layer.
    fn tell_when_due(&self) {
        if self.0.is_waited_for.swap(true, Ordering::AcqRel) {
            return;
        }
        let inner = Arc::clone(&self.0);
        let spawned = thread::Builder::new().name("log".into()).stack_size(128 << 10).spawn(move || inner.tell());
        if spawned.is_err() {
            self.0.is_waited_for.store(false, Ordering::Release);
        }
    }
}

impl LogLimitInner {
    fn state(&self) -> MutexGuard<'_, LogLimitState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn judge(&self, callsite: usize, peer: &str, message: &str, now: Instant) -> bool {
        let (kind, anybody) = ((callsite, who(peer)), (callsite, String::new()));
        let mut state = self.state();
        let mut verdict = state.tally.note(&kind, &anybody, LINES_OF_PEER_MAX, now);
        if verdict == TallyDecision::Write && kind != anybody {
            verdict = state.tally.note(&anybody, &anybody, LINES_MAX, now);
        }
        if verdict == TallyDecision::Counted {
            state.examples.entry(callsite).or_insert_with(|| message.chars().take(TEXT_MAX).collect());
        }
        verdict == TallyDecision::Write
    }

    /// Writes counts as they become due, until none is expected.
    fn tell(&self) {
        loop {
            let now = self.clock.now();
            for line in self.due(now) {
                warn!("{line}");
            }
            let mut state = self.state();
            let Some(at) = state.tally.poll_timeout() else {
                state.examples.clear();
                return self.is_waited_for.store(false, Ordering::Release);
            };
            drop(state);
            thread::sleep((at - now).max(Duration::from_millis(1)));
        }
    }

    fn due(&self, now: Instant) -> Vec<String> {
        let mut state = self.state();
        let mut lines = Vec::new();
        while let Some(TallySummary { kind: (callsite, peer), count, span }) = state.tally.poll_due(now) {
            let example = state.examples.get(&callsite).map_or("", String::as_str);
            let of_whom = if peer.is_empty() { String::new() } else { format!(" about {peer}") };
            lines.push(format!("{count} more lines{of_whom} in {} s were left out: {example}", span.as_secs()));
        }
        lines
    }
}

/// The peer that a line is about, without the port, which differs for each connection.
fn who(peer: &str) -> String {
    match peer.parse::<SocketAddr>() {
        Ok(address) => subscriber(address.ip()).to_string(),
        Err(_) => peer.split(" (").next().unwrap_or_default().chars().take(TEXT_MAX).collect(),
    }
}

/// The fields of a line that matter for the limit.
#[derive(Default)]
struct LogLineFields {
    peer: String,
    message: String,
}

impl Visit for LogLineFields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let to = match field.name() {
            "peer" | "from" => &mut self.peer,
            "message" => &mut self.message,
            _ => return,
        };
        to.clear();
        // Writing to a string cannot fail.
        let _ = write!(to, "{value:?}");
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "peer" | "from" => value.clone_into(&mut self.peer),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn flood_about_one_peer_is_limited_and_counted_and_others_are_logged() {
        let inner = LogLimitInner::default();
        let written =
            (0..34_626).filter(|n| inner.judge(1, &format!("10.0.0.9:{n}"), "the connection ended", at(1))).count();
        assert_eq!(written, LINES_OF_PEER_MAX as usize);
        assert!(inner.judge(1, "10.0.0.7:1", "the connection ended", at(2)));
        assert!(inner.judge(2, "10.0.0.9:1", "something else", at(2)));
        assert_eq!(inner.due(at(60)), Vec::<String>::new());
        let left = 34_626 - u64::from(LINES_OF_PEER_MAX);
        assert_eq!(
            inner.due(at(61)),
            [format!("{left} more lines about 10.0.0.9 in 60 s were left out: the connection ended")]
        );
        assert!(inner.judge(1, "10.0.0.9:1", "the connection ended", at(61)));
    }

    #[test]
    fn lines_about_many_addresses_together_are_limited() {
        let inner = LogLimitInner::default();
        let address = |n: u32| format!("10.{}.{}.{}:1", n >> 16, n >> 8 & 255, n & 255);
        let written = (0..100_000).filter(|&n| inner.judge(1, &address(n), "refused", at(1))).count();
        assert_eq!(written, LINES_MAX as usize);
        let left = 100_000 - u64::from(LINES_MAX);
        assert_eq!(inner.due(at(61)), [format!("{left} more lines in 60 s were left out: refused")]);
    }

    #[test]
    fn a_host_is_one_peer_at_every_port() {
        assert_eq!(who("desk (10.0.0.9:4711)"), "desk");
        assert_eq!(who("10.0.0.9:4711"), "10.0.0.9");
        assert_eq!(who("[2001:db8::7]:4711"), "2001:db8::");
        assert_eq!(who(""), "");
    }
}
