//! The controller of Weir: it holds what the fleet's operators want of their disks, tells every node its part, and
//! answers what became of it.
//!
//! Data flows one way: `api` -> `store` -> `plan` -> `session`; reports flow back: `session` -> `status` -> `api`. Only
//! `api`, `session`, `peers` and `wire` between them and the model know the contract's generated types.

pub mod access;
pub mod api;
pub mod catalog;
pub mod config;
pub mod controller;
pub mod leader;
pub mod maintain;
pub mod model;
pub mod ops;
pub mod peers;
pub mod plan;
pub mod secure;
pub mod session;
pub mod status;
pub mod store;
pub(crate) mod wire;
