//! Pictures as a browser or an image viewer takes them: PNG that is made of a stream's frames, and JPEG as it comes.
//!
//! Frames and pictures are a stranger's. [`Painter`] says first whether the frames of a stream are pictures that it
//! knows, and takes of each frame exactly the bytes that its size needs. [`Splitter`] takes apart what a process
//! prints, and passes on nothing but whole pictures of a sane size: neither SVG nor HTML is one.

mod kind;
mod painter;
mod splitter;

pub use self::kind::Kind;
pub use self::painter::Painter;
pub use self::splitter::{Splitter, Whole};
