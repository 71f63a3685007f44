//! What a confined process can still do: the child below confines itself and then tries everything.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::thread;

use farbus_io_linux::sys::confine::{ConfinementNeeds, confine};

/// Tells the child process from a test run: the port on which the parent listens.
const CHILD: &str = "FARBUS_TEST_CONFINED_CHILD";

/// Not a test by itself: the child process of the next test. Prints a line for each attempt that went wrong.
#[test]
fn child_that_is_confined_tries_everything() {
    let Ok(port) = std::env::var(CHILD) else { return };
    let port: u16 = port.parse().unwrap();
    let parent = std::os::unix::process::parent_id();
    let held = tempfile();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let folder = std::env::temp_dir().join(format!("farbus-confine-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("named"), "x").unwrap();
    let needs =
        ConfinementNeeds { readable: vec![folder.clone(), "/nowhere/at/all".into()], ..ConfinementNeeds::default() };

    let confinement = confine(&needs).unwrap();
    let has_landlock = confinement.files.is_ok();
    println!("\nCONFINED {confinement}");
    let refused = |what: &str, result: io::Result<()>| match result {
        Ok(()) => println!("\nWRONG {what} was possible"),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
        Err(error) => println!("\nWRONG {what} failed otherwise: {error}"),
    };
    let possible = |what: &str, result: io::Result<()>| {
        if let Err(error) = result {
            println!("\nWRONG {what} was refused: {error}");
        }
    };

    refused("another program", Command::new("/bin/true").spawn().map(drop));
    refused("a connection", TcpStream::connect(("127.0.0.1", port)).map(drop));
    refused("a datagram socket", UdpSocket::bind("127.0.0.1:0").map(drop));
    refused("a new place to listen", TcpListener::bind("127.0.0.1:0").map(drop));
    let parent = rustix::process::Pid::from_raw(parent.cast_signed()).unwrap();
    refused("a signal to its parent", rustix::process::test_kill_process(parent).map_err(Into::into));
    refused(
        "a signal to itself by kill",
        rustix::process::test_kill_process(rustix::process::getpid()).map_err(Into::into),
    );
    if rustix::process::geteuid().is_root() {
        println!("\nWRONG it is still root");
    }
    if has_landlock {
        refused("a file of the system", File::open("/etc/passwd").map(drop));
        refused("a new file", File::create(folder.join("new")).map(drop));
        possible("a file it needs", fs::read(folder.join("named")).map(drop));
    }
    possible("a file it holds", held.write_all_at(b"bytes", 1 << 20).and_then(|()| held.sync_data()));
    possible(
        "a thread",
        thread::Builder::new().name("worker".into()).spawn(|| ()).map(|thread| thread.join().unwrap()),
    );
    listener.set_nonblocking(true).unwrap();
    match listener.accept() {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
        other => println!("\nWRONG accept said {other:?}"),
    }
    assert_eq!(vec![1u8; 64 << 20].len(), 64 << 20, "memory is still to be had");
    println!("\nTRIED all");
}

fn tempfile() -> File {
    let path = std::env::temp_dir().join(format!("farbus-confine-{}-held", std::process::id()));
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    fs::remove_file(path).unwrap();
    file
}

#[test]
fn a_confined_process_does_its_work_and_nothing_else() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["child_that_is_confined_tries_everything", "--exact", "--nocapture", "--test-threads=1"]);
    command.env(CHILD, listener.local_addr().unwrap().port().to_string());
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut output = String::new();
    child.stdout.take().unwrap().read_to_string(&mut output).unwrap();
    child.wait().unwrap();
    let folder = std::env::temp_dir().join(format!("farbus-confine-{}", child.id()));
    let _ = fs::remove_dir_all(folder);
    let _ = io::stdout().write_all(output.as_bytes());
    assert!(output.contains("TRIED all"), "{output}");
    assert!(!output.contains("WRONG"), "{output}");
    let was_root = rustix::process::geteuid().is_root();
    assert_eq!(output.contains("without capabilities"), was_root, "{output}");
}
