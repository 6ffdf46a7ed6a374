//! What sessions run with: their times, and what all of them share.

use std::{sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use super::Hub;
use super::relay::Relay;
use crate::{ops::Counters, status::Board};

/// Times of sessions.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// How long a stream may be open without Hello.
    pub hello_within: Duration,
    /// After so long without a message the agent is asked whether it is there.
    pub probe_after: Duration,
    /// After so long without a message the session ends.
    pub end_after: Duration,
    /// How long an agent may take to take a message.
    pub send_within: Duration,
    /// When a plan that an agent could not store is sent again.
    pub retry_after: Duration,
    /// How often agents report measurements.
    pub report_period: Duration,
    /// After so long, give or take a tenth, a session with no plan on its way ends and the agent goes elsewhere, so that
    /// agents spread again over controllers that came back; `None` for never.
    pub max_age: Option<Duration>,
    /// How long a session that is over its age waits for what is on its way.
    pub age_grace: Duration,
    /// Ends all sessions.
    pub shutdown: CancellationToken,
}

impl SessionOptions {
    /// The times that the product runs with: a silent agent is stale within 30 s.
    pub fn new(shutdown: CancellationToken) -> Self {
        SessionOptions {
            hello_within: Duration::from_secs(10),
            probe_after: Duration::from_secs(10),
            end_after: Duration::from_secs(25),
            send_within: Duration::from_secs(10),
            retry_after: Duration::from_secs(5),
            report_period: Duration::from_secs(2),
            max_age: Some(Duration::from_secs(30 * 60)),
            age_grace: Duration::from_secs(10),
            shutdown,
        }
    }
}

/// What all sessions of a controller share.
#[derive(Debug)]
pub struct Shared<S> {
    /// Desired state.
    pub store: Arc<S>,
    /// Sessions and the picture of the store.
    pub hub: Arc<Hub>,
    /// Reports.
    pub board: Arc<Board>,
    /// What agents say, for other replicas.
    pub relay: Arc<Relay>,
    /// Times of sessions.
    pub options: SessionOptions,
    /// What is counted.
    pub counters: Counters,
}
