//! The side that has the devices: [`share::Share`] offers them on listening sockets, admits peers and serves their
//! sessions.
//!
//! | part | what it does |
//! |---|---|
//! | `access` | decides who may connect, as whom, and how much of this process each peer may use |
//! | `session` | serves devices to an importer: one thread a session |
//! | `state` | the objects that all connections share, each with its lock |
//! | `opening` | opens devices for sessions, and takes them back |
//! | `connections` | accepts connections and serves each |
//! | `leasing` | leases: grants them, ends them in time, and fences their former holders off |
//! | `owner`, `questions`, `restart` | do what the owner and paired hosts ask for, and continue the sessions of the process before this one |
//! | `sources`, `offering`, `swap` | make shareable devices, offer them, and exchange their media |

pub mod access;
mod connections;
pub mod error;
mod leasing;
pub mod offering;
pub mod opening;
mod owner;
pub mod owner_answers;
mod questions;
pub mod restart;
pub mod session;
pub mod share;
pub mod sources;
pub mod state;
pub mod swap;
pub mod swap_answers;
mod twin;
