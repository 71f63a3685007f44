//! What is known of devices without opening one: identities, names and selection, reservations, descriptions and lists,
//! and the journals of swapped media.
//!
//! The broker reads and writes this for the exporter; importers show it.

pub mod bus_status;
pub mod class_words;
pub mod descriptors;
pub mod follow;
pub mod identities;
pub mod lease;
pub mod local_twin;
pub mod media_journal;
pub mod offer;
pub mod query;
pub mod reservation;
pub mod retirement;
pub mod selection;
pub mod status;
pub mod swap_run;
pub mod usb_names;
