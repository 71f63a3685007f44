//! Peers that are well-formed but uncooperative: they keep sending, and do not take answers or never acknowledge them.
//!
//! The cases are made from the list of all kinds of frames, so a kind without a case does not compile. Each case runs
//! against an exporter, once for a peer that may use nothing and once for a peer that uses a disk, a USB device and an
//! observed one, and against an importer. The tests check what either end says that it holds, and the memory of this
//! process.

#[path = "unwilling/kinds.rs"]
mod kinds;

use std::sync::Arc;
use std::time::Duration;

use farbus_gadgets::zero::{SourcePattern, SourceSink};
use farbus_model::block::MemoryStore;
use farbus_model::budget::{ConnectionAllowance, MemoryAccount, MemoryBudget};
use farbus_model::{
    BlockCompletion, BlockDevice, BlockId, BlockRequest, BufferPool, CompletionQueue, Device, Instant, Payload,
    ReadinessSource, SessionLimits, SetupPacket, StoreDevice, TransferType, Urb, UrbId, UsbSpeed,
};
use farbus_session::DeviceRecord;
use farbus_session::native::control::AttachmentCredit;
use farbus_session::native::control::{
    AttachmentClass, AttachmentEndCause, AttachmentEndNotice, AttachmentMode, OpenReply, OpenRequest,
    SuccessorOpenRequest,
};
use farbus_session::native::hello::{HelloOptions, LanePosition, SessionId};
use farbus_session::native::served_observer::ObserverFeed;
use farbus_session::native::usb;
use farbus_session::native::{
    ClassPart, ExporterServices, ExporterSession, FrameHeader, FrameKind, ImporterAttachment, ImporterSession, Lane,
    LaneLimits, RemoteBlock, RemoteObserver, RemoteUsb, ServedBlock, ServedExport, ServedObserver, ServedUsb, hello,
};

use kinds::{DISK, SHOW, Says, USB, all_kinds, frame, of_exporter, of_importer, open, reservation};

const MIB: usize = 1 << 20;
const NOW: Instant = Instant::from_nanos(1_000_000_000);
const GRACE: Duration = Duration::from_secs(20);
/// Most bytes that a peer sends in one case.
const SENT_BYTES_MAX: usize = 8 * MIB;
/// Most turns of a peer in one case.
const TURNS_MAX: u32 = 2_000;

/// An endless source for observers.
struct Endless;

impl ObserverFeed for Endless {
    fn take(&mut self) -> Option<(ClassPart, Payload)> {
        Some((ClassPart::empty(), vec![7; 64 << 10].into()))
    }

    fn grant_max(&self) -> u32 {
        4096
    }

    fn waiting_bytes_max(&self) -> usize {
        MIB
    }

    fn is_movable(&self) -> bool {
        false
    }

    fn over(&self) -> Option<&'static str> {
        None
    }
}

/// The services of the exporter.
struct Offered {
    has_devices: bool,
}

impl ExporterServices for Offered {
    fn open(
        &mut self,
        _now: Instant,
        number: u16,
        open: &OpenRequest,
    ) -> Result<(u64, Box<dyn ServedExport>), AttachmentEndNotice> {
        let missing = || AttachmentEndNotice {
            cause: AttachmentEndCause::Gone,
            message: format!("no device called '{}' is shared here", open.name),
        };
        if !self.has_devices {
            return Err(missing());
        }
        let served: Box<dyn ServedExport> = match &*open.name {
            "disk" => {
                let device = StoreDevice::new(MemoryStore::new(vec![0; 4 * MIB]));
                Box::new(ServedBlock::new(number, device, 0, |_, _| ()).with_credit(CREDIT_BYTES))
            }
            "zero" => {
                let device =
                    Box::new(SourceSink::device(UsbSpeed::High, SourcePattern::Zeros, false)) as Box<dyn Device>;
                let limits = SessionLimits { payload_bytes_max: CREDIT_BYTES, ..SessionLimits::DEFAULT };
                Box::new(ServedUsb::new(number, device, record(), limits, |_, _| ()))
            }
            "show" => {
                let readiness = ReadinessSource::new(Arc::new(()));
                Box::new(ServedObserver::new(number, Box::new(Endless), readiness, || (), Vec::new(), |_| ()))
            }
            _ => return Err(missing()),
        };
        Ok((1, served))
    }

    /// A successor waits for its device for ever.
    fn inherit(
        &mut self,
        _now: Instant,
        _number: u16,
        _inherit: &SuccessorOpenRequest,
    ) -> Option<Result<farbus_session::native::InheritedDevice, AttachmentEndNotice>> {
        None
    }
}

fn record() -> DeviceRecord {
    DeviceRecord {
        path: "/farbus/1-1".into(),
        bus_id: "1-1".into(),
        bus: 1,
        device: 2,
        speed: UsbSpeed::High,
        vendor: 1,
        product: 1,
        device_bcd: 0,
        class: [0; 3],
        configuration: 0,
        configurations: 1,
        interfaces: Vec::new(),
        interface_count: 0,
    }
}

/// What the peer does with answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    /// Takes none: the socket is full.
    Never,
    /// Takes all, and never acknowledges them.
    Unthanked,
}

fn receive(lane: &mut Lane, rest: &mut &[u8]) {
    let space = lane.receive_space();
    let count = space.len().min(rest.len());
    space[..count].copy_from_slice(&rest[..count]);
    lane.handle_received(count);
    *rest = &rest[count..];
}

/// Credit of each device, bytes.
const CREDIT_BYTES: usize = 8 * MIB;

/// Prepares what is to be sent, as the owner of a link does, whether or not it can be sent.
fn send(lane: &mut Lane, taken: Taken) {
    while lane.has_transmit() {
        let count: usize = lane.poll_transmit(NOW).iter().map(|run| run.len()).sum();
        match taken {
            Taken::Never => return,
            Taken::Unthanked => lane.handle_transmitted(count),
        }
    }
}

/// Memory in use by this process, bytes.
fn memory() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split_whitespace().nth(1).unwrap().parse().unwrap();
    pages * 4096
}

fn session(has_devices: bool, account: Option<&Arc<MemoryAccount>>) -> (ExporterSession, Offered) {
    let hello = hello::ImporterHello::new(
        LanePosition { link: 1, incarnation: 1, ..LanePosition::default() },
        HelloOptions::default(),
    );
    let (mut session, _) = ExporterSession::begin(&hello, SessionId([1; 16]), 1, GRACE, LaneLimits::DEFAULT).unwrap();
    if let Some(account) = account {
        assert!(session.draw_on(ConnectionAllowance::of(Arc::clone(account))));
    }
    let mut offered = Offered { has_devices };
    if has_devices {
        let all = [
            (DISK, "disk", AttachmentClass::BLOCK),
            (USB, "zero", AttachmentClass::USB),
            (SHOW, "show", AttachmentClass::USB),
        ];
        let mut bytes: Vec<u8> = all
            .iter()
            .flat_map(|(number, name, class)| frame(FrameKind::Open, *number, 0, &open(name, *class).encode()))
            .collect();
        let configure = Urb::control(UrbId(8191), SetupPacket::set_configuration(1), Payload::Empty);
        bytes.extend(frame(FrameKind::Request, USB, 8191, &usb::request_part(&configure, TransferType::Control)));
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            receive(session.lane_mut(), &mut rest);
            while session.advance(NOW, &mut offered).unwrap() {}
        }
        assert_eq!(session.attachments(), 3);
        send(session.lane_mut(), Taken::Unthanked);
    }
    (session, offered)
}

/// Runs one case against an exporter; returns the most memory that it reported, and the reason if it cut the peer off.
fn attack(
    says: &mut Says,
    taken: Taken,
    session: &mut ExporterSession,
    offered: &mut Offered,
) -> (usize, Option<String>) {
    let (mut most, mut sent) = (0, 0);
    for turn in 0..TURNS_MAX {
        let bytes = says(turn);
        sent += bytes.len();
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            receive(session.lane_mut(), &mut rest);
            loop {
                match session.advance(NOW, offered) {
                    Ok(true) => send(session.lane_mut(), taken),
                    Ok(false) => break,
                    Err(reject) => return (most, Some(reject.to_string())),
                }
            }
        }
        session.handle_ready(NOW);
        send(session.lane_mut(), taken);
        most = most.max(session.lanes_mut().held_bytes()).max(session.held_bytes());
        if session.is_ended() || sent > SENT_BYTES_MAX {
            break;
        }
    }
    (most, None)
}

/// An importer and its device, which has requested much.
trait Victim {
    fn hear(&mut self, session: &mut ImporterSession) -> Result<(), farbus_session::ProtocolViolation>;

    /// Gives up: no further answers will come.
    fn give_up(&mut self);
}

struct Using<A: ImporterAttachment>(A, A::Done);

impl<A: ImporterAttachment> Victim for Using<A> {
    fn hear(&mut self, session: &mut ImporterSession) -> Result<(), farbus_session::ProtocolViolation> {
        while let Some(arrived) = session.poll_arrived(0)? {
            self.0.handle_arrived(NOW, arrived, &mut self.1)?;
        }
        while let Some(message) = self.0.poll_message() {
            session.send(message);
        }
        Ok(())
    }

    fn give_up(&mut self) {
        self.0.handle_over(AttachmentEndCause::Network, "given up", &mut self.1);
    }
}

fn victims() -> Vec<(&'static str, Box<dyn Victim>)> {
    let info = farbus_session::native::block::BlockDescription {
        info: *StoreDevice::new(MemoryStore::new(vec![0; MIB])).info(),
        durability: 0,
        maps: true,
    };
    let opened =
        OpenReply { epoch: 1, credit: AttachmentCredit { requests: 64, bytes: 32 << 20 }, info: info.encode() };
    let mut reading = RemoteBlock::new(1, open("disk", AttachmentClass::BLOCK));
    let head = FrameHeader::new(FrameKind::Opened, 1, 0);
    let mut done: CompletionQueue<BlockCompletion> = CompletionQueue::new(BufferPool::new(0));
    reading
        .handle_arrived(NOW, farbus_session::native::ReceivedFrame { head, body: opened.encode().into() }, &mut done)
        .unwrap();
    reading.submit(NOW, BlockRequest::read(BlockId(1), 0, 1 << 20).launch(), &mut done);
    let fresh: CompletionQueue<BlockCompletion> = CompletionQueue::new(BufferPool::new(0));
    let usb = || CompletionQueue::new(BufferPool::new(0));
    let reserving = RemoteUsb::reserving(1, open("zero", AttachmentClass::USB), reservation());
    let successor = RemoteUsb::successor(1, open("zero", AttachmentClass::USB), [0; 8]);
    let observer =
        RemoteObserver::new(1, OpenRequest { mode: AttachmentMode::Observe, ..open("zero", AttachmentClass::USB) });
    vec![
        ("a disk that is read", Box::new(Using(reading, done))),
        ("a disk that is opened", Box::new(Using(RemoteBlock::new(1, open("disk", AttachmentClass::BLOCK)), fresh))),
        ("a USB device", Box::new(Using(RemoteUsb::new(1, open("zero", AttachmentClass::USB)), usb()))),
        ("a USB device that is reserved", Box::new(Using(reserving, usb()))),
        ("a USB device that is inherited", Box::new(Using(successor, usb()))),
        ("what is observed", Box::new(Using(observer, Vec::new()))),
    ]
}

#[test]
fn memory_for_a_peer_that_does_not_read_stays_within_its_share() {
    // What requests leave behind in reused buffers, and in the allocator.
    let base = memory();
    for has_devices in [false, true] {
        // With three devices: what their credits allow, or one request each that exceeds them, and what is not
        // acknowledged.
        let limit = if has_devices { 3 * (16 + CREDIT_BYTES / MIB + 5) * MIB } else { 7 * MIB };
        for (taken, is_counted) in [(Taken::Never, true), (Taken::Unthanked, true), (Taken::Never, false)] {
            if has_devices && !is_counted {
                continue;
            }
            for kind in all_kinds() {
                for (name, mut says) in of_importer(kind) {
                    let process = MemoryAccount::of_process(MemoryBudget::DEFAULT);
                    let peer = MemoryAccount::of_peer(&process);
                    let (mut session, mut offered) = session(has_devices, is_counted.then_some(&peer));
                    let (most, end) = attack(&mut says, taken, &mut session, &mut offered);
                    let grown = memory().saturating_sub(base);
                    println!(
                        "{kind:?} {name}, devices {has_devices}, {taken:?}: {} KiB, grown {} MiB, {end:?}",
                        most >> 10,
                        grown >> 20
                    );
                    assert!(most < limit, "{kind:?} {name}: {most} bytes held");
                    assert!(
                        grown < 64 * MIB + if has_devices { limit } else { 0 },
                        "{kind:?} {name}: grown by {grown} bytes"
                    );
                    session.finish(NOW);
                    assert_eq!(peer.used(), 0, "{kind:?} {name}: all was given back");
                }
            }
        }
    }
    for kind in all_kinds() {
        for at in 0..of_exporter(kind).len() {
            for (victim, mut using) in victims() {
                let (name, mut says) = of_exporter(kind).swap_remove(at);
                let mut session = ImporterSession::new(NOW, 7, GRACE, LaneLimits::DEFAULT);
                let hello = session.hello(0);
                let begun = ExporterSession::begin(&hello, SessionId([1; 16]), 1, GRACE, LaneLimits::DEFAULT).unwrap();
                session.handle_welcome(&begun.1).unwrap();
                let (mut most, mut sent, mut end) = (0, 0, None);
                for turn in 0..TURNS_MAX {
                    let bytes = says(turn);
                    sent += bytes.len();
                    let mut rest = &bytes[..];
                    while !rest.is_empty() && end.is_none() {
                        receive(session.lane_mut(), &mut rest);
                        end = using.hear(&mut session).err().map(|reject| reject.to_string());
                    }
                    send(session.lane_mut(), Taken::Never);
                    most = most.max(session.lanes_mut().held_bytes());
                    if end.is_some() || sent > SENT_BYTES_MAX {
                        break;
                    }
                }
                using.give_up();
                let grown = memory().saturating_sub(base);
                println!("{kind:?} {name} to {victim}: {most} bytes, grown {} MiB, {end:?}", grown >> 20);
                assert!(most < MIB, "{kind:?} {name} to {victim}: {most} bytes wait");
                assert!(grown < 96 * MIB, "{kind:?} {name} to {victim}: grown by {grown} bytes");
            }
        }
    }
}

#[test]
fn peer_without_memory_left_is_told_and_others_continue() {
    let process = MemoryAccount::of_process(MemoryBudget { stranger_bytes: MIB, ..MemoryBudget::DEFAULT });
    let (peer, other) = (MemoryAccount::of_peer(&process), MemoryAccount::of_peer(&process));
    let (mut first, _) = session(false, Some(&peer));
    let (second, _) = session(false, Some(&peer));
    let mut third = session(false, None).0;
    assert!(!third.draw_on(ConnectionAllowance::of(Arc::clone(&peer))), "two sessions take all");
    assert!(session(false, Some(&other)).0.held_bytes() > 0);
    let mut offered = Offered { has_devices: false };
    let mut all = of_importer(FrameKind::Open);
    let (most, end) = attack(&mut all[0].1, Taken::Never, &mut first, &mut offered);
    assert!(most < MIB && end.is_some_and(|end| end.contains("answers")), "{most}");
    second.finish(NOW);
    drop((first, third));
    assert_eq!((peer.used(), other.used()), (0, 0));
}

#[test]
fn waiting_requests_are_answered_in_order_once_answers_are_taken() {
    let (mut session, mut offered) = session(true, None);
    let opens: Vec<u8> = (0..100)
        .flat_map(|n| {
            let open = OpenRequest { reason: String::new(), ..open(&"x".repeat(900), AttachmentClass::BLOCK) };
            frame(FrameKind::Open, 100 + n, 0, &open.encode())
        })
        .collect();
    let mut rest = &opens[..];
    let mut answered: Vec<u8> = Vec::new();
    while !rest.is_empty() {
        receive(session.lane_mut(), &mut rest);
        while session.advance(NOW, &mut offered).unwrap() {}
    }
    while session.lane_mut().has_transmit() || session.has_waiting_work() {
        let runs: Vec<u8> = session.lane_mut().poll_transmit(NOW).iter().map(|run| &**run).collect::<Vec<_>>().concat();
        session.lane_mut().handle_transmitted(runs.len());
        answered.extend(runs);
        while session.advance(NOW, &mut offered).unwrap() {}
    }
    let (mut at, mut numbers) = (0, Vec::new());
    while at < answered.len() {
        let head = FrameHeader::from_bytes(*answered[at..].first_chunk().unwrap()).unwrap();
        if head.kind == FrameKind::Refused {
            numbers.push(head.attachment);
        }
        at += 8 + usize::from(head.length);
    }
    assert_eq!(numbers, (100..200).collect::<Vec<u16>>());
}
