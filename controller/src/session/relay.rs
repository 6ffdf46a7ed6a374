//! What the agents that this replica serves said last, for the other replicas: the latest of each kind as it came in, and
//! every change from then on. In memory; touches nothing.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use tokio::sync::broadcast;
use weir_proto::v1::{self, relay_response::Message};

use crate::{model::NodeName, wire::duration_to_wire};

/// Changes that a replica may lag behind before it has to begin again with everything.
const BACKLOG: usize = 8192;

/// Passes on what agents say; where nobody else serves the fleet, does nothing.
#[derive(Debug)]
pub struct Relay {
    /// `None` where this process is the only controller.
    shared: Option<Shared>,
}

#[derive(Debug)]
struct Shared {
    latest: Mutex<HashMap<NodeName, Latest>>,
    changes: broadcast::Sender<Arc<v1::RelayResponse>>,
}

/// What an agent with a session said last.
#[derive(Debug)]
struct Latest {
    hello: v1::AgentHello,
    heard: Instant,
    report: Option<(v1::StatusUpdate, Instant)>,
    refusal: Option<v1::Condition>,
}

impl Relay {
    /// For a fleet that several controllers serve.
    pub fn on() -> Self {
        let (changes, _) = broadcast::channel(BACKLOG);
        Relay { shared: Some(Shared { latest: Mutex::default(), changes }) }
    }

    /// For a single controller.
    pub fn off() -> Self {
        Relay { shared: None }
    }

    /// An agent has a session.
    pub(crate) fn session(&self, node: &NodeName, hello: v1::AgentHello, now: Instant) {
        let Some(shared) = &self.shared else { return };
        let mut latest = shared.lock();
        let session = v1::RelayedSession { hello: Some(hello.clone()), age: None };
        latest.insert(node.clone(), Latest { hello, heard: now, report: None, refusal: None });
        shared.tell(Message::Session(session));
    }

    /// Its facts changed.
    pub(crate) fn facts(&self, node: &NodeName, facts: &v1::FactsUpdate, now: Instant) {
        let Some(shared) = &self.shared else { return };
        let mut all = shared.lock();
        let Some(latest) = all.get_mut(node) else { return };
        latest.hello.facts = Some(facts.clone());
        latest.heard = now;
        shared.tell(Message::Facts(v1::RelayedFacts { node: node.to_string(), update: Some(facts.clone()) }));
    }

    /// It reported its state.
    pub(crate) fn report(&self, node: &NodeName, status: &v1::StatusUpdate, now: Instant) {
        let Some(shared) = &self.shared else { return };
        let mut all = shared.lock();
        let Some(latest) = all.get_mut(node) else { return };
        latest.heard = now;
        latest.report = Some((status.clone(), now));
        let report = v1::RelayedReport { node: node.to_string(), status: Some(status.clone()), age: None };
        shared.tell(Message::Report(report));
    }

    /// It refused a plan.
    pub(crate) fn refusal(&self, node: &NodeName, condition: v1::Condition) {
        let Some(shared) = &self.shared else { return };
        let mut all = shared.lock();
        let Some(latest) = all.get_mut(node) else { return };
        latest.refusal = Some(condition.clone());
        let refusal = v1::RelayedRefusal { node: node.to_string(), condition: Some(condition) };
        shared.tell(Message::Refusal(refusal));
    }

    /// It accepted the plan on its way, which takes back that an earlier one was refused.
    pub(crate) fn accepted(&self, node: &NodeName) {
        let Some(shared) = &self.shared else { return };
        let mut all = shared.lock();
        if all.get_mut(node).and_then(|latest| latest.refusal.take()).is_some() {
            shared.tell(Message::Refusal(v1::RelayedRefusal { node: node.to_string(), condition: None }));
        }
    }

    /// Another agent with the same name was refused.
    pub(crate) fn conflict(&self, node: &NodeName, refused_uid: &str) {
        let Some(shared) = &self.shared else { return };
        let conflict = v1::RelayedConflict { node: node.to_string(), refused_uid: refused_uid.to_owned() };
        shared.tell(Message::Conflict(conflict));
    }

    /// It sent measurements.
    pub(crate) fn measurements(&self, batch: &v1::ReportMeasurementsRequest, now: Instant) {
        let Some(shared) = &self.shared else { return };
        let mut all = shared.lock();
        let latest = batch.node.parse::<NodeName>().ok().and_then(|node| all.get_mut(&node));
        let Some(latest) = latest.filter(|latest| latest.hello.instance == batch.instance) else { return };
        latest.heard = now;
        shared.tell(Message::Measurements(batch.clone()));
    }

    /// Its session ended.
    pub(crate) fn ended(&self, node: &NodeName, instance: &str) {
        let Some(shared) = &self.shared else { return };
        let mut all = shared.lock();
        if all.get(node).is_some_and(|latest| latest.hello.instance == instance) {
            all.remove(node);
            shared.tell(Message::End(v1::RelayedEnd { node: node.to_string(), instance: instance.to_owned() }));
        }
    }

    /// Everything that is known, and the changes after it; `None` for a single controller.
    pub(crate) fn subscribe(&self, now: Instant) -> Option<Subscription> {
        let shared = self.shared.as_ref()?;
        let all = shared.lock();
        let changes = shared.changes.subscribe();
        let mut known = Vec::new();
        for (node, latest) in all.iter() {
            let age = |at: Instant| Some(duration_to_wire(now.saturating_duration_since(at)));
            let Latest { hello, heard, report, refusal } = latest;
            let hello = Some(hello.clone());
            known.push(Message::Session(v1::RelayedSession { hello, age: age(*heard) }));
            if let Some((status, at)) = report {
                let (status, age) = (Some(status.clone()), age(*at));
                known.push(Message::Report(v1::RelayedReport { node: node.to_string(), status, age }));
            }
            if let Some(condition) = refusal.clone() {
                let condition = Some(condition);
                known.push(Message::Refusal(v1::RelayedRefusal { node: node.to_string(), condition }));
            }
        }
        Some(Subscription { known, changes })
    }

    /// When each agent was last heard of.
    pub(crate) fn contacts(&self, now: Instant) -> v1::RelayedContacts {
        let Some(shared) = &self.shared else { return v1::RelayedContacts::default() };
        let contact = |(node, latest): (&NodeName, &Latest)| v1::RelayedContact {
            node: node.to_string(),
            age: Some(duration_to_wire(now.saturating_duration_since(latest.heard))),
        };
        v1::RelayedContacts { contacts: shared.lock().iter().map(contact).collect() }
    }

    /// An agent said something that is not passed on.
    pub(crate) fn heard(&self, node: &NodeName, now: Instant) {
        let Some(shared) = &self.shared else { return };
        if let Some(latest) = shared.lock().get_mut(node) {
            latest.heard = now;
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, HashMap<NodeName, Latest>> {
        // Every change is complete by itself.
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// With the lock held, so that a subscription has either the state or the change.
    fn tell(&self, message: Message) {
        // Nobody may be listening.
        let _none = self.changes.send(Arc::new(v1::RelayResponse { message: Some(message) }));
    }
}

/// What a replica is told.
pub(crate) struct Subscription {
    pub(crate) known: Vec<Message>,
    pub(crate) changes: broadcast::Receiver<Arc<v1::RelayResponse>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(node: &str, instance: &str) -> v1::AgentHello {
        v1::AgentHello { node: node.into(), instance: instance.into(), ..Default::default() }
    }

    #[test]
    fn a_subscriber_has_the_state_and_then_every_change_once() {
        let relay = Relay::on();
        let (a, now) = ("a".parse::<NodeName>().unwrap(), Instant::now());
        relay.report(&a, &v1::StatusUpdate::default(), now);
        relay.session(&a, hello("a", "1"), now);
        relay.report(&a, &v1::StatusUpdate { settings_held: 1, ..Default::default() }, now);
        relay.report(&a, &v1::StatusUpdate { settings_held: 2, ..Default::default() }, now);
        let mut subscription = relay.subscribe(now).unwrap();
        assert_eq!(subscription.known.len(), 2, "the session and its latest report");
        let Message::Report(report) = &subscription.known[1] else { panic!("{:?}", subscription.known) };
        assert_eq!(report.status.as_ref().unwrap().settings_held, 2);
        assert!(subscription.changes.try_recv().is_err());
        relay.ended(&a, "another");
        assert!(subscription.changes.try_recv().is_err(), "another start of the agent has the session");
        relay.ended(&a, "1");
        let change = subscription.changes.try_recv().unwrap();
        assert!(matches!(change.message, Some(Message::End(_))));
        assert!(relay.subscribe(now).unwrap().known.is_empty());
    }

    #[test]
    fn a_refusal_stands_through_reports_until_a_plan_is_accepted() {
        let relay = Relay::on();
        let (a, now) = ("a".parse::<NodeName>().unwrap(), Instant::now());
        relay.session(&a, hello("a", "1"), now);
        relay.refusal(&a, v1::Condition::default());
        let fence = |revision| Some(v1::Fence { store_epoch: 1, revision, facts_generation: 1 });
        relay.report(&a, &v1::StatusUpdate { fence: fence(7), ..Default::default() }, now);
        relay.report(&a, &v1::StatusUpdate { fence: fence(8), ..Default::default() }, now);
        let mut subscription = relay.subscribe(now).unwrap();
        assert!(matches!(subscription.known.last(), Some(Message::Refusal(refusal)) if refusal.condition.is_some()));
        relay.accepted(&a);
        let change = subscription.changes.try_recv().unwrap();
        assert!(matches!(&change.message, Some(Message::Refusal(refusal)) if refusal.condition.is_none()));
        relay.accepted(&a);
        assert!(subscription.changes.try_recv().is_err(), "there is nothing to take back");
        assert!(!relay.subscribe(now).unwrap().known.iter().any(|known| matches!(known, Message::Refusal(_))));
    }

    #[test]
    fn facts_are_passed_on_as_facts_and_are_in_the_state() {
        let relay = Relay::on();
        let (a, now) = ("a".parse::<NodeName>().unwrap(), Instant::now());
        relay.session(&a, hello("a", "1"), now);
        let mut subscription = relay.subscribe(now).unwrap();
        let facts = v1::FactsUpdate { facts_generation: 2, facts: Some(v1::NodeFacts::default()) };
        relay.facts(&a, &facts, now);
        let change = subscription.changes.try_recv().unwrap();
        assert!(matches!(&change.message, Some(Message::Facts(told)) if told.update.as_ref() == Some(&facts)));
        let known = relay.subscribe(now).unwrap().known;
        assert!(
            matches!(&known[0], Message::Session(told) if told.hello.as_ref().unwrap().facts.as_ref() == Some(&facts))
        );
    }

    #[test]
    fn a_single_controller_keeps_nothing() {
        let (relay, now) = (Relay::off(), Instant::now());
        relay.session(&"a".parse().unwrap(), hello("a", "1"), now);
        assert!(relay.subscribe(now).is_none());
    }
}
