//! The embedded store: one redb file, held by one process.
//!
//! Tables: `kv` (key -> create revision, last revision, value), `log` (revision -> events, for watches), `meta` (format
//! version, epoch, revision, compacted). One thread writes (see `writer`); readers see the last durable state. A watch
//! reads the log from its own position whenever the writer says that there is more, so a slow watcher loses nothing and
//! costs no memory; only compaction can overtake it, and it is told.

mod open;
mod overlay;
mod place;
#[cfg(test)]
mod power_cut;
#[cfg(test)]
mod tests;
mod writer;

use std::{
    collections::VecDeque,
    path::Path,
    sync::{Arc, OnceLock},
};

use redb::{Database, ReadTransaction, ReadableDatabase, StorageBackend, TableDefinition};
use tokio::sync::{mpsc, watch};

use super::{
    Change, CommitError, Event, Item, Listing, Revision, Store, StoreError, Txn, Watch, WatchError, log_record,
};

pub use open::OpenError;
use place::Place;
use writer::Request;

type Entry<'a> = (u64, u64, &'a [u8]);
const KV: TableDefinition<'static, &'static str, Entry<'static>> = TableDefinition::new("kv");
const LOG: TableDefinition<'static, u64, &'static [u8]> = TableDefinition::new("log");
const META: TableDefinition<'static, &'static str, u64> = TableDefinition::new("meta");
const FORMAT: &str = "format";
const UID: &str = "uid";
const EPOCH: &str = "epoch";
const REVISION: &str = "revision";
const COMPACTED: &str = "compacted";

/// Version of the file's layout.
const FORMAT_VERSION: u64 = 1;
/// Requests that may wait for the writer.
const QUEUE: usize = 1024;
/// Changes that a watch reads at once.
const WATCH_BATCH: usize = 256;

/// The embedded store. Clones share it; the file is released once all are gone.
#[derive(Clone, Debug)]
pub struct EmbeddedStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    db: Arc<Database>,
    uid: u64,
    epoch: u64,
    /// What the writer died of.
    failure: Failure,
    /// `None` on a storage that is no file at a path.
    place: Option<Place>,
    requests: mpsc::Sender<Request>,
    /// The last durable revision. Its sender lives in the writer: closed means that the writer is gone.
    durable: watch::Receiver<Revision>,
}

impl Inner {
    fn closed(&self) -> StoreError {
        StoreError::Closed(self.failure.text())
    }
}

/// What the writer died of, once it has.
#[derive(Clone, Debug, Default)]
struct Failure(Arc<OnceLock<String>>);

impl Failure {
    fn text(&self) -> String {
        self.0.get().cloned().unwrap_or_else(|| "it was shut down".to_owned())
    }
}

impl EmbeddedStore {
    /// Opens the store at `path`, or makes a new one where there is none. The directory must exist.
    ///
    /// A file that cannot be used is not changed.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let db = open::open_file(path)?;
        let start = |cause: String| OpenError::Start { path: path.to_owned(), cause };
        let place = Place::of(path).map_err(|error| start(error.to_string()))?;
        Self::start(db, Some(place)).map_err(|error| start(error.to_string()))
    }

    /// Opens the store on any storage; for tests that control what becomes durable.
    ///
    /// # Errors
    /// The storage failed, or holds something else.
    pub fn with_backend(backend: impl StorageBackend) -> Result<Self, StoreError> {
        let db =
            open::builder().create_with_backend(backend).map_err(|error| StoreError::Backend(error.to_string()))?;
        open::initialise(&db)?;
        Self::start(db, None)
    }

    fn start(db: Database, place: Option<Place>) -> Result<Self, StoreError> {
        open::give_uid(&db)?;
        let txn = db.begin_read().map_err(backend)?;
        let (uid, epoch, revision) = (meta(&txn, UID)?, meta(&txn, EPOCH)?, Revision(meta(&txn, REVISION)?));
        drop(txn);
        let db = Arc::new(db);
        let (requests, queue) = mpsc::channel(QUEUE);
        let (durable_tx, durable) = watch::channel(revision);
        let failure = Failure::default();
        writer::spawn(Arc::clone(&db), place.clone(), queue, durable_tx, failure.clone())?;
        Ok(EmbeddedStore { inner: Arc::new(Inner { db, uid, epoch, failure, place, requests, durable }) })
    }

    /// Resolves when the writer has died, with the cause: nothing can be committed any more, and whether the last commit
    /// took place is known only after opening again.
    pub async fn failed(&self) -> StoreError {
        let mut durable = self.inner.durable.clone();
        while durable.changed().await.is_ok() {}
        self.inner.closed()
    }

    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&ReadTransaction) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let db = Arc::clone(&self.inner.db);
        let task = tokio::task::spawn_blocking(move || read(&db.begin_read().map_err(backend)?));
        task.await.map_err(|error| StoreError::Backend(format!("a read did not end: {error}")))?
    }

    async fn request<T>(
        &self,
        request: impl FnOnce(tokio::sync::oneshot::Sender<T>) -> Request,
    ) -> Result<T, StoreError> {
        let (reply, answer) = tokio::sync::oneshot::channel();
        self.inner.requests.send(request(reply)).await.map_err(|_| self.inner.closed())?;
        answer.await.map_err(|_| self.inner.closed())
    }
}

fn backend(error: impl std::fmt::Display) -> StoreError {
    StoreError::Backend(error.to_string())
}

fn meta(txn: &ReadTransaction, key: &str) -> Result<u64, StoreError> {
    let table = txn.open_table(META).map_err(backend)?;
    let value = table.get(key).map_err(backend)?;
    value.map(|value| value.value()).ok_or_else(|| StoreError::Damaged(format!("`{key}` is missing in its meta table")))
}

fn item(key: &str, (create, modified, value): Entry<'_>) -> Item {
    Item {
        key: key.to_owned(),
        value: value.to_vec(),
        create_revision: Revision(create),
        mod_revision: Revision(modified),
    }
}

impl Store for EmbeddedStore {
    type Watch = EmbeddedWatch;

    fn uid(&self) -> String {
        format!("{:016x}", self.inner.uid)
    }

    async fn raise_epoch(&self, to: u64) -> Result<(), StoreError> {
        let db = Arc::clone(&self.inner.db);
        let task = tokio::task::spawn_blocking(move || open::raise_epoch(&db, to));
        task.await.map_err(|error| StoreError::Backend(format!("the epoch was not raised: {error}")))?
    }

    fn epoch(&self) -> u64 {
        self.inner.epoch
    }

    async fn verify(&self) -> Result<(), StoreError> {
        self.inner.place.as_ref().map_or(Ok(()), Place::verify)
    }

    async fn revision(&self) -> Result<Revision, StoreError> {
        self.read(|txn| meta(txn, REVISION).map(Revision)).await
    }

    async fn get(&self, key: &str) -> Result<Option<Item>, StoreError> {
        let key = key.to_owned();
        self.read(move |txn| {
            let table = txn.open_table(KV).map_err(backend)?;
            let entry = table.get(key.as_str()).map_err(backend)?;
            Ok(entry.map(|entry| item(&key, entry.value())))
        })
        .await
    }

    async fn list(&self, prefix: &str) -> Result<Listing, StoreError> {
        let prefix = prefix.to_owned();
        self.read(move |txn| {
            let revision = Revision(meta(txn, REVISION)?);
            let table = txn.open_table(KV).map_err(backend)?;
            let mut items = Vec::new();
            for entry in table.range(prefix.as_str()..).map_err(backend)? {
                let (key, entry) = entry.map_err(backend)?;
                if !key.value().starts_with(&prefix) {
                    break;
                }
                items.push(item(key.value(), entry.value()));
            }
            Ok(Listing { items, revision })
        })
        .await
    }

    async fn commit(&self, txn: Txn) -> Result<Revision, CommitError> {
        self.request(|reply| Request::Commit { txn, reply }).await?
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<EmbeddedWatch, WatchError> {
        // Receivers see the durable revision of this moment or a later one as changed.
        let durable = self.inner.durable.clone();
        let (compacted, current) = self.read(|txn| Ok((meta(txn, COMPACTED)?, meta(txn, REVISION)?))).await?;
        if after.0 < compacted {
            return Err(WatchError::Compacted { oldest: Revision(compacted) });
        }
        if after.0 > current {
            return Err(WatchError::Future { current: Revision(current) });
        }
        Ok(EmbeddedWatch {
            store: self.clone(),
            prefix: prefix.to_owned(),
            position: after,
            buffered: VecDeque::new(),
            read_up_to: after,
            durable,
        })
    }

    async fn compact(&self, keep_from: Revision) -> Result<(), StoreError> {
        self.request(|reply| Request::Compact { keep_from, reply }).await?
    }
}

/// A watch on the embedded store.
#[derive(Debug)]
pub struct EmbeddedWatch {
    store: EmbeddedStore,
    prefix: String,
    /// Everything up to here was returned.
    position: Revision,
    buffered: VecDeque<Change>,
    /// Everything up to here was read from the log.
    read_up_to: Revision,
    durable: watch::Receiver<Revision>,
}

impl Watch for EmbeddedWatch {
    async fn next(&mut self) -> Result<Change, WatchError> {
        loop {
            if let Some(change) = self.buffered.pop_front() {
                self.position = change.revision;
                return Ok(change);
            }
            self.position = self.read_up_to;
            let seen = *self.durable.borrow_and_update();
            if seen <= self.read_up_to {
                self.durable.changed().await.map_err(|_| self.store.inner.closed())?;
                continue;
            }
            let (prefix, after) = (self.prefix.clone(), self.read_up_to);
            // Nothing of `self` changes before the read is complete, so a dropped future loses nothing.
            let (changes, up_to) = self.store.read(move |txn| read_log(txn, &prefix, after)).await??;
            self.buffered.extend(changes);
            self.read_up_to = up_to;
        }
    }

    fn position(&self) -> Revision {
        self.position
    }
}

/// Changes after `after`, and the revision up to which they are complete.
fn read_log(
    txn: &ReadTransaction,
    prefix: &str,
    after: Revision,
) -> Result<Result<(Vec<Change>, Revision), WatchError>, StoreError> {
    let compacted = meta(txn, COMPACTED)?;
    if after.0 < compacted {
        return Ok(Err(WatchError::Compacted { oldest: Revision(compacted) }));
    }
    let table = txn.open_table(LOG).map_err(backend)?;
    let mut changes = Vec::new();
    let mut up_to = after;
    for entry in table.range(after.0 + 1..).map_err(backend)?.take(WATCH_BATCH) {
        let (revision, record) = entry.map_err(backend)?;
        let revision = Revision(revision.value());
        if revision.0 != up_to.0 + 1 {
            return Err(StoreError::Damaged(format!("the log has no revision {}", up_to.0 + 1)));
        }
        let mut change = log_record::decode(revision, record.value())
            .ok_or_else(|| StoreError::Damaged(format!("the log's revision {revision} cannot be read")))?;
        change.events.retain(|event: &Event| event.key().starts_with(prefix));
        if !change.events.is_empty() {
            changes.push(change);
        }
        up_to = revision;
    }
    Ok(Ok((changes, up_to)))
}
