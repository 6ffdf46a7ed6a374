//! What every backend must do, as one suite. A backend's tests call [`all`] with a [`Harness`] that makes stores of it.
//!
//! Others may use the same backend meanwhile and raise its revision, as in an etcd that is shared: the suite asks for
//! order, never for the next number.
//!
//! The checks panic with what they found, as tests do.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a suite of checks, called by tests alone: a panic is how it fails"
)]

use std::{collections::BTreeMap, future::Future, sync::Arc, time::Duration};

use super::{BACKEND_KEYS, Change, CommitError, Event, Op, Precondition, Revision, Store, Txn, Watch, WatchError};

/// Makes stores of one backend.
pub trait Harness: Sync {
    /// The backend.
    type Store: Store;

    /// A new, empty store, independent of all others.
    fn fresh(&self) -> impl Future<Output = Self::Store> + Send;

    /// Closes a store and opens it again, as another process would.
    fn reopen(&self, store: Self::Store) -> impl Future<Output = Self::Store> + Send;
}

/// Runs the whole suite.
pub async fn all(harness: &impl Harness) {
    reads_and_revisions(&harness.fresh().await).await;
    conditions(&harness.fresh().await).await;
    creation_is_a_condition(&harness.fresh().await).await;
    transactions_are_atomic(&harness.fresh().await).await;
    prefixes_and_order(&harness.fresh().await).await;
    bytes_are_kept(&harness.fresh().await).await;
    races_have_one_winner(harness.fresh().await).await;
    counters_lose_nothing(harness.fresh().await).await;
    watch_sees_all_once_in_order(harness.fresh().await).await;
    watch_survives_dropped_waits(&harness.fresh().await).await;
    watch_resumes(&harness.fresh().await).await;
    watch_by_prefix(&harness.fresh().await).await;
    compaction(&harness.fresh().await).await;
    compaction_keeps_removals(&harness.fresh().await).await;
    reopening(harness).await;
    epochs_rise(harness).await;
}

fn put(key: &str, value: &str) -> Txn {
    Txn::default().then(Op::Put(key.to_owned(), value.as_bytes().to_vec()))
}

fn delete(key: &str) -> Txn {
    Txn::default().then(Op::Delete(key.to_owned()))
}

async fn value(store: &impl Store, key: &str) -> Option<String> {
    store.get(key).await.unwrap().map(|item| String::from_utf8(item.value).unwrap())
}

async fn next(watch: &mut impl Watch) -> Change {
    tokio::time::timeout(Duration::from_secs(10), watch.next()).await.expect("a change within 10 s").unwrap()
}

async fn reads_and_revisions(store: &impl Store) {
    assert!(store.epoch() >= 1, "an epoch begins at 1");
    let empty = store.list("").await.unwrap();
    assert!(empty.items.is_empty());
    assert!(empty.revision >= Revision(1), "0 is left for `no revision`");
    assert!(store.get("a").await.unwrap().is_none());

    let created = store.commit(put("a", "1")).await.unwrap();
    assert!(created > empty.revision, "a commit raises the revision");
    let changed = store.commit(put("a", "2")).await.unwrap();
    assert!(changed > created);
    let item = store.get("a").await.unwrap().unwrap();
    assert_eq!((item.value.as_slice(), item.create_revision, item.mod_revision), (b"2".as_slice(), created, changed));

    let gone = store.commit(delete("a")).await.unwrap();
    assert!(gone > changed);
    assert!(store.get("a").await.unwrap().is_none());
    let again = store.commit(put("a", "3")).await.unwrap();
    let item = store.get("a").await.unwrap().unwrap();
    assert_eq!(item.create_revision, again, "a key that comes back was created anew");
    let nothing = store.commit(delete("nothing")).await.unwrap();
    assert!(nothing >= again, "what changes nothing returns the present revision");
    assert!(store.commit(Txn::default()).await.unwrap() >= nothing);
    assert!(store.list("").await.unwrap().revision >= nothing);
    assert!(store.revision().await.unwrap() >= nothing);
    let mut watch = store.watch("", again).await.unwrap();
    let after = store.commit(put("b", "1")).await.unwrap();
    assert_eq!(next(&mut watch).await.revision, after, "what changes nothing is no change in a watch");
}

async fn conditions(store: &impl Store) {
    let absent = |key: &str| Precondition::Absent(key.to_owned());
    let first = store.commit(put("a", "1").when(absent("a"))).await.unwrap();
    match store.commit(put("a", "2").when(absent("a"))).await {
        Err(CommitError::Conflict { key, current }) => assert_eq!((key.as_str(), current), ("a", Some(first))),
        other => panic!("a key that exists is not absent: {other:?}"),
    }
    let at = |key: &str, revision| Precondition::ModRevision(key.to_owned(), revision);
    let second = store.commit(put("a", "2").when(at("a", first))).await.unwrap();
    match store.commit(put("a", "3").when(at("a", first))).await {
        Err(error @ CommitError::Conflict { current, .. }) => {
            assert_eq!(current, Some(second));
            assert!(!error.is_retryable());
        }
        other => panic!("an old revision is no match: {other:?}"),
    }
    match store.commit(delete("b").when(at("b", first))).await {
        Err(CommitError::Conflict { key, current }) => assert_eq!((key.as_str(), current), ("b", None)),
        other => panic!("a key that does not exist has no revision: {other:?}"),
    }
    // A condition without a change is a check.
    assert!(store.commit(Txn::default().when(at("a", second))).await.unwrap() >= second);
    assert!(store.commit(Txn::default().when(absent("a"))).await.is_err());
    assert_eq!(value(store, "a").await.as_deref(), Some("2"));
    // The first condition that does not hold is named.
    let txn = Txn::default().when(at("a", second)).when(absent("none")).when(at("b", first)).when(absent("a"));
    match store.commit(txn).await {
        Err(CommitError::Conflict { key, current }) => assert_eq!((key.as_str(), current), ("b", None)),
        other => panic!("two conditions do not hold: {other:?}"),
    }
}

async fn creation_is_a_condition(store: &impl Store) {
    let created_at = |revision| Precondition::CreatedAt("a".to_owned(), revision);
    match store.commit(put("b", "1").when(created_at(Revision(1)))).await {
        Err(CommitError::Conflict { key, current }) => assert_eq!((key.as_str(), current), ("a", None)),
        other => panic!("what does not exist was not created: {other:?}"),
    }
    let first = store.commit(put("a", "1")).await.unwrap();
    let changed = store.commit(put("a", "2").when(created_at(first))).await.unwrap();
    store.commit(put("b", "1").when(created_at(first))).await.unwrap();
    assert!(store.commit(put("b", "2").when(created_at(changed))).await.is_err(), "a change is no creation");
    store.commit(delete("a").when(created_at(first))).await.unwrap();
    let second = store.commit(put("a", "1")).await.unwrap();
    match store.commit(put("b", "3").when(created_at(first))).await {
        Err(CommitError::Conflict { key, current }) => assert_eq!((key.as_str(), current), ("a", Some(second))),
        other => panic!("a key that came back is another one: {other:?}"),
    }
    assert_eq!(value(store, "b").await.as_deref(), Some("1"));
    let unknown = Precondition::CreatedAt(format!("{BACKEND_KEYS}no-such-key"), first);
    assert!(matches!(
        store.commit(put("b", "4").when(unknown)).await,
        Err(CommitError::Conflict { current: None, .. })
    ));
}

async fn transactions_are_atomic(store: &impl Store) {
    let txn = put("a", "1").then(Op::Put("b".into(), b"1".to_vec()));
    let both = store.commit(txn).await.unwrap();
    let items = store.list("").await.unwrap().items;
    assert!(items.iter().all(|item| item.mod_revision == both) && items.len() == 2, "one transaction, one revision");
    let refused = put("a", "2").then(Op::Delete("b".into())).when(Precondition::Absent("b".into()));
    assert!(store.commit(refused).await.is_err());
    assert_eq!(value(store, "a").await.as_deref(), Some("1"));
    assert!(matches!(
        store.commit(put("a", "2").then(Op::Delete("a".into()))).await,
        Err(CommitError::RepeatedKey(key)) if key == "a"
    ));
    assert_eq!(store.get("a").await.unwrap().unwrap().mod_revision, both, "a refused transaction changes nothing");
}

async fn prefixes_and_order(store: &impl Store) {
    for key in ["p/b", "p/a", "p0", "o/z", "p/", "p/a/x", "q", "p/ä"] {
        store.commit(put(key, "")).await.unwrap();
    }
    let keys: Vec<String> = store.list("p/").await.unwrap().items.into_iter().map(|item| item.key).collect();
    assert_eq!(keys, ["p/", "p/a", "p/a/x", "p/b", "p/ä"]);
    assert_eq!(store.list("").await.unwrap().items.len(), 8);
    assert!(store.list("x").await.unwrap().items.is_empty());
}

async fn bytes_are_kept(store: &impl Store) {
    let all: Vec<u8> = (0..=255).collect();
    let large = vec![7; 1 << 20];
    store.commit(Txn::default().then(Op::Put("all".into(), all.clone()))).await.unwrap();
    store.commit(Txn::default().then(Op::Put("large".into(), large.clone()))).await.unwrap();
    store.commit(Txn::default().then(Op::Put("none".into(), Vec::new()))).await.unwrap();
    assert_eq!(store.get("all").await.unwrap().unwrap().value, all);
    assert_eq!(store.get("large").await.unwrap().unwrap().value, large);
    assert!(store.get("none").await.unwrap().unwrap().value.is_empty());
}

async fn races_have_one_winner(store: impl Store) {
    let store = Arc::new(store);
    for round in 0..5 {
        let tasks: Vec<_> = (0..16)
            .map(|task| {
                let store = Arc::clone(&store);
                let key = format!("race{round}");
                tokio::spawn(async move {
                    store.commit(put(&key, &task.to_string()).when(Precondition::Absent(key.clone()))).await
                })
            })
            .collect();
        let mut winners = 0;
        for task in tasks {
            match task.await.unwrap() {
                Ok(_) => winners += 1,
                Err(CommitError::Conflict { .. }) => {}
                Err(other) => panic!("{other}"),
            }
        }
        assert_eq!(winners, 1);
    }
}

async fn counters_lose_nothing(store: impl Store) {
    const TASKS: u64 = 8;
    const STEPS: u64 = 20;
    let store = Arc::new(store);
    store.commit(put("counter", "0")).await.unwrap();
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                for _ in 0..STEPS {
                    loop {
                        let item = store.get("counter").await.unwrap().unwrap();
                        let count: u64 = String::from_utf8(item.value).unwrap().parse().unwrap();
                        let condition = Precondition::ModRevision("counter".into(), item.mod_revision);
                        match store.commit(put("counter", &(count + 1).to_string()).when(condition)).await {
                            Ok(_) => break,
                            Err(CommitError::Conflict { .. }) => {}
                            Err(other) => panic!("{other}"),
                        }
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(value(&*store, "counter").await, Some((TASKS * STEPS).to_string()));
}

async fn watch_sees_all_once_in_order(store: impl Store) {
    const TASKS: u64 = 6;
    const STEPS: u64 = 40;
    let store = Arc::new(store);
    let start = store.list("").await.unwrap().revision;
    let early = store.watch("", start).await.unwrap();
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                let mut committed = BTreeMap::new();
                for step in 0..STEPS {
                    let key = format!("k{}", (task + step) % 5);
                    let text = format!("{task}/{step}");
                    committed.insert(store.commit(put(&key, &text)).await.unwrap(), (key, text));
                }
                committed
            })
        })
        .collect();
    // One that begins in the middle of it, with the list that it continues.
    let listing = store.list("").await.unwrap();
    let middle = store.watch("", listing.revision).await.unwrap();
    let mut committed = BTreeMap::new();
    for task in tasks {
        committed.extend(task.await.unwrap());
    }
    assert_eq!(committed.len() as u64, TASKS * STEPS, "each commit has its own revision");
    for (mut watch, after) in [(early, start), (middle, listing.revision)] {
        for (revision, (key, text)) in committed.range(Revision(after.0 + 1)..) {
            let change = next(&mut watch).await;
            assert_eq!(change.revision, *revision, "no gap, no duplicate, in order");
            match change.events.as_slice() {
                [Event::Put(item)] => {
                    assert_eq!((&item.key, item.value.as_slice()), (key, text.as_bytes()));
                    assert_eq!(item.mod_revision, *revision);
                }
                other => panic!("one put was expected: {other:?}"),
            }
            assert_eq!(watch.position(), *revision);
        }
    }
}

async fn watch_survives_dropped_waits(store: &impl Store) {
    let start = store.list("").await.unwrap().revision;
    let mut watch = store.watch("", start).await.unwrap();
    for i in 0..20u64 {
        // Waits that are given up at any point, before and after the commit.
        let given_up = tokio::time::timeout(Duration::from_micros(i * 20), watch.next()).await;
        assert!(given_up.is_err(), "nothing was committed");
        let committed = store.commit(put("k", &i.to_string())).await.unwrap();
        let mut change = None;
        for wait in 0..1000u64 {
            let given_up = tokio::time::timeout(Duration::from_micros(wait * 20), watch.next()).await;
            if let Ok(seen) = given_up {
                change = Some(seen.unwrap());
                break;
            }
        }
        assert_eq!(change.expect("the change").revision, committed);
        assert_eq!(watch.position(), committed);
    }
}

async fn watch_resumes(store: &impl Store) {
    let mut committed = Vec::new();
    for i in 0..10 {
        committed.push(store.commit(put(&format!("k{i}"), "v")).await.unwrap());
    }
    let last = store.commit(delete("k3")).await.unwrap();
    let mut watch = store.watch("", committed[7]).await.unwrap();
    assert_eq!(next(&mut watch).await.revision, committed[8]);
    assert_eq!(next(&mut watch).await.revision, committed[9]);
    let removal = next(&mut watch).await;
    assert_eq!(removal.events, [Event::Delete { key: "k3".into(), previous: b"v".to_vec() }]);
    let quiet = tokio::time::timeout(Duration::from_millis(50), watch.next()).await;
    assert!(quiet.is_err(), "nothing more happened");
    match store.watch("", Revision(last.0 + 1_000_000)).await.err() {
        Some(error @ WatchError::Future { current }) => {
            assert!(current >= last && current.0 < last.0 + 1_000_000);
            assert!(!error.is_retryable());
        }
        other => panic!("a watch cannot begin in the future: {other:?}"),
    }
}

async fn watch_by_prefix(store: &impl Store) {
    let start = store.list("").await.unwrap().revision;
    let mut watch = store.watch("a/", start).await.unwrap();
    store.commit(put("b/1", "")).await.unwrap();
    let txn = put("b/2", "").then(Op::Put("a/1".into(), Vec::new())).then(Op::Put("a/2".into(), Vec::new()));
    let both = store.commit(txn).await.unwrap();
    let change = next(&mut watch).await;
    let keys: Vec<&str> = change.events.iter().map(Event::key).collect();
    assert_eq!((change.revision, keys), (both, vec!["a/1", "a/2"]), "one commit is one change");
    // Commits elsewhere move the position too, so that a quiet watch can be resumed after compaction.
    let last = store.commit(put("b/3", "")).await.unwrap();
    let _quiet = tokio::time::timeout(Duration::from_millis(500), watch.next()).await;
    assert_eq!(watch.position(), last);
}

async fn compaction(store: &impl Store) {
    let start = store.list("").await.unwrap().revision;
    let mut committed = Vec::new();
    for i in 0..10 {
        committed.push(store.commit(put(&format!("k{i}"), "v")).await.unwrap());
    }
    let keep_from = committed[5];
    let mut slow = store.watch("", start).await.unwrap();
    store.compact(keep_from).await.unwrap();
    assert_eq!(store.list("").await.unwrap().items.len(), 10, "items stay");
    for after in [Revision(0), start, Revision(keep_from.0 - 2)] {
        match store.watch("", after).await.err() {
            Some(error @ WatchError::Compacted { oldest }) => {
                assert_eq!(oldest.0, keep_from.0 - 1);
                assert!(!error.is_retryable());
            }
            other => panic!("what is compacted cannot be watched: {other:?}"),
        }
    }
    let mut watch = store.watch("", Revision(keep_from.0 - 1)).await.unwrap();
    assert_eq!(next(&mut watch).await.revision, keep_from);
    // A watch that was overtaken says so; it never jumps over what it has not seen.
    for expected in &committed {
        match tokio::time::timeout(Duration::from_secs(10), slow.next()).await.expect("an answer") {
            Ok(change) => assert_eq!(change.revision, *expected),
            Err(WatchError::Compacted { oldest }) => {
                assert_eq!(oldest.0, keep_from.0 - 1);
                break;
            }
            Err(other) => panic!("{other}"),
        }
    }
    store.compact(Revision(1)).await.unwrap();
    assert!(store.watch("", start).await.is_err(), "compaction never goes back");
    store.compact(Revision(u64::MAX)).await.unwrap();
    let after = store.commit(put("last", "v")).await.unwrap();
    assert!(after > committed[9]);
}

/// A removal at the very revision that is kept from is still seen, and one right before it is not half seen.
async fn compaction_keeps_removals(store: &impl Store) {
    let first = store.commit(put("a", "1")).await.unwrap();
    let removed = store.commit(delete("a")).await.unwrap();
    store.commit(put("b", "1")).await.unwrap();
    store.compact(removed).await.unwrap();
    let after = Revision(removed.0 - 1);
    assert!(after >= first);
    let mut watch = store.watch("", after).await.unwrap();
    let change = next(&mut watch).await;
    assert_eq!((change.revision, change.events.len()), (removed, 1), "{change:?}");
    assert!(matches!(&change.events[0], Event::Delete { key, .. } if key == "a"), "{change:?}");
}

async fn reopening(harness: &impl Harness) {
    let store = harness.fresh().await;
    let first = store.commit(put("a", "1")).await.unwrap();
    let second = store.commit(put("b", "2")).await.unwrap();
    let last = store.commit(delete("b")).await.unwrap();
    let epoch = store.epoch();
    let store = harness.reopen(store).await;
    assert_eq!(store.epoch(), epoch, "opening is no migration");
    let listing = store.list("").await.unwrap();
    assert!(listing.revision >= last, "the revision never goes back");
    assert_eq!(listing.items.len(), 1);
    assert_eq!(listing.items[0].create_revision, first);
    let mut watch = store.watch("", first).await.unwrap();
    assert_eq!(next(&mut watch).await.revision, second);
    // A watch is a user of the store, and keeps it open.
    drop(watch);
    assert!(store.commit(put("c", "3")).await.unwrap() > last);
    store.compact(last).await.unwrap();
    let store = harness.reopen(store).await;
    assert!(matches!(store.watch("", first).await.err(), Some(WatchError::Compacted { .. })), "compaction is durable");
}

async fn epochs_rise(harness: &impl Harness) {
    let other = harness.fresh().await.uid();
    let store = harness.fresh().await;
    let (uid, epoch) = (store.uid(), store.epoch());
    assert!(!uid.is_empty() && uid != other, "a store has an identity of its own");
    store.raise_epoch(epoch + 5).await.unwrap();
    store.raise_epoch(epoch + 2).await.unwrap();
    let store = harness.reopen(store).await;
    assert_eq!(store.epoch(), epoch + 5, "an epoch is durable, and never falls");
    assert_eq!(store.uid(), uid);
}
