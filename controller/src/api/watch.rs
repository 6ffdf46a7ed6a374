//! WatchIntents: the present intents, a bookmark, then every change. The queue to a client is short: a slow client's watch
//! waits, and where compaction overtakes it, it is told to begin again.

use std::{pin::Pin, sync::Arc, time::Duration};

use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tokio_util::sync::CancellationToken;
use tonic::Status;
use weir_proto::v1;

use crate::{
    access::Principal,
    catalog::decode_intent,
    model::Intent,
    store::{Event, Item, Listing, Revision, Store, Watch},
    wire::{errors, etag, intent_to_wire, to_i64},
};

pub(super) type WatchStream = Pin<Box<dyn Stream<Item = Result<v1::WatchIntentsResponse, Status>> + Send>>;
type Sender = mpsc::Sender<Result<v1::WatchIntentsResponse, Status>>;

/// Events that wait for a client.
const QUEUE: usize = 64;
/// A quiet watch says this often how far it is, so that it can be resumed after a compaction.
const BOOKMARK_PERIOD: Duration = Duration::from_secs(10);

/// What a watch shows.
#[derive(Debug)]
pub(super) struct Wanted {
    /// Where the intents are kept.
    pub(super) prefix: String,
    /// Who watches; sees the projects that it may read.
    pub(super) caller: Principal,
}

/// Starts a watch after `resume`, or with a list.
pub(super) async fn start<S: Store>(
    store: &Arc<S>,
    wanted: Wanted,
    resume: Option<Revision>,
    permit: OwnedSemaphorePermit,
    shutdown: CancellationToken,
) -> Result<WatchStream, Status> {
    let Wanted { prefix, caller } = wanted;
    let (listing, after) = match resume {
        Some(resume) => (None, resume),
        None => {
            let listing = store.list(&prefix).await.map_err(|error| errors::store(&error))?;
            let revision = listing.revision;
            (Some(listing), revision)
        }
    };
    let watch = store.watch(&prefix, after).await.map_err(|error| errors::watch(&error))?;
    let epoch = store.epoch();
    let (sender, receiver) = mpsc::channel(QUEUE);
    tokio::spawn(async move {
        let _permit = permit;
        let ended = tokio::select! {
            ended = send_all((epoch, &caller), listing, watch, after, &sender) => ended,
            () = shutdown.cancelled() => Some(Status::unavailable("the controller is shutting down")),
        };
        if let Some(status) = ended {
            // A client that does not read any more does not want to know.
            let _gone = sender.try_send(Err(status));
        }
    });
    Ok(Box::pin(ReceiverStream::new(receiver)))
}

/// Sends until the client has gone (`None`) or the watch is over.
async fn send_all(
    from: (u64, &Principal),
    listing: Option<Listing>,
    mut watch: impl Watch,
    after: Revision,
    sender: &Sender,
) -> Option<Status> {
    let mut told = after;
    if let Some(listing) = listing {
        for item in &listing.items {
            if let Some(intent) = present(from, item) {
                let event = response(v1::WatchEventKind::Initial, listing.revision, Some(intent));
                sender.send(Ok(event)).await.ok()?;
            }
        }
        sender.send(Ok(response(v1::WatchEventKind::Bookmark, listing.revision, None))).await.ok()?;
    }
    let mut bookmarks = tokio::time::interval(BOOKMARK_PERIOD);
    bookmarks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            change = watch.next() => {
                let change = match change {
                    Ok(change) => change,
                    Err(error) => return Some(errors::watch(&error)),
                };
                for event in &change.events {
                    let (kind, intent) = match event {
                        Event::Put(item) => (v1::WatchEventKind::Put, present(from, item)),
                        Event::Delete { key, previous } => (v1::WatchEventKind::Delete, gone(from.1, key, previous)),
                    };
                    if intent.is_some() {
                        sender.send(Ok(response(kind, change.revision, intent))).await.ok()?;
                    }
                }
                told = change.revision;
            }
            _ = bookmarks.tick() => {
                if watch.position() > told {
                    told = watch.position();
                    sender.send(Ok(response(v1::WatchEventKind::Bookmark, told, None))).await.ok()?;
                }
            }
            () = sender.closed() => return None,
        }
    }
}

fn response(kind: v1::WatchEventKind, revision: Revision, intent: Option<v1::Intent>) -> v1::WatchIntentsResponse {
    v1::WatchIntentsResponse { kind: kind.into(), revision: to_i64(revision.0), intent }
}

/// A row that cannot be read is left out; that is logged. So is what the caller may not see.
fn present((epoch, caller): (u64, &Principal), item: &Item) -> Option<v1::Intent> {
    let intent = decode_intent(item).map_err(|error| errors::record(&error)).ok()?;
    if !caller.may_view(&intent.record.name.project) {
        return None;
    }
    Some(intent_to_wire(&intent, etag(epoch, &intent)))
}

/// Only name and uid.
fn gone(caller: &Principal, key: &str, previous: &[u8]) -> Option<v1::Intent> {
    let item =
        Item { key: key.to_owned(), value: previous.to_vec(), create_revision: Revision(0), mod_revision: Revision(0) };
    let Intent { record, .. } = decode_intent(&item).map_err(|error| errors::record(&error)).ok()?;
    if !caller.may_view(&record.name.project) {
        return None;
    }
    Some(v1::Intent { name: record.name.to_string(), uid: record.uid, ..Default::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        catalog::{encode, intent_key},
        plan::tests::intent,
        store::{EmbeddedStore, Op, Txn},
    };

    #[tokio::test]
    async fn a_client_that_does_not_read_costs_a_short_queue_and_loses_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let store = Arc::new(EmbeddedStore::open(&directory.path().join("s")).unwrap());
        let permits = Arc::new(tokio::sync::Semaphore::new(1));
        let permit = Arc::clone(&permits).try_acquire_owned().unwrap();
        let token = CancellationToken::new();
        let wanted = || Wanted { prefix: "intents/".into(), caller: Principal::Local };
        let mut stream = start(&store, wanted(), None, permit, token.clone()).await.unwrap();
        let record = intent("a", 0, &["n1"]).record;
        let put = || Txn::default().then(Op::Put(intent_key(&record.name), encode(&record)));
        let mut last = Revision(0);
        for _ in 0..QUEUE * 3 {
            last = store.commit(put()).await.unwrap();
        }
        use tokio_stream::StreamExt;
        let bookmark = stream.next().await.unwrap().unwrap();
        assert_eq!(bookmark.kind(), v1::WatchEventKind::Bookmark);
        for i in 0..QUEUE as u64 * 3 {
            let event = stream.next().await.unwrap().unwrap();
            assert_eq!(event.revision, bookmark.revision + 1 + i as i64);
        }
        // Overtaken by a compaction: told so, and the watch's permit is given back.
        for _ in 0..QUEUE * 3 {
            last = store.commit(put()).await.unwrap();
        }
        drop(stream);
        tokio::time::timeout(Duration::from_secs(5), permits.acquire()).await.unwrap().unwrap().forget();
        store.compact(last).await.unwrap();
        permits.add_permits(1);
        let permit = permits.try_acquire_owned().unwrap();
        let refused = start(&store, wanted(), Some(Revision(2)), permit, token).await.err().unwrap();
        assert_eq!(refused.code(), tonic::Code::OutOfRange);
    }
}
