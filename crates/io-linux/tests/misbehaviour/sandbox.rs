//! Code in a sandbox.

use std::path::Path;
use std::time::Duration;

use farbus_io_linux::module::WasmSandbox;
use farbus_model::module::{ModuleMessageKind, ModuleNeighbor};

use super::case::{Case, Hired, PATIENCE, USE, answers_of};

/// A module that does `$does` with a message at `$at` of `$bytes` bytes, and contains `$more`.
fn with(does: &str, more: &str) -> String {
    format!(
        r#"(module (import "farbus" "say" (func $say (param i32 i32))) (memory (export "memory") 64)
        (func (export "farbus_room") (param i32) (result i32) (i32.const 0))
        (func (export "farbus_turn") (param $at i32) (param $bytes i32) (result i64)
        (if (i32.eq (i32.load8_u (local.get $at)) (i32.const 2)) (then {does})) (i64.const -1)) {more})"#
    )
}

fn hired(code: &[u8], patience: Duration) -> Hired {
    let sandbox = WasmSandbox::new(code, patience);
    Box::new(move || sandbox.as_ref().map_err(Clone::clone)?.half(&USE))
}

fn start(text: &str) -> Hired {
    // Anything that is not valid text is used as code unchanged.
    hired(&wat::parse_str(text).unwrap_or_else(|_| text.as_bytes().to_vec()), PATIENCE)
}

#[test]
fn the_example_changes_what_passes_and_changes_it_back() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/modules/xor.wat");
    // An interpreter that was built without optimization is slow.
    let hired = hired(&wat::parse_file(path).unwrap(), PATIENCE * 30);
    // Two at once: each use has a sandbox of its own.
    let (mut half, mut another) = (hired().unwrap(), hired().unwrap());
    for _ in 0..3 {
        let answers = answers_of(&mut *half).unwrap();
        let [(ModuleNeighbor::Below, message)] = &answers[..] else { panic!("{answers:?}") };
        assert_eq!((message.kind, message.id, message.head.len()), (ModuleMessageKind::Request, 7, 14));
        let payload = message.payload.contiguous();
        assert!(payload.len() == 3_000_000 && payload.iter().all(|byte| *byte == 9 ^ 77));
        assert_eq!(answers_of(&mut *another).unwrap(), answers);
    }
    assert_eq!((half.poll_timeout(), half.is_at_rest(), half.save()), (None, true, None));
}

#[test]
fn sandbox_module_sets_its_timeout() {
    let text = with("", "").replace("(i64.const -1)", "(i64.const 5)");
    let half = start(&text)().unwrap();
    assert_eq!(half.poll_timeout(), Some(farbus_model::Instant::from_nanos(5)));
}

/// A turn is limited in time and in instructions; the machine's speed decides which limit comes first.
const HANGS: &str = "it did not answer within|it has used up the fuel of a turn";
const NO_CODE: &str = "it is no WebAssembly";
/// A message downwards without a head or payload, where the received one was.
const BACK: &str =
    "(i32.store8 offset=1 (local.get $at) (i32.const 1)) (i32.store16 offset=20 (local.get $at) (i32.const 0))
    (call $say (local.get $at) (i32.const 22))";

/// Name, what it does with a message, what else it contains, part of the message.
const TABLE: &[(&str, &str, &str, &str)] = &[
    ("it reaches what it says cannot be", "unreachable", "", "it trapped"),
    ("it divides by zero", "(drop (i32.div_u (i32.const 1) (i32.const 0)))", "", "it trapped"),
    ("it divides too much", "(drop (i32.div_s (i32.const 0x80000000) (i32.const -1)))", "", "it trapped"),
    ("it reads behind its memory", "(drop (i64.load (i32.const 0x3ffffc)))", "", "it trapped"),
    ("it reads before its memory", "(drop (i32.load (i32.const -4)))", "", "it trapped"),
    ("it writes behind its memory", "(i64.store offset=4294967295 (i32.const -1) (i64.const 0))", "", "it trapped"),
    ("it copies from behind its memory", "(memory.copy (i32.const 0) (i32.const 0x3fffff) (i32.const 2))", "", "it trapped"),
    ("it is busy for ever", "(loop (br 0))", "", HANGS),
    ("it is busy for ever with memory", "(loop (memory.fill (i32.const 0) (i32.const 1) (i32.const 0x400000)) (br 0))", "", HANGS),
    ("it calls itself without end", "(call $deep)", "(func $deep (call $deep) (call $deep))", "it trapped"),
    (
        "it calls itself without end, and much lies on its stack",
        "(call $deep (i64.const 1))",
        "(func $deep (param i64) (local i64 i64 i64 i64 i64 i64 i64 i64 i64 i64 i64 i64 i64 i64 i64 i64 i64 i64 i64 i64 i64 i64)
         (call $deep (local.get 0)) (call $deep (local.get 9)))",
        "it trapped",
    ),
    (
        "two call each other without end",
        "(call $one)",
        "(func $one (call $two) (call $two)) (func $two (call_indirect (i32.const 0))) (table funcref (elem $one))",
        "it trapped",
    ),
    ("it calls nobody", "(call_indirect (i32.const 3))", "(table 8 funcref)", "it trapped"),
    ("it calls behind its table", "(call_indirect (i32.const 9))", "(table 8 funcref)", "it trapped"),
    (
        "it calls somebody else than it says",
        "(drop (call_indirect (result i64) (i32.const 0)))",
        "(func $one) (table funcref (elem $one))",
        "it trapped",
    ),
    ("it grows and grows, and goes on", "(loop (drop (memory.grow (i32.const 1))) (br 0))", "", HANGS),
    (
        "it grows beyond what it may have, and uses that",
        "(drop (memory.grow (i32.const 4000))) (i32.store8 (i32.const 0x8000000) (i32.const 1))",
        "",
        "it trapped",
    ),
    (
        "it fills all that it may have, again and again",
        "(drop (memory.grow (i32.const 1900)))
         (loop (memory.fill (i32.const 0) (i32.const 7) (i32.const 0x7000000)) (br 0))",
        "",
        "",
    ),
    ("a frame behind its memory", "(call $say (i32.const 0x400000) (i32.const 1))", "", "does not lie in its memory"),
    ("a frame that goes on behind its memory", "(call $say (i32.const 0x3fffff) (i32.const 2))", "", "does not lie in its memory"),
    ("a frame before its memory", "(call $say (i32.const -1) (i32.const 2))", "", "does not lie in its memory"),
    ("a frame of 4 GiB", "(call $say (i32.const 0) (i32.const -1))", "", "longer than any message"),
    ("a frame of no bytes", "(call $say (i32.const 0) (i32.const 0))", "", "said a frame of no bytes"),
    (
        "a kind that is none",
        "(i32.store8 (local.get $at) (i32.const 9)) (call $say (local.get $at) (local.get $bytes))",
        "",
        "said a frame of another kind",
    ),
    (
        "what only the host says",
        "(i32.store8 (local.get $at) (i32.const 3)) (call $say (local.get $at) (i32.const 9))",
        "",
        "said a frame of another kind",
    ),
    ("a short message", "(call $say (local.get $at) (i32.const 21))", "", "without all its fields"),
    (
        "a message to nobody",
        "(i32.store8 offset=1 (local.get $at) (i32.const 3)) (call $say (local.get $at) (local.get $bytes))",
        "",
        "said a message to nobody",
    ),
    (
        "a message of no kind",
        "(i32.store8 offset=2 (local.get $at) (i32.const 6)) (call $say (local.get $at) (local.get $bytes))",
        "",
        "said a message of another kind",
    ),
    ("a head longer than all", "(call $say (local.get $at) (i32.const 30))", "", "said a head that is longer"),
    (
        "it says that it is done, itself",
        "(i32.store8 (local.get $at) (i32.const 4)) (call $say (local.get $at) (i32.const 9))",
        "",
        "said that it is done, and went on",
    ),
    (
        "it gives up",
        "(i32.store (local.get $at) (i32.const 0x6f6e05)) (call $say (local.get $at) (i32.const 3))",
        "",
        "no",
    ),
    (
        "it gives up in no language",
        "(i32.store (local.get $at) (i32.const 0xffffff05)) (call $say (local.get $at) (i32.const 9000))",
        "",
        "\u{fffd}",
    ),
    ("a start function", "", "(func $begin (loop (br 0))) (start $begin)", ""),
    ("data behind its memory", "", "(data (i32.const 0x3fffff) \"two\")", "it does not begin"),
    ("tables without end", "", "(table 10000000 funcref)", "it does not begin"),
    ("many tables", "", "(table 1 funcref) (table 1 funcref) (table 1 funcref) (table 1 funcref) (table 1 funcref)", "it does not begin"),
    ("more parameters than a call has", "", "(func (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32))", NO_CODE),
];

/// Name, the whole module, part of the message.
const WHOLE: &[(&str, &str, &str)] = &[
    ("text", "hello, world", NO_CODE),
    ("nothing", "", ""),
    ("half a module", "\0asm\x01\0\0\0\x01\x7f", NO_CODE),
    (
        "it wants the system",
        r#"(module (import "wasi_snapshot_preview1" "fd_write" (func (param i32 i32 i32 i32) (result i32))))"#,
        "it does not begin",
    ),
    ("it wants another's memory", r#"(module (import "farbus" "memory" (memory 1)))"#, "it does not begin"),
    ("it says otherwise than one does", r#"(module (import "farbus" "say" (func (param i64))))"#, "it does not begin"),
    ("it has no memory", "(module)", "it exports no memory"),
    ("it wants 4 GiB", r#"(module (memory (export "memory") 65536))"#, "it does not begin"),
    ("it gives no room", r#"(module (memory (export "memory") 1))"#, "it exports no farbus_room"),
    (
        "it takes no turns",
        r#"(module (memory (export "memory") 1) (func (export "farbus_room") (param i32) (result i32) (i32.const 0)))"#,
        "it exports no farbus_turn",
    ),
    (
        "its room is nowhere",
        r#"(module (memory (export "memory") 1) (func (export "farbus_room") (param i32) (result i32) (i32.const -1))
        (func (export "farbus_turn") (param i32 i32) (result i64) (i64.const -1)))"#,
        "room that is not in its memory",
    ),
    (
        "its room is too small",
        r#"(module (memory (export "memory") 1) (func (export "farbus_room") (param i32) (result i32) (i32.const 0))
        (func (export "farbus_turn") (param i32 i32) (result i64) (i64.const -1)))"#,
        "room that is not in its memory",
    ),
    (
        "it never gives room",
        r#"(module (memory (export "memory") 1) (func (export "farbus_room") (param i32) (result i32) (loop (br 0)) (i32.const 0))
        (func (export "farbus_turn") (param i32 i32) (result i64) (i64.const -1)))"#,
        HANGS,
    ),
];

/// All of them as cases.
pub fn cases() -> Vec<Case> {
    let case = |name, word, text: String| Case { name, word, hire: Box::new(move || start(&text)), is_alone: true };
    let floods = [
        (
            "a flood of messages",
            format!("{BACK} (loop (call $say (local.get $at) (i32.const 22)) (br 0))"),
            "too much in one turn",
        ),
        (
            "a flood of bytes",
            format!("{BACK} (loop (call $say (local.get $at) (i32.const 0x300000)) (br 0))"),
            "more than anybody asked for",
        ),
    ];
    let table = TABLE.iter().map(|&(name, does, more, word)| case(name, word, with(does, more)));
    let whole = WHOLE.iter().map(|&(name, text, word)| case(name, word, text.to_owned()));
    let floods = floods.into_iter().map(|(name, does, word)| case(name, word, with(&does, "")));
    table.chain(whole).chain(floods).collect()
}
