//! Memory: what eight halves of each module take, at the ends of their parameters, against what they declare.
//!
//! The cases are made from the catalogue: a module that declares too little fails, and one that declares nothing does
//! not compile. Each case runs in a process of its own, because an allocator keeps what earlier cases gave back.

mod extremes;

use std::fs;
use std::process::Command;
use std::time::Duration;

use farbus_model::module::{
    ModuleDeviceClass, ModuleMessage, ModuleMessageKind, ModuleNeighbor, ModuleOutput, ModuleRole,
};
use farbus_model::{Instant, Payload};
use farbus_modules::{
    ModuleAllowance, ModuleCatalogue, ModuleContext, ModuleMismatch, ModulePipeline, ModuleSpec, PipelineRecipe,
};

use extremes::all_asked;

const NOW: Instant = Instant::from_nanos(1_000_000_000);
/// The most modules that an attachment goes through.
const HALVES: usize = 8;
/// Pairs of pipelines of one case, so that what they take is far more than what the test takes.
const PAIRS: usize = 2;
/// Bytes that halves may hold back in this test before no more is sent.
const HELD_BYTES_MAX: usize = 4 << 20;
/// What the test itself takes meanwhile: a message that is on its way once, and once as it becomes another.
const TEST_BYTES: usize = 700 << 10;
/// Which module a child process measures.
const CASE: &str = "FARBUS_MODULE_MEASURED";

/// Two pipelines whose halves belong together, and what one of them declares; `None` if they do not fit each other.
fn agreed(spec: &str, class: ModuleDeviceClass) -> Option<(ModulePipeline, ModulePipeline, usize)> {
    let catalogue = ModuleCatalogue::builtin();
    let specs = vec![spec.parse::<ModuleSpec>().unwrap(); HALVES];
    let mut read = |_: &str| Ok(vec![5; 32]);
    let context = |role| ModuleContext { role, class, failed: vec![0xff].into() };
    let mut keyed = specs;
    for spec in keyed.iter_mut().filter(|spec| spec.name == "seal") {
        spec.parameters = vec![("key-file".to_owned(), "k".to_owned())];
    }
    let recipe = PipelineRecipe::new(&catalogue, &keyed, &mut read).unwrap();
    let mut allowance = ModuleAllowance::usual(&catalogue);
    allowance.allow(&catalogue, &"seal:key-file=k".parse().unwrap(), &mut read).unwrap();
    let begun = recipe.begin(&context(ModuleRole::Importer), &mut |bytes| bytes.fill(1)).unwrap();
    let offers: Vec<_> = begun.offers().cloned().collect();
    let cost = allowance.cost(&offers, &context(ModuleRole::Exporter)).unwrap();
    let (exporter, answers) =
        allowance.answer(&offers, &context(ModuleRole::Exporter), &mut |bytes| bytes.fill(2)).ok()?;
    Some((begun.finish(&answers).unwrap(), exporter, cost.bytes))
}

/// Noise, and a beginning that repeats itself: it shrinks by a quarter.
fn data(id: u64, bytes: usize) -> Vec<u8> {
    let mut state = id.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let noise = (0..bytes).map(|at| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        if at < bytes / 3 { at as u8 & 3 } else { state as u8 }
    });
    noise.collect()
}

fn message(class: ModuleDeviceClass, kind: ModuleMessageKind, id: u64, bytes: usize) -> ModuleMessage {
    let head = match (class, kind) {
        (ModuleDeviceClass::Usb, ModuleMessageKind::Request) => vec![0x81, 3, 8, 0, 8, 0, 0, 0],
        (ModuleDeviceClass::Block, ModuleMessageKind::Request) => vec![1, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        _ => Vec::new(),
    };
    ModuleMessage { kind, id, head: head.into(), payload: data(id, bytes).into() }
}

/// Sends a message through one pipeline and the other. Time stands still, so what is held stays, but the importer's
/// halves do not wait: a peer need not. Returns whether both go on.
fn carry(from: &mut ModulePipeline, to: &mut ModulePipeline, role: ModuleRole, message: ModuleMessage) -> bool {
    let (mut out, mut heard) = (ModuleOutput::default(), ModuleOutput::default());
    from.handle(NOW, ModuleNeighbor::Above, message, &mut out);
    while let Some(due) = from.poll_timeout().filter(|_| role == ModuleRole::Importer) {
        from.handle_timeout(due + Duration::from_nanos(1), &mut out);
    }
    while let Some((side, mut message)) = out.pop() {
        // What arrived is a window on what the link received.
        message.payload.share();
        message.head.share();
        if side != ModuleNeighbor::Above {
            to.handle(NOW, ModuleNeighbor::Below, message, &mut heard);
        }
    }
    out.failure().is_none() && heard.failure().is_none()
}

/// Memory in use by this process, bytes.
fn memory() -> usize {
    let statm = fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split_whitespace().nth(1).unwrap().parse().unwrap();
    pages * 4096
}

fn used(spec: &str, class: ModuleDeviceClass) -> Option<(usize, usize)> {
    let (mut allowed, mut pairs) = (0, Vec::new());
    for _ in 0..PAIRS {
        let (importer, exporter, declared) = agreed(spec, class)?;
        allowed += 2 * declared;
        pairs.push((importer, exporter));
    }
    for (importer, exporter) in &mut pairs {
        for id in 0..400 {
            let bytes = [40, 3000, 90_000, 300_000][id as usize % 4].min(if id < 8 { 300_000 } else { 3000 });
            let goes_on =
                carry(importer, exporter, ModuleRole::Importer, message(class, ModuleMessageKind::Request, id, bytes))
                    && carry(
                        exporter,
                        importer,
                        ModuleRole::Exporter,
                        message(class, ModuleMessageKind::Completion, id, bytes),
                    )
                    && (class != ModuleDeviceClass::Stream
                        || carry(
                            exporter,
                            importer,
                            ModuleRole::Exporter,
                            message(class, ModuleMessageKind::Event, id, bytes),
                        ));
            if !goes_on || importer.held_bytes() + exporter.held_bytes() > HELD_BYTES_MAX {
                break;
            }
        }
        allowed += importer.held_bytes() + exporter.held_bytes();
    }
    let taken = memory();
    drop(pairs);
    Some((taken, allowed))
}

/// What a child process does: it measures the module that its environment names.
#[test]
fn one_module_takes_no_more_than_it_declares() {
    let Ok(spec) = std::env::var(CASE) else { return };
    let name = spec.split(':').next().unwrap();
    let catalogue = ModuleCatalogue::builtin();
    let classes = catalogue.find(name).unwrap().manifest().classes;
    drop(Payload::from(data(1, 2 << 20)));
    let base = memory();
    let mut most = None;
    let last = classes.iter().copied().rfind(|class| *class != ModuleDeviceClass::Private);
    for class in classes.iter().copied().take(1).chain(last) {
        let Some((taken, allowed)) = used(&spec, class) else {
            println!("{spec}: its halves fit none without a file of their own");
            continue;
        };
        let grown = taken.saturating_sub(base);
        println!("{spec} for {}: {grown} bytes, {allowed} declared and held", class.as_str());
        assert!(grown <= allowed / 5 * 6 + TEST_BYTES, "{spec}: {grown} bytes, and {allowed} are declared or held");
        most = most.max(Some(grown));
    }
    assert!(most.is_some() || name == "replay", "{spec} was measured");
}

#[test]
fn eight_halves_of_each_module_take_no_more_than_they_declare() {
    let all = all_asked();
    assert!(all.len() >= 30, "{all:?}");
    for spec in all {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "one_module_takes_no_more_than_it_declares", "--nocapture"]).env(CASE, &spec);
        // What is given back leaves the process at once, so that what it has is what is in use.
        child.env("MALLOC_ARENA_MAX", "1").env("MALLOC_TRIM_THRESHOLD_", "0").env("MALLOC_MMAP_THRESHOLD_", "65536");
        let ended = child.output().unwrap();
        let printed = String::from_utf8_lossy(&ended.stdout);
        let lines: Vec<&str> = printed.lines().filter(|line| line.contains(" for ") || line.contains("fit")).collect();
        println!("{}", lines.join("\n"));
        assert!(
            ended.status.success() && !lines.is_empty(),
            "{spec}: {printed}{}",
            String::from_utf8_lossy(&ended.stderr)
        );
    }
}

#[test]
fn pipeline_that_takes_more_processor_time_than_an_importer_may_needs_the_owners_word() {
    let catalogue = ModuleCatalogue::builtin();
    let mut allowance = ModuleAllowance::usual(&catalogue);
    let context = |role| ModuleContext { role, class: ModuleDeviceClass::Block, failed: Payload::Empty };
    let cost = |allowance: &ModuleAllowance, spec: &str, count: usize| {
        let specs = vec![spec.parse::<ModuleSpec>().unwrap(); count];
        let recipe = PipelineRecipe::new(&catalogue, &specs, &mut |_: &str| Err(String::new())).unwrap();
        let begun = recipe.begin(&context(ModuleRole::Importer), &mut |_| ()).unwrap();
        let offers: Vec<_> = begun.offers().cloned().collect();
        allowance.cost(&offers, &context(ModuleRole::Exporter)).unwrap().check_processor()
    };
    for (spec, count) in [("zstd", 8), ("zstd:level=19", 1), ("zstd:level=12", 8), ("lz4", 8), ("delay:time=1s", 8)] {
        assert_eq!(cost(&allowance, spec, count), Ok(()), "{count} of {spec}");
    }
    let refusal = cost(&allowance, "zstd:level=19", 8).unwrap_err();
    assert!(matches!(refusal.mismatch, ModuleMismatch::Processor { ns_per_byte: 4000, .. }), "{refusal:?}");
    assert!(refusal.to_string().contains("'farbus share … --allow-module zstd'"), "{refusal}");
    allowance.allow(&catalogue, &"zstd".parse().unwrap(), &mut |_: &str| Err(String::new())).unwrap();
    assert_eq!(cost(&allowance, "zstd:level=19", 8), Ok(()), "the owner named it");
}
