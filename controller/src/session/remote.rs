//! Nodes that other replicas serve, as those tell it: who is connected there, and what each holds at most.

use std::collections::BTreeSet;

use tokio::sync::mpsc;
use weir_common::fence::Fence;

use super::{Hub, hub::Inner, queries::Ask};
use crate::{
    leader::ReplicaId,
    model::{Condition, Labels, NodeName},
    plan::Holding,
};

/// A question for the agent of a node that another replica serves.
pub(crate) type RemoteAsk = (NodeName, Ask);

/// A node with a session on another replica.
#[derive(Debug)]
pub(super) struct Remote {
    pub(super) replica: ReplicaId,
    pub(super) uid: String,
    pub(super) instance: String,
    pub(super) labels: Labels,
    pub(super) features: BTreeSet<String>,
    pub(super) holding: Option<Holding>,
    pub(super) refused: Option<Condition>,
    pub(super) asks: mpsc::Sender<RemoteAsk>,
}

/// A session on another replica, as its agent opened it.
#[derive(Clone, Debug)]
pub(crate) struct RemoteSession {
    pub(crate) uid: String,
    pub(crate) instance: String,
    pub(crate) labels: Labels,
    pub(crate) features: BTreeSet<String>,
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
        let RemoteSession { uid, instance, labels, features } = session;
        let mut inner = self.lock();
        let before = inner.remotes.remove(node).filter(|before| before.uid == uid);
        let (holding, refused) = match before {
            Some(before) if before.instance == instance => (before.holding, before.refused),
            Some(before) => (before.holding, None),
            None => (None, None),
        };
        let replica = replica.clone();
        let remote = Remote { replica, uid, instance, labels, features, holding, refused, asks };
        inner.remotes.insert(node.clone(), remote);
        drop(inner);
        self.bump();
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
        remote.refused = None;
        drop(inner);
        self.bump();
    }

    /// The node refused a plan there.
    pub(crate) fn remote_refused(&self, replica: &ReplicaId, node: &NodeName, condition: Condition) {
        if let Some(remote) = self.lock().remote(replica, node) {
            remote.refused = Some(condition);
        }
    }

    /// The session there ended.
    pub(crate) fn remote_end(&self, replica: &ReplicaId, node: &NodeName, instance: &str) {
        let mut inner = self.lock();
        if inner.remote(replica, node).is_some_and(|remote| remote.instance == instance) {
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
            .map(|(node, remote)| (node.clone(), remote.instance.clone()))
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
    use crate::{catalog::Catalog, session::AttachError};

    fn session(uid: &str, instance: &str) -> RemoteSession {
        RemoteSession {
            uid: uid.into(),
            instance: instance.into(),
            labels: Labels::new(),
            features: ["f".to_owned()].into(),
        }
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
