//! A device that another host uses or has leased: when it is tried again, and what is said meanwhile.

use std::time::{Duration, Instant};

use farbus::importer::client::ClientError;
use farbus_session::OpStatus;
use farbus_session::claims::RETURN_PATIENCE;
use farbus_session::registry::InUse;

/// The pauses between tries: short at first, and always well below [`farbus_session::claims::PATIENCE`].
const TRY_AGAIN: [Duration; 3] = [Duration::from_millis(200), Duration::from_millis(500), Duration::from_secs(1)];
/// Stands for "for ever": an [`Instant`] this far ahead can still be computed.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// A wait for a device.
#[derive(Debug)]
pub struct DeviceWait {
    /// `None`: do not wait.
    until: Option<Instant>,
    tries: usize,
    /// The user that was told last.
    message: Option<Option<String>>,
    absence: DeviceAbsence,
}

/// The absence of a device that is waited for. One that its user flashes is gone for a moment, and comes back.
#[derive(Debug, Default)]
pub struct DeviceAbsence {
    since: Option<Instant>,
}

impl DeviceAbsence {
    /// Whether a device that is not there at `now` may come back: it is away for less than the time for which its
    /// exporter keeps the queue for its user.
    pub fn may_end_by(&mut self, now: Instant) -> bool {
        now.duration_since(*self.since.get_or_insert(now)) < RETURN_PATIENCE
    }

    /// The device is there.
    pub fn end(&mut self) {
        self.since = None;
    }
}

impl DeviceWait {
    /// `wait` as `--wait[=SECONDS]` says it: `None` does not wait, and without seconds there is no limit.
    pub fn new(wait: Option<Option<u64>>) -> Self {
        let until = wait.map(|seconds| {
            let span = seconds.map_or(FOR_EVER, Duration::from_secs).min(FOR_EVER);
            Instant::now() + span
        });
        Self { until, tries: 0, message: None, absence: DeviceAbsence::default() }
    }

    /// When to try again after this failure; `None` if it is not one to wait for, or the time is over. `say` is told
    /// for what the command waits, whenever that changes.
    pub fn again_at(&mut self, error: &ClientError, say: impl FnOnce(String)) -> Option<Instant> {
        let now = Instant::now();
        if matches!(error, ClientError::NoDevice { .. }) && self.message.is_some() && self.absence.may_end_by(now) {
            return self.pause_until(now);
        }
        let ClientError::Refused { status: OpStatus::Busy, target, user, .. } = error else { return None };
        self.absence.end();
        self.until.filter(|until| now < *until)?;
        let state = |user: &InUse| if user.lease_left_s.is_some() { "leased to" } else { "in use by" };
        let user = user.as_ref().map(|user| format!("{} {}", state(user), user.user));
        if self.message.as_ref() != Some(&user) {
            let by = user.as_ref().map(|user| format!(" ({user})")).unwrap_or_default();
            say(format!("waiting for {}{by}   (Ctrl-C ends)", target.shown()));
            self.message = Some(user);
        }
        self.pause_until(now)
    }

    /// When to try again; `None` if the time is over.
    fn pause_until(&mut self, now: Instant) -> Option<Instant> {
        let until = self.until.filter(|until| now < *until)?;
        let pause = TRY_AGAIN[self.tries.min(TRY_AGAIN.len() - 1)];
        self.tries += 1;
        Some(until.min(now + pause))
    }
}
