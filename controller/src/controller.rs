//! The controller as a whole: its parts and tasks around one store.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::net::TcpListener;
use weir_common::tasks::{OnDeath, TaskSet};

use crate::{
    api::{self, Security, Serving},
    leader::{self, Elect},
    ops::{ControllerOps, Counters},
    peers::Peers,
    session::{self, Hub, Relay, SessionOptions},
    status::Board,
    store::{Store, StoreError},
};

/// What the controller runs with.
#[derive(Debug)]
pub struct Options {
    /// Times of sessions, and the token that ends everything.
    pub sessions: SessionOptions,
    /// TLS and identities.
    pub security: Security,
    /// Revisions for which watches can resume.
    pub keep_revisions: u64,
    /// After so long without contact a node is shown as gone.
    pub gone_after: Duration,
    /// Where metrics and health are served; `None` for nowhere.
    pub ops: Option<TcpListener>,
}

/// Loads the store and starts serving on the listener; connections are taken when this returns.
///
/// # Errors
/// The store cannot be read.
pub async fn start<S: Store, E: Elect>(
    store: Arc<S>,
    elect: Arc<E>,
    listener: TcpListener,
    options: Options,
    tasks: &mut TaskSet,
) -> Result<SocketAddr, StartError> {
    let address = listener.local_addr().map_err(StartError::Address)?;
    let Options { sessions, security, keep_revisions, gone_after, ops } = options;
    let counters = Counters::default();
    let shutdown = sessions.shutdown.clone();
    let catalog = session::load(&*store).await?;
    let from = catalog.revision;
    tracing::info!(revision = %from, intents = catalog.intents.len(), nodes = catalog.nodes.len(), "the store is loaded");
    let hub = Arc::new(Hub::new(store.epoch(), catalog));
    let board = Arc::new(Board::new(gone_after, Instant::now()));
    let relay = Arc::new(if elect.has_others() { Relay::on() } else { Relay::off() });
    let peers = Peers { me: elect.id(), hub: Arc::clone(&hub), board: Arc::clone(&board), tls: security.peers.clone() };
    let mirroring = {
        let (replicas, shutdown) = (elect.replicas(), shutdown.clone());
        async move {
            tokio::select! {
                result = peers.run(replicas) => result,
                () = shutdown.cancelled() => Ok(()),
            }
        }
    };
    tasks.spawn("mirror-replicas", OnDeath::EndProcess, mirroring);

    if let Some(listener) = ops {
        let answers = ControllerOps { hub: Arc::clone(&hub), board: Arc::clone(&board), counters: counters.clone() };
        tasks.spawn("ops", OnDeath::EndProcess, weir_common::ops::serve(listener, Arc::new(answers), shutdown.clone()));
    }

    let following = {
        let (store, hub, shutdown) = (Arc::clone(&store), Arc::clone(&hub), shutdown.clone());
        let counters = counters.clone();
        async move {
            tokio::select! {
                result = session::follow(store, hub, from, counters) => result,
                () = shutdown.cancelled() => Ok(()),
            }
        }
    };
    tasks.spawn("follow-store", OnDeath::EndProcess, following);
    let attending = {
        let (elect, shutdown) = (Arc::clone(&elect), shutdown.clone());
        async move {
            elect.attend(shutdown).await;
            Ok::<(), Infallible>(())
        }
    };
    tasks.spawn("election", OnDeath::EndProcess, attending);
    let leading = {
        let (store, hub, counters) = (Arc::clone(&store), Arc::clone(&hub), counters.clone());
        async move {
            tokio::select! {
                result = leader::run(store, hub, elect, keep_revisions, counters) => result,
                () = shutdown.cancelled() => Ok(()),
            }
        }
    };
    tasks.spawn("leader", OnDeath::EndProcess, leading);
    tasks.spawn(
        "serve",
        OnDeath::EndProcess,
        api::serve(listener, Serving { store, hub, board, relay, sessions, security, counters }),
    );
    Ok(address)
}

/// The controller cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The listener has no address.
    #[error("the listener's address is unknown: {0}")]
    Address(std::io::Error),
    /// The store cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
}
