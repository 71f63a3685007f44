//! `farbus page`.

use std::net::SocketAddr;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tokio::sync::oneshot;

use super::Failure;
use super::output::say;
use crate::page::{Place, serve};

/// Show on a page, to you alone, what is shared and attached here.
///
/// For a browser of this machine, until Ctrl-C. The page follows what happens and changes nothing. Other users of this
/// machine are refused, and so are pages of other sites. /metrics is for Prometheus, /api/v1/status has what 'farbus
/// status --json' prints, and /healthz says 'ok' to everybody.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  farbus page\n  farbus page --listen 127.0.0.1:8080\n  farbus page --socket\n  \
    curl http://127.0.0.1:7240/metrics")]
pub struct Args {
    /// Address of the loopback.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7240", value_parser = loopback)]
    listen: SocketAddr,
    /// Answer at a socket in your runtime folder, and at no port.
    #[arg(long, conflicts_with = "listen")]
    socket: bool,
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
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(Failure::local)?;
    let (tell_end, end) = oneshot::channel();
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            signals.forever().next();
            // Nobody waits if the page has ended by itself.
            let _ = tell_end.send(());
        })
        .map_err(Failure::local)?;
    let place = if args.socket { Place::Socket } else { Place::Loopback(args.listen) };
    serve(place, |place| say(format!("page at {place}   (Ctrl-C ends)")), async {
        let _ = end.await;
    })
}
