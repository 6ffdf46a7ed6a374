//! The election of a controller that has its store for itself: the lock on the store's file made it the leader.

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{Elect, ElectError, Leadership, Replica, ReplicaId, Replicas};

/// Leads from its start to its end.
#[derive(Debug)]
pub struct Sole {
    id: ReplicaId,
    replicas: watch::Sender<Replicas>,
}

impl Sole {
    /// This process, alone.
    pub fn new(id: ReplicaId, replica: Replica) -> Self {
        Sole { replicas: watch::Sender::new(Replicas::from([(id.clone(), replica)])), id }
    }
}

impl Elect for Sole {
    async fn attend(&self, shutdown: CancellationToken) {
        shutdown.cancelled().await;
    }

    async fn campaign(&self) -> Result<Leadership, ElectError> {
        Ok(Leadership::forever())
    }

    fn id(&self) -> ReplicaId {
        self.id.clone()
    }

    fn has_others(&self) -> bool {
        false
    }

    fn replicas(&self) -> watch::Receiver<Replicas> {
        self.replicas.subscribe()
    }
}
