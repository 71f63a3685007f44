//! The processes of one owner on this machine, and how they find and ask each other: the runtime folder, the control
//! sockets in it, what has happened in each process, and how people name a device to them.

pub mod asking;
pub mod control_socket;
pub mod events;
pub mod happenings;
pub mod passed_files;
pub mod runtime_folder;
pub mod time_words;
