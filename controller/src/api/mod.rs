//! The gRPC services for people and programs, and how all services are served. Wire <-> model, field violations,
//! authorization in one layer, what the request's content decides by one call of the principal each.

mod accept;
mod authorize;
mod commit;
mod fleet;
mod intents;
mod mask;
mod names;
mod observe;
mod paging;
mod serve;
mod views;
mod watch;

pub use authorize::{RULES, Rule, rule};
pub use fleet::FleetApi;
pub use intents::{IntentApi, MAX_INTENTS};
pub use serve::{Addresses, Security, ServeError, Serving, bind, serve};
pub(crate) use views::intent_summary;
