//! Programs that share memory.

use std::path::Path;
use std::process::Command;

use farbus_io_linux::module::ModuleTransport;
use farbus_model::module::{ModuleMessageKind, ModuleNeighbor};

use super::case::{Case, Hired, answers_of, has_python, python};

/// What each program begins with, in Python: `told` is the descriptor that it was sent, `post` posts one, `say` posts a
/// frame in its own memory, `done` ends a turn. The descriptors are not arranged as for a program that farbus started:
/// memory is standard output, the bell standard input.
const PROLOGUE: &str = "
import mmap, os, struct, sys, threading, time
# There is no supervisor here: it ends itself when its leash is let go of.
threading.Thread(target=lambda: (os.read(2, 1), os._exit(9)), daemon=True).start()
memory = mmap.mmap(1, 0)
TOLD, HOST_SLEEPS, READ, SAID, MODULE_SLEEPS = 16, 17, 18, 32, 33
def word(at): return struct.unpack_from('<I', memory, 4 * at)[0]
def put(at, value): struct.pack_into('<I', memory, 4 * at, value % 2**32)
assert memory[:8] == b'farbring' and word(2) == 1
RING, TOLD_AT, SAID_AT, HOST_AT, HOST_BYTES, OWN_AT, OWN_BYTES = (word(at) for at in range(3, 10))
def ring():
    if word(HOST_SLEEPS):
        put(HOST_SLEEPS, 0)
        os.write(0, b'\\1')
def until(counter, seen):
    ring()
    while word(counter) == seen:
        put(MODULE_SLEEPS, 1)
        if word(counter) == seen and not os.read(0, 64): os._exit(0)
        put(MODULE_SLEEPS, 0)
heard = 0
def told():
    global heard
    until(TOLD, heard)
    heard += 1
    return struct.unpack_from('<IIII', memory, TOLD_AT + (heard - 1) % RING * 16)
def post(at, count, region=0, ahead=1):
    said = word(SAID)
    while said - word(READ) == RING: until(READ, word(READ))
    struct.pack_into('<IIII', memory, SAID_AT + said % RING * 16, at, count, region, 0)
    put(SAID, said + ahead)
own = OWN_AT
def keep(data):
    global own
    if own + len(data) > OWN_AT + OWN_BYTES: own = OWN_AT
    at, own = own, own + len(data)
    memory[at:own] = data
    return at
def say(what, words): post(keep(bytes([what]) + words), 1 + len(words))
def give(region): post(HOST_AT, 0, region)
def done(due=2**64-1): say(4, struct.pack('<Q', due))
def back(data=b'', to=1, kind=0, head=0): say(2, struct.pack('<BBBQQH', to, kind, 0, 0, 7, head) + data)
at, count, region, room = told(); give(region); done(); ring()
";

fn start(script: &str) -> Hired {
    python(ModuleTransport::Ring, &format!("{PROLOGUE}{script}"))
}

#[test]
fn working_program_answers_in_the_hosts_memory_and_its_own() {
    if !has_python() {
        return;
    }
    let script = "
while True:
    at, count, region, room = told()
    assert room >= count + 4096
    if memory[at] == 2:
        memory[at + 1] = 1
        memory[at + count:at + count + 3] = b'end'
        post(at, count + 3, region)
        say(2, struct.pack('<BBBQQH', 2, 5, 0, 0, 0, 0) + b'aside')
        for n in range(600): back(bytes([n % 256]) * 50_000, to=0, kind=1)
    else:
        give(region)
    done(5 if memory[at] == 2 else 2**64-1)
";
    let hired = start(script);
    for _ in 0..2 {
        let mut half = hired().unwrap();
        for _ in 0..3 {
            let answers = answers_of(&mut *half).unwrap();
            assert_eq!(
                (answers[0].0, answers[0].1.kind, answers[0].1.id, answers[0].1.head.len()),
                (ModuleNeighbor::Below, ModuleMessageKind::Request, 7, 14)
            );
            let payload = answers[0].1.payload.contiguous();
            assert!(payload.ends_with(b"\x09end") && payload.len() == 3_000_003);
            assert_eq!(
                (answers[1].0, answers[1].1.payload.contiguous().as_ref()),
                (ModuleNeighbor::Peer, &b"aside"[..])
            );
            assert_eq!(answers.len(), 602);
            for (index, (side, message)) in answers[2..].iter().enumerate() {
                assert_eq!((*side, message.payload.len()), (ModuleNeighbor::Above, 50_000));
                assert_eq!(message.payload.contiguous()[49_999], index as u8);
            }
        }
    }
}

#[test]
fn region_that_a_program_keeps_is_not_reused() {
    if !has_python() {
        return;
    }
    // Each message is answered when the next one comes, in its own region.
    let script = "
kept = None
while True:
    at, count, region, room = told()
    if memory[at] == 2:
        if kept: post(*kept)
        memory[at + 1] = 1
        memory[at + 40] = heard
        kept = at, count, region
    else:
        give(region)
    done()
";
    let mut half = start(script)().unwrap();
    assert_eq!(answers_of(&mut *half).unwrap(), []);
    for heard in 2..6 {
        let answers = answers_of(&mut *half).unwrap();
        assert_eq!(
            (answers.len(), answers[0].1.payload.contiguous()[4], answers[0].1.payload.len()),
            (1, heard, 3_000_000)
        );
    }
}

const ENDED: &str = "its process has ended";
const HANGS: &str = "it did not answer within";
const ELSEWHERE: &str = "said a frame that does not lie in its region";
const BACKWARDS: &str = "its ring runs backwards, or past its end";

/// Name, program after its start, part of the message.
const TABLE: &[(&str, &str, &str)] = &[
    ("it ends", "told(); os._exit(0)", ENDED),
    (
        "it passes on what it keeps",
        "told(); [say(6, struct.pack('<BBBQQH', 1, 0, 0, 0, 7, 0)) for _ in 'ab']; done(); ring()",
        "or a second time",
    ),
    (
        "it passes on and changes",
        "at, count, region, room = told(); memory[at] = 6; post(at, count, region); done(); ring()",
        "as it was",
    ),
    ("it crashes", "told(); os.abort()", ENDED),
    ("it closes its bell", "told(); os.close(0); time.sleep(60)", ENDED),
    ("it unmaps its memory, and crashes", "told(); memory.close(); memory[0]", ENDED),
    ("it hangs", "told(); time.sleep(60)", HANGS),
    ("it hangs and does not look", "time.sleep(60)", HANGS),
    ("it is busy for ever", "told()\nwhile True: pass", HANGS),
    ("it answers and is never done", "told(); back(); ring(); time.sleep(60)", HANGS),
    ("it rings and says nothing", "told()\nwhile True: os.write(0, b'\\1'); time.sleep(0.1)", HANGS),
    (
        "it says what it has to say and does not ring",
        "told()\nwhile not word(HOST_SLEEPS): pass\ntime.sleep(0.3); done(); time.sleep(60)",
        HANGS,
    ),
    ("it rings without end", "told()\nwhile True: os.write(0, b'\\1' * 4096)", "rings without end"),
    ("it says words to its doorbell", "told(); os.write(0, b'hello'); time.sleep(60)", "what is no ring"),
    ("its ring runs backwards", "told(); put(SAID, word(SAID) - 1); ring(); time.sleep(60)", BACKWARDS),
    ("its ring runs past its end", "told(); put(SAID, word(SAID) + RING + 1); ring(); time.sleep(60)", BACKWARDS),
    ("its ring is anywhere", "told(); put(SAID, 2**32 - 1); ring(); time.sleep(60)", BACKWARDS),
    ("its ring is full of nothing", "told(); put(SAID, word(SAID) + RING); ring(); time.sleep(60)", "region"),
    ("it says that the host has read more", "told(); put(READ, 77); put(SAID, 78); ring(); time.sleep(60)", "region"),
    (
        "it writes all over its host's words",
        "told()\nfor at in range(3072): put(at, 0xffffffff)\nos.write(0, b'\\1'); time.sleep(60)",
        BACKWARDS,
    ),
    (
        "it forgets its words and goes on",
        "told(); memory[:256] = bytes(256); os.write(0, b'\\1'); time.sleep(60)",
        BACKWARDS,
    ),
    ("a frame before its memory", "told(); post(OWN_AT - 1, 9); ring(); time.sleep(60)", ELSEWHERE),
    ("a frame in the rings", "told(); post(0, 9); ring(); time.sleep(60)", ELSEWHERE),
    ("a frame in its host's memory", "told(); post(HOST_AT, 9); ring(); time.sleep(60)", ELSEWHERE),
    ("a frame past its memory", "told(); post(OWN_AT + OWN_BYTES - 8, 9); ring(); time.sleep(60)", ELSEWHERE),
    ("a frame behind all memory", "told(); post(2**32 - 4, 9); ring(); time.sleep(60)", ELSEWHERE),
    ("a frame of 4 GiB", "told(); post(OWN_AT, 2**32 - 1); ring(); time.sleep(60)", ELSEWHERE),
    (
        "a frame that is longer than any",
        "told(); post(OWN_AT, 20 << 20); ring(); time.sleep(60)",
        "longer than any message",
    ),
    ("a region that it was not given", "told(); post(HOST_AT, 9, 77); ring(); time.sleep(60)", "that it does not have"),
    ("a region twice", "d = told(); give(d[2]); give(d[2]); ring(); time.sleep(60)", "that it does not have"),
    ("a region of the turn before", "told(); give(region); ring(); time.sleep(60)", "that it does not have"),
    ("more than its region has", "d = told(); post(d[0], d[3] + 1, d[2]); ring(); time.sleep(60)", ELSEWHERE),
    ("before its region", "d = told(); post(d[0] - 64, 100, d[2]); ring(); time.sleep(60)", ELSEWHERE),
    ("it gives nothing back", "while True: told(); done()", "keeps what it was given"),
    ("a kind that is none", "told(); say(9, b''); ring(); time.sleep(60)", "said a frame of another kind"),
    ("what only the host says", "told(); say(1, b''); ring(); time.sleep(60)", "said a frame of another kind"),
    (
        "what it was told, as it was told",
        "d = told(); memory[d[0] + 1] = 7; post(*d[:3]); ring(); time.sleep(60)",
        "to nobody",
    ),
    ("a short message", "told(); say(2, bytes(5)); ring(); time.sleep(60)", "said a message without all its fields"),
    ("a head longer than all", "told(); back(b'abc', head=4); ring(); time.sleep(60)", "said a head that is longer"),
    (
        "a head longer than all, of a long message",
        "told(); back(bytes(5000), head=5001); ring(); time.sleep(60)",
        "said a head that is longer",
    ),
    ("a message of no kind", "told(); back(kind=6); ring(); time.sleep(60)", "said a message of another kind"),
    ("a short done", "told(); say(4, bytes(7)); ring(); time.sleep(60)", "said a done of another length"),
    (
        "done, and more",
        "told(); at = keep(b'\\4' + b'\\xff' * 8); post(at, 9, 0, 2); ring(); time.sleep(60)",
        "goes on after it was done",
    ),
    ("it speaks without being asked", "told(); done(); back(); ring(); time.sleep(60)", "goes on after it was done"),
    ("a flood of messages", "told()\nwhile True: back()", "says too much in one turn"),
    ("a flood of nothing", "told()\nwhile True: post(OWN_AT, 0)", "says too much in one turn"),
    (
        "a flood of bytes",
        "told(); at = keep(struct.pack('<BBBBQQH', 2, 1, 0, 0, 0, 7, 0) + bytes(1 << 20))\nwhile True: post(at, 1 << 20)",
        "says more than anybody asked for",
    ),
    (
        "what it said becomes another while it is read",
        "d = told(); memory[d[0] + 1] = 1; post(*d[:3]); ring()\nwhile True: memory[d[0]:d[0] + 30] = os.urandom(30)",
        "",
    ),
    (
        "its descriptors become others while they are read",
        "told()\nwhile True:\n  back(bytes(1000)); memory[SAID_AT:SAID_AT + 4096] = os.urandom(4096)",
        "",
    ),
    ("it makes its memory shorter", "told(); os.ftruncate(1, 4096); done()", ENDED),
    ("it makes its memory longer", "told(); os.ftruncate(1, 1 << 30); done()", ENDED),
    ("it seals its memory against its host", "import fcntl\ntold(); fcntl.fcntl(1, 1033, 8); done()", ENDED),
    (
        "it frees its host's words",
        "told(); memory.madvise(9, 0, 12288); os.write(0, b'\\1'); time.sleep(60)",
        BACKWARDS,
    ),
    ("it gives up", "told(); say(5, b'no more'); ring(); time.sleep(60)", "no more"),
    ("it gives up and ends at once", "told(); say(5, b'no more'); os._exit(0)", "no more"),
    ("it gives up in no language", "told(); say(5, b'\\xff' * 9000); ring(); time.sleep(60)", "\u{fffd}"),
];

/// All of them as cases.
pub fn cases() -> Vec<Case> {
    let case = |&(name, script, word)| Case { name, word, hire: Box::new(move || start(script)), is_alone: false };
    TABLE.iter().map(case).collect()
}

/// The example of `docs/modules.md` does the same as the others there; another test runs it inside farbus.
#[test]
fn ring_example_compiles_without_warnings() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/modules/xor_ring.c");
    let built = Command::new("cc").args(["-fsyntax-only", "-Wall", "-Wextra", "-Werror"]).arg(source).status();
    assert!(built.is_ok_and(|status| status.success()));
}
