//! Whom a page lets in: its key, codes, tokens, and where it is.

pub mod invitations;
pub mod page_key;
pub mod remote_page;
pub mod tokens;
