//! The `farbus` command.
fn main() {}
