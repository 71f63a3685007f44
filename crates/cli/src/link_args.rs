//! The options of the way to a device's host, which are the same for everything that takes a device.

use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use farbus::broker::SystemAccess;
use farbus::exporter::session::threads::GRACE_MAX;
use farbus::frontend::hold::limit_of;
use farbus::importer::client::{ClientConfig, ClientError, ImporterClient};
use farbus::importer::options::transport::LinkTransport;
use farbus::link::modules::recipe;
use farbus_io_net::link::host_address::check_host;
use farbus_io_net::link::silence_limit_of;
use farbus_model::limits::LANES_MAX;
use farbus_modules::ModuleSpec;

use super::CommandFailure;

/// How a device's host is reached.
#[derive(Debug, clap::Args)]
pub struct LinkArgs {
    /// How long to wait for a lost link.
    ///
    /// Requests wait, and continue over the next link. 0: the device is lost with its link, which is the default with
    /// hosts that are not paired. Otherwise the default is 20 where the kernel or a virtual machine drives the device,
    /// and 60 elsewhere. 120 at most. The exporter has to be a farbus.
    #[arg(long, value_name = "SECONDS")]
    pub grace: Option<u64>,
    /// Links of the session, 1 to 8.
    ///
    /// For long or lossy paths, on which one link is slow. What a disk or a bulk endpoint moves is spread over the
    /// links; control, interrupt and isochronous transfers stay on the first. If a link is cut, the others continue.
    /// The exporter has to be a farbus.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=i64::from(LANES_MAX)))]
    pub links: u16,
    /// What links are made of.
    ///
    /// 'quic' is for networks that lose many packets or change their address. It needs a paired host.
    #[arg(long, value_name = "WAY", default_value = LinkTransport::Tcp.as_str(), value_parser = over())]
    pub over: LinkTransport,
    /// Pass everything through a module.
    ///
    /// NAME[:KEY=VALUE,…]: compression, encryption, faults; see 'farbus module list'. May be given several times: the
    /// first is next to the device's user. The exporter undoes them in reverse order.
    #[arg(long, value_name = "NAME")]
    pub module: Vec<ModuleSpec>,
    /// Where the paired host is now.
    ///
    /// HOST[:PORT]. farbus remembers it after the host has proved its key there.
    #[arg(long, value_name = "HOST", value_parser = check_host)]
    pub address: Option<String>,
}

/// How long a device that moves may wait.
///
/// # Errors
/// What is wrong with the words.
pub fn hold_from(seconds: &str) -> Result<Duration, String> {
    limit_of(seconds.parse().map_err(|_| format!("'{seconds}' is no number of seconds"))?)
}

/// Reads how long a plain connection may be silent, in seconds.
///
/// # Errors
/// What is wrong with the words.
pub fn silence_from(seconds: &str) -> Result<Duration, String> {
    silence_limit_of(seconds.parse().map_err(|_| format!("'{seconds}' is no number of seconds"))?)
}

/// A parser for what links are made of, with the words for the help.
fn over() -> impl TypedValueParser<Value = LinkTransport> {
    let help = |over: &LinkTransport| match over {
        LinkTransport::Tcp => "TLS over TCP",
        LinkTransport::Quic => "QUIC: for networks that lose much, or change their address",
    };
    let values = LinkTransport::ALL.iter().map(|over| PossibleValue::new(over.as_str()).help(help(over)));
    PossibleValuesParser::new(values).try_map(|word| word.parse::<LinkTransport>())
}

impl LinkArgs {
    /// For how long a session keeps its device after it lost its last link, if that was said.
    pub fn grace(&self) -> Option<Duration> {
        let grace = self.grace.map(Duration::from_secs);
        if grace.is_some_and(|grace| grace > GRACE_MAX) {
            eprintln!(
                "farbus: warning: exporters wait {} s for a link that was lost, and no longer",
                GRACE_MAX.as_secs()
            );
        }
        grace
    }

    /// The words that say the same to another command.
    pub fn words(&self) -> Vec<String> {
        let grace = self.grace.map(|grace| format!("--grace={grace}"));
        let address = self.address.as_ref().map(|address| format!("--address={address}"));
        let modules = self.module.iter().map(|module| format!("--module={module}"));
        let links = [format!("--links={}", self.links), format!("--over={}", self.over.as_str())];
        grace.into_iter().chain(address).chain(modules).chain(links).collect()
    }

    /// The options of a client that has no others.
    ///
    /// # Errors
    /// A module's options are wrong.
    pub fn config(&self) -> Result<ClientConfig, CommandFailure> {
        let modules = recipe(&self.module).map_err(CommandFailure::local)?;
        Ok(ClientConfig {
            grace: self.grace(),
            links: self.links,
            transport: self.over,
            modules,
            ..ClientConfig::default()
        })
    }

    /// A client for a host, which is where its record says, or `--address`.
    ///
    /// # Errors
    /// [`ClientError`]: the host's record cannot be read, or `--address` is given for a host that is not paired.
    pub fn client(
        &self,
        host: &str,
        system: SystemAccess,
        config: ClientConfig,
    ) -> Result<ImporterClient, ClientError> {
        match &self.address {
            Some(moved) => ImporterClient::for_host_at(host, moved, system, config),
            None => ImporterClient::for_host(host, system, config),
        }
    }
}
