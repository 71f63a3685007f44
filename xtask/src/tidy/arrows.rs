//! Rules `floor`, `arrow` and `third-party`: who may depend on whom.

use super::architecture::{Architecture, FILE, Kind, Room};
use super::manifest::{Dependency, Package};
use super::violation::Violation;

pub fn check(architecture: &Architecture, packages: &[Package]) -> Vec<Violation> {
    let mut violations = check_table(architecture);
    for package in packages {
        let Some(room) = architecture.room_of_package(&package.name) else {
            violations.push(Violation::new(
                package.manifest(),
                1,
                "floor",
                format!("package {} has no floor: add it to {FILE} with the arrows it needs", package.name),
            ));
            continue;
        };
        for dependency in &package.dependencies {
            let is_room = packages.iter().any(|other| other.name == dependency.package);
            let complaint = if is_room {
                complaint_about_room(architecture, room, dependency)
            } else {
                complaint_about_third_party(architecture, room, dependency)
            };
            violations.extend(
                complaint.map(|(rule, advice)| Violation::new(package.manifest(), dependency.line, rule, advice)),
            );
        }
    }
    violations
}

/// The table itself: every arrow names a room on a lower floor. Tests may also look sideways.
fn check_table(architecture: &Architecture) -> Vec<Violation> {
    let mut violations = Vec::new();
    for room in &architecture.rooms {
        let arrows = room.arrows.iter().map(|arrow| (arrow, false));
        for (arrow, in_tests) in arrows.chain(room.test_arrows.iter().map(|arrow| (arrow, true))) {
            let advice = match architecture.room(arrow) {
                None => format!("{} points at {arrow}, which is no room", room.name),
                Some(target) if target.floor == 0 => format!("{} points at {arrow}, which stands apart", room.name),
                Some(target) if target.floor > room.floor || (target.floor == room.floor && !in_tests) => format!(
                    "{} (floor {}) points at {arrow} (floor {}): an arrow only points down; move what both need to a lower floor",
                    room.name, room.floor, target.floor
                ),
                Some(_) => continue,
            };
            violations.push(Violation::new(FILE, architecture.line_of(room), "floor", advice));
        }
    }
    violations
}

type Complaint = (&'static str, String);

fn complaint_about_room(architecture: &Architecture, room: &Room, dependency: &Dependency) -> Option<Complaint> {
    let target = architecture.room_of_package(&dependency.package)?;
    let listed = room.arrows.contains(&target.name) || (dependency.in_tests && room.test_arrows.contains(&target.name));
    if listed {
        return None;
    }
    let name = &room.name;
    let to = &target.name;
    Some((
        "arrow",
        match target.floor.cmp(&room.floor) {
            _ if target.floor == 0 => format!("{name} depends on {to}, which stands apart: nothing may"),
            std::cmp::Ordering::Greater => format!(
                "{name} (floor {}) depends on {to} (floor {}): this arrow runs up; let {to} call {name}, or move the contract both need to model",
                room.floor, target.floor
            ),
            std::cmp::Ordering::Equal => format!(
                "{name} and {to} are on one floor and do not know each other: meet at a contract in model, or above them"
            ),
            std::cmp::Ordering::Less => format!(
                "{name} may not depend on {to}: go through a room it may know ({}), or argue the arrow in {FILE}",
                room.arrows.join(", ")
            ),
        },
    ))
}

fn complaint_about_third_party(architecture: &Architecture, room: &Room, dependency: &Dependency) -> Option<Complaint> {
    let package = &dependency.package;
    let name = &room.name;
    if architecture.third_party.runtimes.contains(package) {
        return (!room.runtimes).then(|| {
            ("third-party", format!("{name} depends on {package}: TLS, QUIC and runtimes live in io and farbus only"))
        });
    }
    let allowed = room.third_party.iter().any(|allowed| allowed == "*" || allowed == package)
        || (dependency.in_tests && architecture.third_party.in_tests.contains(package));
    (!allowed).then(|| {
        let advice = match room.kind {
            Kind::Pure => format!(
                "{name} depends on {package}: a pure room has the crates that {FILE} names and no other; write the few lines, or argue for it there"
            ),
            Kind::Outside | Kind::Binary => format!("{name} depends on {package}: argue for it in {FILE}"),
        };
        ("third-party", advice)
    })
}

#[cfg(test)]
mod tests {
    use crate::tidy::fixtures::{HOUSE, complaints, manifest, workspace_with};

    #[test]
    fn an_arrow_that_runs_up_is_told_so() {
        let tree = workspace_with(&[(
            "crates/wire/Cargo.toml",
            &manifest("farbus-wire", "[dependencies]\nfarbus-session = { path = \"../session\" }\n"),
        )]);
        let said = complaints(&tree);
        assert_eq!(said.len(), 1, "{said:#?}");
        assert!(said[0].starts_with("crates/wire/Cargo.toml:5: arrow: wire (floor 2) depends on session (floor 3)"));
        assert!(said[0].contains("runs up"));
    }

    #[test]
    fn rooms_on_one_floor_do_not_know_each_other() {
        let tree = workspace_with(&[(
            "crates/wire/Cargo.toml",
            &manifest("farbus-wire", "[dependencies]\nfarbus-host = { path = \"../host\" }\n"),
        )]);
        let said = complaints(&tree);
        assert_eq!(said.len(), 1, "{said:#?}");
        assert!(said[0].contains("wire and host are on one floor"), "{}", said[0]);
    }

    #[test]
    fn an_arrow_down_must_be_listed() {
        let tree = workspace_with(&[(
            "crates/session/Cargo.toml",
            &manifest("farbus-session", "[dependencies]\nfarbus-host = { path = \"../host\" }\n"),
        )]);
        let said = complaints(&tree);
        assert_eq!(said.len(), 1, "{said:#?}");
        assert!(said[0].contains("session may not depend on host"), "{}", said[0]);
    }

    #[test]
    fn tests_may_look_where_the_table_lets_them() {
        let tree = workspace_with(&[(
            "crates/session/Cargo.toml",
            &manifest("farbus-session", "[dev-dependencies]\nfarbus-host = { path = \"../host\" }\nbolero = \"1\"\n"),
        )]);
        assert_eq!(complaints(&tree), [""; 0]);
    }

    #[test]
    fn the_ground_floor_has_no_dependencies() {
        let tree = workspace_with(&[(
            "crates/model/Cargo.toml",
            &manifest("farbus-model", "[dependencies]\nserde = \"1\"\n"),
        )]);
        let said = complaints(&tree);
        assert_eq!(said.len(), 1, "{said:#?}");
        assert!(said[0].contains("third-party: model depends on serde"), "{}", said[0]);
    }

    #[test]
    fn runtimes_live_in_io_and_farbus_even_for_tests() {
        let tree = workspace_with(&[(
            "crates/session/Cargo.toml",
            &manifest("farbus-session", "[dev-dependencies]\ntokio = \"1\"\n"),
        )]);
        let said = complaints(&tree);
        assert_eq!(said.len(), 1, "{said:#?}");
        assert!(said[0].contains("session depends on tokio"), "{}", said[0]);

        let tree =
            workspace_with(&[("crates/io/Cargo.toml", &manifest("farbus-io", "[dependencies]\nrustls = \"0.23\"\n"))]);
        assert_eq!(complaints(&tree), [""; 0]);
    }

    #[test]
    fn a_package_without_a_floor_is_refused() {
        let tree = workspace_with(&[
            ("crates/attic/Cargo.toml", &manifest("farbus-attic", "")),
            ("crates/attic/src/main.rs", "fn main() {}\n"),
        ]);
        let said = complaints(&tree);
        assert_eq!(said.len(), 1, "{said:#?}");
        assert!(said[0].starts_with("crates/attic/Cargo.toml:1: floor: package farbus-attic has no floor"));
    }

    #[test]
    fn the_table_itself_may_not_point_up() {
        let house = HOUSE.replace(
            "name = \"model\"\npackage = \"farbus-model\"\nfloor = 1\nkind = \"pure\"\narrows = []",
            "name = \"model\"\npackage = \"farbus-model\"\nfloor = 1\nkind = \"pure\"\narrows = [\"wire\"]",
        );
        assert_ne!(house, HOUSE);
        let said = complaints(&workspace_with(&[("ARCHITECTURE.toml", &house)]));
        assert_eq!(said.len(), 1, "{said:#?}");
        assert!(said[0].contains("floor: model (floor 1) points at wire (floor 2)"), "{}", said[0]);
    }
}
