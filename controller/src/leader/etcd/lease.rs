//! The replica's lease: granted, kept, and known to be over before etcd gives to others what hung on it.

use std::time::{Duration, Instant};

use etcd_client::{Client, Error, PutOptions, ResponseHeader};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use weir_common::backoff::Backoff;

use super::{Inner, TTL, replicas};
use crate::store::etcd::{Answer, Failure, Repeat};

/// How much earlier than etcd this side takes the lease for over.
const MARGIN: Duration = Duration::from_secs(1);
/// Time between two signs of life.
const RENEW: Duration = Duration::from_millis(1500);
/// Time between attempts that failed.
const RETRY: Duration = Duration::from_millis(200);
/// How long giving the lease back may take.
const REVOKE: Duration = Duration::from_secs(1);

/// A lease that this replica has.
#[derive(Clone, Debug)]
pub(super) struct Held {
    /// etcd's number of it.
    pub(super) id: i64,
    /// It is good until then, counted from when the last request that etcd granted was sent.
    pub(super) until: watch::Receiver<Instant>,
    /// Fires when it may be over.
    pub(super) over: CancellationToken,
}

/// etcd's answer to a sign of life.
struct Kept {
    found: bool,
}

impl Answer for Kept {
    fn header(&self) -> Option<&ResponseHeader> {
        None
    }
}

/// Holds a lease, and another one where it is lost, until `shutdown`; then gives it back, so that others need not wait.
pub(super) async fn keep(inner: &Inner, shutdown: &CancellationToken) {
    let mut attempt = 0;
    while !shutdown.is_cancelled() {
        let sent = Instant::now();
        let granted = tokio::select! {
            granted = grant(inner) => granted,
            () = shutdown.cancelled() => return,
        };
        let (id, ttl) = match granted {
            Ok(granted) => granted,
            Err(failure) => {
                let wait = Backoff::RECONNECT.wait(attempt, fastrand::f64());
                tracing::warn!(error = failure.message, ?wait, "no lease in etcd; again after a wait");
                attempt += 1;
                tokio::select! {
                    () = tokio::time::sleep(wait) => continue,
                    () = shutdown.cancelled() => return,
                }
            }
        };
        attempt = 0;
        let until = watch::Sender::new(good_until(sent, ttl));
        let over = CancellationToken::new();
        inner.lease.send_replace(Some(Held { id, until: until.subscribe(), over: over.clone() }));
        let mut end = until.subscribe();
        tokio::select! {
            // The clock first: an answer that came too late saves nothing.
            biased;
            () = shutdown.cancelled() => {}
            () = runs_out(&mut end) => tracing::warn!("the lease in etcd may have run out"),
            () = renew(inner, id, ttl, &until) => tracing::warn!("etcd no longer has this replica's lease"),
        }
        inner.lease.send_replace(None);
        over.cancel();
        if shutdown.is_cancelled() {
            let revoke = |client: Client| async move { client.lease_client().revoke(id).await };
            let revoked = inner.cluster.call("giving the lease back", Repeat::Harmless, revoke);
            let _runs_out_by_itself = tokio::time::timeout(REVOKE, revoked).await;
        }
    }
}

fn good_until(sent: Instant, ttl: Duration) -> Instant {
    sent + ttl.saturating_sub(MARGIN)
}

/// A new lease: its number and how long it lives without a sign of life.
async fn grant(inner: &Inner) -> Result<(i64, Duration), Failure> {
    let ttl = i64::try_from(TTL.as_secs()).unwrap_or(i64::MAX);
    let grant = |client: Client| async move { client.lease_client().grant(ttl, None).await };
    // One that is granted twice runs out by itself.
    let answer = inner.cluster.call("asking for a lease", Repeat::Harmless, grant).await?.answer;
    Ok((answer.id(), Duration::from_secs(answer.ttl().try_into().unwrap_or(0))))
}

/// Returns once it is `end`.
async fn runs_out(end: &mut watch::Receiver<Instant>) {
    loop {
        let at = *end.borrow_and_update();
        tokio::select! {
            changed = end.changed() => if changed.is_err() { return },
            () = tokio::time::sleep_until(at.into()) => if *end.borrow() <= Instant::now() { return },
        }
    }
}

/// Gives signs of life, and keeps the replica's entry; returns when etcd no longer knows the lease.
async fn renew(inner: &Inner, id: i64, ttl: Duration, until: &watch::Sender<Instant>) {
    let mut entered = false;
    loop {
        if !entered {
            match enter(inner, id).await {
                Ok(()) => entered = true,
                Err(failure) => tracing::debug!(error = failure.message, "this replica is not entered yet"),
            }
        }
        let sent = Instant::now();
        let keep = |client: Client| async move {
            match client.lease_client().keep_alive(id).await {
                Ok(_one_answer_is_enough) => Ok(Kept { found: true }),
                // This is how the client tells of a remaining life of 0.
                Err(Error::LeaseKeepAliveError(said)) if said.contains("lease not found") => Ok(Kept { found: false }),
                Err(error) => Err(error),
            }
        };
        let wait = match inner.cluster.call("keeping the lease", Repeat::Harmless, keep).await {
            Ok(answered) if !answered.answer.found => return,
            Ok(_) => {
                until.send_replace(good_until(sent, ttl));
                if entered { RENEW } else { RETRY }
            }
            Err(failure) => {
                tracing::debug!(error = failure.message, "the lease is not kept");
                RETRY
            }
        };
        tokio::time::sleep(wait).await;
    }
}

/// Puts the replica's entry under the lease.
async fn enter(inner: &Inner, id: i64) -> Result<(), Failure> {
    let key = replicas::key(&inner.keys, &inner.id);
    // Text in text fields alone: it cannot fail.
    let value = serde_json::to_vec(&inner.replica).unwrap_or_default();
    let put = |client: Client| {
        let (key, value) = (key.clone(), value.clone());
        async move { client.kv_client().put(key, value, Some(PutOptions::new().with_lease(id))).await }
    };
    inner.cluster.call("entering this replica", Repeat::Harmless, put).await.map(drop)
}
