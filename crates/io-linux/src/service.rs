//! What a service tells its manager (sd_notify(3)): datagrams of `KEY=VALUE` lines to `$NOTIFY_SOCKET`.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The connection to the service manager, if there is one.
#[derive(Debug, Default)]
pub struct ServiceNotifier {
    socket: Option<UnixDatagram>,
    watchdog: Option<Duration>,
}

impl ServiceNotifier {
    /// Connects as the environment says; without a manager, messages go nowhere. The connection survives confinement.
    ///
    /// # Errors
    /// The environment names a socket that is invalid or missing, or the system has no more descriptors.
    pub fn from_environment() -> io::Result<Self> {
        let Some(name) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
            return Ok(Self::default());
        };
        let name = name.into_encoded_bytes();
        let address = match name.split_first() {
            Some((b'@', rest)) => SocketAddr::from_abstract_name(rest)?,
            _ => SocketAddr::from_pathname(std::path::Path::new(&*String::from_utf8_lossy(&name)))?,
        };
        let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
        let is_for_us = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let watchdog = number("WATCHDOG_USEC").filter(|us| *us > 0 && is_for_us).map(Duration::from_micros);
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&address)?;
        Ok(Self { socket: Some(socket), watchdog })
    }

    /// How often the manager wants to be told that the service is alive, at least.
    pub fn watchdog(&self) -> Option<Duration> {
        self.watchdog
    }

    /// Reports that everything in the configuration is on offer.
    pub fn ready(&self, status: &str) {
        self.say(&format!("READY=1\nSTATUS={status}"));
    }

    /// Reports that the configuration is being read again; [`ServiceNotifier::ready`] reports the end of that.
    pub fn reloading(&self) {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let now_us = now.tv_sec.unsigned_abs() * 1_000_000 + now.tv_nsec.unsigned_abs() / 1000;
        self.say(&format!("RELOADING=1\nMONOTONIC_USEC={now_us}"));
    }

    /// Reports that the service has begun to stop.
    pub fn stopping(&self) {
        self.say("STOPPING=1");
    }

    /// Reports that a replacement process continues: `pid` is the service's main process from now on, and may send
    /// messages.
    pub fn hand_over(&self, pid: u32) {
        self.say(&format!("MAINPID={pid}"));
    }

    /// Reports that the service is alive.
    pub fn alive(&self) {
        self.say("WATCHDOG=1");
    }

    fn say(&self, text: &str) {
        if let Some(socket) = &self.socket
            && let Err(error) = socket.send(text.as_bytes())
        {
            tracing::debug!(%error, "the service manager does not listen");
        }
    }
}
