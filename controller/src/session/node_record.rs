//! A node's stored record: written before the node is given a plan, and only where something of it changes.

use std::time::SystemTime;

use weir_common::fence::Fence;

use crate::{
    catalog::{RecordError, decode_node, encode, node_key},
    model::{Earlier, Labels, NodeName, NodeRecord},
    store::{CommitError, Op, Precondition, Revision, Store, StoreError, Txn},
};

/// Attempts against writers of the same record.
const ATTEMPTS: usize = 8;

/// Whose ledger, in which life of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LedgerId {
    pub(super) uid: String,
    pub(super) boot_id: String,
    /// The fence that it holds, where the store has not come so far.
    pub(super) ahead: Option<Fence>,
    /// Its fence leaves no room under the store's present revision: the record is written in any case, for another one.
    pub(super) worn_out: bool,
}

impl LedgerId {
    /// The ledger that was lost without a reboot: the kernel still holds what it wrote.
    fn lost(&self, before: &NodeRecord) -> Option<String> {
        if before.boot_id != self.boot_id || self.boot_id.is_empty() {
            return None;
        }
        if before.uid == self.uid { before.lost_ledger.clone() } else { Some(before.uid.clone()) }
    }

    /// How far it is ahead of the store, now or as of an earlier contact under the same epoch.
    fn ahead(&self, before: &NodeRecord, epoch: u64) -> Option<Fence> {
        let earlier = before.ahead.filter(|fence| fence.store_epoch >= epoch && before.uid == self.uid);
        self.ahead.max(earlier)
    }
}

/// A record could not be written.
#[derive(Debug, thiserror::Error)]
pub(super) enum RememberError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error("the record is changed too often by others")]
    Contended,
}

/// Makes sure that the store knows this node with this ledger and these labels; the revision of the record.
pub(super) async fn remember(
    store: &impl Store,
    node: &NodeName,
    ledger: &LedgerId,
    labels: &Labels,
    now: SystemTime,
) -> Result<Revision, RememberError> {
    let epoch = store.epoch();
    change(store, node, |before| match before {
        Some(record)
            if !ledger.worn_out
                && record.uid == ledger.uid
                && record.labels == *labels
                && record.boot_id == ledger.boot_id
                && record.ahead == ledger.ahead(&record, epoch) =>
        {
            None
        }
        Some(mut record) if record.uid == ledger.uid => {
            record.lost_ledger = ledger.lost(&record);
            record.ahead = ledger.ahead(&record, epoch);
            record.boot_id.clone_from(&ledger.boot_id);
            if record.labels != *labels {
                let before = std::mem::replace(&mut record.labels, labels.clone());
                record.earlier_labels.remember(before);
            }
            Some(record)
        }
        // Another ledger knows nothing of what was given to the one before.
        other => Some(NodeRecord {
            uid: ledger.uid.clone(),
            boot_id: ledger.boot_id.clone(),
            lost_ledger: other.as_ref().and_then(|record| ledger.lost(record)),
            ahead: ledger.ahead,
            labels: labels.clone(),
            earlier_labels: Earlier::default(),
            first_seen: other.map_or(now.into(), |record| record.first_seen),
        }),
    })
    .await
}

/// Forgets earlier labels: the node holds nothing but what its present plan has.
pub(super) async fn settle(
    store: &impl Store,
    node: &NodeName,
    uid: &str,
    labels: &Labels,
) -> Result<(), RememberError> {
    let settled = change(store, node, |before| {
        let mut record = before.filter(|record| record.uid == uid && record.labels == *labels)?;
        if record.earlier_labels.is_empty() {
            return None;
        }
        record.earlier_labels = Earlier::default();
        Some(record)
    });
    settled.await.map(drop)
}

/// The revision of the record, changed or not; 0 where there is none.
async fn change(
    store: &impl Store,
    node: &NodeName,
    change: impl Fn(Option<NodeRecord>) -> Option<NodeRecord> + Send,
) -> Result<Revision, RememberError> {
    let key = node_key(node);
    for _ in 0..ATTEMPTS {
        let item = store.get(&key).await?;
        let record = item.as_ref().map(decode_node).transpose()?;
        let Some(record) = change(record) else {
            return Ok(item.map_or(Revision(0), |item| item.mod_revision));
        };
        let condition = match item {
            Some(item) => Precondition::ModRevision(key.clone(), item.mod_revision),
            None => Precondition::Absent(key.clone()),
        };
        let txn = Txn::default().when(condition).then(Op::Put(key.clone(), encode(&record)));
        match store.commit(txn).await {
            Ok(revision) => return Ok(revision),
            Err(CommitError::Store(error)) => return Err(error.into()),
            Err(CommitError::Conflict { .. } | CommitError::RepeatedKey(_)) => {}
        }
    }
    Err(RememberError::Contended)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::EmbeddedStore;

    #[tokio::test]
    async fn written_only_when_something_changes() {
        let directory = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open(&directory.path().join("s")).unwrap();
        let node: NodeName = "n1".parse().unwrap();
        let (old, new): (Labels, Labels) = ([("a".into(), "1".into())].into(), [("a".into(), "2".into())].into());
        let revision = async || store.list("").await.unwrap().revision.0;
        let record = async || decode_node(&store.get(&node_key(&node)).await.unwrap().unwrap()).unwrap();
        let start = revision().await;
        let early = SystemTime::UNIX_EPOCH;

        let ledger =
            |uid: &str, boot: &str| LedgerId { uid: uid.into(), boot_id: boot.into(), ahead: None, worn_out: false };
        remember(&store, &node, &ledger("u1", "b1"), &old, early).await.unwrap();
        remember(&store, &node, &ledger("u1", "b1"), &old, SystemTime::now()).await.unwrap();
        settle(&store, &node, "u1", &old).await.unwrap();
        assert_eq!(revision().await, start + 1, "a reconnect without change writes nothing");

        remember(&store, &node, &ledger("u1", "b1"), &new, SystemTime::now()).await.unwrap();
        assert!(record().await.earlier_labels.any(|labels| *labels == old));
        settle(&store, &node, "u1", &old).await.unwrap();
        assert!(!record().await.earlier_labels.is_empty(), "not for other labels");
        settle(&store, &node, "u1", &new).await.unwrap();
        assert!(record().await.earlier_labels.is_empty());

        remember(&store, &node, &ledger("u2", "b1"), &old, SystemTime::now()).await.unwrap();
        let last = record().await;
        assert_eq!((last.uid.as_str(), last.first_seen), ("u2", early.into()));
        assert!(last.earlier_labels.is_empty());
        assert_eq!(last.lost_ledger.as_deref(), Some("u1"), "without a reboot the kernel holds what u1 wrote");
        remember(&store, &node, &ledger("u2", "b1"), &new, SystemTime::now()).await.unwrap();
        assert_eq!(record().await.lost_ledger.as_deref(), Some("u1"));
        remember(&store, &node, &ledger("u2", "b2"), &new, SystemTime::now()).await.unwrap();
        assert_eq!(record().await.lost_ledger, None, "a reboot takes it away");
        remember(&store, &node, &ledger("u3", "b3"), &new, SystemTime::now()).await.unwrap();
        assert_eq!(record().await.lost_ledger, None, "re-imaged: another ledger, and another boot");
    }
}
