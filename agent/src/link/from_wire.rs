//! From the contract's types to the agent's. What this agent does not know makes a rule unsupported, not wrong.

use weir_common::{
    fence::Fence,
    telemetry::TraceContext,
    units::{LimitKey, LimitValue},
};
use weir_proto::v1;

use crate::{
    devices::DeviceKind,
    kernel::LimitSet,
    plan::{DeviceSelector, DeviceTerm, Directive, Mode, Refusal, Rule, Scope, WorkloadSelector, WorkloadTerm},
    trace::Contexts,
};

/// A fence; absent fields are 0.
pub(super) fn fence(fence: Option<v1::Fence>) -> Fence {
    let v1::Fence { store_epoch, revision, facts_generation } = fence.unwrap_or_default();
    let positive = |n: i64| u64::try_from(n).unwrap_or(0);
    Fence {
        store_epoch: positive(store_epoch),
        revision: positive(revision),
        facts_generation: positive(facts_generation),
    }
}

/// A directive. To take one that is not known for any other could write where nothing may be written: its plan is refused.
pub(super) fn directive(number: i32) -> Result<Directive, Refusal> {
    match v1::Directive::try_from(number) {
        Ok(v1::Directive::Unspecified | v1::Directive::Active) => Ok(Directive::Active),
        Ok(v1::Directive::Paused) => Ok(Directive::Paused),
        Ok(v1::Directive::Released) => Ok(Directive::Released),
        Err(_) => Err(Refusal::UnknownDirective(number)),
    }
}

/// The traces of changes; what is no context is left out.
pub(super) fn traces(traces: Vec<v1::ChangeTrace>) -> Contexts {
    let context = |v1::ChangeTrace { uid, traceparent }| Some((uid, TraceContext::parse(&traceparent)?));
    traces.into_iter().filter_map(context).collect()
}

/// A rule.
pub(super) fn rule(rule: v1::Rule) -> Rule {
    let mut unsupported = Vec::new();
    let scope = match v1::Scope::try_from(rule.scope) {
        Ok(v1::Scope::Unspecified | v1::Scope::Pod) => Scope::Pod,
        Ok(v1::Scope::Container) => Scope::Container,
        Ok(v1::Scope::Node) => Scope::Node,
        Err(_) => {
            unsupported.push(format!("scope {}", rule.scope));
            Scope::Pod
        }
    };
    let mode = match v1::Mode::try_from(rule.mode) {
        Ok(v1::Mode::Unspecified | v1::Mode::Enforce) => Mode::Enforce,
        Ok(v1::Mode::Observe) => Mode::Observe,
        Err(_) => {
            unsupported.push(format!("mode {}", rule.mode));
            Mode::Observe
        }
    };
    let (limits, not_built) = controls(rule.controls.unwrap_or_default(), &mut unsupported);
    let workloads = rule.workloads.unwrap_or_default();
    let devices = rule.devices.unwrap_or_default();
    Rule {
        uid: rule.uid,
        intent: rule.intent,
        generation: rule.generation,
        rank: rule.rank,
        priority: rule.priority,
        create_revision: rule.create_revision,
        workloads: WorkloadSelector {
            any_of: workloads.any_of.into_iter().map(workload_term).collect(),
            exclude: workloads.exclude.into_iter().map(workload_term).collect(),
        },
        devices: DeviceSelector {
            any_of: devices.any_of.into_iter().map(|term| device_term(term, &mut unsupported)).collect(),
            exclude: devices.exclude.into_iter().map(|term| device_term(term, &mut unsupported)).collect(),
        },
        limits,
        not_built,
        scope,
        mode,
        allow_system: rule.allow_system,
        unsupported,
    }
}

/// The limits, and the controls that are not built.
fn controls(controls: v1::Controls, unsupported: &mut Vec<String>) -> (LimitSet, Vec<String>) {
    let v1::Controls { limits, weight, latency_target, cpu_latency, readahead, accuracy } = controls;
    let given = [
        ("spec.controls.weight", weight.is_some()),
        ("spec.controls.latency_target", latency_target.is_some()),
        ("spec.controls.cpu_latency", cpu_latency.is_some()),
        ("spec.controls.readahead", readahead.is_some()),
        ("spec.controls.accuracy", accuracy.is_some()),
    ];
    let mut not_built: Vec<String> =
        given.iter().filter(|(_, given)| *given).map(|(field, _)| (*field).to_owned()).collect();
    let mut set = LimitSet::new();
    let v1::Limits { rbps, wbps, riops, wiops } = limits.unwrap_or_default();
    let bytes = |limit: Option<v1::ByteRateLimit>| {
        use v1::byte_rate_limit::Limit;
        limit.map(|limit| match limit.limit {
            Some(Limit::BytesPerSecond(value)) => Given::Value(value),
            Some(Limit::PercentOfCapacity(_)) => Given::Percent,
            Some(Limit::Unlimited(_)) => Given::Unlimited,
            None => Given::Unknown,
        })
    };
    let operations = |limit: Option<v1::OperationRateLimit>| {
        use v1::operation_rate_limit::Limit;
        limit.map(|limit| match limit.limit {
            Some(Limit::OperationsPerSecond(value)) => Given::Value(value),
            Some(Limit::PercentOfCapacity(_)) => Given::Percent,
            Some(Limit::Unlimited(_)) => Given::Unlimited,
            None => Given::Unknown,
        })
    };
    let all = [
        (LimitKey::Rbps, bytes(rbps)),
        (LimitKey::Wbps, bytes(wbps)),
        (LimitKey::Riops, operations(riops)),
        (LimitKey::Wiops, operations(wiops)),
    ];
    for (key, given) in all {
        match given {
            None => {}
            Some(Given::Unlimited) => drop(set.insert(key, LimitValue::Unlimited)),
            Some(Given::Percent) => not_built.push(format!("spec.controls.limits.{key}.percent_of_capacity")),
            Some(Given::Value(value)) => match u64::try_from(value).ok().and_then(LimitValue::finite) {
                Some(value) => drop(set.insert(key, value)),
                None => unsupported.push(format!("{key}={value}")),
            },
            Some(Given::Unknown) => unsupported.push(format!("the form of {key}")),
        }
    }
    (set, not_built)
}

enum Given {
    Value(i64),
    Percent,
    Unlimited,
    Unknown,
}

fn text(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

fn workload_term(term: v1::WorkloadTerm) -> WorkloadTerm {
    let v1::WorkloadTerm {
        cgroup_path,
        systemd_unit,
        namespaces,
        pod_names,
        match_labels,
        qos_classes,
        container_names,
        pod_uid,
    } = term;
    let not_built = !namespaces.is_empty()
        || !pod_names.is_empty()
        || !match_labels.is_empty()
        || !qos_classes.is_empty()
        || !container_names.is_empty()
        || !pod_uid.is_empty();
    WorkloadTerm { cgroup_path: text(cgroup_path), systemd_unit: text(systemd_unit), not_built }
}

fn device_term(term: v1::DeviceTerm, unsupported: &mut Vec<String>) -> DeviceTerm {
    let v1::DeviceTerm {
        all,
        kinds,
        model,
        serial,
        by_id,
        path,
        mount_path,
        volume_claim,
        pod_root_filesystem,
        file_path,
    } = term;
    let kind = |kind: i32| match v1::DeviceKind::try_from(kind) {
        Ok(v1::DeviceKind::Nvme) => Some(DeviceKind::Nvme),
        Ok(v1::DeviceKind::SataSsd) => Some(DeviceKind::SataSsd),
        Ok(v1::DeviceKind::SataHdd) => Some(DeviceKind::SataHdd),
        Ok(v1::DeviceKind::Virtio) => Some(DeviceKind::Virtio),
        Ok(v1::DeviceKind::Dm) => Some(DeviceKind::Dm),
        Ok(v1::DeviceKind::Md) => Some(DeviceKind::Md),
        Ok(v1::DeviceKind::Loop) => Some(DeviceKind::Loop),
        Ok(v1::DeviceKind::Zram) => Some(DeviceKind::Zram),
        Ok(v1::DeviceKind::Other) => Some(DeviceKind::Other),
        Ok(v1::DeviceKind::Unspecified) | Err(_) => None,
    };
    let known: Vec<DeviceKind> = kinds.iter().filter_map(|number| kind(*number)).collect();
    if known.len() < kinds.len() {
        unsupported.push(format!("device kinds {kinds:?}"));
    }
    DeviceTerm {
        all,
        kinds: known,
        model: text(model),
        serial: text(serial),
        by_id: text(by_id),
        path: text(path),
        mount_path: text(mount_path),
        file_path: text(file_path),
        not_built: !volume_claim.is_empty() || pod_root_filesystem,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_said_and_what_is_not_built_matches_nothing() {
        let wire = v1::Rule {
            scope: 77,
            devices: Some(v1::DeviceSelector {
                any_of: vec![v1::DeviceTerm { kinds: vec![1, 99], volume_claim: "data".into(), ..Default::default() }],
                exclude: vec![],
            }),
            workloads: Some(v1::WorkloadSelector {
                any_of: vec![v1::WorkloadTerm { pod_uid: "x".into(), ..Default::default() }],
                exclude: vec![],
            }),
            controls: Some(v1::Controls {
                weight: Some(v1::Weight { weight: 5 }),
                limits: Some(v1::Limits {
                    rbps: Some(v1::ByteRateLimit { limit: None }),
                    riops: Some(v1::OperationRateLimit {
                        limit: Some(v1::operation_rate_limit::Limit::PercentOfCapacity(5.0)),
                    }),
                    wbps: Some(v1::ByteRateLimit { limit: Some(v1::byte_rate_limit::Limit::BytesPerSecond(-1)) }),
                    wiops: None,
                }),
                ..Default::default()
            }),
            ..Default::default()
        };
        let rule = rule(wire);
        assert_eq!(rule.unsupported.len(), 4, "{:?}", rule.unsupported);
        assert_eq!(rule.not_built, ["spec.controls.weight", "spec.controls.limits.riops.percent_of_capacity"]);
        assert!(rule.limits.is_empty());
        assert!(rule.workloads.any_of[0].not_built && rule.devices.any_of[0].not_built);
        assert_eq!(directive(v1::Directive::Released.into()), Ok(Directive::Released));
        assert_eq!(directive(77), Err(Refusal::UnknownDirective(77)), "never taken for an order to enforce");
    }
}
