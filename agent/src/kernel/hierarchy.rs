//! Which mounted cgroup hierarchy carries the throttle files: v2 with the io controller, else v1 blkio. On a machine with
//! both, the io controller is bound to one of them; `cgroup.controllers` of v2 tells.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::CgroupVersion;

/// A hierarchy with throttle files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchy {
    /// Mount point.
    pub root: PathBuf,
    /// Version.
    pub version: CgroupVersion,
}

/// No hierarchy carries throttle files.
#[derive(Debug, thiserror::Error)]
pub enum HierarchyError {
    /// The list of mounts cannot be read.
    #[error("{file} cannot be read: {source}")]
    Mounts {
        /// The file.
        file: String,
        /// The cause.
        source: io::Error,
    },
    /// cgroup v2 is mounted, but has no io controller, and v1 has no blkio.
    #[error(
        "{root} has no `io` in cgroup.controllers, and no v1 blkio hierarchy is mounted: the kernel lacks CONFIG_BLK_CGROUP, or \
         this container is not given the controller"
    )]
    NoIoController {
        /// Mount point of v2.
        root: String,
    },
    /// No cgroups at all.
    #[error("neither cgroup v2 nor a v1 blkio hierarchy is mounted; in a container, mount the host's /sys/fs/cgroup")]
    NotMounted,
    /// Only a part of the hierarchy is seen: this process is in a container.
    #[error(
        "{root} is not the machine's cgroup hierarchy but what this container was given of it, and no workload outside can be \
         seen or limited there: mount the host's /sys/fs/cgroup over it, or give --cgroup-root {root} to limit within this \
         container alone"
    )]
    OnlyAPart {
        /// Mount point.
        root: String,
    },
    /// The directory that was given is no root of such a hierarchy.
    #[error("{root} is no cgroup hierarchy with throttle files: {why}")]
    NotAHierarchy {
        /// The directory.
        root: String,
        /// What it is instead.
        why: String,
    },
}

/// Finds the hierarchy, or verifies the one that is given.
///
/// # Errors
/// What is missing, for a person.
pub fn find(given: Option<&Path>) -> Result<Hierarchy, HierarchyError> {
    if let Some(root) = given {
        return verify(root);
    }
    let file = "/proc/self/mountinfo";
    let text = fs::read_to_string(file).map_err(|source| HierarchyError::Mounts { file: file.to_owned(), source })?;
    let controllers = |root: &Path| fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
    let hierarchy = choose(&text, controllers)?;
    if !is_whole(&hierarchy) {
        return Err(HierarchyError::OnlyAPart { root: hierarchy.root.display().to_string() });
    }
    Ok(hierarchy)
}

/// Whether a mount shows a hierarchy from its very root. mountinfo does not tell: within a cgroup namespace each mount looks
/// whole. The files do: `cgroup.type` is in every cgroup of v2 but the root, `cgroup.sane_behavior` in the root of v1 alone.
fn is_whole(hierarchy: &Hierarchy) -> bool {
    match hierarchy.version {
        CgroupVersion::V2 => !hierarchy.root.join("cgroup.type").exists(),
        CgroupVersion::V1 => hierarchy.root.join("cgroup.sane_behavior").exists(),
    }
}

/// The choice itself, from the text of mountinfo and each v2 root's `cgroup.controllers`.
fn choose(mountinfo: &str, controllers: impl Fn(&Path) -> String) -> Result<Hierarchy, HierarchyError> {
    let mut mounts = crate::devices::mountinfo::parse(mountinfo);
    // A bind mount of one cgroup somewhere is no hierarchy: whole ones come first, then what a container was given.
    mounts.sort_by_key(|mount| mount.root != "/");
    let mut v1 = None;
    let mut v2_without_io = None;
    for mount in mounts {
        let root = PathBuf::from(&mount.mount_point);
        match mount.fs_type.as_str() {
            "cgroup2" if has_word(&controllers(&root), "io") => {
                return Ok(Hierarchy { root, version: CgroupVersion::V2 });
            }
            "cgroup2" => {
                v2_without_io.get_or_insert(root);
            }
            "cgroup" if mount.super_options.split(',').any(|option| option == "blkio") => {
                v1.get_or_insert(root);
            }
            _ => {}
        }
    }
    match (v1, v2_without_io) {
        (Some(root), _) => Ok(Hierarchy { root, version: CgroupVersion::V1 }),
        (None, Some(root)) => Err(HierarchyError::NoIoController { root: root.display().to_string() }),
        (None, None) => Err(HierarchyError::NotMounted),
    }
}

fn verify(root: &Path) -> Result<Hierarchy, HierarchyError> {
    let error = |why: &str| HierarchyError::NotAHierarchy { root: root.display().to_string(), why: why.to_owned() };
    if let Ok(controllers) = fs::read_to_string(root.join("cgroup.controllers")) {
        return if has_word(&controllers, "io") {
            Ok(Hierarchy { root: root.to_owned(), version: CgroupVersion::V2 })
        } else {
            Err(error("cgroup v2 without the io controller"))
        };
    }
    if root.join(super::blkio_throttle::file(weir_common::units::LimitKey::Rbps)).exists() {
        return Ok(Hierarchy { root: root.to_owned(), version: CgroupVersion::V1 });
    }
    Err(error("neither cgroup.controllers (v2) nor blkio.throttle files (v1) are in it"))
}

/// Whether a list of controllers, as the kernel prints it, has one.
pub(super) fn has_word(list: &str, word: &str) -> bool {
    list.split_ascii_whitespace().any(|other| other == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
30 25 0:26 / /sys/fs/cgroup/unified rw,nosuid - cgroup2 cgroup2 rw
31 25 0:27 / /sys/fs/cgroup/blkio rw,nosuid - cgroup cgroup rw,blkio
32 25 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu
33 31 0:27 /a/b /sys/fs/cgroup/blkio/a/b ro - cgroup cgroup rw,blkio
";

    #[test]
    fn the_controller_tells_which() {
        let hybrid = choose(HYBRID, |_| "cpu memory\n".into()).unwrap();
        assert_eq!((hybrid.version, hybrid.root.to_str().unwrap()), (CgroupVersion::V1, "/sys/fs/cgroup/blkio"));
        assert_eq!(choose(HYBRID, |_| "cpu io\n".into()).unwrap().version, CgroupVersion::V2);
        let only_v2 = HYBRID.lines().next().unwrap();
        // `io` is a word of its own.
        let error = choose(only_v2, |_| "cpuio rdma\n".into()).unwrap_err();
        assert!(matches!(error, HierarchyError::NoIoController { .. }), "{error}");
        assert!(matches!(choose("", |_| String::new()), Err(HierarchyError::NotMounted)));
        assert!(verify(Path::new("/proc")).is_err());
    }

    #[test]
    fn a_part_is_not_taken_for_the_whole() {
        let root = tempfile::tempdir().unwrap();
        let hierarchy = |version| Hierarchy { root: root.path().to_owned(), version };
        assert!(is_whole(&hierarchy(CgroupVersion::V2)));
        assert!(!is_whole(&hierarchy(CgroupVersion::V1)));
        for file in ["cgroup.type", "cgroup.sane_behavior"] {
            fs::write(root.path().join(file), "").unwrap();
        }
        assert!(!is_whole(&hierarchy(CgroupVersion::V2)));
        assert!(is_whole(&hierarchy(CgroupVersion::V1)));
    }
}
