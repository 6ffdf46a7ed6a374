//! What both binaries use, and no domain logic: units, device identities, fences, globs, counter windows, back-off,
//! named tasks, shutdown and telemetry. May not touch kernel files, the network or the contract's generated types.

pub mod backoff;
pub mod counters;
pub mod device;
pub mod fence;
pub mod glob;
pub mod tasks;
pub mod telemetry;
pub mod units;
