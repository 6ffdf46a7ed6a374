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
                let catalog = load(&*store).await?;
                position = catalog.revision;
                hub.replace(catalog);
            }
            WatchError::Store(error) if error.is_retryable() && !matches!(error, StoreError::Closed(_)) => {
                let wait = Backoff::RECONNECT.wait(attempt, fastrand::f64());
                tracing::warn!(%error, ?wait, "the watch failed; again after a wait");
                attempt += 1;
                tokio::time::sleep(wait).await;
            }
            WatchError::Store(error) => return Err(error.into()),
        }
    }
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
