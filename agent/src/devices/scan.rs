//! Takes a snapshot of the block devices. Devices may come and go meanwhile: what cannot be read any more is left out.

use std::{fs, io, path::PathBuf};

use weir_common::device::DevNum;

use super::{
    DeviceSnapshot, Layer, Named, mountinfo, names,
    sysfs::{self, Entry},
};

/// Where to look; other places than the machine's own serve tests.
#[derive(Clone, Debug)]
pub struct Sources {
    /// `/sys/block`.
    pub sys_block: PathBuf,
    /// `/sys/dev/char`.
    pub sys_dev_char: PathBuf,
    /// `/sys/fs/btrfs`.
    pub sys_fs_btrfs: PathBuf,
    /// `/proc/self/mountinfo`.
    pub mountinfo: PathBuf,
    /// `/`; in a container, where the host's is mounted. Device paths, by-id names and mount paths are looked up below it.
    pub host_root: PathBuf,
}

impl Default for Sources {
    fn default() -> Self {
        Sources {
            sys_block: PathBuf::from("/sys/block"),
            sys_dev_char: PathBuf::from("/sys/dev/char"),
            sys_fs_btrfs: PathBuf::from("/sys/fs/btrfs"),
            mountinfo: PathBuf::from("/proc/self/mountinfo"),
            host_root: PathBuf::from("/"),
        }
    }
}

impl DeviceSnapshot {
    /// Looks at the devices, and where the given names lead.
    ///
    /// # Errors
    /// The list of devices or of mounts, or a device that is there, cannot be read (no descriptors left, for instance): a
    /// device that merely could not be looked at must not pass for one that is gone.
    pub fn take(sources: &Sources, named: &Named) -> io::Result<DeviceSnapshot> {
        let mut snapshot = DeviceSnapshot::default();
        let mut hidden = Vec::new();
        for name in sysfs::names(&sources.sys_block)? {
            match sysfs::entry(&sources.sys_block.join(name))? {
                Entry::Whole(device) => {
                    let whole = device.id.num;
                    snapshot.partitions.extend(device.partitions.iter().map(|partition| (partition.num, whole)));
                    snapshot.devices.insert(whole, *device);
                }
                Entry::Hidden(name) => hidden.push(name),
                Entry::Nothing => {}
            }
        }
        snapshot.by_id = names::by_id(&sources.host_root)?;
        let mounted = mountinfo::parse(&fs::read_to_string(&sources.mountinfo)?);
        let mounted = mountinfo::below(mounted, &sources.host_root.to_string_lossy());
        snapshot.attach_names(&mounted);
        snapshot.attach_hidden(hidden);
        snapshot.attach_backing(sources, &mounted);
        let look = |list: &[String], target: &dyn Fn(&str) -> super::PathTarget| {
            list.iter().map(|path| (path.clone(), target(path))).collect()
        };
        snapshot.paths = look(&named.paths, &|path| names::node(sources, path));
        snapshot.mounts = look(&named.mounts, &|path| names::mount(sources, &mounted, path));
        snapshot.files = look(&named.files, &|path| names::file(sources, &mounted, path));
        Ok(snapshot)
    }

    fn whole_number(&self, num: DevNum) -> DevNum {
        self.partitions.get(&num).copied().unwrap_or(num)
    }

    /// Gives each whole device its by-id names and mount points, those of its partitions included.
    fn attach_names(&mut self, mounted: &[mountinfo::Mount]) {
        for (name, num) in &self.by_id {
            let whole = self.whole_number(*num);
            if let Some(device) = self.devices.get_mut(&whole) {
                device.by_id.push(name.clone());
            }
        }
        for mount in mounted {
            let whole = self.whole_number(mount.device);
            if let Some(device) = self.devices.get_mut(&whole) {
                device.mount_paths.push(mount.mount_point.clone());
                let own = device.partitions.iter_mut().filter(|partition| partition.num == mount.device);
                own.for_each(|partition| partition.mount_paths.push(mount.mount_point.clone()));
            }
        }
        for device in self.devices.values_mut() {
            let partitions = device.partitions.iter_mut().map(|partition| &mut partition.mount_paths);
            for paths in partitions.chain([&mut device.mount_paths]) {
                paths.sort();
                paths.dedup();
            }
        }
    }

    /// `nvme0c1n2` is the path by controller 1 to namespace 2 of subsystem 0, whose head is `nvme0n2`.
    fn attach_hidden(&mut self, hidden: Vec<String>) {
        for path in hidden {
            let Some(head) = multipath_head(&path) else { continue };
            if let Some(device) = self.devices.values_mut().find(|device| device.kernel_name == head) {
                device.stack.layer = Some(Layer::NvmeMultipath);
                device.stack.hidden_paths.push(path);
            }
        }
    }

    /// Finds the disk that the file behind each loop device lies on.
    fn attach_backing(&mut self, sources: &Sources, mounted: &[mountinfo::Mount]) {
        let found: Vec<(DevNum, String)> = self
            .devices
            .values()
            .filter_map(|device| {
                let file = device.stack.backing_file.as_deref()?;
                let disk = self.whole(names::backing(sources, mounted, file)?)?;
                Some((device.id.num, disk.kernel_name.clone()))
            })
            .collect();
        for (num, disk) in found {
            if let Some(device) = self.devices.get_mut(&num) {
                device.stack.backing_disk = Some(disk);
            }
        }
    }
}

fn multipath_head(path: &str) -> Option<String> {
    let rest = path.strip_prefix("nvme")?;
    let (subsystem, rest) = rest.split_once('c')?;
    let (_controller, namespace) = rest.split_once('n')?;
    Some(format!("nvme{subsystem}n{namespace}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::{DeviceKind, PathTarget};

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
            let named = Named { paths: owned(paths), mounts: owned(mounts), files: vec![] };
            DeviceSnapshot::take(&self.sources(), &named).unwrap()
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
        assert!(DeviceSnapshot::take(&sysfs.sources(), &Named::default()).is_err());
    }

    #[test]
    fn below_the_hosts_root_paths_links_and_mounts_are_the_hosts() {
        let sysfs = Sysfs::new();
        let host = sysfs.0.path().join("host");
        let by_id = host.join("dev/disk/by-id");
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
            let mounts = vec!["/data".to_owned()];
            let named = Named { paths: paths.map(str::to_owned).to_vec(), mounts, files: vec![] };
            DeviceSnapshot::take(&sources, &named).unwrap()
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
        assert_eq!(snapshot.devices[&num("253:1")].stack.below, ["nvme0n1"]);
        let sda = &snapshot.devices[&num("8:0")];
        assert_eq!((sda.kind, sda.size_bytes), (DeviceKind::SataHdd, 1024 * 1024));
        assert_eq!(sda.model.as_deref(), Some("BIG DISK"));
        assert_eq!(sda.serial.as_deref(), Some("ABC123"));
        assert_eq!(sda.queue.scheduler.as_deref(), Some("mq-deadline"));
        assert_eq!(snapshot.devices[&num("253:0")].stack.below, ["sda"]);
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
