//! Keeps the log bounded: watches can resume for the last `--keep-revisions` revisions.

use std::time::Duration;

use super::Leadership;
use crate::store::{Revision, Store, StoreError};

/// How often the log is looked at.
const PERIOD: Duration = Duration::from_secs(10);

pub(super) async fn run(store: &impl Store, leadership: &Leadership, keep_revisions: u64) {
    let mut compacted = Revision(0);
    loop {
        tokio::time::sleep(PERIOD).await;
        if !leadership.is_held() {
            continue;
        }
        match once(store, keep_revisions, compacted).await {
            Ok(up_to) => compacted = up_to,
            Err(error) => tracing::warn!(%error, "the log cannot be compacted; again later"),
        }
    }
}

/// Compacts if that is worth a write; the first revision that is kept then.
async fn once(store: &impl Store, keep_revisions: u64, compacted: Revision) -> Result<Revision, StoreError> {
    let revision = store.revision().await?;
    let keep_from = Revision((revision.0 + 1).saturating_sub(keep_revisions));
    // In steps of a tenth, so that a busy store is not compacted for a few revisions each time.
    if keep_from.0 <= compacted.0 + keep_revisions / 10 {
        return Ok(compacted);
    }
    store.compact(keep_from).await?;
    tracing::info!(%keep_from, "the log was compacted");
    Ok(keep_from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{EmbeddedStore, Op, Txn, WatchError};

    #[tokio::test]
    async fn the_last_revisions_stay() {
        let directory = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open(&directory.path().join("s")).unwrap();
        for i in 0..50 {
            store.commit(Txn::default().then(Op::Put("k".into(), vec![i]))).await.unwrap();
        }
        let revision = store.list("").await.unwrap().revision.0;
        let kept = once(&store, 20, Revision(0)).await.unwrap();
        assert_eq!(kept.0, revision + 1 - 20);
        assert!(store.watch("", Revision(kept.0 - 1)).await.is_ok());
        assert!(matches!(store.watch("", Revision(kept.0 - 2)).await, Err(WatchError::Compacted { .. })));
        assert_eq!(once(&store, 20, kept).await.unwrap(), kept, "nothing to do");
        assert_eq!(once(&store, 1000, Revision(0)).await.unwrap(), Revision(0));
    }
}
