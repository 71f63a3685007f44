//! The tables and figures of "Real-Time USB Networking and Device I/O" (West, Golchin and Njavro, 2023) that are plans,
//! as files to start from.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::super::output::{CommandFailure, print_json, say};
use super::file;

/// Print example files.
///
/// Each is a table or figure of the paper whose algorithms the plans use (West, Golchin and Njavro, 2023).
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  farbus plan examples                       their names, and how each is run\n  \
    farbus plan examples table-5-1 > car.toml  a file to start from\n  \
    farbus plan schedule --example table-2-3")]
pub struct Args {
    /// Print this one.
    name: Option<String>,
    /// Print JSON, for programs.
    #[arg(long)]
    pub json: bool,
}

/// What a plan is made from: a file, or one of the examples.
#[derive(Debug, clap::Args)]
pub struct PlanSource {
    /// The plan, as TOML.
    #[arg(required_unless_present = "example", conflicts_with = "example")]
    file: Option<PathBuf>,
    /// An example instead of a file.
    ///
    /// A table or figure of the 2023 paper; 'list' prints their names.
    #[arg(long, value_name = "NAME")]
    example: Option<String>,
}

/// The verb of `farbus plan` that an example is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExampleKind {
    Schedule,
    Topology,
    Pipe,
}

impl ExampleKind {
    const fn verb(self) -> &'static str {
        match self {
            Self::Schedule => "schedule",
            Self::Topology => "topology",
            Self::Pipe => "pipe",
        }
    }
}

/// An example file that `farbus plan examples NAME` prints, with the verb that runs it.
#[derive(Clone, Copy, Debug)]
pub struct PlanExample {
    pub name: &'static str,
    pub kind: ExampleKind,
    pub text: &'static str,
}

macro_rules! examples {
    ($($kind:ident $name:literal),+ $(,)?) => {
        &[$(PlanExample {
            name: $name,
            kind: ExampleKind::$kind,
            text: include_str!(concat!("../../plans/", $name, ".toml")),
        }),+]
    };
}

/// All of them, in the order of the paper.
pub const ALL: &[PlanExample] = examples![
    Topology "figure-4",
    Topology "figure-5a",
    Topology "figure-5b",
    Topology "figure-5c",
    Pipe "section-5",
    Schedule "table-2-1",
    Schedule "table-2-2",
    Schedule "table-2-3",
    Schedule "table-2-4",
    Schedule "table-2-5",
    Schedule "table-5-1",
    Schedule "table-5-2",
    Schedule "table-5-3",
    Pipe "table-7",
    Pipe "figure-13",
    Pipe "figure-15",
];

impl PlanExample {
    /// What it shows: its first line.
    fn title(&self) -> &'static str {
        self.text.lines().next().unwrap_or_default().trim_start_matches("# ")
    }

    fn command(&self) -> String {
        format!("farbus plan {} --example {}", self.kind.verb(), self.name)
    }
}

pub fn run(args: &Args) -> Result<(), CommandFailure> {
    match &args.name {
        None => list(None, args.json),
        Some(name) => {
            let Some(example) = ALL.iter().find(|example| example.name == *name) else {
                return Err(unknown(name, ALL.iter()));
            };
            if args.json {
                return print_json(&in_json(example));
            }
            say(example.text.trim_end());
            Ok(())
        }
    }
}

/// Prints the names of all, or of those of one verb.
fn list(kind: Option<ExampleKind>, is_json: bool) -> Result<(), CommandFailure> {
    let all = || ALL.iter().filter(|example| kind.is_none_or(|kind| kind == example.kind));
    if is_json {
        return print_json(&all().map(in_json).collect::<Vec<_>>());
    }
    for example in all() {
        say(format!("{:<44}{}", example.command(), example.title()));
    }
    Ok(())
}

fn in_json(example: &PlanExample) -> serde_json::Value {
    json!({
        "name": example.name,
        "command": example.command(),
        "title": example.title(),
        "text": example.text,
    })
}

fn unknown<'a>(name: &str, all: impl Iterator<Item = &'a PlanExample>) -> CommandFailure {
    let names: Vec<_> = all.map(|example| example.name).collect();
    CommandFailure::local(format!("no example is called '{name}': there are {}", names.join(", ")))
}

/// The example of this name, or `None` once the names were printed because `list` was asked for.
pub fn find(kind: ExampleKind, name: &str, is_json: bool) -> Result<Option<&'static PlanExample>, CommandFailure> {
    if name == "list" {
        return list(Some(kind), is_json).map(|()| None);
    }
    let all = || ALL.iter().filter(|example| example.kind == kind);
    all().find(|example| example.name == name).map(Some).ok_or_else(|| unknown(name, all()))
}

impl PlanSource {
    /// A plan's text, and what to call it in messages; `None` once the names were printed instead.
    pub fn read(&self, kind: ExampleKind, is_json: bool) -> Result<Option<(String, String)>, CommandFailure> {
        if let Some(name) = &self.example {
            return Ok(find(kind, name, is_json)?.map(|found| (format!("example {name}"), found.text.to_owned())));
        }
        let path = self.file.as_deref().unwrap_or(Path::new(""));
        Ok(Some((path.display().to_string(), file::text(path)?)))
    }
}
