//! Why two ends do not agree on a pipeline.

use std::fmt;

/// A module that an attachment does not get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Which.
    pub module: String,
    /// Why.
    pub mismatch: Mismatch,
}

impl Refusal {
    /// This module, for this reason.
    pub fn new(module: impl Into<String>, mismatch: Mismatch) -> Self {
        Self { module: module.into(), mismatch }
    }
}

/// What does not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// There is no module of that name here.
    Unknown {
        /// Those that there are.
        known: Vec<String>,
    },
    /// The other end has another version.
    Version {
        /// Here.
        here: u16,
        /// There.
        there: u16,
    },
    /// What it is told makes no sense: a sentence.
    Parameter(String),
    /// The exporter's owner does not let it be asked for.
    NotAllowed,
    /// It does not serve devices of this class.
    Class(&'static str),
    /// The two halves do not fit: a sentence.
    Halves(String),
    /// A pipeline has no room for it.
    TooMany {
        /// How many there may be.
        max: usize,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "module '{}': ", self.module)?;
        match &self.mismatch {
            Mismatch::Unknown { known } => write!(f, "there is none of that name; there are {}", known.join(", ")),
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
