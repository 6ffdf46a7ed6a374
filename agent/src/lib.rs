//! Weir's node agent. It takes plans from a controller, finds out what they mean on this node, makes the kernel keep
//! them, measures whether it does, and says so.
//!
//! Data flows one way: link -> resolve -> enforce -> kernel, and back: kernel -> measure -> link.

pub mod condition;
pub mod config;
pub mod devices;
pub mod enforce;
pub mod kernel;
pub mod ledger;
pub mod link;
pub mod measure;
pub mod ops;
pub mod plan;
pub mod reconcile;
pub mod resolve;
pub mod simulate;
pub mod trace;
pub mod view;
pub mod workloads;
