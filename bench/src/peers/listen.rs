//! How a server that is part of this binary finds a port, announces it and accepts clients.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

use anyhow::Result;

/// The address on which every such server listens.
pub const ANY_LOOPBACK_PORT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// How long a server may take to announce its address.
pub const START_MAX: Duration = Duration::from_secs(10);

/// Finds a port and announces it to the process that started this one.
pub fn announce() -> Result<TcpListener> {
    announce_at(None)
}

/// Like [`announce`], at another address.
pub fn announce_at(address: Option<&str>) -> Result<TcpListener> {
    let address = address.map(str::parse).transpose()?;
    let listener = TcpListener::bind(address.unwrap_or(ANY_LOOPBACK_PORT))?;
    println!("listening on {}", listener.local_addr()?);
    Ok(listener)
}

/// Serves one connection after the other; a failure ends only its own connection.
pub fn serve_each(listener: &TcpListener, mut serve: impl FnMut(TcpStream) -> Result<()>) -> Result<()> {
    loop {
        let (stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        if let Err(error) = serve(stream) {
            eprintln!("connection ended: {error:#}");
        }
    }
}
