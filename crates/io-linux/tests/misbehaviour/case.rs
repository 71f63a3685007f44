//! A misbehaving module, and the message that all of them are given.

use std::process::Command;
use std::time::Duration;

use farbus_io_linux::module::{ModuleProcess, ModuleTransport, ModuleUse};
use farbus_model::Instant;
use farbus_model::module::{
    Module, ModuleDeviceClass, ModuleFailureCause, ModuleMessage, ModuleMessageKind, ModuleNeighbor, ModuleOutput,
    ModuleRole,
};

/// How long a turn may take here: longer than a shared machine stalls.
pub const PATIENCE: Duration = Duration::from_millis(2500);

/// Starts a module: each call begins a half of it.
pub type Hired = Box<dyn Fn() -> Result<Box<dyn Module>, String>>;

/// A way to misbehave, and the expected message.
pub struct Case {
    pub name: &'static str,
    /// Part of the expected message.
    pub word: &'static str,
    pub hire: Box<dyn Fn() -> Hired>,
    /// Whether every half has a process of its own: then a second half works as well as the first.
    pub is_alone: bool,
}

pub fn has_python() -> bool {
    let is_there = Command::new("python3").arg("--version").output().is_ok();
    assert!(is_there || std::env::var("FARBUS_REQUIRE_RIG").as_deref() != Ok("1"), "this machine has no python3");
    is_there
}

/// A module that is a program in Python.
pub fn python(way: ModuleTransport, script: &str) -> Hired {
    let mut command = Command::new("python3");
    command.args(["-c", script]);
    let process = ModuleProcess::start(&mut command, way, PATIENCE).unwrap();
    Box::new(move || used(&process))
}

pub fn used(process: &ModuleProcess) -> Result<Box<dyn Module>, String> {
    process.half(&USE)
}

/// What every half is told when it begins.
pub const USE: ModuleUse<'static> = ModuleUse {
    role: ModuleRole::Importer,
    class: ModuleDeviceClass::Block,
    failed: &[0],
    options: "77",
    hold_max: None,
};

pub fn message() -> ModuleMessage {
    ModuleMessage {
        kind: ModuleMessageKind::Request,
        id: 7,
        head: vec![1; 14].into(),
        payload: vec![9; 3_000_000].into(),
    }
}

/// Sends a half one message; returns its answers, or why it was cut off.
pub fn answers_of(half: &mut dyn Module) -> Result<Vec<(ModuleNeighbor, ModuleMessage)>, String> {
    let mut turn = ModuleOutput::default();
    half.handle(Instant::ZERO, ModuleNeighbor::Above, message(), &mut turn);
    match turn.failure() {
        Some(failure) => {
            assert_eq!(failure.trouble, ModuleFailureCause::Module);
            Err(failure.why)
        }
        None => Ok(std::iter::from_fn(|| turn.pop()).collect()),
    }
}
