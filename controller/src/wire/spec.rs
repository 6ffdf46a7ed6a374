//! A spec as it was sent, to a valid one, with everything that is wrong with it.

use weir_common::units::LimitKey;
use weir_proto::v1;

use crate::model::{
    Accuracy, Controls, CpuLatency, DeviceFields, DeviceKind, DeviceSelector, DeviceTerm, FieldPath, IntentSpec,
    LatencyTarget, Limits, Mode, NodeSelector, NodeTerm, QosClass, RateLimit, Ratio, Readahead, ReadaheadMode, Scope,
    Selector, SpecParts, Violations, Weight, WorkloadSelector, WorkloadTerm,
};

/// A valid spec, or violations. `at` is the path of the spec itself.
pub(crate) fn spec_from_wire(at: &FieldPath, spec: v1::IntentSpec, out: &mut Violations) -> Option<IntentSpec> {
    let v1::IntentSpec {
        nodes,
        workloads,
        devices,
        controls: wire_controls,
        scope: wire_scope,
        priority,
        mode: wire_mode,
        allow_system,
        description,
    } = spec;
    let parts = SpecParts {
        nodes_given: nodes.is_some(),
        nodes: nodes.and_then(|selector| node_selector(&at.field("nodes"), selector, out)),
        workloads_given: workloads.is_some(),
        workloads: workloads.and_then(|selector| workload_selector(&at.field("workloads"), selector, out)),
        devices_given: devices.is_some(),
        devices: devices.and_then(|selector| device_selector(&at.field("devices"), selector, out)),
        controls_given: wire_controls.is_some(),
        cpu_latency_alone: wire_controls.as_ref().is_some_and(is_cpu_latency_alone),
        controls: wire_controls.and_then(|given| controls(&at.field("controls"), given, out)),
        scope: scope(&at.field("scope"), wire_scope, out),
        priority,
        mode: mode(&at.field("mode"), wire_mode, out),
        allow_system,
        description,
    };
    IntentSpec::new(at, parts, out)
}

fn unknown_number(at: &FieldPath, number: i32, out: &mut Violations) {
    out.add(at, format!("{number} is no value of this enumeration"));
}

fn scope(at: &FieldPath, number: i32, out: &mut Violations) -> Option<Scope> {
    match v1::Scope::try_from(number) {
        Ok(v1::Scope::Unspecified | v1::Scope::Pod) => Some(Scope::Pod),
        Ok(v1::Scope::Container) => Some(Scope::Container),
        Ok(v1::Scope::Node) => Some(Scope::Node),
        Err(_) => {
            unknown_number(at, number, out);
            None
        }
    }
}

fn mode(at: &FieldPath, number: i32, out: &mut Violations) -> Option<Mode> {
    match v1::Mode::try_from(number) {
        Ok(v1::Mode::Unspecified | v1::Mode::Enforce) => Some(Mode::Enforce),
        Ok(v1::Mode::Observe) => Some(Mode::Observe),
        Err(_) => {
            unknown_number(at, number, out);
            None
        }
    }
}

fn node_selector(at: &FieldPath, selector: v1::NodeSelector, out: &mut Violations) -> Option<NodeSelector> {
    let v1::NodeSelector { any_of, exclude } = selector;
    let any_of = terms(&at.field("any_of"), any_of, out, node_term);
    let exclude = terms(&at.field("exclude"), exclude, out, node_term);
    Selector::new(at, any_of, exclude, out)
}

fn workload_selector(at: &FieldPath, selector: v1::WorkloadSelector, out: &mut Violations) -> Option<WorkloadSelector> {
    let v1::WorkloadSelector { any_of, exclude } = selector;
    let any_of = terms(&at.field("any_of"), any_of, out, workload_term);
    let exclude = terms(&at.field("exclude"), exclude, out, workload_term);
    Selector::new(at, any_of, exclude, out)
}

fn device_selector(at: &FieldPath, selector: v1::DeviceSelector, out: &mut Violations) -> Option<DeviceSelector> {
    let v1::DeviceSelector { any_of, exclude } = selector;
    let any_of = terms(&at.field("any_of"), any_of, out, device_term);
    let exclude = terms(&at.field("exclude"), exclude, out, device_term);
    Selector::new(at, any_of, exclude, out)
}

fn terms<W, T>(
    at: &FieldPath,
    wire: Vec<W>,
    out: &mut Violations,
    term: fn(&FieldPath, W, &mut Violations) -> Option<T>,
) -> Vec<Option<T>> {
    wire.into_iter().enumerate().map(|(i, wire)| term(&at.index(i), wire, out)).collect()
}

fn node_term(at: &FieldPath, term: v1::NodeTerm, out: &mut Violations) -> Option<NodeTerm> {
    let v1::NodeTerm { all, names, match_labels } = term;
    NodeTerm::new(at, all, names, match_labels, out)
}

fn workload_term(at: &FieldPath, term: v1::WorkloadTerm, out: &mut Violations) -> Option<WorkloadTerm> {
    let v1::WorkloadTerm {
        cgroup_path,
        systemd_unit,
        namespaces,
        pod_names,
        match_labels,
        qos_classes: numbers,
        container_names,
        pod_uid,
    } = term;
    let given = numbers.len();
    let mut qos_classes = Vec::new();
    for (i, number) in numbers.into_iter().enumerate() {
        qos_classes.push(match v1::QosClass::try_from(number) {
            Ok(v1::QosClass::Guaranteed) => QosClass::Guaranteed,
            Ok(v1::QosClass::Burstable) => QosClass::Burstable,
            Ok(v1::QosClass::BestEffort) => QosClass::BestEffort,
            Ok(v1::QosClass::Unspecified) | Err(_) => {
                unknown_number(&at.field("qos_classes").index(i), number, out);
                continue;
            }
        });
    }
    let complete = qos_classes.len() == given;
    if !complete && qos_classes.is_empty() {
        // So that the term does not count as empty on top of its unknown classes.
        qos_classes.push(QosClass::Guaranteed);
    }
    WorkloadTerm {
        cgroup_path,
        systemd_unit,
        namespaces,
        pod_names,
        labels: match_labels,
        qos_classes,
        container_names,
        pod_uid,
    }
    .checked(at, out)
    .filter(|_| complete)
}

pub(super) fn device_kind_from_wire(number: i32) -> Option<DeviceKind> {
    Some(match v1::DeviceKind::try_from(number).ok()? {
        v1::DeviceKind::Unspecified => return None,
        v1::DeviceKind::Nvme => DeviceKind::Nvme,
        v1::DeviceKind::SataSsd => DeviceKind::SataSsd,
        v1::DeviceKind::SataHdd => DeviceKind::SataHdd,
        v1::DeviceKind::Virtio => DeviceKind::Virtio,
        v1::DeviceKind::Dm => DeviceKind::Dm,
        v1::DeviceKind::Md => DeviceKind::Md,
        v1::DeviceKind::Loop => DeviceKind::Loop,
        v1::DeviceKind::Zram => DeviceKind::Zram,
        v1::DeviceKind::Other => DeviceKind::Other,
    })
}

fn device_term(at: &FieldPath, term: v1::DeviceTerm, out: &mut Violations) -> Option<DeviceTerm> {
    let v1::DeviceTerm {
        all,
        kinds: numbers,
        model,
        serial,
        by_id,
        path,
        mount_path,
        volume_claim,
        pod_root_filesystem,
        file_path,
    } = term;
    let given = numbers.len();
    let mut kinds = Vec::new();
    for (i, number) in numbers.into_iter().enumerate() {
        match device_kind_from_wire(number) {
            Some(kind) => kinds.push(kind),
            None => unknown_number(&at.field("kinds").index(i), number, out),
        }
    }
    let complete = kinds.len() == given;
    if !complete && kinds.is_empty() {
        kinds.push(DeviceKind::Other);
    }
    let fields =
        DeviceFields { kinds, model, serial, by_id, path, mount_path, file_path, volume_claim, pod_root_filesystem };
    DeviceTerm::new(at, all, fields, out).filter(|_| complete)
}

fn is_cpu_latency_alone(controls: &v1::Controls) -> bool {
    let v1::Controls { limits, weight, latency_target, cpu_latency, readahead, accuracy } = controls;
    cpu_latency.is_some()
        && limits.is_none()
        && weight.is_none()
        && latency_target.is_none()
        && readahead.is_none()
        && accuracy.is_none()
}

fn controls(at: &FieldPath, controls: v1::Controls, out: &mut Violations) -> Option<Controls> {
    if controls == v1::Controls::default() {
        out.add(at, "at least one control is needed");
        return None;
    }
    let before = out.as_slice().len();
    let v1::Controls { limits: l, weight, latency_target, cpu_latency: cpu, readahead: ra, accuracy } = controls;
    let valid = Controls {
        limits: l.and_then(|given| limits(&at.field("limits"), given, out)),
        weight: weight.and_then(|v1::Weight { weight }| Weight::new(&at.field("weight").field("weight"), weight, out)),
        latency_target: latency_target.and_then(|v1::LatencyTarget { target_us, percentile }| {
            LatencyTarget::checked(&at.field("latency_target"), target_us, percentile, out)
        }),
        cpu_latency: cpu.and_then(|given| cpu_latency(given).checked(&at.field("cpu_latency"), out)),
        readahead: ra.and_then(|given| readahead(&at.field("readahead"), given, out)),
        accuracy: accuracy.and_then(|v1::Accuracy { max_error_percent, window_ms, max_stall_ms }| {
            Accuracy { max_error_percent: Ratio(max_error_percent), window_ms, max_stall_ms }
                .checked(&at.field("accuracy"), out)
        }),
    };
    (out.as_slice().len() == before).then_some(valid)
}

fn limits(at: &FieldPath, limits: v1::Limits, out: &mut Violations) -> Option<Limits> {
    if limits == v1::Limits::default() {
        out.add(at, "at least one of rbps, wbps, riops and wiops is needed");
        return None;
    }
    let v1::Limits { rbps, wbps, riops, wiops } = limits;
    let before = out.as_slice().len();
    let limits = Limits {
        rbps: rbps.and_then(|limit| byte_limit(&at.field("rbps"), LimitKey::Rbps, limit, out)),
        wbps: wbps.and_then(|limit| byte_limit(&at.field("wbps"), LimitKey::Wbps, limit, out)),
        riops: riops.and_then(|limit| operation_limit(&at.field("riops"), LimitKey::Riops, limit, out)),
        wiops: wiops.and_then(|limit| operation_limit(&at.field("wiops"), LimitKey::Wiops, limit, out)),
    };
    (out.as_slice().len() == before).then_some(limits)
}

fn byte_limit(at: &FieldPath, key: LimitKey, limit: v1::ByteRateLimit, out: &mut Violations) -> Option<RateLimit> {
    use v1::byte_rate_limit::Limit;
    let v1::ByteRateLimit { limit } = limit;
    match limit {
        Some(Limit::BytesPerSecond(value)) => RateLimit::per_second(&at.field("bytes_per_second"), key, value, out),
        Some(Limit::PercentOfCapacity(value)) => RateLimit::percent(&at.field("percent_of_capacity"), value, out),
        Some(Limit::Unlimited(value)) => RateLimit::unlimited(&at.field("unlimited"), value, out),
        None => {
            out.add(at, "one of bytes_per_second, percent_of_capacity and unlimited is needed");
            None
        }
    }
}

fn operation_limit(
    at: &FieldPath,
    key: LimitKey,
    limit: v1::OperationRateLimit,
    out: &mut Violations,
) -> Option<RateLimit> {
    use v1::operation_rate_limit::Limit;
    let v1::OperationRateLimit { limit } = limit;
    match limit {
        Some(Limit::OperationsPerSecond(value)) => {
            RateLimit::per_second(&at.field("operations_per_second"), key, value, out)
        }
        Some(Limit::PercentOfCapacity(value)) => RateLimit::percent(&at.field("percent_of_capacity"), value, out),
        Some(Limit::Unlimited(value)) => RateLimit::unlimited(&at.field("unlimited"), value, out),
        None => {
            out.add(at, "one of operations_per_second, percent_of_capacity and unlimited is needed");
            None
        }
    }
}

fn cpu_latency(control: v1::CpuLatency) -> CpuLatency {
    let v1::CpuLatency { limit_us, idle_timeout_ms, min_hold_ms, cpus, max_active_fraction, allow_polling } = control;
    CpuLatency {
        limit_us,
        idle_timeout_ms,
        min_hold_ms,
        cpus,
        max_active_fraction: (max_active_fraction != 0.0).then_some(Ratio(max_active_fraction)),
        allow_polling,
    }
}

fn readahead(at: &FieldPath, control: v1::Readahead, out: &mut Violations) -> Option<Readahead> {
    let v1::Readahead { mode: number, kib, tune_running } = control;
    let mode = match v1::ReadaheadMode::try_from(number) {
        Ok(v1::ReadaheadMode::Unspecified) => ReadaheadMode::Unspecified,
        Ok(v1::ReadaheadMode::Auto) => ReadaheadMode::Auto,
        Ok(v1::ReadaheadMode::Fixed) => ReadaheadMode::Fixed,
        Ok(v1::ReadaheadMode::Unmanaged) => ReadaheadMode::Unmanaged,
        Err(_) => {
            unknown_number(&at.field("mode"), number, out);
            return None;
        }
    };
    Readahead { mode, kib, tune_running }.checked(at, out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::spec_to_wire;
    use proptest::prelude::*;

    /// Every field of the contract's spec is in here.
    const FULL: &str = r#"{
        "nodes": {"anyOf": [{"names": ["db-*"], "matchLabels": {"disk": "nvme"}}, {"all": true}], "exclude": [{"names": ["x"]}]},
        "workloads": {"anyOf": [{"cgroupPath": "/a/*", "systemdUnit": "b.service", "namespaces": ["n"], "podNames": ["p"],
            "matchLabels": {"k": "v"}, "qosClasses": ["QOS_CLASS_BEST_EFFORT"], "containerNames": ["c"], "podUid": "u"}],
            "exclude": [{"cgroupPath": "/b"}]},
        "devices": {"anyOf": [{"all": true}, {"kinds": ["DEVICE_KIND_NVME", "DEVICE_KIND_LOOP"], "model": "m", "serial": "s",
            "byId": "i", "path": "/dev/x", "mountPath": "/m", "volumeClaim": "v", "podRootFilesystem": true}]},
        "controls": {"limits": {"rbps": {"bytesPerSecond": "10485760"}, "wbps": {"unlimited": true},
            "riops": {"percentOfCapacity": 33.3}, "wiops": {"operationsPerSecond": "100"}},
            "weight": {"weight": 100}, "latencyTarget": {"targetUs": "500", "percentile": 99.9},
            "cpuLatency": {"limitUs": "10", "idleTimeoutMs": "5", "minHoldMs": "1", "cpus": "0-3", "maxActiveFraction": 0.5, "allowPolling": true},
            "readahead": {"mode": "READAHEAD_MODE_FIXED", "kib": "128", "tuneRunning": true},
            "accuracy": {"maxErrorPercent": 5, "windowMs": "1000", "maxStallMs": "200"}},
        "scope": "SCOPE_NODE", "priority": -7, "mode": "MODE_OBSERVE", "allowSystem": true, "description": "d"}"#;

    fn check(spec: v1::IntentSpec) -> (Option<IntentSpec>, Vec<String>) {
        let mut out = Violations::default();
        let spec = spec_from_wire(&FieldPath::root("intent.spec"), spec, &mut out);
        (spec, out.as_slice().iter().map(|violation| violation.field.clone()).collect())
    }

    fn json(text: &str) -> v1::IntentSpec {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn every_field_survives_the_way_to_the_model_the_store_and_back() {
        let (spec, violations) = check(json(FULL));
        assert_eq!(violations, Vec::<String>::new());
        let stored = serde_json::to_string(&spec.unwrap()).unwrap();
        let spec: IntentSpec = serde_json::from_str(&stored).unwrap();
        assert_eq!(spec_to_wire(&spec), json(FULL));
        let missing = spec.not_implemented();
        assert_eq!(
            missing.controls,
            [
                "spec.controls.limits.riops.percent_of_capacity",
                "spec.controls.weight",
                "spec.controls.latency_target",
                "spec.controls.cpu_latency",
                "spec.controls.readahead",
                "spec.controls.accuracy"
            ]
        );
        assert_eq!(missing.selectors.len(), 8);
        assert!(missing.selectors.contains(&"spec.workloads.any_of[0].pod_uid".to_owned()));
        assert!(missing.selectors.contains(&"spec.devices.any_of[1].volume_claim".to_owned()));
    }

    #[test]
    fn all_faults_are_named_at_once() {
        let mut wire = json(
            r#"{
            "nodes": {"anyOf": [{}, {"all": true, "names": ["a"]}], "exclude": [{"all": true}]},
            "workloads": {"anyOf": [{"cgroupPath": "a/../b"}, {"qosClasses": ["QOS_CLASS_GUARANTEED"]}]},
            "devices": {"anyOf": [{"path": "sda", "mountPath": "m", "kinds": ["DEVICE_KIND_UNSPECIFIED"]}]},
            "controls": {"limits": {"rbps": {"bytesPerSecond": "-1"}, "wbps": {"unlimited": false}, "riops": {}, "wiops": {"operationsPerSecond": "9"}},
                "weight": {"weight": 0}, "readahead": {"mode": "READAHEAD_MODE_AUTO", "kib": "4"}},
            "priority": 1001}"#,
        );
        // Numbers that the JSON form has no name for.
        (wire.scope, wire.mode) = (9, 8);
        wire.workloads.as_mut().unwrap().any_of[1].qos_classes = vec![77];
        let (spec, violations) = check(wire);
        assert!(spec.is_none());
        let expected = [
            "nodes.any_of[0]",
            "nodes.any_of[1].all",
            "nodes.exclude[0]",
            "workloads.any_of[0].cgroup_path",
            "workloads.any_of[1].qos_classes[0]",
            "devices.any_of[0].kinds[0]",
            "devices.any_of[0].path",
            "devices.any_of[0].mount_path",
            "controls.limits.rbps.bytes_per_second",
            "controls.limits.wbps.unlimited",
            "controls.limits.riops",
            "controls.limits.wiops.operations_per_second",
            "controls.weight.weight",
            "controls.readahead.kib",
            "scope",
            "mode",
            "priority",
        ];
        let mut got: Vec<&str> = violations.iter().map(|field| field.strip_prefix("intent.spec.").unwrap()).collect();
        got.dedup();
        for field in expected {
            assert!(got.contains(&field), "{field} in {got:?}");
        }
        // The relative path is also one with `..`.
        assert_eq!(got.len(), expected.len(), "{got:?}");
    }

    #[test]
    fn what_is_missing_is_named() {
        let (_, violations) = check(v1::IntentSpec::default());
        let fields = ["nodes", "workloads", "devices", "controls"].map(|name| format!("intent.spec.{name}"));
        assert_eq!(violations, fields);
        let (_, violations) = check(json(r#"{"nodes": {}, "workloads": {}, "devices": {}, "controls": {}}"#));
        assert_eq!(
            violations,
            ["nodes.any_of", "workloads.any_of", "devices.any_of", "controls"]
                .map(|name| format!("intent.spec.{name}"))
        );
        let (_, violations) = check(json(
            r#"{"nodes": {"anyOf": [{"all": true}]}, "workloads": {"anyOf": [{"cgroupPath": "/a"}]},
            "devices": {"anyOf": [{"all": true}]}, "controls": {"limits": {}}}"#,
        ));
        assert_eq!(violations, ["intent.spec.controls.limits"]);
    }

    #[test]
    fn devices_are_needed_unless_cpu_latency_is_alone() {
        let base = r#""nodes": {"anyOf": [{"all": true}]}, "workloads": {"anyOf": [{"cgroupPath": "/a"}]}"#;
        let with = |controls: &str| check(json(&format!(r#"{{{base}, "controls": {controls}}}"#)));
        let cpu = r#""cpuLatency": {"limitUs": "10", "idleTimeoutMs": "5"}"#;
        assert!(with(&format!("{{{cpu}}}")).0.is_some());
        assert_eq!(with(&format!(r#"{{{cpu}, "weight": {{"weight": 1}}}}"#)).1, ["intent.spec.devices"]);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            use prost::Message;
            if let Ok(spec) = v1::IntentSpec::decode(bytes.as_slice()) {
                let (spec, violations) = check(spec);
                prop_assert_eq!(spec.is_none(), !violations.is_empty());
            }
        }
    }
}
