//! The race between a request's end and its cancellation.

use super::*;

#[test]
fn row_1_no_unlink_came_ret_submit() {
    let mut server = Server::imported();
    let urb = server.submit(&Submit::data_in(1, 1, 4));
    let replies = server.complete(urb.launch().answer(vec![1; 4].into()));
    assert_eq!(replies, [Reply::Submit(RetSubmit::data_in(1, &[1; 4]))]);
}

#[test]
fn row_2_withdrawn_in_time_ret_unlink_104_and_never_a_ret_submit() {
    let mut server = Server::imported();
    let urb = server.submit(&Submit::data_in(10, 1, 4));
    assert_eq!(server.unlink(12, 10), Some(UrbId(10)));
    assert_eq!(server.replies(), [], "nothing is said before the device has said it");
    let replies = server.complete(urb.launch().fail(UrbStatus::Cancelled));
    assert_eq!(replies, [Reply::Unlink { seqnum: 12, status: ECONNRESET }]);
    server.checker.assert_settled();
    assert_eq!(server.conn.in_flight(), 0);
}

#[test]
fn row_3_the_device_was_faster_ret_submit_then_ret_unlink_0() {
    let mut server = Server::imported();
    let urb = server.submit(&Submit::data_in(1, 1, 4));
    server.unlink(2, 1);
    let replies = server.complete(urb.launch().answer(vec![1; 4].into()));
    let expected = [Reply::Submit(RetSubmit::data_in(1, &[1; 4])), Reply::Unlink { seqnum: 2, status: 0 }];
    assert_eq!(replies, expected);
}

#[test]
fn row_4_it_had_ended_before_the_unlink_came_ret_unlink_0() {
    let mut server = Server::imported();
    let urb = server.submit(&Submit::data_in(1, 1, 4));
    server.complete(urb.launch().answer(vec![1; 4].into()));
    assert_eq!(server.unlink(2, 1), None);
    assert_eq!(server.replies(), [Reply::Unlink { seqnum: 2, status: 0 }]);
}

#[test]
fn row_5_an_unlink_that_overtakes_its_submit_withdraws_it_when_it_comes() {
    // Linux's vhci_tx sends what is queued to be submitted, then what is queued to be unlinked, and looks again.
    let mut server = Server::imported();
    assert_eq!(server.unlink(9, 8), None);
    assert_eq!(server.unlink(10, 8), None, "twice, if it must be");
    server.checker.requested(&Submit::data_out(8, 1, &[1; 600]), false);
    let heard = server.receive(&Submit::data_out(8, 1, &[1; 600]).bytes()).unwrap();
    assert!(heard.is_empty(), "the device never sees it");
    assert_eq!(server.replies(), [9, 10].map(|seqnum| Reply::Unlink { seqnum, status: ECONNRESET }));
    assert_eq!((server.conn.in_flight(), server.conn.out_bytes_held()), (0, 0));
    assert_eq!(server.conn.backlog_header_bytes(), 0);
    server.checker.assert_settled();
}

#[test]
fn row_6_an_unlink_of_something_unknown_is_answered_at_the_latest_with_the_next_submit() {
    let mut server = Server::imported();
    let urb = server.submit(&Submit::data_in(100, 1, 4));
    server.complete(urb.launch().answer(vec![1; 4].into()));
    for (seqnum, passed_over) in [(101, 99), (102, 0), (103, u32::MAX)] {
        assert_eq!(server.unlink(seqnum, passed_over), None);
        assert_eq!(server.replies(), [Reply::Unlink { seqnum, status: 0 }], "numbers ascend: it will not come");
    }
    server.unlink(104, 105);
    server.unlink(106, 106);
    server.unlink(107, 1000);
    assert_eq!(server.replies(), [], "these may still come");
    server.submit(&Submit::data_in(108, 1, 4));
    assert_eq!(server.replies(), [104, 106].map(|seqnum| Reply::Unlink { seqnum, status: 0 }));
}

#[test]
fn row_7_a_submit_that_comes_after_its_unlink_was_answered_is_not_begun() {
    let mut server = Server::imported();
    server.submit(&Submit::data_in(20, 1, 4));
    // One is below what came already; the other is overtaken by the next submit.
    assert_eq!(server.unlink(21, 19), None);
    assert_eq!(server.unlink(24, 22), None);
    server.submit(&Submit::data_in(23, 1, 4));
    assert_eq!(server.replies(), [21, 24].map(|seqnum| Reply::Unlink { seqnum, status: 0 }));
    for late in [19, 22] {
        server.checker.requested(&Submit::data_out(late, 1, &[1; 600]), false);
        let heard = server.receive(&Submit::data_out(late, 1, &[1; 600]).bytes()).unwrap();
        assert!(heard.is_empty(), "{late}: its client has been told that it is over");
    }
    assert_eq!((server.replies(), server.conn.in_flight(), server.conn.out_bytes_held()), (Vec::new(), 2, 0));
    // A number that is used again is another request.
    server.submit(&Submit::data_in(19, 1, 4));
    assert_eq!(server.conn.in_flight(), 3);
}

#[test]
fn numbers_that_do_not_quite_ascend_leave_no_unlink_waiting() {
    // usbip-win2 numbers its requests in one thread and sends them from several.
    let mut server = Server::imported();
    for seqnum in [7, 6] {
        let urb = server.submit(&Submit::data_in(seqnum, 1, 4));
        server.complete(urb.launch().answer(vec![1; 4].into()));
    }
    server.unlink(9, 7);
    assert_eq!(server.replies(), [Reply::Unlink { seqnum: 9, status: 0 }]);
}

#[test]
fn row_7_a_second_unlink_is_answered_like_the_first() {
    for status in [UrbStatus::Cancelled, UrbStatus::Ok] {
        let mut server = Server::imported();
        let urb = server.submit(&Submit::data_out(1, 1, &[1; 4]));
        assert_eq!(server.unlink(2, 1), Some(UrbId(1)));
        assert_eq!(server.unlink(3, 1), None, "the device is asked once");
        let replies = match status {
            UrbStatus::Ok => server.complete(urb.launch().accept()),
            _ => server.complete(urb.launch().fail(UrbStatus::Cancelled)),
        };
        let errno = if status == UrbStatus::Ok { 0 } else { ECONNRESET };
        let unlinks = [2, 3].map(|seqnum| Reply::Unlink { seqnum, status: errno });
        assert_eq!(replies[replies.len() - 2..], unlinks);
        assert_eq!(replies.len(), if status == UrbStatus::Ok { 3 } else { 2 });
        server.checker.assert_settled();
    }
}

#[test]
fn a_request_that_a_reset_ended_keeps_its_true_status() {
    let mut server = Server::imported();
    let urb = server.submit(&Submit::data_in(1, 1, 4));
    server.unlink(2, 1);
    let replies = server.complete(urb.launch().fail(UrbStatus::Shutdown));
    let expected = [Reply::Submit(RetSubmit::failed(1, peer::ESHUTDOWN)), Reply::Unlink { seqnum: 2, status: 0 }];
    assert_eq!(replies, expected);
}

#[test]
fn unlinks_that_wait_for_a_slow_device_are_counted_as_bytes_to_come() {
    // A client that unlinks one URB for ever must not make the server remember it for ever.
    let mut server = Server::imported();
    let urb = server.submit(&Submit::data_in(1, 1, 4));
    for seqnum in 2..1002 {
        server.unlink(seqnum, 1);
    }
    assert_eq!(server.conn.backlog_bytes(), 0);
    assert_eq!(server.conn.backlog_header_bytes(), 1000 * 48);
    server.complete(urb.launch().fail(UrbStatus::Cancelled));
    assert_eq!(server.conn.backlog_header_bytes(), 0);
    server.checker.assert_settled();
}

#[test]
fn the_importer_takes_ret_unlink_104_for_cancelled() {
    let mut client = Client::imported();
    client.submit(data_in(5, 4));
    let unlink = client.unlink(UrbId(5));
    let done = client.done(&peer::ret_unlink(unlink, ECONNRESET));
    assert_eq!((done[0].id, done[0].status, done.len()), (UrbId(5), UrbStatus::Cancelled, 1));
    assert_eq!(client.conn.in_flight(), 0);
}

#[test]
fn the_importer_takes_ret_submit_before_ret_unlink_0_for_the_truth() {
    let mut client = Client::imported();
    let seqnum = client.submit(data_in(5, 4));
    let unlink = client.unlink(UrbId(5));
    let both = [RetSubmit::data_in(seqnum, &[1, 2]).bytes(), peer::ret_unlink(unlink, 0)].concat();
    let done = client.done(&both);
    assert_eq!((done.len(), done[0].status, done[0].actual), (1, UrbStatus::Ok, 2));
}

#[test]
fn ret_unlink_0_before_ret_submit_cancels_and_the_late_ret_submit_is_swallowed() {
    let mut client = Client::imported();
    let seqnum = client.submit(data_in(5, 4));
    let unlink = client.unlink(UrbId(5));
    let done = client.done(&peer::ret_unlink(unlink, 0));
    assert_eq!((done.len(), done[0].status), (1, UrbStatus::Cancelled), "and not an empty success");
    assert!(client.done(&RetSubmit::data_in(seqnum, &[1, 2]).bytes()).is_empty());
    assert_eq!(client.refusal(&RetSubmit::data_in(seqnum, &[1, 2]).bytes()).field, "seqnum", "once");
}

#[test]
fn the_linux_stub_may_put_the_true_status_into_ret_unlink() {
    for (errno, status) in [(-2, UrbStatus::Cancelled), (-32, UrbStatus::Stall), (-108, UrbStatus::Shutdown)] {
        let mut client = Client::imported();
        client.submit(data_in(5, 4));
        let unlink = client.unlink(UrbId(5));
        assert_eq!(client.done(&peer::ret_unlink(unlink, errno))[0].status, status);
    }
}

#[test]
fn an_unknown_ret_unlink_is_harmless() {
    let mut client = Client::imported();
    let seqnum = client.submit(data_in(5, 4));
    assert!(client.done(&peer::ret_unlink(4242, 0)).is_empty());
    assert!(client.done(&peer::ret_unlink(seqnum, ECONNRESET)).is_empty(), "a submit's number is no unlink's");
    assert_eq!(client.done(&RetSubmit::data_in(seqnum, &[1]).bytes()).len(), 1);
}

#[test]
fn a_reset_withdraws_everything_and_the_link_goes_on() {
    let mut client = Client::imported();
    let (first, second) = (client.submit(data_in(1, 4)), client.submit(data_in(2, 4)));
    let unlinked = client.unlink(UrbId(2));
    let done = client.conn.withdraw_all(UrbStatus::Shutdown);
    assert_eq!(
        done.iter().map(|done| (done.id, done.status)).collect::<Vec<_>>(),
        [(UrbId(1), UrbStatus::Shutdown), (UrbId(2), UrbStatus::Shutdown)]
    );
    let unlink = client.sent();
    assert_eq!((unlink.len(), peer::word(&unlink, 20)), (48, first), "the second is withdrawn already");
    let third = client.submit(data_in(3, 4));
    // One was faster, one was not.
    let late = [
        RetSubmit::data_in(first, &[1; 4]).bytes(),
        peer::ret_unlink(peer::word(&unlink, 4), 0),
        peer::ret_unlink(unlinked, ECONNRESET),
        RetSubmit::data_in(third, &[3; 4]).bytes(),
    ];
    let done = client.done(&late.concat());
    assert_eq!(done.iter().map(|done| (done.id, done.status)).collect::<Vec<_>>(), [(UrbId(3), UrbStatus::Ok)]);
    assert_eq!(client.refusal(&RetSubmit::data_in(second, &[1; 4]).bytes()).field, "seqnum");
}

#[test]
fn second_cancellation_sends_no_second_unlink() {
    let mut client = Client::imported();
    client.submit(data_in(5, 4));
    client.conn.unlink(UrbId(5));
    client.conn.unlink(UrbId(5));
    client.conn.unlink(UrbId(6));
    assert_eq!(client.sent().len(), 48);
}
