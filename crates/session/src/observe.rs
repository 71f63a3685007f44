//! Observers: copies of what a device sends to its user (requirement N6: sharing).
//!
//! An [`ObservedDevice`] device passes everything through and copies what interrupt and isochronous IN endpoints
//! deliver to its [`DeviceObservers`]. Each [`EventObserver`] is a bounded queue, filled by the thread of the device's
//! user and emptied by the observer's own. A slow observer misses events and is told how many; the device's user never
//! waits. Without observers, the cost per answer is one atomic load.
//!
//! A [`ConsoleObserver`] gets what the device's serial ports send instead ([`crate::console`] says which bulk endpoints
//! those are), as bytes of its own. A slow one loses the oldest bytes.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farbus_model::limits::{OBSERVED_BYTES_MAX, OBSERVED_EVENTS_MAX, OBSERVERS_MAX};
use farbus_model::{
    BufferPool, CompletionQueue, Device, DeviceLayer, Instant, TransferDirection, TransferType, UrbCompletion,
    UrbStatus,
};
use farbus_wire::native::console::ConsoleOutput;
use farbus_wire::native::usb::ObservedTransfer;

use crate::console::{self, DeviceSerialPort};

/// All observers of a device.
#[derive(Clone, Default)]
pub struct DeviceObservers(Arc<DeviceObserversInner>);

#[derive(Default)]
struct DeviceObserversInner {
    observers: Mutex<Vec<Arc<ObserverSlot>>>,
    /// Number of observers, readable without the lock.
    count: AtomicUsize,
    is_closed: AtomicBool,
}

struct ObserverSlot {
    waiting: ObserverQueue,
    wake: Box<dyn Fn() + Send + Sync>,
}

/// What waits for an observer: the two kinds get different things.
enum ObserverQueue {
    Events(Mutex<ObserverEventQueue>),
    Console(Mutex<console::ConsoleQueue>),
}

#[derive(Default)]
struct ObserverEventQueue {
    waiting: VecDeque<ObservedTransfer>,
    bytes: usize,
    missed: u32,
}

/// An observer's place in the audience; dropping it ends the observation.
struct ObservationGuard {
    inner: Arc<DeviceObserversInner>,
    slot: Arc<ObserverSlot>,
}

/// One observer of a device; dropping it ends the observation.
pub struct EventObserver(ObservationGuard);

/// One observer of a device's serial ports; dropping it ends the observation.
pub struct ConsoleObserver(ObservationGuard);

impl fmt::Debug for DeviceObservers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceObservers").field("count", &self.0.count.load(Ordering::Relaxed)).finish()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl DeviceObservers {
    /// Adds an observer. Any thread calls `wake` when there is an event and there was none before. `None`: there are
    /// [`OBSERVERS_MAX`] already.
    pub fn join(&self, wake: impl Fn() + Send + Sync + 'static) -> Option<EventObserver> {
        self.add(ObserverQueue::Events(Mutex::default()), wake).map(EventObserver)
    }

    /// Adds an observer of the device's serial ports; otherwise as [`DeviceObservers::join`]. Both count for the limit.
    pub fn join_console(&self, wake: impl Fn() + Send + Sync + 'static) -> Option<ConsoleObserver> {
        self.add(ObserverQueue::Console(Mutex::default()), wake).map(ConsoleObserver)
    }

    fn add(&self, waiting: ObserverQueue, wake: impl Fn() + Send + Sync + 'static) -> Option<ObservationGuard> {
        let mut observers = locked(&self.0.observers);
        if observers.len() >= OBSERVERS_MAX {
            return None;
        }
        let slot = Arc::new(ObserverSlot { waiting, wake: Box::new(wake) });
        observers.push(Arc::clone(&slot));
        self.0.count.store(observers.len(), Ordering::Release);
        Some(ObservationGuard { inner: Arc::clone(&self.0), slot })
    }

    /// Tells all observers that the device is no longer shared.
    pub fn close(&self) {
        self.0.is_closed.store(true, Ordering::Release);
        for observer in locked(&self.0.observers).iter() {
            (observer.wake)();
        }
    }

    /// Whether there are no observers.
    pub fn is_empty(&self) -> bool {
        self.0.count.load(Ordering::Acquire) == 0
    }

    /// Copies a completed transfer to all observers, if it is of a kind that is observed.
    fn show(&self, now: Instant, kind: TransferType, done: &mut UrbCompletion) {
        let is_shown = matches!(kind, TransferType::Interrupt | TransferType::Isochronous);
        let is_news = done.status == UrbStatus::Ok || done.actual > 0;
        if !is_shown || done.direction != TransferDirection::In || !is_news {
            return;
        }
        let observers = locked(&self.0.observers);
        if !observers.iter().any(|observer| matches!(observer.waiting, ObserverQueue::Events(_))) {
            return;
        }
        // After this, a copy shares the data.
        done.payload.share();
        let event = ObservedTransfer {
            endpoint: done.endpoint,
            kind,
            status: done.status,
            missed: 0,
            moment_ns: now.as_nanos(),
            packets: done.iso.iter().map(|packet| (packet.actual, packet.status)).collect(),
            data: done.payload.clone(),
        };
        observers.iter().for_each(|observer| observer.show(&event));
    }

    /// Copies what a port sent to the observers of the console.
    fn print(&self, now: Instant, port: &DeviceSerialPort, done: &UrbCompletion) {
        let observers = locked(&self.0.observers);
        let mut consoles =
            observers.iter().filter(|observer| matches!(observer.waiting, ObserverQueue::Console(_))).peekable();
        if consoles.peek().is_none() {
            return;
        }
        let moved = done.payload.contiguous();
        consoles.for_each(|observer| observer.print(now, port, &moved));
    }
}

impl ObserverSlot {
    fn show(&self, event: &ObservedTransfer) {
        let ObserverQueue::Events(events) = &self.waiting else { return };
        let mut events = locked(events);
        let bytes = events.bytes + event.data.len();
        if events.waiting.len() >= OBSERVED_EVENTS_MAX || (events.bytes > 0 && bytes > OBSERVED_BYTES_MAX) {
            events.missed = events.missed.saturating_add(1);
            return;
        }
        let missed = std::mem::take(&mut events.missed);
        events.bytes = bytes;
        events.waiting.push_back(ObservedTransfer { missed, ..event.clone() });
        let is_first = events.waiting.len() == 1;
        drop(events);
        if is_first {
            (self.wake)();
        }
    }

    fn print(&self, now: Instant, port: &DeviceSerialPort, moved: &[u8]) {
        let ObserverQueue::Console(queue) = &self.waiting else { return };
        let mut queue = locked(queue);
        let was_empty = queue.is_empty();
        port.sent(moved).for_each(|sent| queue.add(now, port.port.endpoint, sent));
        let is_news = was_empty && !queue.is_empty();
        drop(queue);
        if is_news {
            (self.wake)();
        }
    }
}

impl EventObserver {
    /// Takes the oldest event.
    pub fn take(&self) -> Option<ObservedTransfer> {
        let ObserverQueue::Events(events) = &self.0.slot.waiting else { return None };
        let mut events = locked(events);
        let event = events.waiting.pop_front()?;
        events.bytes -= event.data.len();
        Some(event)
    }

    /// Whether the device is no longer shared, so that no further events come.
    pub fn is_over(&self) -> bool {
        self.0.is_over()
    }
}

impl ConsoleObserver {
    /// Takes the oldest of what the ports sent.
    pub fn take(&self) -> Option<ConsoleOutput> {
        let ObserverQueue::Console(queue) = &self.0.slot.waiting else { return None };
        locked(queue).take()
    }

    /// Whether the device is no longer shared, so that nothing further comes.
    pub fn is_over(&self) -> bool {
        self.0.is_over()
    }
}

impl ObservationGuard {
    fn is_over(&self) -> bool {
        self.inner.is_closed.load(Ordering::Acquire)
    }
}

impl Drop for ObservationGuard {
    fn drop(&mut self) {
        let mut observers = locked(&self.inner.observers);
        observers.retain(|observer| !Arc::ptr_eq(observer, &self.slot));
        self.inner.count.store(observers.len(), Ordering::Release);
    }
}

/// Whether a device has an interrupt or isochronous endpoint that sends: observers are shown what it sends.
pub fn sends_events(device: &impl Device) -> bool {
    let settings = device.descriptors().configurations.iter().flat_map(|configuration| &configuration.settings);
    let mut endpoints = settings.flat_map(|setting| &setting.endpoints);
    endpoints.any(|endpoint| {
        matches!(endpoint.kind, TransferType::Interrupt | TransferType::Isochronous)
            && endpoint.address.direction() == TransferDirection::In
    })
}

/// A device with observers.
pub struct ObservedDevice<D> {
    device: D,
    audience: DeviceObservers,
    ports: Vec<DeviceSerialPort>,
    done: CompletionQueue,
}

impl<D: Device> ObservedDevice<D> {
    /// Wraps `device`.
    ///
    /// # Errors
    /// The device, if it has no endpoint that can be observed.
    pub fn new(device: D, audience: DeviceObservers) -> Result<Self, D> {
        let ports = console::ports(device.descriptors());
        if ports.is_empty() && !sends_events(&device) {
            return Err(device);
        }
        // While the device works, this holds the caller's pool.
        Ok(Self { device, audience, ports, done: CompletionQueue::new(BufferPool::new(0)) })
    }
}

impl<D: Device> DeviceLayer for ObservedDevice<D> {
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
        done: &mut CompletionQueue,
        act: impl FnOnce(&mut D, &mut CompletionQueue) -> R,
    ) -> R {
        if self.audience.is_empty() {
            return act(&mut self.device, done);
        }
        std::mem::swap(&mut self.done.pool, &mut done.pool);
        let result = act(&mut self.device, &mut self.done);
        std::mem::swap(&mut self.done.pool, &mut done.pool);
        while let Some(mut answer) = self.done.pop() {
            let kind = self.device.selection().endpoint(answer.endpoint).map(|endpoint| endpoint.kind);
            let kind = kind.unwrap_or(TransferType::Control);
            let port = self.ports.iter().find(|port| port.is_at(answer.endpoint, self.device.selection()));
            match port.filter(|_| kind == TransferType::Bulk) {
                Some(port) => self.audience.print(now, port, &answer),
                None => self.audience.show(now, kind, &mut answer),
            }
            done.push(answer);
        }
        result
    }

    fn reset(&mut self, now: Instant, done: &mut CompletionQueue) {
        self.device.reset(now, done);
    }
}
