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
pub type StereoFrame = [i16; 2];

/// Makes the tone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ToneGenerator {
    /// The left channel of the frame before.
    last: i16,
}

impl ToneGenerator {
    /// The next frame.
    pub fn next_frame(&mut self) -> StereoFrame {
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
pub enum FrameSound {
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
pub struct ToneListener {
    /// The left channel of the tone's last frame.
    pub last: Option<i16>,
}

impl ToneListener {
    /// Classifies the next frame.
    pub fn hear(&mut self, [left, right]: StereoFrame) -> FrameSound {
        match (left, right) {
            (0, 0) => FrameSound::Silence,
            _ if right == !left && (-TOP..TOP).contains(&left) => {
                let follows = self.last.is_none_or(|last| after(last) == left);
                self.last = Some(left);
                if follows { FrameSound::Tone } else { FrameSound::Break }
            }
            _ => FrameSound::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_frame_of_a_period_is_another() {
        let mut tone = ToneGenerator::default();
        let mut seen: Vec<StereoFrame> = (0..PERIOD_FRAMES).map(|_| tone.next_frame()).collect();
        assert_eq!(tone.last(), 0, "after a period it is where it was");
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), PERIOD_FRAMES as usize);
        assert!(!seen.contains(&[0, 0]));
        assert_eq!(
            (ToneGenerator::after(TOP), ToneGenerator::after(-TOP).map(ToneGenerator::last)),
            (None, Some(-TOP))
        );
    }

    #[test]
    fn a_listener_hears_what_is_missing_and_what_is_twice() {
        let mut tone = ToneGenerator::default();
        let frames: Vec<StereoFrame> = (0..100).map(|_| tone.next_frame()).collect();
        let heard = |frames: &[StereoFrame]| {
            let mut listener = ToneListener::default();
            frames.iter().map(|frame| listener.hear(*frame)).collect::<Vec<_>>()
        };
        assert!(heard(&frames).iter().all(|heard| *heard == FrameSound::Tone));
        assert_eq!(heard(&[frames[5], frames[7], frames[8]]), [FrameSound::Tone, FrameSound::Break, FrameSound::Tone]);
        assert_eq!(heard(&[frames[5], frames[5]]), [FrameSound::Tone, FrameSound::Break]);
        assert_eq!(
            heard(&[[0, 0], frames[5], [0, 0], [1, 1], frames[6]]),
            [FrameSound::Silence, FrameSound::Tone, FrameSound::Silence, FrameSound::Other, FrameSound::Tone],
            "silence in between takes nothing away from the tone"
        );
    }
}
