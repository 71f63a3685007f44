//! The progress of a command's data.

use super::super::medium::StoreSpan;
use super::command::ParameterList;
use crate::saved::{SavedStateReader, SavedStateWriter};

/// The data of the command that was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScsiTransfer {
    None,
    /// The buffer's content from this offset on.
    Reply {
        at: usize,
    },
    Read {
        offset: u64,
    },
    Write {
        offset: u64,
        durable: bool,
    },
    Compare {
        offset: u64,
    },
    /// Collects all of the host's data in the buffer, and then carries this out.
    Gather(GatherAction),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GatherAction {
    Apply(ParameterList),
    WriteSame { span: StoreSpan, unmap: bool },
}

impl ScsiTransfer {
    /// Whether the buffer's content belongs to it.
    pub fn uses_buffer(self) -> bool {
        matches!(self, ScsiTransfer::Reply { .. } | ScsiTransfer::Gather(_))
    }

    /// Saves its kind, a flag, and two numbers.
    pub fn save(self, to: &mut SavedStateWriter) {
        let (kind, flag, numbers) = match self {
            ScsiTransfer::None => (0, false, [0; 2]),
            ScsiTransfer::Reply { at } => (1, false, [at as u64, 0]),
            ScsiTransfer::Read { offset } => (2, false, [offset, 0]),
            ScsiTransfer::Write { offset, durable } => (3, durable, [offset, 0]),
            ScsiTransfer::Compare { offset } => (4, false, [offset, 0]),
            ScsiTransfer::Gather(GatherAction::Apply(ParameterList::ModeSelect { long })) => (5, long, [0; 2]),
            ScsiTransfer::Gather(GatherAction::Apply(ParameterList::Unmap)) => (6, false, [0; 2]),
            ScsiTransfer::Gather(GatherAction::WriteSame { span, unmap }) => (7, unmap, [span.offset, span.len]),
        };
        to.u8(kind);
        to.flag(flag);
        numbers.into_iter().for_each(|number| to.u64(number));
    }

    pub fn restore(from: &mut SavedStateReader<'_>) -> Option<Self> {
        let (kind, flag, offset, len) = (from.u8()?, from.flag()?, from.u64()?, from.u64()?);
        Some(match kind {
            0 => ScsiTransfer::None,
            1 => ScsiTransfer::Reply { at: usize::try_from(offset).ok()? },
            2 => ScsiTransfer::Read { offset },
            3 => ScsiTransfer::Write { offset, durable: flag },
            4 => ScsiTransfer::Compare { offset },
            5 => ScsiTransfer::Gather(GatherAction::Apply(ParameterList::ModeSelect { long: flag })),
            6 => ScsiTransfer::Gather(GatherAction::Apply(ParameterList::Unmap)),
            7 => ScsiTransfer::Gather(GatherAction::WriteSame { span: StoreSpan { offset, len }, unmap: flag }),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_read_as_it_was_written() {
        let span = StoreSpan { offset: 512, len: 1024 };
        for transfer in [
            ScsiTransfer::None,
            ScsiTransfer::Reply { at: 9 },
            ScsiTransfer::Read { offset: 1 << 40 },
            ScsiTransfer::Write { offset: 7, durable: true },
            ScsiTransfer::Compare { offset: 8 },
            ScsiTransfer::Gather(GatherAction::Apply(ParameterList::ModeSelect { long: true })),
            ScsiTransfer::Gather(GatherAction::Apply(ParameterList::Unmap)),
            ScsiTransfer::Gather(GatherAction::WriteSame { span, unmap: true }),
        ] {
            let mut saver = SavedStateWriter::default();
            transfer.save(&mut saver);
            let bytes = saver.into_bytes();
            let mut from = SavedStateReader(&bytes);
            assert_eq!(ScsiTransfer::restore(&mut from), Some(transfer));
            assert_eq!(from.end(), Some(()));
            assert_eq!(ScsiTransfer::restore(&mut SavedStateReader(&[8; 18])), None);
        }
    }
}
