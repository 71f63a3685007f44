//! `farbus run`: a program that sees devices of other machines as its own.

use std::ffi::OsString;
use std::os::fd::RawFd;

use farbus_io::sys::inherited;

use super::Failure;
use super::link_args::LinkArgs;
use crate::broker::SystemAccess;
use crate::frontend::usbfs;
use crate::importer::client::Target;
use crate::importer::discovery::local_shares::{resolve, target_from};

/// Run a program that sees devices of other machines as its own.
///
/// The kernel needs no USB, and you need no rights.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  \
        farbus run lab3/board -- lsusb -v\n  \
        farbus run lab3/board -- dfu-util -l\n  \
        farbus run lab3/board lab3/probe -- openocd -f board.cfg\n  \
        farbus run --name lab lab3/board -- openocd -f board.cfg\n  \
        farbus run --join lab -- lsusb         beside it, with its devices\n\n\
        'farbus run --help' says what does not work inside.",
    after_long_help = "The program is an ordinary program of yours: your files, your terminal, its exit code. It sees the devices below /sys/bus/usb and /dev/bus/usb, in place of those of this machine. Nobody else sees them, and nothing is left behind. The devices are given back when the program ends, also if it left others running.\n\n\
        Inside, sudo and other setuid programs do not work. For devices that the kernel has to drive (serial ports, network, sound) use 'farbus attach --via kernel', for disks '--via fuse' or nbd, and for virtual machines '--via redir'.\n\n\
        Examples:\n  \
        farbus run lab3/board -- lsusb -v\n  \
        farbus run lab3/board -- dfu-util -l\n  \
        farbus run lab3/board lab3/probe -- openocd -f board.cfg\n  \
        farbus run --name lab lab3/board -- openocd -f board.cfg\n  \
        farbus run --join lab -- lsusb         beside it, with its devices\n\n\
        Exit codes: that of the program; 128 and the signal that ended it; 127 or 126 if there is no such program or it cannot be run; before that, those of farbus ('farbus help')."
)]
pub struct RunArgs {
    /// What to use: [HOST[:PORT]/]DEVICE, as 'farbus list HOST' shows it.
    #[arg(value_name = "DEVICE", required_unless_present = "join", value_parser = target_from)]
    devices: Vec<Target>,
    /// Give it a name, by which other programs of yours join it.
    #[arg(long, value_name = "NAME", value_parser = usbfs::name_from)]
    name: Option<String>,
    /// Show it the USB devices of this machine, too.
    ///
    /// It may use them as you may. It does not hear of those that come later, but sees them.
    #[arg(long)]
    with_local: bool,
    /// See what the program of this name sees, as long as it runs.
    #[arg(long, value_name = "NAME", value_parser = usbfs::name_from,
        conflicts_with_all = ["devices", "name", "with_local", "grace", "links", "over", "module", "address"])]
    join: Option<String>,
    #[command(flatten)]
    link: LinkArgs,
    /// The program, and its arguments.
    #[arg(value_name = "PROGRAM", required = true, last = true)]
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
    devices: Vec<Target>,
    #[command(flatten)]
    link: LinkArgs,
}

/// Carries out `farbus shell`; ends with the shell's exit code.
pub fn shell(args: ShellArgs) -> Result<(), Failure> {
    let shell = std::env::var_os("SHELL").filter(|shell| !shell.is_empty()).unwrap_or_else(|| "/bin/sh".into());
    run(RunArgs {
        devices: args.devices,
        name: None,
        with_local: false,
        join: None,
        link: args.link,
        program: vec![shell],
    })
}

/// Carries out `farbus run`; ends with the program's exit code.
pub fn run(args: RunArgs) -> Result<(), Failure> {
    let finished = match &args.join {
        Some(name) => Err(usbfs::join(name, &args.program)),
        None => {
            let sources = sources(args.devices, &args.link)?;
            let options = usbfs::RunOptions { name: args.name, with_local: args.with_local };
            usbfs::run(sources, &options, &args.program)
        }
    };
    match finished {
        Ok(usbfs::Finished { code: 0 }) => Ok(()),
        Ok(usbfs::Finished { code }) => end(code),
        Err(usbfs::RunError::Device(error)) => Err((*error).into()),
        Err(usbfs::RunError::Named { attribute, why }) => Err(Failure::new(attribute, why)),
        Err(usbfs::RunError::Program { code, why }) => {
            eprintln!("farbus: {why}");
            end(code)
        }
        Err(error @ usbfs::RunError::Local(_)) => Err(Failure::local(error)),
    }
}

/// Ends with the program's exit code, after what a process says at its end (`main.rs`).
fn end(code: u8) -> ! {
    farbus_io::trust::end_quic();
    std::process::exit(code.into())
}

fn sources(devices: Vec<Target>, link: &LinkArgs) -> Result<Vec<usbfs::Source>, Failure> {
    let config = link.config()?;
    let targets = devices.into_iter().map(resolve).collect::<Result<Vec<_>, _>>()?;
    if link.address.is_some() && targets.iter().any(|target| target.address != targets[0].address) {
        return Err(Failure::local("--address goes with devices of one host"));
    }
    let client = |target: &Target| link.client(&target.address, SystemAccess::Own, config.clone());
    targets.into_iter().map(|target| Ok(usbfs::Source::new(client(&target)?, target))).collect()
}

/// Becomes the program. If that fails, the parent is told why, and says it.
pub fn become_program(parent: RawFd, told: &usbfs::Inside, program: &[OsString]) -> Result<(), Failure> {
    let parent = inherited::take(parent).ok_or_else(|| Failure::local("farbus itself starts this verb"))?;
    std::process::exit(usbfs::become_program(parent, told, program).into());
}
