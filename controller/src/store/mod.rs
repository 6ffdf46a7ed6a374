//! Where desired state lives: keys and values under one global revision, changed by compare-and-set and watched without
//! a gap. A backend is durable before it acknowledges. Users are generic over [`Store`]; every backend passes the suite
//! in [`conformance`].
//!
//! Knows nothing of what the values mean.

pub mod backup;
pub mod conformance;
mod embedded;
#[cfg(feature = "etcd")]
pub mod etcd;
mod log_record;

pub use embedded::{EmbeddedStore, OpenError};

use std::{collections::HashSet, fmt, future::Future};

/// The store's revision: rises with every commit that changes something, and orders them; at least 1, also in an empty
/// store. It may rise in between too (etcd counts the changes of all its users): gaps mean nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A key with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Key.
    pub key: String,
    /// Value.
    pub value: Vec<u8>,
    /// Revision at which the key was created.
    pub create_revision: Revision,
    /// Revision at which it was last changed.
    pub mod_revision: Revision,
}

/// All items under a prefix, at one revision.
#[derive(Clone, Debug)]
pub struct Listing {
    /// In the order of their keys (as bytes).
    pub items: Vec<Item>,
    /// The store's revision of this answer: a watch after it misses nothing.
    pub revision: Revision,
}

/// What must hold for a transaction to take place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Precondition {
    /// The key does not exist.
    Absent(String),
    /// The key exists and was last changed at this revision.
    ModRevision(String, Revision),
    /// The key exists and was created at this revision, however often it was changed since.
    CreatedAt(String, Revision),
}

/// Keys that begin with this belong to the backend: no list and no watch shows them, and data never has them.
/// A precondition can name one: the leader's key fences the leader's writes.
pub const BACKEND_KEYS: &str = "//";

impl Precondition {
    /// The key that it is about.
    pub fn key(&self) -> &str {
        match self {
            Precondition::Absent(key) | Precondition::ModRevision(key, _) | Precondition::CreatedAt(key, _) => key,
        }
    }

    /// Whether it holds for a key with these revisions of creation and last change; `None` where it does not exist.
    pub fn holds(&self, found: Option<(Revision, Revision)>) -> bool {
        match self {
            Precondition::Absent(_) => found.is_none(),
            Precondition::ModRevision(_, expected) => found.is_some_and(|(_, modified)| modified == *expected),
            Precondition::CreatedAt(_, expected) => found.is_some_and(|(created, _)| created == *expected),
        }
    }
}

/// A change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Sets a key.
    Put(String, Vec<u8>),
    /// Removes a key; nothing happens where it does not exist.
    Delete(String),
}

impl Op {
    /// The key that it changes.
    pub fn key(&self) -> &str {
        match self {
            Op::Put(key, _) | Op::Delete(key) => key,
        }
    }
}

/// A transaction: all of it, or nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Txn {
    /// All must hold.
    pub preconditions: Vec<Precondition>,
    /// Changes; each key at most once.
    pub ops: Vec<Op>,
}

impl Txn {
    /// Adds a precondition.
    #[must_use]
    pub fn when(mut self, precondition: Precondition) -> Self {
        self.preconditions.push(precondition);
        self
    }

    /// Adds a change.
    #[must_use]
    pub fn then(mut self, op: Op) -> Self {
        self.ops.push(op);
        self
    }

    /// A key that it changes twice.
    pub fn repeated_key(&self) -> Option<&str> {
        let mut keys = HashSet::new();
        self.ops.iter().map(Op::key).find(|key| !keys.insert(*key))
    }
}

/// What happened to a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// It was created or changed.
    Put(Item),
    /// It was removed.
    Delete {
        /// Key.
        key: String,
        /// Its last value.
        previous: Vec<u8>,
    },
}

impl Event {
    /// The key.
    pub fn key(&self) -> &str {
        match self {
            Event::Put(item) => &item.key,
            Event::Delete { key, .. } => key,
        }
    }
}

/// One commit, as far as a watch sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Revision of the commit.
    pub revision: Revision,
    /// Its events under the watched prefix, never empty, in the order of the transaction.
    pub events: Vec<Event>,
}

/// The store did not do what was asked.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// The backend failed; whether a commit took place is unknown.
    #[error("the store failed: {0}")]
    Backend(String),
    /// What was read makes no sense.
    #[error("the store is damaged: {0}")]
    Damaged(String),
    /// It is not the store that was opened: another took its place, or its epoch was raised. Opening it again helps.
    #[error("the store is no longer the one that this process opened: {0}")]
    Replaced(String),
    /// There is none at this place, and none is to be made.
    #[error("there is no store of Weir under {0}")]
    Absent(String),
    /// The store is shut down, or its writer died of this.
    #[error("the store is closed: {0}")]
    Closed(String),
}

impl StoreError {
    /// Whether a later attempt may succeed.
    pub fn is_retryable(&self) -> bool {
        match self {
            StoreError::Backend(_) | StoreError::Closed(_) => true,
            StoreError::Damaged(_) | StoreError::Replaced(_) | StoreError::Absent(_) => false,
        }
    }
}

/// A transaction did not take place.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// A precondition does not hold.
    #[error("`{key}` is not as expected, its revision is {}", current.map_or("none".to_owned(), |r| r.to_string()))]
    Conflict {
        /// The first key of which that is true.
        key: String,
        /// Revision of its last change; `None` where it does not exist.
        current: Option<Revision>,
    },
    /// The transaction changes a key twice.
    #[error("the transaction changes `{0}` twice")]
    RepeatedKey(String),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl CommitError {
    /// Whether the same transaction may succeed later.
    pub fn is_retryable(&self) -> bool {
        match self {
            CommitError::Conflict { .. } | CommitError::RepeatedKey(_) => false,
            CommitError::Store(error) => error.is_retryable(),
        }
    }
}

/// A watch cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// Changes that the watch has not seen are gone: list again.
    #[error("revisions up to {oldest} are compacted")]
    Compacted {
        /// The oldest revision after which a watch can start.
        oldest: Revision,
    },
    /// The revision lies in the future of this store: it is another store's, list again.
    #[error("the store's revision is only {current}")]
    Future {
        /// The store's revision.
        current: Revision,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl WatchError {
    /// Whether the same watch may succeed later.
    pub fn is_retryable(&self) -> bool {
        match self {
            WatchError::Compacted { .. } | WatchError::Future { .. } => false,
            WatchError::Store(error) => error.is_retryable(),
        }
    }
}

/// Changes under a prefix, in the order of revisions, without gap or duplicate.
pub trait Watch: Send + 'static {
    /// The next change; waits for it. Nothing is lost when the future is dropped.
    ///
    /// # Errors
    /// See [`WatchError`]; the watch is over then.
    fn next(&mut self) -> impl Future<Output = Result<Change, WatchError>> + Send;

    /// Everything up to this revision was returned, or was not under the prefix.
    fn position(&self) -> Revision;
}

/// A store.
pub trait Store: Send + Sync + 'static {
    /// Its watch.
    type Watch: Watch;

    /// Identity of the store, made with it: another store's plans are no continuation of this one's.
    fn uid(&self) -> String;

    /// Rises when the store is restored or migrated; orders fences before the revision does.
    fn epoch(&self) -> u64;

    /// Sets the epoch, durably, for everybody who opens the store afterwards. Never lowers it.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn raise_epoch(&self, to: u64) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Whether it is still the store that was opened. Commits, lists and new watches find that out by themselves; this is
    /// for who neither reads nor writes for long.
    ///
    /// # Errors
    /// [`StoreError::Replaced`] where it is not.
    fn verify(&self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// The present revision.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn revision(&self) -> impl Future<Output = Result<Revision, StoreError>> + Send;

    /// One item.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn get(&self, key: &str) -> impl Future<Output = Result<Option<Item>, StoreError>> + Send;

    /// All items whose keys begin with `prefix`.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn list(&self, prefix: &str) -> impl Future<Output = Result<Listing, StoreError>> + Send;

    /// Commits; durable when it returns. The revision is the store's after it: unchanged where the transaction changed
    /// nothing.
    ///
    /// # Errors
    /// See [`CommitError`].
    fn commit(&self, txn: Txn) -> impl Future<Output = Result<Revision, CommitError>> + Send;

    /// Changes under `prefix` with revisions above `after`.
    ///
    /// # Errors
    /// See [`WatchError`].
    fn watch(&self, prefix: &str, after: Revision) -> impl Future<Output = Result<Self::Watch, WatchError>> + Send;

    /// Forgets changes below `keep_from`: a watch can then start after `keep_from - 1` at the earliest. Items stay.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn compact(&self, keep_from: Revision) -> impl Future<Output = Result<(), StoreError>> + Send;
}
