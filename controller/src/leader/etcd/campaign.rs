//! Becoming the leader: the one that creates the key leads; the others wait for it to go.

use std::{sync::Arc, time::Duration};

use etcd_client::{
    Client, Compare, CompareOp, EventType, KeyValue, PutOptions, Txn, TxnOp, TxnOpResponse, WatchOptions,
};
use tokio_util::sync::CancellationToken;

use super::{Inner, lease::Held};
use crate::{
    leader::{ElectError, Leadership},
    store::{
        BACKEND_KEYS, Precondition, Revision, StoreError,
        etcd::{Failure, Kind, Repeat, Stream, revision, to_etcd},
    },
};

/// Name of the leader's key among the backend's own.
const KEY: &str = "leader";
/// Time between attempts to see the leader's key.
const RETRY: Duration = Duration::from_millis(500);
/// How long giving up may take.
const RESIGN: Duration = Duration::from_secs(1);

/// Who has the leader's key.
enum Holder {
    /// This replica, since a revision.
    Us(Revision),
    /// Another; the key was seen at this revision.
    Other(Revision),
}

pub(super) async fn campaign(inner: &Arc<Inner>) -> Result<Leadership, ElectError> {
    let mut leases = inner.lease.subscribe();
    loop {
        // The sender lives in `inner`.
        let Ok(held) = leases.wait_for(Option::is_some).await.map(|held| held.clone()) else { continue };
        let Some(held) = held else { continue };
        let standing = async {
            match stand(inner, &held).await? {
                Holder::Us(created) => Ok(Some(created)),
                Holder::Other(seen) => gone(inner, seen).await.map(|()| None),
            }
        };
        let result = tokio::select! {
            biased;
            // Another lease must come first.
            () = held.over.cancelled() => continue,
            result = standing => result,
        };
        if let Some(created) = result.map_err(StoreError::from)? {
            return Ok(lead(inner, held, created));
        }
    }
}

/// Creates the leader's key if there is none.
async fn stand(inner: &Inner, held: &Held) -> Result<Holder, Failure> {
    let (key, value, lease) = (inner.keys.meta(KEY), inner.id.to_string(), held.id);
    let stand = |client: Client| {
        let put = TxnOp::put(key.clone(), value.clone(), Some(PutOptions::new().with_lease(lease)));
        let txn = Txn::new()
            .when([Compare::create_revision(key.clone(), CompareOp::Equal, 0)])
            .and_then([put])
            .or_else([TxnOp::get(key.clone(), None)]);
        async move { client.kv_client().txn(txn).await }
    };
    // Harmless: a key that an attempt without an answer made is recognised by its lease.
    let answer = inner.cluster.call("standing for leader", Repeat::Harmless, stand).await?.answer;
    let now = answer.header().map_or(Revision(0), |header| revision(header.revision()));
    if answer.succeeded() {
        return Ok(Holder::Us(now));
    }
    let found: Option<KeyValue> = answer.op_responses().into_iter().find_map(|response| match response {
        TxnOpResponse::Get(mut get) => get.take_kvs().pop(),
        _ => None,
    });
    Ok(match found {
        Some(kv) if kv.lease() == lease => Holder::Us(revision(kv.create_revision())),
        _ => Holder::Other(now),
    })
}

/// Returns once the leader's key was removed after a revision.
async fn gone(inner: &Inner, after: Revision) -> Result<(), Failure> {
    let options = WatchOptions::new().with_start_revision(to_etcd(Revision(after.0 + 1)));
    let (mut stream, mut response) = Stream::open(&inner.cluster, &inner.keys.meta(KEY), &options).await?;
    loop {
        if response.compact_revision() > 0 {
            return Err(Failure {
                kind: Kind::Compacted,
                message: "the leader's key was not seen for long".to_owned(),
            });
        }
        if response.events().iter().any(|event| event.event_type() == EventType::Delete) {
            return Ok(());
        }
        response = stream.message().await?;
    }
}

/// Leadership under a lease, by the key that was created at a revision.
fn lead(inner: &Arc<Inner>, held: Held, created: Revision) -> Leadership {
    let lost = held.over.child_token();
    let resigned = CancellationToken::new();
    let guard = Precondition::CreatedAt(format!("{BACKEND_KEYS}{KEY}"), created);
    let leadership = Leadership::leased(guard, lost.clone(), held.until, resigned.clone());
    let inner = Arc::clone(inner);
    tokio::spawn(async move {
        tokio::select! {
            () = lost.cancelled() => {}
            () = taken_away(&inner, created) => lost.cancel(),
            () = resigned.cancelled() => {
                lost.cancel();
                let _runs_out_by_itself = tokio::time::timeout(RESIGN, resign(&inner, created)).await;
            }
        }
    });
    leadership
}

/// Returns once the key that was created at a revision is no more; somebody may have removed it, or revoked the lease.
async fn taken_away(inner: &Inner, created: Revision) {
    loop {
        let key = inner.keys.meta(KEY);
        let look = |client: Client| {
            let key = key.clone();
            async move { client.kv_client().get(key, None).await }
        };
        let seen = inner.cluster.call("looking at the leader's key", Repeat::Harmless, look).await;
        if let Ok(answered) = seen {
            let answer = answered.answer;
            if answer.kvs().first().is_none_or(|kv| revision(kv.create_revision()) != created) {
                return;
            }
            let now = answer.header().map_or(created, |header| revision(header.revision()));
            if gone(inner, now).await.is_ok() {
                return;
            }
        }
        tokio::time::sleep(RETRY).await;
    }
}

async fn resign(inner: &Inner, created: Revision) -> Result<(), Failure> {
    let key = inner.keys.meta(KEY);
    let resign = |client: Client| {
        let ours = Compare::create_revision(key.clone(), CompareOp::Equal, to_etcd(created));
        let txn = Txn::new().when([ours]).and_then([TxnOp::delete(key.clone(), None)]);
        async move { client.kv_client().txn(txn).await }
    };
    inner.cluster.call("giving leadership up", Repeat::Harmless, resign).await.map(drop)
}
