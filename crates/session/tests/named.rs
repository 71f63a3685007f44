//! Everything that a peer may name when it opens a device: each module that ships, at the ends of its parameters, eight
//! times. The peer goes on asking and takes no answers. The cases are made from the catalogue of modules.

#[path = "../../modules/tests/memory/extremes.rs"]
mod extremes;

use std::sync::Arc;
use std::time::Duration;

use farbus_model::block::MemoryStore;
use farbus_model::budget::{ConnectionAllowance, MemoryAccount, MemoryBudget};
use farbus_model::module::{self, ModuleNeighbor, ModuleOffer, ModuleOutput, ModuleRole};
use farbus_model::{Instant, Payload, StoreDevice};
use farbus_modules::{ModuleCatalogue, ModuleContext, ModulePipeline, ModuleSpec, PipelineRecipe, cost};
use farbus_session::ProtocolViolation;
use farbus_session::native::control::{AttachmentClass, AttachmentEndNotice, AttachmentMode, OpenRequest};
use farbus_session::native::hello::{HelloOptions, ImporterHello, LanePosition, SessionId};
use farbus_session::native::modules::{decode_answers, encode_offers};
use farbus_session::native::{
    AllowedModules, ExporterServices, ExporterSession, FrameHeader, FrameKind, LaneLimits, ServedBlock, ServedExport,
};

use extremes::all_asked;

const MIB: usize = 1 << 20;
const NOW: Instant = Instant::from_nanos(1_000_000_000);
/// Credit of the disk, bytes.
const CREDIT_BYTES: usize = 8 * MIB;
/// Reads of a mebibyte that the peer asks for.
const READS: u64 = 300;

/// An exporter that opens a disk of the device's memory for every attachment.
struct Disks;

impl ExporterServices for Disks {
    fn open(
        &mut self,
        _now: Instant,
        number: u16,
        _open: &OpenRequest,
    ) -> Result<(u64, Box<dyn ServedExport>), AttachmentEndNotice> {
        let device = StoreDevice::new(MemoryStore::new(vec![7; MIB]));
        Ok((1, Box::new(ServedBlock::new(number, device, 0, |_, _| ()).with_credit(CREDIT_BYTES))))
    }
}

fn frame(kind: FrameKind, attachment: u16, tag: u16, body: &[u8]) -> Vec<u8> {
    let mut head = FrameHeader::new(kind, attachment, tag);
    head.length = body.len() as u16;
    [&head.to_bytes()[..], body].concat()
}

fn session(account: &Arc<MemoryAccount>, names: &[&str]) -> ExporterSession {
    let hello = ImporterHello::new(
        LanePosition { link: 1, incarnation: 1, ..LanePosition::default() },
        HelloOptions::default(),
    );
    let grace = Duration::from_secs(20);
    let (mut session, _) = ExporterSession::begin(&hello, SessionId([1; 16]), 1, grace, LaneLimits::DEFAULT).unwrap();
    assert!(session.draw_on(ConnectionAllowance::of(Arc::clone(account))));
    let catalogue = ModuleCatalogue::builtin();
    let mut modules = farbus_modules::ModuleAllowance::usual(&catalogue);
    for name in names {
        modules.allow(&catalogue, &name.parse().unwrap(), &mut |_: &str| Err(String::new())).unwrap();
    }
    session.allow(Arc::new(AllowedModules { modules, random: Box::new(|bytes| bytes.fill(3)) }));
    session
}

fn hear(session: &mut ExporterSession, bytes: &[u8]) -> Result<(), ProtocolViolation> {
    let mut rest = bytes;
    while !rest.is_empty() {
        let space = session.lane_mut().receive_space();
        let count = space.len().min(rest.len());
        space[..count].copy_from_slice(&rest[..count]);
        session.lane_mut().handle_received(count);
        rest = &rest[count..];
        while session.advance(NOW, &mut Disks)? {}
    }
    session.handle_ready(NOW);
    Ok(())
}

/// What the exporter has sent.
fn taken(session: &mut ExporterSession) -> Vec<(FrameHeader, Vec<u8>)> {
    let mut bytes = Vec::new();
    while session.lane_mut().has_transmit() {
        let runs: Vec<u8> = session.lane_mut().poll_transmit(NOW).iter().map(|run| &**run).collect::<Vec<_>>().concat();
        session.lane_mut().handle_transmitted(runs.len());
        bytes.extend(runs);
    }
    let (mut at, mut all) = (0, Vec::new());
    while at < bytes.len() {
        let head = FrameHeader::from_bytes(*bytes[at..].first_chunk().unwrap()).unwrap();
        let end = at + 8 + usize::from(head.length);
        all.push((head, bytes[at + 8..end].to_vec()));
        at = end;
    }
    all
}

fn disk() -> OpenRequest {
    OpenRequest {
        class: AttachmentClass::BLOCK,
        mode: AttachmentMode::Exclusive,
        epoch: 0,
        name: "disk".into(),
        reason: String::new(),
    }
}

/// Opens a disk through these modules as attachment `number`: the importer's halves, or why not; `None` if they serve
/// no disk or need a file.
fn opened(session: &mut ExporterSession, number: u16, spec_text: &str) -> Option<Result<ModulePipeline, String>> {
    let specs = vec![spec_text.parse::<ModuleSpec>().unwrap(); 8];
    let recipe = PipelineRecipe::new(&ModuleCatalogue::builtin(), &specs, &mut |_: &str| Err(String::new())).ok()?;
    let context =
        ModuleContext { role: ModuleRole::Importer, class: module::ModuleDeviceClass::Block, failed: Payload::Empty };
    let begun = recipe.begin(&context, &mut |bytes| bytes.fill(1)).ok()?;
    let offers: Vec<ModuleOffer> = begun.offers().cloned().collect();
    hear(session, &frame(FrameKind::Modules, number, 0, &encode_offers(&offers))).unwrap();
    hear(session, &frame(FrameKind::Open, number, 0, &disk().encode())).unwrap();
    for (head, body) in taken(session) {
        match head.kind {
            FrameKind::Modules => return Some(Ok(begun.finish(&decode_answers(&body).unwrap()).unwrap())),
            FrameKind::Refused => return Some(Err(AttachmentEndNotice::decode(&body).unwrap().message)),
            _ => {}
        }
    }
    panic!("it is opened or refused");
}

/// A read of a mebibyte, as these halves of an importer that does not wait send it.
fn read(halves: &mut ModulePipeline, tag: u64) -> Vec<u8> {
    let mut head = vec![0, 0];
    head.extend((MIB as u32).to_le_bytes());
    head.extend([0; 8]);
    let (mut out, mut bytes) = (ModuleOutput::default(), Vec::new());
    let message = module::ModuleMessage {
        kind: module::ModuleMessageKind::Request,
        id: tag,
        head: head.into(),
        payload: Payload::Empty,
    };
    if tag == 0 {
        halves.pause(NOW, true, &mut out);
    }
    halves.handle(NOW, ModuleNeighbor::Above, message, &mut out);
    while let Some(due) = halves.poll_timeout() {
        halves.handle_timeout(due + Duration::from_nanos(1), &mut out);
    }
    while let Some((side, message)) = out.pop() {
        let module::ModuleMessage { kind, id, head, payload } = message;
        let (kind, tag) = match kind {
            module::ModuleMessageKind::Aside(pair) => (FrameKind::Aside, pair.into()),
            _ => (FrameKind::Request, id as u16),
        };
        let mut body = (head.len() as u16).to_le_bytes().to_vec();
        head.runs().chain(payload.runs()).for_each(|run| body.extend_from_slice(run));
        if side != ModuleNeighbor::Above {
            bytes.extend(frame(kind, 1, tag, &body));
        }
    }
    bytes
}

/// Memory in use by this process, bytes.
fn memory() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split_whitespace().nth(1).unwrap().parse().unwrap();
    pages * 4096
}

#[test]
fn whatever_modules_a_peer_names_it_makes_an_exporter_hold_no_more_than_its_memory() {
    let base = memory();
    let mut cases = 0;
    for spec_text in all_asked() {
        let process = MemoryAccount::of_process(MemoryBudget::DEFAULT);
        let peer = MemoryAccount::of_peer(&process);
        // Whatever processor time they take: their owner named them.
        let mut session = session(&peer, &["zstd"]);
        let Some(opened) = opened(&mut session, 1, &spec_text) else { continue };
        let Ok(mut halves) = opened else {
            session.finish(NOW);
            assert_eq!(peer.used(), 0, "{spec_text}: nothing is kept of what was refused");
            continue;
        };
        let (mut most, mut end) = (0, None);
        for tag in 0..READS {
            let heard = hear(&mut session, &read(&mut halves, tag));
            most = most.max(session.held_bytes());
            end = heard.err().map(|reject| reject.to_string());
            // What holds nothing back by then never does.
            let holds_nothing = tag == 40 && session.held_bytes() < 8 * MIB;
            if end.is_some() || session.attachments() == 0 || holds_nothing {
                break;
            }
        }
        let grown = memory().saturating_sub(base);
        println!("{spec_text}: {} KiB held, grown {} MiB, {end:?}", most >> 10, grown >> 20);
        assert!(peer.used() <= MemoryBudget::DEFAULT.peer_bytes, "{spec_text}: {} bytes", peer.used());
        assert!(grown < 160 * MIB, "{spec_text}: grown by {grown} bytes");
        session.finish(NOW);
        assert_eq!(peer.used(), 0, "{spec_text}: all was given back");
        cases += 1;
    }
    assert!(cases >= 20, "{cases} cases");
}

#[test]
fn modules_beyond_the_memory_of_their_peer_are_refused_until_others_end() {
    let process = MemoryAccount::of_process(MemoryBudget::DEFAULT);
    let peer = MemoryAccount::of_peer(&process);
    let mut session = session(&peer, &["zstd"]);
    let mut number = 1;
    let why = loop {
        match opened(&mut session, number, "zstd:level=19").unwrap() {
            Ok(_) => number += 1,
            Err(why) => break why,
        }
        assert!(number < 20 && peer.used() <= MemoryBudget::DEFAULT.peer_bytes, "{number}: {}", peer.used());
    };
    assert!(number > 4, "{number}");
    assert!(why.starts_with("module 'zstd': with it the 8 of this attachment need "), "{why}");
    assert!(why.contains("KiB are left of the 256 MiB that this host may hold there"), "{why}");
    // What ends gives its memory back.
    for ended in [1, 2] {
        hear(&mut session, &frame(FrameKind::Close, ended, 0, &[])).unwrap();
    }
    taken(&mut session);
    assert!(opened(&mut session, 100, "lz4").unwrap().is_ok());
    assert!(opened(&mut session, number, "zstd:level=19").unwrap().is_ok());
    session.finish(NOW);
    assert_eq!(peer.used(), 0);
    let mut unnamed = self::session(&peer, &[]);
    let why = opened(&mut unnamed, 1, "zstd:level=19").unwrap().err().unwrap();
    assert!(why.contains(&format!("may take {}", cost::PROCESSOR_NS_PER_BYTE_MAX)), "{why}");
}
