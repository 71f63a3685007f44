//! Which USB devices are serial ports. A machine can use one only through its kernel, or in a virtual machine.

use farbus_session::DeviceRecord;
use farbus_session::console::is_adapter;

/// Communications class, abstract control model (USB CDC 1.2, 5.1.3; `bInterfaceClass`, `bInterfaceSubClass`).
const CDC_ACM: [u8; 2] = [0x02, 0x02];

/// Whether a device is a serial port.
pub fn is_serial_port(record: &DeviceRecord) -> bool {
    let is_modem = |[class, subclass, _]: &[u8; 3]| [*class, *subclass] == CDC_ACM;
    record.interfaces.iter().any(is_modem) || is_serial_adapter((record.vendor, record.product))
}

/// Whether a device with these vendor and product ids is a common serial adapter.
pub fn is_serial_adapter(ids: (u16, u16)) -> bool {
    is_adapter(ids)
}

#[cfg(test)]
mod tests {
    use farbus_model::UsbSpeed;

    use super::*;

    fn record(vendor: u16, product: u16, interfaces: &[[u8; 3]]) -> DeviceRecord {
        DeviceRecord {
            path: String::new(),
            bus_id: "1-1".into(),
            bus: 1,
            device: 2,
            speed: UsbSpeed::Full,
            vendor,
            product,
            device_bcd: 0,
            class: [0; 3],
            configuration: 1,
            configurations: 1,
            interfaces: interfaces.to_vec(),
            interface_count: 1,
        }
    }

    #[test]
    fn serial_ports_are_known_by_their_class_or_by_the_ids_of_common_adapters() {
        assert!(is_serial_port(&record(1, 1, &[[2, 2, 1], [10, 0, 0]])), "CDC ACM");
        assert!(is_serial_port(&record(0x0403, 0x6001, &[[0xff, 0xff, 0xff]])), "FTDI");
        assert!(!is_serial_port(&record(1, 1, &[[8, 6, 80]])), "a disk");
        assert!(!is_serial_port(&record(1, 1, &[[2, 6, 0], [10, 0, 0]])), "CDC Ethernet");
    }
}
