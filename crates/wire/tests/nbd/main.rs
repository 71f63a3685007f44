//! NBD's server end: golden bytes, the clauses of the specification, and random input.

#[path = "../fuzzing/mod.rs"]
mod fuzzing;

mod client;
mod hostile;
mod operations;
mod specification;
mod world;
