//! How much memory a peer may make this process hold, accounted in one place.
//!
//! A peer is a paired host, identified by its key, or all clients at one address. All its connections, links and
//! sessions draw on one [`MemoryAccount`]; all accounts draw on the process's. A connection takes memory in large
//! pieces: when it begins, when a device is opened, or when it has outgrown what it took ([`ConnectionAllowance`]). It
//! gives the memory back when the connection or the device is closed. Between these moments a connection compares
//! numbers of its own, and touches no shared memory.
//!
//! | who | may hold | of which each part is in |
//! |---|---|---|
//! | a peer that uses no device | [`MemoryBudget::stranger_bytes`] | [`SESSION_PARTS`], [`CONNECTION_PARTS`] |
//! | a peer that uses one or more | [`MemoryBudget::peer_bytes`] | the same, and [`credit_bytes`] of each device twice: on its way, and unacknowledged |
//! | a connection of QUIC of a peer | [`MemoryAccount::left_for_speed`] when it begins | what links have not read, and the peer has not acknowledged |
//! | all peers | [`MemoryBudget::process_bytes`], the second half of which is for peers that use a device | |
//! | a peer whose identity is certain, for each device that it uses | [`ROOM_BYTES`] more, and so may all peers | the smallest connection, session and credit |
//!
//! So a paired host that uses a thousand devices needs no larger limit for what is on their way: how many devices it
//! may use is a limit of its own ([`MemoryBudget::devices_max`]).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::limits::{CREDIT_BYTES_MAX, CREDIT_BYTES_MIN};

/// What peers may make a process hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryBudget {
    /// Limit of a peer that uses no device, bytes.
    pub stranger_bytes: usize,
    /// Limit of a peer that uses at least one device, bytes.
    pub peer_bytes: usize,
    /// Limit of all peers together, bytes.
    pub process_bytes: usize,
    /// Devices that one peer whose identity is certain may use at a time, 1 or more; all such peers together may use
    /// four times as many.
    pub devices_max: usize,
}

impl MemoryBudget {
    /// The default: four peers may use their full limit; the rest is for peers that use little.
    pub const DEFAULT: MemoryBudget = MemoryBudget {
        stranger_bytes: 64 << 20,
        peer_bytes: 256 << 20,
        process_bytes: 1 << 30,
        devices_max: DEVICES_MAX_DEFAULT,
    };

    /// Sets the limit of a peer that uses devices. All peers together get four times that, if it is more than the
    /// default.
    #[must_use]
    pub const fn with_peer_bytes(self, bytes: usize) -> Self {
        let process_bytes =
            if bytes.saturating_mul(4) > self.process_bytes { bytes.saturating_mul(4) } else { self.process_bytes };
        MemoryBudget {
            stranger_bytes: if bytes < self.stranger_bytes { bytes } else { self.stranger_bytes },
            peer_bytes: bytes,
            process_bytes,
            ..self
        }
    }

    /// Sets how many devices one peer whose identity is certain may use at a time.
    #[must_use]
    pub const fn with_devices(self, devices_max: usize) -> Self {
        MemoryBudget { devices_max, ..self }
    }
}

impl Default for MemoryBudget {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// [`MemoryBudget::devices_max`] of a process that is told nothing else: a host of a large test farm uses a thousand devices
/// of one exporter, and a few places are left for those that are attached anew while others end.
pub const DEVICES_MAX_DEFAULT: usize = 1024;

/// The most that [`MemoryBudget::devices_max`] may be set to: as many as there are TCP ports between two addresses.
pub const DEVICES_MAX: usize = 1 << 16;

/// Answers to open, reserve and inherit requests that the link has not taken yet; beyond, such requests wait.
pub const ANSWERS_BYTES_MAX: usize = 64 << 10;
/// Open, reserve and inherit requests of a session that wait; beyond, the peer is cut off. farbus's importer has two
/// such requests under way.
pub const WAITING_REQUESTS_BYTES_MAX: usize = 64 << 10;
/// Answers that never wait (to a cancellation, to a close) and that the link has not taken yet; beyond, the peer is cut
/// off. An importer cancels each of 4096 requests once.
pub const PROMPT_ANSWERS_BYTES_MAX: usize = 2 << 20;
/// Bytes sent and not acknowledged in a session that uses no device: an importer acknowledges after 512 KiB.
pub const UNACKNOWLEDGED_BYTES_MIN: usize = 1 << 20;
/// Module offers of all devices of a session.
pub const OFFERS_BYTES_MAX: usize = 64 << 10;
/// Devices of a session that are being opened: each takes two texts of a line or two.
pub const ASKED_MAX: usize = 64;
/// What a session takes when it begins; it takes more as it holds more.
pub const SESSION_BYTES: usize = 384 << 10;
/// What a connection takes when it begins, whatever its protocol: its thread, and what an encrypted link usually keeps.
pub const CONNECTION_BYTES: usize = 128 << 10;
/// The step by which an allowance grows.
pub const STEP_BYTES: usize = 256 << 10;

/// What each device adds to the limits of a peer whose identity is certain: a connection, a session as it begins, and
/// the smallest credit. A peer's limit for what is on its way is not used up by the number of its devices.
pub const ROOM_BYTES: usize =
    CONNECTION_BYTES + SESSION_BYTES.next_multiple_of(STEP_BYTES) + attachment_bytes(CREDIT_BYTES_MIN);
/// What modules leave of a peer's limit, so that its next sessions begin and are told why a device is refused.
pub const LEFT_BYTES: usize = 4 * ROOM_BYTES;
/// The part of a peer's limit that credits beyond the smallest may take, in quarters. The rest is for sessions
/// that begin before they have a device, and for what sessions hold that have outgrown what they took at first.
const CREDIT_QUARTERS: usize = 3;

/// What one device may take at most: what is left for all peers, divided by this. So many hosts may read one disk, and
/// each leaves as much to the next ones.
const CREDIT_PROCESS_PARTS: usize = 8;

/// The most that a session without a device holds, part by part.
pub const SESSION_PARTS: [(&str, usize); 8] = [
    ("received and not understood", 256 << 10),
    ("answers that wait for the link", ANSWERS_BYTES_MAX + 2 * PROMPT_ANSWERS_BYTES_MAX),
    ("answers sent and not acknowledged", UNACKNOWLEDGED_BYTES_MIN),
    ("requests that wait for answers to be taken", WAITING_REQUESTS_BYTES_MAX),
    ("offers of modules", OFFERS_BYTES_MAX),
    ("devices that were asked for", ASKED_MAX * (3 << 10)),
    ("the encrypted link", 512 << 10),
    ("a thread", 128 << 10),
];

/// The most that a USB/IP connection without a device holds, part by part.
pub const CONNECTION_PARTS: [(&str, usize); 3] =
    [("received and not understood", 256 << 10), ("the encrypted link", 512 << 10), ("a thread", 128 << 10)];

/// What a connection may take to be faster, at most: one divided by these of what is left of its peer's limit, and of
/// the first half of that of all peers.
const SPEED_PARTS: usize = 8;
const SPEED_PARTS_OF_ALL: usize = 32;

/// The sum of parts.
pub const fn sum(parts: &[(&str, usize)]) -> usize {
    let (mut at, mut all) = (0, 0);
    while at < parts.len() {
        all += parts[at].1;
        at += 1;
    }
    all
}

/// The credit of one more device, bytes: a fair part of `share_bytes` if the peer used `devices` devices, or more while
/// the peer uses little of its limit. `left` is what the peer may still take.
pub fn credit_bytes(share_bytes: usize, left: usize, devices: usize) -> usize {
    let fair = share_bytes / devices.max(1) / 2;
    fair.max(left / 256).clamp(CREDIT_BYTES_MIN, CREDIT_BYTES_MAX)
}

/// What a device with this credit takes of its user's account: the credit twice, once for data under way and once for
/// unacknowledged data.
pub const fn attachment_bytes(credit_bytes: usize) -> usize {
    2 * credit_bytes
}

/// What a peer or the process holds, and may hold.
#[derive(Debug)]
pub struct MemoryAccount {
    used: AtomicUsize,
    /// Devices in use by the peer, and those of them that brought room along; of the process: the sum of the latter.
    devices: AtomicUsize,
    rooms: AtomicUsize,
    /// Bytes of the credits of its devices beyond the smallest.
    extra: AtomicUsize,
    kind: AccountOwner,
    budget: MemoryBudget,
    process: Option<Arc<MemoryAccount>>,
}

/// Whose account it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AccountOwner {
    Process,
    /// A peer, whose identity is certain or not.
    Peer {
        is_known: bool,
    },
    /// The questions of a peer whose identity is certain, which its devices cannot use up.
    Questions,
}

impl MemoryAccount {
    /// Makes the account that the accounts of all peers draw on.
    pub fn of_process(budget: MemoryBudget) -> Arc<Self> {
        Self::new(AccountOwner::Process, budget, None)
    }

    /// Makes the account of one peer, which draws on the process's account.
    pub fn of_peer(process: &Arc<MemoryAccount>) -> Arc<Self> {
        Self::new(AccountOwner::Peer { is_known: false }, process.budget, Some(Arc::clone(process)))
    }

    /// As [`MemoryAccount::of_peer`], of a peer whose identity is certain: each of its devices adds [`ROOM_BYTES`] to
    /// its limit and to the process's.
    pub fn of_known_peer(process: &Arc<MemoryAccount>) -> Arc<Self> {
        Self::new(AccountOwner::Peer { is_known: true }, process.budget, Some(Arc::clone(process)))
    }

    /// Makes the account of the questions of a peer whose identity is certain. It is apart from that of its devices, so
    /// that they cannot leave it nothing.
    pub fn of_questions(process: &Arc<MemoryAccount>) -> Arc<Self> {
        Self::new(AccountOwner::Questions, process.budget, Some(Arc::clone(process)))
    }

    fn new(kind: AccountOwner, budget: MemoryBudget, process: Option<Arc<MemoryAccount>>) -> Arc<Self> {
        let [used, devices, rooms, extra] = [const { AtomicUsize::new(0) }; 4];
        Arc::new(Self { used, devices, rooms, extra, kind, budget, process })
    }

    /// Bytes that the account's owner holds now.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Bytes that may be held now.
    pub fn max(&self) -> usize {
        self.max_of(self.devices.load(Ordering::Relaxed))
    }

    /// Bytes that may be held now, if the peer used `devices` devices.
    fn max_of(&self, devices: usize) -> usize {
        let limit = match (self.kind, devices) {
            (AccountOwner::Process, _) => self.budget.process_bytes,
            (AccountOwner::Questions, _) | (AccountOwner::Peer { .. }, 0) => self.budget.stranger_bytes,
            (AccountOwner::Peer { .. }, _) => self.budget.peer_bytes,
        };
        limit.saturating_add(self.rooms.load(Ordering::Relaxed).saturating_mul(ROOM_BYTES))
    }

    /// Counts a device of this peer, and the room that it brings along.
    fn add_device(&self) {
        self.devices.fetch_add(1, Ordering::Relaxed);
        if self.kind == (AccountOwner::Peer { is_known: true }) {
            [Some(self), self.process.as_deref()].into_iter().flatten().for_each(|account| {
                account.rooms.fetch_add(1, Ordering::Relaxed);
            });
        }
    }

    fn remove_device(&self) {
        self.devices.fetch_sub(1, Ordering::Relaxed);
        if self.kind == (AccountOwner::Peer { is_known: true }) {
            [Some(self), self.process.as_deref()].into_iter().flatten().for_each(|account| {
                account.rooms.fetch_sub(1, Ordering::Relaxed);
            });
        }
    }

    /// Bytes that may still be taken.
    pub fn left(&self) -> usize {
        let own = self.max().saturating_sub(self.used());
        self.process.as_ref().map_or(own, |process| own.min(process.left()))
    }

    /// Bytes that a connection may take to be faster: so small a part of what is left that hundreds of connections
    /// leave enough for what further ones need.
    pub fn left_for_speed(&self) -> usize {
        let own = self.max().saturating_sub(self.used());
        let left_in = |process: &Arc<MemoryAccount>| {
            (self.max_in(process, self.devices.load(Ordering::Relaxed)) / 2).saturating_sub(process.used())
        };
        (own / SPEED_PARTS).min(self.process.as_ref().map_or(usize::MAX, left_in) / SPEED_PARTS_OF_ALL)
    }

    /// The devices in use, or 1 for the one that comes next.
    fn users(&self) -> usize {
        self.devices.load(Ordering::Relaxed).max(1)
    }

    /// Bytes that may be taken for what comes with a device, and the limit that they are a part of.
    fn left_for_device(&self) -> (usize, usize) {
        let max = self.max_of(self.users());
        let own = max.saturating_sub(self.used());
        let (left, limit) = match self.process.as_deref().map(|process| (process.left(), process.max())) {
            Some((left, limit)) if left < own => (left, limit),
            _ => (own, max),
        };
        (left.saturating_sub(LEFT_BYTES), limit)
    }

    /// The budget that sets the limits.
    pub fn budget(&self) -> &MemoryBudget {
        &self.budget
    }

    /// Takes `bytes` until the returned value is dropped.
    ///
    /// # Errors
    /// [`BudgetExhaustion`].
    pub fn take(self: &Arc<Self>, bytes: usize) -> Result<MemoryCharge, BudgetExhaustion> {
        self.charge(bytes)?;
        Ok(MemoryCharge { account: Arc::clone(self), bytes, extra: 0, is_device: false })
    }

    /// Takes memory for a device: the peer counts as a user of devices until the returned value is dropped. Also
    /// returns the device's credit, where the peer could use `devices` in all and a device of this class may have
    /// `most` bytes in flight.
    ///
    /// # Errors
    /// [`BudgetExhaustion`].
    pub fn take_for_device(
        self: &Arc<Self>,
        devices: usize,
        most: usize,
    ) -> Result<(MemoryCharge, usize), BudgetExhaustion> {
        self.add_device();
        let left = self.left_for_credit();
        let process_left = self.process.as_ref().map_or(usize::MAX, |process| process.left());
        let part = (process_left / CREDIT_PROCESS_PARTS / 2).next_multiple_of(1 << 20);
        let most = most.min(part).max(CREDIT_BYTES_MIN);
        let mut credit = credit_bytes(self.credits_bytes_max(devices), left, devices).min(most);
        loop {
            let bytes = attachment_bytes(credit);
            let extra = bytes - attachment_bytes(CREDIT_BYTES_MIN);
            let charged = if extra > left { Err(None) } else { self.charge(bytes).map_err(Some) };
            match charged {
                Ok(()) => {
                    self.extra.fetch_add(extra, Ordering::Relaxed);
                    return Ok((MemoryCharge { account: Arc::clone(self), bytes, extra, is_device: true }, credit));
                }
                Err(Some(exhausted)) if credit == CREDIT_BYTES_MIN => {
                    self.remove_device();
                    return Err(exhausted);
                }
                Err(_) => credit = (credit / 2).max(CREDIT_BYTES_MIN),
            }
        }
    }

    /// Bytes of which one more device's credit may be a part. The room that devices bring along is none of it.
    fn left_for_credit(&self) -> usize {
        self.left().min(self.credits_bytes_max(1).saturating_sub(self.extra.load(Ordering::Relaxed)))
    }

    /// What the credits of so many devices together may take, bytes.
    fn credits_bytes_max(&self, devices: usize) -> usize {
        let most = self.budget.peer_bytes / 4 * CREDIT_QUARTERS;
        if self.kind == (AccountOwner::Peer { is_known: true }) {
            // What their sessions begin with is room that they bring along.
            return most;
        }
        let session_bytes = CONNECTION_BYTES + SESSION_BYTES + 2 * STEP_BYTES;
        most.min(self.budget.peer_bytes.saturating_sub(devices.max(1).saturating_mul(session_bytes)))
    }

    /// Takes a fixed number of bytes for a device, instead of a part of what is left.
    ///
    /// # Errors
    /// [`BudgetExhaustion`].
    pub fn take_fixed_for_device(self: &Arc<Self>, bytes: usize) -> Result<MemoryCharge, BudgetExhaustion> {
        self.add_device();
        let charged = self.charge(bytes);
        if charged.is_err() {
            self.remove_device();
        }
        charged.map(|()| MemoryCharge { account: Arc::clone(self), bytes, extra: 0, is_device: true })
    }

    fn charge(&self, bytes: usize) -> Result<(), BudgetExhaustion> {
        self.charge_as(bytes, self.devices.load(Ordering::Relaxed))
    }

    /// Charges as if the peer used this many devices.
    fn charge_as(&self, bytes: usize, devices: usize) -> Result<(), BudgetExhaustion> {
        let max = self.max_of(devices);
        self.charge_up_to(bytes, max).map_err(|()| BudgetExhaustion::Peer(max))?;
        let Some(process) = &self.process else { return Ok(()) };
        let max = self.max_in(process, devices);
        process.charge_up_to(bytes, max).map_err(|()| {
            self.give_back(bytes);
            BudgetExhaustion::Process(max)
        })
    }

    /// What all peers may hold when this one takes something and uses so many devices: peers without a device leave
    /// half of the process's budget to those with one.
    fn max_in(&self, process: &MemoryAccount, devices: usize) -> usize {
        let is_stranger = devices == 0 && self.kind != AccountOwner::Questions;
        let kept = if is_stranger { process.budget.process_bytes / 2 } else { 0 };
        process.max().saturating_sub(kept)
    }

    fn charge_up_to(&self, bytes: usize, max: usize) -> Result<(), ()> {
        let add = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= max);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).map(drop).map_err(drop)
    }

    fn give_back(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn return_all(&self, bytes: usize) {
        self.give_back(bytes);
        self.process.iter().for_each(|process| process.give_back(bytes));
    }
}

/// Why no more memory may be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BudgetExhaustion {
    /// The peer holds its maximum, this many bytes.
    Peer(usize),
    /// All peers together hold their maximum, this many bytes.
    Process(usize),
}

impl fmt::Display for BudgetExhaustion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BudgetExhaustion::Peer(max) => {
                write!(f, "this peer already holds the {} MiB of memory that it may hold here", max >> 20)
            }
            BudgetExhaustion::Process(max) => {
                write!(f, "all peers together already hold the {} MiB of memory that they may hold here", max >> 20)
            }
        }
    }
}

impl std::error::Error for BudgetExhaustion {}

/// What is left where [`ConnectionAllowance::cover_for_device`] found too little.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetShortage {
    /// What may still be taken, bytes.
    pub left_bytes: usize,
    /// The limit of the peer, or of all peers together, bytes.
    pub limit_bytes: usize,
}

/// Memory taken from an account; dropping this gives it back.
#[derive(Debug)]
pub struct MemoryCharge {
    account: Arc<MemoryAccount>,
    bytes: usize,
    /// Bytes of a device's credit beyond the smallest.
    extra: usize,
    is_device: bool,
}

impl MemoryCharge {
    /// How many bytes are taken.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for MemoryCharge {
    fn drop(&mut self) {
        self.account.return_all(self.bytes);
        self.account.extra.fetch_sub(self.extra, Ordering::Relaxed);
        if self.is_device {
            self.account.remove_device();
        }
    }
}

/// What one connection may hold: it compares its use with what it took, and takes more in steps.
#[derive(Debug, Default)]
pub struct ConnectionAllowance {
    /// `None`: not accounted; the connection's own limits bound it.
    account: Option<Arc<MemoryAccount>>,
    taken: usize,
}

impl ConnectionAllowance {
    /// Draws on `account`, and takes nothing yet.
    pub fn of(account: Arc<MemoryAccount>) -> Self {
        Self { account: Some(account), taken: 0 }
    }

    /// Whether the connection may now hold `bytes` in all; takes more if needed.
    #[inline]
    pub fn covers(&mut self, bytes: usize) -> bool {
        bytes <= self.taken || self.grow(bytes)
    }

    #[cold]
    fn grow(&mut self, bytes: usize) -> bool {
        let Some(account) = &self.account else { return true };
        let more = (bytes - self.taken).next_multiple_of(STEP_BYTES);
        let is_taken = account.charge(more).is_ok();
        self.taken += if is_taken { more } else { 0 };
        is_taken
    }

    /// As [`ConnectionAllowance::covers`], for a device that the peer opens next: it counts as a user of devices.
    /// Leaves [`LEFT_BYTES`] for its next sessions.
    ///
    /// # Errors
    /// [`BudgetShortage`].
    pub fn cover_for_device(&mut self, bytes: usize) -> Result<(), BudgetShortage> {
        let Some(account) = self.account.as_ref().filter(|_| bytes > self.taken) else { return Ok(()) };
        let more = (bytes - self.taken).next_multiple_of(STEP_BYTES);
        let (left_bytes, limit_bytes) = account.left_for_device();
        let is_taken = more <= left_bytes && account.charge_as(more, account.users()).is_ok();
        if !is_taken {
            return Err(BudgetShortage { left_bytes, limit_bytes });
        }
        self.taken += more;
        Ok(())
    }

    /// The connection now holds `bytes`: gives back what is far beyond that.
    #[inline]
    pub fn settle(&mut self, bytes: usize) {
        if self.taken > bytes + 4 * STEP_BYTES {
            self.shrink(bytes);
        }
    }

    #[cold]
    fn shrink(&mut self, bytes: usize) {
        let kept = bytes.next_multiple_of(STEP_BYTES) + STEP_BYTES;
        if let Some(account) = &self.account {
            account.return_all(self.taken - kept);
            self.taken = kept;
        }
    }

    /// Bytes taken so far.
    pub fn taken(&self) -> usize {
        self.taken
    }
}

impl Drop for ConnectionAllowance {
    fn drop(&mut self) {
        if let Some(account) = &self.account {
            account.return_all(self.taken);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn the_parts_of_a_session_and_of_a_connection_are_below_what_a_stranger_may_hold() {
        let budget = MemoryBudget::DEFAULT;
        let (session, connection) = (sum(&SESSION_PARTS), sum(&CONNECTION_PARTS));
        assert!(session < 7 * MIB && connection < MIB, "{session} {connection}");
        assert!(8 * session < budget.stranger_bytes, "a peer that asks has some sessions at a time");
        assert!(connection < 3 * SESSION_BYTES);
        assert!(budget.stranger_bytes < budget.peer_bytes && 4 * budget.peer_bytes <= budget.process_bytes);
    }

    #[test]
    fn the_devices_of_a_peer_together_are_below_what_it_may_hold() {
        let process = MemoryAccount::of_process(MemoryBudget::DEFAULT);
        for devices in [1, 2, 4, 8, 30, 200, 1000] {
            let peer = MemoryAccount::of_peer(&process);
            let mut all = Vec::new();
            let mut credits = Vec::new();
            while all.len() < devices {
                let Ok(base) = peer.take(SESSION_BYTES + CONNECTION_BYTES) else { break };
                let Ok((taken, credit)) = peer.take_for_device(devices, CREDIT_BYTES_MAX) else { break };
                all.push((base, taken));
                credits.push(credit);
                assert!(peer.used() <= 256 * MIB);
            }
            let (first, last) = (credits[0], credits[credits.len() - 1]);
            println!("{devices}: {} at once, {first} to {last} bytes in flight each", all.len());
            assert!(all.len() >= devices.min(190), "{} of {devices}", all.len());
            assert!(devices > 1 || last == CREDIT_BYTES_MAX);
            assert!(devices > 8 || last >= 12 * MIB, "{last}");
            assert!(first >= MIB - SESSION_BYTES, "{first}");
            drop(all);
            assert_eq!(peer.used(), 0);
        }
        assert_eq!(process.used(), 0);
    }

    #[test]
    fn a_thousand_devices_of_a_known_peer_fit_beside_what_its_busy_ones_hold() {
        let process = MemoryAccount::of_process(MemoryBudget::DEFAULT);
        let peer = MemoryAccount::of_known_peer(&process);
        let mut all = Vec::new();
        for number in 0..1000 {
            let base = peer.take(CONNECTION_BYTES).and_then(|connection| {
                let mut session = ConnectionAllowance::of(Arc::clone(&peer));
                assert!(session.covers(SESSION_BYTES), "session {number}: {} of {}", peer.used(), peer.max());
                Ok((connection, session, peer.take_for_device(1000, CREDIT_BYTES_MAX)?))
            });
            all.push(base.unwrap_or_else(|exhausted| panic!("device {number}: {exhausted}")));
        }
        let credits = all.iter().map(|(_, _, (_, credit))| *credit);
        assert!(credits.clone().min() >= Some(CREDIT_BYTES_MIN));
        let beyond: usize =
            all.iter().map(|(_, _, (taken, _))| taken.bytes() - attachment_bytes(CREDIT_BYTES_MIN)).sum();
        assert!(beyond <= MemoryBudget::DEFAULT.peer_bytes / 4 * 3, "{beyond} bytes of credit beyond the smallest");
        assert!(peer.left() >= MemoryBudget::DEFAULT.peer_bytes / 4, "sessions that begin have room: {}", peer.left());
        assert!(peer.used() <= MemoryBudget::DEFAULT.peer_bytes + 1000 * ROOM_BYTES);
        let stranger = MemoryAccount::of_peer(&process);
        assert!(stranger.take(64 * MIB).is_ok(), "others may hold what they could before");
        drop(all);
        assert_eq!((peer.used(), process.used(), peer.max(), process.max()), (0, 0, 64 * MIB, 1024 * MIB));
    }

    #[test]
    fn devices_of_a_peer_have_the_same_credit_whichever_comes_first() {
        let process = MemoryAccount::of_process(MemoryBudget::DEFAULT);
        for peer in [MemoryAccount::of_known_peer, MemoryAccount::of_peer] {
            for devices in [1, 2, 3, 4, 8, 30] {
                let peer = peer(&process);
                let all: Vec<_> =
                    (0..devices).map(|_| peer.take_for_device(devices, CREDIT_BYTES_MAX).unwrap()).collect();
                let credits: Vec<usize> = all.iter().map(|(_, credit)| *credit).collect();
                assert_eq!(credits, vec![(96 * MIB / devices).min(CREDIT_BYTES_MAX); devices]);
                let others: Vec<_> = (0..60).map_while(|_| peer.take(CONNECTION_BYTES + SESSION_BYTES).ok()).collect();
                assert_eq!(others.len(), 60, "{devices}: sessions that begin have room");
            }
        }
    }

    #[test]
    fn thirty_hosts_that_read_one_disk_have_each_enough() {
        let process = MemoryAccount::of_process(MemoryBudget::DEFAULT);
        let all: Vec<_> = (0..30)
            .map(|_| MemoryAccount::of_known_peer(&process).take_for_device(1, CREDIT_BYTES_MAX).unwrap())
            .collect();
        let credits: Vec<usize> = all.iter().map(|(_, credit)| *credit).collect();
        assert!(credits[0] == CREDIT_BYTES_MAX && credits[7] >= 24 * MIB && credits[29] >= MIB, "{credits:?}");
    }

    #[test]
    fn questions_of_a_peer_are_answered_when_its_devices_hold_all() {
        let process = MemoryAccount::of_process(MemoryBudget { process_bytes: 300 * MIB, ..MemoryBudget::DEFAULT });
        let peer = MemoryAccount::of_known_peer(&process);
        let _device = peer.take_for_device(1000, CREDIT_BYTES_MAX).unwrap();
        let _all = peer.take(peer.left()).unwrap();
        assert!(peer.take(1).is_err());
        assert!(MemoryAccount::of_questions(&process).take(MIB).is_ok());
    }

    #[test]
    fn the_document_says_the_same() {
        let document = include_str!("../../../docs/security.md");
        let budget = MemoryBudget::DEFAULT;
        let mut rows: Vec<String> =
            SESSION_PARTS.iter().map(|(part, bytes)| format!("| {part} | {} |", bytes >> 10)).collect();
        rows.push(format!("| a peer that uses no device, whatever it does | {} MiB |", budget.stranger_bytes >> 20));
        rows.push(format!("| a peer that uses devices | {} MiB (", budget.peer_bytes >> 20));
        rows.push(format!("| all peers together | {} MiB,", budget.process_bytes >> 20));
        let session = CONNECTION_BYTES + SESSION_BYTES;
        rows.push(format!("A session takes {} KiB when it begins", session >> 10));
        rows.push(format!(
            "| a paired host, or a user of this machine, for each device that it uses | {} KiB more",
            ROOM_BYTES >> 10
        ));
        rows.push(format!("{} devices", budget.devices_max));
        for row in rows {
            assert!(document.contains(&row), "docs/security.md, \"Memory\", does not say: {row}");
        }
    }

    #[test]
    fn a_peer_without_a_device_is_stopped_sooner_and_leaves_half_to_others() {
        let process = MemoryAccount::of_process(MemoryBudget {
            stranger_bytes: 8,
            peer_bytes: 16,
            process_bytes: 24,
            ..MemoryBudget::DEFAULT
        });
        let (a, b) = (MemoryAccount::of_peer(&process), MemoryAccount::of_peer(&process));
        let of_a = a.take(8).unwrap();
        assert_eq!(a.take(1).unwrap_err(), BudgetExhaustion::Peer(8));
        let of_b = b.take(4).unwrap();
        assert_eq!(b.take(1).unwrap_err(), BudgetExhaustion::Process(12));
        assert_eq!((b.used(), process.used()), (4, 12), "what was not had was given back");
        drop((of_a, of_b));
        assert_eq!((a.used(), process.used()), (0, 0));
    }

    #[test]
    fn peer_without_its_last_device_has_the_smaller_limit_again() {
        let process = MemoryAccount::of_process(MemoryBudget::DEFAULT);
        let peer = MemoryAccount::of_peer(&process);
        assert_eq!(peer.max(), 64 * MIB);
        let (device, credit) = peer.take_for_device(1, CREDIT_BYTES_MAX).unwrap();
        assert_eq!((credit, device.bytes(), peer.max()), (64 * MIB, 128 * MIB, 256 * MIB));
        drop(device);
        assert_eq!((peer.max(), peer.used()), (64 * MIB, 0));
    }

    #[test]
    fn what_is_taken_for_speed_leaves_enough_for_what_others_need() {
        let process = MemoryAccount::of_process(MemoryBudget::DEFAULT);
        let mut taken = Vec::new();
        for host in 0..200 {
            let peer = MemoryAccount::of_known_peer(&process);
            for connection in 0..8 {
                let needed = peer.take(CONNECTION_BYTES + SESSION_BYTES);
                assert!(needed.is_ok() || host >= 64, "connection {connection} of host {host} begins");
                taken.extend(needed);
                taken.extend(peer.take(peer.left_for_speed()));
            }
        }
        let peer = MemoryAccount::of_known_peer(&process);
        assert!(peer.take_for_device(1, CREDIT_BYTES_MAX).is_ok(), "peers with a device have the other half");
    }

    #[test]
    fn an_allowance_takes_in_steps_and_gives_back() {
        let process =
            MemoryAccount::of_process(MemoryBudget { stranger_bytes: 4 * STEP_BYTES, ..MemoryBudget::DEFAULT });
        let peer = MemoryAccount::of_peer(&process);
        let mut allowance = ConnectionAllowance::of(Arc::clone(&peer));
        assert!(allowance.covers(1) && peer.used() == STEP_BYTES);
        assert!(allowance.covers(3 * STEP_BYTES) && peer.used() == 3 * STEP_BYTES);
        assert!(!allowance.covers(5 * STEP_BYTES) && peer.used() == 3 * STEP_BYTES);
        assert!(allowance.covers(4 * STEP_BYTES));
        allowance.settle(0);
        assert_eq!(peer.used(), 4 * STEP_BYTES, "a little more than is held is kept");
        drop(allowance);
        assert_eq!(peer.used(), 0);
        assert!(ConnectionAllowance::default().covers(usize::MAX), "without an account nothing is counted");
    }
}
