//! The other replicas: what the agents that they serve say is mirrored here, so that any replica answers for the whole
//! fleet, and a leader knows what nodes on other replicas hold. Reports never go through the store (docs/decisions/0004).
//!
//! Uses the contract's types; touches the network, the hub and the board.

mod mirror;
mod relay;
mod service;

use std::{
    collections::{BTreeSet, HashMap},
    convert::Infallible,
    sync::Arc,
};

use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};
use weir_common::tls::ClientTls;

use crate::{
    leader::{ReplicaId, Replicas},
    session::Hub,
    status::Board,
};

pub use relay::Relay;
pub use service::PeerApi;

/// What mirrors need.
#[derive(Clone, Debug)]
pub struct Peers {
    /// This replica.
    pub me: ReplicaId,
    /// Where sessions elsewhere are noted.
    pub hub: Arc<Hub>,
    /// Where reports from elsewhere are put.
    pub board: Arc<Board>,
    /// How other replicas are connected to; in plain text without it.
    pub tls: Option<Arc<ClientTls>>,
}

impl Peers {
    /// Keeps a mirror of each other replica for as long as that is there. Ends only when nobody tells of replicas any more.
    ///
    /// # Errors
    /// None.
    pub async fn run(self, mut replicas: watch::Receiver<Replicas>) -> Result<(), Infallible> {
        let mut mirrors: HashMap<ReplicaId, DropGuard> = HashMap::new();
        loop {
            let present = replicas.borrow_and_update().clone();
            let gone: BTreeSet<ReplicaId> = mirrors.keys().filter(|id| !present.contains_key(*id)).cloned().collect();
            // Dropping the guard ends the mirror, which takes back what it told.
            mirrors.retain(|id, _| !gone.contains(id));
            for (id, replica) in present.into_iter().filter(|(id, _)| *id != self.me) {
                mirrors.entry(id.clone()).or_insert_with(|| {
                    tracing::info!(%id, address = replica.address, version = replica.version, "another controller is there");
                    let ending = CancellationToken::new();
                    tokio::spawn(mirror::keep(self.clone(), id, replica, ending.clone()));
                    ending.drop_guard()
                });
            }
            if replicas.changed().await.is_err() {
                return Ok(());
            }
        }
    }
}
