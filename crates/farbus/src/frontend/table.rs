//! The table of front ends.

use std::str::FromStr;

use super::auto::AutoFrontEnd;
use super::front_end::{FrontEnd, FrontEndChoice};
use super::fuse::FuseFrontEnd;
use super::kernel::{KernelFrontEnd, UasFrontEnd};
use super::nbd::NbdFrontEnd;
use super::redir::RedirFrontEnd;
use super::serial::{BareSerialFrontEnd, Rfc2217FrontEnd, TerminalFrontEnd};

/// All front ends, in the order in which the help lists them.
pub static FRONT_ENDS: &[&dyn FrontEnd] = &[
    &KernelFrontEnd,
    &UasFrontEnd,
    &FuseFrontEnd,
    &NbdFrontEnd,
    &RedirFrontEnd,
    &Rfc2217FrontEnd,
    &BareSerialFrontEnd,
    &TerminalFrontEnd,
    &AutoFrontEnd,
];

impl FrontEndChoice {
    /// The default front end.
    pub const AUTO: Self = Self(&AutoFrontEnd);
    /// Only this machine's kernel.
    pub const KERNEL: Self = Self(&KernelFrontEnd);
    /// `redir`: a virtual machine connects by usbredir.
    pub const REDIR: Self = Self(&RedirFrontEnd);

    /// The names of all, in words.
    fn all() -> String {
        listed(FRONT_ENDS.iter().map(|front_end| front_end.name().to_owned()).collect())
    }

    /// The names of those that show only disks, in words; `write` formats each name.
    pub fn for_disks(write: impl Fn(&str) -> String) -> String {
        let mut names: Vec<&str> =
            FRONT_ENDS.iter().filter(|front_end| front_end.is_for_disks()).map(|front_end| front_end.name()).collect();
        names.sort_unstable();
        listed(names.into_iter().map(write).collect())
    }
}

impl Default for FrontEndChoice {
    fn default() -> Self {
        Self::AUTO
    }
}

impl FromStr for FrontEndChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = FRONT_ENDS.iter().find(|front_end| front_end.name() == text);
        let unknown = || format!("'{text}' is no way to appear: there are {}", Self::all());
        found.map(|front_end| Self(*front_end)).ok_or_else(unknown)
    }
}

/// `a, b and c`.
fn listed(names: Vec<String>) -> String {
    match names.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} and {last}", others.join(", ")),
        None => String::new(),
    }
}
