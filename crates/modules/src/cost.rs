//! What the halves of a pipeline cost the process that runs them: declared by each module before it is made, so that an
//! exporter takes it from its importer's memory, or refuses.
//!
//! | what | is | counted |
//! |---|---|---|
//! | the state of an algorithm: tables, windows, keys | [`ModuleCost::state_bytes`], at its settings' worst | before the offer is accepted, until the attachment ends |
//! | messages that a half holds back | [`Module::held_bytes`](farbus_model::module::Module::held_bytes) | as data under way, which the importer's credit limits; all halves of an attachment share it |
//! | what a pipeline notes of each message | [`PIPELINE_BYTES`], once | as the state; beyond, as what is held |
//! | processor time | [`ModuleCost::processor_ns_per_byte`] | all halves together have [`PROCESSOR_NS_PER_BYTE_MAX`], unless the owner named the module |

use crate::refusal::{ModuleMismatch, ModuleRefusal};

/// What one half costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModuleCost {
    /// Memory of its state, bytes: the most that these settings can make it take, however long it is used. Not what it
    /// holds back.
    pub state_bytes: usize,
    /// Nanoseconds of a processor of 3 GHz for each byte that passes, in the direction that takes longer; rounded up.
    pub processor_ns_per_byte: u32,
}

impl ModuleCost {
    /// A half that keeps a few numbers and does not look at most bytes.
    pub const SMALL: ModuleCost = ModuleCost { state_bytes: STAGE_BYTES, processor_ns_per_byte: 1 };

    /// A half with this much state besides the usual.
    pub const fn with_state(bytes: usize) -> Self {
        ModuleCost { state_bytes: STAGE_BYTES.saturating_add(bytes), ..Self::SMALL }
    }

    /// Sets the processor time for each byte.
    #[must_use]
    pub const fn taking(self, processor_ns_per_byte: u32) -> Self {
        ModuleCost { processor_ns_per_byte, ..self }
    }
}

/// Memory of any half: its place in the pipeline, itself, and what an allocator adds.
pub const STAGE_BYTES: usize = 4 << 10;

/// Memory of a pipeline besides its halves: queues, and what it notes of the messages that pass it.
pub const PIPELINE_BYTES: usize = 64 << 10;

/// Processor time that all halves of a pipeline may take for each byte, in nanoseconds, unless the exporter's owner
/// named the module: one compression of the hardest level, and cheaper ones beside it. A session has one thread, so its
/// importer's data then pass at 1.6 MB/s at least with the whole of it.
pub const PROCESSOR_NS_PER_BYTE_MAX: u32 = 600;

/// What the halves of a pipeline cost together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipelineCost {
    /// Memory, bytes: [`PIPELINE_BYTES`], and all states.
    pub bytes: usize,
    /// The module with the largest state, to be named in a refusal.
    pub largest: String,
    /// How many halves there are.
    pub halves: usize,
    /// Processor time for each byte, of modules that the owner did not name, nanoseconds.
    pub processor_ns_per_byte: u64,
    /// The module of them that takes most, to be named in a refusal.
    pub slowest: String,
}

impl PipelineCost {
    /// Whether the halves together take no more processor time than an importer's may.
    ///
    /// # Errors
    /// [`ModuleRefusal`].
    pub fn check_processor(&self) -> Result<(), ModuleRefusal> {
        let (ns_per_byte, limit_ns_per_byte) = (self.processor_ns_per_byte, PROCESSOR_NS_PER_BYTE_MAX);
        if ns_per_byte > limit_ns_per_byte.into() {
            return Err(ModuleRefusal::new(
                &self.slowest,
                ModuleMismatch::Processor { ns_per_byte, limit_ns_per_byte },
            ));
        }
        Ok(())
    }
}
