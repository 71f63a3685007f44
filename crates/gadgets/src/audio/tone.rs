//! A tone that reveals lost samples: a sawtooth in which every frame follows from the one before.
//!
//! The left channel counts up in steps and wraps; the right one is its complement. After two frames a listener knows
//! whether one is missing, repeated or changed. An odd step visits every value, so only the loss of a multiple of
//! [`PERIOD_FRAMES`] is not noticed.

/// Bytes of a frame: two channels of 16 bits, little-endian.
pub const FRAME_BYTES: usize = 4;
/// Distinct frames, 171 ms of them; an eighth of full scale, so that it is not too loud.
pub const PERIOD_FRAMES: i16 = 8192;
/// 439.5 Hz at 48 kHz: an A.
const STEP: i16 = 75;
const TOP: i16 = PERIOD_FRAMES / 2;

/// A frame's channels, left and right.
pub type Frame = [i16; 2];

/// Makes the tone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tone {
    /// The left channel of the frame before.
    last: i16,
}

impl Tone {
    /// The next frame.
    pub fn next_frame(&mut self) -> Frame {
        self.last = after(self.last);
        [self.last, !self.last]
    }

    /// The left channel of the last frame, after which the tone continues.
    pub fn last(self) -> i16 {
        self.last
    }

    /// The tone that continues after `last`; `None` if that is none of its values.
    pub fn after(last: i16) -> Option<Self> {
        (-TOP..TOP).contains(&last).then_some(Self { last })
    }
}

fn after(left: i16) -> i16 {
    let next = left + STEP;
    if next >= TOP { next - PERIOD_FRAMES } else { next }
}

/// What a listener makes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// The tone, continued or for the first time.
    Tone,
    /// The tone, but not its next frame.
    Break,
    /// Silence: both channels are zero, as in no frame of the tone.
    Silence,
    /// Any other sound.
    Other,
}

/// Listens for the tone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Listener {
    /// The left channel of the tone's last frame.
    pub last: Option<i16>,
}

impl Listener {
    /// Classifies the next frame.
    pub fn hear(&mut self, [left, right]: Frame) -> Heard {
        match (left, right) {
            (0, 0) => Heard::Silence,
            _ if right == !left && (-TOP..TOP).contains(&left) => {
                let follows = self.last.is_none_or(|last| after(last) == left);
                self.last = Some(left);
                if follows { Heard::Tone } else { Heard::Break }
            }
            _ => Heard::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_frame_of_a_period_is_another() {
        let mut tone = Tone::default();
        let mut seen: Vec<Frame> = (0..PERIOD_FRAMES).map(|_| tone.next_frame()).collect();
        assert_eq!(tone.last(), 0, "after a period it is where it was");
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), PERIOD_FRAMES as usize);
        assert!(!seen.contains(&[0, 0]));
        assert_eq!((Tone::after(TOP), Tone::after(-TOP).map(Tone::last)), (None, Some(-TOP)));
    }

    #[test]
    fn a_listener_hears_what_is_missing_and_what_is_twice() {
        let mut tone = Tone::default();
        let frames: Vec<Frame> = (0..100).map(|_| tone.next_frame()).collect();
        let heard = |frames: &[Frame]| {
            let mut listener = Listener::default();
            frames.iter().map(|frame| listener.hear(*frame)).collect::<Vec<_>>()
        };
        assert!(heard(&frames).iter().all(|heard| *heard == Heard::Tone));
        assert_eq!(heard(&[frames[5], frames[7], frames[8]]), [Heard::Tone, Heard::Break, Heard::Tone]);
        assert_eq!(heard(&[frames[5], frames[5]]), [Heard::Tone, Heard::Break]);
        assert_eq!(
            heard(&[[0, 0], frames[5], [0, 0], [1, 1], frames[6]]),
            [Heard::Silence, Heard::Tone, Heard::Silence, Heard::Other, Heard::Tone],
            "silence in between takes nothing away from the tone"
        );
    }
}
