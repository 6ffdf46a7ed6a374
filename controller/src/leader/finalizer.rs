//! Removes intents that are being deleted once no node can hold settings of them.

use std::time::Duration;

use tracing::{Instrument as _, info_span};
use weir_common::telemetry::TRACE;

use super::Leadership;
use crate::{
    catalog::intent_key,
    model::Intent,
    session::Hub,
    store::{CommitError, Op, Precondition, Revision, Store, Txn},
};

/// Looks again at the latest after this long, also where nothing was reported.
const PERIOD: Duration = Duration::from_secs(1);

pub(super) async fn run(store: &impl Store, hub: &Hub, leadership: &Leadership) {
    let mut changes = hub.changes();
    loop {
        changes.mark_unchanged();
        for intent in hub.deleting() {
            if !hub.is_held(&intent) {
                remove(store, &intent, leadership).await;
            }
        }
        // Either something happened, or it is time to look again.
        let _either = tokio::time::timeout(PERIOD, changes.changed()).await;
    }
}

async fn remove(store: &impl Store, intent: &Intent, leadership: &Leadership) {
    let key = intent_key(&intent.record.name);
    let txn = Txn::default()
        .when(Precondition::ModRevision(key.clone(), Revision(intent.mod_revision)))
        .then(Op::Delete(key));
    let span = info_span!(target: TRACE, parent: None, "intent.finalize", weir.intent.name = %intent.record.name);
    if let Some(trace) = &intent.record.trace {
        trace.adopt(&span);
    }
    match store.commit(leadership.fenced(txn)).instrument(span).await {
        Ok(_) => tracing::info!(intent = %intent.record.name, "gone: no node holds it"),
        // Changed meanwhile, or gone already: the next picture shows it. Or another leads: it will do it.
        Err(CommitError::Conflict { .. }) => {}
        Err(error) => tracing::warn!(intent = %intent.record.name, %error, "cannot be removed; again later"),
    }
}
