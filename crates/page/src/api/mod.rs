//! What programs and the page's buttons use: actions, the answers under `/api/v1`, and their events.
//!
//! An action is a command line of farbus. [`table`] has all of them, from which the routes, their
//! description and the buttons come; [`operations`] runs them.

#[cfg(test)]
mod action_examples;
pub mod actions;
pub mod callers;
pub mod commands;
pub mod doing;
pub mod forms;
pub mod journal;
pub mod kept;
pub mod metrics;
pub mod offers;
pub mod openapi;
pub mod operations;
pub mod picture;
pub mod refusal;
pub mod remembered;
pub mod requests;
pub mod routes;
pub mod schemas;
pub mod scope_schema;
pub mod subjects;
pub mod table;
pub mod transcript;
