//! The block devices of this node: whole disks with their attributes, and how partitions, mounts and names lead to them.
//! Reads sysfs, /proc/self/mountinfo and /dev; writes nothing.

pub mod mountinfo;
mod names;
mod scan;
mod stack;
mod sysfs;

use std::{collections::BTreeMap, fmt};

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
    /// Revision of its firmware.
    pub firmware: Option<String>,
    /// World-wide identifier, or for a stacked device the uuid that its maker gave it.
    pub wwid: Option<String>,
    /// Capacity in bytes.
    pub size_bytes: u64,
    /// The kernel's flag.
    pub rotational: Option<bool>,
    /// Names below /dev/disk/by-id, its partitions' included, sorted.
    pub by_id: Vec<String>,
    /// Mount points of file systems on it or its partitions, sorted.
    pub mount_paths: Vec<String>,
    /// How its queue is set.
    pub queue: Queue,
    /// Its place in a stack.
    pub stack: Stack,
    /// Its partitions, by their place in its table.
    pub partitions: Vec<Partition>,
}

impl BlockDevice {
    /// A device of which nothing but this is known.
    pub fn new(id: DeviceId, kernel_name: &str, kind: DeviceKind, size_bytes: u64) -> BlockDevice {
        BlockDevice {
            id,
            kernel_name: kernel_name.to_owned(),
            kind,
            model: None,
            serial: None,
            firmware: None,
            wwid: None,
            size_bytes,
            rotational: None,
            by_id: Vec::new(),
            mount_paths: Vec::new(),
            queue: Queue::default(),
            stack: Stack::default(),
            partitions: Vec::new(),
        }
    }
}

/// How a device's queue is set; `None` where the kernel does not say. Source: Documentation/ABI/stable/sysfs-block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Queue {
    /// Active scheduler.
    pub scheduler: Option<String>,
    /// queue/read_ahead_kb.
    pub read_ahead_kib: Option<u64>,
    /// queue/max_sectors_kb: longest request.
    pub max_sectors_kib: Option<u64>,
    /// queue/nr_requests.
    pub requests: Option<u64>,
    /// queue/wbt_lat_usec: target of the throttling of writeback, microseconds; 0 is off.
    pub writeback_throttle_us: Option<u64>,
    /// queue/logical_block_size, bytes.
    pub logical_block_bytes: Option<u64>,
}

/// A device's place in a stack of devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stack {
    /// What it is made by; `None` for a disk.
    pub layer: Option<Layer>,
    /// Device mapper's name for it (below /dev/mapper).
    pub mapped_name: Option<String>,
    /// The file behind a loop device, as who attached it named it.
    pub backing_file: Option<String>,
    /// Kernel name of the disk that the file lies on. Its limits hold for the same I/O once more.
    pub backing_disk: Option<String>,
    /// Device mapper hands whole requests on: limits on devices below it see nothing of that.
    pub request_based: bool,
    /// Kernel names of the whole devices directly below (slaves/; a partition stands for its disk), sorted.
    pub below: Vec<String>,
    /// Paths of native NVMe multipath, which have no device number.
    pub hidden_paths: Vec<String>,
}

/// What a stacked device is made by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layer {
    /// dm-crypt.
    Crypt,
    /// A logical volume.
    Lvm,
    /// Device mapper's multipath.
    Multipath,
    /// Any other device of device mapper.
    Mapped,
    /// Software RAID, with its level as the kernel names it.
    Raid(String),
    /// A file.
    Loop,
    /// The head of native NVMe multipath.
    NvmeMultipath,
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Layer::Crypt => "crypt",
            Layer::Lvm => "lvm",
            Layer::Multipath => "multipath",
            Layer::Mapped => "mapped",
            Layer::Raid(level) => level,
            Layer::Loop => "loop",
            Layer::NvmeMultipath => "nvme-multipath",
        })
    }
}

/// A partition of a whole device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Kernel name.
    pub kernel_name: String,
    /// Number; limits take the whole device's only.
    pub num: DevNum,
    /// Capacity in bytes.
    pub size_bytes: u64,
    /// Mount points of its file system, sorted.
    pub mount_paths: Vec<String>,
    /// Kernel names of the devices that are made of it (holders/), sorted.
    pub used_by: Vec<String>,
}

/// The names of devices that a plan's selectors have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Named {
    /// Paths of device nodes.
    pub paths: Vec<String>,
    /// Mount points.
    pub mounts: Vec<String>,
    /// Files and directories.
    pub files: Vec<String>,
}

/// What a path that an intent names leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathTarget {
    /// A block device node (whole disk or partition), or for a mount path the file system's device.
    Block(DevNum),
    /// The character device of an NVMe controller, as `/dev/nvme0` is.
    NvmeController,
    /// Another character device.
    CharacterDevice,
    /// A file system without a block device (overlay, tmpfs, network, anonymous).
    NoBlockDevice {
        /// Type of the file system, where it is one.
        fs_type: String,
    },
    /// A file system that spreads over several devices: no single one's limit would hold for it.
    SeveralDevices {
        /// Type of the file system.
        fs_type: String,
        /// Kernel names of its devices.
        devices: Vec<String>,
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
    /// The files and directories that were asked for.
    pub files: BTreeMap<String, PathTarget>,
}

impl DeviceSnapshot {
    /// The whole device that a number stands for: itself, or a partition's own disk.
    pub fn whole(&self, num: DevNum) -> Option<&BlockDevice> {
        let num = self.partitions.get(&num).copied().unwrap_or(num);
        self.devices.get(&num)
    }

    /// Where a path could not be looked up, it leads where it led before: nothing is released because of that.
    pub fn keep_unreadable(&mut self, before: &DeviceSnapshot) {
        let now = self.paths.iter_mut().map(|named| (named, &before.paths));
        for ((path, target), before) in now.chain(self.files.iter_mut().map(|named| (named, &before.files))) {
            if let (PathTarget::Unreadable { .. }, Some(old)) = (&*target, before.get(path)) {
                *target = old.clone();
            }
        }
    }
}
