//! The end of a process that has connections: unlike TCP's, what they hold goes with it, and nobody tells their peers.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

/// Whether the process ends.
static ENDING: LazyLock<watch::Sender<bool>> = LazyLock::new(|| watch::Sender::new(false));
/// The threads that have connections: each ends with an error where it is received from.
static THREADS: Mutex<Vec<Receiver<()>>> = Mutex::new(Vec::new());

/// Marks a thread that has connections, as long as it exists.
pub struct QuicThreadMark(#[expect(dead_code, reason = "its end is what is received")] SyncSender<()>);

impl QuicThreadMark {
    /// Marks the thread that begins now.
    pub fn begin() -> Self {
        let (ends, ended) = sync_channel(0);
        let mut threads = THREADS.lock().unwrap_or_else(PoisonError::into_inner);
        threads.retain(|thread| thread.try_recv() != Err(std::sync::mpsc::TryRecvError::Disconnected));
        threads.push(ended);
        Self(ends)
    }
}

/// Waits until the process ends.
pub async fn is_ending() {
    let mut receiver = ENDING.subscribe();
    // Its sender lives as long as the process.
    let _ = receiver.wait_for(|is_ending| *is_ending).await;
}

/// How long the last words of all links may take.
const FAREWELL_TIME_MAX: Duration = Duration::from_millis(500);

/// Sends what was written to links over QUIC before, and closes their connections, as the kernel does for TCP: for a
/// process that ends after this. Peers notice at once, and not only after a silence of 4 s. Waits 0.5 s at most.
pub fn end_quic() {
    let until = Instant::now() + FAREWELL_TIME_MAX;
    let threads = std::mem::take(&mut *THREADS.lock().unwrap_or_else(PoisonError::into_inner));
    if threads.is_empty() {
        return;
    }
    ENDING.send_replace(true);
    for thread in threads {
        let left = until.saturating_duration_since(Instant::now());
        let _ = thread.recv_timeout(left);
    }
}
