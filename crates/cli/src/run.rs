//! `farbus run`: a program that sees devices of other machines as its own.

use std::ffi::OsString;
use std::os::fd::RawFd;
use std::thread;
use std::time::{Duration, Instant};

use farbus::broker::SystemAccess;
use farbus::devices::follow::{FollowPolicy, FollowWord};
use farbus::frontend::{over, usbfs};
use farbus::importer::client::DeviceTarget;
use farbus::importer::discovery::local_shares::{resolve, target_from};
use farbus_io_linux::sys::inherited;
use farbus_io_net::local::time_words::parse_span;

use super::CommandFailure;
use super::ending::end;
use super::lease;
use super::link_args::LinkArgs;
use super::waiting::DeviceWait;

/// How long `--lease` leases a device, unless it says so.
const LEASE_SPAN: Duration = Duration::from_secs(3600);

/// Run a program that sees devices of other machines as its own.
///
/// The kernel needs no USB, and you need no rights.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "farbus run [OPTIONS] [DEVICE]... -- <PROGRAM>...",
    after_help = "Examples:\n  \
        farbus run lab3/board -- lsusb -v\n  \
        farbus run lab3/board -- dfu-util -l\n  \
        farbus run lab3/board lab3/probe -- openocd -f board.cfg\n  \
        farbus run --lease=10m lab3/board -- fastboot flash boot boot.img\n  \
        farbus run --name lab lab3/board -- openocd -f board.cfg\n  \
        farbus run --join lab -- lsusb         beside it, with its devices\n\n\
        'farbus run --help' says what does not work inside.",
    after_long_help = "The program is an ordinary program of yours: your files, your terminal, its exit code. It sees the devices below /sys/bus/usb and /dev/bus/usb, in place of those of this machine. Nobody else sees them, and nothing is left behind. When the program ends, what it left running is ended, and the devices are given back.\n\n\
        Inside, sudo and other setuid programs do not work. For devices that the kernel has to drive (serial ports, network, sound) use 'farbus attach --via kernel', for disks '--via fuse' or nbd, and for virtual machines '--via redir'.\n\n\
        Examples:\n  \
        farbus run lab3/board -- lsusb -v\n  \
        farbus run lab3/board -- dfu-util -l\n  \
        farbus run lab3/board lab3/probe -- openocd -f board.cfg\n  \
        farbus run --lease=10m lab3/board -- fastboot flash boot boot.img\n  \
        farbus run --wait lab3/board -- dfu-util -l\n  \
        farbus run --name lab lab3/board -- openocd -f board.cfg\n  \
        farbus run --join lab -- lsusb         beside it, with its devices\n\n\
        Exit codes: that of the program; 128 and the signal that ended it; 127 or 126 if there is no such program or it cannot be run; 3 if its lease has ended or its owner took the device back while the program ran; before that, those of farbus ('farbus help')."
)]
pub struct RunArgs {
    /// What to use: [HOST[:PORT]/]DEVICE, as 'farbus list HOST' shows it.
    #[arg(value_name = "DEVICE", required_unless_present = "join", value_parser = target_from)]
    devices: Vec<DeviceTarget>,
    /// Give it a name, by which other programs of yours join it.
    #[arg(long, value_name = "NAME", value_parser = usbfs::name_from)]
    name: Option<String>,
    /// Show it the USB devices of this machine, too.
    ///
    /// It may use them as you may. It does not hear of those that come later, but sees them.
    #[arg(long)]
    with_local: bool,
    /// Let processes go on that the program leaves running.
    ///
    /// Without this they are ended when it ends, with a line that names them: a server such as adb's would answer the
    /// next program, without a device.
    #[arg(long)]
    keep_servers: bool,
    /// See what the program of this name sees, as long as it runs.
    #[arg(long, value_name = "NAME", value_parser = usbfs::name_from,
        conflicts_with_all = ["devices", "name", "with_local", "keep_servers", "grace", "links", "over", "module", "address", "wait", "lease", "follow"])]
    join: Option<String>,
    /// Another device in a device's port that the program gets.
    ///
    /// VENDOR:PRODUCT, or 'port'. A device that becomes another one while it is flashed comes back to the program.
    /// Without this option any other one does; with it, only these do. 'port' is also another one of the same make.
    /// Disks never do. May be given several times.
    #[arg(long, value_name = "WHICH")]
    follow: Vec<FollowWord>,
    /// Wait while another host uses a device.
    ///
    /// Without SECONDS there is no limit. The host that has waited longest comes next. Several devices are taken
    /// together or not at all.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true)]
    wait: Option<Option<u64>>,
    /// Lease the devices first, and give the leases back after.
    ///
    /// As 'farbus lease DEVICE --for SPAN -- farbus run DEVICE -- PROGRAM': waits in the queue, extends the leases as
    /// long as nobody waits, and gives them back when the program has ended. Without SPAN an hour.
    #[arg(long, value_name = "SPAN", num_args = 0..=1, require_equals = true, value_parser = parse_span,
        conflicts_with = "wait")]
    lease: Option<Option<Duration>>,
    #[command(flatten)]
    link: LinkArgs,
    /// The program, and its arguments.
    #[arg(value_name = "PROGRAM", last = true)]
    program: Vec<OsString>,
}

/// Start your shell, with devices of other machines in it.
///
/// As 'farbus run DEVICE -- $SHELL'.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  farbus shell lab3/board\n  farbus shell lab3/board lab3/probe")]
pub struct ShellArgs {
    /// What to use: [HOST[:PORT]/]DEVICE, as 'farbus list HOST' shows it.
    #[arg(value_name = "DEVICE", required = true, value_parser = target_from)]
    devices: Vec<DeviceTarget>,
    /// Let processes go on that you leave running; otherwise they end with the shell.
    #[arg(long)]
    keep_servers: bool,
    #[command(flatten)]
    link: LinkArgs,
}

/// Carries out `farbus shell`; ends with the shell's exit code.
pub fn shell(args: ShellArgs) -> Result<(), CommandFailure> {
    let shell = std::env::var_os("SHELL").filter(|shell| !shell.is_empty()).unwrap_or_else(|| "/bin/sh".into());
    run(RunArgs {
        devices: args.devices,
        name: None,
        with_local: false,
        keep_servers: args.keep_servers,
        join: None,
        wait: None,
        lease: None,
        follow: Vec::new(),
        link: args.link,
        program: vec![shell],
    })
}

/// Carries out `farbus run`; ends with the program's exit code.
pub fn run(args: RunArgs) -> Result<(), CommandFailure> {
    if args.program.is_empty() {
        no_program(&args);
    }
    if let Some(span) = args.lease {
        return lease_first(args.devices, span.unwrap_or(LEASE_SPAN));
    }
    let finished = match &args.join {
        Some(name) => Err(usbfs::join(name, &args.program)),
        None => {
            let mut waiting = DeviceWait::new(args.wait);
            let sources = sources(args.devices, &args.link, &args.follow)?;
            let options =
                usbfs::RunOptions { name: args.name, with_local: args.with_local, keeps_servers: args.keep_servers };
            usbfs::run(sources, &options, &args.program, &mut |error| {
                let again_at = waiting.again_at(error, |line| eprintln!("farbus: {line}"));
                again_at.inspect(|at| thread::sleep(at.saturating_duration_since(Instant::now()))).is_some()
            })
        }
    };
    match finished {
        Ok(usbfs::RunOutcome { code, taken_away, ended, remaining }) => {
            report_left(&ended, &remaining);
            match (taken_away.first(), code) {
                (Some((target, report)), code) => {
                    let failure = over(target, report);
                    Err(CommandFailure::new(
                        failure.attribute(),
                        format!("{failure}; the program's exit code is {code}"),
                    ))
                }
                (None, 0) => Ok(()),
                (None, code) => end(code),
            }
        }
        Err(usbfs::RunError::Device(error)) => Err((*error).into()),
        Err(usbfs::RunError::Named { attribute, why }) => Err(CommandFailure::new(attribute, why)),
        Err(usbfs::RunError::Program { code, why }) => {
            eprintln!("farbus: {why}");
            end(code)
        }
        Err(error @ usbfs::RunError::Local(_)) => Err(CommandFailure::local(error)),
    }
}

/// Ends this process: nothing says what is to run. Words that are no devices are the program's, without the `--`
/// before it.
fn no_program(args: &RunArgs) -> ! {
    // A word without a host means one of this machine.
    let typed = |shown: String| shown.strip_prefix("localhost/").map(str::to_owned).unwrap_or(shown);
    let mut words = args.devices.iter().map(|target| typed(target.shown()));
    let device = words.next().unwrap_or_else(|| "DEVICE".to_owned());
    let program: Vec<String> = words.collect();
    let program = if program.is_empty() { "PROGRAM".to_owned() } else { program.join(" ") };
    let line = match &args.join {
        Some(name) => format!("farbus run --join {name} -- PROGRAM"),
        None => format!("farbus run {device} -- {program}"),
    };
    let message = format!("what is to run stands behind '--': {line}\n\nFor more information, try '--help'.\n");
    clap::Error::raw(clap::error::ErrorKind::MissingRequiredArgument, message).exit()
}

/// Names what the program left running.
fn report_left(ended: &[usbfs::RemainingProcess], remaining: &[usbfs::RemainingProcess]) {
    let names = |all: &[usbfs::RemainingProcess]| {
        all.iter().map(|process| format!("{} ({})", process.name, process.pid)).collect::<Vec<_>>().join(", ")
    };
    if !ended.is_empty() {
        eprintln!("farbus: ended what the program left running: {}; --keep-servers keeps it", names(ended));
    }
    if !remaining.is_empty() {
        eprintln!("farbus: left running, without its devices: {}; 'kill PID' ends it", names(remaining));
    }
}

/// Leases the devices, and runs this command without `--lease` while the leases last.
fn lease_first(devices: Vec<DeviceTarget>, span: Duration) -> Result<(), CommandFailure> {
    let targets = devices.into_iter().map(resolve).collect::<Result<Vec<_>, _>>()?;
    let mut is_own = true;
    let words = std::env::args_os().skip(1).filter(|word| {
        is_own &= word != "--";
        let text = word.to_string_lossy();
        !(is_own && (text == "--lease" || text.starts_with("--lease=")))
    });
    let ourselves = std::env::current_exe().map_err(CommandFailure::local)?.into_os_string();
    lease::hold(&targets, span, &std::iter::once(ourselves).chain(words).collect::<Vec<_>>())
}

fn sources(
    devices: Vec<DeviceTarget>,
    link: &LinkArgs,
    follow: &[FollowWord],
) -> Result<Vec<usbfs::FarDeviceSource>, CommandFailure> {
    let follow = (!follow.is_empty()).then(|| FollowPolicy::from_iter(follow.iter().copied()));
    follow.iter().for_each(FollowPolicy::warn_if_any);
    let config = link.config()?;
    let targets = devices.into_iter().map(resolve).collect::<Result<Vec<_>, _>>()?;
    if link.address.is_some() && targets.iter().any(|target| target.address != targets[0].address) {
        return Err(CommandFailure::local("--address goes with devices of one host"));
    }
    let client = |target: &DeviceTarget| link.client(&target.address, SystemAccess::Own, config.clone());
    targets
        .into_iter()
        .map(|target| Ok(usbfs::FarDeviceSource::new(client(&target)?, target, follow.as_ref())))
        .collect()
}

/// Becomes the program. If that fails, the parent is told why, and says it.
pub fn become_program(
    parent: RawFd,
    setup: &usbfs::ProgramProcessSetup,
    program: &[OsString],
) -> Result<(), CommandFailure> {
    let parent = inherited::take(parent).ok_or_else(|| CommandFailure::local("farbus itself starts this verb"))?;
    std::process::exit(usbfs::become_program(parent, setup, program).into());
}
