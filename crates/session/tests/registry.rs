//! The registry: what is offered, who uses it, and how it leaves.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use farbus_gadgets::zero::{SourcePattern, SourceSink};
use farbus_model::{Device, Instant, UsbSpeed};
use farbus_session::block::{BlockExport, ChangeStorage, MediumView, MemoryMedium, SparseMemory};
use farbus_session::claims::UseMode;
use farbus_session::native::control;
use farbus_session::registry::{BlockClass, ClassRefusal, InUse, in_use, name_of};
use farbus_session::{ClaimedUsb, ExportRegistry, OpStatus, UseEnding};

const WHO: &str = "192.0.2.1:5555";

fn zero() -> Box<dyn Device> {
    Box::new(SourceSink::device(UsbSpeed::High, SourcePattern::Zeros, false))
}

fn claim(registry: &mut ExportRegistry, bus_id: &str) -> ClaimedUsb {
    registry.claim(bus_id, WHO, Instant::ZERO).map_err(|status| status.to_string()).unwrap()
}

#[test]
fn two_hundred_devices_have_unique_numbers_and_names_on_two_buses() {
    let mut registry = ExportRegistry::default();
    for _ in 0..200 {
        registry.add("zero", zero()).unwrap();
    }
    let records = registry.records(Instant::ZERO);
    let ids: BTreeSet<_> = records.iter().map(|record| record.bus << 16 | record.device).collect();
    let names: BTreeSet<_> = records.iter().map(name_of).collect();
    assert_eq!((ids.len(), names.len()), (200, 200));
    let at = |n: usize| (records[n].bus_id.as_str(), records[n].bus, records[n].device);
    assert_eq!((at(0), at(125), at(126)), (("1-1", 1, 2), ("1-126", 1, 127), ("2-1", 2, 2)));
    assert!(claim(&mut registry, "2-74").record.path.ends_with("zero200"));
}

#[test]
fn devices_that_come_and_go_for_ever_never_run_out_of_numbers() {
    let mut registry = ExportRegistry::default();
    let first = registry.add("zero", zero()).unwrap().bus_id.clone();
    let mut last = String::new();
    for n in 0..255 * 126 + 3 {
        let bus_id = registry.add(&format!("disk-{n}"), zero()).unwrap().bus_id.clone();
        assert_ne!((&bus_id, &last), (&first, &bus_id));
        assert_eq!(registry.retire(&bus_id), Some(true));
        last = bus_id;
    }
    assert_eq!(last, "1-2", "the lowest that is free");
}

#[test]
fn device_that_comes_back_has_its_number_again() {
    let mut registry = ExportRegistry::default();
    let stick = registry.add("stick", zero()).unwrap().bus_id.clone();
    registry.retire(&stick);
    assert_ne!(registry.add("disk", zero()).unwrap().bus_id, stick, "it is kept for it");
    assert_eq!(registry.add("stick", zero()).unwrap().bus_id, stick);
    assert_ne!(registry.add("stick", zero()).unwrap().bus_id, stick, "this is another");
}

#[test]
fn record_of_a_device_in_use_names_its_user() {
    let mut registry = ExportRegistry::default();
    let bus_id = registry.add("zero", zero()).unwrap().bus_id.clone();
    assert_eq!(in_use(&registry.records(Instant::ZERO)[0]), None);
    claim(&mut registry, &bus_id);
    let record = registry.records(Instant::ZERO + Duration::from_secs(77)).remove(0);
    assert_eq!(name_of(&record), "zero");
    assert_eq!(in_use(&record), Some(InUse { user: WHO.into(), used_s: 77, lease_left_s: None }));
    for path in ["/sys/devices/pci0/usb1/1-1", "/farbus/x;user=", "/farbus/x;user=a;used_s=-1", "/farbus/x;y;z"] {
        let record = farbus_session::DeviceRecord { path: path.into(), ..record.clone() };
        assert!(in_use(&record).is_none(), "{path}");
    }
}

#[test]
fn retired_device_in_use_is_unlisted_at_once_and_withdrawn_with_its_user() {
    let mut registry = ExportRegistry::default();
    let bus_id = registry.add("zero", zero()).unwrap().bus_id.clone();
    let claimed = claim(&mut registry, &bus_id);
    assert_eq!(registry.retire(&bus_id), Some(false));
    assert_eq!(registry.records(Instant::ZERO).len(), 0);
    assert_eq!(registry.entries().count(), 1, "its owner still sees it");
    let refused = registry.claim(&bus_id, WHO, Instant::ZERO).map(|_| ()).unwrap_err();
    assert_eq!(refused, OpStatus::NoDevice);
    registry.release(&bus_id, WHO, Some(claimed.device), UseEnding::TakenBack, Instant::ZERO);
    assert_eq!(registry.entries().count(), 0);
    assert_eq!(registry.retire(&bus_id), None);
}

#[test]
fn holder_is_explained_and_taken_back_by_its_address() {
    let mut registry = ExportRegistry::default();
    let bus_id = registry.add("zero", zero()).unwrap().bus_id.clone();
    let claimed = claim(&mut registry, &bus_id);
    assert!(registry.explain(WHO, "a backup") && !registry.explain("192.0.2.1:5556", "another"));
    assert!(registry.claims_mut(&bus_id).unwrap().take_back(Some("mine"), None));
    registry.release(&bus_id, WHO, Some(claimed.device), UseEnding::TakenBack, Instant::ZERO);
    let entry = registry.entries().next().unwrap();
    let past = entry.claims.history().next().unwrap();
    assert_eq!((past.holder.reason.as_deref(), past.remark.as_deref()), (Some("a backup"), Some("mine")));
}

fn disk(view: MediumView) -> (Box<dyn Device>, BlockClass) {
    let medium = Arc::new(MemoryMedium::new(SparseMemory::new(1 << 20, 1 << 20)));
    let export = Arc::new(BlockExport::new(medium, view, 1).unwrap());
    (zero(), BlockClass { export, renew: Box::new(|| Ok(zero())) })
}

#[test]
fn block_device_has_many_readers_or_one_writer_across_its_classes() {
    let mut registry = ExportRegistry::default();
    let (device, block) = disk(MediumView::default());
    let bus_id = registry.add_block("disk", device, block).unwrap().bus_id.clone();
    let ask = |registry: &mut ExportRegistry, who: &str, mode| {
        registry.claim_block(&bus_id, who, mode, Instant::ZERO).map(|claimed| claimed.mode)
    };
    assert_eq!(ask(&mut registry, "a", control::AttachmentMode::Read), Ok(UseMode::Read));
    assert_eq!(ask(&mut registry, "b", control::AttachmentMode::Read), Ok(UseMode::Read));
    assert_eq!(ask(&mut registry, "c", control::AttachmentMode::Exclusive), Err(ClassRefusal::Busy));
    assert_eq!(registry.claim(&bus_id, "d", Instant::ZERO).map(|_| ()).unwrap_err(), OpStatus::Busy, "the USB class");
    assert!(registry.idle_device(&bus_id).is_none());
    for who in ["a", "b"] {
        registry.release(&bus_id, who, None, UseEnding::Detached, Instant::ZERO);
    }
    let claimed = registry.claim(&bus_id, "d", Instant::ZERO).map_err(|status| status.to_string()).unwrap();
    assert_eq!(ask(&mut registry, "a", control::AttachmentMode::Read), Err(ClassRefusal::Busy));
    registry.release(&bus_id, "d", Some(claimed.device), UseEnding::Detached, Instant::ZERO);
    assert_eq!(ask(&mut registry, "c", control::AttachmentMode::Exclusive), Ok(UseMode::Exclusive));
    assert_eq!(registry.retire(&bus_id), Some(false));
    registry.release(&bus_id, "c", None, UseEnding::TakenBack, Instant::ZERO);
    assert_eq!(registry.entries().count(), 0, "it leaves with its last user");
}

#[test]
fn scratch_users_do_not_exclude_each_other() {
    let mut registry = ExportRegistry::default();
    let view = MediumView { changes: Some(ChangeStorage::Memory(1 << 20)), ..MediumView::default() };
    let (device, block) = disk(view);
    let bus_id = registry.add_block("disk", device, block).unwrap().bus_id.clone();
    let mode = control::AttachmentMode::Exclusive;
    let block = registry.claim_block(&bus_id, "a", mode, Instant::ZERO).unwrap();
    assert_eq!(block.mode, UseMode::Scratch);
    let usb = registry.claim(&bus_id, "b", Instant::ZERO).map_err(|status| status.to_string()).unwrap();
    assert_eq!(registry.claim(&bus_id, "c", Instant::ZERO).map(|_| ()).unwrap_err(), OpStatus::Busy, "one USB class");
    registry.release(&bus_id, "b", Some(usb.device), UseEnding::Detached, Instant::ZERO);
    assert_eq!(registry.entries().next().unwrap().claims.holders().len(), 1);
}

#[test]
fn usb_device_cannot_be_claimed_as_a_block_device() {
    let mut registry = ExportRegistry::default();
    let bus_id = registry.add("zero", zero()).unwrap().bus_id.clone();
    let refused = |registry: &mut ExportRegistry, bus_id: &str| {
        registry.claim_block(bus_id, WHO, control::AttachmentMode::Read, Instant::ZERO).map(|_| ()).unwrap_err()
    };
    assert_eq!(refused(&mut registry, &bus_id), ClassRefusal::Class);
    assert_eq!(refused(&mut registry, "9-9"), ClassRefusal::NoDevice);
}
