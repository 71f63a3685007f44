//! `farbus daemon`.

mod attachment;
mod config;
mod desk;
mod handover;
mod joined;
mod joining;
mod spec;
mod workshop;

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use farbus_io::link::Listener;
use farbus_io::service::Manager;
use farbus_io::sys::activation;
use farbus_io::sys::confine::Needs;
use farbus_io::sys::passing::Passage;
use farbus_io::sys::writeback::protect_writeback_path;
use farbus_io::usb::Hotplug;
use serde_json::Value;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR2};
use signal_hook::iterator::Signals;
use tracing::{info, warn};

use super::Failure;
use super::attach::report_protection;
use super::confined::{give_rights_away, start_broker};
use super::output::say;
use super::sleep;
use crate::broker::{Inheritance, Legacy, Mandate, legacy};
use crate::client::Attribute;
use crate::control::{Answer, Door, Question, ask_all};
use crate::nearby::Nearby;
use crate::trust::Trust;
use config::Config;
use desk::{Desk, Tools};
use handover::Forerunner;
use workshop::Workshop;

/// How often it looks after what could not be had, and says that it lives.
const TICK: Duration = Duration::from_secs(2);

/// Share and attach what a configuration file says, and keep it so.
#[derive(Debug, clap::Args)]
#[command(after_help = "The file is TOML; packaging/farbus.toml shows all of it:\n\n  \
    [plain]                                   where plain USB/IP is served\n  \
    listen = [\"127.0.0.1:3240\"]               the default; another address needs:\n  \
    allow = [\"192.0.2.0/24\"]                  who may connect\n  \
    [secure]                                  where paired hosts are served: everywhere, unless it says 'listen'\n  \
    [[share]]\n  what = \"disk:/srv/backup.img\"             as in 'farbus share'\n  \
    name = \"backup\"\n  \
    [[attach]]\n  target = \"lab3/disk\"                     attached, and again whenever it is lost\n  \
    via = \"fuse\"\n  at = \"/mnt/lab3\"\n\n\
    Examples:\n  farbus daemon --config farbus.toml --check\n  farbus daemon --config farbus.toml\n  \
    farbus daemon reload            read it again; sessions of what stays go on (so does SIGHUP)\n  \
    farbus daemon restart           go on as the program that is installed now; what is attached stays (so does SIGUSR2)\n\n\
    It is controlled by the same commands as a share: status, release, detach, eject, type. Under systemd it\n\
    notifies, takes sockets (packaging/systemd) and keeps the watchdog. SIGTERM ends it in good order.")]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    verb: Option<Verb>,
    /// What to share and attach.
    #[arg(long, value_name = "FILE", default_value = "/etc/farbus/farbus.toml")]
    config: PathBuf,
    /// Read the file, say what is wrong with it, and do nothing else.
    #[arg(long)]
    check: bool,
    /// Keep the rights it was started with. Without this, what hears the network runs as nobody, sees no files and makes no
    /// connections by itself.
    #[arg(long)]
    no_sandbox: bool,
    /// Go on in the place of another process, which passes on what it has; started by that alone.
    #[arg(long, hide = true)]
    take_over: bool,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Let the running daemon read its configuration again.
    Reload,
    /// Before this machine sleeps: let go of what its kernel would not sleep with, until 'wake'.
    #[command(
        after_help = "Linux does not suspend while anything is attached through its kernel (vhci_hcd). What nobody has mounted is let go of and\n\
        taken again by 'wake'; a disk that is mounted stays, and so does this machine: 3 is returned, with what is mounted.\n\
        packaging/systemd/farbus-sleep in /usr/lib/systemd/system-sleep does both by itself. Attachments via fuse, nbd and redir\n\
        sleep as they are.\n\n\
        Examples:\n  farbus daemon sleep && systemctl suspend\n  farbus daemon wake"
    )]
    Sleep {
        /// Print what was let go of as JSON.
        #[arg(long)]
        json: bool,
    },
    /// After this machine slept: take again what 'sleep' let go of.
    #[command(after_help = "Examples:\n  farbus daemon wake\n  farbus daemon wake --json")]
    Wake {
        /// Print what is taken again as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Let the program that is installed now go on in place of the running daemon: what is attached stays attached.
    #[command(after_help = "After an upgrade. A new process is started, takes over what is attached and what is\n\
        listened at, and then the old one ends: same port, same mount, same connections, no error. Devices that are shared are offered again at\n\
        once; hosts that use them in a session come back by themselves. If the new process does not come up, the old one goes on.\n\n\
        What is attached as a USB disk that is driven here, or over a plain connection, cannot be passed on: then it is refused, unless\n\
        '--interrupt' says that it may be taken away for a moment.\n\n\
        Examples:\n  apt upgrade farbus && farbus daemon restart\n  kill -USR2 $(systemctl show -p MainPID --value farbus)")]
    Restart {
        /// Also where that takes from somebody, for a moment, what is attached.
        #[arg(long)]
        interrupt: bool,
        /// Print the answer as JSON.
        #[arg(long)]
        json: bool,
    },
}

pub fn run(args: Args) -> Result<(), Failure> {
    match args.verb {
        Some(Verb::Reload) => return reload(),
        Some(Verb::Restart { interrupt, json }) => return restart(interrupt, json),
        Some(Verb::Sleep { json }) => return sleep::sleep(json),
        Some(Verb::Wake { json }) => return sleep::wake(json),
        None => {}
    }
    let config = Config::read(&args.config).map_err(Failure::local)?;
    // What modules need of this host is read and started while there are rights for it.
    let workshop = Workshop::open(&config)?;
    if args.check {
        say(format!(
            "{} is fine: {} shared, {} rules, {} attachments, listening at {} addresses",
            args.config.display(),
            config.shares.len(),
            config.rules.len(),
            config.attachments.len(),
            config.listen.len() + config.secure.len()
        ));
        return Ok(());
    }
    serve(args, &config, workshop)
}

/// What the daemon that runs here answers.
fn ask_daemon(question: &Question) -> Result<Value, Failure> {
    for (_, answer) in ask_all(question).map_err(Failure::local)? {
        match answer {
            Answer::Ok(value) => return Ok(value),
            Answer::Unknown => {}
            Answer::Refused(why) => return Err(Failure::new(Attribute::Refused, why)),
            Answer::Failed(failure) => return Err(Failure::new(failure.attribute, failure.message)),
        }
    }
    Err(Failure::new(Attribute::Gone, "no daemon of yours runs here\n  start one: farbus daemon --config FILE"))
}

fn restart(interrupt: bool, json: bool) -> Result<(), Failure> {
    let done = ask_daemon(&Question::Restart { interrupt })?;
    if json {
        say(done);
        return Ok(());
    }
    let kept = done["kept"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let (kept, sessions) = (kept.collect::<Vec<_>>().join(", "), &done["sessions"]);
    say(format!("process {} goes on, with [{kept}] attached, and with {sessions} sessions of its users", done["pid"]));
    Ok(())
}

fn reload() -> Result<(), Failure> {
    let changes = ask_daemon(&Question::Reload)?;
    let words = |of: &str| -> Vec<String> {
        let names = changes[of].as_array().into_iter().flatten();
        names.filter_map(|name| name.as_str().map(str::to_owned)).collect()
    };
    let (added, removed) = (words("added"), words("removed"));
    say(match added.is_empty() && removed.is_empty() {
        true => "reloaded: nothing changed".to_owned(),
        false => format!("reloaded: added [{}], removed [{}]", added.join(", "), removed.join(", ")),
    });
    Ok(())
}

/// What the half that keeps the rights reads in a configuration.
///
/// # Errors
/// What is wrong with it, and where.
pub fn read_config(path: &Path) -> io::Result<(String, Mandate)> {
    let text = fs::read_to_string(path).map_err(|error| io::Error::other(format!("{}: {error}", path.display())))?;
    let text = Config::complete(path, text)?;
    let config = Config::parse_file(path, &text).map_err(io::Error::other)?;
    Ok((text, config.mandate()))
}

/// With which arguments this program goes on in place of this process.
fn successor(args: &Args) -> Vec<String> {
    // A path that is no text is not gone on with.
    let Some(config) = args.config.to_str() else { return Vec::new() };
    let mut words: Vec<String> = ["daemon", "--take-over", "--config", config].map(str::to_owned).into();
    words.extend(args.no_sandbox.then(|| "--no-sandbox".to_owned()));
    words
}

fn serve(args: Args, config: &Config, workshop: Workshop) -> Result<(), Failure> {
    let legacy = if args.take_over { Some(legacy().map_err(Failure::local)?) } else { None };
    let successor = successor(&args);
    let Args { config: path, no_sandbox, .. } = args;
    // Before any thread: what is granted here is inherited. An attachment may be asked for later, when it is not granted any more.
    let protection = protect_writeback_path();
    if !config.attachments.is_empty() {
        report_protection(&protection);
    }
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM, SIGUSR2]).map_err(Failure::local)?;
    let (door, knocks) = Door::hang().map_err(Failure::local)?;
    let mandate = Mandate {
        remove: vec![door.path().to_owned()],
        ports: legacy.as_ref().map(|inheritance| inheritance.legacy.ports.clone()).unwrap_or_default(),
        mounted: legacy.as_ref().map(|inheritance| inheritance.legacy.mounts.clone()).unwrap_or_default(),
        successor,
        config: Some(path.canonicalize().map_err(Failure::local)?),
        ..Mandate::default()
    };
    let broker = Arc::new(start_broker(&mandate)?);
    if let Some(inheritance) = &legacy {
        for (&(bus, device), node) in inheritance.legacy.devices.iter().zip(&inheritance.nodes) {
            broker.inherit_usb(bus, device, node.as_fd()).map_err(Failure::local)?;
        }
    }
    let trust = match config.secure.is_empty() && !Trust::is_there() {
        true => None,
        false => Some(Trust::open()?),
    };
    let tools = Tools {
        manager: Manager::from_environment().map_err(Failure::local)?,
        broker,
        workshop,
        trust,
        nearby: Nearby::start().inspect_err(|error| warn!(%error, "nothing will be announced")).ok(),
        hotplug: Hotplug::new().inspect_err(|error| info!(%error, "what is plugged in is seen a little later")).ok(),
        passed: activation::listeners().map_err(Failure::local)?.into_iter().map(Listener::passed).collect(),
        devices: legacy.as_ref().map(|inheritance| inheritance.legacy.devices.clone()).unwrap_or_default(),
    };
    if !no_sandbox {
        let state = tools.trust.as_ref().map(|trust| trust.folder().path().to_owned());
        give_rights_away(&Needs { readable: vec!["/sys".into()], state, ..Needs::default() })?;
    }
    let desk = Arc::new(Desk::new(path, tools).map_err(Failure::local)?);
    if let Some(Inheritance { passage, legacy, nodes }) = legacy {
        // Our other half has them.
        drop(nodes);
        take_over(&desk, passage, &legacy)?;
    }
    let result = desk.read().and_then(|config| desk.apply(config));
    desk.settle();
    if let Err(failure) = result {
        desk.stop();
        return Err(failure);
    }
    let for_door = Arc::clone(&desk);
    door.open(knocks, move |question| for_door.answer(question)).map_err(Failure::local)?;
    tick(&desk).map_err(Failure::local)?;
    join(&desk).map_err(Failure::local)?;
    for address in desk.unused() {
        warn!(%address, "a socket was passed that the configuration does not name: nobody answers there");
    }
    for (place, is_secure) in desk.places() {
        let to_whom = if is_secure { " for paired hosts, encrypted" } else { "" };
        say(format!("listening on {}{to_whom}   (Ctrl-C ends)", place.as_host()));
    }
    desk.manager().ready(&desk.summary());
    let handle = signals.handle();
    desk.on_handed_over(move || handle.close());
    for signal in signals.forever() {
        match signal {
            // What went wrong was logged, and what was there is still there.
            SIGHUP => drop(desk.reload()),
            SIGUSR2 => match desk.hand_over(false) {
                Ok(_) => break,
                Err(failure) => warn!("not restarted: {failure}"),
            },
            _ => break,
        }
    }
    if !desk.is_handed_over() {
        desk.manager().stopping();
    }
    info!("ending");
    match desk.stop() {
        true => Ok(()),
        false => Err(Failure::local("a device did not become durable in time; its last writes may be lost")),
    }
}

/// Goes on with what another process had: with what is attached at once, with the rest when that process has ended.
fn take_over(desk: &Desk, passage: Passage, legacy: &Legacy) -> Result<(), Failure> {
    let forerunner = Forerunner::new(passage);
    let config = desk.read()?;
    let inherited =
        forerunner.inherit(&config, desk.workshop(), desk.hands(), &legacy.ports, &|saved| desk.take_session(saved));
    desk.inherit(inherited.map_err(|error| Failure::local(format!("not needed: {error}")))?);
    forerunner.wait_for_end();
    Ok(())
}

/// Brings links between hosts up, and keeps them so.
fn join(desk: &Arc<Desk>) -> io::Result<()> {
    let desk = Arc::clone(desk);
    let keep = move || {
        while desk.joining().wait() {
            desk.join();
        }
    };
    thread::Builder::new().name("topology".into()).spawn(keep).map(drop)
}

/// Looks after things as long as the process lives.
fn tick(desk: &Arc<Desk>) -> io::Result<()> {
    let desk = Arc::clone(desk);
    let pause = desk.manager().watchdog().map_or(TICK, |watchdog| (watchdog / 2).min(TICK));
    thread::Builder::new().name("tick".into()).spawn(move || {
        loop {
            thread::sleep(pause);
            // Takes the locks that a question takes: a daemon that is stuck does not say that it lives.
            desk.try_again();
            desk.manager().alive();
        }
    })?;
    Ok(())
}
