//! What must be single: finalizing deletions, and compacting the log; and who does it.
//!
//! With the embedded store this process is the leader by holding the file's exclusive lock ([`Sole`]): a second
//! controller on the same file does not start. Where several controllers share a store, an election decides
//! ([`etcd::EtcdElect`]), and each write in here carries the leader's guard.

mod compaction;
mod elect;
#[cfg(feature = "etcd")]
pub mod etcd;
mod finalizer;
mod sole;

use std::{convert::Infallible, sync::Arc};

use weir_common::backoff::Backoff;

use crate::{ops::Counters, session::Hub, store::Store};

pub use elect::{Elect, ElectError, Leadership, Replica, ReplicaId, Replicas};
pub use sole::Sole;

/// Campaigns, does the leader's work for as long as this process leads, and campaigns again. Failures of the store are
/// retried.
///
/// # Errors
/// None; it goes on until it is dropped, which gives leadership up.
pub async fn run<S: Store, E: Elect>(
    store: Arc<S>,
    hub: Arc<Hub>,
    elect: Arc<E>,
    keep_revisions: u64,
    counters: Counters,
) -> Result<(), Infallible> {
    let mut attempt = 0;
    loop {
        let leadership = match elect.campaign().await {
            Ok(leadership) => leadership,
            Err(error) => {
                let wait = Backoff::RECONNECT.wait(attempt, fastrand::f64());
                tracing::warn!(%error, ?wait, "cannot lead; again after a wait");
                attempt += 1;
                tokio::time::sleep(wait).await;
                continue;
            }
        };
        attempt = 0;
        tracing::info!("this controller leads");
        counters.leads(true);
        let work = async {
            tokio::join!(
                finalizer::run(&*store, &hub, &leadership),
                compaction::run(&*store, &leadership, keep_revisions)
            )
        };
        tokio::select! {
            biased;
            () = leadership.lost.cancelled() => tracing::warn!("this controller no longer leads"),
            _never = work => {}
        }
        counters.leads(false);
    }
}
