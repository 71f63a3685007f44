//! The commit that this program was built from. It is written into the finished program (`cargo xtask dist`), not
//! compiled into it: a commit builds nothing again.
#![allow(unsafe_code, reason = "an object in a section of its own, which is found and filled in the finished program")]

use std::hint::black_box;

/// The commit in ASCII, and zeros; nothing but zeros in a program that was not made to be shipped.
// SAFETY: the section has this object alone.
#[used]
#[unsafe(link_section = ".farbus.commit")]
static COMMIT: [u8; 48] = [0; 48];

/// The commit: twelve hexadecimal digits, and `+` if the sources were changed since. `None`: it is not known.
pub fn program_commit() -> Option<&'static str> {
    // What the compiler knows of the object is not what is in the program.
    let written: &'static [u8; 48] = black_box(&COMMIT);
    let text = written.split(|byte| *byte == 0).next().unwrap_or_default();
    std::str::from_utf8(text).ok().filter(|text| !text.is_empty())
}
