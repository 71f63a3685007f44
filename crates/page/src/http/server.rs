//! Speaks HTTP to the clients that it is given, in a process without rights: it has its clients, and a line to the
//! process that has the rights.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::Poll;
use std::thread;
use std::time::Duration;

use farbus_control::daemon::Elsewhere;
use farbus_control::process::{ProcessDevice, ProcessStatus};
use farbus_control::session::Seconds;
use farbus_io_linux::sys::confine::{ConfinementNeeds, confine};
use farbus_io_linux::sys::descriptors;
use farbus_io_net::sys::passing::MessageSocket;
use farbus_io_net::trust::PageScope;
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_DISPOSITION, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName,
    HeaderValue, LOCATION, SET_COOKIE, WWW_AUTHENTICATE,
};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, Uri};
use serde::Serialize;
use serde_json::{Map, Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::sleep;

use crate::api::callers::PageCaller;
use crate::api::forms;
use crate::api::journal::EventJournal;
use crate::api::metrics;
use crate::api::openapi::RECORDING_TYPE;
use crate::api::refusal::HttpRefusal;
use crate::api::requests::{object_of, text_of};
use crate::api::routes::{self, PageEndpoint, RouteMatch};
use crate::api::schemas::Entered;
use crate::http::answers;
use crate::http::body::{EventStream, ResponseBody};
use crate::http::connection::{HyperStream, HyperTimer, UNREAD_TIME_MAX, WriteTimeoutStream};
use crate::http::drawn::ViewCache;
use crate::http::forming::PostedForm;
use crate::http::guard::{AdmittedRequest, PageOrigin, check};
use crate::http::html;
use crate::http::html::PageViewer;
use crate::http::secure::{self, CookieName, PageTlsAcceptor};
use crate::known::status::CombinedStatus;
use crate::line::asking::PageBrokerClient;
use crate::line::hex;
use crate::line::messages::{ClientCredentials, ConfinedPageConfig, PageAnswer, PageQuestion, StatusExtent};
use crate::pictures::PictureFormat;
use crate::view;
use crate::view::{DeviceDetails, DeviceLocator, PageView};

/// The type of a text.
const PLAIN: &str = "text/plain; charset=utf-8";
/// Streams of events at a time, of each kind of client. Fewer than connections: the page can be loaded while all are
/// taken.
pub const STREAMS_MAX: usize = 1024;
/// Descriptors that are none of a stream's: the page can be loaded, also where there can be few.
const OTHER_DESCRIPTORS: usize = 128;
/// Bodies of changes that arrive at a time.
pub const BODIES_MAX: usize = 256;
/// How long a browser waits for its answer that has shown a wrong code, and has a place meanwhile: a stranger can try
/// as often as there are places, each second.
const WRONG_CODE_PAUSE: Duration = Duration::from_secs(1);
/// The longest code that is asked about, bytes.
const CODE_BYTES_MAX: usize = 64;
/// Answers that clients have not read yet, all together, KiB. A whole answer has 8 MiB at most.
pub const UNREAD_KIB_MAX: usize = 32 << 10;
/// The head of a request, bytes, and its lines.
pub const HEAD_BYTES_MAX: usize = 16 << 10;
const HEAD_LINES_MAX: usize = 64;
/// How long a client may take to send a head; also, how long it may send nothing between two requests.
const HEAD_TIME_MAX: Duration = Duration::from_secs(10);
/// Where a browser of another machine shows its code, and the script that does it.
const ENTER_PAGE: &str = include_str!("enter.html");
const ENTER_SCRIPT: &str = include_str!("enter.js");
/// Connections that were passed and are not served yet.
const PASSED_MAX: usize = 16;

/// Runs the process, with the passage on which connections come as its standard input, until the other one ends.
/// It gives its rights away first, unless `is_sandboxed` is false.
///
/// # Errors
/// It cannot give them away, or the passage failed.
pub fn run(is_sandboxed: bool) -> io::Result<()> {
    // A service manager ends all processes of a service. This one ends after the one that started it.
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))?;
    }
    let still_has = match is_sandboxed {
        false => Some("keeps the rights of its user: --no-sandbox".to_owned()),
        true => {
            let needs = ConfinementNeeds { has_no_paths: true, ..ConfinementNeeds::default() };
            let confinement = confine(&needs).map_err(io::Error::other)?;
            confinement.files.as_ref().err().map(|_| confinement.to_string())
        }
    };
    let streams_max = descriptors::limit().soft.map_or(STREAMS_MAX, |soft| {
        usize::try_from(soft).unwrap_or(STREAMS_MAX).saturating_sub(OTHER_DESCRIPTORS).clamp(1, STREAMS_MAX)
    });
    let passage = MessageSocket::over(io::stdin().as_fd().try_clone_to_owned()?);
    let Some(first) = passage.receive()? else { return Ok(()) };
    let begin: ConfinedPageConfig = serde_json::from_slice(&first.bytes)?;
    let line = StdUnixStream::from(first.fd.ok_or(io::ErrorKind::InvalidData)?);
    line.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let stream = UnixStream::from_std(line)?;
        let (line, to_send) = PageBrokerClient::new(EventJournal::of(begin.epoch));
        let (pass, clients) = mpsc::channel(PASSED_MAX);
        thread::Builder::new().name("clients".into()).spawn(move || take_clients(&passage, &pass))?;
        line.confined(still_has);
        let server = Arc::new(PageServer::new(Arc::clone(&line), begin, streams_max)?);
        // When the line is closed, or no further connections can come, the other process has ended.
        first_of(line.run(stream, to_send), server.serve(clients)).await;
        Ok(())
    })
}

/// A connection that was passed: its number, the address of this machine that its client has reached over TLS, and the
/// connection, unless this process has no room for it.
struct PassedConnection {
    client: u64,
    reached: Option<IpAddr>,
    fd: Option<OwnedFd>,
}

/// Takes the connections that are passed, until the other process ends.
fn take_clients(passage: &MessageSocket, pass: &mpsc::Sender<PassedConnection>) {
    while let Ok(Some(parcel)) = passage.receive() {
        let Some((number, address)) = parcel.bytes.split_first_chunk() else { continue };
        let reached = std::str::from_utf8(address).ok().and_then(|text| text.parse().ok());
        let taken = PassedConnection { client: u64::from_be_bytes(*number), reached, fd: parcel.fd };
        if pass.blocking_send(taken).is_err() {
            return;
        }
    }
}

/// Polls both until one of them is over.
async fn first_of(one: impl Future<Output = ()>, other: impl Future<Output = ()>) {
    let (mut one, mut other) = (pin!(one), pin!(other));
    poll_fn(|cx| match one.as_mut().poll(cx).is_ready() || other.as_mut().poll(cx).is_ready() {
        true => Poll::Ready(()),
        false => Poll::Pending,
    })
    .await;
}

struct PageServer {
    line: Arc<PageBrokerClient>,
    streams: Arc<Semaphore>,
    streams_max: usize,
    /// Room for answers that are not read yet, KiB.
    unread: Arc<Semaphore>,
    /// Room for bodies that arrive.
    bodies: Semaphore,
    drawn: Arc<ViewCache>,
    is_tcp: bool,
    site: PageOrigin,
    elsewhere: Option<Elsewhere>,
    tls: Option<PageTlsAcceptor>,
    /// What the cookie is called with which a browser shows its token; `None`: none does.
    cookie: Option<CookieName>,
}

/// Tells the other process that a connection is closed.
struct ConnectionCloseGuard {
    line: Arc<PageBrokerClient>,
    client: u64,
}

impl Drop for ConnectionCloseGuard {
    fn drop(&mut self) {
        self.line.closed(self.client);
    }
}

impl PageServer {
    fn new(line: Arc<PageBrokerClient>, begin: ConfinedPageConfig, streams_max: usize) -> io::Result<Self> {
        let ConfinedPageConfig { port, tls, elsewhere, .. } = begin;
        let unread = Arc::new(Semaphore::new(UNREAD_KIB_MAX));
        let site = match (&tls, port) {
            (Some(tls), Some(port)) => PageOrigin::remote(port, tls.names.clone()),
            _ => PageOrigin::local(port),
        };
        Ok(Self {
            line,
            streams: Arc::new(Semaphore::new(streams_max)),
            streams_max,
            drawn: Arc::new(ViewCache::new(Arc::clone(&unread))),
            unread,
            bodies: Semaphore::new(BODIES_MAX),
            is_tcp: port.is_some(),
            site,
            cookie: elsewhere.as_ref().filter(|_| tls.is_some()).map(|of| CookieName::of(&of.fingerprint)),
            elsewhere,
            tls: tls.as_ref().map(PageTlsAcceptor::new).transpose()?,
        })
    }

    async fn serve(self: Arc<Self>, mut clients: mpsc::Receiver<PassedConnection>) {
        while let Some(PassedConnection { client, reached, fd }) = clients.recv().await {
            let open = ConnectionCloseGuard { line: Arc::clone(&self.line), client };
            // Without it there are too many; the other process hears that this one is closed.
            let Some(fd) = fd else { continue };
            // They were made not to block where they were accepted.
            let served = match self.is_tcp {
                true => TcpStream::from_std(fd.into()).map(|stream| {
                    let stream = WriteTimeoutStream::new(stream, UNREAD_TIME_MAX);
                    let site = match reached {
                        Some(address) => self.site.clone().reached_at(address),
                        None => self.site.clone(),
                    };
                    drop(tokio::spawn(Arc::clone(&self).greet(open, stream, site)));
                }),
                false => UnixStream::from_std(fd.into()).map(|stream| {
                    let stream = WriteTimeoutStream::new(stream, UNREAD_TIME_MAX);
                    drop(tokio::spawn(Arc::clone(&self).converse(open, stream, self.site.clone())));
                }),
            };
            if let Err(error) = served {
                tracing::debug!(%error, "a connection is not served");
            }
        }
    }

    /// Serves a connection over TCP, after the handshake of TLS if that is spoken.
    async fn greet(
        self: Arc<Self>,
        open: ConnectionCloseGuard,
        stream: WriteTimeoutStream<TcpStream>,
        site: PageOrigin,
    ) {
        match &self.tls {
            None => self.converse(open, stream, site).await,
            Some(acceptor) => {
                if let Some(stream) = acceptor.accept(stream).await {
                    Arc::clone(&self).converse(open, stream, site).await;
                }
            }
        }
    }

    async fn converse<S>(self: Arc<Self>, open: ConnectionCloseGuard, stream: S, site: PageOrigin)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let client = open.client;
        let ended = self.line.serves(client);
        let site = Arc::new(site);
        let answer = move |request| {
            let (server, site) = (Arc::clone(&self), Arc::clone(&site));
            async move { Ok::<_, Infallible>(server.within(server.answer(request, client, &site).await)) }
        };
        let mut http = http1::Builder::new();
        http.timer(HyperTimer).header_read_timeout(HEAD_TIME_MAX).max_headers(HEAD_LINES_MAX);
        http.max_buf_size(HEAD_BYTES_MAX).half_close(false);
        // A client that breaks the protocol, or goes, loses its connection and nothing else. So does one whose token
        // was revoked: whatever is sent to it ends there.
        let serving = http.serve_connection(HyperStream(stream), service_fn(answer));
        first_of(async { drop(serving.await) }, async { drop(ended.await) }).await;
        drop(open);
    }

    /// The answer, if there is room for it beside those that others have not read yet.
    fn within(&self, mut response: Response<ResponseBody>) -> Response<ResponseBody> {
        match response.body_mut().take_room(&self.unread) {
            true => response,
            false => error(StatusCode::SERVICE_UNAVAILABLE, "others have not read their answers yet"),
        }
    }

    async fn answer(&self, mut request: Request<Incoming>, client: u64, site: &PageOrigin) -> Response<ResponseBody> {
        let answered = self.try_answer(&mut request, client, site).await;
        answered.unwrap_or_else(|refusal| refused(&refusal))
    }

    async fn try_answer(
        &self,
        request: &mut Request<Incoming>,
        client: u64,
        site: &PageOrigin,
    ) -> Result<Response<ResponseBody>, HttpRefusal> {
        // What everybody gets, a browser gets also with a cookie that counts no more.
        let is_for_all = routes::find(request.uri().path()).is_some_and(|found| found.scope().is_none());
        let shown = secure::shown_by(request.headers(), self.cookie.as_ref().filter(|_| !is_for_all))?;
        let mut by = ClientCredentials { client, authorization: shown.authorization, scope: None };
        let caller = match self.line.ask(&by, PageQuestion::Who).await? {
            PageAnswer::Who { scope, has_token, called, until } => PageCaller { scope, has_token, called, until },
            _ => return Err(no_answer()),
        };
        by.scope = caller.scope;
        let by = &by;
        let passed = check(request.method(), request.uri(), request.headers(), &caller, (site, shown.is_cookie));
        let AdmittedRequest { found, length } = match passed {
            Ok(passed) => passed,
            Err(refusal) => {
                if request.method() == Method::POST && caller.scope.is_some() {
                    self.line.ask(by, PageQuestion::Refused { why: refusal.why.to_string() }).await?;
                }
                return Err(refusal);
            }
        };
        let is_stranger = site.is_remote() && caller.scope.is_none();
        let viewer = PageViewer { caller, is_let_in: shown.is_cookie };
        let mut answered = self.found((by, &viewer), request, found, length).await?;
        if is_stranger {
            // A stranger has a place for one request.
            answered.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        Ok(answered)
    }

    async fn found(
        &self,
        (by, viewer): (&ClientCredentials, &PageViewer),
        request: &mut Request<Incoming>,
        found: RouteMatch,
        length: u64,
    ) -> Result<Response<ResponseBody>, HttpRefusal> {
        let all = |_: &ProcessStatus, _: &ProcessDevice| true;
        let of_status = async |answer: fn(&CombinedStatus) -> Response<ResponseBody>| {
            Ok(answer(&*self.line.status(by, StatusExtent::Processes).await?))
        };
        match found.route.endpoint {
            PageEndpoint::Health
            | PageEndpoint::Style
            | PageEndpoint::Script
            | PageEndpoint::Plots
            | PageEndpoint::Uplot
            | PageEndpoint::UplotStyle
            | PageEndpoint::Icon
            | PageEndpoint::EnterPage
            | PageEndpoint::EnterScript
            | PageEndpoint::EnterStyle => file_of(found.route.endpoint),
            PageEndpoint::Enter => self.enter(by, request, length).await,
            PageEndpoint::Leave => self.leave(by).await,
            PageEndpoint::Form => self.form((by, viewer), request, found, length).await,
            PageEndpoint::Line => line(found, request.uri().query().unwrap_or_default()),
            PageEndpoint::Ready => of_status(ready).await,
            PageEndpoint::Page
            | PageEndpoint::HostsPage
            | PageEndpoint::Buses
            | PageEndpoint::Network
            | PageEndpoint::New
            | PageEndpoint::Device => match PageView::at(request.uri().path(), request.uri().query()) {
                Some(view) => self.view((by, viewer), view.for_scope(viewer.may()), request.uri()).await,
                None => Err(HttpRefusal::of(StatusCode::NOT_FOUND, "nothing is here")),
            },
            PageEndpoint::Latency => Ok(json_of(StatusCode::OK, &self.latency(by, found.number, request.uri()).await?)),
            PageEndpoint::LatencyPart => {
                // A view that asks as its device goes is told about that by its list: a browser would write an error of
                // its own into its log.
                Ok(match self.latency(by, found.number, request.uri()).await {
                    Ok(seconds) => text("text/html; charset=utf-8", view::latency(&seconds).into_string()),
                    Err(refusal) if refusal.status == StatusCode::NOT_FOUND => no_content(),
                    Err(refusal) => return Err(refusal),
                })
            }
            PageEndpoint::Table => of_status(|status| text("text/html; charset=utf-8", html::table(status))).await,
            PageEndpoint::Metrics => {
                let streams = self.streams_max - self.streams.available_permits().min(self.streams_max);
                let status = self.line.status(by, StatusExtent::Processes).await?;
                Ok(text(metrics::CONTENT_TYPE, metrics::metrics(&status, streams)))
            }
            PageEndpoint::Status => of_status(|status| json_of(StatusCode::OK, &status.processes)).await,
            PageEndpoint::Devices => {
                let status = self.line.status(by, StatusExtent::Processes).await?;
                Ok(json_of(StatusCode::OK, &answers::devices(&status, all)))
            }
            PageEndpoint::LabDevices => {
                let status = self.line.status(by, StatusExtent::Answered).await?;
                let wanted = PageView::wanted(request.uri().query());
                Ok(json_of(StatusCode::OK, &answers::lab(&status, &wanted)))
            }
            PageEndpoint::Shares => {
                of_status(|status| json_of(StatusCode::OK, &answers::devices(status, answers::is_shared))).await
            }
            PageEndpoint::Attachments => {
                of_status(|status| json_of(StatusCode::OK, &answers::devices(status, answers::is_attached))).await
            }
            PageEndpoint::PageEvents | PageEndpoint::Events if request.method() == Method::HEAD => {
                Ok(text("text/event-stream", String::new()))
            }
            PageEndpoint::PageEvents => self.page_events((by, viewer), request.uri()).await,
            PageEndpoint::Events => self.events(by, request).await,
            PageEndpoint::Description => Ok(json_of(StatusCode::OK, &answers::description())),
            PageEndpoint::Actions => Ok(json_of(StatusCode::OK, &answers::actions())),
            PageEndpoint::Hosts => self.hosts(by).await,
            PageEndpoint::Audit => self.value(by, PageQuestion::Audit).await,
            PageEndpoint::Operations => self.value(by, PageQuestion::Operations).await,
            PageEndpoint::Operation => self.value(by, PageQuestion::Operation { id: found.number }).await,
            // Its bytes are another's to read, and a HEAD reads nothing: it leaves no line in the log.
            PageEndpoint::Recording if request.method() == Method::HEAD => Ok(recording(found.number, Vec::new())),
            PageEndpoint::Recording => match self.line.ask(by, PageQuestion::Recording { id: found.number }).await? {
                PageAnswer::Bytes(hex) => Ok(recording(found.number, hex::decode(&hex).ok_or_else(no_answer)?)),
                _ => Err(no_answer()),
            },
            // A HEAD reads nothing here, either.
            PageEndpoint::RecordedText if request.method() == Method::HEAD => Ok(text(PLAIN, String::new())),
            PageEndpoint::RecordedText => {
                match self.line.ask(by, PageQuestion::RecordedText { id: found.number }).await? {
                    PageAnswer::Value(Value::String(message)) => Ok(text(PLAIN, message)),
                    _ => Err(no_answer()),
                }
            }
            PageEndpoint::NewestPicture => match self.line.ask(by, PageQuestion::Picture { id: found.number }).await? {
                PageAnswer::Bytes(hex) => picture(hex::decode(&hex).ok_or_else(no_answer)?),
                _ => Err(no_answer()),
            },
            PageEndpoint::Action | PageEndpoint::Stop => self.change(by, request, found, length).await,
        }
    }

    /// This host, those that are paired with it, and those that are known besides.
    async fn hosts(&self, by: &ClientCredentials) -> Result<Response<ResponseBody>, HttpRefusal> {
        let PageAnswer::Value(answer) = self.line.ask(by, PageQuestion::Hosts).await? else { return Err(no_answer()) };
        let status = self.line.status(by, StatusExtent::Answered).await?;
        Ok(json_of(StatusCode::OK, &answers::hosts(answer, &status.lab)))
    }

    /// What a page shows from now on, as events.
    async fn page_events(
        &self,
        (by, viewer): (&ClientCredentials, &PageViewer),
        uri: &Uri,
    ) -> Result<Response<ResponseBody>, HttpRefusal> {
        let permit = self.stream()?;
        let followed = PageView::followed(uri.query());
        let followed = followed.map(|(view, version)| (view.for_scope(viewer.may()), version));
        let (status, follow, _) = self.line.follow(by, false).await?;
        Ok(events(EventStream::new(status, (permit, follow), &self.drawn, followed)))
    }

    /// What happens from now on, or after the event that the client knows.
    async fn events(
        &self,
        by: &ClientCredentials,
        request: &Request<Incoming>,
    ) -> Result<Response<ResponseBody>, HttpRefusal> {
        let permit = self.stream()?;
        let (_, follow, before) = self.line.follow(by, true).await?;
        let last = request.headers().get("last-event-id").and_then(|last| last.to_str().ok());
        let follower = self.line.journal.follow_after(last, before);
        Ok(events(EventStream::numbered(follower, (permit, follow))))
    }

    /// Lets a browser in that shows a code.
    async fn enter(
        &self,
        by: &ClientCredentials,
        request: &mut Request<Incoming>,
        length: u64,
    ) -> Result<Response<ResponseBody>, HttpRefusal> {
        let given = self.body_of(request, length).await?;
        let code = given.get("code").and_then(Value::as_str).unwrap_or_default();
        let code = if code.len() <= CODE_BYTES_MAX { code.to_owned() } else { String::new() };
        match self.line.ask(by, PageQuestion::Enter { code }).await {
            Ok(PageAnswer::Entered { token, scope, lasts_s }) => {
                let mut response = json_of(StatusCode::OK, &json!(Entered { scope, lasts_s }));
                let cookie = self.cookie.as_ref().and_then(|name| name.set_cookie(&token, lasts_s));
                let cookie = cookie.ok_or_else(no_answer)?;
                response.headers_mut().insert(SET_COOKIE, cookie);
                Ok(response)
            }
            Ok(_) => Err(no_answer()),
            Err(refusal) => {
                sleep(WRONG_CODE_PAUSE).await;
                Err(refusal)
            }
        }
    }

    /// Ends the token of a browser, which forgets it.
    async fn leave(&self, by: &ClientCredentials) -> Result<Response<ResponseBody>, HttpRefusal> {
        self.line.ask(by, PageQuestion::Leave).await?;
        let mut response = text(PLAIN, "signed out\n".into());
        *response.status_mut() = StatusCode::SEE_OTHER;
        let headers = response.headers_mut();
        headers.insert(LOCATION, HeaderValue::from_static("/enter?left"));
        for cookie in self.cookie.iter().flat_map(CookieName::clear_cookies) {
            headers.append(SET_COOKIE, cookie);
        }
        // Its connections are about to be ended.
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
        Ok(response)
    }

    /// Does what a form says, and answers with a document: what became of it, with the command line.
    async fn form(
        &self,
        (by, viewer): (&ClientCredentials, &PageViewer),
        request: &mut Request<Incoming>,
        found: RouteMatch,
        length: u64,
    ) -> Result<Response<ResponseBody>, HttpRefusal> {
        let full = |_| HttpRefusal::of(StatusCode::SERVICE_UNAVAILABLE, "others send too much at a time");
        let body = {
            let _room = self.bodies.try_acquire().map_err(full)?;
            text_of(request.body_mut(), length).await?
        };
        let sent = PostedForm::of(request.uri().path(), found, &body);
        let (status, document) = match sent.before(&*self.line.status(by, StatusExtent::Processes).await?) {
            Some(answer) => answer,
            None => match self.line.ask(by, sent.question()).await {
                Ok(PageAnswer::Changed { status, body }) => sent.after(status, &body),
                Ok(_) => return Err(no_answer()),
                Err(refusal) => sent.refused(&refusal),
            },
        };
        let around = (viewer, self.elsewhere.as_ref());
        let mut response = text("text/html; charset=utf-8", html::answer(sent.title(), &document, around));
        *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Ok(response)
    }

    /// The object in the body of a change.
    async fn body_of(&self, request: &mut Request<Incoming>, length: u64) -> Result<Map<String, Value>, HttpRefusal> {
        let full = |_| HttpRefusal::of(StatusCode::SERVICE_UNAVAILABLE, "others send too much at a time");
        let _room = self.bodies.try_acquire().map_err(full)?;
        object_of(request.body_mut(), length).await
    }

    /// A place for a stream of events.
    fn stream(&self) -> Result<OwnedSemaphorePermit, HttpRefusal> {
        let full = |_| HttpRefusal::of(StatusCode::SERVICE_UNAVAILABLE, "too many follow the events");
        Arc::clone(&self.streams).try_acquire_owned().map_err(full)
    }

    async fn value(
        &self,
        by: &ClientCredentials,
        question: PageQuestion,
    ) -> Result<Response<ResponseBody>, HttpRefusal> {
        match self.line.ask(by, question).await? {
            PageAnswer::Value(value) => Ok(json_of(StatusCode::OK, &value)),
            _ => Err(no_answer()),
        }
    }

    async fn change(
        &self,
        by: &ClientCredentials,
        request: &mut Request<Incoming>,
        found: RouteMatch,
        length: u64,
    ) -> Result<Response<ResponseBody>, HttpRefusal> {
        debug_assert!(found.route.is_change(), "questions are answered above");
        let path = request.uri().path().to_owned();
        let given = self.body_of(request, length).await?;
        let PageAnswer::Changed { status, body } = self.line.ask(by, PageQuestion::Change { path, given }).await?
        else {
            return Err(no_answer());
        };
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = json_of(status, &body);
        if let Some(at) = body["at"].as_str().and_then(|at| HeaderValue::from_str(at).ok()) {
            response.headers_mut().insert(LOCATION, at);
        }
        Ok(response)
    }

    /// How long the requests of a device of this process took in each of the last seconds.
    async fn latency(&self, by: &ClientCredentials, process: u64, uri: &Uri) -> Result<Seconds, HttpRefusal> {
        let missing = || HttpRefusal::of(StatusCode::NOT_FOUND, "this process has no such device, or does not time it");
        let pid = u32::try_from(process).map_err(|_| missing())?;
        let which = DeviceLocator::with_pid(pid, uri.query().unwrap_or_default()).ok_or_else(missing)?;
        let pid = which.pid_in(&*self.line.status(by, StatusExtent::Processes).await?);
        match self.line.ask(by, PageQuestion::Latency { pid, name: which.name().to_owned() }).await? {
            PageAnswer::Value(answer) if answer.is_object() => serde_json::from_value(answer).map_err(|_| missing()),
            _ => Err(missing()),
        }
    }

    /// The document of a view.
    async fn view(
        &self,
        (by, viewer): (&ClientCredentials, &PageViewer),
        view: PageView,
        uri: &Uri,
    ) -> Result<Response<ResponseBody>, HttpRefusal> {
        let wanted = if view.has_others() { StatusExtent::Lab } else { StatusExtent::Processes };
        let status = self.line.status(by, wanted).await?;
        let details = match view.device() {
            None if view == PageView::New(PageScope::Own) => match self.line.ask(by, PageQuestion::Choices).await? {
                PageAnswer::Value(choices) => {
                    Some(serde_json::from_value::<DeviceDetails>(choices).unwrap_or_default())
                }
                _ => return Err(no_answer()),
            },
            None => None,
            Some(which) => {
                let question = PageQuestion::Details { pid: which.pid_in(&status), name: which.name().to_owned() };
                match self.line.ask(by, question).await? {
                    PageAnswer::Value(details) => {
                        Some(serde_json::from_value::<DeviceDetails>(details).unwrap_or_default())
                    }
                    _ => return Err(no_answer()),
                }
            }
        };
        let address = uri.path_and_query().map_or("/", |address| address.as_str());
        let (is_there, document) = {
            let around = (viewer, self.elsewhere.as_ref());
            html::document(&view, address, &status, details.as_ref(), around)
        };
        let mut response = text("text/html; charset=utf-8", document);
        response.headers_mut().insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY_OF_VIEWS));
        if !is_there {
            *response.status_mut() = StatusCode::NOT_FOUND;
        }
        Ok(response)
    }
}

/// The command line of a form with what its fields have now, and what is wrong with that.
fn line(found: RouteMatch, query: &str) -> Result<Response<ResponseBody>, HttpRefusal> {
    let action = found.action.ok_or_else(no_answer)?;
    let fields = view::pairs_in(query, forms::FIELDS_MAX);
    let value_of = |name: &str| fields.iter().find(|(known, _)| known == name).map(|(_, text)| text.clone());
    let (line, wrong) = forms::line(action, &forms::given(action, value_of));
    Ok(json_of(StatusCode::OK, &json!({ "line": line, "wrong": wrong })))
}

fn no_answer() -> HttpRefusal {
    HttpRefusal::of(StatusCode::INTERNAL_SERVER_ERROR, "the page has no answer")
}

/// A file for Wireshark.
fn recording(id: u64, bytes: Vec<u8>) -> Response<ResponseBody> {
    let mut response = response(StatusCode::OK, RECORDING_TYPE, ResponseBody::Whole(Some(Bytes::from(bytes))));
    if let Ok(named) = HeaderValue::from_str(&format!("attachment; filename=\"farbus-{id}.pcapng\"")) {
        response.headers_mut().insert(CONTENT_DISPOSITION, named);
    }
    response
}

/// A file that is in the program.
fn file_of(endpoint: PageEndpoint) -> Result<Response<ResponseBody>, HttpRefusal> {
    Ok(match endpoint {
        PageEndpoint::Health => text(PLAIN, "ok\n".into()),
        PageEndpoint::Style | PageEndpoint::EnterStyle => text("text/css; charset=utf-8", html::STYLE.into()),
        PageEndpoint::Script => text("text/javascript; charset=utf-8", html::SCRIPT.into()),
        PageEndpoint::Plots => text("text/javascript; charset=utf-8", html::PLOTS.into()),
        PageEndpoint::Uplot => kept("text/javascript; charset=utf-8", html::UPLOT),
        PageEndpoint::UplotStyle => kept("text/css; charset=utf-8", html::UPLOT_STYLE),
        PageEndpoint::Icon => return picture(html::ICON.to_vec()),
        PageEndpoint::EnterPage => text("text/html; charset=utf-8", ENTER_PAGE.into()),
        PageEndpoint::EnterScript => text("text/javascript; charset=utf-8", ENTER_SCRIPT.into()),
        _ => return Err(HttpRefusal::of(StatusCode::NOT_FOUND, "nothing is here")),
    })
}

/// A picture, perhaps of a stranger's stream: what it begins with says its type, which is one of two.
fn picture(bytes: Vec<u8>) -> Result<Response<ResponseBody>, HttpRefusal> {
    let kind = PictureFormat::of(&bytes).ok_or_else(no_answer)?;
    Ok(response(StatusCode::OK, kind.media_type(), ResponseBody::Whole(Some(Bytes::from(bytes)))))
}

fn events(events: EventStream) -> Response<ResponseBody> {
    response(StatusCode::OK, "text/event-stream", ResponseBody::Events(events))
}

fn ready(status: &CombinedStatus) -> Response<ResponseBody> {
    match &status.failure {
        None => text("text/plain; charset=utf-8", "ready\n".into()),
        Some(_) => error(StatusCode::SERVICE_UNAVAILABLE, "the processes cannot be asked"),
    }
}

fn json_of(status: StatusCode, value: &impl Serialize) -> Response<ResponseBody> {
    match serde_json::to_string(value) {
        Ok(json) => response(status, "application/json", ResponseBody::Whole(Some(Bytes::from(json)))),
        Err(_) => error(StatusCode::INTERNAL_SERVER_ERROR, "the answer is no JSON"),
    }
}

fn text(kind: &'static str, text: String) -> Response<ResponseBody> {
    response(StatusCode::OK, kind, ResponseBody::Whole(Some(Bytes::from(text))))
}

/// A text that its address never has another of: its browser keeps it for a year.
fn kept(kind: &'static str, text: &'static str) -> Response<ResponseBody> {
    let mut response = response(StatusCode::OK, kind, ResponseBody::Whole(Some(Bytes::from_static(text.as_bytes()))));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("private, max-age=31536000, immutable"));
    response
}

/// An answer for a script that changes nothing of what is seen.
fn no_content() -> Response<ResponseBody> {
    let mut response = text("text/html; charset=utf-8", String::new());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

fn error(status: StatusCode, why: &'static str) -> Response<ResponseBody> {
    refused(&HttpRefusal::of(status, why))
}

fn refused(refusal: &HttpRefusal) -> Response<ResponseBody> {
    let body = ResponseBody::Whole(Some(Bytes::from(format!("{}\n", refusal.why))));
    let mut response = response(refusal.status, "text/plain; charset=utf-8", body);
    // What follows on this connection may be the body that was refused.
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    if refusal.status == StatusCode::METHOD_NOT_ALLOWED {
        headers.insert(ALLOW, HeaderValue::from_static(refusal.allow));
    }
    if refusal.status == StatusCode::UNAUTHORIZED {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

/// The policy of a view, which may show pictures of this page besides what every answer may load.
const POLICY_OF_VIEWS: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
    connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'";
/// What every answer says to a browser, whatever it answers.
const FOR_BROWSERS: [(&str, &str); 6] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; \
         form-action 'self'; frame-ancestors 'none'",
    ),
    ("referrer-policy", "no-referrer"),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
];

fn response(status: StatusCode, kind: &'static str, body: ResponseBody) -> Response<ResponseBody> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    for (name, value) in FOR_BROWSERS {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    response
}
