//! A module half that another process or a sandbox carries out, turn by turn.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use farbus_model::module::{
    Module, ModuleDeviceClass, ModuleFailureCause, ModuleMessage, ModuleNeighbor, ModuleOutput, ModuleRole,
};
use farbus_model::{Instant, Payload, module_abi};

use super::turn::{ModuleChannel, ModuleFrame, ReplyReader};

/// What a half is told about the device that uses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleUse<'a> {
    /// The end at which it works.
    pub role: ModuleRole,
    /// The device's class.
    pub class: ModuleDeviceClass,
    /// The head of a completion that failed.
    pub failed: &'a [u8],
    /// The options that its user gave.
    pub options: &'a str,
    /// For how long it may keep a message ([`Module::hold_max`]).
    pub hold_max: Option<Duration>,
}

/// Carries out a half, for one use at a time.
pub struct ModuleWorker {
    inside: Arc<Mutex<ModuleWorkerState>>,
}

struct ModuleWorkerState {
    /// How the module is reached; or why it is no longer usable.
    channel: Result<Box<dyn ModuleChannel>, String>,
    /// How long a turn may take.
    patience: Duration,
    is_used: bool,
}

impl ModuleWorker {
    /// A worker that is reached by `channel`, and may take `patience` for a turn.
    pub fn new(channel: Box<dyn ModuleChannel>, patience: Duration) -> Self {
        Self { inside: Arc::new(Mutex::new(ModuleWorkerState { channel: Ok(channel), patience, is_used: false })) }
    }

    /// Begins a half; the first turn may take `beginning` longer. Dropping the half frees the worker.
    ///
    /// # Errors
    /// A sentence: the worker is in use, or no longer usable.
    pub fn half(&self, used: &ModuleUse<'_>, beginning: Duration) -> Result<Box<dyn Module>, String> {
        let mut inside = lock(&self.inside);
        if let Err(fault) = &inside.channel {
            return Err(format!("it was ended: {fault}"));
        }
        if inside.is_used {
            return Err("it serves another attachment".to_owned());
        }
        let mut turn = ModuleOutput::default();
        let frame = module_abi::start(used.role, used.class, used.failed, used.options);
        let patience = inside.patience + beginning;
        let due = inside.take_turn(&ModuleFrame { frame: &frame, payload: &Payload::Empty }, None, patience, &mut turn);
        if let Some(failure) = turn.failure() {
            return Err(failure.why);
        }
        inside.is_used = true;
        Ok(Box::new(ExternalModule { inside: Arc::clone(&self.inside), due, hold_max: used.hold_max }))
    }
}

fn lock(inside: &Mutex<ModuleWorkerState>) -> MutexGuard<'_, ModuleWorkerState> {
    inside.lock().unwrap_or_else(PoisonError::into_inner)
}

struct ExternalModule {
    inside: Arc<Mutex<ModuleWorkerState>>,
    due: Option<Instant>,
    hold_max: Option<Duration>,
}

impl ExternalModule {
    fn take_turn(&mut self, frame: &[u8], payload: Option<Payload>, out: &mut ModuleOutput) {
        let mut inside = lock(&self.inside);
        let patience = inside.patience;
        let module_frame = ModuleFrame { frame, payload: payload.as_ref().unwrap_or(&Payload::Empty) };
        self.due = inside.take_turn(&module_frame, payload.clone(), patience, out);
    }
}

impl Module for ExternalModule {
    fn handle(&mut self, now: Instant, from: ModuleNeighbor, mut message: ModuleMessage, out: &mut ModuleOutput) {
        let frame = module_abi::message(now, from, &message);
        // Shared, because the module may pass it on unchanged while it is still being sent.
        message.payload.share();
        self.take_turn(&frame, Some(message.payload), out);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.due
    }

    fn handle_timeout(&mut self, now: Instant, out: &mut ModuleOutput) {
        // A module that always asks to be called in the past gets one turn for each call, like any other.
        self.take_turn(&module_abi::time(now), None, out);
    }

    /// What its program holds back, it holds in its own memory.
    fn held_bytes(&self) -> usize {
        0
    }

    fn hold_max(&self) -> Option<Duration> {
        self.hold_max
    }

    /// Whether the module holds data back is not known: one that waits for no timeout counts as at rest.
    fn is_at_rest(&self) -> bool {
        self.due.is_none()
    }
}

impl Drop for ExternalModule {
    fn drop(&mut self) {
        lock(&self.inside).is_used = false;
    }
}

impl ModuleWorkerState {
    /// Sends the module a frame, and passes on its answers; returns when it wants to be called next.
    fn take_turn(
        &mut self,
        frame: &ModuleFrame<'_>,
        passable: Option<Payload>,
        patience: Duration,
        out: &mut ModuleOutput,
    ) -> Option<Instant> {
        let exchanged = match &mut self.channel {
            Ok(channel) => channel.exchange(frame, &mut ReplyReader::new(patience, passable, out)),
            Err(fault) => Err(fault.clone()),
        };
        exchanged.unwrap_or_else(|fault| {
            // Drops the channel, which ends the process.
            self.channel = Err(fault.clone());
            out.fail(ModuleFailureCause::Module, fault);
            None
        })
    }
}
