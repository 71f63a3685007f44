//! What both processes of a page know: what this user's processes say of themselves, other hosts and their devices,
//! actions that were begun, and how fast data pass.

pub mod lab;
pub mod operation;
pub mod rates;
pub mod status;
