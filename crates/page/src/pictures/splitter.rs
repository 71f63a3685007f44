//! Finds whole pictures in bytes that come one behind the other.
//!
//! What is inside a picture is for the one who draws it. Here is checked that it is one from its first byte to its
//! last: the chunks of a PNG as farbus writes them, or the segments and scans of a JPEG, and its size.

use std::fmt;

use crate::pictures::kind::{JPEG_BEGIN, PNG_SIGNATURE, PictureFormat, is_sane};

/// Markers of JPEG (ITU-T T.81, table B.1): the second byte.
mod marker {
    /// A restart within a scan: the first and the last.
    pub const RESTART: std::ops::RangeInclusive<u8> = 0xd0..=0xd7;
    /// The beginning of an image.
    pub const BEGIN: u8 = 0xd8;
    /// The end of an image.
    pub const END: u8 = 0xd9;
    /// The beginning of a scan.
    pub const SCAN: u8 = 0xda;
    /// The beginning of a frame, but for those that are no frame.
    pub const FRAME: std::ops::RangeInclusive<u8> = 0xc0..=0xcf;
    /// Those: Huffman tables, a reserved one, arithmetic conditioning.
    pub const NO_FRAME: [u8; 3] = [0xc4, 0xc8, 0xcc];
}

/// Bytes of a chunk of PNG without its data: length, name, check.
const CHUNK_BYTES: usize = 12;

/// Takes bytes as they come, and gives the pictures that they are.
#[derive(Debug)]
pub struct PictureSplitter {
    bytes: Vec<u8>,
    bytes_max: usize,
    walk: PictureParsePosition,
}

/// A picture, from its first byte to its last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedPicture {
    /// The format of its file.
    pub kind: PictureFormat,
    /// Pixels of a line.
    pub width: u32,
    /// How many lines of pixels it has.
    pub height: u32,
    /// All of it.
    pub bytes: Vec<u8>,
}

/// The bytes are no pictures, or one is too long; nothing is found in what follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPicture {
    /// They are none.
    Broken,
    /// A picture has more bytes than this.
    TooLong(usize),
}

impl fmt::Display for NoPicture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broken => f.write_str("what came is no picture"),
            Self::TooLong(most) => write!(f, "a picture has more than {most} bytes"),
        }
    }
}

/// How far a picture was looked at: nothing is looked at twice, however its bytes come.
#[derive(Debug)]
struct PictureParsePosition {
    at: usize,
    next: ExpectedSegment,
    size: Option<(u32, u32)>,
    has_data: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExpectedSegment {
    Beginning,
    Chunk,
    Marker,
    /// Coded data of a scan.
    Scan,
}

impl PictureSplitter {
    /// For pictures of so many bytes at most.
    pub fn new(bytes_max: usize) -> Self {
        Self { bytes: Vec::new(), bytes_max, walk: PictureParsePosition::new() }
    }

    /// Takes bytes. Take all pictures out ([`PictureSplitter::poll_picture`]) before the next are added.
    pub fn add(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole picture; `None`: more bytes are needed.
    ///
    /// # Errors
    /// [`NoPicture`].
    pub fn poll_picture(&mut self) -> Result<Option<EncodedPicture>, NoPicture> {
        let Some((kind, end)) = self.walk.find_end(&self.bytes, self.bytes_max)? else {
            return if self.bytes.len() > self.bytes_max { Err(NoPicture::TooLong(self.bytes_max)) } else { Ok(None) };
        };
        if end > self.bytes_max {
            return Err(NoPicture::TooLong(self.bytes_max));
        }
        let rest = self.bytes.split_off(end);
        let bytes = std::mem::replace(&mut self.bytes, rest);
        let (width, height) =
            std::mem::replace(&mut self.walk, PictureParsePosition::new()).size.ok_or(NoPicture::Broken)?;
        Ok(Some(EncodedPicture { kind, width, height, bytes }))
    }
}

/// The format and the length of the picture with which these bytes begin; `None`: there is no whole one.
pub fn first_of(bytes: &[u8]) -> Option<(PictureFormat, usize)> {
    PictureParsePosition::new().find_end(bytes, bytes.len()).ok()?
}

impl PictureParsePosition {
    fn new() -> Self {
        Self { at: 0, next: ExpectedSegment::Beginning, size: None, has_data: false }
    }

    /// The format and the end of the picture, once it is there.
    fn find_end(&mut self, bytes: &[u8], bytes_max: usize) -> Result<Option<(PictureFormat, usize)>, NoPicture> {
        loop {
            let rest = bytes.get(self.at..).unwrap_or_default();
            match self.next {
                ExpectedSegment::Beginning if rest.len() < PNG_SIGNATURE.len() => return Ok(None),
                ExpectedSegment::Beginning if rest.starts_with(&PNG_SIGNATURE) => {
                    self.go(PNG_SIGNATURE.len(), ExpectedSegment::Chunk);
                }
                // The first byte of the next marker is read again.
                ExpectedSegment::Beginning if rest.starts_with(&JPEG_BEGIN) => {
                    self.go(JPEG_BEGIN.len() - 1, ExpectedSegment::Marker)
                }
                ExpectedSegment::Beginning => return Err(NoPicture::Broken),
                ExpectedSegment::Chunk => {
                    let Some((head, data)) = rest.split_first_chunk::<8>() else { return Ok(None) };
                    let [a, b, c, d, name @ ..] = *head;
                    let length = u32::from_be_bytes([a, b, c, d]) as usize;
                    if length > bytes_max {
                        return Err(NoPicture::TooLong(bytes_max));
                    }
                    let Some(data) = data.get(..length).filter(|_| rest.len() >= CHUNK_BYTES + length) else {
                        return Ok(None);
                    };
                    self.chunk(name, data)?;
                    self.go(CHUNK_BYTES + length, ExpectedSegment::Chunk);
                    if name == *b"IEND" {
                        return Ok(Some((PictureFormat::Png, self.at)));
                    }
                }
                ExpectedSegment::Marker => {
                    let [first, second, ..] = *rest else { return Ok(None) };
                    if first != 0xff {
                        return Err(NoPicture::Broken);
                    }
                    match second {
                        // Any number of them may stand before a marker.
                        0xff => self.go(1, ExpectedSegment::Marker),
                        marker::END if self.has_data => return Ok(Some((PictureFormat::Jpeg, self.at + 2))),
                        // Zero and one, restarts, and both ends are no segments.
                        0 | 1 | marker::BEGIN | marker::END => return Err(NoPicture::Broken),
                        restart if marker::RESTART.contains(&restart) => return Err(NoPicture::Broken),
                        _ => {
                            let [high, low, ..] = rest[2..] else { return Ok(None) };
                            let length = usize::from(u16::from_be_bytes([high, low]));
                            if length < 2 {
                                return Err(NoPicture::Broken);
                            }
                            let Some(data) = rest.get(4..2 + length) else { return Ok(None) };
                            let next = self.segment(second, data)?;
                            self.go(2 + length, next);
                        }
                    }
                }
                ExpectedSegment::Scan => match rest.iter().position(|byte| *byte == 0xff) {
                    None => {
                        self.at = bytes.len();
                        return Ok(None);
                    }
                    Some(found) => match rest.get(found + 1) {
                        None => {
                            self.at += found;
                            return Ok(None);
                        }
                        Some(&coded) if coded == 0 || marker::RESTART.contains(&coded) => {
                            self.go(found + 2, ExpectedSegment::Scan);
                        }
                        Some(_) => self.go(found, ExpectedSegment::Marker),
                    },
                },
            }
        }
    }

    fn go(&mut self, bytes: usize, next: ExpectedSegment) {
        self.at += bytes;
        self.next = next;
    }

    fn set_size(&mut self, width: u32, height: u32) -> Result<(), NoPicture> {
        if self.size.is_some() || !is_sane(width, height) {
            return Err(NoPicture::Broken);
        }
        self.size = Some((width, height));
        Ok(())
    }

    /// A chunk of a PNG as [`crate::pictures::png`] writes it: the head, the data, the end, and no other.
    fn chunk(&mut self, name: [u8; 4], data: &[u8]) -> Result<(), NoPicture> {
        match (&name, data) {
            (b"IHDR", &[a, b, c, d, e, f, g, h, _, _, _, _, _]) => {
                self.set_size(u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]))
            }
            (b"IDAT", _) if self.size.is_some() => {
                self.has_data = true;
                Ok(())
            }
            (b"IEND", []) if self.has_data => Ok(()),
            _ => Err(NoPicture::Broken),
        }
    }

    /// A segment of a JPEG; returns what follows it.
    fn segment(&mut self, marker: u8, data: &[u8]) -> Result<ExpectedSegment, NoPicture> {
        if marker == marker::SCAN {
            // A scan without a frame's head has no size.
            self.has_data = true;
            return if self.size.is_some() { Ok(ExpectedSegment::Scan) } else { Err(NoPicture::Broken) };
        }
        if marker::FRAME.contains(&marker) && !marker::NO_FRAME.contains(&marker) {
            // Bits of a sample, lines, pixels of a line (B.2.2). Lines that are told later are not waited for.
            let [_, high, low, wide, narrow, ..] = *data else { return Err(NoPicture::Broken) };
            let (height, width) = (u16::from_be_bytes([high, low]), u16::from_be_bytes([wide, narrow]));
            self.set_size(width.into(), height.into())?;
        }
        Ok(ExpectedSegment::Marker)
    }
}

#[cfg(test)]
pub mod tests {
    use png::ColorType;

    use super::*;
    use crate::pictures::painter;

    fn encode(width: u32, height: u32, samples: ColorType, pixels: &[u8]) -> Vec<u8> {
        painter::encode(width, height, samples, pixels).unwrap()
    }

    /// What a JPEG consists of, with coded data that mean nothing.
    pub fn jpeg(width: u16, height: u16) -> Vec<u8> {
        let ([wide, narrow], [high, low]) = (width.to_be_bytes(), height.to_be_bytes());
        let mut bytes = vec![0xff, 0xd8];
        bytes.extend([0xff, 0xe0, 0, 16, b'J', b'F', b'I', b'F', 0, 1, 1, 0, 0, 1, 0, 1, 0, 0]);
        // A comment with what ends a picture elsewhere; then a marker with filling before it.
        bytes.extend([0xff, 0xfe, 0, 4, 0xff, 0xd9]);
        bytes.extend([0xff, 0xff, 0xc0, 0, 11, 8, high, low, wide, narrow, 1, 1, 0x11, 0]);
        bytes.extend([0xff, 0xda, 0, 8, 1, 1, 0, 0, 63, 0]);
        bytes.extend([1, 2, 0xff, 0, 3, 0xff, 0xd0, 4, 5]);
        bytes.extend([0xff, 0xda, 0, 8, 1, 1, 0, 0, 63, 0, 6, 0xff, 0xd9]);
        bytes
    }

    fn all(splitter: &mut PictureSplitter) -> Vec<EncodedPicture> {
        std::iter::from_fn(|| splitter.poll_picture().unwrap()).collect()
    }

    #[test]
    fn pictures_are_found_whole_however_their_bytes_come() {
        let png = encode(3, 2, ColorType::Grayscale, &[7; 6]);
        let stream = [&png[..], &jpeg(64, 48), &png, &jpeg(8, 8), &jpeg(64, 48)].concat();
        for piece in [1, 2, 7, 64, stream.len()] {
            let mut splitter = PictureSplitter::new(1 << 10);
            let mut found = Vec::new();
            for bytes in stream.chunks(piece) {
                splitter.add(bytes);
                found.extend(all(&mut splitter));
            }
            let sizes: Vec<_> = found.iter().map(|whole| (whole.kind, whole.width, whole.height)).collect();
            let (png_size, jpeg_size) = ((PictureFormat::Png, 3, 2), (PictureFormat::Jpeg, 64, 48));
            assert_eq!(sizes, [png_size, jpeg_size, png_size, (PictureFormat::Jpeg, 8, 8), jpeg_size], "{piece}");
            assert_eq!(found.iter().flat_map(|whole| whole.bytes.clone()).collect::<Vec<_>>(), stream);
        }
    }

    #[test]
    fn what_is_no_picture_is_never_one() {
        let png = encode(3, 2, ColorType::Grayscale, &[7; 6]);
        let changed = |of: &[u8], at: usize, to: &[u8]| {
            let mut bytes = of.to_vec();
            bytes[at..at + to.len()].copy_from_slice(to);
            bytes
        };
        let good = jpeg(64, 48);
        let frame = good.windows(2).position(|two| two == [0xff, 0xc0]).unwrap();
        let hostile = [
            b"<svg xmlns='http://www.w3.org/2000/svg'>".to_vec(),
            b"<!doctype html><script>alert(1)</script>".to_vec(),
            b"GIF89a\x01\0\x01\0\0\0\0".to_vec(),
            changed(&png, 12, b"tEXt"),
            changed(&png, 16, &[0xff; 4]),
            changed(&png, 16, &[0; 4]),
            [&PNG_SIGNATURE[..], &[0, 0, 0, 0], b"IEND", &[0; 4]].concat(),
            changed(&good, frame + 5, &[0, 0]),
            changed(&good, frame + 5, &[0xff; 4]),
            changed(&good, frame + 2, &[0, 0]),
            changed(&good, frame + 2, &[0, 4]),
            // Two frames; none; no scan.
            [&good[..frame], &good[frame..frame + 13], &good[frame..]].concat(),
            [&good[..frame], &good[frame + 13..]].concat(),
            vec![0xff, 0xd8, 0xff, 0xd9, 0, 0, 0, 0],
            vec![0xff, 0xd8, 0xff, 0xd8, 0xff, 0xd8, 0xff, 0xd9],
        ];
        for bytes in hostile {
            let mut splitter = PictureSplitter::new(1 << 10);
            splitter.add(&bytes);
            assert_eq!(splitter.poll_picture(), Err(NoPicture::Broken), "{bytes:02x?}");
            assert_eq!(first_of(&bytes), None);
        }
    }

    #[test]
    fn a_picture_without_an_end_is_given_up_at_its_limit() {
        let endless = |begins: Vec<u8>| {
            let mut splitter = PictureSplitter::new(10_000);
            splitter.add(&begins);
            let mut taken = begins.len();
            loop {
                match splitter.poll_picture() {
                    Ok(found) => assert_eq!(found, None),
                    Err(error) => return (error, taken),
                }
                splitter.add(&[1; 1000]);
                taken += 1000;
            }
        };
        let good = jpeg(64, 48);
        let (error, taken) = endless(good[..good.len() - 2].to_vec());
        assert_eq!(error, NoPicture::TooLong(10_000));
        assert!(taken <= 11_000, "{taken}");
        let promised =
            [&encode(3, 2, ColorType::Grayscale, &[7; 6])[..33], &[0xff, 0xff, 0xff, 0xff], b"IDAT"].concat();
        assert_eq!(endless(promised.clone()), (NoPicture::TooLong(10_000), promised.len()), "before any of it comes");
    }

    #[test]
    fn fuzz_pictures() {
        crate::fuzzing::fuzz(env!("CARGO_MANIFEST_DIR"), "fuzz_pictures", |input| {
            let mut bytes = [encode(3, 2, ColorType::Rgb, &[7; 18]), jpeg(64, 48), jpeg(8, 8)].concat();
            for change in input.bytes(16).chunks_exact(2) {
                let at = usize::from(change[0]) % bytes.len();
                bytes[at] = change[1];
            }
            bytes.extend(input.bytes(64));
            let mut splitter = PictureSplitter::new(256);
            for piece in bytes.chunks(17) {
                splitter.add(piece);
                loop {
                    match splitter.poll_picture() {
                        Ok(Some(whole)) => {
                            assert!(whole.bytes.len() <= 256 && is_sane(whole.width, whole.height));
                            assert_eq!(first_of(&whole.bytes), Some((whole.kind, whole.bytes.len())));
                        }
                        Ok(None) => break,
                        Err(_) => return,
                    }
                }
            }
        });
    }
}
