//! Observers of a device get copies of what its user gets, do not delay it, and are told how much they missed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use farbus_gadgets::keyboard::KeyboardGadget;
use farbus_model::limits::{OBSERVED_EVENTS_MAX, OBSERVERS_MAX};
use farbus_model::{
    BufferPool, CompletionQueue, Device, EpAddr, Instant, OwnerCommand, Payload, SetupPacket, TransferType, Urb, UrbId,
    UrbStatus,
};
use farbus_session::ExportRegistry;
use farbus_session::registry::ObservableDevice;

const REPORTS: u8 = 0x81;

/// A keyboard with its user.
struct Used {
    registry: ExportRegistry,
    bus_id: String,
    device: Box<dyn Device>,
    done: CompletionQueue,
    now: Instant,
    next: u64,
}

impl Used {
    fn new() -> Self {
        let mut registry = ExportRegistry::default();
        let bus_id = registry.add("keyboard", Box::new(KeyboardGadget::device())).unwrap().bus_id.clone();
        let claimed = registry.claim(&bus_id, "user", Instant::ZERO).map_err(|status| status.to_string()).unwrap();
        let done = CompletionQueue::new(BufferPool::new(1 << 20));
        let mut used = Self { registry, bus_id, device: claimed.device, done, now: Instant::ZERO, next: 0 };
        let set_configuration = SetupPacket::from_bytes([0, 9, 1, 0, 0, 0, 0, 0]);
        assert_eq!(used.ask(|id| Urb::control(id, set_configuration, Payload::Empty)), UrbStatus::Ok);
        used
    }

    fn ask(&mut self, urb: impl FnOnce(UrbId) -> Urb) -> UrbStatus {
        self.next += 1;
        self.device.submit(self.now, urb(UrbId(self.next)).launch(), &mut self.done);
        while self.done.is_empty() {
            self.now = self.device.poll_timeout().expect("it has its moment");
            self.device.handle_timeout(self.now, &mut self.done);
        }
        self.done.pop().expect("it is there").status
    }

    /// Presses a key and reads the two reports of it.
    fn press(&mut self, key: &str) {
        self.device.command(Instant::ZERO, &OwnerCommand::Type(key.into()), &mut self.done).unwrap();
        for _ in 0..2 {
            assert_eq!(self.ask(|id| Urb::data_in(id, EpAddr::from_byte(REPORTS), 8)), UrbStatus::Ok);
        }
    }

    fn observable(&self) -> ObservableDevice {
        self.registry.observe(&self.bus_id).expect("a keyboard is shown")
    }
}

#[test]
fn all_observers_get_what_the_user_gets_and_nothing_else() {
    let mut used = Used::new();
    let audience = used.observable().audience;
    used.press("x");
    let wakes = Arc::new(AtomicUsize::new(0));
    let observers = [(); 2].map(|()| {
        let wakes = Arc::clone(&wakes);
        let wake = move || {
            wakes.fetch_add(1, Ordering::Relaxed);
        };
        audience.join(wake).unwrap()
    });
    used.press("a");
    assert_eq!(wakes.load(Ordering::Relaxed), 2, "once each: the second report found somebody awake");
    for observer in &observers {
        let event = observer.take().unwrap();
        assert_eq!((event.endpoint.as_byte(), event.kind, event.missed), (REPORTS, TransferType::Interrupt, 0));
        assert_eq!(event.data.contiguous().as_ref(), [0, 0, 4, 0, 0, 0, 0, 0]);
        assert_eq!(observer.take().unwrap().data.contiguous().as_ref(), [0; 8]);
        assert!(observer.take().is_none(), "what came before is not shown");
    }
    drop(observers);
    assert!(audience.is_empty());
}

#[test]
fn slow_observer_misses_events_and_is_told_how_many() {
    let mut used = Used::new();
    let observer = used.observable().audience.join(|| ()).unwrap();
    for _ in 0..OBSERVED_EVENTS_MAX {
        used.press("a");
    }
    let seen = std::iter::from_fn(|| observer.take()).count();
    assert_eq!(seen, OBSERVED_EVENTS_MAX);
    used.press("b");
    assert_eq!(observer.take().unwrap().missed as usize, OBSERVED_EVENTS_MAX);
    assert_eq!(observer.take().unwrap().missed, 0);
}

#[test]
fn observers_are_limited_and_end_with_their_device() {
    let mut used = Used::new();
    let audience = used.observable().audience;
    let observers: Vec<_> = (0..OBSERVERS_MAX).map(|_| audience.join(|| ()).unwrap()).collect();
    assert!(audience.join(|| ()).is_none());
    assert!(observers.iter().all(|observer| !observer.is_over()));
    used.registry.withdraw(&used.bus_id);
    assert!(observers.iter().all(|observer| observer.is_over()));
    assert!(used.registry.observe(&used.bus_id).is_none());
}
