//! `farbus stream`: frames arrive whole and in order, all of them or the latest, despite slow readers and cut links.

use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use farbus::client::ImporterClient;
use farbus::frames::{FrameSelection, StreamFormat, open_stream};
use farbus_gadgets::picture::GradientPicture;
use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::cuts::Cutter;
use super::harness::{Harness, PATIENCE, Running, Share, wait_until};
use super::trust::{hosts, pair};

const SMALL: &str = "stream:pattern,size=64x48,rate=0";
const SMALL_BYTES: usize = 64 * 48 * 3;

#[test]
fn test_picture_arrives_frame_by_frame_unchanged() {
    let harness = Harness::new();
    let share = harness.share(&[SMALL, "zero"]);
    let target = share.target("stream");
    let mut command = harness.command(&["stream", "read", &target, "--count", "100"]);
    let output = command.stdin(Stdio::null()).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert!(
        errors.contains("rgb24 64x48") && errors.contains("100 frames") && errors.contains("0 were missed"),
        "{errors}"
    );
    assert_eq!(output.stdout.len(), 100 * SMALL_BYTES);
    let picture = GradientPicture::new(64, 48, 3);
    for (number, frame) in output.stdout.chunks(SMALL_BYTES).enumerate() {
        assert!(frame == picture.numbered(number as u64), "frame {number}");
    }
    let report = harness.json(&["stream", "read", &target, "--count", "10", "--json"]);
    assert_eq!((&report["frames"], &report["missed"]), (&10.into(), &0.into()), "{report}");
    let status = harness.json(&["status", "--json"]);
    assert!(status[0]["devices"][0]["counts"]["frames_taken"].as_u64() >= Some(110), "{status}");
    let refused = harness.run(&["stream", "read", &share.target("zero")]);
    assert!(refused.code == Some(3) && refused.stderr.contains("no stream of frames"), "{refused:?}");
    assert_eq!(harness.run(&["stream", "read", &share.target("tape")]).code, Some(4));
    let listed = harness.run(&["list", &share.address]).stdout;
    assert!(listed.contains("stream"), "{listed}");
}

#[test]
fn stream_has_one_reader_of_all_frames_or_many_of_the_latest() {
    let harness = Harness::new();
    let share = harness.share(&["stream:pattern,size=64x48,rate=200"]);
    let (client, target) = (ImporterClient::default(), share.library_target("stream"));
    let mut first = open_stream(&client, &target, FrameSelection::Latest).unwrap();
    let mut second = open_stream(&client, &target, FrameSelection::Latest).unwrap();
    let refused = harness.run(&["stream", "read", &share.target("stream")]);
    assert!(refused.code == Some(3) && refused.stderr.contains("one user at a time"), "{refused:?}");
    // One reader pauses: the source does not wait, and the other reader sees every frame.
    let before = first.next_frame().unwrap().unwrap().sequence;
    for _ in 0..300 {
        second.next_frame().unwrap().unwrap();
    }
    let mut last = before;
    for _ in 0..100 {
        let sequence = first.next_frame().unwrap().unwrap().sequence;
        assert!(sequence > last);
        last = sequence;
    }
    assert!(last - before > 150, "{last} came soon after {before}: what is old was not sent");
    drop((first, second));
    let all = || open_stream(&client, &target, FrameSelection::All);
    wait_until(PATIENCE, "nobody else reads", || all().is_ok());
    wait_until(PATIENCE, "nor who looked whether", || all().is_ok());
}

/// An observer is no user: it keeps nobody out, and gets in beside a reader of all frames.
#[test]
fn an_observer_of_a_stream_is_beside_every_reader_if_its_owner_permits_it() {
    let harness = Harness::new();
    let hidden = harness.share(&[SMALL]);
    let refused = harness.run(&["stream", "read", &hidden.target("stream"), "--observe"]);
    assert!(refused.code == Some(3) && refused.stderr.contains("--observable"), "{refused:?}");
    let share = harness.share(&[SMALL, "--observable"]);
    let (client, target) = (ImporterClient::default(), share.library_target("stream"));
    let mut observer = open_stream(&client, &target, FrameSelection::Observed).unwrap();
    let mut first = observer.next_frame().unwrap().unwrap().sequence;
    let mut reader = open_stream(&client, &target, FrameSelection::All).unwrap();
    let mut late = open_stream(&client, &target, FrameSelection::Observed).unwrap();
    let mut last = reader.next_frame().unwrap().unwrap().sequence;
    for _ in 0..1000 {
        let sequence = reader.next_frame().unwrap().unwrap().sequence;
        assert_eq!(sequence, last + 1);
        last = sequence;
    }
    for frames in [&mut observer, &mut late] {
        let sequence = frames.next_frame().unwrap().unwrap().sequence;
        assert!(sequence >= first, "{sequence} after {first}");
        first = 0;
    }
    let status = harness.json(&["status", "--json"]);
    let devices: Vec<_> = status.as_array().unwrap().iter().map(|process| &process["devices"][0]).collect();
    let shared = devices.iter().find(|device| device["is_observable"] == true).unwrap();
    assert_eq!((&shared["state"], &shared["mode"]), (&"in use".into(), &"exclusive".into()), "{shared}");
    assert_eq!(shared["stream"], "rgb24 64x48", "{shared}");
}

#[test]
fn pictures_are_written_as_an_image_viewer_takes_them_and_not_faster_than_asked() {
    const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";
    let harness = Harness::new();
    let share = harness.share(&["stream:pattern,size=64x48,rate=100", "stream:pattern,frame=64,name=bytes"]);
    let read = |more: &[&str]| {
        let target = share.target("stream");
        let words = [&["stream", "read", &target, "--latest", "--pictures"], more].concat();
        harness.command(&words).stdin(Stdio::null()).output().unwrap()
    };
    let one = read(&["--count", "1"]);
    assert!(one.status.success() && one.stdout.starts_with(PNG), "{one:?}");
    assert_eq!(one.stdout[16..24], [0, 0, 0, 64, 0, 0, 0, 48], "width and height");
    assert!(one.stdout.ends_with(b"\0\0\0\0IEND\xae\x42\x60\x82"));
    let begun = Instant::now();
    let three = read(&["--count", "3", "--rate", "5"]);
    assert!(begun.elapsed() >= Duration::from_millis(400), "a fifth of a second between two");
    assert_eq!(three.stdout.windows(PNG.len()).filter(|bytes| *bytes == PNG).count(), 3);
    let message = String::from_utf8(three.stderr).unwrap();
    assert!(message.contains("3 frames of "), "{message}");
    let refused = harness.run(&["stream", "read", &share.target("bytes"), "--pictures"]);
    assert!(refused.code == Some(6) && refused.stderr.contains("its frames are bytes"), "{refused:?}");
    for wrong in [&["--rate", "1"][..], &["--latest", "--rate", "0"], &["--latest", "--observe"]] {
        let words = [&["stream", "read", "a"], wrong].concat();
        assert_eq!(harness.run(&words).code, Some(2), "{wrong:?}");
    }
}

#[test]
fn source_waits_for_a_reader_of_all_frames_and_a_fifo_loses_none() {
    const FRAMES: u32 = 2000;
    const BYTES: usize = 16 << 10;
    let harness = Harness::new();
    let fifo = harness.path("fifo");
    mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let share = harness.share(&[&format!("stream:{},frame={BYTES}", fifo.display())]);
    let writer = thread::spawn(move || {
        let mut fifo = OpenOptions::new().write(true).open(fifo).unwrap();
        (0..FRAMES).for_each(|number| fifo.write_all(&number.to_le_bytes().repeat(BYTES / 4)).unwrap());
    });
    let mut frames =
        open_stream(&ImporterClient::default(), &share.library_target("stream"), FrameSelection::All).unwrap();
    assert_eq!(
        (frames.description().format, frames.description().frame_bytes_max),
        (StreamFormat::Bytes, BYTES as u32)
    );
    for number in 0..FRAMES {
        if number % 500 == 0 {
            // waits: the reader is slow, so that its grants run out; on a slow machine it is slower
            thread::sleep(Duration::from_millis(100));
        }
        let frame = frames.next_frame().unwrap().unwrap();
        assert_eq!(frame.sequence, u64::from(number));
        assert!(frame.data.contiguous().chunks(4).all(|four| four == number.to_le_bytes()), "frame {number}");
    }
    writer.join().unwrap();
}

#[test]
fn end_of_a_file_of_frames_is_reported() {
    let harness = Harness::new();
    let file = harness.path("frames");
    fs::write(&file, [1, 2, 3].map(|byte| [byte; 1000]).concat()).unwrap();
    let share = harness.share(&[&format!("stream:{},frame=1000", file.display())]);
    let mut command = harness.command(&["stream", "read", &share.target("stream")]);
    let output = command.stdin(Stdio::null()).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(4) && errors.contains("the source has ended"), "{errors}");
    assert_eq!(output.stdout, fs::read(&file).unwrap(), "all of it came before");
    let refused = harness.run(&["stream", "read", &share.target("stream")]);
    assert!(refused.code == Some(6) && refused.stderr.contains("source has ended"), "{refused:?}");
}

#[test]
fn a_daemon_reads_frames_that_it_may_not_open_itself() {
    let harness = Harness::new();
    let (fifo, file) = (harness.path("fifo"), harness.path("farbus.toml"));
    mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let what = format!("{{what='stream:{},frame=4', name='cam'}}, {{what='stream:pattern'}}", fifo.display());
    fs::write(&file, format!("plain.listen = ['127.0.0.1:0']\nshare = [{what}]")).unwrap();
    let daemon = Share::follow(Running::start(harness.command(&["daemon", "--config", file.to_str().unwrap()])));
    let mut frames =
        open_stream(&ImporterClient::default(), &daemon.library_target("cam"), FrameSelection::All).unwrap();
    OpenOptions::new().write(true).open(fifo).unwrap().write_all(b"abcdefgh").unwrap();
    for expected in [b"abcd", b"efgh"] {
        assert_eq!(frames.next_frame().unwrap().unwrap().data.contiguous().as_ref(), expected);
    }
    let report = harness.json(&["stream", "read", &daemon.target("stream"), "--count", "2", "--json"]);
    assert_eq!(report["format"], "rgb24 640x480 at 30/s");
}

#[test]
fn unusable_stream_is_refused_with_the_reason() {
    let harness = Harness::new();
    for (what, why) in [
        ("stream:pattern,format=mjpeg", "rgb24, grey and yuyv"),
        ("stream:/nowhere/cam", "how long is a frame"),
        ("stream:/nowhere/cam,frame=10", "/nowhere/cam"),
    ] {
        let refused = harness.run(&["share", what]);
        assert!(!refused.stderr.is_empty() && refused.stderr.contains(why), "{refused:?}");
        assert_ne!(refused.code, Some(0));
    }
}

/// A paired host's stream is read over links that are cut again and again: no frame is missing or repeated.
#[test]
fn a_stream_outlives_cut_links() {
    const FRAMES: u64 = 400;
    let harness = Harness::new();
    let [lab3, desk] = hosts(&harness);
    pair(&lab3, &desk);
    lab3.ok(&["allow", "desk", "stream"]);
    let words = ["share", "stream:pattern,size=320x240,rate=0", "--listen", "none", "--secure", "127.0.0.1:0"];
    let share = lab3.start(&words);
    let line = share.wait_for_line("for paired hosts");
    let cutter = Cutter::before(line.split_whitespace().nth(2).unwrap().parse().unwrap());
    desk.ok(&["list", "lab3", "--address", &cutter.address().to_string()]);
    let mut command = desk.command(&["stream", "read", "lab3/stream", "--count", &FRAMES.to_string()]);
    let mut reader = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut out = reader.stdout.take().unwrap();
    let picture = GradientPicture::new(320, 240, 3);
    let mut frame = vec![0; 320 * 240 * 3];
    for number in 0..FRAMES {
        out.read_exact(&mut frame).unwrap();
        assert!(frame == picture.numbered(number), "frame {number}");
        if number % 50 == 49 {
            cutter.cut();
        }
    }
    assert!(reader.wait().unwrap().success());
    assert!(cutter.links() >= 4, "{} links", cutter.links());
}

#[test]
fn a_reader_that_is_killed_leaves_the_stream_to_others() {
    let harness = Harness::new();
    let share = harness.share(&["stream:pattern,size=64x48,rate=100"]);
    let mut reader = Running::start(harness.command(&["stream", "read", &share.target("stream"), "--json"]));
    let taken = || harness.json(&["status", "--json"])[0]["devices"][0]["counts"]["frames_taken"].as_u64();
    wait_until(PATIENCE, "it reads", || taken() > Some(0));
    reader.kill();
    let state = || harness.json(&["status", "--json"])[0]["devices"][0]["state"].clone();
    wait_until(PATIENCE, "it is offered again", || state() == "available");
    let mut frames =
        open_stream(&ImporterClient::default(), &share.library_target("stream"), FrameSelection::All).unwrap();
    assert!(frames.next_frame().unwrap().is_some());
}
