//! A connection as hyper reads and writes it, with a limit on how long its client may not read.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use hyper::rt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep, sleep_until};

/// How long a client may take until it reads something of what is sent to it.
pub const UNREAD_TIME_MAX: Duration = Duration::from_secs(10);
/// How much is received at once.
const READ_BYTES: usize = 4096;

/// What is sent to a client that has to read: a write that the kernel takes nothing of for too long is an error. It is
/// below TLS, which takes more than the kernel does: what TLS holds has not been read.
pub struct WriteTimeoutStream<S> {
    stream: S,
    unread_time_max: Duration,
    /// When the client has not read for too long; `None` while it reads.
    limit: Option<Pin<Box<Sleep>>>,
}

impl<S> WriteTimeoutStream<S> {
    /// The connection over this stream, whose client may read nothing for so long.
    pub fn new(stream: S, unread_time_max: Duration) -> Self {
        Self { stream, unread_time_max, limit: None }
    }

    /// Ends a write that has been waiting for the client for too long.
    fn limited<T>(&mut self, cx: &mut Context<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.limit = None;
            return polled;
        }
        let time_max = self.unread_time_max;
        ready!(self.limit.get_or_insert_with(|| Box::pin(sleep(time_max))).as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeoutStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, to)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteTimeoutStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.limited(cx, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.limited(cx, polled)
    }

    // A socket holds nothing that could be flushed: neither this nor a shutdown waits for the client.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// A stream as hyper reads and writes it.
pub struct HyperStream<S>(pub S);

impl<S: AsyncRead + Unpin> rt::Read for HyperStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut to: rt::ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let mut bytes = [0; READ_BYTES];
        let room = to.remaining().min(READ_BYTES);
        let mut read = ReadBuf::new(&mut bytes[..room]);
        ready!(Pin::new(&mut self.0).poll_read(cx, &mut read))?;
        to.put_slice(read.filled());
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> rt::Write for HyperStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    /// An answer is not copied: it is held until it was sent (`body.rs`).
    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, parts)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// The clock of the runtime, for hyper's own limits.
#[derive(Clone, Copy, Debug)]
pub struct HyperTimer;

struct HyperSleep(Pin<Box<Sleep>>);

impl Future for HyperSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(cx)
    }
}

impl rt::Sleep for HyperSleep {}

impl rt::Timer for HyperTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn rt::Sleep>> {
        Box::pin(HyperSleep(Box::pin(sleep(duration))))
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn rt::Sleep>> {
        Box::pin(HyperSleep(Box::pin(sleep_until(deadline.into()))))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncWriteExt, BufWriter};
    use tokio::net::UnixStream;
    use tokio::task::yield_now;

    use super::*;

    #[test]
    fn a_client_that_reads_nothing_loses_its_connection() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (ours, _theirs) = UnixStream::pair().unwrap();
            let mut connection = WriteTimeoutStream::new(ours, Duration::from_millis(20));
            let mut written = 0;
            let end = loop {
                match connection.write(&[0; 4096]).await {
                    Ok(count) => written += count,
                    Err(error) => break error.kind(),
                }
                assert!(written < 64 << 20, "nobody reads it");
            };
            assert_eq!(end, io::ErrorKind::TimedOut);
        });
    }

    /// TLS takes an event before the kernel does.
    #[test]
    fn what_a_layer_above_takes_does_not_count_as_read() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (ours, _theirs) = UnixStream::pair().unwrap();
            let mut above =
                BufWriter::with_capacity(64 << 20, WriteTimeoutStream::new(ours, Duration::from_millis(20)));
            let mut written = 0;
            let end = loop {
                above.write_all(&[0; 24]).await.unwrap();
                written += 24;
                let flushed = poll_fn(|cx| match Pin::new(&mut above).poll_flush(cx) {
                    Poll::Ready(Err(error)) => Poll::Ready(Some(error.kind())),
                    _ => Poll::Ready(None),
                });
                if let Some(end) = flushed.await {
                    break end;
                }
                assert!(written < 32 << 20, "nobody reads it");
                yield_now().await;
            };
            assert_eq!(end, io::ErrorKind::TimedOut);
        });
    }
}
