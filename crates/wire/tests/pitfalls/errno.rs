//! USB's outcomes and Linux's numbers for them.

use super::*;

#[test]
fn outcomes_are_negative_linux_errno_whatever_the_system() {
    let table = [
        (UrbStatus::Ok, 0),
        (UrbStatus::Stall, -32),
        (UrbStatus::Overflow, -75),
        (UrbStatus::Protocol, -71),
        (UrbStatus::Crc, -84),
        (UrbStatus::TimedOut, -110),
        (UrbStatus::Shutdown, -108),
        (UrbStatus::Gone, -19),
        (UrbStatus::Short, -121),
        (UrbStatus::IsoMissed, -18),
        (UrbStatus::Cancelled, -104),
        (UrbStatus::DataRate, -63),
        (UrbStatus::Invalid, -22),
        (UrbStatus::NoCredit, -12),
        (UrbStatus::Other, -5),
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
        (-62, UrbStatus::TimedOut),
        (-70, UrbStatus::DataRate),
        (-2, UrbStatus::Cancelled),
        (-9999, UrbStatus::Other),
        (12, UrbStatus::Other),
    ];
    for (errno, status) in table {
        let mut client = Client::imported();
        let seqnum = client.submit(data_in(1, 4));
        assert_eq!(client.done(&RetSubmit::failed(seqnum, errno).bytes())[0].status, status, "{errno}");
    }
}
