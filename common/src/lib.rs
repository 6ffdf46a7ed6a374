//! What both binaries use, and no domain logic: units, device identities, durable names of files, errors as text, fences, globs, counter windows, back-off,
//! named tasks, shutdown, telemetry, TLS and files that are reloaded. May not touch kernel files or the contract's generated
//! types; the network only in `tls`.

pub mod backoff;
pub mod counters;
pub mod device;
pub mod durable;
pub mod errors;
pub mod fence;
pub mod glob;
pub mod ops;
pub mod reload;
pub mod tasks;
pub mod telemetry;
pub mod tls;
pub mod units;
