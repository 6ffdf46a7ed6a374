//! Follows the store: the hub's picture is a list and then every change after it. After any gap: a full list again.

use std::{sync::Arc, time::Duration};

use weir_common::backoff::Backoff;

use super::Hub;
use crate::{
    catalog::{Catalog, RecordError},
    ops::Counters,
    store::{Revision, Store, StoreError, Watch, WatchError},
};

/// How often a store that is silent is asked whether it is still the same.
const VERIFY: Duration = Duration::from_secs(5);

/// The store cannot be followed any longer.
#[derive(Debug, thiserror::Error)]
#[error("the store cannot be followed: {0}")]
pub struct FollowError(#[from] StoreError);

/// The picture of the whole store, to begin with.
///
/// # Errors
/// The store cannot be read.
pub async fn load(store: &impl Store) -> Result<Catalog, StoreError> {
    let (catalog, errors) = Catalog::load(&store.list("").await?);
    report(&errors);
    Ok(catalog)
}

fn report(errors: &[RecordError]) {
    for error in errors {
        tracing::error!(%error, "a row of the store is left out");
    }
}

/// Keeps the hub's picture up to date, from the revision that it was loaded at. Ends only with an error.
///
/// # Errors
/// The store failed for good.
pub async fn follow<S: Store>(
    store: Arc<S>,
    hub: Arc<Hub>,
    from: Revision,
    counters: Counters,
) -> Result<(), FollowError> {
    counters.store_seen();
    let mut position = from;
    let mut attempt = 0;
    loop {
        let error = follow_watch(&*store, &hub, &mut position, &mut attempt, &counters).await;
        match error {
            WatchError::Compacted { .. } | WatchError::Future { .. } => {
                tracing::warn!(%error, %position, "a gap in the watch: listing everything again");
                match load(&*store).await {
                    Ok(catalog) => {
                        position = catalog.revision;
                        hub.replace(catalog);
                    }
                    // The watch from the same position shows the same gap, so the list is tried again.
                    Err(error) => pause(error, &mut attempt).await?,
                }
            }
            WatchError::Store(error) => pause(error, &mut attempt).await?,
        }
    }
}

/// Waits before another attempt.
///
/// # Errors
/// The error itself, where no further attempt will help.
async fn pause(error: StoreError, attempt: &mut u32) -> Result<(), FollowError> {
    if !error.is_retryable() || matches!(error, StoreError::Closed(_)) {
        return Err(error.into());
    }
    let wait = Backoff::RECONNECT.wait(*attempt, fastrand::f64());
    tracing::warn!(%error, ?wait, "the store cannot be followed; again after a wait");
    *attempt = attempt.saturating_add(1);
    tokio::time::sleep(wait).await;
    Ok(())
}

async fn follow_watch(
    store: &impl Store,
    hub: &Hub,
    position: &mut Revision,
    attempt: &mut u32,
    counters: &Counters,
) -> WatchError {
    let mut watch = match store.watch("", *position).await {
        Ok(watch) => watch,
        Err(error) => return error,
    };
    let mut verify = tokio::time::interval(VERIFY);
    verify.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let next = tokio::select! {
            next = watch.next() => next,
            _ = verify.tick() => match store.verify().await {
                Ok(()) => {
                    counters.store_seen();
                    continue;
                }
                Err(error) if !error.is_retryable() => return error.into(),
                // What cannot be asked now is asked again.
                Err(_) => continue,
            },
        };
        match next {
            Ok(change) => {
                *attempt = 0;
                report(&hub.apply(&change));
                *position = change.revision;
            }
            Err(error) => return error,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::store::{CommitError, EmbeddedStore, Item, Listing, Op, Txn};

    type EmbeddedWatch = <EmbeddedStore as Store>::Watch;

    /// A store whose lists fail so many times.
    struct Ailing(EmbeddedStore, AtomicU32);

    impl Store for Ailing {
        type Watch = EmbeddedWatch;

        fn uid(&self) -> String {
            self.0.uid()
        }
        fn epoch(&self) -> u64 {
            self.0.epoch()
        }
        async fn raise_epoch(&self, to: u64) -> Result<(), StoreError> {
            self.0.raise_epoch(to).await
        }
        async fn verify(&self) -> Result<(), StoreError> {
            self.0.verify().await
        }
        async fn revision(&self) -> Result<Revision, StoreError> {
            self.0.revision().await
        }
        async fn get(&self, key: &str) -> Result<Option<Item>, StoreError> {
            self.0.get(key).await
        }
        async fn list(&self, prefix: &str) -> Result<Listing, StoreError> {
            let left = self.1.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
            if left.is_ok() { Err(StoreError::Backend("away".into())) } else { self.0.list(prefix).await }
        }
        async fn commit(&self, txn: Txn) -> Result<Revision, CommitError> {
            self.0.commit(txn).await
        }
        async fn watch(&self, prefix: &str, after: Revision) -> Result<EmbeddedWatch, WatchError> {
            self.0.watch(prefix, after).await
        }
        async fn compact(&self, keep_from: Revision) -> Result<(), StoreError> {
            self.0.compact(keep_from).await
        }
    }

    #[tokio::test]
    async fn a_list_that_fails_after_a_gap_is_tried_again() {
        let directory = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open(&directory.path().join("s")).unwrap();
        let start = store.revision().await.unwrap();
        for i in 0..5 {
            store.commit(Txn::default().then(Op::Put(format!("k{i}"), vec![1]))).await.unwrap();
        }
        let last = store.revision().await.unwrap();
        store.compact(last).await.unwrap();
        let store = Arc::new(Ailing(store, AtomicU32::new(2)));
        let hub = Arc::new(Hub::new(1, Catalog::default()));
        let following = tokio::spawn(follow(Arc::clone(&store), Arc::clone(&hub), start, Counters::default()));
        let caught_up = async {
            while hub.revision() < last {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), caught_up).await.unwrap();
        assert_eq!(store.1.load(Ordering::Relaxed), 0);
        assert!(!following.is_finished());
        following.abort();
    }
}
