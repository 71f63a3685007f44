//! A QEMU made of code that fails at each step, in each way.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use super::*;

/// How a QEMU fails at a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// It refuses it.
    Error,
    /// It answers nothing any more.
    Silence,
    /// It ends.
    End,
    /// It says what is no QMP.
    Garbage,
}

/// What is asked of QEMU, in order: each may be the step at which it fails.
const STEPS: [&str; 7] = [
    "query-status",
    "query-migrate-capabilities",
    "migrate-set-capabilities",
    "migrate-set-parameters",
    "migrate",
    "query-migrate",
    "migrate-continue",
];

#[derive(Debug, Default)]
struct Machine {
    status: String,
    is_running: bool,
    pauses: bool,
    events: bool,
    downtime: u64,
    has_ended: bool,
    asked: Vec<String>,
    /// The command that fails, and how; it fails once.
    fault: Option<(&'static str, Fault)>,
    /// The status that a migration gets instead of going on, at this status.
    becomes: Option<(&'static str, &'static str)>,
    channels: Value,
    reasons: Vec<&'static str>,
}

type Shared = Arc<Mutex<Machine>>;

fn lock(machine: &Shared) -> std::sync::MutexGuard<'_, Machine> {
    machine.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The answer of a QEMU to a command.
fn answer(machine: &mut Machine, command: &str, arguments: &Value) -> Value {
    match command {
        "query-status" if machine.status == "inmigrate" => json!({ "status": "inmigrate", "running": false }),
        "query-status" => {
            json!({ "status": if machine.is_running { "running" } else { "paused" }, "running": machine.is_running })
        }
        "query-migrate" => {
            let now = machine.status.clone();
            let next = match (machine.becomes, now.as_str()) {
                (Some((at, then)), _) if at == now => then,
                (_, "setup") => "active",
                (_, "active") => {
                    machine.is_running = false;
                    "pre-switchover"
                }
                (_, "device") => "completed",
                (_, "cancelling") => {
                    machine.is_running = true;
                    "cancelled"
                }
                (_, same) => same,
            }
            .to_owned();
            machine.status = next;
            json!({ "status": now, "downtime": 75, "total-time": 900, "blocked-reasons": machine.reasons,
                    "ram": { "transferred": 10, "remaining": 5 } })
        }
        "query-migrate-capabilities" => json!([
            { "capability": "pause-before-switchover", "state": machine.pauses },
            { "capability": "events", "state": machine.events },
        ]),
        "migrate-set-capabilities" => {
            for one in arguments["capabilities"].as_array().unwrap() {
                let state = one["state"].as_bool().unwrap();
                if one["capability"] == "events" { machine.events = state } else { machine.pauses = state }
            }
            json!({})
        }
        "query-migrate-parameters" => json!({ "downtime-limit": machine.downtime }),
        "migrate-set-parameters" => {
            machine.downtime = arguments["downtime-limit"].as_u64().unwrap();
            json!({})
        }
        "migrate" => {
            machine.status = "setup".into();
            json!({})
        }
        "migrate-continue" => {
            machine.status = "device".into();
            json!({})
        }
        "migrate_cancel" => {
            let is_too_late = ["none", "completed"].contains(&machine.status.as_str());
            if !is_too_late {
                machine.status = "cancelling".into();
            }
            json!({})
        }
        "cont" => {
            machine.is_running = true;
            json!({})
        }
        "query-chardev" => machine.channels.clone(),
        "qom-list" if arguments["path"] == "/machine/peripheral" => {
            json!([{ "name": "type", "type": "string" }, { "name": "keys", "type": "child<usb-redir>" }])
        }
        "qom-list" => json!([]),
        "qom-get" => json!("far"),
        _ => json!({}),
    }
}

fn serve(stream: &UnixStream, machine: &Shared) {
    let mut writer = stream;
    let mut say = |value: Value| writer.write_all(format!("{value}\n").as_bytes()).is_ok();
    say(json!({ "QMP": { "version": {} } }));
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        let question: Value = serde_json::from_str(&line).unwrap();
        let command = question["execute"].as_str().unwrap().to_owned();
        let mut now = lock(machine);
        now.asked.push(command.clone());
        let fault = now.fault.take_if(|(at, _)| *at == command).map(|(_, fault)| fault);
        let answer = match fault {
            None => json!({ "return": answer(&mut now, &command, &question["arguments"]) }),
            Some(Fault::Error) => json!({ "error": { "class": "GenericError", "desc": "not today\u{1b}[2J" } }),
            Some(Fault::Silence) => continue,
            Some(Fault::Garbage) => {
                let _ = (&*stream).write_all(b"HTTP/1.1 400\r\n");
                continue;
            }
            Some(Fault::End) => {
                now.has_ended = true;
                return;
            }
        };
        now.has_ended = command == "quit";
        drop(now);
        // An event comes before an answer.
        let event = json!({ "event": "MIGRATION", "data": {} });
        if !say(event) || !say(answer) || command == "quit" {
            return;
        }
    }
}

struct Qemu {
    path: PathBuf,
    machine: Shared,
    thread: Option<JoinHandle<()>>,
}

impl Qemu {
    fn start(machine: Machine) -> Self {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("farbus-machine-{}-{number}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let machine = Arc::new(Mutex::new(machine));
        let for_thread = Arc::clone(&machine);
        let thread = thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            serve(&stream, &for_thread);
        });
        Self { path, machine, thread: Some(thread) }
    }

    fn connect(&self) -> Monitor {
        Monitor::connect(&self.path, Duration::from_millis(300)).unwrap()
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
        if let Some(thread) = self.thread.take().filter(|_| !thread::panicking()) {
            thread.join().unwrap();
        }
    }
}

fn idle() -> Machine {
    Machine { status: "none".into(), is_running: true, downtime: 300, channels: json!([]), ..Machine::default() }
}

#[derive(Default)]
struct Followers {
    following: Vec<String>,
    refuses: Option<&'static str>,
    /// The device that stops to follow by itself at the switch.
    leaves: Option<&'static str>,
}

impl Devices for Followers {
    fn follow(&mut self, device: &str) -> Result<(), String> {
        if self.refuses == Some(device) {
            return Err("it has no session".into());
        }
        self.following.push(device.to_owned());
        Ok(())
    }

    fn stay(&mut self, device: &str) -> Result<(), String> {
        self.following.retain(|other| other != device);
        Ok(())
    }

    fn is_following(&mut self, device: &str) -> bool {
        if self.leaves == Some(device) {
            self.following.retain(|other| other != device);
        }
        self.following.iter().any(|other| other == device)
    }
}

fn wanted() -> Wanted {
    let devices = ["lab3/keys", "lab3/disk"].map(str::to_owned).to_vec();
    Wanted { uri: "tcp:rack:4444".into(), downtime: Some(Duration::from_millis(100)), devices }
}

#[test]
fn machine_migrates_and_only_then_its_qemu_quits() {
    let qemu = Qemu::start(idle());
    let (mut monitor, mut devices, mut seen) = (qemu.connect(), Followers::default(), Vec::new());
    let moved = migrate(&mut monitor, &mut devices, &wanted(), |progress| {
        seen.push(progress);
        true
    });
    let moved = moved.unwrap();
    assert_eq!((moved.downtime_ms, moved.total_ms), (75, 900));
    assert!(seen.contains(&Progress { sent_bytes: 10, left_bytes: 5 }), "{seen:?}");
    assert_eq!(devices.following.len(), 2, "they go when QEMU's connections end");
    let machine = lock(&qemu.machine);
    assert!(machine.has_ended && machine.asked.last().is_some_and(|last| last == "quit"), "{:?}", machine.asked);
    let at = |command: &str| machine.asked.iter().position(|asked| asked == command).unwrap();
    assert!(at("migrate-set-capabilities") < at("migrate") && at("migrate") < at("migrate-continue"));
}

#[test]
fn whatever_fails_at_whichever_step_the_machine_and_its_devices_stay() {
    for step in STEPS {
        for fault in [Fault::Error, Fault::Silence, Fault::End, Fault::Garbage] {
            let qemu = Qemu::start(Machine { fault: Some((step, fault)), ..idle() });
            let (mut monitor, mut devices) = (qemu.connect(), Followers::default());
            let failed = migrate(&mut monitor, &mut devices, &wanted(), |_| true);
            let Err(MoveError::Undone { why, left }) = failed else { panic!("{step} {fault:?}: {failed:?}") };
            assert!(!why.is_empty() && !why.contains('\u{1b}'), "{step} {fault:?}: {why:?}");
            assert_eq!(devices.following, [""; 0], "{step} {fault:?}: no device goes");
            let machine = lock(&qemu.machine);
            assert!(!machine.asked.iter().any(|asked| asked == "quit"), "{step} {fault:?}: {:?}", machine.asked);
            if fault == Fault::Error {
                assert_eq!(left, [""; 0], "{step}: {why}");
                assert!(machine.is_running && !machine.pauses && !machine.events, "{step}: {machine:?}");
                assert_eq!(machine.downtime, 300, "{step}");
                assert!(["none", "cancelled"].contains(&machine.status.as_str()), "{step}: {machine:?}");
            }
        }
    }
}

#[test]
fn device_that_cannot_follow_or_follows_no_more_keeps_all_here() {
    for at in ["begin", "switch"] {
        let qemu = Qemu::start(idle());
        let mut monitor = qemu.connect();
        let refuses = Some("lab3/disk").filter(|_| at == "begin");
        let leaves = Some("lab3/keys").filter(|_| at == "switch");
        let mut devices = Followers { refuses, leaves, ..Followers::default() };
        let failed = migrate(&mut monitor, &mut devices, &wanted(), |_| true);
        let Err(MoveError::Undone { why, left }) = failed else { panic!("{at}: {failed:?}") };
        assert!(why.starts_with("lab3/") && left.is_empty() && devices.following.is_empty(), "{at}: {why} {left:?}");
        let machine = lock(&qemu.machine);
        assert!(machine.is_running && !machine.asked.iter().any(|asked| asked == "migrate-continue"), "{machine:?}");
    }
}

#[test]
fn interrupt_takes_all_back_and_one_that_comes_too_late_does_not() {
    let qemu = Qemu::start(idle());
    let (mut monitor, mut devices) = (qemu.connect(), Followers::default());
    let failed = migrate(&mut monitor, &mut devices, &wanted(), |_| false);
    assert_eq!(failed, Err(MoveError::Undone { why: "interrupted".into(), left: Vec::new() }));
    assert!(devices.following.is_empty() && lock(&qemu.machine).is_running);
    // QEMU completes while it is told to cancel.
    let qemu = Qemu::start(Machine { becomes: Some(("setup", "completed")), ..idle() });
    let (mut monitor, mut devices) = (qemu.connect(), Followers::default());
    let moved = migrate(&mut monitor, &mut devices, &wanted(), |_| false);
    assert!(moved.is_ok() && devices.following.len() == 2 && lock(&qemu.machine).has_ended, "{moved:?}");
}

#[test]
fn migration_that_qemu_ends_is_told_with_its_reason() {
    for (at, then, expected) in [("active", "failed", "QEMU's migration failed"), ("active", "cancelled", "somebody")] {
        let qemu = Qemu::start(Machine { becomes: Some((at, then)), ..idle() });
        let (mut monitor, mut devices) = (qemu.connect(), Followers::default());
        let failed = migrate(&mut monitor, &mut devices, &wanted(), |_| true);
        let Err(MoveError::Undone { why, .. }) = failed else { panic!("{failed:?}") };
        assert!(why.starts_with(expected) && devices.following.is_empty(), "{why}");
    }
}

#[test]
fn what_could_not_be_moved_is_refused_before_anything_is_begun() {
    let (name, at, processes) = ("lab3/keys".into(), "/run/keys.sock".into(), vec![std::process::id()]);
    let own = Attached { name, at, processes, is_redir: true };
    let channel = |filename: &str| json!([{ "label": "far", "filename": filename }]);
    let refusal = |machine: Machine, attached: &[Attached]| {
        let qemu = Qemu::start(machine);
        let refused = check(&mut qemu.connect(), attached);
        assert!(lock(&qemu.machine).asked.iter().all(|asked| asked.starts_with("q")), "it was only asked");
        match refused {
            Err(MoveError::Unfit(why)) => why,
            other => panic!("{other:?}"),
        }
    };
    let connected = |filename| Machine { channels: channel(filename), ..idle() };
    let foreign = refusal(connected("unix:/run/other.sock"), std::slice::from_ref(&own));
    assert!(foreign.contains("'keys'") && foreign.contains("/run/other.sock"), "{foreign}");
    let other = Attached { processes: vec![1], ..own.clone() };
    assert!(refusal(connected("unix:/run/keys.sock"), &[other]).contains("no attachment of yours"));
    let migrating = Machine { status: "active".into(), ..connected("unix:/run/keys.sock") };
    assert!(refusal(migrating, std::slice::from_ref(&own)).contains("migrates already"));
    let incoming = Machine { status: "inmigrate".into(), ..idle() };
    assert!(refusal(incoming, std::slice::from_ref(&own)).contains("'inmigrate'"));
    let blocked = Machine { reasons: vec!["The vfio device does not"], ..connected("unix:/run/keys.sock") };
    assert!(refusal(blocked, std::slice::from_ref(&own)).contains("vfio"));
    // One attachment is not two devices, and a disk by NBD is none.
    let disk = Attached { is_redir: false, ..own.clone() };
    assert!(refusal(connected("unix:"), &[disk]).contains("no attachment of yours"));
    for name in ["unix:", "unix:/run/keys.sock", "unix:/run/keys.sock,server=on", "disconnected:unix:/run/keys.sock"] {
        let qemu = Qemu::start(connected(name));
        assert_eq!(check(&mut qemu.connect(), std::slice::from_ref(&own)), Ok(vec![own.clone()]), "{name}");
    }
}

#[test]
fn program_that_is_no_qemu_is_refused_whatever_it_says() {
    let says = |bytes: Vec<u8>| {
        let path = std::env::temp_dir().join(format!("farbus-no-qemu-{}-{}", std::process::id(), bytes.len()));
        let listener = UnixListener::bind(&path).unwrap();
        let thread = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.write_all(&bytes);
            let _ = std::io::Read::read_to_end(&mut stream, &mut Vec::new());
        });
        let refused = Monitor::connect(&path, Duration::from_millis(200)).unwrap_err().to_string();
        thread.join().unwrap();
        std::fs::remove_file(&path).unwrap();
        refused
    };
    assert!(says(b"SSH-2.0-OpenSSH\r\n".to_vec()).contains("does not speak QMP, but: SSH-2.0-OpenSSH"));
    assert!(says(b"{\"QMP\": {}}\n".to_vec()).contains("did not answer 'qmp_capabilities'"));
    assert!(says(Vec::new()).contains("did not answer 'its greeting'"));
    assert!(says(vec![b'x'; 3 << 20]).contains("does not speak QMP"));
    assert!(Monitor::connect(Path::new("/nonexistent"), ANSWER_TIME_MAX).unwrap_err().to_string().contains("connect"));
}
