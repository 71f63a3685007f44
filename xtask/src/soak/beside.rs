//! The whole suite, several times in a row, on a machine that has other things to do: a `farbus share` and a `farbus
//! daemon` with default settings hold the default ports, two processes spin, and the suite of a second checkout runs at
//! the same time. A test that uses a port, a folder or a device of anybody else fails here; so does one that needs a
//! quiet processor.

use crate::cargo::{self, cargo};
use crate::{git, rerun, workspace};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Processes that use a processor each and do nothing with it.
const SPINNERS: usize = 2;

/// How long `farbus share` and `farbus daemon` may take until they serve.
const START_TIME_MAX: Duration = Duration::from_secs(60);

/// What the tests are told: this machine has to be able to do everything.
pub(super) const REQUIRE: (&str, &str) = ("FARBUS_REQUIRE_RIG", "1");

/// Runs the suite so often, as described above.
///
/// # Errors
/// Names the pass, and the tests that failed in this checkout or where the log of the other one is.
pub fn run(passes: u32) -> Result<(), String> {
    let root = workspace::root();
    let folder = root.join("target/beside");
    fs::create_dir_all(&folder).map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
    let other = folder.join("checkout");
    git::unpack(&root, "HEAD", &other)?;
    let built = cargo::executables(cargo(&["build", "--workspace", "--bin", "farbus"]))?;
    let farbus = cargo::program(&built, "farbus")?;
    let _others = BackgroundLoad::start(&farbus, &folder)?;
    (1..=passes).try_for_each(|pass| {
        println!("\n=== the suite beside others, pass {pass} of {passes}");
        one_pass(&folder, &other).map_err(|trouble| format!("pass {pass} beside others: {trouble}"))
    })
}

/// The suites of both checkouts, at the same time.
fn one_pass(folder: &Path, other: &Path) -> Result<(), String> {
    let log = folder.join("checkout.log");
    let mut there = cargo(&["test", "--workspace", "--no-fail-fast"]);
    there.current_dir(other).env("CARGO_TARGET_DIR", folder.join("build")).env(REQUIRE.0, REQUIRE.1);
    // It is built once; what makes a second build quick would take more of the disk than all else.
    there.env("CARGO_INCREMENTAL", "0");
    let (out, errors) = outputs(&log)?;
    let mut there = BackgroundProcess(spawn(there.stdout(out).stderr(errors))?);
    rerun::run(&[REQUIRE], rerun::SkipPolicy::Any)?;
    let status = there.0.wait().map_err(|error| format!("the suite of the second checkout is lost: {error}"))?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("the suite of the second checkout failed ({status}); see {}", log.display())),
    }
}

/// A file for what a process prints, as standard output and as standard error.
pub(super) fn outputs(log: &Path) -> Result<(Stdio, Stdio), String> {
    let trouble = |error| format!("cannot write {}: {error}", log.display());
    let file = File::create(log).map_err(trouble)?;
    let errors = file.try_clone().map_err(trouble)?;
    Ok((file.into(), errors.into()))
}

pub(super) fn spawn(command: &mut Command) -> Result<Child, String> {
    let child = command.stdin(Stdio::null()).spawn();
    child.map_err(|error| format!("cannot start {}: {error}", cargo::display(command)))
}

/// A process that ends when this is dropped.
pub(super) struct BackgroundProcess(Child);

impl Drop for BackgroundProcess {
    fn drop(&mut self) {
        if !matches!(self.0.try_wait(), Ok(None)) {
            return;
        }
        // farbus ends in good order, and with it the process that keeps its rights.
        let exit_status = Command::new("kill").args(["-TERM", &self.0.id().to_string()]).status();
        if !exit_status.is_ok_and(|status| status.success()) {
            let _ = self.0.kill();
        }
        let _ = self.0.wait();
    }
}

/// What else the machine does.
struct BackgroundLoad {
    _running: Vec<BackgroundProcess>,
}

impl BackgroundLoad {
    /// A share at the owner's socket, a daemon at the default ports, and the spinning processes. Keys and grants of
    /// the two are in a folder of their own.
    fn start(farbus: &Path, folder: &Path) -> Result<Self, String> {
        let image = folder.join("beside.img");
        let trouble = |error| format!("cannot write below {}: {error}", folder.display());
        File::create(&image).and_then(|file| file.set_len(64 << 20)).map_err(trouble)?;
        let configuration = folder.join("farbus.toml");
        let text = format!(
            "[plain]\nlisten = [\"loopback\"]\nannounce = false\n[secure]\nannounce = false\n[[share]]\nwhat = \"disk:{}\"\nname = \"beside\"\n",
            image.display()
        );
        fs::write(&configuration, text).map_err(trouble)?;
        let share = start_farbus(farbus, folder, "share", &["share", "zero"])?;
        let configuration = configuration.display().to_string();
        let daemon = start_farbus(farbus, folder, "daemon", &["daemon", "--config", &configuration])?;
        let mut running = vec![share, daemon];
        running.extend(spin()?);
        Ok(Self { _running: running })
    }
}

/// Processes that use a processor each. They end when this is dropped, and soon after this process, also if that is
/// killed.
pub(super) fn spin() -> Result<Vec<BackgroundProcess>, String> {
    let spin = "i=0; while [ $i -lt 1000000 ] || { i=0; kill -0 \"$0\" 2> /dev/null; }; do i=$((i + 1)); done";
    let own = std::process::id().to_string();
    (0..SPINNERS).map(|_| Ok(BackgroundProcess(spawn(Command::new("sh").args(["-c", spin, &own]))?))).collect()
}

/// Starts farbus, and waits until it serves.
fn start_farbus(farbus: &Path, folder: &Path, name: &str, arguments: &[&str]) -> Result<BackgroundProcess, String> {
    let log: PathBuf = folder.join(format!("{name}.log"));
    let (out, errors) = outputs(&log)?;
    let mut command = Command::new(farbus);
    command.args(arguments).env("FARBUS_STATE", folder.join("state")).stdout(out).stderr(errors);
    let mut running = BackgroundProcess(spawn(&mut command)?);
    let until = Instant::now() + START_TIME_MAX;
    while !fs::read_to_string(&log).is_ok_and(|text| text.contains("listening on")) {
        if !matches!(running.0.try_wait(), Ok(None)) || Instant::now() > until {
            let message = fs::read_to_string(&log).unwrap_or_default();
            return Err(format!("{} does not serve: {message}", cargo::display(&command)));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(running)
}
