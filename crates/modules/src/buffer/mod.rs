//! The `buffer` module: collects messages and sends them in batches.

use std::time::Duration;

use farbus_model::Instant;
use farbus_model::module::{
    MESSAGE_BYTES, Module, ModuleDeviceClass, ModuleEffects, ModuleManifest, ModuleMessage, ModuleNeighbor,
    ModuleOutput, ModuleParameter, ParameterFormat,
};

use crate::cost::ModuleCost;
use crate::maker::SimpleMaker;

/// The manifest of `buffer` and the function that makes a half of it from settings.
pub const BUFFER: SimpleMaker = SimpleMaker {
    manifest: &MANIFEST,
    cost: |_| ModuleCost::SMALL,
    make: |settings, _| {
        Box::new(MessageBuffer {
            span: settings.span("time"),
            bytes_max: settings.number("bytes") as usize,
            messages_max: settings.number("messages") as usize,
            kept: Vec::new(),
            kept_bytes: 0,
            due: None,
        })
    },
};

const MANIFEST: ModuleManifest = ModuleManifest {
    name: "buffer",
    version: 1,
    summary: "keeps what passes for a while, and lets it go together",
    classes: ModuleDeviceClass::ALL,
    parameters: &[
        ModuleParameter {
            name: "time",
            form: ParameterFormat::SpanUpTo(Duration::from_secs(1)),
            default: None,
            what: "how long a message is kept at most, each way",
            is_own: false,
        },
        ModuleParameter {
            name: "bytes",
            form: ParameterFormat::Number(1, 16 << 20),
            default: Some("65536"),
            what: "as many bytes go before that",
            is_own: false,
        },
        ModuleParameter {
            name: "messages",
            form: ParameterFormat::Number(1, 4096),
            default: Some("64"),
            what: "as many messages go before that",
            is_own: false,
        },
    ],
    effects: ModuleEffects { is_fault: false, is_movable: true },
    cost: "the time it is told, each way; holds what waits",
    manual: include_str!("manual.md"),
};

struct MessageBuffer {
    span: Duration,
    bytes_max: usize,
    messages_max: usize,
    kept: Vec<ModuleMessage>,
    kept_bytes: usize,
    /// When the first kept message has waited long enough.
    due: Option<Instant>,
}

impl Module for MessageBuffer {
    fn handle(&mut self, now: Instant, from: ModuleNeighbor, message: ModuleMessage, out: &mut ModuleOutput) {
        if from != ModuleNeighbor::Above {
            return out.pass(from, message);
        }
        self.kept_bytes += message.len();
        self.kept.push(message);
        self.due.get_or_insert(now + self.span);
        if self.kept_bytes >= self.bytes_max || self.kept.len() >= self.messages_max {
            self.due = Some(now);
        }
        self.handle_timeout(now, out);
    }

    fn held_bytes(&self) -> usize {
        self.kept_bytes + self.kept.len() * MESSAGE_BYTES
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.due
    }

    fn handle_timeout(&mut self, now: Instant, out: &mut ModuleOutput) {
        if self.due.is_some_and(|due| due <= now) {
            (self.due, self.kept_bytes) = (None, 0);
            self.kept.drain(..).for_each(|message| out.below(message));
        }
    }

    fn is_at_rest(&self) -> bool {
        self.kept.is_empty()
    }

    fn save(&self) -> Option<Vec<u8>> {
        Some(Vec::new())
    }

    fn restore(&mut self, state: &[u8]) -> bool {
        state.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use farbus_model::Payload;
    use farbus_model::module::ModuleMessageKind;

    use super::*;

    #[test]
    fn buffered_messages_leave_together_when_full_or_due() {
        let (span, kept) = (Duration::from_millis(5), Vec::new());
        let mut buffer = MessageBuffer { span, bytes_max: 100, messages_max: 4, kept, kept_bytes: 0, due: None };
        let mut now = Instant::ZERO + Duration::from_secs(1);
        let passed = |buffer: &mut MessageBuffer, now: Instant, sizes: &[usize]| {
            let mut out = ModuleOutput::default();
            for &size in sizes {
                let message = ModuleMessage {
                    kind: ModuleMessageKind::Request,
                    id: 0,
                    head: Payload::Empty,
                    payload: vec![0; size].into(),
                };
                buffer.handle(now, ModuleNeighbor::Above, message, &mut out);
            }
            buffer.handle_timeout(now, &mut out);
            std::iter::from_fn(|| out.pop()).map(|(_, message)| message.len()).collect::<Vec<_>>()
        };
        assert_eq!(passed(&mut buffer, now, &[1, 2, 3]), [0; 0]);
        assert_eq!((buffer.poll_timeout(), buffer.is_at_rest()), (Some(now + span), false));
        now = now + span;
        assert_eq!(passed(&mut buffer, now, &[]), [1, 2, 3], "long enough");
        assert_eq!(passed(&mut buffer, now, &[1, 2, 3, 4]), [1, 2, 3, 4], "so many messages");
        assert_eq!(passed(&mut buffer, now, &[60, 60, 1]), [60, 60], "so many bytes; the third is kept");
        assert_eq!(buffer.poll_timeout(), Some(now + span));
    }
}
