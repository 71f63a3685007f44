//! Brings up the links between hosts: what this host's part of the plan asks for now, and what it exchanges with its
//! neighbours.
//!
//! [`BringUpProtocol`] decides the order: it says when to share a debug port, and when to attach what neighbours lend. Each host
//! talks to all its neighbours over encrypted links (`farbus-control/1`): a question carries all that the asking host
//! has to say, its answer all that the other has. A neighbour that is not heard for a while is reported, but nothing is
//! undone: it continues where it was once it is back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use farbus::broker::SystemAccess;
use farbus::exporter::state::permissions::ExclusiveUse;
use farbus::exporter::state::shared::NeighbourResponder;
use farbus::frontend::AttachRequest;
use farbus::hosts::questions::{HostAnswer, HostQuestion, JsonLineChannel};
use farbus::hosts::trust::TrustStore;
use farbus::importer::client::{ClientConfig, DeviceTarget, ImporterClient};
use farbus_control::failure::FailureReport;
use farbus_control::topology::{TopologyLinkStatus, TopologyPartStatus, TopologyStatus};
use farbus_io_net::trust::Fingerprint;
use farbus_realtime::topology::bring_up::{BringUp, BringUpAction};
use farbus_realtime::topology::party::{BringUpMessageError, BringUpProtocol, MESSAGE_BYTES};
use tracing::{info, warn};

use super::spec::DaemonShare;
use super::topology_plan::{HostPlan, LinkRole, PlannedLink, TopologyConfig};

/// The first pause after a failed talk with a neighbour; each further one is twice as long.
const PAUSE: Duration = Duration::from_millis(100);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// How often neighbours talk that have no news.
const TALK_EVERY: Duration = Duration::from_secs(1);
/// How long connecting to a neighbour, and its answer, may take.
const TALK_TIME_MAX: Duration = Duration::from_secs(5);
/// A neighbour that was not heard for this long is reported as missing.
const MISSED_AFTER: Duration = Duration::from_secs(4);
/// How often the attachments are checked while a link is not up.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The links between this host and its neighbours.
pub struct TopologyLinks {
    trust: Option<TrustStore>,
    system: SystemAccess,
    state: Mutex<TopologyLinksState>,
    changed: Condvar,
}

#[derive(Default)]
struct TopologyLinksState {
    following: Option<ActiveTopology>,
    /// Whether the owner took the links down.
    is_down: bool,
    /// Whether they were down in the process before this one.
    stays_down: bool,
    is_over: bool,
    /// How often the plan was replaced. A thread that talks about an older plan ends.
    epoch: u64,
}

/// A plan that is being carried out.
struct ActiveTopology {
    part: HostPlan,
    party: BringUpProtocol,
    /// A number that grows whenever there is something new to say.
    news: u64,
    /// Devices of links that another plan or process had brought up: they stay.
    had: BTreeSet<String>,
    /// Whether this host's own port may be shared.
    may_enable: bool,
    /// Whether what neighbours lend may be attached.
    may_enumerate: bool,
    /// Whether all links were up at the last check.
    is_complete: bool,
    neighbours: BTreeMap<u32, NeighbourContact>,
}

#[derive(Default)]
struct NeighbourContact {
    heard: Option<Instant>,
    trouble: Option<String>,
}

/// What is shared and attached on this host.
/// What is known of an attachment of a link.
pub struct LinkAttachment {
    /// Its state, in a word.
    pub state: String,
    /// Where the device appears.
    pub at: Option<String>,
    /// Why it is not attached.
    pub failure: Option<FailureReport>,
}

pub trait HostView {
    /// Whether the share of this name is offered.
    fn is_offered(&self, name: &str) -> bool;
    /// The status of this device's attachment; `None` if there is none.
    fn attachment(&self, target: &DeviceTarget) -> Option<LinkAttachment>;
    /// Whether the device is attached, even if its link is lost at the moment.
    fn is_attached(&self, target: &DeviceTarget) -> bool;
    /// Whether an importer uses the device of this name, which is shared here.
    fn is_used(&self, device: &str) -> bool;
}

impl ActiveTopology {
    /// Begins a plan, from what another plan or process has brought up.
    fn new(part: HostPlan, sight: &dyn HostView) -> Self {
        let party = BringUpProtocol::new(&part.planned.topology, part.me);
        let is_there = |link: &&PlannedLink| match link.shared {
            Some(_) => sight.is_offered(&link.device),
            None => sight.attachment(&link.attach.target).is_some(),
        };
        Self {
            had: part.links.iter().filter(is_there).map(|link| link.device.clone()).collect(),
            may_enable: false,
            may_enumerate: false,
            neighbours: part.links.iter().map(|link| (link.to, NeighbourContact::default())).collect(),
            party,
            news: 1,
            is_complete: false,
            part,
        }
    }

    fn of_role(&self, role: LinkRole) -> impl Iterator<Item = &PlannedLink> {
        self.part.links.iter().filter(move |link| link.role == role)
    }

    /// Whether the share and attachment of this link may exist now.
    fn may_be(&self, link: &PlannedLink) -> bool {
        let is_its_turn = match link.role {
            LinkRole::Target => self.may_enable,
            LinkRole::Host => self.may_enumerate,
            LinkRole::Bridge | LinkRole::BridgeThere => true,
        };
        is_its_turn || self.had.contains(&link.device)
    }

    /// Advances the plan as far as possible. Returns whether shares or attachments have to change.
    fn step(&mut self, sight: &dyn HostView) -> bool {
        let (before, mut changed) = (self.party.clone(), false);
        while let Some(act) = self.party.poll() {
            let is_done = match act {
                BringUpAction::Enable => {
                    changed |= !std::mem::replace(&mut self.may_enable, true);
                    self.of_role(LinkRole::Target).all(|link| sight.is_offered(&link.device))
                }
                BringUpAction::Enumerate => {
                    changed |= !std::mem::replace(&mut self.may_enumerate, true);
                    self.of_role(LinkRole::Host).all(|link| sight.is_attached(&link.attach.target))
                }
            };
            if !is_done {
                break;
            }
            let found: Vec<u32> = match act {
                BringUpAction::Enable => Vec::new(),
                BringUpAction::Enumerate => self.of_role(LinkRole::Host).map(|link| link.to).collect(),
            };
            info!(host = self.part.planned.name(self.part.me), ?act, "done");
            self.party.handle_done(act, found);
        }
        let held: Vec<_> =
            self.of_role(LinkRole::Host).map(|link| (link.to, sight.is_attached(&link.attach.target))).collect();
        held.into_iter().for_each(|(to, is_held)| self.party.handle_held(to, is_held));
        if self.party != before {
            self.news += 1;
        }
        let is_complete = self.party.is_complete() && self.part.links.iter().all(|link| self.is_up(link, sight));
        if is_complete && !self.is_complete {
            info!(links = self.part.links.len(), "all links to other hosts are up");
        }
        self.is_complete = is_complete;
        changed
    }

    /// Whether both hosts have their ends of the link, as far as this host can see.
    fn is_up(&self, link: &PlannedLink, sight: &dyn HostView) -> bool {
        let has_other = link.shared.is_none() || sight.is_used(&format!("{}-b", link.device));
        let is_missed = self.neighbours.get(&link.to).is_none_or(Self::is_missed);
        has_other && !is_missed && sight.is_attached(&link.attach.target)
    }

    fn is_missed(neighbour: &NeighbourContact) -> bool {
        neighbour.heard.is_none_or(|heard| heard.elapsed() >= MISSED_AFTER)
    }

    fn status(&self, sight: &dyn HostView) -> TopologyStatus {
        let planned = &self.part.planned;
        let steps = BringUp::of(&planned.topology, self.part.me);
        let links = self.part.links.iter().map(|link| {
            let attached = sight.attachment(&link.attach.target);
            let neighbour = self.neighbours.get(&link.to);
            let trouble = neighbour.filter(|known| Self::is_missed(known)).and_then(|known| known.trouble.clone());
            let is_up = self.is_up(link, sight);
            let (state, at, failure) = match attached {
                Some(LinkAttachment { state, at, failure }) => (state, at, failure),
                None => ("not yet".to_owned(), None, None),
            };
            TopologyLinkStatus {
                to: planned.name(link.to).to_owned(),
                peer: link.peer.clone(),
                role: link.role.as_str().into(),
                is_up,
                device: link.attach.target.to_string(),
                is_shared: link.shared.as_ref().map(|shared| sight.is_offered(&shared.name)),
                state,
                at,
                failure,
                heard_s: neighbour.and_then(|known| known.heard).map(|heard| heard.elapsed().as_secs_f64()),
                trouble,
            }
        });
        let links = links.collect();
        let waits_for: BTreeSet<u32> = self.party.waits_for().into_iter().collect();
        let part = TopologyPartStatus {
            is_leader: planned.topology.leaders().contains(&self.part.me),
            steps: steps.steps().len(),
            is_enabled: self.party.is_enabled(),
            waits_for: waits_for.iter().map(|host| planned.name(*host).to_owned()).collect(),
            stray: self.party.stray().map(|host| planned.name(host).to_owned()),
        };
        let state = if self.is_complete { "up" } else { "coming" };
        TopologyStatus { state: state.into(), links, part: Some(part), ..TopologyStatus::default() }
    }
}

impl TopologyLinks {
    /// No plan yet.
    pub fn new(trust: Option<TrustStore>, system: SystemAccess) -> Self {
        Self { trust, system, state: Mutex::default(), changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, TopologyLinksState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the links down that the owner had taken down in the process before this one, until the next reload.
    pub fn stay_down(&self) {
        self.state().stays_down = true;
    }

    /// Carries out this plan from now on, or none.
    pub fn follow(self: &Arc<Self>, joined: Option<&TopologyConfig>, sight: &dyn HostView) {
        let mut state = self.state();
        state.is_down = std::mem::take(&mut state.stays_down);
        let part = joined.and_then(|joined| joined.part.as_ref()).filter(|_| !state.is_down && !state.is_over);
        if state.following.as_ref().map(|following| &following.part) == part {
            return;
        }
        state.epoch += 1;
        state.following = part.map(|part| ActiveTopology::new(part.clone(), sight));
        let epoch = state.epoch;
        for link in part.into_iter().flat_map(|part| &part.links) {
            let is_wired =
                state.following.as_ref().is_some_and(|following| following.neighbours.contains_key(&link.to));
            if !is_wired {
                continue;
            }
            let (joining, link) = (Arc::clone(self), link.clone());
            let speak = move || joining.speak(epoch, &link);
            if let Err(error) = thread::Builder::new().name("neighbour".into()).spawn(speak) {
                warn!(%error, "a neighbour is not talked to");
            }
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Takes the links down until a plan is followed again.
    pub fn take_down(&self) {
        let mut state = self.state();
        (state.is_down, state.following) = (true, None);
        state.epoch += 1;
        drop(state);
        self.changed.notify_all();
    }

    /// Whether the owner took the links down.
    pub fn is_down(&self) -> bool {
        self.state().is_down
    }

    /// Ends all talks, shares and attachments of links.
    pub fn end(&self) {
        let mut state = self.state();
        (state.is_over, state.following) = (true, None);
        state.epoch += 1;
        drop(state);
        self.changed.notify_all();
    }

    /// What is to be shared now.
    pub fn shares(&self) -> Vec<DaemonShare> {
        let state = self.state();
        let links = state
            .following
            .iter()
            .flat_map(|following| following.part.links.iter().filter(|link| following.may_be(link)));
        links.filter_map(|link| link.shared.clone()).collect()
    }

    /// What is to be attached now.
    pub fn attachments(&self) -> Vec<AttachRequest> {
        let state = self.state();
        let links = state
            .following
            .iter()
            .flat_map(|following| following.part.links.iter().filter(|link| following.may_be(link)));
        links.map(|link| link.attach.clone()).collect()
    }

    /// The only host that may use each end that is shared here.
    pub fn lent(&self) -> BTreeMap<String, ExclusiveUse> {
        let links: Vec<_> = {
            let state = self.state();
            let links = state.following.iter().flat_map(|following| &following.part.links);
            let shared = links.filter_map(|link| Some((link.shared.as_ref()?.name.clone(), link.peer.clone())));
            shared.collect()
        };
        let peers = self.trust.as_ref().filter(|_| !links.is_empty()).and_then(|trust| trust.peers().ok());
        let key = |peer: &str| Some(peers.as_ref()?.find(peer)?.fingerprint);
        let to = |peer: &str| key(peer).map_or(ExclusiveUse::Nobody, ExclusiveUse::To);
        links
            .iter()
            .flat_map(|(name, peer)| [(format!("{name}-a"), ExclusiveUse::Own), (format!("{name}-b"), to(peer))])
            .collect()
    }

    fn fingerprint(&self, peer: &str) -> Option<Fingerprint> {
        self.trust.as_ref()?.peers().ok()?.find(peer).map(|peer| peer.fingerprint)
    }

    /// Advances the plan as far as possible. Returns whether shares or attachments have to change.
    pub fn step(&self, sight: &dyn HostView) -> bool {
        let mut state = self.state();
        let Some(following) = &mut state.following else { return false };
        let news = following.news;
        let changed = following.step(sight);
        if following.news != news {
            self.changed.notify_all();
        }
        changed
    }

    /// Waits until there may be something to do. Returns `false` once the daemon ends.
    pub fn wait(&self) -> bool {
        let state = self.state();
        let is_coming = state.following.as_ref().is_some_and(|following| !following.is_complete);
        let span = if is_coming { LOOK_EVERY } else { TALK_EVERY };
        let waited = self.changed.wait_timeout(state, span).unwrap_or_else(PoisonError::into_inner);
        !waited.0.is_over
    }

    /// The status of the links, for the owner, but for this host's name and the plan's path.
    pub fn status(&self, sight: &dyn HostView) -> TopologyStatus {
        let state = self.state();
        match &state.following {
            Some(following) => following.status(sight),
            None => {
                let state = if state.is_down { "down" } else { "no plan" };
                TopologyStatus { state: state.into(), ..TopologyStatus::default() }
            }
        }
    }

    fn is_current(&self, epoch: u64) -> bool {
        self.state().epoch == epoch
    }

    /// Talks to a neighbour as long as this plan is followed.
    fn speak(&self, epoch: u64, link: &PlannedLink) {
        let mut pause = PAUSE;
        while self.is_current(epoch) {
            let trouble = match self.system.apart() {
                Ok(system) => {
                    self.talk(epoch, link, &ImporterClient::through(system, ClientConfig::default()), &mut pause).err()
                }
                Err(error) => Some(error.to_string()),
            };
            if let Some(trouble) = trouble {
                self.complain(epoch, link, trouble);
            }
            let until = Instant::now() + pause;
            pause = (pause * 2).min(PAUSE_MAX);
            let mut state = self.state();
            while state.epoch == epoch {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }

    fn complain(&self, epoch: u64, link: &PlannedLink, trouble: String) {
        let mut state = self.state();
        let TopologyLinksState { following: Some(following), epoch: now, .. } = &mut *state else { return };
        if *now != epoch {
            return;
        }
        let Some(known) = following.neighbours.get_mut(&link.to) else { return };
        if known.trouble.as_ref() != Some(&trouble) {
            warn!(neighbour = link.peer, "cannot be talked to: {trouble}");
            known.trouble = Some(trouble);
        }
    }

    /// Asks and is answered until there is nothing more to say.
    fn talk(
        &self,
        epoch: u64,
        link: &PlannedLink,
        client: &ImporterClient,
        pause: &mut Duration,
    ) -> Result<(), String> {
        let line = client.question_link(&link.address, TALK_TIME_MAX).map_err(|error| error.to_string())?;
        let line = line.ok_or_else(|| {
            format!("'{0}' is no paired host\n  pair it: farbus pair, and here farbus pair {0} CODE", link.peer)
        })?;
        let failed = |error: std::io::Error| error.to_string();
        let mut lines = JsonLineChannel::over(&line, TALK_TIME_MAX).map_err(failed)?;
        let mut told_news = 0;
        while let Some((news, message)) = self.next_to_say(epoch, link.to, told_news) {
            lines.send(&HostQuestion::Topology { message: to_hex(&message) }).map_err(failed)?;
            let answer = lines.receive().map_err(failed)?.ok_or("it has ended the connection")?;
            match serde_json::from_slice(&answer).map_err(|error| error.to_string())? {
                HostAnswer::Topology(answer) => self.heard(epoch, link.to, &answer)?,
                HostAnswer::Refused(why) => return Err(why),
                other => return Err(format!("it answers something else: {other:?}")),
            }
            (told_news, *pause) = (news, PAUSE);
        }
        Ok(())
    }

    /// Waits for news, or until it is time to repeat the last message. `None` once another plan is followed.
    fn next_to_say(&self, epoch: u64, to: u32, told_news: u64) -> Option<(u64, [u8; MESSAGE_BYTES])> {
        let until = Instant::now() + TALK_EVERY;
        let mut state = self.state();
        loop {
            let following = state.following.as_ref().filter(|_| state.epoch == epoch)?;
            let left = until.saturating_duration_since(Instant::now());
            if following.news != told_news || left.is_zero() {
                return Some((following.news, following.party.message_for(to)));
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn heard(&self, epoch: u64, from: u32, hex: &str) -> Result<(), String> {
        let message = from_hex(hex).ok_or("it answers what is no message")?;
        let mut state = self.state();
        let TopologyLinksState { following: Some(following), epoch: now, .. } = &mut *state else { return Ok(()) };
        if *now == epoch {
            following.hear(from, &message)?;
            // Only an answer clears the trouble. A message that the neighbour sends on its own connection does not: the
            // same trouble would be logged again.
            if let Some(known) = following.neighbours.get_mut(&from) {
                known.trouble = None;
            }
            drop(state);
            self.changed.notify_all();
        }
        Ok(())
    }
}

impl ActiveTopology {
    /// A host's name; its number for one that the plan does not have.
    fn name(&self, host: u32) -> String {
        self.part.planned.names.get(host as usize).cloned().unwrap_or_else(|| format!("host {host}"))
    }

    fn hear(&mut self, from: u32, message: &[u8; MESSAGE_BYTES]) -> Result<(), String> {
        self.party.handle_received(from, message).map_err(|error| trouble(error, |host| self.name(host)))?;
        if let Some(known) = self.neighbours.get_mut(&from) {
            known.heard = Some(Instant::now());
        }
        Ok(())
    }
}

impl NeighbourResponder for TopologyLinks {
    fn hear(&self, host: Fingerprint, hex: &str) -> Result<String, String> {
        let message = from_hex(hex).ok_or("that is no message")?;
        let joined: Vec<(u32, String)> = {
            let state = self.state();
            let following = state.following.as_ref().ok_or("its links are down, or it has no plan")?;
            following.part.links.iter().map(|link| (link.to, link.peer.clone())).collect()
        };
        // Files are read without holding a lock.
        let from = joined.iter().find(|(_, peer)| self.fingerprint(peer) == Some(host));
        let from = from.ok_or("you are nobody that it is joined with, as far as its plan says")?.0;
        let mut state = self.state();
        let following = state.following.as_mut().ok_or("its links are down, or it has no plan")?;
        following.hear(from, &message)?;
        let answer = to_hex(&following.party.message_for(from));
        drop(state);
        self.changed.notify_all();
        Ok(answer)
    }
}

/// What is wrong with a neighbour's message, with the host's name instead of its number.
fn trouble(error: BringUpMessageError, name: impl Fn(u32) -> String) -> String {
    match error {
        BringUpMessageError::Plan { host } => {
            format!("{} follows another plan: give both the same file, see 'farbus plan topology'", name(host))
        }
        BringUpMessageError::Stranger { expected, stated } => {
            format!("{} speaks where {} is expected", name(stated), name(expected))
        }
        BringUpMessageError::Tongue { .. } => error.to_string(),
    }
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Option<[u8; MESSAGE_BYTES]> {
    let digits: Option<Vec<u8>> = text.chars().map(|digit| Some(digit.to_digit(16)? as u8)).collect();
    let bytes: Vec<u8> = digits?.chunks(2).map(|pair| pair[0] << 4 | pair.last().unwrap_or(&0)).collect();
    bytes.try_into().ok().filter(|_| text.len() == 2 * MESSAGE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_with_another_plan_is_called_by_its_name() {
        let name = |host: u32| ["lab", "desk"][host as usize].to_owned();
        let message = trouble(BringUpMessageError::Plan { host: 1 }, name);
        assert!(message.starts_with("desk follows another plan: "), "{message}");
        let message = trouble(BringUpMessageError::Stranger { expected: 0, stated: 1 }, name);
        assert_eq!(message, "desk speaks where lab is expected");
    }

    #[test]
    fn messages_are_parsed_from_hexadecimal_digits_only() {
        let message: [u8; MESSAGE_BYTES] = std::array::from_fn(|at| at as u8 * 13);
        assert_eq!(from_hex(&to_hex(&message)), Some(message));
        let right = to_hex(&message);
        for wrong in ["", "0", &right[1..], &format!("{right}0"), &right.replace('0', "x"), &right.replace('d', "é")] {
            assert_eq!(from_hex(wrong), None, "{wrong}");
        }
    }
}
