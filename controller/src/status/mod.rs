//! What the fleet reported, with its age: per node the last report, the measurements, and when it was last heard of. In
//! memory only, never trusted as desired state: after a restart it is unknown until the agents have reported again.
//!
//! Times come in as values.

mod measurements;
mod summary;

pub use summary::{IntentSummary, NodeAnswer, summarise};

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use weir_common::{device::DeviceId, fence::Fence, units::LimitKey};

use crate::model::{Achieved, AgentReport, Measurement, NodeFacts, NodeName, RuleStatus};
use measurements::Measurements;

/// What an agent said of itself when it connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentIdentity {
    /// Identity of its ledger.
    pub uid: String,
    /// Differs at every start of the agent.
    pub instance: String,
    /// Version.
    pub version: String,
    /// What it can do.
    pub features: Vec<String>,
}

/// The reports of all nodes.
#[derive(Debug)]
pub struct Board {
    /// A node of which nothing was heard is counted from here.
    since: Instant,
    gone_after: Duration,
    nodes: Mutex<HashMap<NodeName, NodeStatus>>,
}

#[derive(Debug)]
struct NodeStatus {
    agent: AgentIdentity,
    connected: bool,
    facts: NodeFacts,
    last_contact: Instant,
    settings_held: u32,
    applied_fence: Option<Fence>,
    report: Option<(AgentReport, Instant)>,
    measurements: Measurements,
}

/// A node's status at one moment.
#[derive(Clone, Debug)]
pub struct NodeSnapshot {
    /// Its agent.
    pub agent: AgentIdentity,
    /// Whether it has a stream to this controller.
    pub connected: bool,
    /// What the agent last knew.
    pub facts: NodeFacts,
    /// Time since its last message.
    pub last_contact_age: Duration,
    /// Settings that it owns in the kernel.
    pub settings_held: u32,
    /// Fence of the plan that it last acknowledged.
    pub applied_fence: Option<Fence>,
    /// Conditions of the node as such.
    pub conditions: Vec<crate::model::Condition>,
}

impl Board {
    /// An empty one, as of `now`; a node is taken for gone after so long without contact.
    pub fn new(gone_after: Duration, now: Instant) -> Self {
        Board { since: now, gone_after, nodes: Mutex::default() }
    }

    fn nodes(&self) -> MutexGuard<'_, HashMap<NodeName, NodeStatus>> {
        // Every change is complete by itself: a panic of somebody else leaves nothing half done.
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An agent connected. Its earlier report stays until the next one, its measurements only if it is the same start of
    /// the agent: another one counts anew.
    pub fn connected(
        &self,
        node: &NodeName,
        agent: AgentIdentity,
        facts: NodeFacts,
        settings_held: u32,
        fence: Option<Fence>,
        now: Instant,
    ) {
        let mut nodes = self.nodes();
        let before = nodes.remove(node).filter(|status| status.agent.uid == agent.uid);
        let (report, measurements) = match before {
            Some(status) if status.agent.instance == agent.instance => (status.report, status.measurements),
            Some(status) => (status.report, Measurements::default()),
            None => (None, Measurements::default()),
        };
        let status = NodeStatus {
            agent,
            connected: true,
            facts,
            last_contact: now,
            settings_held,
            applied_fence: fence,
            report,
            measurements,
        };
        nodes.insert(node.clone(), status);
    }

    /// The stream of this start of an agent ended.
    pub fn disconnected(&self, node: &NodeName, instance: &str) {
        if let Some(status) = self.nodes().get_mut(node).filter(|status| status.agent.instance == instance) {
            status.connected = false;
        }
    }

    /// A node was forgotten.
    pub fn forget(&self, node: &NodeName) {
        self.nodes().remove(node);
    }

    /// A message came in.
    pub fn contact(&self, node: &NodeName, now: Instant) {
        if let Some(status) = self.nodes().get_mut(node) {
            status.last_contact = now;
        }
    }

    /// When the last message came in.
    pub fn last_contact(&self, node: &NodeName) -> Option<Instant> {
        self.nodes().get(node).map(|status| status.last_contact)
    }

    /// Whether a node that is out of contact was so for long enough to be taken for gone.
    pub fn is_gone(&self, node: &NodeName, now: Instant) -> bool {
        now.saturating_duration_since(self.last_contact(node).unwrap_or(self.since)) > self.gone_after
    }

    /// The facts changed.
    pub fn facts(&self, node: &NodeName, facts: NodeFacts) {
        if let Some(status) = self.nodes().get_mut(node) {
            status.facts = facts;
        }
    }

    /// A report came in; `acknowledged` where it accepts a plan.
    pub fn report(&self, node: &NodeName, report: AgentReport, acknowledged: bool, now: Instant) {
        if let Some(status) = self.nodes().get_mut(node) {
            status.settings_held = report.settings_held;
            if acknowledged {
                status.applied_fence = report.fence;
            }
            let settings = report.rules.iter().flat_map(|rule| &rule.settings);
            let in_force = settings.map(|s| (s.cgroup_id, s.device, s.key, s.effective));
            status.measurements.limits(in_force, now);
            status.report = Some((report, now));
        }
    }

    /// Measurements came in. Those of an unknown node or of another start of the agent are left out.
    pub fn measured(&self, node: &NodeName, instance: &str, sent_ns: u64, rows: &[Measurement], now: Instant) {
        if let Some(status) = self.nodes().get_mut(node).filter(|status| status.agent.instance == instance) {
            status.last_contact = now;
            status.measurements.add(sent_ns, rows, now);
        }
    }

    /// A node's status.
    pub fn node(&self, node: &NodeName, now: Instant) -> Option<NodeSnapshot> {
        self.nodes().get(node).map(|status| NodeSnapshot {
            agent: status.agent.clone(),
            connected: status.connected,
            facts: status.facts.clone(),
            last_contact_age: now.saturating_duration_since(status.last_contact),
            settings_held: status.settings_held,
            applied_fence: status.applied_fence,
            conditions: status.report.as_ref().map(|(report, _)| report.conditions.clone()).unwrap_or_default(),
        })
    }

    /// What a node last said of an intent, with the report's age.
    pub fn rule(&self, node: &NodeName, uid: &str, now: Instant) -> Option<(RuleStatus, Duration)> {
        let nodes = self.nodes();
        let (report, at) = nodes.get(node)?.report.as_ref()?;
        let rule = report.rules.iter().find(|rule| rule.uid == uid)?;
        Some((rule.clone(), now.saturating_duration_since(*at)))
    }

    /// Generation and state of an intent in a node's last report.
    pub fn rule_state(&self, node: &NodeName, uid: &str) -> Option<(u64, crate::model::RuleState)> {
        let nodes = self.nodes();
        let (report, _) = nodes.get(node)?.report.as_ref()?;
        report.rules.iter().find(|rule| rule.uid == uid).map(|rule| (rule.generation, rule.state))
    }

    /// What a cgroup got on a device.
    ///
    /// # Errors
    /// Why that is unknown, in one sentence.
    pub fn achieved(
        &self,
        node: &NodeName,
        cgroup_id: u64,
        device: DeviceId,
        key: LimitKey,
        now: Instant,
    ) -> Result<Achieved, String> {
        match self.nodes().get(node) {
            Some(status) => status.measurements.achieved(cgroup_id, device, key, now),
            None => Err("the node has not reported since this controller started".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::RuleState;

    fn identity(uid: &str, instance: &str) -> AgentIdentity {
        AgentIdentity { uid: uid.into(), instance: instance.into(), version: "1".into(), features: vec![] }
    }

    fn facts() -> NodeFacts {
        NodeFacts {
            labels: Default::default(),
            kernel_release: String::new(),
            cgroup_version: None,
            devices: vec![],
            floor: Default::default(),
        }
    }

    fn report(uid: &str, generation: u64) -> AgentReport {
        let rule = RuleStatus {
            uid: uid.into(),
            intent: String::new(),
            generation,
            state: RuleState::Applied,
            conditions: vec![],
            settings: vec![],
        };
        AgentReport { fence: None, rules: vec![rule], settings_held: 3, conditions: vec![], uids_held: vec![] }
    }

    #[test]
    fn a_report_stays_with_its_age_until_the_ledger_is_another() {
        let start = Instant::now();
        let board = Board::new(Duration::from_secs(60), start);
        let node: NodeName = "n1".parse().unwrap();
        board.report(&node, report("u", 1), true, start);
        assert!(board.rule(&node, "u", start).is_none(), "an unknown node's report is nobody's");
        board.connected(&node, identity("ledger", "1"), facts(), 0, None, start);
        board.report(&node, report("u", 1), true, start);
        board.disconnected(&node, "another");
        assert!(board.node(&node, start).unwrap().connected);
        board.disconnected(&node, "1");
        let later = start + Duration::from_secs(40);
        assert!(!board.node(&node, later).unwrap().connected);
        assert_eq!(board.rule(&node, "u", later).unwrap().1, Duration::from_secs(40));
        let other = "n2".parse().unwrap();
        assert!([&node, &other].iter().all(|node| !board.is_gone(node, start + Duration::from_secs(60))));
        assert!([&node, &other].iter().all(|node| board.is_gone(node, start + Duration::from_secs(61))));
        board.contact(&node, later);
        assert!(!board.is_gone(&node, later + Duration::from_secs(60)));
        board.connected(&node, identity("ledger", "2"), facts(), 0, None, later);
        assert_eq!(board.rule_state(&node, "u"), Some((1, RuleState::Applied)));
        board.connected(&node, identity("reimaged", "3"), facts(), 0, None, later);
        assert_eq!(board.rule_state(&node, "u"), None);
    }
}
