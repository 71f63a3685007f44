//! Asks all processes of this user what they have, at most twice a second however many look, and keeps what is known of
//! other hosts.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use farbus_control::process::{ProcessDevice, ProcessStatus, devices_of};
use farbus_control::swap::SwapStatus;
use farbus_io_net::local::control_socket::{Answer, Question, ask_all, ask_one};
use farbus_io_net::local::happenings::ProcessEventCursors;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::api::journal::{EventJournal, JournalEventKind};
use crate::api::operations::OperationRegistry;
use crate::known::lab::LabInventory;
use crate::known::status::{ProcessStatuses, RunningSwap};
use crate::line::messages::StatusExtent;
use crate::rights::lab::LabGatherer;
use crate::rights::locking::lock;

/// How often the processes are asked while somebody looks. An answer that is younger than this is given again.
const ASK_EVERY: Duration = Duration::from_millis(500);

/// For how long after somebody has looked at other hosts these are asked.
const LAB_WANTED: Duration = Duration::from_secs(3);
/// How old what hosts answered may be for somebody who waits for that, seconds, and how long is waited.
const ANSWERED_S_MAX: u64 = 90;
const ANSWERED_WAIT_MAX: Duration = Duration::from_secs(12);

/// Swaps whose progress is asked for at a time.
const SWAPS_MAX: usize = 16;

/// What was answered, and when.
#[derive(Clone, Debug, Default)]
pub struct PolledStatus {
    /// When the processes were asked; `None` if they have not been.
    at: Option<Instant>,
    /// What they said.
    pub statuses: ProcessStatuses,
    /// When other hosts were thought of; `None` if they were not.
    lab_at: Option<Instant>,
    /// What is known of them.
    pub lab: Arc<LabInventory>,
}

/// Asks on a thread of its own, and only while somebody wants to know.
#[derive(Clone, Debug)]
pub struct StatusPoller {
    polled: watch::Sender<Arc<PolledStatus>>,
    demand: SyncSender<()>,
    journal: EventJournal,
    /// When somebody looked at other hosts last.
    lab_wanted: Arc<Mutex<Option<Instant>>>,
}

impl StatusPoller {
    /// Starts the thread, which publishes changes in the journal while somebody follows that, and adds what is drawn of
    /// the operations. It ends with the last `StatusPoller`.
    ///
    /// # Errors
    /// There can be no further thread.
    pub fn start(journal: EventJournal, operations: OperationRegistry) -> io::Result<Self> {
        let (polled, _) = watch::channel(Arc::<PolledStatus>::default());
        let (demand, demanded) = sync_channel(1);
        let to = polled.clone();
        let for_thread = journal.clone();
        let lab_wanted = Arc::<Mutex<Option<Instant>>>::default();
        let mut others = LabPoller { gatherer: LabGatherer::start()?, wanted: Arc::clone(&lab_wanted) };
        let ask = move || keep_asking(&to, &demanded, &for_thread, &operations, &mut others);
        thread::Builder::new().name("page-status".into()).spawn(ask)?;
        Ok(Self { polled, demand, journal, lab_wanted })
    }

    /// Follows what they say from now on: they are asked until the receiver is dropped.
    pub fn follow(&self) -> watch::Receiver<Arc<PolledStatus>> {
        let followed = self.polled.subscribe();
        // If it is full, the thread is about to ask.
        let _ = self.demand.try_send(());
        followed
    }

    /// Somebody looks at other hosts, too.
    pub fn want_lab(&self) {
        *lock(&self.lab_wanted) = Some(Instant::now());
    }

    /// What they said at most half a second ago and after the last operation, with what is wanted of other hosts;
    /// `None` if the thread has ended.
    pub async fn fresh(&self, wanted: StatusExtent) -> Option<Arc<PolledStatus>> {
        match wanted {
            StatusExtent::Processes => self.fresh_that(|_| true).await,
            StatusExtent::Lab => self.fresh_with_lab().await,
            StatusExtent::Answered => {
                let is_answered = |polled: &PolledStatus| {
                    self.want_lab();
                    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
                    polled.lab.looked_s.is_some_and(|looked_s| looked_s + ANSWERED_S_MAX >= now)
                };
                // A host that does not answer is said to be silent, and is not waited for longer.
                match timeout(ANSWERED_WAIT_MAX, self.fresh_that(is_answered)).await {
                    Ok(status) => status,
                    Err(_) => self.fresh_with_lab().await,
                }
            }
        }
    }

    async fn fresh_with_lab(&self) -> Option<Arc<PolledStatus>> {
        self.want_lab();
        let since = Instant::now().checked_sub(ASK_EVERY);
        self.fresh_that(|polled| polled.lab_at.is_some() && polled.lab_at >= since).await
    }

    async fn fresh_that(&self, is_enough: impl Fn(&PolledStatus) -> bool) -> Option<Arc<PolledStatus>> {
        let since = Instant::now().checked_sub(ASK_EVERY).max(self.journal.last_operation());
        let is_fresh = |polled: &Arc<PolledStatus>| polled.at.is_some() && polled.at >= since && is_enough(polled);
        if is_fresh(&self.polled.borrow()) {
            return Some(Arc::clone(&self.polled.borrow()));
        }
        let mut followed = self.follow();
        followed.wait_for(is_fresh).await.ok().map(|polled| Arc::clone(&polled))
    }
}

/// What is known of other hosts.
struct LabPoller {
    gatherer: LabGatherer,
    wanted: Arc<Mutex<Option<Instant>>>,
}

fn keep_asking(
    polled: &watch::Sender<Arc<PolledStatus>>,
    demanded: &Receiver<()>,
    journal: &EventJournal,
    operations: &OperationRegistry,
    others: &mut LabPoller,
) {
    let began = Instant::now();
    let mut lab_at = None;
    let (mut happenings, mut mark) = (ProcessEventCursors::default(), None);
    for version in 1.. {
        let demand = match polled.receiver_count() {
            0 => demanded.recv().map_err(|_| RecvTimeoutError::Disconnected),
            _ => demanded.recv_timeout(ASK_EVERY),
        };
        if demand == Err(RecvTimeoutError::Disconnected) {
            return;
        }
        let at = Instant::now();
        let asked_us = u64::try_from(at.duration_since(began).as_micros()).unwrap_or(u64::MAX);
        let statuses = ProcessStatuses { version, asked_us, operations: operations.drawn(), ..ask() };
        let is_wanted = lock(&others.wanted).is_some_and(|wanted| wanted.elapsed() < LAB_WANTED);
        let lab = match is_wanted {
            true => {
                lab_at = Some(at);
                let is_done = journal.last_operation().is_some_and(|last| last.elapsed() < LAB_WANTED);
                others.gatherer.update(&statuses.processes, is_done)
            }
            false => Arc::clone(others.gatherer.lab()),
        };
        if journal.is_followed() {
            publish(journal, (&statuses, lab.mark), &mut happenings, &mut mark);
        }
        polled.send_replace(Arc::new(PolledStatus { at: Some(at), statuses, lab_at, lab }));
    }
}

/// What the processes say now.
fn ask() -> ProcessStatuses {
    match ask_all(&Question::Status) {
        Ok(answers) => {
            let count = answers.len();
            let status_in =
                |(_, answer)| if let Answer::Ok(value) = answer { serde_json::from_value(value).ok() } else { None };
            let processes: Vec<ProcessStatus> = answers.into_iter().filter_map(status_in).collect();
            let swaps = swaps(&processes);
            ProcessStatuses { silent: count - processes.len(), processes, swaps, ..ProcessStatuses::default() }
        }
        Err(error) => ProcessStatuses { failure: Some(error.to_string()), ..ProcessStatuses::default() },
    }
}

/// How far the swaps are that run now.
fn swaps(processes: &[ProcessStatus]) -> Vec<RunningSwap> {
    // Only a process of an earlier release does not say it in its status.
    let is_swapping = |(_, device): &(&ProcessStatus, &ProcessDevice)| {
        device.medium().is_some_and(|medium| medium.is_swapping) && device.swap().is_none()
    };
    let swaps = devices_of(processes).filter(is_swapping).take(SWAPS_MAX).filter_map(|(process, device)| {
        let (pid, name) = (process.pid, device.name().to_owned());
        // What is attached here is asked for with its host.
        let target = if device.shared().is_some() { &name } else { device.title() };
        let Ok(Answer::Ok(answer)) = ask_one(pid, &Question::SwapStatus { device: target.to_owned() }, &[]) else {
            return None;
        };
        let progress: SwapStatus = serde_json::from_value(answer).ok()?;
        (progress.state == "running").then_some(RunningSwap { pid, name, progress })
    });
    swaps.collect()
}

/// Publishes what has happened, and that there is another status.
fn publish(
    journal: &EventJournal,
    (now, lab): (&ProcessStatuses, u64),
    happenings: &mut ProcessEventCursors,
    mark: &mut Option<u64>,
) {
    // If the folder cannot be read, the status says so.
    for (event, pid) in happenings.ask().unwrap_or_default().happened {
        let mut data = serde_json::to_value(event).unwrap_or_default();
        data["pid"] = json!(pid);
        journal.publish(JournalEventKind::Happened, &data);
    }
    let marked = Some(mark_of(now, lab));
    if *mark != marked {
        *mark = marked;
        let (processes, devices) = (now.processes.len(), devices_of(&now.processes).count());
        let data = json!({ "processes": processes, "devices": devices, "silent": now.silent, "failure": now.failure });
        journal.publish(JournalEventKind::Status, &data);
    }
}

/// A number that is another one when a process, a device, its state, its user or who waits for it is, or what is
/// known of other hosts.
fn mark_of(statuses: &ProcessStatuses, lab: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    lab.hash(&mut hasher);
    for (process, device) in devices_of(&statuses.processes) {
        (process.pid, device.name(), device.title(), device.state(), device.user()).hash(&mut hasher);
        device.waiting().iter().for_each(|waiting| waiting.host.hash(&mut hasher));
        device.failure().map(|failure| &failure.message).hash(&mut hasher);
        device.swap().map(|swap| (&swap.state, &swap.begun, &swap.phase)).hash(&mut hasher);
        device.migration().map(|migration| (&migration.state, &migration.begun)).hash(&mut hasher);
    }
    statuses.silent.hash(&mut hasher);
    statuses.failure.hash(&mut hasher);
    hasher.finish()
}
