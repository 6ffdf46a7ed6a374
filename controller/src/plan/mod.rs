//! PURE: intents x a node's facts -> the node's plan: the rules that match it, ranked. The controller ranks and decides
//! nothing else; which device and cgroup a rule means, and which rule wins there, only the agent can know.
//!
//! No clock, no I/O, no async.

pub mod features;
mod holding;

pub use holding::{Holding, may_hold};

use std::collections::{BTreeMap, BTreeSet};

use weir_common::units::LimitKey;

use crate::model::{
    Condition, ConditionDetail, Controls, DeviceSelector, Intent, IntentName, Labels, Limits, Mode, NodeName,
    RateLimit, Scope, WorkloadSelector,
};

/// What a plan depends on of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeView {
    /// Name.
    pub name: NodeName,
    /// Labels.
    pub labels: Labels,
    /// What its agent can do.
    pub features: BTreeSet<String>,
}

/// An intent as far as one node is concerned.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Name of the intent.
    pub intent: IntentName,
    /// Its uid: identity of the rule.
    pub uid: String,
    /// Its generation.
    pub generation: u64,
    /// Place by priority, from 0; equal priorities share it, the lower wins.
    pub rank: u32,
    /// Its priority.
    pub priority: i32,
    /// The lower is the older.
    pub create_revision: u64,
    /// Workloads.
    pub workloads: WorkloadSelector,
    /// Devices.
    pub devices: Option<DeviceSelector>,
    /// Controls that the agent knows.
    pub controls: Controls,
    /// Scope.
    pub scope: Scope,
    /// Mode.
    pub mode: Mode,
    /// Permits system slices.
    pub allow_system: bool,
}

/// What the agent was not told, since it would not know what to do with it.
#[derive(Clone, Debug, PartialEq)]
pub struct Withheld {
    /// Name of the intent.
    pub intent: IntentName,
    /// Its generation.
    pub generation: u64,
    /// Whether nothing of the intent was sent.
    pub whole: bool,
    /// Fields that were left out.
    pub fields: Vec<String>,
    /// Features that the agent lacks, of those that this controller knows as built; empty where all of them are not
    /// built yet, which the intent itself says.
    pub lacking: BTreeSet<&'static str>,
}

impl Withheld {
    /// The condition on (intent, node).
    pub fn condition(&self) -> Condition {
        let (kind, reason, message) = if self.lacking.is_empty() {
            ("NotImplemented", "ControlNotImplemented", "these controls are stored but not acted on yet".to_owned())
        } else {
            let lacking: Vec<&str> = self.lacking.iter().copied().collect();
            let message = format!("the node's agent lacks {}; these fields were not sent to it", lacking.join(", "));
            ("UnsupportedByAgent", "FeatureMissing", message)
        };
        let mut condition = Condition::holds(kind, reason, message);
        condition.observed_generation = self.generation;
        condition.detail = Some(ConditionDetail::Fields(self.fields.clone()));
        condition
    }
}

/// A node's plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// By rank, then age, then name.
    pub rules: Vec<Rule>,
    /// By name.
    pub withheld: Vec<Withheld>,
}

impl Plan {
    /// Uids of its rules.
    pub fn uids(&self) -> impl Iterator<Item = &str> {
        self.rules.iter().map(|rule| rule.uid.as_str())
    }
}

/// Whether an intent belongs to the node's plan.
pub fn matches(intent: &Intent, name: &NodeName, labels: &Labels) -> bool {
    !intent.record.is_deleting() && intent.record.spec.nodes.matches(name.as_str(), labels)
}

/// The plan of a node; the order of `intents` does not matter.
pub fn plan<'a>(intents: impl IntoIterator<Item = &'a Intent>, node: &NodeView) -> Plan {
    assemble(intents.into_iter().filter(|intent| matches(intent, &node.name, &node.labels)), &node.features)
}

/// The plan of the intents that were found to match.
pub fn assemble<'a>(matching: impl IntoIterator<Item = &'a Intent>, features: &BTreeSet<String>) -> Plan {
    let mut plan = Plan::default();
    for intent in matching {
        let (rule, withheld) = rule(intent, features);
        plan.rules.extend(rule);
        plan.withheld.extend(withheld);
    }
    plan.withheld.sort_by(|a, b| a.intent.cmp(&b.intent));
    plan.rules.sort_by(|a, b| {
        b.priority
            .cmp(&a.priority)
            .then(a.create_revision.cmp(&b.create_revision))
            .then_with(|| a.intent.cmp(&b.intent))
    });
    let mut rank = 0;
    let mut before = None;
    for rule in &mut plan.rules {
        if before.is_some_and(|priority| priority != rule.priority) {
            rank += 1;
        }
        before = Some(rule.priority);
        rule.rank = rank;
    }
    plan
}

/// The rule with its rank still 0, and what had to be left out.
fn rule(intent: &Intent, features: &BTreeSet<String>) -> (Option<Rule>, Option<Withheld>) {
    let record = &intent.record;
    let spec = &record.spec;
    let knows = |feature: &str| features.contains(feature);
    let mut fields = Vec::new();
    let mut missing = BTreeSet::new();
    let mut leave_out = |field: String, feature: &'static str| {
        fields.push(field);
        missing.insert(feature);
    };

    let mut controls = Controls::default();
    let Controls { limits, weight, latency_target, cpu_latency, readahead, accuracy } = &spec.controls;
    if let Some(limits) = limits {
        controls.limits = known_limits(*limits, features, &mut leave_out);
    }
    macro_rules! keep {
        ($($control:ident => $feature:expr),*) => {$(
            if $control.is_some() {
                if knows($feature) {
                    controls.$control = $control.clone();
                } else {
                    leave_out(concat!("spec.controls.", stringify!($control)).to_owned(), $feature);
                }
            }
        )*};
    }
    keep!(
        weight => features::WEIGHT,
        latency_target => features::LATENCY_TARGET,
        cpu_latency => features::CPU_LATENCY,
        readahead => features::READAHEAD,
        accuracy => features::ACCURACY
    );
    if spec.scope == Scope::Node && !knows(features::SCOPE_NODE) {
        // Under another scope the same numbers would mean something else.
        leave_out("spec.scope".to_owned(), features::SCOPE_NODE);
        controls = Controls::default();
    }

    for (field, feature) in features::of_selectors(spec) {
        if !knows(feature) {
            // A term without one of its fields would choose more than was meant.
            leave_out(field, feature);
            controls = Controls::default();
        }
    }

    let whole = controls.is_empty();
    let withheld = (!fields.is_empty()).then(|| Withheld {
        intent: record.name.clone(),
        generation: record.generation,
        whole,
        fields,
        lacking: missing.into_iter().filter(|feature| features::BUILT.contains(feature)).collect(),
    });
    let rule = (!whole).then(|| Rule {
        intent: record.name.clone(),
        uid: record.uid.clone(),
        generation: record.generation,
        rank: 0,
        priority: spec.priority,
        create_revision: intent.create_revision,
        workloads: spec.workloads.clone(),
        devices: spec.devices.clone(),
        controls,
        scope: spec.scope,
        mode: spec.mode,
        allow_system: spec.allow_system,
    });
    (rule, withheld)
}

fn known_limits(
    limits: Limits,
    features: &BTreeSet<String>,
    leave_out: &mut impl FnMut(String, &'static str),
) -> Option<Limits> {
    if !features.contains(features::LIMITS) {
        leave_out("spec.controls.limits".to_owned(), features::LIMITS);
        return None;
    }
    let mut known = limits;
    for key in LimitKey::ALL {
        let percent = matches!(limits.get(key), Some(RateLimit::PercentOfCapacity(_)));
        if percent && !features.contains(features::LIMITS_PERCENT) {
            leave_out(format!("spec.controls.limits.{key}.percent_of_capacity"), features::LIMITS_PERCENT);
            known = known.with(key, None);
        }
    }
    (!known.is_empty()).then_some(known)
}

/// What leads from one plan to another.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Delta {
    /// New or changed.
    pub apply: Vec<Rule>,
    /// Uids that are gone.
    pub delete: Vec<String>,
}

/// The rules that differ.
pub fn diff(from: &Plan, to: &Plan) -> Delta {
    let before: BTreeMap<&str, &Rule> = from.rules.iter().map(|rule| (rule.uid.as_str(), rule)).collect();
    let after: BTreeSet<&str> = to.uids().collect();
    Delta {
        apply: to.rules.iter().filter(|rule| before.get(rule.uid.as_str()) != Some(rule)).cloned().collect(),
        delete: before.keys().filter(|uid| !after.contains(*uid)).map(|&uid| uid.to_owned()).collect(),
    }
}

#[cfg(test)]
pub(crate) mod tests;
