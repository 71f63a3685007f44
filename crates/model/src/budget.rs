//! How much memory a peer may make this process hold, accounted in one place.
//!
//! A peer is a paired host, identified by its key, or all clients at one address. All its connections, links and
//! sessions draw on one [`Account`]; all accounts draw on the process's. A connection takes memory in large pieces:
//! when it begins, when a device is opened, or when it has outgrown what it took ([`Allowance`]). It gives the memory
//! back when the connection or the device is closed. Between these moments a connection compares numbers of its own,
//! and touches no shared memory.
//!
//! | who | may hold | of which each part is in |
//! |---|---|---|
//! | a peer that uses no device | [`Budget::stranger_bytes`] | [`SESSION_PARTS`], [`CONNECTION_PARTS`] |
//! | a peer that uses one or more | [`Budget::peer_bytes`] | the same, and [`credit_bytes`] of each device twice: on its way, and unacknowledged |
//! | all peers | [`Budget::process_bytes`], the second half of which is for peers that use a device | |

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::limits::{CREDIT_BYTES_MAX, CREDIT_BYTES_MIN};

/// What peers may make a process hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Limit of a peer that uses no device, bytes.
    pub stranger_bytes: usize,
    /// Limit of a peer that uses at least one device, bytes.
    pub peer_bytes: usize,
    /// Limit of all peers together, bytes.
    pub process_bytes: usize,
}

impl Budget {
    /// The default: four peers may use their full limit; the rest is for peers that use little.
    pub const DEFAULT: Budget = Budget { stranger_bytes: 64 << 20, peer_bytes: 256 << 20, process_bytes: 1 << 30 };

    /// Sets the limit of a peer that uses devices. All peers together get four times that, if it is more than the
    /// default.
    #[must_use]
    pub const fn with_peer_bytes(self, bytes: usize) -> Self {
        let process_bytes =
            if bytes.saturating_mul(4) > self.process_bytes { bytes.saturating_mul(4) } else { self.process_bytes };
        Budget {
            stranger_bytes: if bytes < self.stranger_bytes { bytes } else { self.stranger_bytes },
            peer_bytes: bytes,
            process_bytes,
        }
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self::DEFAULT
    }
}

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

/// The most that a session without a device holds, part by part.
pub const SESSION_PARTS: [(&str, usize); 8] = [
    ("received and not understood", 256 << 10),
    ("answers that wait for the link", ANSWERS_BYTES_MAX + 2 * PROMPT_ANSWERS_BYTES_MAX),
    ("answers sent and not acknowledged", UNACKNOWLEDGED_BYTES_MIN),
    ("requests that wait for answers to be taken", WAITING_REQUESTS_BYTES_MAX),
    ("modules that were asked for", OFFERS_BYTES_MAX),
    ("devices that were asked for", ASKED_MAX * (3 << 10)),
    ("the encrypted link", 512 << 10),
    ("a thread", 128 << 10),
];

/// The most that a USB/IP connection without a device holds, part by part.
pub const CONNECTION_PARTS: [(&str, usize); 3] =
    [("received and not understood", 256 << 10), ("the encrypted link", 512 << 10), ("a thread", 128 << 10)];

/// The sum of parts.
pub const fn sum(parts: &[(&str, usize)]) -> usize {
    let (mut at, mut all) = (0, 0);
    while at < parts.len() {
        all += parts[at].1;
        at += 1;
    }
    all
}

/// The credit of one more device, bytes: a fair part of the peer's limit if it used `devices` devices, or more while
/// the peer uses little of its limit. `left` is what the peer may still take.
pub fn credit_bytes(budget: &Budget, left: usize, devices: usize) -> usize {
    let session_bytes = CONNECTION_BYTES + SESSION_BYTES + 2 * STEP_BYTES;
    let fair = (budget.peer_bytes / devices.max(1)).saturating_sub(session_bytes) / 2;
    fair.max(left / 256).clamp(CREDIT_BYTES_MIN, CREDIT_BYTES_MAX)
}

/// What a device with this credit takes of its user's account: the credit twice, once for data under way and once for
/// unacknowledged data.
pub const fn attachment_bytes(credit_bytes: usize) -> usize {
    credit_bytes + if credit_bytes < 16 << 20 { credit_bytes } else { 16 << 20 }
}

/// What a peer or the process holds, and may hold.
#[derive(Debug)]
pub struct Account {
    used: AtomicUsize,
    /// Devices in use by the peer.
    devices: AtomicUsize,
    budget: Budget,
    process: Option<Arc<Account>>,
}

impl Account {
    /// Makes the account that the accounts of all peers draw on.
    pub fn of_process(budget: Budget) -> Arc<Self> {
        Arc::new(Self { used: AtomicUsize::new(0), devices: AtomicUsize::new(0), budget, process: None })
    }

    /// Makes the account of one peer, which draws on the process's account.
    pub fn of_peer(process: &Arc<Account>) -> Arc<Self> {
        let (used, devices, budget) = (AtomicUsize::new(0), AtomicUsize::new(0), process.budget);
        Arc::new(Self { used, devices, budget, process: Some(Arc::clone(process)) })
    }

    /// Bytes held.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Bytes that may be held now.
    pub fn max(&self) -> usize {
        match (&self.process, self.devices.load(Ordering::Relaxed)) {
            (None, _) => self.budget.process_bytes,
            (Some(_), 0) => self.budget.stranger_bytes,
            (Some(_), _) => self.budget.peer_bytes,
        }
    }

    /// Bytes that may still be taken.
    pub fn left(&self) -> usize {
        let own = self.max().saturating_sub(self.used());
        self.process.as_ref().map_or(own, |process| own.min(process.left()))
    }

    /// The budget that sets the limits.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Takes `bytes` until the returned value is dropped.
    ///
    /// # Errors
    /// [`Exhausted`].
    pub fn take(self: &Arc<Self>, bytes: usize) -> Result<Taken, Exhausted> {
        self.charge(bytes)?;
        Ok(Taken { account: Arc::clone(self), bytes, is_device: false })
    }

    /// Takes memory for a device: the peer counts as a user of devices until the returned value is dropped. Also
    /// returns the device's credit, where the peer could use `devices` in all.
    ///
    /// # Errors
    /// [`Exhausted`].
    pub fn take_for_device(self: &Arc<Self>, devices: usize) -> Result<(Taken, usize), Exhausted> {
        self.devices.fetch_add(1, Ordering::Relaxed);
        let mut credit = credit_bytes(&self.budget, self.left(), devices);
        loop {
            match self.charge(attachment_bytes(credit)) {
                Ok(()) => {
                    let bytes = attachment_bytes(credit);
                    return Ok((Taken { account: Arc::clone(self), bytes, is_device: true }, credit));
                }
                Err(exhausted) if credit == CREDIT_BYTES_MIN => {
                    self.devices.fetch_sub(1, Ordering::Relaxed);
                    return Err(exhausted);
                }
                Err(_) => credit = (credit / 2).max(CREDIT_BYTES_MIN),
            }
        }
    }

    /// Takes a fixed number of bytes for a device, instead of a part of what is left.
    ///
    /// # Errors
    /// [`Exhausted`].
    pub fn take_fixed_for_device(self: &Arc<Self>, bytes: usize) -> Result<Taken, Exhausted> {
        self.devices.fetch_add(1, Ordering::Relaxed);
        let charged = self.charge(bytes);
        if charged.is_err() {
            self.devices.fetch_sub(1, Ordering::Relaxed);
        }
        charged.map(|()| Taken { account: Arc::clone(self), bytes, is_device: true })
    }

    fn charge(&self, bytes: usize) -> Result<(), Exhausted> {
        let max = self.max();
        self.charge_up_to(bytes, max).map_err(|()| Exhausted::Peer(max))?;
        let Some(process) = &self.process else { return Ok(()) };
        // Peers without a device leave half of the process's budget to those with one.
        let is_stranger = self.devices.load(Ordering::Relaxed) == 0;
        let max = process.max() / if is_stranger { 2 } else { 1 };
        process.charge_up_to(bytes, max).map_err(|()| {
            self.give_back(bytes);
            Exhausted::Process(max)
        })
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
pub enum Exhausted {
    /// The peer holds its maximum, this many bytes.
    Peer(usize),
    /// All peers together hold their maximum, this many bytes.
    Process(usize),
}

impl fmt::Display for Exhausted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Exhausted::Peer(max) => {
                write!(f, "this peer already holds the {} MiB of memory that it may hold here", max >> 20)
            }
            Exhausted::Process(max) => {
                write!(f, "all peers together already hold the {} MiB of memory that they may hold here", max >> 20)
            }
        }
    }
}

impl std::error::Error for Exhausted {}

/// Memory taken from an account; dropping this gives it back.
#[derive(Debug)]
pub struct Taken {
    account: Arc<Account>,
    bytes: usize,
    is_device: bool,
}

impl Taken {
    /// How many bytes are taken.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.account.return_all(self.bytes);
        if self.is_device {
            self.account.devices.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// What one connection may hold: it compares its use with what it took, and takes more in steps.
#[derive(Debug, Default)]
pub struct Allowance {
    /// `None`: not accounted; the connection's own limits bound it.
    account: Option<Arc<Account>>,
    taken: usize,
}

impl Allowance {
    /// Draws on `account`, and takes nothing yet.
    pub fn of(account: Arc<Account>) -> Self {
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

impl Drop for Allowance {
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
        let budget = Budget::DEFAULT;
        let (session, connection) = (sum(&SESSION_PARTS), sum(&CONNECTION_PARTS));
        assert!(session < 7 * MIB && connection < MIB, "{session} {connection}");
        assert!(8 * session < budget.stranger_bytes, "a peer that asks has some sessions at a time");
        assert!(connection < 3 * SESSION_BYTES);
        assert!(budget.stranger_bytes < budget.peer_bytes && 4 * budget.peer_bytes <= budget.process_bytes);
    }

    #[test]
    fn the_devices_of_a_peer_together_are_below_what_it_may_hold() {
        let process = Account::of_process(Budget::DEFAULT);
        for devices in [1, 2, 4, 8, 30, 200, 1000] {
            let peer = Account::of_peer(&process);
            let mut all = Vec::new();
            let mut credits = Vec::new();
            while all.len() < devices {
                let Ok(base) = peer.take(SESSION_BYTES + CONNECTION_BYTES) else { break };
                let Ok((taken, credit)) = peer.take_for_device(devices) else { break };
                all.push((base, taken));
                credits.push(credit);
                assert!(peer.used() <= 256 * MIB);
            }
            let (first, last) = (credits[0], credits[credits.len() - 1]);
            println!("{devices}: {} at once, {first} to {last} bytes in flight each", all.len());
            assert!(all.len() >= devices.min(190), "{} of {devices}", all.len());
            assert!(devices > 2 || last == CREDIT_BYTES_MAX);
            assert!(devices > 8 || last >= 15 * MIB, "{last}");
            assert!(first >= MIB - SESSION_BYTES, "{first}");
            drop(all);
            assert_eq!(peer.used(), 0);
        }
        assert_eq!(process.used(), 0);
    }

    #[test]
    fn the_document_says_the_same() {
        let document = include_str!("../../../docs/security.md");
        let budget = Budget::DEFAULT;
        let mut rows: Vec<String> =
            SESSION_PARTS.iter().map(|(part, bytes)| format!("| {part} | {} |", bytes >> 10)).collect();
        rows.push(format!("| a peer that uses no device, whatever it does | {} MiB |", budget.stranger_bytes >> 20));
        rows.push(format!("| a peer that uses devices | {} MiB (", budget.peer_bytes >> 20));
        rows.push(format!("| all peers together | {} MiB,", budget.process_bytes >> 20));
        let session = CONNECTION_BYTES + SESSION_BYTES;
        rows.push(format!("A session takes {} KiB when it begins", session >> 10));
        for row in rows {
            assert!(document.contains(&row), "docs/security.md, \"Memory\", does not say: {row}");
        }
    }

    #[test]
    fn a_peer_without_a_device_is_stopped_sooner_and_leaves_half_to_others() {
        let process = Account::of_process(Budget { stranger_bytes: 8, peer_bytes: 16, process_bytes: 24 });
        let (a, b) = (Account::of_peer(&process), Account::of_peer(&process));
        let of_a = a.take(8).unwrap();
        assert_eq!(a.take(1).unwrap_err(), Exhausted::Peer(8));
        let of_b = b.take(4).unwrap();
        assert_eq!(b.take(1).unwrap_err(), Exhausted::Process(12));
        assert_eq!((b.used(), process.used()), (4, 12), "what was not had was given back");
        drop((of_a, of_b));
        assert_eq!((a.used(), process.used()), (0, 0));
    }

    #[test]
    fn peer_without_its_last_device_has_the_smaller_limit_again() {
        let process = Account::of_process(Budget::DEFAULT);
        let peer = Account::of_peer(&process);
        assert_eq!(peer.max(), 64 * MIB);
        let (device, credit) = peer.take_for_device(1).unwrap();
        assert_eq!((credit, device.bytes(), peer.max()), (32 * MIB, 48 * MIB, 256 * MIB));
        drop(device);
        assert_eq!((peer.max(), peer.used()), (64 * MIB, 0));
    }

    #[test]
    fn an_allowance_takes_in_steps_and_gives_back() {
        let process = Account::of_process(Budget { stranger_bytes: 4 * STEP_BYTES, ..Budget::DEFAULT });
        let peer = Account::of_peer(&process);
        let mut allowance = Allowance::of(Arc::clone(&peer));
        assert!(allowance.covers(1) && peer.used() == STEP_BYTES);
        assert!(allowance.covers(3 * STEP_BYTES) && peer.used() == 3 * STEP_BYTES);
        assert!(!allowance.covers(5 * STEP_BYTES) && peer.used() == 3 * STEP_BYTES);
        assert!(allowance.covers(4 * STEP_BYTES));
        allowance.settle(0);
        assert_eq!(peer.used(), 4 * STEP_BYTES, "a little more than is held is kept");
        drop(allowance);
        assert_eq!(peer.used(), 0);
        assert!(Allowance::default().covers(usize::MAX), "without an account nothing is counted");
    }
}
