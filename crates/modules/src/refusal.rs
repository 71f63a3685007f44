//! Why two ends do not agree on a pipeline, or why a setting is invalid.

use std::fmt;

/// The refusal of a module for an attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Name of the module that was refused.
    pub module: String,
    /// The reason.
    pub mismatch: Mismatch,
}

impl Refusal {
    /// Makes a refusal.
    pub fn new(module: impl Into<String>, mismatch: Mismatch) -> Self {
        Self { module: module.into(), mismatch }
    }
}

/// The reason of a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// This host has no module of that name.
    Unknown {
        /// The names of the modules that there are.
        known: Vec<String>,
    },
    /// The exporter has no module of that name.
    UnknownToExporter {
        /// The names of the modules that it has.
        known: Vec<String>,
    },
    /// The other end has another version of the module.
    Version {
        /// The version here.
        here: u16,
        /// The other end's version.
        there: u16,
    },
    /// A setting is invalid: a sentence.
    Parameter(String),
    /// The exporter's owner does not allow the module.
    NotAllowed,
    /// The module does not serve devices of this class.
    Class(&'static str),
    /// The two halves do not match: a sentence.
    Halves(String),
    /// There are too many modules.
    TooMany {
        /// The maximum.
        max: usize,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "module '{}': ", self.module)?;
        match &self.mismatch {
            Mismatch::Unknown { known } => write!(
                f,
                "this machine has none of that name; there are {}; your own is named by its path: './{}'",
                known.join(", "),
                self.module
            ),
            Mismatch::UnknownToExporter { known } => write!(
                f,
                "the exporter has none of that name; there are {}; its owner adds one there: \
                 'farbus share … --allow-module ./{}'",
                known.join(", "),
                self.module
            ),
            Mismatch::Version { here, there } => {
                write!(f, "version {here} here and {there} there: install the same farbus on both hosts")
            }
            Mismatch::Parameter(what) => f.write_str(what),
            Mismatch::NotAllowed => {
                write!(f, "the exporter does not allow it: 'farbus share --allow-module {}' would", self.module)
            }
            Mismatch::Class(class) => write!(f, "it does not serve devices of class {class}"),
            Mismatch::Halves(what) => f.write_str(what),
            Mismatch::TooMany { max } => write!(f, "an attachment goes through {max} modules at most"),
        }
    }
}

impl std::error::Error for Refusal {}
