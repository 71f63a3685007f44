//! How long the peer of a link may be silent.
//!
//! A session's link is lost after 4 s: the session goes on over the next one. Plain USB/IP has one link, and the
//! device is unplugged with it, so a gap in the network has to be longer there. What a peer sends when it ends (FIN,
//! RST) ends a link at once in either case.

use std::io;
use std::ops::RangeInclusive;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::sockopt;

use super::stream::Link;

/// The limit of plain USB/IP unless it is configured: as long as a session's device waits for a link at the kernel's
/// front end. usbipd-win waits 15 s, usbip-win2 30 s, Linux's usbipd two hours.
pub const PLAIN_SILENCE: Duration = Duration::from_secs(20);
/// Seconds that may be configured: fewer than two cannot be told from a lost packet.
const PLAIN_SILENCE_S: RangeInclusive<u64> = 2..=3600;
/// Probes of a link on which nothing is sent; the limit counts, however many are unanswered.
const PROBES: u32 = 2;

/// A limit in seconds, as configurations say it.
///
/// # Errors
/// It is outside 2 to 3600.
pub fn silence_limit_of(seconds: u64) -> Result<Duration, String> {
    match PLAIN_SILENCE_S.contains(&seconds) {
        true => Ok(Duration::from_secs(seconds)),
        false => Err(format!("{seconds} s of silence: 2 to 3600 are possible")),
    }
}

impl Link {
    /// Sets how long the peer may leave sent bytes or probes unanswered before the link counts as lost, in whole
    /// seconds. A link that is not a TCP connection stays as it is.
    ///
    /// # Errors
    /// The socket refuses an option.
    pub fn limit_silence(&self, silence_max: Duration) -> io::Result<()> {
        if self.progress().is_none() {
            return Ok(());
        }
        let fd = self.as_fd();
        let seconds = |part: u32| Duration::from_secs((silence_max / part).as_secs().max(1));
        sockopt::set_tcp_keepidle(fd, seconds(2))?;
        sockopt::set_tcp_keepintvl(fd, seconds(4))?;
        sockopt::set_tcp_keepcnt(fd, PROBES)?;
        let milliseconds = u32::try_from(silence_max.as_millis()).unwrap_or(u32::MAX);
        Ok(sockopt::set_tcp_user_timeout(fd, milliseconds)?)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn limit_is_half_idle_and_half_probed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let link = Link::connect(&listener.local_addr().unwrap().to_string(), Duration::from_secs(5)).unwrap();
        for (limit_s, idle_s, interval_s) in [(20, 10, 5), (4, 2, 1), (2, 1, 1)] {
            link.limit_silence(silence_limit_of(limit_s).unwrap()).unwrap();
            assert_eq!(sockopt::tcp_user_timeout(link.as_fd()).unwrap(), 1000 * limit_s as u32);
            assert_eq!(sockopt::tcp_keepidle(link.as_fd()).unwrap(), Duration::from_secs(idle_s));
            assert_eq!(sockopt::tcp_keepintvl(link.as_fd()).unwrap(), Duration::from_secs(interval_s));
        }
        Link::pair("peer").unwrap().0.limit_silence(PLAIN_SILENCE).unwrap();
        assert!(silence_limit_of(1).is_err() && silence_limit_of(3601).is_err());
    }
}
