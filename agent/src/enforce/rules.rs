//! From what a pass did and saw to its report.

use std::collections::{BTreeMap, BTreeSet};

use weir_common::device::DeviceId;

use super::{
    Enforcer, Input,
    observe::Observed,
    report::{OwnedReport, Report, RuleReport, RuleState, SettingReport},
};
use crate::{
    condition::{Condition, ConditionType, Finding, Holds, timed},
    kernel::CgroupRef,
    measure::{EffectiveLimit, Target},
    plan::{Directive, Mode, Plan, Rule},
    resolve::SettingKey,
};

/// The report of a pass.
pub(super) fn report(enforcer: &Enforcer, observed: &Observed, input: &Input<'_>) -> Report {
    let mut report = Report {
        settings_held: enforcer.ledger.owned().len(),
        uids_held: enforcer.ledger.owned().values().map(|owned| owned.uid.clone()).collect(),
        settings: settings(enforcer, observed, input),
        ..Report::default()
    };
    report.targets = targets(&report.settings);
    let Some(plan) = enforcer.ledger.plan() else { return report };
    report.fence = Some(plan.fence);
    report.store_uid.clone_from(&plan.store_uid);
    let index: BTreeMap<&SettingKey, usize> =
        report.settings.iter().enumerate().map(|(i, setting)| (&setting.key, i)).collect();
    report.rules =
        plan.rules.iter().map(|rule| rule_report(enforcer, rule, plan, &report.settings, &index, input)).collect();
    report.node = node_conditions(enforcer, plan, input);
    report
}

fn settings(enforcer: &Enforcer, observed: &Observed, input: &Input<'_>) -> Vec<SettingReport> {
    let report = |(key, desired): (&SettingKey, &crate::resolve::Desired)| {
        let winner = desired.winner()?;
        let effective = observed.effective(key);
        let mut findings: Vec<Finding> = enforcer.trouble.get(key).cloned().into_iter().collect();
        if let Err(Some(error)) = observed.own(key)
            && findings.is_empty()
        {
            findings.push(enforcer.unreadable(key, error));
        }
        Some(SettingReport {
            key: key.clone(),
            device_name: desired.device_name.clone(),
            intended: winner.value,
            effective: effective.map(|(value, _)| value),
            effective_from: effective.and_then(|(_, from)| from.map(str::to_owned)),
            file: enforcer.kernel.limit_file(&key.cgroup, key.key),
            intent: winner.intent.to_string(),
            claims: desired.claims.clone(),
            owned: enforcer.ledger.owned().get(key).map(|owned| OwnedReport {
                baseline: owned.baseline,
                written: owned.written,
                fence: owned.fence,
            }),
            drift_repairs: enforcer.repairs.get(key).copied().unwrap_or(0),
            findings,
        })
    };
    input.resolved.settings.iter().filter_map(report).collect()
}

impl Enforcer {
    fn unreadable(&self, key: &SettingKey, error: &crate::kernel::KernelError) -> Finding {
        match self.kernel.io_withheld_by(&key.cgroup) {
            Some(ancestor) => Finding::holds(
                ConditionType::ControllerNotEnabled,
                "IoNotInSubtreeControl",
                format!(
                    "{ancestor} does not pass the io controller on (no `io` in its cgroup.subtree_control): {error}"
                ),
            ),
            None => Finding::holds(ConditionType::WriteFailed, "Unreadable", format!("{key}: {error}")),
        }
        .with_access(error.into())
    }
}

fn targets(settings: &[SettingReport]) -> Vec<Target> {
    let mut targets: BTreeMap<(CgroupRef, DeviceId), Target> = BTreeMap::new();
    for setting in settings {
        let Some(value) = setting.effective else { continue };
        let foreign = setting.effective_from.is_some() || value < setting.intended;
        targets
            .entry((setting.key.cgroup.clone(), setting.key.device))
            .or_insert_with(|| Target {
                cgroup: setting.key.cgroup.clone(),
                device: setting.key.device,
                limits: BTreeMap::new(),
            })
            .limits
            .insert(setting.key.key, EffectiveLimit { value, foreign });
    }
    targets.into_values().collect()
}

fn rule_report(
    enforcer: &Enforcer,
    rule: &Rule,
    plan: &Plan,
    settings: &[SettingReport],
    index: &BTreeMap<&SettingKey, usize>,
    input: &Input<'_>,
) -> RuleReport {
    let outcome = input.resolved.rules.get(&rule.uid);
    let mut findings = outcome.map(|outcome| outcome.findings.clone()).unwrap_or_default();
    let own: Vec<usize> =
        outcome.iter().flat_map(|outcome| &outcome.settings).filter_map(|key| index.get(key).copied()).collect();
    let won = |setting: &&SettingReport| setting.claims.first().is_some_and(|claim| *claim.uid == rule.uid);
    let decided: Vec<&SettingReport> = own.iter().filter_map(|i| settings.get(*i)).filter(won).collect();
    let mut wrong = 0;
    if rule.mode == Mode::Enforce && plan.directive == Directive::Active {
        for setting in &decided {
            let pending = setting.findings.is_empty()
                && setting.owned.as_ref().is_none_or(|owned| owned.written != setting.intended);
            let kept = setting.effective.is_some_and(|effective| effective <= setting.intended);
            wrong += usize::from(!setting.findings.is_empty() || pending || !kept);
            findings.extend(setting.findings.iter().cloned());
        }
    }
    let (state, applied) = match plan.directive {
        Directive::Paused => (RuleState::Suspended, not_applied("Paused", "the node is paused: nothing is changed")),
        Directive::Released => {
            (RuleState::Suspended, not_applied("Released", "the node is released: everything is put back"))
        }
        Directive::Active if !rule.unsupported.is_empty() => {
            (RuleState::Failed, not_applied("UnsupportedByAgent", "this agent does not know all of it"))
        }
        Directive::Active if wrong > 0 => {
            let message = format!("{wrong} of {} do not hold what is intended", counted(decided.len()));
            (RuleState::Failed, not_applied("SettingsFailed", message))
        }
        Directive::Active if own.is_empty() => {
            (RuleState::NoMatch, not_applied("NothingToApply", "no setting of this node is meant at present"))
        }
        Directive::Active if rule.mode == Mode::Observe => (
            RuleState::Applied,
            Finding::holds(ConditionType::Applied, "Observing", "resolved and measured; nothing is written"),
        ),
        Directive::Active => (
            RuleState::Applied,
            Finding::holds(ConditionType::Applied, "AllSettingsHold", all_hold(decided.len(), own.len())),
        ),
    };
    if state == RuleState::Suspended {
        let reason = if plan.directive == Directive::Paused { "Paused" } else { "Released" };
        findings.push(Finding::holds(ConditionType::Suspended, reason, applied.message.clone()));
    }
    findings.insert(0, applied);
    let conditions = timed(one_of_each(findings), rule.generation, enforcer.conditions_before(&rule.uid), input.wall);
    RuleReport {
        uid: rule.uid.clone(),
        intent: rule.intent.clone(),
        generation: rule.generation,
        state,
        conditions,
        settings: own,
    }
}

/// `1 setting`, `2 settings`.
fn counted(count: usize) -> String {
    format!("{count} {}", if count == 1 { "setting" } else { "settings" })
}

/// What holds of the settings that a rule takes part in: `decided` are those that it won, `own` are all.
fn all_hold(decided: usize, own: usize) -> String {
    let hold = if decided == 1 { "holds" } else { "hold" };
    match (decided, own.saturating_sub(decided)) {
        (0, _) => "nothing is left to hold: other intents decide every setting of this one".to_owned(),
        (_, 0) => format!("{} {hold} what is intended", counted(decided)),
        (_, others) => format!("{} {hold} what is intended; {others} more decided by other intents", counted(decided)),
    }
}

fn not_applied(reason: &'static str, message: impl Into<String>) -> Finding {
    Finding { holds: Holds::False, ..Finding::holds(ConditionType::Applied, reason, message) }
}

/// A type stands once in a list of conditions: further findings of it are told in the message of the first.
fn one_of_each(findings: Vec<Finding>) -> Vec<Finding> {
    /// Messages that are told in full; a thousand cgroups may have the same trouble.
    const TOLD: usize = 4;
    let mut kinds: BTreeSet<ConditionType> = BTreeSet::new();
    let mut out: Vec<(Finding, usize)> = Vec::new();
    for finding in findings {
        if kinds.insert(finding.kind) {
            out.push((finding, 1));
        } else if let Some((first, told)) = out.iter_mut().find(|(first, _)| first.kind == finding.kind)
            && !first.message.contains(&finding.message)
        {
            *told += 1;
            if *told <= TOLD {
                first.message = format!("{}; {}", first.message, finding.message);
            }
        }
    }
    out.into_iter()
        .map(|(mut finding, told)| {
            if told > TOLD {
                finding.message = format!("{}; and {} more", finding.message, told - TOLD);
            }
            finding
        })
        .collect()
}

fn node_conditions(enforcer: &Enforcer, plan: &Plan, input: &Input<'_>) -> Vec<Condition> {
    let mut findings = Vec::new();
    match plan.directive {
        Directive::Active => {}
        Directive::Paused => findings.push(Finding::holds(
            ConditionType::Paused,
            "AskedFor",
            "told to change nothing until it is resumed",
        )),
        Directive::Released => findings.push(Finding::holds(
            ConditionType::Released,
            "AskedFor",
            format!(
                "told to put everything back until it is resumed; {} settings are still held",
                enforcer.ledger.owned().len()
            ),
        )),
    }
    // What could not be put back belongs to no rule any more, so the node says it.
    let unwanted = |key: &SettingKey| {
        let desired = input.resolved.settings.get(key);
        plan.directive == Directive::Released || desired.is_none_or(|desired| desired.enforced().is_none())
    };
    let stuck = enforcer.trouble.iter().filter(|(key, _)| enforcer.ledger.owned().contains_key(key) && unwanted(key));
    findings.extend(stuck.map(|(_, finding)| finding.clone()));
    findings.extend(enforcer.foreign_kept.iter().map(|(key, value)| {
        let message = format!("{key} was left at {value}, set by somebody else");
        Finding::holds(ConditionType::ForeignValueKept, "ChangedByOthers", message)
    }));
    timed(one_of_each(findings), 0, &enforcer.last.node, input.wall)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_holds_is_told_as_it_is() {
        for (decided, own, text) in [
            (0, 2, "nothing is left to hold: other intents decide every setting of this one"),
            (1, 1, "1 setting holds what is intended"),
            (2, 3, "2 settings hold what is intended; 1 more decided by other intents"),
        ] {
            assert_eq!(all_hold(decided, own), text);
        }
    }
}
