//! A sound-card gadget: the importer plays on its speaker what it recorded from its microphone.

use farbus::model::{EpAddr, IsoPacket, SetupPacket, Urb, UrbId, UrbStatus};

use super::driver::Driver;
use super::harness::Harness;

const SPEAKER: EpAddr = EpAddr::from_byte(0x01);
const MICROPHONE: EpAddr = EpAddr::from_byte(0x82);
/// Eight milliseconds at full speed.
const PACKETS: u32 = 8;
const PACKET_BYTES: u32 = 192;

fn cut(mut urb: Urb) -> Urb {
    let packet = |n| IsoPacket { offset: n * PACKET_BYTES, length: PACKET_BYTES, ..IsoPacket::default() };
    urb.iso = (0..PACKETS).map(packet).collect();
    urb
}

#[test]
fn sound_card_exporter_counts_the_samples_that_its_speaker_played() {
    const URBS: u64 = 25;
    let harness = Harness::new();
    let share = harness.share(&["audio"]);
    let mut card = Driver::new(&share.address, "audio");
    for (interface, alternate) in [(1, 1), (2, 1)] {
        let setup = SetupPacket { request_type: 0x01, request: 11, value: alternate, index: interface, length: 0 };
        let set = card.ask(|id| Urb::control(id, setup, farbus::model::Payload::Empty));
        assert_eq!(set.status, UrbStatus::Ok);
    }
    let record = |id: UrbId| cut(Urb::data_in(id, MICROPHONE, PACKETS * PACKET_BYTES));
    const DEPTH: u64 = 3;
    (0..DEPTH).for_each(|_| card.submit(record));
    let mut left = URBS - DEPTH;
    let mut ended = Vec::new();
    while ended.len() < URBS as usize {
        let done = card.wait();
        assert_eq!(
            (done.status, done.error_count, done.actual),
            (UrbStatus::Ok, 0, PACKETS * PACKET_BYTES),
            "{done:?}"
        );
        if done.endpoint == MICROPHONE {
            if left > 0 {
                card.submit(record);
                left -= 1;
            }
            let sound = done.payload.clone();
            card.submit(|id| cut(Urb::data_out(id, SPEAKER, sound)));
        } else {
            ended.push(done.start_frame);
        }
    }
    let spans: Vec<u32> = ended.windows(2).map(|two| two[1] - two[0]).collect();
    assert!(spans.iter().all(|span| *span >= PACKETS), "never faster than the bus: {spans:?}");
    let status = harness.json(&["status", "--json"]);
    let count = |what: &str| status[0]["devices"][0]["counts"][what].as_u64();
    let played = URBS * u64::from(PACKETS * PACKET_BYTES / 4);
    let (tone, breaks) = (count("speaker_tone_frames"), count("speaker_tone_breaks"));
    assert!(tone == Some(played) && tone == count("speaker_frames") && breaks == Some(0), "{status}");
    let text = harness.run(&["status"]).stdout;
    assert!(text.contains("audio: ") && text.contains("speaker tone frames"), "{text}");
    assert!(!text.contains("malformed"), "what never happened is not shown: {text}");
}

#[test]
fn sound_card_at_super_speed_is_refused_with_the_speeds_it_has() {
    let refused = Harness::new().run(&["share", "audio,speed=super"]);
    assert!(refused.code == Some(2) && refused.stderr.contains("speed=full and speed=high"), "{refused:?}");
}
