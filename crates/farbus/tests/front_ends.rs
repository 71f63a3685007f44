//! The contract of a front end, checked for every one in the table that this machine can run.
//!
//! A new front end is tested once it is in [`FRONT_ENDS`]. Where the kernel has no `vhci_hcd`, its front ends are
//! skipped by name: the rig runs them.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use farbus::attach::{
    AttachRequest, Attachment, AttachmentEnd, AttachmentFacts, AttachmentHandle, AttachmentRefusal, FRONT_ENDS,
    FrontEnd, FrontEndChoice, FrontEndRequirement, MigrationTiming,
};
use farbus::broker::SystemAccess;
use farbus::client::{ClientConfig, DeviceTarget, ImporterClient};
use farbus::common::socket_place::SocketLocation;
use farbus::frontend::open_users::DiskOwnerAction;
use farbus::share::Share;
use farbus_gadgets::serial::SerialGadget;
use farbus_gadgets::storage::{StorageGadget, StorageOptions};
use farbus_io_linux::frontend::fuse::DiskMount;
use farbus_io_net::saving::SavedAttachment;
use farbus_io_net::trust::Fingerprint;
use farbus_model::{Device, UsbSpeed};
use farbus_session::block::{BlockExport, MediumView, MemoryMedium, SparseMemory, StoreDevice};
use farbus_session::registry::BlockClass;

const SIZE: u64 = 1 << 20;
/// The grace period in these tests: longer than any of them.
const GRACE: Duration = Duration::from_secs(100);
const PATIENCE: Duration = Duration::from_secs(60);
/// The limit for an end that must not wait for an exporter that has gone.
const PROMPT: Duration = Duration::from_secs(20);

/// A shared device, and a folder for the files and sockets of its front ends.
struct Harness {
    share: Share,
    target: DeviceTarget,
    folder: PathBuf,
}

fn usb_disk() -> Box<dyn Device> {
    let store = Box::new(farbus_model::block::MemoryStore::new(vec![0; SIZE as usize]));
    Box::new(StorageGadget::device(store, StorageOptions::default()).unwrap())
}

impl Harness {
    /// With a disk, or with a serial port for a front end that shows these.
    fn with_device_for(front_end: &dyn FrontEnd) -> Self {
        let is_for_serial_ports = front_end.protocol().is_some_and(|protocol| protocol.is_tcp);
        match is_for_serial_ports || front_end.name() == "pty" {
            true => Self::sharing(|share| drop(share.add("device", SerialGadget::device(UsbSpeed::High)).unwrap())),
            false => Self::new(),
        }
    }

    fn new() -> Self {
        Self::sharing(|share| {
            let medium = Arc::new(MemoryMedium::new(SparseMemory::new(SIZE, SIZE)));
            let export = Arc::new(BlockExport::new(medium, MediumView::default(), 1).unwrap());
            let class = BlockClass { export, renew: Box::new(|| Ok(usb_disk())) };
            share.add_block("device", usb_disk(), class).unwrap();
        })
    }

    fn sharing(add: impl FnOnce(&Share)) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("farbus-front-ends-{}-{number}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let share = Share::default();
        add(&share);
        let address = share.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        Self { share, target: DeviceTarget { address: address.to_string(), device: "device".into() }, folder }
    }

    fn request(&self, front_end: &'static dyn FrontEnd) -> AttachRequest {
        let via: FrontEndChoice = front_end.name().parse().unwrap();
        let location = front_end.protocol().map(|_| SocketLocation::Socket(self.folder.join("programs.sock")));
        AttachRequest {
            at: Some(self.folder.join("mounted")),
            location,
            ..AttachRequest::new(self.target.clone(), via)
        }
    }

    fn client(&self, grace: Duration) -> ImporterClient {
        ImporterClient::new(ClientConfig { grace: Some(grace), ..ClientConfig::default() })
    }

    /// Attaches the device. Its previous user gave it back: nobody waits for that.
    fn take(&self, client: &ImporterClient, request: &AttachRequest) -> Box<dyn Attachment> {
        let front_end = request.via.front_end(request, client.system());
        let mut prepared = front_end.prepare(client, request).unwrap();
        front_end.take(client, request, &mut prepared).unwrap_or_else(|error| panic!("{}: {error}", front_end.name()))
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// An attachment that runs on a thread of its own.
struct Running {
    status: AttachmentFacts,
    handle: AttachmentHandle,
    thread: JoinHandle<AttachmentEnd>,
}

impl Running {
    fn begin(attachment: Box<dyn Attachment>) -> Self {
        let (status, handle) = (attachment.status(), attachment.handle());
        Self { status, handle, thread: thread::spawn(move || attachment.run()) }
    }

    /// Waits for the end, within this time, and returns it.
    fn ended(self, time_max: Duration) -> AttachmentEnd {
        let until = Instant::now() + time_max;
        while !self.thread.is_finished() {
            assert!(Instant::now() < until, "it has not ended after {time_max:?}");
            // waits: between two looks for an event
            thread::sleep(Duration::from_millis(5));
        }
        self.thread.join().unwrap()
    }
}

/// Why this machine cannot run `front_end`, or `None` if it can.
fn obstacle(front_end: &dyn FrontEnd, harness: &Harness, request: &AttachRequest) -> Option<String> {
    let chosen = request.via.front_end(request, &SystemAccess::Own);
    let obstacle = |need: &FrontEndRequirement| match need {
        FrontEndRequirement::Kernel => SystemAccess::Own.may_plug().err().map(|error| error.to_string()),
        FrontEndRequirement::Mount(_) => {
            let device = StoreDevice::new(farbus_model::block::MemoryStore::new(vec![0; 512]));
            DiskMount::mount(&harness.folder.join("try"), "disk", device).err().map(|error| error.to_string())
        }
        FrontEndRequirement::Listen(..) => None,
    };
    let found = chosen.needs(request).iter().find_map(obstacle);
    found.inspect(|why| println!("{}: left out: {why}", front_end.name()))
}

/// Runs `claim` for each front end that this machine can run, each in a new harness; returns how many there were.
fn for_each(claim: impl Fn(&Harness, &AttachRequest)) -> usize {
    let mut count = 0;
    for front_end in FRONT_ENDS {
        let harness = Harness::with_device_for(*front_end);
        let request = harness.request(*front_end);
        if obstacle(*front_end, &harness, &request).is_none() {
            println!("{}", front_end.name());
            claim(&harness, &request);
            count += 1;
        }
    }
    count
}

/// The number of front ends that need nothing of a kernel.
const ALWAYS: usize = 4;

#[test]
fn front_ends_have_names_of_their_own_by_which_they_are_found() {
    for front_end in FRONT_ENDS {
        let via: FrontEndChoice = front_end.name().parse().unwrap();
        assert_eq!(via.named().name(), front_end.name());
        assert!(!front_end.summary().is_empty());
    }
    let unknown = "magic".parse::<FrontEndChoice>().unwrap_err();
    assert!(FRONT_ENDS.iter().all(|front_end| unknown.contains(front_end.name())), "{unknown}");
    assert_eq!(FrontEndChoice::for_disks(str::to_owned), "fuse, nbd and uas");
}

#[test]
fn an_attachment_says_where_it_is_ends_when_asked_and_gives_its_device_back() {
    let count = for_each(|harness, request| {
        let client = harness.client(GRACE);
        for _ in 0..2 {
            let running = Running::begin(harness.take(&client, request));
            let AttachmentFacts { at, how, introduction, .. } = &running.status;
            assert!(!at.is_empty() && !how.is_empty());
            assert!(introduction.line.contains(at) && introduction.line.contains(&request.target.to_string()));
            assert!(running.handle.session().is_some_and(|session| session.end().is_none()));
            assert_eq!(running.handle.may(DiskOwnerAction::Detach), Ok(()), "nobody uses it");
            running.handle.end();
            running.handle.end();
            assert!(matches!(running.ended(PATIENCE), AttachmentEnd::Requested));
        }
        let is_free = || harness.share.status().iter().all(|device| device.user.is_none());
        let until = Instant::now() + PATIENCE;
        while !is_free() {
            assert!(Instant::now() < until, "the device was not given back");
            // waits: between two looks for an event
            thread::sleep(Duration::from_millis(5));
        }
    });
    assert!(count >= ALWAYS);
}

#[test]
fn device_is_free_for_the_next_importer_once_it_is_given_back() {
    let harness = Harness::new();
    for grace in [Duration::ZERO, GRACE] {
        let client = harness.client(grace);
        for turn in 0..200 {
            let disk = client.open_disk(&harness.target);
            drop(disk.unwrap_or_else(|error| panic!("turn {turn}, a grace period of {grace:?}: {error}")));
            let device = client.open(&harness.target);
            drop(device.unwrap_or_else(|error| panic!("turn {turn}, a grace period of {grace:?}: {error}")));
        }
    }
}

#[test]
fn attachment_that_is_ended_before_it_runs_ends_when_it_runs() {
    for_each(|harness, request| {
        let attachment = harness.take(&harness.client(GRACE), request);
        attachment.handle().end();
        assert!(matches!(Running::begin(attachment).ended(PATIENCE), AttachmentEnd::Requested));
    });
}

#[test]
fn a_cut_attachment_does_not_wait_for_an_exporter_that_has_gone() {
    for_each(|harness, request| {
        let running = Running::begin(harness.take(&harness.client(GRACE), request));
        harness.share.stop();
        running.handle.cut();
        running.ended(PROMPT);
    });
}

#[test]
fn attachment_whose_device_is_taken_back_ends_with_the_reason() {
    for_each(|harness, request| {
        let client = harness.client(GRACE);
        let running = Running::begin(harness.take(&client, request));
        harness.share.take_back("device", Some("the test needs it"), Duration::ZERO).unwrap();
        let ended = running.ended(PATIENCE);
        let failure = ended.failure(&client, &request.target);
        let failure = failure.unwrap_or_else(|| panic!("{ended:?} is a failure"));
        assert!(failure.to_string().contains("the device was unplugged here"), "{failure}");
    });
}

#[test]
fn attachment_without_a_session_refuses_migration_hold_pause_and_save() {
    for_each(|harness, request| {
        let running = Running::begin(harness.take(&harness.client(Duration::ZERO), request));
        let Running { handle, .. } = &running;
        assert!(handle.session().is_none());
        assert!(handle.migrate(Fingerprint::from_bytes([7; 32])).is_err());
        assert_eq!(handle.discard(Fingerprint::from_bytes([7; 32])), Err(AttachmentRefusal::NoSession));
        assert_eq!(handle.pause(true), Err(AttachmentRefusal::NoModules));
        assert!(!handle.can_save());
        assert_eq!(handle.save().err(), Some(AttachmentRefusal::NotSaved));
        assert!(handle.hold().is_err() && handle.resume().is_err(), "nobody uses it who could be held");
        handle.end();
        assert!(matches!(running.ended(PATIENCE), AttachmentEnd::Requested));
    });
}

#[test]
fn idle_device_is_promised_to_its_successor_at_once() {
    for_each(|harness, request| {
        let running = Running::begin(harness.take(&harness.client(GRACE), request));
        let migration = running.handle.migrate(Fingerprint::from_bytes([7; 32]));
        assert!(matches!(migration, Ok(MigrationTiming::AtOnce | MigrationTiming::WhenQuiet)), "{migration:?}");
        assert!(running.handle.migrate(Fingerprint::from_bytes([8; 32])).is_err(), "it is promised already");
        running.handle.cut();
        running.ended(PROMPT);
    });
}

#[test]
fn discarded_device_is_promised_to_its_successor_and_its_attachment_ends() {
    for_each(|harness, request| {
        let running = Running::begin(harness.take(&harness.client(GRACE), request));
        let key = Fingerprint::from_bytes([7; 32]);
        assert!(running.handle.discard(key).is_ok());
        assert!(matches!(running.handle.discard(key), Err(AttachmentRefusal::Engine(_))), "it has gone");
        assert!(matches!(running.ended(PROMPT), AttachmentEnd::Moved));
        let kept = &harness.share.status()[0];
        assert!(kept.state == "in use" && kept.successor.is_some(), "{kept:?}");
    });
}

/// Takes the snapshot out of an answer, and leaves an empty one.
fn saved(of: &mut SavedAttachment) -> SavedAttachment {
    std::mem::replace(of, SavedAttachment { snapshot: Vec::new(), descriptors: Vec::new(), medium: None })
}

#[test]
fn attachment_continues_from_its_snapshot() {
    for_each(|harness, request| {
        let client = harness.client(GRACE);
        let front_end = request.via.front_end(request, client.system());
        if front_end.needs(request).iter().any(|need| matches!(need, FrontEndRequirement::Mount(_))) {
            // Tests of the command have a daemon, whose broker keeps the mount.
            println!("{}: left out: a mount goes on with a daemon alone", front_end.name());
            return;
        }
        let running = Running::begin(harness.take(&client, request));
        let at = running.status.at.clone();
        let mut reply = running.handle.save().unwrap().wait(PATIENCE).expect("it comes to rest");
        let restored = front_end.restore(&client, request, &[], saved(&mut reply.saved)).unwrap();
        reply.go();
        assert!(matches!(running.ended(PATIENCE), AttachmentEnd::HandedOver));
        let running = Running::begin(restored.go_on(&SystemAccess::Own).unwrap());
        assert_eq!(running.status.at, at);
        assert!(running.handle.can_save(), "and once more");
        running.handle.end();
        assert!(matches!(running.ended(PATIENCE), AttachmentEnd::Requested));
    });
}

#[test]
fn attachment_continues_unchanged_when_its_snapshot_is_not_used() {
    for_each(|harness, request| {
        let client = harness.client(GRACE);
        let front_end = request.via.front_end(request, client.system());
        let running = Running::begin(harness.take(&client, request));
        let mut reply = running.handle.save().unwrap().wait(PATIENCE).expect("it comes to rest");
        front_end.restore(&client, request, &[], saved(&mut reply.saved)).unwrap().leave();
        drop(reply);
        let again = running.handle.save().unwrap().wait(PATIENCE).expect("it runs, and answers again");
        drop(again);
        running.handle.end();
        assert!(matches!(running.ended(PATIENCE), AttachmentEnd::Requested));
    });
}

#[test]
fn snapshot_bytes_that_no_attachment_saved_are_refused() {
    for_each(|harness, request| {
        let client = harness.client(GRACE);
        let front_end = request.via.front_end(request, client.system());
        for snapshot in [Vec::new(), b"no snapshot".to_vec(), vec![0xff; 4096]] {
            let saved = SavedAttachment { snapshot, descriptors: Vec::new(), medium: None };
            assert!(front_end.restore(&client, request, &[], saved).is_err());
        }
    });
}

#[test]
fn prepared_front_end_stays_for_another_try_while_the_device_is_in_use() {
    for_each(|harness, request| {
        let client = harness.client(GRACE);
        let front_end = request.via.front_end(request, client.system());
        let user = harness.client(Duration::ZERO).open(&request.target).unwrap();
        let mut prepared = front_end.prepare(&client, request).unwrap();
        for _ in 0..2 {
            assert!(front_end.take(&client, request, &mut prepared).is_err(), "one user at a time");
            if let Some(path) = request.location.as_ref().and_then(SocketLocation::path) {
                assert!(path.exists(), "a client that connects waits");
            }
        }
        drop(user);
        let until = Instant::now() + PATIENCE;
        let attachment = loop {
            match front_end.take(&client, request, &mut prepared) {
                Ok(attachment) => break attachment,
                Err(error) => assert!(Instant::now() < until, "{error}"),
            }
            // waits: between two looks for an event
            thread::sleep(Duration::from_millis(20));
        };
        attachment.handle().end();
        assert!(matches!(attachment.run(), AttachmentEnd::Requested));
    });
}
