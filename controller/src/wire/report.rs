//! What agents report: conditions, states, settings, measurements. Read with tolerance, row by row.

use std::sync::Arc;

use weir_common::{
    device::{DevNum, DeviceId},
    fence::Fence,
    units::{LimitKey, LimitValue},
};
use weir_proto::{Timestamp, v1};

use crate::model::{
    Achieved, AgentReport, Condition, ConditionDetail, ConditionStatus, CounterSource, KernelWrite, Measurement,
    RuleState, RuleStatus, SettingStatus, ShortfallReason, WallTime,
};

use super::{duration_to_wire, node::device_id_to_wire, time_to_wire, to_i64, to_u64};

pub(crate) fn fence_to_wire(fence: Fence) -> v1::Fence {
    let Fence { store_epoch, revision, facts_generation } = fence;
    v1::Fence {
        store_epoch: to_i64(store_epoch),
        revision: to_i64(revision),
        facts_generation: to_i64(facts_generation),
    }
}

pub(crate) fn fence_from_wire(fence: v1::Fence) -> Fence {
    let v1::Fence { store_epoch, revision, facts_generation } = fence;
    Fence { store_epoch: to_u64(store_epoch), revision: to_u64(revision), facts_generation: to_u64(facts_generation) }
}

/// `None` for numbers that no device can have.
pub(crate) fn device_id_from_wire(id: v1::DeviceId) -> Option<DeviceId> {
    let v1::DeviceId { major, minor, diskseq } = id;
    (major < 1 << 12 && minor < 1 << 20).then_some(DeviceId { num: DevNum { major, minor }, diskseq })
}

pub(crate) fn limit_key_from_wire(number: i32) -> Option<LimitKey> {
    match v1::LimitKey::try_from(number).ok()? {
        v1::LimitKey::Unspecified => None,
        v1::LimitKey::Rbps => Some(LimitKey::Rbps),
        v1::LimitKey::Wbps => Some(LimitKey::Wbps),
        v1::LimitKey::Riops => Some(LimitKey::Riops),
        v1::LimitKey::Wiops => Some(LimitKey::Wiops),
    }
}

fn limit_key_to_wire(key: LimitKey) -> i32 {
    let key = match key {
        LimitKey::Rbps => v1::LimitKey::Rbps,
        LimitKey::Wbps => v1::LimitKey::Wbps,
        LimitKey::Riops => v1::LimitKey::Riops,
        LimitKey::Wiops => v1::LimitKey::Wiops,
    };
    key.into()
}

fn limit_value_from_wire(value: v1::LimitValue) -> Option<LimitValue> {
    use v1::limit_value::Value;
    let v1::LimitValue { value } = value;
    match value? {
        Value::Finite(value) => LimitValue::finite(value),
        Value::Unlimited(true) => Some(LimitValue::Unlimited),
        Value::Unlimited(false) => None,
    }
}

fn limit_value_to_wire(value: LimitValue) -> v1::LimitValue {
    use v1::limit_value::Value;
    let value = match value {
        LimitValue::Finite(value) => Value::Finite(value.get()),
        LimitValue::Unlimited => Value::Unlimited(true),
    };
    v1::LimitValue { value: Some(value) }
}

pub(crate) fn condition_from_wire(condition: v1::Condition) -> Condition {
    use v1::condition::Detail;
    let v1::Condition { r#type, status, reason, message, observed_generation, last_transition_time, detail } =
        condition;
    Condition {
        kind: r#type,
        status: match v1::ConditionStatus::try_from(status) {
            Ok(v1::ConditionStatus::True) => ConditionStatus::True,
            Ok(v1::ConditionStatus::False) => ConditionStatus::False,
            Ok(v1::ConditionStatus::Unknown | v1::ConditionStatus::Unspecified) | Err(_) => ConditionStatus::Unknown,
        },
        reason,
        message,
        observed_generation: to_u64(observed_generation),
        last_transition: last_transition_time.map(|Timestamp { seconds, nanos }| WallTime {
            seconds,
            nanos: u32::try_from(nanos).unwrap_or(0).min(999_999_999),
        }),
        detail: detail.map(|detail| match detail {
            Detail::KernelWrite(v1::KernelWrite { file, value, errno, errno_name, read_back }) => {
                ConditionDetail::KernelWrite(KernelWrite { file, value, errno, errno_name, read_back })
            }
            Detail::Fields(v1::FieldList { fields }) => ConditionDetail::Fields(fields),
        }),
    }
}

pub(crate) fn condition_to_wire(condition: &Condition) -> v1::Condition {
    use v1::condition::Detail;
    let Condition { kind, status, reason, message, observed_generation, last_transition, detail } = condition;
    let status = match status {
        ConditionStatus::True => v1::ConditionStatus::True,
        ConditionStatus::False => v1::ConditionStatus::False,
        ConditionStatus::Unknown => v1::ConditionStatus::Unknown,
    };
    v1::Condition {
        r#type: kind.clone(),
        status: status.into(),
        reason: reason.clone(),
        message: message.clone(),
        observed_generation: to_i64(*observed_generation),
        last_transition_time: last_transition.map(time_to_wire),
        detail: detail.clone().map(|detail| match detail {
            ConditionDetail::KernelWrite(KernelWrite { file, value, errno, errno_name, read_back }) => {
                Detail::KernelWrite(v1::KernelWrite { file, value, errno, errno_name, read_back })
            }
            ConditionDetail::Fields(fields) => Detail::Fields(v1::FieldList { fields }),
        }),
    }
}

fn rule_state_from_wire(number: i32) -> RuleState {
    match v1::RuleState::try_from(number) {
        Ok(v1::RuleState::Applied) => RuleState::Applied,
        Ok(v1::RuleState::Failed) => RuleState::Failed,
        Ok(v1::RuleState::NoMatch) => RuleState::NoMatch,
        Ok(v1::RuleState::Suspended) => RuleState::Suspended,
        // A state that this version does not know is no answer that it could act on.
        Ok(v1::RuleState::Pending | v1::RuleState::Unspecified) | Err(_) => RuleState::Pending,
    }
}

pub(crate) fn rule_state_to_wire(state: RuleState) -> i32 {
    let state = match state {
        RuleState::Pending => v1::RuleState::Pending,
        RuleState::Applied => v1::RuleState::Applied,
        RuleState::Failed => v1::RuleState::Failed,
        RuleState::NoMatch => v1::RuleState::NoMatch,
        RuleState::Suspended => v1::RuleState::Suspended,
    };
    state.into()
}

/// `None` where the row has no device or no key.
fn setting_from_wire(setting: v1::SettingStatus) -> Option<SettingStatus> {
    let v1::SettingStatus {
        cgroup_path,
        cgroup_id,
        device,
        device_name,
        key,
        intended,
        effective,
        achieved: _,
        achieved_unknown,
        file,
        effective_from,
        intent,
    } = setting;
    Some(SettingStatus {
        cgroup_path,
        cgroup_id,
        device: device_id_from_wire(device?)?,
        device_name,
        key: limit_key_from_wire(key)?,
        intended: intended.and_then(limit_value_from_wire),
        effective: effective.and_then(limit_value_from_wire),
        achieved_unknown,
        file,
        effective_from,
        intent,
    })
}

/// The three numbers; `achieved` is an error where it is unknown, saying why.
pub(crate) fn setting_to_wire(setting: &SettingStatus, achieved: Result<Achieved, String>) -> v1::SettingStatus {
    let SettingStatus {
        cgroup_path,
        cgroup_id,
        device,
        device_name,
        key,
        intended,
        effective,
        achieved_unknown: _,
        file,
        effective_from,
        intent,
    } = setting;
    let (achieved, achieved_unknown) = match achieved {
        Ok(achieved) => (Some(achieved_to_wire(&achieved)), String::new()),
        Err(why) => (None, why),
    };
    v1::SettingStatus {
        cgroup_path: cgroup_path.clone(),
        cgroup_id: *cgroup_id,
        device: Some(device_id_to_wire(*device)),
        device_name: device_name.clone(),
        key: limit_key_to_wire(*key),
        intended: intended.map(limit_value_to_wire),
        effective: effective.map(limit_value_to_wire),
        achieved,
        achieved_unknown,
        file: file.clone(),
        effective_from: effective_from.clone(),
        intent: intent.clone(),
    }
}

fn reason_to_wire(reason: ShortfallReason) -> i32 {
    let reason = match reason {
        ShortfallReason::OwnLimit => v1::ShortfallReason::OwnLimit,
        ShortfallReason::Demand => v1::ShortfallReason::Demand,
        ShortfallReason::Parent => v1::ShortfallReason::Parent,
        ShortfallReason::Saturated => v1::ShortfallReason::Saturated,
        ShortfallReason::Unknown => v1::ShortfallReason::Unknown,
        ShortfallReason::NotStarted => v1::ShortfallReason::NotStarted,
    };
    reason.into()
}

pub(crate) fn achieved_to_wire(achieved: &Achieved) -> v1::Achieved {
    let Achieved { per_second, window, reasons, source, age } = achieved;
    let source = match source {
        Some(CounterSource::V1Throttle) => v1::CounterSource::V1Throttle,
        Some(CounterSource::V2IoStat) => v1::CounterSource::V2IoStat,
        None => v1::CounterSource::Unspecified,
    };
    v1::Achieved {
        per_second: *per_second,
        window: Some(duration_to_wire(*window)),
        reason: reason_to_wire(reasons.first().map_or(ShortfallReason::Unknown, |&(reason, _)| reason)),
        reasons: reasons
            .iter()
            .map(|&(reason, share)| v1::ReasonShare { reason: reason_to_wire(reason), share })
            .collect(),
        source: source.into(),
        age: Some(duration_to_wire(*age)),
    }
}

/// `all` are the settings of the message; a place that has none is left out.
pub(crate) fn rule_status_from_wire(status: v1::RuleStatus, all: &[Option<Arc<SettingStatus>>]) -> RuleStatus {
    let v1::RuleStatus { uid, intent, generation, state, conditions, settings } = status;
    RuleStatus {
        uid,
        intent,
        generation: to_u64(generation),
        state: rule_state_from_wire(state),
        conditions: conditions.into_iter().map(condition_from_wire).collect(),
        settings: settings.iter().filter_map(|place| all.get(usize::try_from(*place).ok()?)?.clone()).collect(),
    }
}

/// An acknowledgement says of the state what an update says.
pub(crate) fn update_of_ack(ack: v1::Ack) -> v1::StatusUpdate {
    let v1::Ack { fence, rules, settings_held, conditions, uids_held, settings } = ack;
    v1::StatusUpdate { fence, rules, settings_held, conditions, uids_held, settings }
}

pub(crate) fn status_update_from_wire(update: v1::StatusUpdate) -> AgentReport {
    let v1::StatusUpdate { fence, rules, settings_held, conditions, uids_held, settings } = update;
    let settings: Vec<_> = settings.into_iter().map(|setting| setting_from_wire(setting).map(Arc::new)).collect();
    AgentReport {
        fence: fence.map(fence_from_wire),
        rules: rules.into_iter().map(|rule| rule_status_from_wire(rule, &settings)).collect(),
        settings_held: u32::try_from(settings_held).unwrap_or(0),
        conditions: conditions.into_iter().map(condition_from_wire).collect(),
        uids_held,
    }
}

/// `None` where the row has no device.
pub(crate) fn measurement_from_wire(measurement: v1::Measurement) -> Option<Measurement> {
    let v1::Measurement {
        cgroup_id,
        device,
        source,
        since_monotonic_ns,
        at_monotonic_ns,
        read_bytes,
        write_bytes,
        read_operations,
        write_operations,
        reasons,
    } = measurement;
    let source = match v1::CounterSource::try_from(source) {
        Ok(v1::CounterSource::V1Throttle) => Some(CounterSource::V1Throttle),
        Ok(v1::CounterSource::V2IoStat) => Some(CounterSource::V2IoStat),
        Ok(v1::CounterSource::Unspecified) | Err(_) => None,
    };
    let reason = |v1::ReasonTime { key, reason, nanoseconds }| {
        let reason = match v1::ShortfallReason::try_from(reason) {
            Ok(v1::ShortfallReason::OwnLimit) => ShortfallReason::OwnLimit,
            Ok(v1::ShortfallReason::Demand) => ShortfallReason::Demand,
            Ok(v1::ShortfallReason::Parent) => ShortfallReason::Parent,
            Ok(v1::ShortfallReason::Saturated) => ShortfallReason::Saturated,
            Ok(v1::ShortfallReason::NotStarted) => ShortfallReason::NotStarted,
            Ok(v1::ShortfallReason::Unknown | v1::ShortfallReason::Unspecified) | Err(_) => ShortfallReason::Unknown,
        };
        Some((limit_key_from_wire(key)?, reason, nanoseconds))
    };
    Some(Measurement {
        cgroup_id,
        device: device_id_from_wire(device?)?,
        source,
        since_ns: since_monotonic_ns,
        at_ns: at_monotonic_ns,
        counters: [read_bytes, write_bytes, read_operations, write_operations],
        reasons: reasons.into_iter().filter_map(reason).collect(),
    })
}
