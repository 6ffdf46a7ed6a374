//! Agents' streams: hand-shake, push, acknowledge, query, measurements. Takes plans from `plan` over the catalog, gives
//! reports to `status`. Uses `wire` for the contract's types; touches the store only for node records.

mod attach;
mod follow;
mod hub;
mod node_record;
mod options;
mod plan_sync;
mod queries;
mod relay;
mod remote;
mod run;
mod service;
mod trace;

pub use attach::AttachError;
pub use follow::{FollowError, follow, load};
pub use hub::{Hub, NodeState};
pub use options::{SessionOptions, Shared};
pub use queries::AskError;
pub(crate) use queries::Failure as AskFailure;
pub use relay::Relay;
pub(crate) use relay::Subscription;
pub(crate) use remote::{RemoteAsk, RemoteSession};
pub(crate) use run::{Hello, check as check_hello};
pub use service::AgentApi;
