//! Programs over pipes.

use std::process::Command;

use farbus_io_linux::module::{ModuleProcess, ModuleTransport};
use farbus_model::Instant;
use farbus_model::module::{ModuleMessageKind, ModuleNeighbor, ModuleOutput};

use super::case::{Case, Hired, PATIENCE, answers_of, has_python, message, python, used};

/// What each program begins with, in Python: `told` is the frame that it was sent, `say` sends one, `done` ends a turn.
const PROLOGUE: &str = "
import os, struct, sys, threading, time
# There is no supervisor here: it ends itself when its leash is let go of.
threading.Thread(target=lambda: (os.read(2, 1), os._exit(9)), daemon=True).start()
def take(count):
    data = sys.stdin.buffer.read(count)
    if len(data) < count: sys.exit()
    return data
def raw(data):
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
def say(what, words): raw(struct.pack('<IB', 1 + len(words), what) + words)
def done(due=2**64-1): say(4, struct.pack('<Q', due))
def back(data=b'', to=1, kind=0, head=0): say(2, struct.pack('<BBBQQH', to, kind, 0, 0, 7, head) + data)
def told(): return take(struct.unpack('<I', take(4))[0])
told(); done()
";

fn start(script: &str) -> Hired {
    python(ModuleTransport::Pipes, &format!("{PROLOGUE}{script}"))
}

#[test]
fn working_program_answers_in_order_and_is_used_again() {
    if !has_python() {
        return;
    }
    let script = "
while True:
    frame = told()
    if frame[0] == 2:
        back(frame[36:], head=0)
        say(2, struct.pack('<BBBQQH', 2, 5, 0, 0, 0, 0) + b'aside')
        back(b'x' * 5_000_000, to=0, kind=1)
        done(5)
    else:
        done()
";
    let hired = start(script);
    for _ in 0..2 {
        let mut half = hired().unwrap();
        assert_eq!(hired().err().unwrap(), "it serves another attachment");
        let answers = answers_of(&mut *half).unwrap();
        let summaries: Vec<_> =
            answers.iter().map(|(side, message)| (*side, message.kind, message.payload.len())).collect();
        let expected = [
            (ModuleNeighbor::Below, ModuleMessageKind::Request, 3_000_000),
            (ModuleNeighbor::Peer, ModuleMessageKind::Aside(0), 5),
            (ModuleNeighbor::Above, ModuleMessageKind::Completion, 5_000_000),
        ];
        assert_eq!(summaries, expected);
        assert_eq!((half.poll_timeout(), half.is_at_rest()), (Some(Instant::from_nanos(5)), false));
        half.handle_timeout(Instant::from_nanos(5), &mut ModuleOutput::default());
        assert_eq!((half.poll_timeout(), half.is_at_rest(), half.save()), (None, true, None));
    }
}

#[test]
fn unchanged_payload_is_passed_on_without_being_sent_back() {
    if !has_python() {
        return;
    }
    let script = "
while True:
    frame = told()
    assert frame[:2] == b'\\2\\0'
    back(b'before')
    say(6, struct.pack('<BBBQQH', 1, 0, 0, 0, 7, 3) + b'new')
    done()
";
    let mut half = start(script)().unwrap();
    for _ in 0..2 {
        let answers = answers_of(&mut *half).unwrap();
        assert_eq!(answers.len(), 2);
        assert_eq!(answers[0].1.payload.contiguous().as_ref(), b"before");
        let (side, passed) = &answers[1];
        assert_eq!(
            (*side, passed.id, passed.head.contiguous().as_ref()),
            (ModuleNeighbor::Below, 7, b"new".as_slice())
        );
        assert_eq!(passed.payload, message().payload);
    }
}

#[test]
fn a_program_that_does_not_begin_is_no_module() {
    let process = ModuleProcess::start(&mut Command::new("/bin/false"), ModuleTransport::Pipes, PATIENCE).unwrap();
    assert_eq!(used(&process).err().unwrap(), "its process has ended");
    assert!(ModuleProcess::start(&mut Command::new("/nonexistent"), ModuleTransport::Pipes, PATIENCE).is_err());
}

#[test]
fn output_before_a_programs_end_is_read() {
    if !has_python() {
        return;
    }
    let script = "import struct, sys; sys.stdout.buffer.write(struct.pack('<IB', 8, 5) + b'no rest')";
    let mut command = Command::new("python3");
    command.args(["-c", script]);
    let process = ModuleProcess::start(&mut command, ModuleTransport::Pipes, PATIENCE).unwrap();
    // It may or may not have ended when it is told to begin.
    std::thread::sleep(PATIENCE);
    assert_eq!(used(&process).err().unwrap(), "no rest");
    assert_eq!(used(&process).err().unwrap(), "it was ended: no rest");
}

const ENDED: &str = "its process has ended";
const HANGS: &str = "it did not answer within";

/// Name, program, part of the message.
const TABLE: &[(&str, &str, &str)] = &[
    ("it ends", "told(); sys.exit()", ENDED),
    (
        "it passes on twice",
        "told(); [say(6, struct.pack('<BBBQQH', 1, 0, 0, 0, 7, 0)) for _ in 'ab']; done()",
        "or a second time",
    ),
    ("it passes on to nobody", "told(); say(6, struct.pack('<BBBQQH', 2, 0, 0, 0, 7, 0)); done()", "to its other half"),
    (
        "it passes on and changes",
        "told(); say(6, struct.pack('<BBBQQH', 1, 0, 0, 0, 7, 0) + b'x' * 9000); done()",
        "as it was",
    ),
    ("it crashes", "told(); os.abort()", ENDED),
    ("it ends before it was told all", "take(10); sys.exit()", ENDED),
    ("it ends in the middle of a frame", "told(); raw(struct.pack('<IB', 100, 2)); sys.exit()", ENDED),
    ("it closes what it says with", "told(); os.close(1); time.sleep(60)", ENDED),
    ("it hangs", "told(); time.sleep(60)", HANGS),
    ("it hangs and does not listen", "time.sleep(60)", HANGS),
    ("it hangs in the middle of a frame", "told(); raw(struct.pack('<IB', 100, 2)); time.sleep(60)", HANGS),
    ("it is busy for ever", "told()\nwhile True: pass", HANGS),
    ("it says a byte now and then", "told()\nwhile True: raw(b'\\x09'); time.sleep(0.6); raw(b'\\0')", HANGS),
    ("it answers and is never done", "told(); back(); time.sleep(60)", HANGS),
    ("a frame of no bytes", "told(); raw(bytes(4))", "said a frame of no bytes"),
    ("a frame of 4 GiB", "told(); raw(b'\\xff' * 4)", "said a frame that is longer than any message"),
    ("a kind that is none", "told(); say(9, b'')", "said a frame of another kind"),
    ("what only the host says", "told(); say(1, b'')", "said a frame of another kind"),
    ("a short message", "told(); say(2, bytes(5))", "said a message without all its fields"),
    ("a head longer than all", "told(); back(b'abc', head=4)", "said a head that is longer"),
    ("a message to nobody", "told(); back(to=3)", "said a message to nobody"),
    ("a message of no kind", "told(); back(kind=6)", "said a message of another kind"),
    ("a short done", "told(); say(4, bytes(7))", "said a done of another length"),
    (
        "done, and more",
        "told(); raw(b'\\x09\\0\\0\\0\\x04' + b'\\xff' * 8 + b'more'); time.sleep(1)",
        "goes on after it was done",
    ),
    ("done before it was told", "take(1); done(); time.sleep(60)", "is done before it was told all"),
    ("a flood of messages", "told()\nwhile True: back()", "says too much in one turn"),
    ("a flood of bytes", "told()\nwhile True: back(bytes(1 << 20))", "says more than anybody asked for"),
    ("a flood without frames", "told()\nwhile True: raw(bytes(1 << 20))", "said a frame of no bytes"),
    ("text", "told(); print('hello, world', flush=True); time.sleep(60)", "said a frame that is longer"),
    ("it gives up", "told(); say(5, b'no more')", "no more"),
    ("it gives up and ends at once", "told(); say(5, b'no more'); os._exit(0)", "no more"),
    ("it gives up in no language", "told(); say(5, b'\\xff' * 9000)", "\u{fffd}"),
];

/// All of them as cases.
pub fn cases() -> Vec<Case> {
    let case = |&(name, script, word)| Case { name, word, hire: Box::new(move || start(script)), is_alone: false };
    TABLE.iter().map(case).collect()
}
