//! What all clients of a page together may make it hold, in one place. Each limit is named where it is kept.
//!
//! Programs of other users have a process of their own: what holds for all connections counts for each.

use farbus_model::budget::sum;

use super::api::journal::{EVENT_BYTES_MAX, KEPT_MAX};
use super::api::operations::{
    LASTING_MAX, OUTPUT_BYTES_MAX, RECORDING_BYTES_MAX, RECORDINGS_MAX, REMEMBERED_MAX, RUNNING_MAX, STACK_BYTES,
};
use super::api::requests::BODY_BYTES_MAX;
use super::api::transcript::TEXT_BYTES_MAX;
use super::line::messages::{ANSWER_BYTES_MAX, QUESTION_BYTES_MAX, QUESTIONS_MAX};
use super::rights::{CONNECTIONS_MAX, OTHERS_MAX};
use super::server::{HEAD_BYTES_MAX, UNREAD_KIB_MAX};

/// The most that is held for clients, part by part, bytes.
const PARTS: [(&str, usize); 10] = [
    ("heads and bodies that arrive", (CONNECTIONS_MAX + OTHERS_MAX) * (2 * HEAD_BYTES_MAX + BODY_BYTES_MAX as usize)),
    ("events that are kept", KEPT_MAX * EVENT_BYTES_MAX),
    ("operations that are remembered", REMEMBERED_MAX * OUTPUT_BYTES_MAX as usize),
    ("output of commands that run", RUNNING_MAX * OUTPUT_BYTES_MAX as usize),
    ("what was recorded of devices", RECORDINGS_MAX * RECORDING_BYTES_MAX),
    ("what was recorded, as text", RECORDINGS_MAX * size_of::<char>() * TEXT_BYTES_MAX),
    ("answers that are not read yet", UNREAD_KIB_MAX << 10),
    ("questions to the process with the rights", 2 * QUESTIONS_MAX * QUESTION_BYTES_MAX),
    ("answers that it sends, one at a time", 2 * ANSWER_BYTES_MAX),
    ("threads that read it", (2 * RUNNING_MAX + LASTING_MAX) * STACK_BYTES),
];
/// The most that all of that may be.
const BYTES_MAX: usize = 184 << 20;

const _: () = assert!(sum(&PARTS) <= BYTES_MAX, "the limits of the page are its budget");
