//! A device at the end of a simulated path: requests and answers take time, with jitter, and the device's clock drifts.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use farbus_model::{
    BufferPool, CompletionQueue, ConfigurationSelection, DescriptorSet, Device, Instant, NamedCounters, UrbCompletion,
    UrbId, UrbInFlight, UsbSpeed,
};

use crate::random::Random;

/// The properties of a path.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// Least delay in one direction.
    pub delay: Duration,
    /// Largest additional delay; later data waits behind earlier data.
    pub jitter: Duration,
    /// How much faster the device's clock is than ours, ppm.
    pub drift_ppm: i64,
}

pub struct Distant<D> {
    device: D,
    way: Way,
    random: Random,
    there: VecDeque<(Instant, DistantCommand)>,
    back: VecDeque<(Instant, UrbCompletion)>,
    /// When the device got each open request.
    had: BTreeMap<UrbId, Instant>,
    /// Until then the path is cut.
    cut_until: Instant,
    done: CompletionQueue,
}

enum DistantCommand {
    Submit(Box<UrbInFlight>),
    Cancel(UrbId),
}

impl<D: Device> Distant<D> {
    pub fn new(device: D, way: Way, seed: u64) -> Self {
        let done = CompletionQueue::new(BufferPool::new(1 << 20));
        let (there, back) = (VecDeque::new(), VecDeque::new());
        Self {
            device,
            way,
            random: Random::new(seed),
            there,
            back,
            had: BTreeMap::new(),
            cut_until: Instant::ZERO,
            done,
        }
    }

    /// Cuts the path until this moment.
    pub fn cut_until(&mut self, until: Instant) {
        self.cut_until = until;
        self.there.iter_mut().for_each(|(at, _)| *at = (*at).max(until));
        self.back.iter_mut().for_each(|(at, _)| *at = (*at).max(until));
    }

    /// Number of open requests.
    pub fn holds(&self) -> usize {
        self.there.len() + self.back.len()
    }

    fn arrives(&mut self, now: Instant, last: Option<Instant>) -> Instant {
        let jitter = self.way.jitter.as_nanos() as u64;
        let more = if jitter == 0 { 0 } else { self.random.below(jitter) };
        (now + self.way.delay + Duration::from_nanos(more)).max(last.unwrap_or_default()).max(self.cut_until)
    }

    fn send(&mut self, now: Instant, command: DistantCommand) {
        let at = self.arrives(now, self.there.back().map(|(at, _)| *at));
        self.there.push_back((at, command));
    }

    /// The device's time at a moment of ours.
    fn its_time(&self, now: Instant) -> Instant {
        let ns = i128::from(now.as_nanos());
        Instant::from_nanos((ns + ns * i128::from(self.way.drift_ppm) / 1_000_000) as u64)
    }

    /// Our time at a moment of the device's clock.
    fn our_time(&self, its: Instant) -> Instant {
        let ns = i128::from(its.as_nanos()) * 1_000_000 / (1_000_000 + i128::from(self.way.drift_ppm));
        let mut ours = Instant::from_nanos(ns as u64);
        while self.its_time(ours) < its {
            ours = ours + Duration::from_nanos(1);
        }
        ours
    }
}

impl<D: Device> Device for Distant<D> {
    fn descriptors(&self) -> &DescriptorSet {
        self.device.descriptors()
    }

    fn speed(&self) -> UsbSpeed {
        self.device.speed()
    }

    fn selection(&self) -> &ConfigurationSelection {
        self.device.selection()
    }

    fn submit(&mut self, now: Instant, mut urb: UrbInFlight, _done: &mut CompletionQueue) {
        urb.own_payload();
        self.send(now, DistantCommand::Submit(Box::new(urb)));
    }

    fn cancel(&mut self, now: Instant, id: UrbId, _done: &mut CompletionQueue) {
        self.send(now, DistantCommand::Cancel(id));
    }

    fn reset(&mut self, now: Instant, done: &mut CompletionQueue) {
        for (_, command) in self.there.drain(..) {
            if let DistantCommand::Submit(urb) = command {
                done.push(urb.fail(farbus_model::UrbStatus::Shutdown));
            }
        }
        self.device.reset(now, done);
        self.back.drain(..).for_each(|(_, answer)| done.push(answer));
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let device = self.device.poll_timeout().map(|at| self.our_time(at));
        let there = self.there.front().map(|(at, _)| *at);
        let back = self.back.front().map(|(at, _)| *at);
        [device, there, back].into_iter().flatten().min()
    }

    fn handle_timeout(&mut self, now: Instant, done: &mut CompletionQueue) {
        let its = self.its_time(now);
        while self.there.front().is_some_and(|(at, _)| *at <= now) {
            match self.there.pop_front().expect("looked at just now").1 {
                DistantCommand::Submit(urb) => {
                    self.had.insert(urb.id, now);
                    self.device.submit(its, *urb, &mut self.done);
                }
                DistantCommand::Cancel(id) => self.device.cancel(its, id, &mut self.done),
            }
        }
        if self.device.poll_timeout().is_some_and(|at| at <= its) {
            self.device.handle_timeout(its, &mut self.done);
        }
        while let Some(mut answer) = self.done.pop() {
            answer.residence = self.had.remove(&answer.id).map(|at| now - at);
            let at = self.arrives(now, self.back.back().map(|(at, _)| *at));
            self.back.push_back((at, answer));
        }
        while self.back.front().is_some_and(|(at, _)| *at <= now) {
            done.push(self.back.pop_front().expect("looked at just now").1);
        }
    }

    fn tally(&self) -> Option<NamedCounters> {
        self.device.tally()
    }
}
