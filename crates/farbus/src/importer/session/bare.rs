//! Sessions over links that the caller makes: without keys, without the exporter's registry.
//!
//! The product's sessions run between paired hosts, over TLS. This is the same protocol with the same code over
//! whatever stream a program has: for measuring what they cost, and for two ends that are safe from others already. The
//! importer's half is [`LinkedDevice`](crate::importer::session::connection::LinkedDevice); the exporter's is
//! [`serve`], which, unlike the product's, ends with its link.

use std::io;
use std::net::TcpStream;
use std::time::Duration;

use farbus_session::native::hello::SessionId;
use farbus_session::native::{ExporterServices, ExporterSession, LaneLimits};

use crate::importer::session::connection::DialCallback;
use crate::link::greeting;
use crate::link::link_set::LinkSet;

/// Modules that are not code of farbus: processes, sandboxes.
pub use farbus_io_linux::module as runners;
/// A clock, and a connected byte channel.
pub use farbus_io_net::link::{BoottimeClock, Link};
/// Modules, and the pipelines that chain them.
pub use farbus_modules as pipelines;
/// Block devices, stores among them.
pub use farbus_session::block as blocks;
/// The protocol of sessions, and both its ends.
pub use farbus_session::native;
/// A device's record, and the table of exports.
pub use farbus_session::{DeviceRecord, ExportRegistry};

/// How long a greeting may take.
const GREETING_TIME_MAX: Duration = Duration::from_secs(10);
/// How long the importer may take to connect.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);

/// A link over an accepted connection.
///
/// # Errors
/// The socket refuses an option.
pub fn link(stream: TcpStream) -> io::Result<Link> {
    let peer = stream.peer_addr()?;
    Link::over_tcp(stream.into(), peer)
}

/// Makes links to `address`, as often as the session needs one.
pub fn dial(address: String) -> DialCallback {
    Box::new(move |_| Link::connect(&address, CONNECT_TIME_MAX).map_err(|error| error.source))
}

/// Serves one session, with the devices that `services` opens, until its link ends. `clock` also measures the time
/// within a turn.
///
/// # Errors
/// The link's error; `InvalidData` if the importer broke the protocol.
pub fn serve(link: &Link, clock: BoottimeClock, services: &mut impl ExporterServices) -> io::Result<()> {
    let hello = greeting::hear_hello(link, GREETING_TIME_MAX)?;
    let [id, incarnation] = [random(), random()];
    let incarnation = u64::from_le_bytes(incarnation.first_chunk().copied().expect("sixteen bytes"));
    let begun = ExporterSession::begin(&hello, SessionId(id), incarnation, Duration::ZERO, LaneLimits::DEFAULT);
    let (mut session, welcome) = match begun {
        Ok(begun) => begun,
        Err(refusal) => return greeting::welcome(link, &refusal, GREETING_TIME_MAX),
    };
    greeting::welcome(link, &welcome, GREETING_TIME_MAX)?;
    let served = serve_session(link.try_clone()?, clock, &mut session, services);
    session.finish(clock.now());
    served
}

fn random() -> [u8; 16] {
    let mut bytes = [0; 16];
    farbus_io_net::trust::fill_random(&mut bytes);
    bytes
}

fn serve_session(
    link: Link,
    clock: BoottimeClock,
    session: &mut ExporterSession,
    services: &mut impl ExporterServices,
) -> io::Result<()> {
    let mut link_set = LinkSet::new()?;
    link_set.put(0, link)?;
    let mut attachments = 0;
    loop {
        let received = link_set.receive(0, session.lane_mut())?;
        let mut now = clock.now();
        match received {
            None => {}
            Some(0) => return Ok(()),
            Some(_) => {
                let wrong = |reject| io::Error::new(io::ErrorKind::InvalidData, reject);
                while session.advance(now, services).map_err(wrong)? {
                    if !link_set.is_blocked() {
                        link_set.send(0, session.lane_mut(), clock)?;
                    }
                    now = clock.now();
                }
            }
        }
        session.handle_ready(now);
        if std::mem::replace(&mut attachments, session.attachments()) != session.attachments() {
            link_set.watch_anew()?;
            session.readiness().try_for_each(|readiness| link_set.watch_device(readiness))?;
        }
        link_set.send(0, session.lane_mut(), clock)?;
        if session.is_ended() {
            return Ok(());
        }
        let span = session.poll_timeout().map(|at| at - clock.now());
        let only_talk = session.only_talks();
        link_set.wait(session.lane_mut(), span, only_talk)?;
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use blocks::{SparseMemory, StoreDevice};
    use farbus_model::{BlockDevice, BlockId, BlockRequest, BufferPool, CompletionQueue, Instant};
    use native::control::{AttachmentClass, AttachmentEndNotice, AttachmentMode, OpenRequest};
    use native::{RemoteBlock, ServedBlock, ServedExport};

    use super::*;
    use crate::importer::session::connection::LinkedDevice;

    struct Disk;

    impl ExporterServices for Disk {
        fn open(
            &mut self,
            _now: Instant,
            number: u16,
            _open: &OpenRequest,
        ) -> Result<(u64, Box<dyn ServedExport>), AttachmentEndNotice> {
            let device = StoreDevice::new(SparseMemory::new(1 << 20, 1 << 20));
            Ok((1, Box::new(ServedBlock::new(number, device, 1, |_, _| {}))))
        }
    }

    #[test]
    fn a_disk_is_written_and_read_over_a_socket() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let exporter = thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            serve(&link(stream).unwrap(), BoottimeClock::start(), &mut Disk).unwrap();
        });
        let mut done = CompletionQueue::new(BufferPool::new(1 << 20));
        let open = OpenRequest {
            class: AttachmentClass::BLOCK,
            mode: AttachmentMode::Exclusive,
            epoch: 0,
            name: "disk".into(),
            reason: String::new(),
        };
        let remote = RemoteBlock::new(1, open);
        let mut disk = LinkedDevice::open(dial(address), remote, Duration::from_secs(1), &mut done).unwrap();
        let data: Vec<u8> = (0..200_000_u32).map(|at| at as u8).collect();
        let write = BlockRequest::write(BlockId(1), 4096, data.clone().into());
        let read = BlockRequest::read(BlockId(2), 4096, 200_000);
        let mut answered = Vec::new();
        for request in [write, read] {
            let now = disk.clock().now();
            disk.submit(now, request.launch(), &mut done);
            disk.end_turn(now, &mut done);
            while done.is_empty() {
                disk.wait(None).unwrap();
                disk.turn(&mut done);
            }
            answered.extend(done.pop());
        }
        assert_eq!((answered[0].result, answered[1].result), (Ok(()), Ok(())));
        assert_eq!(answered.pop().unwrap().payload.into_vec(), data);
        disk.close(&mut done);
        exporter.join().unwrap();
    }
}
