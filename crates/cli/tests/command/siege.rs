//! Many connections and attacks from one address, and that clients at other addresses notice nothing.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use rustix::fs::OFlags;
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

use super::harness::{Harness, PATIENCE, Share, has_fuse, wait_until};
use super::hostile::Witness;
use super::trust::{hosts, pair};

const BLOCK_BYTES: usize = 64 << 10;
/// Turns that each session completes, calm and under attack, and attacks on each port meanwhile.
const TURNS_MIN: u64 = 50;

/// Connects from an address of the loopback that no other client uses.
pub fn connect_as_attacker(to: &str) -> std::io::Result<TcpStream> {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    bind(&socket, &"127.0.0.2:0".parse::<SocketAddr>().unwrap())?;
    connect(&socket, &to.parse::<SocketAddr>().unwrap())?;
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

pub fn import_request(bus_id: &str) -> Vec<u8> {
    let header = [0x01, 0x11, 0x80, 0x03, 0, 0, 0, 0];
    header.into_iter().chain(bus_id.bytes()).chain(std::iter::repeat(0)).take(40).collect()
}

#[test]
fn one_address_gets_at_most_half_of_all_connections() {
    let harness = Harness::new();
    let share = harness.share(&["zero,fill=mod63,verify", "zero"]);
    // The connections stay silent for now. Those beyond the half that one peer may have are read eight at a time.
    let connections: Vec<_> = (0..256 + 7).map(|_| connect_as_attacker(&share.address).unwrap()).collect();
    let mut one_more = connect_as_attacker(&share.address).unwrap();
    one_more.write_all(&import_request("1-2")).unwrap();
    let mut answer = [0; 8];
    one_more.read_exact(&mut answer).unwrap();
    assert_eq!(answer, [0x01, 0x11, 0x00, 0x03, 0, 0, 0, 1], "not available: refused, and said so");
    share.process.assert_logged("this peer has as many connections as are left for all others");

    // Other peers can still list and attach.
    let listed = harness.run(&["list", &share.address]);
    assert!(listed.code == Some(0) && listed.stdout.contains("1-2"), "{listed:?}");
    let witness = Witness::on(&share);
    witness.assert_unharmed();

    // A connection that ends makes room for the same peer again.
    drop((connections, one_more));
    wait_until(PATIENCE, "it is let in again", || {
        let Ok(mut stream) = connect_as_attacker(&share.address) else { return false };
        stream.write_all(&import_request("1-2")).unwrap();
        stream.read_exact(&mut answer).is_ok() && answer[4..] == [0; 4]
    });
    witness.end();
}

/// What attackers do to a port.
pub fn besiege(address: &str, is_over: &AtomicBool, attacks: &AtomicU64) {
    let noise: Vec<u8> = (0..1u32 << 20).map(|n| (n.wrapping_mul(0x9e37_79b9) >> 24) as u8).collect();
    let mut half_open = Vec::new();
    let mut count = 0;
    while !is_over.load(Ordering::Relaxed) {
        let Ok(mut stream) = connect_as_attacker(address) else { continue };
        count += 1;
        attacks.fetch_add(1, Ordering::Relaxed);
        match count % 4 {
            // The connection may be cut off before all is sent.
            0 => drop(stream.write_all(&noise)),
            1 => drop(stream.write_all(&import_request("1-1")[..20])),
            2 => drop(stream.shutdown(Shutdown::Write)),
            _ => {}
        }
        if count % 2 == 1 {
            half_open.push(stream);
        }
    }
}

/// Reads past the kernel's cache, and checks what was written there.
fn read_and_check(path: &Path, is_over: &AtomicBool, turns: &AtomicU64) {
    let file = File::options().read(true).custom_flags(OFlags::DIRECT.bits().cast_signed()).open(path).unwrap();
    let blocks = file.metadata().unwrap().len() / BLOCK_BYTES as u64;
    let mut block = vec![0; BLOCK_BYTES];
    while !is_over.load(Ordering::Relaxed) {
        let number = turns.fetch_add(1, Ordering::Relaxed) % blocks;
        file.read_exact_at(&mut block, number * BLOCK_BYTES as u64).unwrap();
        assert!(block.iter().all(|&byte| byte == number as u8), "block {number}");
    }
}

#[test]
fn sessions_continue_while_strangers_attack_both_ports() {
    if !has_fuse() {
        return;
    }
    let harness = Harness::new();
    let [lab3, desk] = hosts(&harness);
    pair(&lab3, &desk);
    lab3.ok(&["allow", "desk", "disk"]);
    let image = harness.path("image");
    let content: Vec<u8> = (0..64u8).flat_map(|number| vec![number; BLOCK_BYTES]).collect();
    fs::write(&image, content).unwrap();
    let disk = format!("disk:{}", image.display());
    let process =
        lab3.start(&["share", "zero,fill=mod63,verify", &disk, "--listen", "127.0.0.1:0", "--secure", "127.0.0.1:0"]);
    let share = Share::follow(process);
    let line = share.process.wait_for_line("for paired hosts");
    let secure = line.split_whitespace().nth(2).unwrap();
    let at = harness.path("mnt");
    let arguments = ["attach", "lab3/disk", "--address", secure, "--via", "fuse", "--at", at.to_str().unwrap()];
    let attached = desk.start(&arguments);
    attached.wait_for_line("attached as ");
    let witness = Witness::on(&share);

    let (is_over, turns) = (AtomicBool::new(false), AtomicU64::new(0));
    let attacks = [const { AtomicU64::new(0) }; 2];
    // The pace depends on the machine: the attackers use it, too.
    let go_on = |what: &str| {
        let (plain, encrypted, began) = (witness.answers(), turns.load(Ordering::Relaxed), Instant::now());
        wait_until(PATIENCE, what, || {
            witness.answers() - plain >= TURNS_MIN && turns.load(Ordering::Relaxed) - encrypted >= TURNS_MIN
        });
        println!("{what} after {:?}", began.elapsed());
    };
    thread::scope(|scope| {
        scope.spawn(|| read_and_check(&at.join("disk.img"), &is_over, &turns));
        go_on("both sessions go on");
        for (port, attacks) in [share.address.as_str(), secure].into_iter().zip(&attacks) {
            let is_over = &is_over;
            scope.spawn(move || besiege(port, is_over, attacks));
        }
        let is_besieged = || attacks.iter().all(|count| count.load(Ordering::Relaxed) >= TURNS_MIN);
        wait_until(PATIENCE, "both ports are attacked", is_besieged);
        go_on("both sessions go on under siege");
        is_over.store(true, Ordering::Relaxed);
        println!("of {attacks:?} attacks");
    });
    witness.end();
    let attached =
        lab3.noted("audit.log").iter().filter(|line| line["event"] == "attach" && line["peer"] == "desk").count();
    assert_eq!(attached, 1, "the encrypted session was one from its beginning to its end");
}
