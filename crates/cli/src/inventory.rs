//! `farbus share --list`: what could be shared, and why not.

use farbus::devices::class_words::class_words;
use farbus::devices::selection::name;
use farbus::devices::usb_names::UsbNames;
use farbus_io_linux::usb::{PluggedDevice, UsbInventory};
use serde::Serialize;

use super::CommandFailure;
use super::output::{print_json, print_table, say, table};

#[derive(Serialize)]
struct ShareableRow {
    share_as: String,
    name: String,
    title: String,
    vendor: String,
    product: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    vendor_name: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    product_name: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    serial: Option<String>,
    speed: String,
    interfaces: Vec<String>,
    drivers: Vec<String>,
    can_be_shared: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    obstacle: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    why_not: Option<String>,
}

impl ShareableRow {
    fn of(found: &PluggedDevice) -> Self {
        let device = &found.descriptors.device;
        let mut drivers: Vec<String> = found.interfaces.iter().filter_map(|i| i.driver.clone()).collect();
        drivers.dedup();
        let names = UsbNames::of(device.vendor, device.product);
        Self {
            share_as: format!("usb:{}", found.bus_id),
            name: name(found),
            title: found.descriptors.title(),
            vendor: format!("{:04x}", device.vendor),
            product: format!("{:04x}", device.product),
            vendor_name: names.vendor,
            product_name: names.product,
            serial: found.serial.clone(),
            speed: found.speed.to_string(),
            interfaces: class_words(device.class, found.interfaces.iter().map(|interface| interface.class)),
            drivers,
            can_be_shared: found.obstacle.is_none(),
            obstacle: found.obstacle.as_ref().map(|obstacle| obstacle.word()),
            why_not: found.obstacle.as_ref().map(ToString::to_string),
        }
    }
}

impl ShareableRow {
    /// What the device is called: by its own strings, else by its ids, else by its class.
    fn device(&self) -> String {
        let by_ids = UsbNames { vendor: self.vendor_name, product: self.product_name }.title();
        match self.title.is_empty() {
            true => by_ids.unwrap_or_else(|| self.name.clone()),
            false => self.title.clone(),
        }
    }
}

pub fn run(as_json: bool) -> Result<(), CommandFailure> {
    let found = UsbInventory::default().devices();
    let found =
        found.map_err(|error| CommandFailure::local(format!("cannot read what USB devices there are: {error}")))?;
    let lines: Vec<ShareableRow> = found.iter().map(ShareableRow::of).collect();
    if as_json {
        return print_json(&lines);
    }
    if lines.is_empty() {
        say("No USB device is plugged in. Others can be shared all the same: see 'farbus share --help'.");
        return Ok(());
    }
    let mut table = table(&["SHARE AS", "ID", "SPEED", "DEVICE", "WHAT", "USED BY", "CAN BE SHARED"]);
    for line in lines {
        let ids = format!("{}:{}", line.vendor, line.product);
        let title = line.device();
        let verdict = line.why_not.map_or("yes".to_owned(), |why| format!("no: {why}"));
        let (what, drivers) = (line.interfaces.join(", "), line.drivers.join(", "));
        table.add_row([line.share_as, ids, line.speed, title, what, drivers, verdict]);
    }
    print_table(&table);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use farbus_io_linux::usb::{ActiveInterface, SharingObstacle};
    use farbus_model::{DescriptorSet, UsbSpeed};

    #[test]
    fn json_inventory_contains_the_obstacle_to_sharing() {
        let interface =
            |number, driver: &str| ActiveInterface { number, class: [1, 2, 0], driver: Some(driver.into()) };
        let found = PluggedDevice {
            bus_id: "2-1.4".into(),
            bus: 2,
            number: 9,
            descriptors: DescriptorSet::default(),
            repairs: Default::default(),
            serial: Some("0123".into()),
            speed: UsbSpeed::Full,
            configuration: 1,
            interfaces: vec![interface(0, "snd-usb-audio"), interface(1, "snd-usb-audio")],
            is_imported: false,
            node: "/dev/bus/usb/002/009".into(),
            obstacle: Some(SharingObstacle::InUse { by: "usbfs".into() }),
        };
        let json = serde_json::to_value(ShareableRow::of(&found)).unwrap();
        assert_eq!((&json["share_as"], &json["can_be_shared"]), (&"usb:2-1.4".into(), &false.into()));
        assert_eq!((&json["obstacle"], &json["why_not"]), (&"in-use".into(), &"another program uses it".into()));
        assert_eq!(json["drivers"], serde_json::json!(["snd-usb-audio"]));
        assert_eq!(json["interfaces"], serde_json::json!(["audio"]));
        let mut descriptors = DescriptorSet::default();
        (descriptors.device.vendor, descriptors.device.product) = (0x0403, 0x6001);
        let silent = ShareableRow::of(&PluggedDevice { descriptors, ..found.clone() });
        assert!(silent.device().starts_with("Future Technology Devices"), "it has no strings: {}", silent.device());
        assert!(serde_json::to_value(silent).unwrap()["product_name"].as_str().unwrap().contains("FT232"));
        let free = serde_json::to_value(ShareableRow::of(&PluggedDevice { obstacle: None, ..found })).unwrap();
        assert_eq!((&free["can_be_shared"], free.get("why_not")), (&true.into(), None));
    }
}
