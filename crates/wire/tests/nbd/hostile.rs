//! Random and damaged bytes: no panic, no memory for bytes that have not arrived, and a result that does not depend on
//! how the bytes were cut.

use farbus_model::BlockInfo;
use farbus_wire::nbd::NbdServerConn;
use farbus_wire::nbd::message::option;

use crate::client;
use crate::fuzzing::{Input, fuzz};
use crate::world::{FLAGS, INFO, LIMITS, World, exports};

fn number(input: &mut Input<'_>) -> u32 {
    match input.below(3) {
        0 => input.below(16),
        1 => input.pick(&[0, 1, 511, 512, 4096, 16 << 10, (16 << 10) + 1, 32 << 20, (32 << 20) + 1, u32::MAX]),
        _ => input.word(),
    }
}

/// Mostly a message that a client could send.
fn frame(input: &mut Input<'_>) -> Vec<u8> {
    let mut bytes = match input.below(7) {
        0 => {
            let name = input.pick(&["", "disk", "x"]);
            let information = [3, number(input) as u16];
            client::option(input.pick(&[option::GO, option::INFO]), &client::go(name, &information))
        }
        1 => {
            let size = input.below(40) as usize;
            client::option(input.below(13), &input.bytes(size))
        }
        2 => client::write(input.pick(&FLAGS), 1, u64::from(number(input)), &vec![5; input.below(3000) as usize]),
        3 | 4 => {
            let command = input.below(9) as u16;
            // The data of a long write would take too much time in a test.
            let length = if command == 1 { input.below(100) } else { number(input).min(64 << 10) };
            client::request(command, input.pick(&FLAGS), 2, u64::from(number(input)), length)
        }
        5 => {
            let queries = [(); 3].map(|()| input.pick(&["base:allocation", "base:", "", "x:y"]));
            let data = client::contexts(input.pick(&["", "disk", "x"]), &queries[..input.below(4) as usize]);
            client::option(input.pick(&[option::SET_META_CONTEXT, option::LIST_META_CONTEXT]), &data)
        }
        _ => {
            let size = input.below(40) as usize;
            input.bytes(size)
        }
    };
    if input.once_in(16) && !bytes.is_empty() {
        let at = input.below(bytes.len() as u32) as usize;
        match input.below(3) {
            0 => bytes[at] = input.byte(),
            1 => bytes.truncate(at),
            _ => bytes.insert(at, input.byte()),
        }
    }
    bytes
}

/// What a server read and answered, and the field that stopped it.
fn understood(begun: bool, pieces: &[&[u8]]) -> (Vec<String>, Vec<u8>, Option<&'static str>) {
    let small = BlockInfo { size_bytes: 64 << 10, ..INFO };
    let mut world = if begun { World::begun(small, true) } else { World::new(exports(&[("disk", small)])) };
    let (mut fed, mut end) = (0, None);
    for piece in pieces {
        fed += piece.len();
        if let Err(reject) = world.hear(piece) {
            end = Some(reject.field);
            break;
        }
        let room = world.conn.receive_space().len();
        assert!(room <= LIMITS.receive_bytes.max(2 * fed), "{room} bytes for {fed} that came");
    }
    let requests = world.requests.iter().map(|request| format!("{request:?}")).collect();
    if end.is_some() {
        world.conn.close();
        world.answer_all();
        world.listen_on();
    }
    let mut output = std::mem::take(&mut world.output);
    output.extend(world.listen());
    (requests, output, end)
}

#[test]
fn fuzz_nbd_bytes() {
    fuzz(env!("CARGO_MANIFEST_DIR"), "fuzz_nbd_bytes", |input| {
        let begun = input.below(2) == 0;
        let mut bytes = if begun { Vec::new() } else { input.pick(&[0u32, 1, 2, 3, 3, 3, 7]).to_be_bytes().to_vec() };
        while !input.is_empty() && bytes.len() < 40_000 {
            bytes.extend(frame(input));
        }
        let whole = understood(begun, &[&bytes]);
        let cut: Vec<&[u8]> = bytes.chunks(usize::from(bytes.len() as u8 % 50) + 1).collect();
        let pieces = understood(begun, &cut);
        assert_eq!((&whole.0, whole.2), (&pieces.0, pieces.2), "what is understood does not depend on cuts");
        if whole.2.is_none() {
            assert!(whole.1 == pieces.1, "nor is what is said");
        }
    });
}

#[test]
fn a_length_alone_reserves_nothing() {
    let mut conn = NbdServerConn::new(0, exports(&[("", BlockInfo { size_bytes: 1 << 40, ..INFO })]), &LIMITS);
    let mut feed = |bytes: &[u8]| {
        let space = conn.receive_space();
        space[..bytes.len()].copy_from_slice(bytes);
        conn.handle_received(bytes.len());
        assert!(conn.poll_request().unwrap().is_none());
        conn.receive_space().len()
    };
    feed(&3u32.to_be_bytes());
    feed(&client::option(option::EXPORT_NAME, b""));
    let write = client::request(1, 0, 1, 0, 32 << 20);
    assert!(feed(&write) <= LIMITS.receive_bytes);
}
