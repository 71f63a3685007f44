//! Tests of the commands' help: it fits terminals, each command has examples, and the book's reference lists all
//! commands.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::{Arg, Command, CommandFactory};

use super::FarbusCli;

/// The terminals that help is written for.
const WIDTHS: [usize; 2] = [80, 100];
/// Lines of a short help: with its prompt it fits a terminal of 50 lines.
const SHORT_LINES_MAX: usize = 49;
/// Set to write the reference instead of comparing it: `cargo xtask book --bless`.
const BLESS: &str = "FARBUS_BLESS";
/// Names a file that the reference is written to with the tables of all options, for the pages of the book.
const WITH_OPTIONS: &str = "FARBUS_REFERENCE_WITH_OPTIONS";
/// Where each of the sections of the reference begins that these tests write.
const HEADINGS: [&str; 2] = ["### `farbus ", "#### `farbus "];

/// The visible commands, each with its full name: farbus's own, and those of the program that `farbus conform` starts.
fn commands() -> Vec<(String, Command)> {
    let mut farbus = FarbusCli::command();
    farbus.build();
    let mut found = Vec::new();
    collect(&farbus, "farbus", &mut found);
    let mut kit = farbus_conform_cli::ConformCli::command();
    kit.build();
    let mut of_kit = Vec::new();
    collect(&kit, "farbus conform", &mut of_kit);
    assert!(of_kit.len() > 1, "the program has commands");
    // What is behind `farbus conform` itself is listed already.
    found.extend(of_kit.into_iter().skip(1));
    found
}

fn collect(command: &Command, name: &str, found: &mut Vec<(String, Command)>) {
    found.push((name.to_owned(), command.clone()));
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
        collect(sub, &format!("{name} {}", sub.get_name()), found);
    }
}

fn is_leaf(command: &Command) -> bool {
    command.get_subcommands().all(|sub| sub.get_name() == "help")
}

fn help(command: &Command, is_long: bool, width: usize) -> String {
    let mut command = command.clone().term_width(width);
    if is_long { command.render_long_help() } else { command.render_help() }.to_string()
}

/// What the help has behind its options, as it is written in the sources.
fn tail(command: &Command, is_long: bool) -> String {
    let short = command.get_after_help();
    let tail = if is_long { command.get_after_long_help().or(short) } else { short };
    tail.map(ToString::to_string).unwrap_or_default()
}

#[test]
fn no_help_is_wider_than_its_terminal() {
    for (name, command) in commands() {
        for (is_long, width) in [(false, 80), (true, 80), (false, 100), (true, 100)] {
            let help = help(&command, is_long, width);
            let wide = help.lines().find(|line| line.chars().count() > width);
            assert_eq!(wide, None, "{name}, {width} columns");
        }
    }
}

#[test]
fn a_short_help_fits_a_screen() {
    let mut long = Vec::new();
    for (name, command) in commands() {
        for width in WIDTHS {
            let lines = help(&command, false, width).lines().count();
            if lines > SHORT_LINES_MAX {
                long.push(format!("{name} -h at {width} columns: {lines} lines"));
            }
        }
    }
    assert_eq!(long, [""; 0]);
}

/// clap wraps every line that is too long. A line that is laid out by hand would break at any place, so it has to fit
/// the narrowest terminal; and running text is one line, which wraps well at any width.
#[test]
fn lists_in_help_fit_and_paragraphs_wrap() {
    let mut wrong = Vec::new();
    for (name, command) in commands() {
        for tail in [tail(&command, false), tail(&command, true)] {
            let mut last = "";
            for line in tail.lines() {
                let is_text = |line: &str| line.starts_with(|sign: char| !sign.is_whitespace());
                if line.starts_with(' ') && line.chars().count() > WIDTHS[0] {
                    wrong.push(format!("{name}, too long: {line}"));
                }
                if is_text(line) && is_text(last) && !last.ends_with(':') {
                    wrong.push(format!("{name}, a paragraph of several lines: {line}"));
                }
                last = line;
            }
        }
    }
    assert_eq!(wrong, [""; 0]);
}

#[test]
fn every_command_has_examples() {
    let lack = |(name, command): (String, Command)| {
        let has = |is_long| tail(&command, is_long).lines().any(|line| line == "Examples:");
        (is_leaf(&command) && !(has(false) && has(true))).then_some(name)
    };
    assert_eq!(commands().into_iter().filter_map(lack).collect::<Vec<_>>(), [""; 0]);
}

/// The commands without `--json`, and why.
const WITHOUT_JSON: [(&str, &str); 6] = [
    ("farbus run", "what it prints is the program's"),
    ("farbus shell", "what it prints is the shell's"),
    ("farbus console", "what it prints is the device's; 'farbus observe --console --json' is for programs"),
    ("farbus bench", "it passes its words to another program, farbus-bench, which has options of its own"),
    ("farbus papers", "it passes its words to another program, farbus-papers, which has '--json'"),
    ("farbus conform", "it passes its words to another program, farbus-conform, whose commands have it"),
];

#[test]
fn every_command_speaks_json_or_says_why_not() {
    let has = |command: &Command| command.get_arguments().any(|argument| argument.get_long() == Some("json"));
    let lack: Vec<String> = commands()
        .into_iter()
        .filter_map(|(name, command)| (is_leaf(&command) && !has(&command)).then_some(name))
        .collect();
    assert_eq!(lack, WITHOUT_JSON.map(|(name, _)| name.to_owned()));
}

#[test]
fn no_two_commands_have_one_description() {
    let mut abouts: Vec<(String, String)> =
        commands().iter().map(|(name, command)| (about(command, false), name.clone())).collect();
    abouts.sort();
    for pair in abouts.windows(2) {
        assert_ne!(pair[0].0, pair[1].0, "{} and {}", pair[0].1, pair[1].1);
    }
}

#[test]
fn the_reference_lists_every_command() {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/book/src/reference.md"));
    let is = std::fs::read_to_string(&path).unwrap();
    let (should, missing) = reference(&is, &|_| String::new());
    assert_eq!(missing, [""; 0], "the reference has no heading for these: choose a place and add '### `farbus …`'");
    if std::env::var_os(BLESS).is_some() {
        std::fs::write(&path, &should).unwrap();
    }
    let differs = is.lines().zip(should.lines()).find(|(is, should)| is != should);
    assert!(
        is == should || std::env::var_os(BLESS).is_some(),
        "{} differs from the help, first at {differs:?}: type 'cargo xtask book --bless'",
        path.display()
    );
    let (with_options, _) = reference(&is, &options);
    assert!(with_options.contains("| `--follow <WHICH>` |"), "{with_options}");
    if let Some(copy) = std::env::var_os(WITH_OPTIONS) {
        std::fs::write(copy, with_options).unwrap();
    }
}

/// The reference with its sections written anew, and the commands that have no heading there. What a section has
/// behind its usage, `rest` says.
fn reference(text: &str, rest: &dyn Fn(&Command) -> String) -> (String, Vec<String>) {
    let commands = commands();
    let mut missing: Vec<String> = commands.iter().skip(1).map(|(name, _)| name.clone()).collect();
    let mut written = String::new();
    let mut is_replaced = false;
    for line in text.lines() {
        if line.starts_with('#') {
            is_replaced = false;
        }
        if !is_replaced {
            written.push_str(line);
            written.push('\n');
        }
        if HEADINGS.iter().any(|heading| line.starts_with(heading)) {
            let name = line.trim_matches(['#', ' ', '`']);
            // `farbus man` is hidden, and is in the reference all the same.
            let command = commands.iter().find(|(known, _)| known == name).map(|(_, command)| command.clone());
            if let Some(command) = command.or_else(|| hidden(name)) {
                missing.retain(|other| other != name);
                section(&command, &mut written);
                written.push_str(&rest(&command));
                is_replaced = true;
            }
        }
    }
    (written, missing)
}

fn hidden(name: &str) -> Option<Command> {
    let mut farbus = FarbusCli::command();
    farbus.build();
    farbus.find_subcommand(name.strip_prefix("farbus ")?).cloned()
}

/// A command's section below its heading.
fn section(command: &Command, into: &mut String) {
    let _ = writeln!(into, "\n{}", about(command, true));
    let usage = command.clone().render_usage().to_string();
    for line in usage.lines() {
        let line = line.trim().trim_start_matches("Usage:").trim();
        let before = if line.starts_with("farbus") { "\n    " } else { " " };
        let _ = write!(into, "{before}{line}");
    }
    into.push_str("\n\n");
}

/// The table of a command's arguments and options.
fn options(command: &Command) -> String {
    let arguments: Vec<&Arg> = command
        .get_arguments()
        .filter(|argument| !argument.is_hide_set() && !matches!(argument.get_id().as_str(), "help" | "version"))
        .collect();
    if arguments.is_empty() {
        return String::new();
    }
    let (positional, options): (Vec<&Arg>, Vec<&Arg>) = arguments.into_iter().partition(|arg| arg.is_positional());
    let rows: Vec<[String; 3]> = positional.into_iter().chain(options).map(row).collect();
    let has_defaults = rows.iter().any(|[.., default]| !default.is_empty());
    let end = if has_defaults { (" default |", "---|") } else { ("", "") };
    let mut table = format!("| argument or option | meaning |{}\n|---|---|{}\n", end.0, end.1);
    for [spelling, meaning, default] in rows {
        let default = if has_defaults { format!(" {default} |") } else { String::new() };
        let _ = writeln!(table, "| {spelling} | {meaning} |{default}");
    }
    table.push('\n');
    table
}

/// How an argument is typed, what it means with the values that it may have, and its default.
fn row(argument: &Arg) -> [String; 3] {
    let long = argument.to_string();
    let spelling = match argument.get_short().filter(|_| argument.get_long().is_some()) {
        Some(short) => format!("`-{short}`, `{}`", cell(&long)),
        None => format!("`{}`", cell(&long)),
    };
    let help = argument.get_long_help().or(argument.get_help()).map(ToString::to_string).unwrap_or_default();
    let mut meaning = sentences(&help);
    let takes_value = argument.get_action().takes_values();
    if takes_value {
        let values: Vec<String> = argument
            .get_possible_values()
            .iter()
            .filter(|value| !value.is_hide_set())
            .map(|value| match value.get_help() {
                Some(help) => format!("`{}` {}", value.get_name(), help),
                None => format!("`{}`", value.get_name()),
            })
            .collect();
        if !values.is_empty() {
            let between = if values.iter().any(|value| value.contains(' ')) { "; " } else { ", " };
            let _ = write!(meaning, ": {}", values.join(between));
        }
    }
    let defaults: Vec<String> =
        argument.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect();
    let default = if takes_value && !defaults.is_empty() { format!("`{}`", defaults.join(",")) } else { String::new() };
    [spelling, cell(&meaning), default]
}

fn about(command: &Command, is_long: bool) -> String {
    let long = if is_long { command.get_long_about() } else { None };
    let about = sentences(&long.or(command.get_about()).map(ToString::to_string).unwrap_or_default());
    if about.ends_with(['.', '?']) { about } else { format!("{about}.") }
}

/// Paragraphs as one line; clap takes the full stop from the end of a text of one paragraph.
fn sentences(text: &str) -> String {
    let paragraphs = text.split("\n\n").map(|part| part.split_whitespace().collect::<Vec<_>>().join(" "));
    let ended = paragraphs.map(|part| if part.ends_with(['.', '?', ':', ']']) { part } else { format!("{part}.") });
    let joined = ended.collect::<Vec<_>>().join(" ");
    joined.strip_suffix('.').map(ToOwned::to_owned).unwrap_or(joined)
}

/// A text as a cell of a table: a bar would end it.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}
