//! A confined process, the clients that it was given, and what it asks for them.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use farbus_control::daemon::Elsewhere;
use farbus_control::failure::CommandFailure;
use farbus_io_linux::sys::descriptors;
use farbus_io_net::sys::passing::MessageSocket;
use farbus_io_net::trust::PageScope;
use hyper::StatusCode;
use rustix::fs::{OFlags, fcntl_setfl};
use serde_json::{Map, Value, json};
use tokio::net::UnixStream;
use tokio::sync::{Mutex as AsyncMutex, Notify, OwnedSemaphorePermit, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use crate::api::callers::{ClientKind, PageCaller};
use crate::api::doing::{self, OperationListAnswer};
use crate::api::journal::EventJournal;
use crate::api::operations::OperationRegistry;
use crate::api::refusal::HttpRefusal;
use crate::api::{offers, routes};
use crate::known::lab::LabInventory;
use crate::known::status::ProcessStatuses;
use crate::line::frames::{FrameDecoder, OversizedFrame, encoded, receive, send};
use crate::line::messages::{
    ANSWER_BYTES_MAX, AUTHORIZATION_BYTES_MAX, BrokerMessage, ClientCredentials, ConfinedMessage, ConfinedPageConfig,
    ConfinedPageTls, PageAnswer, PageQuestion, QUESTION_BYTES_MAX, StatusExtent,
};
use crate::line::places::QuestionSlots;
use crate::line::{NO_SANDBOX, VERB, hex};
use crate::rights::asker::{PolledStatus, StatusPoller};
use crate::rights::clients::{CONNECTIONS_MAX, ClientConnections, ClientToken, REMOTE_MAX};
use crate::rights::locking::lock;
use crate::rights::{entering, reading};

/// How long a process may take to give its rights away.
const START_TIME_MAX: Duration = Duration::from_secs(10);
/// How long a request waits for the processes. One that is stopped takes ten seconds to be given up.
const STATUS_TIME_MAX: Duration = Duration::from_secs(30);
/// What one confined process follows at a time: a stream for each connection.
const FOLLOWED_MAX: usize = if CONNECTIONS_MAX > REMOTE_MAX { CONNECTIONS_MAX } else { REMOTE_MAX };
/// How often a connection is given to a process that has many to take, and after what time again: a thousand clients
/// may connect at once.
const PASS_TRIES_MAX: u32 = 500;
const PASS_PAUSE: Duration = Duration::from_millis(2);
/// Descriptors that this process has besides connections of other machines: for its confined processes, for those that
/// it asks and starts, and for connections that are being passed.
const DESCRIPTORS_OF_PAGE: usize = 64;
/// How often it is looked whether the tokens still count that clients have shown.
const TOKENS_EVERY: Duration = Duration::from_millis(250);
/// What is promised is a second; the rest is for what ends then.
const _: () = assert!(TOKENS_EVERY.as_millis() <= 500);
/// Characters of a reason in the audit log.
const WHY_CHARS_MAX: usize = 200;

/// What all confined processes of a page ask for.
#[derive(Debug)]
pub struct PageServices {
    /// Asks the processes of this user.
    pub asker: StatusPoller,
    /// The events of this user's processes, numbered.
    pub journal: EventJournal,
    /// What was begun.
    pub operations: OperationRegistry,
    /// The TCP port at which clients connect; `None` for a Unix socket.
    pub port: Option<u16>,
    /// Whether the processes are confined.
    pub is_sandboxed: bool,
    /// The page for browsers of other machines, if there is one.
    pub remote: Option<RemoteSite>,
}

/// A page for browsers of other machines.
#[derive(Clone, Debug)]
pub struct RemoteSite {
    /// The TCP port.
    pub port: u16,
    /// What the confined process needs for it.
    pub tls: ConfinedPageTls,
    /// Where it is.
    pub elsewhere: Elsewhere,
}

/// A confined process.
#[derive(Debug)]
pub struct ConfinedProcess {
    shared: Arc<PageServices>,
    child: Mutex<Child>,
    /// On it connections are passed. It does not block: a process that takes none loses them.
    passage: MessageSocket,
    line: UnixStream,
    /// Held while a frame is sent.
    sending: AsyncMutex<()>,
    /// Held while a long answer is made and sent.
    long: AsyncMutex<()>,
    /// The number of the last event that was sent, held while others are.
    events_sent: AsyncMutex<u64>,
    /// The version of what was sent of other hosts, held while it is.
    lab_sent: AsyncMutex<u64>,
    clients: Mutex<ClientConnections>,
    followed: watch::Sender<StatusFollowers>,
    slots: QuestionSlots,
    /// Told when a client has shown a token.
    token_shown: Notify,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

/// What is followed, by the numbers that the confined process gave it.
#[derive(Debug, Default)]
struct StatusFollowers {
    /// What the processes say; each with the client for which it is.
    status: BTreeMap<u64, u64>,
    /// Those of them that get events, too.
    events: BTreeSet<u64>,
}

impl ConfinedProcess {
    /// Starts a process for these clients, and waits until it has given its rights away.
    ///
    /// # Errors
    /// [`CommandFailure`]: the system starts none, or it cannot give them away.
    pub async fn start(shared: Arc<PageServices>, client: ClientKind) -> Result<Arc<Self>, CommandFailure> {
        let half = Self::spawn(shared, client).map_err(|error| {
            CommandFailure::local(format!("cannot start the process that speaks HTTP for the page: {error}"))
        })?;
        let half = Arc::new(half);
        match timeout(START_TIME_MAX, half.confined()).await {
            Ok(Some(ConfinedMessage::Confined { still_has })) => {
                if let Some(still_has) = still_has {
                    warn!("the process that speaks HTTP for the page {still_has}");
                }
            }
            _ => {
                let how = half.end();
                return Err(CommandFailure::local(format!(
                    "the process that speaks HTTP for the page did not begin: {how}"
                )));
            }
        }
        let tasks = [
            tokio::spawn(Arc::clone(&half).push_status()),
            tokio::spawn(Arc::clone(&half).push_events()),
            tokio::spawn(Arc::clone(&half).watch_tokens()),
        ];
        lock(&half.tasks).extend(tasks);
        Ok(half)
    }

    fn spawn(shared: Arc<PageServices>, client: ClientKind) -> io::Result<Self> {
        let (passage, theirs) = MessageSocket::pair()?;
        let mut command = Command::new("/proc/self/exe");
        command.arg(VERB).stdin(theirs).stdout(Stdio::null()).current_dir("/");
        if !shared.is_sandboxed {
            command.arg(NO_SANDBOX);
        }
        // Ctrl-C at the page is for the other process, which ends this one.
        let child = command.process_group(0).spawn()?;
        let (line, theirs) = StdUnixStream::pair()?;
        line.set_nonblocking(true)?;
        let elsewhere = shared.remote.as_ref().map(|remote| remote.elsewhere.clone());
        let remote = shared.remote.as_ref().filter(|_| client == ClientKind::Remote);
        let (port, tls) = match remote {
            Some(remote) => (Some(remote.port), Some(remote.tls.clone())),
            None => (shared.port, None),
        };
        let begin = ConfinedPageConfig { port, epoch: shared.journal.epoch(), tls, elsewhere };
        passage.send(&serde_json::to_vec(&begin)?, Some(theirs.as_fd()))?;
        fcntl_setfl(passage.duplicate()?, OFlags::NONBLOCK)?;
        Ok(Self::over(shared, child, passage, UnixStream::from_std(line)?))
    }

    fn over(shared: Arc<PageServices>, child: Child, passage: MessageSocket, line: UnixStream) -> Self {
        Self {
            shared,
            child: Mutex::new(child),
            passage,
            line,
            sending: AsyncMutex::default(),
            long: AsyncMutex::default(),
            events_sent: AsyncMutex::default(),
            lab_sent: AsyncMutex::default(),
            clients: Mutex::new(ClientConnections::with_descriptors(descriptors_for_others())),
            followed: watch::Sender::default(),
            slots: QuestionSlots::default(),
            token_shown: Notify::new(),
            tasks: Mutex::default(),
        }
    }

    /// The first message; `None`: it ended before.
    async fn confined(&self) -> Option<ConfinedMessage> {
        let mut decoder = FrameDecoder::new(QUESTION_BYTES_MAX);
        loop {
            if let Some(frame) = decoder.poll_frame().ok()? {
                return serde_json::from_slice(frame).ok();
            }
            receive(&self.line, &mut decoder).await.ok().filter(|is_open| *is_open)?;
        }
    }

    /// Ends the process, if it has not ended. Returns how it did.
    pub fn end(&self) -> String {
        lock(&self.tasks).drain(..).for_each(|task| task.abort());
        let mut child = lock(&self.child);
        // One that ends already keeps its own reason.
        let ended = child.kill().and_then(|()| child.wait());
        ended.map_or_else(|error| error.to_string(), in_words)
    }

    /// Gives it a connection of the owner; waits a moment if it has many to take. If it does not take it, the
    /// connection is closed.
    pub async fn pass(&self, permit: OwnedSemaphorePermit, stream: &OwnedFd) {
        let number = lock(&self.clients).add_owner(permit);
        self.send(number, &number.to_be_bytes(), stream, PASS_TRIES_MAX).await;
    }

    /// Gives it a connection of another user of this machine, if there is a place for that.
    pub async fn pass_other(&self, user: Option<u32>, stream: &OwnedFd) {
        let added = lock(&self.clients).add_other(stream, user);
        match added {
            Ok(Some(number)) => self.send(number, &number.to_be_bytes(), stream, 1).await,
            Ok(None) => debug!(user, "a connection has no place"),
            Err(error) => debug!(%error, "a connection is not taken"),
        }
    }

    /// Gives it a connection of another machine, if there is a place for that. `reached` is the address of this machine
    /// that it has reached, and `from` where it comes from.
    pub async fn pass_remote(&self, reached: SocketAddr, from: SocketAddr, stream: &OwnedFd) {
        let added = lock(&self.clients).add_remote(stream, from.ip());
        match added {
            Ok(Some(number)) => {
                let address = reached.ip().to_canonical().to_string();
                let message = [&number.to_be_bytes()[..], address.as_bytes()].concat();
                self.send(number, &message, stream, PASS_TRIES_MAX).await;
            }
            Ok(None) => debug!(%from, "a connection has no place"),
            Err(error) => debug!(%error, "a connection is not taken"),
        }
    }

    async fn send(&self, number: u64, message: &[u8], stream: &OwnedFd, tries: u32) {
        for left in (0..tries).rev() {
            match self.passage.send(message, Some(stream.as_fd())) {
                Ok(()) => return,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && left > 0 => sleep(PASS_PAUSE).await,
                Err(error) => debug!(%error, "a connection is not taken"),
            }
        }
        lock(&self.clients).remove(number);
    }

    /// Answers what the process asks, until it ends or says what it may not. Returns which.
    pub async fn hear(self: &Arc<Self>) -> String {
        let mut decoder = FrameDecoder::new(QUESTION_BYTES_MAX);
        loop {
            loop {
                let message = match decoder.poll_frame() {
                    Ok(Some(frame)) => {
                        serde_json::from_slice::<ConfinedMessage>(frame).map_err(|error| error.to_string())
                    }
                    Ok(None) => break,
                    Err(too_long) => Err(too_long.to_string()),
                };
                match message {
                    Ok(message) => self.handle(message).await,
                    Err(error) => return format!("says what it may not ({error})"),
                }
            }
            match receive(&self.line, &mut decoder).await {
                Ok(true) => {}
                Ok(false) | Err(_) => return "has ended".to_owned(),
            }
        }
    }

    async fn handle(self: &Arc<Self>, confined_message: ConfinedMessage) {
        match confined_message {
            ConfinedMessage::Confined { .. } => {}
            ConfinedMessage::Closed { client } => lock(&self.clients).remove(client),
            ConfinedMessage::Unfollow { follow } => self.followed.send_modify(|followed| {
                followed.status.remove(&follow);
                followed.events.remove(&follow);
            }),
            ConfinedMessage::Question { id, by, question } => {
                // What it follows and closes is in the order in which it says it; nothing else waits for anything.
                if question.is_quick() {
                    self.answer(id, by, question).await;
                    return;
                }
                let scope = lock(&self.clients).scope_of(by.client, by.authorization.as_deref());
                let Some(slot) = self.slots.try_take(&by, scope) else {
                    // The confined process waits for a place before it asks.
                    let (status, why) = (StatusCode::SERVICE_UNAVAILABLE.as_u16(), "too much is asked at once".into());
                    let _ = self.tell(&BrokerMessage::Answer { id, answer: PageAnswer::Refused { status, why } }).await;
                    return;
                };
                let half = Arc::clone(self);
                tokio::spawn(async move {
                    half.answer(id, by, question).await;
                    drop(slot);
                });
            }
        }
    }

    async fn answer(&self, id: u64, by: ClientCredentials, question: PageQuestion) {
        // These are long, and none of them waits for another process: there is one at a time.
        let is_long = matches!(
            question,
            PageQuestion::Operations
                | PageQuestion::Recording { .. }
                | PageQuestion::RecordedText { .. }
                | PageQuestion::Picture { .. }
                | PageQuestion::Audit
        );
        let _long = if is_long { Some(self.long.lock().await) } else { None };
        let answer = match self.carry_out(by, question).await {
            Ok(answer) => answer,
            Err(HttpRefusal { status, why, .. }) => {
                PageAnswer::Refused { status: status.as_u16(), why: why.into_owned() }
            }
        };
        if self.tell(&BrokerMessage::Answer { id, answer }).await.is_err() {
            let (status, why) = (StatusCode::INTERNAL_SERVER_ERROR.as_u16(), "the answer is too long".to_owned());
            // This one is not.
            let _ = self.tell(&BrokerMessage::Answer { id, answer: PageAnswer::Refused { status, why } }).await;
        }
    }

    /// Does what is asked, if the client for which it is asked may.
    async fn carry_out(&self, by: ClientCredentials, question: PageQuestion) -> Result<PageAnswer, HttpRefusal> {
        let refused = |status, why| Err(HttpRefusal::of(status, why));
        let client = lock(&self.clients).find(by.client);
        let Some(client) = client else { return refused(StatusCode::FORBIDDEN, "this connection is closed") };
        let is_long =
            by.authorization.as_ref().is_some_and(|authorization| authorization.len() > AUTHORIZATION_BYTES_MAX);
        let authorization = by.authorization.as_deref().filter(|_| !is_long).or(is_long.then_some(""));
        let PageServices { asker, operations, .. } = &*self.shared;
        let caller = PageCaller::of(authorization, client, reading::tokens).inspect_err(|refusal| {
            if question == PageQuestion::Who {
                operations.refused(&self.whence(by.client, client), &refusal.why);
            }
        })?;
        if let Some(authorization) = authorization {
            let shown = ClientToken { authorization: authorization.to_owned(), scope: caller.scope };
            if !lock(&self.clients).show(by.client, shown) {
                return refused(StatusCode::SERVICE_UNAVAILABLE, "too many connections show this token, or are let in");
            }
            self.token_shown.notify_one();
        }
        if question.needs() > caller.scope {
            return refused(StatusCode::FORBIDDEN, "this may not be asked for this client");
        }
        match question {
            PageQuestion::Who => {
                let PageCaller { scope, has_token, called, until } = caller;
                Ok(PageAnswer::Who { scope, has_token, called, until })
            }
            PageQuestion::Enter { code } => self.enter(by.client, code).await,
            PageQuestion::Refused { why } => {
                if caller.scope.is_some() {
                    let why: String = why.chars().take(WHY_CHARS_MAX).collect();
                    operations.refused(&caller.called, &why);
                }
                Ok(PageAnswer::Done)
            }
            PageQuestion::Status { known, wanted } => match timeout(STATUS_TIME_MAX, asker.fresh(wanted)).await {
                Ok(Some(polled_status)) => {
                    if polled_status.statuses.version > known {
                        self.tell_status(&polled_status).await;
                    }
                    Ok(PageAnswer::Done)
                }
                Ok(None) | Err(_) => refused(StatusCode::SERVICE_UNAVAILABLE, "the processes cannot be asked"),
            },
            PageQuestion::Follow { follow, events } => self.follow(by.client, follow, events).await,
            PageQuestion::Details { pid, name } => {
                let details = blocking(move || serde_json::to_value(reading::details(pid, name)).ok()).await;
                Ok(PageAnswer::Value(details.unwrap_or_default()))
            }
            PageQuestion::Latency { pid, name } => {
                let latency = blocking(move || Some(reading::latency(pid, name))).await;
                Ok(PageAnswer::Value(latency.unwrap_or_default()))
            }
            PageQuestion::Leave => {
                lock(&self.clients).sign_out(by.client);
                self.end_followed(&[by.client]);
                let (operations, authorization) = (operations.clone(), authorization.map(str::to_owned));
                let left =
                    tokio::task::spawn_blocking(move || entering::leave(&operations, authorization.as_deref())).await;
                left.unwrap_or_else(|_| refused(StatusCode::INTERNAL_SERVER_ERROR, "the page has no answer"))
            }
            PageQuestion::Choices => {
                Ok(PageAnswer::Value(blocking(|| Some(reading::choices())).await.unwrap_or_default()))
            }
            PageQuestion::Hosts => of_files(blocking(|| reading::hosts().ok()).await),
            PageQuestion::Audit => of_files(blocking(|| reading::audit().ok()).await),
            PageQuestion::Operations => {
                Ok(PageAnswer::Value(json!(OperationListAnswer { operations: operations.all() })))
            }
            PageQuestion::Operation { id } => match operations.find(id) {
                Some(operation) => Ok(PageAnswer::Value(json!(operation))),
                None => refused(StatusCode::NOT_FOUND, "no operation has this number, or it is forgotten"),
            },
            PageQuestion::Recording { id } => match operations.recording(id, &caller.called) {
                Some(bytes) => Ok(PageAnswer::Bytes(hex::encode(&bytes))),
                None => refused(StatusCode::NOT_FOUND, "no operation with this number has recorded anything"),
            },
            PageQuestion::RecordedText { id } => match operations.text(id, &caller.called) {
                Some(text) => Ok(PageAnswer::Value(json!(text))),
                None => refused(StatusCode::NOT_FOUND, "no operation with this number has recorded anything"),
            },
            PageQuestion::Picture { id } => match operations.picture(id, &caller.called) {
                Some(bytes) => Ok(PageAnswer::Bytes(hex::encode(&bytes))),
                None => refused(StatusCode::NOT_FOUND, "no operation with this number shows a picture now"),
            },
            PageQuestion::Change { path, given } => self.change(&caller, &path, &given).await,
        }
    }

    /// Lets a browser of another machine in that shows a code.
    async fn enter(&self, number: u64, code: String) -> Result<PageAnswer, HttpRefusal> {
        let from = lock(&self.clients).network(number);
        let from = from.ok_or_else(|| HttpRefusal::of(StatusCode::NOT_FOUND, "nothing is here"))?;
        let operations = self.shared.operations.clone();
        let entered = tokio::task::spawn_blocking(move || entering::enter(&operations, &code, from));
        entered
            .await
            .unwrap_or_else(|_| Err(HttpRefusal::of(StatusCode::INTERNAL_SERVER_ERROR, "the page has no answer")))
    }

    /// Tells a client of each change from now on, and of what happens if it wants to know.
    async fn follow(&self, number: u64, follow: u64, events: bool) -> Result<PageAnswer, HttpRefusal> {
        if self.followed.borrow().status.len() >= FOLLOWED_MAX {
            return Err(HttpRefusal::of(StatusCode::SERVICE_UNAVAILABLE, "too many follow the events"));
        }
        let last = if events { Some(self.tell_events().await) } else { None };
        self.followed.send_modify(|followed| {
            followed.status.insert(follow, number);
            if events {
                followed.events.insert(follow);
            }
        });
        // What is published from here on is new to this client, also if it arrives before this answer is read.
        Ok(last.map_or(PageAnswer::Done, |last| PageAnswer::Value(json!(last))))
    }

    /// Does what a caller asks for. A refusal for lack of rights is noted in the audit log.
    async fn change(
        &self,
        caller: &PageCaller,
        path: &str,
        given: &Map<String, Value>,
    ) -> Result<PageAnswer, HttpRefusal> {
        let PageServices { asker, operations, .. } = &*self.shared;
        let found = routes::find(path).filter(|found| found.route.is_change());
        let found = found.ok_or_else(|| HttpRefusal::of(StatusCode::NOT_FOUND, "nothing is here"))?;
        let refusal_noted = |refusal: &HttpRefusal| {
            if refusal.status == StatusCode::FORBIDDEN {
                operations.refused(&caller.called, &refusal.why);
            }
        };
        if let Some(target) = doing::has_to_be_listed(&found, caller, given) {
            self.lists(target).await.inspect_err(refusal_noted)?;
        }
        let changed = doing::change(operations, found, caller, given, &still_counts).await;
        let (status, body) = changed.inspect_err(refusal_noted)?;
        // What it changed is to be seen at once.
        drop(asker.follow());
        Ok(PageAnswer::Changed { status: status.as_u16(), body })
    }

    /// Where a client comes from that shows a wrong token, for the audit log.
    fn whence(&self, number: u64, client: ClientKind) -> String {
        let network = lock(&self.clients).network(number);
        match (network, client) {
            (Some(network), _) => network.to_string(),
            (None, ClientKind::Owner) => "page".to_owned(),
            (None, ClientKind::Other) => "another user".to_owned(),
            (None, ClientKind::Remote) => "another machine".to_owned(),
        }
    }

    /// Whether a command with this target observes a device that the page lists.
    ///
    /// # Errors
    /// [`HttpRefusal`]: it does not, or the processes cannot be asked.
    async fn lists(&self, target: &str) -> Result<(), HttpRefusal> {
        match timeout(STATUS_TIME_MAX, self.shared.asker.fresh(StatusExtent::Processes)).await {
            Ok(Some(status)) if offers::is_listed(&status.statuses.processes, target) => Ok(()),
            Ok(Some(_)) => {
                Err(HttpRefusal::of(StatusCode::FORBIDDEN, "this token observes devices that this page lists"))
            }
            Ok(None) | Err(_) => Err(HttpRefusal::of(StatusCode::SERVICE_UNAVAILABLE, "the processes cannot be asked")),
        }
    }

    /// Sends a message. A line that is closed is noticed where it is read.
    async fn tell(&self, message: &BrokerMessage) -> Result<(), OversizedFrame> {
        let _sending = self.sending.lock().await;
        let frame = encoded(message, ANSWER_BYTES_MAX)?;
        let _ = send(&self.line, &frame).await;
        Ok(())
    }

    /// Sends what is known of other hosts, unless this process has it.
    async fn tell_lab(&self, lab: &LabInventory) {
        let mut sent = self.lab_sent.lock().await;
        if *sent >= lab.version {
            return;
        }
        *sent = lab.version;
        if let Err(error) = self.tell(&BrokerMessage::Lab(Box::new(lab.clone()))).await {
            let trouble = Some(format!("what is known of other hosts is too long: {error}"));
            // This one is not.
            let _ = self
                .tell(&BrokerMessage::Lab(Box::new(LabInventory {
                    version: lab.version,
                    trouble,
                    ..LabInventory::default()
                })))
                .await;
        }
    }

    async fn tell_status(&self, polled: &PolledStatus) {
        self.tell_lab(&polled.lab).await;
        let statuses = &polled.statuses;
        if let Err(error) = self.tell(&BrokerMessage::Status(statuses.clone())).await {
            let failure = Some(format!("what the processes say is too long: {error}"));
            let short = ProcessStatuses {
                failure,
                processes: Vec::new(),
                operations: Vec::new(),
                swaps: Vec::new(),
                silent: statuses.silent,
                ..*statuses
            };
            // This one is not.
            let _ = self.tell(&BrokerMessage::Status(short)).await;
        }
    }

    /// Sends the events that were not sent yet. Returns the number of the last.
    async fn tell_events(&self) -> u64 {
        let mut sent = self.events_sent.lock().await;
        loop {
            let (first, events) = self.shared.journal.after(*sent);
            let Some(last) = (first + events.len() as u64).checked_sub(1).filter(|_| !events.is_empty()) else {
                return *sent;
            };
            // Each has a limit, and so have all of them.
            let _ = self.tell(&BrokerMessage::Events { first, events }).await;
            *sent = last;
        }
    }

    /// Sends what the processes say, whenever they are asked, while anybody follows it.
    async fn push_status(self: Arc<Self>) {
        let mut followed = self.followed.subscribe();
        while followed.wait_for(|followed| !followed.status.is_empty()).await.is_ok() {
            self.shared.asker.want_lab();
            let mut status = self.shared.asker.follow();
            while !followed.borrow().status.is_empty() && status.changed().await.is_ok() {
                let status = Arc::clone(&status.borrow_and_update());
                self.shared.asker.want_lab();
                self.tell_status(&status).await;
            }
        }
    }

    /// Ends what clients get whose tokens were revoked, have expired or allow less, within [`TOKENS_EVERY`].
    async fn watch_tokens(self: Arc<Self>) {
        loop {
            if lock(&self.clients).shown().is_empty() && self.recorders().is_empty() {
                self.token_shown.notified().await;
            }
            sleep(TOKENS_EVERY).await;
            // The files of a disk that is slow are waited for elsewhere.
            let Ok(tokens) = tokio::task::spawn_blocking(reading::tokens).await else { continue };
            // What cannot be read lets nobody in.
            let tokens = tokens.unwrap_or_default();
            let all = lock(&self.clients).shown();
            for shown in all {
                let now = PageCaller::of(Some(&shown.authorization), ClientKind::Other, || Ok(tokens.clone()));
                if now.is_ok_and(|caller| caller.scope >= shown.scope) {
                    continue;
                }
                let ended = lock(&self.clients).end_those_with(&shown);
                self.end_followed(&ended);
                for client in ended {
                    // It is short.
                    let _ = self.tell(&BrokerMessage::Ended { client }).await;
                }
            }
            for (id, token) in self.recorders() {
                let is_kept = tokens
                    .find(&token)
                    .is_some_and(|token| token.scope >= PageScope::Observe && !token.has_expired(SystemTime::now()));
                if !is_kept {
                    self.shared.operations.stop(id, "page", Some("its token counts no more"));
                }
            }
        }
    }

    /// Tells these clients no more of what they follow.
    fn end_followed(&self, clients: &[u64]) {
        self.followed.send_modify(|followed| {
            followed.status.retain(|_, client| !clients.contains(client));
            followed.events.retain(|follow| followed.status.contains_key(follow));
        });
    }

    /// The recordings that were begun with tokens, and the tokens' names.
    fn recorders(&self) -> Vec<(u64, String)> {
        let named = |(id, by): (u64, String)| by.strip_prefix("token ").map(|token| (id, token.to_owned()));
        self.shared.operations.recorders().into_iter().filter_map(named).collect()
    }

    /// Sends events while anybody follows them.
    async fn push_events(self: Arc<Self>) {
        let mut followed = self.followed.subscribe();
        while followed.wait_for(|followed| !followed.events.is_empty()).await.is_ok() {
            let mut numbers = self.shared.journal.numbers();
            while !followed.borrow().events.is_empty() {
                self.tell_events().await;
                if numbers.changed().await.is_err() {
                    return;
                }
            }
        }
    }
}

/// How many descriptors this process may have for connections of other machines: what the owner's programs and itself
/// need is left out.
fn descriptors_for_others() -> usize {
    let soft = descriptors::limit().soft.and_then(|soft| usize::try_from(soft).ok()).unwrap_or(usize::MAX);
    soft.saturating_sub(DESCRIPTORS_OF_PAGE)
}

/// Runs what waits for files or other processes where nothing else waits for it.
async fn blocking(work: impl FnOnce() -> Option<Value> + Send + 'static) -> Option<Value> {
    tokio::task::spawn_blocking(work).await.ok().flatten()
}

/// Whether the one who is called so in operations may still ask: with a token that counts, or as the page's user.
fn still_counts(called: &str) -> bool {
    let Some(token) = called.strip_prefix("token ") else { return true };
    // If they cannot be read, nothing is forgotten.
    reading::tokens()
        .map_or(true, |tokens| tokens.find(token).is_some_and(|token| !token.has_expired(SystemTime::now())))
}

/// What was read of the owner's files.
fn of_files(read: Option<Value>) -> Result<PageAnswer, HttpRefusal> {
    let unread = "the state folder cannot be read: see 'farbus doctor'";
    read.map(PageAnswer::Value).ok_or(HttpRefusal::of(StatusCode::INTERNAL_SERVER_ERROR, unread))
}

fn in_words(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => status.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Map;
    use tokio::sync::Semaphore;

    use super::*;

    /// A process that says nothing, with a client of its owner's and one of somebody else's.
    fn with_clients(test: impl AsyncFnOnce(Arc<ConfinedProcess>, StdUnixStream)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let journal = EventJournal::default();
            let operations = OperationRegistry::new(journal.clone());
            let asker = StatusPoller::start(journal.clone(), operations.clone()).unwrap();
            let shared = PageServices { asker, journal, operations, port: None, is_sandboxed: true, remote: None };
            let child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
            let (passage, _theirs) = MessageSocket::pair().unwrap();
            let (line, theirs) = StdUnixStream::pair().unwrap();
            line.set_nonblocking(true).unwrap();
            let half = ConfinedProcess::over(Arc::new(shared), child, passage, UnixStream::from_std(line).unwrap());
            let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
            assert_eq!(lock(&half.clients).add_owner(permit), 1);
            let stream = half.passage.duplicate().unwrap();
            assert_eq!(lock(&half.clients).add_other(&stream, Some(1600)).unwrap(), Some(2));
            let half = Arc::new(half);
            test(Arc::clone(&half), theirs).await;
            half.end();
        });
    }

    fn by(client: u64, authorization: Option<&str>) -> ClientCredentials {
        ClientCredentials { client, authorization: authorization.map(str::to_owned), scope: None }
    }

    #[test]
    fn a_process_that_was_taken_over_gets_for_a_client_only_what_that_client_may_have() {
        with_clients(async |half, _line| {
            let stop = PageQuestion::Change { path: "/api/v1/operations/1/stop".into(), given: Map::new() };
            for question in [
                PageQuestion::Status { known: 0, wanted: StatusExtent::Lab },
                PageQuestion::Follow { follow: 1, events: true },
                PageQuestion::Details { pid: 1, name: "disk".into() },
                PageQuestion::Latency { pid: 1, name: "disk".into() },
                PageQuestion::Hosts,
                PageQuestion::Audit,
                PageQuestion::Operations,
                PageQuestion::Operation { id: 1 },
                PageQuestion::Recording { id: 1 },
                PageQuestion::RecordedText { id: 1 },
                PageQuestion::Picture { id: 1 },
                stop.clone(),
            ] {
                let carried_out =
                    async |by| half.carry_out(by, question.clone()).await.map_err(|refusal| refusal.status);
                assert_eq!(carried_out(by(2, None)).await, Err(StatusCode::FORBIDDEN), "{question:?}");
                assert_eq!(carried_out(by(3, None)).await, Err(StatusCode::FORBIDDEN), "no such client: {question:?}");
                for token in ["Bearer farbus-page-x", "", "Bearer", &"x".repeat(2 << 10)] {
                    let refused = carried_out(by(1, Some(token))).await;
                    assert_eq!(refused, Err(StatusCode::UNAUTHORIZED), "no such token: {question:?}");
                }
            }
            assert!(half.followed.borrow().status.is_empty());
            let who = half.carry_out(by(2, None), PageQuestion::Who).await;
            let nobody = PageAnswer::Who { scope: None, has_token: false, called: "another user".into(), until: None };
            assert_eq!(who, Ok(nobody), "it learns that it may do nothing");
            // Its owner's client may; there is nothing to be stopped.
            let stopped = half.carry_out(by(1, None), stop).await.map_err(|refusal| refusal.status);
            assert_eq!(stopped, Err(StatusCode::NOT_FOUND));
            half.handle(ConfinedMessage::Closed { client: 1 }).await;
            let gone = half.carry_out(by(1, None), PageQuestion::Operations).await;
            assert_eq!(gone.map_err(|refusal| refusal.status), Err(StatusCode::FORBIDDEN), "its connection is closed");
        });
    }

    #[test]
    fn what_a_process_follows_and_asks_at_once_is_limited() {
        with_clients(async |half, line| {
            for follow in 0..FOLLOWED_MAX as u64 {
                let question = PageQuestion::Follow { follow, events: false };
                assert_eq!(half.carry_out(by(1, None), question).await, Ok(PageAnswer::Done));
            }
            let question = PageQuestion::Follow { follow: u64::MAX, events: false };
            let refused = half.carry_out(by(1, None), question).await.map_err(|refusal| refusal.status);
            assert_eq!(refused, Err(StatusCode::SERVICE_UNAVAILABLE));
            half.handle(ConfinedMessage::Unfollow { follow: 0 }).await;
            let question = PageQuestion::Follow { follow: u64::MAX, events: false };
            assert_eq!(half.carry_out(by(1, None), question).await, Ok(PageAnswer::Done));
            // It says what is too long: nothing of it is taken.
            std::io::Write::write_all(&mut &line, &u32::MAX.to_be_bytes()).unwrap();
            let why = half.hear().await;
            assert!(why.starts_with("says what it may not") && why.contains("4294967295 bytes"), "{why}");
        });
    }

    #[test]
    fn questions_of_others_that_wait_delay_none_of_the_owners_and_are_refused_beyond_their_places() {
        with_clients(async |half, line| {
            line.set_nonblocking(false).unwrap();
            let held: Vec<_> = std::iter::from_fn(|| half.slots.try_take(&by(2, None), None)).collect();
            assert!(!held.is_empty());
            let hosts_question =
                |id, client| ConfinedMessage::Question { id, by: by(client, None), question: PageQuestion::Hosts };
            // Neither waits, and what is said after it is heard.
            half.handle(hosts_question(1, 2)).await;
            half.handle(hosts_question(2, 1)).await;
            let answers = tokio::task::spawn_blocking(move || {
                let mut answers = BTreeMap::new();
                let mut decoder = FrameDecoder::new(ANSWER_BYTES_MAX);
                while answers.len() < 2 {
                    let mut bytes = [0; 1024];
                    let count = std::io::Read::read(&mut &line, &mut bytes).unwrap();
                    decoder.handle_bytes(&bytes[..count]);
                    while let Some(frame) = decoder.poll_frame().unwrap() {
                        let BrokerMessage::Answer { id, answer } = serde_json::from_slice(frame).unwrap() else {
                            panic!()
                        };
                        answers.insert(id, answer);
                    }
                }
                answers
            });
            let answers = answers.await.unwrap();
            let refused = PageAnswer::Refused { status: 503, why: "too much is asked at once".into() };
            assert_eq!(answers[&1], refused);
            assert!(answers[&2] != refused, "{answers:?}");
        });
    }

    #[test]
    fn the_end_of_a_process_is_heard() {
        with_clients(async |half, line| {
            drop(line);
            assert_eq!(half.hear().await, "has ended");
        });
    }
}
