//! Which store this is: made once by the first controller, and asked for again before anything is taken from etcd or
//! given to it. An etcd that lost its data, or was restored, answers at the same addresses as another store.

use std::sync::atomic::{AtomicU64, Ordering};

use etcd_client::{Compare, CompareOp, GetOptions, PutOptions, TxnOp, TxnOpResponse};

use super::{
    Keys,
    cluster::{Cluster, Repeat},
    failure::{Failure, Kind},
};
use crate::store::StoreError;

/// Name of the epoch among the backend's own keys.
pub(super) const EPOCH: &str = "epoch";
/// Name of the store's identity.
const UID: &str = "uid";

/// The identity as this process knows it.
#[derive(Debug)]
pub(super) struct Identity {
    pub(super) uid: String,
    /// The epoch when the store was opened.
    pub(super) opened: u64,
    /// The epoch that etcd should hold: as above, or what this process raised it to.
    expected: AtomicU64,
}

impl Identity {
    /// Whether there is a store under these keys.
    pub(super) async fn exists(cluster: &Cluster, keys: &Keys) -> Result<bool, StoreError> {
        Ok(find(cluster, &keys.meta(UID)).await?.is_some())
    }

    /// Reads it; makes it where there is none.
    pub(super) async fn of(cluster: &Cluster, keys: &Keys) -> Result<Self, StoreError> {
        let epoch = first(cluster, &keys.meta(EPOCH), "1".to_owned()).await?;
        let opened = parse_epoch(&keys.meta(EPOCH), &epoch)?;
        let uid = first(cluster, &keys.meta(UID), format!("{:016x}", fastrand::u64(1..))).await?;
        Ok(Identity { uid, opened, expected: AtomicU64::new(opened) })
    }

    /// This process raised the epoch.
    pub(super) fn raised(&self, to: u64) {
        self.expected.fetch_max(to, Ordering::Relaxed);
    }

    /// What etcd compares before a commit.
    pub(super) fn compares(&self, keys: &Keys) -> [Compare; 2] {
        let epoch = self.expected.load(Ordering::Relaxed).to_string();
        [
            Compare::value(keys.meta(UID), CompareOp::Equal, self.uid.as_str()),
            Compare::value(keys.meta(EPOCH), CompareOp::Equal, epoch),
        ]
    }

    /// What it answers with where a comparison does not hold; [`Identity::judge`] takes the answers.
    pub(super) fn looks(keys: &Keys) -> [TxnOp; 2] {
        [TxnOp::get(keys.meta(UID), None), TxnOp::get(keys.meta(EPOCH), None)]
    }

    /// Whether the answers to [`Identity::looks`] are this store's.
    pub(super) fn judge(&self, answers: &[TxnOpResponse]) -> Result<(), Failure> {
        let mut values = answers.iter().map(|answer| match answer {
            TxnOpResponse::Get(get) => {
                get.kvs().first().map(|kv| String::from_utf8_lossy(kv.value()).into_owned()).unwrap_or_default()
            }
            _ => String::new(),
        });
        let (uid, epoch) = (values.next().unwrap_or_default(), values.next().unwrap_or_default());
        let expected = self.expected.load(Ordering::Relaxed).to_string();
        let told = |message: String| Err(Failure { kind: Kind::OtherStore, message });
        if uid.is_empty() {
            return told(format!(
                "etcd holds no store of Weir any more, expected that of identity {}: was its data lost? Restore a copy of \
                 it, or a backup of the store (weir-controller store restore); a controller that starts now makes a new, \
                 empty store, which agents do not follow before its epoch is raised",
                self.uid
            ));
        }
        if uid != self.uid {
            return told(format!("etcd holds the store of identity {uid}, expected {}: start again", self.uid));
        }
        if epoch != expected {
            return told(format!("the store's epoch is {epoch}, expected {expected}: it was raised; start again"));
        }
        Ok(())
    }

    /// Asks etcd which store it holds.
    pub(super) async fn verify(&self, cluster: &Cluster, keys: &Keys) -> Result<(), Failure> {
        let look = |client: etcd_client::Client| {
            let txn = etcd_client::Txn::new().and_then(Self::looks(keys));
            async move { client.kv_client().txn(txn).await }
        };
        let answer = cluster.call("asking which store it holds", Repeat::Harmless, look).await?.answer;
        self.judge(&answer.op_responses())
    }
}

/// The value of a key.
async fn find(cluster: &Cluster, key: &str) -> Result<Option<String>, StoreError> {
    let read = |client: etcd_client::Client| async move { client.kv_client().get(key, None).await };
    let found = cluster.call("reading the epoch and the identity", Repeat::Harmless, read).await?.answer;
    Ok(found.kvs().first().map(|kv| String::from_utf8_lossy(kv.value()).into_owned()))
}

/// The value of a key, which gets `default` where it has none: of several controllers at once, one decides.
async fn first(cluster: &Cluster, key: &str, default: String) -> Result<String, StoreError> {
    // Read first: an etcd that takes no writes at present still tells.
    if let Some(found) = find(cluster, key).await? {
        return Ok(found);
    }
    let make = |client: etcd_client::Client| {
        let absent = Compare::create_revision(key, CompareOp::Equal, 0);
        let txn = etcd_client::Txn::new()
            .when([absent])
            .and_then([TxnOp::put(key, default.as_str(), None::<PutOptions>)])
            .or_else([TxnOp::get(key, None::<GetOptions>)]);
        async move { client.kv_client().txn(txn).await }
    };
    let answer = cluster.call("making the epoch and the identity", Repeat::Harmless, make).await?.answer;
    if answer.succeeded() {
        return Ok(default);
    }
    let found = answer.op_responses().into_iter().find_map(|response| match response {
        TxnOpResponse::Get(get) => get.kvs().first().map(|kv| kv.value().to_vec()),
        _ => None,
    });
    Ok(found.map(|value| String::from_utf8_lossy(&value).into_owned()).unwrap_or_default())
}

/// The epoch in a value of a key.
pub(super) fn parse_epoch(key: &str, text: &str) -> Result<u64, StoreError> {
    let epoch = text.parse::<u64>().ok().filter(|epoch| *epoch >= 1);
    epoch.ok_or_else(|| StoreError::Damaged(format!("etcd's key {key} should hold an epoch, but holds {text:?}")))
}
