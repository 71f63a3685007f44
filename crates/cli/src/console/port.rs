//! The port of a console: an attachment of this user's that ends with the console, or an RFC 2217 server.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, IsTerminal};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use farbus::importer::client::DeviceTarget;
use farbus::importer::discovery::local_shares::target_from;
use farbus_control::failure::FailureKind;
use farbus_io_net::local::runtime_folder;
use serde_json::Value;

use crate::CommandFailure;

/// How long the device may take before its user learns that it is waited for.
const QUIET_TIME: Duration = Duration::from_secs(1);
/// How long a server may take to accept.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(10);

/// What a console is for.
#[derive(Clone, Debug)]
pub enum ConsoleTarget {
    Device(DeviceTarget),
    /// HOST:PORT of an RFC 2217 server.
    Server(String),
}

/// Reads what a console is for.
///
/// # Errors
/// It is neither a device nor an address.
pub fn console_target_from(word: &str) -> Result<ConsoleTarget, String> {
    match word.strip_prefix("rfc2217://") {
        Some(server) => Ok(ConsoleTarget::Server(server.trim_end_matches('/').to_owned())),
        None => target_from(word).map(ConsoleTarget::Device).map_err(|error| error.to_string()),
    }
}

/// A connection to a port.
#[derive(Debug)]
pub struct ConsolePort {
    pub socket: OwnedFd,
    /// What has the device, if that ends with the console.
    attachment: Option<PortAttachment>,
}

/// A process that has a device until this one ends.
#[derive(Debug)]
struct PortAttachment {
    process: Child,
    /// Passes on what it says.
    messages: Option<thread::JoinHandle<()>>,
}

impl PortAttachment {
    /// Ends it; returns its exit code.
    fn end(mut self) -> u8 {
        // The end of its input is what it waits for.
        drop(self.process.stdin.take());
        let status = self.process.wait();
        self.messages.take().map(thread::JoinHandle::join);
        status.ok().and_then(|status| status.code()).map_or(1, |code| u8::try_from(code).unwrap_or(1))
    }
}

impl ConsolePort {
    /// Connects to an RFC 2217 server.
    ///
    /// # Errors
    /// Nobody answers there.
    pub fn of_server(server: &str) -> Result<Self, CommandFailure> {
        use std::net::ToSocketAddrs;
        let failed = |what: String| CommandFailure::new(FailureKind::Network, format!("rfc2217://{server}: {what}"));
        let addresses = server.to_socket_addrs().map_err(|error| failed(error.to_string()))?;
        let mut last = "it has no address".to_owned();
        for address in addresses {
            match TcpStream::connect_timeout(&address, CONNECT_TIME_MAX) {
                Ok(stream) => {
                    stream
                        .set_nodelay(true)
                        .and_then(|()| stream.set_nonblocking(true))
                        .map_err(CommandFailure::local)?;
                    return Ok(Self { socket: stream.into(), attachment: None });
                }
                Err(error) => last = error.to_string(),
            }
        }
        Err(failed(last))
    }

    /// Attaches a device, with these options of `farbus attach`, by a process that ends with this one. `Err` holds the
    /// exit code of an attachment that has said why it failed.
    ///
    /// # Errors
    /// The system's; or the device cannot be had.
    pub fn of_device(target: &DeviceTarget, options: Vec<OsString>) -> Result<Result<Self, u8>, CommandFailure> {
        // No other process has this name.
        let path = runtime_folder::path().join(format!("console-{}.sock", std::process::id()));
        let mut command = Command::new(std::env::current_exe().map_err(CommandFailure::local)?);
        command.args(["attach", &target.to_string(), "--via", "rfc2217", "--json", "--end-with-input", "--socket"]);
        command.arg(&path).args(options).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if std::env::var_os("FARBUS_LOG").is_none() {
            command.env("FARBUS_LOG", "warn");
        }
        let mut process = command.spawn().map_err(CommandFailure::local)?;
        let messages = process.stderr.take().map(|stderr| thread::spawn(|| pass_on(stderr)));
        let answers = process.stdout.take().map(read_answer).expect("its output is a pipe");
        let attachment = PortAttachment { process, messages };
        let answer = match answers.recv_timeout(QUIET_TIME) {
            Err(RecvTimeoutError::Timeout) => {
                eprintln!("farbus: {} is waited for   (Ctrl-C ends)", target.shown());
                answers.recv().ok()
            }
            answer => answer.ok(),
        };
        if answer.is_none() {
            return Ok(Err(attachment.end()));
        }
        let stream = UnixStream::connect(&path).map_err(CommandFailure::local)?;
        stream.set_nonblocking(true).map_err(CommandFailure::local)?;
        Ok(Ok(Self { socket: stream.into(), attachment: Some(attachment) }))
    }

    /// Gives the port back; returns the exit code of what had it, 0 if all was well.
    pub fn end(self) -> u8 {
        self.attachment.map_or(0, PortAttachment::end)
    }
}

/// Says when the device is there, from a thread: `farbus attach --json` prints where. What follows is read and dropped.
fn read_answer(output: ChildStdout) -> Receiver<()> {
    let (sender, answers) = channel();
    thread::spawn(move || {
        let mut values = serde_json::Deserializer::from_reader(BufReader::new(output)).into_iter::<Value>();
        while let Some(Ok(value)) = values.next() {
            if value["at"].is_string() {
                // The console may have ended.
                let _ = sender.send(());
            }
        }
    });
    answers
}

/// Shows what the attachment says: a terminal that passes every key on does not begin its lines by itself.
fn pass_on(stderr: ChildStderr) {
    let (begin, end) = if io::stderr().is_terminal() { ("\r", "\r\n") } else { ("", "\n") };
    for line in BufReader::new(stderr).lines().map_while(io::Result::ok) {
        eprint!("{begin}{line}{end}");
    }
}
