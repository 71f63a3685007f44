//! Exchanges the medium of a shared disk, or a real device for its twin, while it is in use, and keeps the status of
//! each swap.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use farbus_control::failure::{FailureKind, FailureReport};
use farbus_control::swap::SwapStatus;
use farbus_io_linux::usb::PluggedDevice;
use farbus_io_net::link::BoottimeClock;
use farbus_io_net::local::events::{Event, EventKind, publish};
use farbus_model::Instant;
use farbus_session::block::swap::{SwapError, SwapPhase, SwapReport, SwapStep};
use farbus_session::block::{BlockExport, MediumSwap};
use tracing::{info, warn};

use crate::devices::media_journal::SwapJournalWriter;
use crate::devices::swap_run::{DONE, DiskSwapDestination, FAILED, RUNNING, SwapOrder, SwapRun, report};

/// How often a swap's status is updated and its cancellation checked.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The niceness of the thread that copies.
const NICENESS: i32 = 10;
/// How long the end of the share waits for a swap to end.
const STOP_TIME_MAX: Duration = Duration::from_secs(5);

/// The swaps of the shared devices, by bus id: the one that runs, or the last one.
#[derive(Debug, Default)]
pub struct ExportSwaps {
    runs: Mutex<BTreeMap<String, Arc<SwapRun>>>,
    /// Where the shared real devices are plugged in.
    plugs: PlugLocationMap,
}

/// Where the shared real devices are plugged in, by bus id on the wire. A twin may be plugged in elsewhere than the
/// device that it replaced.
#[derive(Clone, Debug, Default)]
pub struct PlugLocationMap(Arc<Mutex<BTreeMap<String, PlugLocation>>>);

impl PlugLocationMap {
    /// Where the device is plugged in.
    pub fn get(&self, bus_id: &str) -> Option<PlugLocation> {
        lock(&self.0).get(bus_id).cloned()
    }

    /// Forgets a device that is no longer shared.
    fn remove(&self, bus_id: &str) {
        lock(&self.0).remove(bus_id);
    }

    /// Notes where the device is plugged in now.
    pub fn put(&self, bus_id: &str, plug: PlugLocation) {
        lock(&self.0).insert(bus_id.to_owned(), plug);
    }
}

/// Where a real device is plugged in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlugLocation {
    /// The bus and the ports on the way to the device, as in `1-1.4`.
    pub bus_id: String,
    /// The number of its bus.
    pub bus: u32,
    /// The device's number on the bus. Another device at the same port has another number.
    pub number: u32,
}

impl PlugLocation {
    /// The place of a device that was found.
    pub fn of(found: &PluggedDevice) -> Self {
        Self { bus_id: found.bus_id.clone(), bus: found.bus, number: found.number }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ExportSwaps {
    /// Begins to exchange the medium of the device with this bus id. Calls `on_moved` once it is exchanged.
    ///
    /// # Errors
    /// [`FailureReport`]: nothing was written.
    pub fn begin(
        &self,
        bus_id: &str,
        export: Arc<BlockExport>,
        order: SwapOrder,
        on_moved: impl FnOnce() + Send + 'static,
    ) -> Result<(), FailureReport> {
        let SwapOrder { device, to, destination, journal, options } = order;
        let DiskSwapDestination::Medium(destination) = destination else {
            let message = format!(
                "{device} is shared here, and moves to a place of this machine: --to block:PATH\n  only a disk that is \
                 attached moves to another host's: farbus swap HOST/{device} --to HOST/DISK, where it is attached"
            );
            return Err(FailureReport::new(FailureKind::Refused, message));
        };
        let clock = BoottimeClock::start();
        let from = export.location().unwrap_or_default();
        let notes = Box::new(SwapJournalWriter::to(journal));
        let swap = MediumSwap::begin(export.switch(), Arc::new(destination), notes, options, clock.now())
            .map_err(|error| report(&error, &device, &to))?
            .timed_by(move || clock.now());
        let status = SwapStatus {
            device: device.clone(),
            from: from.clone(),
            to: to.clone(),
            state: RUNNING.to_owned(),
            phase: swap.phase().as_str().to_owned(),
            round: 1,
            total_bytes: export.switch().size_bytes(),
            left_bytes: export.switch().size_bytes(),
            ..SwapStatus::default()
        };
        let run = Arc::new(SwapRun::new(status));
        lock(&self.runs).insert(bus_id.to_owned(), Arc::clone(&run));
        info!(device, from, to, verify = options.verify, resume = options.resume, "being moved");
        publish(Event::of(EventKind::SwapBegun, device.as_str()).how(to.as_str()));
        let for_thread = Arc::clone(&run);
        let spawned = thread::Builder::new().name("swap".into()).spawn(move || {
            let result = carry_out(swap, &clock, &for_thread);
            match result {
                Ok(SwapReport { copied_bytes, rounds, took }) => {
                    let quiet_ms = for_thread.status().quiet_ms;
                    info!(device, from, to, copied_bytes, rounds, ?took, quiet_ms, "moved");
                    export.is_at(to);
                    on_moved();
                    for_thread.end(DONE, |status| (status.left_bytes, status.unverified_bytes) = (0, 0));
                }
                Err(error) => {
                    warn!(device, from, to, %error, "not moved: it stays where it was");
                    for_thread.end(FAILED, |status| status.failure = Some(report(&error, &device, &to)));
                }
            }
        });
        spawned.map(drop).map_err(|error| {
            // The swap was dropped with the closure, which cancelled it.
            lock(&self.runs).remove(bus_id);
            FailureReport::new(FailureKind::Local, format!("no thread for it: {error}"))
        })
    }

    /// Where the shared real devices are plugged in.
    pub fn plugs(&self) -> &PlugLocationMap {
        &self.plugs
    }

    /// Enters a swap, unless the device is being swapped already. Returns whether it was entered.
    pub fn enter(&self, bus_id: &str, run: &Arc<SwapRun>) -> bool {
        let mut runs = lock(&self.runs);
        let is_free = runs.get(bus_id).is_none_or(|run| run.is_over());
        if is_free {
            let status = run.status();
            publish(Event::of(EventKind::SwapBegun, status.device.as_str()).how(status.to.as_str()));
            runs.insert(bus_id.to_owned(), Arc::clone(run));
        }
        is_free
    }

    /// Removes a swap that could not begin.
    pub fn withdraw(&self, bus_id: &str) {
        lock(&self.runs).remove(bus_id);
    }

    /// The status of the running or last swap of a device.
    pub fn status(&self, bus_id: &str) -> Option<SwapStatus> {
        let run = lock(&self.runs).get(bus_id).map(Arc::clone)?;
        Some(run.status())
    }

    /// Forgets the swaps of a bus id that another device gets.
    pub fn forget(&self, bus_id: &str) {
        lock(&self.runs).remove(bus_id);
        self.plugs.remove(bus_id);
    }

    /// Cancels the swap of a device. It ends soon, unless the outcome is decided already. Returns whether a swap was
    /// running.
    pub fn cancel(&self, bus_id: &str) -> bool {
        let run = lock(&self.runs).get(bus_id).map(Arc::clone);
        run.is_some_and(|run| run.cancel())
    }

    /// Cancels all swaps and waits up to [`STOP_TIME_MAX`] for each. One that is cut off leaves the same state as a
    /// power cut.
    pub fn stop(&self) {
        let runs: Vec<_> = std::mem::take(&mut *lock(&self.runs)).into_values().collect();
        for run in &runs {
            run.cancel();
        }
        runs.iter().for_each(|run| run.wait(STOP_TIME_MAX));
    }
}

/// Copies at low priority, then switches at normal priority: until the switch, users write everything twice.
fn carry_out(swap: MediumSwap, clock: &BoottimeClock, run: &SwapRun) -> Result<SwapReport, SwapError> {
    let copied = thread::scope(|scope| {
        let copy = move || {
            // If a kernel or sandbox refuses, the thread copies at normal priority.
            let _ = rustix::process::setpriority_process(None, NICENESS);
            drive(swap, clock, run, |phase| phase == SwapPhase::Joining)
        };
        match thread::Builder::new().name("swap-copy".into()).spawn_scoped(scope, copy) {
            Ok(copying) => copying.join().unwrap_or(SwapDriveOutcome::Ended(Err(SwapError::Cancelled))),
            Err(error) => SwapDriveOutcome::Ended(Err(SwapError::Journal(format!("no thread to copy: {error}")))),
        }
    });
    match copied {
        SwapDriveOutcome::Reached(swap) => match drive(*swap, clock, run, |_| false) {
            SwapDriveOutcome::Ended(result) => result,
            SwapDriveOutcome::Reached(_) => Err(SwapError::Cancelled),
        },
        SwapDriveOutcome::Ended(result) => result,
    }
}

enum SwapDriveOutcome {
    Reached(Box<MediumSwap>),
    Ended(Result<SwapReport, SwapError>),
}

/// Runs the swap to its end, or to a phase that another thread continues.
fn drive(
    mut swap: MediumSwap,
    clock: &BoottimeClock,
    run: &SwapRun,
    is_enough: impl Fn(SwapPhase) -> bool,
) -> SwapDriveOutcome {
    let began = Instant::ZERO;
    let mut shown = began;
    loop {
        if run.is_cancelled() {
            let _ = swap.cancel();
        }
        let (before, now) = (swap.phase(), clock.now());
        let step = swap.step(now);
        let after = clock.now();
        if after - shown >= LOOK_EVERY || swap.phase() != before || matches!(step, SwapStep::Ended(_)) {
            run.show(&swap.progress(after), after - began);
            shown = after;
        }
        match step {
            SwapStep::Ended(result) => return SwapDriveOutcome::Ended(result),
            SwapStep::Again if is_enough(swap.phase()) => return SwapDriveOutcome::Reached(Box::new(swap)),
            SwapStep::Again => {}
            SwapStep::At(when) => thread::sleep((when - after).min(LOOK_EVERY)),
        }
    }
}
