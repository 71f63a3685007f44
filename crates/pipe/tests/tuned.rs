//! Tuned pipes on the running system: which qualities are granted, which are refused, and that every loss is reported.
//!
//! These tests hold on a machine that stalls: a stalled machine cannot keep a guarantee, and then the loss is reported.
//! `farbus bench pipes` measures that guarantees are kept; `sim/tests/processor.rs` and `sim/tests/experiments.rs`
//! compute it in simulated time.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use farbus::Share;
use farbus::client::{DeviceTarget, ImporterClient};
use farbus::common::socket_place::SocketLocation;
use farbus::gadgets::can::{CanAdapter, CanSettings};
use farbus::gadgets::zero::{SourcePattern, SourceSink};
use farbus_io_linux::sys::scheduling::{SchedulingGrant, SchedulingPolicy, now_ns};
use farbus_io_net::local::control_socket::Answer;
use farbus_model::{TransferDirection, UsbSpeed};
use farbus_pipe::{
    EndpointLayout, PathDelay, PipeEnd, PipeEndpoint, PipeError, PipeFlow, PipeJobContext, PipeQuality, PipeRefusal,
    ProcessorPool, ReceiverTerms, Report, STILL_NS_MAX, SchedulingStrictness, VcpuOverload, can, here, path_delay,
    there, tpipe,
};

const SECOND_NS: u64 = 1_000_000_000;
/// The limit for anything that should take no time, on a machine that is busy or stalls.
const PATIENCE_NS: u64 = 60 * SECOND_NS;
/// The rates of the channels in Table 7, in frames a second, rounded up.
const TABLE_7: [u64; 5] = [397, 336, 1191, 1343, 2739];
const RATES: [Option<u32>; 5] = [Some(500_000), Some(250_000), Some(500_000), Some(500_000), Some(500_000)];

/// A quality of `per_s` messages a second through a buffer of `messages`.
fn quality(per_s: u64, messages: u64, execution_ns: u64) -> PipeQuality {
    let bits = 8 * can::MESSAGE_BYTES as u64;
    PipeQuality {
        latency_ns: SECOND_NS,
        throughput_bits: per_s * bits,
        buffer_bytes: messages * can::MESSAGE_BYTES as u64,
        execution_ns,
    }
}

fn adapter(
    settings: &str,
    rates: &[Option<u32>],
    strictness: SchedulingStrictness,
) -> Result<Arc<PipeEndpoint>, PipeError> {
    adapter_on(&ProcessorPool::anywhere(strictness), settings, rates)
}

fn adapter_on(
    processors: &ProcessorPool,
    settings: &str,
    rates: &[Option<u32>],
) -> Result<Arc<PipeEndpoint>, PipeError> {
    let settings: CanSettings = settings.parse().unwrap();
    let mut device = here(CanAdapter::device(&settings)).unwrap();
    let shape = can::set_up(&mut device, rates, can::ROOM).unwrap();
    PipeEndpoint::open(device.into_port().into_way(), shape, processors, ReceiverTerms::HERE).map(Arc::new)
}

const fn end(channel: usize, direction: TransferDirection) -> PipeEnd {
    PipeEnd { channel, direction }
}

/// What a pipe's function has seen of a device that numbers its frames.
#[derive(Default)]
struct Seen {
    frames: u64,
    next: Option<u64>,
    gaps: u64,
}

fn count(turn: &mut PipeJobContext<'_>, seen: &mut Seen) -> PipeFlow {
    for message in turn.messages() {
        let frame = can::GsCanFrame::of_message(message).expect("a frame");
        let number = u64::from_le_bytes(frame.data);
        seen.gaps += seen.next.map_or(0, |next| number.wrapping_sub(next));
        (seen.next, seen.frames) = (Some(number + 1), seen.frames + 1);
    }
    PipeFlow::On
}

/// Checks that frames are missing only where the device or the buffer reports a loss.
fn assert_losses_are_known(seen: &Seen, report: &Report) {
    assert_eq!(seen.frames, report.messages, "{report:?}");
    // The adapter reports a loss with its next frame; its last report may not have come.
    assert!(seen.gaps == 0 || report.device_overruns + report.lost > 0, "{} are missing: {report:?}", seen.gaps);
}

/// Waits until `is_so`, looking often.
fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let until = now_ns() + PATIENCE_NS;
    while !is_so() {
        assert!(now_ns() < until, "not for a minute: {what}");
        // waits: between two looks for an event
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn five_channels_come_through_five_pipes_and_whatever_is_lost_is_known() {
    let endpoint = adapter("traffic=paper", &RATES, SchedulingStrictness::Deadline).unwrap();
    let open = |channel: usize| {
        let quality = quality(TABLE_7[channel], 64, 2_000_000);
        tpipe(&endpoint, end(channel, TransferDirection::In), quality, count, Seen::default()).unwrap()
    };
    let pipes: Vec<_> = (0..5).map(open).collect();
    // Half of the time in which the adapter's buffer fills (64 frames at 6,006 a second), since the processor may stand
    // still for the rest of it.
    assert_eq!(endpoint.period_ns(), (64 * SECOND_NS / TABLE_7.iter().sum::<u64>() - STILL_NS_MAX) / 2);
    wait_until("a second's frames come of each", || {
        pipes.iter().zip(TABLE_7).all(|(pipe, per_s)| pipe.report().messages >= per_s)
    });
    for pipe in pipes {
        let (bound_ns, receiver_ns) = (pipe.bound_ns(), endpoint.period_ns());
        let (seen, report) = pipe.stop();
        assert_losses_are_known(&seen.expect("no panic"), &report);
        assert!(report.jobs.ran > 0, "{report:?}");
        assert_eq!(bound_ns, 125_000 + 2 * receiver_ns + 2 * report.period_ns, "both threads have just looked");
    }
}

#[test]
fn outgoing_messages_reach_the_bus_and_channels_do_not_delay_each_other() {
    let endpoint = adapter("channels=2", &[Some(500_000), Some(10_000)], SchedulingStrictness::Deadline).unwrap();
    let open = |channel: usize, per_s: u64| {
        let send = |turn: &mut PipeJobContext<'_>, next: &mut u64| {
            while turn.room() > 0 {
                turn.put(&can::GsCanFrame { id: 0x100, length: 8, data: next.to_le_bytes() }.to_message());
                *next += 1;
            }
            PipeFlow::On
        };
        let direction = TransferDirection::Out;
        tpipe(&endpoint, end(channel, direction), quality(per_s, 32, 500_000), send, 0).unwrap()
    };
    let began = now_ns();
    // As many frames of 8 bytes as the slow bus carries.
    let pipes = [open(0, 2752), open(1, 79)];
    wait_until("a second's frames go out", || pipes[0].report().went_out > 2752 && pipes[1].report().went_out > 0);
    let [fast, slow] = pipes.map(|pipe| pipe.stop().1);
    let seconds = (now_ns() - began).div_ceil(SECOND_NS);
    // 126 bits a frame: 3,968 a second at 500 kb/s, 79 at 10 kb/s.
    assert!(slow.went_out <= 80 * seconds, "its bus is slow: {slow:?} in {seconds} s");
    assert!(fast.went_out > 4 * slow.went_out, "the other is not: {fast:?} {slow:?}");
    assert!(fast.messages >= fast.went_out && fast.device_overruns == 0, "{fast:?}");
}

#[test]
fn impossible_pipe_is_refused_with_its_reason_and_takes_no_processor_time() {
    let endpoint = adapter("traffic=10/20", &RATES[..2], SchedulingStrictness::None).unwrap();
    let open = |channel, direction, quality| tpipe(&endpoint, end(channel, direction), quality, count, Seen::default());
    let input = |channel, quality| open(channel, TransferDirection::In, quality).map(drop).unwrap_err();

    assert!(matches!(input(7, quality(100, 10, 1)), PipeError::Channel { wanted: 7, channels: 2 }));
    let slow = input(0, quality(1000, 1, 1_000_001));
    assert!(
        matches!(slow, PipeError::Quality(PipeRefusal::Execution { .. })) && slow.to_string().contains("larger buffer")
    );
    assert!(matches!(input(0, quality(1_000_000_000, 10, 1)), PipeError::Quality(PipeRefusal::Throughput { .. })));
    // Periods that no scheduler keeps: 50 us is too short, 5 s is too long.
    let hasty = input(0, PipeQuality { latency_ns: 1_000_000, ..quality(20, 1, 1000) });
    assert!(matches!(hasty, PipeError::Period { period_ns: 50_000, .. }), "{hasty}");
    assert!(hasty.to_string().contains("a larger buffer makes it longer"), "{hasty}");
    assert!(matches!(input(0, quality(10, 50, 1000)), PipeError::Period { period_ns: 5_000_000_000, .. }));
    // Beyond Equation 1: nine tenths of a processor beside the thread that receives.
    let beyond = input(0, quality(1000, 10, 9_000_000));
    assert!(matches!(beyond, PipeError::Processor(VcpuOverload::Demand(load)) if load.missing_ppb() > 0), "{beyond}");

    // A bus carries no more frames than its bits are, however short they are.
    let full = input(0, quality(9804, 100, 1000));
    assert!(
        matches!(full, PipeError::Bus { asked_per_s: 9804, .. }) && full.to_string().contains("--rate 9803"),
        "{full}"
    );
    let half = input(1, quality(9803, 100, 1000));
    assert!(half.to_string().contains("at most 4901 messages/s"), "{half}");

    // None of the refused pipes took anything.
    let pipe = open(0, TransferDirection::In, quality(500, 10, 1_000_000)).unwrap();
    assert!(matches!(input(0, quality(1, 1, 1)), PipeError::Taken(0)));
    drop(pipe);
    drop(open(0, TransferDirection::In, quality(500, 10, 1_000_000)).unwrap());
}

#[test]
fn transfers_under_way_carry_the_rate_or_the_pipe_is_refused() {
    let endpoint = |terms| {
        let device = here(SourceSink::device(UsbSpeed::High, SourcePattern::Zeros, false)).unwrap();
        let shape = EndpointLayout::bulk(&device, UsbSpeed::High, 512).unwrap();
        let processors = ProcessorPool::anywhere(SchedulingStrictness::None);
        PipeEndpoint::open(device.into_port().into_way(), shape, &processors, terms).map(Arc::new).unwrap()
    };
    let quality = |per_s: u64, messages: u64| PipeQuality {
        latency_ns: SECOND_NS,
        throughput_bits: per_s * 512 * 8,
        buffer_bytes: messages * 512,
        execution_ns: 1000,
    };
    let nothing = |_: &mut PipeJobContext<'_>, (): &mut ()| PipeFlow::On;
    let open =
        |endpoint: &Arc<PipeEndpoint>, direction, quality| tpipe(endpoint, end(0, direction), quality, nothing, ());

    // Two reads of one message each, which last for two periods and a microframe: 2 / (2 x 100 us + 125 us).
    let near = endpoint(ReceiverTerms::HERE);
    let refused = open(&near, TransferDirection::In, quality(20_000, 1000)).map(drop).unwrap_err();
    assert!(matches!(refused, PipeError::Rate { asked_per_s: 20_000, max_per_s: 6153, in_flight: 2, .. }), "{refused}");
    assert!(refused.to_string().contains("--rate 6153"), "{refused}");
    assert!(refused.to_string().contains("from the device"), "{refused}");
    let began = now_ns();
    let pipe = open(&near, TransferDirection::In, quality(2000, 100)).unwrap();
    assert_eq!(near.period_ns(), (SECOND_NS / 1000 - 125_000) / 2);
    wait_until("a source that always has data fills the pipe", || pipe.report().messages > 2000);
    let (_, report) = pipe.stop();
    assert_eq!(report.lost, 0, "a device that makes its source wait loses nothing: {report:?}");
    let ran_ns = now_ns() - began;
    assert!(ran_ns < PATIENCE_NS);
    // A hundredth more than the rate, and a buffer at once.
    let most = 2020 * ran_ns / SECOND_NS + 100 + 10;
    assert!(report.messages <= most, "{} messages in {ran_ns} ns, which are {most} at the rate asked", report.messages);
    // 64 writes are under way.
    drop(open(&near, TransferDirection::Out, quality(20_000, 1000)).unwrap());

    // 32 reads, and a path that delays by 10 ms.
    let far = endpoint(ReceiverTerms::there(PathDelay::at_worst(10_000_000)));
    assert!(matches!(
        open(&far, TransferDirection::In, quality(20_000, 1000)).map(drop),
        Err(PipeError::Rate { max_per_s: 3137, .. })
    ));
    let pipe = open(&far, TransferDirection::In, quality(2500, 100)).unwrap();
    assert_eq!(far.period_ns(), (32 * SECOND_NS / 2500 - 10_000_000) / 2);
    drop(pipe);
}

/// The machine stood still for 83 ms in one of the round trips by which the path was measured, and farbus allows for
/// four times that.
const STALLED: PathDelay = PathDelay { worst_ns: 332_000_000, usual_ns: 20_000_000 };

#[test]
fn path_that_stalled_once_while_it_was_measured_carries_the_rate_of_a_source_that_can_wait() {
    let device = here(SourceSink::device(UsbSpeed::High, SourcePattern::Zeros, false)).unwrap();
    let shape = EndpointLayout::bulk(&device, UsbSpeed::High, 512).unwrap();
    let processors = ProcessorPool::anywhere(SchedulingStrictness::None);
    let endpoint = PipeEndpoint::open(device.into_port().into_way(), shape, &processors, ReceiverTerms::there(STALLED));
    let endpoint = endpoint.map(Arc::new).unwrap();
    let nothing = |_: &mut PipeJobContext<'_>, (): &mut ()| PipeFlow::On;
    for direction in [TransferDirection::In, TransferDirection::Out] {
        let open = |per_s: u64| {
            let quality = PipeQuality {
                latency_ns: SECOND_NS,
                throughput_bits: per_s * 512 * 8,
                buffer_bytes: 64 * 512,
                execution_ns: 1000,
            };
            tpipe(&endpoint, end(0, direction), quality, nothing, ())
        };
        // 32 reads in 332 ms are 96/s, and 64 writes twice as many.
        let pipe = open(200).unwrap();
        assert!(pipe.bound_ns() > STALLED.worst_ns, "what occurred once may occur again: the bound has room for it");
        // 32 / (20 ms + 2 x 100 us), of which half makes up for what a stall left behind.
        let in_flight = if direction == TransferDirection::In { 32 } else { 64 };
        assert!(endpoint.period_ns() <= (in_flight * SECOND_NS / 400 - 20_000_000) / 2, "{}", endpoint.period_ns());
        drop(pipe);
        let refused = open(10_000).map(drop).unwrap_err();
        let per_s = in_flight * SECOND_NS / 20_200_000 / 2;
        let is_so = matches!(refused, PipeError::Rate { max_per_s, .. } if max_per_s == per_s);
        assert!(is_so && refused.to_string().contains("332.000 ms at the worst and 20.000 ms usually"), "{refused}");
        drop(open(per_s).unwrap());
    }
}

#[test]
fn device_that_loses_what_is_not_fetched_has_to_be_carried_at_the_worst_delay() {
    let processors = ProcessorPool::anywhere(SchedulingStrictness::None);
    let mut device = here(CanAdapter::device(&"traffic=10".parse::<CanSettings>().unwrap())).unwrap();
    let shape = can::set_up(&mut device, &RATES[..1], can::ROOM).unwrap();
    let endpoint = PipeEndpoint::open(device.into_port().into_way(), shape, &processors, ReceiverTerms::there(STALLED));
    let endpoint = endpoint.map(Arc::new).unwrap();
    let open = |per_s: u64| {
        tpipe(&endpoint, end(0, TransferDirection::In), quality(per_s, 100, 1000), count, Seen::default()).map(drop)
    };
    let refused = open(9803).unwrap_err();
    assert!(!refused.to_string().contains("usually"), "{refused}");
    let PipeError::Rate { max_per_s, in_flight, usual_ns: None, .. } = refused else { panic!("{refused}") };
    // Its reads, each for 332 ms and two periods of 100 us.
    assert_eq!(max_per_s, in_flight * SECOND_NS / 332_200_000);
    assert!(matches!(open(max_per_s + 1), Err(PipeError::Rate { .. })));
    open(max_per_s).unwrap();
}

#[test]
fn source_that_a_slow_function_makes_wait_is_reported_as_late() {
    let device = here(SourceSink::device(UsbSpeed::High, SourcePattern::Zeros, false)).unwrap();
    let shape = EndpointLayout::bulk(&device, UsbSpeed::High, 512).unwrap();
    let processors = ProcessorPool::anywhere(SchedulingStrictness::None);
    let endpoint = PipeEndpoint::open(device.into_port().into_way(), shape, &processors, ReceiverTerms::HERE)
        .map(Arc::new)
        .unwrap();
    let quality =
        PipeQuality { latency_ns: SECOND_NS, throughput_bits: 1000 * 4096, buffer_bytes: 8192, execution_ns: 1000 };
    // Its fifth job takes a second: the pipe fills, and its device has to wait.
    let slow = |_: &mut PipeJobContext<'_>, jobs: &mut u64| {
        *jobs += 1;
        let until = now_ns() + if *jobs == 5 { SECOND_NS } else { 0 };
        while now_ns() < until {
            thread::yield_now();
        }
        PipeFlow::On
    };
    let pipe = tpipe(&endpoint, end(0, TransferDirection::In), quality, slow, 0).unwrap();
    wait_until("it goes on", || pipe.report().jobs.ran > 6);
    let (_, report) = pipe.stop();
    assert!(!report.is_kept() && report.lost == 0, "{report:?}");
    assert!(report.behind_ns > report.bound_ns && report.worst_ns > report.bound_ns, "{report:?}");
}

#[test]
fn a_refused_or_denied_pipe_leaves_the_terms_of_another_as_they_are() {
    let endpoint = adapter("traffic=30/30", &RATES[..2], SchedulingStrictness::Deadline).unwrap();
    let open =
        |channel, quality| tpipe(&endpoint, end(channel, TransferDirection::In), quality, count, Seen::default());
    let innocent = open(1, quality(1200, 24, 1_000_000)).unwrap();
    let before = (innocent.bound_ns(), endpoint.period_ns());
    let until = now_ns() + SECOND_NS;
    while now_ns() < until {
        let refused = |quality| open(0, quality).map(drop).unwrap_err();
        assert!(matches!(refused(quality(1_000_000_000, 10, 1)), PipeError::Quality(PipeRefusal::Throughput { .. })));
        assert!(matches!(refused(quality(1000, 1, 2_000_000)), PipeError::Quality(PipeRefusal::Execution { .. })));
        let hasty = PipeQuality { latency_ns: 1_000_000, ..quality(20, 1, 1000) };
        assert!(matches!(refused(hasty), PipeError::Period { .. }));
        assert!(matches!(refused(quality(1000, 10, 9_000_000)), PipeError::Processor(_)));
        // The kernel denies a thread more than all processors have.
        thread::spawn(|| {
            let [budget, period] = [Duration::from_millis(200), Duration::from_millis(100)];
            let denied = SchedulingGrant::take(&[SchedulingPolicy::Deadline { budget, period }]);
            assert_eq!((denied.policy(), denied.denied().len()), (SchedulingPolicy::Ordinary, 1));
        })
        .join()
        .unwrap();
        // waits: what is under test is in use for a while, however little of it runs in that time
        thread::sleep(Duration::from_millis(50));
    }
    assert_eq!((innocent.bound_ns(), endpoint.period_ns()), before, "what is promised stays what it is");
    wait_until("frames come", || innocent.report().messages > 0);
    let (seen, report) = innocent.stop();
    assert_losses_are_known(&seen.expect("no panic"), &report);
}

#[test]
fn pipes_of_this_and_of_other_processes_draw_on_the_same_processors() {
    let share = Share::default();
    let processors = thread::available_parallelism().unwrap().get();
    let on = |owner: &str| ProcessorPool::anywhere(SchedulingStrictness::None).beside(share.beside(owner)).unwrap();
    let adapter = || adapter_on(&on("pipes of this test"), "traffic=10", &RATES[..1]);
    // Another process has all processors, but for a quarter of the last.
    let (lease, theirs) = UnixStream::pair().unwrap();
    let mut all = vec![(100, 100); processors - 1];
    all.push((75, 100));
    assert!(matches!(share.promises().keep("another process", &all, theirs.into()), Answer::Ok(_)));
    let refused = adapter().map(drop).unwrap_err();
    assert!(matches!(refused, PipeError::Promised(_)), "{refused}");
    assert!(
        refused.to_string().contains("are missing") && refused.to_string().contains("'farbus status'"),
        "{refused}"
    );
    drop(lease);
    let until = now_ns() + PATIENCE_NS;
    let endpoint = loop {
        match adapter() {
            Ok(endpoint) => break endpoint,
            Err(error) if now_ns() > until => panic!("nobody has them any more: {error}"),
            // waits: between two looks for an event
            Err(_) => thread::sleep(Duration::from_millis(10)),
        }
    };
    let pipe =
        tpipe(&endpoint, end(0, TransferDirection::In), quality(400, 40, 40_000_000), count, Seen::default()).unwrap();
    // The pipe has 40 % and its receiving thread 15 %: one processor has less than a whole one left.
    let (_lease, theirs) = UnixStream::pair().unwrap();
    let whole = vec![(100, 100); processors];
    let Answer::Failed(refused) = share.promises().keep("another process", &whole, theirs.into()) else {
        panic!("it was promised twice")
    };
    assert!(refused.message.contains("are missing"), "{refused:?}");
    drop((pipe, endpoint));
    let (_lease, theirs) = UnixStream::pair().unwrap();
    assert!(
        matches!(share.promises().keep("another process", &whole, theirs.into()), Answer::Ok(_)),
        "all is given back"
    );
}

#[test]
fn a_function_that_overruns_is_counted_and_the_others_run_on() {
    let endpoint = adapter("traffic=30/30", &RATES[..2], SchedulingStrictness::Deadline).unwrap();
    let spin = |turn: &mut PipeJobContext<'_>, seen: &mut Seen| {
        let until = farbus_io_linux::sys::scheduling::ran_ns() + 30_000_000;
        while farbus_io_linux::sys::scheduling::ran_ns() < until {}
        count(turn, seen)
    };
    let quality = quality(1200, 24, 1_000_000);
    let guilty = tpipe(&endpoint, end(0, TransferDirection::In), quality, spin, Seen::default()).unwrap();
    let innocent = tpipe(&endpoint, end(1, TransferDirection::In), quality, count, Seen::default()).unwrap();
    wait_until("both run for a while", || guilty.report().jobs.ran > 5 && innocent.report().messages > 1200);
    let (guilty, innocent) = (guilty.stop().1, innocent.stop());
    assert!(guilty.jobs.overruns > 0 && guilty.jobs.longest_ns >= 30_000_000, "{guilty:?}");
    assert_eq!(guilty.jobs.overruns, guilty.jobs.ran, "every job of it took too long");
    let (seen, report) = (innocent.0.expect("no panic"), innocent.1);
    assert!(report.jobs.overruns < report.jobs.ran, "{report:?}");
    assert_losses_are_known(&seen, &report);
}

#[test]
fn pipe_without_rights_runs_and_says_that_its_quality_is_not_guaranteed() {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    // Threads started from here have no more rights than this one.
    thread::spawn(|| {
        let mut sets = capabilities(None).unwrap();
        sets.effective.remove(CapabilitySet::SYS_NICE);
        sets.permitted.remove(CapabilitySet::SYS_NICE);
        set_capabilities(None, sets).unwrap();
        let endpoint = adapter("traffic=10", &RATES[..1], SchedulingStrictness::Deadline).unwrap();
        let warnings = endpoint.granted().warnings;
        assert!(warnings[0].contains("CAP_SYS_NICE"), "{warnings:?}");
        let pipe = tpipe(&endpoint, end(0, TransferDirection::In), quality(400, 40, 1_000_000), count, Seen::default());
        let (seen, report) = pipe.unwrap().stop();
        assert!(seen.is_some() && report.granted.warnings[0].contains("was denied"), "{report:?}");
    })
    .join()
    .unwrap();
}

#[test]
fn a_function_may_end_its_pipe() {
    let endpoint = adapter("traffic=10", &RATES[..1], SchedulingStrictness::None).unwrap();
    let take_one = |turn: &mut PipeJobContext<'_>, seen: &mut Seen| match count(turn, seen) {
        PipeFlow::On if seen.frames > 0 => PipeFlow::End,
        flow => flow,
    };
    let pipe =
        tpipe(&endpoint, end(0, TransferDirection::In), quality(400, 4, 1_000_000), take_one, Seen::default()).unwrap();
    let until = now_ns() + PATIENCE_NS;
    while !pipe.is_ended() && now_ns() < until {
        // waits: between two looks for an event
        thread::sleep(Duration::from_millis(5));
    }
    let (seen, _) = pipe.stop();
    assert!(seen.unwrap().frames > 0, "its function said that this was the last");
    assert_eq!(endpoint.end(), None);
}

#[test]
fn channels_of_another_host_arrive_through_pipes_until_it_takes_its_device_back() {
    let folder = std::env::temp_dir().join(format!("farbus-tuned-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let share = Share::default();
    share.add("can", CanAdapter::device(&"traffic=10/69".parse::<CanSettings>().unwrap())).unwrap();
    let address = share.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let socket = folder.join("share.sock");
    share.listen_at(SocketLocation::Socket(socket.clone()).listen().unwrap(), None).unwrap();
    // Plain USB/IP, then a session, as at a local socket.
    for host in [address.to_string(), format!("unix:{}", socket.display())] {
        let target: DeviceTarget = format!("{host}/can").parse().unwrap();
        let until = now_ns() + PATIENCE_NS;
        let (mut device, _) = loop {
            // The exporter notices the end of the previous session with a delay.
            match there(&ImporterClient::default(), &target) {
                Ok(opened) => break opened,
                Err(error) if now_ns() > until => panic!("{host}: {error}"),
                // waits: between two looks for an event
                Err(_) => thread::sleep(Duration::from_millis(20)),
            }
        };
        let delay = path_delay(&mut device).unwrap();
        assert!(0 < delay.usual_ns && delay.usual_ns <= delay.worst_ns, "{delay:?}");
        let shape = can::set_up(&mut device, &RATES[..2], can::ROOM).unwrap();
        let processors = ProcessorPool::anywhere(SchedulingStrictness::Deadline);
        let endpoint =
            PipeEndpoint::open(device.into_port().into_way(), shape, &processors, ReceiverTerms::there(delay));
        let endpoint = Arc::new(endpoint.unwrap());
        let open = |channel: usize| {
            let quality = quality(2752, 64, 1_000_000);
            tpipe(&endpoint, end(channel, TransferDirection::In), quality, count, Seen::default()).unwrap()
        };
        let pipes = [open(0), open(1)];
        assert!(pipes[0].bound_ns() > delay.worst_ns + 2 * pipes[0].reserve().period_ns);
        while pipes.iter().any(|pipe| pipe.report().messages < 50) {
            assert!(now_ns() < until && endpoint.end().is_none(), "{:?}", endpoint.end());
            // waits: between two looks for an event
            thread::sleep(Duration::from_millis(10));
        }
        if host.starts_with("unix:") {
            share.take_back("can", None, Duration::ZERO).unwrap();
            while endpoint.end().is_none() || !pipes.iter().all(|pipe| pipe.is_ended()) {
                assert!(now_ns() < until, "its pipes end with it");
                // waits: between two looks for an event
                thread::sleep(Duration::from_millis(10));
            }
        }
        for (seen, report) in pipes.map(|pipe| pipe.stop()) {
            // The adapter reports a loss with its next frame.
            let is_told = report.device_overruns + report.lost > 0;
            assert!(seen.unwrap().gaps == 0 || is_told, "{report:?}");
        }
    }
    drop(share);
    std::fs::remove_dir_all(folder).unwrap();
}
