//! A gadget of your own: a thermometer with a lamp.
//!
//! The thirty lines below make it a USB device that any host can use, Linux's kernel among them; `main` shares it, and
//! then is such a host itself.

use std::time::Duration;

use farbus::gadgets::{ControlTransferAnswer, EmulatedDevice, FunctionContext, GadgetFunction, InTransferAnswer};
use farbus::model::definition::InterfaceDefinition;
use farbus::model::{DeviceDefinition, EpAddr, Payload, SetupPacket, TransferDirection};
use farbus::{Share, client};

/// Each packet is a temperature: thousandths of a degree, four bytes.
const READING: EpAddr = EpAddr::from_byte(0x81);
/// Vendor request, no data: the value switches the lamp.
const SWITCH: SetupPacket = SetupPacket { request_type: 0x40, request: 1, value: 0, index: 0, length: 0 };

struct Thermometer {
    millidegrees: i32,
    lamp_is_lit: bool,
}

impl Thermometer {
    fn device() -> EmulatedDevice<Self> {
        let interface = InterfaceDefinition::vendor().interrupt(1, TransferDirection::In, 4, Duration::from_millis(10));
        let definition = DeviceDefinition::new(0x1209, 0x0001).names("you", "thermometer", "1").interface(interface);
        EmulatedDevice::new(&definition, Self { millidegrees: 20_000, lamp_is_lit: false })
    }
}

impl GadgetFunction for Thermometer {
    fn send(&mut self, _endpoint: EpAddr, _room: usize, _cx: &mut FunctionContext<'_>) -> InTransferAnswer {
        self.millidegrees += if self.lamp_is_lit { 250 } else { -50 };
        InTransferAnswer::Data(self.millidegrees.to_le_bytes().as_slice().into())
    }

    fn control(&mut self, setup: SetupPacket, _data: &[u8], _cx: &mut FunctionContext<'_>) -> ControlTransferAnswer {
        if (setup.request_type, setup.request) != (SWITCH.request_type, SWITCH.request) {
            return ControlTransferAnswer::Stall;
        }
        self.lamp_is_lit = setup.value != 0;
        ControlTransferAnswer::Ack
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let share = Share::default();
    share.add("thermometer", Thermometer::device())?;
    let address = share.listen(([127, 0, 0, 1], 0).into())?;

    // From here on this could be another machine.
    let mut thermometer = client::open(&format!("{address}/thermometer").parse()?)?;
    println!("{} at {address}", thermometer.descriptors().title());
    let mut last = 20.0;
    for lamp_is_lit in [false, true] {
        thermometer.control_out(SetupPacket { value: lamp_is_lit.into(), ..SWITCH }, Payload::Empty)?;
        println!("the lamp is {}", if lamp_is_lit { "lit" } else { "dark" });
        for _ in 0..3 {
            let reading = thermometer.data_in(READING, 4)?.into_vec();
            let degrees = f64::from(i32::from_le_bytes(reading.as_slice().try_into()?)) / 1000.0;
            println!("  {degrees:.2} °C");
            assert_eq!(degrees > last, lamp_is_lit, "a lit lamp warms, a dark one does not");
            last = degrees;
        }
    }
    Ok(())
}
