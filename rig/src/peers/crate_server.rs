//! The `usbip` crate's server with its own keyboard and serial port, as its examples set them up.

use std::any::Any;
use std::io::{self, BufRead as _};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use usbip::cdc::{CDC_ACM_SUBCLASS, UsbCdcAcmHandler};
use usbip::hid::{UsbHidKeyboardHandler, UsbHidKeyboardReport};
use usbip::{ClassCode, SetupPacket, UsbDevice, UsbEndpoint, UsbInterface, UsbInterfaceHandler, UsbIpServer};

/// Its name in the table.
pub const NAME: &str = "`usbip` crate of Rust";

/// What the crate calls its first device.
pub const BUS_ID: &str = "0-0-0";

/// A boot keyboard's report (HID 1.11, appendix B.1).
const REPORT_BYTES: usize = 8;

type InterfaceHandler = Arc<Mutex<Box<dyn UsbInterfaceHandler + Send>>>;

/// The crate's version, as this workspace has locked it.
pub fn version() -> Option<&'static str> {
    let lock = include_str!("../../../Cargo.lock");
    let (_, after) = lock.split_once("name = \"usbip\"\nversion = \"")?;
    Some(after.split('"').next().unwrap_or_default())
}

/// Serves a `keyboard` or a `serial` port on the loopback until this process is killed.
///
/// The keyboard types the lines of standard input; the serial port answers in capitals.
///
/// # Errors
/// No such device, or no port to listen on.
pub fn serve(what: &str) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    let interrupt_in = UsbEndpoint { address: 0x81, attributes: 3, max_packet_size: 8, interval: 10 };
    let (device, typist) = match what {
        "keyboard" => {
            let keys: InterfaceHandler =
                Arc::new(Mutex::new(Box::new(CorrectedKeyboard(UsbHidKeyboardHandler::new_keyboard()))));
            let endpoints = vec![interrupt_in];
            let device =
                UsbDevice::new(0).with_interface(ClassCode::HID as u8, 0, 0, Some("Test HID"), endpoints, keys.clone());
            (device, Some(keys))
        }
        "serial" => {
            let port: InterfaceHandler = Arc::new(Mutex::new(Box::new(UppercaseSerial(UsbCdcAcmHandler::new()))));
            let endpoints = UsbCdcAcmHandler::endpoints();
            let class = ClassCode::CDC as u8;
            (UsbDevice::new(0).with_interface(class, CDC_ACM_SUBCLASS, 0, Some("Test CDC ACM"), endpoints, port), None)
        }
        other => return Err(io::Error::other(format!("there is no {other}, but keyboard and serial"))),
    };
    if let Some(keys) = typist {
        std::thread::spawn(move || {
            io::stdin().lock().lines().map_while(Result::ok).for_each(|line| press(&keys, &line))
        });
    }
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    listener.set_nonblocking(true)?;
    println!("listening on {}", listener.local_addr()?);
    let server = Arc::new(UsbIpServer::new_simulated(vec![device]));
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        loop {
            let (mut stream, _) = listener.accept().await?;
            // Like the crate's own loop, but without Nagle's algorithm, which that one leaves on.
            stream.set_nodelay(true)?;
            let server = server.clone();
            tokio::spawn(async move { usbip::handler(&mut stream, server).await });
        }
    })
}

fn press(keys: &InterfaceHandler, line: &str) {
    let mut keys = keys.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(keys) = keys.as_any().downcast_mut::<UsbHidKeyboardHandler>() {
        keys.pending_key_events.extend(line.bytes().map(UsbHidKeyboardReport::from_ascii));
    }
}

/// The crate's keyboard with two corrections that its users need.
///
/// It answers an idle poll at once with nothing, and the host's next poll is under way before the host has done
/// anything else: here it waits for its polling interval. And its report when a key is released has 6 bytes instead of
/// 8, which recent Linux (6.1.192 seen) drops: the key then stays down.
#[derive(Debug)]
struct CorrectedKeyboard(UsbHidKeyboardHandler);

impl UsbInterfaceHandler for CorrectedKeyboard {
    fn get_class_specific_descriptor(&self) -> Vec<u8> {
        self.0.get_class_specific_descriptor()
    }

    fn handle_urb(
        &mut self,
        interface: &UsbInterface,
        endpoint: UsbEndpoint,
        length: u32,
        setup: SetupPacket,
        data: &[u8],
    ) -> io::Result<Vec<u8>> {
        if !endpoint.is_ep0() {
            std::thread::sleep(Duration::from_millis(endpoint.interval.into()));
        }
        let mut report = self.0.handle_urb(interface, endpoint, length, setup, data)?;
        if !endpoint.is_ep0() && !report.is_empty() {
            report.resize(REPORT_BYTES, 0);
        }
        Ok(report)
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self.0.as_any()
    }
}

/// The crate's serial port, with capitals as its answer.
#[derive(Debug)]
struct UppercaseSerial(UsbCdcAcmHandler);

impl UsbInterfaceHandler for UppercaseSerial {
    fn get_class_specific_descriptor(&self) -> Vec<u8> {
        self.0.get_class_specific_descriptor()
    }

    fn handle_urb(
        &mut self,
        interface: &UsbInterface,
        endpoint: UsbEndpoint,
        length: u32,
        setup: SetupPacket,
        data: &[u8],
    ) -> io::Result<Vec<u8>> {
        const BULK_OUT: u8 = 0x02;
        if endpoint.address == BULK_OUT {
            self.0.tx_buffer.extend(data.to_ascii_uppercase());
        }
        self.0.handle_urb(interface, endpoint, length, setup, data)
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_names_the_version() {
        assert!(version().is_some_and(|version| version.starts_with("0.9.")), "{:?}", version());
        assert!(serve("toaster").unwrap_err().to_string().contains("no toaster"));
    }
}
