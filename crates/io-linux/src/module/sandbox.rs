//! Modules in WebAssembly, interpreted: they have their memory and one imported function, `farbus.say`, and nothing
//! else.
//!
//! | resource | limit |
//! |---|---|
//! | time | a turn's, checked whenever a slice of fuel is used up |
//! | instructions | fuel for a turn |
//! | memory, tables | a maximum; growing beyond it fails, as the language defines |
//! | stack | a maximum; deeper calls trap |
//! | code | the interpreter's strict limits, and no start function |

use std::time::Duration;

use farbus_model::Instant;
use farbus_model::module::Module;
use farbus_model::module_abi::{self, LENGTH_BYTES, ModuleAbiFrame};
use wasmi::{
    Caller, CompilationMode, Config, EnforcedLimits, Engine, Error, Linker, Memory, Store, StoreLimits,
    StoreLimitsBuilder, TypedFunc, TypedResumableCall, WasmParams, WasmResults,
};

use super::half::{ModuleUse, ModuleWorker};
use super::turn::{FRAME_BYTES_MAX, ModuleChannel, ModuleFrame, ReplyCount, ReplyReader};

/// Bytes of a module's code.
pub const CODE_BYTES_MAX: usize = 8 << 20;
/// Bytes of a module's memory: several times the longest message.
const MEMORY_BYTES_MAX: usize = 128 << 20;
const TABLE_ENTRIES_MAX: usize = 64 << 10;
/// Bytes of its stack; limits the depth of calls.
const STACK_BYTES_MAX: usize = 1 << 20;
const DEPTH_MAX: usize = 4096;
/// Fuel between two checks of the clock: some milliseconds.
const FUEL_SLICE: u64 = 1 << 20;
/// Fuel of a turn: a hundred instructions for every byte of the longest message.
const FUEL_TURN: u64 = 100 * FRAME_BYTES_MAX as u64;

/// The code of a module, from which every use gets a sandbox of its own.
pub struct WasmSandbox {
    engine: Engine,
    code: wasmi::Module,
    patience: Duration,
}

/// What a sandbox's host knows of it.
struct SandboxHost {
    limits: StoreLimits,
    memory: Option<Memory>,
    frames: Vec<ModuleAbiFrame>,
    count: ReplyCount,
}

impl WasmSandbox {
    /// Compiles a module. A turn may take `patience`.
    ///
    /// # Errors
    /// A sentence: the code is invalid, or imports what does not exist.
    pub fn new(code: &[u8], patience: Duration) -> Result<Self, String> {
        if code.len() > CODE_BYTES_MAX {
            return Err(format!("it has more than {} MiB", CODE_BYTES_MAX >> 20));
        }
        let mut config = Config::default();
        config
            .consume_fuel(true)
            .compilation_mode(CompilationMode::Eager)
            .enforced_limits(EnforcedLimits::strict())
            // Its first call is limited like any other turn.
            .allow_start_fn(false)
            .set_max_recursion_depth(DEPTH_MAX)
            .set_max_stack_height(STACK_BYTES_MAX);
        let engine = Engine::new(&config);
        let code = wasmi::Module::new(&engine, code).map_err(|error| format!("it is no WebAssembly: {error}"))?;
        let sandbox = Self { engine, code, patience };
        sandbox.instance()?;
        Ok(sandbox)
    }

    /// Begins a half in a sandbox of its own.
    ///
    /// # Errors
    /// A sentence: it does not begin.
    pub fn half(&self, used: &ModuleUse<'_>) -> Result<Box<dyn Module>, String> {
        ModuleWorker::new(Box::new(self.instance()?), self.patience).half(used, Duration::ZERO)
    }

    fn instance(&self) -> Result<WasmInstance, String> {
        let limits = StoreLimitsBuilder::new()
            .memory_size(MEMORY_BYTES_MAX)
            .table_elements(TABLE_ENTRIES_MAX)
            .instances(1)
            .memories(1)
            .tables(4)
            .build();
        let mut store = Store::new(
            &self.engine,
            SandboxHost { limits, memory: None, frames: Vec::new(), count: ReplyCount::default() },
        );
        store.limiter(|host| &mut host.limits);
        let mut linker = Linker::new(&self.engine);
        linker.func_wrap("farbus", "say", say).map_err(|error| error.to_string())?;
        store.set_fuel(FUEL_SLICE).map_err(|error| error.to_string())?;
        let instance = linker
            .instantiate_and_start(&mut store, &self.code)
            .map_err(|error| format!("it does not begin: {error}"))?;
        let memory = instance.get_memory(&store, "memory").ok_or("it exports no memory")?;
        store.data_mut().memory = Some(memory);
        let room = instance.get_typed_func(&store, "farbus_room");
        let room = room.map_err(|_| "it exports no farbus_room (i32) -> i32".to_owned())?;
        let turn = instance.get_typed_func(&store, "farbus_turn");
        let turn = turn.map_err(|_| "it exports no farbus_turn (i32, i32) -> i64".to_owned())?;
        Ok(WasmInstance { store, memory, room, turn })
    }
}

/// The function that a module calls to send a frame of `bytes` bytes at `at`.
fn say(mut caller: Caller<'_, SandboxHost>, at: u32, bytes: u32) -> Result<(), Error> {
    let memory = caller.data().memory.ok_or_else(|| Error::new("it speaks before it has begun"))?;
    let (memory, host) = memory.data_and_store_mut(&mut caller);
    let (at, bytes) = (at as usize, bytes as usize);
    if bytes > FRAME_BYTES_MAX {
        return Err(Error::new("it said a frame that is longer than any message"));
    }
    let frame = memory.get(at..).and_then(|rest| rest.get(..bytes));
    let frame = frame.ok_or_else(|| Error::new("it said a frame that does not lie in its memory"))?;
    host.count.add_bytes(bytes).and_then(|()| host.count.add_frame()).map_err(Error::new)?;
    match module_abi::decode(frame).map_err(|module_abi::ModuleAbiError(what)| Error::new(format!("it said {what}")))? {
        ModuleAbiFrame::Done(_) => Err(Error::new("it said that it is done, and went on")),
        ModuleAbiFrame::Fail(why) => Err(Error::new(why)),
        frame => {
            host.frames.push(frame);
            Ok(())
        }
    }
}

struct WasmInstance {
    store: Store<SandboxHost>,
    memory: Memory,
    room: TypedFunc<u32, u32>,
    turn: TypedFunc<(u32, u32), i64>,
}

/// The fuel that is left for this turn.
struct TurnFuel(u64);

impl WasmInstance {
    /// Runs one of the module's functions to its end, slice by slice.
    fn call<P: WasmParams, R: WasmResults>(
        &mut self,
        function: TypedFunc<P, R>,
        arguments: P,
        fuel: &mut TurnFuel,
        reply_reader: &ReplyReader<'_>,
    ) -> Result<R, String> {
        self.refuel(FUEL_SLICE, fuel, reply_reader)?;
        let mut call = function.call_resumable(&mut self.store, arguments);
        loop {
            match call.map_err(|error| sentence(&error))? {
                TypedResumableCall::Finished(answer) => return Ok(answer),
                TypedResumableCall::HostTrap(trap) => return Err(sentence(trap.host_error())),
                TypedResumableCall::OutOfFuel(rest) => {
                    self.refuel(rest.required_fuel().max(FUEL_SLICE), fuel, reply_reader)?;
                    call = rest.resume(&mut self.store);
                }
            }
        }
    }

    fn refuel(&mut self, wanted: u64, fuel: &mut TurnFuel, reply_reader: &ReplyReader<'_>) -> Result<(), String> {
        reply_reader.left()?;
        fuel.0 = fuel.0.checked_sub(wanted).ok_or("it has used up the fuel of a turn")?;
        self.store.set_fuel(wanted).map_err(|error| error.to_string())
    }
}

/// The error, in one line.
fn sentence(error: &Error) -> String {
    match error.as_trap_code() {
        Some(code) => format!("it trapped: {}", code.trap_message()),
        None => error.to_string(),
    }
}

impl ModuleChannel for WasmInstance {
    fn exchange(
        &mut self,
        sent: &ModuleFrame<'_>,
        reply_reader: &mut ReplyReader<'_>,
    ) -> Result<Option<Instant>, String> {
        let mut fuel = TurnFuel(FUEL_TURN);
        let frame = &sent.frame[LENGTH_BYTES..];
        let bytes = frame.len() + sent.payload.len();
        self.store.data_mut().count = ReplyCount::default();
        // A frame's length has 32 bits: its limit is far below.
        let at = self.call(self.room, bytes as u32, &mut fuel, reply_reader)?;
        let room = self.memory.data_mut(&mut self.store).get_mut(at as usize..).and_then(|rest| rest.get_mut(..bytes));
        let (head, payload) = room.ok_or("it gave room that is not in its memory")?.split_at_mut(frame.len());
        head.copy_from_slice(frame);
        sent.payload.copy_to(payload);
        let due = self.call(self.turn, (at, bytes as u32), &mut fuel, reply_reader)?;
        for answer in std::mem::take(&mut self.store.data_mut().frames) {
            reply_reader.hear(answer)?;
        }
        Ok(u64::try_from(due).ok().map(Instant::from_nanos))
    }
}
