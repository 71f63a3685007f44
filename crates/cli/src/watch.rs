//! `farbus status --watch`: a live table of what is shared and attached here, with rates and latency.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use crossterm::style::{ContentStyle, PrintStyledContent, StyledContent, Stylize};
use crossterm::terminal::{
    self, BeginSynchronizedUpdate, Clear, ClearType, EndSynchronizedUpdate, EnterAlternateScreen, LeaveAlternateScreen,
};
use crossterm::{execute, queue};
use farbus_control::units::format_bytes;
use farbus_io_net::local::control_socket::{Answer, Question, ask_all};
use serde_json::Value;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::CommandFailure;
use super::output::{format_span, state_of};

/// How often the processes are asked.
const EVERY: Duration = Duration::from_secs(1);

/// A device, and its process.
type DeviceRowKey = (u64, String, String);

/// What a device has transferred since it was shared or attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TransferCounts {
    requests: u64,
    bytes_in: u64,
    bytes_out: u64,
}

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
struct WatchRow {
    name: String,
    title: String,
    state: String,
    peer: String,
    since: String,
    waiting: String,
    rates: [String; 3],
    latency: String,
}

/// What was counted when the processes were asked last.
#[derive(Debug, Default)]
struct RateMeter {
    last: BTreeMap<DeviceRowKey, (TransferCounts, Instant)>,
}

impl RateMeter {
    /// The lines for these answers, with the rates since the last ones.
    fn lines(&mut self, processes: &[Value], now: Instant) -> Vec<WatchRow> {
        let mut counts = BTreeMap::new();
        let mut lines = Vec::new();
        for process in processes {
            for device in process["devices"].as_array().into_iter().flatten() {
                let key = (process["pid"].as_u64().unwrap_or_default(), text(device, "name"), text(device, "title"));
                let counted = counted(device);
                let last = self.last.get(&key).copied();
                lines.push(shown(device, rates(counted, last, now)));
                counts.extend(counted.map(|counted| (key, (counted, now))));
            }
        }
        self.last = counts;
        lines
    }
}

/// What has passed: of the user's connection, or else of all links of the session.
fn counted(device: &Value) -> Option<TransferCounts> {
    let of_links = |name: &str| {
        let links = device["links"]["each"].as_array()?;
        Some(links.iter().filter_map(|link| link[name].as_u64()).sum::<u64>())
    };
    let meters = &device["meters"];
    let count = |name: &str| match (meters[name].as_u64(), of_links(name)) {
        (Some(0) | None, Some(of_links)) => Some(of_links),
        (of_user, _) => of_user,
    };
    let (bytes_in, bytes_out) = (count("bytes_in")?, count("bytes_out")?);
    Some(TransferCounts { requests: meters["urbs"].as_u64().unwrap_or_default(), bytes_in, bytes_out })
}

/// Requests and bytes a second; empty without two counts.
fn rates(counted: Option<TransferCounts>, last: Option<(TransferCounts, Instant)>, now: Instant) -> [String; 3] {
    let (Some(counted), Some((last, then))) = (counted, last) else { return Default::default() };
    let seconds = (now - then).as_secs_f64();
    if seconds <= 0.0 {
        return Default::default();
    }
    // A new user begins at zero.
    let rate = |now: u64, then: u64| (now.checked_sub(then).unwrap_or(now) as f64 / seconds).round() as u64;
    let bytes = |rate: u64| if rate == 0 { "0".to_owned() } else { format!("{}/s", format_bytes(rate)) };
    [
        rate(counted.requests, last.requests).to_string(),
        bytes(rate(counted.bytes_in, last.bytes_in)),
        bytes(rate(counted.bytes_out, last.bytes_out)),
    ]
}

fn text(device: &Value, name: &str) -> String {
    plain(device[name].as_str().unwrap_or_default())
}

/// Other hosts write some of these texts: a terminal must not obey them.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// All users of a device.
fn users_of(device: &Value) -> Vec<String> {
    match device["users"].as_array() {
        Some(users) => users.iter().map(|user| text(user, "user")).collect(),
        None => vec![text(device, "user")],
    }
}

fn shown(device: &Value, rates: [String; 3]) -> WatchRow {
    let span = |name: &str| device[name].as_f64().and_then(|s| Duration::try_from_secs_f64(s).ok());
    let latency = &device["latency"]["all_us"];
    let ms = |percentile: &str| latency[percentile].as_f64().map(|us| format!("{:.2}", us / 1000.0));
    WatchRow {
        name: text(device, "name"),
        title: text(device, "title"),
        state: plain(&state_of(device)),
        peer: users_of(device).join(", "),
        since: span("used_s").map(format_span).unwrap_or_default(),
        waiting: device["waiting"].as_array().map(|waiting| waiting.len().to_string()).unwrap_or_default(),
        rates,
        latency: ms("p50").zip(ms("p99")).map(|(p50, p99)| format!("{p50} / {p99} ms")).unwrap_or_default(),
    }
}

/// The headings and the widths of the columns. What is left of a line goes to the columns of names and titles.
const COLUMNS: [(&str, usize); 10] = [
    ("NAME", 10),
    ("WHAT", 14),
    ("STATE", 10),
    ("PEER", 12),
    ("SINCE", 10),
    ("WAIT", 4),
    ("REQ/S", 7),
    ("IN", 11),
    ("OUT", 11),
    ("P50 / P99", 16),
];
/// Which of them are of other people's words, and get what is left of a line by their widths.
const ELASTIC: [usize; 3] = [0, 1, 3];

/// The widths of the columns in a line of this width.
fn column_widths(width: usize) -> [usize; 10] {
    let mut widths = COLUMNS.map(|(_, width)| width);
    let spare = width.saturating_sub(widths.iter().sum::<usize>() + widths.len() - 1);
    let all: usize = ELASTIC.iter().map(|&column| COLUMNS[column].1).sum();
    for column in ELASTIC {
        widths[column] += spare * COLUMNS[column].1 / all;
    }
    widths
}

/// The text in exactly this many cells of a terminal: what does not fit is cut off.
fn fitted(text: &str, width: usize) -> String {
    let mut used = 0;
    let fits = |c: &char| {
        used += c.width().unwrap_or_default();
        used <= width
    };
    let mut fitted: String = text.chars().take_while(fits).collect();
    fitted.extend(std::iter::repeat_n(' ', width.saturating_sub(fitted.width())));
    fitted
}

/// Which line is marked, and which is the first that is seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ScrollPosition {
    marked: Option<usize>,
    first: usize,
}

impl ScrollPosition {
    /// Marks the line below (`true`) or above the one that is marked.
    fn step(&mut self, is_down: bool, count: usize) {
        let next = match (self.marked, is_down) {
            (None, _) => 0,
            (Some(marked), true) => marked + 1,
            (Some(marked), false) => marked.saturating_sub(1),
        };
        self.marked = Some(next.min(count.saturating_sub(1)));
    }

    /// Moves as little as it has to, so that the marked line of `count` is among those that are seen.
    fn settle(&mut self, count: usize, seen: usize) {
        self.marked = self.marked.filter(|_| count > 0).map(|marked| marked.min(count - 1));
        let least = self.marked.map_or(0, |marked| (marked + 1).saturating_sub(seen));
        self.first = self.first.clamp(least, self.marked.unwrap_or(self.first).max(least)).min(count.saturating_sub(1));
    }
}

/// The lines of a screen of this width and height.
fn screen(lines: &[WatchRow], at: &mut ScrollPosition, (width, height): (usize, usize)) -> Vec<StyledContent<String>> {
    let bold = ContentStyle::new().bold();
    let used = lines.iter().filter(|line| !line.peer.is_empty()).count();
    let widths = column_widths(width);
    let row = |cells: [&str; 10]| {
        let cells = cells.iter().zip(widths).map(|(cell, width)| fitted(cell, width));
        fitted(&cells.collect::<Vec<_>>().join(" "), width)
    };
    let seen = height.saturating_sub(3);
    at.settle(lines.len(), seen);
    let mut screen =
        vec![bold.apply(fitted(&format!("farbus: {} devices, {used} in use or attached", lines.len()), width))];
    screen.push(bold.apply(row(COLUMNS.map(|(name, _)| name))));
    for (number, line) in lines.iter().enumerate().skip(at.first).take(seen) {
        let [requests, bytes_in, bytes_out] = &line.rates;
        let WatchRow { name, title, state, peer, since, waiting, latency, .. } = line;
        let style = ContentStyle::new();
        let style = if state.starts_with("link lost") { style.red() } else { style };
        let style = if at.marked == Some(number) { style.reverse() } else { style };
        screen
            .push(style.apply(row([name, title, state, peer, since, waiting, requests, bytes_in, bytes_out, latency])));
    }
    screen.resize(height.saturating_sub(1), ContentStyle::new().apply(String::new()));
    screen.push(ContentStyle::new().dim().apply(fitted("q ends   up, down: scroll", width)));
    screen.truncate(height);
    screen
}

/// The terminal, whose screen is as it was before when this is dropped.
struct AlternateScreen;

impl AlternateScreen {
    fn take() -> io::Result<Self> {
        terminal::enable_raw_mode()?;
        let screen = Self;
        execute!(io::stdout(), EnterAlternateScreen, Hide)?;
        Ok(screen)
    }

    fn draw(&self, lines: &[WatchRow], at: &mut ScrollPosition) -> io::Result<()> {
        let (width, height) = terminal::size()?;
        let mut out = io::stdout().lock();
        queue!(out, BeginSynchronizedUpdate)?;
        for (number, line) in (0..height).zip(screen(lines, at, (usize::from(width), usize::from(height)))) {
            queue!(out, MoveTo(0, number), PrintStyledContent(line), Clear(ClearType::UntilNewLine))?;
        }
        queue!(out, EndSynchronizedUpdate)?;
        out.flush()
    }
}

impl Drop for AlternateScreen {
    fn drop(&mut self) {
        let _ = execute!(io::stdout(), Show, LeaveAlternateScreen);
        let _ = terminal::disable_raw_mode();
    }
}

/// Shows the table until its reader ends it.
///
/// # Errors
/// Standard output is no terminal.
pub fn run() -> Result<(), CommandFailure> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Err(CommandFailure::local(
            "--watch needs a terminal\n  for programs: farbus status --json, farbus events --json",
        ));
    }
    let screen = AlternateScreen::take().map_err(CommandFailure::local)?;
    follow(&screen)
}

fn follow(screen: &AlternateScreen) -> Result<(), CommandFailure> {
    let (mut watch, mut at) = (RateMeter::default(), ScrollPosition::default());
    loop {
        let answers = ask_all(&Question::Status).map_err(CommandFailure::local)?;
        let ok = |(_, answer)| if let Answer::Ok(status) = answer { Some(status) } else { None };
        let processes: Vec<Value> = answers.into_iter().filter_map(ok).collect();
        let lines = watch.lines(&processes, Instant::now());
        let until = Instant::now() + EVERY;
        loop {
            screen.draw(&lines, &mut at).map_err(CommandFailure::local)?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || !event::poll(left).map_err(CommandFailure::local)? {
                break;
            }
            let Event::Key(key) = event::read().map_err(CommandFailure::local)? else { continue };
            let is_ctrl_c = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
            match key.code {
                _ if key.kind == KeyEventKind::Release => {}
                _ if is_ctrl_c => return Ok(()),
                KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                KeyCode::Down | KeyCode::Char('j') => at.step(true, lines.len()),
                KeyCode::Up | KeyCode::Char('k') => at.step(false, lines.len()),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn process(bytes_in: u64) -> Value {
        json!({ "pid": 7, "role": "share", "devices": [{
            "name": "disk", "title": "backup\u{1b}[2J.img", "state": "in use", "user": "lab3 (10.0.0.3:5000)", "used_s": 12.0,
            "waiting": [{"host": "lab4", "waits_s": 1.0}],
            "meters": {"urbs": bytes_in / 1000, "bytes_in": bytes_in, "bytes_out": 4_000_000},
            "latency": {"samples": 10, "all_us": {"p50": 250.0, "p99": 1000.0}},
        }]})
    }

    #[test]
    fn rates_are_what_passed_between_two_answers() {
        let (mut watch, start) = (RateMeter::default(), Instant::now());
        let first = watch.lines(&[process(1_000_000)], start);
        assert_eq!(first[0].rates, ["", "", ""]);
        let second = watch.lines(&[process(21_000_000)], start + Duration::from_secs(2));
        assert_eq!(second[0].rates, ["10000", "10.00 MB/s", "0"]);
        assert_eq!((second[0].waiting.as_str(), second[0].latency.as_str()), ("1", "0.25 / 1.00 ms"));
        let new_user = watch.lines(&[process(2000)], start + Duration::from_secs(3));
        assert_eq!(new_user[0].rates[1], "2.00 kB/s");
        assert_eq!(watch.lines(&[], start + Duration::from_secs(4)), []);
    }

    #[test]
    fn every_reader_is_shown() {
        let users = json!([{"user": "desk"}, {"user": "rack\u{7}"}]);
        let device = json!({ "name": "disk", "state": "in use", "mode": "read", "user": "desk", "users": users });
        let lines = RateMeter::default().lines(&[json!({ "pid": 7, "devices": [device] })], Instant::now());
        assert_eq!((lines[0].state.as_str(), lines[0].peer.as_str()), ("in use, read", "desk, rack?"));
    }

    #[test]
    fn session_s_bytes_come_from_its_links_where_nothing_else_counts_them() {
        let device =
            json!({ "links": {"up": 1, "each": [{"bytes_in": 5, "bytes_out": 6}, {"bytes_in": 1, "bytes_out": 1}]} });
        assert_eq!(counted(&device), Some(TransferCounts { requests: 0, bytes_in: 6, bytes_out: 7 }));
        assert_eq!(counted(&json!({ "name": "zero" })), None);
    }

    #[test]
    fn table_shows_every_device_and_no_control_characters() {
        let (mut watch, start) = (RateMeter::default(), Instant::now());
        watch.lines(&[process(0)], start);
        let lines = watch.lines(&[process(5_000_000)], start + Duration::from_secs(1));
        let shown = screen(&lines, &mut ScrollPosition::default(), (140, 6));
        assert_eq!(shown.len(), 6);
        let shown = shown.iter().map(|line| line.content().as_str()).collect::<Vec<_>>().join("\n");
        for part in ["1 devices, 1 in use", "disk", "backup?[2J.img", "in use", "lab3", "5.00 MB/s", "0.25 / 1.00 ms"] {
            assert!(shown.contains(part), "{part} in\n{shown}");
        }
        assert!(!shown.contains('\u{1b}'));
    }

    #[test]
    fn every_line_of_a_screen_has_its_width_whatever_names_have_and_however_narrow_it_is() {
        let wide = json!({ "name": "\u{5bbf}\u{820e}".repeat(40), "title": "x".repeat(300), "state": "in use" });
        let lines = RateMeter::default().lines(&[json!({ "pid": 7, "devices": [wide] })], Instant::now());
        for (width, height) in [(0, 0), (1, 1), (40, 2), (80, 24), (104, 3), (300, 50)] {
            let shown = screen(&lines, &mut ScrollPosition::default(), (width, height));
            assert_eq!(shown.len(), height);
            let widths = shown.iter().map(|line| line.content().width());
            assert!(widths.filter(|&of| of > 0).all(|of| of == width), "{width} x {height}");
        }
    }

    #[test]
    fn marked_line_is_always_seen() {
        let mut at = ScrollPosition::default();
        let mut settled = |step: Option<bool>, count, seen| {
            step.into_iter().for_each(|is_down| at.step(is_down, count));
            at.settle(count, seen);
            (at.marked, at.first)
        };
        assert_eq!(settled(None, 9, 3), (None, 0));
        assert_eq!(settled(Some(true), 9, 3), (Some(0), 0));
        for _ in 0..4 {
            settled(Some(true), 9, 3);
        }
        assert_eq!(settled(None, 9, 3), (Some(4), 2), "below");
        assert_eq!(settled(Some(false), 9, 3), (Some(3), 2), "it stays");
        settled(Some(false), 9, 3);
        assert_eq!(settled(Some(false), 9, 3), (Some(1), 1), "above");
        assert_eq!(settled(None, 1, 3), (Some(0), 0), "devices have gone");
        assert_eq!(settled(Some(true), 0, 3), (None, 0), "all have");
        assert_eq!(settled(None, 4, 0), (None, 0), "no line is seen");
    }
}
