//! How many devices one paired host may have here, and for how long: by this exporter's configuration, and by the
//! directory of all sites (requirement X9).
//!
//! | limit | by | what it limits |
//! |---|---|---|
//! | `peer_leases` | the configuration | devices of this exporter that one host has, leased or attached |
//! | `lease_span` | the configuration | the time from now on that a lease is granted, extended or booked for |
//! | `preempt_notice` | the configuration | how long it keeps a device that a host of a higher priority is to have |
//! | `directory_devices` | the directory | devices of all its hosts that one host has |
//! | `directory_span` | the directory | as `lease_span` |
//!
//! The directory may lie. So what it says only adds a reason to refuse: without it, and whatever it says, the limits of
//! the configuration hold. Its count of devices elsewhere is as old as its last change, so two exporters that grant in
//! the same second may exceed its limit by one; each one's own count is exact.

use std::fmt;
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::Duration;

use farbus_control::failure::{FailureKind, FailureReport};
use farbus_io_net::trust::Fingerprint;
use farbus_model::Instant;
use farbus_session::ExportRegistry;
use farbus_session::claims::lease::{LeaseHost, NOTICE};
use farbus_session::claims::shortened;

use crate::common::ordered_mutex::{ALONE, OrderedMutex};

/// The most devices that a limit of the configuration may allow.
pub const PEER_LEASES_MAX: u32 = 65_536;

/// What one host may have; absent: without such a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseLimit {
    /// Devices at a time.
    pub devices: Option<u32>,
    /// Time from now on.
    pub span: Option<Duration>,
    /// How long it keeps a device at most that a host of a higher priority is to have; absent: [`NOTICE`].
    pub notice: Option<Duration>,
}

/// What the directory says of one host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SiteLimit {
    /// What it may have in all.
    pub limit: LeaseLimit,
    /// How many devices it has of other exporters.
    pub elsewhere: usize,
    /// Who wrote the limit, for people.
    pub by: String,
}

/// The directory of all sites, as far as limits go.
pub trait SiteLimitSource: Send + Sync {
    /// What it says of a host. It does not wait for the directory.
    fn limit_of(&self, host: &Fingerprint) -> SiteLimit;
}

/// The limits of all hosts.
#[derive(Default)]
pub struct LeaseLimits {
    own: OrderedMutex<LeaseLimit, ALONE>,
    site: OnceLock<Arc<dyn SiteLimitSource>>,
}

/// The limits of one host at this moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostLeaseLimits {
    own: LeaseLimit,
    site: SiteLimit,
}

/// The limit that a host would exceed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExceededLeaseLimit {
    /// The limit's name, from the table above.
    pub name: &'static str,
    message: String,
}

impl LeaseLimits {
    /// Sets what the configuration says.
    pub fn configure(&self, own: LeaseLimit) {
        *self.own.lock().unwrap_or_else(PoisonError::into_inner) = own;
    }

    /// Asks the directory, too, from now on. Only the first call has an effect.
    pub fn ask(&self, site: Arc<dyn SiteLimitSource>) {
        let _ = self.site.set(site);
    }

    /// The limits of a host. Without a key it is none that leases are granted to.
    pub fn of(&self, host: Option<&Fingerprint>) -> HostLeaseLimits {
        let own = *self.own.lock().unwrap_or_else(PoisonError::into_inner);
        match host {
            Some(host) => {
                HostLeaseLimits { own, site: self.site.get().map(|site| site.limit_of(host)).unwrap_or_default() }
            }
            None => HostLeaseLimits::default(),
        }
    }
}

impl HostLeaseLimits {
    /// How long a host keeps a device at most that a host of a higher priority is to have.
    pub fn preempt_notice(&self) -> Duration {
        self.own.notice.unwrap_or(NOTICE)
    }

    /// Whether the host may have one more device, besides the `held` that it has here.
    ///
    /// # Errors
    /// The limit that it has reached.
    pub fn check_devices(&self, held: usize) -> Result<(), ExceededLeaseLimit> {
        let is_reached = |most: Option<u32>, held: usize| most.is_some_and(|most| held >= most as usize);
        if is_reached(self.own.devices, held) {
            let most = self.own.devices.unwrap_or_default();
            let message = format!("this host has {held} devices here, and may have {most}{RELEASE}");
            return Err(ExceededLeaseLimit { name: "peer_leases", message });
        }
        let all = held.saturating_add(self.site.elsewhere);
        if is_reached(self.site.limit.devices, all) {
            let most = self.site.limit.devices.unwrap_or_default();
            let message = format!(
                "this host has {all} devices ({} of other hosts), and may have {most} by the directory{}{RELEASE}",
                self.site.elsewhere,
                self.written_by(),
            );
            return Err(ExceededLeaseLimit { name: "directory_devices", message });
        }
        Ok(())
    }

    /// Whether the host may have a device for so long from now on.
    ///
    /// # Errors
    /// The limit that is shorter.
    pub fn check_span(&self, span: Duration) -> Result<(), ExceededLeaseLimit> {
        let is_beyond = |most: &Duration| span > *most;
        if let Some(most) = self.own.span.filter(is_beyond) {
            let message =
                format!("a lease here is for {} s at most\n  ask for less: --for {}s", most.as_secs(), most.as_secs());
            return Err(ExceededLeaseLimit { name: "lease_span", message });
        }
        if let Some(most) = self.site.limit.span.filter(is_beyond) {
            let most = most.as_secs();
            let by = self.written_by();
            let message = format!(
                "a lease of this host is for {most} s at most by the directory{by}\n  ask for less: --for {most}s"
            );
            return Err(ExceededLeaseLimit { name: "directory_span", message });
        }
        Ok(())
    }

    fn written_by(&self) -> String {
        match self.site.by.as_str() {
            "" => String::new(),
            by => format!(", as {} wrote there", shortened(by)),
        }
    }
}

/// What to do about too many devices.
const RELEASE: &str = "\n  give one back: farbus lease release, farbus detach; see: farbus directory limit";

impl ExceededLeaseLimit {
    /// The failure, which names the limit.
    pub fn report(self) -> FailureReport {
        let limit = Some(self.name.to_owned());
        FailureReport { limit, ..FailureReport::new(FailureKind::Refused, self.message) }
    }
}

impl fmt::Display for ExceededLeaseLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// How many devices other than `but` a host has here, leased or in use.
pub fn held_by(registry: &ExportRegistry, who: &LeaseHost, but: &str, now: Instant) -> usize {
    let has = |entry: &farbus_session::registry::ExportEntry<'_>| {
        let is_lessee = entry.claims.lease(now).is_some_and(|lease| lease.who == *who);
        is_lessee || entry.claims.holders().iter().any(|holder| LeaseHost::of(&holder.who) == *who)
    };
    registry.entries().filter(|entry| entry.record.bus_id != but && has(entry)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds(own: (Option<u32>, Option<u64>), site: (Option<u32>, Option<u64>), elsewhere: usize) -> HostLeaseLimits {
        let limit = |(devices, span): (Option<u32>, Option<u64>)| LeaseLimit {
            devices,
            span: span.map(Duration::from_secs),
            notice: None,
        };
        HostLeaseLimits {
            own: limit(own),
            site: SiteLimit { limit: limit(site), elsewhere, by: "desk\u{1b}[2J".into() },
        }
    }

    #[test]
    fn limit_that_is_reached_is_named_and_the_nearer_one_counts() {
        let name = |bounds: &HostLeaseLimits, held| bounds.check_devices(held).map_err(|exceeded| exceeded.name);
        let both = bounds((Some(3), Some(3600)), (Some(4), Some(60)), 2);
        assert_eq!((name(&both, 1), name(&both, 2)), (Ok(()), Err("directory_devices")));
        assert_eq!(name(&both, 3), Err("peer_leases"));
        let span =
            |bounds: &HostLeaseLimits, s| bounds.check_span(Duration::from_secs(s)).map_err(|exceeded| exceeded.name);
        assert_eq!(
            (span(&both, 60), span(&both, 61), span(&both, 3601)),
            (Ok(()), Err("directory_span"), Err("lease_span"))
        );
        let none = bounds((None, None), (None, None), 1000);
        assert_eq!((name(&none, 1000), span(&none, u64::MAX)), (Ok(()), Ok(())));
        let report = both.check_devices(2).unwrap_err().report();
        assert_eq!((report.attribute, report.limit.as_deref()), (FailureKind::Refused, Some("directory_devices")));
        assert!(report.message.contains("4 devices (2 of other hosts)") && !report.message.contains('\u{1b}'));
        assert_eq!(name(&bounds((None, None), (Some(0), None), 0), 0), Err("directory_devices"), "none at all");
    }

    #[test]
    fn whatever_the_directory_says_nothing_is_allowed_that_the_exporter_refuses() {
        let devices = [None, Some(0), Some(1), Some(7), Some(u32::MAX)];
        let spans = [None, Some(0), Some(1), Some(60), Some(u64::MAX / 2)];
        for own in devices.into_iter().zip(spans) {
            let alone = bounds(own, (None, None), 0);
            for site in devices.into_iter().flat_map(|devices| spans.map(|span| (devices, span))) {
                for elsewhere in [0, 1, usize::MAX] {
                    let with = bounds(own, site, elsewhere);
                    for held in [0, 1, 6, 7, usize::MAX] {
                        assert!(alone.check_devices(held).is_ok() || with.check_devices(held).is_err());
                        let span = Duration::from_secs(held as u64);
                        assert!(alone.check_span(span).is_ok() || with.check_span(span).is_err());
                    }
                }
            }
        }
    }
}
