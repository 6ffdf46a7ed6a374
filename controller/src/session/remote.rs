//! Nodes that other replicas serve, as those tell it: who is connected there, and what each holds at most.

use std::{collections::BTreeSet, time::Instant};

use tokio::sync::mpsc;
use weir_common::fence::Fence;

use super::{Hub, hub::Inner, queries::Ask};
use crate::{
    leader::ReplicaId,
    model::{AgentReport, Condition, NodeFacts, NodeName},
    plan::Holding,
    status::AgentIdentity,
};

/// A question for the agent of a node that another replica serves.
pub(crate) type RemoteAsk = (NodeName, Ask);

/// A node with a session on another replica.
#[derive(Debug)]
pub(super) struct Remote {
    pub(super) replica: ReplicaId,
    pub(super) session: RemoteSession,
    pub(super) features: BTreeSet<String>,
    /// What it reported while a session here had the board's word.
    pub(super) unshown: Option<(AgentReport, Instant)>,
    pub(super) holding: Option<Holding>,
    pub(super) refused: Option<Condition>,
    pub(super) asks: mpsc::Sender<RemoteAsk>,
}

/// A session on another replica: what its agent said of itself there, with its present facts.
#[derive(Clone, Debug)]
pub(crate) struct RemoteSession {
    pub(crate) agent: AgentIdentity,
    pub(crate) facts: NodeFacts,
    pub(crate) settings_held: u32,
    pub(crate) fence: Option<Fence>,
    /// When the agent was last heard of.
    pub(crate) heard: Instant,
}

/// What became of a node whose session here ended.
#[derive(Debug)]
pub(super) enum Left {
    /// The session was not the node's any more.
    NotOurs,
    /// It has no session, as far as this replica knows.
    Away,
    /// Its session on another replica has the word now, and what was reported there meanwhile.
    Elsewhere(Box<(RemoteSession, Option<(AgentReport, Instant)>)>),
}

impl Hub {
    /// Whether a session of this replica serves the node.
    pub(crate) fn serves(&self, node: &NodeName) -> bool {
        self.lock().sessions.contains_key(node)
    }

    /// Another replica serves the node.
    pub(crate) fn remote_session(
        &self,
        replica: &ReplicaId,
        node: &NodeName,
        session: RemoteSession,
        asks: mpsc::Sender<RemoteAsk>,
    ) {
        let mut inner = self.lock();
        let before = inner.remotes.remove(node).filter(|before| before.session.agent.uid == session.agent.uid);
        let holding = before.and_then(|before| before.holding);
        let features = session.agent.features.iter().cloned().collect();
        let replica = replica.clone();
        let remote = Remote { replica, session, features, unshown: None, holding, refused: None, asks };
        inner.remotes.insert(node.clone(), remote);
        drop(inner);
        self.bump();
    }

    /// The node's facts changed there.
    pub(crate) fn remote_facts(&self, replica: &ReplicaId, node: &NodeName, facts: NodeFacts) {
        if let Some(remote) = self.lock().remote(replica, node) {
            remote.session.facts = facts;
        }
        self.bump();
    }

    /// A report that the board is not to show while a session here has the word.
    pub(crate) fn remote_unshown(&self, replica: &ReplicaId, node: &NodeName, report: AgentReport, at: Instant) {
        if let Some(remote) = self.lock().remote(replica, node) {
            remote.unshown = Some((report, at));
        }
    }

    /// What the node holds: the plan in force there, and the intents of which it still owns settings.
    pub(crate) fn remote_report(&self, replica: &ReplicaId, node: &NodeName, fence: Option<Fence>, held: &[String]) {
        let epoch = self.epoch();
        let mut inner = self.lock();
        let Some(remote) = inner.remote(replica, node) else { return };
        let uids: BTreeSet<String> = held.iter().cloned().collect();
        // Of another epoch, a revision says nothing about this store's.
        let reflected = fence.filter(|fence| fence.store_epoch == epoch).map_or(0, |fence| fence.revision);
        let holding = Some(Holding { reflected, uids });
        if remote.holding == holding {
            return;
        }
        remote.holding = holding;
        drop(inner);
        self.bump();
    }

    /// The node refused a plan there, or accepted one since.
    pub(crate) fn remote_refused(&self, replica: &ReplicaId, node: &NodeName, condition: Option<Condition>) {
        if let Some(remote) = self.lock().remote(replica, node) {
            remote.refused = condition;
        }
    }

    /// The session there ended.
    pub(crate) fn remote_end(&self, replica: &ReplicaId, node: &NodeName, instance: &str) {
        let mut inner = self.lock();
        if inner.remote(replica, node).is_some_and(|remote| remote.session.agent.instance == instance) {
            inner.remote_leaves(node);
        }
        drop(inner);
        self.bump();
    }

    /// Of that replica's nodes only these are left: the others' instances, by node.
    pub(crate) fn remote_only(&self, replica: &ReplicaId, left: &BTreeSet<NodeName>) -> Vec<(NodeName, String)> {
        let mut inner = self.lock();
        let gone: Vec<(NodeName, String)> = inner
            .remotes
            .iter()
            .filter(|(node, remote)| remote.replica == *replica && !left.contains(*node))
            .map(|(node, remote)| (node.clone(), remote.session.agent.instance.clone()))
            .collect();
        for (node, _) in &gone {
            inner.remote_leaves(node);
        }
        drop(inner);
        if !gone.is_empty() {
            self.bump();
        }
        gone
    }

    /// Another agent tried to have the name of a connected node.
    pub(crate) fn conflict(&self, node: &NodeName, refused_uid: &str) {
        self.lock().conflicts.insert(node.clone(), (refused_uid.to_owned(), std::time::Instant::now()));
    }
}

impl Inner {
    fn remote(&mut self, replica: &ReplicaId, node: &NodeName) -> Option<&mut Remote> {
        self.remotes.get_mut(node).filter(|remote| remote.replica == *replica)
    }

    fn remote_leaves(&mut self, node: &NodeName) {
        let Some(remote) = self.remotes.remove(node) else { return };
        if self.sessions.contains_key(node) {
            return;
        }
        match remote.holding {
            Some(holding) => drop(self.away.insert(node.clone(), holding)),
            None => drop(self.away.remove(node)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{catalog::Catalog, model::Labels, session::AttachError};

    fn session(uid: &str, instance: &str) -> RemoteSession {
        RemoteSession {
            agent: AgentIdentity {
                uid: uid.into(),
                instance: instance.into(),
                version: String::new(),
                features: vec!["f".to_owned()],
            },
            facts: NodeFacts {
                labels: Labels::new(),
                kernel_release: String::new(),
                cgroup_version: None,
                devices: vec![],
                floor: Default::default(),
            },
            settings_held: 0,
            fence: None,
            heard: Instant::now(),
        }
    }

    #[test]
    fn where_an_agent_moved_away_its_session_there_has_the_word() {
        let hub = Hub::new(1, Catalog::default());
        let (node, there) = ("n".parse::<NodeName>().unwrap(), ReplicaId("r".into()));
        let (asks, _receiver) = mpsc::channel(1);
        let here = hub.attach(&node, "u1", "1", Labels::new(), BTreeSet::new()).unwrap();
        // It restarted, and connected elsewhere before its end was noticed here.
        hub.remote_session(&there, &node, session("u1", "2"), asks);
        let report =
            AgentReport { fence: None, rules: vec![], settings_held: 7, conditions: vec![], uids_held: vec![] };
        hub.remote_unshown(&there, &node, report, Instant::now());
        match hub.detach(&node, here.id) {
            Left::Elsewhere(moved) => {
                assert_eq!(moved.0.agent.instance, "2");
                assert_eq!(moved.1.unwrap().0.settings_held, 7);
            }
            other => panic!("{other:?}"),
        }
        assert!(matches!(hub.detach(&node, here.id), Left::NotOurs));
        let here = hub.attach(&node, "u1", "3", Labels::new(), BTreeSet::new()).unwrap();
        hub.remote_end(&there, &node, "2");
        assert!(matches!(hub.detach(&node, here.id), Left::Away));
    }

    #[test]
    fn a_refusal_there_lasts_until_it_is_taken_back_or_the_session_ends() {
        let hub = Hub::new(1, Catalog::default());
        let (node, there) = ("n".parse::<NodeName>().unwrap(), ReplicaId("r".into()));
        let (asks, _receiver) = mpsc::channel(1);
        hub.remote_session(&there, &node, session("u1", "1"), asks.clone());
        let refused = || hub.lock().remotes[&node].refused.is_some();
        hub.remote_refused(&there, &node, Some(Condition::holds("PlanRefused", "LowerFence", String::new())));
        hub.remote_report(&there, &node, Some(Fence { store_epoch: 1, revision: 5, facts_generation: 1 }), &[]);
        hub.remote_facts(&there, &node, session("u1", "1").facts);
        assert!(refused());
        hub.remote_refused(&there, &node, None);
        assert!(!refused());
        hub.remote_refused(&there, &node, Some(Condition::holds("PlanRefused", "LowerFence", String::new())));
        hub.remote_session(&there, &node, session("u1", "1"), asks);
        assert!(!refused(), "another session has refused nothing yet");
    }

    #[test]
    fn a_name_that_is_live_elsewhere_is_taken_until_it_ends_there() {
        let hub = Hub::new(1, Catalog::default());
        let (node, there) = ("n".parse::<NodeName>().unwrap(), ReplicaId("r".into()));
        let (asks, _receiver) = mpsc::channel(1);
        hub.remote_session(&there, &node, session("u1", "1"), asks.clone());
        assert!(hub.is_connected(&node) && !hub.serves(&node));
        let refused = hub.attach(&node, "u2", "x", Labels::new(), BTreeSet::new()).unwrap_err();
        assert!(matches!(&refused, AttachError::NameTaken { other, .. } if other == "u1"));
        assert!(hub.attach(&node, "u1", "1", Labels::new(), BTreeSet::new()).is_ok(), "the same agent moved here");
        hub.remote_end(&there, &node, "1");
        assert!(hub.is_connected(&node), "its session here goes on");

        let other = "m".parse::<NodeName>().unwrap();
        hub.remote_session(&there, &other, session("u3", "1"), asks);
        assert_eq!(hub.remote_only(&there, &BTreeSet::from([other.clone()])), []);
        assert_eq!(hub.remote_only(&there, &BTreeSet::new()), [(other.clone(), "1".to_owned())]);
        assert!(!hub.is_connected(&other));
        assert!(hub.attach(&other, "u4", "x", Labels::new(), BTreeSet::new()).is_ok());
    }
}
