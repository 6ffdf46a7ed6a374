//! The block devices of this node: whole disks with their attributes, and how partitions, mounts and names lead to them.
//! Reads sysfs, /proc/self/mountinfo and /dev; writes nothing.

pub mod mountinfo;
mod scan;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use weir_common::device::{DevNum, DeviceId};

pub use scan::Sources;

/// Kind of a block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum DeviceKind {
    /// NVMe namespace or multipath head.
    Nvme,
    /// SCSI or SATA, not rotating.
    SataSsd,
    /// SCSI or SATA, rotating.
    SataHdd,
    /// Virtio.
    Virtio,
    /// Device mapper.
    Dm,
    /// Software RAID.
    Md,
    /// Loop.
    Loop,
    /// Compressed RAM.
    Zram,
    /// Any other whole disk.
    Other,
}

/// A whole block device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockDevice {
    /// Identity.
    pub id: DeviceId,
    /// Kernel name, for instance `nvme0n1`.
    pub kernel_name: String,
    /// Kind.
    pub kind: DeviceKind,
    /// Model, blanks trimmed; `None` where sysfs has none.
    pub model: Option<String>,
    /// Serial number.
    pub serial: Option<String>,
    /// Capacity in bytes.
    pub size_bytes: u64,
    /// The kernel's flag.
    pub rotational: Option<bool>,
    /// Names below /dev/disk/by-id, sorted.
    pub by_id: Vec<String>,
    /// Mount points of file systems on it or its partitions, sorted.
    pub mount_paths: Vec<String>,
    /// Active scheduler.
    pub scheduler: Option<String>,
    /// queue/read_ahead_kb.
    pub read_ahead_kib: Option<u64>,
    /// Kernel names of the whole devices directly below (slaves/; a partition stands for its disk), sorted.
    pub below: Vec<String>,
}

/// What a path that an intent names leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathTarget {
    /// A block device node (whole disk or partition), or for a mount path the file system's device.
    Block(DevNum),
    /// A character device, as `/dev/nvme0` is: no block device.
    CharacterDevice,
    /// A file system without a block device (overlay, tmpfs, network, anonymous).
    NoBlockDevice {
        /// Type of the file system, where it is one.
        fs_type: String,
    },
    /// Something else that is no device node.
    NotADevice,
    /// Nothing is there.
    NotFound,
    /// It could not be looked up.
    Unreadable {
        /// Why not.
        error: String,
    },
}

/// All that `resolve` needs to know of devices, as values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceSnapshot {
    /// Whole devices by number.
    pub devices: BTreeMap<DevNum, BlockDevice>,
    /// Partitions: number -> number of their own whole disk, from sysfs, never by arithmetic.
    pub partitions: BTreeMap<DevNum, DevNum>,
    /// Names below /dev/disk/by-id -> what they link to (whole disk or partition).
    pub by_id: BTreeMap<String, DevNum>,
    /// The device paths that were asked for.
    pub paths: BTreeMap<String, PathTarget>,
    /// The mount paths that were asked for.
    pub mounts: BTreeMap<String, PathTarget>,
}

impl DeviceSnapshot {
    /// The whole device that a number stands for: itself, or a partition's own disk.
    pub fn whole(&self, num: DevNum) -> Option<&BlockDevice> {
        let num = self.partitions.get(&num).copied().unwrap_or(num);
        self.devices.get(&num)
    }

    /// Where a path could not be looked up, it leads where it led before: nothing is released because of that.
    pub fn keep_unreadable(&mut self, before: &DeviceSnapshot) {
        for (path, target) in &mut self.paths {
            if let (PathTarget::Unreadable { .. }, Some(old)) = (&*target, before.paths.get(path)) {
                *target = old.clone();
            }
        }
    }
}
