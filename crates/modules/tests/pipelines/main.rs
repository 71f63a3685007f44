//! Any nesting of up to eight pairs behaves like no pair at all, in random scenarios with cancellations.

#[path = "../../../session/tests/native/random.rs"]
mod random;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use farbus_model::module::{
    ModuleDeviceClass, ModuleFailureCause, ModuleMessage, ModuleMessageKind, ModuleNeighbor, ModuleOutput, ModuleRole,
};
use farbus_model::{Instant, Payload};
use farbus_modules::{ModuleAllowance, ModuleCatalogue, ModuleContext, ModulePipeline, ModuleSpec, PipelineRecipe};
use random::Random;

const ENDPOINTS: u64 = 3;
/// Pairs without an effect that is visible above them.
const HARMLESS: [&str; 13] = [
    "null",
    "lz4",
    "lz4:min=1",
    "zstd",
    "zstd:level=3,min=1",
    "seal:key-file=k",
    "delay:time=1ms,jitter=3ms",
    "rate:bytes-per-s=200000",
    "jitter:spread=2ms,shape=normal",
    "buffer:time=3ms,messages=5",
    "bundle:time=2ms",
    "bundle:small=64,bytes=100",
    "pause",
];

fn context(role: ModuleRole) -> ModuleContext {
    ModuleContext { role, class: ModuleDeviceClass::Block, failed: vec![0xff].into() }
}

/// Two pipelines whose halves belong together.
fn agreed(modules: &[&str]) -> (ModulePipeline, ModulePipeline) {
    let catalogue = ModuleCatalogue::builtin();
    let specs: Vec<ModuleSpec> = modules.iter().map(|text| text.parse().unwrap()).collect();
    let mut read = |_: &str| Ok(vec![5; 32]);
    let recipe = PipelineRecipe::new(&catalogue, &specs, &mut read).unwrap();
    let mut allowance = ModuleAllowance::usual(&catalogue);
    allowance.allow(&catalogue, &"seal:key-file=k".parse().unwrap(), &mut read).unwrap();
    let begun = recipe.begin(&context(ModuleRole::Importer), &mut |bytes| bytes.fill(1)).unwrap();
    let offers: Vec<_> = begun.offers().cloned().collect();
    let (exporter, answers) =
        allowance.answer(&offers, &context(ModuleRole::Exporter), &mut |bytes| bytes.fill(2)).unwrap();
    (begun.finish(&answers).unwrap(), exporter)
}

/// A user, a device, and two pipelines on a link between them.
struct World {
    now: Instant,
    importer: ModulePipeline,
    exporter: ModulePipeline,
    /// For each urgency, the messages under way to the exporter and to the importer.
    link: [[VecDeque<ModuleMessage>; 2]; 2],
    next_id: u64,
    /// The requests by id: endpoint and data.
    requests: BTreeMap<u64, (u64, Vec<u8>)>,
    withdrawn: Vec<u64>,
    /// By endpoint: requests that the device has and has not answered.
    device: [VecDeque<u64>; ENDPOINTS as usize],
    /// By endpoint, in order: requests made, requests seen by the device, its answers, and the answers that the user
    /// got.
    sequences: [[Vec<u64>; 4]; ENDPOINTS as usize],
    cancels: [Vec<u64>; 3],
    events: [Vec<u64>; 2],
}

const SUBMITTED: usize = 0;
const SEEN: usize = 1;
const ANSWERED: usize = 2;
const HEARD: usize = 3;

impl World {
    fn new((importer, exporter): (ModulePipeline, ModulePipeline)) -> Self {
        Self {
            now: Instant::ZERO + Duration::from_secs(1),
            importer,
            exporter,
            link: Default::default(),
            next_id: 0,
            requests: BTreeMap::new(),
            withdrawn: Vec::new(),
            device: Default::default(),
            sequences: Default::default(),
            cancels: Default::default(),
            events: Default::default(),
        }
    }

    /// The queue of a message: those of one endpoint keep their order.
    fn line_of(&self, message: &ModuleMessage) -> usize {
        let endpoint = self.requests.get(&message.id).map(|(endpoint, _)| *endpoint);
        usize::from(message.kind == ModuleMessageKind::Event || endpoint == Some(0))
    }

    fn say(&mut self, role: ModuleRole, kind: ModuleMessageKind, id: u64, head: Payload, payload: Vec<u8>) {
        let message = ModuleMessage { kind, id, head, payload: payload.into() };
        let mut out = ModuleOutput::default();
        match role {
            ModuleRole::Importer => self.importer.handle(self.now, ModuleNeighbor::Above, message, &mut out),
            ModuleRole::Exporter => self.exporter.handle(self.now, ModuleNeighbor::Above, message, &mut out),
        }
        self.carry(role, out);
    }

    fn carry(&mut self, role: ModuleRole, mut out: ModuleOutput) {
        assert_eq!(out.failure(), None);
        while let Some((side, message)) = out.pop() {
            match (side, role) {
                (ModuleNeighbor::Below, _) => {
                    let line = self.line_of(&message);
                    self.link[role as usize][line].push_back(message);
                }
                (_, ModuleRole::Exporter) => self.device_hears(message),
                (_, ModuleRole::Importer) => self.user_hears(message),
            }
        }
    }

    fn step(&mut self, random: &mut Random) {
        match random.below(8) {
            0 | 1 => self.ask(random),
            2 if !self.requests.is_empty() => {
                let id = random.below(self.next_id);
                // An answered request cannot be cancelled.
                let is_open = !self.sequences.iter().any(|sequence| sequence[HEARD].contains(&id));
                if is_open && !self.withdrawn.contains(&id) {
                    self.withdrawn.push(id);
                    self.say(ModuleRole::Importer, ModuleMessageKind::Cancel, id, Payload::Empty, Vec::new());
                }
            }
            3 => self.answer(random),
            4 => {
                let event = self.events[0].len() as u64;
                self.events[0].push(event);
                self.say(
                    ModuleRole::Exporter,
                    ModuleMessageKind::Event,
                    0,
                    vec![event as u8].into(),
                    vec![event as u8; 20],
                );
            }
            5 => self.wait(Duration::from_micros(random.below(5000))),
            _ => self.deliver(random),
        }
    }

    fn ask(&mut self, random: &mut Random) {
        let (id, endpoint) = (self.next_id, random.below(ENDPOINTS));
        self.next_id += 1;
        let length = random.pick(&[0, 1, 63, 64, 512, 4096, 70_000]);
        let is_noise = random.once_in(2);
        let data: Vec<u8> =
            (0..length).map(|at| if is_noise { random.next() as u8 } else { (at / 99) as u8 }).collect();
        self.requests.insert(id, (endpoint, data.clone()));
        self.sequences[endpoint as usize][SUBMITTED].push(id);
        self.say(ModuleRole::Importer, ModuleMessageKind::Request, id, vec![endpoint as u8; 14].into(), data);
    }

    fn answer(&mut self, random: &mut Random) {
        let endpoint = random.below(ENDPOINTS) as usize;
        if let Some(id) = self.device[endpoint].pop_front() {
            self.end(id, Payload::Empty, self.requests[&id].1.iter().map(|byte| !byte).collect());
        }
    }

    fn end(&mut self, id: u64, head: Payload, payload: Vec<u8>) {
        let endpoint = self.requests[&id].0 as usize;
        self.sequences[endpoint][ANSWERED].push(id);
        self.say(ModuleRole::Exporter, ModuleMessageKind::Completion, id, head, payload);
    }

    fn wait(&mut self, span: Duration) {
        let until = self.now + span;
        while let Some(at) = [self.importer.poll_timeout(), self.exporter.poll_timeout()].into_iter().flatten().min()
            && at <= until
        {
            self.now = self.now.max(at);
            for role in [ModuleRole::Importer, ModuleRole::Exporter] {
                let mut out = ModuleOutput::default();
                match role {
                    ModuleRole::Importer => self.importer.handle_timeout(self.now, &mut out),
                    ModuleRole::Exporter => self.exporter.handle_timeout(self.now, &mut out),
                }
                self.carry(role, out);
            }
        }
        self.now = until;
    }

    fn deliver(&mut self, random: &mut Random) {
        let (from, line) = (random.below(2) as usize, random.below(2) as usize);
        if let Some(message) = self.link[from][line].pop_front() {
            let mut out = ModuleOutput::default();
            let role = if from == ModuleRole::Importer as usize { ModuleRole::Exporter } else { ModuleRole::Importer };
            match role {
                ModuleRole::Importer => self.importer.handle(self.now, ModuleNeighbor::Below, message, &mut out),
                ModuleRole::Exporter => self.exporter.handle(self.now, ModuleNeighbor::Below, message, &mut out),
            }
            self.carry(role, out);
        }
    }

    fn device_hears(&mut self, ModuleMessage { kind, id, head, payload }: ModuleMessage) {
        let endpoint = self.requests[&id].0 as usize;
        match kind {
            ModuleMessageKind::Request => {
                assert_eq!(head, vec![endpoint as u8; 14].into());
                assert!(payload.contiguous() == self.requests[&id].1, "what was asked arrives");
                self.sequences[endpoint][SEEN].push(id);
                self.device[endpoint].push_back(id);
            }
            ModuleMessageKind::Cancel => {
                assert!(self.sequences[endpoint][SEEN].contains(&id), "a withdrawal never passes its request");
                if let Some(at) = self.device[endpoint].iter().position(|waiting| *waiting == id) {
                    self.device[endpoint].remove(at);
                    self.end(id, vec![8].into(), Vec::new());
                }
                self.cancels[0].push(id);
                self.say(ModuleRole::Exporter, ModuleMessageKind::Cancelled, id, Payload::Empty, Vec::new());
            }
            other => panic!("an importer does not say {other:?}"),
        }
    }

    fn user_hears(&mut self, ModuleMessage { kind, id, head, payload }: ModuleMessage) {
        match kind {
            ModuleMessageKind::Completion => {
                let (endpoint, data) = &self.requests[&id];
                match head.is_empty() {
                    true => assert!(
                        payload.contiguous().iter().eq(data.iter().map(|byte| !byte).collect::<Vec<_>>().iter())
                    ),
                    false => assert_eq!((head, payload), (vec![8].into(), Payload::Empty)),
                }
                self.sequences[*endpoint as usize][HEARD].push(id);
            }
            ModuleMessageKind::Cancelled => self.cancels[1].push(id),
            ModuleMessageKind::Event => {
                let event = u64::from(head.contiguous()[0]);
                assert_eq!(payload, vec![event as u8; 20].into());
                self.events[1].push(event);
            }
            other => panic!("an exporter does not say {other:?}"),
        }
    }

    fn settle(&mut self, random: &mut Random) {
        for _ in 0..100_000 {
            self.wait(Duration::from_millis(2));
            (0..8).for_each(|_| self.deliver(random));
            (0..2).for_each(|_| self.answer(random));
            let is_over = self.link.iter().flatten().all(VecDeque::is_empty)
                && self.device.iter().all(VecDeque::is_empty)
                && self.importer.is_at_rest()
                && self.exporter.is_at_rest();
            if is_over {
                return;
            }
        }
        panic!("it comes to rest");
    }

    fn check(&self) {
        for sequence in &self.sequences {
            assert_eq!(sequence[SEEN], sequence[SUBMITTED], "what was asked arrives once, in its order");
            assert_eq!(sequence[HEARD], sequence[ANSWERED], "what was answered is heard once, in its order");
            let mut answered = sequence[ANSWERED].clone();
            answered.sort_unstable();
            assert_eq!(answered, sequence[SUBMITTED], "all that was asked is answered once");
        }
        let sorted = |ids: &[u64]| {
            let mut ids = ids.to_vec();
            ids.sort_unstable();
            ids
        };
        assert_eq!(sorted(&self.cancels[0]), sorted(&self.withdrawn));
        assert_eq!(sorted(&self.cancels[1]), sorted(&self.withdrawn), "each withdrawal is answered once");
        assert_eq!(self.events[1], self.events[0]);
    }
}

#[test]
fn any_nesting_gives_what_no_pair_gives() {
    let mut largest = 0;
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let count = random.below(9) as usize;
        let modules: Vec<&str> = (0..count).map(|_| random.pick(&HARMLESS)).collect();
        largest = largest.max(count);
        let mut world = World::new(agreed(&modules));
        for _ in 0..150 {
            world.step(&mut random);
        }
        world.settle(&mut random);
        world.check();
        assert!(world.next_id > 10, "seed {seed}, {modules:?}");
    }
    assert_eq!(largest, 8);
}

#[test]
fn a_pipeline_at_rest_goes_on_in_another_process() {
    let modules = [
        "zstd",
        "delay:time=1ms,seed=4",
        "bundle:time=1ms",
        "seal:key-file=k",
        "drop:one-in=4294967296",
        "buffer:time=1ms",
        "jitter:spread=1ms",
        "pause",
    ];
    let mut random = Random::new(5);
    let mut world = World::new(agreed(&modules));
    for _ in 0..5 {
        (0..60).for_each(|_| world.step(&mut random));
        world.settle(&mut random);
        let (importer, exporter) = agreed(&modules);
        for (here, mut next) in [(&mut world.importer, importer), (&mut world.exporter, exporter)] {
            assert!(next.restore(&here.save().unwrap()));
            assert!(!next.restore(&[]), "it is made like the one that was saved");
            *here = next;
        }
    }
    world.check();
    assert!(world.next_id > 50);
}

/// What comes back for ten requests of `bytes` zeros in order, and why the pipeline ended, if it did.
fn ten(modules: &[&str], bytes: usize) -> (Vec<ModuleMessage>, Option<ModuleFailureCause>) {
    let (mut importer, mut exporter) = agreed(modules);
    let (mut heard, mut down, mut up) = (Vec::new(), ModuleOutput::default(), ModuleOutput::default());
    for id in 0..10 {
        let message = ModuleMessage {
            kind: ModuleMessageKind::Request,
            id,
            head: vec![1].into(),
            payload: vec![0; bytes].into(),
        };
        importer.handle(Instant::ZERO, ModuleNeighbor::Above, message, &mut down);
        if let Some(failure) = down.failure() {
            return (heard, Some(failure.trouble));
        }
        while let Some((side, message)) = down.pop() {
            match side {
                ModuleNeighbor::Above => heard.push(message),
                _ => exporter.handle(Instant::ZERO, ModuleNeighbor::Below, message, &mut up),
            }
        }
        if let Some(failure) = up.failure() {
            return (heard, Some(failure.trouble));
        }
        heard.extend(std::iter::from_fn(|| up.pop()).map(|(_, message)| message));
    }
    (heard, None)
}

#[test]
fn faults_do_what_they_say_and_nothing_else() {
    let (heard, end) = ten(&["drop:one-in=2,seed=3"], 5);
    let failed = heard
        .iter()
        .filter(|message| message.kind == ModuleMessageKind::Completion && message.head == vec![0xff].into());
    assert_eq!((heard.len(), end), (10, None));
    assert!((1..10).contains(&failed.count()));

    let (heard, end) = ten(&["corrupt:one-in=1"], 5);
    let ones = |message: &ModuleMessage| message.payload.contiguous().iter().map(|byte| byte.count_ones()).sum::<u32>();
    assert!(heard.iter().all(|message| ones(message) == 1) && end.is_none());
    assert_eq!(ten(&["corrupt:one-in=1"], 0).0.len(), 10, "what has no data is not changed");

    assert_eq!(ten(&["seal:key-file=k", "corrupt:one-in=1"], 5), (Vec::new(), Some(ModuleFailureCause::Peer)));
    let (heard, end) = ten(&["cut:after=4"], 5);
    assert_eq!((heard.len(), end), (4, Some(ModuleFailureCause::Network)));
}

#[test]
fn ends_that_do_not_fit_say_which_module_and_why() {
    let catalogue = ModuleCatalogue::builtin();
    let allowance = ModuleAllowance::usual(&catalogue);
    let recipe = |modules: &[&str]| {
        let specs: Vec<ModuleSpec> = modules.iter().map(|text| text.parse().unwrap()).collect();
        PipelineRecipe::new(&catalogue, &specs, &mut |_: &str| Ok(vec![1; 32]))
    };
    let offers = |modules: &[&str]| {
        let begun = recipe(modules).unwrap().begin(&context(ModuleRole::Importer), &mut |bytes| bytes.fill(1)).unwrap();
        begun.offers().cloned().collect::<Vec<_>>()
    };
    let refused = |offers: &[farbus_model::module::ModuleOffer]| {
        allowance.answer(offers, &context(ModuleRole::Exporter), &mut |bytes| bytes.fill(2)).err().unwrap().to_string()
    };
    assert_eq!(
        refused(&offers(&["null", "seal:key-file=k"])),
        "module 'seal': the exporter does not allow it: 'farbus share --allow-module seal' would"
    );
    let mut later = offers(&["zstd:level=3"]);
    later[0].version = 2;
    assert!(refused(&later).starts_with("module 'zstd': version 1 here and 2 there"));
    let mut module_offers = offers(&["zstd:level=3"]);
    module_offers[0].parameters = "level=99".to_owned();
    assert_eq!(refused(&module_offers), "module 'zstd': level=99: it is a number from 1 to 19");
    module_offers[0].name = "zip".to_owned();
    assert!(refused(&module_offers).starts_with("module 'zip': the exporter has none of that name"));
    let nine = vec![offers(&["null"]).remove(0); 9];
    assert_eq!(refused(&nine), "module 'null': an attachment goes through 8 modules at most");
    assert!(recipe(&["null"; 9]).is_err() && recipe(&["none"]).is_err());
    let stream = ModuleContext { class: ModuleDeviceClass::Stream, ..context(ModuleRole::Importer) };
    let why = recipe(&["drop:one-in=2"]).unwrap().begin(&stream, &mut |_| ()).err().unwrap().to_string();
    assert_eq!(why, "module 'drop': it does not serve devices of class stream");
    let begun = recipe(&["null"]).unwrap().begin(&context(ModuleRole::Importer), &mut |_| ()).unwrap();
    assert!(begun.finish(&[]).is_err(), "an answer is missing");
}
