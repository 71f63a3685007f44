//! Pages that a test makes up, at a port of its own.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::thread;

use tokio_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned};

/// A server of one text for each path. It ends with the process.
pub struct Pages {
    pub address: SocketAddr,
    seen: Seen,
}

/// The first lines of the requests that a server got.
type Seen = Arc<Mutex<Vec<String>>>;

impl Pages {
    /// Answers every path with this page.
    pub fn serve(page: String) -> Self {
        Self::start(page, None)
    }

    /// Answers every path with this page, over TLS.
    pub fn serve_tls(page: String, config: Arc<ServerConfig>) -> Self {
        Self::start(page, Some(config))
    }

    fn start(page: String, config: Option<Arc<ServerConfig>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Seen::default();
        let for_thread = Arc::clone(&seen);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (page, seen, config) = (page.clone(), Arc::clone(&for_thread), config.clone());
                // A browser makes connections ahead and asks nothing on them. One that leaves gets no answer.
                thread::spawn(move || match config.map(ServerConnection::new) {
                    None => answer(stream, &page, &seen),
                    Some(tls) => answer(StreamOwned::new(tls.unwrap(), stream), &page, &seen),
                });
            }
        });
        Self { address, seen }
    }

    /// What was asked for.
    pub fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }
}

fn answer(stream: impl Read + Write, page: &str, seen: &Seen) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream);
    let mut first = String::new();
    lines.read_line(&mut first)?;
    let mut line = String::new();
    while lines.read_line(&mut line)? > 0 && line != "\r\n" {
        line.clear();
    }
    seen.lock().unwrap().push(first.trim_end().to_owned());
    write!(
        lines.get_mut(),
        "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{page}",
        page.len()
    )
}
