//! Who passes what of `farbus conform`: runs against implementations that need no machine, and the table of
//! `docs/interop.md`, which is made of the results that are kept in `docs/results/conform`.
//!
//! A result is kept as `farbus conform … --json` printed it, with the software's name and version. There is a column
//! for each implementation that has one, and for no other.

use crate::image::kernel::write_whole;
use crate::peers::{InteropServer, crate_server, python};
use crate::{Result, RigError, tool};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// An implementation that is tested.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConformSubject {
    /// The name of its file.
    pub name: &'static str,
    /// The heading of its column in the tables.
    pub title: &'static str,
    /// `exporter`, `importer` or `session`.
    role: &'static str,
}

/// All implementations, in the order of the columns.
pub const SUBJECTS: &[ConformSubject] = &[
    ConformSubject { name: "share", title: "`farbus share`", role: "exporter" },
    ConformSubject { name: "vudc", title: "Linux `usbip-vudc` + `usbipd`", role: "exporter" },
    ConformSubject { name: "usbip-host", title: "Linux `usbip-host` + `usbipd`", role: "exporter" },
    ConformSubject { name: "python-devices", title: python::NAME, role: "exporter" },
    ConformSubject { name: "crate", title: crate_server::NAME, role: "exporter" },
    ConformSubject { name: "attach-nbd", title: "`farbus attach --via nbd`", role: "importer" },
    ConformSubject { name: "attach-fuse", title: "`farbus attach --via fuse`", role: "importer" },
    ConformSubject { name: "attach-redir", title: "`farbus attach --via redir`", role: "importer" },
    ConformSubject { name: "vhci", title: "Linux `usbip` + `vhci_hcd`", role: "importer" },
    ConformSubject { name: "python-host", title: python::NAME, role: "importer" },
    ConformSubject { name: "session-share", title: "`farbus share`", role: "session" },
];

/// How long an answer may take, in s.
const TIMEOUT: &str = "2";

/// Where everything is.
#[derive(Debug)]
pub struct ConformPaths {
    /// The program; `farbus-conform` is beside it.
    pub farbus: PathBuf,
    /// A folder for sockets, images and logs.
    pub scratch: PathBuf,
    /// The rig's cache, where Python's package is.
    pub cache: PathBuf,
}

impl ConformPaths {
    fn farbus(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.farbus);
        command.args(words).env("XDG_RUNTIME_DIR", &self.scratch).env("FARBUS_STATE", self.scratch.join("state"));
        command.stdin(Stdio::null());
        command
    }

    /// Runs `farbus conform … --json`, whose verdict is in what it prints.
    fn conform(&self, words: &[&str]) -> Result<Value> {
        let mut command = self.farbus(&[&["conform"], words, &["--timeout", TIMEOUT, "--json"]].concat());
        let output = command.output().map_err(RigError::io(format!("start {}", tool::show(&command))))?;
        let printed = String::from_utf8_lossy(&output.stdout);
        match (output.status.code(), serde_json::from_str(&printed)) {
            (Some(0 | 1), Ok(value)) => Ok(value),
            _ => Err(RigError::Tool {
                command: tool::show(&command),
                message: format!("{printed}{}", String::from_utf8_lossy(&output.stderr)),
            }),
        }
    }

    fn exporter(&self, port: u16, words: &[&str]) -> Result<Value> {
        self.conform(&[&["exporter", &format!("127.0.0.1:{port}")], words].concat())
    }

    fn importer(&self, with: &str) -> Result<Value> {
        self.conform(&["importer", "--listen", "127.0.0.1:0", "--with", with])
    }

    fn image(&self) -> Result<PathBuf> {
        let image = self.scratch.join("conform.img");
        std::fs::write(&image, vec![0; 8 << 20]).map_err(RigError::io("write an image"))?;
        Ok(image)
    }

    fn server(&self, command: Command) -> Result<InteropServer> {
        InteropServer::start(command, &self.scratch.join("conform.log"))
    }

    /// Runs the kit against an implementation that needs no machine, and returns the result to keep; `None` for one
    /// that needs a machine.
    ///
    /// # Errors
    /// If a program cannot be started, or does not say what it has to.
    pub fn run(&self, subject: ConformSubject) -> Result<Option<Value>> {
        let image = self.image()?;
        let path = image.to_string_lossy().into_owned();
        let attach = format!("{} attach {{address}}/{{busid}} --via", self.farbus.display());
        let scratch = self.scratch.display();
        let (version, runs) = match subject.name {
            "share" => {
                let disk = format!("disk:{path}");
                let share = self.farbus(&["share", "zero", &disk, "audio", "keyboard", "--listen", "127.0.0.1:0"]);
                let server = self.server(share)?;
                let run = |bus_id| self.exporter(server.port(), &["--busid", bus_id]);
                (self.version()?, vec![run("1-1")?, run("1-2")?, run("1-3")?, run("1-4")?])
            }
            "session-share" => {
                let disk = format!("disk:{path}");
                let words = ["share", "--observable", "zero", &disk, "keyboard", "--listen", "127.0.0.1:0"];
                let server = self.server(self.farbus(&words))?;
                let address = format!("127.0.0.1:{}", server.port());
                let run = |device| self.conform(&["session", &address, "--device", device]);
                (self.version()?, vec![run("1-1")?, run("1-2")?, run("1-3")?])
            }
            "python-devices" => {
                let python = python::PythonPackage::ready(&self.cache)?;
                let server = self.server(python.command(include_str!("../peers/server.py"), &[&path]))?;
                let run = |bus_id| self.exporter(server.port(), &["--busid", bus_id]);
                (python.version.to_owned(), vec![run("1-1")?, run("1-2")?])
            }
            "crate" => {
                let version = crate_server::version().unwrap_or("unknown").to_owned();
                (version, vec![self.of_crate("keyboard")?, self.of_crate("serial")?])
            }
            "attach-nbd" => {
                (self.version()?, vec![self.importer(&format!("{attach} nbd --socket {scratch}/conform-nbd.sock"))?])
            }
            "attach-fuse" => {
                (self.version()?, vec![self.importer(&format!("{attach} fuse --at {scratch}/conform-disk"))?])
            }
            "attach-redir" => (
                self.version()?,
                vec![self.importer(&format!("{attach} redir --socket {scratch}/conform-redir.sock"))?],
            ),
            "python-host" => {
                let python = python::PythonPackage::ready(&self.cache)?;
                let script = self.scratch.join("conform-importer.py");
                write_whole(&script, include_str!("../peers/importer.py").as_bytes())?;
                let path = python.path().display();
                let with = format!("PYTHONPATH={path} python3 {} {{port}} {{busid}}", script.display());
                (python.version.to_owned(), vec![self.importer(&with)?])
            }
            _ => return Ok(None),
        };
        Ok(Some(kept(subject, &version, &runs)))
    }

    fn version(&self) -> Result<String> {
        let message = tool::text(&mut self.farbus(&["--version"]))?;
        Ok(message.split_whitespace().nth(1).unwrap_or_default().to_owned())
    }

    /// The crate's server panics at some requests and then keeps its device in use: each check gets a server of its
    /// own.
    fn of_crate(&self, device: &str) -> Result<Value> {
        let list = tool::text(&mut self.farbus(&["conform", "exporter", "--list", "--json"]))?;
        let list: Value = serde_json::from_str(&list).map_err(|error| RigError::Expectation(error.to_string()))?;
        let own = std::env::current_exe().map_err(RigError::io("find this program"))?;
        let mut checks = Vec::new();
        for check in list.as_array().into_iter().flatten() {
            let mut command = Command::new(&own);
            command.args(["peer", device]);
            let server = self.server(command)?;
            let id = check["id"].as_str().unwrap_or_default();
            let result = self.exporter(server.port(), &["--busid", crate_server::BUS_ID, "--only", id])?;
            checks.extend(result["checks"].as_array().cloned().unwrap_or_default());
        }
        Ok(json!({ "checks": checks }))
    }
}

/// A result as it is kept.
pub fn kept(subject: ConformSubject, version: &str, runs: &[Value]) -> Value {
    let checks = |run: &Value| {
        let each = run["checks"].as_array().into_iter().flatten();
        let parts = ["id", "severity", "result", "seen"];
        let each = each.map(|check| parts.iter().map(|part| ((*part).to_owned(), check[*part].clone())).collect());
        Value::Array(each.collect())
    };
    let runs: Vec<Value> = runs.iter().map(checks).collect();
    json!({ "software": subject.title, "version": version, "role": subject.role, "runs": runs })
}

/// Writes a result into the folder.
pub fn keep(folder: &Path, subject: ConformSubject, result: &Value) -> Result<()> {
    std::fs::create_dir_all(folder).map_err(RigError::io(format!("create {}", folder.display())))?;
    write_whole(&folder.join(format!("{}.json", subject.name)), format!("{result:#}\n").as_bytes())
}

/// The results that are kept, by the name of their subject.
///
/// # Errors
/// A file that is no result.
pub fn read_all(folder: &Path) -> Result<BTreeMap<&'static str, Value>> {
    let mut results = BTreeMap::new();
    for subject in SUBJECTS {
        let path = folder.join(format!("{}.json", subject.name));
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        let result =
            serde_json::from_str(&text).map_err(|_| RigError::Format { path, rule: "not a result of the kit" })?;
        results.insert(subject.name, result);
    }
    Ok(results)
}

/// What became of each check over all devices of an implementation: a failure counts before a pass, a pass before the
/// rest.
fn merged(result: &Value) -> BTreeMap<String, &str> {
    let rank = |word: &str| ["skipped", "not applicable", "pass", "fail"].iter().position(|each| *each == word);
    let mut merged: BTreeMap<String, &str> = BTreeMap::new();
    for check in result["runs"].as_array().into_iter().flatten().filter_map(Value::as_array).flatten() {
        let (Some(id), Some(word)) = (check["id"].as_str(), check["result"].as_str()) else { continue };
        let best = merged.entry(id.to_owned()).or_insert(word);
        if rank(word) > rank(best) {
            *best = word;
        }
    }
    merged
}

/// The checks that failed with an implementation.
pub fn failed(result: &Value) -> Vec<String> {
    merged(result).into_iter().filter(|(_, word)| *word == "fail").map(|(id, _)| id).collect()
}

/// Whether a check of this name does not bind.
fn is_should(results: &BTreeMap<&str, Value>, id: &str) -> bool {
    let runs = results.values().flat_map(|result| result["runs"].as_array().into_iter().flatten());
    let mut checks = runs.filter_map(Value::as_array).flatten();
    checks.any(|check| check["id"] == id && check["severity"] == "should")
}

/// The tables: for each role, a row for each check that did not pass with all, and the numbers of the others.
pub fn tables(results: &BTreeMap<&str, Value>) -> String {
    let mut text = String::new();
    for (role, of) in [
        ("exporter", "an exporter"),
        ("importer", "an importer"),
        ("session", "an exporter of farbus's own protocol (`farbus conform session`)"),
    ] {
        let of_role = |subject: &&ConformSubject| subject.role == role && results.contains_key(subject.name);
        let columns: Vec<&ConformSubject> = SUBJECTS.iter().filter(of_role).collect();
        if columns.is_empty() {
            continue;
        }
        let merged: Vec<BTreeMap<String, &str>> = columns.iter().map(|each| merged(&results[each.name])).collect();
        let titles: Vec<String> = columns
            .iter()
            .map(|each| format!("{} {}", each.title, results[each.name]["version"].as_str().unwrap_or_default()))
            .collect();
        // Writing to a string does not fail.
        let _ = writeln!(text, "| check of {of} | {} |", titles.join(" | "));
        let _ = writeln!(text, "|---|{}", "---|".repeat(columns.len()));
        let mut ids: Vec<&String> = merged.iter().flat_map(BTreeMap::keys).collect();
        ids.sort();
        ids.dedup();
        let words = |id: &str| merged.iter().map(|each| each.get(id).copied().unwrap_or("–")).collect::<Vec<_>>();
        let (failed, others): (Vec<_>, Vec<_>) = ids.into_iter().partition(|id| words(id).contains(&"fail"));
        let has_failed = !failed.is_empty();
        for id in failed {
            let cells: Vec<&str> =
                words(id).into_iter().map(|word| if word == "fail" { "**fail**" } else { word }).collect();
            let binds = if is_should(results, id) { ", should" } else { "" };
            let _ = writeln!(text, "| `{id}`{binds} | {} |", cells.join(" | "));
        }
        let passes = |at: usize| others.iter().filter(|id| words(id)[at] == "pass").count();
        let counts: Vec<String> =
            (0..columns.len()).map(|at| format!("{} of {} pass", passes(at), others.len())).collect();
        let which = if has_failed { "the others" } else { "all" };
        let _ = writeln!(text, "| {which} | {} |\n", counts.join(" | "));
    }
    text.trim_end().to_owned() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(runs: &[&[(&str, &str)]]) -> Value {
        let of = |checks: &&[(&str, &str)]| {
            let each = checks.iter().map(|(id, word)| json!({ "id": id, "result": word, "seen": "" }));
            json!({ "checks": each.collect::<Vec<_>>() })
        };
        kept(SUBJECTS[0], "1.0", &runs.iter().map(of).collect::<Vec<_>>())
    }

    #[test]
    fn failures_of_any_device_count_and_passes_hide_what_a_device_cannot_show() {
        let result = result(&[
            &[("a", "pass"), ("b", "not applicable"), ("c", "skipped")],
            &[("a", "fail"), ("b", "pass"), ("c", "not applicable")],
        ]);
        let merged = merged(&result);
        assert_eq!(merged.values().copied().collect::<Vec<_>>(), ["fail", "pass", "not applicable"]);
        assert_eq!(failed(&result), ["a"]);
    }

    #[test]
    fn a_table_has_a_column_for_each_result_and_for_no_other() {
        let results = BTreeMap::from([("share", result(&[&[("a", "fail"), ("b", "pass")]]))]);
        let text = tables(&results);
        assert!(
            text.contains("| check of an exporter | `farbus share` 1.0 |\n|---|---|\n| `a` | **fail** |"),
            "{text}"
        );
        assert!(text.contains("| the others | 1 of 1 pass |"), "{text}");
        assert!(!text.contains("vudc"), "{text}");
    }
}
