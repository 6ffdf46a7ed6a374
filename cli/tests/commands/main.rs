//! The built binary, command by command, against a mock of the controller's services: what is printed, what is stored, and
//! the exit codes.
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

mod apply;
mod fleet;
mod mock;
mod waiting;
