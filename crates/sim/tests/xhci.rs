//! Plans judged by a controller that places packets itself. R2. `FARBUS_SEEDS` says how many sets (default 3,000).

use farbus_realtime::schedule::SchedulingMode;
use farbus_sim::experiments::judged::{JudgedSets, MODES, POLICIES, judge_all, paper_sets, random_sets};

fn sets() -> u64 {
    std::env::var("FARBUS_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3_000)
}

#[test]
fn set_admitted_for_any_controller_is_kept_by_every_one() {
    let sets = random_sets(sets(), 1);
    for policy in POLICIES {
        let judged = judge_all(&sets, SchedulingMode::Controller, policy, false, 1);
        println!("{policy:?}: {judged:?}");
        assert!(judged.admitted > 0);
        assert_eq!(judged.kept, judged.admitted, "{policy:?}: {judged:?}");
    }
}

/// The other modes promise what no such controller knows of.
#[test]
fn sets_of_the_other_modes_are_broken_by_some_controller() {
    let sets = random_sets(2_000, 1);
    for mode in MODES.into_iter().filter(|&mode| mode != SchedulingMode::Controller) {
        let judged = POLICIES.map(|policy| judge_all(&sets, mode, policy, false, 1));
        println!("{mode:?}: {judged:?}");
        assert!(judged.iter().any(|judged| judged.kept < judged.admitted), "{mode:?}: {judged:?}");
    }
}

/// A bulk endpoint that has reserved nothing takes its turns: no controller knows of a reservation for the others.
#[test]
fn bulk_endpoint_without_a_reservation_breaks_the_bounds_of_others() {
    let sets = random_sets(1_000, 1);
    let judged = judge_all(&sets, SchedulingMode::Controller, POLICIES[0], true, 1);
    println!("{judged:?}");
    assert!(judged.late > 0 && judged.missed == 0 && judged.refused == 0, "{judged:?}");
}

/// A wire of 5 Gb/s carries 500 MB/s at the most: four cameras of Table 5 alone are 507 MB/s.
#[test]
fn sets_of_the_paper_are_more_than_a_wire_carries() {
    let sets = paper_sets();
    assert_eq!(sets.len(), 8);
    for mode in MODES {
        for policy in POLICIES {
            let judged = judge_all(&sets, mode, policy, false, 1);
            println!("{mode:?} {policy:?}: {judged:?}");
            if mode == SchedulingMode::Controller {
                assert_eq!(judged.kept, judged.admitted, "{policy:?}: {judged:?}");
            }
        }
    }
    let JudgedSets { admitted, kept, .. } = judge_all(&sets, SchedulingMode::Sound, POLICIES[0], false, 1);
    assert!(admitted == 8 && kept < 8, "{kept}");
}
