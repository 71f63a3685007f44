//! Modules that are programs: started in a process without rights, one use at a time; or, as WebAssembly, read and run
//! in a sandbox. Both happen before this process drops its rights.

#[cfg(feature = "wasm")]
use std::fs::File;
use std::io;
#[cfg(feature = "wasm")]
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use farbus_io_linux::module::{ModuleProcess, ModuleTransport, ModuleUse, arrange, supervise};
use farbus_io_linux::sys::confine_program::{check_program, confine_for};
use farbus_modules::module::{
    Module, ModuleDeviceClass, ModuleEffects, ModuleManifest, ModuleParameter, ParameterFormat,
};
use farbus_modules::{
    ModuleContext, ModuleCost, ModuleMaker, ModuleMismatch, ModuleRefusal, ModuleSettings, ModuleSpec, PendingModule,
    RandomSource,
};

/// How long a program may take for one turn: far longer than a working one takes, and less than the 5 s and more that
/// drivers wait.
const PATIENCE: Duration = Duration::from_secs(2);
/// The verb of the process that ends a module's program when nobody uses the module any more.
pub const HOST_VERB: &str = "module-host";
/// The verb of the process that becomes a module's program.
pub const PROGRAM_VERB: &str = "module-program";
/// Where a program's interpreter is looked for.
const PATH: &str = "/usr/bin:/bin:/usr/local/bin";

/// What a half that is a program takes in this process: what is on its way between the two.
const PROGRAM_BYTES: usize = 1 << 20;

/// The options of a program.
const PARAMETERS: &[ModuleParameter] = &[
    ModuleParameter {
        name: "options",
        form: ParameterFormat::Text(256),
        default: Some(""),
        what: "what the program is told at both ends",
        is_own: false,
    },
    ModuleParameter {
        name: "hold",
        form: ParameterFormat::SpanUpTo(Duration::from_secs(24 * 3600)),
        default: Some("30s"),
        what: "how long the program of this end may keep a request or an answer; 0s: without a limit",
        is_own: true,
    },
];

/// Begins a module half; the error is a sentence.
type ModuleStarter = Arc<dyn Fn(&ModuleUse<'_>) -> Result<Box<dyn Module>, String> + Send + Sync>;

/// A program that is used as a module.
pub struct ModuleProgram {
    manifest: &'static ModuleManifest,
    begin: ModuleStarter,
}

impl ModuleProgram {
    /// Whether `spec` names a program: its path contains a slash.
    pub fn is_meant(spec: &ModuleSpec) -> bool {
        spec.name.contains('/')
    }

    /// Starts or reads the program. The module has the name of the file without its extension, and both ends have to
    /// use the same. The extension says how the program runs: `.ring` shares memory, `.wasm` runs in a sandbox in this
    /// process, any other uses pipes.
    ///
    /// # Errors
    /// [`ModuleRefusal`].
    pub fn start(path: &str) -> Result<Self, ModuleRefusal> {
        let refused = |what: String| ModuleRefusal::new(path, ModuleMismatch::Parameter(what));
        let full = Path::new(path).canonicalize().map_err(|error| refused(error.to_string()))?;
        let (begin, cost) = match full.extension().and_then(|extension| extension.to_str()) {
            Some("wasm") => (sandboxed(&full), "two copies a message, and an interpreter's time for what it does"),
            Some("ring") => (
                started(&full, ModuleTransport::Ring),
                "two changes of process a message, and two copies; one if it changes no data",
            ),
            _ => (
                started(&full, ModuleTransport::Pipes),
                "two changes of process a message, and four copies; two if it changes no data",
            ),
        };
        let name = full.file_stem().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        // The manifest is leaked: there are as many as the command line names, and they live as long as the process.
        let manifest = Box::leak(Box::new(ModuleManifest {
            name: Box::leak(name.into_boxed_str()),
            version: 1,
            summary: "a program of this host",
            classes: &[
                ModuleDeviceClass::Usb,
                ModuleDeviceClass::Block,
                ModuleDeviceClass::Stream,
                ModuleDeviceClass::Private,
            ],
            parameters: PARAMETERS,
            effects: ModuleEffects { is_fault: false, is_movable: false },
            cost,
            manual: "",
        }));
        Ok(Self { manifest, begin: begin.map_err(refused)? })
    }
}

fn started(program: &Path, way: ModuleTransport) -> Result<ModuleStarter, String> {
    check_program(program).map_err(|error| error.to_string())?;
    let mut host = ourselves(HOST_VERB, program, way);
    host.env_clear().env("PATH", PATH).current_dir("/").process_group(0);
    let process = ModuleProcess::start(&mut host, way, PATIENCE).map_err(|error| error.to_string())?;
    Ok(Arc::new(move |used| process.half(used)))
}

#[cfg(feature = "wasm")]
fn sandboxed(code: &Path) -> Result<ModuleStarter, String> {
    use farbus_io_linux::module::{CODE_BYTES_MAX, WasmSandbox};
    let mut bytes = Vec::new();
    let read = File::open(code).and_then(|file| file.take(CODE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes));
    read.map_err(|error| error.to_string())?;
    let sandbox = WasmSandbox::new(&bytes, PATIENCE)?;
    Ok(Arc::new(move |used| sandbox.half(used)))
}

#[cfg(not(feature = "wasm"))]
fn sandboxed(_code: &Path) -> Result<ModuleStarter, String> {
    Err("this farbus was built without a sandbox for WebAssembly (the feature 'wasm')".to_owned())
}

fn half(
    begin: &ModuleStarter,
    name: &str,
    settings: &ModuleSettings,
    context: &ModuleContext,
) -> Result<Box<dyn Module>, ModuleRefusal> {
    let failed = context.failed.contiguous();
    let hold_max = Some(settings.span("hold")).filter(|hold| !hold.is_zero());
    let (role, class, options) = (context.role, context.class, settings.text("options"));
    let used = ModuleUse { role, class, failed: &failed, options, hold_max };
    begin(&used).map_err(|why| ModuleRefusal::new(name, ModuleMismatch::Halves(why)))
}

impl ModuleMaker for ModuleProgram {
    fn manifest(&self) -> &'static ModuleManifest {
        self.manifest
    }

    /// What it takes in this process. Its own memory is its owner's to give, who named it: a program has its limit
    /// (1 GiB) and serves one attachment; a sandbox has 128 MiB at most.
    fn cost(&self, _settings: &ModuleSettings) -> ModuleCost {
        ModuleCost::with_state(PROGRAM_BYTES)
    }

    fn begin(
        &self,
        settings: &ModuleSettings,
        context: &ModuleContext,
        _random: RandomSource<'_>,
    ) -> Result<Box<dyn PendingModule>, ModuleRefusal> {
        let (begin, name) = (Arc::clone(&self.begin), self.manifest.name);
        Ok(Box::new(PendingModuleProgram { begin, name, settings: settings.clone(), context: context.clone() }))
    }

    fn answer(
        &self,
        settings: &ModuleSettings,
        context: &ModuleContext,
        _opening: &[u8],
        _random: RandomSource<'_>,
    ) -> Result<(Box<dyn Module>, Vec<u8>), ModuleRefusal> {
        Ok((half(&self.begin, self.manifest.name, settings, context)?, Vec::new()))
    }
}

struct PendingModuleProgram {
    begin: ModuleStarter,
    name: &'static str,
    settings: ModuleSettings,
    context: ModuleContext,
}

impl PendingModule for PendingModuleProgram {
    fn opening(&self) -> &[u8] {
        &[]
    }

    fn finish(&self, _answer: &[u8]) -> Result<Box<dyn Module>, ModuleRefusal> {
        half(&self.begin, self.name, &self.settings, &self.context)
    }
}

/// Runs the process that ends the program when no process holds it any more.
///
/// # Errors
/// The error of the system.
pub fn host(program: &Path, way: ModuleTransport) -> io::Result<i32> {
    supervise(&mut ourselves(PROGRAM_VERB, program, way))
}

/// The command that starts this program again, as one of the two processes behind a module.
fn ourselves(verb: &str, program: &Path, way: ModuleTransport) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg(verb).args((way == ModuleTransport::Ring).then_some("--ring")).arg(program);
    command
}

/// Replaces this process by a program without rights.
pub fn become_program(program: &Path, way: ModuleTransport) -> io::Error {
    let confined =
        arrange(way).and_then(|()| confine_for(program).map_err(|error| io::Error::other(error.to_string())));
    match confined {
        Ok(()) => Command::new(program).exec(),
        Err(error) => error,
    }
}
