//! The options of a client, and how they go together.

use std::time::Duration;

use farbus_modules::PipelineRecipe;
use farbus_session::reserve::ReservationTerms;

use super::error::ClientError;
use crate::importer::options::ahead::PrefetchMode as Prefetch;
use crate::importer::options::cache::DiskCacheMode;
use crate::importer::options::transport::LinkTransport as Transport;
use crate::importer::session::connection::SessionTerms;

pub use farbus_session::native::{HOLD, HOLD_MAX, HOLD_STORAGE_MAX};

/// The grace period of a USB device that this machine's kernel uses, where nothing else is configured.
///
/// Linux's usb-storage gives a command up after 30 s; until then the session has to have a new link, and the command
/// its answer.
pub const GRACE: Duration = Duration::from_secs(20);
/// The grace period of a device that farbus itself or a program drives, a disk shown by FUSE or NBD among them: no
/// timer of a kernel runs.
pub const GRACE_DISK: Duration = Duration::from_secs(60);

/// How an [`ImporterClient`](super::ImporterClient) takes devices.
///
/// ```
/// use std::time::Duration;
/// use farbus::client::{ClientConfig, ImporterClient};
///
/// let config = ClientConfig { grace: Some(Duration::from_secs(60)), ..ClientConfig::default() };
/// let client = ImporterClient::new(config);
/// ```
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// For how long a session keeps its device after it lost its last link. Zero takes devices by plain USB/IP, without
    /// a session, and a device is lost with its link. `None` means [`GRACE`] or [`GRACE_DISK`] where a session is
    /// possible: with paired hosts, at sockets of this machine, and where an option asks for one. Other hosts may not
    /// know farbus's own protocol.
    pub grace: Option<Duration>,
    /// How long a device that migrates keeps its user waiting at most, 1 s to [`HOLD_MAX`]; a device that stores data
    /// [`HOLD_STORAGE_MAX`]. The exporter may have a shorter limit.
    pub hold: Duration,
    /// What the links of a session to a paired host run over.
    pub transport: Transport,
    /// How many links a session has, 1 or more. The exporter may grant fewer.
    pub links: u16,
    /// Whether a device is asked for data before its user asks, so that distance is felt less. It applies to devices
    /// that this machine's kernel uses.
    pub prefetch: Prefetch,
    /// What the data of a device passes through on its way, such as compression.
    pub modules: PipelineRecipe,
    /// What is cached on this machine of the disks that are used as block devices.
    pub cache: DiskCacheMode,
    /// What is reserved at the exporter, and on the way to it, for each device.
    pub reservation: Option<ReservationTerms>,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            grace: None,
            hold: HOLD,
            transport: Transport::default(),
            links: 1,
            prefetch: Prefetch::default(),
            modules: PipelineRecipe::default(),
            cache: DiskCacheMode::default(),
            reservation: None,
        }
    }
}

impl ClientConfig {
    /// The grace period of a session; zero means that there is to be none. `usual` is the period if none is configured,
    /// and `has_sessions` says whether the exporter is known to speak farbus's protocol.
    ///
    /// # Errors
    /// [`ClientError::Local`] if the options contradict each other; what `has_sessions` returns.
    pub(super) fn grace_period(
        &self,
        usual: Duration,
        has_sessions: impl FnOnce() -> Result<bool, ClientError>,
    ) -> Result<Duration, ClientError> {
        let refuse = |what: &str| Err(ClientError::Local(what.to_owned()));
        if self.links > 1 && !self.modules.is_empty() {
            return refuse("what goes through modules goes over one link: leave --links or --module out");
        }
        let Some(grace) = self.grace else {
            let is_wanted = self.needs_session() || has_sessions()?;
            return Ok(if is_wanted { usual } else { Duration::ZERO });
        };
        if !grace.is_zero() {
            return Ok(grace);
        }
        if self.transport == Transport::Quic {
            refuse("QUIC carries sessions: give it a --grace of more than 0")
        } else if self.links > 1 {
            refuse("several links go with sessions: give it a --grace of more than 0")
        } else if !self.modules.is_empty() {
            refuse("modules go with sessions: give it a --grace of more than 0")
        } else if self.reservation.is_some() {
            refuse("reservations go with sessions: give it a --grace of more than 0")
        } else {
            Ok(grace)
        }
    }

    /// What a session is asked for, with this grace period.
    pub(super) fn terms(&self, grace: Duration) -> SessionTerms {
        SessionTerms { links: self.links, hold: self.hold, ..SessionTerms::of(grace) }
    }

    /// Whether an option asks for what only a session has.
    fn needs_session(&self) -> bool {
        !self.modules.is_empty() || self.links > 1 || self.reservation.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn period(config: &ClientConfig, has_sessions: bool) -> Result<Duration, String> {
        config.grace_period(GRACE, || Ok(has_sessions)).map_err(|error| error.to_string())
    }

    #[test]
    fn without_a_configured_grace_there_is_a_session_only_where_the_host_has_them() {
        let config = ClientConfig::default();
        assert_eq!(period(&config, true), Ok(GRACE));
        assert_eq!(period(&config, false), Ok(Duration::ZERO));
    }

    #[test]
    fn several_links_ask_for_a_session() {
        let config = ClientConfig { links: 2, ..ClientConfig::default() };
        assert_eq!(period(&config, false), Ok(GRACE));
    }

    #[test]
    fn a_configured_grace_of_zero_is_refused_with_options_of_sessions() {
        let zero = ClientConfig { grace: Some(Duration::ZERO), ..ClientConfig::default() };
        assert_eq!(period(&zero, true), Ok(Duration::ZERO));
        let quic = ClientConfig { transport: Transport::Quic, ..zero.clone() };
        assert!(period(&quic, true).unwrap_err().starts_with("QUIC carries sessions"));
        let links = ClientConfig { links: 2, ..zero };
        assert!(period(&links, true).unwrap_err().starts_with("several links go with sessions"));
    }
}
