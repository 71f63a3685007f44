//! Coordinates a pipe with the other processes of this host that promise processor time: it asks them before it
//! promises any, and shows its pipes in `farbus status`.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use farbus::broker::SystemAccess;
use farbus::common::processor_leases::{ProcessorLeases, ProcessorLedger};
use farbus_control::pipe::PipeStatus;
use farbus_control::process::ProcessStatus;
use farbus_io_net::local::control_socket::{Answer, Question};
use farbus_io_net::local::passed_files::PassedFiles;
use farbus_pipe::{Pipe, ProcessorAdmission};
use farbus_realtime::vcpu::{VcpuOverload, VcpuReserve};
use farbus_session::reserve::HostProcessors;

/// All processes of this host that promise processor time, this one included.
#[derive(Clone)]
pub struct HostPipes(Arc<HostPipesInner>);

struct HostPipesInner {
    owner: String,
    system: SystemAccess,
    state: Mutex<HostPipesState>,
    /// What this process has promised, and which processes asked it.
    books: Arc<Mutex<HostProcessors>>,
}

#[derive(Default)]
struct HostPipesState {
    all: Vec<VcpuReserve>,
    /// The other processes count our promises for as long as this is open.
    lease: Option<UnixStream>,
    /// The processes that know what this one promised.
    greeted: BTreeSet<u32>,
}

impl HostPipes {
    /// Without any promises.
    pub fn new(system: SystemAccess) -> Self {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let books = Arc::new(Mutex::new(HostProcessors::new(processors)));
        Self(Arc::new(HostPipesInner { owner: owner(), system, state: Mutex::default(), books }))
    }

    /// Tells processes that began to promise time after this one what this one has promised. Returns the objections of
    /// those that have not as much left.
    pub fn greet(&self) -> Vec<String> {
        let mut state = self.state();
        let Some(all) = Some(state.all.clone()).filter(|all| !all.is_empty()) else { return Vec::new() };
        let running = self.others();
        state.greeted.retain(|pid| running.contains(pid));
        let new: Vec<u32> = running.difference(&state.greeted).copied().collect();
        if new.is_empty() {
            return Vec::new();
        }
        // All processes hold copies of the same descriptor: a new lease must be given to all.
        match self.tell(&running, &all) {
            Ok((lease, refused)) => {
                (state.lease, state.greeted) = (Some(lease), running);
                refused.into_iter().filter(|(pid, _)| new.contains(pid)).map(|(pid, why)| in_words(pid, &why)).collect()
            }
            Err(why) => vec![why],
        }
    }

    fn state(&self) -> MutexGuard<'_, HostPipesState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells these processes. Returns the other end of what they now hold, and which of them refused.
    fn tell(&self, whom: &BTreeSet<u32>, all: &[VcpuReserve]) -> Result<(UnixStream, Vec<(u32, String)>), String> {
        let (ours, theirs) = UnixStream::pair().map_err(|error| error.to_string())?;
        let reserves = all.iter().map(|reserve| (reserve.budget_ns, reserve.period_ns)).collect();
        let refused = self.0.system.promise(&self.0.owner, whom, reserves, theirs.as_fd());
        Ok((ours, refused.map_err(|error| error.to_string())?))
    }

    /// All such processes except this one.
    fn others(&self) -> BTreeSet<u32> {
        let mut running = self.0.system.running().unwrap_or_default();
        running.remove(&std::process::id());
        running
    }
}

/// The name under which the pipes of this process are promised time.
pub fn owner() -> String {
    format!("pipe {}", std::process::id())
}

fn in_words(pid: u32, why: &str) -> String {
    format!("process {pid}: {why}")
}

impl ProcessorAdmission for HostPipes {
    fn admit(&self, all: &[VcpuReserve]) -> Result<(), String> {
        let mut state = self.state();
        let ours = |overload: VcpuOverload| format!("beside the pipes of others: {overload}");
        self.0.books.enter(&self.0.owner, all).map_err(ours)?;
        let running = self.others();
        let (lease, refused) = self.tell(&running, all)?;
        let Some((pid, why)) = refused.first() else {
            (state.all, state.lease, state.greeted) = (all.to_vec(), Some(lease), running);
            return Ok(());
        };
        // Processes that accepted the new promise get the old one back; they had it a moment ago.
        let before = state.all.clone();
        let _ = self.0.books.enter(&self.0.owner, &before);
        state.lease = self.tell(&running, &before).ok().map(|(lease, _)| lease);
        Err(in_words(*pid, why))
    }
}

/// Running pipes, as other processes see them.
pub struct PipeStatusSource<A> {
    /// The device's name.
    pub name: String,
    /// The device's host.
    pub host: String,
    since: Instant,
    pipes: Mutex<Vec<Pipe<A>>>,
    promises: ProcessorLeases,
    is_over: Arc<AtomicBool>,
}

impl<A: Send + 'static> PipeStatusSource<A> {
    /// Shows these pipes until `is_over`.
    pub fn new(name: String, host: String, host_pipes: &HostPipes, is_over: Arc<AtomicBool>) -> Self {
        let promises = ProcessorLeases::new(Arc::clone(&host_pipes.0.books));
        Self { name, host, since: Instant::now(), pipes: Mutex::default(), promises, is_over }
    }

    /// Locks the running pipes; others that ask for their status wait meanwhile.
    pub fn pipes(&self) -> MutexGuard<'_, Vec<Pipe<A>>> {
        self.pipes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers the owner, and processes that ask for processor time.
    pub fn answer(&self, question: Question, files: &PassedFiles) -> Answer {
        match question {
            Question::Status => self.status(),
            Question::Detach { device, .. } if device.as_deref().is_none_or(|wanted| wanted == self.name) => {
                self.is_over.store(true, Ordering::Relaxed);
                Answer::Ok(serde_json::Value::Null)
            }
            Question::Promise { owner, reserves } => match files.take() {
                Ok([lease]) => self.promises.keep(&owner, &reserves, lease),
                Err(error) => Answer::Refused(error.to_string()),
            },
            _ => Answer::Unknown,
        }
    }

    fn status(&self) -> Answer {
        let status = |pipe: &Pipe<A>| {
            let pipe = pipe.report();
            let title = format!("tuned pipe, channel {} {}", pipe.channel, pipe.direction);
            let (name, user, used_s) = (self.name.clone(), self.host.clone(), self.since.elapsed().as_secs_f64());
            let state = match (pipe.is_kept(), pipe.fewer_per_s()) {
                (false, _) => "not kept",
                (true, Some(_)) => "not tried",
                (true, None) => "kept",
            };
            PipeStatus { name, title, state: state.into(), user, used_s, pipe }.into()
        };
        let devices = self.pipes().iter().map(status).collect();
        Answer::of(&ProcessStatus::new(std::process::id(), "pipe", self.host.clone(), devices))
    }
}
