//! What all clients of a page together may make it hold, in one place. Each limit is named where it is kept.
//!
//! Programs of other users, and browsers of other machines, have a process of their own: what holds for all connections
//! counts for each. What a stream of events takes counts for the owner's programs and for browsers of other machines.
//!
//! 1,024 clients of either kind that follow events are what the total is for: 1,000 people and programs of a laboratory
//! look at one host's page. One of this machine costs 19 KiB and 48 KiB at most (debug build; `page_many.rs` measures
//! it), one over TLS 34 KiB and 80 KiB at most (`page_many_tls.rs`).

use farbus_model::budget::sum;

use crate::api::journal::{EVENT_BYTES_MAX, KEPT_MAX};
use crate::api::kept::{RECORDING_BYTES_MAX, SCROLLBACK_BYTES_MAX};
use crate::api::operations::{OUTPUT_BYTES_MAX, STACK_BYTES};
use crate::api::picture::{PICTURE_BYTES_MAX, PICTURES_MAX, READ_BYTES};
use crate::api::remembered::{CONSOLES_MAX, LASTING_MAX, RECORDINGS_MAX, REMEMBERED_MAX, RUNNING_MAX};
use crate::api::requests::BODY_BYTES_MAX;
use crate::api::transcript::TEXT_BYTES_MAX;
use crate::http::drawn::VIEW_BYTES_MAX;
use crate::http::secure::TLS_BYTES_MAX;
use crate::http::server::{BODIES_MAX, HEAD_BYTES_MAX, STREAMS_MAX, UNREAD_KIB_MAX};
use crate::known::lab::LAB_BYTES_MAX;
use crate::line::messages::{ANSWER_BYTES_MAX, AUTHORIZATION_BYTES_MAX, QUESTION_BYTES_MAX};
use crate::line::places::QUESTIONS_MAX;
use crate::rights::clients::{CONNECTIONS_MAX, OF_OTHERS_MAX, REMOTE_MAX};

/// The most that is held for clients, part by part, bytes.
const PARTS: [(&str, usize); 18] = [
    ("heads that arrive and that leave", (CONNECTIONS_MAX + OF_OTHERS_MAX + REMOTE_MAX) * 2 * HEAD_BYTES_MAX),
    ("TLS of browsers of other machines", REMOTE_MAX * TLS_BYTES_MAX),
    ("bodies that arrive", BODIES_MAX * BODY_BYTES_MAX as usize),
    ("events that are kept", KEPT_MAX * EVENT_BYTES_MAX),
    ("events that are being sent and not kept any more", 2 * STREAMS_MAX * EVENT_BYTES_MAX),
    ("what views look like that are followed", 2 * STREAMS_MAX * VIEW_BYTES_MAX),
    ("operations that are remembered", REMEMBERED_MAX * OUTPUT_BYTES_MAX as usize),
    ("output of commands that run", RUNNING_MAX * OUTPUT_BYTES_MAX as usize),
    ("what was recorded of devices", RECORDINGS_MAX * RECORDING_BYTES_MAX),
    ("what was recorded, as text", RECORDINGS_MAX * size_of::<char>() * TEXT_BYTES_MAX),
    // What is added stands behind the latest before the oldest goes.
    ("what consoles have printed", CONSOLES_MAX * 2 * SCROLLBACK_BYTES_MAX),
    // The newest, and the one that comes.
    ("pictures of streams", PICTURES_MAX * (2 * PICTURE_BYTES_MAX + 2 * READ_BYTES)),
    ("answers that are not read yet", UNREAD_KIB_MAX << 10),
    ("questions to the process with the rights", 2 * QUESTIONS_MAX * QUESTION_BYTES_MAX),
    ("questions who a client is", (CONNECTIONS_MAX + OF_OTHERS_MAX + REMOTE_MAX) * 4 * AUTHORIZATION_BYTES_MAX),
    ("answers that it sends, one at a time", 2 * ANSWER_BYTES_MAX),
    // As the directory says it, as the hosts do, together, and as it was before.
    ("what is known of other hosts", 4 * LAB_BYTES_MAX),
    ("threads that read it", (3 * RUNNING_MAX + LASTING_MAX) * STACK_BYTES),
];
/// The most that all of that may be.
const BYTES_MAX: usize = 592 << 20;

const _: () = assert!(sum(&PARTS) <= BYTES_MAX, "the limits of the page are its budget");
