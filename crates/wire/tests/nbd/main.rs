//! NBD's server end: golden bytes, what the specification asks of it, and anything a stranger may send.

#[path = "../fuzzing/mod.rs"]
mod fuzzing;

mod client;
mod hostile;
mod operations;
mod specification;
mod world;
