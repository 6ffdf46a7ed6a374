//! The agent's loop: snapshot devices and cgroups, resolve, enforce, publish; then wait for a new plan or the next period. It
//! never depends on a controller: it starts from the plan in the ledger. Runs on a thread that may block.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use weir_common::{fence::Fence, glob};

use crate::{
    condition::{Condition, ConditionType, Finding, timed},
    devices::{DeviceSnapshot, Named},
    enforce::{Enforcer, Input, report::Report},
    kernel::Kernel,
    ledger::{Ledger, Quarantine},
    measure::Meter,
    plan::{Offer, Plan, Refusal, accept},
    resolve::{NodeSettings, resolve},
    trace::{Contexts, Traces},
    view::NodeView,
    workloads::{Cgroup, WorkloadSnapshot},
};

/// What became of an offered plan: the report of the pass that enforced it, or why it was not taken and the fence held.
pub type Taken = Result<Arc<Report>, (Refusal, Option<Fence>)>;

/// Least time between two passes in which others are heard.
const REST: Duration = Duration::from_millis(50);

/// What others ask of the loop.
#[derive(Debug)]
pub enum Command {
    /// Take this plan, which brings these changes. Answered after the pass that enforced it.
    Offer(Offer, Contexts, oneshot::Sender<Taken>),
    /// List the cgroups whose path matches the glob (empty for all), each with the intents that choose it.
    Workloads(String, oneshot::Sender<Vec<(Cgroup, Vec<String>)>>),
}

/// What the agent knows of its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFacts {
    /// Labels given to the agent.
    pub labels: BTreeMap<String, String>,
    /// As uname has it.
    pub kernel_release: String,
    /// Settings of the node.
    pub node: NodeSettings,
    /// The block devices, without the names that plans have.
    pub devices: DeviceSnapshot,
}

/// What the loop is made of.
pub struct Reconciler {
    /// Enforces.
    pub enforcer: Enforcer,
    /// Measures.
    pub meter: Meter,
    /// Where devices and cgroups are looked at.
    pub view: Box<dyn NodeView>,
    /// Settings of the node.
    pub node: NodeSettings,
    /// Time between passes.
    pub period: Duration,
    /// What had to be set aside at start.
    pub quarantined: Vec<Quarantine>,
    /// Where facts are published.
    pub facts: watch::Sender<NodeFacts>,
    /// Where reports are published.
    pub reports: watch::Sender<Arc<Report>>,
}

impl Reconciler {
    /// Runs until `shutdown`. What is in force stays in force.
    pub fn run(mut self, mut commands: mpsc::Receiver<Command>, shutdown: &CancellationToken, ready: impl FnOnce()) {
        let mut look = Look { plan_since: Some(Instant::now()), ..Look::default() };
        // The plan of the ledger is enforced at once, without the waits between writes.
        let mut plan_changed = true;
        let mut ready = Some(ready);
        while !shutdown.is_cancelled() {
            let started = Instant::now();
            self.pass(&mut look, plan_changed, &Traces::default());
            if look.saw_devices && look.saw_workloads {
                plan_changed = false;
                if let Some(ready) = ready.take() {
                    ready();
                }
            }
            // Also after a pass that took longer than a period: who asks is heard.
            let due = (started + self.period).max(Instant::now() + REST);
            while let Some(left) = due.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
                match wait(&mut commands, left, shutdown) {
                    Waited::Ended => return,
                    Waited::TimedOut => break,
                    Waited::For(Command::Workloads(pattern, reply)) => {
                        // Whoever asked may be gone.
                        let _gone = reply.send(self.workloads(&look, &pattern));
                    }
                    Waited::For(Command::Offer(offer, contexts, reply)) => {
                        let traces = Traces::begin(&contexts, offer.fence());
                        let answer = self.take(offer, &traces, &mut look);
                        let _gone = reply.send(answer);
                    }
                }
            }
        }
    }

    /// Takes a plan and enforces it, or says why not.
    fn take(&mut self, offer: Offer, traces: &Traces, look: &mut Look) -> Taken {
        let held = self.enforcer.ledger().plan();
        let fence = held.map(|plan| plan.fence);
        let storing = traces.step("plan.store");
        let settings_held = self.enforcer.ledger().owned().len();
        let stored = accept(held, settings_held, offer).and_then(|plan| {
            if self.enforcer.ledger().plan() == Some(&plan) {
                return Ok(());
            }
            self.enforcer.accept(plan).map_err(|error| Refusal::StorageFailed(error.to_string()))
        });
        drop(storing);
        if let Err(refusal) = stored {
            traces.refused(&refusal);
            return Err((refusal, fence));
        }
        look.plan_since = Some(Instant::now());
        Ok(self.pass(look, true, traces))
    }

    /// One look at the node and one pass of enforcement.
    fn pass(&mut self, look: &mut Look, plan_changed: bool, traces: &Traces) -> Arc<Report> {
        let began = Instant::now();
        let resolving = traces.step("resolve");
        let plan = self.enforcer.ledger().plan();
        let named = plan.map(Plan::named_devices).unwrap_or_default();
        // What cannot be looked at is as it was: nothing is released because a directory could not be listed.
        let mut findings = Vec::new();
        let mut unreadable = |kind, error: std::io::Error| {
            tracing::error!(%error, condition = ConditionType::name(kind), "the node cannot be looked at");
            findings.push(Finding::holds(kind, "LookFailed", format!("kept as it was last seen: {error}")));
        };
        match self.view.devices(&named) {
            Ok(mut devices) => {
                devices.keep_unreadable(&look.devices);
                (look.devices, look.saw_devices) = (devices, true);
            }
            Err(error) => unreadable(ConditionType::DevicesUnreadable, error),
        }
        match self.view.workloads() {
            Ok(workloads) => (look.workloads, look.saw_workloads) = (workloads, true),
            Err(error) => unreadable(ConditionType::WorkloadsUnreadable, error),
        }
        if look.saw_workloads && look.workloads.own_cgroup.is_none() {
            let message = "this agent finds itself in no cgroup of the hierarchy, so no limit is kept from reaching it";
            findings.push(Finding::holds(ConditionType::OwnCgroupUnknown, "NotInHierarchy", message));
        }
        if !(look.saw_devices && look.saw_workloads) {
            // Nothing is known of the node yet: that is no reason to change anything on it.
            return self.reports.borrow().clone();
        }
        self.facts.send_if_modified(|facts| {
            let changed = facts.devices.devices != look.devices.devices;
            if changed {
                facts.devices.devices = look.devices.devices.clone();
            }
            changed
        });
        let rules = plan.map(|plan| plan.rules.as_slice()).unwrap_or_default();
        let resolved = resolve(rules, &look.devices, &look.workloads, self.node);
        drop(resolving);
        let mut report = self.enforcer.pass(Input {
            devices: &look.devices,
            workloads: &look.workloads,
            resolved: &resolved,
            plan_changed,
            now: Instant::now(),
            wall: SystemTime::now(),
            random: fastrand::f64(),
            traces,
        });
        look.conditions = timed(findings, 0, &look.conditions, SystemTime::now());
        report.node.extend(look.conditions.iter().cloned());
        if look.quarantined.is_empty() {
            look.quarantined = quarantine_conditions(&self.quarantined);
        }
        report.node.extend(look.quarantined.iter().cloned());
        self.meter.set_targets(report.targets.clone());
        look.passes += 1;
        look.pass_time += began.elapsed();
        (report.counts.passes, report.counts.pass_time) = (look.passes, look.pass_time);
        (report.passed_at, report.plan_since) = (Some(Instant::now()), look.plan_since);
        let report = Arc::new(report);
        self.reports.send_replace(report.clone());
        report
    }

    fn workloads(&self, look: &Look, pattern: &str) -> Vec<(Cgroup, Vec<String>)> {
        let report = self.reports.borrow().clone();
        let mut chosen: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for setting in &report.settings {
            let intents = chosen.entry(&setting.key.cgroup.path).or_default();
            intents.extend(setting.claims.iter().map(|claim| &*claim.intent));
        }
        for intents in chosen.values_mut() {
            intents.sort();
            intents.dedup();
        }
        look.workloads
            .cgroups
            .values()
            .filter(|cgroup| pattern.is_empty() || glob::matches(pattern, &cgroup.cgroup.path))
            .map(|cgroup| {
                let intents = chosen.get(cgroup.cgroup.path.as_str()).map(Vec::as_slice).unwrap_or_default();
                (cgroup.clone(), intents.iter().map(|intent| (*intent).to_owned()).collect())
            })
            .collect()
    }
}

/// The node as it was last seen.
#[derive(Default)]
struct Look {
    devices: DeviceSnapshot,
    saw_devices: bool,
    workloads: WorkloadSnapshot,
    saw_workloads: bool,
    /// What is wrong with the look itself.
    conditions: Vec<Condition>,
    quarantined: Vec<Condition>,
    passes: u64,
    pass_time: Duration,
    plan_since: Option<Instant>,
}

fn quarantine_conditions(quarantined: &[Quarantine]) -> Vec<Condition> {
    let findings = quarantined
        .iter()
        .map(|set_aside| {
            let kind = if set_aside.plan { ConditionType::PlanQuarantined } else { ConditionType::LedgerQuarantined };
            let message =
                format!("it was damaged ({}) and is kept as {}", set_aside.cause, set_aside.kept_as.display());
            Finding::holds(kind, "DamagedAtStart", message)
        })
        .collect();
    timed(findings, 0, &[], SystemTime::now())
}

enum Waited {
    For(Command),
    TimedOut,
    Ended,
}

/// Waits for a command on a thread that may block, with an eye on shutdown.
fn wait(commands: &mut mpsc::Receiver<Command>, left: Duration, shutdown: &CancellationToken) -> Waited {
    tokio::runtime::Handle::current().block_on(async {
        tokio::select! {
            command = commands.recv() => command.map_or(Waited::Ended, Waited::For),
            () = tokio::time::sleep(left) => Waited::TimedOut,
            () = shutdown.cancelled() => Waited::Ended,
        }
    })
}

/// Puts everything back with no agent running, for `weir-agent release`.
///
/// # Errors
/// The node could not be looked at.
pub fn release(
    kernel: Arc<dyn Kernel>,
    ledger: Ledger,
    view: &dyn NodeView,
) -> std::io::Result<Vec<crate::enforce::Released>> {
    let devices = view.devices(&Named::default())?;
    let workloads = view.workloads()?;
    Ok(Enforcer::new(kernel, ledger).release_all(&devices, &workloads))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        kernel::{CgroupVersion, fake::FakeKernel},
        plan::Directive,
    };
    use weir_common::units::Floor;

    /// A node at which a look takes longer than the time between looks.
    struct Slow(Duration);

    impl NodeView for Slow {
        fn devices(&self, _named: &Named) -> std::io::Result<DeviceSnapshot> {
            std::thread::sleep(self.0);
            Ok(DeviceSnapshot::default())
        }

        fn workloads(&self) -> std::io::Result<WorkloadSnapshot> {
            Ok(WorkloadSnapshot::default())
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn plans_and_questions_are_taken_however_long_a_pass_takes() {
        let dir = tempfile::tempdir().unwrap();
        let kernel: Arc<dyn Kernel> = Arc::new(FakeKernel::new(CgroupVersion::V2));
        let (ledger, _) = Ledger::open(dir.path(), "boot").unwrap();
        let node =
            NodeSettings { floor: Floor { bytes_per_second: 1, operations_per_second: 1 }, version: CgroupVersion::V2 };
        let period = Duration::from_millis(20);
        let facts = NodeFacts {
            labels: BTreeMap::new(),
            kernel_release: String::new(),
            node,
            devices: DeviceSnapshot::default(),
        };
        let reconciler = Reconciler {
            enforcer: Enforcer::new(Arc::clone(&kernel), ledger),
            meter: Meter::unattended(kernel, period),
            view: Box::new(Slow(period * 4)),
            node,
            period,
            quarantined: Vec::new(),
            facts: watch::channel(facts).0,
            reports: watch::channel(Arc::new(Report::default())).0,
        };
        let (commands, queue) = mpsc::channel(4);
        let shutdown = CancellationToken::new();
        let stop = shutdown.clone();
        let running = tokio::task::spawn_blocking(move || reconciler.run(queue, &stop, || {}));
        let within = Duration::from_secs(10);
        for revision in 1..5 {
            let fence = Fence { store_epoch: 1, revision, facts_generation: 1 };
            let plan = Plan { store_uid: String::new(), fence, directive: Directive::Active, rules: vec![] };
            let (reply, answer) = oneshot::channel();
            commands.send(Command::Offer(Offer::Whole(plan), Contexts::new(), reply)).await.unwrap();
            let taken = tokio::time::timeout(within, answer).await.expect("it is taken").unwrap();
            assert_eq!(taken.unwrap().fence, Some(fence));
        }
        let (reply, answer) = oneshot::channel();
        commands.send(Command::Workloads(String::new(), reply)).await.unwrap();
        tokio::time::timeout(within, answer).await.expect("it is answered").unwrap();
        shutdown.cancel();
        running.await.unwrap();
    }
}
