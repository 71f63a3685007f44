//! Devices whose descriptors break the specification, of another exporter, over plain USB/IP: Linux takes them.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use super::harness::{Harness, PATIENCE, Running};
use super::run::{can_run, run};

/// A device of one interface with two bulk endpoints.
const DEVICE: [u8; 18] = [18, 1, 0, 2, 0, 0, 0, 64, 0x09, 0x12, 1, 0, 0, 1, 0, 2, 0, 1];
const CONFIGURATION: [u8; 32] =
    [9, 2, 32, 0, 1, 1, 0, 0x80, 50, 9, 4, 0, 0, 2, 255, 0, 0, 0, 7, 5, 0x81, 2, 0, 2, 0, 7, 5, 0x02, 2, 0, 2, 0];

/// Serves one device with this configuration, and answers requests on its control pipe. Returns its address.
fn serve(configuration: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let configuration = configuration.clone();
            // A peer that closes first is not this test's concern.
            thread::spawn(move || answer(stream, &configuration).is_ok());
        }
    });
    address
}

fn answer(mut stream: TcpStream, configuration: &[u8]) -> std::io::Result<()> {
    let mut record = vec![0; 312];
    record[..4].copy_from_slice(b"/odd");
    record[256..259].copy_from_slice(b"1-1");
    record[288..300].copy_from_slice(&[0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3]);
    record[300..312].copy_from_slice(&[0x12, 0x09, 0, 1, 1, 0, 0, 0, 0, 1, 1, 1]);
    let mut operation = [0; 8];
    stream.read_exact(&mut operation)?;
    if operation[3] == 5 {
        let list = [&[1, 0x11, 0, 5, 0, 0, 0, 0, 0, 0, 0, 1][..], &record, &[255, 0, 0, 0]].concat();
        return stream.write_all(&list);
    }
    stream.read_exact(&mut [0; 32])?;
    stream.write_all(&[&[1, 0x11, 0, 3, 0, 0, 0, 0][..], &record].concat())?;
    loop {
        let mut header = [0; 48];
        stream.read_exact(&mut header)?;
        let word = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let (is_unlink, is_in, endpoint, length) = (header[3] == 2, word(12) == 1, word(16), word(24) as usize);
        if is_unlink {
            let cancelled = (-104i32).to_be_bytes();
            stream.write_all(&[&[0, 0, 0, 4][..], &header[4..8], &[0; 12], &cancelled, &[0; 24]].concat())?;
            continue;
        }
        if !is_in {
            stream.read_exact(&mut vec![0; length])?;
        }
        if endpoint != 0 {
            continue;
        }
        let setup: [u8; 8] = header[40..].try_into().unwrap();
        let data = match setup {
            [0x80, 6, _, 1, ..] => Some(DEVICE.to_vec()),
            [0x80, 6, 0, 2, ..] => Some(configuration.to_vec()),
            // No language: US English.
            [0x80, 6, 0, 3, ..] => Some(vec![2, 3]),
            [0x80, 6, 2, 3, 0x09, 0x04, ..] => Some(vec![8, 3, b'o', 0, b'd', 0, b'd', 0]),
            [0x00, 9, ..] | [0x01, 11, ..] => Some(Vec::new()),
            _ => None,
        };
        let status = if data.is_some() { 0i32 } else { -32 };
        let mut data = data.unwrap_or_default();
        data.truncate(length);
        let actual = (data.len() as u32).to_be_bytes();
        let head = [&[0, 0, 0, 3][..], &header[4..8], &[0; 12], &status.to_be_bytes(), &actual, &[0; 20]].concat();
        stream.write_all(&[head, data].concat())?;
    }
}

/// Each configuration, and a word of what is logged of its repair.
fn odd_configurations() -> [(Vec<u8>, &'static str); 4] {
    let mut long = CONFIGURATION.to_vec();
    long[2] = 39;
    let mut left_over = [&CONFIGURATION[..], &[0]].concat();
    left_over[2] = 33;
    let mut zero = [&CONFIGURATION[..], &[0, 5, 0x83, 3, 8, 0, 4]].concat();
    zero[2] = 39;
    let mut twice = [&CONFIGURATION[..], &[7, 5, 0x81, 2, 0, 2, 0]].concat();
    (twice[2], twice[13]) = (39, 3);
    [
        (long, "fewer bytes come than wTotalLength says"),
        (left_over, "a byte is left over"),
        (zero, "bLength is below 2"),
        (twice, "an endpoint address comes twice"),
    ]
}

#[test]
fn program_in_run_has_the_device_that_linux_would_repair() {
    if !can_run() {
        return;
    }
    for (configuration, repair) in odd_configurations() {
        let harness = Harness::new();
        let target = format!("{}/1-1", serve(configuration));
        let program = "cd /sys/bus/usb/devices/1-1 && cat product && cat */bNumEndpoints";
        let outcome = run(&harness, &target, &["sh", "-c", program]);
        assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(0), "odd\n02"), "{repair}: {outcome:?}");
        assert_eq!(outcome.stderr.matches(repair).count(), 1, "{outcome:?}");
    }
}

#[test]
fn usbredir_has_the_device_that_linux_would_repair() {
    for (configuration, repair) in odd_configurations() {
        let harness = Harness::new();
        let target = format!("{}/1-1", serve(configuration));
        let socket = harness.path("odd.sock");
        let words = ["attach", &target, "--via", "redir", "--grace", "0", "--socket", socket.to_str().unwrap()];
        let mut attached = Running::start(harness.command(&words));
        attached.wait_for_line("attached");
        // The log and what is printed come on two ways.
        attached.assert_logged(repair);
        attached.signal(rustix::process::Signal::INT);
        assert_eq!(attached.wait_for_end(PATIENCE), Some(0), "{}", attached.log());
        assert_eq!(attached.log().matches(repair).count(), 1, "{}", attached.log());
    }
}
