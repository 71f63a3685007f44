//! The session checks against exporters in memory, for what no real connection shows without chance: in which pieces
//! bytes arrive. Faults of a whole exporter are in the tests of the command `farbus conform session`.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use farbus_conform::session::{self, ConformanceSettings};
use farbus_conform::{CheckVerdict, ConformanceReport, LinkLoss, PeerLink, PeerNetwork, ReceiveOutcome};
use farbus_model::Instant;
use farbus_wire::native::{ExporterWelcome, HelloOptions, ImporterHello, LanePosition, SessionId, WelcomeOutcome};

/// An exporter that greets, answers pings and hears goodbyes.
struct Greeter {
    now: Rc<RefCell<Instant>>,
    /// It understands only what arrives in one piece.
    wants_whole: bool,
    sessions: u8,
}

struct End {
    now: Rc<RefCell<Instant>>,
    wants_whole: bool,
    session: u8,
    is_greeted: bool,
    is_over: bool,
    heard: Vec<u8>,
    outgoing: Vec<u8>,
}

impl PeerNetwork for Greeter {
    fn dial(&mut self) -> Result<Box<dyn PeerLink>, LinkLoss> {
        self.sessions += 1;
        Ok(Box::new(End {
            now: Rc::clone(&self.now),
            wants_whole: self.wants_whole,
            session: self.sessions,
            is_greeted: false,
            is_over: false,
            heard: Vec::new(),
            outgoing: Vec::new(),
        }))
    }

    fn pause(&mut self, span: Duration) {
        let mut now = self.now.borrow_mut();
        *now = *now + span;
    }

    fn now(&self) -> Instant {
        *self.now.borrow()
    }
}

impl End {
    fn greet(&mut self) {
        match ImporterHello::decode(&self.heard) {
            Ok(Some((hello, count))) => {
                self.heard.drain(..count);
                let position = LanePosition { session: SessionId([self.session; 16]), ..hello.position };
                let options = HelloOptions { grace_ms: hello.options.grace_ms, ..HelloOptions::default() };
                self.outgoing
                    .extend(ExporterWelcome { version: 1, outcome: WelcomeOutcome::Begun, position, options }.encode());
                self.is_greeted = true;
            }
            Ok(None) => {}
            Err(_) => self.is_over = true,
        }
    }

    fn hear(&mut self) {
        while self.heard.len() >= 8 {
            let length = usize::from(u16::from_le_bytes([self.heard[6], self.heard[7]]));
            if self.heard.len() < 8 + length {
                return;
            }
            let mut frame: Vec<u8> = self.heard.drain(..8 + length).collect();
            match frame[0] {
                0 => {
                    frame[0] = 1;
                    self.outgoing.extend(frame);
                }
                8 => self.is_over = true,
                _ => {}
            }
        }
    }
}

impl PeerLink for End {
    fn send(&mut self, bytes: &[u8], _: Duration) -> Result<usize, LinkLoss> {
        if self.is_over {
            return Err(LinkLoss("closed".to_owned()));
        }
        self.heard.extend_from_slice(bytes);
        if !self.is_greeted {
            self.greet();
        }
        if self.is_greeted {
            self.hear();
        }
        if self.wants_whole {
            self.heard.clear();
        }
        Ok(bytes.len())
    }

    fn receive(&mut self, into: &mut [u8], within: Duration) -> ReceiveOutcome {
        if self.outgoing.is_empty() {
            if self.is_over {
                return ReceiveOutcome::Closed;
            }
            let mut now = self.now.borrow_mut();
            *now = *now + within;
            return ReceiveOutcome::Silence;
        }
        let count = self.outgoing.len().min(into.len());
        into[..count].copy_from_slice(&self.outgoing[..count]);
        self.outgoing.drain(..count);
        ReceiveOutcome::Bytes(count)
    }
}

const CHECKS: [&str; 5] = ["hello", "hello-pieces", "session-names", "ping", "ping-pieces"];

fn test(wants_whole: bool) -> ConformanceReport {
    let mut network = Greeter { now: Rc::default(), wants_whole, sessions: 0 };
    let only = CHECKS.map(str::to_owned).to_vec();
    session::run(
        &mut network,
        &ConformanceSettings { only, ..ConformanceSettings::new(Duration::from_secs(2)) },
        &mut |_| {},
    )
    .unwrap()
}

#[test]
fn exporter_that_understands_only_whole_messages_fails_the_checks_of_pieces_and_no_other() {
    assert_eq!(test(true).failed(), ["hello-pieces", "ping-pieces"]);
    let passed = |report: ConformanceReport| report.results.iter().filter(|r| r.verdict == CheckVerdict::Pass).count();
    assert_eq!(passed(test(false)), CHECKS.len());
}

#[test]
fn names_of_a_sessions_checks_differ_and_each_cites_its_clause() {
    let checks = session::checks();
    let ids: BTreeSet<&str> = checks.iter().map(|check| check.id).collect();
    assert_eq!(ids.len(), checks.len());
    assert!(checks.iter().all(|check| check.claim.ends_with('.') && !check.source.is_empty()));
    let document = include_str!("../../../docs/protocol.md");
    for check in checks {
        let Some(clause) = check.source.strip_prefix("protocol.md, ") else { continue };
        let heading = clause.split(": ").next().unwrap();
        let is_there = [format!("# {heading}\n"), format!("**{heading}.**")].iter().any(|line| document.contains(line));
        assert!(is_there, "{}: docs/protocol.md has no '{heading}'", check.id);
    }
}
