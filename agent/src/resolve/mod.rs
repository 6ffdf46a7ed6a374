//! Plan x devices x workloads -> desired settings: the one place where intents merge. PURE: no clock, no files, no async.
//!
//! For each setting that several rules want, key by key: the highest priority wins; among equals the strictest value, then
//! the older intent. Every claim is kept with the reason why it won or lost, which is what explain reports. A rule in mode
//! OBSERVE claims for the report alone.

mod merge;
mod select;
mod split;
#[cfg(test)]
pub(crate) mod testing;

pub use merge::why;

use std::{collections::BTreeMap, fmt, sync::Arc};

use serde::{Deserialize, Serialize};
use weir_common::{
    device::DeviceId,
    units::{Floor, LimitKey, LimitValue},
};

use crate::{
    condition::{ConditionType, Finding},
    devices::DeviceSnapshot,
    kernel::{CgroupRef, CgroupVersion},
    plan::{Mode, Rule},
    workloads::WorkloadSnapshot,
};

/// One kernel value: a limit of one cgroup on one device. The identity is never a path alone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SettingKey {
    /// The cgroup.
    pub cgroup: CgroupRef,
    /// The device.
    pub device: DeviceId,
    /// Which limit.
    pub key: LimitKey,
}

impl fmt::Display for SettingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {} in {}", self.key, self.device.num, self.cgroup.path)
    }
}

/// What one rule wants of a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Identity of the intent.
    pub uid: Arc<str>,
    /// Its name.
    pub intent: Arc<str>,
    /// Its rank: the lower wins.
    pub rank: i32,
    /// Its priority, for reports.
    pub priority: i32,
    /// The lower is the older.
    pub create_revision: i64,
    /// What it wants here.
    pub value: LimitValue,
    /// It takes part in the report, never in the kernel.
    pub observe: bool,
    /// It was taken.
    pub won: bool,
    /// Shared by the parts among which one limit is split: none of them may be loosened where another could not be
    /// tightened.
    pub split: Option<Arc<str>>,
}

/// A setting as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Desired {
    /// The device's kernel name.
    pub device_name: String,
    /// All claims, the winner first.
    pub claims: Vec<Claim>,
}

impl Desired {
    /// The winner. (There is one: a setting without claims is not desired.)
    pub fn winner(&self) -> Option<&Claim> {
        self.claims.first()
    }

    /// What the kernel is to hold; `None` where rules only observe.
    pub fn enforced(&self) -> Option<LimitValue> {
        self.winner().filter(|claim| !claim.observe).map(|claim| claim.value)
    }
}

/// What became of one rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleOutcome {
    /// What is to be said of it.
    pub findings: Vec<Finding>,
    /// The settings that it claims, in order.
    pub settings: Vec<SettingKey>,
}

/// The whole result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resolved {
    /// Settings with their claims.
    pub settings: BTreeMap<SettingKey, Desired>,
    /// Outcomes by the rule's uid.
    pub rules: BTreeMap<String, RuleOutcome>,
}

/// What is fixed for a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeSettings {
    /// Lowest limits that are written.
    pub floor: Floor,
    /// Version of cgroups.
    pub version: CgroupVersion,
}

/// Resolves the rules of a plan.
pub fn resolve(rules: &[Rule], devices: &DeviceSnapshot, workloads: &WorkloadSnapshot, node: NodeSettings) -> Resolved {
    let mut resolved = Resolved::default();
    for rule in rules {
        let outcome = claim(rule, devices, workloads, node, &mut resolved.settings);
        resolved.rules.insert(rule.uid.clone(), outcome);
    }
    for desired in resolved.settings.values_mut() {
        merge::decide(&mut desired.claims);
    }
    for rule in rules.iter().filter(|rule| rule.mode == Mode::Enforce) {
        if let Some(outcome) = resolved.rules.get_mut(&rule.uid) {
            let lost = |key: &SettingKey| {
                resolved.settings.get(key).and_then(Desired::winner).is_some_and(|winner| *winner.uid != rule.uid)
            };
            if !outcome.settings.is_empty() && outcome.settings.iter().all(lost) {
                outcome.findings.push(Finding::holds(
                    ConditionType::Overruled,
                    "StrongerIntents",
                    "every setting of this intent is decided by others; explain shows which",
                ));
            }
        }
    }
    resolved
}

/// Adds the claims of one rule.
fn claim(
    rule: &Rule,
    devices: &DeviceSnapshot,
    workloads: &WorkloadSnapshot,
    node: NodeSettings,
    settings: &mut BTreeMap<SettingKey, Desired>,
) -> RuleOutcome {
    let mut outcome = RuleOutcome::default();
    if !rule.unsupported.is_empty() {
        outcome.findings.push(Finding::holds(
            ConditionType::UnsupportedByAgent,
            "NewerContract",
            format!("this agent does not know: {}", rule.unsupported.join("; ")),
        ));
        return outcome;
    }
    if rule.limits.is_empty() {
        return outcome;
    }
    let chosen_devices = select::devices(&rule.devices, devices, &mut outcome.findings);
    let chosen_cgroups = select::cgroups(rule, workloads, &mut outcome.findings);
    if chosen_devices.is_empty() || chosen_cgroups.is_empty() {
        return outcome;
    }
    let groups = split::groups(rule, &chosen_cgroups, workloads, node.version);
    let (uid, intent): (Arc<str>, Arc<str>) = (rule.uid.as_str().into(), rule.intent.as_str().into());
    for (index, group) in groups.iter().enumerate() {
        let split: Option<Arc<str>> = (group.len() > 1).then(|| format!("{}/{index}", rule.uid).into());
        for device in &chosen_devices {
            for (&key, &wanted) in &rule.limits {
                let shares = split::shares(wanted, group.len(), node.floor.of(key));
                if shares.raised {
                    outcome.findings.push(raised(key, wanted, group.len(), node.floor.of(key)));
                }
                for (cgroup, value) in group.iter().zip(shares.values) {
                    let setting = SettingKey { cgroup: cgroup.clone(), device: device.id, key };
                    let claim = Claim {
                        uid: Arc::clone(&uid),
                        intent: Arc::clone(&intent),
                        rank: rule.rank,
                        priority: rule.priority,
                        create_revision: rule.create_revision,
                        value,
                        observe: rule.mode == Mode::Observe,
                        won: false,
                        split: split.clone(),
                    };
                    let desired = settings
                        .entry(setting.clone())
                        .or_insert_with(|| Desired { device_name: device.kernel_name.clone(), claims: Vec::new() });
                    merge::add(&mut desired.claims, claim);
                    outcome.settings.push(setting);
                }
            }
        }
        if group.len() > 1 {
            outcome.findings.push(Finding::holds(
                ConditionType::SplitAcrossParts,
                "HierarchyCannotExpressIt",
                format!(
                    "the limit is shared out equally among {} cgroups, from {} on: no single cgroup's limit covers them",
                    group.len(),
                    group[0].path
                ),
            ));
        }
    }
    outcome.settings.sort();
    outcome.settings.dedup();
    outcome.findings.sort();
    outcome.findings.dedup();
    outcome
}

fn raised(key: LimitKey, wanted: LimitValue, parts: usize, floor: u64) -> Finding {
    let share = if parts > 1 { format!(" shared by {parts} cgroups") } else { String::new() };
    Finding::holds(
        ConditionType::RaisedToFloor,
        "BelowFloor",
        format!("{key}={wanted}{share} is below this node's floor; {floor} is written"),
    )
}

#[cfg(test)]
mod tests;
