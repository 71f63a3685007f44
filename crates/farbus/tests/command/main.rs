//! The `farbus` command as its users meet it: the real program, its output, its exit codes, and what becomes of both ends
//! when one of them is killed or lied to.
//!
//! Nothing here needs privilege but what shows a disk as a file or watches system calls. Where FUSE or strace is missing
//! such a test says so and passes; with `FARBUS_REQUIRE_RIG=1` it fails instead.

mod audio;
mod bench;
mod block;
mod bridge;
#[path = "../canary/mod.rs"]
mod canary;
mod claims;
mod cluster;
mod congestion;
mod cuts;
mod daemon;
mod demo;
mod disk;
mod door;
mod driver;
mod exporters;
mod far_streams;
mod full_disk;
mod harness;
mod hostile;
mod lines;
mod migrate;
mod mixed;
mod modules;
mod nbd;
mod nbd_migrate;
mod network;
mod observe;
mod owner;
mod pipe;
mod quic;
mod redir;
mod redir_links;
mod redir_migrate;
mod reserve;
mod reserve_hosts;
mod restart;
mod restart_attached;
mod restart_heirs;
mod rights;
mod sessions;
mod siege;
mod sleep;
mod sockets;
mod stream;
mod swap;
mod topology;
mod trust;
