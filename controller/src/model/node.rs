//! Nodes: what is stored of them, and the facts that agents report.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use weir_common::{
    device::{DevNum, DeviceId},
    fence::Fence,
    units::Floor,
};

use super::{Earlier, WallTime};

/// Labels, by key.
pub type Labels = BTreeMap<String, String>;

/// What is stored of a node. Written only when something of it changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// Identity of the agent's ledger.
    pub uid: String,
    /// The kernel's boot id at the last contact that wrote this; empty where the agent did not say.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub boot_id: String,
    /// Identity of a ledger that was lost in the present boot: what it wrote may be in the kernel without an owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_ledger: Option<String>,
    /// The fence that the agent was seen to hold although the store had not come so far: the store was brought back to an
    /// earlier state. Until its epoch is above this one's, nothing is sent to the node, however far its revision goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ahead: Option<Fence>,
    /// Labels of the last contact.
    pub labels: Labels,
    /// Labels before, under which the node may have been given rules that it has not been seen to drop.
    #[serde(default, skip_serializing_if = "Earlier::is_empty")]
    pub earlier_labels: Earlier<Labels>,
    /// Wall clock of the first contact.
    pub first_seen: WallTime,
}

/// What agents are told as a whole, ordered by strictness.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Directive {
    /// Enforce the plan.
    #[default]
    Active,
    /// Change nothing.
    Paused,
    /// Put everything back, and stay so.
    Released,
}

/// Kind of a block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceKind {
    /// NVMe.
    Nvme,
    /// Does not rotate.
    SataSsd,
    /// Rotates.
    SataHdd,
    /// virtio.
    Virtio,
    /// Device mapper.
    Dm,
    /// Software RAID.
    Md,
    /// Loop.
    Loop,
    /// Compressed RAM.
    Zram,
    /// Any other.
    Other,
}

/// A whole block device of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Kernel name.
    pub kernel_name: String,
    /// Identity.
    pub id: DeviceId,
    /// Kind.
    pub kind: DeviceKind,
    /// Model.
    pub model: String,
    /// Serial number.
    pub serial: String,
    /// Bytes.
    pub size_bytes: u64,
    /// The kernel's flag.
    pub rotational: Option<bool>,
    /// Names below /dev/disk/by-id.
    pub by_id: Vec<String>,
    /// Mount points.
    pub mount_paths: Vec<String>,
    /// Scheduler.
    pub scheduler: String,
    /// KiB.
    pub read_ahead_kib: Option<u64>,
    /// Kernel names directly below.
    pub below: Vec<String>,
    /// Revision of the firmware.
    pub firmware: String,
    /// World-wide identifier.
    pub wwid: String,
    /// Longest request, KiB.
    pub max_sectors_kib: Option<u64>,
    /// Length of the queue.
    pub queue_requests: Option<u64>,
    /// Target of the throttling of writeback, microseconds; 0 is off.
    pub writeback_throttle_us: Option<u64>,
    /// Bytes.
    pub logical_block_bytes: Option<u64>,
    /// What a stacked device is made by, as the contract names it.
    pub layer: String,
    /// Device mapper's name.
    pub mapped_name: String,
    /// The file behind a loop device.
    pub backing_file: String,
    /// Kernel name of the disk that it lies on.
    pub backing_disk: String,
    /// Paths of native NVMe multipath.
    pub hidden_paths: Vec<String>,
    /// Kernel name of the device above past whose I/O a limit here has no effect.
    pub bypassed_by: String,
    /// Its partitions.
    pub partitions: Vec<Partition>,
}

/// A partition of a whole device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Kernel name.
    pub kernel_name: String,
    /// Number.
    pub num: DevNum,
    /// Bytes.
    pub size_bytes: u64,
    /// Mount points.
    pub mount_paths: Vec<String>,
    /// Kernel names of the devices made of it.
    pub used_by: Vec<String>,
}

/// Version of cgroups that carries the throttle files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupVersion {
    /// blkio.
    V1,
    /// Unified.
    V2,
}

/// What an agent knows of its node.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeFacts {
    /// Labels.
    pub labels: Labels,
    /// Kernel release.
    pub kernel_release: String,
    /// Absent where no throttle files were found.
    pub cgroup_version: Option<CgroupVersion>,
    /// Whole block devices.
    pub devices: Vec<Device>,
    /// Lowest limits that the node writes.
    pub floor: Floor,
}
