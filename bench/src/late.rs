//! A relay with a delay: every byte arrives a fixed time after it was sent, in order, and any number of bytes may be
//! under way.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;

/// Bytes that are taken at a time.
const PIECE_BYTES: usize = 256 * 1024;

/// Returns an address that leads to `server` with this delay each way, for any number of connections.
pub fn late(server: SocketAddr, each_way: Duration) -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for near in listener.incoming().map_while(Result::ok) {
            let Ok(far) = TcpStream::connect(server) else { continue };
            for (from, to) in [(near.try_clone(), far.try_clone()), (Ok(far), Ok(near))] {
                if let (Ok(from), Ok(to)) = (from, to) {
                    carry(from, to, each_way);
                }
            }
        }
    });
    Ok(address)
}

fn carry(mut from: TcpStream, mut to: TcpStream, span: Duration) {
    let (sent, arrives) = mpsc::channel::<(Instant, Vec<u8>)>();
    let _ = to.set_nodelay(true);
    thread::spawn(move || {
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        for (due, bytes) in arrives {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                return;
            }
        }
        let _ = to.shutdown(std::net::Shutdown::Write);
    });
    thread::spawn(move || {
        let mut piece = vec![0; PIECE_BYTES];
        while let Ok(count @ 1..) = from.read(&mut piece) {
            if sent.send((Instant::now() + span, piece[..count].to_vec())).is_err() {
                return;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relayed_bytes_arrive_whole_and_no_earlier_than_the_delay() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = late(listener.local_addr().unwrap(), Duration::from_millis(20)).unwrap();
        thread::spawn(move || {
            let (mut link, _) = listener.accept().unwrap();
            let mut bytes = [0; 5];
            link.read_exact(&mut bytes).unwrap();
            link.write_all(&bytes).unwrap();
        });
        let began = Instant::now();
        let mut link = TcpStream::connect(address).unwrap();
        link.write_all(b"there").unwrap();
        let mut back = Vec::new();
        link.read_to_end(&mut back).unwrap();
        assert_eq!(back, b"there");
        assert!(began.elapsed() >= Duration::from_millis(40), "{:?}", began.elapsed());
    }
}
