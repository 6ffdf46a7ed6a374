//! Small plans, devices and workloads for tests.

use std::collections::BTreeMap;

use weir_common::{
    device::{DevNum, DeviceId},
    units::{LimitKey, LimitValue},
};

use crate::{
    devices::{BlockDevice, DeviceKind, DeviceSnapshot},
    kernel::CgroupRef,
    plan::{DeviceSelector, DeviceTerm, Mode, Rule, Scope, WorkloadSelector, WorkloadTerm},
    workloads::{Cgroup, WorkloadSnapshot},
};

/// A rule that limits reads (bytes) of the cgroups that match on every device.
pub(crate) fn rule(uid: &str, cgroup_path: &str, rbps: u64) -> Rule {
    Rule {
        uid: uid.to_owned(),
        intent: format!("projects/default/intents/{uid}"),
        generation: 1,
        rank: 0,
        priority: 0,
        create_revision: 1,
        workloads: WorkloadSelector {
            any_of: vec![WorkloadTerm { cgroup_path: Some(cgroup_path.to_owned()), ..WorkloadTerm::default() }],
            exclude: vec![],
        },
        devices: DeviceSelector { any_of: vec![DeviceTerm { all: true, ..DeviceTerm::default() }], exclude: vec![] },
        limits: BTreeMap::from([(LimitKey::Rbps, LimitValue::finite(rbps).unwrap_or(LimitValue::Unlimited))]),
        not_built: vec![],
        scope: Scope::Pod,
        mode: Mode::Enforce,
        allow_system: false,
        unsupported: vec![],
    }
}

/// Whole loop disks with the given numbers, each with disk sequence 1.
pub(crate) fn devices(numbers: &[&str]) -> DeviceSnapshot {
    let mut snapshot = DeviceSnapshot::default();
    for number in numbers {
        let num: DevNum = number.parse().unwrap();
        let id = DeviceId { num, diskseq: Some(1) };
        let device = BlockDevice::new(id, &format!("loop{}", num.minor), DeviceKind::Loop, 1 << 30);
        snapshot.devices.insert(num, device);
    }
    snapshot
}

/// Cgroups with the given processes, and the root; ids count from 1 in the order given, the root has 1000.
pub(crate) fn workloads(cgroups: &[(&str, u32)]) -> WorkloadSnapshot {
    let mut snapshot = WorkloadSnapshot::default();
    let all = std::iter::once(("/", 1, 1000)).chain(cgroups.iter().zip(1..).map(|((path, n), id)| (*path, *n, id)));
    for (path, processes, id) in all {
        let unit = path.rsplit('/').next().filter(|name| name.contains(".s")).map(str::to_owned);
        let cgroup = Cgroup { cgroup: CgroupRef { path: path.to_owned(), id }, processes, systemd_unit: unit };
        snapshot.cgroups.insert(path.to_owned(), cgroup);
    }
    snapshot
}
