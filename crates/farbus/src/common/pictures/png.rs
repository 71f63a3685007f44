//! Writes PNG (ISO/IEC 15948): one image, 8 bits a sample, without metadata.

use miniz_oxide::deflate::compress_to_vec_zlib;

use super::kind::PNG_SIGNATURE;

/// How hard is compressed, of 10: pictures are made while somebody looks.
const LEVEL: u8 = 1;
/// The filter that says of each sample by how much it is greater than the one above (clause 9.2).
const FILTER_UP: u8 = 2;

/// The samples of a pixel, as the colour type of the head says (clause 11.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Samples {
    /// One byte of brightness for each pixel (PNG colour type 0).
    Grey,
    /// Red, green, blue.
    Rgb,
}

impl Samples {
    fn colour_type(self) -> u8 {
        match self {
            Self::Grey => 0,
            Self::Rgb => 2,
        }
    }

    fn bytes(self) -> usize {
        match self {
            Self::Grey => 1,
            Self::Rgb => 3,
        }
    }
}

/// A picture of these pixels, line by line from the top; `pixels` has as many as width and height say.
pub fn encode(width: u32, height: u32, samples: Samples, pixels: &[u8]) -> Vec<u8> {
    let line_bytes = width as usize * samples.bytes();
    let mut filtered = Vec::with_capacity(pixels.len() + height as usize);
    let mut above: Option<&[u8]> = None;
    for line in pixels.chunks_exact(line_bytes.max(1)) {
        filtered.push(FILTER_UP);
        match above {
            // Above the first line all samples are zero.
            None => filtered.extend_from_slice(line),
            Some(above) => filtered.extend(line.iter().zip(above).map(|(sample, above)| sample.wrapping_sub(*above))),
        }
        above = Some(line);
    }
    let compressed = compress_to_vec_zlib(&filtered, LEVEL);
    let mut out = Vec::with_capacity(compressed.len() + 64);
    out.extend(PNG_SIGNATURE);
    let mut head = Vec::with_capacity(13);
    head.extend(width.to_be_bytes());
    head.extend(height.to_be_bytes());
    // 8 bits a sample; the only methods of compression and filters; lines in their order.
    head.extend([8, samples.colour_type(), 0, 0, 0]);
    chunk(&mut out, *b"IHDR", &head);
    chunk(&mut out, *b"IDAT", &compressed);
    chunk(&mut out, *b"IEND", &[]);
    out
}

fn chunk(out: &mut Vec<u8>, name: [u8; 4], data: &[u8]) {
    out.extend(u32::try_from(data.len()).unwrap_or(u32::MAX).to_be_bytes());
    out.extend(name);
    out.extend_from_slice(data);
    out.extend(crc(&[&name, data]).to_be_bytes());
}

/// The CRC of a chunk's name and data (Annex D).
fn crc(parts: &[&[u8]]) -> u32 {
    let bytes = parts.iter().flat_map(|part| *part);
    !bytes.fold(u32::MAX, |crc, byte| TABLE[usize::from(crc as u8 ^ byte)] ^ crc >> 8)
}

const TABLE: [u32; 256] = table();

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut crc, mut bit) = (byte as u32, 0);
        while bit < 8 {
            crc = if crc & 1 == 1 { 0xedb8_8320 ^ crc >> 1 } else { crc >> 1 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use miniz_oxide::inflate::decompress_to_vec_zlib;

    use super::*;

    /// The name and the data of each chunk, whose checks are right.
    fn chunks(mut png: &[u8]) -> Vec<(String, Vec<u8>)> {
        let mut all = Vec::new();
        png = png.strip_prefix(&PNG_SIGNATURE).unwrap();
        while !png.is_empty() {
            let length = u32::from_be_bytes(png[..4].try_into().unwrap()) as usize;
            let (body, check) = (&png[4..8 + length], &png[8 + length..12 + length]);
            assert_eq!(crc(&[body]).to_be_bytes(), check);
            all.push((String::from_utf8(body[..4].to_vec()).unwrap(), body[4..].to_vec()));
            png = &png[12 + length..];
        }
        all
    }

    #[test]
    fn checks_of_chunks_are_those_of_other_programs() {
        // The last chunk of every PNG file.
        assert_eq!(crc(&[b"IEND"]), 0xae42_6082);
        assert_eq!(crc(&[b"1234", b"56789"]), 0xcbf4_3926, "the check value of this CRC");
    }

    #[test]
    fn the_pixels_of_a_picture_come_back() {
        let pixels: Vec<u8> = (0..5 * 3 * 3).map(|at| (at * 37 % 256) as u8).collect();
        for (samples, width) in [(Samples::Rgb, 5), (Samples::Grey, 15)] {
            let png = chunks(&encode(width, 3, samples, &pixels));
            let names: Vec<&str> = png.iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!(names, ["IHDR", "IDAT", "IEND"]);
            assert_eq!(png[0].1, [0, 0, 0, width as u8, 0, 0, 0, 3, 8, samples.colour_type(), 0, 0, 0]);
            let filtered = decompress_to_vec_zlib(&png[1].1).unwrap();
            let mut above = vec![0; 15];
            let mut lines = Vec::new();
            for line in filtered.chunks(16) {
                assert_eq!(line[0], FILTER_UP);
                above = line[1..].iter().zip(&above).map(|(less, above)| less.wrapping_add(*above)).collect();
                lines.extend(above.clone());
            }
            assert_eq!(lines, pixels, "{samples:?}");
        }
    }
}
