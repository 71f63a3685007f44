//! The progress of a command's data.

use super::super::medium::Span;
use super::command::List;
use crate::saved::{Loader, Saver};

/// The data of the command that was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transfer {
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
    Gather(Then),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    Apply(List),
    WriteSame { span: Span, unmap: bool },
}

impl Transfer {
    /// Whether the buffer's content belongs to it.
    pub fn uses_buffer(self) -> bool {
        matches!(self, Transfer::Reply { .. } | Transfer::Gather(_))
    }

    /// Saves its kind, a flag, and two numbers.
    pub fn save(self, to: &mut Saver) {
        let (kind, flag, numbers) = match self {
            Transfer::None => (0, false, [0; 2]),
            Transfer::Reply { at } => (1, false, [at as u64, 0]),
            Transfer::Read { offset } => (2, false, [offset, 0]),
            Transfer::Write { offset, durable } => (3, durable, [offset, 0]),
            Transfer::Compare { offset } => (4, false, [offset, 0]),
            Transfer::Gather(Then::Apply(List::ModeSelect { long })) => (5, long, [0; 2]),
            Transfer::Gather(Then::Apply(List::Unmap)) => (6, false, [0; 2]),
            Transfer::Gather(Then::WriteSame { span, unmap }) => (7, unmap, [span.offset, span.len]),
        };
        to.u8(kind);
        to.flag(flag);
        numbers.into_iter().for_each(|number| to.u64(number));
    }

    pub fn restore(from: &mut Loader<'_>) -> Option<Self> {
        let (kind, flag, offset, len) = (from.u8()?, from.flag()?, from.u64()?, from.u64()?);
        Some(match kind {
            0 => Transfer::None,
            1 => Transfer::Reply { at: usize::try_from(offset).ok()? },
            2 => Transfer::Read { offset },
            3 => Transfer::Write { offset, durable: flag },
            4 => Transfer::Compare { offset },
            5 => Transfer::Gather(Then::Apply(List::ModeSelect { long: flag })),
            6 => Transfer::Gather(Then::Apply(List::Unmap)),
            7 => Transfer::Gather(Then::WriteSame { span: Span { offset, len }, unmap: flag }),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_read_as_it_was_written() {
        let span = Span { offset: 512, len: 1024 };
        for transfer in [
            Transfer::None,
            Transfer::Reply { at: 9 },
            Transfer::Read { offset: 1 << 40 },
            Transfer::Write { offset: 7, durable: true },
            Transfer::Compare { offset: 8 },
            Transfer::Gather(Then::Apply(List::ModeSelect { long: true })),
            Transfer::Gather(Then::Apply(List::Unmap)),
            Transfer::Gather(Then::WriteSame { span, unmap: true }),
        ] {
            let mut saver = Saver::default();
            transfer.save(&mut saver);
            let bytes = saver.into_bytes();
            let mut from = Loader(&bytes);
            assert_eq!(Transfer::restore(&mut from), Some(transfer));
            assert_eq!(from.end(), Some(()));
            assert_eq!(Transfer::restore(&mut Loader(&[8; 18])), None);
        }
    }
}
