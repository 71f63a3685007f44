//! `farbus daemon`.

mod attachment;
mod config;
mod desk;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use farbus_io::link::Listener;
use farbus_io::service::Manager;
use farbus_io::sys::activation;
use farbus_io::sys::confine::Needs;
use farbus_io::sys::writeback::protect_writeback_path;
use farbus_io::usb::Hotplug;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tracing::{info, warn};

use super::Failure;
use super::attach::report_protection;
use super::confined::{give_rights_away, start_broker};
use super::output::say;
use crate::broker::Mandate;
use crate::client::Attribute;
use crate::control::{Answer, Door, Question, ask_all};
use crate::nearby::Nearby;
use crate::trust::Trust;
use config::Config;
use desk::{Desk, Tools};

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
    farbus daemon reload            read it again; sessions of what stays go on (so does SIGHUP)\n\n\
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
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Let the running daemon read its configuration again.
    Reload,
}

pub fn run(args: Args) -> Result<(), Failure> {
    if let Some(Verb::Reload) = args.verb {
        return reload();
    }
    let config = Config::read(&args.config).map_err(Failure::local)?;
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
    serve(args.config, &config, args.no_sandbox)
}

fn reload() -> Result<(), Failure> {
    for (_, answer) in ask_all(&Question::Reload).map_err(Failure::local)? {
        match answer {
            Answer::Ok(changes) => {
                let words = |of: &str| -> Vec<String> {
                    let names = changes[of].as_array().into_iter().flatten();
                    names.filter_map(|name| name.as_str().map(str::to_owned)).collect()
                };
                let (added, removed) = (words("added"), words("removed"));
                say(match added.is_empty() && removed.is_empty() {
                    true => "reloaded: nothing changed".to_owned(),
                    false => format!("reloaded: added [{}], removed [{}]", added.join(", "), removed.join(", ")),
                });
                return Ok(());
            }
            Answer::Unknown => {}
            Answer::Refused(why) => return Err(Failure::new(Attribute::Refused, why)),
            Answer::Failed(failure) => return Err(Failure::new(failure.attribute, failure.message)),
        }
    }
    Err(Failure::new(Attribute::Gone, "no daemon of yours runs here\n  start one: farbus daemon --config FILE"))
}

/// What the half that keeps the rights reads in a configuration.
///
/// # Errors
/// What is wrong with it, and where.
pub fn read_config(path: &Path) -> io::Result<(String, Mandate)> {
    let text = fs::read_to_string(path).map_err(|error| io::Error::other(format!("{}: {error}", path.display())))?;
    let config = Config::parse_file(path, &text).map_err(io::Error::other)?;
    Ok((text, config.mandate()))
}

fn serve(path: PathBuf, config: &Config, no_sandbox: bool) -> Result<(), Failure> {
    // Before any thread: what is granted here is inherited. An attachment may be asked for later, when it is not granted any more.
    let protection = protect_writeback_path();
    if !config.attachments.is_empty() {
        report_protection(&protection);
    }
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM]).map_err(Failure::local)?;
    let (door, knocks) = Door::hang().map_err(Failure::local)?;
    let mandate = Mandate {
        remove: vec![door.path().to_owned()],
        config: Some(path.canonicalize().map_err(Failure::local)?),
        ..Mandate::default()
    };
    let broker = Arc::new(start_broker(&mandate)?);
    let trust = match config.secure.is_empty() && !Trust::is_there() {
        true => None,
        false => Some(Trust::open()?),
    };
    let tools = Tools {
        manager: Manager::from_environment().map_err(Failure::local)?,
        broker,
        trust,
        nearby: Nearby::start().inspect_err(|error| warn!(%error, "nothing will be announced")).ok(),
        hotplug: Hotplug::new().inspect_err(|error| info!(%error, "what is plugged in is seen a little later")).ok(),
        passed: activation::listeners().map_err(Failure::local)?.into_iter().map(Listener::passed).collect(),
    };
    if !no_sandbox {
        let state = tools.trust.as_ref().map(|trust| trust.folder().path().to_owned());
        give_rights_away(&Needs { readable: vec!["/sys".into()], state, ..Needs::default() })?;
    }
    let desk = Arc::new(Desk::new(path, tools).map_err(Failure::local)?);
    let result = desk.read().and_then(|config| desk.apply(config));
    if let Err(failure) = result {
        desk.stop();
        return Err(failure);
    }
    let for_door = Arc::clone(&desk);
    door.open(knocks, move |question| for_door.answer(question)).map_err(Failure::local)?;
    tick(&desk).map_err(Failure::local)?;
    for address in desk.unused() {
        warn!(%address, "a socket was passed that the configuration does not name: nobody answers there");
    }
    for (address, is_secure) in desk.addresses() {
        let to_whom = if is_secure { " for paired hosts, encrypted" } else { "" };
        say(format!("listening on {address}{to_whom}   (Ctrl-C ends)"));
    }
    desk.manager().ready(&desk.summary());
    for signal in signals.forever() {
        if signal != SIGHUP {
            break;
        }
        // What went wrong was logged, and what was there is still there.
        let _ = desk.reload();
    }
    desk.manager().stopping();
    info!("ending");
    match desk.stop() {
        true => Ok(()),
        false => Err(Failure::local("a device did not become durable in time; its last writes may be lost")),
    }
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
