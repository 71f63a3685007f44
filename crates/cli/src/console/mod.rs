//! `farbus console`: a terminal on a serial port of another machine.
//!
//! | file | what is in it |
//! |---|---|
//! | `port` | the attachment, or the server, that has the port |
//! | `keys` | what is typed for the port, and what for the console |
//! | `settings` | rate, format, control lines |
//! | `terminal` | the terminal itself |

mod keys;
mod port;
mod settings;
mod terminal;

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use farbus_page::console_text::ConsoleText;
use farbus_session::rfc2217::{ComPortRequest, Rfc2217Client, Rfc2217ClientEvent};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::pipe;

use self::keys::{ConsoleKey, EnterBytes, Escape, KeyReader, LETTERS, escape_from, key_name};
use self::port::{ConsolePort, ConsoleTarget, console_target_from};
use self::settings::{LineFlow, LineFormat, LineSettings};
use self::terminal::RawTerminal;
use super::CommandFailure;
use super::ending::end;
use super::link_args::LinkArgs;

/// Typed bytes that wait for the port before no more are read: more than anybody pastes, so that the key that leaves is
/// read although the port takes nothing.
const TYPED_BYTES_MAX: usize = 1 << 20;
/// Bytes on the way to the port before no more are added.
const UNSENT_BYTES_MAX: usize = 16 << 10;
/// How long a break lasts.
const BREAK_TIME: Duration = Duration::from_millis(250);

/// Type into a serial port of another machine.
///
/// Ctrl-] q leaves, Ctrl-] ? says what else there is.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    farbus console lab3/esp32\n  \
    farbus console lab3/esp32 --rate 9600 --log boot.log\n  \
    farbus console rfc2217://127.0.0.1:2217      what is attached by --via rfc2217\n  \
    farbus console lab3/board --line-pace 50 --quiet-end 2 <commands.txt\n  \
    farbus observe lab3/esp32 --console          watch beside the one who types\n\n\
    Exit codes: those of 'farbus attach'.")]
pub struct ConsoleArgs {
    /// What to use: [HOST[:PORT]/]DEVICE, or rfc2217://HOST:PORT.
    #[arg(value_parser = console_target_from)]
    target: ConsoleTarget,
    /// Bits a second.
    #[arg(long, visible_alias = "baud", default_value_t = 115_200, value_name = "RATE", value_parser = clap::value_parser!(u32).range(1..))]
    rate: u32,
    /// Data bits, parity, stop bits.
    #[arg(long, default_value = "8N1")]
    format: LineFormat,
    /// Who may pause whom.
    #[arg(long, value_enum, default_value_t)]
    flow: LineFlow,
    /// What Enter sends.
    ///
    /// Also at the ends of lines that come from a file.
    #[arg(long, value_enum, default_value_t)]
    enter: EnterBytes,
    /// Show what is typed; for a device that does not.
    #[arg(long)]
    echo: bool,
    /// The key before a command to the console.
    ///
    /// A control key (^A), a character, or 'none'. Typed twice it is sent.
    #[arg(long, value_name = "KEY", default_value = "^]", value_parser = escape_from)]
    escape: Escape,
    /// Append what is shown to a file.
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Pass every byte on, both ways.
    ///
    /// What a device sends may then command the terminal: set its title, fill its clipboard, have it answer. Without
    /// this, colours and movements of the cursor are all that is left of it. The log has every byte, too.
    #[arg(long)]
    raw: bool,
    /// A pause behind each byte that is sent, in ms.
    #[arg(long, value_name = "MS", default_value_t = 0)]
    pace: u32,
    /// A pause behind each line that is sent, in ms.
    ///
    /// For a device that loses what is pasted.
    #[arg(long, value_name = "MS", default_value_t = 0)]
    line_pace: u32,
    /// Seconds of silence after the input's end.
    ///
    /// When standard input is a file or a pipe, and it has ended, and the device sends nothing for so long, the console
    /// ends.
    #[arg(long, value_name = "SECONDS", default_value_t = 1)]
    quiet_end: u32,
    /// Wait while another host uses the device.
    ///
    /// Without SECONDS there is no limit. The host that has waited longest comes next.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true)]
    wait: Option<Option<u64>>,
    #[command(flatten)]
    link: LinkArgs,
}

/// Why a console ended.
enum ConsoleEnd {
    /// Its user left, or its input is over.
    Left,
    /// Nobody reads what it shows.
    Unread,
    /// The port is gone.
    Gone,
    Signal(i32),
}

/// Carries out `farbus console`.
pub fn run(args: ConsoleArgs) -> Result<(), CommandFailure> {
    let log = args.log.as_ref().map(|path| {
        let opened = File::options().append(true).create(true).open(path);
        opened.map_err(|error| CommandFailure::local(format!("--log {}: {error}", path.display())))
    });
    let log = log.transpose()?;
    let (port, shown) = match &args.target {
        ConsoleTarget::Server(server) => (ConsolePort::of_server(server)?, format!("rfc2217://{server}")),
        ConsoleTarget::Device(target) => match ConsolePort::of_device(target, attach_options(&args))? {
            Ok(port) => (port, target.shown()),
            Err(code) => end(code),
        },
    };
    let terminal = RawTerminal::new().map_err(CommandFailure::local)?;
    let mut console = Console::new(&args, &terminal, log);
    if terminal.is_typed_at() {
        let keys = args.escape.0.map_or(String::new(), |key| format!("   ({0} q leaves, {0} ? helps)", key_name(key)));
        terminal.say(&format!("{shown}, {}{keys}", console.line.describe()));
    }
    let ended = console.converse(&port);
    let has_second_screen = console.has_second_screen;
    terminal.clear_up(console.has_sequences, has_second_screen);
    drop(terminal);
    let code = port.end();
    match ended.map_err(CommandFailure::local)? {
        ConsoleEnd::Gone if code == 0 => eprintln!("\nfarbus: {shown} has ended the connection"),
        ConsoleEnd::Signal(signal) => end(128 + u8::try_from(signal).unwrap_or(0)),
        ConsoleEnd::Gone | ConsoleEnd::Left | ConsoleEnd::Unread => {}
    }
    if code == 0 { Ok(()) } else { end(code) }
}

/// The options of the attachment that has the device meanwhile.
fn attach_options(args: &ConsoleArgs) -> Vec<OsString> {
    let wait = args.wait.map(|limit| limit.map_or("--wait".to_owned(), |seconds| format!("--wait={seconds}")));
    args.link.words().into_iter().chain(wait).map(OsString::from).collect()
}

/// A conversation between a terminal and a port.
struct Console<'t> {
    terminal: &'t RawTerminal,
    client: Rfc2217Client,
    keys: KeyReader,
    escape: Option<u8>,
    line: LineSettings,
    /// What is typed and not sent.
    typed: VecDeque<u8>,
    has_input_ended: bool,
    byte_pause: Duration,
    line_pause: Duration,
    /// Before then nothing more is sent.
    paced_until: Option<Instant>,
    break_until: Option<Instant>,
    quiet_end: Duration,
    /// When something was sent or came last.
    moved_at: Instant,
    is_echoing: bool,
    /// `None`: every byte is shown.
    text: Option<ConsoleText>,
    log: Option<File>,
    has_sequences: bool,
    has_second_screen: bool,
}

impl<'t> Console<'t> {
    fn new(args: &ConsoleArgs, terminal: &'t RawTerminal, log: Option<File>) -> Self {
        let line =
            LineSettings { rate: args.rate, format: args.format, flow: args.flow, dtr: true, rts: true, modem: None };
        let mut client = Rfc2217Client::new();
        line.requests().iter().for_each(|request| client.request(request));
        // A file has no keys for the console.
        let escape = args.escape.0.filter(|_| terminal.is_typed_at());
        Self {
            terminal,
            client,
            keys: KeyReader::new(escape, (!args.raw).then_some(args.enter)),
            escape,
            line,
            typed: VecDeque::new(),
            has_input_ended: false,
            byte_pause: Duration::from_millis(args.pace.into()),
            line_pause: Duration::from_millis(args.line_pace.into()),
            paced_until: None,
            break_until: None,
            quiet_end: Duration::from_secs(args.quiet_end.into()),
            moved_at: Instant::now(),
            is_echoing: args.echo,
            text: (!args.raw).then(ConsoleText::for_terminal),
            log,
            has_sequences: false,
            has_second_screen: false,
        }
    }

    /// Exchanges until one of them ends it.
    fn converse(&mut self, port: &ConsolePort) -> io::Result<ConsoleEnd> {
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        let (signalled, to_signal) = UnixStream::pair()?;
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            pipe::register(signal, to_signal.try_clone()?)?;
        }
        let socket = File::from(port.socket.try_clone()?);
        let stdin = io::stdin();
        loop {
            let now = Instant::now();
            self.advance(now);
            if !self.transmit(&socket)? {
                return Ok(ConsoleEnd::Gone);
            }
            if self.is_over(now) {
                return Ok(ConsoleEnd::Left);
            }
            let wants_keys = !self.has_input_ended && self.typed.len() < TYPED_BYTES_MAX;
            let is_full = !self.client.outgoing().is_empty();
            let on_socket = if is_full { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
            let mut fds = vec![PollFd::new(&socket, on_socket), PollFd::new(&signalled, PollFlags::IN)];
            if wants_keys {
                fds.push(PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::IN));
            }
            let due = self.due().map(|due| due.saturating_duration_since(Instant::now()));
            match poll(&mut fds, due.and_then(|due| Timespec::try_from(due).ok()).as_ref()).map_err(io::Error::from) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                result => result?,
            };
            let is_ready =
                |at: usize| fds.get(at).is_some_and(|fd: &PollFd<'_>| !(fd.revents() - PollFlags::OUT).is_empty());
            let (has_socket, has_signal, has_keys) = (is_ready(0), is_ready(1), is_ready(2));
            drop(fds);
            if has_signal && let Some(signal) = signals.pending().next() {
                return Ok(ConsoleEnd::Signal(signal));
            }
            if has_keys && self.read_keys()? {
                return Ok(ConsoleEnd::Left);
            }
            if has_socket && let Some(ended) = self.receive(&socket)? {
                return Ok(ended);
            }
        }
    }

    /// Whether the input has ended, all of it was sent, and nothing has come for as long as was to be waited.
    fn is_over(&self, now: Instant) -> bool {
        let is_sent = self.typed.is_empty() && self.client.outgoing().is_empty() && self.break_until.is_none();
        self.has_input_ended && is_sent && now - self.moved_at >= self.quiet_end
    }

    /// When something has to be done although nothing comes.
    fn due(&self) -> Option<Instant> {
        let paced = self.paced_until.filter(|_| !self.typed.is_empty());
        let quiet = self.has_input_ended.then(|| self.moved_at + self.quiet_end);
        [paced, self.break_until, quiet].into_iter().flatten().min()
    }

    /// Hands over to the port what its pace allows by now.
    fn advance(&mut self, now: Instant) {
        if self.break_until.is_some_and(|until| until <= now) {
            self.break_until = None;
            self.client.request(&ComPortRequest::Control(6));
        }
        while self.break_until.is_none()
            && self.client.outgoing().len() < UNSENT_BYTES_MAX
            && self.paced_until.is_none_or(|until| until <= now)
            && let Some(byte) = self.typed.pop_front()
        {
            self.client.send(&[byte]);
            self.moved_at = now;
            let is_end_of_line = matches!(byte, b'\r' | b'\n') && !matches!(self.typed.front(), Some(b'\n'));
            let pause = self.byte_pause + if is_end_of_line { self.line_pause } else { Duration::ZERO };
            self.paced_until = (!pause.is_zero()).then(|| now + pause);
        }
    }

    /// Sends what the port takes; `false`: it is gone.
    fn transmit(&mut self, mut socket: &File) -> io::Result<bool> {
        while !self.client.outgoing().is_empty() {
            match socket.write(self.client.outgoing()) {
                Ok(count) => self.client.handle_transmitted(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_gone(&error) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Reads what is typed; `true`: its user leaves.
    fn read_keys(&mut self) -> io::Result<bool> {
        let mut buffer = [0; 4096];
        let count = match rustix::io::read(io::stdin(), &mut buffer).map_err(io::Error::from) {
            Ok(count) => count,
            Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {
                return Ok(false);
            }
            // A terminal that is gone has no more keys.
            Err(_) => 0,
        };
        if count == 0 {
            (self.has_input_ended, self.moved_at) = (true, Instant::now());
            return Ok(self.terminal.is_typed_at());
        }
        for key in self.keys.read(&buffer[..count]) {
            match key {
                ConsoleKey::Bytes(bytes) => {
                    // The next piece from the device says whether somebody reads.
                    match self.show_typed(&bytes) {
                        Err(error) if is_gone(&error) => {}
                        shown => shown?,
                    }
                    self.typed.extend(bytes);
                }
                ConsoleKey::Leave => return Ok(true),
                ConsoleKey::Break => {
                    self.break_until = Some(Instant::now() + BREAK_TIME);
                    self.client.request(&ComPortRequest::Control(5));
                }
                ConsoleKey::ToggleDtr => {
                    self.line.dtr = !self.line.dtr;
                    self.client.request(&self.line.dtr_request());
                    self.terminal.say(&self.line.describe());
                }
                ConsoleKey::ToggleRts => {
                    self.line.rts = !self.line.rts;
                    self.client.request(&self.line.rts_request());
                    self.terminal.say(&self.line.describe());
                }
                ConsoleKey::ShowLine => self.terminal.say(&self.line.describe()),
                ConsoleKey::Help => self.help(),
                ConsoleKey::Unknown(byte) => {
                    self.terminal.say(&format!("no command has the key {}; ? says which there are", key_name(byte)));
                }
            }
        }
        Ok(false)
    }

    fn help(&self) {
        let Some(escape) = self.escape.map(key_name) else { return };
        for (letter, _, what) in LETTERS {
            self.terminal.say(&format!("{escape} {}  {what}", char::from(letter)));
        }
        self.terminal.say(&format!("{escape} {escape}  sends {escape}"));
    }

    /// Receives once, and shows it.
    fn receive(&mut self, mut socket: &File) -> io::Result<Option<ConsoleEnd>> {
        let mut buffer = [0; 16 << 10];
        let count = match socket.read(&mut buffer) {
            Ok(0) => return Ok(Some(ConsoleEnd::Gone)),
            Ok(count) => count,
            Err(error) if is_gone(&error) => return Ok(Some(ConsoleEnd::Gone)),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let events = self.client.handle_received(&buffer[..count]);
        for event in events.map_err(|violation| io::Error::new(io::ErrorKind::InvalidData, violation.to_string()))? {
            match event {
                Rfc2217ClientEvent::Data(data) => {
                    self.moved_at = Instant::now();
                    match self.show(&data) {
                        Err(error) if is_gone(&error) => return Ok(Some(ConsoleEnd::Unread)),
                        shown => shown?,
                    }
                }
                Rfc2217ClientEvent::Rate(rate) if rate != self.line.rate => {
                    self.line.rate = rate;
                    self.terminal.say(&format!("the port's rate is {rate}"));
                }
                Rfc2217ClientEvent::Rate(_) => {}
                Rfc2217ClientEvent::ModemState(state) => self.line.modem = Some(state),
                Rfc2217ClientEvent::Declined => {
                    self.terminal.say("the server has no RFC 2217: rate, control lines and breaks stay as they are");
                }
            }
        }
        Ok(None)
    }

    /// Shows what is typed, if the device does not.
    fn show_typed(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.is_echoing { self.show(bytes) } else { Ok(()) }
    }

    /// Writes to standard output and to the log.
    fn show(&mut self, data: &[u8]) -> io::Result<()> {
        let mut text = String::new();
        let shown = match &mut self.text {
            Some(console) => {
                console.add(data, &mut text);
                text.as_bytes()
            }
            None => data,
        };
        self.has_sequences |= shown.contains(&0x1b);
        self.has_second_screen |= ["\x1b[?1049", "\x1b[?1047", "\x1b[?47"].iter().any(|begin| text.contains(begin));
        let mut out = io::stdout().lock();
        out.write_all(shown)?;
        out.flush()?;
        match &mut self.log {
            Some(log) => log.write_all(shown),
            None => Ok(()),
        }
    }
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}
