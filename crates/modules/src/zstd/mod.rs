//! The `zstd` module: stronger compression, for slow links.

use farbus_model::module::{Class, Effects, Form, Manifest, Parameter};

use crate::compress::{Codec, Compress};
use crate::maker::Simple;

/// The manifest of `zstd` and the function that makes a half of it from settings.
pub const ZSTD: Simple = Simple {
    manifest: &MANIFEST,
    make: |settings, _| {
        let codec = Zstd::new(settings.number("level") as i32);
        Box::new(Compress::new(codec, settings.number("min") as usize))
    },
};

const MANIFEST: Manifest = Manifest {
    name: "zstd",
    version: 1,
    summary: "compresses data, thoroughly: for thin lines",
    classes: Class::ALL,
    parameters: &[
        Parameter {
            name: "level",
            form: Form::Number(1, 19),
            default: Some("1"),
            what: "how hard it tries",
            is_own: false,
        },
        Parameter {
            name: "min",
            form: Form::Number(0, 1 << 24),
            default: Some("256"),
            what: "bytes of data that are worth a try",
            is_own: false,
        },
    ],
    effects: Effects { is_fault: false, is_movable: true },
    cost: "about 4 ns a byte to compress at level 1, 1 to expand; a copy each way",
    manual: include_str!("manual.md"),
};

/// The codec. It reuses its memory for the next message.
pub struct Zstd {
    level: i32,
    compressor: Option<zstd::bulk::Compressor<'static>>,
    expander: Option<zstd::bulk::Decompressor<'static>>,
}

impl Zstd {
    /// Makes a codec of this compression level.
    pub fn new(level: i32) -> Self {
        Self { level, compressor: None, expander: None }
    }
}

impl Codec for Zstd {
    fn compress(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        if self.compressor.is_none() {
            self.compressor = zstd::bulk::Compressor::new(self.level).ok();
        }
        self.compressor.as_mut()?.compress(bytes).ok()
    }

    fn expand(&mut self, bytes: &[u8], length: usize) -> Option<Vec<u8>> {
        if self.expander.is_none() {
            self.expander = zstd::bulk::Decompressor::new().ok();
        }
        self.expander.as_mut()?.decompress(bytes, length).ok().filter(|expanded| expanded.len() == length)
    }
}
