//! The store on etcd, shared by several controllers.
//!
//! Data lives under `{prefix}data/`, what the backend needs itself under `{prefix}meta/` (the epoch, the leader's key,
//! the replicas), so that no list and no watch of data shows it. Revisions are etcd's own: they rise for other users of
//! the same etcd too. May touch the network, through its own client.

mod access;
mod cluster;
mod commit;
mod failure;
mod identity;
mod location;
mod stream;
mod watch;

use std::{sync::Arc, time::Duration};

use etcd_client::{GetOptions, GetResponse, KeyValue};

pub use access::{AccessError, EtcdAccess, EtcdFlags};
pub(crate) use cluster::{Answer, Cluster, Repeat};
pub(crate) use failure::{Failure, Kind};
use identity::{EPOCH, Identity, parse_epoch};
pub use location::{EtcdLocation, LocationError, SCHEME};
pub(crate) use stream::Stream;
pub use watch::EtcdWatch;

use super::{BACKEND_KEYS, CommitError, Item, Listing, Revision, Store, StoreError, Txn, WatchError};

/// Items in one page of a list.
const PAGE: i64 = 500;
/// Largest message that is taken from etcd, bytes. etcd's own limit for a request is 1.5 MiB by default; a page of a
/// list can have many such values, and is made smaller when it is over this.
const MESSAGE: usize = 64 << 20;
/// How long a call to one member may take.
const CALL: Duration = Duration::from_secs(5);
/// How often a list begins again because its revision was compacted.
const LISTS: usize = 5;

/// The store on etcd. Clones share its connections.
#[derive(Clone, Debug)]
pub struct EtcdStore {
    cluster: Arc<Cluster>,
    keys: Arc<Keys>,
    identity: Arc<Identity>,
}

/// Where keys lie in etcd.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    data: String,
    meta: String,
}

impl Keys {
    pub(crate) fn new(prefix: &str) -> Self {
        Keys { data: format!("{prefix}data/"), meta: format!("{prefix}meta/") }
    }

    /// etcd's key of a key or prefix of the store.
    fn physical(&self, key: &str) -> String {
        match key.strip_prefix(BACKEND_KEYS) {
            Some(own) => self.meta(own),
            None => format!("{}{key}", self.data),
        }
    }

    /// etcd's key of something of the backend's own; a precondition names it with [`BACKEND_KEYS`] before it.
    pub(crate) fn meta(&self, own: &str) -> String {
        format!("{}{own}", self.meta)
    }

    /// The store's key of a key under `data`.
    fn logical(&self, key: &[u8]) -> Result<String, StoreError> {
        let key = key.strip_prefix(self.data.as_bytes()).unwrap_or(key);
        String::from_utf8(key.to_vec())
            .map_err(|_| StoreError::Damaged(format!("a key is no text: {:?}", String::from_utf8_lossy(key))))
    }

    fn item(&self, kv: &KeyValue) -> Result<Item, StoreError> {
        Ok(Item {
            key: self.logical(kv.key())?,
            value: kv.value().to_vec(),
            create_revision: revision(kv.create_revision()),
            mod_revision: revision(kv.mod_revision()),
        })
    }
}

/// etcd's revisions are signed and never negative.
pub(crate) fn revision(of_etcd: i64) -> Revision {
    Revision(of_etcd.try_into().unwrap_or(0))
}

/// A revision as etcd takes it.
pub(crate) fn to_etcd(revision: Revision) -> i64 {
    revision.0.try_into().unwrap_or(i64::MAX)
}

fn header_revision(answer: &impl Answer) -> Result<Revision, StoreError> {
    let header = answer.header().ok_or_else(|| StoreError::Damaged("etcd answered without a header".to_owned()))?;
    Ok(revision(header.revision()))
}

impl EtcdStore {
    /// Connects, and makes the store where there is none.
    ///
    /// # Errors
    /// No member can be reached, or etcd refuses; the message says what to do.
    pub async fn connect(location: &EtcdLocation, access: &EtcdAccess) -> Result<Self, StoreError> {
        let cluster = Arc::new(Cluster::new(location, access, CALL));
        Self::open(cluster, Keys::new(&location.prefix)).await
    }

    /// As [`EtcdStore::connect`], for a store that must be there already: under a mistyped prefix there is none.
    ///
    /// # Errors
    /// As there; [`StoreError::Absent`] where there is no store.
    pub async fn existing(location: &EtcdLocation, access: &EtcdAccess) -> Result<Self, StoreError> {
        let cluster = Arc::new(Cluster::new(location, access, CALL));
        let keys = Keys::new(&location.prefix);
        if !Identity::exists(&cluster, &keys).await? {
            return Err(StoreError::Absent(location.prefix.clone()));
        }
        Self::open(cluster, keys).await
    }

    async fn open(cluster: Arc<Cluster>, keys: Keys) -> Result<Self, StoreError> {
        let identity = Arc::new(Identity::of(&cluster, &keys).await?);
        cluster.look_around().await?;
        Ok(EtcdStore { cluster, keys: Arc::new(keys), identity })
    }

    /// One read. Linearizable: it sees every commit that was acknowledged before it.
    async fn read(
        &self,
        step: &'static str,
        key: &str,
        options: GetOptions,
    ) -> Result<cluster::Answered<GetResponse>, Failure> {
        self.cluster
            .call(step, Repeat::Harmless, |client| {
                let (key, options) = (key.to_owned(), options.clone());
                async move { client.kv_client().max_decoding_message_size(MESSAGE).get(key, Some(options)).await }
            })
            .await
    }

    /// A whole listing at one revision.
    async fn list_once(&self, prefix: &str) -> Result<Listing, Failure> {
        let physical = self.keys.physical(prefix);
        let (_, end) = etcd_range(&physical);
        let mut from = physical;
        let (mut at, mut page) = (None, PAGE);
        let mut items = Vec::new();
        loop {
            let mut options = GetOptions::new().with_range(end.clone()).with_limit(page);
            if let Some(at) = at {
                options = options.with_revision(to_etcd(at));
            }
            let answer = match self.read("listing", &from, options).await {
                Ok(answered) => answered.answer,
                Err(Failure { kind: Kind::TooLarge, .. }) if page > 1 => {
                    page /= 2;
                    continue;
                }
                Err(failure) => return Err(failure),
            };
            let damaged = |error: StoreError| Failure { kind: Kind::Refused, message: error.to_string() };
            for kv in answer.kvs() {
                items.push(self.keys.item(kv).map_err(damaged)?);
            }
            let revision = match at {
                Some(revision) => revision,
                None => header_revision(&answer).map_err(damaged)?,
            };
            match answer.kvs().last() {
                Some(last) if answer.more() => {
                    at = Some(revision);
                    // The least key after it.
                    from = format!("{}\0", String::from_utf8_lossy(last.key()));
                }
                _ => return Ok(Listing { items, revision }),
            }
        }
    }
}

/// The range of keys that begin with `prefix`, as etcd has it.
fn etcd_range(prefix: &str) -> (Vec<u8>, Vec<u8>) {
    let mut end = prefix.as_bytes().to_vec();
    // A prefix is text: its last byte is never 0xff.
    if let Some(last) = end.last_mut() {
        *last = last.saturating_add(1);
    }
    (prefix.as_bytes().to_vec(), end)
}

impl Store for EtcdStore {
    type Watch = EtcdWatch;

    fn uid(&self) -> String {
        self.identity.uid.clone()
    }

    async fn raise_epoch(&self, to: u64) -> Result<(), StoreError> {
        let key = format!("{BACKEND_KEYS}{EPOCH}");
        for _ in 0..LISTS {
            let item =
                self.get(&key).await?.ok_or_else(|| StoreError::Damaged("the epoch's key is gone".to_owned()))?;
            if parse_epoch(&self.keys.meta(EPOCH), &String::from_utf8_lossy(&item.value))? >= to {
                return Ok(());
            }
            let txn = Txn::default()
                .when(super::Precondition::ModRevision(key.clone(), item.mod_revision))
                .then(super::Op::Put(key.clone(), to.to_string().into_bytes()));
            match self.commit(txn).await {
                Ok(_) => {
                    self.identity.raised(to);
                    return Ok(());
                }
                Err(CommitError::Store(error)) => return Err(error),
                // Somebody else raises it too.
                Err(CommitError::Conflict { .. } | CommitError::RepeatedKey(_)) => {}
            }
        }
        Err(StoreError::Backend("the epoch is changed too often by others".to_owned()))
    }

    fn epoch(&self) -> u64 {
        self.identity.opened
    }

    async fn verify(&self) -> Result<(), StoreError> {
        Ok(self.identity.verify(&self.cluster, &self.keys).await?)
    }

    async fn revision(&self) -> Result<Revision, StoreError> {
        let options = GetOptions::new().with_keys_only();
        let answered = self.read("reading the revision", &self.keys.meta(EPOCH), options).await?;
        header_revision(&answered.answer)
    }

    async fn get(&self, key: &str) -> Result<Option<Item>, StoreError> {
        let answered = self.read("reading", &self.keys.physical(key), GetOptions::new()).await?;
        answered.answer.kvs().first().map(|kv| self.keys.item(kv)).transpose()
    }

    async fn list(&self, prefix: &str) -> Result<Listing, StoreError> {
        for _ in 1..LISTS {
            match self.list_once(prefix).await {
                // Its revision went away between two pages.
                Err(Failure { kind: Kind::Compacted, .. }) => {}
                other => {
                    let listing = other?;
                    // Afterwards: what was read before this answer was this store's.
                    self.verify().await?;
                    return Ok(listing);
                }
            }
        }
        let listing = self.list_once(prefix).await?;
        self.verify().await?;
        Ok(listing)
    }

    async fn commit(&self, txn: Txn) -> Result<Revision, CommitError> {
        commit::commit(&self.cluster, &self.keys, &self.identity, txn).await
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<EtcdWatch, WatchError> {
        watch::open(self, prefix, after).await
    }

    async fn compact(&self, keep_from: Revision) -> Result<(), StoreError> {
        // etcd keeps removals only after the revision that it compacts, so that one stays below what is kept.
        let compacted = keep_from.min(self.revision().await?).0.saturating_sub(1);
        if compacted == 0 {
            return Ok(());
        }
        let at = to_etcd(Revision(compacted));
        let compact = |client: etcd_client::Client| async move { client.kv_client().compact(at, None).await };
        match self.cluster.call("compacting", Repeat::Harmless, compact).await {
            Ok(_) => Ok(()),
            // Somebody went further already.
            Err(Failure { kind: Kind::Compacted, .. }) => Ok(()),
            Err(failure) => Err(failure.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_and_the_backends_own_keys_are_apart() {
        let keys = Keys::new("/weir/");
        assert_eq!(keys.physical("intents/a"), "/weir/data/intents/a");
        assert_eq!(keys.physical(&format!("{BACKEND_KEYS}leader")), keys.meta("leader"));
        assert_eq!(keys.meta("leader"), "/weir/meta/leader");
        assert_eq!(keys.logical(b"/weir/data/intents/a").unwrap(), "intents/a");
        assert!(keys.logical(b"/weir/data/\xff").is_err());
        assert_eq!(etcd_range("/weir/data/").1, b"/weir/data0");
        assert_eq!(etcd_range("ä").1, [0xc3, 0xa5]);
    }
}
