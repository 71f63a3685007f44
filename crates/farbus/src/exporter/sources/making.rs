//! Makes a device from its parsed description, and offers it.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use farbus_control::failure::CommandFailure;
use farbus_gadgets::audio::AudioGadget;
use farbus_gadgets::bridge;
use farbus_gadgets::can::CanAdapter;
use farbus_gadgets::cmsis_dap::CmsisDap;
use farbus_gadgets::dfu::DfuGadget;
use farbus_gadgets::fastboot::FastbootGadget;
use farbus_gadgets::keyboard::KeyboardGadget;
use farbus_gadgets::serial::SerialGadget;
use farbus_gadgets::storage::{StorageGadget, StorageOptions};
use farbus_gadgets::zero::SourceSink;
use farbus_model::Device;
use farbus_session::DeviceRecord;
use farbus_session::block::BlockExport;
use farbus_session::native::control::AttachmentMode;
use farbus_session::registry::{BlockClass, DEVICES_MAX, UsbDiskFactory};

use super::stream::StreamSpec;
use super::usb;
use super::what::DeviceSpec;
use crate::broker::SystemAccess;
use crate::devices::identities::labels::{DeviceClass, OfferIdentity};
use crate::devices::identities::naming::DeviceNaming;
use crate::exporter::share::Share;

/// Offers the device that `what` describes, under the name that `naming` gives. A selector of real devices may match
/// several, which get names of their own unless one is given; a bridge is two devices.
pub fn offer(
    share: &Share,
    real: &mut Option<usb::SharedUsbDevices>,
    system: &SystemAccess,
    naming: DeviceNaming<'_>,
    what: &DeviceSpec,
) -> Result<Vec<DeviceRecord>, CommandFailure> {
    let made = |words: String| OfferIdentity::Made(system.identify_made(&words));
    let add = |device: Box<dyn Device>| share.offer(naming, device, DeviceClass::Usb, made(format!("{what:?}")));
    let one = match *what {
        DeviceSpec::Usb(ref spec) => {
            let real = real.as_mut().expect("a share with real devices has a way to open them");
            let name = matches!(naming, DeviceNaming::Given(_)).then(|| naming.text());
            return real.add(share, spec, name).map_err(|error| CommandFailure::new(error.attribute(), error));
        }
        DeviceSpec::Bridge(ref settings) => return offer_bridge(share, settings, naming, made(format!("{what:?}"))),
        DeviceSpec::Zero { speed, fill, verify } => add(Box::new(SourceSink::device(speed, fill, verify))),
        DeviceSpec::Keyboard => add(Box::new(KeyboardGadget::device())),
        DeviceSpec::Dfu => add(Box::new(DfuGadget::device())),
        DeviceSpec::Fastboot => add(Box::new(FastbootGadget::device())),
        DeviceSpec::CmsisDap => add(Box::new(CmsisDap::device())),
        DeviceSpec::Serial { speed } => add(Box::new(SerialGadget::device(speed))),
        DeviceSpec::Audio { speed } => add(Box::new(AudioGadget::device(speed))),
        DeviceSpec::Can(ref settings) => add(Box::new(CanAdapter::device(settings))),
        DeviceSpec::Stream(ref spec) => return offer_stream(share, system, naming, spec, None),
        DeviceSpec::Disk { ref spec, sector_bytes, .. } => {
            let (export, known) =
                spec.export_identified(system, &spec.view_with(sector_bytes)).map_err(CommandFailure::local)?;
            let export = Arc::new(export);
            let (product, serial) = (spec.name(), StorageOptions::serial_of(&spec.identity()));
            let options = StorageOptions { sector_bytes, serial, product, ..StorageOptions::default() };
            let class = BlockClass { renew: usb_class(Arc::clone(&export), options), export };
            let disk = (class.renew)().map_err(|error| CommandFailure::local(format!("{spec}: {error}")))?;
            let note_name = |id, name: &str, is_named| system.note_name(id, name, is_named);
            share.offer_known(naming, disk, DeviceClass::Block(class), known, note_name)
        }
    };
    one.map(|record| vec![record]).map_err(CommandFailure::local)
}

/// Prepares for offering all these devices: what has to be stored of new ones is stored at once.
pub fn expect<'a>(system: &SystemAccess, all: impl Iterator<Item = (DeviceNaming<'a>, &'a DeviceSpec)>) {
    let image = |(naming, what): (DeviceNaming<'_>, &DeviceSpec)| match what {
        DeviceSpec::Disk { spec, sector_bytes, .. } => spec.expected(*sector_bytes, naming),
        _ => None,
    };
    let images: Vec<_> = all.filter_map(image).collect();
    // One is stored when it is offered.
    if images.len() > 1 {
        system.expect_images(images);
    }
}

/// Offers a stream. `passed` is its source, if another process opened it.
pub fn offer_stream(
    share: &Share,
    system: &SystemAccess,
    naming: DeviceNaming<'_>,
    spec: &StreamSpec,
    passed: Option<OwnedFd>,
) -> Result<Vec<DeviceRecord>, CommandFailure> {
    let (stage, device) = spec.open(system, passed).map_err(CommandFailure::local)?;
    // As `DeviceSpec` is printed, of which it is a part.
    let which = OfferIdentity::Made(system.identify_made(&format!("Stream({spec:?})")));
    let record = share.offer(naming, device, DeviceClass::Stream(stage), which).map_err(CommandFailure::local)?;
    Ok(vec![record])
}

/// Offers both ends of a bridge under unused names. Bridges of one host differ in their names, and so in their network
/// addresses.
fn offer_bridge(
    share: &Share,
    settings: &bridge::BridgeSettings,
    naming: DeviceNaming<'_>,
    which: OfferIdentity,
) -> Result<Vec<DeviceRecord>, CommandFailure> {
    let listed = share.status();
    let is_free = |name: &String| listed.iter().all(|device| device.name != format!("{name}-a"));
    let name = naming.text();
    let numbered = (2..).map(|number| format!("{name}{number}")).filter(|_| !matches!(naming, DeviceNaming::Given(_)));
    let mut all = std::iter::once(name.to_owned()).chain(numbered.take(DEVICES_MAX));
    let name = all.find(is_free).unwrap_or_else(|| name.to_owned());
    let ends = crate::exporter::sources::bridge::open(settings, &name).map_err(CommandFailure::local)?;
    let add = |(end, device)| {
        share.offer(naming.with(&format!("{name}{end}")), Box::new(device), DeviceClass::Usb, which.clone())
    };
    ends.into_iter().map(add).collect::<Result<_, _>>().map_err(CommandFailure::local)
}

/// Makes a USB disk for the block device.
fn usb_class(export: Arc<BlockExport>, options: StorageOptions) -> UsbDiskFactory {
    let mode = export.mode(AttachmentMode::Exclusive);
    let read_only = export.info().is_read_only;
    Box::new(move || {
        let store = export.open_store(mode)?;
        let disk = StorageGadget::device(store, StorageOptions { read_only, ..options.clone() });
        Ok(Box::new(disk.map_err(|error| error.to_string())?))
    })
}
