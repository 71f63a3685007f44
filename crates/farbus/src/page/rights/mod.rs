//! The process of a page that has the rights of its user. It listens, and passes each connection to a confined process
//! ([`half`]), which speaks HTTP. It reads nothing of what clients send; it answers what the confined process asks.
//!
//! Programs of the user, and of root, have one confined process; those of other users have another one, which is
//! started with the first of them. So a program of another user cannot reach its owner's process by what it sends.

pub mod asker;
mod half;
mod reading;

use std::fs;
use std::future::{Future, poll_fn};
use std::io;
use std::net::{SocketAddr, TcpListener as StdTcpListener};
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::{Duration, Instant};

use farbus_io::sys::peer::Credentials;
use farbus_io::sys::tcp_owner::{PeerOwner, peer_owner};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;
use tokio::time::sleep;
use tracing::warn;

use self::asker::Asker;
use self::half::{Half, Shared, lock};
use super::api::callers::Client;
use super::api::journal::Journal;
use super::api::operations::Operations;
use crate::common::failure::Failure;
use crate::common::runtime_folder::{self, RuntimeFolder};

/// Connections of the owner at a time, and of others; a further one is closed at once.
pub const CONNECTIONS_MAX: usize = 128;
/// Connections of other users of this machine: theirs take nothing from the owner's.
pub const OTHERS_MAX: usize = 16;
/// After an error of the system, such as too many open files, connections are taken again after this time.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The process for other users' programs is not started again sooner than so long after it was started last.
const RESTART_PAUSE: Duration = Duration::from_secs(1);

/// Where the page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// At an address of the loopback.
    Loopback(SocketAddr),
    /// At a socket in the user's runtime folder.
    Socket,
}

/// Answers until the future ends. Passes the place, in words, to `tell` when it answers. The processes that speak HTTP
/// are confined unless `is_sandboxed` is false.
///
/// # Errors
/// [`Failure`]: it cannot listen there, or the process that speaks HTTP to the owner's programs has ended.
pub fn serve(
    place: Place,
    is_sandboxed: bool,
    tell: impl FnOnce(String),
    end: impl Future<Output = ()>,
) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::local)?;
    runtime.block_on(async {
        let journal = Journal::default();
        let operations = Operations::new(journal.clone());
        let asker = Asker::start(journal.clone(), operations.clone()).map_err(Failure::local)?;
        let shared = |port| Shared { asker, journal, operations, port, is_sandboxed };
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
                let accept = async move || {
                    let (stream, _) = listener.accept().await?;
                    Ok((client_of_tcp(&stream), stream.into_std()?.into()))
                };
                let place = format!("http://{address}/");
                until_end(shared(Some(address.port())), accept, || tell(place), end).await
            }
            Place::Socket => {
                let name = format!("page-{}.sock", std::process::id());
                let listener = RuntimeFolder::make().map_err(io::Error::from).and_then(|folder| folder.listen(&name));
                let path = runtime_folder::path().join(&name);
                let cannot = |error| Failure::local(format!("cannot listen on {}: {error}", path.display()));
                let listener = listener.map_err(cannot)?;
                listener.set_nonblocking(true).map_err(cannot)?;
                let listener = UnixListener::from_std(listener).map_err(cannot)?;
                let accept = async move || {
                    let (stream, _) = listener.accept().await?;
                    Ok((client_of_unix(&stream), stream.into_std()?.into()))
                };
                let place = format!("unix:{}", path.display());
                let ended = until_end(shared(None), accept, || tell(place), end).await;
                let _ = fs::remove_file(&path);
                ended
            }
        }
    })
}

/// Serves until the future ends, or the process for the owner's programs does.
async fn until_end<A>(
    shared: Shared,
    accept: A,
    tell: impl FnOnce(),
    end: impl Future<Output = ()>,
) -> Result<(), Failure>
where
    A: AsyncFn() -> io::Result<(Client, OwnedFd)>,
{
    let shared = Arc::new(shared);
    let half = Half::start(Arc::clone(&shared)).await?;
    tell();
    let others = Others { shared, has: Arc::default() };
    let accept = pin!(async {
        let (owners, strangers) = (Arc::new(Semaphore::new(CONNECTIONS_MAX)), Arc::new(Semaphore::new(OTHERS_MAX)));
        loop {
            let Ok((client, stream)) = accept().await else {
                sleep(ACCEPT_PAUSE).await;
                continue;
            };
            let places = if client == Client::Owner { &owners } else { &strangers };
            let Ok(permit) = Arc::clone(places).try_acquire_owned() else { continue };
            match client {
                Client::Owner => half.pass(client, permit, &stream),
                Client::Other => {
                    if let Some(half) = others.half().await {
                        half.pass(client, permit, &stream);
                    }
                }
            }
        }
    });
    let heard = pin!(half.hear());
    let ended = first(end, heard, accept).await;
    let how = half.end();
    others.end();
    match ended {
        Ended::Asked => Ok(()),
        Ended::Line(why) => Err(Failure::local(format!("the process that speaks HTTP for the page {why}: {how}"))),
    }
}

/// Why the page ends.
enum Ended {
    /// It was asked to.
    Asked,
    /// The line to the process for the owner's programs.
    Line(String),
}

/// Polls all three until one of the first two is over; the third never is.
async fn first(
    end: impl Future<Output = ()>,
    line: impl Future<Output = String>,
    work: impl Future<Output = std::convert::Infallible>,
) -> Ended {
    let (mut end, mut line, mut work) = (pin!(end), pin!(line), pin!(work));
    poll_fn(|cx| {
        if end.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Ended::Asked);
        }
        if let Poll::Ready(why) = line.as_mut().poll(cx) {
            return Poll::Ready(Ended::Line(why));
        }
        match work.as_mut().poll(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(never) => match never {},
        }
    })
    .await
}

/// The process for programs of other users.
struct Others {
    shared: Arc<Shared>,
    has: Arc<Mutex<Has>>,
}

#[derive(Default)]
struct Has {
    half: Option<Arc<Half>>,
    started: Option<Instant>,
}

impl Others {
    /// The process; it is started if there is none. `None`: it cannot be, or was a moment ago.
    async fn half(&self) -> Option<Arc<Half>> {
        {
            let mut has = lock(&self.has);
            if let Some(half) = &has.half {
                return Some(Arc::clone(half));
            }
            if has.started.is_some_and(|started| started.elapsed() < RESTART_PAUSE) {
                return None;
            }
            has.started = Some(Instant::now());
        }
        let half = Half::start(Arc::clone(&self.shared)).await;
        let half = half.inspect_err(|error| warn!(%error, "programs of other users are not answered")).ok()?;
        lock(&self.has).half = Some(Arc::clone(&half));
        let (has, heard) = (Arc::clone(&self.has), Arc::clone(&half));
        tokio::spawn(async move {
            let why = heard.hear().await;
            lock(&has).half = None;
            warn!(why, how = heard.end(), "the process for programs of other users has ended; the next one starts it");
        });
        Some(half)
    }

    fn end(&self) {
        if let Some(half) = lock(&self.has).half.take() {
            half.end();
        }
    }
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
