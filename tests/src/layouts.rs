//! Layouts of block devices as machines have them, each a file below fixtures/layouts: what sysfs and mountinfo say, and the
//! graph and the answers that are expected. The first line tells what the layout is for.
//!
//! ```text
//! disk NAME MAJ:MIN SECTORS [FILE=TEXT...] [slaves=A,B]   a directory below /sys/block; `~` stands for a blank
//! part NAME MAJ:MIN SECTORS [holders=A,B]                 a partition of the disk before
//! mount MAJ:MIN MOUNT_POINT FS_TYPE SOURCE [OPTIONS]
//! btrfs NAME...                                           a file system on these devices
//! number MAJ:MIN | mount-path PATH                        a question: which device is limited
//! ```

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use weir_agent::devices::{BlockDevice, DeviceSnapshot, Named, PathTarget, Sources};

/// Between what is there and what is expected.
const DIVIDER: &str = "----\n";

/// A sysfs that is made up, in a directory of its own.
#[derive(Debug)]
pub struct Tree {
    dir: tempfile::TempDir,
    /// Partitions and disks by name, for links.
    places: BTreeMap<String, PathBuf>,
    links: Vec<(PathBuf, String)>,
    mounts: String,
}

impl Tree {
    /// An empty one.
    ///
    /// # Errors
    /// The directory cannot be made.
    pub fn new() -> anyhow::Result<Tree> {
        let dir = tempfile::tempdir()?;
        for name in ["block", "btrfs", "char"] {
            fs::create_dir(dir.path().join(name))?;
        }
        Ok(Tree { dir, places: BTreeMap::new(), links: Vec::new(), mounts: String::new() })
    }

    fn device(
        &mut self,
        dir: PathBuf,
        name: &str,
        dev: &str,
        sectors: &str,
        attributes: &[&str],
    ) -> anyhow::Result<()> {
        fs::create_dir_all(&dir)?;
        // `-` leaves a file out.
        for (file, text) in [("dev", dev), ("size", sectors)] {
            if text != "-" {
                fs::write(dir.join(file), format!("{text}\n"))?;
            }
        }
        for attribute in attributes {
            let (file, text) = attribute.split_once('=').with_context(|| format!("{attribute} has no `=`"))?;
            if ["slaves", "holders"].contains(&file) {
                fs::create_dir(dir.join(file))?;
                self.links.extend(text.split(',').map(|other| (dir.join(file).join(other), other.to_owned())));
                continue;
            }
            let path = dir.join(file);
            fs::create_dir_all(path.parent().context("a path below the device")?)?;
            fs::write(path, format!("{}\n", text.replace('~', " ")))?;
        }
        self.places.insert(name.to_owned(), dir);
        Ok(())
    }

    /// Adds a disk; `-` leaves its number or size out.
    ///
    /// # Errors
    /// An attribute is no `FILE=TEXT`, or cannot be written.
    pub fn disk(&mut self, name: &str, dev: &str, sectors: &str, attributes: &[&str]) -> anyhow::Result<()> {
        let dir = self.dir.path().join("block").join(name);
        self.device(dir, name, dev, sectors, attributes)
    }

    /// Adds a partition in the given place of a disk's table.
    ///
    /// # Errors
    /// As for `disk`.
    pub fn partition(
        &mut self,
        disk: &str,
        place: usize,
        [name, dev, sectors]: [&str; 3],
        attributes: &[&str],
    ) -> anyhow::Result<()> {
        let dir = self.dir.path().join("block").join(disk).join(name);
        self.device(dir.clone(), name, dev, sectors, attributes)?;
        fs::write(dir.join("partition"), format!("{place}\n"))?;
        Ok(())
    }

    /// Looks at it as the agent does.
    ///
    /// # Errors
    /// It cannot be looked at.
    pub fn take(&mut self, mounts: Vec<String>) -> anyhow::Result<DeviceSnapshot> {
        for (link, target) in self.links.drain(..) {
            let target = self.places.get(&target).cloned().unwrap_or_else(|| PathBuf::from("/nowhere").join(&target));
            symlink(target, link)?;
        }
        fs::write(self.dir.path().join("mountinfo"), &self.mounts)?;
        let sources = Sources {
            sys_block: self.dir.path().join("block"),
            sys_dev_char: self.dir.path().join("char"),
            sys_fs_btrfs: self.dir.path().join("btrfs"),
            mountinfo: self.dir.path().join("mountinfo"),
            host_root: PathBuf::from("/"),
        };
        Ok(DeviceSnapshot::take(&sources, &Named { mounts, ..Named::default() })?)
    }
}

/// A device and its partitions, on a line each.
fn graph(snapshot: &DeviceSnapshot) -> String {
    let mut text = String::new();
    for device in snapshot.devices.values() {
        let BlockDevice { id, kernel_name, kind, size_bytes, stack, .. } = device;
        text += &format!("{kernel_name} {id} {kind:?} {size_bytes}");
        let texts = [
            ("model", &device.model),
            ("serial", &device.serial),
            ("firmware", &device.firmware),
            ("wwid", &device.wwid),
            ("scheduler", &device.queue.scheduler),
            ("layer", &stack.layer.as_ref().map(ToString::to_string)),
            ("name", &stack.mapped_name),
            ("file", &stack.backing_file),
            ("on", &stack.backing_disk),
            ("bypassed-by", &snapshot.bypassed_by(device).map(|above| above.kernel_name.clone())),
        ];
        for (name, value) in texts {
            if let Some(value) = value {
                text += &format!(" {name}={value}");
            }
        }
        let numbers = [
            ("readahead", device.queue.read_ahead_kib),
            ("max-sectors", device.queue.max_sectors_kib),
            ("requests", device.queue.requests),
            ("wbt", device.queue.writeback_throttle_us),
            ("block", device.queue.logical_block_bytes),
        ];
        for (name, value) in numbers {
            if let Some(value) = value {
                text += &format!(" {name}={value}");
            }
        }
        for (name, list) in [("below", &stack.below), ("paths", &stack.hidden_paths), ("mounted", &device.mount_paths)]
        {
            if !list.is_empty() {
                text += &format!(" {name}={}", list.join(","));
            }
        }
        text.push('\n');
        for partition in &device.partitions {
            text += &format!("  {} {} {}", partition.kernel_name, partition.num, partition.size_bytes);
            for (name, list) in [("used-by", &partition.used_by), ("mounted", &partition.mount_paths)] {
                if !list.is_empty() {
                    text += &format!(" {name}={}", list.join(","));
                }
            }
            text.push('\n');
        }
    }
    text
}

fn limited(snapshot: &DeviceSnapshot, target: &PathTarget) -> String {
    match target {
        PathTarget::Block(num) => match snapshot.whole(*num) {
            Some(device) => format!("{num}, limited on {}", device.kernel_name),
            None => format!("{num}, which is no disk"),
        },
        other => format!("{other:?}"),
    }
}

/// Builds what the text says and answers it.
fn run(text: &str) -> anyhow::Result<String> {
    let mut tree = Tree::new()?;
    let (mut disk, mut places) = (String::new(), 0);
    let mut numbers = Vec::new();
    let mut mount_paths = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["disk", name, dev, sectors, ref attributes @ ..] => {
                tree.disk(name, dev, sectors, attributes)?;
                (disk, places) = (name.to_owned(), 0);
            }
            ["part", name, dev, sectors, ref attributes @ ..] => {
                places += 1;
                tree.partition(&disk, places, [name, dev, sectors], attributes)?;
            }
            ["mount", dev, point, fs_type, source, ref options @ ..] => {
                let id = tree.mounts.lines().count() + 20;
                let options = options.first().unwrap_or(&"rw");
                tree.mounts += &format!("{id} 1 {dev} / {point} rw - {fs_type} {source} {options}\n");
            }
            ["btrfs", ref members @ ..] => {
                let uuid = fs::read_dir(tree.dir.path().join("btrfs"))?.count();
                let devices = tree.dir.path().join(format!("btrfs/uuid-{uuid}/devices"));
                fs::create_dir_all(&devices)?;
                tree.links.extend(members.iter().map(|name| (devices.join(name), (*name).to_owned())));
            }
            ["number", number] => numbers.push(number.parse()?),
            ["mount-path", path] => mount_paths.push(path.to_owned()),
            _ => bail!("not understood: {line}"),
        }
    }
    let snapshot = tree.take(mount_paths.clone())?;
    let mut out = graph(&snapshot);
    for number in numbers {
        out += &format!("number {number}: {}\n", limited(&snapshot, &PathTarget::Block(number)));
    }
    for path in mount_paths {
        out += &format!("mount-path {path}: {}\n", limited(&snapshot, &snapshot.mounts[&path]));
    }
    Ok(out)
}

/// A layout that is kept.
#[derive(Debug)]
pub struct Layout {
    /// Its file.
    pub file: PathBuf,
    layout: String,
    expected: String,
}

impl Layout {
    /// All of them, by name.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn all() -> anyhow::Result<Vec<Layout>> {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/layouts");
        let mut layouts = Vec::new();
        for entry in fs::read_dir(&dir).with_context(|| dir.display().to_string())? {
            let file = entry?.path();
            let text = fs::read_to_string(&file)?;
            let (layout, expected) = text.split_once(DIVIDER).unwrap_or((&text, ""));
            layouts.push(Layout { file, layout: layout.to_owned(), expected: expected.to_owned() });
        }
        layouts.sort_by(|a, b| a.file.cmp(&b.file));
        Ok(layouts)
    }

    /// What is found, where it is not what is expected.
    ///
    /// # Errors
    /// The layout cannot be understood.
    pub fn difference(&self) -> anyhow::Result<Option<String>> {
        let found = run(&self.layout).with_context(|| self.file.display().to_string())?;
        Ok((found != self.expected)
            .then(|| format!("{}:\nexpected\n{}found\n{found}", self.file.display(), self.expected)))
    }

    /// Writes anew what is expected, to be read before it is believed.
    ///
    /// # Errors
    /// The layout cannot be understood, or the file not be written.
    pub fn update(&self) -> anyhow::Result<()> {
        let found = run(&self.layout).with_context(|| self.file.display().to_string())?;
        Ok(fs::write(&self.file, format!("{}{DIVIDER}{found}", self.layout))?)
    }
}
