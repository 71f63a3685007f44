//! `farbus daemon`.

use std::path::PathBuf;

use farbus_control::daemon::{ReloadReport, RestartReport};
use farbus_control::failure::FailureKind;
use farbus_daemon::{DaemonOptions, LoadedConfig, serve};
use farbus_io_net::local::control_socket::{Answer, Question, ask_all};
use serde_json::Value;

use super::output::{print_json, say};
use super::{CommandFailure, sleep};

/// Share and attach what a configuration file says, and keep it so.
#[derive(Debug, clap::Args)]
#[command(after_help = "The file is TOML; the installed /etc/farbus/farbus.toml shows all of it:\n\n  \
    [plain]                    where plain USB/IP is served\n  \
    listen = [\"loopback\"]      without it: a socket, for 'farbus attach'\n  \
    allow = [\"192.0.2.0/24\"]   who may connect to an address of the network\n  \
    [secure]                   where paired hosts are served; everywhere, unless\n                             \
    it has 'listen'\n  \
    [[share]]\n  \
    what = \"disk:/srv/a.img\"   as in 'farbus share'\n  \
    name = \"backup\"\n  \
    [[attach]]\n  \
    target = \"lab3/disk\"       attached, and again whenever it is lost\n  \
    via = \"fuse\"\n  \
    at = \"/mnt/lab3\"\n\n\
    The commands status, release, detach, eject and type control a daemon as they control a share. Under systemd it notifies, takes sockets (packaging/systemd) and serves the watchdog. SIGTERM ends it in good order.\n\n\
    Examples:\n  \
    farbus daemon --config farbus.toml --check\n  \
    farbus daemon --config farbus.toml\n  \
    farbus daemon reload     read it again (SIGHUP); sessions continue\n  \
    farbus daemon restart    start the installed program (SIGUSR2)")]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    verb: Option<DaemonVerb>,
    /// What to share and attach.
    #[arg(long, value_name = "FILE", default_value = "/etc/farbus/farbus.toml")]
    config: PathBuf,
    /// Only say what is wrong with the file.
    #[arg(long)]
    check: bool,
    /// Keep the rights of the user who started it.
    ///
    /// Without it, the process that reads from the network runs as a user without rights, sees no files and makes no
    /// connections by itself.
    #[arg(long)]
    no_sandbox: bool,
    /// Go on in the place of another process, which passes on what it has; started by that alone.
    #[arg(long, hide = true)]
    take_over: bool,
}

impl Args {
    /// Whether another daemon started this process as its replacement.
    pub fn is_successor(&self) -> bool {
        self.take_over
    }

    /// Whether `--json` was given.
    pub fn is_for_programs(&self) -> bool {
        match self.verb {
            Some(
                DaemonVerb::Reload { json, .. }
                | DaemonVerb::Restart { json, .. }
                | DaemonVerb::Sleep { json }
                | DaemonVerb::Wake { json },
            ) => json,
            None => false,
        }
    }
}

#[derive(Debug, clap::Subcommand)]
enum DaemonVerb {
    /// Let the running daemon read its configuration again.
    #[command(
        after_help = "Sessions of devices that stay in the file continue. SIGHUP does the same.\n\nExamples:\n  farbus daemon --config farbus.toml --check && farbus daemon reload\n  farbus daemon reload --adopt lab3/disk   the device there is right"
    )]
    Reload {
        /// Attach the device that is there now.
        ///
        /// The daemon attaches a device again only if it is the one that was attached before. Another one under its
        /// name waits, in state 'another device', until the former one is back or this option takes it. DEVICE is a
        /// name or HOST[:PORT]/DEVICE, as the configuration has it.
        #[arg(long, value_name = "DEVICE")]
        adopt: Option<String>,
        /// Print what was added and removed as JSON, for programs.
        #[arg(long)]
        json: bool,
    },
    /// Before this machine sleeps: detach what its kernel would not sleep with.
    #[command(
        after_help = "Linux does not suspend while a device is attached through its kernel (vhci_hcd). farbus detaches what is not mounted, and 'wake' attaches it again. A mounted disk stays: exit code 3, with what is mounted, and the machine does not sleep.\n\n\
        Attachments via fuse, nbd and redir need none of this. packaging/systemd/farbus-sleep, in /usr/lib/systemd/system-sleep, calls both commands.\n\n\
        Examples:\n  farbus daemon sleep && systemctl suspend\n  farbus daemon wake"
    )]
    Sleep {
        /// Print what was detached as JSON, for programs.
        #[arg(long)]
        json: bool,
    },
    /// After this machine has slept: attach again what 'sleep' detached.
    #[command(after_help = "Examples:\n  farbus daemon wake\n  farbus daemon wake --json")]
    Wake {
        /// Print what is attached again as JSON, for programs.
        #[arg(long)]
        json: bool,
    },
    /// Let the program that is installed now replace the running daemon; what is attached stays attached.
    #[command(
        after_help = "Use it after an upgrade. A new process takes over what is attached and the listening addresses, and then the old one ends: same port, same mount, same connections, no error. Devices that are shared are offered again at once; hosts that use them in a session link again by themselves. If the new process does not come up, the old one continues.\n\n\
        A USB disk that is driven here, and what is attached over a plain connection, cannot be passed on. The restart is refused then, unless --interrupt permits to detach it for a moment.\n\n\
        Examples:\n  apt upgrade farbus && farbus daemon restart\n  kill -USR2 $(systemctl show -p MainPID --value farbus)"
    )]
    Restart {
        /// Detach for a moment what cannot be passed on.
        #[arg(long)]
        interrupt: bool,
        /// Print the answer as JSON, for programs.
        #[arg(long)]
        json: bool,
    },
}

pub fn run(args: Args) -> Result<(), CommandFailure> {
    match args.verb {
        Some(DaemonVerb::Reload { adopt, json }) => return reload(adopt, json),
        Some(DaemonVerb::Restart { interrupt, json }) => return restart(interrupt, json),
        Some(DaemonVerb::Sleep { json }) => return sleep::sleep(json),
        Some(DaemonVerb::Wake { json }) => return sleep::wake(json),
        None => {}
    }
    let ready = LoadedConfig::read(&args.config)?;
    if args.check {
        say(format!("{} is fine: {}", args.config.display(), ready.summary()));
        return Ok(());
    }
    serve(DaemonOptions { config: args.config, no_sandbox: args.no_sandbox, take_over: args.take_over }, ready, say)
}

/// Names that a line shows; `--json` has all.
const NAMES_SHOWN: usize = 20;

/// The answer of the daemon that runs on this machine.
fn ask_daemon(question: &Question) -> Result<Value, CommandFailure> {
    for (_, answer) in ask_all(question).map_err(CommandFailure::local)? {
        match answer {
            Answer::Ok(value) => return Ok(value),
            Answer::Unknown => {}
            Answer::Refused(why) => return Err(CommandFailure::new(FailureKind::Refused, why)),
            Answer::Failed(failure) => return Err(CommandFailure::new(failure.attribute, failure.message)),
        }
    }
    Err(CommandFailure::new(
        FailureKind::Gone,
        "no daemon of yours runs here\n  start one: farbus daemon --config FILE",
    ))
}

fn restart(interrupt: bool, json: bool) -> Result<(), CommandFailure> {
    let done = ask_daemon(&Question::Restart { interrupt })?;
    if json {
        say(done);
        return Ok(());
    }
    let RestartReport { pid, kept, sessions, .. } = serde_json::from_value(done).map_err(CommandFailure::local)?;
    let kept = listed(&kept);
    say(format!("process {pid} goes on, with {kept} attached, and with {sessions} sessions of its users"));
    Ok(())
}

/// Names in a sentence: of many the first ones.
fn listed(names: &[String]) -> String {
    let shown = names.len().min(NAMES_SHOWN);
    match (names.len() - shown, names[..shown].join(", ")) {
        (0, first) if first.is_empty() => "nothing".to_owned(),
        (0, first) => first,
        (more, first) => format!("{first} and {more} more"),
    }
}

fn reload(adopt: Option<String>, json: bool) -> Result<(), CommandFailure> {
    let answer = ask_daemon(&Question::Reload { adopt: adopt.clone() })?;
    let changes: ReloadReport = serde_json::from_value(answer.clone()).map_err(CommandFailure::local)?;
    if adopt.is_some() && changes.adopted.is_none() {
        let what = "the daemon that runs is of an earlier release, and adopts nothing";
        return Err(CommandFailure::new(FailureKind::Refused, format!("{what}\n  type: farbus daemon restart")));
    }
    if json {
        return print_json(&answer);
    }
    let ReloadReport { added, removed, adopted } = changes;
    say(match added.is_empty() && removed.is_empty() {
        true => "reloaded: nothing changed".to_owned(),
        false => format!("reloaded: added {}, removed {}", listed(&added), listed(&removed)),
    });
    if let Some(target) = adopted {
        say(format!("{target}: the device that is there now is attached"));
    }
    Ok(())
}
