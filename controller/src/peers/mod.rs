//! The other replicas: what the agents that they serve say is mirrored here, so that any replica answers for the whole
//! fleet, and a leader knows what nodes on other replicas hold. Reports never go through the store (docs/decisions/0004).
//!
//! Uses the contract's types; touches the network, the hub and the board.

mod mirror;
mod service;

use std::{collections::HashMap, convert::Infallible, sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    task::{Id, JoinError, JoinSet},
    time::Instant,
};
use tokio_util::sync::{CancellationToken, DropGuard};
use weir_common::tls::{ClientTls, TokenFile};

use crate::{
    leader::{ReplicaId, Replicas},
    session::Hub,
    status::Board,
};

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
    pub tls: Option<PeerTls>,
}

/// How another controller is connected to, and how this one says there who it is.
#[derive(Clone, Debug)]
pub struct PeerTls {
    /// Its authorities, and this one's certificate where it shows that.
    pub tls: Arc<ClientTls>,
    /// This one's token.
    pub token: Option<TokenFile>,
}

/// Until a mirror that died is begun again.
const AGAIN: Duration = Duration::from_secs(5);

/// The mirrors of the replicas that are there.
#[derive(Default)]
struct Mirrors {
    /// Dropping the guard ends a mirror, which takes back what it told.
    alive: HashMap<ReplicaId, (Id, DropGuard)>,
    tasks: JoinSet<()>,
}

impl Mirrors {
    /// Ends those that left, begins those that came.
    fn match_to(&mut self, peers: &Peers, present: &Replicas) {
        self.alive.retain(|id, _| present.contains_key(id));
        for (id, replica) in present.iter().filter(|(id, _)| **id != peers.me) {
            if self.alive.contains_key(id) {
                continue;
            }
            tracing::info!(%id, address = replica.address, version = replica.version, "another controller is there");
            let ending = CancellationToken::new();
            let task = self.tasks.spawn(mirror::keep(peers.clone(), id.clone(), replica.clone(), ending.clone())).id();
            self.alive.insert(id.clone(), (task, ending.drop_guard()));
        }
    }

    /// A task ended. Whether its replica is still there: it did not end by being told so.
    fn ended(&mut self, ended: Result<(Id, ()), JoinError>) -> bool {
        let (task, cause) = match ended {
            Ok((task, ())) => (task, "it ended".to_owned()),
            Err(error) => (error.id(), error.to_string()),
        };
        let of = self.alive.iter().find(|(_, (alive, _))| *alive == task).map(|(id, _)| id.clone());
        let Some(id) = of else { return false };
        tracing::error!(%id, cause, again_in = ?AGAIN, "the mirror of another controller died");
        self.alive.remove(&id);
        true
    }
}

impl Peers {
    /// Keeps a mirror of each other replica for as long as that is there. Ends only when nobody tells of replicas any more.
    ///
    /// # Errors
    /// None.
    pub async fn run(self, mut replicas: watch::Receiver<Replicas>) -> Result<(), Infallible> {
        let mut mirrors = Mirrors::default();
        let mut again_at = None;
        mirrors.match_to(&self, &replicas.borrow_and_update().clone());
        loop {
            let again = async {
                match again_at {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = replicas.changed() => match changed {
                    Ok(()) => mirrors.match_to(&self, &replicas.borrow_and_update().clone()),
                    Err(_) => return Ok(()),
                },
                Some(ended) = mirrors.tasks.join_next_with_id() => {
                    if mirrors.ended(ended) {
                        again_at.get_or_insert(Instant::now() + AGAIN);
                    }
                }
                () = again => {
                    again_at = None;
                    mirrors.match_to(&self, &replicas.borrow().clone());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_mirror_that_dies_is_seen_and_one_that_was_ended_is_no_death() {
        let mut mirrors = Mirrors::default();
        let (dies, leaves) = (ReplicaId("dies".into()), ReplicaId("leaves".into()));
        for (id, future) in [(&dies, true), (&leaves, false)] {
            let task = mirrors.tasks.spawn(async move { assert!(!future, "on purpose") }).id();
            mirrors.alive.insert(id.clone(), (task, CancellationToken::new().drop_guard()));
        }
        mirrors.alive.remove(&leaves);
        let mut again = 0;
        while let Some(ended) = mirrors.tasks.join_next_with_id().await {
            again += usize::from(mirrors.ended(ended));
        }
        assert_eq!((again, mirrors.alive.len()), (1, 0));
    }
}
