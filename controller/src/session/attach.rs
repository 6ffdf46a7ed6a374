//! Who may have a session: one live agent for each node's name.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Instant,
};

use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;
use weir_common::fence::Fence;

use super::{
    hub::{Hub, Session, matching},
    plan_sync::PlanSync,
    queries::Ask,
    remote::Left,
};
use crate::model::{Condition, Labels, NodeName};

/// A session is not possible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// The name is taken by a live agent with another ledger.
    #[error(
        "node `{node}` has a live agent with another ledger (node_uid {other}): two machines have one name; rename one \
         with --node"
    )]
    NameTaken {
        /// The node.
        node: NodeName,
        /// Identity of the other agent's ledger.
        other: String,
    },
}

/// What a session needs to live.
#[derive(Debug)]
pub(super) struct Attached {
    pub(super) id: u64,
    /// There may be something to send.
    pub(super) wake: Arc<Notify>,
    /// The same agent came back on another stream.
    pub(super) replaced: CancellationToken,
    pub(super) asks: mpsc::Receiver<Ask>,
}

/// Questions that may wait for a session.
const ASKS: usize = 16;

impl Hub {
    /// Takes the name. An earlier session of the same ledger ends. Nothing is sent before [`Hub::activate`].
    pub(super) fn attach(
        &self,
        node: &NodeName,
        uid: &str,
        instance: &str,
        labels: Labels,
        features: BTreeSet<String>,
    ) -> Result<Attached, AttachError> {
        let mut inner = self.lock();
        if let Some(other) = inner.sessions.get(node).filter(|session| session.uid != uid) {
            let other = other.uid.clone();
            inner.conflicts.insert(node.clone(), (uid.to_owned(), Instant::now()));
            return Err(AttachError::NameTaken { node: node.clone(), other });
        }
        let elsewhere = inner
            .remotes
            .get(node)
            .filter(|remote| remote.session.agent.uid != uid && !inner.sessions.contains_key(node));
        if let Some(other) = elsewhere.map(|remote| remote.session.agent.uid.clone()) {
            inner.conflicts.insert(node.clone(), (uid.to_owned(), Instant::now()));
            return Err(AttachError::NameTaken { node: node.clone(), other });
        }
        let id = inner.next_session;
        inner.next_session += 1;
        let (sender, asks) = mpsc::channel(ASKS);
        let attached = Attached { id, wake: Arc::new(Notify::new()), replaced: CancellationToken::new(), asks };
        let session = Session {
            id,
            uid: uid.to_owned(),
            instance: instance.to_owned(),
            matching: matching(&inner.catalog, node, &labels),
            labels,
            features,
            sync: None,
            traces: BTreeMap::new(),
            uids_held: BTreeSet::new(),
            refused: None,
            wake: Arc::clone(&attached.wake),
            replaced: attached.replaced.clone(),
            asks: sender,
        };
        if let Some(before) = inner.sessions.insert(node.clone(), session) {
            tracing::info!(%node, before = before.instance, now = instance, "the agent came back on another stream");
            let reflected = inner.catalog.revision.0;
            inner.leave(node, &before, reflected);
            before.replaced.cancel();
        }
        Ok(attached)
    }

    /// The node's record is durable: the session gets its plan.
    pub(super) fn activate(&self, node: &NodeName, id: u64, held: Option<Fence>) {
        let epoch = self.epoch();
        let mut inner = self.lock();
        let directive = inner.catalog.directive(node);
        let revision = inner.catalog.revision.0;
        if let Some(session) = inner.session(node, id) {
            let plan = session.plan();
            session.sync = Some(PlanSync::new(epoch, revision, held, plan, directive));
            session.wake.notify_one();
        }
        drop(inner);
        self.bump();
    }

    /// The session gets no plan, and this is why.
    pub(super) fn hold_back(&self, node: &NodeName, id: u64, why: Condition) {
        if let Some(session) = self.lock().session(node, id) {
            session.refused = Some(why);
        }
    }

    /// The stream ended.
    pub(super) fn detach(&self, node: &NodeName, id: u64) -> Left {
        let mut inner = self.lock();
        if inner.session(node, id).is_none() {
            return Left::NotOurs;
        }
        if let Some(session) = inner.sessions.remove(node) {
            let reflected = inner.catalog.revision.0;
            inner.leave(node, &session, reflected);
        }
        let left = match inner.remotes.get_mut(node) {
            Some(remote) => Left::Elsewhere(Box::new((remote.session.clone(), remote.unshown.take()))),
            None => Left::Away,
        };
        drop(inner);
        self.bump();
        left
    }
}

impl super::hub::Inner {
    /// Remembers what a node could hold at most when its session ended.
    fn leave(&mut self, node: &NodeName, session: &Session, reflected: u64) {
        match session.holding(reflected) {
            Some(holding) => drop(self.away.insert(node.clone(), holding)),
            // It may have been sent a plan that it did not acknowledge: the selectors decide.
            None => drop(self.away.remove(node)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::{
        catalog::Catalog,
        model::{Earlier, NodeRecord},
    };

    #[test]
    fn a_session_of_another_ledger_than_the_list_has_ends_with_the_list() {
        let hub = Hub::new(1, Catalog::default());
        let (kept, taken): (NodeName, NodeName) = ("kept".parse().unwrap(), "taken".parse().unwrap());
        let record = |uid: &str| NodeRecord {
            uid: uid.into(),
            boot_id: String::new(),
            lost_ledger: None,
            ahead: None,
            labels: Labels::new(),
            earlier_labels: Earlier::default(),
            first_seen: SystemTime::UNIX_EPOCH.into(),
        };
        let sessions = [&kept, &taken].map(|node| {
            let attached = hub.attach(node, "u1", "1", Labels::new(), BTreeSet::new()).unwrap();
            hub.activate(node, attached.id, None);
            attached
        });
        let nodes = [(kept.clone(), record("u1")), (taken, record("u2"))].into();
        hub.replace(Catalog { nodes, ..Catalog::default() });
        assert_eq!(sessions.each_ref().map(|session| session.replaced.is_cancelled()), [false, true]);
    }
}
