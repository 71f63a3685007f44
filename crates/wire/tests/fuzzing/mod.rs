//! Fuzzing on the stable compiler: a target is a test named `fuzz_…`, a function of bytes.
//!
//! It first gets the inputs that once failed or that show a rare path (`tests/inputs/NAME/*.hex`), then random ones and
//! mutations of those, for `FARBUS_FUZZ_SECONDS` (2 without it). A failing input is made smaller and printed as the
//! file to commit. `FARBUS_FUZZ_SEED` repeats a run.

#![allow(dead_code, reason = "every test takes what it needs")]

use std::cell::Cell;
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::{Arc, Mutex, Once};
use std::time::{Duration, Instant, SystemTime};

use farbus_model::urb::take_lost;

/// Bytes of a random input: decisions for a few hundred steps.
const INPUT_BYTES_MAX: usize = 4096;
/// The time for making a failing input smaller.
const SHRINK_TIME_MAX: Duration = Duration::from_secs(10);
/// The limit for one input, making it smaller included: a thousand times what the slowest takes on a busy machine.
const INPUT_TIME_MAX: Duration = Duration::from_secs(60);

/// Runs `target`: committed inputs first, then random ones until the time is over.
///
/// # Panics
/// If `target` does; the failing input is printed.
pub fn fuzz(manifest_dir: &str, name: &str, target: impl Fn(&mut Input<'_>)) {
    quiet_on_demand();
    let known = known_inputs(&Path::new(manifest_dir).join("tests/inputs").join(name));
    for (file, input) in &known {
        run(name, file, input, &target);
    }
    let seed = seed();
    let until = Instant::now() + Duration::from_secs(variable("FARBUS_FUZZ_SECONDS").unwrap_or(2));
    let watch = Watch::over(name);
    let mut random = Random(seed);
    let mut count = 0u64;
    while Instant::now() < until {
        let input = random.input(&known);
        watch.begins(&input);
        run(name, &format!("seed {seed:#x}, input {count}"), &input, &target);
        count += 1;
    }
    println!("{name}: {} known inputs and {count} random ones from FARBUS_FUZZ_SEED={seed}", known.len());
    assert!(count > 0 || variable("FARBUS_FUZZ_SECONDS") == Some(0), "{name} tried nothing");
}

fn run(name: &str, origin: &str, input: &[u8], target: &impl Fn(&mut Input<'_>)) {
    let Err(cause) = attempt(input, target) else { return };
    let small = shrink(input.to_vec(), target);
    eprintln!(
        "{name} broke on {origin}. To keep it, commit tests/inputs/{name}/WHAT.hex with these {} bytes:",
        small.len()
    );
    let hex = small.chunks(32).fold(String::new(), |mut text, line| {
        line.iter().for_each(|byte| write!(text, "{byte:02x}").expect("a string takes all"));
        text + "\n"
    });
    eprintln!("{hex}");
    // The smallest failing input is the most useful, so its panic is reported last.
    resume_unwind(attempt(&small, target).err().unwrap_or(cause));
}

fn print_input(name: &str, what: &str, input: &[u8]) {
    let hex = input.chunks(32).fold(String::new(), |mut text, line| {
        line.iter().for_each(|byte| write!(text, "{byte:02x}").expect("a string takes all"));
        text + "\n"
    });
    eprintln!(
        "{name} {what}. To keep it, commit tests/inputs/{name}/WHAT.hex with these {} bytes:\n{hex}",
        input.len()
    );
}

/// Ends the process if an input does not terminate: that is a finding too.
struct Watch(Arc<Mutex<Current>>);

/// The current input, and when it began.
#[derive(Clone)]
struct Current {
    since: Instant,
    input: Vec<u8>,
}

impl Watch {
    fn over(name: &str) -> Self {
        let watch = Self(Arc::new(Mutex::new(Current { since: Instant::now(), input: Vec::new() })));
        let (watched, name) = (Arc::downgrade(&watch.0), name.to_owned());
        std::thread::spawn(move || {
            while let Some(current) = watched.upgrade() {
                let Current { since, input } = current.lock().expect("nobody panics with it").clone();
                if since.elapsed() > INPUT_TIME_MAX {
                    print_input(&name, &format!("goes on for {} s", since.elapsed().as_secs()), &input);
                    std::process::exit(101);
                }
                drop(current);
                std::thread::sleep(Duration::from_millis(500));
            }
        });
        watch
    }

    fn begins(&self, input: &[u8]) {
        *self.0.lock().expect("nobody panics with it") = Current { since: Instant::now(), input: input.to_vec() };
    }
}

fn attempt(input: &[u8], target: &impl Fn(&mut Input<'_>)) -> std::thread::Result<()> {
    take_lost();
    catch_unwind(AssertUnwindSafe(|| {
        target(&mut Input { bytes: input });
        assert!(take_lost().is_empty(), "a request was dropped unanswered");
    }))
}

/// Removes bytes that are not needed for the failure.
fn shrink(mut input: Vec<u8>, target: &impl Fn(&mut Input<'_>)) -> Vec<u8> {
    QUIET.set(true);
    let until = Instant::now() + SHRINK_TIME_MAX;
    let mut size = input.len().next_power_of_two();
    while size > 0 {
        let mut at = 0;
        while at < input.len() && Instant::now() < until {
            let mut shorter = input.clone();
            shorter.drain(at..(at + size).min(input.len()));
            if attempt(&shorter, target).is_err() {
                input = shorter;
            } else {
                at += size;
            }
        }
        size /= 2;
    }
    QUIET.set(false);
    input
}

thread_local! {
    /// Whether panics of this thread are expected and not printed.
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

fn quiet_on_demand() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let loud = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                loud(info);
            }
        }));
    });
}

/// The committed inputs of a target: hexadecimal, `#` begins a comment.
fn known_inputs(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("the folder can be read").path()).collect();
    paths.sort();
    let read = |path: &Path| {
        let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let digits = text.lines().flat_map(|line| line.split('#').next()).flat_map(str::chars);
        let digits: Vec<u32> = digits.filter(|c| !c.is_whitespace()).map(|c| c.to_digit(16).expect("hex")).collect();
        digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
    };
    paths.iter().map(|path| (path.display().to_string(), read(path))).collect()
}

fn seed() -> u64 {
    let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_nanos() as u64;
    variable("FARBUS_FUZZ_SEED").unwrap_or_else(now)
}

fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text:?}")))
}

/// Decisions, read from bytes. After their end every decision is 0, and [`Input::is_empty`] is true.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    bytes: &'a [u8],
}

impl<'a> Input<'a> {
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub fn byte(&mut self) -> u8 {
        match self.bytes.split_first() {
            Some((&byte, rest)) => {
                self.bytes = rest;
                byte
            }
            None => 0,
        }
    }

    pub fn word(&mut self) -> u32 {
        u32::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// A number from 0 to `count` - 1.
    pub fn below(&mut self, count: u32) -> u32 {
        if count <= 256 { u32::from(self.byte()) % count } else { self.word() % count }
    }

    /// True one time in `count`; never after the input's end.
    pub fn once_in(&mut self, count: u32) -> bool {
        !self.is_empty() && self.below(count) == count - 1
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u32) as usize]
    }

    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.byte()).collect()
    }

    /// All remaining bytes.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.bytes)
    }

    /// One of the texts, mostly with some of its parts replaced, repeated or left out: by parts of the others, by words
    /// that mean something in such a text, and by any characters.
    pub fn text(&mut self, texts: &[&str], words: &[&str]) -> String {
        let mut text = self.pick(texts).to_owned();
        for _ in 0..self.below(6) {
            let (from, until) = (self.place_in(&text), self.place_in(&text));
            let range = from.min(until)..from.max(until).min(from.min(until) + 40);
            let range = range.start..text.floor_char_boundary(range.end);
            let other = match self.below(4) {
                0 => self.pick(words).to_owned(),
                1 => String::from_utf8_lossy(&self.bytes(3)).into_owned(),
                2 => text[range.clone()].repeat(2),
                _ => {
                    let other = self.pick(texts);
                    let at = self.place_in(other);
                    other[at..other.floor_char_boundary(at + 30)].to_owned()
                }
            };
            text.replace_range(range, &other);
        }
        text
    }

    fn place_in(&mut self, text: &str) -> usize {
        text.floor_char_boundary(self.below(text.len() as u32 + 1) as usize)
    }

    /// Cuts `bytes` into pieces.
    pub fn cut<'b>(&mut self, mut bytes: &'b [u8]) -> Vec<&'b [u8]> {
        let mut pieces = Vec::new();
        while !bytes.is_empty() {
            let size = if self.is_empty() { bytes.len() } else { self.pick(&[1, 2, 7, 47, 48, 49, 400, usize::MAX]) };
            let (piece, rest) = bytes.split_at(size.min(bytes.len()));
            pieces.push(piece);
            bytes = rest;
        }
        pieces
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014): every seed is as good as another.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, count: usize) -> usize {
        (self.next() % count.max(1) as u64) as usize
    }

    fn input(&mut self, known: &[(String, Vec<u8>)]) -> Vec<u8> {
        if known.is_empty() || self.below(2) == 0 {
            let size = INPUT_BYTES_MAX >> self.below(8);
            return (0..self.below(size) + 1).map(|_| self.next() as u8).collect();
        }
        let mut input = known[self.below(known.len())].1.clone();
        for _ in 0..self.below(8) + 1 {
            self.mutate(&mut input);
        }
        input
    }

    fn mutate(&mut self, input: &mut Vec<u8>) {
        let at = self.below(input.len());
        let end = (at + 1 + self.below(16)).min(input.len());
        match self.below(5) {
            0 if !input.is_empty() => input[at] = [0, 1, 0x7f, 0x80, 0xff][self.below(5)],
            1 if !input.is_empty() => input[at] ^= 1 << self.below(8),
            2 if !input.is_empty() => drop(input.drain(at..end)),
            3 if !input.is_empty() => input.extend_from_within(at..end),
            _ => input.insert(at, self.next() as u8),
        }
    }
}
