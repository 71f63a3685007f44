//! What an owner asks of what runs: `status`, `type`, `eject`, `insert`.

use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use super::Failure;
use super::output::{print_json, print_table, table};
use crate::client::Attribute;
use crate::control::{Answer, Question, ask_all};

/// Show every running share and attach of this user.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  farbus status\n  farbus status --json | jq '.[].devices[] | {name, state, user}'")]
pub struct StatusArgs {
    /// For programs.
    #[arg(long)]
    json: bool,
}

/// Type text on a shared keyboard.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  farbus type 'ls -l'$'\\n'\n  farbus type keyboard2 hello")]
pub struct TypeArgs {
    /// DEVICE and TEXT, or TEXT alone for the one called 'keyboard'.
    #[arg(required = true, num_args = 1..=2, value_names = ["DEVICE", "TEXT"])]
    words: Vec<String>,
}

/// Take the medium out of a shared disk, or put it back.
#[derive(Debug, clap::Args)]
pub struct DeviceArgs {
    /// Name or bus id of the shared device.
    #[arg(default_value = "disk")]
    device: String,
}

pub fn status(args: &StatusArgs) -> Result<(), Failure> {
    let mut running = Vec::new();
    for (pid, answer) in ask_all(&Question::Status).map_err(Failure::local)? {
        match answer {
            Answer::Ok(value) => running.push(value),
            Answer::Unknown => {}
            Answer::Refused(why) => eprintln!("farbus: process {pid}: {why}"),
        }
    }
    if args.json {
        return print_json(&running);
    }
    if running.is_empty() {
        println!("Nothing is shared or attached here. Try: farbus share zero");
        return Ok(());
    }
    let mut table = table(&["NAME", "WHAT", "STATE", "PEER", "SINCE", "URBS", "IN", "OUT", "PID"]);
    for process in &running {
        let devices = process["devices"].as_array().into_iter().flatten();
        for device in devices {
            table.add_row(row(process, device));
        }
    }
    print_table(&table);
    Ok(())
}

fn row(process: &Value, device: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let since = device["used_s"].as_f64().map(|s| format_span(Duration::from_secs_f64(s))).unwrap_or_default();
    let meters = &device["meters"];
    let count = |name: &str| meters[name].as_u64();
    let bytes = |name: &str| count(name).map(format_bytes).unwrap_or_default();
    vec![
        text(&device["name"]),
        text(&device["title"]),
        text(&device["state"]),
        text(&device["user"]),
        since,
        count("urbs").map(|n| n.to_string()).unwrap_or_default(),
        bytes("bytes_in"),
        bytes("bytes_out"),
        process["pid"].as_u64().map(|pid| pid.to_string()).unwrap_or_default(),
    ]
}

pub fn type_text(args: TypeArgs) -> Result<(), Failure> {
    let mut words = args.words;
    let text = words.pop().expect("clap wants one");
    let device = words.pop().unwrap_or_else(|| "keyboard".to_owned());
    ask_owner(&device, Question::Type { device: device.clone(), text })
}

pub fn eject(args: DeviceArgs) -> Result<(), Failure> {
    ask_owner(&args.device, Question::Eject { device: args.device.clone() })
}

pub fn insert(args: DeviceArgs) -> Result<(), Failure> {
    ask_owner(&args.device, Question::Insert { device: args.device.clone() })
}

/// Asks whoever has the device.
pub fn ask_owner(device: &str, question: Question) -> Result<(), Failure> {
    for (_, answer) in ask_all(&question).map_err(Failure::local)? {
        match answer {
            Answer::Ok(_) => return Ok(()),
            Answer::Unknown => {}
            Answer::Refused(why) => return Err(Failure::new(Attribute::Refused, why)),
        }
    }
    let message = format!("no device called '{device}' is shared or attached here\n  see: farbus status");
    Err(Failure::new(Attribute::Gone, message))
}

/// A running process in `farbus status --json`.
#[derive(Debug, Serialize)]
pub struct ProcessStatus<D> {
    /// Process id.
    pub pid: u32,
    /// `share` or `attach`.
    pub role: &'static str,
    /// Where it listens, or what it is attached to.
    pub address: String,
    /// Its devices.
    pub devices: Vec<D>,
}

impl<D: Serialize> ProcessStatus<D> {
    /// As an answer.
    pub fn answer(&self) -> Answer {
        match serde_json::to_value(self) {
            Ok(value) => Answer::Ok(value),
            Err(error) => Answer::Refused(error.to_string()),
        }
    }
}

/// `1.2 GB`, decimal units.
pub fn format_bytes(bytes: u64) -> String {
    indicatif::DecimalBytes(bytes).to_string()
}

fn format_span(span: Duration) -> String {
    indicatif::HumanDuration(span).to_string()
}
