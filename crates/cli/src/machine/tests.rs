//! A scripted QEMU: it refuses, stalls, says garbage or hangs up at each step, and the machine stays where it was.

use std::cell::{Cell, RefCell};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};

use super::*;

/// How the monitor fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Refuses,
    Stalls,
    SaysGarbage,
    HangsUp,
    /// It carries the command out, and says nothing.
    DoesItInSilence,
}

const FAULTS: [Fault; 4] = [Fault::Refuses, Fault::Stalls, Fault::SaysGarbage, Fault::HangsUp];
const ANSWER_WITHIN: Duration = Duration::from_millis(300);

/// The state of the scripted QEMU.
struct Script {
    /// The command at which it fails, which time that it is asked, and how.
    fault: Option<(&'static str, usize, Fault)>,
    /// Answers that are not the usual ones.
    answers: Vec<(&'static str, Value)>,
    commands: Vec<String>,
    status: &'static str,
    is_running: bool,
    pauses: bool,
    downtime: u64,
    has_quit: bool,
    /// What it answers while it copies, until it is cancelled.
    copies_for_ever: bool,
}

impl Script {
    fn carry_out(&mut self, command: &str, arguments: &Value) -> Value {
        if let Some((_, answer)) = self.answers.iter().find(|(name, _)| *name == command) {
            return answer.clone();
        }
        match command {
            "query-status" => json!({ "status": if self.is_running { "running" } else { "paused" } }),
            "query-migrate" => {
                let answer = json!({
                    "status": self.status, "downtime": 71, "total-time": 900,
                    "ram": { "total": 1000, "remaining": 10, "transferred": 5000 }
                });
                match self.status {
                    "active" if !self.copies_for_ever => (self.status, self.is_running) = ("pre-switchover", false),
                    "device" => self.status = "completed",
                    "cancelling" => (self.status, self.is_running) = ("cancelled", true),
                    _ => {}
                }
                answer
            }
            "qom-list" if arguments["path"] == "/machine/peripheral" => {
                json!([{ "name": "type", "type": "string" }, { "name": "far", "type": "child<usb-redir>" }])
            }
            "qom-list" => json!([]),
            "qom-get" => json!("char0"),
            "query-chardev" => json!([{ "label": "char0", "filename": "unix:", "frontend-open": true }]),
            "query-named-block-nodes" => {
                json!([{ "node-name": "#block1", "drv": "nbd", "file": "nbd+unix://?socket=/none/disk.sock" }])
            }
            "query-migrate-capabilities" => {
                json!([{ "capability": "xbzrle", "state": true }, { "capability": "events", "state": false },
                    { "capability": "pause-before-switchover", "state": self.pauses }])
            }
            "migrate-set-capabilities" => {
                for it in arguments["capabilities"].as_array().unwrap() {
                    if it["capability"] == "pause-before-switchover" {
                        self.pauses = it["state"] == true;
                    }
                }
                json!({})
            }
            "query-migrate-parameters" => json!({ "downtime-limit": self.downtime }),
            "migrate-set-parameters" => {
                self.downtime = arguments["downtime-limit"].as_u64().unwrap();
                json!({})
            }
            "migrate" => {
                assert_eq!(arguments["uri"], "tcp:rack:4444");
                self.status = "active";
                json!({})
            }
            "migrate-continue" => {
                self.status = "device";
                json!({})
            }
            "migrate_cancel" => {
                if ["active", "pre-switchover"].contains(&self.status) {
                    self.status = "cancelling";
                }
                json!({})
            }
            "cont" => {
                self.is_running = true;
                json!({})
            }
            "quit" => {
                self.has_quit = true;
                json!({})
            }
            "qmp_capabilities" => json!({}),
            other => panic!("no QEMU is asked {other}"),
        }
    }
}

/// A QEMU with a keyboard and a block disk of another host.
struct Qemu {
    script: Arc<Mutex<Script>>,
    folder: PathBuf,
}

impl Qemu {
    fn start(fault: Option<(&'static str, usize, Fault)>) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("farbus-qemu-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir(&folder).unwrap();
        let listener = UnixListener::bind(folder.join("qmp.sock")).unwrap();
        let script = Arc::new(Mutex::new(Script {
            fault,
            answers: Vec::new(),
            commands: Vec::new(),
            status: "none",
            is_running: true,
            pauses: false,
            downtime: 300,
            has_quit: false,
            copies_for_ever: false,
        }));
        thread::spawn({
            let script = Arc::clone(&script);
            // One at a time, as QEMU does. The other end may be gone at any time.
            move || listener.incoming().flatten().for_each(|stream| drop(serve(&stream, &script)))
        });
        Self { script, folder }
    }

    fn path(&self) -> PathBuf {
        self.folder.join("qmp.sock")
    }

    fn migrate(&self, owner: &Devices, is_cancelled: &AtomicBool) -> Result<MovedMachine, CommandFailure> {
        let path = self.path();
        let order = VmMigrationOrder::new(&path, "tcp:rack:4444", "rack", &[]);
        let order = VmMigrationOrder { downtime_ms: Some(50), answer_within: ANSWER_WITHIN, ..order };
        migrate(&order, owner, is_cancelled, &mut |_| {})
    }

    fn check(&self, owner: &Devices) -> Result<VirtualMachine, CommandFailure> {
        let path = self.path();
        check(
            &VmMigrationOrder {
                answer_within: ANSWER_WITHIN,
                ..VmMigrationOrder::new(&path, "tcp:rack:4444", "rack", &[])
            },
            owner,
        )
    }

    fn answering(self, command: &'static str, answer: Value) -> Self {
        self.script.lock().unwrap().answers.push((command, answer));
        self
    }

    /// The machine is here as if nothing had been asked of it.
    fn assert_untouched(&self, case: &str) {
        let script = self.script.lock().unwrap();
        let state = (script.is_running, script.pauses, script.downtime, script.has_quit);
        assert_eq!(state, (true, false, 300, false), "{case}: {:?}", script.commands);
        assert!(["none", "cancelled", "failed"].contains(&script.status), "{case}: {}", script.status);
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn serve(mut stream: &UnixStream, script: &Mutex<Script>) -> std::io::Result<()> {
    stream.write_all(b"{\"QMP\": {\"version\": {\"qemu\": {}}, \"capabilities\": [\"oob\"]}}\r\n")?;
    for line in BufReader::new(stream).lines() {
        let question: Value = serde_json::from_str(&line?).unwrap();
        let command = question["execute"].as_str().unwrap();
        let mut script = script.lock().unwrap();
        script.commands.push(command.to_owned());
        let times = script.commands.iter().filter(|name| *name == command).count();
        let fault = script.fault.filter(|(at, time, _)| (*at, *time) == (command, times)).map(|(.., fault)| fault);
        match fault {
            Some(Fault::Refuses) => {
                let error = json!({ "class": "GenericError", "desc": "not today" });
                writeln!(stream, "{}", json!({ "error": error, "id": question["id"] }))?;
                continue;
            }
            Some(Fault::Stalls) => continue,
            Some(Fault::SaysGarbage) => {
                stream.write_all(b"\x1b]0;owned\x07(qemu) \n")?;
                continue;
            }
            Some(Fault::HangsUp) => return Ok(()),
            Some(Fault::DoesItInSilence) | None => {}
        }
        let answer = script.carry_out(command, &question["arguments"]);
        if fault.is_some() {
            continue;
        }
        writeln!(stream, "{}", json!({ "event": "MIGRATION", "data": { "status": script.status } }))?;
        writeln!(stream, "{}", json!({ "return": answer, "id": question["id"] }))?;
        if script.has_quit {
            return Ok(());
        }
    }
    Ok(())
}

/// The devices that are attached here.
#[derive(Default)]
struct Devices {
    following: RefCell<Vec<String>>,
    departed: RefCell<Vec<String>>,
    /// The device whose process knows of no departure.
    old: Option<&'static str>,
    /// The device that refuses to follow.
    unwilling: Option<&'static str>,
    /// Whether it follows all the same, as one whose answer came too late.
    is_late: bool,
    /// After how many looks at its state the disk is gone.
    leaves_after: Option<usize>,
    looks: Cell<usize>,
    others: Vec<OwnedAttachment>,
}

impl AttachmentOwner for Devices {
    fn attached(&self) -> Result<Vec<OwnedAttachment>, CommandFailure> {
        self.looks.set(self.looks.get() + 1);
        let is_gone = self.leaves_after.is_some_and(|looks| self.looks.get() > looks);
        let device = |name: &str, at: &str| {
            let title = format!("lab3:3241/{name}");
            let state = if self.following.borrow().contains(&title) { "following" } else { "attached" };
            let (at, processes) = (at.to_owned(), vec![std::process::id()]);
            OwnedAttachment { pid: 1, name: name.to_owned(), title, at, state: state.to_owned(), processes }
        };
        let (key, disk) = (device("key", "/none/key.sock"), device("disk", "nbd+unix:///?socket=/none/disk.sock"));
        Ok([key].into_iter().chain((!is_gone).then_some(disk)).chain(self.others.clone()).collect())
    }

    fn follow(&self, device: &OwnedAttachment) -> Result<(), CommandFailure> {
        if self.unwilling == Some(&*device.name) {
            if self.is_late {
                self.following.borrow_mut().push(device.title.clone());
            }
            return Err(CommandFailure::new(FailureKind::Refused, "it is over TCP"));
        }
        self.following.borrow_mut().push(device.title.clone());
        Ok(())
    }

    fn depart(&self, devices: &[OwnedAttachment], process: u32) -> usize {
        assert_eq!(process, std::process::id());
        let others = devices.iter().filter(|device| self.old != Some(&*device.name));
        let titles: Vec<String> = others.map(|device| device.title.clone()).collect();
        assert!(titles.iter().all(|title| self.following.borrow().contains(title)), "only what follows departs");
        self.departed.borrow_mut().extend(titles.iter().cloned());
        titles.len()
    }

    fn resume(&self, device: &OwnedAttachment) -> Result<(), CommandFailure> {
        assert!(self.departed.borrow().is_empty(), "what has departed cannot stay");
        let mut following = self.following.borrow_mut();
        match following.iter().position(|title| *title == device.title) {
            Some(at) => drop(following.remove(at)),
            None => return Err(CommandFailure::new(FailureKind::Refused, "it is not held")),
        }
        Ok(())
    }
}

static NEVER: AtomicBool = AtomicBool::new(false);

#[test]
fn machine_moves_with_its_devices_and_qemu_ends_here() {
    let (qemu, owner) = (Qemu::start(None), Devices::default());
    let found = qemu.check(&owner).unwrap();
    assert_eq!((found.process, found.is_running, found.devices.len()), (Some(std::process::id()), true, 2));
    qemu.assert_untouched("a check");
    let moved = qemu.migrate(&owner, &NEVER).unwrap();
    assert_eq!((moved.downtime_ms, moved.total_ms, moved.sent_bytes), (71, 900, 5000));
    assert_eq!(*owner.following.borrow(), ["lab3:3241/key", "lab3:3241/disk"]);
    assert_eq!((moved.departed, &*owner.departed.borrow()), (2, &*owner.following.borrow()));
    let script = qemu.script.lock().unwrap();
    assert!(script.has_quit && script.pauses && script.downtime == 50);
}

#[test]
fn machine_and_devices_stay_as_they_were_whatever_fails_at_whichever_step() {
    let steps = [
        ("qmp_capabilities", 1),
        ("query-named-block-nodes", 1),
        ("query-migrate-capabilities", 1),
        ("migrate-set-capabilities", 1),
        ("migrate-set-parameters", 1),
        ("migrate", 1),
        // The first is a look at whether it migrates already; then it copies; then it is stopped.
        ("query-migrate", 2),
        ("query-migrate", 3),
        ("migrate-continue", 1),
    ];
    for (command, time) in steps {
        for fault in FAULTS {
            let case = format!("{command} {time} {fault:?}");
            let (qemu, owner) = (Qemu::start(Some((command, time, fault))), Devices::default());
            let failure = qemu.migrate(&owner, &NEVER).unwrap_err();
            let message = failure.to_string();
            assert!(owner.following.borrow().is_empty(), "{case}: {message}");
            qemu.assert_untouched(&case);
            assert!(!message.contains("but:") && !message.contains("not known"), "{case}: {message}");
            assert!(!message.contains('\x1b') && message.contains(&format!("'{command}'")), "{case}: {message}");
        }
    }
}

#[test]
fn device_that_does_not_follow_or_is_gone_before_the_switch_keeps_the_machine_here() {
    for (unwilling, is_late) in [("key", false), ("disk", false), ("key", true), ("disk", true)] {
        let owner = Devices { unwilling: Some(unwilling), is_late, ..Devices::default() };
        let qemu = Qemu::start(None);
        let failure = qemu.migrate(&owner, &NEVER).unwrap_err();
        assert!(failure.attribute() == FailureKind::Refused && failure.to_string().contains("over TCP"), "{failure}");
        assert!(owner.following.borrow().is_empty(), "{unwilling} {is_late}: all stay");
        qemu.assert_untouched("unwilling");
        assert!(!qemu.script.lock().unwrap().commands.contains(&"migrate".to_owned()));
    }

    let owner = Devices { leaves_after: Some(1), ..Devices::default() };
    let qemu = Qemu::start(None);
    let failure = qemu.migrate(&owner, &NEVER).unwrap_err();
    assert!(failure.attribute() == FailureKind::Gone && failure.to_string().contains("lab3:3241/disk"), "{failure}");
    qemu.assert_untouched("gone");
}

#[test]
fn cancelled_migration_leaves_everything_here_and_a_failed_one_says_what_qemu_says() {
    let (qemu, owner) = (Qemu::start(None), Devices::default());
    qemu.script.lock().unwrap().copies_for_ever = true;
    let path = qemu.path();
    let order =
        VmMigrationOrder { answer_within: ANSWER_WITHIN, ..VmMigrationOrder::new(&path, "tcp:rack:4444", "rack", &[]) };
    let is_cancelled = AtomicBool::new(false);
    let mut shown = None;
    let failure = migrate(&order, &owner, &is_cancelled, &mut |progress| {
        shown = Some(progress.clone());
        is_cancelled.store(true, Ordering::Relaxed);
    });
    let failure = failure.unwrap_err();
    assert!(failure.attribute() == FailureKind::Refused && failure.to_string().contains("was cancelled"), "{failure}");
    assert_eq!(shown, Some(VmMigrationProgress { status: "active".into(), total_bytes: 1000, left_bytes: 10 }));
    assert!(owner.following.borrow().is_empty());
    qemu.assert_untouched("cancelled");

    let failed = json!({ "status": "failed", "error-desc": "Connection refused" });
    let qemu = Qemu::start(None);
    qemu.script.lock().unwrap().answers.push(("query-migrate", failed));
    let owner = Devices::default();
    let failure = qemu.migrate(&owner, &NEVER).unwrap_err();
    assert!(failure.attribute() == FailureKind::Network, "{failure}");
    assert!(failure.to_string().contains("Connection refused\n  the machine stays here"), "{failure}");
    assert!(owner.following.borrow().is_empty());
}

#[test]
fn machine_that_has_left_is_not_held_to_be_here() {
    // Its answer was lost: another connection tells that the machine has left.
    let fault = Some(("migrate-continue", 1, Fault::DoesItInSilence));
    let (qemu, owner) = (Qemu::start(fault), Devices::default());
    assert_eq!(qemu.migrate(&owner, &NEVER).unwrap().downtime_ms, 71);
    assert_eq!(owner.following.borrow().len(), 2);
    assert!(qemu.script.lock().unwrap().has_quit);
    for fault in [Fault::Refuses, Fault::Stalls, Fault::SaysGarbage] {
        let (qemu, owner) = (Qemu::start(Some(("quit", 1, fault))), Devices::default());
        let failure = qemu.migrate(&owner, &NEVER).unwrap_err();
        let expected = format!("end process {}: its devices have gone there", std::process::id());
        assert!(failure.to_string().contains(&expected), "{failure}");
        assert_eq!(owner.following.borrow().len(), 2, "they go with the machine");
    }
    let (qemu, owner) = (Qemu::start(Some(("quit", 1, Fault::HangsUp))), Devices::default());
    qemu.migrate(&owner, &NEVER).expect("it has ended");
    // A device that an earlier farbus has attached goes when QEMU ends.
    for (fault, expected) in [(None, ""), (Some(("quit", 1, Fault::Refuses)), "its devices go to rack then")] {
        let (qemu, owner) = (Qemu::start(fault), Devices { old: Some("key"), ..Devices::default() });
        match qemu.migrate(&owner, &NEVER) {
            Ok(moved) => assert_eq!((moved.departed, fault), (1, None)),
            Err(failure) => assert!(fault.is_some() && failure.to_string().contains(expected), "{failure}"),
        }
        assert_eq!(*owner.departed.borrow(), ["lab3:3241/disk"]);
    }
}

#[test]
fn machine_that_runs_here_is_never_ended_whatever_its_monitor_says() {
    // It says so before it was told to switch over, and then while the machine runs.
    for answers in [
        vec![("query-migrate", json!({ "status": "completed" }))],
        vec![("query-status", json!({ "status": "running" }))],
    ] {
        let (qemu, owner) = (Qemu::start(None), Devices::default());
        qemu.script.lock().unwrap().answers.extend(answers);
        let failure = qemu.migrate(&owner, &NEVER).unwrap_err().to_string();
        assert!(failure.contains("not known whether the machine has left"), "{failure}");
        assert!(!qemu.script.lock().unwrap().commands.contains(&"quit".to_owned()));
        assert_eq!(owner.following.borrow().len(), 2);
    }
}

#[test]
fn devices_go_on_following_where_nobody_knows_whether_the_machine_has_left() {
    let (qemu, owner) = (Qemu::start(Some(("migrate-continue", 1, Fault::Stalls))), Devices::default());
    // The second connection finds a QEMU that says nothing either.
    let qemu = qemu.answering("migrate_cancel", json!({}));
    qemu.script.lock().unwrap().answers.push(("query-status", json!({ "status": "running" })));
    let failure = qemu.migrate(&owner, &NEVER).unwrap_err().to_string();
    assert!(failure.contains("not known whether the machine has left"), "{failure}");
    assert!(failure.contains("farbus resume lab3:3241/key; farbus resume lab3:3241/disk"), "{failure}");
    assert_eq!(owner.following.borrow().len(), 2);
}

#[test]
fn what_could_not_be_moved_is_refused_before_anything_begins() {
    let usb = |kind: &str| json!([{ "name": "it", "type": format!("child<{kind}>") }]);
    let chardev = |location: &str| json!([{ "label": "char0", "filename": location }]);
    let node = |driver: &str, file: &str| json!([{ "node-name": "n", "drv": driver, "file": file }]);
    let cases = [
        ("query-status", json!({ "status": "inmigrate" }), "'inmigrate'"),
        ("query-status", json!({ "status": "paused" }), "it is paused"),
        ("query-migrate", json!({ "status": "active" }), "it migrates already"),
        ("query-migrate", json!({ "status": "pre-switchover" }), "it migrates already"),
        ("query-migrate", json!({ "blocked-reasons": ["vfio \u{1b}[2J"] }), "QEMU says: vfio ?[2J"),
        ("qom-list", usb("usb-host"), "real device of this host"),
        // One in each folder, and one attachment.
        ("qom-list", usb("usb-redir"), "2 of its usb-redir devices are connected to a socket (it, it), and 1 to"),
        ("query-chardev", chardev("unix:/none/other.sock"), "where nothing is that you have attached"),
        ("query-chardev", chardev("tcp:127.0.0.1:4000 <-> 127.0.0.1:5"), "not at a Unix socket"),
        ("query-named-block-nodes", node("nbd", "nbd://10.0.0.7:10809/x"), "not at a Unix socket"),
        ("query-named-block-nodes", node("nbd", "nbd+unix://?socket=/none/x"), "NBD disk 'n' is connected to /none/x"),
        ("query-named-block-nodes", node("file", "/mnt/disk.img"), "--via nbd"),
    ];
    for (command, answer, why) in cases {
        let qemu = Qemu::start(None).answering(command, answer);
        let file = OwnedAttachment { pid: 2, title: "lab3:3241/img".into(), at: "/mnt/disk.img".into(), ..fresh() };
        let owner = Devices { others: vec![file], ..Devices::default() };
        for failure in [qemu.check(&owner).unwrap_err(), qemu.migrate(&owner, &NEVER).unwrap_err()] {
            assert!(
                failure.attribute() == FailureKind::Refused && failure.to_string().contains(why),
                "{why}: {failure}"
            );
        }
        let script = qemu.script.lock().unwrap();
        let acts = ["migrate", "migrate-set-capabilities", "cont", "quit"];
        assert!(!script.commands.iter().any(|name| acts.contains(&name.as_str())), "{why}: {:?}", script.commands);
        assert!(owner.following.borrow().is_empty());
    }
    // Connected to nothing, it has nothing to lose.
    let qemu = Qemu::start(None).answering("query-chardev", chardev("disconnected:unix:/none/other.sock"));
    assert!(qemu.check(&Devices::default()).is_ok());
}

fn fresh() -> OwnedAttachment {
    let (state, processes) = ("attached".to_owned(), Vec::new());
    OwnedAttachment { pid: 1, name: String::new(), title: String::new(), at: String::new(), state, processes }
}
