//! Agents' streams: hand-shake, push, acknowledge, query, measurements. Takes plans from `plan` over the catalog, gives
//! reports to `status`. Uses `api::wire` for the contract's types; touches the store only for node records.

mod attach;
mod follow;
mod hub;
mod node_record;
mod plan_sync;
mod queries;
mod run;
mod service;

pub use attach::AttachError;
pub use follow::{FollowError, follow, load};
pub use hub::{Hub, NodeState};
pub use queries::AskError;
pub use service::{AgentApi, SessionOptions};
