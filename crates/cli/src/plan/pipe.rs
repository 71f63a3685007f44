//! `farbus plan pipe`: the share of a processor that a tuned pipe takes, and the worst delay of its data.

use std::fmt::Write;
use std::str::FromStr;

use farbus::importer::client::FailureKind;
use farbus_realtime::pipe::{EndpointAttributes, PathSegment, PipeQuality, derive, input_stages, worst_ns};
use farbus_realtime::vcpu::{VcpuOverload, VcpuReserve, admit};
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::output::{CommandFailure, print_json, say};
use super::examples::{self, ExampleKind};
use super::file;
use super::layout::thousandths;

/// Compute budget, period and worst delay of a tuned pipe.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "farbus plan pipe [OPTIONS] --rate <BITS/S> --buffer <BYTES>\n                 --execution-us <US>\n\
                       farbus plan pipe --example <NAME>",
    after_help = "Examples:\n  \
    farbus plan pipe --rate 512000 --buffer 128 --execution-us 1000\n    \
    512 kbit/s into a buffer of 128 bytes, and a function that takes 1 ms\n\n  \
    farbus plan pipe --rate 1409024 --buffer 8192 --execution-us 2000 \\\n      \
    --endpoint-rate 2250000 --receiver-us 14000 --task 2000/14000 \\\n      \
    --io-percent 1\n    \
    beside other tasks, and a bottom half that takes 1 % of the processor"
)]
pub struct Args {
    /// Bits a second that arrive.
    #[arg(long, value_name = "BITS/S", required_unless_present = "example")]
    rate: Option<u64>,
    /// The pipe's buffer in bytes.
    #[arg(long, value_name = "BYTES", required_unless_present = "example")]
    buffer: Option<u64>,
    /// Time to process a full buffer, in microseconds.
    #[arg(long, value_name = "US", required_unless_present = "example")]
    execution_us: Option<u64>,
    /// Bits a second that the endpoint moves, at most.
    #[arg(long, value_name = "BITS/S")]
    endpoint_rate: Option<u64>,
    /// Longest transfer on the bus, in microseconds.
    ///
    /// 'farbus plan schedule' computes it.
    #[arg(long, value_name = "US", default_value_t = transfer_us())]
    transfer_us: u64,
    /// Period of the receiving thread.
    ///
    /// In microseconds; without it, the pipe's own period.
    #[arg(long, value_name = "US")]
    receiver_us: Option<u64>,
    /// Another task: budget and period.
    ///
    /// Of the same processor, in microseconds. May be given several times.
    #[arg(long = "task", value_name = "US/US")]
    tasks: Vec<TaskReserve>,
    /// Share of the processor for a bottom half.
    #[arg(long = "io-percent", value_name = "PERCENT")]
    io_percent: Vec<u32>,
    /// An example instead of all these.
    ///
    /// A table or figure of the 2023 paper; 'list' prints their names.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["rate", "buffer", "execution_us", "endpoint_rate", "receiver_us", "tasks", "io_percent"])]
    example: Option<String>,
    /// Print JSON, for programs.
    #[arg(long)]
    pub json: bool,
}

/// What is asked of a pipe: the options above, as an example's file has them.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PipePlanRequest {
    rate: u64,
    buffer: u64,
    execution_us: u64,
    endpoint_rate: Option<u64>,
    #[serde(default = "transfer_us")]
    transfer_us: u64,
    receiver_us: Option<u64>,
    #[serde(default, rename = "task")]
    tasks: Vec<TaskReserve>,
    #[serde(default)]
    io_percent: Vec<u32>,
}

/// A packet of super speed is through within a microframe.
const fn transfer_us() -> u64 {
    125
}

impl PipePlanRequest {
    /// What the options ask for.
    fn of(args: &Args) -> Self {
        Self {
            rate: args.rate.unwrap_or_default(),
            buffer: args.buffer.unwrap_or_default(),
            execution_us: args.execution_us.unwrap_or_default(),
            endpoint_rate: args.endpoint_rate,
            transfer_us: args.transfer_us,
            receiver_us: args.receiver_us,
            tasks: args.tasks.clone(),
            io_percent: args.io_percent.clone(),
        }
    }
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "String")]
struct TaskReserve(VcpuReserve);

impl TryFrom<String> for TaskReserve {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl FromStr for TaskReserve {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is not a budget and a period in us, as in 2000/14000");
        let (budget, period) = text.split_once('/').ok_or_else(wrong)?;
        let ns = |us: &str| us.parse::<u64>().ok().and_then(|us| us.checked_mul(1000)).ok_or_else(wrong);
        Ok(Self(VcpuReserve { budget_ns: ns(budget)?, period_ns: ns(period)? }))
    }
}

pub fn run(args: &Args) -> Result<(), CommandFailure> {
    let wanted = match &args.example {
        None => PipePlanRequest::of(args),
        Some(name) => match examples::find(ExampleKind::Pipe, name, args.json)? {
            Some(example) => file::parse(name, example.text)?,
            None => return Ok(()),
        },
    };
    let planned = PipePlan::of(&wanted).map_err(|why| CommandFailure::new(FailureKind::Refused, why))?;
    if args.json {
        return print_json(&planned.to_json());
    }
    say(planned.to_text().trim_end());
    Ok(())
}

#[derive(Debug)]
struct PipePlan {
    reserve: VcpuReserve,
    demand_ppb: u64,
    bound_ppb: u64,
    worst_ns: u64,
}

impl PipePlan {
    fn of(args: &PipePlanRequest) -> Result<Self, String> {
        const SECOND_NS: u64 = 1_000_000_000;
        let ns = |us: u64| us.saturating_mul(1000);
        let attributes = EndpointAttributes {
            channels_max: 1,
            throughput_bits_max: args.endpoint_rate.unwrap_or(u64::MAX),
            latency_min_ns: SECOND_NS,
            buffer_bytes_min: 1,
            buffer_bytes_max: u64::MAX,
        };
        let quality = PipeQuality {
            latency_ns: SECOND_NS,
            throughput_bits: args.rate,
            buffer_bytes: args.buffer,
            execution_ns: ns(args.execution_us),
        };
        let reserve = derive(&attributes, &[], &quality).map_err(|why| why.to_string())?;
        let mains: Vec<_> = [reserve].into_iter().chain(args.tasks.iter().map(|task| task.0)).collect();
        let io_ppm: Vec<_> = args.io_percent.iter().map(|percent| percent.saturating_mul(10_000)).collect();
        let load = admit(&mains, &io_ppm).map_err(|why| match why {
            VcpuOverload::Demand(_) => {
                format!("{why}; give the pipe a larger buffer or move tasks to another processor")
            }
            why => why.to_string(),
        })?;
        let through = ns(args.transfer_us);
        let transfer = PathSegment::Transfer { intervals: 1, interval_ns: through, interrupt_every_ns: 0 };
        let receiver_ns = args.receiver_us.map_or(reserve.period_ns, ns);
        let stages = input_stages(transfer, receiver_ns, reserve.period_ns);
        Ok(Self { reserve, demand_ppb: load.demand_ppb, bound_ppb: load.bound_ppb, worst_ns: worst_ns(&stages) })
    }

    fn to_text(&self) -> String {
        let mut text = String::new();
        let us = thousandths;
        let percent = |ppb: u64| format!("{}.{:02}%", ppb / 10_000_000, ppb % 10_000_000 / 100_000);
        let _ = writeln!(text, "budget      {} us", us(self.reserve.budget_ns));
        let _ = writeln!(text, "period      {} us, after which the buffer is full", us(self.reserve.period_ns));
        let _ = writeln!(text, "processor   {} of {} that are sure", percent(self.demand_ppb), percent(self.bound_ppb));
        let _ = writeln!(text, "end to end  {} us at the worst", us(self.worst_ns));
        text
    }

    fn to_json(&self) -> Value {
        json!({
            "budget_ns": self.reserve.budget_ns,
            "period_ns": self.reserve.period_ns,
            "demand_ppb": self.demand_ppb,
            "bound_ppb": self.bound_ppb,
            "end_to_end_ns": self.worst_ns,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn planned(line: &str) -> Result<PipePlan, String> {
        PipePlan::of(&PipePlanRequest::of(&Line::try_parse_from(line.split_whitespace()).unwrap().args))
    }

    /// "Real-Time USB Networking and Device I/O" (2023): budget and period in sections 5.1 (1 ms each 2 ms), 6.2.1
    /// (2 ms each 14 ms, Table 7) and 6.2.2 (2 ms each 46 ms, Figure 13; each 41 ms, Figure 15). The paper rounds down.
    #[test]
    fn examples_have_the_budgets_and_periods_of_the_paper() {
        for (name, budget_ms, period_ms) in
            [("section-5", 1, 2), ("table-7", 2, 14), ("figure-13", 2, 46), ("figure-15", 2, 41)]
        {
            let example = examples::find(ExampleKind::Pipe, name, false).unwrap().unwrap();
            let reserve = PipePlan::of(&file::parse(name, example.text).unwrap()).unwrap().reserve;
            assert_eq!(
                (reserve.budget_ns, reserve.period_ns / 1_000_000),
                (budget_ms * 1_000_000, period_ms),
                "{name}: {reserve:?}"
            );
        }
        let line = Line::try_parse_from(["pipe", "--example", "section-5", "--rate", "1"]).unwrap_err();
        assert!(line.to_string().contains("cannot be used with"), "{line}");
        assert!(Line::try_parse_from(["pipe", "--example", "section-5"]).is_ok());
    }

    #[test]
    fn the_papers_pipe_has_the_papers_budget_and_period() {
        let pipe = planned("pipe --rate 512000 --buffer 128 --execution-us 1000").unwrap();
        assert_eq!(pipe.reserve, VcpuReserve { budget_ns: 1_000_000, period_ns: 2_000_000 });
        assert!(pipe.to_text().contains("period      2000.000 us"), "{}", pipe.to_text());
        let line = "pipe --rate 1409024 --buffer 8192 --execution-us 2000 --receiver-us 14000 --task 2000/14000 --io-percent 1";
        let json = planned(line).unwrap().to_json();
        assert_eq!(json["period_ns"], 46_511_627);
        assert_eq!(json["end_to_end_ns"], 125_000 + 28_000_000 + 46_511_627);
    }

    #[test]
    fn refusal_of_a_pipe_says_how_much_is_missing() {
        let why = |line| planned(line).unwrap_err();
        assert!(why("pipe --rate 512000 --buffer 128 --execution-us 2001").contains("1000 ns are missing"));
        assert!(why("pipe --rate 9 --buffer 1 --execution-us 1 --endpoint-rate 8").contains("1 are missing"));
        let busy = why("pipe --rate 512000 --buffer 128 --execution-us 1000 --task 1/2");
        assert!(
            busy.contains("carries 82.842 %") && busy.contains("are missing; give the pipe a larger buffer"),
            "{busy}"
        );
        assert!(why("pipe --rate 0 --buffer 128 --execution-us 1").contains("more than nothing"));
        assert!("1-2".parse::<TaskReserve>().is_err() && "1/99999999999999999999".parse::<TaskReserve>().is_err());
    }
}
