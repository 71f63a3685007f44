//! How long a path delays a transfer: told by the user, or measured.
//!
//! A single round trip that took long says little: the machine may have stood still for once. So there are rounds of
//! them, and two figures. The longest of all is the bound of a message's delay, because it may come again. What a round
//! usually has at its longest says which rate the transfers carry over time (`Endpoint`, its period).

/// Rounds of round trips. Two of them may be disturbed without an effect on what is usual.
const ROUNDS: usize = 5;
/// Round trips of a round.
const PROBES: usize = 8;
/// How much slower than measured a path is assumed to become.
const MARGIN: u64 = 4;

/// How long a path delays a transfer. What was measured is an observation; the network promises nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathDelay {
    /// At the worst, in nanoseconds.
    pub worst_ns: u64,
    /// Usually at the most, in nanoseconds; no longer than `worst_ns`.
    pub usual_ns: u64,
}

/// A round trip, as it was measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoundTrip {
    /// How long it took, in nanoseconds.
    pub took_ns: u64,
    /// For how long the thread that measured it did not run when it should have, in nanoseconds.
    pub overslept_ns: u64,
}

impl RoundTrip {
    /// Whether most of the time was that of the thread that measured: it says nothing of the path then.
    const fn is_of_this_thread(&self) -> bool {
        self.overslept_ns > self.took_ns / 2
    }
}

impl PathDelay {
    /// A path that is known to delay by this at the worst, in nanoseconds.
    pub const fn at_worst(worst_ns: u64) -> Self {
        Self { worst_ns, usual_ns: worst_ns }
    }

    /// Measures a path by round trips. `probe` makes one. One that this thread spoiled is made again, as often as a
    /// round has round trips: a pipe's threads run by reservations of their own, and their bounds have what they need.
    ///
    /// # Errors
    /// Those of `probe`.
    pub(super) fn measure<E>(mut probe: impl FnMut() -> Result<RoundTrip, E>) -> Result<Self, E> {
        let mut rounds = [0; ROUNDS];
        for longest in &mut rounds {
            let mut spoiled = 0;
            for _ in 0..PROBES {
                let mut trip = probe()?;
                while trip.is_of_this_thread() && spoiled < PROBES {
                    spoiled += 1;
                    trip = probe()?;
                }
                *longest = trip.took_ns.max(*longest);
            }
        }
        rounds.sort_unstable();
        let with_margin = |ns: u64| ns.saturating_mul(MARGIN);
        Ok(Self { worst_ns: with_margin(rounds[ROUNDS - 1]), usual_ns: with_margin(rounds[ROUNDS / 2]) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The delay of a path whose round trips take, and oversleep, what `trip` says of each by its number; and how many
    /// there were.
    fn measured(mut trip: impl FnMut(usize) -> (u64, u64)) -> (PathDelay, usize) {
        let mut probes = 0;
        let probe = || {
            probes += 1;
            let (took_ns, overslept_ns) = trip(probes - 1);
            Ok::<_, ()>(RoundTrip { took_ns, overslept_ns })
        };
        (PathDelay::measure(probe).unwrap(), probes)
    }

    #[test]
    fn one_stall_of_the_machine_is_the_worst_delay_and_not_the_usual_one() {
        let (steady, probes) = measured(|_| (200_000, 0));
        assert_eq!((steady, probes), (PathDelay::at_worst(800_000), ROUNDS * PROBES));
        let (stalled, _) = measured(|probe| if probe == 17 { (83_000_000, 0) } else { (200_000, 0) });
        assert_eq!(stalled, PathDelay { worst_ns: 332_000_000, usual_ns: 800_000 });
    }

    #[test]
    fn stalls_in_most_rounds_are_usual() {
        let (delay, _) = measured(|probe| if probe % 16 == 3 { (83_000_000, 0) } else { (200_000, 0) });
        assert_eq!(delay, PathDelay::at_worst(332_000_000), "three rounds of five have one");
    }

    #[test]
    fn round_trip_that_this_thread_spoiled_is_made_again_and_counts_if_all_are_spoiled() {
        let (delay, probes) = measured(|probe| if probe == 17 { (83_000_000, 80_000_000) } else { (200_000, 0) });
        assert_eq!((delay, probes), (PathDelay::at_worst(800_000), ROUNDS * PROBES + 1));
        let (spoiled, probes) = measured(|_| (9_000_000, 8_800_000));
        assert_eq!((spoiled, probes), (PathDelay::at_worst(36_000_000), 2 * ROUNDS * PROBES));
    }
}
