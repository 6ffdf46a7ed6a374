//! Where the names lead by which intents choose devices: by-id names, device nodes, mount points, files. All are looked up as
//! the host has them, below its root.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::Path,
};

use rustix::{
    fd::OwnedFd,
    fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, StatxFlags},
};
use weir_common::device::DevNum;

use super::{
    PathTarget, Sources,
    mountinfo::{self, Mount},
    sysfs::names,
};
use crate::kernel::is_gone;

/// Below the host's root.
const BY_ID: &str = "dev/disk/by-id";

const UNSEEN_MOUNTS: &str = "the host's mounts are not seen from this container: its / must be mounted at --host-root, with \
                             propagation from the host";

fn device_number(rdev: u64) -> DevNum {
    DevNum { major: rustix::fs::major(rdev), minor: rustix::fs::minor(rdev) }
}

/// The names below /dev/disk/by-id that lead to block devices.
///
/// # Errors
/// The directory, or what a name leads to, is there and cannot be read.
pub(super) fn by_id(host_root: &Path) -> io::Result<BTreeMap<String, DevNum>> {
    let dir = host_root.join(BY_ID);
    let known = names(&dir)?
        .into_iter()
        .filter_map(|name| match fs::metadata(dir.join(&name)) {
            Ok(metadata) if metadata.file_type().is_block_device() => Some(Ok((name, device_number(metadata.rdev())))),
            Ok(_) => None,
            Err(error) if is_gone(&error) => None,
            Err(error) => Some(Err(error)),
        })
        .collect::<io::Result<_>>()?;
    Ok(known)
}

/// Opens what a path means where `root` is the root, for its symbolic links too; not for reading.
fn open_below(root: &Path, path: &str) -> io::Result<OwnedFd> {
    let root = rustix::fs::open(root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    Ok(rustix::fs::openat2(root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::IN_ROOT)?)
}

fn not_looked_up(error: &io::Error) -> PathTarget {
    if is_gone(error) { PathTarget::NotFound } else { PathTarget::Unreadable { error: error.to_string() } }
}

/// Where the path of a device node leads.
pub(super) fn node(sources: &Sources, path: &str) -> PathTarget {
    let stat = open_below(&sources.host_root, path).and_then(|file| Ok(rustix::fs::fstat(file)?));
    match stat {
        Ok(stat) => match FileType::from_raw_mode(stat.st_mode) {
            FileType::BlockDevice => PathTarget::Block(device_number(stat.st_rdev)),
            FileType::CharacterDevice if is_nvme_controller(sources, device_number(stat.st_rdev)) => {
                PathTarget::NvmeController
            }
            FileType::CharacterDevice => PathTarget::CharacterDevice,
            _ => PathTarget::NotADevice,
        },
        Err(error) => not_looked_up(&error),
    }
}

/// Whether sysfs has this character device as a controller of class nvme. (Generic nodes of namespaces, `ng0n1`, are of
/// another class.)
fn is_nvme_controller(sources: &Sources, num: DevNum) -> bool {
    let class = fs::canonicalize(sources.sys_dev_char.join(num.to_string()).join("subsystem"));
    class.is_ok_and(|class| class.file_name().is_some_and(|name| name == "nvme"))
}

/// The device of the file system that is mounted at a mount point.
pub(super) fn mount(sources: &Sources, mounted: &[Mount], path: &str) -> PathTarget {
    // A mount path names a mount point: what merely lies on one would be a guess about which disk is meant.
    let wanted = if path.len() > 1 { path.trim_end_matches('/') } else { path };
    // The root is always mounted: without it the table is of another place.
    if !mounted.iter().any(|mount| mount.mount_point == "/") {
        return PathTarget::Unreadable { error: UNSEEN_MOUNTS.to_owned() };
    }
    match mountinfo::covering(mounted, wanted) {
        Some(mount) if mount.mount_point == wanted => below_mount(sources, mount),
        _ => PathTarget::NotFound,
    }
}

/// The device of the file system that a file, or a directory, lies on.
pub(super) fn file(sources: &Sources, mounted: &[Mount], path: &str) -> PathTarget {
    match open_below(&sources.host_root, path) {
        Ok(file) => below_open_file(sources, mounted, &file)
            .unwrap_or_else(|error| PathTarget::Unreadable { error: error.to_string() }),
        Err(error) => not_looked_up(&error),
    }
}

/// The disk, or the partition, that the file behind a loop device lies on; `None` where that cannot be told.
pub(super) fn backing(sources: &Sources, mounted: &[Mount], path: &str) -> Option<DevNum> {
    match file(sources, mounted, path) {
        PathTarget::Block(num) => Some(num),
        _ => None,
    }
}

fn below_open_file(sources: &Sources, mounted: &[Mount], file: &OwnedFd) -> io::Result<PathTarget> {
    let stat = rustix::fs::fstat(file)?;
    let device = device_number(stat.st_dev);
    if device.major != 0 {
        return Ok(PathTarget::Block(device));
    }
    // The kernel says which mount it is on (since 5.8): links and mounts over mounts cannot mislead.
    let flags = StatxFlags::MNT_ID;
    let statx = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, flags)?;
    let known = StatxFlags::from_bits_retain(statx.stx_mask).contains(flags);
    let mount = mounted.iter().find(|mount| known && Some(statx.stx_mnt_id) == mount.id);
    Ok(mount.map_or_else(
        || PathTarget::NoBlockDevice { fs_type: "unknown".to_owned() },
        |mount| below_mount(sources, mount),
    ))
}

fn below_mount(sources: &Sources, mount: &Mount) -> PathTarget {
    let none = || PathTarget::NoBlockDevice { fs_type: mount.fs_type.clone() };
    match mount.device {
        DevNum { major: 0, .. } if mount.fs_type == "btrfs" => btrfs(sources, mount).unwrap_or_else(none),
        DevNum { major: 0, .. } => none(),
        device => PathTarget::Block(device),
    }
}

/// Btrfs gives its files a number that is no device's, and may spread over several devices: sysfs lists them.
fn btrfs(sources: &Sources, mount: &Mount) -> Option<PathTarget> {
    let named = match node(sources, &mount.source) {
        PathTarget::Block(num) => Some(num),
        _ => None,
    };
    for uuid in names(&sources.sys_fs_btrfs).ok()? {
        let dir = sources.sys_fs_btrfs.join(uuid).join("devices");
        let members: BTreeMap<String, DevNum> = names(&dir)
            .ok()?
            .into_iter()
            .filter_map(|name| {
                let num = fs::read_to_string(dir.join(&name).join("dev")).ok()?;
                Some((name, num.trim().parse().ok()?))
            })
            .collect();
        let by_name = mount.source.strip_prefix("/dev/").and_then(|name| members.get(name)).copied();
        let Some(num) = named.or(by_name).filter(|num| members.values().any(|member| member == num)) else { continue };
        return Some(match members.len() {
            1 => PathTarget::Block(num),
            _ => PathTarget::SeveralDevices { fs_type: mount.fs_type.clone(), devices: members.into_keys().collect() },
        });
    }
    None
}
