//! The greeting of a session's link: hello and welcome, exchanged by a thread that may block.

use std::io::{self, IoSlice};
use std::time::{Duration, Instant};

use farbus_io_net::link::{Link, PollInterest, wait};
use farbus_session::ProtocolViolation;
use farbus_session::native::hello::{ExporterWelcome, GREETING_BYTES, ImporterHello, OPTIONS_BYTES_MAX};
use std::os::fd::AsFd;

/// Sends a hello and receives the welcome.
///
/// # Errors
/// The error of the system; `InvalidData` if the peer sends no valid welcome.
pub fn greet(link: &Link, hello: &ImporterHello, time_max: Duration) -> io::Result<ExporterWelcome> {
    let until = Instant::now() + time_max;
    say(link, &hello.encode(), until)?;
    hear(link, until, ExporterWelcome::decode)
}

/// Waits for the first byte of a link without consuming it; `None` if none came in time.
///
/// # Errors
/// The error of the system.
pub fn await_first_byte(link: &Link, time_max: Duration) -> io::Result<Option<u8>> {
    let mut interests = [PollInterest::new(link.as_fd(), false)];
    wait(&mut interests, Some(time_max))?;
    link.peek()
}

/// Receives a hello.
///
/// # Errors
/// The error of the system; `InvalidData` if the peer sends no valid hello.
pub fn hear_hello(link: &Link, time_max: Duration) -> io::Result<ImporterHello> {
    hear(link, Instant::now() + time_max, ImporterHello::decode)
}

/// Answers a hello.
///
/// # Errors
/// The error of the system.
pub fn welcome(link: &Link, welcome: &ExporterWelcome, time_max: Duration) -> io::Result<()> {
    say(link, &welcome.encode(), Instant::now() + time_max)
}

fn say(link: &Link, mut bytes: &[u8], until: Instant) -> io::Result<()> {
    loop {
        match link.try_send(&[IoSlice::new(bytes)])? {
            Some(count) => bytes = &bytes[count..],
            None => wait_for(link, true, until)?,
        }
        if bytes.is_empty() {
            break;
        }
    }
    while !link.try_flush()? {
        wait_for(link, true, until)?;
    }
    Ok(())
}

/// Receives exactly the greeting. The bytes after it belong to the session.
fn hear<T>(
    link: &Link,
    until: Instant,
    decode: impl Fn(&[u8]) -> Result<Option<(T, usize)>, ProtocolViolation>,
) -> io::Result<T> {
    let wrong = |reject: ProtocolViolation| io::Error::new(io::ErrorKind::InvalidData, reject);
    let mut bytes = [0; GREETING_BYTES + OPTIONS_BYTES_MAX];
    let (mut have, mut wanted) = (0, GREETING_BYTES);
    loop {
        match link.try_receive(&mut bytes[have..wanted])? {
            None => wait_for(link, false, until)?,
            Some(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Some(count) => have += count,
        }
        if let Some((heard, _)) = decode(&bytes[..have]).map_err(wrong)? {
            return Ok(heard);
        }
        if have == GREETING_BYTES && wanted == GREETING_BYTES {
            // The decoder has checked it against its limit.
            wanted += u32::from_le_bytes(bytes[12..16].try_into().expect("four bytes")) as usize;
        }
    }
}

fn wait_for(link: &Link, room: bool, until: Instant) -> io::Result<()> {
    if link.has_received() && !room {
        return Ok(());
    }
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let mut interests =
        [if room { PollInterest::new(link.as_fd(), true) } else { PollInterest::new(link.as_fd(), false) }];
    wait(&mut interests, Some(left))
}
