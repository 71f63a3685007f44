//! The `lz4` module: compression that costs little time.

use farbus_model::module::{ModuleDeviceClass, ModuleEffects, ModuleManifest, ModuleParameter, ParameterFormat};

use crate::compress::{PayloadCodec, PayloadCompressor};
use crate::cost::ModuleCost;
use crate::maker::SimpleMaker;

/// The manifest of `lz4` and the function that makes a half of it from settings.
pub const LZ4: SimpleMaker = SimpleMaker {
    manifest: &MANIFEST,
    cost: |_| ModuleCost::with_state(TABLE_BYTES).taking(3),
    make: |settings, _| Box::new(PayloadCompressor::new(Lz4Codec, settings.number("min") as usize)),
};

/// The table of what was seen before, which each call makes and drops.
const TABLE_BYTES: usize = 32 << 10;

const MANIFEST: ModuleManifest = ModuleManifest {
    name: "lz4",
    version: 1,
    summary: "compresses data, fast: for links of up to some Gb/s",
    classes: ModuleDeviceClass::ALL,
    parameters: &[ModuleParameter {
        name: "min",
        form: ParameterFormat::Number(0, 1 << 24),
        default: Some("256"),
        what: "bytes of data that are worth a try",
        is_own: false,
    }],
    effects: ModuleEffects { is_fault: false, is_movable: true },
    cost: "about 2 ns a byte to compress, 1 to expand; a copy each way",
    manual: include_str!("manual.md"),
};

/// The codec: LZ4's block format.
pub struct Lz4Codec;

impl PayloadCodec for Lz4Codec {
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
