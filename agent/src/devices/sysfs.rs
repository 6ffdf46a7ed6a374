//! One device's directory below /sys/block, read. Sources: Documentation/ABI/stable/sysfs-block, sysfs-block-dm and
//! Documentation/admin-guide/md.rst of the kernel. What a device does not have is absent, never a default.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use weir_common::device::{DevNum, DeviceId};

use super::{BlockDevice, DeviceKind, Layer, Partition, Queue, Stack};
use crate::kernel::is_gone;

/// Bytes of the sectors in which sysfs counts, whatever the device's own are.
const SECTOR: u64 = 512;

/// What a directory below /sys/block holds.
#[derive(Debug)]
pub(super) enum Entry {
    /// A whole device.
    Whole(Box<BlockDevice>),
    /// A path of native NVMe multipath: it has no number that could be limited.
    Hidden(String),
    /// Gone, or without a medium (an unattached loop).
    Nothing,
}

/// Reads a device. What its names and mounts are is not in sysfs and left empty.
///
/// # Errors
/// It is there and cannot be read.
pub(super) fn entry(dir: &Path) -> io::Result<Entry> {
    let Some(kernel_name) = dir.file_name().and_then(|name| name.to_str()).map(str::to_owned) else {
        return Ok(Entry::Nothing);
    };
    if required(dir, "hidden")?.is_some_and(|flag| flag == "1") {
        return Ok(Entry::Hidden(kernel_name));
    }
    let (Some(dev), Some(size)) = (required(dir, "dev")?, required(dir, "size")?) else { return Ok(Entry::Nothing) };
    let diskseq = required(dir, "diskseq")?.and_then(|text| text.parse().ok());
    let (Ok(num), Ok(sectors)) = (dev.parse(), size.parse::<u64>()) else { return Ok(Entry::Nothing) };
    if sectors == 0 {
        return Ok(Entry::Nothing);
    }
    let rotational = number(dir, "queue/rotational").map(|flag| flag != 0);
    Ok(Entry::Whole(Box::new(BlockDevice {
        id: DeviceId { num, diskseq },
        kind: kind(dir, &kernel_name, rotational),
        model: read(dir, "device/model"),
        serial: serial(dir),
        firmware: read(dir, "device/firmware_rev").or_else(|| read(dir, "device/rev")),
        wwid: ["wwid", "device/wwid", "dm/uuid", "md/uuid"].iter().find_map(|name| read(dir, name)),
        size_bytes: sectors.saturating_mul(SECTOR),
        rotational,
        by_id: Vec::new(),
        mount_paths: Vec::new(),
        queue: queue(&dir.join("queue")),
        stack: stack(dir)?,
        partitions: partitions(dir)?,
        kernel_name,
    })))
}

fn queue(dir: &Path) -> Queue {
    Queue {
        scheduler: read(dir, "scheduler").and_then(|text| active_scheduler(&text)),
        read_ahead_kib: number(dir, "read_ahead_kb"),
        max_sectors_kib: number(dir, "max_sectors_kb"),
        requests: number(dir, "nr_requests"),
        writeback_throttle_us: number(dir, "wbt_lat_usec"),
        logical_block_bytes: number(dir, "logical_block_size"),
    }
}

fn stack(dir: &Path) -> io::Result<Stack> {
    let mapped = dir.join("dm").is_dir();
    let layer = if mapped {
        // dm/uuid is what the tool that made the device called it: `LVM-...`, `CRYPT-LUKS2-...`, `mpath-...`.
        let uuid = read(dir, "dm/uuid").unwrap_or_default();
        Some(match uuid.split('-').next() {
            Some("LVM") => Layer::Lvm,
            Some("CRYPT") => Layer::Crypt,
            Some("mpath") => Layer::Multipath,
            // Of the targets of device mapper, multipath alone makes a queue of requests.
            _ if dir.join("mq").is_dir() => Layer::Multipath,
            _ => Layer::Mapped,
        })
    } else if let Some(level) = read(dir, "md/level") {
        Some(Layer::Raid(level))
    } else if dir.join("loop").is_dir() {
        Some(Layer::Loop)
    } else {
        None
    };
    Ok(Stack {
        layer,
        mapped_name: read(dir, "dm/name"),
        backing_file: read(dir, "loop/backing_file"),
        backing_disk: None,
        request_based: mapped && dir.join("mq").is_dir(),
        below: below(&dir.join("slaves"))?,
        hidden_paths: Vec::new(),
    })
}

/// An attribute without which nothing can be said of a device; `None` where it, or the device, is not there.
fn required(dir: &Path, name: &str) -> io::Result<Option<String>> {
    match fs::read_to_string(dir.join(name)) {
        Ok(text) => Ok(Some(text.trim().to_owned())),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn read(dir: &Path, name: &str) -> Option<String> {
    fs::read_to_string(dir.join(name)).ok().map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
}

fn number(dir: &Path, name: &str) -> Option<u64> {
    read(dir, name)?.parse().ok()
}

/// What a driver shows of itself comes first; names tell the rest.
fn kind(dir: &Path, name: &str, rotational: Option<bool>) -> DeviceKind {
    let numbered =
        |prefix: &str| name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    let lettered =
        |prefix: &str| name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_lowercase()));
    match name {
        _ if dir.join("dm").is_dir() || numbered("dm-") => DeviceKind::Dm,
        _ if dir.join("md").is_dir() || numbered("md") => DeviceKind::Md,
        _ if numbered("nvme") => DeviceKind::Nvme,
        _ if lettered("vd") => DeviceKind::Virtio,
        _ if lettered("sd") && rotational == Some(true) => DeviceKind::SataHdd,
        _ if lettered("sd") && rotational == Some(false) => DeviceKind::SataSsd,
        _ if numbered("loop") => DeviceKind::Loop,
        _ if numbered("zram") => DeviceKind::Zram,
        _ => DeviceKind::Other,
    }
}

/// NVMe and virtio have files of text; SCSI has the page as the disk sent it, four bytes of header first.
fn serial(dir: &Path) -> Option<String> {
    let text = read(dir, "device/serial").or_else(|| read(dir, "serial"));
    text.or_else(|| {
        let page = fs::read(dir.join("device/vpd_pg80")).ok()?;
        let text = String::from_utf8_lossy(page.get(4..)?).trim_matches(['\0', ' ', '\n']).to_owned();
        (!text.is_empty()).then_some(text)
    })
}

/// The one in brackets of `none [mq-deadline] kyber`.
fn active_scheduler(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    let (name, _) = rest.split_once(']')?;
    Some(name.to_owned())
}

/// Names in a directory, sorted; none where it is not there.
pub(super) fn names(dir: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if is_gone(&error) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry?.file_name().to_str().map(str::to_owned));
    }
    names.sort();
    Ok(names)
}

/// Whole devices directly below: a slave that is a partition stands for the disk whose directory it lies in.
fn below(slaves: &Path) -> io::Result<Vec<String>> {
    let mut disks: Vec<String> = names(slaves)?
        .into_iter()
        .filter_map(|name| {
            let slave = slaves.join(&name);
            if !is_partition(&slave) {
                return Some(name);
            }
            let disk = fs::canonicalize(slave).ok()?;
            Some(disk.parent()?.file_name()?.to_str()?.to_owned())
        })
        .collect();
    disks.sort();
    disks.dedup();
    Ok(disks)
}

fn is_partition(dir: &Path) -> bool {
    dir.join("partition").is_file()
}

/// A disk's own partitions, by their place in its table: the directories in its own that have a file `partition`.
fn partitions(dir: &Path) -> io::Result<Vec<Partition>> {
    let mut partitions = Vec::new();
    for kernel_name in names(dir)? {
        let path: PathBuf = dir.join(&kernel_name);
        if !is_partition(&path) {
            continue;
        }
        let dev = required(&path, "dev")?;
        if let Some(num) = dev.and_then(|dev| dev.parse::<DevNum>().ok()) {
            let sectors = number(&path, "size").unwrap_or(0);
            let place = number(&path, "partition").unwrap_or(0);
            let partition = Partition {
                kernel_name,
                num,
                size_bytes: sectors.saturating_mul(SECTOR),
                mount_paths: Vec::new(),
                used_by: names(&path.join("holders"))?,
            };
            partitions.push((place, partition));
        }
    }
    partitions.sort_by(|a, b| (a.0, &a.1.kernel_name).cmp(&(b.0, &b.1.kernel_name)));
    Ok(partitions.into_iter().map(|(_, partition)| partition).collect())
}
