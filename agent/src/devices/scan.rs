//! Takes a snapshot of the block devices. Devices may come and go meanwhile: what cannot be read any more is left out.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, Stat};
use weir_common::device::{DevNum, DeviceId};

use super::{BlockDevice, DeviceKind, DeviceSnapshot, PathTarget, mountinfo};
use crate::kernel::is_gone;

/// Where to look; other places than the machine's own serve tests.
#[derive(Clone, Debug)]
pub struct Sources {
    /// `/sys/block`.
    pub sys_block: PathBuf,
    /// `/proc/self/mountinfo`.
    pub mountinfo: PathBuf,
    /// `/`; in a container, where the host's is mounted. Device paths, by-id names and mount paths are looked up below it.
    pub host_root: PathBuf,
}

impl Default for Sources {
    fn default() -> Self {
        Sources {
            sys_block: PathBuf::from("/sys/block"),
            mountinfo: PathBuf::from("/proc/self/mountinfo"),
            host_root: PathBuf::from("/"),
        }
    }
}

/// Below the host's root.
const BY_ID: &str = "dev/disk/by-id";

/// Bytes of the sectors in which sysfs counts, whatever the device's own are.
const SECTOR: u64 = 512;

impl DeviceSnapshot {
    /// Looks at the devices, and where the given device paths and mount paths lead.
    ///
    /// # Errors
    /// The list of devices or of mounts, or a device that is there, cannot be read (no descriptors left, for instance): a
    /// device that merely could not be looked at must not pass for one that is gone.
    pub fn take(sources: &Sources, paths: &[String], mounts: &[String]) -> io::Result<DeviceSnapshot> {
        let mut snapshot = DeviceSnapshot::default();
        for entry in fs::read_dir(&sources.sys_block)? {
            let dir = entry?.path();
            if let Some(device) = whole(&dir)? {
                for partition in partitions(&dir)? {
                    snapshot.partitions.insert(partition, device.id.num);
                }
                snapshot.devices.insert(device.id.num, device);
            }
        }
        snapshot.by_id = by_id(&sources.host_root.join(BY_ID))?;
        let mounted = mountinfo::parse(&fs::read_to_string(&sources.mountinfo)?);
        let mounted = mountinfo::below(mounted, &sources.host_root.to_string_lossy());
        snapshot.attach_names(&mounted);
        for path in paths {
            snapshot.paths.insert(path.clone(), path_target(&sources.host_root, path));
        }
        for path in mounts {
            let target = mount_target(&mounted, path);
            snapshot.mounts.insert(path.clone(), target);
        }
        Ok(snapshot)
    }

    /// Gives each whole device its by-id names and mount points, those of its partitions included.
    fn attach_names(&mut self, mounted: &[mountinfo::Mount]) {
        let whole = |partitions: &BTreeMap<DevNum, DevNum>, num: DevNum| partitions.get(&num).copied().unwrap_or(num);
        for (name, num) in &self.by_id {
            if let Some(device) = self.devices.get_mut(&whole(&self.partitions, *num)) {
                device.by_id.push(name.clone());
            }
        }
        for mount in mounted {
            if let Some(device) = self.devices.get_mut(&whole(&self.partitions, mount.device)) {
                device.mount_paths.push(mount.mount_point.clone());
            }
        }
        for device in self.devices.values_mut() {
            device.mount_paths.sort();
            device.mount_paths.dedup();
        }
    }
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

/// A whole device; `None` where it is gone, hidden (a path of native NVMe multipath, which has no number to limit), or has no
/// medium (an unattached loop).
///
/// # Errors
/// It is there and cannot be read.
fn whole(dir: &Path) -> io::Result<Option<BlockDevice>> {
    let Some(kernel_name) = dir.file_name().and_then(|name| name.to_str()).map(str::to_owned) else {
        return Ok(None);
    };
    let (Some(dev), Some(size)) = (required(dir, "dev")?, required(dir, "size")?) else { return Ok(None) };
    let hidden = required(dir, "hidden")?.is_some_and(|flag| flag == "1");
    let diskseq = required(dir, "diskseq")?.and_then(|text| text.parse().ok());
    let (Ok(num), Ok(sectors)) = (dev.parse(), size.parse::<u64>()) else { return Ok(None) };
    if hidden || sectors == 0 {
        return Ok(None);
    }
    let size_bytes = sectors.saturating_mul(SECTOR);
    let rotational = number(dir, "queue/rotational").map(|flag| flag != 0);
    Ok(Some(BlockDevice {
        id: DeviceId { num, diskseq },
        kind: kind(&kernel_name, rotational),
        model: read(dir, "device/model"),
        serial: serial(dir),
        size_bytes,
        rotational,
        by_id: Vec::new(),
        mount_paths: Vec::new(),
        scheduler: read(dir, "queue/scheduler").and_then(|text| active_scheduler(&text)),
        read_ahead_kib: number(dir, "queue/read_ahead_kb"),
        below: below(&dir.join("slaves"))?,
        kernel_name,
    }))
}

fn kind(name: &str, rotational: Option<bool>) -> DeviceKind {
    let numbered =
        |prefix: &str| name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    let lettered =
        |prefix: &str| name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_lowercase()));
    match name {
        _ if numbered("nvme") => DeviceKind::Nvme,
        _ if lettered("vd") => DeviceKind::Virtio,
        _ if lettered("sd") && rotational == Some(true) => DeviceKind::SataHdd,
        _ if lettered("sd") => DeviceKind::SataSsd,
        _ if numbered("dm-") => DeviceKind::Dm,
        _ if name.starts_with("md") => DeviceKind::Md,
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
        let text = String::from_utf8_lossy(page.get(4..)?).trim_matches(['\0', ' ']).to_owned();
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
fn names(dir: &Path) -> io::Result<Vec<String>> {
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
            if !slave.join("partition").is_file() {
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

/// Numbers of a disk's own partitions: the directories in its own that have a file `partition`.
fn partitions(dir: &Path) -> io::Result<Vec<DevNum>> {
    let mut numbers = Vec::new();
    for name in names(dir)? {
        let path = dir.join(name);
        if path.join("partition").is_file() {
            numbers.extend(required(&path, "dev")?.and_then(|dev| dev.parse::<DevNum>().ok()));
        }
    }
    Ok(numbers)
}

fn device_number(rdev: u64) -> DevNum {
    DevNum { major: rustix::fs::major(rdev), minor: rustix::fs::minor(rdev) }
}

fn by_id(dir: &Path) -> io::Result<BTreeMap<String, DevNum>> {
    let known = names(dir)?
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

fn path_target(host_root: &Path, path: &str) -> PathTarget {
    match stat_below(host_root, path) {
        Ok(stat) => match FileType::from_raw_mode(stat.st_mode) {
            FileType::BlockDevice => PathTarget::Block(device_number(stat.st_rdev)),
            FileType::CharacterDevice => PathTarget::CharacterDevice,
            _ => PathTarget::NotADevice,
        },
        Err(error) if is_gone(&error) => PathTarget::NotFound,
        Err(error) => PathTarget::Unreadable { error: error.to_string() },
    }
}

/// What a path means where `root` is the root, for its symbolic links too.
fn stat_below(root: &Path, path: &str) -> io::Result<Stat> {
    let root = rustix::fs::open(root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let file = rustix::fs::openat2(root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::IN_ROOT)?;
    Ok(rustix::fs::fstat(file)?)
}

const UNSEEN_MOUNTS: &str = "the host's mounts are not seen from this container: its / must be mounted at --host-root, with \
                             propagation from the host";

fn mount_target(mounted: &[mountinfo::Mount], path: &str) -> PathTarget {
    // A mount path names a mount point: what merely lies on one would be a guess about which disk is meant.
    let wanted = if path.len() > 1 { path.trim_end_matches('/') } else { path };
    // The root is always mounted: without it the table is of another place.
    if !mounted.iter().any(|mount| mount.mount_point == "/") {
        return PathTarget::Unreadable { error: UNSEEN_MOUNTS.to_owned() };
    }
    match mountinfo::covering(mounted, wanted) {
        Some(mount) if mount.mount_point != wanted => PathTarget::NotFound,
        Some(mount) if mount.device.major == 0 => PathTarget::NoBlockDevice { fs_type: mount.fs_type.clone() },
        Some(mount) => PathTarget::Block(mount.device),
        None => PathTarget::NotFound,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Sysfs(tempfile::TempDir);

    impl Sysfs {
        fn new() -> Sysfs {
            let dir = tempfile::tempdir().unwrap();
            fs::create_dir(dir.path().join("block")).unwrap();
            fs::write(dir.path().join("mountinfo"), "").unwrap();
            Sysfs(dir)
        }

        fn file(&self, path: &str, text: &str) {
            let path = self.0.path().join("block").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn disk(&self, name: &str, dev: &str) {
            self.file(&format!("{name}/dev"), &format!("{dev}\n"));
            self.file(&format!("{name}/size"), "2048\n");
        }

        fn partition(&self, disk: &str, name: &str, dev: &str) {
            self.file(&format!("{disk}/{name}/dev"), &format!("{dev}\n"));
            self.file(&format!("{disk}/{name}/partition"), "1\n");
        }

        fn sources(&self) -> Sources {
            Sources {
                sys_block: self.0.path().join("block"),
                mountinfo: self.0.path().join("mountinfo"),
                ..Sources::default()
            }
        }

        fn take(&self, paths: &[&str], mounts: &[&str]) -> DeviceSnapshot {
            let owned = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
            DeviceSnapshot::take(&self.sources(), &owned(paths), &owned(mounts)).unwrap()
        }
    }

    fn num(text: &str) -> DevNum {
        text.parse().unwrap()
    }

    #[test]
    fn partitions_lead_to_their_own_disk_whatever_their_numbers() {
        let sysfs = Sysfs::new();
        for (disk, dev, partition) in [
            ("nvme0n1", "259:1", Some("259:3")),
            ("nvme1n1", "259:0", Some("259:4")),
            ("nvme2n1", "259:2", Some("259:5")),
            ("nvme3n1", "259:6", None),
        ] {
            sysfs.disk(disk, dev);
            if let Some(partition) = partition {
                sysfs.partition(disk, &format!("{disk}p1"), partition);
            }
        }
        let snapshot = sysfs.take(&[], &[]);
        let name = |dev: &str| snapshot.whole(num(dev)).map(|device| device.kernel_name.clone());
        assert_eq!(name("259:3").as_deref(), Some("nvme0n1"));
        assert_eq!(name("259:4").as_deref(), Some("nvme1n1"));
        assert_eq!(name("259:5").as_deref(), Some("nvme2n1"));
        assert_eq!(name("259:6").as_deref(), Some("nvme3n1"));
        assert_eq!(name("259:7"), None);
        assert!(snapshot.devices.values().all(|device| device.kind == DeviceKind::Nvme));
    }

    #[test]
    fn hidden_empty_and_half_gone_devices_are_left_out() {
        let sysfs = Sysfs::new();
        sysfs.disk("nvme0c0n1", "259:9");
        sysfs.file("nvme0c0n1/hidden", "1\n");
        sysfs.disk("loop0", "7:0");
        sysfs.file("loop0/size", "0\n");
        sysfs.file("sdz/size", "8\n");
        sysfs.disk("loop1", "7:1");
        sysfs.file("loop1/diskseq", "42\n");
        let snapshot = sysfs.take(&[], &[]);
        let found: Vec<_> = snapshot.devices.values().map(|device| device.kernel_name.as_str()).collect();
        assert_eq!(found, ["loop1"]);
        assert_eq!(snapshot.devices[&num("7:1")].id.diskseq, Some(42));
    }

    #[test]
    fn a_device_that_cannot_be_read_is_not_taken_for_gone() {
        let sysfs = Sysfs::new();
        sysfs.disk("vda", "254:0");
        // A directory in the file's place: there, and not to be read.
        fs::remove_file(sysfs.0.path().join("block/vda/size")).unwrap();
        fs::create_dir(sysfs.0.path().join("block/vda/size")).unwrap();
        assert!(DeviceSnapshot::take(&sysfs.sources(), &[], &[]).is_err());
    }

    #[test]
    fn below_the_hosts_root_paths_links_and_mounts_are_the_hosts() {
        let sysfs = Sysfs::new();
        let host = sysfs.0.path().join("host");
        let by_id = host.join(BY_ID);
        fs::create_dir_all(&by_id).unwrap();
        // A link of the host's means the host's file, not the container's; its device nodes stand for themselves.
        fs::write(host.join("dev/nvme0n1"), "").unwrap();
        std::os::unix::fs::symlink("/dev/nvme0n1", host.join("dev/disk/data")).unwrap();
        std::os::unix::fs::symlink("/dev/null", host.join("dev/disk/only-in-the-container")).unwrap();
        std::os::unix::fs::symlink("../../nvme0n1", by_id.join("nvme-x")).unwrap();
        let take = |mountinfo: String| {
            fs::write(sysfs.0.path().join("mountinfo"), mountinfo).unwrap();
            let sources = Sources { host_root: host.clone(), ..sysfs.sources() };
            let paths = ["/dev/disk/data", "/dev/disk/only-in-the-container", "/../../dev/nvme0n1"];
            DeviceSnapshot::take(&sources, &paths.map(str::to_owned), &["/data".to_owned()]).unwrap()
        };
        let at = host.display();
        let seen = take(format!(
            "22 1 0:40 / / rw - overlay o rw\n23 22 254:1 / {at} ro - ext4 /dev/vda1 rw\n24 23 259:3 / {at}/data rw - xfs d rw\n"
        ));
        assert_eq!(seen.mounts["/data"], PathTarget::Block(num("259:3")));
        assert_eq!(seen.paths["/dev/disk/data"], PathTarget::NotADevice);
        assert_eq!(seen.paths["/dev/disk/only-in-the-container"], PathTarget::NotFound);
        assert_eq!(seen.paths["/../../dev/nvme0n1"], PathTarget::NotADevice, "there is nothing above the root");
        let only_dev = take(format!("22 1 0:40 / / rw - overlay o rw\n23 22 0:6 / {at}/dev ro - devtmpfs d rw\n"));
        assert!(matches!(&only_dev.mounts["/data"], PathTarget::Unreadable { error } if error.contains("--host-root")));
    }

    #[test]
    fn a_path_that_cannot_be_looked_up_leads_where_it_led_before() {
        let sysfs = Sysfs::new();
        let link = sysfs.0.path().join("link");
        std::os::unix::fs::symlink(&link, &link).unwrap();
        let (path, known) = (link.to_str().unwrap(), PathTarget::Block(num("7:1")));
        let mut now = sysfs.take(&[path], &[]);
        assert!(matches!(now.paths[path], PathTarget::Unreadable { .. }));
        let mut before = DeviceSnapshot::default();
        now.keep_unreadable(&before);
        assert!(matches!(now.paths[path], PathTarget::Unreadable { .. }));
        before.paths.insert(path.to_owned(), known.clone());
        now.keep_unreadable(&before);
        assert_eq!(now.paths[path], known);
    }

    #[test]
    fn attributes() {
        let sysfs = Sysfs::new();
        sysfs.disk("sda", "8:0");
        sysfs.file("sda/queue/rotational", "1\n");
        sysfs.file("sda/queue/scheduler", "none [mq-deadline] kyber\n");
        sysfs.file("sda/device/model", "BIG DISK  \n");
        sysfs.file("sda/device/vpd_pg80", "\0\u{1}\0\u{8}  ABC123");
        sysfs.disk("dm-0", "253:0");
        sysfs.file("dm-0/slaves/sda/x", "");
        sysfs.disk("nvme0n1", "259:0");
        sysfs.partition("nvme0n1", "nvme0n1p2", "259:7");
        sysfs.disk("dm-1", "253:1");
        let block = sysfs.0.path().join("block");
        fs::create_dir(block.join("dm-1/slaves")).unwrap();
        std::os::unix::fs::symlink(block.join("nvme0n1/nvme0n1p2"), block.join("dm-1/slaves/nvme0n1p2")).unwrap();
        let snapshot = sysfs.take(&[], &[]);
        assert_eq!(snapshot.devices[&num("253:1")].below, ["nvme0n1"]);
        let sda = &snapshot.devices[&num("8:0")];
        assert_eq!((sda.kind, sda.size_bytes), (DeviceKind::SataHdd, 1024 * 1024));
        assert_eq!(sda.model.as_deref(), Some("BIG DISK"));
        assert_eq!(sda.serial.as_deref(), Some("ABC123"));
        assert_eq!(sda.scheduler.as_deref(), Some("mq-deadline"));
        assert_eq!(snapshot.devices[&num("253:0")].below, ["sda"]);
    }

    #[test]
    fn paths_and_mounts() {
        let sysfs = Sysfs::new();
        sysfs.disk("vda", "254:0");
        sysfs.partition("vda", "vda1", "254:1");
        let mounts = "22 1 254:1 / / rw - ext4 /dev/root rw\n23 22 0:40 / /over rw - overlay overlay rw\n";
        fs::write(sysfs.0.path().join("mountinfo"), mounts).unwrap();
        let snapshot = sysfs.take(&["/dev/null", "/nowhere", "/"], &["/", "/over", "/over/", "/not-a-mount"]);
        assert_eq!(snapshot.paths["/dev/null"], PathTarget::CharacterDevice);
        assert_eq!(snapshot.paths["/nowhere"], PathTarget::NotFound);
        assert_eq!(snapshot.paths["/"], PathTarget::NotADevice);
        assert_eq!(snapshot.mounts["/"], PathTarget::Block(num("254:1")));
        assert_eq!(snapshot.mounts["/over/"], PathTarget::NoBlockDevice { fs_type: "overlay".into() });
        assert_eq!(snapshot.mounts["/not-a-mount"], PathTarget::NotFound);
        assert_eq!(snapshot.devices[&num("254:0")].mount_paths, ["/"]);
    }
}
