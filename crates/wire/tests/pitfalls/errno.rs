//! USB's outcomes and Linux's numbers for them.

use super::*;

#[test]
fn outcomes_are_negative_linux_errno_whatever_the_system() {
    let table = [
        (Status::Ok, 0),
        (Status::Stall, -32),
        (Status::Overflow, -75),
        (Status::Protocol, -71),
        (Status::Crc, -84),
        (Status::TimedOut, -110),
        (Status::Shutdown, -108),
        (Status::Gone, -19),
        (Status::Short, -121),
        (Status::IsoMissed, -18),
        (Status::Cancelled, -104),
        (Status::DataRate, -63),
        (Status::Invalid, -22),
        (Status::NoCredit, -12),
        (Status::Other, -5),
    ];
    for (status, errno) in table {
        let mut server = Server::imported();
        let urb = server.submit(&Submit::data_in(1, 1, 4));
        server.complete(urb.launch().fail(status));
        assert_eq!(server.checker.ret_submit(1).status, errno, "{status:?}");
        assert_eq!(status::from_errno(errno), status);
    }
}

#[test]
fn errno_values_of_other_peers_are_understood() {
    let table = [
        (-62, Status::TimedOut),
        (-70, Status::DataRate),
        (-2, Status::Cancelled),
        (-9999, Status::Other),
        (12, Status::Other),
    ];
    for (errno, status) in table {
        let mut client = Client::imported();
        let seqnum = client.submit(data_in(1, 4));
        assert_eq!(client.done(&RetSubmit::failed(seqnum, errno).bytes())[0].status, status, "{errno}");
    }
}
