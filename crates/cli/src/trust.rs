//! Whom this host trusts: `id`, `pair`, `peers`, `unpair`.

use std::io::{BufRead, IsTerminal};
use std::net::{IpAddr, SocketAddr};

use farbus::common::listen_words::{everywhere, listen_address};
use farbus::hosts::pairing::{PairingProgress, announce_waiting, join, wait_for_host};
use farbus::hosts::trust::TrustStore;
use farbus_io_net::discovery::own_addresses;
use farbus_io_net::link::TcpLinkListener;
use farbus_io_net::link::host_address::{PAIRING_PORT, address_with_port, check_host};
use farbus_io_net::trust::{Fingerprint, PairingCode, Peer, name_from};
use serde::Serialize;

use super::CommandFailure;
use super::grants::{self, no_such_peer, of};
use super::output::{print_json, print_table, say, table};

/// Show this host's name and the fingerprint of its key.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "farbus makes the key when it first needs one, in $FARBUS_STATE, /var/lib/farbus (root) or ~/.local/state/farbus.\n\n\
    Examples:\n  farbus id\n  farbus id --json | jq -r .fingerprint"
)]
pub struct IdArgs {
    /// Print JSON, for programs.
    #[arg(long)]
    pub json: bool,
}

/// Make this host and another know each other, with a code.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A code is valid for one pairing. After three wrong tries farbus makes a new one; after nine it stops. Pairing alone permits nothing: see 'farbus allow'.\n\n\
    Examples:\n  farbus pair                    on one host: shows a code, waits 2 minutes\n  \
    farbus pair lab3 4821-0937     on the other: joins\n  \
    farbus pair --allow disk       and lets the other host use this host's 'disk'"
)]
pub struct PairArgs {
    /// HOST[:PORT] where 'farbus pair' waits; without it, wait here.
    #[arg(value_parser = check_host)]
    host: Option<String>,
    /// The code that it shows; without it, farbus asks for it.
    #[arg(requires = "host")]
    code: Option<PairingCode>,
    /// A name for the other host, used here.
    #[arg(long = "as", value_name = "NAME")]
    name: Option<String>,
    /// A device that the other host may use.
    ///
    /// By name, or 'all'. May be given several times.
    #[arg(long, value_name = "DEVICE")]
    allow: Vec<String>,
    /// Where to wait, ADDR[:PORT].
    ///
    /// The port is open only while this command waits.
    #[arg(long, value_name = "ADDR", conflicts_with = "host")]
    listen: Option<String>,
    /// Print a line of JSON for each event.
    #[arg(long)]
    pub json: bool,
}

/// Show the hosts that are paired with this one.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  farbus peers\n  farbus peers --json | jq '.[] | {name, allow}'")]
pub struct PeersArgs {
    /// Print JSON, for programs.
    #[arg(long)]
    pub json: bool,
}

/// Forget a paired host, and end its sessions.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The other host still knows this one until 'farbus unpair' is typed there, too.\n\nExamples:\n  farbus unpair lab3"
)]
pub struct UnpairArgs {
    /// Its name, as 'farbus peers' shows it.
    name: String,
    /// Print the result as JSON, for programs.
    #[arg(long)]
    pub json: bool,
}

/// How many addresses of its own `farbus pair` shows.
const ADDRESSES_SHOWN: usize = 4;

#[derive(Serialize)]
struct OwnIdentity<'a> {
    name: &'a str,
    fingerprint: Fingerprint,
}

pub fn id(args: &IdArgs) -> Result<(), CommandFailure> {
    let trust = TrustStore::open()?;
    if args.json {
        return print_json(&OwnIdentity { name: trust.name(), fingerprint: trust.fingerprint() });
    }
    say(format!("{}  {}", trust.name(), trust.fingerprint()));
    Ok(())
}

pub fn pair(args: &PairArgs) -> Result<(), CommandFailure> {
    let trust = TrustStore::open()?;
    let name = args.name.as_deref().map(name_from).transpose().map_err(CommandFailure::local)?;
    let name = name.as_deref();
    let peer = match &args.host {
        Some(host) => {
            let code = match &args.code {
                Some(code) => code.clone(),
                None => ask_for_code(host)?,
            };
            join(&trust, &address_of(host), &code, name, &args.allow)?
        }
        None => {
            let listener = listen(args.listen.as_deref())?;
            let address = listener.address().map_err(CommandFailure::local)?;
            let _announced = announce_waiting(&trust, address);
            wait_for_host(&trust, listener, name, &args.allow, |progress| show(&trust, address, args.json, &progress))?
        }
    };
    let peer = grants::bind(&trust, &peer.name, &args.allow)?.unwrap_or(peer);
    if args.json {
        say(serde_json::json!({ "paired": peer }));
        return Ok(());
    }
    say(format!("paired with {}  {}", peer.name, peer.fingerprint));
    let allowed = peer.allow.words().collect::<Vec<_>>().join(", ");
    if allowed.is_empty() {
        say(format!("  it may use nothing here yet:  farbus allow {} DEVICE…", peer.name));
    } else {
        say(format!("  it may use here: {allowed}"));
    }
    Ok(())
}

fn show(trust: &TrustStore, address: SocketAddr, json: bool, progress: &PairingProgress) {
    match progress {
        PairingProgress::Code(code) if json => {
            let (code, address, addresses) = (code.to_string(), address.to_string(), addresses_of(address));
            say(serde_json::json!({ "code": code, "address": address, "addresses": addresses }));
        }
        PairingProgress::WrongCode { from, tries_left } if json => {
            say(serde_json::json!({ "wrong_code": { "from": from.to_string(), "tries_left": tries_left } }));
        }
        PairingProgress::Code(code) => {
            let port = if address.port() == PAIRING_PORT { String::new() } else { format!(":{}", address.port()) };
            say(format!("code {code}   (2 minutes; Ctrl-C ends)"));
            say(format!("  on the other host:  farbus pair {}{port} {code}", trust.name()));
            let by_address = addresses_of(address).into_iter().map(|at| format!("farbus pair {at} {code}"));
            for line in by_address {
                say(format!("  or by address:      {line}"));
            }
            say(format!("  this host's key is {}", trust.fingerprint()));
        }
        PairingProgress::WrongCode { from, tries_left: 0 } => {
            say(format!("wrong code from {from}; that code is void now"))
        }
        PairingProgress::WrongCode { from, tries_left } => {
            say(format!("wrong code from {from}; {tries_left} more and the code is void"));
        }
    }
}

/// Where other hosts reach this one, as they type it. The first few: a machine may have very many.
fn addresses_of(listening: SocketAddr) -> Vec<String> {
    let all = match listening.ip().to_canonical() {
        ip if !ip.is_unspecified() => vec![ip],
        IpAddr::V4(_) => own_addresses().into_iter().filter(IpAddr::is_ipv4).collect(),
        IpAddr::V6(_) => own_addresses(),
    };
    let typed = |ip: IpAddr| match listening.port() {
        PAIRING_PORT => ip.to_string(),
        port => SocketAddr::new(ip, port).to_string(),
    };
    all.into_iter().take(ADDRESSES_SHOWN).map(typed).collect()
}

fn ask_for_code(host: &str) -> Result<PairingCode, CommandFailure> {
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        eprint!("code that {host} shows: ");
    }
    let mut line = String::new();
    stdin.lock().read_line(&mut line).map_err(CommandFailure::local)?;
    line.trim().parse().map_err(CommandFailure::local)
}

/// `HOST[:PORT]`, with the default port for pairing.
fn address_of(host: &str) -> String {
    address_with_port(host, PAIRING_PORT)
}

fn listen(address: Option<&str>) -> Result<TcpLinkListener, CommandFailure> {
    let addresses = match address {
        Some(address) => vec![listen_address(address, PAIRING_PORT)?],
        None => everywhere(PAIRING_PORT),
    };
    let mut last = None;
    for address in addresses {
        match TcpLinkListener::bind(address) {
            Ok(listener) => return Ok(listener),
            Err(error) => {
                last = Some(format!("cannot wait at {address}: {error}\n  choose another with --listen ADDR:PORT"))
            }
        }
    }
    Err(CommandFailure::local(last.unwrap_or_default()))
}

pub fn peers(args: &PeersArgs) -> Result<(), CommandFailure> {
    let peers = TrustStore::open()?.peers()?;
    if args.json {
        return print_json(&peers.iter().collect::<Vec<&Peer>>());
    }
    if peers.iter().next().is_none() {
        say("No host is paired with this one. Try: farbus pair");
        return Ok(());
    }
    let mut table = table(&["NAME", "MAY USE", "ADDRESS", "PAIRED", "KEY"]);
    for peer in peers.iter() {
        let words: Vec<_> = grants::words(peer).collect();
        let mut may = if words.is_empty() { "nothing".to_owned() } else { words.join(", ") };
        if !peer.reserve_high.is_empty() {
            may.push_str(&format!("; reserve high: {}", peer.reserve_high.words().collect::<Vec<_>>().join(", ")));
        }
        let day = peer.paired.split('T').next().unwrap_or_default().to_owned();
        let address = peer.address.clone().unwrap_or_default();
        table.add_row([peer.name.clone(), may, address, day, format!("{}…", peer.fingerprint.short())]);
    }
    print_table(&table);
    Ok(())
}

pub fn unpair(args: &UnpairArgs) -> Result<(), CommandFailure> {
    let trust = TrustStore::open()?;
    let Some(peer) = trust.change(|peers| peers.remove(&args.name))? else { return Err(no_such_peer(&args.name)) };
    trust.record(&of(&peer, "unpair"));
    if args.json {
        return print_json(&serde_json::json!({ "unpaired": peer }));
    }
    say(format!("{} is forgotten  {}", peer.name, peer.fingerprint));
    Ok(())
}
