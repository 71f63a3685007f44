//! How long a device that migrates may keep its user waiting: the shorter limit of both ends, in made-up time.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use farbus_model::block::MemoryStore;
use farbus_model::{BlockDevice, Instant, StoreDevice};
use farbus_session::leases::{DeviceKey, DeviceLeases};
use farbus_session::native::control::{
    AttachmentClass, AttachmentEndNotice, AttachmentMode, CloseRequest, OpenRequest,
};
use farbus_session::native::hello::{ExporterWelcome, ImporterHello, SessionId};
use farbus_session::native::{
    ClassPart, DeviceMigration, ExporterServices, ExporterSession, FrameKind, GreetingOutcome, HOLD, HOLD_MAX,
    ImporterSession, Lane, LaneLimits, OutboundMessage, ServedBlock, ServedExport,
};

const GRACE: Duration = Duration::from_secs(20);
const NOW: Instant = Instant::from_nanos(1_000_000_000);
const SUCCESSOR: [u8; 32] = [7; 32];

/// The migrations that an exporter's devices began.
#[derive(Clone, Default)]
struct Migrations(Arc<Mutex<Vec<DeviceMigration>>>);

impl ExporterServices for Migrations {
    fn open(
        &mut self,
        _now: Instant,
        number: u16,
        _open: &OpenRequest,
    ) -> Result<(u64, Box<dyn ServedExport>), AttachmentEndNotice> {
        let device = StoreDevice::new(MemoryStore::new(vec![0; 4096]));
        let begun = Arc::clone(&self.0);
        let pass_on = move |_: Box<dyn BlockDevice>, _, migration| {
            begun.lock().unwrap().push(migration);
            true
        };
        let device: Box<dyn BlockDevice> = Box::new(device);
        Ok((7, Box::new(ServedBlock::new(number, device, 0, |_, _| ()).inheritable(pass_on))))
    }
}

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A greeting without option 4, as a release before it sends it.
fn without_hold(mut greeting: Vec<u8>) -> Vec<u8> {
    let option = [4, 0, 4, 0];
    let at = (56..greeting.len()).step_by(8).find(|&at| greeting[at..at + 4] == option).expect("it says the limit");
    greeting.drain(at..at + 8);
    greeting[12] -= 8;
    greeting
}

struct Ends {
    importer: ImporterSession,
    exporter: ExporterSession,
    welcome: Vec<u8>,
}

/// A session of two ends with these limits; `None`: a release that knows none.
fn ends(importers: Option<Duration>, exporters: Option<Duration>) -> Ends {
    let mut importer = ImporterSession::new(NOW, 7, GRACE, LaneLimits::DEFAULT).holding(importers.unwrap_or(HOLD));
    let mut hello = importer.hello(0).encode();
    if importers.is_none() {
        hello = without_hold(hello);
    }
    let (hello, _) = ImporterHello::decode(&hello).unwrap().expect("it is whole");
    let begun = ExporterSession::begin(&hello, SessionId([1; 16]), 9, GRACE, LaneLimits::DEFAULT);
    let (mut exporter, mut welcome) = begun.expect("it begins");
    welcome.options.hold_ms = exporter.limit_hold(exporters.unwrap_or(HOLD));
    let mut welcome = welcome.encode();
    if exporters.is_none() && importers.is_some() {
        welcome = without_hold(welcome);
    }
    let (heard, _) = ExporterWelcome::decode(&welcome).unwrap().expect("it is whole");
    assert_eq!(importer.handle_welcome(&heard), Ok(GreetingOutcome::Linked));
    Ends { importer, exporter, welcome }
}

fn carry(from: &mut Lane, to: &mut Lane) {
    let bytes: Vec<u8> = from.poll_transmit(NOW).iter().map(|run| &**run).collect::<Vec<_>>().concat();
    from.handle_transmitted(bytes.len());
    to.receive_space()[..bytes.len()].copy_from_slice(&bytes);
    to.handle_received(bytes.len());
}

impl Ends {
    /// How long the exporter keeps a disk for its successor.
    fn handed_over(&mut self) -> DeviceMigration {
        let mut migrations = Migrations::default();
        let open = OpenRequest {
            class: AttachmentClass::BLOCK,
            mode: AttachmentMode::Exclusive,
            epoch: 0,
            name: "disk".into(),
            reason: String::new(),
        };
        self.importer.send(OutboundMessage::control(FrameKind::Open, 1, 0, open.encode().into()));
        let close = OutboundMessage {
            payload: CloseRequest::to(SUCCESSOR, Vec::new()).encode().into(),
            ..OutboundMessage::control(FrameKind::Close, 1, 0, ClassPart::empty())
        };
        self.importer.send(close);
        carry(self.importer.lane_mut(), self.exporter.lane_mut());
        self.exporter.advance(NOW, &mut migrations).expect("it keeps to the protocol");
        let mut begun = migrations.0.lock().unwrap();
        begun.pop().expect("it was handed over")
    }
}

#[test]
fn both_ends_hold_a_device_for_the_shorter_of_their_limits() {
    for (importers, exporters) in [(s(5), s(24)), (s(24), s(5)), (s(5), s(5))] {
        let mut ends = ends(Some(importers), Some(exporters));
        assert_eq!(ends.importer.hold().both(true), s(5), "{importers:?} and {exporters:?}");
        let migration = ends.handed_over();
        assert_eq!((migration.successor, migration.left), (SUCCESSOR, s(5)), "{importers:?} and {exporters:?}");
    }
    let mut ends = ends(Some(s(60)), Some(s(90)));
    assert_eq!((ends.importer.hold().both(false), ends.importer.hold().both(true)), (s(60), s(25)));
    assert_eq!(ends.handed_over().left, s(60), "its owner knows whether the device stores data");
}

#[test]
fn an_end_of_an_earlier_release_counts_with_twenty_seconds() {
    for (own, both) in [(s(24), s(20)), (s(5), s(5)), (HOLD_MAX, s(20))] {
        let mut old_exporter = ends(Some(own), None);
        assert_eq!(old_exporter.importer.hold().both(false), both, "{own:?}");
        assert_eq!(old_exporter.handed_over().left, s(20).min(own), "it keeps what it always kept");
        let mut old_importer = ends(None, Some(own));
        assert_eq!(old_importer.handed_over().left, both, "{own:?}");
        assert_eq!(old_importer.welcome.len(), 56 + 8, "it is told nothing that it does not know");
    }
}

#[test]
fn a_limit_that_changed_between_two_links_holds_from_the_next_one() {
    let mut ends = ends(Some(s(24)), Some(s(24)));
    ends.importer = ends.importer.holding(s(3));
    ends.exporter.handle_lost(0, NOW);
    ends.importer.handle_lost(0, NOW);
    ends.exporter.limit_hold(s(9));
    let welcome = ends.exporter.resume(&ends.importer.hello(0));
    assert_eq!(welcome.options.hold_ms, Some(9_000));
    assert_eq!(ends.importer.handle_welcome(&welcome), Ok(GreetingOutcome::Linked));
    assert_eq!((ends.importer.hold().both(true), ends.handed_over().left), (s(3), s(3)));
}

#[test]
fn a_device_that_nobody_comes_for_goes_home_at_the_negotiated_time() {
    let mut leases = DeviceLeases::after(0);
    let disk = DeviceKey::Id(1);
    leases.give(&disk);
    let left = ends(Some(s(24)), Some(s(6))).handed_over().left;
    leases.hand_over(&disk, None, Some(SUCCESSOR), NOW + left, "disk");
    assert_eq!(leases.poll_timeout(), Some(NOW + s(6)));
    assert!(leases.expire(NOW + (s(6) - Duration::from_nanos(1))).is_empty());
    assert_eq!(leases.expire(NOW + s(6)), ["disk"]);
}
