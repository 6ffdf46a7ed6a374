//! One limit over several cgroups, where the hierarchy cannot express it: it is split among the parts. PURE.

use weir_common::units::LimitValue;

use crate::{
    kernel::{CgroupRef, CgroupVersion},
    plan::{Rule, Scope},
    workloads::{Cgroup, WorkloadSnapshot},
};

/// The groups of cgroups that share one limit each. A group of one has the limit for itself.
pub(super) fn groups(
    rule: &Rule,
    chosen: &[&Cgroup],
    workloads: &WorkloadSnapshot,
    version: CgroupVersion,
) -> Vec<Vec<CgroupRef>> {
    let parts = |cgroup: &Cgroup| match version {
        CgroupVersion::V2 => vec![cgroup.cgroup.clone()],
        CgroupVersion::V1 => flat_parts(cgroup, workloads),
    };
    match rule.scope {
        Scope::Pod | Scope::Container => chosen.iter().map(|cgroup| parts(cgroup)).collect(),
        Scope::Node => {
            // On v2 an ancestor's share covers what is below it.
            let covered = |cgroup: &Cgroup| {
                version == CgroupVersion::V2
                    && WorkloadSnapshot::ancestors(&cgroup.cgroup.path)
                        .any(|path| chosen.iter().any(|other| other.cgroup.path == path))
            };
            let mut all: Vec<CgroupRef> =
                chosen.iter().filter(|cgroup| !covered(cgroup)).flat_map(|cgroup| parts(cgroup)).collect();
            all.sort();
            all.dedup();
            vec![all]
        }
    }
}

/// v1 limits are flat: one that is to hold for a subtree has parts, the cgroups in it that have processes. A cgroup without
/// any is its own only part, so that the limit is there before the first process is.
fn flat_parts(cgroup: &Cgroup, workloads: &WorkloadSnapshot) -> Vec<CgroupRef> {
    let mut parts: Vec<CgroupRef> = workloads
        .descendants(&cgroup.cgroup.path)
        .filter(|below| below.processes > 0)
        .map(|below| below.cgroup.clone())
        .collect();
    if cgroup.processes > 0 || parts.is_empty() {
        parts.insert(0, cgroup.cgroup.clone());
    }
    parts
}

/// The shares of a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shares {
    /// One for each part.
    pub values: Vec<LimitValue>,
    /// Some share was below the floor and raised: the sum may then be above the limit.
    pub raised: bool,
}

/// Splits `limit` into `parts` equal shares; what does not divide goes to the first ones, one each, so that the sum is the
/// limit.
pub(super) fn shares(limit: LimitValue, parts: usize, floor: u64) -> Shares {
    let Some(total) = limit.get() else {
        return Shares { values: vec![LimitValue::Unlimited; parts], raised: false };
    };
    let count = parts.max(1) as u64;
    let (share, rest) = (total / count, total % count);
    let mut raised = false;
    let values = (0..parts as u64)
        .map(|index| {
            let exact = share + u64::from(index < rest);
            raised |= exact < floor;
            LimitValue::finite(exact.max(floor).max(1)).unwrap_or(limit)
        })
        .collect();
    Shares { values, raised }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_sum_is_the_limit_unless_the_floor_forbids(total in 1u64.., parts in 1usize..200, floor in 1u64..100_000) {
            let shares = shares(LimitValue::finite(total).unwrap(), parts, floor);
            let sum: u128 = shares.values.iter().map(|value| u128::from(value.get().unwrap())).sum();
            if total / parts as u64 >= floor {
                prop_assert_eq!(sum, u128::from(total));
                prop_assert!(!shares.raised);
            }
            prop_assert!(shares.values.iter().all(|value| value.get().unwrap() >= floor));
            let (low, high) = (shares.values.iter().min().unwrap(), shares.values.iter().max().unwrap());
            prop_assert!(high.get().unwrap() - low.get().unwrap() <= 1);
        }
    }
}
