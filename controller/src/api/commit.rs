//! A commit as a step of the call's trace.

use tracing::{Instrument as _, field::Empty, info_span};
use weir_common::telemetry::TRACE;

use crate::store::{CommitError, Revision, Store, Txn};

/// Commits; see [`Store::commit`].
pub(super) async fn commit(store: &impl Store, txn: Txn) -> Result<Revision, CommitError> {
    let span = info_span!(
        target: TRACE,
        "store.commit",
        weir.store.revision = Empty,
        error.type = Empty,
        otel.status_code = Empty,
        otel.status_description = Empty,
    );
    let result = store.commit(txn).instrument(span.clone()).await;
    match &result {
        Ok(Revision(revision)) => {
            span.record("weir.store.revision", *revision);
        }
        Err(error) => {
            let kind = match error {
                CommitError::Conflict { .. } => "Conflict",
                CommitError::RepeatedKey(_) => "RepeatedKey",
                CommitError::Store(_) => "Store",
            };
            span.record("error.type", kind).record("otel.status_code", "ERROR");
            span.record("otel.status_description", tracing::field::display(error));
        }
    }
    result
}
