//! A session over several links: a lost link delays what is on it, and nothing else.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use farbus::importer::session::connection::{DialCallback, LinkedDevice, SessionTerms};
use farbus::share::Share;
use farbus_gadgets::zero::{SourcePattern, SourceSink};
use farbus_io_net::link::Link;
use farbus_model::{
    BlockCompletion, BlockDevice, BlockId, BlockRequest, BufferPool, CompletionQueue, Device, EpAddr, Payload,
    SetupPacket, TransferDirection, Urb, UrbId, UrbStatus, UsbSpeed,
};
use farbus_session::block::{BlockExport, MediumView, MemoryMedium, SparseMemory};
use farbus_session::native::control::{AttachmentClass, AttachmentMode, OpenRequest};
use farbus_session::native::{ImporterAttachment, RemoteBlock, RemoteUsb};
use farbus_session::registry::BlockClass;

const GRACE: Duration = Duration::from_secs(60);
const LINKS: u16 = 3;
const PIECE: u32 = 64 << 10;
const PIECES: u64 = 64;

/// The links made between two hosts, and whether new ones are refused.
#[derive(Clone, Default)]
struct Road(Arc<Mutex<(Vec<Link>, bool)>>);

impl Road {
    fn dial(&self, share: &Share) -> DialCallback {
        let (road, address) = (self.clone(), share.listen("127.0.0.1:0".parse().unwrap()).unwrap().to_string());
        Box::new(move |_| {
            let mut all = road.0.lock().unwrap();
            if all.1 {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            let link = Link::connect(&address, GRACE).map_err(|error| io::Error::other(error.to_string()))?;
            all.0.push(link.try_clone()?);
            Ok(link)
        })
    }

    /// Cuts the links with these numbers, and refuses new ones.
    fn close(&self, cut: &[usize]) {
        let mut all = self.0.lock().unwrap();
        all.1 = true;
        cut.iter().for_each(|&at| all.0[at].shut_down());
    }

    /// Permits new links from now on; they are numbered as they are made.
    fn open(&self) {
        self.0.lock().unwrap().1 = false;
    }

    fn made(&self) -> usize {
        self.0.lock().unwrap().0.len()
    }
}

fn opened<A: ImporterAttachment>(
    dial: DialCallback,
    (name, class): (&str, AttachmentClass),
    make: impl FnOnce(u16, OpenRequest) -> A,
    done: &mut A::Done,
) -> LinkedDevice<A> {
    let open =
        OpenRequest { class, mode: AttachmentMode::Exclusive, epoch: 0, name: name.into(), reason: String::new() };
    let terms = SessionTerms { links: LINKS, ..SessionTerms::of(GRACE) };
    let linked = LinkedDevice::open_on(terms, dial, make(1, open), done).unwrap();
    assert_eq!(linked.end(), None);
    assert_eq!(linked.links(), usize::from(LINKS), "they are there before it is used");
    linked
}

/// Runs the session until it has `count` links.
fn until_links<A: ImporterAttachment>(linked: &mut LinkedDevice<A>, count: usize, done: &mut A::Done) {
    while linked.links() != count {
        linked.wait(None).unwrap();
        linked.turn(done);
    }
}

struct Disk {
    linked: LinkedDevice<RemoteBlock>,
    done: CompletionQueue<BlockCompletion>,
    answered: u64,
}

fn piece(at: u64, round: u8) -> Vec<u8> {
    vec![round.wrapping_mul(31) ^ at as u8; PIECE as usize]
}

impl Disk {
    fn submit(&mut self, request: BlockRequest) {
        let now = self.linked.clock().now();
        self.linked.submit(now, request.launch(), &mut self.done);
    }

    fn write_all(&mut self, round: u8) {
        for at in 0..PIECES {
            self.submit(BlockRequest::write(BlockId(at), at * u64::from(PIECE), piece(at, round).into()));
        }
        self.linked.send();
    }

    fn read_all(&mut self) {
        (0..PIECES).for_each(|at| self.submit(BlockRequest::read(BlockId(at), at * u64::from(PIECE), PIECE)));
        self.linked.send();
    }

    /// Waits until each request is answered once; with `round`, a read has to return what that round wrote.
    fn all_answered(&mut self, round: Option<u8>) {
        let mut missing: Vec<bool> = vec![true; PIECES as usize];
        while missing.contains(&true) {
            self.linked.turn(&mut self.done);
            while let Some(done) = self.done.pop() {
                assert!(std::mem::take(&mut missing[done.id.0 as usize]), "answered once");
                assert_eq!(done.result, Ok(()));
                if let Some(round) = round {
                    assert!(done.payload.into_vec() == piece(done.id.0, round), "piece {}", done.id.0);
                }
                self.answered += 1;
            }
            if missing.contains(&true) {
                self.linked.wait(None).unwrap();
            }
        }
    }
}

#[test]
fn a_disk_goes_on_over_the_other_links_whichever_is_lost() {
    let (share, road) = (Share::default(), Road::default());
    let medium = Arc::new(MemoryMedium::new(SparseMemory::new(8 << 20, 8 << 20)));
    let export = Arc::new(BlockExport::new(medium, MediumView::default(), 1).unwrap());
    let make = || SourceSink::device(UsbSpeed::High, SourcePattern::Zeros, false);
    let renew = move || Ok(Box::new(make()) as Box<dyn Device>);
    share.add_block("disk", Box::new(make()), BlockClass { export, renew: Box::new(renew) }).unwrap();
    let mut done = CompletionQueue::new(BufferPool::new(0));
    let linked = opened(road.dial(&share), ("disk", AttachmentClass::BLOCK), RemoteBlock::new, &mut done);
    let mut disk = Disk { linked, done, answered: 0 };

    // The number of the link that each lane has.
    let mut by_lane: Vec<usize> = (0..LINKS.into()).collect();
    for (round, lost) in (1_u8..).zip([0, 1, 2, 1, 0]) {
        // With many requests under way.
        disk.write_all(round);
        road.close(&[by_lane[lost]]);
        until_links(&mut disk.linked, 2, &mut disk.done);
        let during = disk.answered;
        assert_eq!(disk.linked.is_linked(), lost != 0);
        by_lane[lost] = road.made();
        road.open();
        disk.all_answered(None);
        assert_eq!(disk.answered, during + PIECES);
        until_links(&mut disk.linked, LINKS.into(), &mut disk.done);
        disk.read_all();
        disk.all_answered(Some(round));

        // With no request under way: requests made while the link is lost are answered without it.
        road.close(&[by_lane[lost]]);
        until_links(&mut disk.linked, 2, &mut disk.done);
        disk.write_all(round + 100);
        disk.all_answered(None);
        disk.read_all();
        disk.all_answered(Some(round + 100));
        assert_eq!(disk.linked.links(), 2, "the road is closed");
        by_lane[lost] = road.made();
        road.open();
        until_links(&mut disk.linked, LINKS.into(), &mut disk.done);
    }
    disk.linked.close(&mut disk.done);
}

#[test]
fn a_control_transfer_is_not_behind_a_bulk_endpoint_s_lost_link() {
    const BULK_IN: EpAddr = EpAddr::from_byte(0x81);
    let (share, road) = (Share::default(), Road::default());
    share.add("zero", SourceSink::device(UsbSpeed::High, SourcePattern::Zeros, false)).unwrap();
    let mut done = CompletionQueue::new(BufferPool::new(0));
    let mut linked = opened(road.dial(&share), ("zero", AttachmentClass::USB), RemoteUsb::new, &mut done);
    let mut next = 0;
    let mut submit = |linked: &mut LinkedDevice<RemoteUsb>, done: &mut CompletionQueue, urb: &dyn Fn(UrbId) -> Urb| {
        next += 1;
        let now = linked.clock().now();
        linked.submit(now, urb(UrbId(next)).launch(), done);
        linked.send();
        next
    };
    let answer = |linked: &mut LinkedDevice<RemoteUsb>, done: &mut CompletionQueue| loop {
        linked.turn(done);
        if let Some(done) = done.pop() {
            assert_eq!(done.status, UrbStatus::Ok);
            return done.id.0;
        }
        linked.wait(None).unwrap();
    };
    let configure = |id| Urb::control(id, SetupPacket::set_configuration(1), Payload::Empty);
    let describe = |id| Urb::control(id, SetupPacket::get_descriptor(1, 0, 0, 18), Payload::Empty);
    let read = |id| Urb::data_in(id, BULK_IN, 4096);
    assert_eq!(BULK_IN.direction(), TransferDirection::In);
    let id = submit(&mut linked, &mut done, &configure);
    assert_eq!(answer(&mut linked, &mut done), id);
    let id = submit(&mut linked, &mut done, &read);
    assert_eq!(answer(&mut linked, &mut done), id);

    // The first bulk endpoint has the second lane. Its link is cut, and neither end has noticed.
    road.close(&[1]);
    let reads = [submit(&mut linked, &mut done, &read), submit(&mut linked, &mut done, &read)];
    until_links(&mut linked, 2, &mut done);
    for _ in 0..20 {
        let id = submit(&mut linked, &mut done, &describe);
        assert_eq!(answer(&mut linked, &mut done), id, "it is not behind what waits for a link");
    }
    road.open();
    assert_eq!(reads.map(|_| answer(&mut linked, &mut done)), reads, "each once, and in order");
    linked.close(&mut done);
}
