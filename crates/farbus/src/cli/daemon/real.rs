//! Real devices of this machine, as rules and shares ask for them: looked at again and again, so that one that is plugged in is
//! shared and one that is pulled out is not.

use std::collections::{BTreeMap, BTreeSet};

use farbus_io::usb::{Found, Inventory};
use farbus_session::rules::{Properties, Rule, Verdict, decide};
use serde_json::{Value, json};
use tracing::{info, warn};

use super::super::share::{What, attribute_of};
use super::config::{Config, Shared};
use crate::client::{Attribute, FailureReport};
use crate::share::Share;
use crate::usb;

/// Where a device is and which plugging-in of it is meant: the kernel counts them.
type Place = (String, u32);

/// Real devices that are shared, and those that could not be.
#[derive(Default)]
pub struct Real {
    inventory: Inventory,
    /// Each device's bus id in our lists.
    shared: BTreeMap<Place, String>,
    failed: BTreeMap<Place, (String, FailureReport)>,
    /// Shares that mean nothing that is plugged in.
    missing: BTreeMap<String, FailureReport>,
}

impl Real {
    /// Looks what there is, and makes what is shared what `config` says.
    pub fn look(&mut self, share: &Share, config: &Config) {
        let asked = |shared: &&Shared| matches!(shared.what, What::Usb(_));
        if config.rules.is_empty() && !config.shares.iter().any(|shared| asked(&shared)) && self.shared.is_empty() {
            (self.failed, self.missing) = Default::default();
            return;
        }
        let all = match self.inventory.devices() {
            Ok(all) => all,
            Err(error) => return warn!(%error, "cannot read what USB devices there are"),
        };
        let wanted = wanted(&all, config);
        let places: BTreeSet<Place> = wanted.iter().map(|(found, _)| place_of(found)).collect();
        for (place, bus_id) in self.shared.extract_if(.., |place, _| !places.contains(place)) {
            // A session that used it may have taken it off the lists already.
            let _ = share.remove(&bus_id);
            info!(device = place.0, "shared no more");
        }
        self.failed.retain(|place, _| places.contains(place));
        for (found, name) in wanted {
            self.offer(share, found, name);
        }
        let is_there = |what: &What| match what {
            What::Usb(selector) => all.iter().any(|found| selector.matches(found)),
            _ => true,
        };
        let report = |shared: &Shared| {
            let message = format!("nothing that '{}' means is plugged in", shared.name);
            (shared.name.clone(), FailureReport { attribute: Attribute::Gone, message })
        };
        self.missing = config.shares.iter().filter(|shared| !is_there(&shared.what)).map(report).collect();
    }

    fn offer(&mut self, share: &Share, found: &Found, name: String) {
        let place = place_of(found);
        if self.shared.contains_key(&place) {
            return;
        }
        let offered = usb::open(found).and_then(|device| share.add(&name, device).map_err(usb::UsbError::Share));
        match offered {
            Ok(record) => {
                info!(device = found.bus_id, name, "shared");
                self.failed.remove(&place);
                self.shared.insert(place, record.bus_id);
            }
            Err(error) => {
                let report = FailureReport { attribute: attribute_of(&error), message: error.to_string() };
                // The same trouble again is no news.
                if self.failed.get(&place).is_none_or(|(_, known)| *known != report) {
                    warn!(name, "not shared: {}; tried again later", report.message);
                }
                self.failed.insert(place, (name, report));
            }
        }
    }

    /// What is not shared and should be, as a status shows it.
    pub fn failures(&self) -> Vec<Value> {
        let failed = self.failed.values().map(|(name, failure)| (name, failure)).chain(&self.missing);
        failed.map(|(name, failure)| json!({ "name": name, "state": "failed", "failure": failure })).collect()
    }

    /// How many are shared.
    pub fn count(&self) -> usize {
        self.shared.len()
    }
}

fn place_of(found: &Found) -> Place {
    (found.bus_id.clone(), found.number)
}

/// The devices that are to be shared, each with a name. A share that means a device by itself comes before the rules.
fn wanted<'a>(all: &'a [Found], config: &Config) -> Vec<(&'a Found, String)> {
    let rules: Vec<Rule> = config.rules.iter().map(|(rule, _)| rule.clone()).collect();
    let name_of = |found: &Found| -> Option<String> {
        let meant = config.shares.iter().find(|shared| match &shared.what {
            What::Usb(selector) => selector.matches(found),
            _ => false,
        });
        if let Some(shared) = meant {
            return Some(shared.name.clone());
        }
        match decide(&rules, &properties_of(found)) {
            Verdict::Shared(at) => Some(config.rules[at].1.clone().unwrap_or_else(|| usb::name(found))),
            _ => None,
        }
    };
    all.iter().filter_map(|found| Some((found, name_of(found)?))).collect()
}

fn properties_of(found: &Found) -> Properties {
    let device = &found.descriptors.device;
    let configurations = found.descriptors.configurations.iter();
    let described =
        configurations.flat_map(|configuration| configuration.interfaces().map(|interface| interface.class));
    Properties {
        bus_id: found.bus_id.clone(),
        vendor: device.vendor,
        product: device.product,
        serial: found.serial.clone(),
        class: device.class,
        is_imported: found.is_imported,
        interfaces: described.chain(found.interfaces.iter().map(|interface| interface.class)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farbus_io::usb::Interface;
    use farbus_model::descriptor::DeviceDescriptor;
    use farbus_model::{Descriptors, Speed};

    fn found(bus_id: &str, product: &str, class: [u8; 3]) -> Found {
        let device = DeviceDescriptor { vendor: 0x46d, product: 0xc52b, product_string: 2, ..Default::default() };
        Found {
            bus_id: bus_id.into(),
            bus: 1,
            number: 7,
            descriptors: Descriptors { device, strings: [(2, product.to_owned())].into(), ..Descriptors::default() },
            serial: None,
            speed: Speed::High,
            configuration: 1,
            interfaces: vec![Interface { number: 0, class, driver: None }],
            is_imported: false,
            node: "/dev/null".into(),
            obstacle: None,
        }
    }

    #[test]
    fn what_is_plugged_in_is_shared_as_shares_and_rules_ask() {
        let all = [
            found("1-1", "Stick", [8, 6, 0x50]),
            found("1-2", "Keys", [3, 1, 1]),
            found("1-3", "Camera", [14, 1, 0]),
            found("1-4", "Other stick", [8, 6, 0x50]),
        ];
        let named = |text: &str| -> Vec<(String, String)> {
            let config = Config::parse(text).map_err(|(_, message)| message).unwrap();
            wanted(&all, &config).into_iter().map(|(found, name)| (found.bus_id.clone(), name)).collect()
        };
        let pair = |bus_id: &str, name: &str| (bus_id.to_owned(), name.to_owned());
        assert_eq!(named("usb = [{class='storage'}]"), [pair("1-1", "stick"), pair("1-4", "other-stick")]);
        assert_eq!(
            named("usb = [{share=false, port='1-4'}, {}, {class='keyboard', name='keys'}]"),
            [pair("1-1", "stick"), pair("1-2", "keys"), pair("1-3", "camera")],
        );
        assert_eq!(
            named("share = [{what='usb:1-2', name='desk'}, {what='zero'}]\nusb = [{class='video'}]"),
            [pair("1-2", "desk"), pair("1-3", "camera")],
            "a share means what it names, an input device too"
        );
        assert_eq!(named("share = [{what='zero'}]"), []);
        let imported = [Found { is_imported: true, ..found("9-1", "Far stick", [8, 6, 0x50]) }];
        let config = |text: &str| Config::parse(text).map_err(|(_, message)| message).unwrap();
        assert_eq!(wanted(&imported, &config("usb = [{class='storage'}]")).len(), 0, "what is not this machine's");
        assert_eq!(wanted(&imported, &config("usb = [{port='9-1'}]")).len(), 1);
    }
}
