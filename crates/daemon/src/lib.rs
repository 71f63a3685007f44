//! # The daemon: shares and attaches what its configuration says
//!
//! **This crate is** what `farbus daemon` does: it keeps shares and attachments as its configuration says, answers its
//! owner, says in the directory what it has, and hands over to a replacement after an upgrade.
//!
//! **It may touch** the configuration, signals and the service manager; sockets and devices through the library.
//!
//! **It never touches** a session's bytes, nor the terminal: what it has is asked for on its control socket.
//!
//! **Start reading at** `supervisor.rs` (what is wanted and what is there), then `handover.rs`.
//!
//! **Why** a crate: a host that shares one device by hand needs none of it.

mod attachment;
mod config;
pub mod directory;
#[cfg(test)]
#[path = "../../wire/tests/fuzzing/mod.rs"]
mod fuzzing;
mod handover;
mod listening;
mod modules;
mod owner_shares;
mod page;
pub mod planned;
mod requested;
mod spec;
mod supervisor;
mod topology_links;
mod topology_plan;

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use farbus::broker::confined::{give_rights_away, report_protection, start_broker};
use farbus::broker::{BrokerPolicy, HandoverState, ReplacementStart, handover_state};
use farbus::hosts::mdns::MdnsProcess;
use farbus::hosts::trust::TrustStore;
use farbus_control::failure::CommandFailure;
use farbus_io_linux::service::ServiceNotifier;
use farbus_io_linux::sys::activation;
use farbus_io_linux::sys::confine::ConfinementNeeds;
use farbus_io_linux::sys::startup_memory;
use farbus_io_linux::sys::writeback::protect_writeback_path;
use farbus_io_linux::usb::HotplugMonitor;
use farbus_io_net::link::TcpLinkListener;
use farbus_io_net::local::control_socket::ControlSocket;
use farbus_io_net::sys::passing::MessageSocket;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR2};
use signal_hook::iterator::Signals;
use tracing::{info, warn};

use config::DaemonConfig;
use handover::PredecessorPassage;
use modules::ReadyModules;
use supervisor::{DaemonResources, Supervisor};

/// How often the daemon retries what failed and reports to the watchdog that it lives.
const TICK: Duration = Duration::from_secs(2);

/// How a daemon is to run.
#[derive(Clone, Debug)]
pub struct DaemonOptions {
    /// The configuration file.
    pub config: PathBuf,
    /// Whether the process keeps the rights it was started with.
    pub no_sandbox: bool,
    /// Whether it is the replacement of another process, which passes on what it has.
    pub take_over: bool,
}

/// A parsed configuration and its modules, which were opened while the process had its rights.
pub struct LoadedConfig {
    config: DaemonConfig,
    ready_modules: ReadyModules,
}

impl LoadedConfig {
    /// Reads a configuration and opens the modules that it names.
    ///
    /// # Errors
    /// [`CommandFailure`]: what is wrong with it, and where.
    pub fn read(path: &Path) -> Result<Self, CommandFailure> {
        let config = DaemonConfig::read(path).map_err(CommandFailure::local)?;
        let ready_modules = ReadyModules::open(&config)?;
        Ok(Self { config, ready_modules })
    }

    /// The configuration in one line.
    pub fn summary(&self) -> String {
        let DaemonConfig { shares, rules, attachments, listen, secure, .. } = &self.config;
        format!(
            "{} shared, {} rules, {} attachments, listening at {} addresses",
            shares.len(),
            rules.len(),
            attachments.len(),
            listen.len() + secure.len()
        )
    }
}

/// Checks a text that is to become the configuration `path`.
///
/// # Errors
/// What is wrong with it, and where.
pub fn check_config(path: &Path, text: &str) -> Result<(), CommandFailure> {
    DaemonConfig::parse_file(path, text).map(drop).map_err(CommandFailure::local)
}

/// Reads a configuration for the broker.
///
/// # Errors
/// What is wrong with it, and where.
pub fn read_config(path: &Path) -> io::Result<(String, BrokerPolicy)> {
    let text = fs::read_to_string(path).map_err(|error| io::Error::other(format!("{}: {error}", path.display())))?;
    let text = DaemonConfig::complete(path, text)?;
    let config = DaemonConfig::parse_file(path, &text).map_err(io::Error::other)?;
    Ok((text, config.broker_policy()))
}

/// The arguments of this process's replacement.
fn replacement(options: &DaemonOptions) -> Vec<String> {
    // Without a path in UTF-8 the daemon cannot be replaced.
    let Some(config) = options.config.to_str() else { return Vec::new() };
    let mut words: Vec<String> = ["daemon", "--take-over", "--config", config].map(str::to_owned).into();
    words.extend(options.no_sandbox.then(|| "--no-sandbox".to_owned()));
    words
}

/// Shares and attaches what a configuration says until a signal or a handover ends the process. Passes a line for each
/// listening address to `tell`.
///
/// # Errors
/// [`CommandFailure`]: it could not begin, or a device may not be durable.
pub fn serve(options: DaemonOptions, ready: LoadedConfig, tell: impl Fn(String)) -> Result<(), CommandFailure> {
    let LoadedConfig { config, ready_modules } = ready;
    let handover_state = if options.take_over { Some(handover_state().map_err(CommandFailure::local)?) } else { None };
    let replacement = replacement(&options);
    let DaemonOptions { config: path, no_sandbox, .. } = options;
    // Threads inherit what is granted here, so it comes before any thread. Attachments may be configured later, when it
    // cannot be granted any more.
    let protection = protect_writeback_path();
    if !config.attachments.is_empty() {
        report_protection(&protection);
    }
    let signals = Signals::new([SIGHUP, SIGINT, SIGTERM, SIGUSR2]).map_err(CommandFailure::local)?;
    let (control_socket, control_listener) = ControlSocket::bind().map_err(CommandFailure::local)?;
    let config_path = path.canonicalize().map_err(CommandFailure::local)?;
    let policy = BrokerPolicy {
        remove: vec![control_socket.path().to_owned()],
        replacement,
        config: Some(config_path.clone()),
        ..handover_state.as_ref().map_or_else(BrokerPolicy::default, |start| inherited(&start.handover_state))
    };
    let broker = Arc::new(start_broker(&policy)?);
    if let Some(start) = &handover_state {
        for (&(bus, device), node) in start.handover_state.devices.iter().zip(&start.nodes) {
            broker.inherit_usb(bus, device, node.as_fd()).map_err(CommandFailure::local)?;
        }
    }
    // Attaching needs the list of paired hosts. A confined process cannot tell an empty list from a folder that it may
    // not read, so the folder is created here.
    let trust = match TrustStore::open() {
        Ok(trust) => Some(trust),
        Err(error) if config.secure.is_empty() => {
            info!(%error, "no paired host is served or attached");
            None
        }
        Err(error) => return Err(error.into()),
    };
    let tools = DaemonResources {
        config_path,
        manager: ServiceNotifier::from_environment().map_err(CommandFailure::local)?,
        broker,
        ready_modules,
        trust,
        nearby: MdnsProcess::start().inspect_err(|error| warn!(%error, "nothing will be announced")).ok(),
        hotplug: HotplugMonitor::new()
            .inspect_err(|error| info!(%error, "what is plugged in is seen a little later"))
            .ok(),
        passed: activation::listeners()
            .map_err(CommandFailure::local)?
            .into_iter()
            .map(TcpLinkListener::passed)
            .collect(),
        devices: handover_state.as_ref().map(|start| start.handover_state.devices.clone()).unwrap_or_default(),
    };
    if !no_sandbox {
        let state =
            tools.trust.as_ref().map(|trust| trust.folder().hand_over()).transpose().map_err(CommandFailure::local)?;
        give_rights_away(&ConfinementNeeds { readable: vec!["/sys".into()], state, ..ConfinementNeeds::default() })?;
    }
    let supervisor = Arc::new(Supervisor::new(path, tools).map_err(CommandFailure::local)?);
    if let Some(ReplacementStart { passage, handover_state, nodes }) = handover_state {
        // The broker has them.
        drop(nodes);
        take_over(&supervisor, passage, &handover_state)?;
    }
    let result = supervisor.read().and_then(|config| supervisor.apply(config));
    supervisor.settle();
    if let Err(failure) = result {
        supervisor.stop();
        return Err(failure);
    }
    // Before the first question: it may be that of a replacement.
    let ending = signals.handle();
    supervisor.on_handed_over(move || ending.close());
    let for_control_socket = Arc::clone(&supervisor);
    control_socket
        .open(control_listener, move |question, files| for_control_socket.answer(question, files))
        .map_err(CommandFailure::local)?;
    tick(&supervisor).map_err(CommandFailure::local)?;
    join(&supervisor).map_err(CommandFailure::local)?;
    for address in supervisor.unused() {
        warn!(%address, "a socket was passed that the configuration does not name: nobody answers there");
    }
    for (location, is_secure) in supervisor.locations() {
        let to_whom = if is_secure { " for paired hosts, encrypted" } else { "" };
        tell(format!("listening on {}{to_whom}   (Ctrl-C ends)", location.as_host()));
    }
    startup_memory::give_back();
    // And what the last steps of the start need.
    startup_memory::give_back_soon();
    supervisor.manager().ready(&supervisor.summary());
    wait_for_end(&supervisor, signals);
    if !supervisor.is_handed_over() {
        supervisor.manager().stopping();
    }
    info!("ending");
    match supervisor.stop() {
        true => Ok(()),
        false => Err(CommandFailure::local("a device did not become durable in time; its last writes may be lost")),
    }
}

/// What the broker of a replacement permits from the start: what the process before it had.
fn inherited(state: &HandoverState) -> BrokerPolicy {
    BrokerPolicy {
        ports: state.ports.clone(),
        mounted: state.mounts.clone(),
        identity_secret: state.identity_secret.clone(),
        known_usb: state.known_usb.clone(),
        identified_usb: state.identified_usb.clone(),
        ..BrokerPolicy::default()
    }
}

/// Does what signals ask for, until one ends this process or another one continues.
fn wait_for_end(supervisor: &Supervisor, mut signals: Signals) {
    for signal in signals.forever() {
        match signal {
            // `reload` has logged the error; what ran continues.
            SIGHUP => drop(supervisor.reload()),
            SIGUSR2 => match supervisor.hand_over(false) {
                Ok(_) => break,
                Err(failure) => warn!("not restarted: {failure}"),
            },
            _ => break,
        }
    }
}

/// Continues what another process had: the attachments at once, the rest when that process has ended.
fn take_over(
    supervisor: &Supervisor,
    passage: MessageSocket,
    handover_state: &HandoverState,
) -> Result<(), CommandFailure> {
    let predecessor = PredecessorPassage::new(passage);
    let config = supervisor.read()?;
    let inherited = predecessor
        .inherit(&config, &supervisor.keeping(), &handover_state.ports, &|saved| supervisor.take_session(saved));
    supervisor.inherit(inherited.map_err(|error| CommandFailure::local(format!("not needed: {error}")))?);
    predecessor.wait_for_end();
    Ok(())
}

/// Starts the thread that brings up the links between hosts and keeps them up.
fn join(supervisor: &Arc<Supervisor>) -> io::Result<()> {
    let supervisor = Arc::clone(supervisor);
    let keep = move || {
        while supervisor.joining().wait() {
            supervisor.join();
        }
    };
    thread::Builder::new().name("topology".into()).spawn(keep).map(drop)
}

/// Starts the thread that retries and reports to the watchdog as long as the process lives.
fn tick(supervisor: &Arc<Supervisor>) -> io::Result<()> {
    let supervisor = Arc::clone(supervisor);
    let pause = supervisor.manager().watchdog().map_or(TICK, |watchdog| (watchdog / 2).min(TICK));
    thread::Builder::new().name("tick".into()).spawn(move || {
        loop {
            thread::sleep(pause);
            // `try_again` takes the locks that a question takes, so a daemon that is stuck does not report that it
            // lives.
            supervisor.try_again();
            supervisor.manager().alive();
        }
    })?;
    Ok(())
}
