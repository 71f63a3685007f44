//! Pictures as a browser or an image viewer takes them: PNG that is made of a stream's frames, and JPEG as it comes.
//!
//! Frames and pictures are a stranger's. [`PictureEncoder`] says first whether the frames of a stream are pictures that
//! it knows, and takes of each frame exactly the bytes that its size needs. [`PictureSplitter`] takes apart what a
//! process prints, and passes on nothing but whole pictures of a sane size: neither SVG nor HTML is one.

mod kind;
mod painter;
mod splitter;

pub use self::kind::PictureFormat;
pub use self::painter::PictureEncoder;
pub use self::splitter::{EncodedPicture, PictureSplitter};
