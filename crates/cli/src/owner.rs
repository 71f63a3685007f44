//! What an owner asks of running processes: `status`, `type`, `eject`, `insert`.

use std::time::Duration;

use farbus::hosts::questions::HostStatus;
use farbus::importer::client::{ANSWER_TIME_MAX, ImporterClient};
use farbus_control::reservation::ReservationStatus;
use farbus_control::units::format_bytes;
use farbus_io_net::link::host_address::{address_of, check_host};
use farbus_io_net::local::asking::ask_sharer;
use farbus_io_net::local::control_socket::{Answer, Question, ask_all};
use farbus_io_net::trust::{DeviceNotes, HostFolder, damaged_files};
use serde_json::{Value, json};

use super::label::in_words;
use super::output::{format_span, print_done, print_json, print_table, say, state_of, table};
use super::{CommandFailure, watch};

/// Show every running share and attach, or a paired host.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  farbus status\n  farbus status --watch      the same, live, with rates and latency\n  \
    farbus status --history    who had what, and how it ended\n  \
    farbus status --latency    where the time of requests goes\n  \
    farbus status --links      each session's links: state, bytes, round trip\n  \
    farbus status lab3         a paired host: its devices that you may use\n  \
    farbus status --json | jq '.[].devices[] | {name, state, user, waiting}'"
)]
pub struct StatusArgs {
    /// A paired host: what it tells this one.
    ///
    /// Its version, the devices that this host may use, who uses them, and the links of this host's own sessions.
    #[arg(value_parser = check_host, conflicts_with_all = ["watch", "latency"])]
    host: Option<String>,
    /// Print JSON, for programs.
    #[arg(long)]
    pub json: bool,
    /// A live table with rates and latency; q ends it.
    #[arg(long, conflicts_with_all = ["json", "history", "latency", "links"])]
    watch: bool,
    /// Show who had the devices that are shared here.
    #[arg(long, conflicts_with = "json")]
    history: bool,
    /// Show where the time of requests goes.
    ///
    /// For what is attached here in sessions.
    #[arg(long, conflicts_with_all = ["json", "history"])]
    latency: bool,
    /// Show the links of sessions, at either end.
    #[arg(long, conflicts_with_all = ["json", "history", "latency"])]
    links: bool,
}

/// Type text on a shared keyboard.
#[derive(Debug, clap::Args)]
#[command(after_help = "US layout.\n\nExamples:\n  farbus type 'ls -l'$'\\n'\n  farbus type keyboard2 hello")]
pub struct TypeArgs {
    /// DEVICE and TEXT, or TEXT alone for the one called 'keyboard'.
    #[arg(required = true, num_args = 1..=2, value_names = ["DEVICE", "TEXT"])]
    words: Vec<String>,
    /// Print the result as JSON, for programs.
    #[arg(long)]
    pub json: bool,
}

/// A shared device that has a medium.
#[derive(Debug, clap::Args)]
pub struct DeviceArgs {
    /// Name or bus id of the shared device; NAME@PID if several processes share one of that name.
    #[arg(default_value = "disk")]
    device: String,
    /// Print the result as JSON, for programs.
    #[arg(long)]
    pub json: bool,
}

/// The columns of the status.
const COLUMNS: [&str; 11] = ["NAME", "BUS / AT", "WHAT", "STATE", "PEER", "SINCE", "WAIT", "URBS", "IN", "OUT", "PID"];

pub fn status(args: &StatusArgs) -> Result<(), CommandFailure> {
    if args.watch {
        return watch::run();
    }
    let running = match &args.host {
        Some(host) => vec![status_of_host(host, args)?],
        None => all_running()?,
    };
    if args.json {
        return print_json(&running);
    }
    if running.is_empty() {
        println!("Nothing is shared or attached here. Try: farbus share zero");
        return Ok(());
    }
    if args.history {
        print_history(&running);
        return Ok(());
    }
    if args.latency {
        print_latency(&running);
        return Ok(());
    }
    if args.links {
        print_links(&running);
        return Ok(());
    }
    if args.host.is_some() && devices_of(&running[0]).next().is_none() {
        say("It lets this host use no device. There: farbus allow NAME DEVICE");
        return Ok(());
    }
    let mut table = table(&COLUMNS);
    for process in &running {
        for device in devices_of(process) {
            table.add_row(row(process, device));
            for reader in further_users(device) {
                table.add_row(reader);
            }
        }
    }
    print_table(&table);
    for process in &running {
        for device in devices_of(process) {
            say_more(device);
        }
        if let Some(line) = directory_in_a_line(&process["directory"]) {
            say(line);
        }
        if let Some(line) = page_in_a_line(&process["page"]) {
            say(line);
        }
    }
    if args.host.is_none() {
        say_damaged();
    }
    Ok(())
}

/// Says which files of this user's state cannot be used.
fn say_damaged() {
    let damaged = HostFolder::of_user().map(|folder| damaged_files(&folder)).unwrap_or_default();
    damaged.iter().for_each(|error| say(format!("damaged: {error}")));
}

/// Where the daemon's page is, if it is to have one.
fn page_in_a_line(status: &Value) -> Option<String> {
    status.is_object().then(|| match (status["at"].as_str(), status["failure"].as_str()) {
        (Some(at), _) => format!("page at {at}"),
        (None, Some(why)) => format!("no page: {why}"),
        (None, None) => "the page is being started".to_owned(),
    })
}

/// The state of the directory of all sites, if the process has one.
fn directory_in_a_line(status: &Value) -> Option<String> {
    let at = status["at"].as_str()?;
    let words = |text: &Value| text.as_str().unwrap_or_default().to_owned();
    Some(match &status["trouble"] {
        Value::Null if status["state"] == "ok" => {
            format!("directory {at}: {} devices of {} hosts", status["devices"], status["hosts"])
        }
        Value::Null => format!("directory {at}: not read yet"),
        trouble => {
            let (message, next) = (words(&trouble["message"]), words(&trouble["next"]));
            format!("directory {at}: {}: {message}; sharing goes on\n  {next}", words(&trouble["kind"]))
        }
    })
}

/// The status of each process of this owner.
fn all_running() -> Result<Vec<Value>, CommandFailure> {
    let mut running = Vec::new();
    for (pid, answer) in ask_all(&Question::Status).map_err(CommandFailure::local)? {
        match answer {
            Answer::Ok(value) => running.push(value),
            Answer::Unknown => {}
            Answer::Refused(why) => eprintln!("farbus: refused: process {pid}: {why}"),
            Answer::Failed(failure) => {
                eprintln!("farbus: {}: process {pid}: {}", failure.attribute.as_str(), failure.message);
            }
        }
    }
    Ok(running)
}

/// The status of a paired host, in the form of a process's status.
fn status_of_host(host: &str, args: &StatusArgs) -> Result<Value, CommandFailure> {
    let HostStatus { name, farbus, up_s, devices } =
        ImporterClient::default().host_status(&address_of(host), ANSWER_TIME_MAX)?;
    if !args.json {
        say(format!("{name}: farbus {farbus}, up {}", format_span(Duration::from_secs(up_s))));
    }
    Ok(json!({ "role": "host", "name": name, "farbus": farbus, "up_s": up_s, "devices": devices }))
}

fn devices_of(process: &Value) -> impl Iterator<Item = &Value> {
    process["devices"].as_array().into_iter().flatten()
}

/// Prints what has no room in the table: a device's counters, what a user needs it for, and what is wrong with an
/// attachment.
fn say_more(device: &Value) {
    let name = device["name"].as_str().unwrap_or_default();
    let counts = device["counts"].as_object().into_iter().flatten().filter(|(_, count)| count.as_u64() != Some(0));
    let counts: Vec<String> = counts.map(|(what, count)| format!("{} {count}", what.replace('_', " "))).collect();
    if !counts.is_empty() {
        say(format!("{name}: {}", counts.join(", ")));
    }
    if let Some(drift) = device["drift_us"].as_i64() {
        say(format!("{name}: clock moved by {drift} us"));
    }
    if device["drivers"].as_array().is_some_and(Vec::is_empty) {
        say(format!("{name}: no driver of this kernel took it; 'dmesg' says why"));
    }
    if let (Some(up), Some(all)) = (device["links"]["up"].as_u64(), device["links"]["each"].as_array().map(Vec::len))
        && all > 1
    {
        say(format!("{name}: {up} of {all} links are up (farbus status --links)"));
    }
    segments_in_a_line(device).into_iter().for_each(say);
    if let Ok(reservation) = serde_json::from_value::<ReservationStatus>(device["reservation"].clone()) {
        say(format!("{name}: {}", reservation.in_a_line()));
    }
    if let Some(pipe) = device["pipe"].as_object() {
        say(format!("{name}: {}", pipe_in_a_line(pipe)));
    }
    let modules: Vec<_> = device["modules"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if !modules.is_empty() {
        say(format!("{name}: through modules: {}", modules.join(", ")));
    }
    if let (Some(at), Some(true)) = (device["medium"]["at"].as_str(), device["medium"]["is_swapped"].as_bool()) {
        say(format!("{name}: its medium is now {at}"));
    }
    if let Some(twin) = device["replaced_by"].as_str() {
        say(format!("{name}: its twin {twin} has its place"));
    }
    if let (Some(host), Some(until)) = (device["lease"]["host"].as_str(), device["lease"]["until"].as_str()) {
        let left = span_of(&device["lease"]["left_s"]);
        say(format!("{name}: leased to {host} for another {left}, until {until}"));
    }
    if let Ok(notes) = serde_json::from_value::<DeviceNotes>(device.clone())
        && !notes.is_empty()
    {
        say(format!("{name}: {}", in_words(&notes.readable())));
    }
    for booked in device["booked"].as_array().into_iter().flatten() {
        let [host, from, until] = ["host", "from", "until"].map(|key| text(&booked[key]));
        say(format!("{name}: booked by {host} from {from} until {until}"));
    }
    if let Some(successor) = device["successor"].as_str() {
        let left = device["successor_left_ms"].as_u64().map(|ms| format!(", {} s more", ms.div_ceil(1000)));
        say(format!("{name}: waits for {successor}, to which its user has handed it over{}", left.unwrap_or_default()));
    }
    if let (Some("held" | "handed over"), Some(ms)) = (device["state"].as_str(), device["hold_ms"].as_u64()) {
        say(format!("{name}: while it moves, it is held for {} s at most", Duration::from_millis(ms).as_secs_f64()));
    }
    if let another @ Value::Object(_) = &device["another_in_port"] {
        let [was, is, next] = ["was", "is", "next"].map(|key| text(&another[key]));
        say(format!("{name}: another device in this port: it was {was}, and is {is}"));
        say(format!("  {next}"));
    }
    if let Some(trouble) = device["trouble"].as_str() {
        say(format!("{name}: nobody can attach it: {trouble}"));
    }
    if let Some(reason) = device["reason"].as_str() {
        say(format!("{name}: used for: {reason}"));
    }
    if let (Some(attribute), Some(message)) =
        (device["failure"]["attribute"].as_str(), device["failure"]["message"].as_str())
    {
        say(format!("{name}: {attribute}: {message}"));
    }
}

/// A tuned pipe's share of a processor, and how well it kept its promise.
fn pipe_in_a_line(pipe: &serde_json::Map<String, Value>) -> String {
    let number = |name: &str| pipe.get(name).and_then(Value::as_u64).unwrap_or_default();
    let ms = |name: &str| format!("{}.{:03} ms", number(name) / 1_000_000, number(name) / 1000 % 1000);
    let jobs = |name: &str| pipe.get("jobs").and_then(|jobs| jobs[name].as_u64()).unwrap_or_default();
    format!(
        "{} of a processor each {}, {}; {} late at the worst, {} so far; {} messages, {} lost; {} jobs, {} missed, {} late, {} too long",
        ms("budget_ns"),
        ms("period_ns"),
        pipe.get("policy").and_then(Value::as_str).unwrap_or_default(),
        ms("bound_ns"),
        ms("worst_ns"),
        number("messages"),
        number("lost") + number("device_overruns"),
        jobs("ran"),
        jobs("missed"),
        jobs("late"),
        jobs("overruns"),
    )
}

fn print_history(running: &[Value]) {
    let mut table = table(&["NAME", "WHO", "ENDED", "HOW", "FOR", "REASON", "REMARK"]);
    let span = |value: &Value| value.as_f64().map(|s| format_span(Duration::from_secs_f64(s))).unwrap_or_default();
    for device in running.iter().flat_map(devices_of) {
        for past in device["history"].as_array().into_iter().flatten() {
            table.add_row([
                text(&device["name"]),
                text(&past["user"]),
                format!("{} ago", span(&past["ago_s"])),
                text(&past["ended"]),
                span(&past["used_s"]),
                text(&past["reason"]),
                text(&past["remark"]),
            ]);
        }
    }
    print_table(&table);
}

/// Prints the median and the 99th percentile of each stage.
fn print_latency(running: &[Value]) {
    let mut table = table(&["NAME", "TIMED", "ALL", "NETWORK", "BUS", "BACK END"]);
    let of = |stage: &Value| {
        let ms =
            |percentile: &str| stage[percentile].as_f64().map_or("?".to_owned(), |us| format!("{:.3}", us / 1000.0));
        format!("{} / {} ms", ms("p50"), ms("p99"))
    };
    let mut is_empty = true;
    for device in running.iter().flat_map(devices_of).filter(|device| !device["latency"].is_null()) {
        let latency = &device["latency"];
        let stages = ["all_us", "network_us", "bus_us", "back_end_us"].map(|stage| of(&latency[stage]));
        let head = [text(&device["name"]), latency["samples"].to_string()];
        table.add_row(head.into_iter().chain(stages).collect::<Vec<_>>());
        is_empty = false;
    }
    match is_empty {
        true => println!("Nothing is attached here in a session, or it was not used yet."),
        false => print_table(&table),
    }
}

/// What is to say of a device whose links have small segments.
fn segments_in_a_line(device: &Value) -> Option<String> {
    let bytes = device["links"]["segment_bytes_max"].as_u64()?;
    let name = text(&device["name"]);
    Some(format!("{name}: its links send segments of {bytes} bytes at most: the path seems to drop larger packets"))
}

fn print_links(running: &[Value]) {
    let mut table = table(&["NAME", "LINK", "STATE", "SINCE", "PEER", "IN", "OUT", "ROUND TRIP"]);
    let mut is_empty = true;
    for device in running.iter().flat_map(devices_of) {
        for link in device["links"]["each"].as_array().into_iter().flatten() {
            let since = link["since_s"].as_f64().map(|s| format_span(Duration::from_secs_f64(s)));
            let bytes = |name: &str| link[name].as_u64().map(format_bytes).unwrap_or_default();
            table.add_row([
                text(&device["name"]),
                link["lane"].to_string(),
                if link["is_up"] == true { "up" } else { "lost" }.to_owned(),
                since.unwrap_or_default(),
                text(&link["peer"]),
                bytes("bytes_in"),
                bytes("bytes_out"),
                link["round_trip_ms"].as_f64().map(|ms| format!("{ms:.2} ms")).unwrap_or_default(),
            ]);
            is_empty = false;
        }
    }
    match is_empty {
        true => println!("Nothing is used in a session, here or from here."),
        false => print_table(&table),
    }
    running.iter().flat_map(devices_of).filter_map(segments_in_a_line).for_each(say);
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The lines of a device's users after the first, in the columns of [`row`].
fn further_users(device: &Value) -> impl Iterator<Item = Vec<String>> {
    device["users"].as_array().into_iter().flatten().skip(1).map(|user| {
        let mut line = vec![String::new(); COLUMNS.len()];
        let mode = text(&user["mode"]);
        line[3] = format!("in use, {mode}");
        line[4] = text(&user["user"]);
        line[5] = span_of(&user["used_s"]);
        line
    })
}

fn span_of(seconds: &Value) -> String {
    let span = seconds.as_f64().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    span.map(format_span).unwrap_or_default()
}

/// What a device is: by its own strings, or else by its ids.
fn what_of(device: &Value) -> String {
    match (text(&device["title"]), device["vendor_name"].as_str(), device["product_name"].as_str()) {
        (title, Some(vendor), Some(product)) if title.is_empty() => format!("{vendor} {product}"),
        (title, ..) => title,
    }
}

fn row(process: &Value, device: &Value) -> Vec<String> {
    let meters = &device["meters"];
    let count = |name: &str| meters[name].as_u64();
    let bytes = |name: &str| count(name).map(format_bytes).unwrap_or_default();
    vec![
        text(&device["name"]),
        text(if device["bus_id"].is_null() { &device["at"] } else { &device["bus_id"] }),
        what_of(device),
        state_of(device),
        text(&device["user"]),
        span_of(&device["used_s"]),
        device["waiting"].as_array().map(|waiting| waiting.len().to_string()).unwrap_or_default(),
        count("urbs").map(|n| n.to_string()).unwrap_or_default(),
        bytes("bytes_in"),
        bytes("bytes_out"),
        process["pid"].as_u64().map(|pid| pid.to_string()).unwrap_or_default(),
    ]
}

pub fn type_text(args: TypeArgs) -> Result<(), CommandFailure> {
    let mut words = args.words;
    let text = words.pop().expect("clap wants one");
    let device = words.pop().unwrap_or_else(|| "keyboard".to_owned());
    ask_sharer(&device, |device| Question::Type { device, text })?;
    print_done(args.json, "type", &device)
}

pub fn eject(args: DeviceArgs) -> Result<(), CommandFailure> {
    ask_sharer(&args.device, |device| Question::Eject { device })?;
    print_done(args.json, "eject", &args.device)
}

pub fn insert(args: DeviceArgs) -> Result<(), CommandFailure> {
    ask_sharer(&args.device, |device| Question::Insert { device })?;
    print_done(args.json, "insert", &args.device)
}
