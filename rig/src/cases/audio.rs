//! An unmodified kernel plays and records on farbus's sound-card gadget, and every sample is checked.

use super::case::{RigCase, expect};
use crate::Result;
use crate::lab::{AttachClient, CaseEnvironment, MachineBoot};

pub(super) const CASES: &[RigCase] = &[
    RigCase {
        name: "audio-stock",
        purpose: "`arecord` of the tone that a shared sound card's microphone hears, `aplay` of that on its speaker, at full and at \
                  high speed: every sample arrives, in order",
        run: |lab| both_ways(lab, AttachClient::Stock),
    },
    RigCase {
        name: "audio-farbus",
        purpose: "the same through `farbus attach --via kernel`",
        run: |lab| both_ways(lab, AttachClient::Farbus),
    },
];

/// Seconds of sound, at 48,000 frames a second.
const SECONDS: u64 = 3;
/// What is shared, in the order of its bus ids.
const CARDS: [(&str, &str); 2] = [("audio", "audio"), ("audio,speed=high", "audio2")];

fn both_ways(lab: &CaseEnvironment, client: AttachClient) -> Result<String> {
    let share = lab.share(&CARDS.map(|(what, _)| what.to_owned()))?;
    let mut guest = lab.boot(&MachineBoot {
        script: include_str!("../../guest/audio.sh"),
        modules: &["virtio_mmio", "virtio_net", "vhci_hcd", "snd_usb_audio"],
        client,
        port: Some(share.port()),
        variables: &[("SECONDS_OF_SOUND", SECONDS.to_string())],
        ..MachineBoot::default()
    })?;
    let mut messages = Vec::new();
    for (_, name) in CARDS {
        guest.await_word("played")?;
        let count = |what: &str| share.count(name, what);
        messages.push(format!("{name}: {}", judge(SECONDS * 48_000, count)?));
        guest.tell("go on")?;
    }
    guest.finish()?;
    Ok(messages.join("; "))
}

/// Checks that all recorded frames were played, and that the speaker received all of them.
fn judge(frames: u64, count: impl Fn(&str) -> Result<u64>) -> Result<String> {
    let [tone, breaks, malformed] =
        ["speaker_tone_frames", "speaker_tone_breaks", "speaker_malformed_packets"].map(&count);
    let (tone, breaks, malformed) = (tone?, breaks?, malformed?);
    expect((tone, breaks, malformed) == (frames, 0, 0), || {
        format!("of {frames} frames {tone} arrived, {breaks} out of order; {malformed} malformed packets")
    })?;
    // How late an emulated machine is says nothing about farbus; the figure is printed.
    let late = count("speaker_late")? + count("microphone_late")?;
    Ok(format!("{frames} frames each way, none missing, late {late} times"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_frame_and_a_break_are_seen() {
        let counted = |tone: u64, breaks: u64| {
            move |what: &str| {
                Ok(match what {
                    "speaker_tone_frames" => tone,
                    "speaker_tone_breaks" => breaks,
                    _ => 0,
                })
            }
        };
        assert!(judge(100, counted(100, 0)).is_ok());
        assert!(judge(100, counted(99, 0)).is_err());
        assert!(judge(100, counted(100, 1)).is_err());
    }
}
