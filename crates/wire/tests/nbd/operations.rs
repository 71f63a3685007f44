//! Operations against a model: in any order and however cut, each request is answered once, as the model predicts.

use std::collections::BTreeMap;

use farbus_model::BlockInfo;
use farbus_wire::nbd::message::{command, command_flag};

use crate::client::{self, Answer, AwaitedRequest};
use crate::fuzzing::{Input, fuzz};
use crate::world::{FLAGS, INFO, World, extents};

/// The result that the client expects, computed on its own bytes.
fn expected(
    bytes: &mut [u8],
    info: &BlockInfo,
    is_structured: bool,
    command: u16,
    flags: u16,
    data: &AwaitedRequest,
) -> Answer {
    let (offset, length) = (data.offset, data.length);
    let known = match command {
        command::READ if is_structured => command_flag::DF,
        command::READ | command::WRITE | command::TRIM => 0,
        command::BLOCK_STATUS if is_structured && length > 0 => command_flag::REQ_ONE,
        command::WRITE_ZEROES => command_flag::NO_HOLE | command_flag::FAST_ZERO,
        command::FLUSH if flags & !command_flag::FUA == 0 && (offset, length) == (0, 0) => {
            return Answer::Done(Vec::new());
        }
        _ => return Answer::Failed(22),
    };
    if flags & !(known | command_flag::FUA) != 0 {
        return Answer::Failed(22);
    }
    if !matches!(command, command::READ | command::BLOCK_STATUS) && info.is_read_only {
        return Answer::Failed(1);
    }
    if offset.saturating_add(length as u64) > info.size_bytes {
        return Answer::Failed(if matches!(command, command::WRITE | command::WRITE_ZEROES) { 28 } else { 22 });
    }
    let block = u64::from(info.block_bytes);
    if !offset.is_multiple_of(block) || !(length as u64).is_multiple_of(block) {
        return Answer::Failed(22);
    }
    if flags & command_flag::FAST_ZERO != 0 {
        return Answer::Failed(95);
    }
    if command == command::BLOCK_STATUS {
        let count = if flags & command_flag::REQ_ONE == 0 { usize::MAX } else { 1 };
        let extents = extents(offset, length as u64);
        let descriptors = extents.iter().take(count).flat_map(|extent| {
            [(extent.length as u32).to_be_bytes(), if extent.is_hole { 3u32 } else { 0 }.to_be_bytes()].concat()
        });
        return Answer::Done(descriptors.collect());
    }
    let range = &mut bytes[offset as usize..][..length];
    match command {
        command::READ => return Answer::Done(range.to_vec()),
        command::WRITE => range.fill(flags as u8 ^ offset as u8 ^ length as u8),
        _ => range.fill(0),
    }
    Answer::Done(Vec::new())
}

fn offset(input: &mut Input<'_>, info: &BlockInfo) -> u64 {
    let any = match input.below(4) {
        0 => u64::from(input.below(8)) * 512,
        1 => info.size_bytes - u64::from(input.below(2000)),
        2 if input.once_in(4) => u64::MAX - u64::from(input.below(3)),
        _ => u64::from(input.below(info.size_bytes as u32)),
    };
    if input.below(4) == 0 { any } else { any / u64::from(info.block_bytes) * u64::from(info.block_bytes) }
}

#[test]
fn fuzz_nbd_operations() {
    fuzz(env!("CARGO_MANIFEST_DIR"), "fuzz_nbd_operations", |input| {
        let info = BlockInfo {
            block_bytes: input.pick(&[1, 512]),
            request_bytes_max: input.pick(&[512, 4096, 16 << 10, 1 << 20]),
            is_read_only: input.once_in(8),
            ..INFO
        };
        let is_structured = input.below(2) == 0;
        let mut world = World::begun(info, is_structured);
        let mut bytes = world.store.bytes().to_vec();
        let mut awaited = BTreeMap::new();
        let mut model = BTreeMap::new();
        let mut output = Vec::new();
        for cookie in 0.. {
            if input.is_empty() || cookie > 200 {
                break;
            }
            let kind = input.pick(&[0, 0, 0, 1, 1, 1, 3, 4, 6, 6, 5, 7, 7, 7, 100]);
            let flags = if input.below(2) == 0 { 0 } else { input.pick(&FLAGS) | input.pick(&FLAGS) };
            let blocks = input.pick(&[0, 1, 1, 2, 8, 64, 100]);
            let length = if input.once_in(4) { input.below(3000) } else { blocks * 512 };
            let (at, length) = if kind == command::FLUSH { (0, 0) } else { (offset(input, &info), length) };
            let request = AwaitedRequest {
                command: kind,
                offset: at,
                length: length as usize,
                is_whole: flags & command_flag::DF != 0,
            };
            let answer = expected(&mut bytes, &info, is_structured, kind, flags, &request);
            model.insert(cookie, answer);
            awaited.insert(cookie, request);
            let mut sent = client::request(kind, flags, cookie, at, length);
            if kind == command::WRITE {
                sent.resize(sent.len() + length as usize, flags as u8 ^ at as u8 ^ length as u8);
            }
            for piece in input.cut(&sent) {
                world.hear(piece).expect("a client that keeps to the rules");
            }
            // Answers come late and in any order.
            for _ in 0..input.below(4) {
                if !world.held.is_empty() {
                    world.answer(input.below(world.held.len() as u32) as usize);
                }
            }
            if input.below(4) == 0 {
                world.move_on();
            }
            if input.below(3) == 0 {
                world.listen_on();
                output.append(&mut world.output);
            }
        }
        output.append(&mut world.listen());
        assert!(world.store.bytes() == &bytes[..], "what is stored is what was written");
        let answers = client::replies(&output, &awaited, is_structured);
        assert!(answers == model, "each is answered once and rightly");
        assert_eq!(world.conn.in_flight(), 0);
    });
}

#[test]
fn fuzz_nbd_snapshots() {
    fuzz(env!("CARGO_MANIFEST_DIR"), "fuzz_nbd_snapshots", |input| {
        let info = BlockInfo { request_bytes_max: input.pick(&[512, 4096]), ..INFO };
        let is_structured = input.below(2) == 0;
        let mut world = World::begun(info, is_structured);
        for cookie in 0..u64::from(1 + input.below(6)) {
            let kind = input.pick(&[0, 0, 1, 3, 4, 6, 7]);
            let flags = match kind {
                command::READ if is_structured => input.pick(&[0, command_flag::DF]),
                command::BLOCK_STATUS => input.pick(&[0, command_flag::REQ_ONE]),
                _ => 0,
            };
            let length = if kind == command::FLUSH { 0 } else { input.pick(&[512, 3000, 9000]) };
            let mut sent = client::request(kind, flags, cookie, 0, length);
            if kind == command::WRITE {
                sent.resize(sent.len() + length as usize, 7);
                sent.truncate(sent.len() - input.pick(&[0, 0, 1000.min(length as usize)]));
            }
            world.hear(&sent).expect("a client that keeps to the rules");
            if input.below(2) == 0 && !world.held.is_empty() {
                world.answer(input.below(world.held.len() as u32) as usize);
            }
            if sent.len() < 28 || (kind == command::WRITE && sent.len() < 28 + length as usize) {
                break;
            }
        }
        let mut saved = world.saved();
        assert!(world.go_on_with(&saved), "it stood so");
        for _ in 0..1 + input.below(3) {
            let at = input.below(saved.len() as u32) as usize;
            match input.below(4) {
                0 => saved[at] ^= 1 << input.below(8),
                1 => saved[at] = input.pick(&[0, 1, 0x7f, 0xff]),
                2 if at > 0 => saved.truncate(at),
                _ => saved.insert(at, input.below(256) as u8),
            }
        }
        world.go_on_with(&saved);
    });
}
