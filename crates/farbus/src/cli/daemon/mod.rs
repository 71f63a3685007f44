//! `farbus daemon`.

mod attachment;
mod config;
mod desk;
mod real;

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use farbus_io::link::{Interest, Listener, wait};
use farbus_io::service::Manager;
use farbus_io::sys::activation;
use farbus_io::sys::writeback::protect_writeback_path;
use farbus_io::usb::Hotplug;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tracing::{info, warn};

use super::Failure;
use super::attach::report_protection;
use super::output::say;
use crate::client::Attribute;
use crate::control::{Answer, Door, Question, ask_all};
use crate::share::Share;
use config::Config;
use desk::Desk;

/// How often it looks after what could not be had, and says that it lives.
const TICK: Duration = Duration::from_secs(2);

/// Share and attach what a configuration file says, and keep it so.
#[derive(Debug, clap::Args)]
#[command(after_help = "The file is TOML; packaging/farbus.toml shows all of it:\n\n  \
    [plain]                                   where plain USB/IP is served\n  \
    listen = [\"127.0.0.1:3240\"]               the default; another address needs:\n  \
    allow = [\"192.0.2.0/24\"]                  who may connect\n  \
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
            config.listen.len()
        ));
        return Ok(());
    }
    serve(args.config, config)
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

fn serve(path: PathBuf, config: Config) -> Result<(), Failure> {
    if !config.attachments.is_empty() {
        // Before any thread: what is granted here is inherited.
        report_protection(&protect_writeback_path());
    }
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM]).map_err(Failure::local)?;
    let manager = Manager::from_environment().map_err(Failure::local)?;
    let passed = activation::listeners().map_err(Failure::local)?.into_iter().map(Listener::passed).collect();
    let desk = Arc::new(Desk::new(path, Share::default(), manager, passed));
    let result = desk.apply(config);
    if let Err(failure) = result {
        desk.stop();
        return Err(failure);
    }
    let for_door = Arc::clone(&desk);
    let (door, knocks) = Door::hang().map_err(Failure::local)?;
    door.open(knocks, move |question| for_door.answer(question)).map_err(Failure::local)?;
    tick(&desk).map_err(Failure::local)?;
    for address in desk.unused() {
        warn!(%address, "a socket was passed that [plain] listen does not name: nobody answers there");
    }
    for address in desk.addresses() {
        say(format!("listening on {address}   (Ctrl-C ends)"));
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

/// Looks after things, at once when something is plugged in or pulled out, as long as the process lives.
fn tick(desk: &Arc<Desk>) -> std::io::Result<()> {
    let hotplug = Hotplug::new().inspect_err(|error| info!(%error, "what is plugged in is seen a little later")).ok();
    let desk = Arc::clone(desk);
    let pause = desk.manager().watchdog().map_or(TICK, |watchdog| (watchdog / 2).min(TICK));
    thread::Builder::new().name("tick".into()).spawn(move || {
        loop {
            wait_for_news(hotplug.as_ref(), pause);
            // Takes the locks that a question takes: a daemon that is stuck does not say that it lives.
            desk.try_again();
            desk.manager().alive();
        }
    })?;
    Ok(())
}

fn wait_for_news(hotplug: Option<&Hotplug>, pause: Duration) {
    let Some(hotplug) = hotplug else { return thread::sleep(pause) };
    let mut interests = [Interest::new(hotplug.as_fd(), false)];
    let has_news = wait(&mut interests, Some(pause)).and_then(|()| hotplug.has_changed());
    if has_news.is_err() {
        // Not at once again, whatever is wrong.
        thread::sleep(pause);
    }
}
