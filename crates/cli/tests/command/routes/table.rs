//! The table of `docs/interop.md`: what ran on which routes, and what is left out why.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use super::capabilities::{CAPABILITIES, Capability};
use super::{Cell, Route, WAYS, Way};

const BEGIN: &str =
    "<!-- routes: made by FARBUS_WRITE=1 FARBUS_ROUTES=all cargo test -p farbus-cli --test command -- routes -->";
const END: &str = "<!-- end of routes -->";

fn record_of(cell: Cell) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("routes");
    folder.join(format!("{}.{}", cell.capability.name, cell.route))
}

/// Notes that a cell has passed.
pub fn record(cell: Cell) {
    let path = record_of(cell);
    fs::create_dir_all(path.parent().expect("it is in a folder")).unwrap();
    fs::write(path, "passed\n").unwrap();
}

fn cells(capability: &'static Capability, way: Way) -> Vec<Cell> {
    Cell::all().filter(|cell| cell.capability.name == capability.name && cell.route.way == way).collect()
}

/// The reasons for which cells are left out, with the ways that they concern.
fn reasons(capability: &Capability) -> Vec<(&'static str, Vec<Way>)> {
    let mut found: BTreeMap<&str, Vec<Way>> = BTreeMap::new();
    for route in Route::all() {
        if let Some(reason) = capability.left_out(route) {
            let ways = found.entry(reason).or_default();
            if !ways.contains(&route.way) {
                ways.push(route.way);
            }
        }
    }
    found.into_iter().collect()
}

fn word(way: Way) -> String {
    format!("`{way:?}`").to_lowercase()
}

/// The table: how many cells there are for each capability and way, and below it what is left out.
fn table() -> String {
    let mut text = format!("{BEGIN}\n\n| capability | {} |\n|---|", WAYS.map(word).join(" | "));
    text += &"---|".repeat(WAYS.len());
    for capability in CAPABILITIES {
        let counts = WAYS.map(|way| match cells(capability, way).len() {
            0 => "–".to_owned(),
            count => count.to_string(),
        });
        write!(text, "\n| **{}**: {} | {} |", capability.name, capability.promise, counts.join(" | ")).unwrap();
    }
    text += "\n\nLeft out:\n\n| capability | way | why |\n|---|---|---|";
    for capability in CAPABILITIES {
        for (reason, ways) in reasons(capability) {
            let is_of_route = Route::all().any(|route| route.left_out() == Some(reason));
            if is_of_route && capability.name != CAPABILITIES[0].name {
                continue;
            }
            let name = if is_of_route { "all" } else { capability.name };
            let ways = if ways.len() == WAYS.len() {
                "all".into()
            } else {
                ways.into_iter().map(word).collect::<Vec<_>>().join(", ")
            };
            write!(text, "\n| {name} | {ways} | {reason} |").unwrap();
        }
    }
    text + "\n\n" + END
}

fn document() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/interop.md")
}

/// The document is written once every cell has passed, here or in the rig (`routes-all`): both leave the same records.
#[test]
fn interop_shows_the_table_of_routes() {
    let text = fs::read_to_string(document()).unwrap();
    let (before, rest) = text.split_once(BEGIN).expect("the document has a place for the table");
    let (_, after) = rest.split_once(END).expect("the place has an end");
    let now = format!("{before}{}{after}", table());
    if std::env::var_os("FARBUS_WRITE").is_some() {
        let open: Vec<String> = Cell::all()
            .filter(|cell| !record_of(*cell).exists())
            .map(|cell| format!("{} on {}", cell.capability.name, cell.route))
            .collect();
        assert!(open.is_empty(), "these have not passed yet: {open:#?}");
        fs::write(document(), now).unwrap();
    } else {
        assert!(text == now, "docs/interop.md has another table: see tests/command/routes/table.rs");
    }
}
