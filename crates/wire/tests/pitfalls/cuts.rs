//! Messages in pieces of every size.

use super::*;

/// A session's worth of messages of every kind.
fn client_bytes() -> Vec<u8> {
    let mut bytes = peer::import_request(BUS_ID);
    let submits = [
        Submit::control(1, peer::setup::GET_DEVICE_18),
        Submit::control_out(2, [0x40, 0x5b, 0, 0, 0, 0, 3, 0], &[1, 2, 3]),
        Submit { number_of_packets: u32::MAX, ..Submit::data_out(3, 1, &[4; 700]) },
        Submit::data_in(4, 1, 512),
        Submit::iso_out(5, 3, &[3, 0, 5], &[9; 8]),
        Submit::iso_in(6, 3, &[8, 8]),
        Submit::data_out(7, 2, &[]),
    ];
    bytes.extend(submits.iter().flat_map(Submit::bytes));
    bytes.extend(peer::unlink(8, 4));
    bytes.extend(peer::unlink(9, 100));
    bytes
}

fn describe(request: &UsbipRequest) -> String {
    match request {
        UsbipRequest::Submit(urb) => {
            format!("{:?} {:?}", Urb { payload: Payload::Empty, ..urb.clone() }, urb.payload.contiguous())
        }
        other => format!("{other:?}"),
    }
}

/// The requests that a server reads from `bytes` when they come `step` at a time.
fn understood(bytes: &[u8], step: usize) -> Vec<String> {
    let mut server = Server::new();
    let record = DeviceRecord::decode(peer::device_record(BUS_ID, 1).first_chunk().unwrap()).unwrap();
    let mut heard = Vec::new();
    for chunk in bytes.chunks(step) {
        for request in server.receive_with_import(chunk, &record) {
            heard.push(describe(&request));
        }
    }
    heard
}

impl Server {
    fn receive_with_import(&mut self, bytes: &[u8], record: &DeviceRecord) -> Vec<UsbipRequest> {
        let mut requests = Vec::new();
        put(bytes, usize::MAX, |chunk| {
            let space = self.conn.receive_space();
            let count = space.len().min(chunk.len());
            space[..count].copy_from_slice(&chunk[..count]);
            self.conn.handle_received(count);
            while let Some(request) = self.conn.poll_request(kind_of)? {
                if let UsbipRequest::Import(_) = request {
                    self.conn.reply_import(Ok(record));
                }
                requests.push(request);
            }
            Ok::<_, ProtocolViolation>(count)
        })
        .expect("this is understood");
        requests
    }
}

#[test]
fn byte_by_byte_a_server_understands_the_same_as_all_at_once() {
    let bytes = client_bytes();
    let whole = understood(&bytes, usize::MAX);
    assert_eq!(whole.len(), 9);
    for step in [1, 2, 7, 47, 48, 49, 320, 1000] {
        assert_eq!(understood(&bytes, step), whole, "{step} at a time");
    }
}

#[test]
fn truncated_anywhere_a_server_waits_and_understands_what_was_whole() {
    let bytes = client_bytes();
    let whole = understood(&bytes, usize::MAX);
    for cut in 0..bytes.len() {
        let heard = understood(&bytes[..cut], usize::MAX);
        assert_eq!(heard, whole[..heard.len()], "cut at {cut}");
    }
}

fn server_bytes(client: &mut Client) -> Vec<u8> {
    let first = client.submit(data_in(1, 64));
    let second = client.submit(Urb::data_out(UrbId(2), EpAddr::from_byte(1), vec![0; 700].into()));
    let third = client.submit(iso(3, 0x83, &[10, 10]));
    let fourth = client.submit(iso(4, 0x03, &[3, 5]));
    client.submit(data_in(5, 64));
    let unlink = client.unlink(UrbId(5));
    let packet = |offset, length, actual| Packet { offset, length, actual, status: 0 };
    let replies = [
        RetSubmit::data_in(first, &[1; 33]).bytes(),
        RetSubmit::taken(second, 700).bytes(),
        RetSubmit::iso(third, &[packet(0, 10, 4), packet(10, 10, 2)], &[5; 6]).bytes(),
        RetSubmit::iso(fourth, &[packet(0, 3, 3), packet(3, 5, 5)], &[]).bytes(),
        peer::ret_unlink(unlink, ECONNRESET),
    ];
    replies.concat()
}

#[test]
fn byte_by_byte_a_client_understands_the_same_as_all_at_once() {
    let understood = |step: usize| {
        let mut client = Client::imported();
        let bytes = server_bytes(&mut client);
        let answers = client.receive_in_steps(&bytes, step).unwrap().into_iter();
        let done = answers.map(|answer| match answer {
            UsbipReply::Done(done) => done,
            other => panic!("{other:?}"),
        });
        done.collect::<Vec<_>>()
    };
    let whole = understood(usize::MAX);
    assert_eq!(whole.len(), 5);
    for step in [1, 5, 47, 48, 49, 50, 113] {
        assert_eq!(understood(step), whole, "{step} at a time");
    }
}

#[test]
fn truncated_anywhere_a_client_waits() {
    let mut client = Client::imported();
    let bytes = server_bytes(&mut client);
    for cut in 0..bytes.len() {
        let mut client = Client::imported();
        server_bytes(&mut client);
        let done = client.done(&bytes[..cut]).len();
        assert_eq!(client.conn.in_flight(), 5 - done, "cut at {cut}");
    }
}

#[test]
fn an_operations_header_is_as_the_document_says() {
    assert_eq!((message::VERSION, message::OP_HEADER_BYTES, message::HEADER_BYTES), (0x0111, 8, 48));
    assert_eq!((message::DEVICE_RECORD_BYTES, message::ISO_PACKET_BYTES), (312, 16));
}
