//! The stream to a controller: says hello, takes plans, acknowledges, answers queries, sends measurements; reconnects with
//! patience. The only module that knows the contract's generated types. It never blocks enforcement: it talks with the loop by
//! channels, and what a slow controller does not take is dropped in favour of what is newer.

mod answers;
mod from_wire;
mod measurements;
mod session;
pub mod state;
mod to_wire;

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use weir_common::{
    backoff::Backoff,
    tls::{AddressError, ClientFiles, ClientTls, FileError, Remote, TokenFile},
};

use session::{Ended, SessionError};
use state::{Contact, LinkState};

use crate::{
    config::Tls,
    enforce::report::Report,
    measure::Meter,
    reconcile::{Command, NodeFacts},
};

/// What this agent can do, as it says in its Hello.
pub const FEATURES: [&str; 5] =
    ["control.limits", "scope.node", "devices.file_path", "query.explain", "query.workloads"];

/// Without contact for so long, a node is out of date.
const STALE_AFTER: Duration = Duration::from_secs(30);
/// A session that lived so long was a good one: reconnecting begins anew with the fast phase.
const GOOD_SESSION: Duration = Duration::from_secs(10);
/// From the beginning of an attempt to the controller's Hello: one that takes connections and says nothing is left for the next.
const HELLO_WITHIN: Duration = Duration::from_secs(10);
/// After so long without a session the slow phase begins, however long each attempt took.
const FAST_PHASE: Duration = Duration::from_secs(30);
/// A controller may send an agent elsewhere at once; again within this time, the agent waits as after a failure.
const ELSEWHERE_AT_ONCE: Duration = Duration::from_millis(500);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Both ends send keep-alives at this pace, and give up after the timeout: a vanished peer is known within 15 s.
const KEEPALIVE: Duration = Duration::from_secs(10);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(5);

/// What a pass of enforcement may take beyond its period before the node is said to hang.
pub const STALL_MARGIN: Duration = Duration::from_secs(20);

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
    /// Addresses of controllers. Tried in a random order, the next at each failure.
    pub controllers: Vec<Remote>,
    /// Who this agent is.
    pub identity: Identity,
    /// To the loop.
    pub commands: mpsc::Sender<Command>,
    /// From the loop.
    pub facts: watch::Receiver<NodeFacts>,
    /// From the loop.
    pub reports: watch::Receiver<Arc<Report>>,
    /// The loop publishes a report at least this often unless it hangs.
    pub pass_within: Duration,
    /// For measurements.
    pub meter: Meter,
    /// Where the link says how it is.
    pub state: watch::Sender<LinkState>,
}

/// The addresses of controllers, or the certificates to reach them by, cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// An address is none.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The files of TLS cannot be used.
    #[error(transparent)]
    Files(#[from] FileError),
}

/// The controllers at these addresses; the files of `tls` are for those with https.
///
/// # Errors
/// An address is none, or a file cannot be used.
pub fn remotes(addresses: &[String], tls: Tls) -> Result<Vec<Remote>, RemoteError> {
    let Tls { ca, certificate, key, server_name, token_file } = tls;
    let token = token_file.as_deref().map(TokenFile::new);
    let tls = ca.map(|ca| ClientTls::load(ClientFiles { ca, pair: certificate.zip(key) })).transpose()?.map(Arc::new);
    let remote = |address: &String| {
        let remote = Remote::new(address, tls.clone(), server_name.as_deref())?.with_token(token.clone())?;
        Ok(remote.map(|endpoint| {
            endpoint
                .connect_timeout(CONNECT_TIMEOUT)
                .http2_keep_alive_interval(KEEPALIVE)
                .keep_alive_timeout(KEEPALIVE_TIMEOUT)
                .keep_alive_while_idle(true)
        }))
    };
    addresses.iter().map(remote).collect()
}

impl Link {
    /// Keeps a session with one of the controllers until `shutdown`.
    ///
    /// # Errors
    /// None: it ends with `shutdown` or when the loop has ended.
    pub async fn run(mut self, shutdown: CancellationToken) -> Result<(), std::convert::Infallible> {
        let contact = Contact::now();
        let state = self.state.clone();
        tokio::select! {
            () = self.sessions(&contact) => {}
            () = state::watch_contact(contact.clone(), state, STALE_AFTER) => {}
            () = shutdown.cancelled() => {}
        }
        self.state.send_modify(|state| state.controller = None);
        Ok(())
    }

    /// One session after the other, until the loop has ended.
    async fn sessions(&mut self, contact: &Contact) {
        // Not all agents begin with the same one, nor go on to the same one.
        fastrand::shuffle(&mut self.controllers);
        let mut pace = Pace::new(Instant::now());
        while !self.commands.is_closed() {
            let Some(remote) = self.controllers.first().cloned() else {
                // Without a controller the last plan is kept.
                return std::future::pending().await;
            };
            let started = Instant::now();
            let ended = self.one_session(&remote, contact).await;
            self.state.send_modify(|state| state.controller = None);
            match &ended {
                Ok(Ended::Broke) => tracing::info!(controller = %remote, "the session ended"),
                Ok(Ended::Elsewhere) => {
                    tracing::info!(controller = %remote, "the controller sends this agent elsewhere")
                }
                Err(error) if error.is_name_taken() => self.name_taken(error),
                Err(error) => tracing::warn!(controller = %remote, %error, "no session"),
            }
            self.go_on(matches!(ended, Ok(Ended::Elsewhere)));
            let wait = pace.wait(&ended, started, Instant::now(), fastrand::f64());
            tokio::time::sleep(wait).await;
        }
    }

    /// Puts the next address first: any other one where the controller asked for it.
    fn go_on(&mut self, anywhere: bool) {
        if let [_, others @ ..] = self.controllers.as_mut_slice()
            && anywhere
        {
            fastrand::shuffle(others);
        }
        if !self.controllers.is_empty() {
            self.controllers.rotate_left(1);
        }
    }

    /// Said once, not at each attempt: only a person can end it.
    fn name_taken(&self, error: &SessionError) {
        let text = error.to_string();
        let mut first = false;
        self.state.send_if_modified(|state| {
            first = state.name_taken.is_none();
            if first {
                state.name_taken = Some(text.clone());
            }
            first
        });
        if first {
            tracing::error!(node = self.identity.node, "another live agent has this node's name: {text}");
        }
    }

    /// Connects and speaks until the session ends. `Ok` where there was one.
    async fn one_session(&mut self, remote: &Remote, contact: &Contact) -> Result<Ended, SessionError> {
        let deadline = Instant::now() + HELLO_WITHIN;
        let connected = tokio::time::timeout_at(deadline, remote.connect()).await;
        let channel = connected.map_err(|_| SessionError::NoHelloInTime)??;
        session::run(self, channel, &remote.to_string(), contact, deadline).await.map_err(SessionError::explained)
    }
}

/// How long to wait between sessions. PURE: times and randomness come in.
struct Pace {
    attempt: u32,
    /// Since when there has been no good session.
    since: Instant,
}

impl Pace {
    fn new(now: Instant) -> Pace {
        Pace { attempt: 0, since: now }
    }

    /// The wait after a session, or an attempt, that began at `started` and ended `now`.
    fn wait(&mut self, ended: &Result<Ended, SessionError>, started: Instant, now: Instant, random: f64) -> Duration {
        let lived = now.saturating_duration_since(started);
        if ended.is_ok() && lived >= GOOD_SESSION {
            *self = Pace::new(now);
        }
        if matches!(ended, Ok(Ended::Elsewhere)) && lived >= ELSEWHERE_AT_ONCE {
            return Duration::ZERO;
        }
        let slow = ended.as_ref().err().is_some_and(SessionError::is_name_taken)
            || now.saturating_duration_since(self.since) >= FAST_PHASE;
        if slow {
            self.attempt = self.attempt.max(Backoff::RECONNECT.fast_attempts);
        }
        let wait = Backoff::RECONNECT.wait(self.attempt, random);
        self.attempt = self.attempt.saturating_add(1);
        wait
    }
}

#[cfg(test)]
mod tests;
