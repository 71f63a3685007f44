//! Observers: copies of what a device sends to its user (requirement N6: sharing).
//!
//! An [`Observed`] device passes everything through and copies what interrupt and isochronous IN endpoints deliver to
//! its [`Audience`]. Each [`Observer`] is a bounded queue, filled by the thread of the device's user and emptied by the
//! observer's own. A slow observer misses events and is told how many; the device's user never waits. Without
//! observers, the cost per answer is one atomic load.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farbus_model::limits::{OBSERVED_BYTES_MAX, OBSERVED_EVENTS_MAX, OBSERVERS_MAX};
use farbus_model::{BufferPool, Completions, Device, DeviceLayer, Direction, Done, Instant, Status, TransferType};
use farbus_wire::native::usb::Event;

/// All observers of a device.
#[derive(Clone, Default)]
pub struct Audience(Arc<Inner>);

#[derive(Default)]
struct Inner {
    observers: Mutex<Vec<Arc<Place>>>,
    /// Number of observers, readable without the lock.
    count: AtomicUsize,
    is_closed: AtomicBool,
}

struct Place {
    waiting: Mutex<Waiting>,
    wake: Box<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
struct Waiting {
    events: VecDeque<Event>,
    bytes: usize,
    missed: u32,
}

/// One observer of a device; dropping it ends the observation.
pub struct Observer {
    inner: Arc<Inner>,
    place: Arc<Place>,
}

impl fmt::Debug for Audience {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Audience").field("count", &self.0.count.load(Ordering::Relaxed)).finish()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Audience {
    /// Adds an observer. Any thread calls `wake` when there is an event and there was none before. `None`: there are
    /// [`OBSERVERS_MAX`] already.
    pub fn join(&self, wake: impl Fn() + Send + Sync + 'static) -> Option<Observer> {
        let mut observers = locked(&self.0.observers);
        if observers.len() >= OBSERVERS_MAX {
            return None;
        }
        let place = Arc::new(Place { waiting: Mutex::default(), wake: Box::new(wake) });
        observers.push(Arc::clone(&place));
        self.0.count.store(observers.len(), Ordering::Release);
        Some(Observer { inner: Arc::clone(&self.0), place })
    }

    /// Tells all observers that the device is no longer shared.
    pub fn close(&self) {
        self.0.is_closed.store(true, Ordering::Release);
        for place in locked(&self.0.observers).iter() {
            (place.wake)();
        }
    }

    /// Whether there are no observers.
    pub fn is_empty(&self) -> bool {
        self.0.count.load(Ordering::Acquire) == 0
    }

    /// Copies a completed transfer to all observers, if it is of a kind that is observed.
    fn show(&self, now: Instant, kind: TransferType, done: &mut Done) {
        let is_shown = matches!(kind, TransferType::Interrupt | TransferType::Isochronous);
        let is_news = done.status == Status::Ok || done.actual > 0;
        if !is_shown || done.direction != Direction::In || !is_news {
            return;
        }
        // After this, a copy shares the data.
        done.payload.share();
        let event = Event {
            endpoint: done.endpoint,
            kind,
            status: done.status,
            missed: 0,
            moment_ns: now.as_nanos(),
            packets: done.iso.iter().map(|packet| (packet.actual, packet.status)).collect(),
            data: done.payload.clone(),
        };
        for place in locked(&self.0.observers).iter() {
            place.show(event.clone());
        }
    }
}

impl Place {
    fn show(&self, mut event: Event) {
        let mut waiting = locked(&self.waiting);
        let bytes = waiting.bytes + event.data.len();
        if waiting.events.len() >= OBSERVED_EVENTS_MAX || (waiting.bytes > 0 && bytes > OBSERVED_BYTES_MAX) {
            waiting.missed = waiting.missed.saturating_add(1);
            return;
        }
        event.missed = std::mem::take(&mut waiting.missed);
        waiting.bytes = bytes;
        waiting.events.push_back(event);
        let is_first = waiting.events.len() == 1;
        drop(waiting);
        if is_first {
            (self.wake)();
        }
    }
}

impl Observer {
    /// Takes the oldest event.
    pub fn take(&self) -> Option<Event> {
        let mut waiting = locked(&self.place.waiting);
        let event = waiting.events.pop_front()?;
        waiting.bytes -= event.data.len();
        Some(event)
    }

    /// Whether the device is no longer shared, so that no further events come.
    pub fn is_over(&self) -> bool {
        self.inner.is_closed.load(Ordering::Acquire)
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        let mut observers = locked(&self.inner.observers);
        observers.retain(|place| !Arc::ptr_eq(place, &self.place));
        self.inner.count.store(observers.len(), Ordering::Release);
    }
}

/// A device with observers.
pub struct Observed<D> {
    device: D,
    audience: Audience,
    done: Completions,
}

impl<D: Device> Observed<D> {
    /// Wraps `device`.
    ///
    /// # Errors
    /// The device, if it has no endpoint that can be observed.
    pub fn new(device: D, audience: Audience) -> Result<Self, D> {
        let all = &device.descriptors().configurations;
        let settings = all.iter().flat_map(|configuration| &configuration.settings);
        let mut endpoints = settings.flat_map(|setting| &setting.endpoints);
        let is_shown = endpoints.any(|endpoint| {
            matches!(endpoint.kind, TransferType::Interrupt | TransferType::Isochronous)
                && endpoint.address.direction() == Direction::In
        });
        if !is_shown {
            return Err(device);
        }
        // While the device works, this holds the caller's pool.
        Ok(Self { device, audience, done: Completions::new(BufferPool::new(0)) })
    }
}

impl<D: Device> DeviceLayer for Observed<D> {
    type Inner = D;

    fn inner(&self) -> &D {
        &self.device
    }

    fn inner_mut(&mut self) -> &mut D {
        &mut self.device
    }

    fn with_inner<R>(
        &mut self,
        now: Instant,
        done: &mut Completions,
        act: impl FnOnce(&mut D, &mut Completions) -> R,
    ) -> R {
        if self.audience.is_empty() {
            return act(&mut self.device, done);
        }
        std::mem::swap(&mut self.done.pool, &mut done.pool);
        let result = act(&mut self.device, &mut self.done);
        std::mem::swap(&mut self.done.pool, &mut done.pool);
        while let Some(mut answer) = self.done.pop() {
            let kind = self.device.selection().endpoint(answer.endpoint).map(|endpoint| endpoint.kind);
            self.audience.show(now, kind.unwrap_or(TransferType::Control), &mut answer);
            done.push(answer);
        }
        result
    }

    fn reset(&mut self, now: Instant, done: &mut Completions) {
        self.device.reset(now, done);
    }
}
