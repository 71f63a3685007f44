//! The `lz4` module: compression that costs little time.

use farbus_model::module::{Class, Effects, Form, Manifest, Parameter};

use crate::compress::{Codec, Compress};
use crate::cost::ModuleCost;
use crate::maker::Simple;

/// The manifest of `lz4` and the function that makes a half of it from settings.
pub const LZ4: Simple = Simple {
    manifest: &MANIFEST,
    cost: |_| ModuleCost::with_state(TABLE_BYTES).taking(3),
    make: |settings, _| Box::new(Compress::new(Lz4, settings.number("min") as usize)),
};

/// The table of what was seen before, which each call makes and drops.
const TABLE_BYTES: usize = 32 << 10;

const MANIFEST: Manifest = Manifest {
    name: "lz4",
    version: 1,
    summary: "compresses data, fast: for links of up to some Gb/s",
    classes: Class::ALL,
    parameters: &[Parameter {
        name: "min",
        form: Form::Number(0, 1 << 24),
        default: Some("256"),
        what: "bytes of data that are worth a try",
        is_own: false,
    }],
    effects: Effects { is_fault: false, is_movable: true },
    cost: "about 2 ns a byte to compress, 1 to expand; a copy each way",
    manual: include_str!("manual.md"),
};

/// The codec: LZ4's block format.
pub struct Lz4;

impl Codec for Lz4 {
    fn compress(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        Some(lz4_flex::block::compress(bytes))
    }

    fn expand(&mut self, bytes: &[u8], length: usize) -> Option<Vec<u8>> {
        // One byte expands to 255 at most: no memory is reserved for an impossible length.
        if length > 64 + bytes.len() * 255 {
            return None;
        }
        lz4_flex::block::decompress(bytes, length).ok().filter(|expanded| expanded.len() == length)
    }
}
