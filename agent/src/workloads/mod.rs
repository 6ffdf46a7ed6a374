//! The cgroups of this node that intents can choose. Walks the throttle's hierarchy; writes nothing.

mod walk;

use std::collections::BTreeMap;

use crate::kernel::CgroupRef;

pub(crate) use walk::unit;

/// One cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgroup {
    /// Identity.
    pub cgroup: CgroupRef,
    /// Processes directly in it.
    pub processes: u32,
    /// The systemd unit whose own cgroup this is (the last component ends in .service, .scope, .slice, ...).
    pub systemd_unit: Option<String>,
}

/// All that `resolve` needs to know of workloads, as values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkloadSnapshot {
    /// Cgroups by path; the root is `/`.
    pub cgroups: BTreeMap<String, Cgroup>,
    /// Path of the cgroup that the agent itself is in; `None` where it could not be told.
    pub own_cgroup: Option<String>,
}

impl WorkloadSnapshot {
    /// The cgroups below `path` (not itself), by path.
    pub fn descendants<'a>(&'a self, path: &str) -> impl Iterator<Item = &'a Cgroup> + use<'a> {
        let prefix = if path == "/" { "/".to_owned() } else { format!("{path}/") };
        let start = prefix.clone();
        self.cgroups
            .range(start..)
            .take_while(move |(name, _)| name.starts_with(&prefix))
            .map(|(_, cgroup)| cgroup)
            .filter(|cgroup| cgroup.cgroup.path != "/")
    }

    /// Paths of the ancestors of `path`, nearest first, without itself and with the root.
    pub fn ancestors(path: &str) -> impl Iterator<Item = &str> {
        let mut rest = path;
        std::iter::from_fn(move || {
            if rest == "/" {
                return None;
            }
            let cut = rest.rfind('/')?;
            rest = if cut == 0 { "/" } else { &rest[..cut] };
            Some(rest)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::WorkloadSnapshot;

    #[test]
    fn ancestors_end_at_the_root() {
        let all: Vec<&str> = WorkloadSnapshot::ancestors("/a/b/c").collect();
        assert_eq!(all, ["/a/b", "/a", "/"]);
        assert_eq!(WorkloadSnapshot::ancestors("/").count(), 0);
    }
}
