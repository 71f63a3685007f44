//! Memory and processor time of an exporter whose paired host names the dearest modules that there are.

use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};

use super::durable::Nbd;
use super::harness::{Harness, PATIENCE, Running};
use super::trust::{Host, hosts, pair};

/// The most that a paired host may make an exporter hold in this test, MiB.
const PEER_MIB: u64 = 80;
/// Bytes that are read through each attachment: as far as a compressor looks back.
const READ_BYTES: u32 = 100 << 10;
const DEVICES: usize = 17;

fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 88_172_645_463_325_252u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    std::iter::repeat_with(next).take(bytes).collect()
}

/// Shares disks of noise for paired hosts; returns the process and its address.
fn share(lab3: &Host<'_>, count: usize, more: &[&str]) -> (Running, String) {
    let whats: Vec<String> = (0..count)
        .map(|number| {
            let image = lab3.harness.path(&format!("noise{number}"));
            fs::write(&image, noise(1 << 20)).unwrap();
            format!("block:{},name=d{number}", image.display())
        })
        .collect();
    let whats: Vec<&str> = whats.iter().map(String::as_str).collect();
    let share = lab3.start(&[&["share"], &whats[..], &["--listen", "none", "--secure", "127.0.0.1:0"], more].concat());
    let line = share.wait_for_line("for paired hosts");
    let address = line.split_whitespace().nth(2).unwrap().to_owned();
    (share, address)
}

/// Attaches device `number` through these modules, eight times over, and reads it. Returns the attachment, or its end.
fn attach(
    desk: &Host<'_>,
    address: &str,
    number: usize,
    module: &str,
    more: &[&str],
) -> Result<Running, (i32, String)> {
    static ATTACHED: AtomicU32 = AtomicU32::new(0);
    let nth = ATTACHED.fetch_add(1, Ordering::Relaxed);
    let (target, socket) = (format!("lab3/d{number}"), desk.harness.path(&format!("socket{nth}")));
    let words = ["attach", &target, "--address", address, "--via", "nbd", "--socket", socket.to_str().unwrap()];
    let modules = ["--module", module].repeat(8);
    let mut attach = desk.start(&[&words[..], &modules, more].concat());
    if !attach.has_line_before_its_end("attached as ") {
        let code = attach.wait_for_end(PATIENCE).unwrap();
        return Err((code, attach.log()));
    }
    let found = Nbd::connect(&socket).read(0, READ_BYTES);
    assert!(found == noise(READ_BYTES as usize), "{target}: what was read is what is there");
    Ok(attach)
}

#[test]
fn eight_hardest_compressions_of_seventeen_devices_stay_below_their_peers_memory() {
    let harness = Harness::new();
    let [lab3, desk] = hosts(&harness);
    pair(&lab3, &desk);
    lab3.ok(&["allow", "desk", "all"]);
    let most = PEER_MIB.to_string();
    let (share, address) = share(&lab3, DEVICES, &["--allow-module", "zstd", "--peer-memory", &most]);
    let base = share.peak_kib();
    let (mut attached, mut refused) = (Vec::new(), 0);
    for number in 0..DEVICES {
        match attach(&desk, &address, number, "zstd:level=19", &[]) {
            Ok(one) => attached.push(one),
            Err((code, why)) => {
                assert_eq!(code, 3, "{why}");
                assert!(why.contains("module 'zstd': with it the 8 of this attachment need "), "{why}");
                assert!(why.contains("KiB are left of the ") && why.contains("--peer-memory MIB"), "{why}");
                refused += 1;
            }
        }
    }
    let grown_kib = share.peak_grown_kib(base);
    println!("{} attached, {refused} refused, {grown_kib} KiB", attached.len());
    assert!(!attached.is_empty() && refused >= DEVICES - 4, "{} attached, {refused} refused", attached.len());
    assert!(grown_kib < PEER_MIB << 10, "{grown_kib} KiB");

    // Who reads a device that others read, too, has modules of its own.
    let reading = attach(&desk, &address, DEVICES - 1, "zstd:level=19", &["--mode", "read"]);
    assert!(reading.is_err_and(|(code, why)| code == 3 && why.contains("KiB are left of the ")));
    // A pipeline as people use it has room beside them, and what ends gives its memory back.
    let light = attach(&desk, &address, DEVICES - 1, "lz4", &[]);
    assert!(light.is_ok(), "{:?}", light.err());
    for mut one in attached {
        one.signal(rustix::process::Signal::TERM);
        assert_eq!(one.wait_for_end(PATIENCE), Some(0), "{}", one.log());
    }
    let again = attach(&desk, &address, 0, "zstd:level=19", &[]);
    assert!(again.is_ok(), "{:?}", again.err());
}

#[test]
fn pipeline_that_takes_much_processor_time_needs_the_owners_word_and_usual_ones_do_not() {
    let harness = Harness::new();
    let [lab3, desk] = hosts(&harness);
    pair(&lab3, &desk);
    lab3.ok(&["allow", "desk", "all"]);
    let (_share, address) = share(&lab3, 3, &[]);
    let (code, why) = attach(&desk, &address, 0, "zstd:level=19", &[]).err().expect("it takes too long");
    assert_eq!(code, 3, "{why}");
    assert!(why.contains("about 4000 ns of the exporter's processor for each byte"), "{why}");
    assert!(why.contains("an importer's may take 600") && why.contains("--allow-module zstd"), "{why}");
    for (number, module) in ["zstd", "lz4", "buffer:time=1ms"].into_iter().enumerate() {
        let attached = attach(&desk, &address, number, module, &[]);
        assert!(attached.is_ok(), "{module}: {:?}", attached.err());
    }
}
