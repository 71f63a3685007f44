//! `farbus migrate A B C`: several devices migrate to one host, all or none.
//!
//! | step | if it fails for one device |
//! |---|---|
//! | look whether each could migrate now | nothing was changed |
//! | hold those that have a user, and tell them to go when it leaves | those held before go on here |
//! | hand over those that have none, which go at once | those that are held go on here; what has gone comes back if nobody fetches it |

use std::collections::BTreeSet;

use farbus_control::failure::CommandFailure;
use serde_json::Value;

/// A step of the migration of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MigrationStep {
    /// Whether it could migrate now: `held` in the answer says whether it would be held first.
    Look,
    /// It migrates: `machine` in the answer says whether it is held until its user has left.
    Migrate,
    /// It stays here after all.
    Resume,
}

/// Migrates all the devices, or none. `ask` carries out a step of one device. Returns the answers of all, in their
/// order.
///
/// # Errors
/// Why none migrates. The message names those that could not be kept.
pub fn all_or_none(
    devices: &[String],
    mut ask: impl FnMut(&str, MigrationStep) -> Result<Value, CommandFailure>,
) -> Result<Vec<Value>, CommandFailure> {
    if let Some(twice) = (1..devices.len()).find(|&at| devices[..at].contains(&devices[at])) {
        return Err(CommandFailure::local(format!("{} is named twice", devices[twice])));
    }
    let none = |device: &str, failure: &CommandFailure, more: &str| {
        CommandFailure::new(failure.attribute(), format!("{device}: {failure}\n  none of them moves{more}"))
    };
    let mut order = Vec::new();
    for (at, device) in devices.iter().enumerate() {
        let looked = ask(device, MigrationStep::Look).map_err(|failure| none(device, &failure, ""))?;
        order.push((looked["held"] != true, at));
    }
    // Those that are held can stay after all: they come first.
    order.sort_unstable();
    let mut answers: Vec<Value> = vec![Value::Null; devices.len()];
    let mut begun = BTreeSet::new();
    for (_, at) in order {
        match ask(&devices[at], MigrationStep::Migrate) {
            Ok(answer) => {
                answers[at] = answer;
                begun.insert(at);
            }
            Err(failure) => {
                let mut more = String::new();
                // One that did not answer in time may be held all the same.
                let _ = ask(&devices[at], MigrationStep::Resume);
                for other in begun {
                    if let Err(why) = ask(&devices[other], MigrationStep::Resume) {
                        let name = &devices[other];
                        more +=
                            &format!("\n  but {name} has gone already, and comes back if nobody attaches it: {why}");
                    }
                }
                return Err(none(&devices[at], &failure, &more));
            }
        }
    }
    Ok(answers)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use farbus_control::failure::FailureKind;

    /// The state of each device: here, held, or gone.
    #[derive(Default)]
    struct Hosts {
        held: BTreeSet<String>,
        gone: BTreeSet<String>,
        steps: Vec<(String, MigrationStep)>,
    }

    impl Hosts {
        /// `a` and `c` have users, `b` and `d` have none.
        fn ask(&mut self, device: &str, step: MigrationStep) -> Result<Value, CommandFailure> {
            self.steps.push((device.to_owned(), step));
            let has_user = ["a", "c"].contains(&device);
            match step {
                MigrationStep::Look => Ok(json!({ "held": has_user })),
                MigrationStep::Migrate => {
                    if has_user { &mut self.held } else { &mut self.gone }.insert(device.to_owned());
                    Ok(json!({ "machine": has_user }))
                }
                MigrationStep::Resume if self.held.remove(device) => Ok(Value::Null),
                MigrationStep::Resume => Err(CommandFailure::new(FailureKind::Refused, "it is not held")),
            }
        }
    }

    const DEVICES: [&str; 4] = ["a", "b", "c", "d"];

    fn run(fails: Option<(&str, MigrationStep, bool)>) -> (Hosts, Result<Vec<Value>, CommandFailure>) {
        let mut hosts = Hosts::default();
        let result = all_or_none(&DEVICES.map(str::to_owned), |device, step| match fails {
            Some((which, when, is_late)) if (which, when) == (device, step) => {
                if is_late {
                    let _ = hosts.ask(device, step);
                }
                Err(CommandFailure::new(FailureKind::Refused, "not now"))
            }
            _ => hosts.ask(device, step),
        });
        (hosts, result)
    }

    #[test]
    fn all_migrate_and_those_that_can_still_stay_come_first() {
        let (hosts, result) = run(None);
        let machines: Vec<bool> = result.unwrap().iter().map(|answer| answer["machine"] == true).collect();
        assert_eq!(machines, [true, false, true, false], "answers have the order of the devices");
        let migrated =
            hosts.steps.iter().filter(|(_, step)| *step == MigrationStep::Migrate).map(|(device, _)| device.as_str());
        assert_eq!(migrated.collect::<String>(), "acbd");
        assert!(hosts.steps[..4].iter().all(|(_, step)| *step == MigrationStep::Look), "each is looked at first");
    }

    #[test]
    fn none_is_held_whichever_device_fails_at_whichever_step() {
        for device in DEVICES {
            for step in [MigrationStep::Look, MigrationStep::Migrate] {
                for is_late in [false, true] {
                    let (hosts, result) = run(Some((device, step, is_late)));
                    let message = result.unwrap_err().to_string();
                    let case = format!("{device} {step:?} {is_late}: {message}");
                    assert!(hosts.held.is_empty(), "{case}");
                    assert!(message.starts_with(&format!("{device}: not now\n  none of them moves")), "{case}");
                    // What goes at once is asked last: only the last one finds another that has gone.
                    let has_gone = (device, step) == ("d", MigrationStep::Migrate);
                    assert_eq!(message.contains("b has gone already"), has_gone, "{case}");
                    if step == MigrationStep::Look {
                        assert!(hosts.steps.iter().all(|(_, step)| *step == MigrationStep::Look), "{case}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_device_that_is_named_twice_is_refused_before_anything_is_asked() {
        let devices = ["a", "b", "a"].map(str::to_owned);
        let refused = all_or_none(&devices, |_, _| unreachable!("nothing is asked"));
        assert!(refused.is_err_and(|failure| failure.to_string() == "a is named twice"));
    }
}
