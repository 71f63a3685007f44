//! The `zstd` module: stronger compression, for slow links.

use farbus_model::module::{ModuleDeviceClass, ModuleEffects, ModuleManifest, ModuleParameter, ParameterFormat};
use zstd::zstd_safe::CParameter;

use crate::compress::{PayloadCodec, PayloadCompressor};
use crate::cost::ModuleCost;
use crate::maker::SimpleMaker;

/// The manifest of `zstd` and the function that makes a half of it from settings.
pub const ZSTD: SimpleMaker = SimpleMaker {
    manifest: &MANIFEST,
    cost: |settings| cost(settings.number("level") as i32),
    make: |settings, _| {
        let codec = ZstdCodec::new(settings.number("level") as i32);
        Box::new(PayloadCompressor::new(codec, settings.number("min") as usize))
    },
};

const MANIFEST: ModuleManifest = ModuleManifest {
    name: "zstd",
    version: 1,
    summary: "compresses data, thoroughly: for thin lines",
    classes: ModuleDeviceClass::ALL,
    parameters: &[
        ModuleParameter {
            name: "level",
            form: ParameterFormat::Number(1, 19),
            default: Some("1"),
            what: "how hard it tries",
            is_own: false,
        },
        ModuleParameter {
            name: "min",
            form: ParameterFormat::Number(0, 1 << 24),
            default: Some("256"),
            what: "bytes of data that are worth a try",
            is_own: false,
        },
    ],
    effects: ModuleEffects { is_fault: false, is_movable: true },
    cost: "about 4 ns a byte to compress at level 1, 1 to expand; a copy each way",
    manual: include_str!("manual.md"),
};

/// Binary logarithm of the window, bytes: how far back the compressor looks for repetitions. A message is compressed by
/// itself, and few have more than 128 KiB; what the larger tables of a larger window would find there is not worth 35
/// MiB a half at level 19. Expanding needs no window: a message is expanded in one piece.
const WINDOW_LOG: u32 = 17;

/// Memory of a compressor with this window by its level, as zstd 1.5 takes it (`ZSTD_sizeof_CCtx`), rounded up, and its
/// processor time a byte; held against the library by a test.
const LEVELS: [(i32, usize, u32); 7] = [
    (1, 608 << 10, 4),
    (2, 832 << 10, 5),
    (5, 2112 << 10, 12),
    (8, 1856 << 10, 25),
    (12, 2624 << 10, 60),
    (15, 3392 << 10, 170),
    (19, 3392 << 10, 500),
];

/// Memory of an expander.
const EXPANDER_BYTES: usize = 176 << 10;

fn cost(level: i32) -> ModuleCost {
    let (_, bytes, ns) = LEVELS.into_iter().find(|(most, ..)| level <= *most).unwrap_or(LEVELS[LEVELS.len() - 1]);
    ModuleCost::with_state(bytes + EXPANDER_BYTES).taking(ns)
}

/// The codec. It reuses its memory for the next message.
pub struct ZstdCodec {
    level: i32,
    compressor: Option<zstd::bulk::Compressor<'static>>,
    expander: Option<zstd::bulk::Decompressor<'static>>,
}

impl ZstdCodec {
    /// Makes a codec of this compression level.
    pub fn new(level: i32) -> Self {
        Self { level, compressor: None, expander: None }
    }
}

impl PayloadCodec for ZstdCodec {
    fn compress(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        if self.compressor.is_none() {
            let mut compressor = zstd::bulk::Compressor::new(self.level).ok()?;
            compressor.set_parameter(CParameter::WindowLog(WINDOW_LOG)).ok()?;
            self.compressor = Some(compressor);
        }
        let mut compressed = Vec::with_capacity(bytes.len());
        self.compressor.as_mut()?.compress_to_buffer(bytes, &mut compressed).ok()?;
        Some(compressed)
    }

    fn expand(&mut self, bytes: &[u8], length: usize) -> Option<Vec<u8>> {
        if self.expander.is_none() {
            self.expander = zstd::bulk::Decompressor::new().ok();
        }
        self.expander.as_mut()?.decompress(bytes, length).ok().filter(|expanded| expanded.len() == length)
    }
}

#[cfg(test)]
mod tests {
    use zstd::zstd_safe::DCtx;

    use super::*;
    use crate::dice::ModuleRng;

    /// A third noise, a third text, a third repetition at any distance.
    fn mixed(bytes: usize) -> Vec<u8> {
        let mut dice = ModuleRng::new(5);
        let mut all: Vec<u8> = Vec::with_capacity(bytes);
        while all.len() < bytes {
            let at = dice.below(all.len() as u64 + 1) as usize;
            match dice.below(3) {
                0 => all.extend((0..64).map(|_| dice.below(256) as u8)),
                1 => all.extend_from_slice(b"a device lives on one machine, its user on another"),
                _ => all.extend_from_within(at..(at + 100).min(all.len())),
            }
        }
        all.truncate(bytes);
        all
    }

    #[test]
    fn compressor_takes_no_more_than_its_level_declares_whatever_it_compresses() {
        let lengths = [1 << 10, 16 << 10, 100 << 10, 200 << 10, 300 << 10];
        let all: Vec<Vec<u8>> = lengths.map(mixed).into();
        for level in 1..=19 {
            let mut zstd = ZstdCodec::new(level);
            let mut most = 0;
            for bytes in &all {
                let compressed = zstd.compress(bytes).expect("it shrinks");
                assert_eq!(zstd.expand(&compressed, bytes.len()).as_ref(), Some(bytes), "level {level}");
                most = most.max(zstd.compressor.as_mut().unwrap().context_mut().sizeof());
            }
            let declared = cost(level).state_bytes - EXPANDER_BYTES;
            println!("level {level}: {most} bytes of {declared}");
            assert!(most <= declared, "level {level} takes {most} bytes, and declares {declared}");
        }
        assert!(DCtx::create().sizeof() <= EXPANDER_BYTES, "{}", DCtx::create().sizeof());
    }

    #[test]
    fn document_says_what_each_level_takes() {
        let document = include_str!("../../../../docs/security.md");
        let kib = |level| (cost(level).state_bytes - crate::cost::STAGE_BYTES) >> 10;
        let ns = |level| cost(level).processor_ns_per_byte;
        let row = |title: &str, levels: &[i32]| {
            let list =
                |number: &dyn Fn(i32) -> String| levels.iter().map(|l| number(*l)).collect::<Vec<_>>().join(", ");
            let (memory, processor) = (list(&|level| kib(level).to_string()), list(&|level| ns(level).to_string()));
            format!("| `zstd` at level {title} | {memory} | {processor} |")
        };
        for row in
            [row("1, 2", &[1, 2]), row("3 to 5, 6 to 8, 9 to 12", &[3, 6, 9]), row("13 to 15, 16 to 19", &[13, 16])]
        {
            assert!(document.contains(&row), "docs/security.md, \"Memory\", does not say: {row}");
        }
    }
}
