//! A modelled node: disks and cgroups as values, and the fake kernel that holds their limits.

use std::{io, sync::Arc};

use weir_common::device::{DevNum, DeviceId};

use crate::{
    devices::{BlockDevice, DeviceKind, DeviceSnapshot, Named, PathTarget, Queue},
    kernel::{CgroupVersion, fake::FakeKernel},
    view::NodeView,
    workloads::{Cgroup, WorkloadSnapshot, unit},
};

/// Major number of NVMe namespaces.
const NVME_MAJOR: u32 = 259;
/// Size of a modelled disk, bytes.
const DISK_BYTES: u64 = 1 << 40;

/// A node that is made up. Clones share its kernel.
#[derive(Clone, Debug)]
pub struct ModelNode {
    kernel: Arc<FakeKernel>,
    devices: DeviceSnapshot,
}

impl ModelNode {
    /// A node named `name` with cgroups v2, `devices` NVMe disks (`nvme0n1` and so on, the first mounted at `/`, others at
    /// `/data1` and so on) and `workloads` cgroups (`/sim/w1` and so on) with a process in each.
    pub fn new(name: &str, devices: u8, workloads: u16) -> ModelNode {
        let kernel = FakeKernel::new(CgroupVersion::V2);
        kernel.add_cgroup("/sim");
        for number in 1..=workloads {
            kernel.add_cgroup(&format!("/sim/w{number}"));
        }
        let mut snapshot = DeviceSnapshot::default();
        for number in 0..devices {
            let num = DevNum { major: NVME_MAJOR, minor: u32::from(number) };
            kernel.add_device(num);
            let device = disk(name, num, number);
            snapshot.by_id.extend(device.by_id.iter().map(|by_id| (by_id.clone(), num)));
            snapshot.devices.insert(num, device);
        }
        ModelNode { kernel: Arc::new(kernel), devices: snapshot }
    }

    /// Its kernel.
    pub fn kernel(&self) -> Arc<FakeKernel> {
        Arc::clone(&self.kernel)
    }

    fn named(&self, path: &str) -> Option<DevNum> {
        let devices = self.devices.devices.values();
        devices.into_iter().find(|device| path.strip_prefix("/dev/") == Some(&device.kernel_name)).map(|d| d.id.num)
    }

    /// The disk with the longest mount point that the path lies below.
    fn holding(&self, path: &str) -> Option<DevNum> {
        let mut at = path;
        loop {
            if let Some(found) = self.mounted(if at.is_empty() { "/" } else { at }) {
                return Some(found);
            }
            at = &at[..at.rfind('/')?];
        }
    }

    fn mounted(&self, path: &str) -> Option<DevNum> {
        let wanted = if path.len() > 1 { path.trim_end_matches('/') } else { path };
        let mut devices = self.devices.devices.values();
        devices.find(|device| device.mount_paths.iter().any(|at| at == wanted)).map(|device| device.id.num)
    }
}

fn disk(node: &str, num: DevNum, number: u8) -> BlockDevice {
    let id = DeviceId { num, diskseq: Some(u64::from(number) + 1) };
    BlockDevice {
        model: Some("Weir model disk".to_owned()),
        serial: Some(format!("{node}-{number}")),
        rotational: Some(false),
        by_id: vec![format!("nvme-weir_model_{node}_{number}")],
        mount_paths: vec![if number == 0 { "/".to_owned() } else { format!("/data{number}") }],
        queue: Queue { scheduler: Some("none".to_owned()), read_ahead_kib: Some(128), ..Queue::default() },
        ..BlockDevice::new(id, &format!("nvme{number}n1"), DeviceKind::Nvme, DISK_BYTES)
    }
}

impl NodeView for ModelNode {
    fn devices(&self, named: &Named) -> io::Result<DeviceSnapshot> {
        let mut snapshot = self.devices.clone();
        let target = |found: Option<DevNum>| found.map_or(PathTarget::NotFound, PathTarget::Block);
        snapshot.paths = named.paths.iter().map(|path| (path.clone(), target(self.named(path)))).collect();
        // What lies on a modelled disk is named by its mount point or by what would be below it.
        snapshot.files = named.files.iter().map(|path| (path.clone(), target(self.holding(path)))).collect();
        snapshot.mounts = named.mounts.iter().map(|path| (path.clone(), target(self.mounted(path)))).collect();
        Ok(snapshot)
    }

    fn workloads(&self) -> io::Result<WorkloadSnapshot> {
        let cgroups = self.kernel.cgroups().into_iter().map(|cgroup| {
            let processes = u32::from(cgroup.path.starts_with("/sim/"));
            (cgroup.path.clone(), Cgroup { processes, systemd_unit: unit(&cgroup.path), cgroup })
        });
        Ok(WorkloadSnapshot { cgroups: cgroups.collect(), own_cgroup: Some("/".to_owned()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_intent_may_name_is_found() {
        let node = ModelNode::new("sim-0001", 2, 3);
        let names = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let named = Named {
            paths: names(&["/dev/nvme1n1", "/dev/sda"]),
            mounts: names(&["/", "/data1/", "/x"]),
            files: names(&["/data1/a/b", "/x"]),
        };
        let devices = node.devices(&named).unwrap();
        let second = PathTarget::Block(DevNum { major: NVME_MAJOR, minor: 1 });
        assert_eq!((&devices.paths["/dev/nvme1n1"], &devices.paths["/dev/sda"]), (&second, &PathTarget::NotFound));
        assert_eq!((&devices.mounts["/data1/"], &devices.mounts["/x"]), (&second, &PathTarget::NotFound));
        let first = PathTarget::Block(DevNum { major: NVME_MAJOR, minor: 0 });
        assert_eq!((&devices.files["/data1/a/b"], &devices.files["/x"]), (&second, &first));
        let workloads = node.workloads().unwrap();
        let paths: Vec<&str> = workloads.cgroups.keys().map(String::as_str).collect();
        assert_eq!(paths, ["/", "/sim", "/sim/w1", "/sim/w2", "/sim/w3"]);
    }
}
