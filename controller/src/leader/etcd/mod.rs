//! The election among controllers that share an etcd, on connections of its own so that it never waits behind the store's
//! traffic.
//!
//! A replica holds one lease. Under it are its entry in `{prefix}meta/replicas/` and, while it leads, the key
//! `{prefix}meta/leader`, which the first creates and the others wait for. The key's create revision is the guard of
//! every write of the leader.

mod campaign;
mod lease;
mod replicas;

use std::{sync::Arc, time::Duration};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{Elect, ElectError, Leadership, Replica, ReplicaId, Replicas};
use crate::store::etcd::{Cluster, EtcdAccess, EtcdLocation, Keys};
use lease::Held;

/// How long etcd keeps a replica's keys after its last sign of life.
const TTL: Duration = Duration::from_secs(5);
/// How long a call to one member may take: short, so that a member that hangs does not cost the lease.
const CALL: Duration = Duration::from_secs(1);

/// One replica in the election.
#[derive(Clone, Debug)]
pub struct EtcdElect {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    cluster: Arc<Cluster>,
    keys: Keys,
    id: ReplicaId,
    replica: Replica,
    /// `None` while there is none.
    lease: watch::Sender<Option<Held>>,
    replicas: watch::Sender<Replicas>,
}

impl EtcdElect {
    /// A replica; takes part once [`Elect::attend`] runs.
    pub fn new(location: &EtcdLocation, access: &EtcdAccess, id: ReplicaId, replica: Replica) -> Self {
        let inner = Inner {
            cluster: Arc::new(Cluster::new(location, access, CALL)),
            keys: Keys::new(&location.prefix),
            id,
            replica,
            lease: watch::Sender::new(None),
            replicas: watch::Sender::new(Replicas::new()),
        };
        EtcdElect { inner: Arc::new(inner) }
    }
}

impl Elect for EtcdElect {
    async fn attend(&self, shutdown: CancellationToken) {
        let following = async {
            tokio::select! {
                () = replicas::follow(&self.inner) => {}
                () = shutdown.cancelled() => {}
            }
        };
        tokio::join!(lease::keep(&self.inner, &shutdown), following);
    }

    async fn campaign(&self) -> Result<Leadership, ElectError> {
        campaign::campaign(&self.inner).await
    }

    fn id(&self) -> ReplicaId {
        self.inner.id.clone()
    }

    fn has_others(&self) -> bool {
        true
    }

    fn replicas(&self) -> watch::Receiver<Replicas> {
        self.inner.replicas.subscribe()
    }
}
