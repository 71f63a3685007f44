//! Rules `layer`, `arrow` and `third-party`: who may depend on whom.

use super::architecture::{ArchitectureRules, CrateKind, CrateRules, FILE};
use super::manifest::{ManifestDependency, PackageManifest};
use super::violation::Violation;

pub fn check(architecture: &ArchitectureRules, packages: &[PackageManifest]) -> Vec<Violation> {
    let mut violations = check_table(architecture);
    for package in packages {
        let Some(rules) = architecture.rules_of_package(&package.name) else {
            violations.push(Violation::new(
                package.manifest(),
                1,
                "layer",
                format!("package {} has no layer: add it to {FILE} with the arrows it needs", package.name),
            ));
            continue;
        };
        for dependency in &package.dependencies {
            let is_ours = packages.iter().any(|other| other.name == dependency.package);
            let complaint = if is_ours {
                complaint_about_crate(architecture, rules, dependency)
            } else {
                complaint_about_third_party(architecture, rules, dependency)
            };
            violations.extend(
                complaint.map(|(rule, advice)| Violation::new(package.manifest(), dependency.line, rule, advice)),
            );
        }
    }
    violations
}

/// The table itself: every arrow names a crate on a lower layer. Tests may also look sideways.
fn check_table(architecture: &ArchitectureRules) -> Vec<Violation> {
    let mut violations = Vec::new();
    for rules in &architecture.crates {
        let arrows = rules.arrows.iter().map(|arrow| (arrow, false));
        for (arrow, in_tests) in arrows.chain(rules.test_arrows.iter().map(|arrow| (arrow, true))) {
            let advice = match architecture.crate_named(arrow) {
                None => format!("{} points at {arrow}, which is no crate", rules.name),
                Some(target) if target.layer == 0 => format!("{} points at {arrow}, which stands apart", rules.name),
                Some(target) if target.layer > rules.layer || (target.layer == rules.layer && !in_tests) => format!(
                    "{} (layer {}) points at {arrow} (layer {}): an arrow only points down; move what both need to a lower layer",
                    rules.name, rules.layer, target.layer
                ),
                Some(_) => continue,
            };
            violations.push(Violation::new(FILE, architecture.line_of(rules), "layer", advice));
        }
    }
    violations
}

type ArrowComplaint = (&'static str, String);

fn complaint_about_crate(
    architecture: &ArchitectureRules,
    rules: &CrateRules,
    dependency: &ManifestDependency,
) -> Option<ArrowComplaint> {
    let target = architecture.rules_of_package(&dependency.package)?;
    // Cargo's way to give the tests of a package a feature of it.
    if dependency.in_tests && target.name == rules.name {
        return None;
    }
    let listed =
        rules.arrows.contains(&target.name) || (dependency.in_tests && rules.test_arrows.contains(&target.name));
    if listed {
        return None;
    }
    let name = &rules.name;
    let to = &target.name;
    Some((
        "arrow",
        match target.layer.cmp(&rules.layer) {
            _ if target.layer == 0 => format!("{name} depends on {to}, which stands apart: nothing may"),
            std::cmp::Ordering::Greater => format!(
                "{name} (layer {}) depends on {to} (layer {}): this arrow runs up; let {to} call {name}, or move the contract both need to model",
                rules.layer, target.layer
            ),
            std::cmp::Ordering::Equal => format!(
                "{name} and {to} are on one layer and do not know each other: meet at a contract in model, or above them"
            ),
            std::cmp::Ordering::Less => format!(
                "{name} may not depend on {to}: go through a crate it may know ({}), or argue the arrow in {FILE}",
                rules.arrows.join(", ")
            ),
        },
    ))
}

fn complaint_about_third_party(
    architecture: &ArchitectureRules,
    rules: &CrateRules,
    dependency: &ManifestDependency,
) -> Option<ArrowComplaint> {
    let package = &dependency.package;
    let name = &rules.name;
    if architecture.third_party.runtimes.contains(package) {
        return (!rules.runtimes).then(|| {
            (
                "third-party",
                format!("{name} depends on {package}: TLS, QUIC and runtimes live in io-net and farbus only"),
            )
        });
    }
    let allowed = rules.third_party.iter().any(|allowed| allowed == "*" || allowed == package)
        || (dependency.in_tests && architecture.third_party.in_tests.contains(package));
    (!allowed).then(|| {
        let advice = match rules.kind {
            CrateKind::Pure => format!(
                "{name} depends on {package}: a pure crate has the crates that {FILE} names and no other; write the few lines, or argue for it there"
            ),
            CrateKind::Outside | CrateKind::Binary => format!("{name} depends on {package}: argue for it in {FILE}"),
        };
        ("third-party", advice)
    })
}

#[cfg(test)]
mod tests {
    use crate::tidy::fixtures::{ARCHITECTURE, complaints, manifest, workspace_with};

    #[test]
    fn an_arrow_that_runs_up_is_told_so() {
        let tree = workspace_with(&[(
            "crates/wire/Cargo.toml",
            &manifest("farbus-wire", "[dependencies]\nfarbus-session = { path = \"../session\" }\n"),
        )]);
        let messages = complaints(&tree);
        assert_eq!(messages.len(), 1, "{messages:#?}");
        assert!(
            messages[0].starts_with("crates/wire/Cargo.toml:5: arrow: wire (layer 2) depends on session (layer 3)")
        );
        assert!(messages[0].contains("runs up"));
    }

    #[test]
    fn crates_of_one_layer_do_not_know_each_other() {
        let tree = workspace_with(&[(
            "crates/wire/Cargo.toml",
            &manifest("farbus-wire", "[dependencies]\nfarbus-host = { path = \"../host\" }\n"),
        )]);
        let messages = complaints(&tree);
        assert_eq!(messages.len(), 1, "{messages:#?}");
        assert!(messages[0].contains("wire and host are on one layer"), "{}", messages[0]);
    }

    #[test]
    fn an_arrow_down_must_be_listed() {
        let tree = workspace_with(&[(
            "crates/session/Cargo.toml",
            &manifest("farbus-session", "[dependencies]\nfarbus-host = { path = \"../host\" }\n"),
        )]);
        let messages = complaints(&tree);
        assert_eq!(messages.len(), 1, "{messages:#?}");
        assert!(messages[0].contains("session may not depend on host"), "{}", messages[0]);
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
    fn tests_may_ask_for_a_feature_of_their_own_package() {
        let own = |section: &str| {
            let entry = format!("[{section}]\nfarbus-session = {{ path = \".\", features = [\"a\"] }}\n");
            complaints(&workspace_with(&[("crates/session/Cargo.toml", &manifest("farbus-session", &entry))]))
        };
        assert_eq!(own("dev-dependencies"), [""; 0]);
        assert_eq!(own("dependencies").len(), 1);
    }

    #[test]
    fn the_lowest_layer_has_no_dependencies() {
        let tree = workspace_with(&[(
            "crates/model/Cargo.toml",
            &manifest("farbus-model", "[dependencies]\nserde = \"1\"\n"),
        )]);
        let messages = complaints(&tree);
        assert_eq!(messages.len(), 1, "{messages:#?}");
        assert!(messages[0].contains("third-party: model depends on serde"), "{}", messages[0]);
    }

    #[test]
    fn runtimes_live_in_io_net_and_farbus_even_for_tests() {
        let tree = workspace_with(&[(
            "crates/session/Cargo.toml",
            &manifest("farbus-session", "[dev-dependencies]\ntokio = \"1\"\n"),
        )]);
        let messages = complaints(&tree);
        assert_eq!(messages.len(), 1, "{messages:#?}");
        assert!(messages[0].contains("session depends on tokio"), "{}", messages[0]);

        let tree = workspace_with(&[(
            "crates/io-net/Cargo.toml",
            &manifest("farbus-io-net", "[dependencies]\nrustls = \"0.23\"\n"),
        )]);
        assert_eq!(complaints(&tree), [""; 0]);
    }

    #[test]
    fn a_package_without_a_layer_is_refused() {
        let tree = workspace_with(&[
            ("crates/attic/Cargo.toml", &manifest("farbus-attic", "")),
            ("crates/attic/src/main.rs", "fn main() {}\n"),
        ]);
        let messages = complaints(&tree);
        assert_eq!(messages.len(), 1, "{messages:#?}");
        assert!(messages[0].starts_with("crates/attic/Cargo.toml:1: layer: package farbus-attic has no layer"));
    }

    #[test]
    fn the_table_itself_may_not_point_up() {
        let architecture = ARCHITECTURE.replace(
            "name = \"model\"\npackage = \"farbus-model\"\nlayer = 1\nkind = \"pure\"\narrows = []",
            "name = \"model\"\npackage = \"farbus-model\"\nlayer = 1\nkind = \"pure\"\narrows = [\"wire\"]",
        );
        assert_ne!(architecture, ARCHITECTURE);
        let messages = complaints(&workspace_with(&[("ARCHITECTURE.toml", &architecture)]));
        assert_eq!(messages.len(), 1, "{messages:#?}");
        assert!(messages[0].contains("layer: model (layer 1) points at wire (layer 2)"), "{}", messages[0]);
    }
}
