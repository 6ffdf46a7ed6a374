//! Walks the hierarchy. Runs each period: about 20 us a cgroup, most of it for the list of its processes. Cgroups that vanish
//! meanwhile are left out.

use std::{fs, io, os::unix::fs::MetadataExt as _, path::Path};

use super::{Cgroup, WorkloadSnapshot};
use crate::kernel::{CgroupRef, CgroupVersion, is_gone};

/// Endings of units that systemd gives a cgroup of their own.
const UNIT_ENDINGS: [&str; 6] = [".service", ".scope", ".slice", ".socket", ".mount", ".swap"];

impl WorkloadSnapshot {
    /// Looks at all cgroups below (and with) the root of a hierarchy.
    ///
    /// # Errors
    /// The root, or a cgroup that is there, cannot be read (no descriptors left, for instance): a cgroup that merely could
    /// not be looked at must not pass for one that is gone.
    pub fn take(root: &Path, version: CgroupVersion) -> io::Result<WorkloadSnapshot> {
        let mut snapshot = WorkloadSnapshot::default();
        let mut left = vec!["/".to_owned()];
        while let Some(path) = left.pop() {
            let dir = root.join(path.trim_start_matches('/'));
            let (metadata, entries) = match fs::metadata(&dir).and_then(|m| Ok((m, fs::read_dir(&dir)?))) {
                Ok(found) => found,
                Err(error) if is_gone(&error) && path != "/" => continue,
                Err(error) => return Err(error),
            };
            for entry in entries {
                let entry = match entry {
                    Ok(entry) => entry,
                    Err(error) if is_gone(&error) => break,
                    Err(error) => return Err(error),
                };
                // Names of units are UTF-8; what is not cannot be chosen by an intent.
                if let (Ok(kind), Some(name)) = (entry.file_type(), entry.file_name().to_str())
                    && kind.is_dir()
                {
                    left.push(if path == "/" { format!("/{name}") } else { format!("{path}/{name}") });
                }
            }
            let processes = Processes::read(&dir);
            if processes.own {
                snapshot.own_cgroup = Some(path.clone());
            }
            let cgroup = Cgroup {
                processes: processes.count,
                systemd_unit: unit(&path),
                cgroup: CgroupRef { path: path.clone(), id: metadata.ino() },
            };
            snapshot.cgroups.insert(path, cgroup);
        }
        if snapshot.own_cgroup.is_none() {
            let text = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
            snapshot.own_cgroup = own(&text, version).filter(|path| snapshot.cgroups.contains_key(path));
        }
        Ok(snapshot)
    }
}

/// The processes directly in a cgroup.
struct Processes {
    /// 0 where the kernel does not list them (a threaded cgroup).
    count: u32,
    /// This process is one of them. Unlike the path in /proc/self/cgroup, which a cgroup namespace shortens, this is true
    /// wherever the hierarchy was mounted: the kernel lists the numbers of the reader's own pid namespace.
    own: bool,
}

impl Processes {
    fn read(dir: &Path) -> Processes {
        let text = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
        Processes {
            count: u32::try_from(text.lines().count()).unwrap_or(u32::MAX),
            own: text.lines().any(|line| line.parse() == Ok(std::process::id())),
        }
    }
}

pub(crate) fn unit(path: &str) -> Option<String> {
    let name = path.rsplit('/').next()?;
    UNIT_ENDINGS.iter().any(|ending| name.len() > ending.len() && name.ends_with(ending)).then(|| name.to_owned())
}

/// The cgroup of the reading process, from the text of /proc/self/cgroup; `None` where it lies outside what this cgroup
/// namespace shows, or is its root: what a namespace calls `/` may lie anywhere in the hierarchy.
fn own(text: &str, version: CgroupVersion) -> Option<String> {
    let path = text.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let wanted = match version {
            CgroupVersion::V2 => id == "0" && controllers.is_empty(),
            CgroupVersion::V1 => controllers.split(',').any(|controller| controller == "blkio"),
        };
        wanted.then_some(path)
    })?;
    let inside = path.len() > 1 && path.starts_with('/') && !path.split('/').any(|component| component == "..");
    inside.then(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_walked_whole() {
        let root = tempfile::tempdir().unwrap();
        let deep = root.path().join("system.slice/db.service/worker");
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join("cgroup.procs"), "12\n13\n").unwrap();
        let snapshot = WorkloadSnapshot::take(root.path(), CgroupVersion::V2).unwrap();
        let paths: Vec<&str> = snapshot.cgroups.keys().map(String::as_str).collect();
        assert_eq!(paths, ["/", "/system.slice", "/system.slice/db.service", "/system.slice/db.service/worker"]);
        assert_eq!(snapshot.cgroups["/system.slice/db.service/worker"].processes, 2);
        assert_eq!(snapshot.cgroups["/system.slice/db.service"].systemd_unit.as_deref(), Some("db.service"));
        assert_eq!(
            snapshot.cgroups["/system.slice/db.service"].cgroup.id,
            fs::metadata(deep.parent().unwrap()).unwrap().ino()
        );
        assert_eq!(snapshot.cgroups["/"].systemd_unit, None);
        assert_eq!(snapshot.descendants("/system.slice").count(), 2);
        assert_eq!(snapshot.descendants("/").count(), 3);
    }

    #[test]
    fn the_own_cgroup_is_where_the_kernel_lists_this_process() {
        let root = tempfile::tempdir().unwrap();
        for (path, procs) in
            [("", "1\n".to_owned()), ("pods", String::new()), ("pods/agent", format!("0\n{}\n", std::process::id()))]
        {
            fs::create_dir_all(root.path().join(path)).unwrap();
            fs::write(root.path().join(path).join("cgroup.procs"), procs).unwrap();
        }
        let snapshot = WorkloadSnapshot::take(root.path(), CgroupVersion::V2).unwrap();
        assert_eq!(snapshot.own_cgroup.as_deref(), Some("/pods/agent"));
    }

    #[test]
    fn own_cgroup_by_version() {
        let text = "9:name=systemd:/a\n7:blkio,cpu:/b\n0::/c\n";
        assert_eq!(own(text, CgroupVersion::V1).as_deref(), Some("/b"));
        assert_eq!(own(text, CgroupVersion::V2).as_deref(), Some("/c"));
        assert_eq!(own("0::/../../outside\n", CgroupVersion::V2), None);
        assert_eq!(own("0::/\n", CgroupVersion::V2), None);
        assert_eq!(own("", CgroupVersion::V1), None);
    }
}
