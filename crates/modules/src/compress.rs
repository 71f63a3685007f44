//! What all compressions share: a payload that does not shrink is sent unchanged, and after a few of those further
//! payloads are not tried.
//!
//! ```text
//!   head   nothing, of a message without head and data; else
//!          0 how 1: 0 as it is, 1 compressed   1 length before 4, if compressed   then the head as it was
//! ```

use farbus_model::limits::URB_BYTES_MAX;
use farbus_model::module::{GROWTH_BYTES_MAX, Module, ModuleFailureCause, ModuleMessage, ModuleNeighbor, ModuleOutput};
use farbus_model::{Instant, Payload};

/// A compression of whole payloads.
pub trait PayloadCodec: Send {
    /// The compressed bytes, or `None` if they could not be compressed.
    fn compress(&mut self, bytes: &[u8]) -> Option<Vec<u8>>;

    /// The original bytes, which have exactly this length; `None` if they have another, or the input is not valid.
    fn expand(&mut self, bytes: &[u8], length: usize) -> Option<Vec<u8>>;
}

/// Messages that are skipped after several failures in a row: twice as many each time, up to this number.
const SKIPS_MAX: u32 = 64;
/// The longest payload: the largest transfer, plus what other modules add.
const LENGTH_MAX: usize = URB_BYTES_MAX as usize + GROWTH_BYTES_MAX;

const AS_IT_IS: u8 = 0;
const COMPRESSED: u8 = 1;

/// One half of a compression.
pub struct PayloadCompressor<C> {
    codec: C,
    /// Shorter payloads are not compressed.
    bytes_min: usize,
    /// Messages still to be skipped, because those before did not shrink.
    skip: u32,
    /// How many messages to skip next time.
    skip_next: u32,
}

impl<C: PayloadCodec> PayloadCompressor<C> {
    /// Makes a half that does not compress payloads shorter than `bytes_min`.
    pub fn new(codec: C, bytes_min: usize) -> Self {
        Self { codec, bytes_min, skip: 0, skip_next: 1 }
    }

    fn shrink(&mut self, payload: &Payload) -> Option<Vec<u8>> {
        if payload.len() < self.bytes_min.max(1) {
            return None;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return None;
        }
        let shrunk = self.codec.compress(&payload.contiguous());
        // The other end's work pays off if a sixteenth is saved.
        let worth = shrunk.filter(|shrunk| shrunk.len() + payload.len() / 16 < payload.len());
        match worth {
            Some(mut shrunk) => {
                self.skip_next = 1;
                // It may be kept until the other end has it: without the room of what it was.
                shrunk.shrink_to_fit();
                Some(shrunk)
            }
            None => {
                self.skip = self.skip_next;
                self.skip_next = (self.skip_next * 2).min(SKIPS_MAX);
                None
            }
        }
    }

    fn down(&mut self, mut message: ModuleMessage, out: &mut ModuleOutput) {
        if message.is_empty() {
            return out.below(message);
        }
        let shrunk = self.shrink(&message.payload);
        let mut head = Vec::with_capacity(5 + message.head.len());
        match shrunk {
            Some(shrunk) => {
                head.push(COMPRESSED);
                head.extend((message.payload.len() as u32).to_le_bytes());
                message.payload = shrunk.into();
            }
            None => head.push(AS_IT_IS),
        }
        message.head.runs().for_each(|run| head.extend_from_slice(run));
        message.head = head.into();
        out.below(message);
    }

    fn up(&mut self, mut message: ModuleMessage, out: &mut ModuleOutput) {
        if message.is_empty() {
            return out.above(message);
        }
        let wrong = |out: &mut ModuleOutput, what: &str| {
            out.fail(ModuleFailureCause::Peer, format!("its other half sent {what}"))
        };
        match message.head.split_front(1).contiguous().as_ref() {
            [AS_IT_IS] => {}
            [COMPRESSED] => {
                let Ok(length) = <[u8; 4]>::try_from(message.head.split_front(4).contiguous().as_ref()) else {
                    return wrong(out, "a head that is too short");
                };
                let length = u32::from_le_bytes(length) as usize;
                if length > LENGTH_MAX {
                    return wrong(out, "more than a transfer has");
                }
                let Some(bytes) = self.codec.expand(&message.payload.contiguous(), length) else {
                    return wrong(out, "bytes that are no compressed ones");
                };
                message.payload = bytes.into();
            }
            _ => return wrong(out, "a head of another kind"),
        }
        out.above(message);
    }
}

impl<C: PayloadCodec> Module for PayloadCompressor<C> {
    fn handle(&mut self, _now: Instant, from: ModuleNeighbor, message: ModuleMessage, out: &mut ModuleOutput) {
        match from {
            ModuleNeighbor::Above => self.down(message, out),
            ModuleNeighbor::Below => self.up(message, out),
            ModuleNeighbor::Peer => out.fail(ModuleFailureCause::Peer, "its other half has nothing to say to it"),
        }
    }

    fn held_bytes(&self) -> usize {
        0
    }

    /// Empty: the half learns about the data again.
    fn save(&self) -> Option<Vec<u8>> {
        Some(Vec::new())
    }

    fn restore(&mut self, state: &[u8]) -> bool {
        state.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use farbus_model::module::ModuleMessageKind;

    use super::*;
    use crate::lz4::Lz4Codec;
    use crate::zstd::ZstdCodec;

    fn sent(half: &mut dyn Module, from: ModuleNeighbor, message: ModuleMessage) -> Result<ModuleMessage, String> {
        let mut turn = ModuleOutput::default();
        half.handle(Instant::ZERO, from, message, &mut turn);
        match turn.failure() {
            Some(failure) => Err(failure.why),
            None => Ok(turn.pop().expect("it passes").1),
        }
    }

    fn noise(len: usize) -> Vec<u8> {
        let mut dice = crate::dice::ModuleRng::new(3);
        (0..len).map(|_| dice.below(256) as u8).collect()
    }

    fn message(payload: Vec<u8>) -> ModuleMessage {
        ModuleMessage { kind: ModuleMessageKind::Request, id: 1, head: vec![9; 14].into(), payload: payload.into() }
    }

    fn halves() -> [(&'static str, [Box<dyn Module>; 2]); 2] {
        let lz4 = || Box::new(PayloadCompressor::new(Lz4Codec, 64)) as Box<dyn Module>;
        let zstd = || Box::new(PayloadCompressor::new(ZstdCodec::new(1), 64)) as Box<dyn Module>;
        [("lz4", [lz4(), lz4()]), ("zstd", [zstd(), zstd()])]
    }

    #[test]
    fn compressible_payload_is_short_on_the_link_and_restored_behind_it() {
        for (name, [mut here, mut there]) in halves() {
            let original = message(vec![7; 100_000]);
            let travelling = sent(&mut *here, ModuleNeighbor::Above, original.clone()).unwrap();
            assert!(travelling.len() < 1000, "{name}: {} bytes", travelling.len());
            assert_eq!(sent(&mut *there, ModuleNeighbor::Below, travelling), Ok(original), "{name}");
        }
    }

    #[test]
    fn incompressible_payloads_are_sent_unchanged_and_soon_not_tried() {
        for (name, [mut here, mut there]) in halves() {
            for _ in 0..3 {
                let original = message(noise(5000));
                let travelling = sent(&mut *here, ModuleNeighbor::Above, original.clone()).unwrap();
                assert_eq!((travelling.head.len(), travelling.payload.len()), (15, 5000), "{name}");
                assert_eq!(sent(&mut *there, ModuleNeighbor::Below, travelling), Ok(original), "{name}");
            }
            // One failed, one was skipped, one failed: the next two are skipped as well.
            let lengths: Vec<usize> = (0..3)
                .map(|_| sent(&mut *here, ModuleNeighbor::Above, message(vec![7; 5000])).unwrap().payload.len())
                .collect();
            assert_eq!((lengths[0], lengths[1], lengths[2] < 500), (5000, 5000, true), "{name}: {lengths:?}");
            for short in [message(vec![7; 63]), message(Vec::new())] {
                let travelling = sent(&mut *here, ModuleNeighbor::Above, short.clone()).unwrap();
                assert_eq!(travelling.payload, short.payload, "{name}");
                assert_eq!(sent(&mut *there, ModuleNeighbor::Below, travelling), Ok(short), "{name}");
            }
            let nothing = ModuleMessage { head: Payload::Empty, ..message(Vec::new()) };
            assert_eq!(sent(&mut *here, ModuleNeighbor::Above, nothing.clone()), Ok(nothing.clone()), "{name}");
            assert_eq!(sent(&mut *there, ModuleNeighbor::Below, nothing.clone()), Ok(nothing), "{name}");
        }
    }

    #[test]
    fn bytes_that_no_other_half_sends_are_refused() {
        for (name, [mut here, mut there]) in halves() {
            let good = sent(&mut *here, ModuleNeighbor::Above, message(vec![7; 10_000])).unwrap();
            let head = |bytes: &[u8]| ModuleMessage { head: bytes.into(), ..good.clone() };
            let mut cases = vec![head(&[2]), head(&[]), head(&[1, 0, 0]), head(&[1, 0xff, 0xff, 0xff, 0xff])];
            // Longer or shorter than it is.
            cases.extend([9_999u32, 10_001, 0].map(|length| head(&[&[1][..], &length.to_le_bytes()].concat())));
            cases.push(ModuleMessage { payload: noise(50).into(), ..good.clone() });
            for case in cases {
                let why = sent(&mut *there, ModuleNeighbor::Below, case.clone()).expect_err(name);
                assert!(why.starts_with("its other half sent "), "{name}: {why}: {case:?}");
            }
        }
    }
}
