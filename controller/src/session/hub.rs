//! The one place where the store's picture and the agents' sessions meet: it follows changes, keeps each connected node's
//! plan, and wakes the sessions that have something to send.
//!
//! Everything in here happens under one lock and without waiting; streams and the store are driven by others.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::sync::{Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;
use weir_common::{fence::Fence, telemetry::TraceContext};

use super::{
    plan_sync::{AfterNack, NackReason, PlanSync, Push},
    queries::{Ask, Asks},
    remote::Remote,
    trace::PlanTrace,
};
use crate::{
    catalog::{Catalog, RecordError, Touched},
    model::{Condition, Directive, Intent, IntentName, Labels, NodeName, NodeRecord},
    plan::{self, Holding, Plan, Withheld},
    store::{Change, Revision},
};

/// How long a write waits to be seen in the picture.
const CATCH_UP: Duration = Duration::from_secs(1);

/// How long it is told that another agent tried to have a node's name: longer than it waits between attempts.
const CONFLICT_TOLD: Duration = Duration::from_secs(90);

/// Sessions and the picture of the store.
#[derive(Debug)]
pub struct Hub {
    epoch: u64,
    inner: Mutex<Inner>,
    /// Counts changes that finalizing may depend on.
    changed: watch::Sender<u64>,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) catalog: Catalog,
    pub(super) sessions: HashMap<NodeName, Session>,
    /// What nodes that left could hold at most.
    pub(super) away: HashMap<NodeName, Holding>,
    /// Nodes with a session on another replica; one that has a session here too has just moved.
    pub(super) remotes: HashMap<NodeName, Remote>,
    /// Nodes whose name another agent tried to have: its ledger, and when.
    pub(super) conflicts: HashMap<NodeName, (String, Instant)>,
    pub(super) next_session: u64,
}

#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: u64,
    pub(super) uid: String,
    pub(super) instance: String,
    pub(super) labels: Labels,
    pub(super) features: BTreeSet<String>,
    /// Intents that match the node.
    pub(super) matching: BTreeMap<IntentName, Arc<Intent>>,
    /// `None` until the node's record is durable.
    pub(super) sync: Option<PlanSync>,
    /// Traces of changes that were not sent yet, by uid of the intent.
    pub(super) traces: BTreeMap<String, TraceContext>,
    pub(super) uids_held: BTreeSet<String>,
    pub(super) refused: Option<Condition>,
    pub(super) wake: Arc<Notify>,
    pub(super) replaced: CancellationToken,
    pub(super) asks: mpsc::Sender<Ask>,
}

impl Session {
    pub(super) fn plan(&self) -> Plan {
        plan::assemble(self.matching.values().map(AsRef::as_ref), &self.features)
    }

    /// What the node can hold at most; `None` before its first acknowledgement.
    pub(super) fn holding(&self, reflected: u64) -> Option<Holding> {
        let sync = self.sync.as_ref().filter(|sync| sync.has_acknowledged())?;
        let mut uids = sync.uids();
        uids.extend(self.uids_held.iter().cloned());
        Some(Holding { reflected, uids })
    }
}

/// A known node, as far as the catalog and its session know it.
#[derive(Clone, Debug)]
pub struct NodeState {
    /// Name.
    pub name: NodeName,
    /// What is stored of it.
    pub record: NodeRecord,
    /// What it is told.
    pub directive: Directive,
    /// Why it refused its latest plan.
    pub refused: Option<Condition>,
    /// The ledger of another agent with this name that was refused lately.
    pub conflict: Option<String>,
}

/// What an acknowledgement says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Acknowledged {
    /// It is of the plan that was on its way.
    pub(super) accepted: bool,
    /// The node's earlier labels need not be remembered any longer.
    pub(super) settled: bool,
}

impl Hub {
    /// A hub over a picture of the store with this epoch.
    pub fn new(epoch: u64, catalog: Catalog) -> Self {
        let inner = Inner {
            catalog,
            sessions: HashMap::new(),
            away: HashMap::new(),
            remotes: HashMap::new(),
            conflicts: HashMap::new(),
            next_session: 1,
        };
        Hub { epoch, inner: Mutex::new(inner), changed: watch::Sender::new(0) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        // Each change is complete in itself; a panic elsewhere leaves nothing half done that the next full list would
        // not put right.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(super) fn bump(&self) {
        self.changed.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Waits until the picture has come to a revision that was committed, so that who reads after a write finds it. For a
    /// second at most: a picture that lags further is still the truth of a moment ago.
    pub async fn caught_up(&self, revision: Revision) {
        let mut changes = self.changed.subscribe();
        let reached = async {
            while self.lock().catalog.revision < revision {
                // The sender lives as long as the hub.
                if changes.changed().await.is_err() {
                    return;
                }
            }
        };
        let _late = tokio::time::timeout(CATCH_UP, reached).await;
    }

    /// Tells of every change that finalizing may depend on.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Follows one commit of the store.
    pub(super) fn apply(&self, change: &Change) -> Vec<RecordError> {
        let mut inner = self.lock();
        let (touched, errors) = inner.catalog.apply(change);
        for touched in touched {
            match touched {
                Touched::Intent(name, intent) => inner.intent_changed(&name, intent.as_ref()),
                Touched::Node(node) => {
                    let Inner { catalog, sessions, away, .. } = &mut *inner;
                    match (catalog.nodes.get(&node), sessions.get(&node)) {
                        (None, _) => drop(away.remove(&node)),
                        // Another replica took an agent with another ledger, before it was told of this one.
                        (Some(record), Some(session)) if session.sync.is_some() && session.uid != record.uid => {
                            session.replaced.cancel();
                        }
                        (Some(_), _) => {}
                    }
                }
                Touched::NodeDirective(node) => inner.replan(&node),
                Touched::FleetDirective => inner.replan_all(),
            }
        }
        drop(inner);
        self.bump();
        errors
    }

    /// Begins again with a full list, after a gap in the watch.
    pub(super) fn replace(&self, catalog: Catalog) {
        let mut inner = self.lock();
        inner.catalog = catalog;
        let Inner { catalog, sessions, away, .. } = &mut *inner;
        away.retain(|node, _| catalog.nodes.contains_key(node));
        for (node, session) in sessions {
            // What a change would have told: another replica took an agent with another ledger.
            if session.sync.is_some() && catalog.nodes.get(node).is_some_and(|record| record.uid != session.uid) {
                session.replaced.cancel();
            }
            session.matching = matching(catalog, node, &session.labels);
        }
        inner.replan_all();
        drop(inner);
        self.bump();
    }

    /// What to send to the agent of a session, and the traces of the changes that it brings; it is on its way then.
    pub(super) fn next_push(&self, node: &NodeName, id: u64) -> Option<(Push, BTreeMap<String, TraceContext>)> {
        let mut inner = self.lock();
        let session = inner.session(node, id)?;
        let push = session.sync.as_mut()?.next()?;
        let mut traces = std::mem::take(&mut session.traces);
        traces.retain(|uid, _| push.brings(uid));
        Some((push, traces))
    }

    /// Whether a plan is on its way to the agent of a session.
    pub(super) fn is_in_flight(&self, node: &NodeName, id: u64) -> bool {
        self.lock().session(node, id).and_then(|session| session.sync.as_ref()).is_some_and(PlanSync::is_in_flight)
    }

    /// The agent accepted a plan and says what it holds.
    pub(super) fn acknowledged(&self, node: &NodeName, id: u64, fence: Fence, held: &[String]) -> Acknowledged {
        let mut inner = self.lock();
        let remembered = inner.catalog.nodes.get(node).is_some_and(|record| !record.earlier_labels.is_empty());
        let Some(session) = inner.session(node, id) else { return Acknowledged::default() };
        session.uids_held = held.iter().cloned().collect();
        let Some(sync) = session.sync.as_mut() else { return Acknowledged::default() };
        let accepted = sync.ack(fence);
        if accepted {
            session.refused = None;
        } else {
            tracing::warn!(%node, %fence, "acknowledgement of a plan that is not on its way");
        }
        // Whatever the node holds now, its present plan has: the labels that this plan was made for say it all.
        let clean = sync.is_settled() && session.uids_held.iter().all(|uid| sync.desired().uids().any(|u| u == uid));
        session.wake.notify_one();
        drop(inner);
        self.bump();
        Acknowledged { accepted, settled: remembered && clean }
    }

    /// The agent refused a plan.
    pub(super) fn refused(
        &self,
        node: &NodeName,
        id: u64,
        fence: Fence,
        reason: &NackReason,
        condition: Condition,
    ) -> AfterNack {
        let mut inner = self.lock();
        let Some(session) = inner.session(node, id) else { return AfterNack::Ignore };
        let Some(sync) = session.sync.as_mut() else { return AfterNack::Ignore };
        let after = sync.nack(fence, reason);
        match after {
            AfterNack::Ignore => {}
            AfterNack::PushAgain => session.wake.notify_one(),
            AfterNack::RetryLater | AfterNack::Wait => session.refused = Some(condition),
        }
        after
    }

    /// Try again what an agent refused.
    pub(super) fn retry(&self, node: &NodeName, id: u64) {
        if let Some(session) = self.lock().session(node, id)
            && let Some(sync) = session.sync.as_mut()
        {
            sync.retry();
            session.wake.notify_one();
        }
    }

    /// The agent says what it holds.
    pub(super) fn held(&self, node: &NodeName, id: u64, held: &[String]) {
        let mut inner = self.lock();
        let Some(session) = inner.session(node, id) else { return };
        let held: BTreeSet<String> = held.iter().cloned().collect();
        if held == session.uids_held {
            return;
        }
        session.uids_held = held;
        drop(inner);
        self.bump();
    }

    /// The node's facts changed, its labels among them.
    pub(super) fn facts_changed(&self, node: &NodeName, id: u64, labels: Labels) {
        let mut inner = self.lock();
        let Inner { catalog, sessions, .. } = &mut *inner;
        let Some(session) = sessions.get_mut(node).filter(|session| session.id == id) else { return };
        if let Some(sync) = session.sync.as_mut() {
            sync.facts_changed();
        }
        if session.labels == labels {
            return;
        }
        session.matching = matching(catalog, node, &labels);
        session.labels = labels;
        inner.replan(node);
        drop(inner);
        self.bump();
    }

    /// Where to put a question for a node's agent, with its features; `None` where it has no session.
    pub(super) fn asks(&self, node: &NodeName) -> Option<(Asks, BTreeSet<String>)> {
        let inner = self.lock();
        let here = inner.sessions.get(node).map(|session| (Asks::Here(session.asks.clone()), &session.features));
        let elsewhere =
            || inner.remotes.get(node).map(|remote| (Asks::Elsewhere(remote.asks.clone()), &remote.features));
        here.or_else(elsewhere).map(|(asks, features)| (asks, features.clone()))
    }

    /// Whether a node has a session, here or on another replica.
    pub fn is_connected(&self, node: &NodeName) -> bool {
        self.lock().is_connected(node)
    }

    /// Number of agents with a session here.
    pub fn sessions(&self) -> usize {
        self.lock().sessions.len()
    }

    /// The revision of the picture.
    pub fn revision(&self) -> Revision {
        self.lock().catalog.revision
    }

    /// Number of intents.
    pub fn intents(&self) -> usize {
        self.lock().catalog.intents.len()
    }

    /// The intent, as the hub's picture of the store has it.
    pub fn intent(&self, name: &IntentName) -> Option<Arc<Intent>> {
        self.lock().catalog.intents.get(name).cloned()
    }

    /// All intents in the order of their names.
    pub fn all_intents(&self) -> Vec<Arc<Intent>> {
        self.lock().catalog.intents.values().cloned().collect()
    }

    /// Intents that are being deleted.
    pub fn deleting(&self) -> Vec<Arc<Intent>> {
        self.lock().catalog.intents.values().filter(|intent| intent.record.is_deleting()).cloned().collect()
    }

    /// Nodes that may still hold settings of an intent that is being deleted.
    pub fn holders(&self, intent: &Intent) -> Vec<NodeName> {
        let inner = self.lock();
        let names: BTreeSet<&NodeName> = inner.names().collect();
        names.into_iter().filter(|name| inner.may_hold(intent, name)).cloned().collect()
    }

    /// Whether any node may still hold settings of an intent that is being deleted.
    pub fn is_held(&self, intent: &Intent) -> bool {
        let inner = self.lock();
        inner.names().any(|name| inner.may_hold(intent, name))
    }

    /// Known nodes that an intent matches, and whether each is connected.
    pub fn matched(&self, intent: &Intent) -> Vec<(NodeName, bool)> {
        let inner = self.lock();
        let matched = |(name, record): (&NodeName, &NodeRecord)| {
            let labels = inner.labels(name).unwrap_or(&record.labels);
            let nodes = &intent.record.spec.nodes;
            nodes.matches(name.as_str(), labels).then(|| (name.clone(), inner.is_connected(name)))
        };
        inner.catalog.nodes.iter().filter_map(matched).collect()
    }

    /// What a connected node was not told of an intent.
    pub fn withheld(&self, node: &NodeName, intent: &IntentName) -> Option<Withheld> {
        let inner = self.lock();
        if let Some(session) = inner.sessions.get(node) {
            let plan = session.sync.as_ref()?.desired();
            return plan.withheld.iter().find(|withheld| withheld.intent == *intent).cloned();
        }
        // As the replica that serves it decides: by what its agent can do.
        let (remote, intent) = (inner.remotes.get(node)?, inner.catalog.intents.get(intent)?);
        let matches = plan::matches(intent, node, &remote.session.facts.labels);
        let plan = matches.then(|| plan::assemble([intent.as_ref()], &remote.features))?;
        plan.withheld.into_iter().next()
    }

    /// A known node.
    pub fn node(&self, name: &NodeName) -> Option<NodeState> {
        let inner = self.lock();
        inner.catalog.nodes.get(name).map(|record| inner.node_state(name, record))
    }

    /// Known nodes after `after`, in the order of their names, at most `limit`.
    pub fn nodes(&self, after: Option<&NodeName>, limit: usize) -> Vec<NodeState> {
        use std::ops::Bound;
        let inner = self.lock();
        let range = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        inner
            .catalog
            .nodes
            .range::<NodeName, _>(range)
            .take(limit)
            .map(|(name, record)| inner.node_state(name, record))
            .collect()
    }

    /// What the fleet is told.
    pub fn fleet_directive(&self) -> Directive {
        self.lock().catalog.fleet_directive
    }
}

/// Intents that match a node with these labels.
pub(super) fn matching(catalog: &Catalog, node: &NodeName, labels: &Labels) -> BTreeMap<IntentName, Arc<Intent>> {
    let matching = catalog.intents.iter().filter(|(_, intent)| plan::matches(intent, node, labels));
    matching.map(|(name, intent)| (name.clone(), Arc::clone(intent))).collect()
}

impl Inner {
    pub(super) fn session(&mut self, node: &NodeName, id: u64) -> Option<&mut Session> {
        self.sessions.get_mut(node).filter(|session| session.id == id)
    }

    fn node_state(&self, name: &NodeName, record: &NodeRecord) -> NodeState {
        NodeState {
            name: name.clone(),
            record: record.clone(),
            directive: self.catalog.directive(name),
            refused: match (self.sessions.get(name), self.remotes.get(name)) {
                (Some(session), _) => session.refused.clone(),
                (None, remote) => remote.and_then(|remote| remote.refused.clone()),
            },
            conflict: self
                .conflicts
                .get(name)
                .filter(|(_, at)| at.elapsed() < CONFLICT_TOLD)
                .map(|(refused_uid, _)| refused_uid.clone()),
        }
    }

    /// Nodes that are known or connected; some twice.
    fn names(&self) -> impl Iterator<Item = &NodeName> {
        self.catalog.nodes.keys().chain(self.sessions.keys()).chain(self.remotes.keys())
    }

    fn may_hold(&self, intent: &Intent, name: &NodeName) -> bool {
        let holding = match (self.sessions.get(name), self.remotes.get(name)) {
            (Some(session), _) => session.holding(self.catalog.revision.0),
            (None, Some(remote)) => remote.holding.clone(),
            (None, None) => self.away.get(name).cloned(),
        };
        plan::may_hold(intent, name, self.catalog.nodes.get(name), self.labels(name), holding.as_ref())
    }

    fn is_connected(&self, node: &NodeName) -> bool {
        self.sessions.contains_key(node) || self.remotes.contains_key(node)
    }

    /// Labels of a connected node.
    fn labels(&self, node: &NodeName) -> Option<&Labels> {
        let here = self.sessions.get(node).map(|session| &session.labels);
        here.or_else(|| self.remotes.get(node).map(|remote| &remote.session.facts.labels))
    }

    fn intent_changed(&mut self, name: &IntentName, intent: Option<&Arc<Intent>>) {
        let tracing = PlanTrace::begin(name, intent);
        let mut affected = Vec::new();
        for (node, session) in &mut self.sessions {
            let matching = intent.filter(|intent| plan::matches(intent, node, &session.labels));
            let touched = match matching {
                Some(intent) => {
                    session.matching.insert(name.clone(), Arc::clone(intent)).is_none_or(|old| old != *intent)
                }
                None => session.matching.remove(name).is_some(),
            };
            if touched {
                affected.push(node.clone());
                session.traces.extend(tracing.context());
            }
        }
        tracing.nodes(affected.len());
        for node in affected {
            self.replan(&node);
        }
    }

    fn replan_all(&mut self) {
        let nodes: Vec<NodeName> = self.sessions.keys().cloned().collect();
        for node in nodes {
            self.replan(&node);
        }
    }

    /// Makes a node's plan anew and wakes its session if that is news.
    fn replan(&mut self, node: &NodeName) {
        let directive = self.catalog.directive(node);
        let revision = self.catalog.revision.0;
        if let Some(session) = self.sessions.get_mut(node) {
            let plan = session.plan();
            if let Some(sync) = session.sync.as_mut()
                && sync.desire(revision, plan, directive)
            {
                session.wake.notify_one();
            }
        }
    }
}
