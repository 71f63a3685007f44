//! The server's end of RFC 2217, against bytes written out by hand.

mod fuzzing;

use farbus_wire::rfc2217::{
    ComPortReply, ComPortRequest, Rfc2217Client, Rfc2217ClientEvent, Rfc2217Conn, Rfc2217Event,
};
use fuzzing::{Input, fuzz};

const IAC: u8 = 255;
const DONT: u8 = 254;
const DO: u8 = 253;
const WONT: u8 = 252;
const WILL: u8 = 251;
const SB: u8 = 250;
const SE: u8 = 240;
const COM: u8 = 44;

/// A connection whose offers were sent, with a client that answers as pyserial's does.
fn agreed() -> Rfc2217Conn {
    let mut conn = Rfc2217Conn::new();
    let answers =
        [[IAC, DO, 1], [IAC, WILL, 3], [IAC, DO, 3], [IAC, WILL, 0], [IAC, DO, 0], [IAC, DO, COM], [IAC, WILL, COM]];
    assert_eq!(conn.handle_received(&answers.concat()).unwrap(), [Rfc2217Event::Agreed]);
    let count = conn.outgoing().len();
    conn.handle_transmitted(count);
    conn
}

#[test]
fn offers_that_are_taken_are_not_confirmed_again() {
    let mut conn = Rfc2217Conn::new();
    let offers =
        [[IAC, WILL, 0], [IAC, DO, 0], [IAC, WILL, 1], [IAC, WILL, 3], [IAC, DO, 3], [IAC, WILL, COM], [IAC, DO, COM]];
    assert_eq!(conn.outgoing(), offers.concat());
    assert!(!conn.is_agreed() && agreed().is_agreed());
    assert_eq!(agreed().outgoing(), []);
    // Terminal type and window size are nothing that a serial port has.
    conn.handle_transmitted(offers.concat().len());
    conn.handle_received(&[IAC, WILL, 24, IAC, DO, 31, IAC, WONT, 24, IAC, WILL, 1]).unwrap();
    assert_eq!(conn.outgoing(), [IAC, DONT, 24, IAC, WONT, 31, IAC, DONT, 1]);
}

#[test]
fn requests_and_data_keep_their_order_and_every_byte_may_be_data() {
    let mut conn = agreed();
    let mut bytes = vec![b'a', IAC, IAC, 0, b'\r', 0];
    bytes.extend([IAC, SB, COM, 1, 0, 1, 0xc2, 0, IAC, SE]);
    bytes.extend([IAC, SB, COM, 5, 8, IAC, SE, b'b', IAC, SB, COM, 5, 9, IAC, SE]);
    bytes.extend([IAC, SB, COM, 11, IAC, IAC, IAC, SE, IAC, 243, b'c']);
    let expected = [
        Rfc2217Event::Data(vec![b'a', IAC, 0, b'\r', 0]),
        Rfc2217Event::Request(ComPortRequest::Rate(115_200)),
        Rfc2217Event::Request(ComPortRequest::Control(8)),
        Rfc2217Event::Data(vec![b'b']),
        Rfc2217Event::Request(ComPortRequest::Control(9)),
        Rfc2217Event::Request(ComPortRequest::ModemStateMask(255)),
        Rfc2217Event::Break,
        Rfc2217Event::Data(vec![b'c']),
    ];
    assert_eq!(conn.handle_received(&bytes).unwrap(), expected);
    conn.send(&[1, IAC, 2]);
    conn.reply(ComPortReply::Rate(0xff01));
    conn.reply(ComPortReply::Signature("farbus"));
    let mut sent = vec![1, IAC, IAC, 2, IAC, SB, COM, 101, 0, 0, IAC, IAC, 1, IAC, SE, IAC, SB, COM, 100];
    sent.extend(b"farbus");
    sent.extend([IAC, SE]);
    assert_eq!(conn.outgoing(), sent);
}

#[test]
fn a_client_that_answers_no_offer_and_makes_a_request_is_answered() {
    let mut conn = Rfc2217Conn::new();
    let count = conn.outgoing().len();
    conn.handle_transmitted(count);
    let events = conn.handle_received(&[IAC, SB, COM, 3, 1, IAC, SE]).unwrap();
    assert_eq!(events, [Rfc2217Event::Agreed, Rfc2217Event::Request(ComPortRequest::Parity(1))]);
    conn.reply(ComPortReply::Parity(1));
    assert_eq!(conn.outgoing(), [IAC, SB, COM, 103, 1, IAC, SE]);
}

#[test]
fn a_plain_telnet_types_and_is_sent_no_notices() {
    let mut conn = Rfc2217Conn::new();
    let count = conn.outgoing().len();
    conn.handle_transmitted(count);
    let events = conn.handle_received(b"root\r\0ls\r\n").unwrap();
    assert_eq!(events, [Rfc2217Event::Data(b"root\rls\r\n".to_vec())]);
    conn.reply(ComPortReply::ModemState(0xb0));
    assert_eq!(conn.outgoing(), []);
}

#[test]
fn a_sub_negotiation_without_end_is_a_violation() {
    let mut conn = agreed();
    conn.handle_received(&[IAC, SB, COM, 0]).unwrap();
    let error = conn.handle_received(&[7; 300]).unwrap_err();
    assert_eq!(error.field, "sub-negotiation");
}

fn understood(pieces: &[&[u8]]) -> (Vec<Rfc2217Event>, Vec<u8>, bool) {
    let (mut conn, mut events) = (Rfc2217Conn::new(), Vec::<Rfc2217Event>::new());
    let mut is_over = false;
    for piece in pieces {
        match conn.handle_received(piece) {
            Ok(more) => {
                for event in more {
                    match (events.last_mut(), event) {
                        (Some(Rfc2217Event::Data(data)), Rfc2217Event::Data(more)) => data.extend(more),
                        (_, event) => events.push(event),
                    }
                }
            }
            Err(_) => {
                is_over = true;
                break;
            }
        }
    }
    // What came before the violation is an event or not, as the bytes were cut.
    let events = if is_over { Vec::new() } else { events };
    (events, conn.outgoing().to_vec(), is_over)
}

#[test]
fn fuzz_rfc2217() {
    fuzz(env!("CARGO_MANIFEST_DIR"), "fuzz_rfc2217", |input: &mut Input<'_>| {
        let mut bytes = Vec::new();
        while !input.is_empty() && bytes.len() < 2000 {
            match input.below(5) {
                0 => bytes.extend([IAC, input.pick(&[WILL, WONT, DO, DONT]), input.pick(&[0, 1, 3, 24, COM])]),
                1 => {
                    let count = input.below(6) as usize;
                    bytes.extend([IAC, SB, COM, input.below(14) as u8]);
                    bytes.extend(input.bytes(count));
                    bytes.extend([IAC, SE]);
                }
                2 => bytes.extend(vec![input.byte(); input.below(300) as usize]),
                3 => bytes.extend([b'\r', 0]),
                _ => bytes.push(input.byte()),
            }
        }
        let whole = understood(&[&bytes]);
        let (front, behind) = bytes.split_at(input.below(bytes.len() as u32 + 1) as usize);
        assert_eq!(understood(&[front, behind]), whole);
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(understood(&single), whole);
    });
}

/// Carries bytes between the two ends until neither sends anything more; returns what each of them saw.
fn converse(server: &mut Rfc2217Conn, client: &mut Rfc2217Client) -> (Vec<Rfc2217Event>, Vec<Rfc2217ClientEvent>) {
    let (mut at_server, mut at_client) = (Vec::new(), Vec::new());
    loop {
        let (to_client, to_server) = (server.outgoing().to_vec(), client.outgoing().to_vec());
        if to_client.is_empty() && to_server.is_empty() {
            return (at_server, at_client);
        }
        server.handle_transmitted(to_client.len());
        client.handle_transmitted(to_server.len());
        at_client.extend(client.handle_received(&to_client).unwrap());
        at_server.extend(server.handle_received(&to_server).unwrap());
    }
}

#[test]
fn client_and_server_agree_once_and_requests_keep_their_order_among_the_data() {
    let (mut server, mut client) = (Rfc2217Conn::new(), Rfc2217Client::new());
    assert_eq!(converse(&mut server, &mut client), (vec![Rfc2217Event::Agreed], Vec::new()));
    let requests = [
        ComPortRequest::Rate(0x00ff_ff01),
        ComPortRequest::DataSize(7),
        ComPortRequest::Parity(3),
        ComPortRequest::StopSize(2),
        ComPortRequest::Control(5),
        ComPortRequest::Suspend(true),
        ComPortRequest::Suspend(false),
        ComPortRequest::LineStateMask(255),
        ComPortRequest::ModemStateMask(255),
        ComPortRequest::Purge(1),
        ComPortRequest::Signature(b"x\xff".to_vec()),
    ];
    let mut expected = Vec::new();
    for (at, request) in requests.into_iter().enumerate() {
        let data = vec![IAC, b'\r', 0, at as u8];
        client.send(&data);
        client.request(&request);
        expected.extend([Rfc2217Event::Data(data), Rfc2217Event::Request(request)]);
    }
    server.reply(ComPortReply::Rate(921_600));
    server.send(&[IAC, 0, b'\r']);
    server.reply(ComPortReply::ModemState(0xff));
    let seen = vec![
        Rfc2217ClientEvent::Rate(921_600),
        Rfc2217ClientEvent::Data(vec![IAC, 0, b'\r']),
        Rfc2217ClientEvent::ModemState(0xff),
    ];
    assert_eq!(converse(&mut server, &mut client), (expected, seen));
}

#[test]
fn client_declines_what_a_serial_port_does_not_have_and_learns_that_a_server_declines() {
    let mut client = Rfc2217Client::new();
    client.handle_transmitted(client.outgoing().len());
    assert_eq!(client.handle_received(&[IAC, DO, 24, IAC, WILL, 31, IAC, DO, 1, IAC, WILL, 1]).unwrap(), []);
    assert_eq!(client.outgoing(), [IAC, WONT, 24, IAC, DONT, 31, IAC, WONT, 1, IAC, DO, 1]);
    assert_eq!(client.handle_received(&[IAC, DONT, COM]).unwrap(), [Rfc2217ClientEvent::Declined]);
    let endless = [&[IAC, SB][..], &[7; 300]].concat();
    assert!(client.handle_received(&endless).is_err(), "no option is as long");
}

#[test]
fn fuzz_rfc2217_client() {
    fuzz(env!("CARGO_MANIFEST_DIR"), "fuzz_rfc2217_client", |input: &mut Input<'_>| {
        let bytes = input.rest();
        let (mut whole, mut pieces) = (Rfc2217Client::new(), Rfc2217Client::new());
        let data = |events: Vec<Rfc2217ClientEvent>| -> Vec<u8> {
            let of = |event| if let Rfc2217ClientEvent::Data(data) = event { data } else { Vec::new() };
            events.into_iter().flat_map(of).collect()
        };
        let at_once = whole.handle_received(bytes).map(data);
        let one_by_one: Result<Vec<Vec<u8>>, _> =
            bytes.iter().map(|byte| pieces.handle_received(&[*byte]).map(data)).collect();
        assert_eq!(at_once.is_ok(), one_by_one.is_ok());
        if let (Ok(at_once), Ok(one_by_one)) = (at_once, one_by_one) {
            assert_eq!(at_once, one_by_one.concat());
            assert_eq!(whole.outgoing(), pieces.outgoing());
        }
        // An answer of three bytes to three bytes at the most.
        assert!(whole.outgoing().len() <= 15 + bytes.len());
    });
}
