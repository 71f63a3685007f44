//! Short benchmarks for a machine that counts instructions, not time: `cargo xtask instructions` runs each scenario
//! under callgrind, which counts in [`counted`] alone.
//!
//! A scenario is state machines of the hot path, connected in memory: one thread, no socket, no clock, the same work in
//! every run. What a kernel would copy between the ends, [`native`] copies.
//!
//!     instructions              every scenario once, and that each answers what it should
//!     instructions list         their names
//!     instructions SCENARIO     one, which prints how many requests were counted

mod native;
mod usbip;

use std::error::Error;
use std::hint::black_box;

/// State machines that are ready for requests.
trait CountedScenario {
    /// Submits a few requests and takes their answers; returns how many requests.
    fn round(&mut self) -> u32;
}

/// A scenario by its name.
struct NamedScenario {
    name: &'static str,
    /// Rounds that are counted.
    rounds: u32,
    make: fn() -> Box<dyn CountedScenario>,
}

const KIB: u32 = 1 << 10;

const SCENARIOS: [NamedScenario; 9] = [
    NamedScenario { name: "usbip-64-x1", rounds: 2000, make: || usbip::exporter(64, 1) },
    NamedScenario { name: "usbip-4k-x32", rounds: 100, make: || usbip::exporter(4 * KIB, 32) },
    NamedScenario { name: "session-64-x1", rounds: 2000, make: || native::usb(64, 1) },
    NamedScenario { name: "session-4k-x32", rounds: 50, make: || native::usb(4 * KIB, 32) },
    NamedScenario { name: "session-out-4k-x32", rounds: 50, make: || native::usb_out(4 * KIB, 32) },
    NamedScenario { name: "disk-read-128k-in-order", rounds: 256, make: || native::read_in_order(128 * KIB) },
    NamedScenario { name: "disk-read-4k-x32", rounds: 50, make: || native::read_at_random(4 * KIB, 32) },
    NamedScenario { name: "disk-write-128k", rounds: 16, make: || native::write_in_order(128 * KIB, 16) },
    NamedScenario { name: "frames", rounds: 2000, make: native::frames },
];

/// Rounds before the counted ones: buffers and windows have their sizes then.
const ROUNDS_BEFORE: u32 = 32;

/// Runs so many rounds and returns how many requests. Counting begins and ends with this function, by its name.
#[inline(never)]
fn counted(scenario: &mut dyn CountedScenario, rounds: u32) -> u32 {
    (0..rounds).map(|_| scenario.round()).sum()
}

fn run(named: &NamedScenario, rounds: u32) -> u32 {
    let mut scenario = (named.make)();
    for _ in 0..ROUNDS_BEFORE {
        scenario.round();
    }
    counted(black_box(&mut *scenario), black_box(rounds))
}

fn main() -> Result<(), Box<dyn Error>> {
    match std::env::args().nth(1).as_deref() {
        None => {
            for named in &SCENARIOS {
                println!("{}: {} requests were answered", named.name, run(named, 1));
            }
        }
        Some("list") => SCENARIOS.iter().for_each(|named| println!("{}", named.name)),
        Some(name) => {
            let named = SCENARIOS.iter().find(|named| named.name == name);
            let named = named.ok_or_else(|| format!("there is no scenario {name}; 'list' names all"))?;
            println!("{}", run(named, named.rounds));
        }
    }
    Ok(())
}
