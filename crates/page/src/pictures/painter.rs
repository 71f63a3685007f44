//! Makes pictures of a stream's frames.

use std::borrow::Cow;

use farbus_session::native::stream::{PixelFormat, StreamDescription, StreamFormat};
use png::{ColorType, Compression, Encoder, EncodingError};

use crate::pictures::kind::{PictureFormat, is_sane};
use crate::pictures::splitter::first_of;

/// The pixel formats whose frames are JPEG, as Video4Linux names them.
const JPEG: [PixelFormat; 2] = [PixelFormat(*b"MJPG"), PixelFormat(*b"JPEG")];

/// Makes pictures of the frames of one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PictureEncoder {
    paints: PictureEncoding,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PictureEncoding {
    /// Pixels, in this format.
    Pixels { format: PixelFormat, width: u32, height: u32 },
    /// A frame is a picture already.
    Jpeg,
}

impl PictureEncoder {
    /// For frames that are so described.
    ///
    /// # Errors
    /// A sentence for a person: they are no pictures, or of a format or size that is not shown.
    pub fn of(description: &StreamDescription) -> Result<Self, String> {
        let StreamFormat::Video { pixels: format, width, height, .. } = description.format else {
            return Err("its frames are bytes, and no pictures".to_owned());
        };
        let (width, height) = (u32::from(width), u32::from(height));
        if !is_sane(width, height) {
            return Err(format!("a picture of {width}x{height} is too large to be shown"));
        }
        if JPEG.contains(&format) {
            return Ok(Self { paints: PictureEncoding::Jpeg });
        }
        let Some(bytes) = format.bytes() else {
            return Err(format!(
                "pictures in the format '{format}' are not shown: rgb24, grey, yuyv, MJPG and JPEG are"
            ));
        };
        if u64::from(width) * u64::from(height) * u64::from(bytes) > u64::from(description.frame_bytes_max) {
            return Err(format!("its frames are shorter than a picture of {width}x{height}"));
        }
        Ok(Self { paints: PictureEncoding::Pixels { format, width, height } })
    }

    /// The picture that a frame is; `None`: it is not what the stream's description says.
    pub fn paint<'f>(&self, frame: &'f [u8]) -> Option<Cow<'f, [u8]>> {
        match self.paints {
            PictureEncoding::Jpeg => {
                let (kind, length) = first_of(frame)?;
                // Cameras fill a frame up.
                (kind == PictureFormat::Jpeg).then(|| Cow::Borrowed(&frame[..length]))
            }
            PictureEncoding::Pixels { format, width, height } => {
                let pixels = width as usize * height as usize;
                if frame.len() != pixels * format.bytes()? as usize {
                    return None;
                }
                let png = match format {
                    PixelFormat::GREY => encode(width, height, ColorType::Grayscale, frame),
                    PixelFormat::YUYV => {
                        let mut rgb = Vec::with_capacity(pixels * 3);
                        frame.chunks(width as usize * 2).for_each(|line| add_rgb(line, &mut rgb));
                        encode(width, height, ColorType::Rgb, &rgb)
                    }
                    _ => encode(width, height, ColorType::Rgb, frame),
                };
                png.ok().map(Cow::Owned)
            }
        }
    }
}

/// A picture of these samples, 8 bits each, line by line from the top.
pub fn encode(width: u32, height: u32, samples: ColorType, pixels: &[u8]) -> Result<Vec<u8>, EncodingError> {
    let mut picture = Vec::new();
    let mut encoder = Encoder::new(&mut picture, width, height);
    encoder.set_color(samples);
    // Pictures are made while somebody looks.
    encoder.set_compression(Compression::Fast);
    encoder.write_header()?.write_image_data(pixels)?;
    Ok(picture)
}

/// Adds red, green and blue of a line of YUYV (ITU-R BT.601, brightness from 16 to 235, as cameras send it).
fn add_rgb(line: &[u8], rgb: &mut Vec<u8>) {
    for four in line.chunks(4) {
        let (blue, red) = (four.get(1).copied().unwrap_or(128), four.get(3).copied().unwrap_or(128));
        let (blue, red) = (i32::from(blue) - 128, i32::from(red) - 128);
        for brightness in four.iter().step_by(2) {
            let light = 298 * (i32::from(*brightness) - 16) + 128;
            let colours = [light + 409 * red, light - 100 * blue - 208 * red, light + 516 * blue];
            rgb.extend(colours.map(|colour| (colour >> 8).clamp(0, 255) as u8));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pictures::splitter::tests::jpeg;

    fn video(letters: &[u8; 4], width: u16, height: u16, frame_bytes_max: u32) -> StreamDescription {
        let format = StreamFormat::Video { pixels: PixelFormat(*letters), width, height, rate_mhz: 0 };
        StreamDescription { format, frame_bytes_max }
    }

    #[test]
    fn frames_of_each_format_become_a_picture_of_their_size() {
        for (letters, bytes) in [(b"RGB3", 3), (b"GREY", 1), (b"YUYV", 2)] {
            // A line of an odd number of pixels ends within a pair.
            let painter = PictureEncoder::of(&video(letters, 5, 2, 5 * 2 * bytes)).unwrap();
            let frame = vec![100; 5 * 2 * bytes as usize];
            let png = painter.paint(&frame).unwrap();
            let (kind, length) = first_of(&png).unwrap();
            assert_eq!((kind, length, &png[16..24]), (PictureFormat::Png, png.len(), &[0, 0, 0, 5, 0, 0, 0, 2][..]));
            for wrong in [0, 1, frame.len() - 1, frame.len() + 1] {
                assert_eq!(painter.paint(&vec![0; wrong]), None, "{wrong} bytes");
            }
        }
        let painter = PictureEncoder::of(&video(b"MJPG", 64, 48, 4096)).unwrap();
        let filled_up = [jpeg(64, 48), vec![0; 100]].concat();
        assert_eq!(painter.paint(&filled_up).as_deref(), Some(&jpeg(64, 48)[..]));
    }

    #[test]
    fn the_pixels_of_a_picture_come_back() {
        let pixels: Vec<u8> = (0..15 * 3).map(|at| (at * 37 % 256) as u8).collect();
        for (letters, width) in [(b"RGB3", 5), (b"GREY", 15)] {
            let painted = PictureEncoder::of(&video(letters, width, 3, 45)).unwrap().paint(&pixels).unwrap();
            let mut reader = png::Decoder::new(std::io::Cursor::new(painted)).read_info().unwrap();
            let mut shown = vec![0; reader.output_buffer_size().unwrap()];
            reader.next_frame(&mut shown).unwrap();
            assert_eq!(shown, pixels);
        }
    }

    #[test]
    fn frames_that_are_no_pictures_or_too_large_are_refused_before_any_comes() {
        let refusal = |description: &StreamDescription| PictureEncoder::of(description).unwrap_err();
        let bytes = StreamDescription { format: StreamFormat::Bytes, frame_bytes_max: 4096 };
        assert!(refusal(&bytes).contains("no pictures"));
        assert!(refusal(&video(b"NV12", 64, 48, 4096)).contains("'NV12' are not shown: rgb24, grey, yuyv"));
        assert!(refusal(&video(b"MJPG", u16::MAX, u16::MAX, 16 << 20)).contains("too large"));
        assert!(refusal(&video(b"RGB3", 64, 48, 64 * 48)).contains("shorter"));
    }

    #[test]
    fn a_frame_that_says_it_is_jpeg_and_is_not_makes_no_picture() {
        let painter = PictureEncoder::of(&video(b"JPEG", 64, 48, 4096)).unwrap();
        let cut = jpeg(64, 48);
        let png = PictureEncoder::of(&video(b"GREY", 1, 1, 1)).unwrap().paint(&[0]).unwrap().into_owned();
        let svg = b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>".to_vec();
        for hostile in [svg, b"<html>".to_vec(), png, cut[..cut.len() - 1].to_vec(), Vec::new()] {
            assert_eq!(painter.paint(&hostile), None, "{hostile:?}");
        }
    }

    #[test]
    fn colours_of_yuyv_are_those_of_bt_601() {
        let colours = |line: [u8; 4]| {
            let mut rgb = Vec::new();
            add_rgb(&line, &mut rgb);
            rgb
        };
        assert_eq!(colours([16, 128, 235, 128]), [0, 0, 0, 255, 255, 255], "black and white");
        assert_eq!(colours([81, 90, 81, 240]), [255, 0, 0, 255, 0, 0], "red");
        assert_eq!(colours([41, 240, 41, 110]), [0, 0, 255, 0, 0, 255], "blue");
        assert_eq!(colours([0, 0, 255, 255]), [184, 0, 0, 255, 225, 20], "what no camera sends");
    }
}
