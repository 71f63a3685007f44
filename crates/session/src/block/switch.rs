//! A medium that may be exchanged while it is in use (requirement N12).
//!
//! Nobody is ever held for the switch itself: for its last moments both media are written, then either may be read.
//! Every handle goes by itself from one mode to the next, at its next request, or is taken along by whoever swaps:
//!
//! | mode | read from | a change goes to | and is |
//! |---|---|---|---|
//! | `Alone` | the medium | the medium | |
//! | `Noting` | the source | the source | noted as to be copied, after it was made |
//! | `Both` | the source | the source, then the destination unless all of it is still to be copied | made while its granules are held, as they are while they are copied |
//! | `Flipped` | the destination | the source, then the destination | the same |
//! | `Alone` | the destination | the destination | |
//!
//! A mode begins when every handle has reached the one before, so two neighbouring ones are all that is ever found side
//! by side:
//!
//! | side by side | why that is right |
//! |---|---|
//! | `Alone`, `Noting` | nothing has been copied yet, and everything is still to be |
//! | `Noting`, `Both` | what the first changes is copied again, later, and held then |
//! | `Both`, `Flipped` | a change that is answered is in both media: it does not matter which is read |
//! | `Flipped`, `Alone` | nobody reads the source any more |
//!
//! So what is asked for at the switch takes as long as two media take for it, and waits for nothing else: whoever
//! writes to a slow destination has its pace a moment before it is the device.
//!
//! Up to `Both` the source is complete; from `Both` on, once what was noted has been copied and made durable, the
//! destination is too. A flush is answered in `Both` when both are durable. So the line of the journal that says which
//! of the two the device is may be written at any moment of that time, and a power cut before, during and after it
//! leaves one complete device. From a moment before that line on, what either of them does not take has failed.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};

use farbus_model::{BlockStore, Medium, StoreError};

use super::granules::Granules;
use super::stripes::Stripes;

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
    state: Mutex<SwitchState>,
}

/// The plan, and who follows it. A handle's lock is taken before this one, never after it.
struct SwitchState {
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
    Flipped,
}

/// Two media, one of which takes the other's place.
pub(super) struct Tandem {
    pub destination: Arc<dyn Medium>,
    /// What the destination does not have yet.
    pub dirty: Granules,
    /// Held by whoever changes both, or copies from one to the other, as far as he does.
    pub both: Stripes,
    trouble: Mutex<Trouble>,
}

/// What went wrong with the destination while both were written.
#[derive(Default)]
struct Trouble {
    first: Option<(u64, StoreError)>,
    /// From here on the destination may be the device: its troubles are its user's.
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
        let state = lock(&self.shared.state);
        f.debug_struct("Switch").field("size_bytes", &self.shared.size_bytes).field("mode", &state.mode).finish()
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
        let state = SwitchState {
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
            state: Mutex::new(state),
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
        lock(&self.shared.state).swap.is_some()
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Medium for Switch {
    fn open(&self) -> Result<Box<dyn BlockStore>, String> {
        let mut state = lock(&self.shared.state);
        let main = state.current.open()?;
        let other = state.swap.as_ref().map(|swap| swap.destination.open()).transpose()?;
        let (edition, mode, swap) = (state.edition, state.mode, state.swap.clone());
        let mut lanes = Lanes { main, other, edition, mode, swap };
        if mode == Mode::Flipped {
            lanes.flip();
        }
        let slot = Arc::new(Slot { reached: AtomicU64::new(edition), lanes: Mutex::new(lanes) });
        state.slots.retain(|slot| slot.strong_count() > 0);
        state.slots.push(Arc::downgrade(&slot));
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
        lock(&self.state).current.open()
    }

    /// Begins to note what is changed; [`Shared::has_everybody`] says when everybody does.
    pub fn begin(&self, destination: Arc<dyn Medium>) -> Result<Arc<Tandem>, Unready> {
        let mut state = lock(&self.state);
        if state.swap.is_some() {
            return Err(Unready::AnotherSwap);
        }
        state.slots.retain(|slot| slot.strong_count() > 0);
        let spares = (0..state.slots.len()).map(|_| destination.open()).collect::<Result<_, _>>();
        state.spares = spares.map_err(Unready::Destination)?;
        let dirty = Granules::all_of(self.size_bytes);
        let tandem = Arc::new(Tandem {
            destination,
            both: Stripes::new(dirty.granule_bytes()),
            dirty,
            trouble: Mutex::default(),
        });
        state.swap = Some(Arc::clone(&tandem));
        self.publish(&mut state, Mode::Noting);
        Ok(tandem)
    }

    /// Asks everybody to go on to the next mode of the swap.
    pub fn go_on(&self, mode: Mode) {
        self.publish(&mut lock(&self.state), mode);
    }

    /// Ends the swap with the destination in its source's place, or as if it had never been.
    pub fn end(&self, is_swapped: bool) {
        let mut state = lock(&self.state);
        if let Some(tandem) = state.swap.take()
            && is_swapped
        {
            state.current = Arc::clone(&tandem.destination);
        }
        state.spares.clear();
        self.publish(&mut state, Mode::Alone);
    }

    fn publish(&self, state: &mut SwitchState, mode: Mode) {
        state.mode = mode;
        state.edition += 1;
        self.edition.store(state.edition, Ordering::Release);
    }

    /// Takes along whoever has nothing to do; says whether all handles are where the plan is.
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
                // It has a request under way, and catches up with its next one.
                Err(TryLockError::WouldBlock) => has_everybody &= slot.reached.load(Ordering::Acquire) == edition,
            }
        }
        has_everybody
    }
}

impl Tandem {
    /// The destination failed where both were changed. What the user is told: nothing as long as the source is the
    /// device.
    fn note_trouble(&self, offset: u64, error: StoreError) -> Result<(), StoreError> {
        let mut trouble = lock(&self.trouble);
        trouble.first.get_or_insert((offset, error));
        if trouble.is_decided { Err(error) } else { Ok(()) }
    }

    /// What went wrong with the destination, and where.
    pub fn trouble(&self) -> Option<(u64, StoreError)> {
        lock(&self.trouble).first
    }

    /// The source failed to take a change: nobody knows what is there now, and it is copied as it is. Once it is
    /// decided nothing is copied any more, and what has failed may be either.
    fn note_stray(&self, offset: u64, length: u64) {
        let trouble = lock(&self.trouble);
        if !trouble.is_decided {
            self.dirty.add(offset, length);
        }
    }

    /// The destination is about to become the device, unless something went wrong with it; `false` if there is
    /// something to copy again.
    pub fn decide(&self) -> Result<bool, (u64, StoreError)> {
        let mut trouble = lock(&self.trouble);
        if let Some(trouble) = trouble.first {
            return Err(trouble);
        }
        trouble.is_decided = self.dirty.bytes() == 0;
        Ok(trouble.is_decided)
    }
}

impl Lanes {
    fn catch_up(&mut self, shared: &Shared, slot: &Slot) {
        let mut state = lock(&shared.state);
        if self.edition == state.edition {
            return;
        }
        match state.mode {
            Mode::Alone => self.other = None,
            Mode::Noting => self.other = state.spares.pop(),
            // Whoever is here has noted before: everybody waits for everybody.
            Mode::Both => debug_assert!(self.other.is_some(), "a handle notes before it writes both"),
            Mode::Flipped => self.flip(),
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
            Mode::Alone => act(&mut *self.main),
            Mode::Noting => {
                let _after = Noted { dirty: &tandem.dirty, offset, length };
                act(&mut *self.main)
            }
            mode @ (Mode::Both | Mode::Flipped) => {
                let (source, destination) = match mode {
                    Mode::Flipped => (&mut **other, &mut *self.main),
                    _ => (&mut *self.main, &mut **other),
                };
                let _held = tandem.both.hold(offset, length);
                if let Err(error) = act(source) {
                    tandem.note_stray(offset, length);
                    return Err(error);
                }
                if tandem.dirty.has_all(offset, length) {
                    return Ok(());
                }
                act(destination).or_else(|error| tandem.note_trouble(offset, error))
            }
        }
    }

    /// While two mediums are to be one, both hold the same wherever they are compared: a range that nobody needs, too.
    fn trim(&mut self, offset: u64, length: u64) -> Result<(), StoreError> {
        match (&self.swap, self.mode) {
            (None, _) | (_, Mode::Alone) => self.main.trim(offset, length),
            _ => self.change(offset, length, |store| store.discard(offset, length)),
        }
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        self.main.flush()?;
        match (&self.swap, &mut self.other) {
            (Some(tandem), Some(other)) if self.mode == Mode::Both => {
                other.flush().or_else(|error| tandem.note_trouble(0, error))
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
        // The medium behind it may become one that can be written.
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
}
