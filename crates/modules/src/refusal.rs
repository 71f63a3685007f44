//! Why two ends do not agree on a pipeline, or why a setting is invalid.

use std::fmt;

/// The refusal of a module for an attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleRefusal {
    /// Name of the module that was refused.
    pub module: String,
    /// Why it was refused.
    pub mismatch: ModuleMismatch,
}

impl ModuleRefusal {
    /// Makes a refusal.
    pub fn new(module: impl Into<String>, mismatch: ModuleMismatch) -> Self {
        Self { module: module.into(), mismatch }
    }
}

/// The reason of a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModuleMismatch {
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
    /// What all modules of the attachment need is more than its importer may still hold on the exporter.
    Memory {
        /// Modules of the attachment.
        modules: usize,
        /// Memory that they need, bytes.
        needed_bytes: usize,
        /// What the importer may still take, bytes.
        left_bytes: usize,
        /// What it may hold in all, bytes.
        limit_bytes: usize,
    },
    /// All modules of the attachment take more processor time than an importer's may.
    Processor {
        /// What they take for each byte, nanoseconds.
        ns_per_byte: u64,
        /// What an importer's modules may take for each byte, nanoseconds.
        limit_ns_per_byte: u32,
    },
    /// There are too many modules.
    TooMany {
        /// How many modules an attachment may have.
        max: usize,
    },
}

impl fmt::Display for ModuleRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "module '{}': ", self.module)?;
        match &self.mismatch {
            ModuleMismatch::Unknown { known } => write!(
                f,
                "this machine has none of that name; there are {}; your own is named by its path: './{}'",
                known.join(", "),
                self.module
            ),
            ModuleMismatch::UnknownToExporter { known } => write!(
                f,
                "the exporter has none of that name; there are {}; its owner adds one there: \
                 'farbus share … --allow-module ./{}'",
                known.join(", "),
                self.module
            ),
            ModuleMismatch::Version { here, there } => {
                write!(f, "version {here} here and {there} there: install the same farbus on both hosts")
            }
            ModuleMismatch::Parameter(what) => f.write_str(what),
            ModuleMismatch::NotAllowed => {
                write!(f, "the exporter does not allow it: 'farbus share --allow-module {}' would", self.module)
            }
            ModuleMismatch::Class(class) => write!(f, "it does not serve devices of class {class}"),
            ModuleMismatch::Halves(what) => f.write_str(what),
            ModuleMismatch::Memory { modules, needed_bytes, left_bytes, limit_bytes } => write!(
                f,
                "with it the {modules} of this attachment need {} KiB of the exporter's memory, and {} KiB are left of \
                 the {} MiB that this host may hold there: choose a lower level or fewer modules, detach something, or \
                 its owner allows more: 'farbus share … --peer-memory MIB'",
                needed_bytes.div_ceil(1 << 10),
                left_bytes >> 10,
                limit_bytes >> 20
            ),
            ModuleMismatch::Processor { ns_per_byte, limit_ns_per_byte } => write!(
                f,
                "with it the modules of this attachment take about {ns_per_byte} ns of the exporter's processor for each \
                 byte, and an importer's may take {limit_ns_per_byte}: choose a lower level or fewer modules, or its \
                 owner allows it there: 'farbus share … --allow-module {}'",
                self.module
            ),
            ModuleMismatch::TooMany { max } => write!(f, "an attachment goes through {max} modules at most"),
        }
    }
}

impl std::error::Error for ModuleRefusal {}
