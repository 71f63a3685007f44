//! A medium that may be exchanged while it is in use (requirement N12).
//!
//! Nothing is held while anything is copied or made durable. For the last moments what is written to the source follows to the
//! destination by itself, and everybody waits for one thing only: that all pointers change at once. Every handle goes by itself from one
//! mode to the next, at its next request, or is taken along by whoever swaps:
//!
//! | mode | read from | a change goes to | and is |
//! |---|---|---|---|
//! | `Alone` | the medium | the medium | |
//! | `Noting` | the source | the source | noted as to be copied, after it was made |
//! | `Both` | the source | the source, then the [`Trail`] to the destination | made and noted while its granules are held: both media are changed in one order |
//! | `Alone` | the destination | the destination | |
//!
//! A mode begins when every handle has reached the one before, so two neighbouring ones are all that is ever found side by side:
//!
//! | side by side | why that is right |
//! |---|---|
//! | `Alone`, `Noting` | nothing has been copied yet, and everything is still to be |
//! | `Noting`, `Both` | what the first changes is copied again, later |
//! | `Both`, `Alone` | never: [`Shared::flip`] has all handles at once, and the trail at its end |
//!
//! Who copies in `Both` does it in the trail's turn: what was changed before is read, what is changed meanwhile follows. So whoever
//! writes never waits for a copy. Whoever finds the trail long goes a step along it for each of his own; so it ends, however fast he writes.
//!
//! Up to `Both` the source is complete; from `Both` on, once what was noted has been copied and made durable, the destination is
//! too, but for what was never flushed. A flush is answered in `Both` when the trail is at its end and both are durable. So the line of
//! the journal that says which of the two the device is may be written at any moment of that time, and a power cut before, during and
//! after it leaves one complete device. Should the destination fail between that line and the flip, flushes fail until another line takes
//! it back.

use std::borrow::Cow;
use std::fmt;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};

use farbus_model::{BlockStore, Medium, StoreError};

use super::granules::Granules;
use super::stripes::Stripes;
use super::trail::{Change, Trail};

/// A medium behind which another may be put while it is in use. Its handles go on; its size stays.
#[derive(Clone)]
pub struct Switch {
    shared: Arc<Shared>,
}

/// What a switch, its handles and whoever swaps have in common.
pub(super) struct Shared {
    pub size_bytes: u64,
    pub is_read_only: bool,
    preferred_bytes: u32,
    /// That of the plan. A handle that has another looks at the plan.
    edition: AtomicU64,
    gate: Mutex<Gate>,
}

/// The plan, and who follows it. Its lock is taken before a handle's, never after it: whoever has it may have them all.
struct Gate {
    current: Arc<dyn Medium>,
    slots: Vec<Weak<Slot>>,
    edition: u64,
    mode: Mode,
    swap: Option<Arc<Tandem>>,
    /// Handles on the destination for those that are there when a swap begins.
    spares: Vec<Box<dyn BlockStore>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Alone,
    Noting,
    Both,
}

/// Two media, one of which takes the other's place.
pub(super) struct Tandem {
    pub destination: Arc<dyn Medium>,
    /// What the destination does not have yet.
    pub dirty: Granules,
    /// Held by whoever changes the source and says so to the trail, as far as he does: both in one order.
    pub both: Stripes,
    /// What the source has and the destination is to have.
    pub trail: Trail,
    /// The source refused a change that the trail knows nothing of: something is noted again.
    has_strayed: AtomicBool,
    trouble: Mutex<Trouble>,
}

/// What went wrong with the destination while both were written.
#[derive(Default)]
struct Trouble {
    first: Option<(u64, StoreError)>,
    /// From here on the destination may be the device after a power cut: what it does not have is not durable.
    is_decided: bool,
}

/// What a handle is made of. Its own thread locks it for each request, and nobody else but for a moment in a swap.
struct Slot {
    reached: AtomicU64,
    lanes: Mutex<Lanes>,
}

struct Lanes {
    main: Box<dyn BlockStore>,
    other: Option<Box<dyn BlockStore>>,
    edition: u64,
    mode: Mode,
    swap: Option<Arc<Tandem>>,
}

/// A handle on whatever medium is behind the switch.
pub struct SwitchStore {
    shared: Arc<Shared>,
    slot: Arc<Slot>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is behind it is right after each statement: a store that panicked does not spoil it.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gate = lock(&self.shared.gate);
        f.debug_struct("Switch").field("size_bytes", &self.shared.size_bytes).field("mode", &gate.mode).finish()
    }
}

impl fmt::Debug for SwitchStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SwitchStore").field("size_bytes", &self.shared.size_bytes).finish_non_exhaustive()
    }
}

impl Switch {
    /// With `medium` behind it.
    ///
    /// # Errors
    /// A sentence for a person: the medium cannot be opened.
    pub fn new(medium: Arc<dyn Medium>) -> Result<Self, String> {
        let store = medium.open()?;
        let gate = Gate {
            current: Arc::clone(&medium),
            slots: Vec::new(),
            edition: 0,
            mode: Mode::Alone,
            swap: None,
            spares: Vec::new(),
        };
        let shared = Shared {
            size_bytes: store.size_bytes(),
            is_read_only: store.is_read_only(),
            preferred_bytes: medium.preferred_bytes(),
            edition: AtomicU64::new(0),
            gate: Mutex::new(gate),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Its size, bytes: constant, whatever is put behind it.
    pub fn size_bytes(&self) -> u64 {
        self.shared.size_bytes
    }

    /// Whether it is only read.
    pub fn is_read_only(&self) -> bool {
        self.shared.is_read_only
    }

    /// Whether another medium is being put behind it.
    pub fn is_swapping(&self) -> bool {
        lock(&self.shared.gate).swap.is_some()
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Medium for Switch {
    fn open(&self) -> Result<Box<dyn BlockStore>, String> {
        let mut gate = lock(&self.shared.gate);
        let main = gate.current.open()?;
        let other = gate.swap.as_ref().map(|swap| swap.destination.open()).transpose()?;
        let (edition, mode, swap) = (gate.edition, gate.mode, gate.swap.clone());
        let lanes = Lanes { main, other, edition, mode, swap };
        let slot = Arc::new(Slot { reached: AtomicU64::new(edition), lanes: Mutex::new(lanes) });
        gate.slots.retain(|slot| slot.strong_count() > 0);
        gate.slots.push(Arc::downgrade(&slot));
        Ok(Box::new(SwitchStore { shared: Arc::clone(&self.shared), slot }))
    }

    fn preferred_bytes(&self) -> u32 {
        self.shared.preferred_bytes
    }
}

/// Why no swap can begin.
pub(super) enum Unready {
    AnotherSwap,
    /// The destination cannot be opened so often.
    Destination(String),
}

impl Shared {
    /// A handle on the medium that is there now, for whoever copies it.
    pub fn open_current(&self) -> Result<Box<dyn BlockStore>, String> {
        lock(&self.gate).current.open()
    }

    /// Begins to note what is changed; [`Shared::has_everybody`] says when everybody does.
    pub fn begin(&self, destination: Arc<dyn Medium>) -> Result<Arc<Tandem>, Unready> {
        let mut gate = lock(&self.gate);
        if gate.swap.is_some() {
            return Err(Unready::AnotherSwap);
        }
        gate.slots.retain(|slot| slot.strong_count() > 0);
        let spares = (0..gate.slots.len()).map(|_| destination.open()).collect::<Result<_, _>>();
        gate.spares = spares.map_err(Unready::Destination)?;
        let dirty = Granules::all_of(self.size_bytes);
        let tandem = Arc::new(Tandem {
            destination,
            both: Stripes::new(dirty.granule_bytes()),
            dirty,
            trail: Trail::default(),
            has_strayed: AtomicBool::new(false),
            trouble: Mutex::default(),
        });
        gate.swap = Some(Arc::clone(&tandem));
        self.publish(&mut gate, Mode::Noting);
        Ok(tandem)
    }

    /// Asks everybody to go on to the next mode of the swap.
    pub fn go_on(&self, mode: Mode) {
        self.publish(&mut lock(&self.gate), mode);
    }

    /// Ends the swap as if it had never been.
    pub fn end(&self) {
        let mut gate = lock(&self.gate);
        gate.swap = None;
        gate.spares.clear();
        self.publish(&mut gate, Mode::Alone);
    }

    /// Puts the destination in the source's place for everybody at once, which ends the swap. Whoever begins a request meanwhile waits:
    /// for those that are under way, and for the end of the trail. Handles that are busy are looked at so often, all together, before
    /// everybody goes on: fifty nanoseconds each or so.
    pub fn flip(&self, destination: &mut dyn BlockStore, looks_max: u32) -> Flip {
        let mut gate = lock(&self.gate);
        let Some(tandem) = gate.swap.clone() else { return Flip::Done };
        let slots: Vec<Arc<Slot>> = gate.slots.iter().filter_map(Weak::upgrade).collect();
        // From here on who begins a request comes to the gate.
        self.publish(&mut gate, Mode::Both);
        let mut all = Vec::with_capacity(slots.len());
        let mut looks = 0;
        for slot in &slots {
            let lanes = loop {
                match slot.lanes.try_lock() {
                    Ok(lanes) => break lanes,
                    Err(TryLockError::Poisoned(lanes)) => break lanes.into_inner(),
                    Err(TryLockError::WouldBlock) if looks >= looks_max => return Flip::Busy,
                    Err(TryLockError::WouldBlock) => spin_loop(),
                }
                looks += 1;
            };
            all.push(lanes);
        }
        tandem.catch_up(destination);
        if tandem.trouble().is_some() || tandem.has_strayed() {
            return Flip::Incomplete;
        }
        gate.swap = None;
        gate.spares.clear();
        gate.current = Arc::clone(&tandem.destination);
        self.publish(&mut gate, Mode::Alone);
        let left: Vec<_> = slots.iter().zip(&mut all).map(|(slot, lanes)| lanes.flip(gate.edition, slot)).collect();
        drop((all, gate));
        // Closing what was left behind takes its time, and nobody waits for it any more.
        drop(left);
        Flip::Done
    }

    fn publish(&self, gate: &mut Gate, mode: Mode) {
        gate.mode = mode;
        gate.edition += 1;
        self.edition.store(gate.edition, Ordering::Release);
    }

    /// Takes along whoever has nothing to do; says whether all handles are where the plan is.
    pub fn has_everybody(&self) -> bool {
        let mut gate = lock(&self.gate);
        let slots: Vec<_> = gate.slots.iter().filter_map(Weak::upgrade).collect();
        let mut has_everybody = true;
        for slot in slots {
            match slot.lanes.try_lock() {
                Ok(mut lanes) => lanes.catch_up(&mut gate, &slot),
                Err(TryLockError::Poisoned(lanes)) => lanes.into_inner().catch_up(&mut gate, &slot),
                // It has a request under way, and catches up with its next one.
                Err(TryLockError::WouldBlock) => {
                    has_everybody &= slot.reached.load(Ordering::Acquire) == gate.edition;
                }
            }
        }
        has_everybody
    }
}

/// What became of a flip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flip {
    /// The destination is the device.
    Done,
    /// Somebody's request takes long: all go on as before.
    Busy,
    /// The destination lacks something: all go on as before.
    Incomplete,
}

impl Tandem {
    /// Goes to the end of the trail.
    pub fn catch_up(&self, destination: &mut dyn BlockStore) {
        self.trail.turn().catch_up(destination, |offset, error| self.note_trouble(offset, error));
    }

    /// Goes along the trail, which is to end soon. Says how many changes wait after it.
    pub fn follow(&self, destination: &mut dyn BlockStore) -> usize {
        self.trail.shorten();
        self.trail.follow(destination, |offset, error| self.note_trouble(offset, error))
    }

    /// Whether something was noted again that had been copied.
    pub fn has_strayed(&self) -> bool {
        self.has_strayed.load(Ordering::Acquire)
    }

    /// What was noted again is about to be copied.
    pub fn go_back(&self) {
        self.has_strayed.store(false, Ordering::Release);
    }

    /// The destination failed to follow.
    pub fn note_trouble(&self, offset: u64, error: StoreError) {
        lock(&self.trouble).first.get_or_insert((offset, error));
    }

    /// What went wrong with the destination, and where.
    pub fn trouble(&self) -> Option<(u64, StoreError)> {
        lock(&self.trouble).first
    }

    /// Why a flush has failed although the source is durable: the destination may be the device after a power cut, and is not complete.
    fn why_not_durable(&self) -> Result<(), StoreError> {
        let trouble = lock(&self.trouble);
        trouble.first.filter(|_| trouble.is_decided).map_or(Ok(()), |(_, error)| Err(error))
    }

    /// The destination is about to become the device, unless something went wrong with it.
    pub fn decide(&self) -> Result<(), (u64, StoreError)> {
        let mut trouble = lock(&self.trouble);
        match trouble.first {
            Some(trouble) => Err(trouble),
            None => {
                trouble.is_decided = true;
                Ok(())
            }
        }
    }
}

impl Lanes {
    fn catch_up(&mut self, gate: &mut Gate, slot: &Slot) {
        if self.edition == gate.edition {
            return;
        }
        match gate.mode {
            Mode::Alone => self.other = None,
            Mode::Noting => self.other = gate.spares.pop(),
            // Whoever is here has noted before: everybody waits for everybody.
            Mode::Both => debug_assert!(self.other.is_some(), "a handle notes before it writes both"),
        }
        (self.edition, self.mode) = (gate.edition, gate.mode);
        self.swap.clone_from(&gate.swap);
        slot.reached.store(self.edition, Ordering::Release);
    }

    /// Goes on with the destination alone; what it leaves is for the caller to close.
    fn flip(&mut self, edition: u64, slot: &Slot) -> Option<Box<dyn BlockStore>> {
        let left = self.other.take().map(|destination| std::mem::replace(&mut self.main, destination));
        (self.edition, self.mode, self.swap) = (edition, Mode::Alone, None);
        slot.reached.store(edition, Ordering::Release);
        left
    }

    fn change(&mut self, change: Change<'_>) -> Result<(), StoreError> {
        let (Some(tandem), Some(other)) = (&self.swap, &mut self.other) else { return change.make(&mut *self.main) };
        let (offset, length) = (change.offset(), change.length());
        match self.mode {
            Mode::Alone => change.make(&mut *self.main),
            Mode::Noting => {
                let _after = Noted { dirty: &tandem.dirty, offset, length };
                change.make(&mut *self.main)
            }
            Mode::Both => {
                let held = tandem.both.hold(offset, length);
                if let Err(error) = change.make(&mut *self.main) {
                    // Nobody knows what is there now: it is copied as it is.
                    tandem.dirty.add(offset, length);
                    tandem.has_strayed.store(true, Ordering::Release);
                    return Err(error);
                }
                let is_much = tandem.trail.add(change);
                drop(held);
                if is_much {
                    tandem.trail.help(&mut **other, |offset, error| tandem.note_trouble(offset, error));
                }
                Ok(())
            }
        }
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        self.main.flush()?;
        match (&self.swap, &mut self.other) {
            (Some(tandem), Some(other)) if self.mode == Mode::Both => {
                tandem.catch_up(&mut **other);
                if let Err(error) = other.flush() {
                    tandem.note_trouble(0, error);
                }
                tandem.why_not_durable()
            }
            _ => Ok(()),
        }
    }
}

/// Notes a change when it has been made, whatever became of it: a copy made meanwhile has to be made again.
struct Noted<'a> {
    dirty: &'a Granules,
    offset: u64,
    length: u64,
}

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        self.dirty.add(self.offset, self.length);
    }
}

impl SwitchStore {
    fn lanes(&self) -> MutexGuard<'_, Lanes> {
        let lanes = lock(&self.slot.lanes);
        if lanes.edition == self.shared.edition.load(Ordering::Acquire) {
            return lanes;
        }
        drop(lanes);
        let mut gate = lock(&self.shared.gate);
        let mut lanes = lock(&self.slot.lanes);
        lanes.catch_up(&mut gate, &self.slot);
        lanes
    }

    fn change(&mut self, change: Change<'_>) -> Result<(), StoreError> {
        // The medium behind it may become one that can be written.
        if self.shared.is_read_only {
            return Err(StoreError::ReadOnly);
        }
        self.lanes().change(change)
    }
}

impl BlockStore for SwitchStore {
    fn size_bytes(&self) -> u64 {
        self.shared.size_bytes
    }

    fn is_read_only(&self) -> bool {
        self.shared.is_read_only
    }

    fn read_at(&mut self, offset: u64, to: &mut [u8]) -> Result<(), StoreError> {
        self.lanes().main.read_at(offset, to)
    }

    fn write_at(&mut self, offset: u64, from: &[u8]) -> Result<(), StoreError> {
        self.change(Change::Write { offset, bytes: Cow::Borrowed(from) })
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        self.lanes().flush()
    }

    fn discard(&mut self, offset: u64, length: u64) -> Result<(), StoreError> {
        self.change(Change::Discard { offset, length })
    }

    fn write_zeroes(&mut self, offset: u64, length: u64) -> Result<(), StoreError> {
        self.change(Change::WriteZeroes { offset, length })
    }
}
