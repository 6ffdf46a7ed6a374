//! Who leads, and who else is there: what an election promises, whatever it is held on.

use std::{collections::BTreeMap, fmt, future::Future, time::Instant};

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::store::{Precondition, Txn};

/// One life of a controller's process.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ReplicaId(pub String);

impl ReplicaId {
    /// A new one, different from all others.
    pub fn random() -> Self {
        ReplicaId(uuid::Uuid::new_v4().to_string())
    }
}

impl fmt::Display for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a replica says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replica {
    /// `host:port` at which the others reach it.
    pub address: String,
    /// Its version.
    pub version: String,
}

impl Replica {
    /// One of this version, at `host:port`.
    pub fn at(address: String) -> Self {
        Replica { address, version: env!("CARGO_PKG_VERSION").to_owned() }
    }
}

/// The replicas that are there. One that died stays listed for some seconds.
pub type Replicas = BTreeMap<ReplicaId, Replica>;

/// This process leads, until `lost` fires. Dropping it gives leadership up.
#[derive(Debug)]
pub struct Leadership {
    /// Every transaction of the leader carries it, so that the store refuses one that comes after another leads. `None`
    /// where nobody else can write.
    pub guard: Option<Precondition>,
    /// Fires before another can lead, as far as this process runs then; the guard is for the rest.
    pub lost: CancellationToken,
    /// By this process's clock; moves on while it is kept. `None` where it has no end.
    until: Option<watch::Receiver<Instant>>,
    /// Ends what holds it.
    _held: Option<DropGuard>,
}

impl Leadership {
    /// Leadership that nobody can take away.
    pub fn forever() -> Self {
        Leadership { guard: None, lost: CancellationToken::new(), until: None, _held: None }
    }

    /// Leadership under a lease that ends at `until`; `held` is cancelled when it is dropped.
    pub fn leased(
        guard: Precondition,
        lost: CancellationToken,
        until: watch::Receiver<Instant>,
        held: CancellationToken,
    ) -> Self {
        Leadership { guard: Some(guard), lost, until: Some(until), _held: Some(held.drop_guard()) }
    }

    /// A transaction that takes place only while this process leads.
    #[must_use]
    pub fn fenced(&self, mut txn: Txn) -> Txn {
        // First, so that a refusal names it rather than what changed since.
        txn.preconditions.splice(0..0, self.guard.clone());
        txn
    }

    /// Whether leadership is still held; for work that no transaction fences. Asks the clock too: a process that was
    /// paused may come here before `lost` fires.
    pub fn is_held(&self) -> bool {
        let in_time = self.until.as_ref().is_none_or(|until| Instant::now() < *until.borrow());
        in_time && !self.lost.is_cancelled()
    }
}

/// An attempt to lead failed.
#[derive(Debug, thiserror::Error)]
#[error("the election failed: {0}")]
pub struct ElectError(#[from] pub crate::store::StoreError);

/// An election among the controllers that share a store.
pub trait Elect: Send + Sync + 'static {
    /// Keeps this replica's place among the others, until `shutdown`; then gives it up. To be run all the time.
    fn attend(&self, shutdown: CancellationToken) -> impl Future<Output = ()> + Send;

    /// Waits until this process leads. Safe to drop and to call again.
    ///
    /// # Errors
    /// The election cannot be held now; again later.
    fn campaign(&self) -> impl Future<Output = Result<Leadership, ElectError>> + Send;

    /// This replica.
    fn id(&self) -> ReplicaId;

    /// Whether others can share the store.
    fn has_others(&self) -> bool;

    /// The replicas that are there, this one included once it attends. While the store is away: the last that were seen.
    fn replicas(&self) -> watch::Receiver<Replicas>;
}
