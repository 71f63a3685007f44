//! Block devices for programs that speak NBD: libnbd's tools, QEMU's and fio, compared with the contents of the image.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use super::block;
use super::harness::{Harness, Outcome, PATIENCE, Running, Share, finish, has, has_program, wait_until};

const MIB: u64 = 1 << 20;

/// Bytes that differ from each other and from those of any other seed, with holes in them.
fn noise(seed: u32, count: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
    let mut bytes: Vec<u8> = (0..count)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state as u8
        })
        .collect();
    for hole in bytes.chunks_mut(MIB as usize).skip(2).step_by(5) {
        hole.fill(0);
    }
    bytes
}

fn have(programs: &[&str]) -> bool {
    programs.iter().all(|program| has(program, has_program(program)))
}

/// A running NBD server of farbus, and its socket.
struct Served {
    process: Running,
    socket: PathBuf,
    uri: String,
}

impl Served {
    /// Starts `farbus` with these arguments and a socket in the harness's folder.
    fn start(harness: &Harness, name: &str, arguments: &[&str]) -> Self {
        let socket = harness.path(name);
        let arguments = [arguments, &["--socket", socket.to_str().unwrap(), "--json"]].concat();
        let process = Running::start(harness.command(&arguments));
        let answer: Value = serde_json::from_str(&json_of(&process)).unwrap();
        let uri = answer["exports"][0]["uri"].as_str().unwrap().to_owned();
        Self { process, socket, uri }
    }

    fn end(mut self) {
        self.process.signal(Signal::INT);
        assert_eq!(self.process.wait_for_end(PATIENCE), Some(0), "{}", self.process.log());
        wait_until(PATIENCE, "its socket goes with it", || !self.socket.exists());
    }
}

/// The JSON that a process prints over several lines.
fn json_of(process: &Running) -> String {
    let mut text = process.wait_for_line("{");
    while serde_json::from_str::<Value>(&text).is_err() {
        text += &process.wait_for_line("");
    }
    text
}

/// Runs a program, which has to succeed.
fn run(harness: &Harness, program: &str, arguments: &[&str]) -> Outcome {
    let outcome = finish(harness.command_of(Path::new(program), arguments), PATIENCE);
    assert_eq!(outcome.code, Some(0), "{program} {arguments:?}: {outcome:?}");
    outcome
}

#[test]
fn a_disk_of_another_machine_is_copied_both_ways() {
    if !have(&["nbdinfo", "nbdcopy"]) {
        return;
    }
    let harness = Harness::new();
    let image = harness.image("image", 32 * MIB);
    let share = harness.share(&[&format!("disk:{}", image.display())]);
    let target = share.target("disk");
    let served = Served::start(&harness, "disk.sock", &["attach", &target, "--via", "nbd"]);
    assert_eq!(fs::metadata(&served.socket).unwrap().permissions().mode() & 0o777, 0o600);

    let answer: Value = serde_json::from_str(&run(&harness, "nbdinfo", &["--json", &served.uri]).stdout).unwrap();
    let export = &answer["exports"][0];
    assert_eq!((&answer["protocol"], &export["export-size"]), (&"newstyle-fixed".into(), &(32 * MIB).into()));
    assert_eq!((&export["can_multi_conn"], &export["can_fua"]), (&true.into(), &true.into()));
    assert_eq!(export["description"], target);

    let original = noise(1, 32 * MIB as usize);
    let (from, to) = (harness.path("from"), harness.path("to"));
    fs::write(&from, &original).unwrap();
    run(&harness, "nbdcopy", &["--flush", from.to_str().unwrap(), &served.uri]);
    assert!(fs::read(&image).unwrap() == original, "what was flushed is in the image");
    run(&harness, "nbdcopy", &["--connections=4", &served.uri, to.to_str().unwrap()]);
    assert!(fs::read(&to).unwrap() == original);

    let status = harness.json(&["status", "--json"]);
    let attached = status.as_array().unwrap().iter().find(|process| process["role"] == "attach").unwrap();
    assert_eq!(attached["devices"][0]["at"], served.uri);
    assert!(attached["devices"][0]["meters"]["bytes_in"].as_u64().unwrap() >= 32 * MIB);
    let mut process = served.process;
    assert_eq!(harness.run(&["detach"]).code, Some(0));
    assert_eq!(process.wait_for_end(PATIENCE), Some(0), "{}", process.log());
    wait_until(PATIENCE, "its socket goes with it", || !served.socket.exists());
    assert!(fs::read(&image).unwrap() == original);
}

/// A client that reads no limit, at the export with this name, as the reference implementation's test client is
/// (`NBD_OPT_EXPORT_NAME`, simple replies).
struct SimpleClient(UnixStream);

impl SimpleClient {
    fn at(socket: &Path, export: &str) -> Self {
        let mut stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.read_exact(&mut [0; 18]).unwrap();
        stream.write_all(&3_u32.to_be_bytes()).unwrap();
        stream.write_all(b"IHAVEOPT\0\0\0\x01").unwrap();
        stream.write_all(&[&(export.len() as u32).to_be_bytes(), export.as_bytes()].concat()).unwrap();
        stream.read_exact(&mut [0; 10]).unwrap();
        Self(stream)
    }

    /// Carries out one command; returns the error of its reply.
    fn ask(&mut self, command: u16, offset: u64, length: u32, data: &[u8]) -> u32 {
        let head = [&0x2560_9513_u32.to_be_bytes()[..], &[0, 0], &command.to_be_bytes(), b"a cookie"];
        let range = [&offset.to_be_bytes()[..], &length.to_be_bytes()];
        self.0.write_all(&[head.concat(), range.concat()].concat()).unwrap();
        self.0.write_all(data).unwrap();
        let mut reply = [0; 16];
        self.0.read_exact(&mut reply).unwrap();
        assert_eq!((&reply[..4], &reply[8..]), (&0x6744_6698_u32.to_be_bytes()[..], &b"a cookie"[..]));
        u32::from_be_bytes(reply[4..8].try_into().unwrap())
    }
}

#[test]
fn requests_of_50_mb_are_carried_out_at_the_export_with_the_devices_name() {
    const LENGTH: u32 = 50_000_000;
    let harness = Harness::new();
    let image = harness.image("image", 64 * MIB);
    let share = harness.share(&[&format!("disk:{}", image.display())]);
    let target = share.target("disk");
    let socket = harness.path("nbd.sock");
    let at = socket.to_str().unwrap();
    for (seed, grace) in [(1, "0"), (2, "10")] {
        let words = ["attach", &target, "--via", "nbd", "--socket", at, "--grace", grace];
        let mut attached = Running::start(harness.command(&words));
        attached.wait_for_line("attached");
        let written = noise(seed, LENGTH as usize);
        let mut client = SimpleClient::at(&socket, "disk");
        assert_eq!(client.ask(1, 4096, LENGTH, &written), 0);
        assert_eq!(client.ask(0, 4096, LENGTH, &[]), 0);
        let mut read = vec![0; LENGTH as usize];
        client.0.read_exact(&mut read).unwrap();
        assert!(read == written, "grace {grace}");
        drop(client);
        if have(&["nbdinfo"]) {
            let uri = format!("nbd+unix:///?socket={at}");
            let list: Value =
                serde_json::from_str(&run(&harness, "nbdinfo", &["--json", "--list", &uri]).stdout).unwrap();
            assert_eq!(list["exports"][0]["export-name"], "disk", "{list}");
        }
        attached.signal(Signal::INT);
        assert_eq!(attached.wait_for_end(PATIENCE), Some(0), "{}", attached.log());
    }
}

/// A sparse image of a GiB, with a few MiB of data here and there.
fn sparse_image(harness: &Harness) -> PathBuf {
    let image = harness.image("sparse", 1024 * MIB);
    let file = fs::File::options().write(true).open(&image).unwrap();
    for (seed, at) in [(1, 0), (2, 100 * MIB), (3, 1023 * MIB)] {
        file.write_all_at(&noise(seed, MIB as usize), at).unwrap();
    }
    image
}

/// The extents of the whole export: offset, length, and whether it is a hole.
fn extents(harness: &Harness, uri: &str) -> Vec<(u64, u64, bool)> {
    let message = run(harness, "nbdinfo", &["--map", "--json", uri]).stdout;
    let answer: Value = serde_json::from_str(&message).unwrap();
    let extents = answer.as_array().unwrap().iter().map(|extent| {
        let number = |name: &str| extent[name].as_u64().unwrap();
        assert!([0, 3].contains(&number("type")), "data, or a hole that reads as zeros: {extent}");
        (number("offset"), number("length"), number("type") == 3)
    });
    extents.collect()
}

/// The data and holes of [`sparse_image`].
const SPARSE: [(u64, u64, bool); 5] = [
    (0, MIB, false),
    (MIB, 99 * MIB, true),
    (100 * MIB, MIB, false),
    (101 * MIB, 922 * MIB, true),
    (1023 * MIB, MIB, false),
];

/// Checks that programs see where the served [`sparse_image`] has holes, and copy it as sparse as it is.
fn is_copied_sparsely(harness: &Harness, image: &Path, uri: &str) {
    assert_eq!(extents(harness, uri), SPARSE);
    let message = run(harness, "qemu-img", &["map", "--output=json", "-f", "raw", uri]).stdout;
    let answer: Value = serde_json::from_str(&message).unwrap();
    let seen = answer.as_array().unwrap().iter().map(|extent| {
        let number = |name: &str| extent[name].as_u64().unwrap();
        assert_eq!(extent["data"] == false, extent["zero"] == true, "{extent}");
        (number("start"), number("length"), extent["data"] == false)
    });
    assert_eq!(seen.collect::<Vec<_>>(), SPARSE);
    let copy = harness.path("copy");
    run(harness, "nbdcopy", &["--sparse=0", uri, copy.to_str().unwrap()]);
    let blocks = |path: &Path| fs::metadata(path).unwrap().blocks();
    // A file system may need a few blocks more to say where the data is.
    assert!(blocks(&copy) <= blocks(image) + 256, "{} blocks of {}", blocks(&copy), blocks(image));
    assert!(run(harness, "cmp", &[image.to_str().unwrap(), copy.to_str().unwrap()]).stdout.is_empty());
    fs::remove_file(copy).unwrap();
}

#[test]
fn sparse_image_is_copied_sparsely_and_what_is_written_into_a_hole_is_data() {
    if !have(&["nbdinfo", "nbdcopy", "qemu-img", "qemu-io"]) {
        return;
    }
    let harness = Harness::new();
    let image = sparse_image(&harness);
    let block = format!("block:{}", image.display());
    let served = Served::start(&harness, "sparse.sock", &["nbd", &block, "memory:1G"]);
    let uri = |name: &str| format!("nbd+unix:///{name}?socket={}", served.socket.display());
    is_copied_sparsely(&harness, &image, &uri(""));
    let is_hole_at = |name: &str, at: u64| {
        let extents = extents(&harness, &uri(name));
        extents.iter().find(|(offset, length, _)| (*offset..offset + length).contains(&at)).unwrap().2
    };
    for name in ["sparse", "memory"] {
        assert!(is_hole_at(name, 500 * MIB));
        run(&harness, "qemu-io", &["-f", "raw", "-c", "write -P 7 500M 64k", &uri(name)]);
        assert!(!is_hole_at(name, 500 * MIB) && is_hole_at(name, 501 * MIB));
        run(&harness, "qemu-io", &["-f", "raw", "-c", "discard 500M 1M", &uri(name)]);
        assert!(is_hole_at(name, 500 * MIB), "and what is discarded is a hole again");
    }
    served.end();
}

#[test]
fn sparse_disk_of_another_machine_is_copied_sparsely() {
    if !have(&["nbdinfo", "nbdcopy", "qemu-img", "qemu-io"]) {
        return;
    }
    let harness = Harness::new();
    let image = sparse_image(&harness);
    let ([_lab3, desk], _share) = block::share(&harness, &[&format!("block:{}", image.display())]);
    let socket = harness.path("disk.sock");
    let uri = format!("nbd+unix:///?socket={}", socket.display());
    let attach = |mode: &str| {
        let socket = socket.to_str().unwrap();
        let attach = desk.start(&["attach", "lab3/block", "--via", "nbd", "--socket", socket, "--mode", mode]);
        attach.wait_for_line("attached");
        attach
    };
    let reader = attach("read");
    is_copied_sparsely(&harness, &image, &uri);
    block::end(reader);
    let writer = attach("exclusive");
    is_copied_sparsely(&harness, &image, &uri);
    // A write without a flush may still be on its way when the extents are asked for.
    let commands = ["-t", "unsafe", "-f", "raw", "-c", "write -P 7 500M 1M", &uri];
    run(&harness, "qemu-io", &commands);
    let (before, written, after) =
        ((101 * MIB, 399 * MIB, true), (500 * MIB, MIB, false), (501 * MIB, 522 * MIB, true));
    assert_eq!(extents(&harness, &uri)[3..6], [before, written, after]);
    block::end(writer);
}

#[test]
fn an_exporter_that_is_killed_ends_the_attachment_and_its_clients() {
    if !have(&["nbdcopy"]) {
        return;
    }
    let harness = Harness::new();
    let mut share = harness.share(&[&format!("disk:{}", harness.image("image", 2048 * MIB).display())]);
    let mut served = Served::start(&harness, "disk.sock", &["attach", &share.target("disk"), "--via", "nbd"]);
    let to = harness.path("to");
    let mut copy = Running::start(harness.command_of(Path::new("nbdcopy"), &[&served.uri, to.to_str().unwrap()]));
    // waits: the exporter dies while it is read; that nothing was read yet has to do as well
    std::thread::sleep(Duration::from_millis(300));
    share.process.kill();
    let killed = Instant::now();
    assert_eq!(served.process.wait_for_end(PATIENCE), Some(5), "{}", served.process.log());
    served.process.assert_logged("the link was lost");
    // Either with 1, or by an assertion of libnbd's that fails when the server closes with reads under way.
    assert_ne!(copy.wait_for_end(PATIENCE), Some(0), "a copy that was cut short says so");
    println!("ended after {:?}", killed.elapsed());
    wait_until(PATIENCE, "its socket goes with it", || !served.socket.exists());
}

#[test]
fn qemu_writes_reads_zeroes_and_discards() {
    if !have(&["qemu-img", "qemu-io"]) {
        return;
    }
    let harness = Harness::new();
    let (image, source) = (harness.image("image", 64 * MIB), harness.path("source"));
    fs::write(&source, noise(2, 64 * MIB as usize)).unwrap();
    let source = source.to_str().unwrap();
    let served = Served::start(&harness, "local.sock", &["nbd", &format!("block:{}", image.display())]);
    let uri = served.uri.as_str();
    run(&harness, "qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", source, uri]);
    run(&harness, "qemu-img", &["compare", "-f", "raw", "-F", "raw", source, uri]);
    assert!(fs::read(&image).unwrap() == fs::read(source).unwrap());
    let commands = [
        "write -P 0x5a 1M 3M",
        "write -f -P 0xa5 4096 512",
        "aio_write -P 0x11 10M 2M",
        "aio_write -P 0x22 20M 64k",
        "aio_flush",
        "write -z 1M 1M",
        "write -z -u 2M 512k",
        "discard 3M 64k",
        "flush",
        "read -P 0 1M 1M",
        "read -P 0 2M 512k",
        "read -P 0x5a 2621440 524288",
        "read -P 0 3M 64k",
        "read -P 0xa5 4096 512",
        "read -P 0x11 10M 2M",
        "read -P 0x22 20M 64k",
    ];
    let mut arguments = vec!["-f", "raw"];
    commands.iter().for_each(|command| arguments.extend(["-c", command]));
    arguments.push(uri);
    let outcome = run(&harness, "qemu-io", &arguments);
    assert!(!outcome.stdout.contains("verification failed"), "{}", outcome.stdout);
    served.end();
    let bytes = fs::read(&image).unwrap();
    assert!(bytes[4096..4608].iter().all(|byte| *byte == 0xa5) && bytes[10 * MIB as usize] == 0x11);
}

#[test]
fn fio_writes_at_random_over_several_connections_and_finds_it_all_again() {
    if !have(&["fio"]) {
        return;
    }
    let harness = Harness::new();
    let served = Served::start(&harness, "memory.sock", &["nbd", "memory:64M"]);
    let uri = format!("--uri={}", served.uri);
    let outcome = run(
        &harness,
        "fio",
        &[
            "--name=verify",
            "--ioengine=nbd",
            &uri,
            "--rw=randwrite",
            "--bsrange=512-128k",
            "--bs_unaligned=0",
            "--iodepth=32",
            "--size=16M",
            "--offset_increment=16M",
            "--numjobs=4",
            "--thread",
            "--fsync=64",
            "--verify=crc32c",
            "--verify_fatal=1",
            // Otherwise fio leaves files in its working folder.
            "--verify_state_save=0",
            "--group_reporting",
            "--output-format=json",
        ],
    );
    let answer: Value = serde_json::from_str(&outcome.stdout[outcome.stdout.find('{').unwrap()..]).unwrap();
    let job = &answer["jobs"][0];
    assert_eq!((&job["error"], &job["write"]["io_kbytes"]), (&0.into(), &(64 << 10).into()));
    assert_eq!(job["read"]["io_kbytes"], 64 << 10, "all of it was verified");
    served.end();
}

#[test]
fn nbd_server_lists_its_exports_keeps_scratch_views_apart_and_refuses_bad_options() {
    if !have(&["nbdinfo", "nbdcopy", "qemu-io"]) {
        return;
    }
    let harness = Harness::new();
    let image = harness.image("image", 8 * MIB);
    let original = noise(3, 8 * MIB as usize);
    fs::write(&image, &original).unwrap();
    let block = format!("block:{}", image.display());
    let views = [
        format!("{block},scratch"),
        format!("{block},ro"),
        format!("{block},ro,offset=1M,size=2M"),
        "memory:16T".into(),
    ];
    let views: Vec<&str> = views.iter().map(String::as_str).collect();
    let served = Served::start(&harness, "views.sock", &[&["nbd"], views.as_slice()].concat());
    let uri = |name: &str| format!("nbd+unix:///{name}?socket={}", served.socket.display());

    let list: Value = serde_json::from_str(&run(&harness, "nbdinfo", &["--json", "--list", &uri("")]).stdout).unwrap();
    let exports: Vec<(&str, u64)> = list["exports"]
        .as_array()
        .unwrap()
        .iter()
        .map(|export| (export["export-name"].as_str().unwrap(), export["export-size"].as_u64().unwrap()))
        .collect();
    let sizes = [("image", 8 * MIB), ("image-2", 8 * MIB), ("image-3", 2 * MIB), ("memory", 16 << 40)];
    assert_eq!(exports, sizes);

    // A client's own changes to a scratch view, which other clients do not see.
    run(&harness, "qemu-io", &["-f", "raw", "-c", "write -P 7 512 1M", "-c", "discard 4M 1M", &uri("image")]);
    let (copy, part) = (harness.path("copy"), harness.path("part"));
    let mut changed = original.clone();
    changed[512..][..MIB as usize].fill(7);
    changed[4 * MIB as usize..][..MIB as usize].fill(0);
    run(&harness, "nbdcopy", &[&uri("image"), copy.to_str().unwrap()]);
    assert!(fs::read(&copy).unwrap() == changed);
    run(&harness, "nbdcopy", &[&uri("image-2"), copy.to_str().unwrap()]);
    assert!(fs::read(&copy).unwrap() == original);
    run(&harness, "nbdcopy", &[&uri("image-3"), part.to_str().unwrap()]);
    assert!(fs::read(&part).unwrap() == original[MIB as usize..][..2 * MIB as usize]);
    let last = "17592186040320";
    let commands = ["-c", &format!("write -P 9 {last} 4096"), "-c", &format!("read -P 9 {last} 4096")];
    run(&harness, "qemu-io", &[&["-f", "raw"], commands.as_slice(), &[&uri("memory")]].concat());

    let refused = finish(
        harness.command_of(Path::new("qemu-io"), &["-f", "raw", "-c", "write 0 512", &uri("image-2")]),
        PATIENCE,
    );
    assert_ne!(refused.code, Some(0), "{refused:?}");
    let nobody = finish(harness.command_of(Path::new("nbdinfo"), &[&uri("nothing")]), PATIENCE);
    assert_ne!(nobody.code, Some(0), "{nobody:?}");
    let taken = harness.run(&["nbd", "memory:1M", "--socket", served.socket.to_str().unwrap()]);
    assert_eq!(taken.code, Some(1));
    assert!(taken.stderr.contains("another program listens there"), "{taken:?}");
    run(&harness, "nbdinfo", &["--size", &uri("memory")]);
    served.end();
    assert!(fs::read(&image).unwrap() == original, "nobody changed the image");
}

#[test]
fn nbd_client_that_sends_garbage_loses_only_its_own_connection() {
    let harness = Harness::new();
    let served = Served::start(&harness, "memory.sock", &["nbd", "memory:1M"]);
    let mut good = UnixStream::connect(&served.socket).unwrap();
    let mut greeting = [0; 18];
    good.read_exact(&mut greeting).unwrap();
    for nonsense in [
        &b"GET / HTTP/1.1\r\n\r\n\0\0\0\0"[..],
        &[0, 0, 0, 3, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20],
    ] {
        let mut bad = UnixStream::connect(&served.socket).unwrap();
        bad.set_read_timeout(Some(PATIENCE)).unwrap();
        bad.write_all(nonsense).unwrap();
        let mut heard = Vec::new();
        // The server ends or resets the connection.
        let _ = bad.read_to_end(&mut heard);
        assert!(heard.len() <= 18, "{heard:?}");
    }
    // Both flags, then EXPORT_NAME "" and a read of 512 bytes.
    good.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\0").unwrap();
    let mut reply = [0; 10];
    good.read_exact(&mut reply).unwrap();
    assert_eq!(reply[..8], MIB.to_be_bytes());
    let mut request = [0x25, 0x60, 0x95, 0x13].to_vec();
    request.extend([0; 22]);
    request.extend([2, 0]);
    good.write_all(&request).unwrap();
    let mut reply = [0xee; 16 + 512];
    good.read_exact(&mut reply).unwrap();
    assert_eq!(reply[..4], [0x67, 0x44, 0x66, 0x98]);
    assert!(reply[4..].iter().all(|byte| *byte == 0));
    served.end();
}

#[test]
fn nbd_arguments_that_cannot_work_are_refused_with_what_to_type() {
    let harness = Harness::new();
    for (arguments, code, part) in [
        (&["nbd", "block:/nowhere/disk"][..], 1, "truncate -s 1G /nowhere/disk"),
        (&["nbd", "disk:x"], 2, "try block:PATH or memory:SIZE"),
        (&["nbd", "memory:1M,offset=2M"], 1, "1048576"),
        (&["nbd", "memory:1M", "--socket", "/nowhere/x.sock"], 1, "its folder does not exist"),
        (&["nbd", "memory:1M", "--listen", "nowhere"], 1, "no address to listen at"),
        (&["attach", "127.0.0.1:1/disk", "--via", "fuse", "--socket", "x"], 1, "--via nbd"),
        (&["attach", "127.0.0.1:1/disk", "--via", "nbd", "--at", "x"], 1, "--socket PATH"),
        (&["attach", "127.0.0.1:1/disk", "--via", "nbd"], 5, "is 'farbus share'"),
    ] {
        let outcome = harness.run(arguments);
        assert_eq!(outcome.code, Some(code), "{arguments:?}: {outcome:?}");
        assert!(outcome.stderr.contains(part), "{arguments:?}: {outcome:?}");
    }
}

#[test]
fn a_daemon_keeps_a_disk_served_whatever_becomes_of_its_exporter() {
    if !have(&["nbdinfo"]) {
        return;
    }
    let harness = Harness::new();
    let disk = format!("disk:{}", harness.image("image", 5 * MIB).display());
    let mut share = harness.share(&[&disk]);
    let socket = harness.path("kept.sock");
    let config = format!(
        "plain.listen = []\n[[attach]]\ntarget = '{}'\nvia = 'nbd'\nsocket = '{}'",
        share.target("disk"),
        socket.display()
    );
    fs::write(harness.path("farbus.toml"), config).unwrap();
    let file = harness.path("farbus.toml");
    let mut daemon = Running::start(harness.command(&["daemon", "--config", file.to_str().unwrap()]));
    let uri = format!("nbd+unix:///?socket={}", socket.display());
    let is_served = || finish(harness.command_of(Path::new("nbdinfo"), &["--size", &uri]), PATIENCE).code == Some(0);
    wait_until(PATIENCE, "the disk is served", is_served);
    let outcome = run(&harness, "nbdinfo", &["--size", &uri]);
    assert_eq!(outcome.stdout, (5 * MIB).to_string());
    share.process.kill();
    wait_until(PATIENCE, "the daemon sees that it is gone", || !is_served());
    let arguments = ["share", &disk, "--listen", &share.address];
    let _again = Share::follow(Running::start(harness.command(&arguments)));
    wait_until(PATIENCE, "the disk is served again", is_served);
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait_for_end(PATIENCE), Some(0), "{}", daemon.log());
    wait_until(PATIENCE, "its socket goes with it", || !socket.exists());
}

#[test]
fn nbd_server_at_an_address_is_reached_by_tcp() {
    if !have(&["nbdinfo"]) {
        return;
    }
    let harness = Harness::new();
    let mut process = Running::start(harness.command(&["nbd", "memory:3M", "--listen", "127.0.0.1:0"]));
    let line = process.wait_for_line("serving as nbd://127.0.0.1:");
    let uri = line.split_whitespace().nth(2).unwrap();
    assert_eq!(run(&harness, "nbdinfo", &["--size", uri]).stdout, (3 * MIB).to_string());
    let status = harness.json(&["status", "--json"]);
    assert_eq!((&status[0]["role"], &status[0]["devices"][0]["state"]), (&"nbd".into(), &"served".into()));
    assert_eq!(harness.run(&["detach", "memory"]).code, Some(0));
    assert_eq!(process.wait_for_end(PATIENCE), Some(0), "{}", process.log());
}
