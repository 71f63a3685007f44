//! Sealing: what passes is encrypted and authenticated with a key that both hosts have.
//!
//! ```text
//!   opening   salt 32, proof 32            proof: HMAC-SHA-256 with the key over the word "offer" and the salt
//!   answer    salt 32, proof 32            over "answer" and both salts
//!   message   head: number 8               of the direction, used once: the nonce
//!             payload: head length 2, head, payload; sealed by ChaCha20-Poly1305 over kind, request id and pair
//! ```

use std::ops::ControlFlow;

use farbus_model::module::{
    Module, ModuleDeviceClass, ModuleEffects, ModuleFailureCause, ModuleManifest, ModuleMessage, ModuleMessageKind,
    ModuleNeighbor, ModuleOutput, ModuleParameter, ModuleRole, ParameterFormat,
};
use farbus_model::{Instant, Payload};
use ring::{aead, hmac};

use crate::cost::ModuleCost;
use crate::maker::{ModuleContext, ModuleMaker, PendingModule, RandomSource};
use crate::refusal::{ModuleMismatch, ModuleRefusal};
use crate::settings::ModuleSettings;

/// The manifest of `seal` and the function that makes a half of it from settings.
pub const SEAL: SealMaker = SealMaker;

const MANIFEST: ModuleManifest = ModuleManifest {
    name: "seal",
    version: 1,
    summary: "encrypts and authenticates, with a key of both hosts",
    classes: ModuleDeviceClass::ALL,
    parameters: &[ModuleParameter {
        name: "key-file",
        form: ParameterFormat::File(64 << 10),
        default: None,
        what: "the key that both hosts have: 16 bytes at least",
        is_own: true,
    }],
    effects: ModuleEffects { is_fault: false, is_movable: true },
    cost: "about 1 ns a byte, 26 bytes a message and a copy each way",
    manual: include_str!("manual.md"),
};

const SALT_BYTES: usize = 32;
const PROOF_BYTES: usize = 32;
const KEY_FILE_BYTES_MIN: usize = 16;

/// The kind of module.
pub struct SealMaker;

fn refused(what: &str) -> ModuleRefusal {
    ModuleRefusal::new(MANIFEST.name, ModuleMismatch::Halves(what.to_owned()))
}

fn key_of(settings: &ModuleSettings) -> Result<hmac::Key, ModuleRefusal> {
    let bytes = settings.file("key-file");
    if bytes.len() < KEY_FILE_BYTES_MIN {
        let what = format!("its key-file has {} bytes, and {KEY_FILE_BYTES_MIN} at least are a key", bytes.len());
        return Err(ModuleRefusal::new(MANIFEST.name, ModuleMismatch::Parameter(what)));
    }
    Ok(hmac::Key::new(hmac::HMAC_SHA256, bytes))
}

/// The proof over both salts, which only an owner of the key can make.
fn word(key: &hmac::Key, word: &str, salts: &[&[u8]]) -> [u8; PROOF_BYTES] {
    let mut context = hmac::Context::with_key(key);
    context.update(b"farbus seal 1 ");
    context.update(word.as_bytes());
    salts.iter().for_each(|salt| context.update(salt));
    let mut bytes = [0; PROOF_BYTES];
    bytes.copy_from_slice(context.sign().as_ref());
    bytes
}

/// The salt in `bytes`, if the proof behind it shows that its sender has the key.
fn proven<'a>(key: &hmac::Key, what: &str, before: &[u8], bytes: &'a [u8]) -> Result<&'a [u8], ModuleRefusal> {
    let parts = bytes.split_at_checked(SALT_BYTES).filter(|(_, proof)| proof.len() == PROOF_BYTES);
    let (salt, proof) = parts.ok_or_else(|| refused("its other half does not begin as one does"))?;
    let mut context = b"farbus seal 1 ".to_vec();
    [what.as_bytes(), before, salt].iter().for_each(|part| context.extend_from_slice(part));
    let is_proven = hmac::verify(key, &context, proof).is_ok();
    is_proven.then_some(salt).ok_or_else(|| refused("the two hosts have different keys in their key-file"))
}

impl ModuleMaker for SealMaker {
    fn manifest(&self) -> &'static ModuleManifest {
        &MANIFEST
    }

    fn cost(&self, _settings: &ModuleSettings) -> ModuleCost {
        ModuleCost::SMALL.taking(2)
    }

    fn begin(
        &self,
        settings: &ModuleSettings,
        _place: &ModuleContext,
        random: RandomSource<'_>,
    ) -> Result<Box<dyn PendingModule>, ModuleRefusal> {
        let key = key_of(settings)?;
        let mut opening = vec![0; SALT_BYTES];
        random(&mut opening);
        let proof = word(&key, "offer", &[&opening]);
        opening.extend(proof);
        Ok(Box::new(PendingSeal { key, opening }))
    }

    fn answer(
        &self,
        settings: &ModuleSettings,
        _place: &ModuleContext,
        opening: &[u8],
        random: RandomSource<'_>,
    ) -> Result<(Box<dyn Module>, Vec<u8>), ModuleRefusal> {
        let key = key_of(settings)?;
        let theirs = proven(&key, "offer", &[], opening)?;
        let mut answer = vec![0; SALT_BYTES];
        random(&mut answer);
        let half = MessageSealer::new(&key, theirs, &answer, ModuleRole::Exporter);
        let proof = word(&key, "answer", &[theirs, &answer]);
        answer.extend(proof);
        Ok((Box::new(half), answer))
    }
}

struct PendingSeal {
    key: hmac::Key,
    opening: Vec<u8>,
}

impl PendingModule for PendingSeal {
    fn opening(&self) -> &[u8] {
        &self.opening
    }

    fn finish(&self, answer: &[u8]) -> Result<Box<dyn Module>, ModuleRefusal> {
        let ours = &self.opening[..SALT_BYTES];
        let theirs = proven(&self.key, "answer", ours, answer)?;
        Ok(Box::new(MessageSealer::new(&self.key, ours, theirs, ModuleRole::Importer)))
    }
}

/// One half: a key for each direction.
struct MessageSealer {
    keys: [[u8; PROOF_BYTES]; 2],
    out: aead::LessSafeKey,
    inward: aead::LessSafeKey,
    sent: u64,
    seen: AntiReplayWindow,
}

impl MessageSealer {
    fn new(key: &hmac::Key, importer: &[u8], exporter: &[u8], role: ModuleRole) -> Self {
        let mut keys = ["importer", "exporter"].map(|from| word(key, from, &[importer, exporter]));
        if role == ModuleRole::Exporter {
            keys.reverse();
        }
        let [out, inward] = keys.map(aead_key);
        Self { keys, out, inward, sent: 0, seen: AntiReplayWindow::default() }
    }

    fn seal(&mut self, message: ModuleMessage, out: &mut ModuleOutput) {
        let number = self.sent;
        self.sent += 1;
        let (head, payload) = (&message.head, &message.payload);
        let mut bytes = Vec::with_capacity(2 + head.len() + payload.len() + aead::CHACHA20_POLY1305.tag_len());
        bytes.extend((head.len() as u16).to_le_bytes());
        head.runs().chain(payload.runs()).for_each(|run| bytes.extend_from_slice(run));
        let sealed = self.out.seal_in_place_append_tag(nonce(number), label(&message), &mut bytes);
        if sealed.is_err() || message.head.len() > usize::from(u16::MAX) {
            return out.fail(ModuleFailureCause::Module, "a message is too long to be sealed");
        }
        out.below(ModuleMessage { head: number.to_le_bytes().to_vec().into(), payload: bytes.into(), ..message });
    }

    fn open(&mut self, message: ModuleMessage) -> Option<ModuleMessage> {
        let number = u64::from_le_bytes(message.head.contiguous().as_ref().try_into().ok()?);
        let label = label(&message);
        let mut bytes = message.payload.into_vec();
        let opened = self.inward.open_in_place(nonce(number), label, &mut bytes).ok()?.len();
        // Recorded only now, when the number is known to come from the other half.
        if self.seen.note(number).is_break() {
            return None;
        }
        bytes.truncate(opened);
        let head_bytes = usize::from(u16::from_le_bytes(*bytes.first_chunk()?));
        if bytes.len() < 2 + head_bytes {
            return None;
        }
        let head = Payload::from(&bytes[2..2 + head_bytes]);
        bytes.drain(..2 + head_bytes);
        Some(ModuleMessage { kind: message.kind, id: message.id, head, payload: bytes.into() })
    }
}

fn aead_key(bytes: [u8; PROOF_BYTES]) -> aead::LessSafeKey {
    let key = aead::UnboundKey::new(&aead::CHACHA20_POLY1305, &bytes).expect("a key has 32 bytes");
    aead::LessSafeKey::new(key)
}

fn nonce(number: u64) -> aead::Nonce {
    let mut bytes = [0; aead::NONCE_LEN];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    aead::Nonce::assume_unique_for_key(bytes)
}

/// The bytes that are authenticated and not encrypted.
fn label(message: &ModuleMessage) -> aead::Aad<[u8; 10]> {
    let mut bytes = [0; 10];
    bytes[0] = message.kind.code();
    if let ModuleMessageKind::Aside(pair) = message.kind {
        bytes[1] = pair;
    }
    bytes[2..].copy_from_slice(&message.id.to_le_bytes());
    aead::Aad::from(bytes)
}

impl Module for MessageSealer {
    fn handle(&mut self, _now: Instant, from: ModuleNeighbor, message: ModuleMessage, out: &mut ModuleOutput) {
        match from {
            ModuleNeighbor::Above => self.seal(message, out),
            ModuleNeighbor::Below => match self.open(message) {
                Some(message) => out.above(message),
                None => out.fail(ModuleFailureCause::Peer, "a message was changed or repeated on its way"),
            },
            ModuleNeighbor::Peer => out.fail(ModuleFailureCause::Peer, "its other half has nothing to say to it"),
        }
    }

    fn held_bytes(&self) -> usize {
        0
    }

    fn save(&self) -> Option<Vec<u8>> {
        let mut state = self.keys.concat();
        state.extend(self.sent.to_le_bytes());
        state.extend(self.seen.next.to_le_bytes());
        self.seen.bits.iter().for_each(|bits| state.extend(bits.to_le_bytes()));
        Some(state)
    }

    fn restore(&mut self, state: &[u8]) -> bool {
        if state.len() != 2 * PROOF_BYTES + 16 + SEEN_WORDS * 8 {
            return false;
        }
        let (keys, rest) = state.split_at(2 * PROOF_BYTES);
        self.keys = [0, 1].map(|at| std::array::from_fn(|byte| keys[at * PROOF_BYTES + byte]));
        [self.out, self.inward] = self.keys.map(aead_key);
        let mut words = rest.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")));
        self.sent = words.next().unwrap_or_default();
        self.seen.next = words.next().unwrap_or_default();
        self.seen.bits = std::array::from_fn(|_| words.next().unwrap_or_default());
        true
    }
}

/// Message numbers behind the latest that may still arrive: an interrupt overtakes bulk data, and at most this many
/// messages are under way.
const SEEN_MAX: u64 = 4096;
const SEEN_WORDS: usize = SEEN_MAX as usize / 64;

/// The numbers that arrived; each is accepted once (RFC 6479's window).
#[derive(Debug)]
struct AntiReplayWindow {
    /// The number after the latest.
    next: u64,
    bits: [u64; SEEN_WORDS],
}

impl Default for AntiReplayWindow {
    fn default() -> Self {
        Self { next: 0, bits: [0; SEEN_WORDS] }
    }
}

impl AntiReplayWindow {
    fn note(&mut self, number: u64) -> ControlFlow<()> {
        if number >= u64::MAX - SEEN_MAX || number + SEEN_MAX < self.next {
            return ControlFlow::Break(());
        }
        // The numbers in between have not arrived.
        if number >= self.next {
            if number - self.next >= SEEN_MAX {
                self.bits = [0; SEEN_WORDS];
            } else {
                (self.next..number).for_each(|unseen| self.set(unseen, false));
            }
            self.set(number, false);
            self.next = number + 1;
        }
        let (at, bit) = bit_position(number);
        if self.bits[at] & bit != 0 {
            return ControlFlow::Break(());
        }
        self.set(number, true);
        ControlFlow::Continue(())
    }

    fn set(&mut self, number: u64, is_seen: bool) {
        let (at, bit) = bit_position(number);
        if is_seen { self.bits[at] |= bit } else { self.bits[at] &= !bit }
    }
}

fn bit_position(number: u64) -> (usize, u64) {
    ((number % SEEN_MAX / 64) as usize, 1 << (number % 64))
}

#[cfg(test)]
mod tests {
    use farbus_model::module::ModuleDeviceClass;

    use super::*;
    use crate::settings::ModuleSpec;

    fn settings(key: u8) -> ModuleSettings {
        let spec: ModuleSpec = "seal:key-file=k".parse().unwrap();
        ModuleSettings::of(&MANIFEST, &spec, &mut |_: &str| Ok(vec![key; 32])).unwrap()
    }

    fn place_of(role: ModuleRole) -> ModuleContext {
        ModuleContext { role, class: ModuleDeviceClass::Block, failed: Payload::Empty }
    }

    fn fill(seed: u8) -> impl FnMut(&mut [u8]) {
        move |bytes| bytes.fill(seed)
    }

    fn pair() -> (Box<dyn Module>, Box<dyn Module>) {
        let begun = SEAL.begin(&settings(1), &place_of(ModuleRole::Importer), &mut fill(3)).unwrap();
        let (exporter, answer) =
            SEAL.answer(&settings(1), &place_of(ModuleRole::Exporter), begun.opening(), &mut fill(4)).unwrap();
        (begun.finish(&answer).unwrap(), exporter)
    }

    fn through(half: &mut dyn Module, from: ModuleNeighbor, message: ModuleMessage) -> Option<ModuleMessage> {
        let mut turn = ModuleOutput::default();
        half.handle(Instant::ZERO, from, message, &mut turn);
        let passed = turn.pop().map(|(_, message)| message);
        assert_ne!(turn.failure().is_some(), passed.is_some(), "it passes or fails");
        passed
    }

    fn message(id: u64) -> ModuleMessage {
        ModuleMessage {
            kind: ModuleMessageKind::Request,
            id,
            head: vec![1, 2, 3].into(),
            payload: vec![id as u8; 100].into(),
        }
    }

    #[test]
    fn another_key_is_refused_at_either_end() {
        let begun = SEAL.begin(&settings(1), &place_of(ModuleRole::Importer), &mut fill(3)).unwrap();
        let other = SEAL.answer(&settings(2), &place_of(ModuleRole::Exporter), begun.opening(), &mut fill(4));
        let why = other.err().unwrap().to_string();
        assert_eq!(why, "module 'seal': the two hosts have different keys in their key-file");
        // A host that only repeats what it received does not have the key either.
        assert!(begun.finish(begun.opening()).is_err());
        for length in 0..64 {
            assert!(begun.finish(&begun.opening()[..length]).is_err(), "{length} bytes");
        }
        let short = "seal:key-file=k".parse().unwrap();
        let short = ModuleSettings::of(&MANIFEST, &short, &mut |_: &str| Ok(vec![1; 15])).unwrap();
        let why = SEAL.begin(&short, &place_of(ModuleRole::Importer), &mut fill(3)).err().unwrap().to_string();
        assert_eq!(why, "module 'seal': its key-file has 15 bytes, and 16 at least are a key");
    }

    #[test]
    fn sealed_message_is_unreadable_on_the_link_and_arrives_whole() {
        let (mut importer, mut exporter) = pair();
        for id in 0..3 {
            let sealed = through(&mut *importer, ModuleNeighbor::Above, message(id)).unwrap();
            let bytes = sealed.payload.contiguous().into_owned();
            assert!(!bytes.windows(3).any(|window| window == [1, 2, 3] || window == [id as u8; 3]), "{bytes:?}");
            assert_eq!(through(&mut *exporter, ModuleNeighbor::Below, sealed), Some(message(id)));
            let sealed = through(&mut *exporter, ModuleNeighbor::Above, message(id)).unwrap();
            assert_eq!(through(&mut *importer, ModuleNeighbor::Below, sealed), Some(message(id)));
        }
    }

    #[test]
    fn changed_repeated_reflected_or_moved_messages_are_refused() {
        let (mut importer, mut exporter) = pair();
        let sealed = through(&mut *importer, ModuleNeighbor::Above, message(5)).unwrap();
        let mut bytes = sealed.payload.contiguous().into_owned();
        for at in 0..bytes.len() {
            bytes[at] ^= 1;
            let changed = ModuleMessage { payload: bytes.clone().into(), ..sealed.clone() };
            assert_eq!(through(&mut *exporter, ModuleNeighbor::Below, changed), None, "byte {at}");
            bytes[at] ^= 1;
        }
        let moved = [
            ModuleMessage { id: 6, ..sealed.clone() },
            ModuleMessage { kind: ModuleMessageKind::Completion, ..sealed.clone() },
            ModuleMessage { head: vec![9; 8].into(), ..sealed.clone() },
            ModuleMessage { head: vec![0; 7].into(), ..sealed.clone() },
            ModuleMessage { payload: Payload::Empty, ..sealed.clone() },
        ];
        for moved in moved {
            assert_eq!(through(&mut *exporter, ModuleNeighbor::Below, moved), None);
        }
        assert_eq!(through(&mut *importer, ModuleNeighbor::Below, sealed.clone()), None, "it comes back to its sender");
        assert_eq!(
            through(&mut *exporter, ModuleNeighbor::Below, sealed.clone()),
            Some(message(5)),
            "it is good all the same"
        );
        assert_eq!(through(&mut *exporter, ModuleNeighbor::Below, sealed), None, "once");
    }

    #[test]
    fn a_saved_half_goes_on_and_knows_what_it_has_seen() {
        let (mut importer, mut exporter) = pair();
        let first = through(&mut *importer, ModuleNeighbor::Above, message(1)).unwrap();
        through(&mut *exporter, ModuleNeighbor::Below, first.clone()).unwrap();
        let (_, mut other) = pair();
        assert!(other.restore(&exporter.save().unwrap()) && !other.restore(&[0; 9]));
        assert_eq!(through(&mut *other, ModuleNeighbor::Below, first), None);
        let second = through(&mut *importer, ModuleNeighbor::Above, message(2)).unwrap();
        assert_eq!(through(&mut *other, ModuleNeighbor::Below, second), Some(message(2)));
    }

    #[test]
    fn numbers_are_seen_once_in_any_order_within_the_window() {
        let mut seen = AntiReplayWindow::default();
        let mut is_new = |number| seen.note(number).is_continue();
        assert!(is_new(5) && is_new(0) && is_new(4) && !is_new(5) && !is_new(0));
        assert!(is_new(5 + SEEN_MAX) && !is_new(4) && is_new(6) && !is_new(6));
        assert!(is_new(1 << 40) && !is_new(6) && !is_new(1 << 40) && is_new((1 << 40) - SEEN_MAX + 1));
        assert!(!is_new(u64::MAX));
    }
}
