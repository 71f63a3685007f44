//! `farbus page`.

#[cfg(test)]
#[path = "../../../page/src/api/action_examples.rs"]
mod action_examples;
pub mod hosts;
mod invite;
mod token;

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;

use farbus::common::page_address::{NAMES_MAX, site_name, tls_address};
use farbus_io_net::sys::passing::MessageSocket;
use farbus_page::{PageAddress, PageLocation, PageSettings, serve};
#[cfg(test)]
use farbus_page::{actions, table};
use serde_json::{Value, json};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tokio::sync::mpsc;

use super::CommandFailure;
use super::output::say;

/// Show on a page, to you alone, what is shared and attached here.
///
/// For a browser of this machine, until Ctrl-C. The page follows what happens, and does what you click, by the command
/// that it shows. Other users of this machine are refused, and so are pages of other sites. /metrics is for
/// Prometheus, /api/v1 for programs, and /healthz says 'ok' to everybody. With --tls it is for browsers of other
/// machines, too: each is let in by a code ('farbus page invite').
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  farbus page\n  farbus page --listen 127.0.0.1:8080\n  farbus page --socket\n  \
    farbus page --tls 0.0.0.0:7241\n  curl http://127.0.0.1:7240/metrics")]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    verb: Option<PageVerb>,
    /// Address of the loopback.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7240", value_parser = loopback)]
    listen: SocketAddr,
    /// Answer at a socket in your runtime folder, and at no port.
    #[arg(long, conflicts_with = "listen")]
    socket: bool,
    /// Address for browsers of other machines, which come over TLS and with a code: 0.0.0.0:7241, for example.
    #[arg(long, value_name = "ADDRESS", value_parser = tls_address)]
    tls: Option<SocketAddr>,
    /// A name or address under which these browsers ask for the page; repeated for further ones. Without it: this
    /// machine's name and addresses.
    #[arg(long = "name", value_name = "NAME", value_parser = site_name, requires = "tls")]
    names: Vec<String>,
    /// Keep the rights of the user who started it also where it reads what clients send.
    #[arg(long)]
    no_sandbox: bool,
    /// It is a daemon's: it ends with its standard input, and says there where it is.
    #[arg(long, hide = true)]
    of_daemon: bool,
}

#[derive(Debug, clap::Subcommand)]
enum PageVerb {
    Invite(invite::InviteArgs),
    Token(token::TokenArgs),
}

impl Args {
    /// Whether the output is JSON.
    pub fn is_for_programs(&self) -> bool {
        match &self.verb {
            Some(PageVerb::Token(args)) => args.is_for_programs(),
            Some(PageVerb::Invite(args)) => args.is_for_programs(),
            None => false,
        }
    }
}

/// Parses an address of the loopback.
///
/// # Errors
/// A sentence for a person.
pub fn loopback(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr = text.parse().map_err(|_| format!("'{text}' is no ADDRESS:PORT"))?;
    match address.ip().is_loopback() {
        true => Ok(address),
        false => Err(format!(
            "{address} is no address of the loopback\n  browsers of other machines come over TLS: --tls {address}"
        )),
    }
}

pub fn run(args: &Args) -> Result<(), CommandFailure> {
    match &args.verb {
        Some(PageVerb::Token(args)) => return token::run(args),
        Some(PageVerb::Invite(args)) => return invite::run(args),
        None => {}
    }
    if args.names.len() > NAMES_MAX {
        return Err(CommandFailure::local(format!("a page has {NAMES_MAX} names at most")));
    }
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(CommandFailure::local)?;
    let (tell_end, mut end) = mpsc::channel(1);
    let on_signal = tell_end.clone();
    let wait = move || {
        signals.forever().next();
        // Nobody waits if the page has ended by itself, or ends already.
        let _ = on_signal.try_send(());
    };
    std::thread::Builder::new().name("signals".into()).spawn(wait).map_err(CommandFailure::local)?;
    let address = if args.socket { PageAddress::Socket } else { PageAddress::Loopback(args.listen) };
    let (tls, names) = (args.tls, args.names.clone());
    let settings = PageSettings { address, tls, names, is_sandboxed: !args.no_sandbox };
    let end = async {
        end.recv().await;
    };
    if !args.of_daemon {
        return serve(settings, say_where, end);
    }
    let daemon = DaemonLine::open(tell_end)?;
    let tell = |PageLocation { at, elsewhere }: PageLocation| {
        let elsewhere = elsewhere.map(|(url, fingerprint)| json!({ "url": url, "fingerprint": fingerprint }));
        daemon.say(&json!({ "at": at, "elsewhere": elsewhere }));
    };
    serve(settings, tell, end).inspect_err(|failure| daemon.say(&json!({ "failure": failure.to_string() })))
}

/// Says where the page is, and how a browser of another machine knows it.
fn say_where(PageLocation { at, elsewhere }: PageLocation) {
    say(format!("page at {at}   (Ctrl-C ends)"));
    if let Some((url, fingerprint)) = elsewhere {
        say(format!("for browsers of other machines at {url}   (let one in: farbus page invite)"));
        say(format!("  certificate SHA-256 {fingerprint}"));
    }
}

/// The line to the daemon that had this page started.
struct DaemonLine(Arc<MessageSocket>);

impl DaemonLine {
    /// The line at standard input. Its end is told to `tell_end`.
    fn open(tell_end: mpsc::Sender<()>) -> Result<Self, CommandFailure> {
        let passage = io::stdin().as_fd().try_clone_to_owned().map(MessageSocket::over);
        let passage = Arc::new(passage.map_err(CommandFailure::local)?);
        let heard = Arc::clone(&passage);
        let wait = move || {
            while let Ok(Some(_)) = heard.receive() {}
            let _ = tell_end.try_send(());
        };
        std::thread::Builder::new().name("daemon".into()).spawn(wait).map_err(CommandFailure::local)?;
        Ok(Self(passage))
    }

    fn say(&self, what: &Value) {
        // If the daemon has ended, so does the page.
        let _ = self.0.send(what.to_string().as_bytes(), None);
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::FarbusCli;
    use super::action_examples::examples;

    #[test]
    fn every_action_is_a_command_line_that_farbus_takes() {
        let mut refused = Vec::new();
        for command in examples() {
            let typed = std::iter::once("farbus".to_owned()).chain(command.arguments());
            refused.extend(FarbusCli::try_parse_from(typed).err().map(|error| format!("{}: {error}", command.line())));
        }
        assert!(refused.is_empty(), "{}", refused.join("\n"));
    }
}
