//! One machine with many addresses, whose connections stay silent: what paired hosts and users of a device notice.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

use super::cuts::Cutter;
use super::harness::{Harness, PATIENCE, wait_until};
use super::trust::{hosts, pair};

/// Connects from this address of the loopback.
fn connect_from(from: [u8; 4], to: &str) -> std::io::Result<TcpStream> {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    bind(&socket, &SocketAddr::from((from, 0)))?;
    connect(&socket, &to.parse::<SocketAddr>().unwrap())?;
    Ok(socket.into())
}

/// Keeps a silent connection open from each of 60 addresses, half of them in the paired host's own network; replaces
/// each one that is closed.
fn hold_idle_connections(to: &str, is_over: &AtomicBool, opened: &AtomicU64) {
    let address = |n: u8| if n < 30 { [127, 0, 0, 100 + n] } else { [127, 7, n, 1] };
    let mut connections: Vec<(u8, Option<TcpStream>)> = (0..60).map(|n| (n, None)).collect();
    while !is_over.load(Ordering::Relaxed) {
        for (n, stream) in &mut connections {
            let is_open = |stream: &TcpStream| {
                let mut stream = stream;
                matches!(stream.read(&mut [0; 64]), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
            };
            if !stream.as_ref().is_some_and(is_open) {
                *stream = connect_from(address(*n), to).ok();
                stream.iter().for_each(|stream| stream.set_nonblocking(true).unwrap());
                opened.fetch_add(1, Ordering::Relaxed);
            }
        }
        // waits: the pace of a load; a slow machine makes less of it
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn sixty_idle_addresses_do_not_keep_a_paired_host_out() {
    let harness = Harness::new();
    let [lab3, desk] = hosts(&harness);
    pair(&lab3, &desk);
    lab3.ok(&["allow", "desk", "all"]);
    let image = harness.image("image", 4 << 20);
    let (share, address) = lab3.share(&[&format!("disk:{}", image.display()), "zero"]);
    let cutter = Cutter::before(address.parse().unwrap());
    let through = cutter.address().to_string();
    let at = harness.path("disk.sock");
    let arguments = ["--address", &through, "--via", "nbd", "--socket", at.to_str().unwrap(), "--grace", "30"];
    let attach = desk.start(&[&["attach", "lab3/disk"][..], &arguments].concat());
    attach.wait_for_line("attached as ");
    let (is_over, opened) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| hold_idle_connections(&address, &is_over, &opened));
        wait_until(PATIENCE, "the connections are there", || opened.load(Ordering::Relaxed) >= 120);
        let lists = (0..12).filter(|_| desk.run(&["list", "lab3", "--address", &address]).code == Some(0)).count();
        cutter.cut();
        let is_linked = || attach.log().contains("linked again");
        let began = std::time::Instant::now();
        while !is_linked() && began.elapsed() < Duration::from_secs(25) {
            // waits: between two looks for an event
            thread::sleep(Duration::from_millis(20));
        }
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(lists, 12, "lists that were answered");
        assert!(is_linked(), "{}", attach.log());
        println!("linked again after {:?}; {} connections", began.elapsed(), opened.load(Ordering::Relaxed));
    });
    // Refused connections are counted, in the audit log and in the share's log.
    let lines = lab3.audit_lines("connect");
    assert!(lines < 250, "{lines} lines of {} connections", opened.load(Ordering::Relaxed));
    let log = share.log().lines().count();
    assert!(log < 1000, "{log} lines in the log");
}

#[test]
fn full_plain_port_keeps_neither_paired_hosts_nor_others_out() {
    let harness = Harness::new();
    let [lab3, desk] = hosts(&harness);
    pair(&lab3, &desk);
    lab3.ok(&["allow", "desk", "all"]);
    let share = lab3.start(&["share", "zero", "--listen", "127.0.0.1:0", "--secure", "127.0.0.1:0"]);
    let plain = share.wait_for_line("listening on ").split_whitespace().nth(2).unwrap().to_owned();
    let secure = share.wait_for_line("for paired hosts").split_whitespace().nth(2).unwrap().to_owned();
    desk.ok(&["list", "lab3", "--address", &secure]);
    // More connections than there are places, ten from each address.
    let connections: Vec<_> = (0..640u32).map(|n| connect_from([127, 9, (n / 10) as u8, 1], &plain).unwrap()).collect();
    for n in 0..3 {
        let listed = desk.run(&["list", "lab3"]);
        assert_eq!(listed.code, Some(0), "{n}: {listed:?}");
    }
    wait_until(PATIENCE, "a connection that has waited a second gives way", || {
        desk.run(&["list", &plain]).code == Some(0)
    });
    drop(connections);
}

/// A plain USB/IP import of a device that does not exist.
fn import_of_nothing(to: &str) {
    let mut stream = TcpStream::connect(to).unwrap();
    let mut request = vec![0x01, 0x11, 0x80, 0x03, 0, 0, 0, 0];
    request.extend(b"9-9".iter().copied().chain(std::iter::repeat(0)).take(32));
    stream.write_all(&request).unwrap();
    let mut answer = [0; 8];
    stream.read_exact(&mut answer).unwrap();
    assert_ne!(answer[7], 0, "refused");
}

#[test]
fn uses_without_a_key_are_noted_and_a_flood_of_refusals_is_a_few_lines() {
    const FLOOD: usize = 2_000;
    let harness = Harness::new();
    let [lab3, _] = hosts(&harness);
    // This makes the host's key: the log needs its folder.
    lab3.ok(&["id"]);
    let share = lab3.start(&["share", "zero", "--listen", "127.0.0.1:0"]);
    let plain = share.wait_for_line("listening on ").split_whitespace().nth(2).unwrap().to_owned();
    let target = format!("{plain}/zero");
    drop(farbus::client::open(&target.parse().unwrap()).unwrap());
    let noted = |event: &str| lab3.noted("audit.log").iter().filter(|line| line["event"] == event).count();
    wait_until(PATIENCE, "it is noted", || noted("attach") == 1 && noted("detach") == 1);
    let line = &lab3.noted("audit.log")[0];
    assert_eq!((&line["device"], &line["outcome"]), (&"zero".into(), &"ok".into()), "{line}");
    assert!(line["address"].as_str().unwrap().starts_with("127.0.0.1:"), "{line}");

    (0..FLOOD).for_each(|_| import_of_nothing(&plain));
    let mut share = share;
    share.signal(rustix::process::Signal::TERM);
    assert_eq!(share.wait_for_end(PATIENCE), Some(0), "{}", share.log());
    let logged = || {
        let refused = lab3.noted("refused.log");
        refused.iter().map(|line| line["count"].as_u64().unwrap_or(1)).sum::<u64>()
    };
    wait_until(PATIENCE, "all are told of", || logged() == FLOOD as u64);
    assert_eq!(lab3.noted("audit.log").len(), 2);
    let lines = lab3.noted("refused.log").len();
    assert!(lines < 40, "{lines} lines");
    let log = share.log().lines().count();
    assert!(log < 500, "{log} lines in the log");
}
