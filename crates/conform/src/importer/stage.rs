//! The exporter of the importer checks: connections in, a report out.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use farbus_model::{Device, Instant};
use farbus_wire::usbip::message::{SubmitCommand, command};

use super::judge::{ImporterMessage, RuleJudge, is_configuration};
use super::probe::{ExpectedReaction, ExporterBehaviour, ImporterProbe, PROBES, ProbeTamper};
use crate::check::{CheckResult as Line, CheckVerdict, ConformanceReport};
use crate::player::{ConnId, MockExporter, NoTamper};

/// Bytes of one importer that wait to be whole messages: the largest buffer, its packets and its header.
const WAITING_BYTES_MAX: usize = (16 << 20) + (64 << 10);

/// Part of the patience that requests may have been under way for.
const UNDER_WAY: u32 = 10;

/// How a connection goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeConnectionState {
    /// It stays open.
    Open,
    /// The exporter sends nothing more, and waits for the importer's end.
    Half,
    /// It is closed.
    Closed,
}

struct ProbeAttempt {
    probe: ImporterProbe,
    provoked: Rc<Cell<bool>>,
    provoked_at: Option<Instant>,
    /// When the importer asked for it first.
    since: Option<Instant>,
    /// Requests of the connection that asked last.
    requests: u32,
    /// When the wrong message was sent, nothing else of the importer was under way.
    was_alone: bool,
    outcome: Option<(CheckVerdict, String)>,
}

/// An exporter for importers that are tested.
pub struct ProbeExporter {
    player: MockExporter,
    judge: RuleJudge,
    tried: Vec<ProbeAttempt>,
    conns: BTreeMap<ConnId, ProbeConnection>,
    /// The importer had two requests under way at a time.
    has_pipelined: bool,
    patience: Duration,
}

#[derive(Default)]
struct ProbeConnection {
    bytes: Vec<u8>,
    /// Which probe it asked for.
    probe: Option<usize>,
}

impl ProbeExporter {
    /// Offers what `device` makes, once for each of [`PROBES`] whose check is in `only`; empty: all.
    pub fn new(device: impl Fn() -> Box<dyn Device>, only: &[String], patience: Duration) -> Self {
        let mut player = MockExporter::new(Box::new(NoTamper));
        let mut tried = Vec::new();
        // Rules are held against what is sent to any of them: without a probe of their own, to the first.
        let asks_of_probe = PROBES.iter().any(|probe| only.iter().any(|id| id == probe.check.id));
        for (at, probe) in PROBES.iter().enumerate() {
            let is_chosen = match (only.is_empty(), asks_of_probe) {
                (true, _) => true,
                (false, true) => only.iter().any(|id| id == probe.check.id),
                (false, false) => at == 0,
            };
            if is_chosen {
                let provoked = Rc::new(Cell::new(false));
                player.offer(probe.bus_id, device(), Box::new(ProbeTamper::new(probe.does, Rc::clone(&provoked))));
                tried.push(ProbeAttempt {
                    probe: *probe,
                    provoked,
                    provoked_at: None,
                    since: None,
                    requests: 0,
                    was_alone: false,
                    outcome: None,
                });
            }
        }
        Self { player, judge: RuleJudge::default(), tried, conns: BTreeMap::new(), has_pipelined: false, patience }
    }

    /// The devices to attach the importer to.
    pub fn probes(&self) -> impl Iterator<Item = &ImporterProbe> {
        self.tried.iter().map(|tried| &tried.probe)
    }

    /// Whether nothing more is to be seen of this device.
    pub fn is_settled(&self, bus_id: &str) -> bool {
        self.tried.iter().any(|tried| tried.probe.bus_id == bus_id && tried.outcome.is_some())
    }

    /// Whether nothing more is to be seen of any device.
    pub fn is_done(&self) -> bool {
        self.tried.iter().all(|tried| tried.outcome.is_some())
    }

    /// An importer connected.
    pub fn connect(&mut self) -> ConnId {
        let id = self.player.connect();
        self.conns.insert(id, ProbeConnection::default());
        id
    }

    /// Takes bytes of an importer.
    pub fn receive(&mut self, id: ConnId, bytes: &[u8], now: Instant) {
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.bytes.extend_from_slice(bytes);
        }
        self.advance(id, now);
    }

    fn advance(&mut self, id: ConnId, now: Instant) {
        while self.player.wants(id) {
            let Some(conn) = self.conns.get_mut(&id) else { return };
            let Some((length, message)) = RuleJudge::frame(&conn.bytes, id, &self.player) else { return };
            let whole: Vec<u8> = conn.bytes.drain(..length).collect();
            let rest = conn.bytes.len();
            self.judge.message(message, &whole, rest, id, &mut self.player);
            self.notice(id, message, &whole, now);
            self.player.receive(id, &whole, now);
            let probe = self.conns.get(&id).and_then(|conn| conn.probe);
            if let Some(tried) = probe.and_then(|at| self.tried.get_mut(at)).filter(|tried| tried.provoked.get())
                && tried.provoked_at.is_none()
            {
                tried.provoked_at = Some(now);
                tried.was_alone = rest == 0 && self.player.in_flight(id) == 0;
            }
        }
    }

    /// What a message says about the probe of its connection.
    fn notice(&mut self, id: ConnId, message: ImporterMessage, bytes: &[u8], now: Instant) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let asks_again = message == ImporterMessage::Import && conn.probe.is_some();
        if message == ImporterMessage::Import && !asks_again {
            let field = bytes.get(8..).unwrap_or_default();
            let name = field.split(|byte| *byte == 0).next().unwrap_or_default();
            conn.probe = self.tried.iter().position(|tried| tried.probe.bus_id.as_bytes() == name);
            if let Some(tried) = conn.probe.and_then(|at| self.tried.get_mut(at)) {
                tried.since.get_or_insert(now);
                tried.requests = 0;
            }
            return;
        }
        let Some(tried) = conn.probe.and_then(|at| self.tried.get_mut(at)) else { return };
        tried.requests += 1;
        if matches!(message, ImporterMessage::Request(raw) if raw.command == command::CMD_SUBMIT) {
            self.has_pipelined |= !conn.bytes.is_empty() || self.player.in_flight(id) > 0;
        }
        let configures = match message {
            ImporterMessage::Request(raw) => SubmitCommand::check(&raw).is_ok_and(|submit| is_configuration(&submit)),
            _ => false,
        };
        // What it sent before it can have known does not count.
        let is_told = tried.provoked_at.is_some_and(|at| now.since(at) > self.patience / UNDER_WAY);
        // An importer that asks one by one goes on when it has an answer.
        let is_half = matches!(tried.probe.does, ExporterBehaviour::HalfAnswer | ExporterBehaviour::HalfHeader);
        let took_half = is_half && tried.provoked.get() && tried.was_alone && !self.has_pipelined;
        match tried.probe.does.expected() {
            ExpectedReaction::Configures | ExpectedReaction::EndsOrConfigures if configures => {
                tried.settle(CheckVerdict::Pass, "it configured the device");
            }
            ExpectedReaction::SendsNothing if tried.provoked.get() => {
                tried.settle(CheckVerdict::Fail, "it sent a request")
            }
            ExpectedReaction::Leaves if asks_again => {
                tried.settle(CheckVerdict::Fail, "it asked again on the same connection")
            }
            ExpectedReaction::Leaves if tried.provoked.get() => tried.settle(CheckVerdict::Fail, "it sent a request"),
            ExpectedReaction::Ends if took_half => {
                tried.settle(CheckVerdict::Fail, "it took a part for an answer, and went on")
            }
            ExpectedReaction::Ends if is_told => tried.settle(CheckVerdict::Fail, "it sent another request"),
            _ => {}
        }
    }

    /// Whether the importer's bytes are wanted.
    pub fn wants(&self, id: ConnId) -> bool {
        self.player.wants(id) && self.conns.get(&id).is_some_and(|conn| conn.bytes.len() < WAITING_BYTES_MAX)
    }

    /// Bytes to send to an importer.
    pub fn transmit(&self, id: ConnId) -> &[u8] {
        self.player.transmit(id)
    }

    /// So many of them were sent.
    pub fn transmitted(&mut self, id: ConnId, count: usize, now: Instant) {
        self.player.transmitted(id, count);
        self.advance(id, now);
    }

    /// How the connection goes on, once [`ProbeExporter::transmit`] has nothing more.
    pub fn ending(&self, id: ConnId) -> ProbeConnectionState {
        let tried = self.conns.get(&id).and_then(|conn| conn.probe).and_then(|at| self.tried.get(at));
        match tried {
            // What it sends or does now is what the probe is about.
            Some(tried) if tried.outcome.is_none() && tried.provoked.get() => match tried.probe.does {
                ExporterBehaviour::HalfAnswer | ExporterBehaviour::HalfHeader => ProbeConnectionState::Half,
                _ => ProbeConnectionState::Open,
            },
            _ if self.player.is_over(id) => ProbeConnectionState::Closed,
            _ => ProbeConnectionState::Open,
        }
    }

    /// The importer closed the connection.
    pub fn closed(&mut self, id: ConnId, now: Instant) {
        let probe = self.conns.remove(&id).and_then(|conn| conn.probe);
        if let Some(tried) = probe.and_then(|at| self.tried.get_mut(at)) {
            let is_provoked = tried.provoked.get();
            match tried.probe.does.expected() {
                ExpectedReaction::Configures => {
                    tried.settle(CheckVerdict::Fail, "it closed the connection before it configured it")
                }
                ExpectedReaction::SendsNothing if is_provoked => {
                    tried.settle(CheckVerdict::Pass, "it closed the connection")
                }
                ExpectedReaction::Leaves | ExpectedReaction::Ends | ExpectedReaction::EndsOrConfigures
                    if is_provoked =>
                {
                    tried.settle(CheckVerdict::Pass, "it closed the connection");
                }
                // It had not come to that.
                _ => tried.since = None,
            }
        }
        self.judge.closed(id);
        self.player.close(id, now);
    }

    /// When [`ProbeExporter::handle_timeout`] wants to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let patience = self.patience;
        let waiting = self.tried.iter().filter(|tried| tried.outcome.is_none());
        let probes = waiting.filter_map(|tried| Some(tried.since? + patience)).min();
        self.player.poll_timeout().into_iter().chain(probes).min()
    }

    /// The moment has come.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.player.handle_timeout(now);
        for tried in &mut self.tried {
            if tried.since.is_some_and(|since| since + self.patience <= now) {
                match tried.probe.does.expected() {
                    ExpectedReaction::SendsNothing => tried.settle(CheckVerdict::Pass, "it sent nothing more"),
                    // What plugs a device into a virtual machine reads it, and leaves the rest to the machine.
                    ExpectedReaction::Configures
                        if tried.requests > 1 && tried.probe.does == ExporterBehaviour::Right =>
                    {
                        tried.settle(
                            CheckVerdict::NotApplicable,
                            "it read the device and had no reason to configure it in time",
                        )
                    }
                    ExpectedReaction::Configures if tried.requests > 1 => {
                        tried.settle(CheckVerdict::Pass, "it understood the answers and sent more requests");
                    }
                    ExpectedReaction::Configures => {
                        tried.settle(CheckVerdict::Fail, "it did not configure the device in time")
                    }
                    ExpectedReaction::Leaves => {
                        tried.settle(
                            CheckVerdict::Fail,
                            "it stayed, and neither sent anything nor closed the connection",
                        );
                    }
                    ExpectedReaction::Ends => {
                        tried.settle(CheckVerdict::Fail, "it did not close the connection in time")
                    }
                    ExpectedReaction::EndsOrConfigures => tried.settle(CheckVerdict::Fail, "it did neither in time"),
                }
            }
        }
    }

    /// The results so far: devices that no importer was attached to are skipped.
    pub fn report(&self, only: &[String]) -> ConformanceReport {
        let of_probe = |tried: &ProbeAttempt| {
            let not_tried = || (CheckVerdict::Skipped, format!("no importer was attached to {}", tried.probe.bus_id));
            let (verdict, seen) = tried.outcome.clone().unwrap_or_else(not_tried);
            Line { check: tried.probe.check, verdict, seen }
        };
        let is_chosen = |line: &Line| only.is_empty() || only.iter().any(|id| id == line.check.id);
        ConformanceReport {
            results: self.tried.iter().map(of_probe).chain(self.judge.lines()).filter(is_chosen).collect(),
        }
    }
}

impl ProbeAttempt {
    /// The first outcome counts.
    fn settle(&mut self, verdict: CheckVerdict, seen: &str) {
        self.outcome.get_or_insert_with(|| (verdict, seen.to_owned()));
    }
}
