//! The process of a page that has the rights of its user. It listens, and passes each connection to a confined process
//! ([`half`]), which speaks HTTP. It reads nothing of what clients send; it answers what the confined process asks.
//!
//! Programs of the user, and of root, have one confined process; those of other users have another one, and browsers of
//! other machines a third, each of which is started with the first of them. So a program of another user or machine
//! cannot reach its owner's process by what it sends.

pub mod asker;
pub mod clients;
mod entering;
mod half;
mod lab;
mod locking;
pub mod reading;
mod remote;
mod spare;

use std::fs;
use std::future::{Future, poll_fn};
use std::io;
use std::net::{SocketAddr, TcpListener as StdTcpListener};
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use farbus_control::daemon::Elsewhere;
use farbus_control::failure::CommandFailure;
use farbus_io_linux::sys::descriptors;
use farbus_io_linux::sys::tcp_owner::{PeerOwner, peer_owner};
use farbus_io_net::local::runtime_folder::{self, RuntimeFolder};
use farbus_io_net::sys::peer::PeerCredentials;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;
use tokio::time::sleep;

use self::asker::StatusPoller;
use self::clients::CONNECTIONS_MAX;
use self::half::{ConfinedProcess, PageServices};
use self::spare::{ACCEPT_PAUSE, LazyConfinedProcess};
use crate::api::callers::ClientKind;
use crate::api::journal::EventJournal;
use crate::api::operations::OperationRegistry;

/// Descriptors that a confined process has besides its connections.
const DESCRIPTORS_OF_OWN: usize = 32;
/// Where the page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageAddress {
    /// At an address of the loopback.
    Loopback(SocketAddr),
    /// At a socket in the user's runtime folder.
    Socket,
}

/// What a page is like.
#[derive(Clone, Debug)]
pub struct PageSettings {
    /// Where it is on this machine.
    pub address: PageAddress,
    /// The address at which browsers of other machines reach it over TLS, if they may.
    pub tls: Option<SocketAddr>,
    /// The names and addresses that they ask for, the first in the URL of an invitation; empty: those of this machine.
    pub names: Vec<String>,
    /// Whether the processes that speak HTTP are confined.
    pub is_sandboxed: bool,
}

impl PageSettings {
    /// A page for this machine alone, whose processes that speak HTTP are confined.
    pub fn local(address: PageAddress) -> Self {
        Self { address, tls: None, names: Vec::new(), is_sandboxed: true }
    }
}

/// Where a page is.
#[derive(Clone, Debug)]
pub struct PageLocation {
    /// Its place on this machine, in words.
    pub at: String,
    /// Where browsers of other machines find it: the URL, and the fingerprint of its certificate.
    pub elsewhere: Option<(String, String)>,
}

/// Answers until the future ends. Passes the place to `tell` when it answers.
///
/// # Errors
/// [`CommandFailure`]: it cannot listen there, or the process that speaks HTTP to the owner's programs has ended.
pub fn serve(
    settings: PageSettings,
    tell: impl FnOnce(PageLocation),
    end: impl Future<Output = ()>,
) -> Result<(), CommandFailure> {
    let PageSettings { address: page_address, tls, names, is_sandboxed } = settings;
    if let Err(error) = reading::tokens() {
        tracing::warn!(%error, "no token opens the page before this is mended");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(CommandFailure::local)?;
    runtime.block_on(async {
        let journal = EventJournal::default();
        let operations = OperationRegistry::new(journal.clone());
        let asker = StatusPoller::start(journal.clone(), operations.clone()).map_err(CommandFailure::local)?;
        let (remote_listener, remote) = tls.map(|address| remote::listen(address, names)).transpose()?.unzip();
        let elsewhere = remote.as_ref().map(|remote| {
            let Elsewhere { url, fingerprint } = remote.elsewhere.clone();
            (url, fingerprint)
        });
        let tell = |at| tell(PageLocation { at, elsewhere });
        let shared = |port| PageServices { asker, journal, operations, port, is_sandboxed, remote };
        match page_address {
            PageAddress::Loopback(address) if !address.ip().is_loopback() => Err(CommandFailure::local(format!(
                "{address} is no address of the loopback: the page is for this machine"
            ))),
            PageAddress::Loopback(address) => {
                let cannot = |error: io::Error| remote::cannot_listen(address, &error);
                let listener = StdTcpListener::bind(address).map_err(cannot)?;
                listener.set_nonblocking(true).map_err(cannot)?;
                let listener = TcpListener::from_std(listener).map_err(cannot)?;
                let address = listener.local_addr().map_err(cannot)?;
                let accept = async move || {
                    let (stream, _) = listener.accept().await?;
                    remote::set_options(&stream);
                    Ok((user_of_tcp(&stream), stream.into_std()?.into()))
                };
                let url = format!("http://{address}/");
                until_end(shared(Some(address.port())), (accept, remote_listener), || tell(url), end).await
            }
            PageAddress::Socket => {
                let name = format!("page-{}.sock", std::process::id());
                let listener = RuntimeFolder::make().map_err(io::Error::from).and_then(|folder| folder.listen(&name));
                let path = runtime_folder::path().join(&name);
                let cannot = |error| CommandFailure::local(format!("cannot listen on {}: {error}", path.display()));
                let listener = listener.map_err(cannot)?;
                listener.set_nonblocking(true).map_err(cannot)?;
                let listener = UnixListener::from_std(listener).map_err(cannot)?;
                let accept = async move || {
                    let (stream, _) = listener.accept().await?;
                    Ok((user_of_unix(&stream), stream.into_std()?.into()))
                };
                let url = format!("unix:{}", path.display());
                let ended = until_end(shared(None), (accept, remote_listener), || tell(url), end).await;
                let _ = fs::remove_file(&path);
                ended
            }
        }
    })
}

/// Serves until the future ends, or the process for the owner's programs does.
async fn until_end<A>(
    shared: PageServices,
    (accept, remote): (A, Option<TcpListener>),
    tell: impl FnOnce(),
    end: impl Future<Output = ()>,
) -> Result<(), CommandFailure>
where
    A: AsyncFn() -> io::Result<(Option<u32>, OwnedFd)>,
{
    let shared = Arc::new(shared);
    let half = ConfinedProcess::start(Arc::clone(&shared), ClientKind::Owner).await?;
    tell();
    let others = LazyConfinedProcess::of(&shared, ClientKind::Other);
    let remotes = Arc::new(LazyConfinedProcess::of(&shared, ClientKind::Remote));
    let accepting = remote.map(|listener| tokio::spawn(remote::accept(listener, Arc::clone(&remotes))));
    let accept = pin!(async {
        let owners = Arc::new(Semaphore::new(connections_max()));
        loop {
            let Ok((user, stream)) = accept().await else {
                sleep(ACCEPT_PAUSE).await;
                continue;
            };
            if is_owner(user) {
                let Ok(permit) = Arc::clone(&owners).try_acquire_owned() else { continue };
                half.pass(permit, &stream).await;
            } else if let Some(half) = others.half().await {
                half.pass_other(user, &stream).await;
            }
        }
    });
    let heard = pin!(half.hear());
    let ended = first(end, heard, accept).await;
    let how = half.end();
    accepting.iter().for_each(tokio::task::JoinHandle::abort);
    others.end();
    remotes.end();
    match ended {
        PageStopReason::Requested => Ok(()),
        PageStopReason::Line(why) => {
            Err(CommandFailure::local(format!("the process that speaks HTTP for the page {why}: {how}")))
        }
    }
}

/// How many connections the owner's process may have where there can be few descriptors.
fn connections_max() -> usize {
    let soft = descriptors::limit().soft.map_or(CONNECTIONS_MAX, |soft| usize::try_from(soft).unwrap_or(usize::MAX));
    soft.saturating_sub(DESCRIPTORS_OF_OWN).clamp(1, CONNECTIONS_MAX)
}

/// Why the page ends.
enum PageStopReason {
    /// It was asked to.
    Requested,
    /// The line to the process for the owner's programs.
    Line(String),
}

/// Polls all three until one of the first two is over; the third never is.
async fn first(
    end: impl Future<Output = ()>,
    line: impl Future<Output = String>,
    work: impl Future<Output = std::convert::Infallible>,
) -> PageStopReason {
    let (mut end, mut line, mut work) = (pin!(end), pin!(line), pin!(work));
    poll_fn(|cx| {
        if end.as_mut().poll(cx).is_ready() {
            return Poll::Ready(PageStopReason::Requested);
        }
        if let Poll::Ready(why) = line.as_mut().poll(cx) {
            return Poll::Ready(PageStopReason::Line(why));
        }
        match work.as_mut().poll(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(never) => match never {},
        }
    })
    .await
}

/// The user at the other end; `None`: one that is not known.
fn user_of_tcp(stream: &tokio::net::TcpStream) -> Option<u32> {
    match peer_owner(stream) {
        Ok(PeerOwner::User(user)) => Some(user),
        Ok(PeerOwner::Elsewhere | PeerOwner::Closed) | Err(_) => None,
    }
}

fn user_of_unix(stream: &tokio::net::UnixStream) -> Option<u32> {
    PeerCredentials::of(stream).map(|credentials| credentials.user()).ok()
}

fn is_owner(user: Option<u32>) -> bool {
    user.is_some_and(|user| user == runtime_folder::owner() || user == 0)
}
