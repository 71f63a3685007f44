//! The peer that the targets name: a source/sink device on the `usbip` crate 0.9.0, run the way the
//! crate's own examples run it.

use std::{
    any::Any,
    io,
    sync::{Arc, Mutex},
};

use anyhow::Result;
use usbip::{ClassCode, SetupPacket, UsbDevice, UsbEndpoint, UsbInterface, UsbInterfaceHandler, UsbIpServer};

pub const BUSID: &str = "0-0-0";
const BULK: u8 = 2;

pub fn serve() -> Result<()> {
    // The crate binds by itself, so the port is found first and given back.
    let address = std::net::TcpListener::bind(super::ANY_LOOPBACK_PORT)?.local_addr()?;
    let endpoints =
        [0x81, 0x01].map(|address| UsbEndpoint { address, attributes: BULK, max_packet_size: 512, interval: 0 });
    let device = UsbDevice::new(0).with_interface(
        ClassCode::VendorSpecific as u8,
        0,
        0,
        None,
        endpoints.to_vec(),
        Arc::new(Mutex::new(Box::new(SourceSink) as Box<dyn UsbInterfaceHandler + Send>)),
    );
    let server = Arc::new(UsbIpServer::new_simulated(vec![device]));
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
        let serving = tokio::spawn(usbip::server(address, server));
        while tokio::net::TcpStream::connect(address).await.is_err() {}
        println!("listening on {address}");
        serving.await?;
        Ok(())
    })
}

#[derive(Debug)]
struct SourceSink;

impl UsbInterfaceHandler for SourceSink {
    fn get_class_specific_descriptor(&self) -> Vec<u8> {
        Vec::new()
    }

    fn handle_urb(
        &mut self,
        _interface: &UsbInterface,
        endpoint: UsbEndpoint,
        transfer_buffer_length: u32,
        _setup: SetupPacket,
        _data: &[u8],
    ) -> io::Result<Vec<u8>> {
        let source = endpoint.address & 0x80 != 0;
        Ok(if source { vec![0; transfer_buffer_length as usize] } else { Vec::new() })
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}
