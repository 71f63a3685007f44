//! UNMAP and WRITE SAME: giving space back, and writing one block repeatedly (SBC-3).

use super::limits::{BUFFER_BYTES, UNMAP_BYTES_MAX, UNMAP_HEADER_BYTES, UNMAP_RANGE_BYTES, UNMAP_RANGES_MAX};
use crate::storage::medium::{GadgetMedium, LbaRange, SectorGeometry, StoreSpan};
use crate::storage::sense::SenseReport;

/// The spans of an UNMAP parameter list. The whole list is checked before any of it is carried out.
pub(crate) fn unmapped(disk: SectorGeometry, list: &[u8]) -> Result<Vec<StoreSpan>, SenseReport> {
    if list.is_empty() {
        return Ok(Vec::new());
    }
    let ranges = ranges(list)?;
    if ranges.len() > UNMAP_RANGES_MAX as usize {
        return Err(SenseReport::INVALID_FIELD_IN_PARAMETERS);
    }
    let mut spans = Vec::with_capacity(ranges.len());
    for extent in ranges {
        let span = disk.span(extent)?;
        if span.len > 0 {
            spans.push(span);
        }
    }
    // Each lies in the medium, so the sum of 256 of them does not overflow 64 bits.
    let bytes = spans.iter().fold(0, |bytes: u64, span| bytes.saturating_add(span.len));
    if bytes > u64::from(UNMAP_BYTES_MAX) { Err(SenseReport::INVALID_FIELD_IN_PARAMETERS) } else { Ok(spans) }
}

/// The block descriptors of an UNMAP parameter list. An incomplete one at the end is ignored.
fn ranges(list: &[u8]) -> Result<impl ExactSizeIterator<Item = LbaRange> + Clone, SenseReport> {
    let (header, rest) = list.split_at_checked(UNMAP_HEADER_BYTES).ok_or(SenseReport::PARAMETER_LIST_LENGTH)?;
    let data_bytes = usize::from(u16::from_be_bytes([header[2], header[3]]));
    let data = rest.get(..data_bytes).ok_or(SenseReport::PARAMETER_LIST_LENGTH)?;
    let (descriptors, _) = data.as_chunks::<UNMAP_RANGE_BYTES>();
    Ok(descriptors.iter().map(|descriptor| {
        let [lba @ .., b8, b9, b10, b11, _, _, _, _] = *descriptor;
        LbaRange { lba: u64::from_be_bytes(lba), blocks: u32::from_be_bytes([b8, b9, b10, b11]).into() }
    }))
}

/// Zeros over `span`: with their space kept or, if the host allows it, given back.
pub(crate) fn write_zeros(medium: &mut GadgetMedium, span: StoreSpan, unmap: bool) -> Result<(), SenseReport> {
    if unmap { medium.discard(span) } else { medium.write_zeroes(span) }
}

/// Writes the block at the start of `buffer` over all of `span`. UNMAP permits, and does not order: a block that would
/// not read back is written.
pub(crate) fn write_same(
    medium: &mut GadgetMedium,
    span: StoreSpan,
    unmap: bool,
    buffer: &mut Vec<u8>,
) -> Result<(), SenseReport> {
    if buffer.iter().all(|byte| *byte == 0) {
        return write_zeros(medium, span, unmap);
    }
    let block_bytes = buffer.len();
    while buffer.len() + block_bytes <= BUFFER_BYTES && (buffer.len() as u64) < span.len {
        buffer.extend_from_within(..block_bytes);
    }
    let mut done = 0;
    while done < span.len {
        let n = (buffer.len() as u64).min(span.len - done);
        medium.write(span.offset + done, &buffer[..n as usize])?;
        done += n;
    }
    Ok(())
}
