//! A FUSE file system that is a tree of folders, links, files, and files that take ioctls, for one program and those
//! that it starts. Its server decides what is in it at each request; the kernel remembers nothing.

mod mounting;
mod protocol;

pub use mounting::mount;
pub use protocol::{RequestId, TreeNodeAttributes, TreeNodeKind, TreeOperation, TreeRequest, TreeServer};
