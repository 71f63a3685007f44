//! Listens, and answers.

use std::convert::Infallible;
use std::fs;
use std::future::{Future, poll_fn};
use std::io;
use std::net::{SocketAddr, TcpListener as StdTcpListener};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use farbus_io::sys::peer::Credentials;
use farbus_io::sys::tcp_owner::{PeerOwner, peer_owner};
use farbus_io::trust::{Folder, StateError, Tokens};
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue, LOCATION, WWW_AUTHENTICATE,
};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, Uri};
use serde::Serialize;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};

use super::api::callers::{Caller, Client};
use super::api::journal::Journal;
use super::api::operations::Operations;
use super::api::refusal::Refusal;
use super::api::routes::Endpoint;
use super::api::{doing, openapi};
use super::body::{Body, Events};
use super::connection::{Clock, Connection, UNREAD_TIME_MAX};
use super::guard::{Passed, check};
use super::status::{Asker, Status};
use super::view::View;
use super::{answers, html, metrics};
use crate::common::failure::Failure;
use crate::common::runtime_folder::{self, RuntimeFolder};

/// Connections of the owner at a time, and of others; a further one is closed at once.
pub const CONNECTIONS_MAX: usize = 128;
/// Connections of other users of this machine: theirs take nothing from the owner's.
pub const OTHERS_MAX: usize = 16;
/// Streams of events at a time. Fewer than connections: the page can be loaded while all are taken.
const STREAMS_MAX: usize = 64;
/// The head of a request, bytes, and its lines.
pub const HEAD_BYTES_MAX: usize = 16 << 10;
const HEAD_LINES_MAX: usize = 64;
/// How long a client may take to send a head; also, how long it may send nothing between two requests.
const HEAD_TIME_MAX: Duration = Duration::from_secs(10);
/// How long a request waits for the processes. One that is stopped takes ten seconds to be given up.
const STATUS_TIME_MAX: Duration = Duration::from_secs(30);
/// After an error of the system, such as too many open files, connections are taken again after this time.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Where the page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// At an address of the loopback.
    Loopback(SocketAddr),
    /// At a socket in the user's runtime folder.
    Socket,
}

/// Answers until the future ends. Passes the place, in words, to `tell` when it answers.
///
/// # Errors
/// [`Failure`]: it cannot listen there.
pub fn serve(place: Place, tell: impl FnOnce(String), end: impl Future<Output = ()>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::local)?;
    runtime.block_on(async {
        let journal = Journal::default();
        let asker = Asker::start(journal.clone()).map_err(Failure::local)?;
        let streams = Arc::new(Semaphore::new(STREAMS_MAX));
        match place {
            Place::Loopback(address) if !address.ip().is_loopback() => {
                Err(Failure::local(format!("{address} is no address of the loopback: the page is for this machine")))
            }
            Place::Loopback(address) => {
                let cannot = |error| Failure::local(format!("cannot listen on {address}: {error}"));
                let listener = StdTcpListener::bind(address).map_err(cannot)?;
                listener.set_nonblocking(true).map_err(cannot)?;
                let listener = TcpListener::from_std(listener).map_err(cannot)?;
                let address = listener.local_addr().map_err(cannot)?;
                let server = Arc::new(Server::new(asker, journal, streams, Some(address.port())));
                tell(format!("http://{address}/"));
                let accept = async || listener.accept().await.map(|(stream, _)| (client_of_tcp(&stream), stream));
                until(end, server.run(accept)).await;
                Ok(())
            }
            Place::Socket => {
                let name = format!("page-{}.sock", std::process::id());
                let listener = RuntimeFolder::make().map_err(io::Error::from).and_then(|folder| folder.listen(&name));
                let path = runtime_folder::path().join(&name);
                let cannot = |error| Failure::local(format!("cannot listen on {}: {error}", path.display()));
                let listener = listener.map_err(cannot)?;
                listener.set_nonblocking(true).map_err(cannot)?;
                let listener = UnixListener::from_std(listener).map_err(cannot)?;
                let server = Arc::new(Server::new(asker, journal, streams, None));
                tell(format!("unix:{}", path.display()));
                let accept = async || listener.accept().await.map(|(stream, _)| (client_of_unix(&stream), stream));
                until(end, server.run(accept)).await;
                let _ = fs::remove_file(&path);
                Ok(())
            }
        }
    })
}

/// Polls `work` until `end` is over.
async fn until(end: impl Future<Output = ()>, work: impl Future<Output = ()>) {
    let (mut end, mut work) = (pin!(end), pin!(work));
    poll_fn(|cx| if end.as_mut().poll(cx).is_ready() { Poll::Ready(()) } else { work.as_mut().poll(cx) }).await;
}

fn client_of_tcp(stream: &tokio::net::TcpStream) -> Client {
    match peer_owner(stream) {
        Ok(PeerOwner::User(user)) => client_of_user(user),
        Ok(PeerOwner::Elsewhere | PeerOwner::Closed) | Err(_) => Client::Other,
    }
}

fn client_of_unix(stream: &tokio::net::UnixStream) -> Client {
    Credentials::of(stream).map_or(Client::Other, |credentials| client_of_user(credentials.user()))
}

fn client_of_user(user: u32) -> Client {
    if user == runtime_folder::owner() || user == 0 { Client::Owner } else { Client::Other }
}

struct Server {
    asker: Asker,
    journal: Journal,
    operations: Operations,
    streams: Arc<Semaphore>,
    owners: Arc<Semaphore>,
    others: Arc<Semaphore>,
    port: Option<u16>,
}

impl Server {
    fn new(asker: Asker, journal: Journal, streams: Arc<Semaphore>, port: Option<u16>) -> Self {
        let (owners, others) = (Semaphore::new(CONNECTIONS_MAX), Semaphore::new(OTHERS_MAX));
        let operations = Operations::new(journal.clone());
        Self { asker, journal, operations, streams, owners: Arc::new(owners), others: Arc::new(others), port }
    }

    async fn run<S>(self: Arc<Self>, accept: impl AsyncFn() -> io::Result<(Client, S)>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        loop {
            let Ok((client, stream)) = accept().await else {
                sleep(ACCEPT_PAUSE).await;
                continue;
            };
            let places = if client == Client::Owner { &self.owners } else { &self.others };
            let Ok(permit) = Arc::clone(places).try_acquire_owned() else { continue };
            let server = Arc::clone(&self);
            tokio::spawn(async move {
                let answering = Arc::clone(&server);
                let answer = move |request| {
                    let server = Arc::clone(&answering);
                    async move { Ok::<_, Infallible>(server.answer(request, client).await) }
                };
                let mut http = http1::Builder::new();
                http.timer(Clock).header_read_timeout(HEAD_TIME_MAX).max_headers(HEAD_LINES_MAX);
                http.max_buf_size(HEAD_BYTES_MAX).half_close(false);
                // A client that breaks the protocol, or goes, loses its connection and nothing else.
                let _ = http.serve_connection(Connection::new(stream, UNREAD_TIME_MAX), service_fn(answer)).await;
                drop(permit);
            });
        }
    }

    async fn answer(&self, mut request: Request<Incoming>, client: Client) -> Response<Body> {
        let caller = match Caller::of(request.headers(), client, load_tokens) {
            Ok(caller) => caller,
            Err(refusal) => return refused(&refusal),
        };
        let passed = check(request.method(), request.uri(), request.headers(), &caller, self.port);
        let Passed { found, length } = match passed {
            Ok(passed) => passed,
            Err(refusal) => return refused(&refusal),
        };
        let all = |_: &Value, _: &Value| true;
        match found.route.endpoint {
            Endpoint::Health => text("text/plain; charset=utf-8", "ok\n".into()),
            Endpoint::Style => text("text/css; charset=utf-8", html::STYLE.into()),
            Endpoint::Script => text("text/javascript; charset=utf-8", html::SCRIPT.into()),
            Endpoint::Ready => self.with_status(ready).await,
            Endpoint::Page | Endpoint::Buses | Endpoint::Network | Endpoint::Device => {
                match View::at(request.uri().path(), request.uri().query()) {
                    Some(view) => self.view(view, request.uri()).await,
                    None => error(StatusCode::NOT_FOUND, "nothing is here"),
                }
            }
            Endpoint::Table => self.with_status(|status| text("text/html; charset=utf-8", html::table(status))).await,
            Endpoint::Metrics => self.with_status(|status| text(metrics::CONTENT_TYPE, metrics::metrics(status))).await,
            Endpoint::Status => self.with_status(|status| json(StatusCode::OK, &status.processes)).await,
            Endpoint::Devices => self.with_status(|status| json(StatusCode::OK, &answers::devices(status, all))).await,
            Endpoint::Shares => {
                self.with_status(|status| json(StatusCode::OK, &answers::devices(status, answers::is_shared))).await
            }
            Endpoint::Attachments => {
                self.with_status(|status| json(StatusCode::OK, &answers::devices(status, answers::is_attached))).await
            }
            Endpoint::Hosts => of_files(answers::hosts()),
            Endpoint::Audit => of_files(answers::audit()),
            Endpoint::PageEvents | Endpoint::Events if request.method() == Method::HEAD => {
                text("text/event-stream", String::new())
            }
            Endpoint::PageEvents => {
                let followed = View::followed(request.uri().query());
                self.stream(|permit| Events::new(self.asker.follow(), permit, followed))
            }
            Endpoint::Events => {
                let last = request.headers().get("last-event-id").and_then(|last| last.to_str().ok());
                let follower = self.journal.follow(last);
                self.stream(|permit| Events::numbered(follower, self.asker.follow(), permit))
            }
            Endpoint::Description => json(StatusCode::OK, &openapi::document()),
            Endpoint::Actions => json(StatusCode::OK, &answers::actions()),
            Endpoint::Operations => json(StatusCode::OK, &serde_json::json!({ "operations": self.operations.all() })),
            Endpoint::Operation => match self.operations.find(found.number) {
                Some(operation) => json(StatusCode::OK, &operation),
                None => error(StatusCode::NOT_FOUND, "no operation has this number, or it is forgotten"),
            },
            Endpoint::Action | Endpoint::Stop => {
                let done = doing::change(&self.operations, found, &caller, request.body_mut(), length).await;
                let (status, body) = match done {
                    Ok(done) => done,
                    Err(refusal) => return refused(&refusal),
                };
                // What it changed is to be seen at once.
                drop(self.asker.follow());
                let mut response = json(status, &body);
                if let Some(at) = body["at"].as_str().and_then(|at| HeaderValue::from_str(at).ok()) {
                    response.headers_mut().insert(LOCATION, at);
                }
                response
            }
        }
    }

    /// Answers with a stream of events, if there is a place for one.
    fn stream(&self, events: impl FnOnce(OwnedSemaphorePermit) -> Events) -> Response<Body> {
        match Arc::clone(&self.streams).try_acquire_owned() {
            Ok(permit) => response(StatusCode::OK, "text/event-stream", Body::Events(events(permit))),
            Err(_) => error(StatusCode::SERVICE_UNAVAILABLE, "too many follow the events"),
        }
    }

    /// The document of a view.
    async fn view(&self, view: View, uri: &Uri) -> Response<Body> {
        let asking = view.clone();
        // Another process answers it, and may take its time.
        let details = tokio::task::spawn_blocking(move || asking.ask()).await.unwrap_or_default();
        let address = uri.path_and_query().map_or("/", |address| address.as_str());
        self.with_status(|status| {
            let (is_there, document) = html::document(&view, address, status, details.as_ref());
            let mut response = text("text/html; charset=utf-8", document);
            if !is_there {
                *response.status_mut() = StatusCode::NOT_FOUND;
            }
            response
        })
        .await
    }

    async fn with_status(&self, answer: impl FnOnce(&Status) -> Response<Body>) -> Response<Body> {
        match timeout(STATUS_TIME_MAX, self.asker.fresh()).await {
            Ok(Some(status)) => answer(&status),
            Ok(None) | Err(_) => error(StatusCode::SERVICE_UNAVAILABLE, "the processes cannot be asked"),
        }
    }
}

fn ready(status: &Status) -> Response<Body> {
    match &status.failure {
        None => text("text/plain; charset=utf-8", "ready\n".into()),
        Some(_) => error(StatusCode::SERVICE_UNAVAILABLE, "the processes cannot be asked"),
    }
}

fn load_tokens() -> Result<Tokens, StateError> {
    Tokens::load(&Folder::of_user()?)
}

fn json(status: StatusCode, value: &impl Serialize) -> Response<Body> {
    match serde_json::to_string(value) {
        Ok(json) => response(status, "application/json", Body::Whole(Some(Bytes::from(json)))),
        Err(_) => error(StatusCode::INTERNAL_SERVER_ERROR, "the answer is no JSON"),
    }
}

/// What was read of the owner's files.
fn of_files(read: Result<Value, StateError>) -> Response<Body> {
    match read {
        Ok(value) => json(StatusCode::OK, &value),
        Err(_) => error(StatusCode::INTERNAL_SERVER_ERROR, "the state folder cannot be read: see 'farbus doctor'"),
    }
}

fn text(kind: &'static str, text: String) -> Response<Body> {
    response(StatusCode::OK, kind, Body::Whole(Some(Bytes::from(text))))
}

fn error(status: StatusCode, why: &'static str) -> Response<Body> {
    refused(&Refusal::of(status, why))
}

fn refused(refusal: &Refusal) -> Response<Body> {
    let body = Body::Whole(Some(Bytes::from(format!("{}\n", refusal.why))));
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

fn response(status: StatusCode, kind: &'static str, body: Body) -> Response<Body> {
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
