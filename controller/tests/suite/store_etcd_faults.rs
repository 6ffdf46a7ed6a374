//! What the store on etcd does when etcd is away, hangs, is full, refuses or has forgotten.
#![cfg(feature = "etcd")]

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use weir_controller::{
    catalog::{self, DirectiveRecord},
    model::Directive,
    ops::Counters,
    session::{self, Hub},
    store::{
        CommitError, Op, Precondition, Revision, Store, StoreError, Txn, Watch, WatchError,
        etcd::{EtcdAccess, EtcdStore, EtcdWatch},
    },
};
use weir_tests::{
    etcd::{Etcd, Setup, missing},
    require,
};

async fn connect(etcd: &Etcd) -> EtcdStore {
    EtcdStore::connect(&etcd.location("/w").parse().unwrap(), &EtcdAccess::default()).await.unwrap()
}

fn put(key: &str, value: &[u8]) -> Txn {
    Txn::default().then(Op::Put(key.to_owned(), value.to_vec()))
}

async fn next(watch: &mut EtcdWatch) -> Result<weir_controller::store::Change, WatchError> {
    tokio::time::timeout(Duration::from_secs(10), watch.next()).await.expect("an answer within 10 s")
}

/// Commits until it succeeds; an attempt that may have taken place is made again, which `put` can bear.
async fn commit_at_last(store: &EtcdStore, key: &str, within: Duration) -> Revision {
    let began = Instant::now();
    loop {
        match store.commit(put(key, b"v")).await {
            Ok(revision) => return revision,
            Err(error) => {
                assert!(error.is_retryable(), "{error}");
                assert!(began.elapsed() < within, "still not after {within:?}: {error}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_compacted_while_a_follower_slept_is_listed_again() {
    if !require::met("what_was_compacted_while_a_follower_slept_is_listed_again", &missing()) {
        return;
    }
    let etcd = Etcd::start();
    let store = Arc::new(connect(&etcd).await);
    let key = catalog::directive_key(None);
    let directive = |directive| catalog::encode(&DirectiveRecord { directive });
    store.commit(put(&key, &directive(Directive::Active))).await.unwrap();
    let asleep = session::load(&*store).await.unwrap();
    let from = asleep.revision;
    let hub = Arc::new(Hub::new(store.epoch(), asleep));
    store.commit(put(&key, &directive(Directive::Paused))).await.unwrap();
    let last = store.commit(put("nodes/x", b"not read by anybody")).await.unwrap();
    store.compact(last).await.unwrap();
    assert!(matches!(store.watch("", from).await.err(), Some(WatchError::Compacted { .. })));

    let mut changes = hub.changes();
    let following = tokio::spawn(session::follow(Arc::clone(&store), Arc::clone(&hub), from, Counters::default()));
    while hub.fleet_directive() != Directive::Paused {
        tokio::time::timeout(Duration::from_secs(10), changes.changed()).await.expect("a new list").unwrap();
    }
    // And it goes on from there.
    store.commit(put(&key, &directive(Directive::Released))).await.unwrap();
    while hub.fleet_directive() != Directive::Released {
        tokio::time::timeout(Duration::from_secs(10), changes.changed()).await.expect("a change").unwrap();
    }
    following.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_hangs_is_noticed_and_found_again() {
    if !require::met("a_server_that_hangs_is_noticed_and_found_again", &missing()) {
        return;
    }
    let etcd = Etcd::start();
    let store = connect(&etcd).await;
    let first = store.commit(put("a", b"1")).await.unwrap();
    let mut watch = store.watch("", first).await.unwrap();
    etcd.pause(0);
    let paused = Instant::now();
    let error = next(&mut watch).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    assert!(paused.elapsed() < Duration::from_secs(5), "{:?}", paused.elapsed());
    let error = store.get("a").await.unwrap_err();
    assert!(error.is_retryable() && error.to_string().contains(etcd.address(0)), "{error}");
    etcd.resume(0);
    let second = commit_at_last(&store, "b", Duration::from_secs(5)).await;
    let mut watch = store.watch("", first).await.unwrap();
    // What an attempt without an answer did is seen too; the last change is the acknowledged one.
    let mut seen = next(&mut watch).await.unwrap();
    while seen.revision < second {
        seen = next(&mut watch).await.unwrap();
    }
    assert_eq!(seen.revision, second);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_member_of_three_may_be_away() {
    if !require::met("one_member_of_three_may_be_away", &missing()) {
        return;
    }
    let mut etcd = Etcd::with(&Setup { members: 3, ..Setup::default() });
    let store = connect(&etcd).await;
    let start = store.list("").await.unwrap().revision;
    let within = Duration::from_secs(15);
    let mut acknowledged = Vec::new();
    for away in 0..3 {
        acknowledged.push(commit_at_last(&store, &format!("before{away}"), within).await);
        etcd.kill(away);
        for i in 0..5 {
            acknowledged.push(commit_at_last(&store, &format!("killed{away}/{i}"), within).await);
        }
        etcd.restart(away);
        etcd.pause(away);
        for i in 0..5 {
            acknowledged.push(commit_at_last(&store, &format!("paused{away}/{i}"), within).await);
            assert!(store.get(&format!("killed{away}/{i}")).await.unwrap().is_some(), "reads ask another member");
        }
        etcd.resume(away);
    }
    // A watch through all of it, by whichever members answer: what was acknowledged is there, in order.
    let mut watch = store.watch("", start).await.unwrap();
    let mut seen = Vec::new();
    while seen.last() != acknowledged.last() {
        seen.push(next(&mut watch).await.unwrap().revision);
    }
    assert!(seen.is_sorted());
    assert!(acknowledged.iter().all(|revision| seen.contains(revision)), "nothing acknowledged is lost");
}

#[tokio::test]
async fn a_full_quota_is_named_with_its_remedy() {
    if !require::met("a_full_quota_is_named_with_its_remedy", &missing()) {
        return;
    }
    let args = vec!["--quota-backend-bytes=4194304".to_owned()];
    let etcd = Etcd::with(&Setup { args, ..Setup::default() });
    let store = connect(&etcd).await;
    store.commit(put("kept", b"1")).await.unwrap();
    let value = vec![7; 1 << 20];
    let mut refused = None;
    for _ in 0..20 {
        if let Err(error) = store.commit(put("large", &value)).await {
            refused = Some(error);
            break;
        }
    }
    let error = refused.expect("20 MiB do not fit");
    assert!(matches!(&error, CommitError::Store(StoreError::Backend(_))) && error.is_retryable(), "{error:?}");
    let said = error.to_string();
    for part in ["quota is full", "compact", "defrag", "alarm disarm", "--quota-backend-bytes"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(store.get("kept").await.unwrap().is_some(), "reads go on");
}

#[tokio::test]
async fn limits_of_etcd_are_named() {
    if !require::met("limits_of_etcd_are_named", &missing()) {
        return;
    }
    let etcd = Etcd::start();
    let store = connect(&etcd).await;
    let said = store.commit(put("large", &vec![7; 3 << 20])).await.unwrap_err().to_string();
    assert!(said.contains("--max-request-bytes"), "{said}");
    let many = (0..200).fold(Txn::default(), |txn, i| txn.then(Op::Put(format!("k{i}"), vec![])));
    let said = store.commit(many).await.unwrap_err().to_string();
    assert!(said.contains("--max-txn-ops"), "{said}");
}

#[tokio::test]
async fn long_lists_come_in_pages_of_one_revision() {
    if !require::met("long_lists_come_in_pages_of_one_revision", &missing()) {
        return;
    }
    let etcd = Etcd::start();
    let store = connect(&etcd).await;
    for batch in 0..13 {
        let txn = (0..100).fold(Txn::default(), |txn, i| txn.then(Op::Put(format!("k/{batch:02}/{i:02}"), vec![])));
        store.commit(txn).await.unwrap();
    }
    // More than one message takes: the pages get smaller.
    for i in 0..70 {
        store.commit(put(&format!("large/{i:02}"), &vec![i; 1 << 20])).await.unwrap();
    }
    let listing = store.list("k/").await.unwrap();
    assert_eq!(listing.items.len(), 1300);
    assert!(listing.items.is_sorted_by(|a, b| a.key < b.key));
    assert_eq!(store.list("large/").await.unwrap().items.len(), 70);
    // Lists while others write are of one revision: a transaction is there as a whole.
    let writer = {
        let store = store.clone();
        tokio::spawn(async move {
            for round in 0..100u8 {
                let txn = put("k/00/00", &[round]).then(Op::Put("k/12/99".into(), vec![round]));
                store.commit(txn).await.unwrap();
            }
        })
    };
    while !writer.is_finished() {
        let items = store.list("k/").await.unwrap().items;
        assert_eq!(items.first().unwrap().value, items.last().unwrap().value);
    }
    writer.await.unwrap();
}

#[tokio::test]
async fn a_large_revision_is_one_change() {
    if !require::met("a_large_revision_is_one_change", &missing()) {
        return;
    }
    let etcd = Etcd::start();
    let store = connect(&etcd).await;
    let start = store.revision().await.unwrap();
    for _ in 0..10 {
        let large = |txn: Txn, i: u32| txn.then(Op::Put(format!("k{i:02}"), vec![1; 60_000]));
        store.commit((0..20).fold(Txn::default(), large)).await.unwrap();
    }
    let mut watch = store.watch("", start).await.unwrap();
    for _ in 0..10 {
        let change = next(&mut watch).await.unwrap();
        let keys: Vec<String> = change.events.iter().map(|event| event.key().to_owned()).collect();
        assert_eq!(keys, (0..20).map(|i| format!("k{i:02}")).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn members_of_two_clusters_are_refused() {
    if !require::met("members_of_two_clusters_are_refused", &missing()) {
        return;
    }
    let (one, other) = (Etcd::start(), Etcd::start());
    let location = format!("etcd://{},{}/w", one.address(0), other.address(0)).parse().unwrap();
    let error = EtcdStore::connect(&location, &EtcdAccess::default()).await.unwrap_err();
    assert!(!error.is_retryable() && error.to_string().contains("another cluster"), "{error}");
}

#[tokio::test]
async fn what_is_not_weirs_is_neither_seen_nor_believed() {
    if !require::met("what_is_not_weirs_is_neither_seen_nor_believed", &missing()) {
        return;
    }
    let etcd = Etcd::start();
    let store = connect(&etcd).await;
    let mut client = etcd_client::Client::connect([etcd.address(0)], None).await.unwrap();
    client.put("/w/meta/leader", "x", None).await.unwrap();
    client.put("/w/data", "x", None).await.unwrap();
    assert!(store.list("").await.unwrap().items.is_empty());
    // But a precondition can name the backend's own.
    let absent = Precondition::Absent("//leader".to_owned());
    assert!(matches!(store.commit(put("a", b"").when(absent)).await, Err(CommitError::Conflict { .. })));
    client.put("/w/meta/epoch", "seven", None).await.unwrap();
    let location = etcd.location("/w").parse().unwrap();
    let error = EtcdStore::connect(&location, &EtcdAccess::default()).await.unwrap_err();
    assert!(error.to_string().contains("/w/meta/epoch"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_etcd_that_lost_its_data_is_another_store_and_nothing_is_taken_from_it() {
    if !require::met("an_etcd_that_lost_its_data_is_another_store_and_nothing_is_taken_from_it", &missing()) {
        return;
    }
    let mut etcd = Etcd::start();
    let store = Arc::new(connect(&etcd).await);
    let key = catalog::directive_key(None);
    store.commit(put(&key, &catalog::encode(&DirectiveRecord { directive: Directive::Paused }))).await.unwrap();
    let loaded = session::load(&*store).await.unwrap();
    let from = loaded.revision;
    let hub = Arc::new(Hub::new(store.epoch(), loaded));
    let following = tokio::spawn(session::follow(Arc::clone(&store), Arc::clone(&hub), from, Counters::default()));
    etcd.kill(0);
    etcd.lose_data(0);
    // With the same name, addresses and token it is the same cluster to all that etcd says of itself.
    etcd.restart(0);
    let ended = tokio::time::timeout(Duration::from_secs(20), following).await.expect("the follower ends").unwrap();
    let message = ended.unwrap_err().to_string();
    assert!(message.contains(&store.uid()) && message.contains("no store of Weir any more"), "{message}");
    assert_eq!(hub.fleet_directive(), Directive::Paused, "nothing of the empty store was taken");
    let error = store.commit(put("a", b"1")).await.unwrap_err();
    assert!(matches!(error, CommitError::Store(StoreError::Replaced(_))), "{error}");
    assert!(matches!(store.list("").await, Err(StoreError::Replaced(_))));
    assert!(matches!(store.watch("", Revision(1)).await, Err(WatchError::Store(StoreError::Replaced(_)))));

    // A controller that starts now makes a new store, with an identity of its own; the old one says so.
    let new = connect(&etcd).await;
    assert_ne!(new.uid(), store.uid());
    let error = store.commit(put("a", b"1")).await.unwrap_err().to_string();
    assert!(error.contains(&new.uid()) && error.contains(&store.uid()), "{error}");
    assert_eq!(new.list("").await.unwrap().items, vec![], "nothing was written to it");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_epoch_that_others_raised_ends_what_goes_on_with_the_old_one() {
    if !require::met("an_epoch_that_others_raised_ends_what_goes_on_with_the_old_one", &missing()) {
        return;
    }
    let etcd = Etcd::start();
    let (store, other) = (Arc::new(connect(&etcd).await), connect(&etcd).await);
    let loaded = session::load(&*store).await.unwrap();
    let from = loaded.revision;
    let hub = Arc::new(Hub::new(store.epoch(), loaded));
    let following = tokio::spawn(session::follow(Arc::clone(&store), hub, from, Counters::default()));
    other.raise_epoch(7).await.unwrap();
    other.commit(put("a", b"1")).await.expect("who raised it goes on");
    let error = store.commit(put("a", b"2")).await.unwrap_err().to_string();
    assert!(error.contains("epoch is 7"), "{error}");
    let ended = tokio::time::timeout(Duration::from_secs(20), following).await.expect("the follower ends").unwrap();
    assert!(ended.unwrap_err().to_string().contains("start again"));
}
