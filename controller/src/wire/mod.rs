//! Wire <-> model. Messages are destructured field by field, so that a field that the contract gains does not compile
//! until somebody decided about it. For `api`, `session` and `peers`, which alone know generated types.

pub(crate) mod errors;
mod intent;
mod intent_to_wire;
mod node;
mod report;
mod rule;
mod spec;

pub(crate) use intent::{etag, intent_from_wire, intent_status_to_wire, intent_to_wire};
pub(crate) use intent_to_wire::{
    controls_to_wire, devices_to_wire, mode_to_wire, scope_to_wire, spec_to_wire, workloads_to_wire,
};
pub(crate) use node::{device_to_wire, directive_to_wire, facts_from_wire, facts_to_wire};
pub(crate) use report::{
    achieved_to_wire, condition_from_wire, condition_to_wire, device_id_from_wire, fence_from_wire, fence_to_wire,
    limit_key_from_wire, measurement_from_wire, rule_state_to_wire, rule_status_from_wire, setting_to_wire,
    status_update_from_wire, update_of_ack,
};
pub(crate) use rule::rule_to_wire;
pub(crate) use spec::spec_from_wire;

use weir_proto::Timestamp;

use crate::model::WallTime;

/// For fields of the contract that are signed for the sake of JSON, and never negative.
pub(crate) fn to_i64(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// For counts on the wire.
pub(crate) fn to_i32(value: usize) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

/// A signed field that is never negative; a negative one is garbage and becomes 0.
pub(crate) fn to_u64(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

pub(crate) fn time_to_wire(time: WallTime) -> Timestamp {
    Timestamp { seconds: time.seconds, nanos: i32::try_from(time.nanos).unwrap_or(0) }
}

/// `None` for a negative one, which is garbage.
pub(crate) fn duration_from_wire(duration: weir_proto::Duration) -> Option<std::time::Duration> {
    std::time::Duration::try_from(duration).ok()
}

pub(crate) fn duration_to_wire(duration: std::time::Duration) -> weir_proto::Duration {
    weir_proto::Duration {
        seconds: to_i64(duration.as_secs()),
        nanos: i32::try_from(duration.subsec_nanos()).unwrap_or(0),
    }
}
