//! The process that speaks HTTP, without rights: connections and their limits, which requests are answered, and the
//! answers. What it shows and does it asks the other process for ([`crate::line`]).

pub mod answers;
mod body;
mod connection;
pub mod drawn;
mod forming;
pub mod guard;
pub mod html;
mod room;
pub mod secure;
pub mod server;
