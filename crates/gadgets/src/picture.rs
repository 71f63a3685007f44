//! Generated pictures, and a source of frames as a USB host sees it.

use farbus_model::definition::InterfaceDefinition;
use farbus_model::{DeviceDefinition, NamedCounters};

use crate::emulated::{EmulatedDevice, GadgetFunction};

/// Bytes of the number at the front of a picture.
pub const NUMBER_BYTES: usize = 8;
/// Shades of a gradient.
const SHADES: usize = 256;
/// How many shades the gradient moves from picture to picture.
const STEP: u64 = 4;

/// A moving gradient: every picture is predictable, and has its number in its first 8 bytes.
#[derive(Clone, Debug)]
pub struct GradientPicture {
    line_bytes: usize,
    lines: usize,
    point_bytes: usize,
    /// One line plus all shades: each line of each picture is a part of it.
    gradient: Vec<u8>,
}

impl GradientPicture {
    /// Pictures of `width` by `height` pixels of `point_bytes` bytes each.
    pub fn new(width: usize, height: usize, point_bytes: usize) -> Self {
        let points = (0..width + SHADES).flat_map(|point| std::iter::repeat_n(point as u8, point_bytes));
        Self { line_bytes: width * point_bytes, lines: height, point_bytes, gradient: points.collect() }
    }

    /// The picture with this number.
    pub fn numbered(&self, number: u64) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.line_bytes * self.lines);
        for line in 0..self.lines as u64 {
            let shade = (number.wrapping_mul(STEP).wrapping_add(line) % SHADES as u64) as usize;
            bytes.extend_from_slice(&self.gradient[shade * self.point_bytes..][..self.line_bytes]);
        }
        let length = NUMBER_BYTES.min(bytes.len());
        bytes[..length].copy_from_slice(&number.to_le_bytes()[..length]);
        bytes
    }
}

/// A source of frames as a USB device: it has descriptors and no endpoint. Its frames travel over farbus's own
/// protocol.
#[derive(Debug)]
pub struct FrameSourceGadget(NamedCounters);

impl FrameSourceGadget {
    /// Makes the device: `what` is its product's name, `tally` holds its source's counters.
    pub fn device(what: &str, tally: NamedCounters) -> EmulatedDevice<Self> {
        let definition = DeviceDefinition::new(0x1d6b, 0x0104).names("farbus", what, "0");
        EmulatedDevice::new(&definition.interface(InterfaceDefinition::vendor()), Self(tally))
    }
}

impl GadgetFunction for FrameSourceGadget {
    fn tally(&self) -> Option<NamedCounters> {
        Some(self.0.clone())
    }

    /// Empty: the source belongs to its process.
    fn save(&self) -> Option<Vec<u8>> {
        Some(Vec::new())
    }

    fn restore(&mut self, state: &[u8]) -> Option<()> {
        state.is_empty().then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_picture_is_known_by_its_number() {
        let picture = GradientPicture::new(10, 4, 3);
        let first = picture.numbered(0);
        assert_eq!(first.len(), 10 * 4 * 3);
        assert_eq!(first[..12], [0, 0, 0, 0, 0, 0, 0, 0, 2, 3, 3, 3]);
        assert_eq!(first[30..36], [1, 1, 1, 2, 2, 2]);
        let later = picture.numbered(1 << 40 | 63);
        assert_eq!(later[..8], (1_u64 << 40 | 63).to_le_bytes());
        assert_eq!(later[30..33], [253; 3]);
        assert_eq!(GradientPicture::new(1, 1, 1).numbered(5), [5]);
    }
}
