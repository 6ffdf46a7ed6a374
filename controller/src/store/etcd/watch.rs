//! A watch on etcd.
//!
//! It follows all data, whatever its prefix, so that commits elsewhere move its position; others' keys in the same etcd
//! move it with etcd's progress notices. It begins one revision before the first that it returns: etcd takes a watch at
//! the very revision that it compacted, although removals of that revision are gone.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use etcd_client::{EventType, GetOptions, WatchOptions, WatchResponse};

use super::{EtcdStore, Failure, Keys, Kind, revision, stream::Stream, to_etcd};
use crate::store::{Change, Event, Revision, Store as _, StoreError, Watch, WatchError};

/// How long etcd may take to say that a watch begins before what is compacted.
const COMPACTED_ANSWER: Duration = Duration::from_secs(5);

/// A watch on the store on etcd.
#[derive(Debug)]
pub struct EtcdWatch {
    keys: Arc<Keys>,
    stream: Stream,
    assembly: Assembly,
}

pub(super) async fn open(store: &EtcdStore, prefix: &str, after: Revision) -> Result<EtcdWatch, WatchError> {
    // Whether the revision can still be read is whether a watch after it misses nothing. 0 asks etcd for the present.
    let start = after.max(Revision(1));
    let options = GetOptions::new().with_keys_only().with_revision(to_etcd(start));
    let compacted = match store.read("watching", &store.keys.meta(super::EPOCH), options).await {
        Ok(_) => false,
        Err(Failure { kind: Kind::Compacted, .. }) => true,
        Err(Failure { kind: Kind::Future, .. }) => {
            return Err(WatchError::Future { current: store.revision().await? });
        }
        Err(failure) => return Err(StoreError::from(failure).into()),
    };
    let options = WatchOptions::new()
        .with_prefix()
        .with_prev_key()
        .with_fragment()
        .with_progress_notify()
        .with_start_revision(to_etcd(start));
    let (stream, first) =
        Stream::open(&store.cluster, &store.keys.physical(""), &options).await.map_err(StoreError::from)?;
    store.verify().await?;
    let mut watch = EtcdWatch { keys: Arc::clone(&store.keys), stream, assembly: Assembly::new(prefix, after) };
    watch.take(&first)?;
    if compacted {
        // etcd says up to where in its next answer.
        let answer = async {
            loop {
                watch.receive().await?;
            }
        };
        let silent = |_| StoreError::Backend("etcd did not say up to where it is compacted".to_owned());
        tokio::time::timeout(COMPACTED_ANSWER, answer).await.map_err(silent)?
    } else {
        Ok(watch)
    }
}

impl EtcdWatch {
    /// Waits for one message. Nothing is lost when the future is dropped.
    async fn receive(&mut self) -> Result<(), WatchError> {
        let response = self.stream.message().await.map_err(StoreError::from)?;
        self.take(&response)
    }

    fn take(&mut self, response: &WatchResponse) -> Result<(), WatchError> {
        if response.compact_revision() > 0 {
            return Err(WatchError::Compacted { oldest: revision(response.compact_revision()) });
        }
        for event in response.events() {
            let (revision, event) = self.event(event)?;
            self.assembly.add(revision, event);
        }
        if !response.0.fragment {
            self.assembly.complete();
            // Only a notice of progress says that everything up to its revision was sent.
            if response.events().is_empty() && !response.created() {
                self.assembly.progress(response.header().map_or(Revision(0), |header| revision(header.revision())));
            }
        }
        Ok(())
    }

    fn event(&self, event: &etcd_client::Event) -> Result<(Revision, Event), WatchError> {
        let kv = event.kv().ok_or_else(|| StoreError::Damaged("etcd sent an event without a key".to_owned()))?;
        let at = revision(kv.mod_revision());
        if event.event_type() == EventType::Put {
            return Ok((at, Event::Put(self.keys.item(kv)?)));
        }
        // Missing where the value before was compacted meanwhile.
        let previous = event.prev_kv().ok_or(WatchError::Compacted { oldest: at })?;
        Ok((at, Event::Delete { key: self.keys.logical(kv.key())?, previous: previous.value().to_vec() }))
    }
}

impl Watch for EtcdWatch {
    async fn next(&mut self) -> Result<Change, WatchError> {
        loop {
            if let Some(change) = self.assembly.pop() {
                return Ok(change);
            }
            self.receive().await?;
        }
    }

    fn position(&self) -> Revision {
        self.assembly.position
    }
}

/// Puts the events of one revision together. etcd sends revisions in order, and never part of one unless it says that
/// more follows; what it sends in one answer may be many revisions.
#[derive(Debug)]
struct Assembly {
    prefix: String,
    position: Revision,
    /// Everything up to here has arrived.
    arrived: Revision,
    /// Of answers that are not complete yet.
    partial: Vec<(Revision, Event)>,
    ready: VecDeque<Change>,
}

impl Assembly {
    fn new(prefix: &str, after: Revision) -> Self {
        let prefix = prefix.to_owned();
        Assembly { prefix, position: after, arrived: after, partial: Vec::new(), ready: VecDeque::new() }
    }

    fn add(&mut self, at: Revision, event: Event) {
        if at > self.arrived {
            self.partial.push((at, event));
        }
    }

    fn complete(&mut self) {
        for (revision, event) in self.partial.drain(..) {
            self.arrived = self.arrived.max(revision);
            if !event.key().starts_with(&self.prefix) {
                continue;
            }
            match self.ready.back_mut().filter(|change| change.revision == revision) {
                Some(change) => change.events.push(event),
                None => self.ready.push_back(Change { revision, events: vec![event] }),
            }
        }
        self.settle();
    }

    fn progress(&mut self, revision: Revision) {
        self.arrived = self.arrived.max(revision);
        self.settle();
    }

    fn settle(&mut self) {
        if self.ready.is_empty() {
            self.position = self.arrived;
        }
    }

    fn pop(&mut self) -> Option<Change> {
        let change = self.ready.pop_front()?;
        self.position = change.revision;
        self.settle();
        Some(change)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn removal(key: &str) -> Event {
        Event::Delete { key: key.to_owned(), previous: Vec::new() }
    }

    #[test]
    fn a_revision_is_one_change_however_it_arrives() {
        let mut assembly = Assembly::new("a/", Revision(4));
        for (revision, key) in [(4, "a/0"), (5, "a/1"), (5, "b/1")] {
            assembly.add(Revision(revision), removal(key));
        }
        assert_eq!(assembly.pop(), None, "more of it may follow");
        assert_eq!(assembly.position, Revision(4));
        for (revision, key) in [(5, "a/2"), (6, "b/2"), (7, "a/3"), (8, "b/3")] {
            assembly.add(Revision(revision), removal(key));
        }
        assembly.complete();
        let first = assembly.pop().unwrap();
        assert_eq!((first.revision, first.events), (Revision(5), vec![removal("a/1"), removal("a/2")]));
        assert_eq!(assembly.position, Revision(5));
        assert_eq!(assembly.pop().unwrap().revision, Revision(7));
        assert_eq!(assembly.position, Revision(8), "commits elsewhere count once nothing waits");
        assembly.progress(Revision(6));
        assert_eq!(assembly.position, Revision(8), "it never goes back");
        assembly.progress(Revision(20));
        assert_eq!((assembly.pop(), assembly.position), (None, Revision(20)));
    }
}
