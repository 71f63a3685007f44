//! The last migration of an attached device: how far it is and how it ended, for the status.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use farbus_control::attachment::MigrationStatus;
use farbus_control::failure::{FailureKind, FailureReport};
use farbus_io_net::trust::timestamp;

use super::AttachmentEnd;

/// How long an engine may take to show that it carries out an order.
const SHOWN_WITHIN: Duration = Duration::from_secs(1);

/// The last migration of one attachment. Its clones are the same one.
#[derive(Clone, Debug, Default)]
pub struct LastMigration(Arc<Mutex<Option<MigrationRecord>>>);

#[derive(Clone, Debug)]
struct MigrationRecord {
    device: String,
    to: String,
    at: Instant,
    begun: String,
    /// How often a successor had not come when it began.
    untaken: u64,
    progress: MigrationProgress,
}

#[derive(Clone, Debug)]
enum MigrationProgress {
    /// Its order is being answered.
    Ordered,
    /// It was granted at this moment; whether the attachment has shown since that it migrates.
    Granted(Instant, bool),
    Done(Duration),
    Failed(FailureReport),
}

impl MigrationProgress {
    fn is_over(&self) -> bool {
        matches!(self, MigrationProgress::Done(_) | MigrationProgress::Failed(_))
    }
}

/// What an attachment shows of a migration.
#[derive(Clone, Copy, Debug)]
pub struct ObservedMigration {
    /// Whether it is held, follows its user, or is on its way.
    pub is_moving: bool,
    /// How often a successor has not come.
    pub untaken: u64,
    /// How long its user, and its successor, is waited for.
    pub hold: Duration,
}

impl LastMigration {
    fn lock(&self) -> MutexGuard<'_, Option<MigrationRecord>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that its owner orders `device` to migrate to the host that the owner calls `to`. Returns whether it is
    /// noted: not while another migration runs.
    pub fn begin(&self, device: &str, to: &str, shown: ObservedMigration) -> bool {
        self.see(shown);
        let mut record = self.lock();
        if record.as_ref().is_some_and(|record| !record.progress.is_over()) {
            return false;
        }
        let (at, begun) = (Instant::now(), timestamp(SystemTime::now()));
        let (device, to) = (device.to_owned(), to.to_owned());
        *record = Some(MigrationRecord {
            device,
            to,
            at,
            begun,
            untaken: shown.untaken,
            progress: MigrationProgress::Ordered,
        });
        true
    }

    /// Notes the answer to the order; an error says why the device stays here.
    pub fn answered(&self, answer: Result<(), &dyn std::fmt::Display>) {
        if let Some(record) = &mut *self.lock() {
            record.progress = match answer {
                Ok(()) => MigrationProgress::Granted(Instant::now(), false),
                Err(why) => record.failed(FailureKind::Refused, why),
            };
        }
    }

    /// Its owner lets the device continue here.
    pub fn resume(&self) {
        if let Some(record) = self.lock().as_mut().filter(|record| !record.progress.is_over()) {
            record.progress = record.failed(FailureKind::Refused, &"its owner let it continue here (farbus resume)");
        }
    }

    /// Looks whether it has come to nothing.
    fn see(&self, ObservedMigration { is_moving, untaken, hold }: ObservedMigration) {
        let mut record = self.lock();
        let Some(record) = record.as_mut() else { return };
        let MigrationProgress::Granted(at, is_shown) = &mut record.progress else { return };
        *is_shown |= is_moving;
        if is_moving || !(*is_shown || at.elapsed() > SHOWN_WITHIN) {
            return;
        }
        let (to, seconds) = (&record.to, hold.as_secs());
        let why = match untaken > record.untaken {
            true => format!(
                "{to} did not attach it within {seconds} s: it continues here\n  \
                 on {to}: farbus attach HOST/{} --wait=60",
                record.device.rsplit('/').next().unwrap_or_default()
            ),
            false => format!("its user did not leave within {seconds} s: it continues here"),
        };
        record.progress = record.failed(FailureKind::Gone, &why);
    }

    /// The last one, by what the attachment shows; `None`: there was none.
    pub fn status(&self, shown: ObservedMigration) -> Option<MigrationStatus> {
        self.see(shown);
        self.lock().as_ref().map(MigrationRecord::status)
    }

    /// The last one of an attachment that has ended.
    pub fn status_at_end(&self, ended: &AttachmentEnd) -> Option<MigrationStatus> {
        let mut record = self.lock();
        let record = record.as_mut()?;
        if !record.progress.is_over() {
            record.progress = match ended {
                AttachmentEnd::Moved => MigrationProgress::Done(record.at.elapsed()),
                AttachmentEnd::Lost(why) => record.failed(FailureKind::Network, &format!("its link was lost: {why}")),
                AttachmentEnd::Over(report) => record.failed(report.attribute, &report.message),
                AttachmentEnd::Broken(reject) => record.failed(FailureKind::Device, reject),
                AttachmentEnd::Requested
                | AttachmentEnd::Released
                | AttachmentEnd::HandedOver
                | AttachmentEnd::Undurable(_) => record.failed(FailureKind::Refused, &"it was detached here"),
            };
        }
        Some(record.status())
    }
}

impl MigrationRecord {
    fn failed(&self, attribute: FailureKind, why: &dyn std::fmt::Display) -> MigrationProgress {
        let Self { device, to, .. } = self;
        let message = format!("{device} did not go to {to}: {why}\n  again: farbus migrate {device} --to {to}");
        MigrationProgress::Failed(FailureReport::new(attribute, message))
    }

    fn status(&self) -> MigrationStatus {
        let (state, elapsed, failure) = match &self.progress {
            MigrationProgress::Ordered | MigrationProgress::Granted(..) => ("running", Some(self.at.elapsed()), None),
            MigrationProgress::Done(took) => ("done", Some(*took), None),
            MigrationProgress::Failed(report) => ("failed", None, Some(report.clone())),
        };
        let elapsed_s = elapsed.map(|elapsed| elapsed.as_secs_f64());
        MigrationStatus { to: self.to.clone(), state: state.into(), begun: self.begun.clone(), elapsed_s, failure }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(is_moving: bool, untaken: u64) -> ObservedMigration {
        ObservedMigration { is_moving, untaken, hold: Duration::from_secs(20) }
    }

    fn granted() -> LastMigration {
        let migrations = LastMigration::default();
        assert_eq!(migrations.status(shown(false, 0)), None);
        assert!(migrations.begin("lab3/disk", "rack", shown(false, 3)));
        assert_eq!(migrations.status(shown(false, 3)).unwrap().state, "running", "its order is not answered yet");
        migrations.answered(Ok(()));
        migrations
    }

    fn why(status: &MigrationStatus) -> &str {
        assert_eq!(status.state, "failed", "{status:?}");
        &status.failure.as_ref().unwrap().message
    }

    #[test]
    fn migration_runs_until_its_attachment_has_ended_and_says_how_long_it_took() {
        let migrations = granted();
        assert_eq!(migrations.status(shown(false, 3)).unwrap().state, "running", "the engine has a second to show it");
        assert_eq!(migrations.status(shown(true, 3)).unwrap().state, "running");
        assert!(!migrations.begin("lab3/disk", "shed", shown(true, 3)), "one at a time");
        let status = migrations.status_at_end(&AttachmentEnd::Moved).unwrap();
        assert!(status.state == "done" && status.to == "rack" && status.elapsed_s.is_some(), "{status:?}");
        assert_eq!(migrations.status_at_end(&AttachmentEnd::Requested).unwrap().state, "done", "nothing changes that");
    }

    #[test]
    fn migration_that_came_to_nothing_says_why_and_what_to_type_next() {
        for (untaken, part) in [(4, "rack did not attach it within 20 s"), (3, "its user did not leave within 20 s")] {
            let migrations = granted();
            migrations.status(shown(true, 3));
            let status = migrations.status(shown(false, untaken)).unwrap();
            assert!(why(&status).contains(part), "{status:?}");
            assert!(why(&status).ends_with("farbus migrate lab3/disk --to rack"), "{status:?}");
            assert!(migrations.begin("lab3/disk", "shed", shown(false, untaken)), "another may begin");
        }
        let migrations = granted();
        migrations.resume();
        assert!(why(&migrations.status(shown(true, 3)).unwrap()).contains("farbus resume"));
        let migrations = granted();
        let status = migrations.status_at_end(&AttachmentEnd::Lost("reset by peer".into())).unwrap();
        assert!(why(&status).contains("its link was lost: reset by peer"), "{status:?}");
        let refused = LastMigration::default();
        assert!(refused.begin("lab3/disk", "rack", shown(false, 0)));
        refused.answered(Err(&"it is open"));
        assert!(why(&refused.status(shown(false, 0)).unwrap()).contains("did not go to rack: it is open"));
    }
}
