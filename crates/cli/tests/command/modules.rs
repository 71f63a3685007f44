//! Devices that are used through modules: what travels, what arrives, which attachments are refused.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use farbus::client::{ClientConfig, ImporterClient};
use farbus::model::{BlockStore, EpAddr};
use farbus::modules::recipe;
use rustix::process::Signal;

use super::harness::{
    Harness, PATIENCE, Running, Share, copy_program, has, has_fuse, has_program, wait_until, write_script,
};
use super::restart::Later;

const MIB: u64 = 1 << 20;

/// A proxy before a share that counts the bytes of both directions together.
struct Counted {
    address: String,
    bytes: Arc<AtomicU64>,
}

impl Counted {
    fn to(share: &Share) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (to, bytes) = (share.address.clone(), Arc::<AtomicU64>::default());
        let counter = Arc::clone(&bytes);
        thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let far = TcpStream::connect(&to).unwrap();
                for (from, to) in [(near.try_clone(), far.try_clone()), (Ok(far), Ok(near))] {
                    let counter = Arc::clone(&counter);
                    thread::spawn(move || count(from.unwrap(), to.unwrap(), &counter));
                }
            }
        });
        Self { address, bytes }
    }

    fn target(&self, device: &str) -> String {
        format!("{}/{device}", self.address)
    }

    fn take(&self) -> u64 {
        self.bytes.swap(0, Ordering::Relaxed)
    }
}

fn count(mut from: TcpStream, mut to: TcpStream, counter: &AtomicU64) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count) = from.read(&mut buffer)
        && count > 0
        && to.write_all(&buffer[..count]).is_ok()
    {
        counter.fetch_add(count as u64, Ordering::Relaxed);
    }
    let _ = to.shutdown(std::net::Shutdown::Write);
}

fn key(harness: &Harness, name: &str, byte: u8) -> String {
    let path = harness.path(name);
    fs::write(&path, [byte; 32]).unwrap();
    format!("seal:key-file={}", path.display())
}

/// Text, which compresses well.
fn text() -> Vec<u8> {
    "a device lives on one machine, its user on another; between them a request\n".repeat(4000).into_bytes()
}

fn share(harness: &Harness, what: &[&str], more: &[&str]) -> Share {
    let arguments = [&["share"], what, &["--listen", "127.0.0.1:0"], more].concat();
    Share::follow(Running::start(harness.command(&arguments)))
}

fn client(modules: &[&str]) -> ImporterClient {
    let specs: Vec<_> = modules.iter().map(|module| module.parse().unwrap()).collect();
    ImporterClient::new(ClientConfig { modules: recipe(&specs).unwrap(), ..ClientConfig::default() })
}

#[test]
fn a_usb_disk_and_a_keyboard_are_compressed_and_sealed() {
    let harness = Harness::new();
    let seal = key(&harness, "key", 7);
    let images: Vec<_> = (0..5).map(|at| harness.path(&format!("image{at}"))).collect();
    let content = [text(), vec![0; 4 * MIB as usize - text().len()]].concat();
    images.iter().for_each(|image| fs::write(image, &content).unwrap());
    let disks: Vec<String> = images.iter().map(|image| format!("disk:{}", image.display())).collect();
    let what: Vec<&str> = disks.iter().map(String::as_str).chain(["keyboard"]).collect();
    let share = share(&harness, &what, &["--allow-module", &seal]);
    let way = Counted::to(&share);
    // Each attachment has a disk of its own: a disk whose importer just vanished is free only later.
    let mut fresh = ["disk", "disk2", "disk3", "disk4", "disk5"].iter().zip(&images);
    let mut bytes = |modules: &[&str]| {
        let (name, image) = fresh.next().unwrap();
        let mut disk = client(modules).open_disk(&way.target(name).parse().unwrap()).unwrap();
        way.take();
        let mut found = vec![0; MIB as usize];
        (0..4).for_each(|_| disk.read_at(0, &mut found).unwrap());
        assert!(found.starts_with(&text()), "what is in the image arrives");
        disk.write_at(2 * MIB, &text()[..64 << 10]).unwrap();
        disk.flush().unwrap();
        drop(disk);
        let stored = fs::read(image).unwrap();
        assert!(stored[2 * MIB as usize..].starts_with(&text()[..64 << 10]), "what is written is in the image");
        way.take()
    };
    let plain = bytes(&["null"]);
    assert!(plain > 4 * MIB, "{plain}");
    for compressed in [bytes(&["lz4"]), bytes(&["zstd"]), bytes(&["zstd", &seal])] {
        assert!(compressed < plain / 8, "{compressed} of {plain} bytes");
    }
    assert!(bytes(&[&seal]) > plain);

    let mut keyboard = client(&["zstd", &seal]).open(&way.target("keyboard").parse().unwrap()).unwrap();
    assert_eq!(harness.run(&["type", "keyboard", "ab"]).code, Some(0));
    let mut read = || keyboard.data_in(EpAddr::from_byte(0x81), 8).unwrap().into_vec()[2];
    assert_eq!([read(), read(), read(), read()], [4, 0, 5, 0]);
}

#[test]
fn block_device_as_a_file_is_read_and_written_through_modules() {
    if !has_fuse() {
        return;
    }
    let harness = Harness::new();
    let (image, seal, at) = (harness.image("image", 4 * MIB), key(&harness, "key", 7), harness.path("at"));
    let share = share(&harness, &[&format!("block:{}", image.display())], &["--allow-module", &seal]);
    let way = Counted::to(&share);
    let target = way.target("block");
    let words = ["attach", &target, "--via", "fuse", "--at", at.to_str().unwrap(), "--module", "delay:time=1ms"];
    let mut attach = Running::start(harness.command(&[&words[..], &["--module", "zstd", "--module", &seal]].concat()));
    attach.wait_for_line("attached as ");
    let file = fs::File::options().read(true).write(true).open(at.join("disk.img")).unwrap();
    way.take();
    file.write_all_at(&text(), 4096).unwrap();
    file.sync_all().unwrap();
    let written = way.take();
    assert!(written < text().len() as u64 / 4, "{written} bytes travelled for {}", text().len());
    assert!(fs::read(&image).unwrap()[4096..].starts_with(&text()));
    let mut found = vec![0; 4096];
    file.read_exact_at(&mut found, MIB).unwrap();
    assert!(found.iter().all(|byte| *byte == 0));
    drop(file);
    attach.signal(Signal::TERM);
    assert_eq!(attach.wait_for_end(PATIENCE), Some(0), "{}", attach.log());
}

#[test]
fn replayed_recording_answers_instead_of_the_device() {
    let harness = Harness::new();
    let file = harness.path("disk.pcapng");
    let [full, empty] = ["full", "empty"].map(|name| harness.path(name));
    fs::write(&full, [text(), vec![0; MIB as usize - text().len()]].concat()).unwrap();
    fs::write(&empty, vec![0; MIB as usize]).unwrap();
    let disks = [&full, &empty].map(|image| format!("disk:{}", image.display()));
    let share = share(&harness, &[&disks[0], &disks[1]], &[]);
    let read = |name: &str, module: String| {
        let mut disk = client(&[&module]).open_disk(&share.target(name).parse().unwrap()).unwrap();
        let mut found = vec![0; 64 << 10];
        disk.read_at(4096, &mut found).unwrap();
        assert_eq!(found, text()[4096..][..64 << 10], "{name} {module}");
    };
    read("disk", format!("record:file={}", file.display()));
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    wait_until_written(&file, 64 << 10);
    // The other disk has none of the recorded bytes, and is not read.
    read("disk2", format!("replay:file={},pace=none", file.display()));
    let refused = harness.run(&["attach", &share.target("disk"), "--via", "nbd", "--module", "replay"]);
    assert_eq!(refused.code, Some(3), "{refused:?}");
    assert!(refused.stderr.contains("neither end has a recording"), "{refused:?}");
}

#[test]
fn stream_frames_pass_modules_and_frames_beyond_the_link_rate_are_dropped() {
    let harness = Harness::new();
    let share = share(&harness, &["stream:pattern,size=64x48,format=grey,rate=200"], &[]);
    let (way, file) = (Counted::to(&share), harness.path("frames.pcapng"));
    let target = way.target("stream");
    let read = |count: &str, modules: &[&str]| {
        let modules = modules.iter().flat_map(|module| ["--module", module]);
        let words: Vec<&str> =
            ["stream", "read", &target, "--json", "--count", count].into_iter().chain(modules).collect();
        way.take();
        (harness.json(&words), way.take())
    };
    let (plain, bytes) = read("100", &["null"]);
    assert_eq!(
        (&plain["frames"], &plain["missed"], &plain["bytes"]),
        (&100.into(), &0.into(), &(100 * 64 * 48).into())
    );
    let record = format!("record:file={}", file.display());
    let (shrunk, fewer) = read("100", &[&record, "bundle", "zstd", "buffer:time=2ms"]);
    assert_eq!((&shrunk["frames"], &shrunk["missed"]), (&100.into(), &0.into()));
    assert!(fewer < bytes / 4, "{fewer} of {bytes}");
    wait_until(PATIENCE, "frames are recorded", || fs::metadata(&file).unwrap().len() > 100 * 64 * 48);
    // Twenty frames a second fit, of two hundred: the reader sees the newest, and far more of them than one grant
    // allows.
    let slow = ["stale:ahead=1", "rate:bytes-per-s=62000"];
    let (newest, _) = read("40", &slow);
    assert_eq!(newest["frames"], 40);
    assert!(newest["missed"].as_u64().unwrap() > 100, "{newest}");
}

#[test]
fn request_waits_at_a_paused_module_until_it_is_resumed() {
    if !has_fuse() {
        return;
    }
    let harness = Harness::new();
    let (image, at) = (harness.image("image", MIB), harness.path("at"));
    let share = share(&harness, &[&format!("block:{}", image.display())], &[]);
    let target = share.target("block");
    let words =
        ["attach", &target, "--via", "fuse", "--at", at.to_str().unwrap(), "--module", "zstd", "--module", "pause"];
    let mut attach = Running::start(harness.command(&words));
    attach.wait_for_line("attached as ");
    assert_eq!(harness.run(&["module", "pause", &target]).code, Some(0));
    let file = File::open(at.join("disk.img")).unwrap();
    let (tell, answers) = std::sync::mpsc::channel();
    let reader = thread::spawn(move || {
        file.read_exact_at(&mut [0; 4096], 512 << 10).unwrap();
        tell.send(()).unwrap();
    });
    assert!(answers.recv_timeout(std::time::Duration::from_millis(500)).is_err(), "it waits");
    assert_eq!(harness.run(&["module", "resume", &target]).code, Some(0));
    answers.recv_timeout(PATIENCE).expect("it goes on");
    reader.join().unwrap();
    attach.signal(Signal::TERM);
    assert_eq!(attach.wait_for_end(PATIENCE), Some(0), "{}", attach.log());
    let none = harness.run(&["module", "pause", &target]);
    assert_eq!(none.code, Some(4), "{none:?}");
}

/// A recording is written with a delay: waits until the file has so many bytes at the least, and no longer grows.
fn wait_until_written(file: &Path, bytes_min: u64) {
    let length = || fs::metadata(file).unwrap().len();
    wait_until(PATIENCE, "what was read is recorded", || length() >= bytes_min);
    let mut last = 0;
    while length() != last {
        last = length();
        // waits: a recorder writes what it has within this time, or the file is looked at again
        thread::sleep(std::time::Duration::from_millis(300));
    }
}

#[test]
fn module_mismatch_is_refused_with_the_module_and_the_reason() {
    let harness = Harness::new();
    let (ours, theirs) = (key(&harness, "ours", 1), key(&harness, "theirs", 2));
    let sealing = share(&harness, &["memory:1M"], &["--allow-module", &theirs]);
    let attach = |share: &Share, module: &str| {
        let target = share.target("memory");
        harness.run(&["attach", &target, "--via", "nbd", "--socket", "none.sock", "--module", module])
    };
    let refused = attach(&sealing, &ours);
    assert_eq!(refused.code, Some(3), "{refused:?}");
    assert!(refused.stderr.contains("module 'seal': the two hosts have different keys"), "{refused:?}");
    let open = share(&harness, &["memory:1M"], &[]);
    let refused = attach(&open, &ours);
    assert_eq!(refused.code, Some(3), "{refused:?}");
    assert!(refused.stderr.contains("--allow-module seal"), "{refused:?}");
    for (module, word) in [
        ("zip", "this machine has none of that name; there are lz4, zstd"),
        ("zstd:level=20", "level=20: it is a number from 1 to 19"),
        ("seal", "it has to be told key-file: seal:key-file="),
        ("seal:key-file=/nonexistent", "it cannot be read"),
    ] {
        let refused = attach(&open, module);
        assert_eq!(refused.code, Some(1), "{refused:?}");
        assert!(refused.stderr.contains(word), "{refused:?}");
    }
    let refused = harness.run(&["share", "zero", "--allow-module", "zip"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
}

#[test]
fn modules_are_listed_and_explained() {
    let harness = Harness::new();
    let listed = harness.run(&["module", "list"]).stdout;
    let modules = harness.json(&["module", "list", "--json"])["modules"].clone();
    for module in modules.as_array().unwrap() {
        let name = module["name"].as_str().unwrap();
        assert!(listed.contains(&format!("{name} ")), "{name}: {listed}");
        let shown = harness.run(&["module", "show", name]);
        assert!(shown.code == Some(0) && shown.stdout.starts_with(&format!("# {name}")), "{shown:?}");
        assert_eq!(harness.json(&["module", "show", name, "--json"]), *module);
    }
    assert!(modules.as_array().unwrap().len() >= 17);
    let unknown = harness.run(&["module", "show", "zip"]);
    assert_eq!(unknown.code, Some(4), "{unknown:?}");
    assert!(unknown.stderr.contains("there are lz4, zstd, seal"), "{unknown:?}");
}

/// A program from `docs/modules`, in a folder of the harness.
fn example(harness: &Harness, name: &str, source: &str) -> PathBuf {
    let path = harness.path(name);
    copy_program(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/modules").join(source), &path);
    path
}

/// Like [`example`] for a program in C, which it compiles.
fn compiled(harness: &Harness, name: &str, source: &str) -> PathBuf {
    let (built, source) = (harness.path(name), example(harness, source, source));
    let compile = Command::new("cc").args(["-O1", "-o"]).args([&built, &source]).status().unwrap();
    assert!(compile.success());
    built
}

fn read_through(harness: &Harness, share: &Share, module: &str) -> (Vec<u8>, u64) {
    let (way, at) = (Counted::to(share), harness.path("at"));
    let words = ["attach", &way.target("block"), "--via", "fuse", "--at", at.to_str().unwrap(), "--module", module];
    let mut attach = Running::start(harness.command(&words));
    attach.wait_for_line("attached as ");
    let mut found = vec![0; 8192];
    File::open(at.join("disk.img")).unwrap().read_exact_at(&mut found, 0).unwrap();
    attach.signal(Signal::TERM);
    assert_eq!(attach.wait_for_end(PATIENCE), Some(0), "{}", attach.log());
    (found, way.take())
}

#[test]
fn a_program_in_any_language_is_a_module() {
    if !has_fuse() || !has("python3", has_program("python3")) || !has("cc", has_program("cc")) {
        return;
    }
    let harness = Harness::new();
    let image = harness.image("image", MIB);
    fs::write(&image, [text(), vec![0; MIB as usize - text().len()]].concat()).unwrap();
    let disk = format!("block:{}", image.display());
    let python = example(&harness, "xor.py", "xor.py");
    let (built, ring) = (compiled(&harness, "xor", "xor.c"), compiled(&harness, "xor.ring", "xor_ring.c"));
    let sandboxed = harness.path("xor.wasm");
    let text_of_it = fs::read_to_string(example(&harness, "xor.wat", "xor.wat")).unwrap();
    fs::write(&sandboxed, wat::parse_str(text_of_it).unwrap()).unwrap();
    // Each end may have the module in its own language, with its own settings.
    let ends = [
        (&python, &python),
        (&built, &python),
        (&python, &built),
        (&ring, &built),
        (&sandboxed, &ring),
        (&built, &sandboxed),
    ];
    for (there, here) in ends {
        let share = share(&harness, &[&disk], &["--allow-module", there.to_str().unwrap()]);
        let (found, _) = read_through(&harness, &share, &format!("{}:options=77", here.display()));
        assert!(text().starts_with(&found), "{there:?}, {here:?}");
    }
    // A program that is no module is reported before a device is asked for.
    fs::write(&sandboxed, text()).unwrap();
    let refused = harness.run(&["share", &disk, "--allow-module", sandboxed.to_str().unwrap()]);
    assert!(refused.code == Some(1) && refused.stderr.contains("it is no WebAssembly"), "{refused:?}");
    // An exporter without the program does not offer the module.
    let share = share(&harness, &[&disk], &[]);
    let refused =
        harness.run(&["attach", &share.target("block"), "--via", "fuse", "--module", built.to_str().unwrap()]);
    assert_eq!(refused.code, Some(3), "{refused:?}");
    assert!(refused.stderr.contains("module 'xor': the exporter has none of that name"), "{refused:?}");
    assert!(refused.stderr.contains("--allow-module ./xor"), "{refused:?}");
}

#[test]
fn daemon_keeps_its_module_programs_after_a_failed_reload() {
    if !has_fuse() || !has("python3", has_program("python3")) || !has("cc", has_program("cc")) {
        return;
    }
    let (there, here) = (Harness::new(), Harness::new());
    let image = there.image("image", MIB);
    fs::write(&image, [text(), vec![0; MIB as usize - text().len()]].concat()).unwrap();
    let began = |harness: &Harness, text: &str| {
        let file = harness.path("farbus.toml");
        fs::write(&file, format!("plain.listen = ['127.0.0.1:0']\n{text}")).unwrap();
        harness.command(&["daemon", "--config", file.to_str().unwrap()])
    };
    let (python, ring) = (example(&there, "xor.py", "xor.py"), compiled(&here, "xor.ring", "xor_ring.c"));
    let offered = format!(
        "allow_modules = ['{}']\nshare = [{{what='block:{}', name='disk'}}]",
        python.display(),
        image.display()
    );
    let exporter = Share::follow(Running::start(began(&there, &offered)));
    let at = here.path("at");
    let through = |modules: &str| {
        let (target, at) = (exporter.target("disk"), at.display());
        format!("attach = [{{target='{target}', via='fuse', at='{at}', modules={modules}}}]")
    };
    let file = at.join("disk.img");
    let is_read = || {
        let mut found = vec![0; 4096];
        let read = File::open(&file).and_then(|file| file.read_exact_at(&mut found, 0));
        read.is_ok() && text().starts_with(&found)
    };
    let one = format!("['{}:options=77']", ring.display());
    let mut daemon = Running::start(began(&here, &through(&one)));
    wait_until(PATIENCE, "it is attached through the program", is_read);

    // The program that the reload names first does not start: nothing changes.
    let two = format!("['zstd', '{}:options=78']", ring.display());
    drop(began(&here, &through(&two)));
    let refused = here.run(&["daemon", "reload"]);
    assert!(refused.code == Some(1) && refused.stderr.contains("farbus daemon restart"), "{refused:?}");
    assert!(is_read());
    let next = Later::of(&here.json(&["daemon", "restart", "--interrupt", "--json"]));
    assert_eq!(daemon.wait_for_end(PATIENCE), Some(0), "{}", daemon.log());
    wait_until(PATIENCE, "the next one is attached through what its file names", is_read);
    drop(began(&here, ""));
    assert_eq!(here.run(&["daemon", "reload"]).code, Some(0));
    wait_until(PATIENCE, "it lets go", || !file.exists());
    next.end();
}

/// A module program that looks around and reports what it could do.
const NOSY: &str = r#"#!/usr/bin/env python3
import mmap, os, socket, struct, sys
def tried(what, act):
    try:
        act()
        return what
    except OSError:
        return ""
could = [
    tried("passwd", lambda: open("/etc/passwd").read()),
    tried("proc", lambda: open("/proc/1/status").read()),
    tried("home", lambda: os.listdir("/")),
    tried("write", lambda: open(sys.argv[0] + ".new", "w")),
    tried("tmp", lambda: open("/tmp/farbus-nosy", "w")),
    tried("tcp", lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM)),
    tried("unix", lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)),
    tried("kill", lambda: os.kill(os.getppid(), 0)),
    tried("mount", lambda: os.chroot("/usr")),
    tried("hole", lambda: mmap.mmap(-1, 4096).madvise(9)),
    tried("environment", lambda: os.environ["FARBUS_STATE"]) if "FARBUS_STATE" in os.environ else "",
]
why = ("it could: " + " ".join(filter(None, could))).encode()
sys.stdout.buffer.write(struct.pack("<IB", 1 + len(why), 5) + why)
"#;

#[test]
fn a_program_sees_its_pipes_and_nothing_else() {
    if !has("python3", has_program("python3")) {
        return;
    }
    let harness = Harness::new();
    let nosy = harness.path("nosy");
    write_script(&nosy, NOSY);
    let share =
        share(&harness, &["memory:1M"], &["--allow-module", example(&harness, "nosy.py", "xor.py").to_str().unwrap()]);
    let target = share.target("memory");
    let attach = ["attach", &target, "--via", "nbd", "--socket", "nosy.sock", "--module", nosy.to_str().unwrap()];
    let refused = harness.run(&attach);
    assert_eq!(refused.code, Some(3), "{refused:?}");
    let (_, could) = refused.stderr.split_once("module 'nosy': it could: ").unwrap_or_else(|| panic!("{refused:?}"));
    assert_eq!(could.lines().next().unwrap_or_default().trim(), "", "{refused:?}");
}

/// A module program that passes on what it is sent, but for requests, which it keeps.
const SWALLOWING: &str = r#"#!/usr/bin/env python3
import struct, sys
def say(frame):
    sys.stdout.buffer.write(struct.pack("<I", len(frame)) + frame)
while head := sys.stdin.buffer.read(4):
    frame = sys.stdin.buffer.read(struct.unpack("<I", head)[0])
    if frame[0] == 2 and frame[2] != 0:
        say(frame[:1] + bytes([1 - frame[1]]) + frame[2:])
    say(b"\x04" + b"\xff" * 8)
    sys.stdout.buffer.flush()
"#;

#[test]
fn reader_behind_a_module_that_swallows_its_request_is_freed_and_the_module_is_named() {
    if !has_fuse() || !has("python3", has_program("python3")) {
        return;
    }
    let harness = Harness::new();
    let (image, at, swallow) = (harness.image("image", MIB), harness.path("at"), harness.path("swallow.py"));
    write_script(&swallow, SWALLOWING);
    let disk = format!("block:{}", image.display());
    let share = share(&harness, &[&disk], &["--allow-module", swallow.to_str().unwrap()]);
    let (target, module) = (share.target("block"), format!("{}:hold=1s", swallow.display()));
    let words = ["attach", &target, "--via", "fuse", "--at", at.to_str().unwrap(), "--module", "null"];
    let mut attach = Running::start(harness.command(&[&words[..], &["--module", &module]].concat()));
    attach.wait_for_line("attached as ");
    let reader = thread::spawn({
        let file = at.join("disk.img");
        move || File::open(file).and_then(|file| file.read_exact_at(&mut [0; 4096], 0))
    });
    let ended = attach.wait_for_end(PATIENCE);
    assert!(ended.is_some_and(|code| code != 0), "{ended:?} {}", attach.log());
    assert!(reader.join().unwrap().is_err());
    assert!(attach.log().contains("module 'swallow' (2 of 2): it has had request "), "{}", attach.log());
}

#[test]
fn server_that_is_no_farbus_is_told_apart_when_modules_are_asked_for() {
    let harness = Harness::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = format!("{}/1-1", listener.local_addr().unwrap());
    // Like usbipd: what it does not know ends the connection.
    thread::spawn(move || {
        for mut link in listener.incoming().map_while(Result::ok) {
            let _ = link.read(&mut [0; 8]);
        }
    });
    let words = ["attach", &target, "--via", "nbd", "--socket", "none.sock", "--module", "zstd"];
    let refused = harness.run(&words);
    assert_ne!(refused.code, Some(0), "{refused:?}");
    assert!(refused.stderr.contains("modules need farbus at both ends"), "{refused:?}");
}
