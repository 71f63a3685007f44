//! Modules between the two ends of a session: transparent ones, failing ones, and random frames.

use std::sync::Arc;
use std::time::Duration;

use farbus_model::block::MemoryStore;
use farbus_model::{
    BlockId, BlockRequest, BufferPool, CompletionQueue, ExportIdentity, Instant, StoreDevice, StoreError,
};
use farbus_modules::{ModuleAllowance, ModuleCatalogue, ModuleSpec, PipelineRecipe};
use farbus_session::native::control::{
    AttachmentClass, AttachmentEndCause, AttachmentEndNotice, AttachmentMode, OpenRequest,
};
use farbus_session::native::modules::encode_offers;
use farbus_session::native::{
    AllowedModules, AttachmentState, ClassPart, ExporterServices, FrameKind, ImporterAttachment, Lane, LaneLimits,
    MovableAttachment, OutboundMessage, PipedAttachment, RemoteBlock, RequestedModules, ServedBlock, ServedExport,
};

use crate::random::Random;
use crate::world::World;

/// Modules that are transparent to the device's user.
const HARMLESS: [&str; 11] = [
    "null",
    "lz4:min=1",
    "zstd:min=1",
    "zstd",
    "seal:key-file=k",
    "delay:time=300us,jitter=500us",
    "rate:bytes-per-s=500000000",
    "jitter:spread=500us,shape=bursts",
    "buffer:time=300us,messages=3",
    "bundle:time=300us",
    "pause",
];

/// The modules of an attachment on both ends.
pub struct Modules {
    pub through: RequestedModules,
    pub allowed: Arc<AllowedModules>,
}

impl Modules {
    /// One to four random modules.
    pub fn any(random: &mut Random) -> Self {
        let specs_text: Vec<&str> = (0..=random.below(4)).map(|_| random.pick(&HARMLESS)).collect();
        Self::new(&specs_text, 7)
    }

    /// These modules; the exporter's key is made of `key`, the importer's of sevens.
    pub fn new(specs_text: &[&str], key: u8) -> Self {
        let catalogue = ModuleCatalogue::builtin();
        let specs: Vec<ModuleSpec> = specs_text.iter().map(|text| text.parse().unwrap()).collect();
        let recipe = PipelineRecipe::new(&catalogue, &specs, &mut |_: &str| Ok(vec![7; 32])).unwrap();
        let mut allowance = ModuleAllowance::usual(&catalogue);
        allowance.allow(&catalogue, &"seal:key-file=k".parse().unwrap(), &mut |_: &str| Ok(vec![key; 32])).unwrap();
        let mut salts = Random::new(1);
        let through =
            RequestedModules { recipe, random: Box::new(move |bytes| bytes.fill_with(|| salts.next() as u8)) };
        let allowed = AllowedModules { modules: allowance, random: Box::new(|bytes| bytes.fill(3)) };
        Self { through, allowed: Arc::new(allowed) }
    }
}

/// Whether another process could take over at this moment. If not, callers try again.
pub fn is_movable_now<A: MovableAttachment>(remote: &mut PipedAttachment<A>) -> bool {
    remote.come_to_rest();
    !remote.has_modules() || (remote.is_movable() && remote.is_at_rest())
}

/// Takes over an attachment that was restored in another process.
pub fn resume<A: ImporterAttachment>(before: &PipedAttachment<A>, after: &mut PipedAttachment<A>) {
    let recipe = before.recipe();
    let through = (!recipe.is_empty()).then(|| RequestedModules { recipe, random: Box::new(|bytes| bytes.fill(9)) });
    after.resume(through).expect("its modules stood so");
}

/// Gives each attachment a disk in memory.
struct Shelf;

impl ExporterServices for Shelf {
    fn identity(&mut self, _open: &OpenRequest) -> Option<ExportIdentity> {
        Some(ExportIdentity { id: 12, generation: 0 })
    }

    fn open(
        &mut self,
        _now: Instant,
        number: u16,
        _open: &OpenRequest,
    ) -> Result<(u64, Box<dyn ServedExport>), AttachmentEndNotice> {
        let disk = StoreDevice::new(MemoryStore::new(vec![7; 1 << 16]));
        Ok((1, Box::new(ServedBlock::new(number, disk, 1, |_, _| {}))))
    }
}

fn open() -> OpenRequest {
    OpenRequest {
        class: AttachmentClass::BLOCK,
        mode: AttachmentMode::Exclusive,
        epoch: 0,
        name: "disk".into(),
        reason: String::new(),
    }
}

/// Uses a disk through these modules, if the exporter allows any; returns its state and the results of its reads.
fn used(random: &mut Random, modules: Modules, is_allowed: bool) -> (AttachmentState, Vec<Result<(), StoreError>>) {
    let mut world = World::new(PipedAttachment::new(RemoteBlock::new(1, open()), Some(modules.through)));
    world.allowed = is_allowed.then_some(modules.allowed);
    let mut done = CompletionQueue::new(BufferPool::new(0));
    world.link(random, &mut done);
    world.exchange(&mut Shelf, &mut done);
    if *world.remote.state() == AttachmentState::Open {
        for id in 0..10 {
            let request = BlockRequest::read(BlockId(id), 0, 4096).launch();
            farbus_model::BlockDevice::submit(world.remote.inner_mut(), world.now, request, &mut done);
            world.exchange(&mut Shelf, &mut done);
        }
    }
    let answers = std::iter::from_fn(|| done.pop()).map(|done| done.result).collect();
    let attached = world.exporter.as_ref().map_or(0, |session| session.attachments());
    assert_eq!(attached > 0, *world.remote.state() == AttachmentState::Open, "who is over has let go");
    (world.remote.state().clone(), answers)
}

#[test]
fn module_that_does_not_fit_or_fails_ends_the_attachment_with_its_reason() {
    let random = &mut Random::new(1);
    let mut ends_with = |specs_text: &[&str], key, is_allowed, cause, word: &str| {
        let (state, answers) = used(random, Modules::new(specs_text, key), is_allowed);
        let AttachmentState::Ended(end) = state else { panic!("{specs_text:?}: {state:?}") };
        assert!(end.cause == cause && end.message.contains(word), "{specs_text:?}: {end:?}");
        answers
    };
    let seal = "seal:key-file=k";
    assert!(
        ends_with(&["zstd", seal], 8, true, AttachmentEndCause::Module, "module 'seal': the two hosts have different")
            .is_empty()
    );
    assert!(ends_with(&["null"], 7, false, AttachmentEndCause::Module, "nothing goes through modules here").is_empty());
    // Four messages pass: to the device and back, twice.
    let answers = ends_with(&["cut:after=4"], 7, true, AttachmentEndCause::Network, "module 'cut'");
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 2);
    assert_eq!((answers.len(), answers[2]), (10, Err(StoreError::Lost)));
    let answers = ends_with(
        &[seal, "corrupt:one-in=1"],
        7,
        true,
        AttachmentEndCause::Module,
        "module 'seal' (1 of 2): a message was changed",
    );
    assert!(answers.len() == 10 && answers.iter().all(Result::is_err));

    let (state, answers) = used(random, Modules::new(&["drop:one-in=1"], 7), true);
    assert_eq!((state, answers), (AttachmentState::Open, vec![Err(StoreError::Medium); 10]));
    let (state, answers) = used(random, Modules::new(&["zstd", seal, "null"], 7), true);
    assert_eq!((state, answers), (AttachmentState::Open, vec![Ok(()); 10]));
}

#[test]
fn random_frames_behind_modules_do_no_harm() {
    let kinds = [
        FrameKind::Request,
        FrameKind::Data,
        FrameKind::Cancel,
        FrameKind::Aside,
        FrameKind::Modules,
        FrameKind::Grant,
        FrameKind::Reply,
        FrameKind::Close,
    ];
    let (mut refused, mut ended, mut lived) = (0, 0, 0);
    for seed in 0..400 {
        let random = &mut Random::new(seed);
        let specs_text: &[&str] =
            random.pick(&[&["zstd"][..], &["null"], &["lz4:min=1", "null"], &["seal:key-file=k"]]);
        let Modules { mut through, allowed } = Modules::new(specs_text, 7);
        let mut world = World::new(PipedAttachment::from(RemoteBlock::new(9, open())));
        world.allowed = Some(allowed);
        let mut done = CompletionQueue::new(BufferPool::new(0));
        world.link(random, &mut done);
        let context = farbus_modules::ModuleContext {
            role: farbus_model::module::ModuleRole::Importer,
            class: farbus_model::module::ModuleDeviceClass::Block,
            failed: farbus_model::Payload::Empty,
        };
        let begun = through.recipe.begin(&context, &mut *through.random).unwrap();
        let offers: Vec<_> = begun.offers().cloned().collect();
        let mut session = world.exporter.take().unwrap();
        let mut lane = Lane::new(LaneLimits::DEFAULT);
        lane.handle_linked(0, &mut BufferPool::new(0)).unwrap();
        lane.send(OutboundMessage::control(FrameKind::Modules, 1, 0, encode_offers(&offers).into()));
        lane.send(OutboundMessage::control(FrameKind::Open, 1, 0, open().encode().into()));
        for _ in 0..random.below(40) {
            let is_wild = random.once_in(9);
            let kind = random.pick(&kinds[..if is_wild { kinds.len() } else { 4 }]);
            let mut message = OutboundMessage::control(kind, 1, random.below(4) as u16, ClassPart::empty());
            let length = random.pick(&[0, 1, 2, 15, 16, 17, 40, 600, 20_000]);
            let mut body: Vec<u8> = (0..length).map(|_| random.pick(&[0, 0, 1, 14, 0xff])).collect();
            if random.once_in(2) && length > 17 {
                // As a block read begins, with zstd's mark for uncompressed data.
                body.splice(..17, [15, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            }
            message.payload = body.into();
            message.head.flags.more = random.once_in(4);
            lane.send(message);
        }
        let bytes: Vec<u8> = lane.poll_transmit(world.now).iter().map(|run| &**run).collect::<Vec<_>>().concat();
        let mut outcome = Ok(false);
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let space = session.lane_mut().receive_space();
            let count = space.len().min(rest.len());
            space[..count].copy_from_slice(&rest[..count]);
            session.lane_mut().handle_received(count);
            rest = &rest[count..];
            outcome = session.advance(world.now + Duration::from_millis(1), &mut Shelf);
            if outcome.is_err() {
                break;
            }
        }
        session.handle_ready(world.now + Duration::from_secs(1));
        match (outcome, session.attachments()) {
            (Err(_), _) => refused += 1,
            (Ok(_), 0) => ended += 1,
            (Ok(_), _) => lived += 1,
        }
        session.finish(world.now);
    }
    println!("{refused} refused, {ended} ended, {lived} lived");
    assert!(refused > 20 && ended > 20 && lived > 5, "{refused} refused, {ended} ended, {lived} lived");
}
