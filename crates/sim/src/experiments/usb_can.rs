//! Section 6.2: a USB-CAN device with five channels and a small buffer, one endpoint each way, and one processor on
//! which its driver, tasks that read and write, and CPU-bound tasks run (Tables 7 to 9, Figures 12 to 16).
//!
//! What the paper leaves open is chosen so. Costs are those of [`ProcessingCosts`]. On Linux a bottom half falls behind
//! only where another device has much to do at once: its *storms* are of that device, at random. The paper says nothing
//! of them. All four numbers of [`STORMS`] were chosen so that Linux's rows of Table 9 come near; [`super::storms`]
//! shows what the rows owe to each. On Quest the same storms have an I/O VCPU of their own.

use farbus_realtime::pipe::fill_ns;
use farbus_realtime::vcpu::{VcpuLoad, VcpuOverload, VcpuReserve, admit};

use crate::can::{CHANNELS, CanIdentifierFormat, CanTraffic, MESSAGE_BYTES, SimulatedCanDevice};
use crate::processor::{LinuxSchedulerSettings, SimulatedProcessor, TaskId, TaskRole};
use crate::random::SimulationRng;

/// Bursts of work of another device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterruptStorms {
    /// The shortest, in nanoseconds of its bottom half.
    pub least_ns: u64,
    /// The longest: with the whole processor it ends before the buffer of the USB-CAN device is full.
    pub most_ns: u64,
    /// The shortest pause after each.
    pub pause_ns: u64,
    /// The mean additional pause.
    pub mean_ns: u64,
}

/// The storms of Linux's rows of Table 9: all four numbers are chosen, none is measured.
pub const STORMS: InterruptStorms =
    InterruptStorms { least_ns: 3_000_000, most_ns: 6_000_000, pause_ns: 20_000_000, mean_ns: 80_000_000 };

const SECOND_NS: u64 = 1_000_000_000;
const MICROFRAME_NS: u64 = 125_000;
/// Messages of a pipe's buffer (section 6.2.2).
const PIPE_MESSAGES: usize = 128;
/// Messages of one transfer to the device.
const OUT_MESSAGES: usize = 16;

/// The simulated kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimulatedKernel {
    /// Quest: bottom halves run on I/O VCPUs, which have a budget and a period.
    Quest,
    /// Linux: bottom halves are soft interrupts, whose time is charged to no task.
    Linux,
}

/// The users of the channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelUsers {
    /// None: the channels are closed.
    None,
    /// A task per channel, without a reserve.
    Ordinary,
    /// A tuned pipe per channel: 2 ms each time that its buffer of 128 messages could be full.
    Pipes,
}

/// One run of the experiment: the kernel, the tasks and the traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsbCanScenario {
    /// The kernel whose scheduler is simulated.
    pub kernel: SimulatedKernel,
    /// How long, in seconds.
    pub seconds: u64,
    /// CPU-bound tasks, each with 1 ms in 7.
    pub cpu_bound: usize,
    /// The users of the channels.
    pub users: ChannelUsers,
    /// The traffic of each of the device's channels, CAN1 first.
    pub traffic: [CanTraffic; CHANNELS],
    /// The other device's bursts.
    pub storms: InterruptStorms,
}

/// Processor times, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessingCosts {
    /// The top half of an interrupt.
    pub top_half: u64,
    /// The bottom half at the end of a transfer.
    pub bottom_half: u64,
    /// The receiving thread, per run.
    pub receive: u64,
    /// The receiving thread, per message. With the 31 us that a 2 ms budget leaves for each message of a full buffer,
    /// the paper's reserve would not carry its own traffic: 6,000 messages a second would take 186 ms of the 143.
    pub receive_message: u64,
    /// A reading or writing task, per message: 128 take just below 2 ms.
    pub user_message: u64,
}

/// Assumed, except the last: the paper states the time of 128 messages.
pub const COSTS: ProcessingCosts = ProcessingCosts {
    top_half: 1_000,
    bottom_half: 10_000,
    receive: 10_000,
    receive_message: 5_000,
    user_message: 15_000,
};

/// The receiving thread, and CPU-bound tasks (section 6.2.1).
const RECEIVER: VcpuReserve = VcpuReserve { budget_ns: 2_000_000, period_ns: 14_000_000 };
const CPU_BOUND: VcpuReserve = VcpuReserve { budget_ns: 1_000_000, period_ns: 7_000_000 };
/// The I/O VCPU of the USB controller has 1 %; the other device's has what Equation 1 leaves.
const USB_PPM: u32 = 10_000;
const OTHER_PPM: u32 = 1_000;
/// The period of the task that the other device works for: longer than any other here.
const OTHER_PERIOD_NS: u64 = 1_000_000_000;

const USB: TaskId = 0;
const STORM: TaskId = 1;
const RX: TaskId = 2;
const FIRST_CPU_BOUND: TaskId = 3;

/// What one run counted.
#[derive(Clone, Debug, PartialEq)]
pub struct UsbCanResults {
    /// Messages that the device overwrote. The paper does not say what it counts; if it counts messages, its Table 9
    /// agrees with the losses of its Figure 13.
    pub overruns: u64,
    /// Frames a second that each channel's task read, or its unit received, without the first second.
    pub frames: [Vec<u64>; CHANNELS],
    /// How far the counters of CPU-bound tasks, one step each 10 us, are ahead of (above 0) or behind what budget and
    /// period give them; the mean.
    pub counter_error: f64,
    /// The result of Equation 1 for the processor.
    pub load: Result<VcpuLoad, VcpuOverload>,
}

/// The traffic of Table 7: frames at random intervals, CAN1 first.
pub fn table_7() -> [CanTraffic; CHANNELS] {
    use CanIdentifierFormat::{Extended, Standard};
    let shares = [
        (500_000, 10, Standard),
        (250_000, 20, Extended),
        (500_000, 30, Standard),
        (500_000, 40, Extended),
        (500_000, 69, Standard),
    ];
    shares.map(|(bits_per_s, percent, format)| CanTraffic::share(bits_per_s, percent, format))
}

/// Figures 13 and 14: CAN4 and CAN5 are Arduinos, a frame each 363.4 to 366.2 us.
pub fn input() -> [CanTraffic; CHANNELS] {
    let arduino = CanTraffic::In { least_ns: 363_400, most_ns: 366_200 };
    let [can1, can2, can3, ..] = table_7();
    [can1, can2, can3, arduino, arduino]
}

/// Figures 15 and 16: CAN4 and CAN5 take a frame each 325.4 to 327.5 us.
pub fn output() -> [CanTraffic; CHANNELS] {
    let arduino = CanTraffic::Out { least_ns: 325_400, most_ns: 327_500 };
    let [can1, can2, can3, ..] = table_7();
    [can1, can2, can3, arduino, arduino]
}

/// Runs a scenario. The same seed has the same frames and bursts on both kernels.
pub fn run(setting: &UsbCanScenario, seed: u64) -> UsbCanResults {
    let mut world = UsbCanSimulation::new(setting, seed);
    world.play();
    let expected_ns = setting.seconds * SECOND_NS / CPU_BOUND.period_ns * CPU_BOUND.budget_ns;
    let ran = (0..setting.cpu_bound).map(|task| world.processor.ran_ns(FIRST_CPU_BOUND + task) as f64);
    let steps_ahead = ran.map(|ran_ns| (ran_ns - expected_ns as f64) / 10_000.0).sum::<f64>();
    let mut frames = world.frames;
    for seconds in &mut frames {
        seconds.truncate(setting.seconds as usize);
        seconds.drain(..seconds.len().min(1));
    }
    UsbCanResults {
        overruns: world.device.overruns().iter().sum(),
        frames,
        counter_error: steps_ahead / setting.cpu_bound.max(1) as f64,
        load: world.load,
    }
}

/// A channel's pipe and the task at its end.
#[derive(Clone, Copy, Debug, Default)]
struct ChannelPipe {
    /// Messages in its buffer.
    buffered: usize,
    /// Messages that its task is processing.
    in_hand: usize,
    /// Messages of the transfer that is under way to the device.
    leaving: usize,
    /// The driver has not learned of the end of that transfer.
    is_busy: bool,
    /// When its unit sends or receives its next frame.
    next_ns: u64,
}

struct UsbCanSimulation {
    setting: UsbCanScenario,
    processor: SimulatedProcessor,
    device: SimulatedCanDevice,
    random: SimulationRng,
    storms: SimulationRng,
    pipes: [ChannelPipe; CHANNELS],
    frames: [Vec<u64>; CHANNELS],
    load: Result<VcpuLoad, VcpuOverload>,
    /// A transfer from the device is under way.
    is_reading: bool,
    /// Messages that were read and that the bottom half has not processed.
    moved: [u64; CHANNELS],
    /// Messages that the receiver has not processed.
    arrived: [u64; CHANNELS],
    /// Messages that the receiver is processing.
    received: [u64; CHANNELS],
    /// When the bus moves data next.
    bus_ns: u64,
    storm_ns: u64,
}

impl UsbCanSimulation {
    fn new(setting: &UsbCanScenario, seed: u64) -> Self {
        let mut mains = vec![RECEIVER];
        mains.extend(std::iter::repeat_n(CPU_BOUND, setting.cpu_bound));
        let bottom_half = |utilization_ppm, period_ns| TaskRole::BottomHalf { utilization_ppm, period_ns };
        let mut roles = vec![bottom_half(USB_PPM, RECEIVER.period_ns), bottom_half(OTHER_PPM, OTHER_PERIOD_NS)];
        if setting.users == ChannelUsers::None {
            // The channels are closed, so there is nothing to receive.
            mains.remove(0);
            roles.push(TaskRole::Ordinary);
        }
        if setting.users == ChannelUsers::Pipes {
            mains.extend(setting.traffic.iter().map(pipe_reserve));
        }
        roles.extend(mains.iter().map(|&reserve| TaskRole::Reserved(reserve)));
        if setting.users == ChannelUsers::Ordinary {
            roles.extend([TaskRole::Ordinary; CHANNELS]);
        }
        let processor = match setting.kernel {
            SimulatedKernel::Quest => SimulatedProcessor::quest(&roles),
            SimulatedKernel::Linux => SimulatedProcessor::linux(&roles, LinuxSchedulerSettings::default()),
        };
        let mut random = SimulationRng::new(seed);
        let mut storms = SimulationRng::new(random.bits());
        let outlets = setting.traffic.iter().filter(|traffic| !traffic.is_in()).count();
        let is_open = setting.users != ChannelUsers::None;
        let first_ns = |traffic: &CanTraffic| if is_open { traffic.frame_ns(&mut random) } else { u64::MAX };
        let pipes =
            setting.traffic.each_ref().map(first_ns).map(|next_ns| ChannelPipe { next_ns, ..ChannelPipe::default() });
        Self {
            setting: *setting,
            processor,
            device: SimulatedCanDevice::new(outlets),
            random,
            storm_ns: storms.wait_ns(setting.storms.mean_ns),
            storms,
            pipes,
            frames: [const { Vec::new() }; CHANNELS],
            load: admit(&mains, &[USB_PPM, OTHER_PPM]),
            is_reading: is_open,
            moved: [0; CHANNELS],
            arrived: [0; CHANNELS],
            received: [0; CHANNELS],
            bus_ns: u64::MAX,
        }
    }

    fn play(&mut self) {
        for task in 0..self.setting.cpu_bound {
            self.processor.give(FIRST_CPU_BOUND + task, u64::MAX / 2);
        }
        if self.setting.users != ChannelUsers::None {
            (0..CHANNELS).for_each(|channel| self.engage(channel));
        }
        let end_ns = self.setting.seconds * SECOND_NS;
        while self.processor.now_ns() < end_ns {
            let frame_ns = self.pipes.iter().map(|pipe| pipe.next_ns).min().unwrap_or(u64::MAX);
            let next_ns = frame_ns.min(self.bus_ns).min(self.storm_ns).min(end_ns);
            while let Some(task) = self.processor.run(next_ns) {
                self.finished(task);
                if self.bus_ns < next_ns {
                    break;
                }
            }
            let now_ns = self.processor.now_ns();
            if self.storm_ns <= now_ns {
                self.processor.interrupt(COSTS.top_half);
                let InterruptStorms { least_ns, most_ns, pause_ns, mean_ns } = self.setting.storms;
                self.processor.give(STORM, self.storms.between(least_ns, most_ns));
                self.storm_ns = now_ns + pause_ns + self.storms.wait_ns(mean_ns);
            }
            for channel in 0..CHANNELS {
                while self.pipes[channel].next_ns <= now_ns {
                    self.unit_acts(channel);
                }
            }
            if self.bus_ns <= now_ns {
                self.bus_acts();
            }
        }
    }

    /// Its unit sends a frame, or has finished one.
    fn unit_acts(&mut self, channel: usize) {
        let (traffic, at_ns) = (self.setting.traffic[channel], self.pipes[channel].next_ns);
        if traffic.is_in() {
            self.device.receive(channel);
        } else if self.device.send(channel) {
            self.count(channel, at_ns, 1);
        }
        self.pipes[channel].next_ns = at_ns + traffic.frame_ns(&mut self.random);
        self.look_at_the_bus();
    }

    /// Data is to be moved: at the end of the next microframe it is.
    fn look_at_the_bus(&mut self) {
        let has_more =
            (self.is_reading && self.device.has_received()) || self.pipes.iter().any(|pipe| pipe.leaving > 0);
        if self.bus_ns == u64::MAX && has_more {
            self.bus_ns = (self.processor.now_ns() / MICROFRAME_NS + 2) * MICROFRAME_NS;
        }
    }

    fn bus_acts(&mut self) {
        self.bus_ns = u64::MAX;
        let mut has_ended = false;
        if self.is_reading && self.device.has_received() {
            // A short packet ends the transfer.
            self.moved = self.device.read();
            self.is_reading = false;
            has_ended = true;
        }
        for channel in 0..CHANNELS {
            let pipe = &mut self.pipes[channel];
            if pipe.leaving > 0 {
                pipe.leaving -= self.device.write(channel, pipe.leaving);
                has_ended |= pipe.leaving == 0;
            }
        }
        if has_ended {
            self.processor.interrupt(COSTS.top_half);
            if self.processor.jobs(USB) == 0 {
                self.processor.give(USB, COSTS.bottom_half);
            }
        }
        self.look_at_the_bus();
    }

    fn finished(&mut self, task: TaskId) {
        match task {
            USB => self.bottom_half_ends(),
            STORM => {}
            RX => self.receiver_ends(),
            _ => {
                let channel = task - FIRST_CPU_BOUND - self.setting.cpu_bound;
                self.user_ends(channel);
            }
        }
    }

    fn bottom_half_ends(&mut self) {
        for (arrived, count) in self.arrived.iter_mut().zip(std::mem::take(&mut self.moved)) {
            *arrived += count;
        }
        self.pipes.iter_mut().for_each(|pipe| pipe.is_busy &= pipe.leaving > 0);
        self.wake_receiver();
    }

    fn wake_receiver(&mut self) {
        if self.processor.jobs(RX) > 0 {
            return;
        }
        self.received = std::mem::take(&mut self.arrived);
        let out = |pipe: &ChannelPipe| if !pipe.is_busy { pipe.buffered.min(OUT_MESSAGES) } else { 0 };
        let outlets = self.setting.traffic.iter().zip(&self.pipes).filter(|(traffic, _)| !traffic.is_in());
        let leaving: usize = outlets.map(|(_, pipe)| out(pipe)).sum();
        let messages = self.received.iter().sum::<u64>() + leaving as u64;
        self.processor.give(RX, COSTS.receive + COSTS.receive_message * messages);
    }

    /// Received messages are in the pipes, messages to be sent are under way, and the next transfer from the device is
    /// requested.
    fn receiver_ends(&mut self) {
        for channel in 0..CHANNELS {
            let pipe = &mut self.pipes[channel];
            if self.setting.traffic[channel].is_in() {
                pipe.buffered += self.received[channel] as usize;
            } else if !pipe.is_busy {
                pipe.leaving = pipe.buffered.min(OUT_MESSAGES);
                pipe.buffered -= pipe.leaving;
                pipe.is_busy = pipe.leaving > 0;
            }
            self.engage(channel);
        }
        let received = std::mem::take(&mut self.received);
        self.is_reading |= received.iter().sum::<u64>() > 0;
        if self.arrived.iter().sum::<u64>() > 0 {
            self.wake_receiver();
        }
        self.look_at_the_bus();
    }

    /// Gives the task of a channel work, if there is any.
    fn engage(&mut self, channel: usize) {
        let task = FIRST_CPU_BOUND + self.setting.cpu_bound + channel;
        if self.processor.jobs(task) > 0 {
            return;
        }
        let pipe = &mut self.pipes[channel];
        pipe.in_hand = if self.setting.traffic[channel].is_in() {
            std::mem::take(&mut pipe.buffered)
        } else {
            (PIPE_MESSAGES - pipe.buffered).min(OUT_MESSAGES)
        };
        if pipe.in_hand > 0 {
            self.processor.give(task, COSTS.user_message * pipe.in_hand as u64);
        }
    }

    fn user_ends(&mut self, channel: usize) {
        let in_hand = std::mem::take(&mut self.pipes[channel].in_hand);
        if self.setting.traffic[channel].is_in() {
            self.count(channel, self.processor.now_ns(), in_hand as u64);
        } else {
            self.pipes[channel].buffered += in_hand;
            // An idle endpoint is started again.
            if !self.pipes[channel].is_busy {
                self.wake_receiver();
            }
        }
        self.engage(channel);
    }

    fn count(&mut self, channel: usize, at_ns: u64, frames: u64) {
        let (second, seconds) = ((at_ns / SECOND_NS) as usize, &mut self.frames[channel]);
        if seconds.len() <= second {
            seconds.resize(second + 1, 0);
        }
        seconds[second] += frames;
    }
}

/// Budget and period by Little's law, from the channel's highest rate.
fn pipe_reserve(traffic: &CanTraffic) -> VcpuReserve {
    let buffer_bytes = (PIPE_MESSAGES * MESSAGE_BYTES) as u64;
    let bits_per_s = traffic.frames_per_s() * 8 * MESSAGE_BYTES as u64;
    VcpuReserve { budget_ns: 2_000_000, period_ns: fill_ns(buffer_bytes, bits_per_s, SECOND_NS) }
}
