//! Disks that a host moves to its own machine, or has moved: what is stored of them where they are shared.

use std::time::SystemTime;

use farbus_control::device::RetirementStatus;
use farbus_io_net::trust::{DeviceId, DiskRetirement, HostFolder, KnownLease, StateError, timestamp};
use farbus_session::native::retire::DiskMoveStep;
use serde::{Deserialize, Serialize};

/// A step of a disk's move, and whose word it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum RetirementStep {
    /// The host is about to make its copy the device.
    Moving {
        /// The host by what it proved.
        by: String,
        /// The host, by its name here.
        host: String,
    },
    /// The host's copy is the device.
    Moved {
        /// The host by what it proved.
        by: String,
        /// The host, by its name here.
        host: String,
    },
    /// The host overwrites the disk that it had moved away.
    Overwrites {
        /// The host by what it proved.
        by: String,
        /// The host, by its name here.
        host: String,
    },
    /// The disk here is the device.
    Stays,
}

impl RetirementStep {
    /// What this host said.
    pub fn by(step: DiskMoveStep, by: String, host: String) -> Self {
        match step {
            DiskMoveStep::Moving => RetirementStep::Moving { by, host },
            DiskMoveStep::Moved => RetirementStep::Moved { by, host },
            DiskMoveStep::Overwrites => RetirementStep::Overwrites { by, host },
            DiskMoveStep::Stays => RetirementStep::Stays,
        }
    }
}

/// Notes durably what was said of a disk, if anything, and returns what is stored then.
///
/// # Errors
/// [`StateError`]; nothing is changed then.
pub fn retirement(
    folder: &HostFolder,
    device: DeviceId,
    noted_step: Option<&RetirementStep>,
) -> Result<Option<DiskRetirement>, StateError> {
    let now = || timestamp(SystemTime::now());
    match noted_step {
        None => {}
        Some(RetirementStep::Moving { by, host }) => KnownLease::note_moving(folder, device, by, host, &now())?,
        Some(RetirementStep::Moved { by, host }) => KnownLease::note_moved(folder, device, by, host, &now())?,
        Some(RetirementStep::Overwrites { by, host }) => {
            KnownLease::note_overwritten(folder, device, by, host, &now())?
        }
        Some(RetirementStep::Stays) => drop(KnownLease::note_stays(folder, device)?),
    }
    KnownLease::retirement(folder, device)
}

/// The status of a disk that was moved away.
pub fn retirement_status(DiskRetirement { host, since, is_done, .. }: DiskRetirement) -> RetirementStatus {
    RetirementStatus { host, since, state: if is_done { "moved" } else { "moving" }.to_owned() }
}

#[cfg(test)]
mod tests {
    use farbus_model::ExportIdentity;
    use farbus_session::block::swap::{MilestoneJournal, SwapMilestone};

    use super::*;
    use crate::devices::media_journal::{SwapJournalFolder, SwapJournalWriter, SwapMedium};
    use farbus_control::device::RemoteIdentity;
    use farbus_io_net::trust::random_device_id;

    const MOVER: &str = "key 1";

    /// The two hosts, as far as they are durable.
    struct Hosts {
        importer: SwapJournalFolder,
        exporter: HostFolder,
        id: DeviceId,
        notes: SwapJournalWriter,
    }

    /// What is made durable at one of the two, in this order.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Durable {
        Noted(SwapMilestone),
        Step(DiskMoveStep),
    }

    impl Hosts {
        fn new(scratch: &std::path::Path) -> Self {
            let id = random_device_id();
            let importer = SwapJournalFolder::of(&scratch.join(format!("{id}-importer")));
            let known = RemoteIdentity::from(ExportIdentity { id: id.number(), generation: 0 });
            let from = SwapMedium::remote("lab3/disk", Some(known));
            let begun = importer.begin(&from, &SwapMedium::called("new")).unwrap();
            let exporter = HostFolder::at(scratch.join(format!("{id}-exporter")));
            Self { importer, exporter, id, notes: SwapJournalWriter::to(begun.file) }
        }

        fn make(&mut self, durable: Durable) {
            match durable {
                Durable::Noted(milestone) => self.notes.note(milestone).unwrap(),
                Durable::Step(step) => {
                    let retirement_step = RetirementStep::by(step, MOVER.into(), "desk".into());
                    retirement(&self.exporter, self.id, Some(&retirement_step)).unwrap();
                }
            }
        }

        /// Whether the exporter gives the disk to the host with this key.
        fn gives_to(&self, by: &str) -> bool {
            let stored = retirement(&self.exporter, self.id, None).unwrap();
            stored.and_then(|stored| stored.objection("disk", by)).is_none()
        }

        /// Whether the importer's journal says that its copy is the device.
        fn has_switched(&self) -> bool {
            let known = RemoteIdentity::from(ExportIdentity { id: self.id.number(), generation: 0 });
            self.importer.objection_to_attaching("lab3/disk", Some(known)).unwrap().is_some()
        }

        /// The importer attaches the disk again, and says what its journal says. Returns whether it has the disk.
        fn attach_again(&mut self) -> bool {
            let is_open = self.gives_to(MOVER);
            if is_open {
                self.make(Durable::Step(if self.has_switched() { DiskMoveStep::Moved } else { DiskMoveStep::Stays }));
            }
            is_open && !self.has_switched()
        }
    }

    #[test]
    fn a_crash_of_either_end_between_any_two_steps_gives_old_data_to_nobody_and_loses_no_disk() {
        use Durable::{Noted, Step};
        let scratch = std::env::temp_dir().join(format!("farbus-retirement-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&scratch);
        let done = [
            Step(DiskMoveStep::Stays),
            Noted(SwapMilestone::Copying),
            Step(DiskMoveStep::Moving),
            Noted(SwapMilestone::Switched),
            Step(DiskMoveStep::Moved),
        ];
        // The answer to the third was lost, so the swap was given up.
        let given_up = [&done[..3], &[Noted(SwapMilestone::Abandoned), Step(DiskMoveStep::Stays)]].concat();
        for steps in [&done[..], &given_up] {
            for reached in 0..=steps.len() {
                // The exporter crashes alone, too: then what is said between its crash and the importer's is not heard.
                for deaf_from in 0..=reached {
                    let mut hosts = Hosts::new(&scratch);
                    for (at, step) in steps[..reached].iter().enumerate() {
                        let is_heard = at < deaf_from || matches!(step, Noted(_));
                        // Without the answer to it, the journal does not say that it switched.
                        if *step == Noted(SwapMilestone::Switched) && deaf_from <= 2 {
                            break;
                        }
                        if is_heard {
                            hosts.make(*step);
                        }
                    }
                    let what = format!("{reached} of {steps:?}, not heard from {deaf_from}");
                    let is_old = hosts.has_switched();
                    assert!(!(is_old && hosts.gives_to("key 2")), "old data for others: {what}");
                    assert_eq!(hosts.attach_again(), !is_old, "its host has one complete disk: {what}");
                    assert_eq!(hosts.gives_to("key 2"), !is_old, "nothing stays undecided: {what}");
                    assert_eq!(hosts.attach_again(), !is_old, "and it stays so: {what}");
                }
            }
        }
        std::fs::remove_dir_all(&scratch).unwrap();
    }

    /// The disk of another host that a disk moves to: what its exporter has stored, and what the importer's journal
    /// says.
    struct NewDisk {
        importer: SwapJournalFolder,
        exporter: HostFolder,
        id: DeviceId,
        notes: SwapJournalWriter,
    }

    impl NewDisk {
        fn new(scratch: &std::path::Path) -> Self {
            let id = random_device_id();
            let importer = SwapJournalFolder::of(&scratch.join(format!("{id}-importer")));
            let begun =
                importer.begin(&SwapMedium::remote("lab3/disk", None), &SwapMedium::called("lab4/disk")).unwrap();
            let exporter = HostFolder::at(scratch.join(format!("{id}-exporter")));
            Self { importer, exporter, id, notes: SwapJournalWriter::to(begun.file) }
        }

        fn make(&mut self, durable: Durable) {
            match durable {
                Durable::Noted(SwapMilestone::Copying) => {
                    self.notes.name(self.known()).unwrap();
                    self.notes.note(SwapMilestone::Copying).unwrap();
                }
                Durable::Noted(milestone) => self.notes.note(milestone).unwrap(),
                Durable::Step(step) => {
                    let retirement_step = RetirementStep::by(step, MOVER.into(), "desk".into());
                    retirement(&self.exporter, self.id, Some(&retirement_step)).unwrap();
                }
            }
        }

        fn known(&self) -> RemoteIdentity {
            RemoteIdentity::from(ExportIdentity { id: self.id.number(), generation: 0 })
        }

        fn gives_to(&self, by: &str) -> bool {
            let stored = retirement(&self.exporter, self.id, None).unwrap();
            stored.and_then(|stored| stored.objection("disk", by)).is_none()
        }

        /// The importer attaches it by another name than when it was moved there. Returns whether it has the disk.
        fn attach(&mut self) -> bool {
            let is_had = self.gives_to(MOVER)
                && self.importer.objection_to_attaching("10.0.0.4/disk", Some(self.known())).unwrap().is_none();
            if is_had {
                self.make(Durable::Step(DiskMoveStep::Stays));
            }
            is_had
        }

        fn is_source_had(&self) -> bool {
            self.importer.objection_to_attaching("lab3/disk", None).unwrap().is_none()
        }
    }

    #[test]
    fn a_crash_between_any_two_steps_leaves_a_disk_of_another_host_as_it_was_or_complete_or_given_to_nobody() {
        use Durable::{Noted, Step};
        let scratch = std::env::temp_dir().join(format!("farbus-new-disk-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&scratch);
        let done = [
            Step(DiskMoveStep::Moving),
            Noted(SwapMilestone::Copying),
            Noted(SwapMilestone::Switched),
            Step(DiskMoveStep::Stays),
        ];
        let given_up = [&done[..2], &[Noted(SwapMilestone::Abandoned)]].concat();
        let continued = [&given_up[..], &done[..]].concat();
        for steps in [&done[..], &given_up, &continued] {
            for reached in 0..=steps.len() {
                let mut new = NewDisk::new(&scratch);
                steps[..reached].iter().for_each(|step| new.make(*step));
                let what = format!("{reached} of {steps:?}");
                let noted = steps[..reached].iter().rev().find_map(|step| match step {
                    Noted(milestone) => Some(*milestone),
                    Step(_) => None,
                });
                let is_partial = matches!(noted, Some(SwapMilestone::Copying | SwapMilestone::Abandoned));
                let is_complete = noted == Some(SwapMilestone::Switched);
                assert!(!(is_partial && new.gives_to("key 2")), "a part of a copy for others: {what}");
                assert_eq!(new.is_source_had(), !is_complete, "the disk is at one place: {what}");
                assert_eq!(new.attach(), !is_partial, "{what}");
                assert_eq!(new.gives_to("key 2"), !is_partial, "nothing stays undecided: {what}");
                // The same swap continues.
                if !is_complete {
                    done.iter().for_each(|step| new.make(*step));
                    assert!(new.attach() && new.gives_to("key 2") && !new.is_source_had(), "{what}");
                }
            }
        }
        std::fs::remove_dir_all(&scratch).unwrap();
    }

    #[test]
    fn a_crash_between_any_two_steps_of_a_move_back_gives_old_data_or_a_part_of_a_copy_to_nobody() {
        use Durable::{Noted, Step};
        let scratch = std::env::temp_dir().join(format!("farbus-back-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&scratch);
        let done = [
            Step(DiskMoveStep::Overwrites),
            Step(DiskMoveStep::Moving),
            Noted(SwapMilestone::Copying),
            Noted(SwapMilestone::Switched),
            Step(DiskMoveStep::Stays),
        ];
        for reached in 0..=done.len() {
            // It was moved away by this host.
            let mut back = NewDisk::new(&scratch);
            let (disk, here) = (SwapMedium::remote("lab4/disk", Some(back.known())), SwapMedium::called("/here"));
            SwapJournalWriter::to(back.importer.begin(&disk, &here).unwrap().file)
                .note(SwapMilestone::Switched)
                .unwrap();
            back.make(Step(DiskMoveStep::Moved));
            back.notes =
                SwapJournalWriter::to(back.importer.begin(&here, &SwapMedium::called("lab4/disk")).unwrap().file);
            done[..reached].iter().for_each(|step| back.make(*step));
            let is_complete = done[..reached].contains(&Noted(SwapMilestone::Switched));
            assert!(is_complete || !back.gives_to("key 2"), "{reached}: nobody else gets it before it is complete");
            assert_eq!(back.attach(), is_complete, "{reached}: nor does its host");
            assert_eq!(back.gives_to("key 2"), is_complete, "{reached}: nothing stays undecided");
            if !is_complete {
                back.make(Step(DiskMoveStep::Moved));
                done.iter().for_each(|step| back.make(*step));
                assert!(back.attach() && back.gives_to("key 2"), "{reached}: the same swap continues");
            }
        }
        // Another host does not get a disk by saying that it overwrites it.
        let mut other = NewDisk::new(&scratch);
        other.make(Step(DiskMoveStep::Moved));
        let retirement_step = super::RetirementStep::by(DiskMoveStep::Overwrites, "key 2".into(), "rack".into());
        retirement(&other.exporter, other.id, Some(&retirement_step)).unwrap();
        assert!(!other.gives_to("key 2"));
        std::fs::remove_dir_all(&scratch).unwrap();
    }
}
