//! What `session` and `status` know, put together into the answers of the API.

use std::time::Instant;

use weir_common::units::LimitKey;
use weir_proto::v1;

use crate::{
    model::{Achieved, Condition, ConditionDetail, Directive, Intent, NodeName, RuleState, RuleStatus, SettingStatus},
    session::{Hub, NodeState},
    status::{Board, IntentSummary, NodeAnswer, summarise},
    wire::{
        condition_to_wire, directive_to_wire, duration_to_wire, facts_to_wire, fence_to_wire, intent_status_to_wire,
        rule_state_to_wire, setting_to_wire, time_to_wire, to_i64,
    },
};

/// Reads the fleet's state.
#[derive(Clone, Copy)]
pub(super) struct Views<'a> {
    pub(super) hub: &'a Hub,
    pub(super) board: &'a Board,
    pub(super) now: Instant,
}

impl Views<'_> {
    /// An intent's status over all nodes.
    pub(super) fn intent_status(&self, intent: &Intent) -> v1::IntentStatus {
        let record = &intent.record;
        let mut summary = intent_summary(self.hub, self.board, intent);
        let mut conditions = not_implemented(intent);
        if record.is_deleting() {
            summary.holding = self.hub.holders(intent);
            let message = format!("listed until no node holds it: {} may", summary.holding.len());
            let mut deleting = Condition::holds("Deleting", "DeletionRequested", message);
            deleting.observed_generation = record.generation;
            deleting.last_transition = record.delete_time;
            conditions.push(deleting);
        }
        intent_status_to_wire(record.is_deleting(), &summary, &conditions)
    }

    /// One intent on one node.
    pub(super) fn intent_on_node(&self, intent: &Intent, node: &NodeName, connected: bool) -> v1::IntentNodeStatus {
        let record = &intent.record;
        let withheld = self.hub.withheld(node, &record.name);
        let left_out = withheld.as_ref().map(|withheld| condition_to_wire(&withheld.condition()));
        match self.board.rule(node, &record.uid, self.now) {
            Some((rule, age)) => {
                let mut status = self.rule_status(&rule, node, !connected);
                status.intent = record.name.to_string();
                status.conditions.extend(left_out);
                status.age = Some(duration_to_wire(age));
                status
            }
            None => {
                let nothing_sent = withheld.is_some_and(|withheld| withheld.whole);
                v1::IntentNodeStatus {
                    intent: record.name.to_string(),
                    node: node.resource(),
                    observed_generation: if nothing_sent { to_i64(record.generation) } else { 0 },
                    state: rule_state_to_wire(if nothing_sent { RuleState::Failed } else { RuleState::Pending }),
                    conditions: left_out.into_iter().collect(),
                    settings: Vec::new(),
                    age: None,
                    stale: !connected,
                }
            }
        }
    }

    /// A rule as the agent reported it, with what was achieved.
    pub(super) fn rule_status(&self, rule: &RuleStatus, node: &NodeName, stale: bool) -> v1::IntentNodeStatus {
        v1::IntentNodeStatus {
            intent: rule.intent.clone(),
            node: node.resource(),
            observed_generation: to_i64(rule.generation),
            state: rule_state_to_wire(rule.state),
            conditions: rule.conditions.iter().map(condition_to_wire).collect(),
            settings: rule.settings.iter().map(|s| setting_to_wire(s, self.achieved(node, s))).collect(),
            age: None,
            stale,
        }
    }

    fn achieved(&self, node: &NodeName, setting: &SettingStatus) -> Result<Achieved, String> {
        let achieved = self.achieved_of(node, setting.cgroup_id, setting.device, setting.key);
        // The agent knows better why there is none.
        achieved.map_err(|why| if setting.achieved_unknown.is_empty() { why } else { setting.achieved_unknown.clone() })
    }

    /// What a cgroup got on a device.
    pub(super) fn achieved_of(
        &self,
        node: &NodeName,
        cgroup_id: u64,
        device: weir_common::device::DeviceId,
        key: LimitKey,
    ) -> Result<Achieved, String> {
        self.board.achieved(node, cgroup_id, device, key, self.now)
    }

    /// A node.
    pub(super) fn node(&self, state: &NodeState) -> v1::Node {
        let snapshot = self.board.node(&state.name, self.now);
        let connected = self.hub.is_connected(&state.name);
        let mut conditions: Vec<Condition> =
            snapshot.as_ref().map(|snapshot| snapshot.conditions.clone()).unwrap_or_default();
        let mut say = |condition: Condition| {
            if conditions.iter().all(|reported| reported.kind != condition.kind) {
                conditions.push(condition);
            }
        };
        let phase = match connected {
            true => v1::NodePhase::Connected,
            false if self.board.is_gone(&state.name, self.now) => v1::NodePhase::Gone,
            false => v1::NodePhase::Stale,
        };
        if !connected {
            let message = "the node is out of contact; it keeps its last plan, and what is shown is the last known";
            say(Condition::holds("Stale", "OutOfContact", message));
        }
        if phase == v1::NodePhase::Gone {
            let message = "out of contact for long: where the node will not come back, forget it, so that no deletion \
                           waits for it (weirctl forget NODE)";
            say(Condition::holds("Gone", "OutOfContactForLong", message));
        }
        match state.directive {
            Directive::Active => {}
            Directive::Paused => say(Condition::holds("Paused", "Directive", "nothing is changed on this node")),
            Directive::Released => {
                let held = snapshot.as_ref().map_or(0, |snapshot| snapshot.settings_held);
                let still = if held > 0 { format!("; {held} settings are held still") } else { String::new() };
                let message = format!("the node is told to put everything back, and to stay so{still}");
                say(Condition::holds("Released", "Directive", message));
            }
        }
        if let Some(refused) = &state.conflict {
            let message = format!(
                "another agent (ledger {refused}) tried to connect under this name and was refused: two machines have one \
                 name; rename one with --node"
            );
            say(Condition::holds("NameConflict", "TwoAgents", message));
        }
        if let Some(lost) = &state.record.lost_ledger {
            let message = format!(
                "the ledger {lost} was lost since the node booted: limits that it left in the kernel are taken for original \
                 values by the present one; reboot the node, or clear them by hand and forget the node"
            );
            say(Condition::holds("LedgerReplaced", "SameBoot", message));
        }
        if let Some(refused) = &state.refused {
            say(refused.clone());
        }
        v1::Node {
            name: state.name.resource(),
            uid: state.record.uid.clone(),
            phase: phase.into(),
            directive: directive_to_wire(state.directive),
            facts: snapshot.as_ref().map(|snapshot| facts_to_wire(&snapshot.facts)),
            agent_version: snapshot.as_ref().map(|snapshot| snapshot.agent.version.clone()).unwrap_or_default(),
            features: snapshot.as_ref().map(|snapshot| snapshot.agent.features.clone()).unwrap_or_default(),
            applied_fence: snapshot.as_ref().and_then(|snapshot| snapshot.applied_fence).map(fence_to_wire),
            settings_held: snapshot
                .as_ref()
                .map_or(0, |snapshot| i32::try_from(snapshot.settings_held).unwrap_or(i32::MAX)),
            conditions: conditions.iter().map(condition_to_wire).collect(),
            last_contact_age: snapshot.as_ref().map(|snapshot| duration_to_wire(snapshot.last_contact_age)),
            create_time: Some(time_to_wire(state.record.first_seen)),
        }
    }
}

/// What became of an intent on the nodes that it matches; without who may still hold it.
pub(crate) fn intent_summary(hub: &Hub, board: &Board, intent: &Intent) -> IntentSummary {
    let record = &intent.record;
    summarise(hub.matched(intent).into_iter().map(|(node, connected)| {
        let reported = board.rule_state(&node, &record.uid);
        let state = reported.filter(|&(generation, _)| generation == record.generation).map(|(_, state)| state);
        let withheld = || {
            let withheld = hub.withheld(&node, &record.name)?;
            (withheld.whole && withheld.generation == record.generation).then_some(RuleState::Failed)
        };
        NodeAnswer { connected, state: state.or_else(withheld) }
    }))
}

/// What of the intent is stored but not acted on, also where no node matches.
fn not_implemented(intent: &Intent) -> Vec<Condition> {
    let missing = intent.record.spec.not_implemented();
    let condition = |reason: &str, what: &str, fields: Vec<String>| {
        let message = format!("{what} not acted on yet: {}", fields.join(", "));
        let mut condition = Condition::holds("NotImplemented", reason, message);
        condition.observed_generation = intent.record.generation;
        condition.last_transition = Some(intent.record.update_time);
        condition.detail = Some(ConditionDetail::Fields(fields));
        condition
    };
    let mut conditions = Vec::new();
    if !missing.controls.is_empty() {
        conditions.push(condition("ControlNotImplemented", "these controls are", missing.controls));
    }
    if !missing.selectors.is_empty() {
        conditions.push(condition(
            "SelectorNotImplemented",
            "terms with these fields match nothing, they are",
            missing.selectors,
        ));
    }
    conditions
}
