//! What one pass found, as values: the state of every rule, the settings with intended and effective, and what is owned.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use weir_common::{fence::Fence, units::LimitValue};

use crate::{
    condition::{Condition, Finding},
    measure::Target,
    resolve::{Claim, SettingKey},
};

/// State of one rule on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleState {
    /// Every setting holds what is intended, or it only observes.
    Applied,
    /// Some setting could not be brought to it.
    Failed,
    /// Nothing matches at present.
    NoMatch,
    /// The node is paused or released.
    Suspended,
}

/// A setting as it is reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingReport {
    /// Which.
    pub key: SettingKey,
    /// The device's kernel name.
    pub device_name: String,
    /// What the rules say after merging.
    pub intended: LimitValue,
    /// What the kernel holds, the strictest ancestor included; `None` where it could not be read.
    pub effective: Option<LimitValue>,
    /// The ancestor that it comes from.
    pub effective_from: Option<String>,
    /// The kernel file.
    pub file: String,
    /// The winning intent.
    pub intent: String,
    /// All claims, the winner first.
    pub claims: Vec<Claim>,
    /// What is owned of it.
    pub owned: Option<OwnedReport>,
    /// Times that a foreign change was put right since this agent started.
    pub drift_repairs: u64,
    /// What is wrong with it.
    pub findings: Vec<Finding>,
}

/// What Weir owns of a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedReport {
    /// The value before the first touch.
    pub baseline: LimitValue,
    /// What was last written.
    pub written: LimitValue,
    /// For which plan.
    pub fence: Fence,
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleReport {
    /// Identity of the intent.
    pub uid: String,
    /// Its name.
    pub intent: String,
    /// Its generation.
    pub generation: i64,
    /// State.
    pub state: RuleState,
    /// Conditions with their times.
    pub conditions: Vec<Condition>,
    /// Indices into `Report::settings`.
    pub settings: Vec<usize>,
}

/// Everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Fence of the plan; `None` without a plan.
    pub fence: Option<Fence>,
    /// Identity of the store that the plan comes from; empty where that is not known.
    pub store_uid: String,
    /// Rules, in the plan's order.
    pub rules: Vec<RuleReport>,
    /// Settings, in order.
    pub settings: Vec<SettingReport>,
    /// Number of settings owned.
    pub settings_held: usize,
    /// Intents for which settings are owned.
    pub uids_held: BTreeSet<String>,
    /// Conditions of the node.
    pub node: Vec<Condition>,
    /// What is to be measured.
    pub targets: Vec<Target>,
    /// Writes that reached the kernel in this pass.
    pub writes: usize,
    /// Since the agent started.
    pub counts: Counts,
    /// When the pass ended; `None` before the first.
    pub passed_at: Option<Instant>,
    /// When the plan in force was taken; the agent's start, where it was taken before.
    pub plan_since: Option<Instant>,
}

/// Why a setting was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// An intent, a cgroup or a disk came or changed, or an earlier write had failed.
    Change,
    /// Somebody else had changed it.
    Repair,
    /// No intent wants it any more.
    Restore,
}

impl Cause {
    /// As metrics have it.
    pub fn name(self) -> &'static str {
        match self {
            Cause::Change => "change",
            Cause::Repair => "repair",
            Cause::Restore => "restore",
        }
    }
}

/// What was done since the agent started; it only rises.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Settings that were written and read back as written.
    pub written: BTreeMap<Cause, u64>,
    /// Settings whose write failed, by errno, or by the reason where there is none.
    pub failed: BTreeMap<String, u64>,
    /// Foreign changes that were put right.
    pub repairs: u64,
    /// Passes.
    pub passes: u64,
    /// Time that they took.
    pub pass_time: Duration,
}
