//! Who looks on: copies of what a device sends to its user, for others (requirement N6: sharing).
//!
//! An [`Observed`] device is the device, and shows what interrupt and isochronous endpoints bring in to its
//! [`Audience`]. Whoever is in it has a [`Observer`]: a bounded queue, filled by the thread of the device's user and
//! emptied by his own. A seat whose owner is slow misses events, and is told how many; the device's user never waits.
//! With nobody there, an answer passes by one look at a number.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farbus_model::limits::{OBSERVED_BYTES_MAX, OBSERVED_EVENTS_MAX, OBSERVERS_MAX};
use farbus_model::{BufferPool, Completions, Device, DeviceLayer, Direction, Done, Instant, Status, TransferType};
use farbus_wire::native::usb::Event;

/// Everybody who looks on.
#[derive(Clone, Default)]
pub struct Audience(Arc<Hall>);

#[derive(Default)]
struct Hall {
    observers: Mutex<Vec<Arc<Place>>>,
    /// As many as there are, for those who only want to know whether there are any.
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

/// A place in an audience; it is given up by dropping it.
pub struct Observer {
    hall: Arc<Hall>,
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
    /// Takes a seat; `wake` is called, by any thread, when there is something to see and there was nothing before.
    /// `None`: all [`OBSERVERS_MAX`] are taken.
    pub fn sit(&self, wake: impl Fn() + Send + Sync + 'static) -> Option<Observer> {
        let mut observers = locked(&self.0.observers);
        if observers.len() >= OBSERVERS_MAX {
            return None;
        }
        let place = Arc::new(Place { waiting: Mutex::default(), wake: Box::new(wake) });
        observers.push(Arc::clone(&place));
        self.0.count.store(observers.len(), Ordering::Release);
        Some(Observer { hall: Arc::clone(&self.0), place })
    }

    /// The device is shared no more: everybody is told.
    pub fn close(&self) {
        self.0.is_closed.store(true, Ordering::Release);
        for place in locked(&self.0.observers).iter() {
            (place.wake)();
        }
    }

    /// Whether nobody looks on.
    pub fn is_empty(&self) -> bool {
        self.0.count.load(Ordering::Acquire) == 0
    }

    /// Shows everybody what a transfer brought, if it is one that is shown.
    fn show(&self, now: Instant, kind: TransferType, done: &mut Done) {
        let is_shown = matches!(kind, TransferType::Interrupt | TransferType::Isochronous);
        let is_news = done.status == Status::Ok || done.actual > 0;
        if !is_shown || done.direction != Direction::In || !is_news {
            return;
        }
        // From here on a copy costs nothing but its place.
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
    /// What was shown longest ago.
    pub fn take(&self) -> Option<Event> {
        let mut waiting = locked(&self.place.waiting);
        let event = waiting.events.pop_front()?;
        waiting.bytes -= event.data.len();
        Some(event)
    }

    /// Whether nothing more comes.
    pub fn is_over(&self) -> bool {
        self.hall.is_closed.load(Ordering::Acquire)
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        let mut observers = locked(&self.hall.observers);
        observers.retain(|place| !Arc::ptr_eq(place, &self.place));
        self.hall.count.store(observers.len(), Ordering::Release);
    }
}

/// A device, shown to an audience.
pub struct Observed<D> {
    device: D,
    audience: Audience,
    done: Completions,
}

impl<D: Device> Observed<D> {
    /// Shows `device`.
    ///
    /// # Errors
    /// The device itself, if it has nothing that is shown.
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
        // Its pool is the asker's while it works.
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
