//! What all clients of a page together may make it hold, in one place. Each limit is named where it is kept.

use farbus_model::budget::sum;

use super::api::journal::{EVENT_BYTES_MAX, KEPT_MAX};
use super::api::operations::{LASTING_MAX, OUTPUT_BYTES_MAX, REMEMBERED_MAX, RUNNING_MAX, STACK_BYTES};
use super::api::requests::BODY_BYTES_MAX;
use super::server::{CONNECTIONS_MAX, HEAD_BYTES_MAX, OTHERS_MAX};

/// The most that is held for clients, part by part, bytes; an answer that is being sent comes on top.
const PARTS: [(&str, usize); 5] = [
    ("heads and bodies that arrive", (CONNECTIONS_MAX + OTHERS_MAX) * (2 * HEAD_BYTES_MAX + BODY_BYTES_MAX as usize)),
    ("events that are kept", KEPT_MAX * EVENT_BYTES_MAX),
    ("operations that are remembered", REMEMBERED_MAX * OUTPUT_BYTES_MAX as usize),
    ("output of commands that run", RUNNING_MAX * OUTPUT_BYTES_MAX as usize),
    ("threads that read it", (2 * RUNNING_MAX + LASTING_MAX) * STACK_BYTES),
];
/// The most that all of that may be.
const BYTES_MAX: usize = 56 << 20;

const _: () = assert!(sum(&PARTS) <= BYTES_MAX, "the limits of the page are its budget");
