//! `cargo xtask soak`: what time can break, again and again: fuzzing, made-up worlds, cut links, killed processes, this
//! machine's mounts, the previous release, and the kernels' own stress test ten times a round. It leaves out nothing
//! that the gate may leave out.

mod beside;
mod command_suite;

use crate::cargo::{self, cargo};
use crate::steps::StepSuccess;
use crate::{attack, bench, book, durability, fuzz, package, prerequisites, rig, sanitize, test, upgrade};
use clap::Args;
use std::time::{Duration, Instant};

#[derive(Args)]
#[command(after_help = "Examples:
  cargo xtask soak --minutes 600       over night
  cargo xtask soak --only-beside 3     whether a test needs a machine of its own
  cargo xtask soak --only-command 20   whether a test of the command fails by chance, and which are slow")]
pub struct SoakArgs {
    /// Begin no new round after so many minutes
    #[arg(long, default_value_t = 60)]
    minutes: u32,
    /// How long each fuzz target runs in a round
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    fuzz_seconds: u32,
    /// Leave out the virtual machines
    #[arg(long)]
    skip_rig: bool,
    /// Only run the suite so often, beside a daemon, a share, spinning processes and the suite of another checkout
    #[arg(long, value_name = "PASSES", value_parser = clap::value_parser!(u32).range(1..))]
    only_beside: Option<u32>,
    /// Only run the command's tests so often beside nothing, and a quarter as often twice at once beside two spinning
    /// processes; count what fails and list the slowest
    #[arg(long, value_name = "PASSES", value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "only_beside")]
    only_command: Option<u32>,
}

/// Passes of the whole suite beside other work, in one round.
const PASSES_BESIDE: u32 = 3;
/// The tests that play made-up worlds, how many in one round, and the variable that says so. A world of a swap has a
/// power cut at each of its writes.
const WORLDS: [(&str, &str, &str); 9] = [
    ("farbus-session", "native", "20000"),
    ("farbus-session", "lease", "20000"),
    ("farbus-session", "twin", "20000"),
    ("farbus-session", "swap", "1000"),
    ("farbus-session", "swappable", "10000"),
    ("farbus-session", "isochronous", "1000"),
    ("farbus-sim", "directory", "10000"),
    ("farbus-sim", "bus", "300000"),
    ("farbus-sim", "processor", "5000"),
];
const WORLDS_VARIABLE: &str = "FARBUS_SEEDS";
/// Cuts of one disk's link in one round.
const CUTS: (&str, &str) = ("FARBUS_CUTS", "300");
/// All routes of the table of capabilities.
const ROUTES: (&str, &str) = ("FARBUS_ROUTES", "all");
/// Cuts and kills of disks at several front ends at once, in one round.
const FAULTS: (&str, &str) = ("FARBUS_FAULTS", "300");
/// Cases of the rig with faults, and how often each runs in one round: at the kernel's own front end in a virtual
/// machine, in passes of three; and in passes of eight, under a medium that fails.
const RIG_FAULTS: [(&str, u32); 4] =
    [("nothing-lost-uas", 100), ("durability-uas", 12), ("usbfs-in-port-often", 1), ("routes-all", 1)];
/// How long each attacker goes on in one round, in seconds.
const ATTACKED: u32 = 60;
/// Faults of all kinds under writers of several disks, in one round. Each round has other ones.
const DURABILITY_FAULTS: u32 = 300;
/// Moves of a disk that is written, from host to host and home, in one round.
const MOVES: (&str, &str) = ("FARBUS_MOVES", "100");
/// Moves of a disk that is written to its importer's machine, with a kill of either end in each step, in one round.
const SWAPS: (&str, &str) = ("FARBUS_SWAPS", "100");
/// Disks of one host that are attached to another in one round, while both are restarted.
const ATTACHMENTS: (&str, &str) = ("FARBUS_ATTACHMENTS", "1000");
/// How long the members of a directory's etcd are killed, stopped and lied to in one round, seconds.
const MEMBERS_LOST: (&str, &str) = ("FARBUS_DIRECTORY_SECONDS", "300");
/// How often hosts that are joined by debug ports are brought up in one round, a ring and a cube each.
const BRING_UPS: (&str, &str) = ("FARBUS_BRING_UPS", "100");
/// How often daemons in a ring, and in a cube, are brought up in one round, data over every link included.
const TOPOLOGIES: (&str, &str) = ("FARBUS_TOPOLOGIES", "100");
/// How long a stream is carried over a long way, in real time: whatever it loses is counted.
const STREAMED: (&str, &str) = ("FARBUS_SECONDS", "60");
/// Programs inside `farbus run`: how long streams and commands without sense last, and how many are killed.
const PROGRAMS: [(&str, &str); 2] = [("FARBUS_SECONDS", "60"), ("FARBUS_KILLS", "200")];
/// Benchmarks of what is promised in time: tuned pipes, streams that matter, a link that others fill, a thousand
/// attachments, a page of a thousand devices with a thousand clients. No test asserts these figures.
const PACE: [&str; 5] = ["pipes", "mixed", "congestion", "thousand", "page"];
/// Passes of the repeating rig cases in one round.
const RIG_TIMES: u32 = 10;

pub fn run(arguments: &SoakArgs) -> Result<(), String> {
    if let Some(passes) = arguments.only_command {
        prerequisites::check(&["test", "machine"], false)?;
        return command_suite::run(passes);
    }
    let steps = ["fuzz", "machine", "upgrade", "rig", "package"];
    prerequisites::check(if arguments.skip_rig { &steps[..3] } else { &steps }, false)?;
    if let Some(passes) = arguments.only_beside {
        return beside::run(passes);
    }
    book::build()?;
    let start = Instant::now();
    let end = start + Duration::from_secs(60 * u64::from(arguments.minutes));
    let mut round = 0u32;
    while round == 0 || Instant::now() < end {
        round += 1;
        println!("\n=== round {round}, after {} minutes", start.elapsed().as_secs() / 60);
        one_round(arguments, round).map_err(|trouble| format!("round {round}: {trouble}"))?;
    }
    println!("\n{round} rounds passed in {} minutes", start.elapsed().as_secs() / 60);
    Ok(())
}

fn one_round(arguments: &SoakArgs, round: u32) -> Result<(), String> {
    fuzz::explore(arguments.fuzz_seconds)?;
    play_worlds()?;
    bring_up()?;
    cut_links()?;
    prove_routes()?;
    cut_and_kill()?;
    durability::run_for(DURABILITY_FAULTS, round.into())?;
    move_disks()?;
    attack::run_for(ATTACKED)?;
    sanitize::run_all()?;
    attach_many()?;
    lose_members()?;
    carry_streams()?;
    run_programs()?;
    measure_pace()?;
    compare_with_previous()?;
    test::run_machine_tests()?;
    if let StepSuccess::Skipped(why) = upgrade::run(&[("FARBUS_REQUIRE_RIG", "1")])? {
        println!("SKIPPED: {why}");
    }
    beside::run(PASSES_BESIDE)?;
    if arguments.skip_rig {
        return Ok(());
    }
    package::run_all()?;
    rig::run_cases(RIG_TIMES, &[])?;
    RIG_FAULTS.iter().try_for_each(|(case, times)| rig::run_case(case, *times))
}

/// Optimized, with all checks: a hundred worlds a second and more.
fn play_worlds() -> Result<(), String> {
    WORLDS.iter().try_for_each(|(package, test, count)| {
        let mut play = fuzz::optimized(cargo(&["test", "--package", package, "--test", test]));
        play.args(["--", "--nocapture"]).env(WORLDS_VARIABLE, count);
        cargo::run(play)
    })
}

fn bring_up() -> Result<(), String> {
    let mut bring = cargo(&["test", "--package", "farbus-sim", "--test", "bring_up", "--", "--nocapture"]);
    bring.env(BRING_UPS.0, BRING_UPS.1);
    cargo::run(bring)?;
    let tests = ["topology::a_ring", "topology::a_cube"];
    tests.into_iter().try_for_each(|test| {
        let mut bring = cargo(&["test", "--package", "farbus-cli", "--test", "command", test, "--", "--nocapture"]);
        bring.env(TOPOLOGIES.0, TOPOLOGIES.1);
        cargo::run(bring)
    })
}

fn cut_links() -> Result<(), String> {
    let mut cut =
        cargo(&["test", "--package", "farbus-cli", "--test", "command", "outlives_cut_links", "--", "--nocapture"]);
    cut.env(CUTS.0, CUTS.1).env("FARBUS_REQUIRE_RIG", "1");
    cargo::run(cut)
}

/// Each capability on each route of the table in `docs/interop.md`.
fn prove_routes() -> Result<(), String> {
    let mut prove = cargo(&["test", "--package", "farbus-cli", "--test", "command", "routes::", "--", "--nocapture"]);
    prove.env(ROUTES.0, ROUTES.1).env("FARBUS_REQUIRE_RIG", "1");
    cargo::run(prove)
}

fn cut_and_kill() -> Result<(), String> {
    let mut play =
        cargo(&["test", "--package", "farbus-cli", "--test", "command", "cuts_and_kills", "--", "--nocapture"]);
    play.env(FAULTS.0, FAULTS.1).env("FARBUS_REQUIRE_RIG", "1");
    cargo::run(play)
}

fn move_disks() -> Result<(), String> {
    let mut chain = cargo(&["test", "--package", "farbus-cli", "--test", "command", "moves", "--", "--nocapture"]);
    chain.env(MOVES.0, MOVES.1).env("FARBUS_REQUIRE_RIG", "1");
    cargo::run(chain)?;
    let mut swaps = cargo(&["test", "--package", "farbus-cli", "--test", "command", "swap_kills", "--", "--nocapture"]);
    swaps.env(SWAPS.0, SWAPS.1);
    cargo::run(swaps)
}

fn attach_many() -> Result<(), String> {
    let mut attach =
        cargo(&["test", "--package", "farbus-cli", "--test", "command", "thousand::hundreds", "--", "--nocapture"]);
    attach.env(ATTACHMENTS.0, ATTACHMENTS.1);
    cargo::run(attach)
}

/// Faults of an etcd of three members, while hosts take turns with a device.
fn lose_members() -> Result<(), String> {
    let mut lose =
        cargo(&["test", "--package", "farbus-cli", "--test", "command", "directory_faults", "--", "--nocapture"]);
    lose.env(MEMBERS_LOST.0, MEMBERS_LOST.1).env("FARBUS_REQUIRE_RIG", "1");
    cargo::run(lose)
}

fn carry_streams() -> Result<(), String> {
    let mut carry =
        cargo(&["test", "--package", "farbus-cli", "--test", "command", "far_streams", "--", "--nocapture"]);
    carry.env(STREAMED.0, STREAMED.1).env("FARBUS_REQUIRE_RIG", "1");
    cargo::run(carry)
}

/// Programs inside `farbus run`.
fn run_programs() -> Result<(), String> {
    let mut run = cargo(&["test", "--package", "farbus-cli", "--test", "command", "run_programs", "--", "--nocapture"]);
    run.envs(PROGRAMS).env("FARBUS_REQUIRE_RIG", "1");
    cargo::run(run)
}

/// Both releases are measured in turns, so that a machine that stalls does so for both: a loss ends the soak.
fn compare_with_previous() -> Result<(), String> {
    match upgrade::previous_commit()? {
        Some(commit) => bench::compare_with(&commit, &[]),
        None => {
            println!("SKIPPED: the previous release is not in this history; 'git fetch --unshallow' brings it");
            Ok(())
        }
    }
}

/// A machine that is shared stalls, and misses what it would keep alone: a miss is printed, and ends no soak.
fn measure_pace() -> Result<(), String> {
    cargo::run(cargo(&["build", "--release", "--package", "farbus-cli", "--package", "farbus-bench"]))?;
    for name in PACE {
        let measure = cargo(&["run", "--release", "--package", "farbus-bench", "--", "--quick", name]);
        if let Err(trouble) = cargo::run(measure) {
            println!("PACE of {name} was not kept, or not measured: {trouble}");
        }
    }
    Ok(())
}
