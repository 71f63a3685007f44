//! A thousand clients that follow the events of a page: all get what happens, those that do not read cost little, and
//! none takes the page from its owner.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use farbus_io_linux::sys::descriptors;

use super::harness::{Harness, PATIENCE, Running, wait_until};
use super::page::{Page, open_page, send};
use super::page_actions::by_shell;
use super::page_confined::http_process;
use super::rights::of_process;

/// Clients that follow the events.
const CLIENTS: usize = 1000;
/// Of them, those that never read.
const SILENT: usize = 200;
/// The most that one may cost, KiB: its connection, its task, and what it has not read.
const CLIENT_KIB_MAX: u64 = 48;

/// Memory that is resident in the process that speaks HTTP, KiB.
fn resident_kib(page: &Running) -> u64 {
    of_process(&http_process(page).into(), "VmRSS").trim_end_matches(" kB").parse().unwrap()
}

/// Has this process enough descriptors for a thousand clients? It raises its limit.
fn has_descriptors() -> bool {
    descriptors::raise().soft.is_none_or(|soft| soft >= 4096)
}

/// The path that a client follows: each kind of stream there is.
fn path(number: usize) -> &'static str {
    ["/events", "/api/v1/events", "/events?view=%2F&version=0", "/events?view=%2Fnetwork&version=0"][number % 4]
}

#[test]
fn a_thousand_clients_follow_the_events_and_those_that_do_not_read_take_nothing_from_the_others() {
    if !super::harness::has("4096 descriptors", has_descriptors()) {
        return;
    }
    let harness = Harness::new();
    let mut process = Running::start(harness.command(&["page", "--socket"]));
    let line = process.wait_for_line("page at unix:");
    let socket = line.split_whitespace().nth(2).unwrap().trim_start_matches("unix:").to_owned();
    let connect = || {
        let stream = UnixStream::connect(&socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    };
    let ask = |path: &str| {
        send(connect(), format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").as_bytes())
    };
    assert_eq!(ask("/").status, 200);
    let before = resident_kib(&process);
    let mut clients: Vec<UnixStream> = (0..CLIENTS)
        .map(|number| {
            let mut client = connect();
            write!(client, "GET {} HTTP/1.1\r\nHost: localhost\r\n\r\n", path(number)).unwrap();
            client
        })
        .collect();
    for (number, client) in clients.iter_mut().enumerate().skip(SILENT) {
        let mut head = [0; 15];
        client.read_exact(&mut head).unwrap_or_else(|error| panic!("client {number}: {error}"));
        assert_eq!(&head, b"HTTP/1.1 200 OK", "client {number}");
    }
    let each = (resident_kib(&process).saturating_sub(before)) as f64 / CLIENTS as f64;
    println!("{CLIENTS} clients: {each:.1} KiB each");
    let shared = Instant::now();
    let _share = harness.share(&["zero", "keyboard"]);
    for (number, client) in clients.iter_mut().enumerate().skip(SILENT) {
        let mut text = Vec::new();
        let is_told = |text: &[u8]| {
            let text = String::from_utf8_lossy(text);
            // Each of these is a change: the views, the table, and the journal.
            text.contains("event: parts") || text.contains("event: reload") || text.contains("event: status")
        };
        while !is_told(&text) {
            let mut bytes = [0; 4096];
            let count = client.read(&mut bytes).unwrap_or_else(|error| panic!("client {number}: {error}"));
            assert!(count > 0, "client {number} lost its connection");
            text.extend_from_slice(&bytes[..count]);
        }
    }
    println!("all were told within {:?}", shared.elapsed());
    assert_eq!(ask("/healthz").status, 200, "there is room for the owner");
    assert_eq!(ask("/").status, 200);
    let kib = resident_kib(&process).saturating_sub(before);
    assert!(kib < CLIENTS as u64 * CLIENT_KIB_MAX, "{kib} KiB for {CLIENTS} clients");
    // Further ones are refused, and the page goes on.
    let more: Vec<UnixStream> = (0..300)
        .map(|_| {
            let mut client = connect();
            // One too many is closed at once.
            let _ = client.write_all(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n");
            client
        })
        .collect();
    let mut refused = 0;
    for mut client in more {
        let mut first = [0; 12];
        match client.read_exact(&mut first) {
            Ok(()) if &first == b"HTTP/1.1 200" => {}
            Ok(()) => {
                assert_eq!(&first, b"HTTP/1.1 503");
                refused += 1;
            }
            Err(error) => {
                assert_ne!(error.kind(), ErrorKind::WouldBlock, "neither answered nor closed");
                refused += 1;
            }
        }
    }
    assert!(refused >= 200, "{refused}");
    drop(clients);
    wait_until(PATIENCE, "the places are free again", || ask("/healthz").status == 200);
    process.signal(rustix::process::Signal::TERM);
    assert_eq!(process.wait_for_end(PATIENCE), Some(0), "{}", process.log());
}

#[test]
fn a_page_that_may_have_few_descriptors_refuses_streams_and_can_be_loaded() {
    let harness = Harness::new();
    let process = Running::start(by_shell(&harness, "sh", "ulimit -n 200; exec farbus page --socket"));
    let line = process.wait_for_line("page at unix:");
    let socket = line.split_whitespace().nth(2).unwrap().trim_start_matches("unix:").to_owned();
    let follow = |_| {
        let mut client = UnixStream::connect(&socket).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client.write_all(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut head = [0; 12];
        client.read_exact(&mut head).unwrap();
        (client, head)
    };
    let clients: Vec<(UnixStream, [u8; 12])> = (0..100).map(follow).collect();
    let followed = clients.iter().filter(|(_, head)| head == b"HTTP/1.1 200").count();
    assert!((50..100).contains(&followed), "{followed}");
    assert!(clients.iter().all(|(_, head)| head == b"HTTP/1.1 200" || head == b"HTTP/1.1 503"));
    let loaded =
        send(UnixStream::connect(&socket).unwrap(), b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert_eq!(loaded.status, 200, "{loaded:?}");
}

/// What clients do not read of the page's events does not grow, however long that lasts: they lose their connections.
#[test]
fn clients_that_do_not_read_lose_their_connections_and_hold_no_memory() {
    let harness = Harness::new();
    let page: Page = open_page(&harness);
    let _share = harness.share(&["zero"]);
    let mut silent: Vec<_> = (0..50)
        .map(|number| {
            let mut client = page.connect();
            write!(client, "GET {} HTTP/1.1\r\nHost: {}\r\n\r\n", path(number), page.address).unwrap();
            client
        })
        .collect();
    for client in &mut silent {
        client.read_exact(&mut [0; 12]).unwrap();
    }
    let before = resident_kib(&page.process);
    let until = Instant::now() + Duration::from_secs(3);
    while Instant::now() < until {
        // Each is an operation, with two events or three.
        let body = "{\"device\":\"nothing\"}";
        let request = format!(
            "POST /api/v1/actions/detach HTTP/1.1\r\nHost: {0}\r\nOrigin: http://{0}\r\nSec-Fetch-Site: same-origin\r\n\
             Content-Type: application/json\r\nConnection: close\r\nContent-Length: {1}\r\n\r\n{body}",
            page.address,
            body.len()
        );
        assert!([404, 503].contains(&send(page.connect(), request.as_bytes()).status));
    }
    let grown = resident_kib(&page.process).saturating_sub(before);
    assert!(grown < 50 * CLIENT_KIB_MAX + (16 << 10), "{grown} KiB");
    page.assert_small();
}
