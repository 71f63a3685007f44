//! Makes calls to the members of an etcd, one after the other when one does not answer.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use farbus::broker::SystemAccess;
use farbus::hosts::questions::send_all;
use farbus_directory::gateway::{EtcdCall, EtcdRefusal, EtcdReply, WatchUpdate, news};
use farbus_directory::http::{HttpResponsePart, ResponseReader, request};
use farbus_directory::{DirectoryFailure, DirectoryFailureKind};
use farbus_io_net::link::{BoottimeClock, Link, SegmentSize};
use farbus_io_net::trust::{AuthorityError, CertificateAuthority};
use farbus_model::Instant;

use super::settings::EtcdSettings;
use super::stop::StopFlag;

/// How long connecting to a member may take.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(3);
/// How long a call may take. etcd gives up after 5 s + 2 elections by default.
const CALL_TIME_MAX: Duration = Duration::from_secs(8);
/// How long the last call of a process that ends may take.
const FAREWELL_TIME_MAX: Duration = Duration::from_secs(2);
/// How often a thread that waits for an answer looks whether it has to stop.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// The longest answer to a call, bytes: 1,000 keys of the longest values.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// The longest line of a watch, bytes. etcd sends fragments of 2 MiB at most.
const LINE_BYTES_MAX: usize = 4 << 20;
/// How much is received at once, bytes.
const RECEIVE_BYTES: usize = 32 << 10;

/// A client of an etcd, for one thread.
pub struct EtcdClient {
    settings: EtcdSettings,
    authority: Option<CertificateAuthority>,
    system: SystemAccess,
    stop: Arc<StopFlag>,
    /// Which of the members is talked to.
    at: usize,
    link: Option<Link>,
    token: Option<String>,
    time_max: Duration,
}

/// A watch that has begun.
pub struct EtcdWatch {
    link: Link,
    reader: ResponseReader,
    line: Vec<u8>,
    lines: VecDeque<Vec<u8>>,
    is_over: bool,
}

/// The status and the body of an answer.
type EtcdResponse = (u16, Vec<u8>);

impl EtcdClient {
    /// A client that connects when it is needed, first to the member with this number.
    ///
    /// # Errors
    /// A certificate of the settings is none, or is missing.
    pub fn new(
        settings: &EtcdSettings,
        system: SystemAccess,
        stop: Arc<StopFlag>,
        first: usize,
    ) -> Result<Self, DirectoryFailure> {
        let wrong = |message: String| DirectoryFailure::new(DirectoryFailureKind::Certificate, message);
        let authority = settings.authority().map_err(wrong)?;
        if settings.is_encrypted && authority.is_none() {
            return Err(wrong("the authority's certificate was not read".to_owned()));
        }
        let at = first % settings.members.len().max(1);
        Ok(Self {
            settings: settings.clone(),
            authority,
            system,
            stop,
            at,
            link: None,
            token: None,
            time_max: CALL_TIME_MAX,
        })
    }

    /// Gives each call this time.
    pub fn with_time_max(self, time_max: Duration) -> Self {
        Self { time_max, ..self }
    }

    /// The member that is talked to, `HOST:PORT`.
    pub fn member(&self) -> &str {
        self.settings.members.get(self.at).map_or("", String::as_str)
    }

    /// Makes a last call while the process ends, if a member is connected.
    pub fn say_farewell(&mut self, call: &EtcdCall) {
        (self.stop, self.time_max) = (Arc::default(), FAREWELL_TIME_MAX);
        if self.link.is_some() {
            // If it is not heard, the lease ends by itself.
            let _ = self.exchange(call, self.token.clone().as_deref());
        }
    }

    /// Uses the member that `other` uses.
    pub fn follow(&mut self, other: &Self) {
        if self.at != other.at {
            (self.at, self.link) = (other.at, None);
        }
        self.token.clone_from(&other.token);
    }

    /// Makes a call.
    ///
    /// # Errors
    /// [`EtcdRefusal`]: etcd refuses it, or no member answers.
    pub fn call(&mut self, call: &EtcdCall) -> Result<EtcdReply, EtcdRefusal> {
        self.with_token(|members| {
            let (status, body) = members.exchange(call, members.token.clone().as_deref())?;
            call.reply(status, &body)
        })
    }

    /// Begins a watch, on a link of its own.
    ///
    /// # Errors
    /// [`EtcdRefusal`]: etcd refuses it, or no member answers.
    pub fn watch(&mut self, call: &EtcdCall) -> Result<EtcdWatch, EtcdRefusal> {
        self.with_token(|members| {
            let link = members.connect()?;
            let request = request(members.member(), call.path(), members.token.as_deref(), &call.body());
            let begun = send_all(&link, &request, members.time_max).map_err(|error| members.lost(&error));
            begun.and_then(|()| members.read_head(call, link)).inspect_err(|_| members.pass_on())
        })
    }

    /// What is wrong with the link of a watch of this client.
    pub fn lost(&self, error: &io::Error) -> EtcdRefusal {
        let (kind, why) = match AuthorityError::of_link(error) {
            Some(AuthorityError::Certificate(why)) => (DirectoryFailureKind::Certificate, why),
            Some(AuthorityError::Link(why)) => (DirectoryFailureKind::Unreachable, why),
            None if error.kind() == io::ErrorKind::InvalidData => (DirectoryFailureKind::NotEtcd, error.to_string()),
            None if error.kind() == io::ErrorKind::TimedOut => {
                (DirectoryFailureKind::Unreachable, "it does not answer in time".to_owned())
            }
            None => (DirectoryFailureKind::Unreachable, error.to_string()),
        };
        EtcdRefusal::Trouble(DirectoryFailure::new(kind, format!("{}: {why}", self.member())))
    }

    /// Talks to the next member from now on.
    pub fn pass_on(&mut self) {
        self.link = None;
        self.at = (self.at + 1) % self.settings.members.len().max(1);
    }

    /// Does it with a token if there is a user, and once more if the token was too old.
    fn with_token<T>(&mut self, mut act: impl FnMut(&mut Self) -> Result<T, EtcdRefusal>) -> Result<T, EtcdRefusal> {
        self.authenticate()?;
        match act(self) {
            Err(EtcdRefusal::OldToken) if self.settings.user.is_some() => {
                self.token = None;
                self.authenticate()?;
                act(self)
            }
            done => done,
        }
    }

    fn authenticate(&mut self) -> Result<(), EtcdRefusal> {
        let Some(user) = self.settings.user.clone().filter(|_| self.token.is_none()) else { return Ok(()) };
        let password = self.settings.files.password.clone().unwrap_or_default();
        let call = EtcdCall::Authenticate { user, password };
        let (status, body) = self.exchange(&call, None)?;
        if let EtcdReply::Token(token) = call.reply(status, &body)? {
            // It goes into the head of requests.
            let is_word = token.bytes().all(|byte| byte.is_ascii_graphic());
            self.token = Some(token).filter(|_| is_word);
        }
        Ok(())
    }

    /// Sends a request and receives its answer. After a failure the next call is made to the next member.
    fn exchange(&mut self, call: &EtcdCall, token: Option<&str>) -> Result<EtcdResponse, EtcdRefusal> {
        // A link that its peer has closed meanwhile would make the call fail.
        let is_open = |link: &Link| matches!(link.try_receive(&mut [0]), Ok(None));
        let link = match self.link.take().filter(is_open) {
            Some(link) => link,
            None => self.connect()?,
        };
        let request = request(self.member(), call.path(), token, &call.body());
        let answered = send_all(&link, &request, self.time_max).and_then(|()| self.receive(&link));
        match answered {
            Ok(answer) => {
                // A member without a leader says so.
                match answer.0 {
                    503 | 504 => self.pass_on(),
                    _ => self.link = Some(link),
                }
                Ok(answer)
            }
            Err(error) => {
                let refusal = self.lost(&error);
                self.pass_on();
                Err(refusal)
            }
        }
    }

    /// Connects to the member that is talked to, or to the next that can be reached.
    fn connect(&mut self) -> Result<Link, EtcdRefusal> {
        let mut why: Option<DirectoryFailure> = None;
        for _ in 0..self.settings.members.len() {
            if self.stop.is_set() {
                break;
            }
            match self.connect_to(self.member()) {
                Ok(link) => return Ok(link),
                Err(trouble) => {
                    let is_worse = trouble.kind == DirectoryFailureKind::Certificate;
                    why = why.filter(|_| !is_worse).or(Some(trouble));
                }
            }
            self.pass_on();
        }
        let ending = || DirectoryFailure::new(DirectoryFailureKind::Unreachable, "the daemon ends");
        Err(EtcdRefusal::Trouble(why.unwrap_or_else(ending)))
    }

    fn connect_to(&self, member: &str) -> Result<Link, DirectoryFailure> {
        let unreachable = |why: String| DirectoryFailure::new(DirectoryFailureKind::Unreachable, why);
        let link = self
            .system
            .connect(member, CONNECT_TIME_MAX, SegmentSize::OfNetworks)
            .map_err(|error| unreachable(error.to_string()))?;
        let link = match &self.authority {
            None => link,
            Some(authority) => {
                let host = member.rsplit_once(':').map_or(member, |(host, _)| host);
                authority.connect(link, host).map_err(|error| match error {
                    AuthorityError::Certificate(why) => {
                        DirectoryFailure::new(DirectoryFailureKind::Certificate, format!("{member}: {why}"))
                    }
                    AuthorityError::Link(why) => unreachable(format!("{member}: {why}")),
                })?
            }
        };
        link.set_receive_timeout(Some(LOOK_EVERY)).map_err(|error| unreachable(error.to_string()))?;
        Ok(link)
    }

    fn receive(&self, link: &Link) -> io::Result<EtcdResponse> {
        let clock = BoottimeClock::start();
        let (mut reader, mut status, mut body) = (ResponseReader::default(), 0, Vec::new());
        let mut space = vec![0; RECEIVE_BYTES];
        loop {
            while let Some(piece) = reader.poll().map_err(not_http)? {
                match piece {
                    HttpResponsePart::Head(read) => status = read,
                    HttpResponsePart::Body(more) => body.extend(more),
                    HttpResponsePart::End => return Ok((status, body)),
                }
                if body.len() > ANSWER_BYTES_MAX {
                    return Err(not_http("the answer is too long"));
                }
            }
            match receive(link, &mut space)? {
                Some(count) => reader.handle(&space[..count]),
                None if self.stop.is_set() => return Err(io::ErrorKind::Interrupted.into()),
                None => {}
            }
            if clock.now() > Instant::ZERO + self.time_max {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }

    /// Reads the head of the answer to a watch, and all of the answer if it is a refusal.
    fn read_head(&self, call: &EtcdCall, link: Link) -> Result<EtcdWatch, EtcdRefusal> {
        let clock = BoottimeClock::start();
        let mut reader = ResponseReader::default();
        let mut space = vec![0; RECEIVE_BYTES];
        let (mut status, mut body) = (0, Vec::new());
        loop {
            let piece = reader.poll().map_err(|error| self.lost(&not_http(error)))?;
            match piece {
                Some(HttpResponsePart::Head(200)) => {
                    return Ok(EtcdWatch { link, reader, line: Vec::new(), lines: VecDeque::new(), is_over: false });
                }
                Some(HttpResponsePart::Head(read)) => status = read,
                Some(HttpResponsePart::Body(more)) if body.len() < LINE_BYTES_MAX => body.extend(more),
                Some(HttpResponsePart::Body(_) | HttpResponsePart::End) => {
                    return Err(call.reply(status, &body).err().unwrap_or(EtcdRefusal::OldToken));
                }
                None => match receive(&link, &mut space).map_err(|error| self.lost(&error))? {
                    Some(count) => reader.handle(&space[..count]),
                    None if self.stop.is_set() || clock.now() > Instant::ZERO + self.time_max => {
                        return Err(self.lost(&io::ErrorKind::TimedOut.into()));
                    }
                    None => {}
                },
            }
        }
    }
}

impl EtcdWatch {
    /// What the watch says next; `None` if it says nothing for a fraction of a second.
    ///
    /// # Errors
    /// The link was lost, or what comes is not a watch's.
    pub fn next(&mut self) -> io::Result<Option<Result<WatchUpdate, EtcdRefusal>>> {
        loop {
            if let Some(line) = self.lines.pop_front() {
                return Ok(Some(news(&line)));
            }
            if self.is_over {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the member ended the watch"));
            }
            while let Some(piece) = self.reader.poll().map_err(not_http)? {
                match piece {
                    HttpResponsePart::Body(bytes) => self.take(&bytes)?,
                    HttpResponsePart::Head(_) => {}
                    HttpResponsePart::End => {
                        self.is_over = true;
                        break;
                    }
                }
            }
            if self.lines.is_empty() && !self.is_over {
                let mut space = [0; RECEIVE_BYTES];
                match receive(&self.link, &mut space)? {
                    Some(count) => self.reader.handle(&space[..count]),
                    None => return Ok(None),
                }
            }
        }
    }

    fn take(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            self.line.extend_from_slice(&rest[..end]);
            let line = std::mem::take(&mut self.line);
            if !line.is_empty() {
                self.lines.push_back(line);
            }
            rest = &rest[end + 1..];
        }
        self.line.extend_from_slice(rest);
        match self.line.len() > LINE_BYTES_MAX {
            true => Err(not_http("a line of the watch is too long")),
            false => Ok(()),
        }
    }
}

fn not_http(why: impl ToString) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_string())
}

/// Receives what is there; `None` after a fraction of a second.
fn receive(link: &Link, space: &mut [u8]) -> io::Result<Option<usize>> {
    match link.receive(space) {
        Ok(0) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it closed the connection")),
        Ok(count) => Ok(Some(count)),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(None),
        Err(error) => Err(error),
    }
}
