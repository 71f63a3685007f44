//! `farbus-bench flame`: where both ends spend their processor time while a device is in use, as a flame graph.
//!
//! `perf` looks at both processes a thousand times a second. Each box of the picture is a function, as wide as the part
//! of all looks that found it at work or waiting for what it called, which stands above it.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::{
    against::{
        rows::{self, RowFigure},
        side::ComparedProgram,
    },
    benchmarks::database::ScratchFolder,
    lab::BenchmarkEnvironment,
    probe,
    svg::escaped,
};

/// Looks a second: not a multiple of what timers of the kernel do.
const LOOKS_PER_SECOND: &str = "997";
/// Bytes of a stack that are kept at each look, to be unwound later.
const STACK: &str = "dwarf,16384";
/// Functions that are listed with their own time.
const FUNCTIONS_LISTED: usize = 12;
const WIDTH: f64 = 1400.0;
const BOX_HEIGHT: f64 = 17.0;
const TITLE_HEIGHT: f64 = 34.0;
/// Narrower boxes are left out.
const BOX_WIDTH_MIN: f64 = 0.6;
const LETTER_WIDTH: f64 = 6.6;

#[derive(Args)]
#[command(after_help = "Examples:
  farbus-bench flame nbd-read-128k                        nbd-read-128k.svg, for a browser
  farbus-bench flame quic-read-4k-x32 --seconds 10 --out quic.svg

'farbus-bench against --only ?' names all rows; those with a rate can be looked at. It needs perf; as root:
  apt-get install linux-perf")]
pub struct FlameArgs {
    /// A row of 'farbus-bench against': how a device of a paired host is used
    row: String,
    /// Where the picture goes [default: ROW.svg]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// How long to look
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=60))]
    seconds: u64,
}

/// Puts a load on a device, looks at both ends, and draws what they do.
///
/// # Errors
/// There is no such row, this machine cannot use a device so, or perf may not look.
pub fn run(arguments: &FlameArgs, lab: &BenchmarkEnvironment) -> Result<ExitCode> {
    let named = rows::named(std::slice::from_ref(&arguments.row)).map_err(anyhow::Error::msg)?;
    let row = named.iter().find(|row| row.name == arguments.row);
    let Some(row) = row else {
        let names: Vec<&str> = named.iter().map(|row| row.name).collect();
        bail!("{} are several rows; name one of them: {}", arguments.row, names.join(", "));
    };
    let RowFigure::Rate(load) = row.figure else { bail!("{} is no rate: nothing is at work meanwhile", row.name) };
    let folder = ScratchFolder::new("flame")?;
    let program = ComparedProgram::new(lab, &folder, "flame")?;
    let mut device = program.begin(row.way)?;
    let ends: Vec<Vec<u32>> = device.pids().into_iter().map(probe::family).collect::<Result<_>>()?;
    let data = folder.path_of("perf.data");
    let pids: Vec<String> = ends.iter().flatten().map(u32::to_string).collect();
    let mut perf = Command::new("perf");
    perf.args(["record", "--quiet", "-F", LOOKS_PER_SECOND, "--call-graph", STACK, "-p", &pids.join(","), "-o"]);
    perf.arg(&data).args(["--", "sleep", &arguments.seconds.to_string()]).stdout(Stdio::null());
    let mut perf = perf.spawn().context("perf is not installed; as root, type: apt-get install linux-perf")?;
    // A little longer than perf looks, which takes a moment to begin.
    let tally = device.run(load, Duration::from_secs(arguments.seconds + 1))?;
    ensure!(perf.wait()?.success(), "perf may not look at processes; see /proc/sys/kernel/perf_event_paranoid");
    let stacks = stacks(&data, &ends)?;
    ensure!(stacks.looks > 0, "perf saw nobody at work");
    let title = format!("{}: {:.1} {}, {} looks", row.name, row.rate(&tally), row.unit(), stacks.looks);
    let out = arguments.out.clone().unwrap_or_else(|| PathBuf::from(format!("{}.svg", row.name)));
    std::fs::write(&out, drawn(&stacks, &title)).with_context(|| format!("cannot write {}", out.display()))?;
    println!("{title}\nwhere the time is, without what a function called:");
    for (name, looks) in own_time(&stacks) {
        println!("{:6.1} %  {name}", 100.0 * looks as f64 / stacks.looks as f64);
    }
    println!("the picture is {}: open it in a browser", out.display());
    Ok(ExitCode::SUCCESS)
}

/// A function below one chain of callers.
#[derive(Debug, Default, PartialEq)]
struct CallNode {
    /// Looks that found it, itself or what it called.
    looks: u64,
    callees: BTreeMap<String, CallNode>,
}

impl CallNode {
    fn add<'a>(&mut self, functions: impl Iterator<Item = &'a str>) {
        self.looks += 1;
        let mut node = self;
        for function in functions {
            node = node.callees.entry(function.to_owned()).or_default();
            node.looks += 1;
        }
    }

    fn own_looks(&self) -> u64 {
        self.looks - self.callees.values().map(|callee| callee.looks).sum::<u64>()
    }

    fn depth(&self) -> usize {
        self.callees.values().map(|callee| callee.depth() + 1).max().unwrap_or(0)
    }
}

/// What perf recorded, by end and thread.
fn stacks(data: &Path, ends: &[Vec<u32>]) -> Result<CallNode> {
    let mut script = Command::new("perf");
    script.args(["script", "--no-inline", "-F", "comm,pid,ip,sym", "-i"]).arg(data).stderr(Stdio::null());
    let output = script.output()?;
    ensure!(output.status.success(), "perf cannot read what it recorded");
    Ok(parsed(&String::from_utf8_lossy(&output.stdout), ends))
}

/// The stacks in what `perf script` prints: a line with the thread's name and its process, then a line for each
/// function, the innermost one first, and an empty line.
fn parsed(text: &str, ends: &[Vec<u32>]) -> CallNode {
    let mut root = CallNode::default();
    for sample in text.split("\n\n") {
        let mut lines = sample.lines().filter(|line| !line.trim().is_empty());
        let Some((thread, pid)) = lines.next().and_then(|line| line.trim().rsplit_once(char::is_whitespace)) else {
            continue;
        };
        let is_of = |end: usize| ends.get(end).is_some_and(|pids| pids.iter().any(|one| one.to_string() == pid));
        let end = if is_of(0) { "exporter" } else { "importer" };
        let functions: Vec<&str> = lines.filter_map(|line| Some(plain(line.trim().split_once(' ')?.1))).collect();
        let thread = format!("{end}: {}", thread.trim());
        root.add(std::iter::once(thread.as_str()).chain(functions.into_iter().rev()));
    }
    root
}

/// A function's name without the hash that a compiler adds.
fn plain(name: &str) -> &str {
    match name.rsplit_once("::h") {
        Some((plain, hash)) if hash.len() == 16 && hash.bytes().all(|letter| letter.is_ascii_hexdigit()) => plain,
        _ => name,
    }
}

/// The functions with most time of their own.
fn own_time(root: &CallNode) -> Vec<(String, u64)> {
    fn collect(node: &CallNode, to: &mut BTreeMap<String, u64>) {
        for (name, callee) in &node.callees {
            *to.entry(name.clone()).or_default() += callee.own_looks();
            collect(callee, to);
        }
    }
    let mut all = BTreeMap::new();
    collect(root, &mut all);
    let mut all: Vec<(String, u64)> = all.into_iter().filter(|(_, looks)| *looks > 0).collect();
    all.sort_by_key(|(_, looks)| std::cmp::Reverse(*looks));
    all.truncate(FUNCTIONS_LISTED);
    all
}

fn drawn(root: &CallNode, title: &str) -> String {
    let height = TITLE_HEIGHT + BOX_HEIGHT * root.depth() as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" font-family=\"monospace\" \
         font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"8\" y=\"20\" \
         font-size=\"14\">{}</text>\n",
        escaped(title)
    );
    draw_callees(&mut svg, root, (0.0, height - BOX_HEIGHT), root.looks);
    svg + "</svg>\n"
}

/// Draws what a function called, side by side from `left` on.
fn draw_callees(svg: &mut String, caller: &CallNode, (mut left, top): (f64, f64), all_looks: u64) {
    for (name, callee) in &caller.callees {
        let part = callee.looks as f64 / all_looks as f64;
        let width = WIDTH * part;
        if width >= BOX_WIDTH_MIN {
            let letters = (width / LETTER_WIDTH) as usize;
            let shown: String = if letters < 3 { String::new() } else { name.chars().take(letters - 1).collect() };
            let _ = writeln!(
                svg,
                "<g><title>{} ({:.1} %)</title><rect x=\"{left:.1}\" y=\"{top:.0}\" width=\"{width:.1}\" height=\"{}\" \
                 fill=\"{}\" stroke=\"white\" stroke-width=\"0.5\"/><text x=\"{:.1}\" y=\"{:.0}\">{}</text></g>",
                escaped(name),
                100.0 * part,
                BOX_HEIGHT - 1.0,
                colour(name),
                left + 3.0,
                top + 12.0,
                escaped(&shown)
            );
            draw_callees(svg, callee, (left, top - BOX_HEIGHT), all_looks);
        }
        left += width;
    }
}

/// farbus's own functions, encryption, and all others.
fn colour(name: &str) -> &'static str {
    match name {
        _ if name.contains("farbus") => "#8ec5ea",
        _ if ["rustls", "ring", "aes", "gcm", "quinn"].iter().any(|word| name.contains(word)) => "#7fd1b4",
        _ => "#f2c879",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = "farbus    41 \n\tffff81 tcp_sendmsg\n\t 55aa farbus::engine::flush::h0123456789abcdef\n\
                           \t 55ab main\n\nquic    42 \n\t 55aa quinn<T>::poll\n\n";

    #[test]
    fn stacks_are_read_by_end_and_thread_the_outermost_function_first() {
        let root = parsed(PRINTED, &[vec![40, 41], vec![42]]);
        assert_eq!(root.looks, 2);
        assert_eq!(root.callees.keys().collect::<Vec<_>>(), ["exporter: farbus", "importer: quic"]);
        let main = &root.callees["exporter: farbus"].callees["main"];
        let flush = &main.callees["farbus::engine::flush"];
        assert_eq!((main.own_looks(), flush.looks, flush.callees["tcp_sendmsg"].own_looks()), (0, 1, 1));
        assert_eq!(own_time(&root), [("quinn<T>::poll".to_owned(), 1), ("tcp_sendmsg".to_owned(), 1)]);
    }

    #[test]
    fn the_picture_has_a_box_for_each_function_and_nothing_of_other_files() {
        let svg = drawn(&parsed(PRINTED, &[vec![41], vec![42]]), "a <row>");
        assert!(svg.contains("<title>quinn&lt;T&gt;::poll (50.0 %)</title>") && svg.contains("a &lt;row&gt;"), "{svg}");
        assert_eq!(svg.matches("<g>").count(), 6);
        assert!(!svg.contains("href") && svg.ends_with("</svg>\n"));
    }
}
