//! Small workspaces for the tests of the rules.

use super::tree::SourceTree;
use std::collections::BTreeMap;

/// A small architecture: two layers, a crate with an outside, and a program.
pub const ARCHITECTURE: &str = r#"
[[crate]]
name = "model"
package = "farbus-model"
layer = 1
kind = "pure"
arrows = []
third_party = []

[[crate]]
name = "wire"
package = "farbus-wire"
layer = 2
kind = "pure"
arrows = ["model"]
third_party = []

[[crate]]
name = "host"
package = "farbus-host"
layer = 2
kind = "pure"
arrows = ["model"]
third_party = []

[[crate]]
name = "io-net"
package = "farbus-io-net"
layer = 2
kind = "outside"
arrows = ["model"]
third_party = ["*"]
runtimes = true

[[crate]]
name = "session"
package = "farbus-session"
layer = 3
kind = "pure"
arrows = ["model", "wire"]
third_party = []
test_arrows = ["host"]

[[crate]]
name = "farbus"
package = "farbus"
layer = 4
kind = "binary"
arrows = ["model", "session", "io-net"]
third_party = ["*"]

[third_party]
in_tests = ["bolero"]
runtimes = ["tokio", "rustls"]

[banned]
except = ["std::thread::panicking"]

[banned.pure]
"std::time::Instant" = "time is an argument"
"Instant::now" = "time is an argument"
"SystemTime" = "time is an argument"
"std::net" = "sans-IO"
"std::fs" = "ask for a store"
"std::thread" = "no threads"
"std::process" = "no processes"
"println!" = "return data"
"mpsc::channel" = "bounded queues"

[banned.library]
"anyhow" = "name the trouble"

[unsafe_code]
under = ["crates/io-net/src/sys/"]

[errno]
within = "crates/"
under = ["crates/wire/src/usbip/", "crates/io-net/src/sys/"]
typed_under = ["crates/io-net/"]

[files]
lines_max = 20
function_lines_max = 12
crate_lines_max = 30

[prose]
banned_folders = ["home"]

[retired.words]
heir = "successor"
heirs = "successors"

[retired.names]
Desk = "Supervisor"

[type_names]
definitions_max = 2
one_word_percent_max = 100

[type_names.excused]
"#;

const DESCRIPTION: &str =
    "//! This crate is small. It may touch nothing. It never touches more. Start reading at x. Why: to be short.\n";

/// A tidy workspace in which some files are replaced or added. A library's modules are declared for it: every file
/// `crates/NAME/src/X.rs` that is added gets a `mod X;` in a `lib.rs` that is not.
pub fn workspace_with(changes: &[(&str, &str)]) -> SourceTree {
    let mut files = BTreeMap::new();
    files.insert("ARCHITECTURE.toml".to_owned(), ARCHITECTURE.to_owned());
    files.insert("Cargo.toml".to_owned(), "[workspace]\nmembers = [\"crates/*\"]\n".to_owned());
    for name in ["model", "wire", "host", "io-net", "session"] {
        files.insert(format!("crates/{name}/Cargo.toml"), manifest(&format!("farbus-{name}"), ""));
        let top = format!("crates/{name}/src/");
        let modules = changes
            .iter()
            .filter_map(|(path, _)| path.strip_prefix(&top)?.split('/').next())
            .map(|module| module.trim_end_matches(".rs"))
            .filter(|module| *module != "lib")
            .collect::<std::collections::BTreeSet<_>>();
        let declarations: String = modules.iter().map(|module| format!("mod {module};\n")).collect();
        files.insert(format!("{top}lib.rs"), format!("{DESCRIPTION}{declarations}"));
    }
    files.insert("crates/farbus/Cargo.toml".to_owned(), manifest("farbus", ""));
    files.insert("crates/farbus/src/main.rs".to_owned(), "fn main() {}\n".to_owned());
    files.extend(changes.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())));
    SourceTree::of(files.iter().map(|(path, text)| (path.as_str(), text.as_str())))
}

/// A manifest whose dependency tables begin on line 4.
pub fn manifest(name: &str, tables: &str) -> String {
    format!("[package]\nname = \"{name}\"\n\n{tables}")
}

/// A library's root: the description of a crate, then `rest` from the second line on.
pub fn lib(rest: &str) -> String {
    format!("{DESCRIPTION}{rest}")
}

/// Everything that tidy says about a tree.
pub fn complaints(tree: &SourceTree) -> Vec<String> {
    super::check(tree).expect("the tree can be read").iter().map(ToString::to_string).collect()
}
