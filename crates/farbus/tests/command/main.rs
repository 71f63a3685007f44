//! The `farbus` command as its users see it: the real program, its output, its exit codes, and what happens to both
//! ends when one of them is killed or receives false data.
//!
//! Only tests that show a disk as a file or trace system calls need privileges. Where FUSE or strace is missing, such a
//! test says so and passes; with `FARBUS_REQUIRE_RIG=1` it fails instead.

mod addresses;
mod another_disk;
mod audio;
mod bench;
mod block;
mod bridge;
mod claims;
mod cluster;
mod congestion;
mod containers;
mod control_socket;
mod cuts;
mod cuts_and_kills;
mod daemon;
mod demo;
mod disk;
mod driver;
mod durable;
mod evil_exporters;
mod exporters;
mod far_streams;
mod full_disk;
mod happenings;
mod harness;
mod hostile;
mod identity;
mod kills;
#[path = "../../../session/tests/unwilling/kinds.rs"]
mod kinds;
mod lines;
mod local_users;
mod migrate;
mod mixed;
mod module_processes;
mod modules;
mod moves;
mod nbd;
mod nbd_migrate;
mod network;
mod observe;
mod own_network;
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
mod restart_successors;
mod rights;
mod run;
mod run_programs;
mod run_tools;
mod runtime_folder;
mod seen;
mod sessions;
mod share_by_daemon;
mod siege;
mod sleep;
mod socket_access;
mod sockets;
mod strangers;
mod stream;
mod swap;
mod swap_attached;
mod topology;
mod trust;
mod unwilling;
mod unwilling_programs;
