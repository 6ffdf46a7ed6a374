//! Makes the kernel keep the plan: observe -> diff -> note in the ledger -> write what tightens, then what loosens -> read
//! back -> report. A pass cannot fail: what goes wrong is in its report. It makes no choices: `resolve` made them.
//!
//! May touch the kernel and the ledger through their interfaces, nothing else.

mod apply;
pub mod diff;
pub mod observe;
pub mod report;
mod rules;

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use weir_common::{backoff::Backoff, units::LimitValue};

use self::{
    diff::Action,
    observe::Observed,
    report::{Counts, Report, RuleReport},
};
use crate::{
    condition::{Access, Condition, ConditionType, Finding},
    devices::DeviceSnapshot,
    kernel::Kernel,
    ledger::Ledger,
    plan::{Directive, Plan},
    resolve::{Resolved, SettingKey},
    trace::Traces,
    workloads::WorkloadSnapshot,
};

/// A setting is written at most this often unless the plan changed: rewriting restarts the throttle's slice.
const WRITE_INTERVAL: Duration = Duration::from_millis(900);

/// What a pass looks at.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// The devices as they are.
    pub devices: &'a DeviceSnapshot,
    /// The cgroups as they are.
    pub workloads: &'a WorkloadSnapshot,
    /// What the plan means for them.
    pub resolved: &'a Resolved,
    /// The plan is another one than at the last pass.
    pub plan_changed: bool,
    /// The monotonic clock.
    pub now: Instant,
    /// The wall clock, for conditions.
    pub wall: SystemTime,
    /// A draw in 0.0..1.0, for back-off.
    pub random: f64,
    /// Of the changes that this pass carries out.
    pub traces: &'a Traces,
}

struct Retry {
    attempt: u32,
    not_before: Instant,
}

/// Enforces plans on one kernel.
pub struct Enforcer {
    kernel: Arc<dyn Kernel>,
    ledger: Ledger,
    retries: BTreeMap<SettingKey, Retry>,
    written_at: BTreeMap<SettingKey, Instant>,
    repairs: BTreeMap<SettingKey, u64>,
    /// The wanted value that this process last saw a setting hold: only of those it can say that somebody changed them.
    confirmed: BTreeMap<SettingKey, LimitValue>,
    counts: Counts,
    /// What is wrong with a setting as of its last access.
    trouble: BTreeMap<SettingKey, Finding>,
    /// Foreign values that were left in place when their settings were given up, as long as they are there.
    foreign_kept: BTreeMap<SettingKey, LimitValue>,
    /// The last report: conditions keep their times.
    last: Report,
}

/// What became of one setting at a release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Released {
    /// The setting.
    pub key: SettingKey,
    /// What was done, or why it was not; one sentence.
    pub outcome: String,
    /// It is not owned any more.
    pub done: bool,
}

impl Enforcer {
    /// Over a kernel and a ledger.
    pub fn new(kernel: Arc<dyn Kernel>, ledger: Ledger) -> Enforcer {
        Enforcer {
            kernel,
            ledger,
            retries: BTreeMap::new(),
            written_at: BTreeMap::new(),
            repairs: BTreeMap::new(),
            confirmed: BTreeMap::new(),
            counts: Counts::default(),
            trouble: BTreeMap::new(),
            foreign_kept: BTreeMap::new(),
            last: Report::default(),
        }
    }

    /// The ledger.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Makes a plan the accepted one, durably.
    ///
    /// # Errors
    /// It could not be stored: the one before stays.
    pub fn accept(&mut self, plan: Plan) -> std::io::Result<()> {
        self.ledger.store_plan(plan)
    }

    /// One pass. Without a plan nothing is changed: a plan that was lost releases nothing.
    pub fn pass(&mut self, input: Input<'_>) -> Report {
        let directive = self.ledger.plan().map(|plan| plan.directive);
        let nothing = Resolved::default();
        let wanted = match directive {
            Some(Directive::Released) => &nothing,
            _ => input.resolved,
        };
        let keys = input.resolved.settings.keys().chain(self.ledger.owned().keys()).chain(self.foreign_kept.keys());
        let mut observed = Observed::take(&*self.kernel, keys, input.workloads);
        let mut writes = 0;
        if matches!(directive, Some(Directive::Active | Directive::Released)) {
            writes = self.enforce(wanted, &mut observed, &input);
        }
        self.confirm(wanted, &observed);
        self.forget_old_state(input.resolved, &observed);
        let mut report = rules::report(self, &observed, &input);
        report.writes = writes;
        report.counts = self.counts.clone();
        self.last = report.clone();
        report
    }

    /// Puts everything back, once, whatever the plan says.
    pub fn release_all(&mut self, devices: &DeviceSnapshot, workloads: &WorkloadSnapshot) -> Vec<Released> {
        let mut observed = Observed::take(&*self.kernel, self.ledger.owned().keys(), workloads);
        let nothing = Resolved::default();
        let changes = diff::diff(&nothing, self.ledger.owned(), &observed, devices);
        let before = self.ledger.owned().clone();
        let input = Input {
            devices,
            workloads,
            resolved: &nothing,
            plan_changed: true,
            now: Instant::now(),
            wall: SystemTime::now(),
            random: 1.0,
            traces: &Traces::default(),
        };
        self.enforce(&nothing, &mut observed, &input);
        before
            .into_iter()
            .map(|(key, owned)| {
                let forgotten = !self.ledger.owned().contains_key(&key);
                if !forgotten && observed.own(&key).is_ok_and(|held| held == owned.baseline) {
                    let outcome =
                        format!("{} is back; the journal could not be told, and lists it still", owned.baseline);
                    return Released { key, outcome, done: true };
                }
                let done = forgotten;
                let planned = changes.iter().find(|change| change.key == key).map(|change| &change.action);
                let outcome = match (done, planned) {
                    (true, Some(Action::Restore { to })) => format!("{to} is back"),
                    (true, Some(Action::LeaveForeign { value })) => {
                        format!("left alone: somebody else set it to {value} meanwhile")
                    }
                    (true, _) => "nothing to put back".to_owned(),
                    (false, _) => match (self.trouble.get(&key), observed.own(&key)) {
                        (Some(finding), _) => finding.message.clone(),
                        (None, Err(Some(error))) => error.to_string(),
                        (None, _) => "it could not be put back".to_owned(),
                    },
                };
                Released { key, outcome, done }
            })
            .collect()
    }

    /// Whether a setting may be written now.
    fn may_write(&self, key: &SettingKey, input: &Input<'_>) -> bool {
        if input.plan_changed {
            return true;
        }
        let waits = self.retries.get(key).is_some_and(|retry| retry.not_before > input.now);
        let fresh =
            self.written_at.get(key).is_some_and(|at| input.now.saturating_duration_since(*at) < WRITE_INTERVAL);
        !waits && !fresh
    }

    fn failed(&mut self, key: &SettingKey, finding: Finding, input: &Input<'_>) {
        let attempt = self.retries.get(key).map_or(0, |retry| retry.attempt.saturating_add(1));
        let not_before = input.now + Backoff::KERNEL_WRITE.wait(attempt, input.random);
        self.retries.insert(key.clone(), Retry { attempt, not_before });
        self.trouble.insert(key.clone(), finding);
    }

    fn succeeded(&mut self, key: &SettingKey) {
        self.retries.remove(key);
        self.trouble.remove(key);
    }

    /// Notes which settings hold what is wanted. One that holds something else keeps its note, for its repair may have to
    /// wait, and is counted when it comes.
    fn confirm(&mut self, wanted: &Resolved, observed: &Observed) {
        for (key, desired) in &wanted.settings {
            if let Some(value) = desired.enforced()
                && observed.own(key).is_ok_and(|held| held == value)
                && self.confirmed.get(key) != Some(&value)
            {
                self.confirmed.insert(key.clone(), value);
            }
        }
    }

    /// Drops what is remembered of settings that are neither wanted nor owned, and of foreign values that are gone.
    fn forget_old_state(&mut self, resolved: &Resolved, observed: &Observed) {
        let wanted = |key: &SettingKey| resolved.settings.get(key).is_some_and(|desired| desired.enforced().is_some());
        self.foreign_kept.retain(|key, value| !wanted(key) && observed.own(key).is_ok_and(|held| held == *value));
        let owned = self.ledger.owned();
        let live = |key: &SettingKey| resolved.settings.contains_key(key) || owned.contains_key(key);
        self.retries.retain(|key, _| live(key));
        self.written_at.retain(|key, _| live(key));
        self.repairs.retain(|key, _| live(key));
        self.trouble.retain(|key, _| live(key));
        self.confirmed.retain(|key, _| live(key));
    }

    fn conditions_before(&self, uid: &str) -> &[Condition] {
        let rule: Option<&RuleReport> = self.last.rules.iter().find(|rule| rule.uid == uid);
        rule.map(|rule| rule.conditions.as_slice()).unwrap_or_default()
    }
}

/// A finding about the ledger, which stands between Weir and the kernel.
fn ledger_trouble(error: &std::io::Error) -> Finding {
    Finding::holds(
        ConditionType::WriteFailed,
        "LedgerWriteFailed",
        format!("nothing is written to the kernel, since it could not be noted in the state directory first: {error}"),
    )
    .with_access(Access { file: String::new(), value: None, errno: error.raw_os_error(), read_back: None })
}

#[cfg(test)]
mod tests;
