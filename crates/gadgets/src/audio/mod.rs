//! A sound card: a speaker that counts the samples it gets, a microphone that records a tone (USB Audio 1.0).
//!
//! 48 kHz, two channels of 16 bits. The speaker is adaptive: it plays at the rate of the incoming data. The microphone
//! keeps the bus's clock: 48 frames a millisecond. Both keep the bus's pace, so a late host is noticed: the card counts
//! each time an endpoint in use has nothing queued, and the intervals that pass meanwhile. To check what was played,
//! the speaker knows the microphone's [`tone`], and counts where it breaks.

use std::time::Duration;

use farbus_model::definition::{InterfaceDefinition, SynchronizationType};
use farbus_model::descriptor::ConfigurationSelection;
use farbus_model::{DeviceDefinition, EpAddr, NamedCounters, Payload, TransferDirection, UsbSpeed};

use crate::emulated::{EmulatedDevice, FunctionContext, GadgetFunction, InTransferAnswer, OutTransferAnswer};
use crate::saved::{SavedStateReader, SavedStateWriter};
use tone::{FRAME_BYTES, FrameSound, ToneGenerator, ToneListener};

pub mod tone;

#[cfg(test)]
mod tests;

/// Frames a second.
pub const RATE_HZ: u32 = 48_000;
const SPEAKER: EpAddr = EpAddr::from_byte(0x01);
const MICROPHONE: EpAddr = EpAddr::from_byte(0x82);

/// Class and subclasses (Audio 1.0 §A.1, §A.2).
const CLASS_AUDIO: u8 = 1;
const AUDIO_CONTROL: u8 = 1;
const AUDIO_STREAMING: u8 = 2;
/// Class-specific descriptors (Audio 1.0 §A.4 to §A.8).
const CS_INTERFACE: u8 = 0x24;
const CS_ENDPOINT: u8 = 0x25;
const AC_HEADER: u8 = 1;
const AC_INPUT_TERMINAL: u8 = 2;
const AC_OUTPUT_TERMINAL: u8 = 3;
const AS_GENERAL: u8 = 1;
const AS_FORMAT_TYPE: u8 = 2;
const EP_GENERAL: u8 = 1;
/// Terminals' types (USB Audio Terminal Types 1.0), little-endian.
const USB_STREAMING: [u8; 2] = [0x01, 0x01];
const TERMINAL_MICROPHONE: [u8; 2] = [0x01, 0x02];
const TERMINAL_SPEAKER: [u8; 2] = [0x01, 0x03];
/// Terminal ids: played sound goes from 1 to 2, recorded sound from 3 to 4.
const PLAYED: u8 = 1;
const RECORDED: u8 = 4;

/// The counters, in the order of [`AudioCounter`].
const COUNTS: &[&str] = &[
    "speaker_frames",
    "speaker_tone_frames",
    "speaker_tone_breaks",
    "speaker_silent_frames",
    "speaker_malformed_packets",
    "speaker_late",
    "speaker_missed_intervals",
    "microphone_frames",
    "microphone_late",
    "microphone_missed_intervals",
];

/// An index into [`COUNTS`].
#[derive(Clone, Copy, Debug)]
enum AudioCounter {
    /// Audio frames that the speaker received from the host.
    SpeakerFrames,
    /// Frames of the tone.
    ToneFrames,
    /// Frames of the tone that did not continue it.
    ToneBreaks,
    /// Frames of zeros.
    SilentFrames,
    /// Packets that did not hold whole frames.
    Malformed,
    /// How often the speaker had nothing to play while the host was playing, and for how long.
    SpeakerLate,
    SpeakerMissed,
    /// Audio frames that the microphone sent to the host.
    MicrophoneFrames,
    /// How often the host did not fetch the microphone's frames while it was recording, and for how long.
    MicrophoneLate,
    MicrophoneMissed,
}

/// A sound card.
#[derive(Debug)]
pub struct AudioGadget {
    /// The tone that the microphone records, and the frames per interval.
    tone: ToneGenerator,
    packet_frames: usize,
    listener: ToneListener,
    is_playing: bool,
    is_recording: bool,
    tally: NamedCounters,
}

impl AudioGadget {
    /// The device, ready to be shared: at full speed with a packet a millisecond, at high speed with one a microframe.
    pub fn device(speed: UsbSpeed) -> EmulatedDevice<Self> {
        let function = Self {
            tone: ToneGenerator::default(),
            packet_frames: packet_frames(speed),
            listener: ToneListener::default(),
            is_playing: false,
            is_recording: false,
            tally: NamedCounters::new(COUNTS),
        };
        EmulatedDevice::new(&definition(speed), function)
    }

    fn count(&self, what: AudioCounter, more: u64) {
        self.tally.count(what as usize, more);
    }
}

fn interval(speed: UsbSpeed) -> Duration {
    if speed.has_microframes() { Duration::from_micros(125) } else { Duration::from_millis(1) }
}

fn packet_frames(speed: UsbSpeed) -> usize {
    (interval(speed).as_micros() as u32 * RATE_HZ / 1_000_000) as usize
}

fn definition(speed: UsbSpeed) -> DeviceDefinition {
    // A host whose clock is faster than the bus sends a frame more now and then (Audio Data Formats 1.0 §2.2.1).
    let packet_bytes_max = ((packet_frames(speed) + 1) * FRAME_BYTES) as u16;
    let streaming = || InterfaceDefinition::new(CLASS_AUDIO, AUDIO_STREAMING, 0);
    let active = |terminal: u8, endpoint: EpAddr, synchronization: SynchronizationType| {
        let [low, middle, high, _] = RATE_HZ.to_le_bytes();
        // Linked to its terminal, one frame of delay, PCM.
        let general = [7, CS_INTERFACE, AS_GENERAL, terminal, 1, 0x01, 0x00];
        // Type I, two channels of 2 bytes with 16 bits, one rate.
        let format = [11, CS_INTERFACE, AS_FORMAT_TYPE, 1, 2, 2, 16, 1, low, middle, high];
        // No rate control, no lock delay; no refresh and no synch address (§4.6.1.1).
        let of_endpoint = [7, CS_ENDPOINT, EP_GENERAL, 0, 0, 0, 0];
        streaming()
            .alternate_of_previous()
            .class_descriptors(&[&general[..], &format[..]].concat())
            .isochronous(endpoint.number(), endpoint.direction(), packet_bytes_max, interval(speed))
            .of_endpoint(synchronization, &[0, 0], &of_endpoint)
    };
    DeviceDefinition::new(0x1d6b, 0x0101)
        .speed(speed)
        .names("farbus", "audio", "0")
        .interface(InterfaceDefinition::new(CLASS_AUDIO, AUDIO_CONTROL, 0).class_descriptors(&control_descriptors()))
        .interface(streaming())
        .interface(active(PLAYED, SPEAKER, SynchronizationType::Adaptive))
        .interface(streaming())
        .interface(active(RECORDED, MICROPHONE, SynchronizationType::Synchronous))
}

/// Header and terminals of the control interface (Audio 1.0 §4.3.2), for playing and for recording.
fn control_descriptors() -> Vec<u8> {
    let input = |id: u8, [low, high]: [u8; 2]| {
        // Left front and right front.
        [12, CS_INTERFACE, AC_INPUT_TERMINAL, id, low, high, 0, 2, 0x03, 0x00, 0, 0]
    };
    let output =
        |id: u8, [low, high]: [u8; 2], source: u8| [9, CS_INTERFACE, AC_OUTPUT_TERMINAL, id, low, high, 0, source, 0];
    let (speaker, heard) = (PLAYED + 1, RECORDED - 1);
    let terminals = [
        &input(PLAYED, USB_STREAMING)[..],
        &output(speaker, TERMINAL_SPEAKER, PLAYED),
        &input(heard, TERMINAL_MICROPHONE),
        &output(RECORDED, USB_STREAMING, heard),
    ]
    .concat();
    // Release 1.0; the streaming interfaces are 1 and 2.
    let mut all = vec![10, CS_INTERFACE, AC_HEADER, 0x00, 0x01, 0, 0, 2, 1, 2];
    all.extend(terminals);
    let [low, high] = (all.len() as u16).to_le_bytes();
    (all[5], all[6]) = (low, high);
    all
}

impl GadgetFunction for AudioGadget {
    fn send(&mut self, _endpoint: EpAddr, room: usize, cx: &mut FunctionContext<'_>) -> InTransferAnswer {
        let frames = self.packet_frames.min(room / FRAME_BYTES);
        let mut data = cx.pool.take(frames * FRAME_BYTES);
        for frame in data.chunks_exact_mut(FRAME_BYTES) {
            let [left, right] = self.tone.next_frame().map(i16::to_le_bytes);
            frame.copy_from_slice(&[left, right].concat());
        }
        self.is_recording = true;
        self.count(AudioCounter::MicrophoneFrames, frames as u64);
        InTransferAnswer::Data(data.into())
    }

    fn receive(&mut self, _endpoint: EpAddr, payload: &Payload, _cx: &mut FunctionContext<'_>) -> OutTransferAnswer {
        let data = payload.contiguous();
        let (frames, rest) = data.as_chunks::<FRAME_BYTES>();
        let (mut tone, mut breaks, mut silent) = (0, 0, 0);
        for &[a, b, c, d] in frames {
            match self.listener.hear([i16::from_le_bytes([a, b]), i16::from_le_bytes([c, d])]) {
                FrameSound::Tone => tone += 1,
                FrameSound::Break => (tone, breaks) = (tone + 1, breaks + 1),
                FrameSound::Silence => silent += 1,
                FrameSound::Other => {}
            }
        }
        self.is_playing = true;
        self.count(AudioCounter::SpeakerFrames, frames.len() as u64);
        self.count(AudioCounter::ToneFrames, tone);
        self.count(AudioCounter::ToneBreaks, breaks);
        self.count(AudioCounter::SilentFrames, silent);
        self.count(AudioCounter::Malformed, u64::from(!rest.is_empty()));
        OutTransferAnswer::Accepted
    }

    fn starved(&mut self, endpoint: EpAddr, intervals: u64, _cx: &mut FunctionContext<'_>) {
        let (is_used, late, missed) = match endpoint.direction() {
            TransferDirection::Out => (self.is_playing, AudioCounter::SpeakerLate, AudioCounter::SpeakerMissed),
            TransferDirection::In => (self.is_recording, AudioCounter::MicrophoneLate, AudioCounter::MicrophoneMissed),
        };
        // Before the first packet the host has not begun, and so is not late.
        if is_used {
            self.count(late, 1);
            self.count(missed, intervals);
        }
    }

    fn selected(&mut self, selection: &ConfigurationSelection, _cx: &mut FunctionContext<'_>) {
        // A host that stops selects the setting without an endpoint; when it begins again, the tone begins again as
        // well.
        if selection.endpoint(SPEAKER).is_none() {
            (self.is_playing, self.listener) = (false, ToneListener::default());
        }
        if selection.endpoint(MICROPHONE).is_none() {
            self.is_recording = false;
        }
    }

    fn reset(&mut self, _cx: &mut FunctionContext<'_>) {
        (self.is_playing, self.is_recording, self.listener) = (false, false, ToneListener::default());
    }

    fn tally(&self) -> Option<NamedCounters> {
        Some(self.tally.clone())
    }

    /// The positions of both tones, and the counters.
    fn save(&self) -> Option<Vec<u8>> {
        let mut state = SavedStateWriter::default();
        state.flag(self.is_playing);
        state.flag(self.is_recording);
        state.bytes(&self.tone.last().to_le_bytes());
        state.bytes(&self.listener.last.map(i16::to_le_bytes).unwrap_or_default()[..]);
        self.tally.read().for_each(|(_, count)| state.u64(count));
        Some(state.into_bytes())
    }

    fn restore(&mut self, state: &[u8]) -> Option<()> {
        let mut from = SavedStateReader(state);
        let (is_playing, is_recording) = (from.flag()?, from.flag()?);
        let tone = ToneGenerator::after(i16::from_le_bytes(from.bytes()?.try_into().ok()?))?;
        let last = match from.bytes()? {
            [] => None,
            last => Some(ToneGenerator::after(i16::from_le_bytes(last.try_into().ok()?))?.last()),
        };
        let counts: Vec<u64> = COUNTS.iter().map(|_| from.u64()).collect::<Option<_>>()?;
        from.end()?;
        counts.into_iter().enumerate().for_each(|(at, count)| self.tally.count(at, count));
        (self.is_playing, self.is_recording) = (is_playing, is_recording);
        (self.tone, self.listener) = (tone, ToneListener { last });
        Some(())
    }
}
