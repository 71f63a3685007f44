//! The reference of the control protocol, made of its types: `docs/control.schema.json`, and the tables of
//! `docs/control.md`.
//!
//! A type's docstrings say what its fields mean. One of a [`Question`](crate::question::Question) begins with the
//! processes that answer it, and a colon. One of an [`EventKind`](crate::event::EventKind) ends with the fields that an
//! event has, after `Fields:`. A test writes both files: see [`document`] and [`tables`].

pub mod document;
pub mod tables;

#[cfg(test)]
mod tests;
