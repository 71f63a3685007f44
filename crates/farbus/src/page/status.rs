//! What all processes of this user say of themselves, asked at most twice a second however many look.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::watch;

use super::api::journal::{Journal, Kind};
use super::rates::Rates;
use crate::common::control::{Answer, Question, ask_all};
use crate::common::happenings::Happenings;

/// How often the processes are asked while somebody looks. An answer that is younger than this is given again.
const ASK_EVERY: Duration = Duration::from_millis(500);

/// What was answered.
#[derive(Debug, Default)]
pub struct Status {
    /// When the processes were asked; `None` if they have not been.
    asked: Option<Instant>,
    /// The answers, as `farbus status --json` prints them.
    pub processes: Vec<Value>,
    /// How many processes gave no status.
    pub silent: usize,
    /// Why the processes cannot be found, if they cannot.
    pub failure: Option<String>,
    /// How fast data pass.
    rates: Rates,
}

impl Status {
    /// Asks the processes; `before` is what they said last.
    fn ask(before: &Self) -> Self {
        let now = Instant::now();
        let asked = Some(now);
        match ask_all(&Question::Status) {
            Ok(answers) => {
                let count = answers.len();
                let said = |(_, answer)| if let Answer::Ok(value) = answer { Some(value) } else { None };
                let processes: Vec<_> = answers.into_iter().filter_map(said).collect();
                let elapsed = before.asked.map_or(Duration::ZERO, |then| now - then);
                let rates = Rates::since(&before.rates, &processes, elapsed);
                Self { asked, silent: count - processes.len(), processes, failure: None, rates }
            }
            Err(error) => Self { asked, failure: Some(error.to_string()), ..Self::default() },
        }
    }

    /// A number that is another one when a process, a device, its state, its user or who waits for it is.
    fn mark(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for (process, device) in self.devices() {
            for of in [&process["pid"], &device["name"], &device["title"], &device["state"], &device["user"]] {
                of.as_str().hash(&mut hasher);
                of.as_u64().hash(&mut hasher);
            }
            let waiting = device["waiting"].as_array().into_iter().flatten();
            waiting.for_each(|waiting| waiting["host"].as_str().hash(&mut hasher));
            device["failure"]["message"].as_str().hash(&mut hasher);
        }
        self.silent.hash(&mut hasher);
        self.failure.hash(&mut hasher);
        hasher.finish()
    }

    /// Bytes a second from a device and to it at present, if that is known.
    pub fn rate_of(&self, process: &Value, device: &Value) -> Option<[u64; 2]> {
        self.rates.of(process, device)
    }

    /// All devices with the processes that have them.
    pub fn devices(&self) -> impl Iterator<Item = (&Value, &Value)> {
        let devices = |process: &'_ Value| process["devices"].as_array().map(Vec::as_slice).unwrap_or_default().len();
        self.processes
            .iter()
            .flat_map(move |process| (0..devices(process)).map(move |index| (process, &process["devices"][index])))
    }
}

/// Asks on a thread of its own, and only while somebody wants to know.
#[derive(Clone, Debug)]
pub struct Asker {
    status: watch::Sender<Arc<Status>>,
    demand: SyncSender<()>,
    journal: Journal,
}

impl Asker {
    /// Starts the thread, which publishes changes in the journal while somebody follows that. It ends with the last
    /// `Asker`.
    ///
    /// # Errors
    /// There can be no further thread.
    pub fn start(journal: Journal) -> io::Result<Self> {
        let (status, _) = watch::channel(Arc::<Status>::default());
        let (demand, demanded) = sync_channel(1);
        let to = status.clone();
        let for_thread = journal.clone();
        let ask = move || keep_asking(&to, &demanded, &for_thread);
        thread::Builder::new().name("page-status".into()).spawn(ask)?;
        Ok(Self { status, demand, journal })
    }

    /// Follows the status from now on: it is asked for until the receiver is dropped.
    pub fn follow(&self) -> watch::Receiver<Arc<Status>> {
        let followed = self.status.subscribe();
        // If it is full, the thread is about to ask.
        let _ = self.demand.try_send(());
        followed
    }

    /// A status that is at most half a second old and younger than the last operation; `None` if the thread has ended.
    pub async fn fresh(&self) -> Option<Arc<Status>> {
        let since = Instant::now().checked_sub(ASK_EVERY).max(self.journal.last_operation());
        let is_fresh = |status: &Arc<Status>| status.asked.is_some() && status.asked >= since;
        if is_fresh(&self.status.borrow()) {
            return Some(Arc::clone(&self.status.borrow()));
        }
        let mut followed = self.follow();
        followed.wait_for(is_fresh).await.ok().map(|status| Arc::clone(&status))
    }
}

fn keep_asking(status: &watch::Sender<Arc<Status>>, demanded: &Receiver<()>, journal: &Journal) {
    let (mut happenings, mut mark) = (Happenings::default(), None);
    loop {
        let told = match status.receiver_count() {
            0 => demanded.recv().map_err(|_| RecvTimeoutError::Disconnected),
            _ => demanded.recv_timeout(ASK_EVERY),
        };
        if told == Err(RecvTimeoutError::Disconnected) {
            return;
        }
        let before = Arc::clone(&status.borrow());
        let now = Arc::new(Status::ask(&before));
        if journal.is_followed() {
            publish(journal, &now, &mut happenings, &mut mark);
        }
        status.send_replace(now);
    }
}

/// Publishes what has happened, and that there is another status.
fn publish(journal: &Journal, now: &Status, happenings: &mut Happenings, mark: &mut Option<u64>) {
    // If the folder cannot be read, the status says so.
    for (event, pid) in happenings.ask().unwrap_or_default().happened {
        let mut data = serde_json::to_value(event).unwrap_or_default();
        data["pid"] = json!(pid);
        journal.publish(Kind::Happened, &data);
    }
    let marked = Some(now.mark());
    if *mark != marked {
        *mark = marked;
        let (processes, devices) = (now.processes.len(), now.devices().count());
        let data = json!({ "processes": processes, "devices": devices, "silent": now.silent, "failure": now.failure });
        journal.publish(Kind::Status, &data);
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// The status of these processes.
    pub fn status(processes: Value) -> Status {
        let Value::Array(processes) = processes else { panic!("a list") };
        Status { processes, ..Status::default() }
    }
}
