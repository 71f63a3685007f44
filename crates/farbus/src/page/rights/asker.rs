//! Asks all processes of this user what they have, at most twice a second however many look.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::watch;

use super::super::api::journal::{Journal, Kind};
use super::super::api::operations::Operations;
use super::super::status::{Processes, Swapping, devices_of};
use crate::common::control::{Answer, Question, ask_all, ask_one};
use crate::common::happenings::Happenings;

/// How often the processes are asked while somebody looks. An answer that is younger than this is given again.
const ASK_EVERY: Duration = Duration::from_millis(500);

/// Swaps whose progress is asked for at a time.
const SWAPS_MAX: usize = 16;

/// What was answered, and when.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// When the processes were asked; `None` if they have not been.
    at: Option<Instant>,
    /// What they said.
    pub said: Processes,
}

/// Asks on a thread of its own, and only while somebody wants to know.
#[derive(Clone, Debug)]
pub struct Asker {
    asked: watch::Sender<Arc<Asked>>,
    demand: SyncSender<()>,
    journal: Journal,
}

impl Asker {
    /// Starts the thread, which publishes changes in the journal while somebody follows that, and adds what is drawn of
    /// the operations. It ends with the last `Asker`.
    ///
    /// # Errors
    /// There can be no further thread.
    pub fn start(journal: Journal, operations: Operations) -> io::Result<Self> {
        let (asked, _) = watch::channel(Arc::<Asked>::default());
        let (demand, demanded) = sync_channel(1);
        let to = asked.clone();
        let for_thread = journal.clone();
        let ask = move || keep_asking(&to, &demanded, &for_thread, &operations);
        thread::Builder::new().name("page-status".into()).spawn(ask)?;
        Ok(Self { asked, demand, journal })
    }

    /// Follows what they say from now on: they are asked until the receiver is dropped.
    pub fn follow(&self) -> watch::Receiver<Arc<Asked>> {
        let followed = self.asked.subscribe();
        // If it is full, the thread is about to ask.
        let _ = self.demand.try_send(());
        followed
    }

    /// What they said at most half a second ago and after the last operation; `None` if the thread has ended.
    pub async fn fresh(&self) -> Option<Arc<Asked>> {
        let since = Instant::now().checked_sub(ASK_EVERY).max(self.journal.last_operation());
        let is_fresh = |asked: &Arc<Asked>| asked.at.is_some() && asked.at >= since;
        if is_fresh(&self.asked.borrow()) {
            return Some(Arc::clone(&self.asked.borrow()));
        }
        let mut followed = self.follow();
        followed.wait_for(is_fresh).await.ok().map(|asked| Arc::clone(&asked))
    }
}

fn keep_asking(asked: &watch::Sender<Arc<Asked>>, demanded: &Receiver<()>, journal: &Journal, operations: &Operations) {
    let began = Instant::now();
    let (mut happenings, mut mark) = (Happenings::default(), None);
    for version in 1.. {
        let told = match asked.receiver_count() {
            0 => demanded.recv().map_err(|_| RecvTimeoutError::Disconnected),
            _ => demanded.recv_timeout(ASK_EVERY),
        };
        if told == Err(RecvTimeoutError::Disconnected) {
            return;
        }
        let at = Instant::now();
        let asked_us = u64::try_from(at.duration_since(began).as_micros()).unwrap_or(u64::MAX);
        let said = Processes { version, asked_us, operations: operations.drawn(), ..ask() };
        if journal.is_followed() {
            publish(journal, &said, &mut happenings, &mut mark);
        }
        asked.send_replace(Arc::new(Asked { at: Some(at), said }));
    }
}

/// What the processes say now.
fn ask() -> Processes {
    match ask_all(&Question::Status) {
        Ok(answers) => {
            let count = answers.len();
            let said = |(_, answer)| if let Answer::Ok(value) = answer { Some(value) } else { None };
            let processes: Vec<_> = answers.into_iter().filter_map(said).collect();
            let swaps = swaps(&processes);
            Processes { silent: count - processes.len(), processes, swaps, ..Processes::default() }
        }
        Err(error) => Processes { failure: Some(error.to_string()), ..Processes::default() },
    }
}

/// How far the swaps are that run now.
fn swaps(processes: &[Value]) -> Vec<Swapping> {
    // Only a process of an earlier release does not say it in its status.
    let is_swapping =
        |(_, device): &(&Value, &Value)| device["medium"]["is_swapping"] == true && device["swap"].is_null();
    let asked = devices_of(processes).filter(is_swapping).take(SWAPS_MAX).filter_map(|(process, device)| {
        let (pid, name) = (process["pid"].as_u64()?, device["name"].as_str()?.to_owned());
        // What is attached here is asked for with its host.
        let target = device["title"].as_str().filter(|_| device["bus_id"].is_null()).unwrap_or(&name);
        let question = Question::SwapStatus { device: target.to_owned() };
        match ask_one(u32::try_from(pid).ok()?, &question, &[]) {
            Ok(Answer::Ok(progress)) if progress["state"] == "running" => Some(Swapping { pid, name, progress }),
            _ => None,
        }
    });
    asked.collect()
}

/// Publishes what has happened, and that there is another status.
fn publish(journal: &Journal, now: &Processes, happenings: &mut Happenings, mark: &mut Option<u64>) {
    // If the folder cannot be read, the status says so.
    for (event, pid) in happenings.ask().unwrap_or_default().happened {
        let mut data = serde_json::to_value(event).unwrap_or_default();
        data["pid"] = json!(pid);
        journal.publish(Kind::Happened, &data);
    }
    let marked = Some(mark_of(now));
    if *mark != marked {
        *mark = marked;
        let (processes, devices) = (now.processes.len(), devices_of(&now.processes).count());
        let data = json!({ "processes": processes, "devices": devices, "silent": now.silent, "failure": now.failure });
        journal.publish(Kind::Status, &data);
    }
}

/// A number that is another one when a process, a device, its state, its user or who waits for it is.
fn mark_of(said: &Processes) -> u64 {
    let mut hasher = DefaultHasher::new();
    for (process, device) in devices_of(&said.processes) {
        for of in [&process["pid"], &device["name"], &device["title"], &device["state"], &device["user"]] {
            of.as_str().hash(&mut hasher);
            of.as_u64().hash(&mut hasher);
        }
        let waiting = device["waiting"].as_array().into_iter().flatten();
        waiting.for_each(|waiting: &Value| waiting["host"].as_str().hash(&mut hasher));
        device["failure"]["message"].as_str().hash(&mut hasher);
        for moved in [&device["swap"], &device["migration"]] {
            for of in [&moved["state"], &moved["begun"], &moved["phase"]] {
                of.as_str().hash(&mut hasher);
            }
        }
    }
    said.silent.hash(&mut hasher);
    said.failure.hash(&mut hasher);
    hasher.finish()
}
