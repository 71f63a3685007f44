//! Every action: those that the page offers, then those for programs.

use crate::api::actions::{ACTIONS, PageAction};
use crate::api::commands::COMMANDS;

/// All of them, in the order in which they are listed and described.
pub fn all() -> impl Iterator<Item = &'static PageAction> {
    ACTIONS.iter().chain(COMMANDS)
}

/// The action with this name.
pub fn action(name: &str) -> Option<&'static PageAction> {
    all().find(|action| action.name == name)
}
