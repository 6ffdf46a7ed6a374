//! From the agent's types to the contract's.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use weir_common::{
    device::DeviceId,
    fence::Fence,
    units::{LimitKey, LimitValue},
};
use weir_proto::v1;

use crate::{
    condition::{Access, Condition, Finding, Holds},
    devices::{BlockDevice, DeviceKind, DeviceSnapshot, Layer, Partition},
    enforce::report::{Report, RuleReport, RuleState, SettingReport},
    kernel::CgroupVersion,
    measure::{Achieved, Measurement, Meter, Reason, Source},
    reconcile::NodeFacts,
    resolve::{Claim, why},
    workloads::Cgroup,
};

/// Window of achieved rates in explain.
const WINDOW: Duration = Duration::from_secs(10);

fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

fn count(n: usize) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}

pub(super) fn duration(duration: Duration) -> weir_proto::Duration {
    weir_proto::Duration {
        seconds: signed(duration.as_secs()),
        nanos: i32::try_from(duration.subsec_nanos()).unwrap_or(0),
    }
}

fn timestamp(time: SystemTime) -> weir_proto::Timestamp {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    weir_proto::Timestamp { seconds: signed(since.as_secs()), nanos: i32::try_from(since.subsec_nanos()).unwrap_or(0) }
}

pub(super) fn fence(fence: Fence) -> v1::Fence {
    v1::Fence {
        store_epoch: signed(fence.store_epoch),
        revision: signed(fence.revision),
        facts_generation: signed(fence.facts_generation),
    }
}

fn device_id(id: DeviceId) -> v1::DeviceId {
    v1::DeviceId { major: id.num.major, minor: id.num.minor, diskseq: id.diskseq }
}

fn limit_key(key: LimitKey) -> v1::LimitKey {
    match key {
        LimitKey::Rbps => v1::LimitKey::Rbps,
        LimitKey::Wbps => v1::LimitKey::Wbps,
        LimitKey::Riops => v1::LimitKey::Riops,
        LimitKey::Wiops => v1::LimitKey::Wiops,
    }
}

fn limit_value(value: LimitValue) -> v1::LimitValue {
    use v1::limit_value::Value;
    let value = value.get().map_or(Value::Unlimited(true), Value::Finite);
    v1::LimitValue { value: Some(value) }
}

/// Facts with their generation.
pub(super) fn facts(facts: &NodeFacts, generation: u64) -> v1::FactsUpdate {
    let version = match facts.node.version {
        CgroupVersion::V1 => v1::CgroupVersion::V1,
        CgroupVersion::V2 => v1::CgroupVersion::V2,
    };
    v1::FactsUpdate {
        facts_generation: signed(generation),
        facts: Some(v1::NodeFacts {
            labels: facts.labels.clone(),
            kernel_release: facts.kernel_release.clone(),
            cgroup_version: version.into(),
            devices: facts.devices.devices.values().map(|whole| device(whole, &facts.devices)).collect(),
            floor_bytes_per_second: signed(facts.node.floor.bytes_per_second),
            floor_operations_per_second: signed(facts.node.floor.operations_per_second),
        }),
    }
}

fn device(device: &BlockDevice, all: &DeviceSnapshot) -> v1::Device {
    let kind = match device.kind {
        DeviceKind::Nvme => v1::DeviceKind::Nvme,
        DeviceKind::SataSsd => v1::DeviceKind::SataSsd,
        DeviceKind::SataHdd => v1::DeviceKind::SataHdd,
        DeviceKind::Virtio => v1::DeviceKind::Virtio,
        DeviceKind::Dm => v1::DeviceKind::Dm,
        DeviceKind::Md => v1::DeviceKind::Md,
        DeviceKind::Loop => v1::DeviceKind::Loop,
        DeviceKind::Zram => v1::DeviceKind::Zram,
        DeviceKind::Other => v1::DeviceKind::Other,
    };
    v1::Device {
        kernel_name: device.kernel_name.clone(),
        id: Some(device_id(device.id)),
        kind: kind.into(),
        model: device.model.clone().unwrap_or_default(),
        serial: device.serial.clone().unwrap_or_default(),
        size_bytes: signed(device.size_bytes),
        rotational: device.rotational,
        by_id: device.by_id.clone(),
        mount_paths: device.mount_paths.clone(),
        scheduler: device.queue.scheduler.clone().unwrap_or_default(),
        read_ahead_kib: device.queue.read_ahead_kib.map(signed),
        below: device.stack.below.clone(),
        firmware: device.firmware.clone().unwrap_or_default(),
        wwid: device.wwid.clone().unwrap_or_default(),
        max_sectors_kib: device.queue.max_sectors_kib.map(signed),
        queue_requests: device.queue.requests.map(signed),
        writeback_throttle_us: device.queue.writeback_throttle_us.map(signed),
        logical_block_bytes: device.queue.logical_block_bytes.map(signed),
        layer: device.stack.layer.as_ref().map(Layer::to_string).unwrap_or_default(),
        mapped_name: device.stack.mapped_name.clone().unwrap_or_default(),
        backing_file: device.stack.backing_file.clone().unwrap_or_default(),
        backing_disk: device.stack.backing_disk.clone().unwrap_or_default(),
        hidden_paths: device.stack.hidden_paths.clone(),
        bypassed_by: all.bypassed_by(device).map(|above| above.kernel_name.clone()).unwrap_or_default(),
        partitions: device.partitions.iter().map(partition).collect(),
    }
}

fn partition(partition: &Partition) -> v1::Partition {
    v1::Partition {
        kernel_name: partition.kernel_name.clone(),
        major: partition.num.major,
        minor: partition.num.minor,
        size_bytes: signed(partition.size_bytes),
        mount_paths: partition.mount_paths.clone(),
        used_by: partition.used_by.clone(),
    }
}

fn condition(condition: &Condition) -> v1::Condition {
    let Condition { finding: found, observed_generation, last_transition } = condition;
    v1::Condition {
        observed_generation: *observed_generation,
        last_transition_time: Some(timestamp(*last_transition)),
        ..finding(found)
    }
}

/// Without its times: nobody notes since when a setting is as it is.
fn finding(finding: &Finding) -> v1::Condition {
    let status = match finding.holds {
        Holds::True => v1::ConditionStatus::True,
        Holds::False => v1::ConditionStatus::False,
        Holds::Unknown => v1::ConditionStatus::Unknown,
    };
    v1::Condition {
        r#type: finding.kind.name().to_owned(),
        status: status.into(),
        reason: finding.reason.to_owned(),
        message: finding.message.clone(),
        observed_generation: 0,
        last_transition_time: None,
        detail: finding.access.as_ref().map(|access| v1::condition::Detail::KernelWrite(kernel_write(access))),
    }
}

fn kernel_write(access: &Access) -> v1::KernelWrite {
    v1::KernelWrite {
        file: access.file.clone(),
        value: access.value.clone().unwrap_or_default(),
        errno: access.errno.unwrap_or(0),
        errno_name: access.errno_name(),
        read_back: access.read_back.clone().unwrap_or_default(),
    }
}

pub(super) fn conditions(all: &[Condition]) -> Vec<v1::Condition> {
    all.iter().map(condition).collect()
}

fn setting(setting: &SettingReport) -> v1::SettingStatus {
    v1::SettingStatus {
        cgroup_path: setting.key.cgroup.path.clone(),
        cgroup_id: setting.key.cgroup.id,
        device: Some(device_id(setting.key.device)),
        device_name: setting.device_name.clone(),
        key: limit_key(setting.key.key).into(),
        intended: Some(limit_value(setting.intended)),
        effective: setting.effective.map(limit_value),
        achieved: None,
        achieved_unknown: String::new(),
        file: setting.file.clone(),
        effective_from: setting.effective_from.clone().unwrap_or_default(),
        intent: setting.intent.clone(),
    }
}

fn rule(rule: &RuleReport) -> v1::RuleStatus {
    let state = match rule.state {
        RuleState::Applied => v1::RuleState::Applied,
        RuleState::Failed => v1::RuleState::Failed,
        RuleState::NoMatch => v1::RuleState::NoMatch,
        RuleState::Suspended => v1::RuleState::Suspended,
    };
    v1::RuleStatus {
        uid: rule.uid.clone(),
        intent: rule.intent.clone(),
        generation: rule.generation,
        state: state.into(),
        conditions: conditions(&rule.conditions),
        settings: rule.settings.iter().copied().map(count).collect(),
    }
}

fn rules(report: &Report) -> Vec<v1::RuleStatus> {
    report.rules.iter().map(rule).collect()
}

/// The acknowledgement of the plan that a report is about.
pub(super) fn ack(report: &Report) -> v1::Ack {
    v1::Ack {
        fence: report.fence.map(fence),
        rules: rules(report),
        settings_held: count(report.settings_held),
        conditions: conditions(&report.node),
        uids_held: report.uids_held.iter().cloned().collect(),
        settings: report.settings.iter().map(setting).collect(),
    }
}

/// The state without a new plan.
pub(super) fn status(report: &Report) -> v1::StatusUpdate {
    let v1::Ack { fence, rules, settings_held, conditions, uids_held, settings } = ack(report);
    v1::StatusUpdate { fence, rules, settings_held, conditions, uids_held, settings }
}

fn reason(reason: Reason) -> v1::ShortfallReason {
    match reason {
        Reason::OwnLimit => v1::ShortfallReason::OwnLimit,
        Reason::Demand => v1::ShortfallReason::Demand,
        Reason::Parent => v1::ShortfallReason::Parent,
        Reason::Saturated => v1::ShortfallReason::Saturated,
        Reason::Unknown => v1::ShortfallReason::Unknown,
        Reason::NotStarted => v1::ShortfallReason::NotStarted,
    }
}

fn source(source: Source) -> v1::CounterSource {
    match source {
        Source::V1Throttle => v1::CounterSource::V1Throttle,
        Source::V2IoStat => v1::CounterSource::V2IoStat,
    }
}

/// A measurement.
pub(super) fn measurement(measurement: &Measurement) -> v1::Measurement {
    v1::Measurement {
        cgroup_id: measurement.cgroup_id,
        device: Some(device_id(measurement.device)),
        source: source(measurement.source).into(),
        since_monotonic_ns: measurement.since_ns,
        at_monotonic_ns: measurement.at_ns,
        read_bytes: measurement.counters.read_bytes,
        write_bytes: measurement.counters.write_bytes,
        read_operations: measurement.counters.read_operations,
        write_operations: measurement.counters.write_operations,
        reasons: measurement
            .reasons
            .iter()
            .map(|((key, why), nanoseconds)| v1::ReasonTime {
                key: limit_key(*key).into(),
                reason: reason(*why).into(),
                nanoseconds: *nanoseconds,
            })
            .collect(),
    }
}

fn achieved(achieved: &Achieved) -> v1::Achieved {
    let share = |(why, share): &(Reason, f64)| v1::ReasonShare { reason: reason(*why).into(), share: *share };
    v1::Achieved {
        per_second: achieved.per_second,
        window: Some(duration(achieved.window)),
        reason: achieved.reasons.first().map_or(v1::ShortfallReason::Unknown, |(why, _)| reason(*why)).into(),
        reasons: achieved.reasons.iter().map(share).collect(),
        source: source(achieved.source).into(),
        age: Some(duration(achieved.age)),
    }
}

fn claim(claims: &[Claim], index: usize, claim: &Claim) -> v1::Claim {
    v1::Claim {
        intent: claim.intent.to_string(),
        priority: claim.priority,
        create_revision: claim.create_revision,
        value: Some(limit_value(claim.value)),
        won: claim.won,
        why: why(claims, index),
        observe: claim.observe,
    }
}

/// Everything about the settings that `intent` (empty for all) wants in the cgroups that match.
pub(super) fn explain(
    report: &Report,
    meter: &Meter,
    intent: &str,
    matches: impl Fn(&str) -> bool,
) -> v1::ExplainReply {
    let wanted = |setting: &&SettingReport| {
        (intent.is_empty() || setting.claims.iter().any(|claim| *claim.intent == *intent))
            && matches(&setting.key.cgroup.path)
    };
    let settings = report
        .settings
        .iter()
        .filter(wanted)
        .map(|report| {
            let mut status = setting(report);
            match meter.achieved(report.key.cgroup.id, report.key.device, report.key.key, WINDOW) {
                Ok(figure) => status.achieved = Some(achieved(&figure)),
                Err(why) => status.achieved_unknown = why,
            }
            v1::ExplainedSetting {
                status: Some(status),
                claims: report.claims.iter().enumerate().map(|(i, one)| claim(&report.claims, i, one)).collect(),
                baseline: report.owned.as_ref().map(|owned| limit_value(owned.baseline)),
                written: report.owned.as_ref().map(|owned| limit_value(owned.written)),
                written_for: report.owned.as_ref().map(|owned| fence(owned.fence)),
                drift_repairs: signed(report.drift_repairs),
                conditions: report.findings.iter().map(finding).collect(),
            }
        })
        .collect();
    let without_setting = report
        .rules
        .iter()
        .filter(|rule| rule.settings.is_empty() && (intent.is_empty() || rule.intent == intent))
        .map(rule)
        .collect();
    v1::ExplainReply { settings, without_setting }
}

/// A cgroup.
pub(super) fn workload(cgroup: &Cgroup, intents: Vec<String>) -> v1::Workload {
    v1::Workload {
        cgroup_path: cgroup.cgroup.path.clone(),
        cgroup_id: cgroup.cgroup.id,
        processes: i32::try_from(cgroup.processes).unwrap_or(i32::MAX),
        systemd_unit: cgroup.systemd_unit.clone().unwrap_or_default(),
        intents,
    }
}
