//! Importers that are killed (`kill -9`) while they read and write as fast as they can: how soon their device is free.
//!
//! `FARBUS_KILLS` says how many are killed (default 4).

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::harness::{Harness, PATIENCE, wait_until};
use super::trust::{hosts, pair};

const MIB: u64 = 1 << 20;
/// Bytes of one request.
const REQUEST_BYTES: u32 = 128 << 10;

/// Connects to an NBD server and selects its default export, by the protocol's document (fixed newstyle, no zeroes).
pub fn connect(socket: &Path) -> UnixStream {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.read_exact(&mut [0; 18]).unwrap();
    let mut greeting = 3u32.to_be_bytes().to_vec();
    greeting.extend(b"IHAVEOPT");
    // NBD_OPT_EXPORT_NAME with an empty name.
    greeting.extend([0, 0, 0, 1, 0, 0, 0, 0]);
    stream.write_all(&greeting).unwrap();
    stream.read_exact(&mut [0; 10]).unwrap();
    stream
}

/// A request, without its payload: 0 reads, 1 writes.
fn request(command: u16, number: u64) -> Vec<u8> {
    let offset = number % 256 * u64::from(REQUEST_BYTES);
    let mut bytes = 0x2560_9513u32.to_be_bytes().to_vec();
    bytes.extend([0, 0]);
    bytes.extend(command.to_be_bytes());
    bytes.extend(number.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(REQUEST_BYTES.to_be_bytes());
    bytes
}

/// Reads and writes through `socket` until the connection ends.
fn load(socket: &Path) -> thread::JoinHandle<()> {
    load_over(connect(socket))
}

/// Like [`load`], over a connected client.
pub fn load_over(mut stream: UnixStream) -> thread::JoinHandle<()> {
    let mut answers = stream.try_clone().unwrap();
    thread::spawn(move || {
        let drain = thread::spawn(move || {
            let mut space = vec![0; 1 << 20];
            while answers.read(&mut space).is_ok_and(|count| count > 0) {}
        });
        let payload = vec![0x5a; REQUEST_BYTES as usize];
        for number in 0.. {
            let is_write = number % 4 == 3;
            let sent = stream.write_all(&request(u16::from(is_write), number));
            if sent.and_then(|()| if is_write { stream.write_all(&payload) } else { Ok(()) }).is_err() {
                break;
            }
        }
        drain.join().unwrap();
    })
}

#[test]
fn an_importer_killed_under_load_frees_its_device_long_before_its_grace_ends() {
    let kills: u32 = std::env::var("FARBUS_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(4);
    let harness = Harness::new();
    let [lab3, desk] = hosts(&harness);
    pair(&lab3, &desk);
    lab3.ok(&["allow", "desk", "all"]);
    let image = harness.image("image", 64 * MIB);
    let what = format!("disk:{}", image.display());
    let share = lab3.start(&["share", &what, "--listen", "127.0.0.1:0", "--secure", "127.0.0.1:0"]);
    let plain = share.wait_for_line("listening on ").split_whitespace().nth(2).unwrap().to_owned();
    let secure = share.wait_for_line("for paired hosts").split_whitespace().nth(2).unwrap().to_owned();
    let port = secure.rsplit_once(':').unwrap().1;
    let state = || lab3.json(&["status", "--json"])[0]["devices"][0]["state"].clone();
    let mut times = Vec::new();
    for number in 0..kills {
        // In turn over a plain link, an encrypted one, and two encrypted ones.
        let (target, links) = match number % 3 {
            0 => (format!("{plain}/disk"), "1"),
            1 => (format!("lab3:{port}/disk"), "1"),
            _ => (format!("lab3:{port}/disk"), "2"),
        };
        let socket = harness.path(&format!("{number}.sock"));
        let at = socket.to_str().unwrap();
        let arguments = ["attach", &target, "--via", "nbd", "--socket", at, "--grace", "120", "--links", links];
        let mut attach = desk.start(&arguments);
        attach.wait_for_line("attached as ");
        let clients: Vec<_> = (0..2).map(|_| load(&socket)).collect();
        // Kills it after a moment that is never the same.
        // waits: the fault comes at a moment that is never the same
        thread::sleep(Duration::from_millis(400 + u64::from(number) * 37 % 100));
        attach.kill();
        let killed = Instant::now();
        clients.into_iter().for_each(|client| client.join().unwrap());
        wait_until(PATIENCE, "the device is free", || state() == "available");
        times.push(killed.elapsed());
    }
    println!("{times:?}");
    // A dead importer gets no grace period, which would be twice as long.
    assert!(times.iter().all(|time| *time < Duration::from_secs(60)), "{times:?}\n{}", share.log());
}
