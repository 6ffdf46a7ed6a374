//! Which devices and which cgroups a rule means on this node, and what is refused. PURE.

use std::collections::BTreeMap;

use weir_common::{device::DevNum, glob};

use crate::{
    condition::{ConditionType, Finding},
    devices::{BlockDevice, DeviceSnapshot, PathTarget},
    plan::{DeviceSelector, DeviceTerm, Rule, WorkloadTerm},
    workloads::{Cgroup, WorkloadSnapshot},
};

/// Top-level cgroups of the system itself: limiting them starves the node.
const SYSTEM: [&str; 3] = ["/system.slice", "/init.scope", "/user.slice"];
/// Services that every workload of the node depends on, wherever their cgroup lies.
const SYSTEM_UNITS: [&str; 6] = [
    "kubelet.service",
    "containerd.service",
    "crio.service",
    "docker.service",
    "dockerd.service",
    "cri-docker.service",
];

/// The whole devices that a selector means. Of a stack of which several levels are chosen only the topmost is taken: a limit
/// on each would throttle the same I/O twice.
pub(super) fn devices<'a>(
    selector: &DeviceSelector,
    snapshot: &'a DeviceSnapshot,
    findings: &mut Vec<Finding>,
) -> Vec<&'a BlockDevice> {
    if selector.exclude.iter().any(|term| term.not_built) {
        findings.push(unknown_exception(ConditionType::NoDevice));
        return Vec::new();
    }
    for term in &selector.exclude {
        // What is excepted must be known, or more is reached than was meant.
        if let Some((path, PathTarget::Unreadable { error })) =
            named(term, snapshot).into_iter().find(|(_, target)| matches!(target, PathTarget::Unreadable { .. }))
        {
            let message = format!("{path}, which an exclude term names, cannot be looked up: {error}");
            findings.push(Finding::holds(ConditionType::NoDevice, "ExcludeUnreadable", message));
            return Vec::new();
        }
    }
    for term in &selector.any_of {
        findings.extend(term_findings(term, snapshot));
    }
    let matched: Vec<&BlockDevice> = snapshot
        .devices
        .values()
        .filter(|device| selector.any_of.iter().any(|term| device_matches(term, device, snapshot)))
        .filter(|device| !selector.exclude.iter().any(|term| device_matches(term, device, snapshot)))
        .collect();
    if matched.is_empty() && findings.is_empty() {
        findings.push(Finding::holds(ConditionType::NoDevice, "NothingMatches", "no device of this node matches"));
    }
    let everything = selector.any_of.iter().any(|term| term.all);
    let mut effective = Vec::new();
    for &device in &matched {
        match snapshot.bypassed_by(device) {
            None => effective.push(device),
            // Who means every device on which limits take effect does not mean this one, and has the one above.
            Some(above) if everything || matched.iter().any(|other| other.id == above.id) => {}
            Some(above) => findings.push(bypassed(device, above)),
        }
    }
    let (tops, lower): (Vec<&BlockDevice>, Vec<&BlockDevice>) =
        effective.iter().partition(|device| !effective.iter().any(|top| snapshot.is_below(device, top)));
    findings.extend(lower.iter().filter_map(|device| top_taken(device, &tops, snapshot)));
    tops
}

fn bypassed(device: &BlockDevice, above: &BlockDevice) -> Finding {
    let message = format!(
        "{} hands whole requests to {}, past the place where a limit on that would act; choose {} instead",
        above.kernel_name, device.kernel_name, above.kernel_name
    );
    Finding::holds(ConditionType::LimitBypassed, "BelowMultipath", message)
}

/// What is not limited because a limit on the lower device was left out; nothing where all of it is below `tops`.
fn top_taken(device: &BlockDevice, tops: &[&BlockDevice], snapshot: &DeviceSnapshot) -> Option<Finding> {
    let beside = snapshot.beside(device, tops);
    if beside.is_empty() {
        return None;
    }
    let above: Vec<&str> =
        tops.iter().filter(|top| snapshot.is_below(device, top)).map(|top| top.kernel_name.as_str()).collect();
    let message = format!(
        "{} and {} below match: a limit on each would throttle the same I/O twice, so {} alone is limited, and {} is not",
        above.join(", "),
        device.kernel_name,
        above.join(", "),
        beside.join(", ")
    );
    Some(Finding::holds(ConditionType::StackTopTaken, "OneLayer", message))
}

/// An exception that cannot be told is none that may be passed over: the rule would reach more than was meant.
fn unknown_exception(kind: ConditionType) -> Finding {
    let message = "an exclude term has a field that is not built yet; until it is, the intent chooses nothing";
    Finding::holds(kind, "ExcludeNotImplemented", message)
}

fn device_matches(term: &DeviceTerm, device: &BlockDevice, snapshot: &DeviceSnapshot) -> bool {
    if term.not_built {
        return false;
    }
    let is = |num: Option<DevNum>| num.and_then(|num| snapshot.whole(num)).is_some_and(|whole| whole.id == device.id);
    let block = |target: Option<&PathTarget>| match target {
        Some(PathTarget::Block(num)) => Some(*num),
        _ => None,
    };
    let globbed = |pattern: &Option<String>, text: &Option<String>| {
        pattern.as_ref().is_none_or(|pattern| text.as_ref().is_some_and(|text| glob::matches(pattern, text)))
    };
    let given = term.all
        || !term.kinds.is_empty()
        || [&term.model, &term.serial, &term.by_id, &term.path, &term.mount_path, &term.file_path]
            .iter()
            .any(|field| field.is_some());
    given
        && (term.kinds.is_empty() || term.kinds.contains(&device.kind))
        && globbed(&term.model, &device.model)
        && globbed(&term.serial, &device.serial)
        && term.by_id.as_ref().is_none_or(|name| is(snapshot.by_id.get(name).copied()))
        && term.path.as_ref().is_none_or(|path| is(block(snapshot.paths.get(path))))
        && term.mount_path.as_ref().is_none_or(|path| is(block(snapshot.mounts.get(path))))
        && term.file_path.as_ref().is_none_or(|path| is(block(snapshot.files.get(path))))
}

/// Where the paths that a term has lead.
fn named<'a>(term: &'a DeviceTerm, snapshot: &'a DeviceSnapshot) -> Vec<(&'a String, &'a PathTarget)> {
    let look = |path: &'a Option<String>, targets: &'a BTreeMap<String, PathTarget>| {
        path.as_ref().map(|path| (path, targets.get(path).unwrap_or(&PathTarget::NotFound)))
    };
    let all = [
        look(&term.path, &snapshot.paths),
        look(&term.mount_path, &snapshot.mounts),
        look(&term.file_path, &snapshot.files),
    ];
    all.into_iter().flatten().collect()
}

/// What is wrong with the names that a term has: each kind of wrong has its own condition.
fn term_findings(term: &DeviceTerm, snapshot: &DeviceSnapshot) -> Vec<Finding> {
    let mut findings = Vec::new();
    let none = |reason, message: String| Finding::holds(ConditionType::NoDevice, reason, message);
    if let Some(name) = &term.by_id
        && !snapshot.by_id.contains_key(name)
    {
        findings.push(none("ByIdNotFound", format!("/dev/disk/by-id/{name} is not there")));
    }
    for (path, target) in named(term, snapshot) {
        findings.extend(match target {
            PathTarget::NotFound if term.mount_path.as_ref() == Some(path) => {
                Some(none("NotMounted", format!("nothing is mounted at {path}")))
            }
            PathTarget::NotFound => Some(none("PathNotFound", format!("{path} is not there"))),
            PathTarget::Unreadable { error } => {
                Some(none("PathUnreadable", format!("{path} cannot be looked up: {error}")))
            }
            PathTarget::NotADevice => Some(none("NotADevice", format!("{path} is no device node"))),
            PathTarget::CharacterDevice => Some(Finding::holds(
                ConditionType::CharacterDevice,
                "CharacterDevice",
                format!("{path} is a character device, not a disk"),
            )),
            PathTarget::NvmeController => Some(Finding::holds(
                ConditionType::ControllerNode,
                "NvmeController",
                format!("{path} is an NVMe controller, not a disk; name one of its namespaces, such as {path}n1"),
            )),
            PathTarget::SeveralDevices { fs_type, devices } => Some(Finding::holds(
                ConditionType::SeveralDevices,
                "SeveralDevices",
                format!("the {fs_type} file system at {path} spreads over {}; choose the devices", devices.join(", ")),
            )),
            PathTarget::NoBlockDevice { fs_type } => Some(Finding::holds(
                ConditionType::NoBlockDevice,
                "NoBlockDevice",
                format!("the {fs_type} file system at {path} has no block device of its own"),
            )),
            PathTarget::Block(num) if snapshot.whole(*num).is_none() => Some(none(
                "UnknownDevice",
                format!("{path} is {num}, which is no disk of this node that can be limited"),
            )),
            PathTarget::Block(_) => None,
        });
    }
    findings
}

/// The cgroups that a rule means, without those that are refused.
pub(super) fn cgroups<'a>(
    rule: &Rule,
    workloads: &'a WorkloadSnapshot,
    findings: &mut Vec<Finding>,
) -> Vec<&'a Cgroup> {
    if rule.workloads.exclude.iter().any(|term| term.not_built) {
        findings.push(unknown_exception(ConditionType::NoWorkload));
        return Vec::new();
    }
    let matched: Vec<&Cgroup> = workloads
        .cgroups
        .values()
        .filter(|cgroup| rule.workloads.any_of.iter().any(|term| cgroup_matches(term, cgroup)))
        .filter(|cgroup| !rule.workloads.exclude.iter().any(|term| cgroup_matches(term, cgroup)))
        .collect();
    if matched.is_empty() {
        findings.push(Finding::holds(ConditionType::NoWorkload, "NothingMatches", "no cgroup of this node matches"));
    }
    let guarded = Guarded {
        own: workloads.own_cgroup.as_deref(),
        system_units: workloads.cgroups.keys().filter(|path| system_unit(path)).map(String::as_str).collect(),
    };
    matched.into_iter().filter(|cgroup| !refuse(rule, &cgroup.cgroup.path, &guarded, findings)).collect()
}

fn cgroup_matches(term: &WorkloadTerm, cgroup: &Cgroup) -> bool {
    if term.not_built || (term.cgroup_path.is_none() && term.systemd_unit.is_none()) {
        return false;
    }
    let path = &cgroup.cgroup.path;
    let unit = cgroup.systemd_unit.as_ref();
    term.cgroup_path.as_ref().is_none_or(|pattern| glob::matches(pattern, path))
        && term.systemd_unit.as_ref().is_none_or(|pattern| unit.is_some_and(|unit| glob::matches(pattern, unit)))
}

/// What a limit must not reach unless the rule allows it.
struct Guarded<'a> {
    own: Option<&'a str>,
    /// Cgroups of the node's services, and what is below them.
    system_units: Vec<&'a str>,
}

fn system_unit(path: &str) -> bool {
    path.split('/').any(|component| SYSTEM_UNITS.contains(&component))
}

/// Whether a cgroup is not to be limited; says so.
fn refuse(rule: &Rule, path: &str, guarded: &Guarded<'_>, findings: &mut Vec<Finding>) -> bool {
    if path == "/" {
        findings.push(Finding::holds(
            ConditionType::RootCgroupRefused,
            "RootCgroup",
            "the root cgroup is never limited: journals and writeback of the whole node lie in it",
        ));
        return true;
    }
    if rule.allow_system {
        return false;
    }
    let within = |outer: &str, inner: &str| inner == outer || inner.starts_with(&format!("{outer}/"));
    if SYSTEM.iter().any(|top| within(top, path)) || system_unit(path) {
        findings.push(Finding::holds(
            ConditionType::SystemCgroupRefused,
            "SystemCgroup",
            format!("{path} belongs to the system; an intent may limit it with allow_system"),
        ));
        return true;
    }
    // A limit reaches what is below: on v2 by the hierarchy, on v1 by the parts that it is shared out among.
    if let Some(service) = guarded.system_units.iter().find(|service| within(path, service)) {
        findings.push(Finding::holds(
            ConditionType::SystemCgroupRefused,
            "SystemCgroupBelow",
            format!("{path} holds {service}, on which the node depends; an intent may limit it with allow_system"),
        ));
        return true;
    }
    // An agent in the root has no cgroup of its own.
    if let Some(own) = guarded.own.filter(|own| *own != "/")
        && (within(own, path) || within(path, own))
    {
        findings.push(Finding::holds(
            ConditionType::OwnCgroupRefused,
            "AgentInside",
            format!("{path} holds this agent, or lies in its cgroup {own}; an intent may limit it with allow_system"),
        ));
        return true;
    }
    false
}
