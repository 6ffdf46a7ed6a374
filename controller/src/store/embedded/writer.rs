//! The one writer. It takes all transactions that wait, applies each under its own revision, makes them durable with one
//! commit of the file, and only then answers (group commit).
//!
//! When the file cannot be written, the writer ends: whether the last commit is in the file is known only after opening
//! it again, so going on could acknowledge what contradicts it.

use std::sync::Arc;

use redb::{Database, ReadableTable, Table};
use tokio::sync::{mpsc, oneshot, watch};

use super::{COMPACTED, Entry, Failure, KV, LOG, META, REVISION, backend, item, place::Place};
use crate::store::{CommitError, Event, Op, Revision, StoreError, Txn, log_record};

/// Transactions in one commit of the file.
const GROUP: usize = 256;

#[derive(Debug)]
pub(super) enum Request {
    Commit { txn: Txn, reply: oneshot::Sender<Result<Revision, CommitError>> },
    Compact { keep_from: Revision, reply: oneshot::Sender<Result<(), StoreError>> },
}

/// What is told once the group is durable.
enum Answer {
    Commit(oneshot::Sender<Result<Revision, CommitError>>, Result<Revision, CommitError>),
    Compact(oneshot::Sender<Result<(), StoreError>>),
}

impl Answer {
    fn send(self, durable: Result<(), &StoreError>) {
        // A receiver that is gone does not want to know.
        let _gone = match (self, durable) {
            (Answer::Commit(reply, result), Ok(())) => reply.send(result).is_err(),
            (Answer::Compact(reply), Ok(())) => reply.send(Ok(())).is_err(),
            (Answer::Commit(reply, _), Err(error)) => reply.send(Err(error.clone().into())).is_err(),
            (Answer::Compact(reply), Err(error)) => reply.send(Err(error.clone())).is_err(),
        };
    }
}

/// Starts the writer's thread. It ends when all senders of `queue` are gone, or the file fails.
pub(super) fn spawn(
    db: Arc<Database>,
    place: Option<Place>,
    mut queue: mpsc::Receiver<Request>,
    durable: watch::Sender<Revision>,
    failure: Failure,
) -> Result<(), StoreError> {
    let run = move || {
        let mut group = Vec::new();
        while queue.blocking_recv_many(&mut group, GROUP) > 0 {
            let mut answers = Vec::new();
            // What is durable in a file that nobody finds again is not acknowledged.
            let mut waiting = group.drain(..);
            let applied = apply(&db, &mut waiting, &mut answers)
                .and_then(|revision| place.as_ref().map_or(Ok(()), Place::verify).map(|()| revision));
            match applied {
                Ok(revision) => {
                    // Watchers first: who reads its own write through a watch finds it there.
                    durable.send_if_modified(|last| std::mem::replace(last, revision) != revision);
                    answers.into_iter().for_each(|answer| answer.send(Ok(())));
                }
                Err(error) => {
                    tracing::error!(%error, "the store cannot be written; no further commits");
                    // Before anybody is answered, or dropped unseen: who asks again is told why. It is set once, here.
                    let _set_once = failure.0.set(format!("{error}: see to it, and start the controller again"));
                    answers.into_iter().for_each(|answer| answer.send(Err(&error)));
                    drop(waiting);
                    return;
                }
            }
        }
    };
    std::thread::Builder::new().name("store-writer".to_owned()).spawn(run).map(drop).map_err(backend)
}

/// Applies a group and makes it durable; the revision after it. Every request that was looked at has its answer in
/// `answers`, also on an error.
fn apply(
    db: &Database,
    group: &mut impl Iterator<Item = Request>,
    answers: &mut Vec<Answer>,
) -> Result<Revision, StoreError> {
    let txn = db.begin_write().map_err(backend)?;
    let revision = {
        let mut tables = Tables {
            kv: txn.open_table(KV).map_err(backend)?,
            log: txn.open_table(LOG).map_err(backend)?,
            meta: txn.open_table(META).map_err(backend)?,
        };
        let mut revision = tables.number(REVISION)?;
        for request in group {
            match request {
                Request::Commit { txn, reply } => {
                    let result = tables.commit(txn, revision);
                    if let Ok(Ok(after)) = &result {
                        revision = after.0;
                    }
                    match result {
                        Ok(result) => answers.push(Answer::Commit(reply, result)),
                        Err(error) => {
                            answers.push(Answer::Commit(reply, Ok(Revision(revision))));
                            return Err(error);
                        }
                    }
                }
                Request::Compact { keep_from, reply } => {
                    answers.push(Answer::Compact(reply));
                    tables.compact(keep_from.0.min(revision))?;
                }
            }
        }
        tables.meta.insert(REVISION, revision).map_err(backend)?;
        Revision(revision)
    };
    txn.commit().map_err(backend)?;
    Ok(revision)
}

struct Tables<'txn> {
    kv: Table<'txn, &'static str, Entry<'static>>,
    log: Table<'txn, u64, &'static [u8]>,
    meta: Table<'txn, &'static str, u64>,
}

impl Tables<'_> {
    fn number(&self, key: &str) -> Result<u64, StoreError> {
        let value = self.meta.get(key).map_err(backend)?.map(|value| value.value());
        value.ok_or_else(|| StoreError::Damaged(format!("`{key}` is missing in its meta table")))
    }

    /// The outer error means that the file failed.
    fn commit(&mut self, txn: Txn, revision: u64) -> Result<Result<Revision, CommitError>, StoreError> {
        if let Some(key) = txn.repeated_key() {
            return Ok(Err(CommitError::RepeatedKey(key.to_owned())));
        }
        for precondition in &txn.preconditions {
            let entry = self.kv.get(precondition.key()).map_err(backend)?;
            let found = entry.map(|entry| (Revision(entry.value().0), Revision(entry.value().1)));
            if !precondition.holds(found) {
                let (key, current) = (precondition.key().to_owned(), found.map(|(_, modified)| modified));
                return Ok(Err(CommitError::Conflict { key, current }));
            }
        }
        let next = revision + 1;
        let mut events = Vec::new();
        for op in txn.ops {
            match op {
                Op::Put(key, value) => {
                    let create = self.kv.get(key.as_str()).map_err(backend)?.map_or(next, |entry| entry.value().0);
                    let entry = (create, next, value.as_slice());
                    self.kv.insert(key.as_str(), entry).map_err(backend)?;
                    events.push(Event::Put(item(&key, entry)));
                }
                Op::Delete(key) => {
                    let previous = self.kv.remove(key.as_str()).map_err(backend)?.map(|entry| entry.value().2.to_vec());
                    if let Some(previous) = previous {
                        events.push(Event::Delete { key, previous });
                    }
                }
            }
        }
        if events.is_empty() {
            return Ok(Ok(Revision(revision)));
        }
        self.log.insert(next, log_record::encode(&events).as_slice()).map_err(backend)?;
        Ok(Ok(Revision(next)))
    }

    fn compact(&mut self, keep_from: u64) -> Result<(), StoreError> {
        let compacted = keep_from.saturating_sub(1);
        if compacted <= self.number(COMPACTED)? {
            return Ok(());
        }
        self.log.retain_in(..keep_from, |_, _| false).map_err(backend)?;
        self.meta.insert(COMPACTED, compacted).map_err(backend)?;
        Ok(())
    }
}
