//! Makes a device from its parsed description, and offers it.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use farbus_control::failure::Failure;
use farbus_gadgets::audio::Audio;
use farbus_gadgets::bridge;
use farbus_gadgets::can::Can;
use farbus_gadgets::cmsis_dap::CmsisDap;
use farbus_gadgets::dfu::Dfu;
use farbus_gadgets::fastboot::Fastboot;
use farbus_gadgets::keyboard::Keyboard;
use farbus_gadgets::serial::Serial;
use farbus_gadgets::storage::{Options, Storage};
use farbus_gadgets::zero::SourceSink;
use farbus_model::Device;
use farbus_session::DeviceRecord;
use farbus_session::block::BlockExport;
use farbus_session::native::control::Mode;
use farbus_session::registry::{BlockClass, DEVICES_MAX, Renew};

use super::stream::StreamSpec;
use super::usb;
use super::what::What;
use crate::broker::SystemAccess;
use crate::devices::identities::labels::{DeviceClass, Which};
use crate::devices::identities::naming::Naming;
use crate::exporter::share::Share;

/// Offers the device that `what` describes, under the name that `naming` gives. A selector of real devices may match
/// several, which get names of their own unless one is given; a bridge is two devices.
pub fn offer(
    share: &Share,
    real: &mut Option<usb::Shared>,
    system: &SystemAccess,
    naming: Naming<'_>,
    what: &What,
) -> Result<Vec<DeviceRecord>, Failure> {
    let made = |words: String| Which::Made(system.identify_made(&words));
    let add = |device: Box<dyn Device>| share.offer(naming, device, DeviceClass::Usb, made(format!("{what:?}")));
    let one = match *what {
        What::Usb(ref spec) => {
            let real = real.as_mut().expect("a share with real devices has a way to open them");
            let name = matches!(naming, Naming::Given(_)).then(|| naming.text());
            return real.add(share, spec, name).map_err(|error| Failure::new(error.attribute(), error));
        }
        What::Bridge(ref settings) => return offer_bridge(share, settings, naming, made(format!("{what:?}"))),
        What::Zero { speed, fill, verify } => add(Box::new(SourceSink::device(speed, fill, verify))),
        What::Keyboard => add(Box::new(Keyboard::device())),
        What::Dfu => add(Box::new(Dfu::device())),
        What::Fastboot => add(Box::new(Fastboot::device())),
        What::CmsisDap => add(Box::new(CmsisDap::device())),
        What::Serial { speed } => add(Box::new(Serial::device(speed))),
        What::Audio { speed } => add(Box::new(Audio::device(speed))),
        What::Can(ref settings) => add(Box::new(Can::device(settings))),
        What::Stream(ref spec) => return offer_stream(share, system, naming, spec, None),
        What::Disk { ref spec, sector_bytes, .. } => {
            let (export, known) =
                spec.export_identified(system, &spec.view_with(sector_bytes)).map_err(Failure::local)?;
            let export = Arc::new(export);
            let (product, serial) = (spec.name(), Options::serial_of(&spec.identity()));
            let options = Options { sector_bytes, serial, product, ..Options::default() };
            let class = BlockClass { renew: usb_class(Arc::clone(&export), options), export };
            let disk = (class.renew)().map_err(|error| Failure::local(format!("{spec}: {error}")))?;
            let note_name = |id, name: &str, is_named| system.note_name(id, name, is_named);
            share.offer_known(naming, disk, DeviceClass::Block(class), known, note_name)
        }
    };
    one.map(|record| vec![record]).map_err(Failure::local)
}

/// Prepares for offering all these devices: what has to be stored of new ones is stored at once.
pub fn expect<'a>(system: &SystemAccess, all: impl Iterator<Item = (Naming<'a>, &'a What)>) {
    let image = |(naming, what): (Naming<'_>, &What)| match what {
        What::Disk { spec, sector_bytes, .. } => spec.expected(*sector_bytes, naming),
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
    naming: Naming<'_>,
    spec: &StreamSpec,
    passed: Option<OwnedFd>,
) -> Result<Vec<DeviceRecord>, Failure> {
    let (stage, device) = spec.open(system, passed).map_err(Failure::local)?;
    // As `What` is printed, of which it is a part.
    let which = Which::Made(system.identify_made(&format!("Stream({spec:?})")));
    let record = share.offer(naming, device, DeviceClass::Stream(stage), which).map_err(Failure::local)?;
    Ok(vec![record])
}

/// Offers both ends of a bridge under unused names. Bridges of one host differ in their names, and so in their network
/// addresses.
fn offer_bridge(
    share: &Share,
    settings: &bridge::Settings,
    naming: Naming<'_>,
    which: Which,
) -> Result<Vec<DeviceRecord>, Failure> {
    let listed = share.status();
    let is_free = |name: &String| listed.iter().all(|device| device.name != format!("{name}-a"));
    let name = naming.text();
    let numbered = (2..).map(|number| format!("{name}{number}")).filter(|_| !matches!(naming, Naming::Given(_)));
    let mut all = std::iter::once(name.to_owned()).chain(numbered.take(DEVICES_MAX));
    let name = all.find(is_free).unwrap_or_else(|| name.to_owned());
    let ends = crate::exporter::sources::bridge::open(settings, &name).map_err(Failure::local)?;
    let add = |(end, device)| {
        share.offer(naming.with(&format!("{name}{end}")), Box::new(device), DeviceClass::Usb, which.clone())
    };
    ends.into_iter().map(add).collect::<Result<_, _>>().map_err(Failure::local)
}

/// Makes a USB disk for the block device.
fn usb_class(export: Arc<BlockExport>, options: Options) -> Renew {
    let mode = export.mode(Mode::Exclusive);
    let read_only = export.info().is_read_only;
    Box::new(move || {
        let store = export.open_store(mode)?;
        let disk = Storage::device(store, Options { read_only, ..options.clone() });
        Ok(Box::new(disk.map_err(|error| error.to_string())?))
    })
}
