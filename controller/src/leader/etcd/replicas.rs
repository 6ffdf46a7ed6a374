//! Who else is there: the replicas' entries, followed.

use std::time::Duration;

use etcd_client::{Client, EventType, GetOptions, KeyValue, WatchOptions};
use weir_common::backoff::Backoff;

use super::Inner;
use crate::{
    leader::{Replica, ReplicaId, Replicas},
    store::{
        Revision,
        etcd::{Failure, Keys, Repeat, Stream, revision, to_etcd},
    },
};

/// Where the entries are among the backend's own keys.
const ENTRIES: &str = "replicas/";
/// A watch that held for so long was no failed attempt.
const HELD: Duration = Duration::from_secs(10);

/// etcd's key of a replica's entry.
pub(super) fn key(keys: &Keys, id: &ReplicaId) -> String {
    keys.meta(&format!("{ENTRIES}{id}"))
}

/// Keeps `inner.replicas` up to date. Never returns.
pub(super) async fn follow(inner: &Inner) {
    let mut attempt = 0;
    loop {
        let began = tokio::time::Instant::now();
        let failure = match follow_once(inner).await {
            Ok(()) => "the watch was overtaken by a compaction".to_owned(),
            Err(failure) => failure.message,
        };
        attempt = if began.elapsed() > HELD { 0 } else { attempt + 1 };
        let wait = Backoff::RECONNECT.wait(attempt, fastrand::f64());
        tracing::warn!(error = failure, ?wait, "the other replicas are not seen; again after a wait");
        tokio::time::sleep(wait).await;
    }
}

/// A list, and then every change, until the watch ends.
async fn follow_once(inner: &Inner) -> Result<(), Failure> {
    let prefix = inner.keys.meta(ENTRIES);
    let list = |client: Client| {
        let prefix = prefix.clone();
        async move { client.kv_client().get(prefix, Some(GetOptions::new().with_prefix())).await }
    };
    let answer = inner.cluster.call("listing the replicas", Repeat::Harmless, list).await?.answer;
    let mut replicas: Replicas = answer.kvs().iter().filter_map(|kv| entry(&prefix, kv)).collect();
    publish(inner, &replicas);
    let seen = answer.header().map_or(Revision(0), |header| revision(header.revision()));
    let options = WatchOptions::new().with_prefix().with_start_revision(to_etcd(Revision(seen.0 + 1)));
    let (mut stream, mut response) = Stream::open(&inner.cluster, &prefix, &options).await?;
    while response.compact_revision() == 0 {
        for event in response.events() {
            let Some(kv) = event.kv() else { continue };
            match event.event_type() {
                EventType::Put => replicas.extend(entry(&prefix, kv)),
                // It carries the key alone.
                EventType::Delete => drop(id(&prefix, kv).and_then(|id| replicas.remove(&id))),
            }
        }
        publish(inner, &replicas);
        response = stream.message().await?;
    }
    Ok(())
}

fn publish(inner: &Inner, replicas: &Replicas) {
    inner.replicas.send_if_modified(|published| {
        let modified = published != replicas;
        if modified {
            published.clone_from(replicas);
        }
        modified
    });
}

fn id(prefix: &str, kv: &KeyValue) -> Option<ReplicaId> {
    let key = std::str::from_utf8(kv.key()).ok()?;
    key.strip_prefix(prefix).map(|id| ReplicaId(id.to_owned()))
}

/// An entry; one that cannot be read is left out.
fn entry(prefix: &str, kv: &KeyValue) -> Option<(ReplicaId, Replica)> {
    let id = id(prefix, kv)?;
    match serde_json::from_slice(kv.value()) {
        Ok(replica) => Some((id, replica)),
        Err(error) => {
            tracing::warn!(%id, %error, "a replica's entry cannot be read");
            None
        }
    }
}
