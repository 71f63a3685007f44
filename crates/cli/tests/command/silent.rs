//! Exporters that stop to answer: a program of `farbus run` gets its answer all the same, a signal ends the run, and
//! nothing is waited for in silence.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::harness::{Harness, PATIENCE, Running, Share, finish, has};
use super::run::{Connection, Lab, can_run, ordinary, share};

/// Debian's Python, which needs no package for what follows.
const PYTHON: &str = "/usr/bin/python3";
/// How long a run may take to end after a signal: 2 s, and as long as a busy machine may stand still. Nothing ended it
/// before.
const ENDS_WITHIN: Duration = Duration::from_secs(2 + 28);

/// A message that an exporter never gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Swallowed {
    /// Every CMD_UNLINK: no cancel is answered.
    Unlinks,
    /// CMD_SUBMIT of SET_CONFIGURATION.
    Configurations,
}

/// The lengths of USB/IP's messages (`usbip_protocol.rst`).
const IMPORT_BYTES: usize = 8 + 32;
const URB_BYTES: usize = 48;
const ISO_BYTES: usize = 16;

/// Passes on what an importer sends, but for one kind of message.
fn copy_without(mut from: TcpStream, mut to: TcpStream, swallowed: Swallowed) -> std::io::Result<()> {
    let mut import = [0; IMPORT_BYTES];
    from.read_exact(&mut import[..8])?;
    if import[2..4] != [0x80, 0x03] {
        // A list, or a session.
        to.write_all(&import[..8])?;
        return std::io::copy(&mut from, &mut to).map(drop);
    }
    from.read_exact(&mut import[8..])?;
    to.write_all(&import)?;
    loop {
        let mut head = [0; URB_BYTES];
        from.read_exact(&mut head)?;
        let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
        let (is_submit, is_out, packets) = (word(0) == 1, word(12) == 0, word(32));
        let data = if is_submit && is_out { word(24) as usize } else { 0 };
        let isochronous = if is_submit && packets != u32::MAX { packets as usize * ISO_BYTES } else { 0 };
        let mut rest = vec![0; data + isochronous];
        from.read_exact(&mut rest)?;
        let is_swallowed = match swallowed {
            Swallowed::Unlinks => !is_submit,
            Swallowed::Configurations => is_submit && word(16) == 0 && head[40..42] == [0, 9],
        };
        if !is_swallowed {
            to.write_all(&head)?;
            to.write_all(&rest)?;
        }
    }
}

/// A proxy before an exporter, which never gets these messages. Returns the proxy's address.
fn proxy(exporter: &str, swallowed: Swallowed) -> SocketAddr {
    let (listener, exporter) = (TcpListener::bind("127.0.0.1:0").unwrap(), exporter.to_owned());
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for importer in listener.incoming().map_while(Result::ok) {
            let exporter = TcpStream::connect(&exporter).unwrap();
            let (from, to) = (importer.try_clone().unwrap(), exporter.try_clone().unwrap());
            thread::spawn(move || {
                // It ends with the importer.
                let _ = copy_without(from, to.try_clone().unwrap(), swallowed);
                to.shutdown(Shutdown::Write)
            });
            let (mut from, mut to) = (exporter, importer);
            thread::spawn(move || std::io::copy(&mut from, &mut to).and_then(|_| to.shutdown(Shutdown::Write)));
        }
    });
    address
}

/// Waits for a key that nobody presses, discards that URB, and says so. With `again` it discards one after the other.
const DISCARDS: &str = r#"
import ctypes, fcntl, glob, os, signal, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
node = [at for at in glob.glob("/dev/bus/usb/*/*") if not at.endswith("/001")][0]
device = os.open(node, os.O_RDWR)
fcntl.ioctl(device, 0x8004550f, struct.pack("I", 0))
data = ctypes.create_string_buffer(8)
while True:
    head = struct.pack("@BBiIPiiiiiIP", 1, 0x81, 0, 0, ctypes.addressof(data), 8, 0, 0, 0, 0, 0, 0)
    urb = ctypes.create_string_buffer(head, len(head))
    assert libc.ioctl(device, ctypes.c_ulong(0x8038550a), urb) == 0, os.strerror(ctypes.get_errno())
    print("discards", flush=True)
    begun = time.monotonic()
    assert libc.ioctl(device, ctypes.c_ulong(0x550b), urb) == 0, os.strerror(ctypes.get_errno())
    took = time.monotonic() - begun
    reaped = ctypes.c_void_p()
    assert libc.ioctl(device, ctypes.c_ulong(0x4008550d), ctypes.byref(reaped)) == 0, os.strerror(ctypes.get_errno())
    assert reaped.value == ctypes.addressof(urb)
    print("discarded", struct.unpack_from("=i", urb.raw, 4)[0], 4.5 < took < 60, flush=True)
    if sys.argv[1:] != ["again"]:
        break
"#;

/// Python's program as a file that an ordinary user may read.
fn script(harness: &Harness) -> String {
    let path = harness.path("discards.py");
    std::fs::write(&path, DISCARDS).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    path.to_str().unwrap().to_owned()
}

fn can_run_python() -> bool {
    can_run() && has("Debian's Python", Path::new(PYTHON).exists())
}

#[test]
fn cancel_that_is_never_answered_ends_after_five_seconds_with_a_word() {
    if !can_run_python() {
        return;
    }
    let harness = Harness::new();
    let share = share(&harness, &["keyboard"]);
    let target = format!("{}/keyboard", proxy(&share.address, Swallowed::Unlinks));
    let ended = finish(ordinary(&harness, &["run", &target, "--", PYTHON, &script(&harness)]), PATIENCE);
    assert!(ended.code == Some(0) && ended.stdout.contains("discarded -2 True"), "{ended:?}");
    assert!(ended.stderr.contains("was not answered for 5 s"), "{ended:?}");
}

/// Stops the exporter, as a machine that hangs: its sockets stay, and nobody answers.
fn stopped(share: &Share) -> impl Drop {
    struct Stopped(rustix::process::Pid);
    impl Drop for Stopped {
        fn drop(&mut self) {
            let _ = rustix::process::kill_process(self.0, Signal::CONT);
        }
    }
    share.process.signal(Signal::STOP);
    Stopped(rustix::process::Pid::from_raw(share.process.id() as i32).unwrap())
}

fn run_ends_on(signal: Signal, connection: Connection) {
    if !can_run_python() {
        return;
    }
    let harness = Harness::new();
    let lab = Lab::new(&harness, connection, &["keyboard"]);
    let mut run = Running::start(lab.command("keyboard", &[PYTHON, &script(&harness), "again"]));
    run.wait_for_line("discards");
    let stopped = stopped(&lab.share);
    // Those that the exporter had before it was stopped were answered.
    while run.has_said("discards") {}
    // waits: the program is in a command that nobody answers
    thread::sleep(Duration::from_millis(500));
    let signalled = Instant::now();
    run.signal(signal);
    let code = run.wait_for_shell_code(PATIENCE);
    let took = signalled.elapsed();
    println!("{connection:?}, {signal:?}: {took:?}");
    assert!(took < ENDS_WITHIN, "{took:?}: {}", run.log());
    assert_ne!(code, 0, "{}", run.log());
    drop(stopped);
}

#[test]
fn ctrl_c_ends_a_run_over_a_plain_connection_whose_exporter_answers_nothing() {
    run_ends_on(Signal::INT, Connection::Plain);
}

#[test]
fn sigterm_ends_a_run_over_a_plain_connection_whose_exporter_answers_nothing() {
    run_ends_on(Signal::TERM, Connection::Plain);
}

#[test]
fn ctrl_c_ends_a_run_in_a_session_whose_exporter_answers_nothing() {
    run_ends_on(Signal::INT, Connection::Session);
}

#[test]
fn sigterm_ends_a_run_with_a_paired_hosts_device_that_answers_nothing() {
    run_ends_on(Signal::TERM, Connection::Paired);
}

#[test]
fn device_that_does_not_answer_set_configuration_is_waited_for_with_a_word_and_given_up() {
    if !can_run() {
        return;
    }
    let harness = Harness::new();
    let share = share(&harness, &["keyboard"]);
    let target = format!("{}/keyboard", proxy(&share.address, Swallowed::Configurations));
    let ended = finish(ordinary(&harness, &["run", &target, "--", "true"]), PATIENCE);
    assert_eq!(ended.code, Some(6), "{ended:?}");
    assert!(ended.stderr.contains("still waiting for") && ended.stderr.contains(": SET_CONFIGURATION"), "{ended:?}");
    assert!(ended.stderr.contains("has not answered SET_CONFIGURATION for 5 s"), "{ended:?}");
}
