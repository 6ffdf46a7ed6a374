//! What this agent says of itself over HTTP: its health, and the three numbers of what it enforces, from the last report. Reads
//! what the loop, the link and the sampler publish; counts nothing itself.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::watch;
use weir_common::{
    ops::{Answers, Family, Kind, Value},
    units::{LimitKey, LimitValue},
};

use crate::{
    enforce::report::{Report, RuleState, SettingReport},
    link::state::LinkState,
    measure::{Meter, Reason},
};

/// Most (intent, device, key) of which the three numbers are told; more are counted, not listed.
const MOST: usize = 2000;
/// Window of achieved rates.
const WINDOW: Duration = Duration::from_secs(10);

/// The agent's answers.
pub struct AgentOps {
    /// Name of the node.
    pub node: String,
    /// The last report.
    pub reports: watch::Receiver<Arc<Report>>,
    /// How the link is.
    pub link: watch::Receiver<LinkState>,
    /// The sampler.
    pub meter: Meter,
    /// A pass must end within this.
    pub pass_within: Duration,
    /// When the agent started.
    pub started: Instant,
}

impl Answers for AgentOps {
    fn live(&self) -> Result<(), String> {
        let last = self.reports.borrow().passed_at.unwrap_or(self.started);
        let since = last.elapsed();
        if since > self.pass_within {
            return Err(format!("no pass of enforcement has ended for {} s", since.as_secs()));
        }
        Ok(())
    }

    fn ready(&self) -> Result<(), String> {
        self.live()?;
        match self.reports.borrow().passed_at {
            Some(_) => Ok(()),
            None => Err("the disks and cgroups of the node were not seen yet".to_owned()),
        }
    }

    fn metrics(&self) -> Vec<Family> {
        let report = self.reports.borrow().clone();
        let link = self.link.borrow().clone();
        let mut families = vec![
            Family::new("weir_agent_info", "This agent", Kind::Gauge).with(
                vec![("node", self.node.clone()), ("version", env!("CARGO_PKG_VERSION").to_owned())],
                Value::Count(1),
            ),
            flag("weir_agent_connected", "Whether there is a session with a controller", link.controller.is_some()),
            flag("weir_agent_stale", "Whether every controller was out of contact for 30 s or more", link.stale),
            Family::count("weir_agent_sessions", "Sessions with controllers", Kind::Counter, link.sessions),
        ];
        families.extend(work(&report));
        families.extend(states(&report));
        families.extend(limits(&report, &self.meter));
        let (ticks, took) = self.meter.cost();
        families.extend([
            Family::count("weir_agent_samples", "Looks at all counters", Kind::Counter, ticks),
            Family::number(
                "weir_agent_sampling_seconds",
                "Time that the looks at the counters took",
                Kind::Counter,
                took.as_secs_f64(),
            ),
        ]);
        families
    }
}

fn flag(name: &'static str, help: &'static str, set: bool) -> Family {
    Family::count(name, help, Kind::Gauge, u64::from(set))
}

/// What the loop did since the start.
fn work(report: &Report) -> Vec<Family> {
    let mut families = vec![
        Family::count("weir_agent_passes", "Passes of enforcement", Kind::Counter, report.counts.passes),
        Family::number(
            "weir_agent_pass_seconds",
            "Time that passes of enforcement took",
            Kind::Counter,
            report.counts.pass_time.as_secs_f64(),
        ),
        Family::count(
            "weir_agent_settings_held",
            "Settings owned in the kernel",
            Kind::Gauge,
            count(report.settings_held),
        ),
        Family::count(
            "weir_agent_drift_repairs",
            "Foreign changes of settings that were put right",
            Kind::Counter,
            report.counts.repairs,
        ),
    ];
    let mut written = Family::new("weir_agent_settings_written", "Settings written, by cause", Kind::Counter);
    for (cause, times) in &report.counts.written {
        written = written.with(vec![("cause", cause.name().to_owned())], Value::Count(*times));
    }
    let mut failed =
        Family::new("weir_agent_settings_failed", "Settings whose write failed, by errno or reason", Kind::Counter);
    for (reason, times) in &report.counts.failed {
        failed = failed.with(vec![("reason", reason.clone())], Value::Count(*times));
    }
    families.extend([written, failed]);
    if let Some(at) = report.passed_at {
        let age = at.elapsed().as_secs_f64();
        families.push(Family::number(
            "weir_agent_pass_age_seconds",
            "Time since the last pass ended",
            Kind::Gauge,
            age,
        ));
    }
    if let (Some(fence), Some(since)) = (report.fence, report.plan_since) {
        let age = since.elapsed().as_secs_f64();
        families.extend([
            Family::number(
                "weir_agent_plan_age_seconds",
                "Time since the plan in force was taken, or since the start",
                Kind::Gauge,
                age,
            ),
            Family::count(
                "weir_agent_plan_revision",
                "The store's revision of the plan in force",
                Kind::Gauge,
                fence.revision,
            ),
            Family::count(
                "weir_agent_plan_epoch",
                "The store's epoch of the plan in force",
                Kind::Gauge,
                fence.store_epoch,
            ),
        ]);
    }
    families
}

/// Rules by state, conditions of the node.
fn states(report: &Report) -> Vec<Family> {
    let mut rules = Family::new("weir_agent_rules", "Intents on this node, by state", Kind::Gauge);
    for (name, state) in [
        ("applied", RuleState::Applied),
        ("failed", RuleState::Failed),
        ("no_match", RuleState::NoMatch),
        ("suspended", RuleState::Suspended),
    ] {
        let number = report.rules.iter().filter(|rule| rule.state == state).count();
        rules = rules.with(vec![("state", name.to_owned())], Value::Count(count(number)));
    }
    let mut conditions = Family::new("weir_agent_condition", "Conditions of the node that hold", Kind::Gauge);
    for condition in &report.node {
        let labels =
            vec![("type", condition.finding.kind.name().to_owned()), ("reason", condition.finding.reason.to_owned())];
        conditions = conditions.with(labels, Value::Count(1));
    }
    vec![rules, conditions]
}

/// The three numbers over all cgroups in which an intent decides a key of a device.
#[derive(Default)]
struct Numbers {
    settings: u64,
    intended: f64,
    effective: f64,
    achieved: Option<f64>,
    /// The largest of those at their limit.
    error: Option<f64>,
}

impl Numbers {
    fn add(&mut self, setting: &SettingReport, meter: &Meter) {
        self.settings += 1;
        self.intended += number(setting.intended);
        self.effective += setting.effective.map_or(f64::NAN, number);
        let key = &setting.key;
        let Ok(achieved) = meter.achieved(key.cgroup.id, key.device, key.key, WINDOW) else { return };
        self.achieved = Some(self.achieved.unwrap_or(0.0) + achieved.per_second);
        let at_its_limit = achieved.reasons.first().is_some_and(|(why, _)| *why == Reason::OwnLimit);
        if let Some(limit) = setting.effective.and_then(LimitValue::get).filter(|_| at_its_limit) {
            // Rates are far below 2^53.
            #[allow(clippy::cast_precision_loss, reason = "a ratio of rates needs no 53 bits")]
            let error = achieved.per_second / limit as f64 - 1.0;
            if self.error.is_none_or(|largest| error.abs() > largest.abs()) {
                self.error = Some(error);
            }
        }
    }
}

/// Unlimited is infinite.
fn number(value: LimitValue) -> f64 {
    #[allow(clippy::cast_precision_loss, reason = "a rate needs no 53 bits")]
    value.get().map_or(f64::INFINITY, |value| value as f64)
}

fn limits(report: &Report, meter: &Meter) -> Vec<Family> {
    let mut groups: BTreeMap<(&str, &str, LimitKey), Numbers> = BTreeMap::new();
    let mut left_out = 0;
    for setting in &report.settings {
        let group = (setting.intent.as_str(), setting.device_name.as_str(), setting.key.key);
        if groups.len() >= MOST && !groups.contains_key(&group) {
            left_out += 1;
            continue;
        }
        groups.entry(group).or_default().add(setting, meter);
    }
    let gauge = |name, help| Family::new(name, help, Kind::Gauge);
    let mut settings = gauge("weir_limit_settings", "Settings that the intent decides");
    let mut intended =
        gauge("weir_limit_intended", "What the intent wants, summed over cgroups; bytes or operations a second");
    let mut effective = gauge("weir_limit_effective", "What the kernel holds, summed over cgroups");
    let mut achieved = gauge("weir_limit_achieved", "What the workloads got over 10 s, summed over cgroups");
    let mut error = gauge(
        "weir_limit_error_ratio",
        "The largest deviation of achieved from effective among the cgroups that are at their limit",
    );
    for ((intent, device, key), numbers) in groups {
        let labels = || vec![("intent", intent.to_owned()), ("device", device.to_owned()), ("key", key.to_string())];
        settings = settings.with(labels(), Value::Count(numbers.settings));
        intended = intended.with(labels(), Value::Number(numbers.intended));
        effective = effective.with(labels(), Value::Number(numbers.effective));
        if let Some(value) = numbers.achieved {
            achieved = achieved.with(labels(), Value::Number(value));
        }
        if let Some(value) = numbers.error {
            error = error.with(labels(), Value::Number(value));
        }
    }
    let left_out = Family::count(
        "weir_limit_left_out",
        "Settings that are not told, as there are too many intents",
        Kind::Gauge,
        left_out,
    );
    vec![settings, intended, effective, achieved, error, left_out]
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}
