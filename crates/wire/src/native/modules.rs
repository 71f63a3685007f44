//! Messages that pass modules, and how two ends agree on the modules (requirements I1, I2).
//!
//! ```text
//!   modules   importer: count 1, then for each its name (text), version 2, parameters (text), opening length 2, opening
//!             exporter: count 1, then for each its answer's length 2, answer
//!   message   of an attachment with modules, behind a reply's residence if it is timed:
//!             nothing, or 0 head length 2, head, payload
//!   aside     the same; its tag is the pair's place among the modules
//! ```

use farbus_model::Payload;
use farbus_model::module::{ModuleOffer, PAIRS_MAX};

use super::control::TEXT_BYTES_MAX;
use super::message::ClassPart;
use super::reader::{FieldReader, put_text};
use crate::reject::ProtocolViolation;

/// Bytes of an opening or an answer: a hundred times a salt and a proof.
pub const HANDSHAKE_BYTES_MAX: usize = 1 << 10;

/// Importer: the modules of the device that is opened next.
pub fn encode_offers(offers: &[ModuleOffer]) -> Vec<u8> {
    let mut bytes = vec![offers.len() as u8];
    for ModuleOffer { name, version, parameters, opening } in offers {
        put_text(&mut bytes, name, TEXT_BYTES_MAX);
        bytes.extend(version.to_le_bytes());
        put_text(&mut bytes, parameters, TEXT_BYTES_MAX);
        put_handshake(&mut bytes, opening);
    }
    bytes
}

/// Decodes the message.
///
/// # Errors
/// [`ProtocolViolation`].
pub fn decode_offers(bytes: &[u8]) -> Result<Vec<ModuleOffer>, ProtocolViolation> {
    let mut reader = FieldReader::new(bytes);
    let mut offers = Vec::new();
    for _ in 0..count(&mut reader)? {
        let (name, version) = (reader.text("module", TEXT_BYTES_MAX)?, reader.u16("module's version")?);
        let (parameters, opening) = (reader.text("parameters", TEXT_BYTES_MAX)?, handshake(&mut reader, "opening")?);
        offers.push(ModuleOffer { name, version, parameters, opening });
    }
    reader.end("modules").map(|()| offers)
}

/// Exporter: the answers of the modules' other halves.
pub fn encode_answers(answers: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = vec![answers.len() as u8];
    answers.iter().for_each(|answer| put_handshake(&mut bytes, answer));
    bytes
}

/// Decodes the message.
///
/// # Errors
/// [`ProtocolViolation`].
pub fn decode_answers(bytes: &[u8]) -> Result<Vec<Vec<u8>>, ProtocolViolation> {
    let mut reader = FieldReader::new(bytes);
    let mut answers = Vec::new();
    for _ in 0..count(&mut reader)? {
        answers.push(handshake(&mut reader, "answer")?);
    }
    reader.end("modules").map(|()| answers)
}

fn count(reader: &mut FieldReader<'_>) -> Result<u8, ProtocolViolation> {
    let count = reader.u8("modules")?;
    match usize::from(count) {
        // One more than the limit is decoded, so that it can be refused with a sentence for people.
        count_ if count_ <= PAIRS_MAX + 1 => Ok(count),
        _ => Err(ProtocolViolation::new("modules", count.into(), "an attachment goes through 8 at most")),
    }
}

fn put_handshake(to: &mut Vec<u8>, bytes: &[u8]) {
    assert!(bytes.len() <= HANDSHAKE_BYTES_MAX, "a module's first word is short");
    to.extend((bytes.len() as u16).to_le_bytes());
    to.extend(bytes);
}

fn handshake(reader: &mut FieldReader<'_>, field: &'static str) -> Result<Vec<u8>, ProtocolViolation> {
    let length = reader.u16(field)?;
    if usize::from(length) > HANDSHAKE_BYTES_MAX {
        return Err(ProtocolViolation::new(field, length.into(), "it has 1024 bytes at most"));
    }
    reader.take(length.into(), field).map(<[u8]>::to_vec)
}

/// Appends the head of a message that has passed modules to what is already in its part.
pub fn put_head(part: &mut ClassPart, head: &Payload, payload: &Payload) {
    if !head.is_empty() || !payload.is_empty() {
        part.put(&(head.len() as u16).to_le_bytes());
        head.runs().for_each(|run| part.put(run));
    }
}

/// Splits a message for modules into head and payload.
///
/// # Errors
/// [`ProtocolViolation`]: its head is longer than the whole.
pub fn split_head(mut body: Payload) -> Result<(Payload, Payload), ProtocolViolation> {
    if body.is_empty() {
        return Ok((Payload::Empty, Payload::Empty));
    }
    let prefix = body.split_front(2);
    let wrong = |value| ProtocolViolation::new("head length", value, "a message has its head");
    let length = prefix.contiguous().as_ref().try_into().map(u16::from_le_bytes).map_err(|_| wrong(0))?;
    if usize::from(length) > body.len() {
        return Err(wrong(length.into()));
    }
    let head = body.split_front(length.into());
    Ok((head, body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_and_answers_survive_the_way_and_none_without_its_end() {
        let offer = |name: &str| ModuleOffer {
            name: name.to_owned(),
            version: 0x102,
            parameters: "level=3".to_owned(),
            opening: vec![7; 64],
        };
        let offers = vec![offer("zstd"), offer("seal")];
        let bytes = encode_offers(&offers);
        assert_eq!(decode_offers(&bytes), Ok(offers));
        let answers = vec![Vec::new(), vec![9; HANDSHAKE_BYTES_MAX]];
        let answered = encode_answers(&answers);
        assert_eq!(decode_answers(&answered), Ok(answers));
        for end in 0..bytes.len() {
            assert!(decode_offers(&bytes[..end]).is_err(), "{end} bytes");
        }
        for end in 0..answered.len() {
            assert!(decode_answers(&answered[..end]).is_err(), "{end} bytes");
        }
        assert_eq!(decode_offers(&[10]).unwrap_err().field, "modules");
        assert_eq!(decode_answers(&[1, 1, 4]).unwrap_err().field, "answer");
        let longest =
            encode_offers(&vec![ModuleOffer { opening: vec![0; HANDSHAKE_BYTES_MAX], ..offer(&"n".repeat(64)) }; 8]);
        assert!(longest.len() < super::super::message::PART_BYTES_MAX);
    }

    #[test]
    fn a_message_keeps_its_head_and_its_payload_apart() {
        for (head, payload) in [(0, 0), (0, 5), (5, 0), (300, 70_000)] {
            let (head, payload): (Payload, Payload) = (vec![1; head].into(), vec![2; payload].into());
            let mut part = ClassPart::empty();
            put_head(&mut part, &head, &payload);
            let body = [&part[..], &payload.contiguous()].concat();
            assert_eq!(split_head(body.into()), Ok((head, payload)));
        }
        assert_eq!(split_head(vec![1].into()).unwrap_err().field, "head length");
        assert_eq!(split_head(vec![2, 0, 7].into()).unwrap_err().field, "head length");
    }
}
