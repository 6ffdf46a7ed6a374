//! Intents with their metadata and status.

use weir_proto::v1;

use crate::{
    model::{Condition, FieldPath, Intent, IntentRecord, IntentSpec, Labels, Violations, check_labels},
    status::IntentSummary,
};

use super::{condition_to_wire, spec_from_wire, spec_to_wire, time_to_wire, to_i32, to_i64};

/// What a client may set of an intent, checked; `None` with violations. The name is checked by the caller, which knows
/// where else it is given. Output-only fields are ignored, as the contract says.
pub(crate) fn intent_from_wire(intent: v1::Intent, out: &mut Violations) -> Option<(IntentSpec, Labels)> {
    let v1::Intent {
        name: _,
        uid: _,
        generation: _,
        etag: _,
        create_revision: _,
        labels,
        spec,
        status: _,
        create_time: _,
        update_time: _,
        delete_time: _,
    } = intent;
    let at = FieldPath::root("intent");
    check_labels(&at.field("labels"), &labels, out);
    let Some(spec) = spec else {
        out.add(&at.field("spec"), "is required");
        return None;
    };
    spec_from_wire(&at.field("spec"), spec, out).filter(|_| out.is_empty()).map(|spec| (spec, labels))
}

/// The etag of an intent in a store of this epoch.
pub(crate) fn etag(store_epoch: u64, intent: &Intent) -> String {
    format!("{store_epoch}-{}", intent.mod_revision)
}

/// An intent without its status. `etag` is empty for one that is not stored.
pub(crate) fn intent_to_wire(intent: &Intent, etag: String) -> v1::Intent {
    let Intent { record, create_revision, mod_revision: _ } = intent;
    let IntentRecord {
        name,
        uid,
        generation,
        labels,
        spec,
        earlier_nodes: _,
        create_time,
        update_time,
        delete_time,
        trace: _,
    } = record;
    v1::Intent {
        name: name.to_string(),
        uid: uid.clone(),
        generation: to_i64(*generation),
        etag,
        create_revision: to_i64(*create_revision),
        labels: labels.clone(),
        spec: Some(spec_to_wire(spec)),
        status: None,
        create_time: Some(time_to_wire(*create_time)),
        update_time: Some(time_to_wire(*update_time)),
        delete_time: delete_time.map(time_to_wire),
    }
}

pub(crate) fn intent_status_to_wire(
    deleting: bool,
    summary: &IntentSummary,
    conditions: &[Condition],
) -> v1::IntentStatus {
    let IntentSummary { matched, applied, failed, no_match, suspended, pending, stale, holding } = summary;
    let state = if deleting { v1::IntentState::Deleting } else { v1::IntentState::Active };
    v1::IntentStatus {
        state: state.into(),
        nodes_matched: to_i32(*matched),
        nodes_applied: to_i32(*applied),
        nodes_failed: to_i32(*failed),
        nodes_no_match: to_i32(*no_match),
        nodes_suspended: to_i32(*suspended),
        nodes_pending: to_i32(*pending),
        nodes_stale: to_i32(*stale),
        conditions: conditions.iter().map(condition_to_wire).collect(),
        nodes_holding: holding.iter().map(crate::model::NodeName::resource).collect(),
    }
}
