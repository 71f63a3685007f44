//! What a module's program may send: any bytes.

#[path = "../../wire/tests/fuzzing/mod.rs"]
mod fuzzing;

use farbus_model::Instant;
use farbus_model::module_abi::{self, LENGTH_BYTES, MESSAGE_BYTES, ModuleAbiFrame};

/// Longer than any frame here.
const BYTES_MAX: usize = 1 << 16;

/// A frame is refused, or says the same when it is encoded again; nothing is read that has not arrived.
#[test]
fn fuzz_module_frames() {
    fuzzing::fuzz(env!("CARGO_MANIFEST_DIR"), "fuzz_module_frames", |input| {
        let mut frame = vec![input.below(6) as u8, input.below(5) as u8, input.below(8) as u8, input.byte()];
        frame.extend(input.bytes(16));
        frame.extend([input.byte(), if input.once_in(8) { input.byte() } else { 0 }]);
        frame.extend(input.rest());
        let bytes = [&(frame.len() as u32).to_le_bytes()[..], &frame].concat();
        assert_eq!(module_abi::frame_bytes(&bytes[..LENGTH_BYTES - 1], BYTES_MAX), Ok(None));
        assert_eq!(module_abi::frame_bytes(&bytes, BYTES_MAX), Ok(Some(bytes.len())));
        assert!(module_abi::frame_bytes(&bytes, frame.len() - 1).is_err());
        assert!(module_abi::payload_at(&frame).is_none_or(|at| at >= MESSAGE_BYTES));
        let Ok(ModuleAbiFrame::Message(side, message)) = module_abi::decode(&frame) else { return };
        let mut again = module_abi::message(Instant::ZERO, side, &message);
        again.extend(message.payload.contiguous().iter());
        assert_eq!(module_abi::decode(&again[LENGTH_BYTES..]), Ok(ModuleAbiFrame::Message(side, message)));
    });
}
