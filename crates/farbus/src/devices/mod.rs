//! What is known of devices without opening one: identities, names and which are selected, what is reserved for them,
//! how they are described and listed, where swapped media are noted.
//!
//! The broker reads and writes it for the exporter; importers show it.

pub mod class_words;
pub mod identities;
pub mod media_journal;
pub mod offer;
pub mod reservation;
pub mod selection;
pub mod status;
