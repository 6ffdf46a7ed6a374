//! What the kernel holds: the limits of every cgroup that matters, and on v2 of its ancestors.

use std::collections::{BTreeMap, BTreeSet};

use weir_common::units::{LimitKey, LimitValue};

use crate::{
    kernel::{CgroupRef, CgroupVersion, Kernel, KernelError, LimitSet},
    resolve::SettingKey,
    workloads::WorkloadSnapshot,
};

type Limits = BTreeMap<weir_common::device::DevNum, LimitSet>;

/// A reading of the kernel.
#[derive(Debug, Default)]
pub struct Observed {
    /// v2: an ancestor's limit holds for what is below it.
    hierarchical: bool,
    cgroups: BTreeMap<CgroupRef, Result<Limits, KernelError>>,
}

impl Observed {
    /// Reads the cgroups of `keys`, and on v2 their ancestors.
    pub fn take<'a>(
        kernel: &dyn Kernel,
        keys: impl Iterator<Item = &'a SettingKey>,
        workloads: &WorkloadSnapshot,
    ) -> Observed {
        let mut wanted: BTreeSet<CgroupRef> = BTreeSet::new();
        for key in keys {
            if wanted.insert(key.cgroup.clone()) && kernel.version() == CgroupVersion::V2 {
                let ancestors = WorkloadSnapshot::ancestors(&key.cgroup.path);
                wanted.extend(ancestors.filter_map(|path| Some(workloads.cgroups.get(path)?.cgroup.clone())));
            }
        }
        let hierarchical = kernel.version() == CgroupVersion::V2;
        let mut observed = Observed { hierarchical, ..Observed::default() };
        for cgroup in wanted {
            observed.read_again(kernel, &cgroup);
        }
        observed
    }

    /// Reads one cgroup once more, after a write.
    pub fn read_again(&mut self, kernel: &dyn Kernel, cgroup: &CgroupRef) {
        self.cgroups.insert(cgroup.clone(), kernel.read_limits(cgroup));
    }

    /// The cgroup's own value.
    ///
    /// # Errors
    /// Why it could not be read; `None` where it was never tried.
    pub fn own(&self, key: &SettingKey) -> Result<LimitValue, Option<&KernelError>> {
        match self.cgroups.get(&key.cgroup) {
            Some(Ok(limits)) => {
                let value = limits.get(&key.device.num).and_then(|limits| limits.get(&key.key));
                Ok(value.copied().unwrap_or(LimitValue::Unlimited))
            }
            Some(Err(error)) => Err(Some(error)),
            None => Err(None),
        }
    }

    /// The strictest value over the cgroup and the ancestors that were read, and the ancestor that it comes from where it is
    /// not the cgroup's own. `None` where the cgroup could not be read.
    pub fn effective<'a>(&self, key: &'a SettingKey) -> Option<(LimitValue, Option<&'a str>)> {
        let mut strictest = (self.own(key).ok()?, None);
        if !self.hierarchical {
            return Some(strictest);
        }
        for path in WorkloadSnapshot::ancestors(&key.cgroup.path) {
            if let Some(value) = self.value_at(path, key)
                && value < strictest.0
            {
                strictest = (value, Some(path));
            }
        }
        Some(strictest)
    }

    fn value_at(&self, path: &str, key: &SettingKey) -> Option<LimitValue> {
        // Ids of one path differ only while a cgroup is replaced; the map is ordered by path first.
        let from = CgroupRef { path: path.to_owned(), id: 0 };
        let to = CgroupRef { path: path.to_owned(), id: u64::MAX };
        let (_, limits) = self.cgroups.range(from..=to).next()?;
        limits.as_ref().ok()?.get(&key.device.num)?.get(&key.key).copied()
    }

    /// All four keys that are limited or owned of the same cgroup and device, for one write.
    pub fn keys_of(cgroup: &CgroupRef, device: weir_common::device::DeviceId) -> [SettingKey; 4] {
        LimitKey::ALL.map(|key| SettingKey { cgroup: cgroup.clone(), device, key })
    }
}
