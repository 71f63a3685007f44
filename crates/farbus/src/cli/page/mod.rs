//! `farbus page`.

mod token;

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;

use farbus_io::sys::passing::Passage;
use serde_json::{Value, json};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tokio::sync::mpsc;

use super::Failure;
use super::output::say;
use crate::page::{Place, serve};

/// Show on a page, to you alone, what is shared and attached here.
///
/// For a browser of this machine, until Ctrl-C. The page follows what happens, and does what you click, by the command
/// that it shows. Other users of this machine are refused, and so are pages of other sites. /metrics is for
/// Prometheus, /api/v1 for programs, and /healthz says 'ok' to everybody.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  farbus page\n  farbus page --listen 127.0.0.1:8080\n  farbus page --socket\n  \
    curl http://127.0.0.1:7240/metrics")]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    verb: Option<Verb>,
    /// Address of the loopback.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7240", value_parser = loopback)]
    listen: SocketAddr,
    /// Answer at a socket in your runtime folder, and at no port.
    #[arg(long, conflicts_with = "listen")]
    socket: bool,
    /// Keep the rights of the user who started it also where it reads what clients send.
    #[arg(long)]
    no_sandbox: bool,
    /// It is a daemon's: it ends with its standard input, and says there where it is.
    #[arg(long, hide = true)]
    of_daemon: bool,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    Token(token::TokenArgs),
}

impl Args {
    /// Whether the output is JSON.
    pub fn is_for_programs(&self) -> bool {
        matches!(&self.verb, Some(Verb::Token(args)) if args.is_for_programs())
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
        false => Err(format!("{address} is no address of the loopback, and the page is for this machine alone")),
    }
}

pub fn run(args: &Args) -> Result<(), Failure> {
    if let Some(Verb::Token(args)) = &args.verb {
        return token::run(args);
    }
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(Failure::local)?;
    let (tell_end, mut end) = mpsc::channel(1);
    let on_signal = tell_end.clone();
    let wait = move || {
        signals.forever().next();
        // Nobody waits if the page has ended by itself, or ends already.
        let _ = on_signal.try_send(());
    };
    std::thread::Builder::new().name("signals".into()).spawn(wait).map_err(Failure::local)?;
    let place = if args.socket { Place::Socket } else { Place::Loopback(args.listen) };
    let end = async {
        end.recv().await;
    };
    if !args.of_daemon {
        return serve(place, !args.no_sandbox, |place| say(format!("page at {place}   (Ctrl-C ends)")), end);
    }
    let daemon = DaemonLine::open(tell_end)?;
    serve(place, !args.no_sandbox, |place| daemon.say(&json!({ "at": place })), end)
        .inspect_err(|failure| daemon.say(&json!({ "failure": failure.to_string() })))
}

/// The line to the daemon that had this page started.
struct DaemonLine(Arc<Passage>);

impl DaemonLine {
    /// The line at standard input. Its end is told to `tell_end`.
    fn open(tell_end: mpsc::Sender<()>) -> Result<Self, Failure> {
        let passage = io::stdin().as_fd().try_clone_to_owned().map(Passage::over);
        let passage = Arc::new(passage.map_err(Failure::local)?);
        let heard = Arc::clone(&passage);
        let wait = move || {
            while let Ok(Some(_)) = heard.receive() {}
            let _ = tell_end.try_send(());
        };
        std::thread::Builder::new().name("daemon".into()).spawn(wait).map_err(Failure::local)?;
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

    use super::super::Cli;
    use crate::page::api::actions::tests::examples;

    #[test]
    fn every_action_is_a_command_line_that_farbus_takes() {
        for command in examples() {
            let typed = std::iter::once("farbus".to_owned()).chain(command.arguments());
            if let Err(error) = Cli::try_parse_from(typed) {
                panic!("{}: {error}", command.line());
            }
        }
    }
}
