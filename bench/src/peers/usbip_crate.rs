//! The peer that the targets name: a source/sink device on the `usbip` crate 0.9.0, in its best configuration. Of the
//! runtimes tried, one thread was the fastest (by a tenth to a third).

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
    let listener = super::listen::announce()?;
    listener.set_nonblocking(true)?;
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        loop {
            let (mut stream, _) = listener.accept().await?;
            // The crate's own accept loop leaves Nagle's algorithm on, and a full queue then waits for delayed
            // acknowledgements (40 ms, several times a second). Its users can correct that with one line, so the
            // corrected peer is measured.
            stream.set_nodelay(true)?;
            let server = server.clone();
            tokio::spawn(async move { usbip::handler(&mut stream, server).await });
        }
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
