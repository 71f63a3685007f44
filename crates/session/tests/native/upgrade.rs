//! Snapshots of earlier releases are read, and written again unchanged.

use farbus_model::Instant;
use farbus_session::native::{
    ExporterSession, ImporterSession, MovableAttachment, PipedAttachment, RemoteBlock, RemoteUsb,
};
use farbus_wire::native::control::AttachmentClass;
use farbus_wire::snapshot::{self, SnapshotWriter};

use crate::kernel::{KIND, Kernel};
use crate::random::Random;
use crate::recorded;
use crate::world::LIMITS;
use crate::{disk, far, stream, usb};

const NOW: Instant = Instant::ZERO;

/// Reads an importer's session, writes it and reads it again: both states must be equal.
fn importer_is_read<A: MovableAttachment>(name: &str) {
    for (title, parts) in recorded::all(name) {
        let mut bytes = parts[0].clone();
        for _ in 0..2 {
            let mut reader = snapshot::open(&bytes, KIND).expect(&title);
            let (mut importer, mut remote) = ImporterSession::restore::<A>(NOW, LIMITS, &mut reader)
                .unwrap_or_else(|reject| panic!("{title}: {reject}"));
            reader.end("snapshot").unwrap_or_else(|reject| panic!("{title}: {reject}"));
            let mut writer = SnapshotWriter::new(KIND);
            importer.save(NOW, &mut remote, &mut writer);
            remote.hand_over();
            bytes = writer.into_bytes();
            assert_eq!(bytes[8..10], snapshot::VERSION.to_le_bytes(), "{title}");
        }
    }
}

#[test]
fn importer_sessions_of_earlier_releases_are_restored() {
    importer_is_read::<PipedAttachment<RemoteBlock>>("importer-block");
    importer_is_read::<RemoteUsb>("importer-usb");
    importer_is_read::<PipedAttachment<RemoteUsb>>("importer-usb-modules");
}

#[test]
fn kernels_and_far_devices_of_earlier_releases_are_restored() {
    for (title, parts) in recorded::all("kernel") {
        let saved = <[Vec<u8>; 2]>::try_from(parts).expect("a session and a connection");
        Kernel::is_read(NOW, &saved).unwrap_or_else(|reject| panic!("{title}: {reject}"));
    }
    for (title, parts) in recorded::all("far") {
        far::Near::is_read(NOW, &parts[0]).unwrap_or_else(|reject| panic!("{title}: {reject}"));
    }
}

#[test]
fn exporter_sessions_of_earlier_releases_are_restored_with_their_devices() {
    let mut random = Random::new(1);
    let mut classes = Vec::new();
    for name in ["exporter-block", "exporter-usb", "exporter-stream", "exporter-modules"] {
        for (title, parts) in recorded::all(name) {
            let wrong = |reject| panic!("{title}: {reject}");
            let mut reader = snapshot::open(&parts[0], KIND).unwrap_or_else(wrong);
            let (_, left) =
                ExporterSession::restore(NOW, LIMITS, &mut reader).unwrap_or_else(|reject| panic!("{title}: {reject}"));
            reader.end("snapshot").unwrap_or_else(|reject| panic!("{title}: {reject}"));
            for left in left {
                let state = left.state.as_ref().expect("it can go on");
                let mut served = match left.open.class {
                    AttachmentClass::BLOCK => disk::served(&mut random, left.number),
                    AttachmentClass::USB => usb::served(&mut random, left.number),
                    _ => stream::served(left.number),
                };
                served.restore(NOW, &mut state.reader()).unwrap_or_else(|reject| panic!("{title}: {reject}"));
                served.leave(NOW);
                classes.push(left.open.class);
            }
        }
    }
    for class in [AttachmentClass::BLOCK, AttachmentClass::USB, AttachmentClass::STREAM] {
        assert!(classes.contains(&class), "{class:?} is among those that are kept");
    }
}

#[test]
fn caches_of_earlier_releases_are_restored() {
    for (title, parts) in recorded::all("cached") {
        let mut reader = snapshot::open(&parts[1], KIND).unwrap();
        let (_, mut remote) =
            ImporterSession::restore::<PipedAttachment<RemoteBlock>>(NOW, LIMITS, &mut reader).unwrap();
        disk::cache_is_read(&parts[0], remote.inner()).unwrap_or_else(|reject| panic!("{title}: {reject}"));
        remote.hand_over();
    }
}
