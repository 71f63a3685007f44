//! The formats and sizes of pictures that are shown.

/// The longest line and the most lines of a picture, pixels.
pub const SIDE_MAX: u32 = 16_384;
/// The most pixels of a picture: a browser needs four bytes for each.
pub const PIXELS_MAX: u32 = 16 << 20;

/// The format of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PictureFormat {
    /// A PNG picture (ISO/IEC 15948).
    Png,
    /// A JPEG picture (ITU-T T.81).
    Jpeg,
}

/// The first bytes of every PNG (ISO/IEC 15948, 5.2).
pub const PNG_SIGNATURE: [u8; 8] = *b"\x89PNG\r\n\x1a\n";
/// The marker with which a JPEG begins, and the first byte of the next.
pub const JPEG_BEGIN: [u8; 3] = [0xff, 0xd8, 0xff];

impl PictureFormat {
    /// The format of bytes that begin so; `None`: another one.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        if bytes.starts_with(&PNG_SIGNATURE) {
            return Some(Self::Png);
        }
        bytes.starts_with(&JPEG_BEGIN).then_some(Self::Jpeg)
    }

    /// Its media type.
    pub const fn media_type(self) -> &'static str {
        match self {
            Self::Png => "image/png",
            Self::Jpeg => "image/jpeg",
        }
    }
}

/// Whether a picture of so many pixels is shown.
pub fn is_sane(width: u32, height: u32) -> bool {
    let is_side = |pixels: u32| (1..=SIDE_MAX).contains(&pixels);
    is_side(width) && is_side(height) && width * height <= PIXELS_MAX
}
