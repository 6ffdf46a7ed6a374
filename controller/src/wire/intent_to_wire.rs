//! Specs and their parts, from the model to the wire.

use weir_proto::v1;

use crate::model::{
    Accuracy, Controls, CpuLatency, DeviceFields, DeviceKind, DeviceSelector, DeviceTerm, IntentSpec, LatencyTarget,
    Limits, Mode, NodeSelector, NodeTerm, QosClass, RateLimit, Readahead, ReadaheadMode, Scope, Selector, Weight,
    WorkloadSelector, WorkloadTerm,
};

use super::to_i64;

pub(crate) fn spec_to_wire(spec: &IntentSpec) -> v1::IntentSpec {
    let IntentSpec { nodes, workloads, devices, controls, scope, priority, mode, allow_system, description } = spec;
    v1::IntentSpec {
        nodes: Some(nodes_to_wire(nodes)),
        workloads: Some(workloads_to_wire(workloads)),
        devices: devices.as_ref().map(devices_to_wire),
        controls: Some(controls_to_wire(controls)),
        scope: scope_to_wire(*scope),
        priority: *priority,
        mode: mode_to_wire(*mode),
        allow_system: *allow_system,
        description: description.clone(),
    }
}

pub(crate) fn scope_to_wire(scope: Scope) -> i32 {
    let scope = match scope {
        Scope::Pod => v1::Scope::Pod,
        Scope::Container => v1::Scope::Container,
        Scope::Node => v1::Scope::Node,
    };
    scope.into()
}

pub(crate) fn mode_to_wire(mode: Mode) -> i32 {
    let mode = match mode {
        Mode::Enforce => v1::Mode::Enforce,
        Mode::Observe => v1::Mode::Observe,
    };
    mode.into()
}

fn nodes_to_wire(selector: &NodeSelector) -> v1::NodeSelector {
    let Selector { any_of, exclude } = selector;
    let term = |term: &NodeTerm| match term {
        NodeTerm::All => v1::NodeTerm { all: true, ..Default::default() },
        NodeTerm::Match { names, labels } => {
            v1::NodeTerm { all: false, names: names.clone(), match_labels: labels.clone() }
        }
    };
    v1::NodeSelector { any_of: any_of.iter().map(term).collect(), exclude: exclude.iter().map(term).collect() }
}

pub(crate) fn workloads_to_wire(selector: &WorkloadSelector) -> v1::WorkloadSelector {
    let Selector { any_of, exclude } = selector;
    v1::WorkloadSelector {
        any_of: any_of.iter().map(workload_term).collect(),
        exclude: exclude.iter().map(workload_term).collect(),
    }
}

fn workload_term(term: &WorkloadTerm) -> v1::WorkloadTerm {
    let WorkloadTerm {
        cgroup_path,
        systemd_unit,
        namespaces,
        pod_names,
        labels,
        qos_classes,
        container_names,
        pod_uid,
    } = term;
    let qos = |class: &QosClass| match class {
        QosClass::Guaranteed => v1::QosClass::Guaranteed.into(),
        QosClass::Burstable => v1::QosClass::Burstable.into(),
        QosClass::BestEffort => v1::QosClass::BestEffort.into(),
    };
    v1::WorkloadTerm {
        cgroup_path: cgroup_path.clone(),
        systemd_unit: systemd_unit.clone(),
        namespaces: namespaces.clone(),
        pod_names: pod_names.clone(),
        match_labels: labels.clone(),
        qos_classes: qos_classes.iter().map(qos).collect(),
        container_names: container_names.clone(),
        pod_uid: pod_uid.clone(),
    }
}

pub(crate) fn devices_to_wire(selector: &DeviceSelector) -> v1::DeviceSelector {
    let Selector { any_of, exclude } = selector;
    v1::DeviceSelector {
        any_of: any_of.iter().map(device_term).collect(),
        exclude: exclude.iter().map(device_term).collect(),
    }
}

fn device_term(term: &DeviceTerm) -> v1::DeviceTerm {
    let fields = match term {
        DeviceTerm::All => return v1::DeviceTerm { all: true, ..Default::default() },
        DeviceTerm::Match(fields) => fields,
    };
    let DeviceFields { kinds, model, serial, by_id, path, mount_path, file_path, volume_claim, pod_root_filesystem } =
        fields;
    v1::DeviceTerm {
        all: false,
        kinds: kinds.iter().map(|&kind| device_kind_to_wire(kind)).collect(),
        model: model.clone(),
        serial: serial.clone(),
        by_id: by_id.clone(),
        path: path.clone(),
        mount_path: mount_path.clone(),
        file_path: file_path.clone(),
        volume_claim: volume_claim.clone(),
        pod_root_filesystem: *pod_root_filesystem,
    }
}

pub(super) fn device_kind_to_wire(kind: DeviceKind) -> i32 {
    let kind = match kind {
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
    kind.into()
}

pub(crate) fn controls_to_wire(controls: &Controls) -> v1::Controls {
    let Controls { limits, weight, latency_target, cpu_latency, readahead, accuracy } = controls;
    v1::Controls {
        limits: limits.as_ref().map(limits_to_wire),
        weight: weight.map(|weight: Weight| v1::Weight { weight: weight.get().cast_signed() }),
        latency_target: latency_target.map(|LatencyTarget { target_us, percentile }| v1::LatencyTarget {
            target_us,
            percentile: percentile.map_or(0.0, |ratio| ratio.0),
        }),
        cpu_latency: cpu_latency.as_ref().map(cpu_latency_to_wire),
        readahead: readahead.map(readahead_to_wire),
        accuracy: accuracy.map(|Accuracy { max_error_percent, window_ms, max_stall_ms }| v1::Accuracy {
            max_error_percent: max_error_percent.0,
            window_ms,
            max_stall_ms,
        }),
    }
}

fn limits_to_wire(limits: &Limits) -> v1::Limits {
    let Limits { rbps, wbps, riops, wiops } = limits;
    v1::Limits {
        rbps: rbps.map(byte_limit),
        wbps: wbps.map(byte_limit),
        riops: riops.map(operation_limit),
        wiops: wiops.map(operation_limit),
    }
}

fn byte_limit(limit: RateLimit) -> v1::ByteRateLimit {
    use v1::byte_rate_limit::Limit;
    let limit = match limit {
        RateLimit::PerSecond(value) => Limit::BytesPerSecond(to_i64(value.get())),
        RateLimit::PercentOfCapacity(percent) => Limit::PercentOfCapacity(percent.0),
        RateLimit::Unlimited => Limit::Unlimited(true),
    };
    v1::ByteRateLimit { limit: Some(limit) }
}

fn operation_limit(limit: RateLimit) -> v1::OperationRateLimit {
    use v1::operation_rate_limit::Limit;
    let limit = match limit {
        RateLimit::PerSecond(value) => Limit::OperationsPerSecond(to_i64(value.get())),
        RateLimit::PercentOfCapacity(percent) => Limit::PercentOfCapacity(percent.0),
        RateLimit::Unlimited => Limit::Unlimited(true),
    };
    v1::OperationRateLimit { limit: Some(limit) }
}

fn cpu_latency_to_wire(control: &CpuLatency) -> v1::CpuLatency {
    let CpuLatency { limit_us, idle_timeout_ms, min_hold_ms, cpus, max_active_fraction, allow_polling } = control;
    v1::CpuLatency {
        limit_us: *limit_us,
        idle_timeout_ms: *idle_timeout_ms,
        min_hold_ms: *min_hold_ms,
        cpus: cpus.clone(),
        max_active_fraction: max_active_fraction.map_or(0.0, |ratio| ratio.0),
        allow_polling: *allow_polling,
    }
}

fn readahead_to_wire(control: Readahead) -> v1::Readahead {
    let Readahead { mode, kib, tune_running } = control;
    let mode = match mode {
        ReadaheadMode::Unspecified => v1::ReadaheadMode::Unspecified,
        ReadaheadMode::Auto => v1::ReadaheadMode::Auto,
        ReadaheadMode::Fixed => v1::ReadaheadMode::Fixed,
        ReadaheadMode::Unmanaged => v1::ReadaheadMode::Unmanaged,
    };
    v1::Readahead { mode: mode.into(), kib, tune_running }
}
