//! A medium that can be exchanged while it is in use (requirement N12).
//!
//! No request waits for the switch itself: shortly before it, both media are written; after it, either may be read.
//! Each handle goes from one mode to the next by itself, at its next request, or the thread that runs the swap moves
//! it:
//!
//! | mode | reads from | writes to | and the change is |
//! |---|---|---|---|
//! | `Alone` | the medium | the medium | |
//! | `Noting` | the source | the source | recorded as to be copied, after it was made |
//! | `Both` | the source | the source, then the destination unless all of the range is still to be copied | made with its granules locked, as they are while they are copied |
//! | `Flipped` | the destination | the source, then the destination | made the same way |
//! | `Alone` | the destination | the destination | |
//!
//! A mode begins when every handle has reached the one before, so at any time handles are in at most two neighbouring
//! modes:
//!
//! | neighbouring modes | why that is correct |
//! |---|---|
//! | `Alone`, `Noting` | nothing has been copied yet, and everything is still to be copied |
//! | `Noting`, `Both` | a change made in `Noting` is copied again later, with its granules locked |
//! | `Both`, `Flipped` | an answered change is on both media, so either may be read |
//! | `Flipped`, `Alone` | no handle reads the source any more |
//!
//! A request during the switch takes as long as both media need for it, and waits for nothing else. With a slow
//! destination, writes slow down to its speed shortly before it becomes the device.
//!
//! Up to and including `Both`, the source is complete. In `Both`, once the recorded changes have been copied and made
//! durable, the destination is complete, too. In `Both`, a flush is answered when both media are durable. The journal's
//! note which of the two is the device may therefore be written at any moment of that time: a power cut before, during
//! or after it leaves one complete device. Shortly before that note, an error of either medium becomes an error of the
//! request.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, Weak};
use std::time::Duration;

use farbus_model::{BlockMedium, BlockStore, Instant, StoreError, StoreExtent};

use super::granules::GranuleSet;
use super::stripes::StripedLocks;

/// A medium that can be replaced while it is in use. Its handles stay valid; its size stays the same.
#[derive(Clone)]
pub struct MediumSwitch {
    shared: Arc<MediumSwitchInner>,
}

/// State shared by a switch, its handles and a running swap.
pub(super) struct MediumSwitchInner {
    pub size_bytes: u64,
    pub is_read_only: bool,
    preferred_bytes: u32,
    /// The edition of the state below. A handle that has another edition looks at the state.
    edition: AtomicU64,
    state: Mutex<SwitchState>,
}

/// The mode that handles are to reach, and the handles. A handle's lock is taken before this one, never after it.
struct SwitchState {
    current: Arc<dyn BlockMedium>,
    slots: Vec<Weak<SwitchHandleSlot>>,
    edition: u64,
    mode: SwitchMode,
    swap: Option<Arc<SwapMediumPair>>,
    /// Handles on the destination, opened for the handles that exist when a swap begins.
    spares: Vec<Box<dyn BlockStore>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SwitchMode {
    Alone,
    Noting,
    Both,
    Flipped,
}

/// The two media of a swap.
pub(super) struct SwapMediumPair {
    pub destination: Arc<dyn BlockMedium>,
    /// The granules that the destination does not have yet.
    pub dirty: GranuleSet,
    /// Locks of the granules that a thread changes on both media, or copies from one to the other.
    pub both: StripedLocks,
    trouble: Mutex<DestinationErrors>,
    clock: OnceLock<SwapClock>,
    /// The longest delay of a request, in nanoseconds.
    delayed_ns: AtomicU64,
}

/// The current moment.
type SwapClock = Box<dyn Fn() -> Instant + Send + Sync>;

/// Errors of the destination while both media are written.
#[derive(Default)]
struct DestinationErrors {
    first: Option<(u64, StoreError)>,
    /// Whether the destination may be the device from now on: its errors are then reported to its user.
    is_decided: bool,
}

/// What a handle uses. Its own thread locks it for each request; a swap locks it only for a moment.
struct SwitchHandleSlot {
    reached: AtomicU64,
    lanes: Mutex<SwitchHandleStores>,
}

struct SwitchHandleStores {
    main: Box<dyn BlockStore>,
    other: Option<Box<dyn BlockStore>>,
    edition: u64,
    mode: SwitchMode,
    swap: Option<Arc<SwapMediumPair>>,
}

/// A handle on whatever medium the switch has at the moment.
pub struct SwitchStore {
    shared: Arc<MediumSwitchInner>,
    slot: Arc<SwitchHandleSlot>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each statement leaves the state consistent, so a panic in a store does not invalidate it.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for MediumSwitch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = lock(&self.shared.state);
        f.debug_struct("MediumSwitch").field("size_bytes", &self.shared.size_bytes).field("mode", &state.mode).finish()
    }
}

impl fmt::Debug for SwitchStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SwitchStore").field("size_bytes", &self.shared.size_bytes).finish_non_exhaustive()
    }
}

impl MediumSwitch {
    /// A switch with this medium.
    ///
    /// # Errors
    /// A sentence for a person: the medium cannot be opened.
    pub fn new(medium: Arc<dyn BlockMedium>) -> Result<Self, String> {
        let store = medium.open()?;
        let state = SwitchState {
            current: Arc::clone(&medium),
            slots: Vec::new(),
            edition: 0,
            mode: SwitchMode::Alone,
            swap: None,
            spares: Vec::new(),
        };
        let shared = MediumSwitchInner {
            size_bytes: store.size_bytes(),
            is_read_only: store.is_read_only(),
            preferred_bytes: medium.preferred_bytes(),
            edition: AtomicU64::new(0),
            state: Mutex::new(state),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Its size, bytes; constant across swaps.
    pub fn size_bytes(&self) -> u64 {
        self.shared.size_bytes
    }

    /// Whether it is read-only.
    pub fn is_read_only(&self) -> bool {
        self.shared.is_read_only
    }

    /// Whether a swap is running.
    pub fn is_swapping(&self) -> bool {
        lock(&self.shared.state).swap.is_some()
    }

    pub(super) fn shared(&self) -> &Arc<MediumSwitchInner> {
        &self.shared
    }
}

impl BlockMedium for MediumSwitch {
    fn open(&self) -> Result<Box<dyn BlockStore>, String> {
        let mut state = lock(&self.shared.state);
        let main = state.current.open()?;
        let other = state.swap.as_ref().map(|swap| swap.destination.open()).transpose()?;
        let (edition, mode, swap) = (state.edition, state.mode, state.swap.clone());
        let mut lanes = SwitchHandleStores { main, other, edition, mode, swap };
        if mode == SwitchMode::Flipped {
            lanes.flip();
        }
        let slot = Arc::new(SwitchHandleSlot { reached: AtomicU64::new(edition), lanes: Mutex::new(lanes) });
        state.slots.retain(|slot| slot.strong_count() > 0);
        state.slots.push(Arc::downgrade(&slot));
        Ok(Box::new(SwitchStore { shared: Arc::clone(&self.shared), slot }))
    }

    fn preferred_bytes(&self) -> u32 {
        self.shared.preferred_bytes
    }
}

/// Why a swap cannot begin.
pub(super) enum SwapStartError {
    AnotherSwap,
    /// A handle on the destination could not be opened.
    Destination(String),
}

impl MediumSwitchInner {
    /// A handle on the current medium, for copying.
    pub fn open_current(&self) -> Result<Box<dyn BlockStore>, String> {
        lock(&self.state).current.open()
    }

    /// Begins to record changes; [`MediumSwitchInner::has_everybody`] says when every handle does.
    pub fn begin(&self, destination: Arc<dyn BlockMedium>) -> Result<Arc<SwapMediumPair>, SwapStartError> {
        let mut state = lock(&self.state);
        if state.swap.is_some() {
            return Err(SwapStartError::AnotherSwap);
        }
        state.slots.retain(|slot| slot.strong_count() > 0);
        let spares = (0..state.slots.len()).map(|_| destination.open()).collect::<Result<_, _>>();
        state.spares = spares.map_err(SwapStartError::Destination)?;
        let dirty = GranuleSet::all_of(self.size_bytes);
        let tandem = Arc::new(SwapMediumPair {
            destination,
            both: StripedLocks::new(dirty.granule_bytes()),
            dirty,
            trouble: Mutex::default(),
            clock: OnceLock::new(),
            delayed_ns: AtomicU64::new(0),
        });
        state.swap = Some(Arc::clone(&tandem));
        self.publish(&mut state, SwitchMode::Noting);
        Ok(tandem)
    }

    /// Asks every handle to go on to the next mode of the swap.
    pub fn go_on(&self, mode: SwitchMode) {
        self.publish(&mut lock(&self.state), mode);
    }

    /// Ends the swap, with the destination as the medium (`is_swapped`) or unchanged.
    pub fn end(&self, is_swapped: bool) {
        let mut state = lock(&self.state);
        if let Some(tandem) = state.swap.take()
            && is_swapped
        {
            state.current = Arc::clone(&tandem.destination);
        }
        state.spares.clear();
        self.publish(&mut state, SwitchMode::Alone);
    }

    fn publish(&self, state: &mut SwitchState, mode: SwitchMode) {
        state.mode = mode;
        state.edition += 1;
        self.edition.store(state.edition, Ordering::Release);
    }

    /// Moves idle handles to the current mode; returns whether all handles have reached it.
    pub fn has_everybody(&self) -> bool {
        let (slots, edition): (Vec<_>, _) = {
            let state = lock(&self.state);
            (state.slots.iter().filter_map(Weak::upgrade).collect(), state.edition)
        };
        let mut has_everybody = true;
        for slot in slots {
            match slot.lanes.try_lock() {
                Ok(mut lanes) => lanes.catch_up(self, &slot),
                Err(TryLockError::Poisoned(lanes)) => lanes.into_inner().catch_up(self, &slot),
                // The handle has a request in progress and catches up with its next one.
                Err(TryLockError::WouldBlock) => has_everybody &= slot.reached.load(Ordering::Acquire) == edition,
            }
        }
        has_everybody
    }
}

impl SwapMediumPair {
    pub fn measure_by(&self, clock: SwapClock) {
        let _ = self.clock.set(clock);
    }

    /// The longest time by which the swap has delayed a request.
    pub fn delayed(&self) -> Duration {
        Duration::from_nanos(self.delayed_ns.load(Ordering::Relaxed))
    }

    /// The current moment, or zero as long as nothing is measured.
    fn now(&self) -> Instant {
        self.clock.get().map_or(Instant::ZERO, |now| now())
    }

    fn note_delay(&self, delay: Duration) {
        let ns = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
        self.delayed_ns.fetch_max(ns, Ordering::Relaxed);
    }

    /// Records an error of the destination in a change of both media. The error is returned to the user only after the
    /// decision; before it, the source is the device.
    fn note_trouble(&self, offset: u64, error: StoreError) -> Result<(), StoreError> {
        let mut trouble = lock(&self.trouble);
        trouble.first.get_or_insert((offset, error));
        if trouble.is_decided { Err(error) } else { Ok(()) }
    }

    /// The first error of the destination, with its offset.
    pub fn trouble(&self) -> Option<(u64, StoreError)> {
        lock(&self.trouble).first
    }

    /// The source failed a change, so its content is unknown there: the range is copied again. After the decision
    /// nothing is copied any more, and a failed range may hold either content.
    fn note_stray(&self, offset: u64, length: u64) {
        let trouble = lock(&self.trouble);
        if !trouble.is_decided {
            self.dirty.add(offset, length);
        }
    }

    /// Makes the destination the device, unless it had an error. Returns `false` if something must be copied again
    /// first.
    pub fn decide(&self) -> Result<bool, (u64, StoreError)> {
        let mut trouble = lock(&self.trouble);
        if let Some(trouble) = trouble.first {
            return Err(trouble);
        }
        trouble.is_decided = self.dirty.bytes() == 0;
        Ok(trouble.is_decided)
    }
}

impl SwitchHandleStores {
    fn catch_up(&mut self, shared: &MediumSwitchInner, slot: &SwitchHandleSlot) {
        let mut state = lock(&shared.state);
        if self.edition == state.edition {
            return;
        }
        match state.mode {
            SwitchMode::Alone => self.other = None,
            SwitchMode::Noting => self.other = state.spares.pop(),
            // The handle was in `Noting` before: a mode begins when all handles have reached the one before.
            SwitchMode::Both => debug_assert!(self.other.is_some(), "a handle notes before it writes both"),
            SwitchMode::Flipped => self.flip(),
        }
        (self.edition, self.mode) = (state.edition, state.mode);
        self.swap.clone_from(&state.swap);
        slot.reached.store(self.edition, Ordering::Release);
    }

    fn flip(&mut self) {
        if let Some(other) = &mut self.other {
            std::mem::swap(&mut self.main, other);
        }
    }

    fn change(
        &mut self,
        offset: u64,
        length: u64,
        mut act: impl FnMut(&mut dyn BlockStore) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let (Some(tandem), Some(other)) = (&self.swap, &mut self.other) else { return act(&mut *self.main) };
        match self.mode {
            SwitchMode::Alone => act(&mut *self.main),
            SwitchMode::Noting => {
                let _after = DirtyMarkGuard { dirty: &tandem.dirty, offset, length };
                act(&mut *self.main)
            }
            mode @ (SwitchMode::Both | SwitchMode::Flipped) => {
                let (source, destination) = match mode {
                    SwitchMode::Flipped => (&mut **other, &mut *self.main),
                    _ => (&mut *self.main, &mut **other),
                };
                let asked_at = tandem.now();
                let _held = tandem.both.hold(offset, length);
                let begun = tandem.now();
                let first = act(source);
                let done = tandem.now();
                let result = match first {
                    Err(error) => {
                        tandem.note_stray(offset, length);
                        Err(error)
                    }
                    Ok(()) if tandem.dirty.has_all(offset, length) => Ok(()),
                    Ok(()) => act(destination).or_else(|error| tandem.note_trouble(offset, error)),
                };
                // One medium takes its time without a swap, too: the rest is the swap's.
                tandem.note_delay((begun - asked_at) + (tandem.now() - done));
                result
            }
        }
    }

    /// While a swap runs, both media must hold the same data wherever they are compared, trimmed ranges included.
    fn trim(&mut self, offset: u64, length: u64) -> Result<(), StoreError> {
        match (&self.swap, self.mode) {
            (None, _) | (_, SwitchMode::Alone) => self.main.trim(offset, length),
            _ => self.change(offset, length, |store| store.discard(offset, length)),
        }
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        self.main.flush()?;
        match (&self.swap, &mut self.other) {
            (Some(tandem), Some(other)) if self.mode == SwitchMode::Both => {
                let begun = tandem.now();
                let result = other.flush().or_else(|error| tandem.note_trouble(0, error));
                tandem.note_delay(tandem.now() - begun);
                result
            }
            _ => Ok(()),
        }
    }
}

/// Records a change after it was made, successful or not: a copy made meanwhile must be made again.
struct DirtyMarkGuard<'a> {
    dirty: &'a GranuleSet,
    offset: u64,
    length: u64,
}

impl Drop for DirtyMarkGuard<'_> {
    fn drop(&mut self) {
        self.dirty.add(self.offset, self.length);
    }
}

impl SwitchStore {
    fn lanes(&self) -> MutexGuard<'_, SwitchHandleStores> {
        let mut lanes = lock(&self.slot.lanes);
        if lanes.edition != self.shared.edition.load(Ordering::Acquire) {
            lanes.catch_up(&self.shared, &self.slot);
        }
        lanes
    }

    fn change(
        &mut self,
        offset: u64,
        length: u64,
        act: impl FnMut(&mut dyn BlockStore) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        // A swap may replace a read-only medium by a writable one: the device stays read-only.
        if self.shared.is_read_only {
            return Err(StoreError::ReadOnly);
        }
        self.lanes().change(offset, length, act)
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
        self.change(offset, from.len() as u64, |store| store.write_at(offset, from))
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        self.lanes().flush()
    }

    fn discard(&mut self, offset: u64, len: u64) -> Result<(), StoreError> {
        self.change(offset, len, |store| store.discard(offset, len))
    }

    fn write_zeroes(&mut self, offset: u64, len: u64) -> Result<(), StoreError> {
        self.change(offset, len, |store| store.write_zeroes(offset, len))
    }

    fn trim(&mut self, offset: u64, len: u64) -> Result<(), StoreError> {
        if self.shared.is_read_only {
            return Err(StoreError::ReadOnly);
        }
        self.lanes().trim(offset, len)
    }

    fn extent(&mut self, offset: u64, len: u64) -> Result<StoreExtent, StoreError> {
        self.lanes().main.extent(offset, len)
    }
}
