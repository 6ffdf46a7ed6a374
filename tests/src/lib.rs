//! Harness for Weir's tests and for the quickstart: disks and cgroups that clean up after themselves, the product's
//! binaries as processes, clients, and a load generator's results.
//!
//! Touches only what it made: loop devices that it attached, cgroups under a prefix of its own, processes that it
//! started.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a harness fails by panicking, with the place in the message"
)]
#![allow(clippy::print_stderr, reason = "tests and command-line drivers speak to a person")]

pub mod cgroup;
pub mod collector;
pub mod disk;
pub mod etcd;
pub mod fleet;
pub mod kube_api;
pub mod layouts;
pub mod load;
pub mod process;
pub mod require;
pub mod rig;
pub mod sim;
