//! `farbus pipe`: tuned pipes share the processors with all other pipes on this machine, the owner sees them, and they
//! report their outcome where programs look for it.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use super::harness::{Harness, Outcome, PATIENCE, Running, Share, has, has_program, wait_until};
use super::rights::of_process;

/// A pipe that takes half of a processor, besides its receiving thread.
const HALF: [&str; 12] = [
    "pipe",
    "--here",
    "can,traffic=10",
    "--can",
    "500000",
    "--rate",
    "400",
    "--buffer",
    "16",
    "--execution-us",
    "20000",
    "--policy=none",
];

fn started(harness: &Harness) -> Running {
    let process = Running::start(harness.command(&HALF));
    process.has_line_before_its_end("pipe 0 in");
    process
}

fn pipes(harness: &Harness) -> Vec<Value> {
    let status = harness.json(&["status", "--json"]);
    let processes = status.as_array().cloned().unwrap_or_default();
    let pipes = processes.into_iter().filter(|process| process["role"] == "pipe");
    pipes.flat_map(|process| process["devices"].as_array().cloned().unwrap_or_default()).collect()
}

fn object(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn pipes_of_all_processes_share_the_processors_without_overcommitting() {
    let harness = Harness::new();
    let share = harness.share(&["zero"]);
    let processors = std::thread::available_parallelism().unwrap().get();
    let mut running = vec![started(&harness)];
    let seen = pipes(&harness);
    assert_eq!((seen.len(), &seen[0]["name"], &seen[0]["user"]), (1, &"can".into(), &"here".into()));
    assert_eq!(seen[0]["pipe"]["budget_ns"], 20_000_000);
    assert_eq!(seen[0]["pipe"]["period_ns"], 40_000_000);
    assert!(harness.run(&["status"]).stdout.contains("can: 20.000 ms of a processor each 40.000 ms"));
    share.process.assert_logged("has parts of the processors");
    // Each processor carries one such pipe, and some carry another pipe's receiving thread besides: two per processor
    // are certainly too many.
    let refused = loop {
        let mut another = Running::start(harness.command(&HALF));
        if another.has_line_before_its_end("pipe 0 in") {
            running.push(another);
            assert!(running.len() < 2 * processors, "{} of them on {processors} processors", running.len());
        } else {
            break Outcome { code: another.wait_for_end(PATIENCE), stdout: String::new(), stderr: another.log() };
        }
    };
    assert_eq!(refused.code, Some(3), "{refused:?}");
    assert!(refused.stderr.contains("the processors are others' as well"), "{refused:?}");
    assert!(refused.stderr.contains("are missing") && refused.stderr.contains("'farbus status'"), "{refused:?}");
    assert_eq!(pipes(&harness).len(), running.len());
    // A killed pipe has reported nothing.
    drop(running.pop());
    wait_until(PATIENCE, "its part is another's", || {
        let mut another = Running::start(harness.command(&[&HALF[..], &["--seconds", "1"]].concat()));
        another.wait_for_end(PATIENCE) != Some(3)
    });
    // A pipe that is told to end reports its outcome.
    harness.run(&["detach", "can"]);
    for mut process in running {
        assert!(process.wait_for_end(PATIENCE).is_some());
    }
    assert!(pipes(&harness).is_empty());
}

/// A pipe's threads ask for deadlines themselves, and keep no right besides that one.
#[test]
fn pipe_keeps_only_the_right_to_deadlines() {
    let harness = Harness::new();
    let share = harness.share(&["can,traffic=10"]);
    let target = share.target("can");
    let there: Vec<&str> = [&["pipe", &target], &HALF[3..9], &["--execution-us", "1000"]].concat();
    let mut pipe = Running::start(harness.command(&there));
    let line = pipe.wait_for_line("pipe 0 in");
    let status = harness.json(&["status", "--json"]);
    let process = status.as_array().unwrap().iter().find(|process| process["role"] == "pipe").expect("it runs");
    let pid = &process["pid"];
    assert_eq!((of_process(pid, "NoNewPrivs"), of_process(pid, "Seccomp")), ("1".into(), "2".into()));
    if rustix::process::geteuid().is_root() {
        let users = of_process(pid, "Uid");
        assert!(users.split_whitespace().all(|uid| uid != "0"), "{users}");
        // CAP_SYS_NICE and CAP_IPC_LOCK, if this process has them to give.
        let kept = u64::from_str_radix(&of_process(pid, "CapEff"), 16).unwrap();
        assert_eq!(kept & !(1 << 23 | 1 << 14), 0, "{kept:x}");
        assert_eq!(line.contains("deadline"), !pipe.log().contains("CAP_SYS_NICE"), "{line} {}", pipe.log());
    }
    pipe.signal(Signal::INT);
    assert!(pipe.wait_for_line("messages").contains("pipe 0 in"));
    assert!(pipe.wait_for_end(PATIENCE).is_some());
    // A program that does not end by itself ends with its pipe, whichever way its data go.
    let mark = harness.path("alive");
    let program = format!("echo $$ >{0}.new; mv {0}.new {0}; exec sleep 1000", mark.display());
    for (direction, outcome) in [(&["--out"][..], "not kept"), (&[], "did not end within 5 s")] {
        let _ = fs::remove_file(&mark);
        let ended = harness.run(&[&HALF[..], direction, &["--program", &program, "--seconds", "1"]].concat());
        let is_kept = ended.code == Some(0) && !direction.is_empty();
        assert!(is_kept || (ended.code == Some(1) && ended.stderr.contains(outcome)), "{ended:?}");
        let program = fs::read_to_string(&mark).unwrap();
        let is_there =
            || fs::read_to_string(format!("/proc/{}/stat", program.trim())).is_ok_and(|stat| !stat.contains(") Z"));
        wait_until(PATIENCE, "it ends as well", || !is_there());
    }
}

#[test]
fn pipe_whose_process_was_stopped_starts_again_and_reports_the_jump() {
    let harness = Harness::new();
    let start = |more: &[&str]| Running::start(harness.command(&[&HALF[..10], &["1000"], &HALF[11..], more].concat()));
    let mut other = start(&["--seconds", "6", "--json"]);
    let mut stopped = start(&[]);
    stopped.wait_for_line("pipe 0 in");
    wait_until(PATIENCE, "both run", || pipes(&harness).len() == 2);
    stopped.signal(Signal::STOP);
    // Longer than any scheduler is late: sixteen periods of 40 ms, and two seconds.
    // waits: the clock of a stopped process has to jump by more than any scheduler is late
    std::thread::sleep(Duration::from_secs(3));
    stopped.signal(Signal::CONT);
    let jumps = |pipe: &Value| pipe["pipe"]["jobs"]["jumps"].as_u64();
    wait_until(PATIENCE, "it has seen it", || pipes(&harness).iter().any(|pipe| jumps(pipe) > Some(0)));
    stopped.signal(Signal::INT);
    assert!(!stopped.wait_for_line("jumps of the clock").contains(" 0 jumps"));
    assert!(stopped.wait_for_end(PATIENCE).is_some());
    // The other pipe is not stopped. (Its clock may jump as well if the whole machine stands still.)
    assert!(other.wait_for_end(PATIENCE).is_some());
}

/// Equation 9 is shown beside the bound, which is larger, and the receiver's grant is that of the period beside it.
#[test]
fn the_bound_says_what_it_adds_to_the_plan_and_the_grant_is_new() {
    let harness = Harness::new();
    let line = "pipe --here can,traffic=paper --can 500000,250000,500000,500000,500000 --channel 4 --rate 2752 --buffer 128 --execution-us 2000 --seconds 1";
    let outcome = harness.run(&line.split(' ').collect::<Vec<_>>());
    assert!(outcome.stdout.contains("111.404 ms late at the worst"), "{outcome:?}");
    assert!(outcome.stdout.contains("64.892 ms by Equation 9 ('farbus plan pipe')"), "{outcome:?}");
    let receiver = outcome.stdout.lines().find(|line| line.starts_with("receiver")).expect("it is shown");
    assert!(receiver.contains("each 9.127 ms") && !receiver.contains("each 10ms"), "{receiver}");
}

#[test]
fn program_output_and_pipe_report_are_not_mixed() {
    let harness = Harness::new();
    let run = |more: &[&str]| {
        let usual = ["pipe", "--here", "can,traffic=10", "--can", "500000", "--rate", "400", "--buffer", "40"];
        harness.run(&[&usual[..], &["--execution-us", "2000", "--policy", "none", "--seconds", "1"], more].concat())
    };
    const HELLO: &str = "echo hello; exec cat >/dev/null";
    let finished = run(&["--json", "--program", HELLO]);
    let outcome = object(&finished.stdout);
    assert!(outcome["pipes"][0]["messages"].as_u64() > Some(0), "{finished:?}");
    assert!(finished.stderr.lines().any(|line| line == "hello"), "{finished:?}");
    // Whether the pipe was in time depends on the machine; the output is one JSON object in either case.
    assert_eq!(outcome["is_kept"] == true, finished.code == Some(0), "{finished:?}");
    let report = harness.path("report.json");
    let printed = run(&["--report", report.to_str().unwrap(), "--program", HELLO]);
    assert_eq!(printed.stdout, "hello", "{printed:?}");
    assert!(printed.stderr.contains("late at the worst"), "{printed:?}");
    assert!(object(&fs::read_to_string(&report).unwrap())["pipes"][0]["bound_ns"].as_u64() > Some(0));
    let ended = run(&["--json", "--program", "exit 3"]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(object(&ended.stdout)["failure"]["message"].as_str().unwrap().contains("the program ended"), "{ended:?}");
    // A pipe that never began prints a failure only, as other commands do.
    let refused = run(&["--json", "--rate", "1000000000"]);
    assert!(refused.code == Some(2), "{refused:?}");
}

#[test]
fn device_without_pipes_is_refused_with_what_to_type() {
    let harness = Harness::new();
    let run = |device: &[&str]| {
        let usual = ["--rate", "400", "--buffer", "16", "--execution-us", "500", "--policy", "none", "--seconds", "1"];
        harness.run(&[&["pipe"], device, &usual].concat())
    };
    let real = run(&["usb:1-1.4"]);
    assert!(real.code == Some(2) && real.stderr.contains("'farbus share usb:1-1.4' offers it"), "{real:?}");
    let here = run(&["zero,speed=full"]);
    assert!(here.code == Some(2) && here.stderr.contains("--here zero,speed=full"), "{here:?}");
    let other = run(&["--here", "keyboard"]);
    assert!(other.code == Some(3) && other.stderr.contains("'farbus pipe HOST/DEVICE'"), "{other:?}");
    let share = harness.share(&["keyboard", "can"]);
    let keyboard = run(&[&share.target("keyboard")]);
    assert!(keyboard.code == Some(3) && keyboard.stderr.contains("'farbus attach"), "{keyboard:?}");
    let no_can = run(&[&share.target("keyboard"), "--can", "500000"]);
    assert!(no_can.code == Some(3) && no_can.stderr.contains("gs_usb"), "{no_can:?}");
    let nobody = run(&[&share.target("nothing")]);
    assert!(nobody.code == Some(4) && nobody.stderr.contains("it shares: keyboard, can"), "{nobody:?}");
    drop(share);
}

/// A bridge has a network, whose data flows in setting 1 of an interface, and a raw pair.
#[test]
fn raw_pair_of_a_bridge_carries_a_pipe_by_its_endpoint() {
    let harness = Harness::new();
    let share = harness.share(&["bridge"]);
    let (a, b) = (share.target("bridge-a"), share.target("bridge-b"));
    let usual = ["--rate", "50", "--buffer", "10", "--execution-us", "500", "--policy", "none"];
    let pipe = |target, more: &[&'static str]| harness.command(&[&["pipe", target], &usual[..], more].concat());
    let mut sender = Running::start(pipe(&a, &["--seconds", "4", "--endpoint", "0x03", "--out"]));
    sender.wait_for_line("pipe 0 out");
    let mut receiver = Running::start(pipe(&b, &["--seconds", "2", "--endpoint", "0x83"]));
    let line = receiver.wait_for_line("messages");
    assert!(!line.contains(" 0 messages"), "{line}");
    for process in [&mut sender, &mut receiver] {
        assert!(process.wait_for_end(PATIENCE).is_some());
    }
    let mut network = Running::start(pipe(&b, &["--endpoint", "0x82"]));
    assert_eq!(network.wait_for_end(PATIENCE), Some(3));
    assert!(network.log().contains("in setting 1"), "{}", network.log());
}

/// Processor time of a thread: `SCHED_DEADLINE` is policy 6, field 41 of its `stat` (proc(5)).
fn has_deadline(process: u64, thread: &str) -> bool {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).unwrap().flatten();
    let named = tasks.filter_map(|task| fs::read_to_string(task.path().join("stat")).ok());
    let policies = named.filter_map(|stat| {
        let (before, after) = stat.rsplit_once(") ")?;
        before.split_once('(')?.1.starts_with(thread).then(|| after.split_whitespace().nth(38) == Some("6"))
    });
    policies.into_iter().any(|is_deadline| is_deadline)
}

const UNRESERVED: &str =
    "only this end is promised: the host that shares the device has no processor time reserved for it";

/// What a pipe needs of another host is reserved there: the bus, the path and time for the thread that serves it. What
/// the kernel there denies is said, and what there is not is refused.
#[test]
fn pipe_to_another_host_has_time_there_or_says_that_it_has_none() {
    let harness = Harness::new();
    let usual = ["--can", "500000", "--buffer", "128", "--execution-us", "500", "--policy", "none"];
    let words = |target: &str, more: &[&str]| {
        [&["pipe", target], &usual[..], more].concat().iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let run = |target: &str, more: &[&str]| {
        let words = words(target, more);
        harness.run(&words.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let share = harness.share(&["can,traffic=10"]);
    let words = words(&share.target("can"), &["--rate", "2000"]);
    let mut pipe = Running::start(harness.command(&words.iter().map(String::as_str).collect::<Vec<_>>()));
    pipe.wait_for_line("pipe 0 in");
    let status = harness.json(&["status", "--json"]);
    let process = status.as_array().unwrap().iter().find(|process| process["role"] == "share").expect("it runs");
    let shared = &process["devices"][0]["reservation"];
    assert_eq!((&shared["state"], &shared["criticality"]), (&"admitted".into(), &"high".into()), "{process}");
    let is_reserved = share.process.log().contains("its thread has processor time in each period");
    assert_eq!(has_deadline(process["pid"].as_u64().unwrap(), "session"), is_reserved, "{}", share.process.log());
    if is_reserved {
        assert!(!pipe.log().contains(UNRESERVED), "{}", pipe.log());
    } else {
        share.process.assert_logged("no processor time is reserved for its thread");
        pipe.assert_logged("its kernel gave that thread no processor time: its log says why");
    }
    pipe.signal(Signal::INT);
    assert!(pipe.wait_for_end(PATIENCE).is_some());
    let outcome = object(&run(&share.target("can"), &["--rate", "400", "--seconds", "1", "--json"]).stdout);
    assert_eq!(outcome["pipes"][0]["is_far_unreserved"], !is_reserved, "{outcome}");

    // More than a bus of 480 Mb/s carries.
    let zero = harness.share(&["zero"]);
    let much = ["--message", "65536", "--rate", "2000", "--buffer", "64", "--execution-us", "500"];
    let refused = harness.run(&[&["pipe", &zero.target("zero")], &much[..]].concat());
    assert!(refused.code == Some(3) && refused.stderr.contains("it cannot be reserved"), "{refused:?}");
    // And it is there for the next, with what there is.
    let little = ["--message", "512", "--rate", "100", "--buffer", "64", "--execution-us", "500", "--seconds", "1"];
    let carried = harness.run(&[&["pipe", &zero.target("zero"), "--policy", "none"], &little[..]].concat());
    assert!(carried.stdout.contains("pipe 0 in"), "{carried:?}");

    // An exporter that may not ask its kernel.
    if !has("root", rustix::process::geteuid().is_root()) || !has("setpriv", has_program("setpriv")) {
        return;
    }
    let farbus = env!("CARGO_BIN_EXE_farbus");
    let rights = ["--bounding-set", "-sys_nice", "--inh-caps", "-sys_nice", farbus];
    let command = [&rights[..], &["share", "can,traffic=10", "--listen", "127.0.0.1:0"]].concat();
    let poor = Share::follow(Running::start(harness.command_of(Path::new("setpriv"), &command)));
    let answer = object(&run(&poor.target("can"), &["--rate", "400", "--seconds", "1", "--json"]).stdout);
    let not_promised = answer["not_promised"].as_array().unwrap();
    let is_said = |what: &Value| what.as_str().unwrap().starts_with(UNRESERVED);
    assert!(not_promised.iter().any(is_said), "{answer}");
    assert_eq!(answer["pipes"][0]["is_far_unreserved"], true, "{answer}");
    poor.process.assert_logged("CAP_SYS_NICE");
}

/// A device with fewer messages than asked is no proof of the rate.
#[test]
fn rate_that_the_device_did_not_send_was_not_tried() {
    let harness = Harness::new();
    let share = harness.share(&["can,traffic=10"]);
    let run = |device: &[&str], more: &[&str]| {
        let usual = ["--can", "500000", "--rate", "2000", "--buffer", "128", "--execution-us", "500"];
        harness.run(&[&["pipe"], device, &usual, &["--policy", "none", "--seconds", "3"], more].concat())
    };
    let far = run(&[&share.target("can")], &[]);
    assert!(far.stdout.contains("/s of the 2000/s asked: that rate was not tried"), "{far:?}");
    let here = run(&["--here", "can,traffic=10"], &["--json"]);
    let outcome = object(&here.stdout);
    assert_eq!(outcome["is_tried"], false, "{outcome}");
    let not_promised = outcome["not_promised"].as_array().unwrap();
    assert!(not_promised.iter().all(|what| !what.as_str().unwrap().contains(UNRESERVED)), "{outcome}");
}
