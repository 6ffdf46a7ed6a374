//! Cgroups of our own in the hierarchy that carries the throttle, v1 or v2; removed on drop.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};

/// The hierarchy that carries the throttle files.
#[derive(Clone, Debug)]
pub struct Hierarchy {
    /// Mount point.
    pub root: PathBuf,
    /// Unified (v2), else blkio (v1).
    pub v2: bool,
}

impl Hierarchy {
    /// Finds it. Written apart from the agent's own finder, so that a fault there shows.
    ///
    /// # Errors
    /// What is missing, for a person.
    pub fn find() -> anyhow::Result<Hierarchy> {
        let mounts = fs::read_to_string("/proc/self/mounts").context("/proc/self/mounts cannot be read")?;
        let mut v1 = None;
        let mut v2_without_io = None;
        for line in mounts.lines() {
            let fields: Vec<&str> = line.split(' ').collect();
            let [_, target, kind, options, ..] = fields[..] else { continue };
            let root = PathBuf::from(target);
            if kind == "cgroup2" {
                let controllers = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
                if controllers.split_whitespace().any(|c| c == "io") {
                    return Ok(Hierarchy { root, v2: true });
                }
                v2_without_io = Some(root);
            } else if kind == "cgroup" && options.split(',').any(|o| o == "blkio") {
                // The first one is the hierarchy; later ones are bind mounts of parts of it.
                v1.get_or_insert(root);
            }
        }
        if let Some(root) = v1 {
            return Ok(Hierarchy { root, v2: false });
        }
        match v2_without_io {
            Some(root) => bail!(
                "the io controller: {} has none in cgroup.controllers (kernel without CONFIG_BLK_CGROUP, or a container \
                 without delegation)",
                root.display()
            ),
            None => bail!("a mounted cgroup hierarchy with the io controller (v2) or blkio (v1)"),
        }
    }

    /// The file that holds the read byte limit of a cgroup.
    pub fn rbps_file(&self, dir: &Path) -> PathBuf {
        dir.join(if self.v2 { "io.max" } else { "blkio.throttle.read_bps_device" })
    }
}

/// A tree of cgroups of our own: one parent below the root, children in it.
#[derive(Debug)]
pub struct Tree {
    hierarchy: Hierarchy,
    name: String,
    enabled_at_root: bool,
}

impl Tree {
    /// Makes `/NAME` ready to hold limited children. On v2 the io controller is enabled at the root where it is off, and put
    /// back on drop.
    ///
    /// # Errors
    /// A step failed; what was done before is undone.
    pub fn new(name: &str) -> anyhow::Result<Tree> {
        let hierarchy = Hierarchy::find()?;
        let mut tree = Tree { hierarchy, name: name.to_owned(), enabled_at_root: false };
        tree.remove();
        let dir = tree.dir();
        if tree.hierarchy.v2 {
            let control = tree.hierarchy.root.join("cgroup.subtree_control");
            let enabled = fs::read_to_string(&control).with_context(|| format!("read {}", control.display()))?;
            if !enabled.split_whitespace().any(|c| c == "io") {
                fs::write(&control, "+io").with_context(|| format!("write +io to {}", control.display()))?;
                tree.enabled_at_root = true;
            }
        }
        fs::create_dir(&dir).with_context(|| format!("mkdir {}", dir.display()))?;
        if tree.hierarchy.v2 {
            let control = dir.join("cgroup.subtree_control");
            fs::write(&control, "+io").with_context(|| format!("write +io to {}", control.display()))?;
        }
        Ok(tree)
    }

    /// The hierarchy it is in.
    pub fn hierarchy(&self) -> &Hierarchy {
        &self.hierarchy
    }

    /// Whether the io controller was enabled at the root for this tree.
    pub fn enabled_at_root(&self) -> bool {
        self.enabled_at_root
    }

    /// Leaves the tree where it is, without undoing anything.
    pub fn keep(mut self) {
        self.name.clear();
    }

    /// Its directory.
    pub fn dir(&self) -> PathBuf {
        self.hierarchy.root.join(&self.name)
    }

    /// Makes a child and returns its directory.
    ///
    /// # Errors
    /// mkdir failed.
    pub fn child(&self, name: &str) -> anyhow::Result<PathBuf> {
        let dir = self.dir().join(name);
        fs::create_dir(&dir).with_context(|| format!("mkdir {}", dir.display()))?;
        Ok(dir)
    }

    /// Path of a child as intents name it.
    pub fn path_of(&self, child: &str) -> String {
        format!("/{}/{child}", self.name)
    }

    /// Ends the processes in a tree that an earlier run left, and removes it; with `enabled_at_root` the io controller is
    /// switched off at the root again.
    pub fn remove_leftovers(name: &str, enabled_at_root: bool) {
        if let Ok(hierarchy) = Hierarchy::find() {
            drop(Tree { hierarchy, name: name.to_owned(), enabled_at_root });
        }
    }

    fn remove(&self) {
        let mut dirs = vec![];
        collect(&self.dir(), &mut dirs);
        for dir in &dirs {
            // What is left in there is ours: end it.
            for pid in fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default().lines() {
                if let Some(pid) = pid.parse().ok().and_then(rustix::process::Pid::from_raw) {
                    let _gone = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                }
            }
        }
        for dir in dirs.iter().rev() {
            let deadline = Instant::now() + Duration::from_secs(10);
            while let Err(error) = fs::remove_dir(dir) {
                if !dir.exists() {
                    break;
                }
                if Instant::now() > deadline {
                    eprintln!("cgroup {} could not be removed: {error}", dir.display());
                    break;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

fn collect(dir: &Path, into: &mut Vec<PathBuf>) {
    if !dir.is_dir() {
        return;
    }
    into.push(dir.to_owned());
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            collect(&entry.path(), into);
        }
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        if self.name.is_empty() {
            return;
        }
        self.remove();
        if self.enabled_at_root {
            let control = self.hierarchy.root.join("cgroup.subtree_control");
            if let Err(error) = fs::write(&control, "-io") {
                eprintln!("the io controller could not be switched off again in {}: {error}", control.display());
            }
        }
    }
}

/// Inode number of a cgroup's directory.
pub fn id(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    fs::metadata(dir).expect("the cgroup is there").ino()
}

/// The read byte limit that the kernel holds for a device in a cgroup, straight from its file; `None` without one.
pub fn kernel_rbps(hierarchy: &Hierarchy, dir: &Path, device: &str) -> Option<u64> {
    let file = hierarchy.rbps_file(dir);
    let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("read {}: {error}", file.display()));
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{device} ")).map(str::to_owned))?;
    if !hierarchy.v2 {
        return line.trim().parse().ok();
    }
    line.split_whitespace().find_map(|field| field.strip_prefix("rbps=")).and_then(|value| value.parse().ok())
}

/// Writes a read byte limit as somebody else would; `None` removes it.
pub fn foreign_rbps(hierarchy: &Hierarchy, dir: &Path, device: &str, value: Option<u64>) {
    let text = match (hierarchy.v2, value) {
        (true, Some(value)) => format!("{device} rbps={value}"),
        (true, None) => format!("{device} rbps=max"),
        (false, value) => format!("{device} {}", value.unwrap_or(0)),
    };
    fs::write(hierarchy.rbps_file(dir), text).expect("a foreign write succeeds");
}
