//! The stream to a controller: says hello, takes plans, acknowledges, answers queries, sends measurements; reconnects with
//! patience. The only module that knows the contract's generated types. It never blocks enforcement: it talks with the loop by
//! channels, and what a slow controller does not take is dropped in favour of what is newer.

mod from_wire;
mod measurements;
mod session;
mod to_wire;

use std::{sync::Arc, time::Duration};

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use weir_common::{
    backoff::Backoff,
    tls::{AddressError, ClientTls, Remote},
};

use crate::{
    enforce::report::Report,
    measure::Meter,
    reconcile::{Command, NodeFacts},
};

/// What this agent can do, as it says in its Hello.
pub const FEATURES: [&str; 4] = ["control.limits", "scope.node", "query.explain", "query.workloads"];

/// Without contact for so long, a node is out of date.
const STALE_AFTER: Duration = Duration::from_secs(30);
/// A session that lived so long was a good one: reconnecting begins anew with the fast phase.
const GOOD_SESSION: Duration = Duration::from_secs(10);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Both ends send keep-alives at this pace, and give up after the timeout: a vanished peer is known within 15 s.
const KEEPALIVE: Duration = Duration::from_secs(10);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(5);

/// Who this agent is.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Name of the node.
    pub node: String,
    /// Identity of the ledger.
    pub node_uid: String,
    /// Differs at every start.
    pub instance: String,
    /// The kernel's boot id.
    pub boot_id: String,
}

/// The link. Clone-free: one runs.
pub struct Link {
    /// Addresses of controllers, tried in turn.
    pub controllers: Vec<Remote>,
    /// Who this agent is.
    pub identity: Identity,
    /// To the loop.
    pub commands: mpsc::Sender<Command>,
    /// From the loop.
    pub facts: watch::Receiver<NodeFacts>,
    /// From the loop.
    pub reports: watch::Receiver<Arc<Report>>,
    /// For measurements.
    pub meter: Meter,
}

/// The controller at an address; `tls` and `server_name` are for https.
///
/// # Errors
/// The address is none.
pub fn remote(address: &str, tls: Option<Arc<ClientTls>>, server_name: Option<&str>) -> Result<Remote, AddressError> {
    let remote = Remote::new(address, tls, server_name)?;
    Ok(remote.map(|endpoint| {
        endpoint
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(KEEPALIVE)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT)
            .keep_alive_while_idle(true)
    }))
}

impl Link {
    /// Keeps a session with one of the controllers until `shutdown`.
    ///
    /// # Errors
    /// None: it ends with `shutdown` or when the loop has ended.
    pub async fn run(mut self, shutdown: CancellationToken) -> Result<(), std::convert::Infallible> {
        let mut attempt = 0;
        let mut last_contact = tokio::time::Instant::now();
        let mut said_stale = false;
        // Not all agents begin with the same one.
        let mut next = fastrand::usize(..self.controllers.len().max(1));
        while !shutdown.is_cancelled() && !self.commands.is_closed() {
            let Some(remote) = self.controllers.get(next % self.controllers.len().max(1)).cloned() else {
                // Without a controller the last plan is kept.
                shutdown.cancelled().await;
                break;
            };
            next = next.wrapping_add(1);
            let started = tokio::time::Instant::now();
            let ended = tokio::select! {
                ended = self.one_session(&remote) => ended,
                () = shutdown.cancelled() => break,
            };
            let now = tokio::time::Instant::now();
            match ended {
                Ok(()) => {
                    last_contact = now;
                    said_stale = false;
                    tracing::info!(controller = %remote, "the session ended");
                    if now - started >= GOOD_SESSION {
                        attempt = 0;
                    }
                }
                Err(error) => tracing::warn!(controller = %remote, %error, "no session"),
            }
            if !said_stale && now - last_contact >= STALE_AFTER {
                said_stale = true;
                tracing::warn!("Stale: out of contact with every controller; the last plan stays in force");
            }
            let wait = Backoff::RECONNECT.wait(attempt, fastrand::f64());
            attempt = attempt.saturating_add(1);
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = shutdown.cancelled() => break,
            }
        }
        Ok(())
    }

    /// Connects and speaks until the session ends. `Ok` where there was one.
    async fn one_session(&mut self, remote: &Remote) -> Result<(), session::SessionError> {
        let channel = remote.connect().await?;
        session::run(self, channel).await.map_err(session::SessionError::explained)
    }
}
