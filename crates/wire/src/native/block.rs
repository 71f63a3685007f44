//! The block class: a request has 22 bytes, a reply 8, frame heads included (requirement N4; paper: 28 and 4).
//!
//! ```text
//!   request   0 op 1  1 flags 1  2 length 4   6 offset 8   then the data to write
//!   reply     nothing, or 0 error 1; then the data that was read
//! ```

use farbus_model::{BlockId, BlockInfo, BlockOp, BlockRequest, Payload, StoreError};

use super::message::ClassPart;
use super::reader::FieldReader;
use crate::reject::ProtocolViolation;

/// Bytes of a request's own part.
pub const REQUEST_BYTES: usize = 14;

/// The last two were added later: only for devices that announce them ([`TRIMS`], [`MAPS`]).
const OPS: [BlockOp; 7] = [
    BlockOp::Read,
    BlockOp::Write,
    BlockOp::Flush,
    BlockOp::Discard,
    BlockOp::WriteZeroes,
    BlockOp::Trim,
    BlockOp::Map,
];
const DURABLE: u8 = 1;
const ERRORS: [StoreError; 6] = [
    StoreError::Medium,
    StoreError::NoSpace,
    StoreError::ReadOnly,
    StoreError::Gone,
    StoreError::Lost,
    StoreError::Invalid,
];

/// The class part of a request.
pub fn request_part(request: &BlockRequest) -> ClassPart {
    let op = OPS.iter().position(|&op| op == request.op).expect("all are listed") as u8;
    let mut bytes = [0; REQUEST_BYTES];
    bytes[0] = op;
    bytes[1] = if request.is_durable { DURABLE } else { 0 };
    bytes[2..6].copy_from_slice(&request.length.to_le_bytes());
    bytes[6..].copy_from_slice(&request.offset.to_le_bytes());
    bytes.into()
}

/// Decodes a request, without its data, from the front of a message. The caller checks whether the device permits it.
///
/// # Errors
/// [`ProtocolViolation`].
pub fn decode_request(id: BlockId, bytes: &[u8]) -> Result<BlockRequest, ProtocolViolation> {
    let mut reader = FieldReader::new(bytes);
    let op = reader.u8("op")?;
    let flags = reader.u8("block flags")?;
    let length = reader.u32("length")?;
    let offset = reader.u64("offset")?;
    if flags & !DURABLE != 0 {
        return Err(ProtocolViolation::new("block flags", flags.into(), "no request has such a flag"));
    }
    let known = OPS.get(usize::from(op)).copied();
    let op = known.ok_or(ProtocolViolation::new("op", op.into(), "no request is of that kind"))?;
    Ok(BlockRequest { id, op, offset, length, payload: Payload::Empty, is_durable: flags & DURABLE != 0 })
}

/// The class part of a failed request's reply; a successful one has none, which its flag says.
pub fn reply_part(error: StoreError) -> ClassPart {
    let code = ERRORS.iter().position(|&other| other == error).expect("all are listed");
    [code as u8].into()
}

/// Decodes the error of a reply that has one.
///
/// # Errors
/// [`ProtocolViolation`].
pub fn decode_reply(bytes: &[u8]) -> Result<StoreError, ProtocolViolation> {
    let mut reader = FieldReader::new(bytes);
    let code = reader.u8("error")?;
    reader.end("reply")?;
    let known = ERRORS.get(usize::from(code)).copied();
    known.ok_or(ProtocolViolation::new("error", code.into(), "a block device has no such error"))
}

/// The description of a block device, as [`super::control::OpenReply`] carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockDescription {
    /// The device's properties.
    pub info: BlockInfo,
    /// Changes when writes that were answered and not flushed may have been lost: the exporter's machine was started
    /// again, or the medium's device was taken away and came back.
    pub durability: u64,
    /// Whether the exporter knows [`BlockOp::Map`].
    pub maps: bool,
}

const READ_ONLY: u8 = 1;
const TRIMS: u8 = 2;
const MAPS: u8 = 4;

impl BlockDescription {
    /// Encodes the message.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.info.size_bytes.to_le_bytes().to_vec();
        for field in [self.info.block_bytes, self.info.preferred_bytes, self.info.request_bytes_max] {
            bytes.extend(field.to_le_bytes());
        }
        let flags = [(self.info.is_read_only, READ_ONLY), (self.info.trims, TRIMS), (self.maps, MAPS)];
        bytes.push(flags.into_iter().filter(|(is_so, _)| *is_so).map(|(_, flag)| flag).sum());
        bytes.extend(self.durability.to_le_bytes());
        bytes
    }

    /// Decodes the description.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: no such device can exist.
    pub fn decode(bytes: &[u8]) -> Result<Self, ProtocolViolation> {
        let mut reader = FieldReader::new(bytes);
        let size_bytes = reader.u64("size")?;
        let (block_bytes, preferred_bytes) = (reader.u32("block size")?, reader.u32("preferred size")?);
        let request_bytes_max = reader.u32("request size")?;
        let flags = reader.u8("device flags")?;
        // Fields of a later release may follow.
        let durability = reader.u64("durability")?;
        for (field, bytes) in [("block size", block_bytes), ("preferred size", preferred_bytes)] {
            if !bytes.is_power_of_two() || bytes > request_bytes_max {
                return Err(ProtocolViolation::new(
                    field,
                    bytes.into(),
                    "it is a power of two that a request can have",
                ));
            }
        }
        if preferred_bytes < block_bytes {
            return Err(ProtocolViolation::new("preferred size", preferred_bytes.into(), "it is a block or more"));
        }
        if !size_bytes.is_multiple_of(block_bytes.into()) {
            return Err(ProtocolViolation::new("size", size_bytes, "a device is made of blocks"));
        }
        let (is_read_only, trims) = (flags & READ_ONLY != 0, flags & TRIMS != 0);
        let info = BlockInfo { size_bytes, block_bytes, preferred_bytes, request_bytes_max, is_read_only, trims };
        Ok(Self { info, durability, maps: flags & MAPS != 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_survives_the_way() {
        for op in OPS {
            for is_durable in [false, true] {
                let payload = Payload::Empty;
                let request =
                    BlockRequest { id: BlockId(3), op, offset: 5 << 40, length: u32::MAX, payload, is_durable };
                let part = request_part(&request);
                assert_eq!(part.len(), REQUEST_BYTES);
                let again = decode_request(BlockId(3), &part).unwrap();
                assert_eq!(
                    (again.op, again.offset, again.length, again.is_durable),
                    (op, 5 << 40, u32::MAX, is_durable)
                );
                assert!(decode_request(BlockId(3), &part[..REQUEST_BYTES - 1]).is_err());
            }
        }
        assert_eq!(decode_request(BlockId(3), &[7; 16]).unwrap_err().field, "block flags");
        assert_eq!(
            decode_request(BlockId(3), &[7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).unwrap_err().field,
            "op"
        );
        for error in ERRORS {
            assert_eq!(decode_reply(&reply_part(error)), Ok(error));
        }
        assert!(decode_reply(&[6]).is_err() && decode_reply(&[]).is_err() && decode_reply(&[0, 0]).is_err());
    }

    #[test]
    fn a_device_that_cannot_be_is_refused() {
        let info = BlockInfo {
            size_bytes: 16 << 40,
            block_bytes: 512,
            preferred_bytes: 4096,
            request_bytes_max: 1 << 20,
            is_read_only: true,
            trims: false,
        };
        for (is_read_only, trims) in [(true, false), (false, true), (false, false), (true, true)] {
            let info = BlockInfo { is_read_only, trims, ..info };
            let description = BlockDescription { info, durability: 9, maps: trims != is_read_only };
            assert_eq!(BlockDescription::decode(&description.encode()), Ok(description));
        }
        let refused = |info| {
            BlockDescription::decode(&BlockDescription { info, durability: 9, maps: true }.encode()).unwrap_err().field
        };
        assert_eq!(refused(BlockInfo { size_bytes: 513, ..info }), "size");
        assert_eq!(refused(BlockInfo { block_bytes: 0, ..info }), "block size");
        assert_eq!(refused(BlockInfo { block_bytes: 8192, ..info }), "preferred size");
        assert_eq!(refused(BlockInfo { request_bytes_max: 2048, ..info }), "preferred size");
    }
}
