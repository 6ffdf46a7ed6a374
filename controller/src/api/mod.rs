//! The gRPC services for people and programs, and how all services are served. Wire <-> model, field violations,
//! authorization in one layer.

mod authorize;
pub(crate) mod errors;
mod fleet;
mod intents;
mod mask;
mod paging;
mod serve;
mod views;
mod watch;
pub(crate) mod wire;

pub use fleet::FleetApi;
pub(crate) use fleet::ask_error;
pub use intents::{IntentApi, MAX_INTENTS};
pub use serve::{Addresses, ServeError, Serving, bind, serve};
