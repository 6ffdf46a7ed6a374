//! What a controller says of itself over HTTP: its health, the fleet as it sees it, and how it does its work.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use tonic::Code;
use weir_common::{
    ops::{Answers, Family, Histogram, Kind, Value},
    telemetry::rpc::code_name,
};

use crate::{
    api::intent_summary,
    model::{Directive, NodeName},
    session::Hub,
    status::Board,
};

/// Most intents of which the nodes are told one by one.
const MOST: usize = 1000;
/// The store must have been seen to be the same within this.
const STORE_WITHIN: Duration = Duration::from_secs(20);

/// What the parts of a controller count. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// By names that are ours, so that no caller can make up another.
    calls: Mutex<BTreeMap<(&'static str, &'static str), u64>>,
    call_time: Histogram,
    push_time: Histogram,
    refused: Mutex<BTreeMap<String, u64>>,
    leads: AtomicBool,
    store_seen: Mutex<Option<Instant>>,
}

impl Counters {
    /// A call of a method ended.
    pub fn call(&self, method: &'static str, code: Code, took: Duration) {
        let mut calls = self.inner.calls.lock().unwrap_or_else(PoisonError::into_inner);
        *calls.entry((method, code_name(code))).or_default() += 1;
        drop(calls);
        self.inner.call_time.observe(took);
    }

    /// An agent accepted a plan, so long after it was sent.
    pub fn accepted(&self, took: Duration) {
        self.inner.push_time.observe(took);
    }

    /// An agent refused a plan. Reasons are those of the contract.
    pub fn refused(&self, reason: &str) {
        let known = ["LowerFence", "OtherStore", "UnexpectedBase", "StorageFailed"];
        let reason = known.into_iter().find(|known| *known == reason).unwrap_or("Unknown");
        let mut refused = self.inner.refused.lock().unwrap_or_else(PoisonError::into_inner);
        *refused.entry(reason.to_owned()).or_default() += 1;
    }

    /// Whether this controller leads.
    pub fn leads(&self, leads: bool) {
        self.inner.leads.store(leads, Ordering::Relaxed);
    }

    /// The store answered, and is the one that was opened.
    pub fn store_seen(&self) {
        *self.inner.store_seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }
}

/// The controller's answers.
pub struct ControllerOps {
    /// Sessions and the picture of the store.
    pub hub: Arc<Hub>,
    /// Reports.
    pub board: Arc<Board>,
    /// What was counted.
    pub counters: Counters,
}

impl ControllerOps {
    fn nodes(&self) -> Vec<Family> {
        let now = Instant::now();
        let mut phases: BTreeMap<&str, u64> = [("connected", 0), ("stale", 0), ("gone", 0)].into();
        let mut directives: BTreeMap<&str, u64> = [("active", 0), ("paused", 0), ("released", 0)].into();
        let mut held = 0;
        let mut after: Option<NodeName> = None;
        loop {
            let page = self.hub.nodes(after.as_ref(), 500);
            let Some(last) = page.last() else { break };
            after = Some(last.name.clone());
            for node in &page {
                let phase = match self.hub.is_connected(&node.name) {
                    true => "connected",
                    false if self.board.is_gone(&node.name, now) => "gone",
                    false => "stale",
                };
                *phases.entry(phase).or_default() += 1;
                let directive = match node.directive {
                    Directive::Active => "active",
                    Directive::Paused => "paused",
                    Directive::Released => "released",
                };
                *directives.entry(directive).or_default() += 1;
                held += self.board.node(&node.name, now).map_or(0, |snapshot| u64::from(snapshot.settings_held));
            }
        }
        let labelled = |name, help, label: &'static str, values: BTreeMap<&str, u64>| {
            values.into_iter().fold(Family::new(name, help, Kind::Gauge), |family, (value, number)| {
                family.with(vec![(label, value.to_owned())], Value::Count(number))
            })
        };
        vec![
            labelled("weir_nodes", "Known nodes, by contact", "phase", phases),
            labelled("weir_nodes_told", "Known nodes, by what they are told", "directive", directives),
            Family::count("weir_settings_held", "Settings owned in the kernels of all nodes", Kind::Gauge, held),
        ]
    }

    fn intents(&self) -> Vec<Family> {
        let intents = self.hub.all_intents();
        let mut nodes =
            Family::new("weir_intent_nodes", "Nodes that an intent matches, by what became of it there", Kind::Gauge);
        for intent in intents.iter().take(MOST) {
            let sum = intent_summary(&self.hub, &self.board, intent);
            for (state, number) in [
                ("applied", sum.applied),
                ("failed", sum.failed),
                ("no_match", sum.no_match),
                ("suspended", sum.suspended),
                ("pending", sum.pending),
            ] {
                let labels = vec![("intent", intent.record.name.to_string()), ("state", state.to_owned())];
                nodes = nodes.with(labels, Value::Count(count(number)));
            }
        }
        let deleting = intents.iter().filter(|intent| intent.record.is_deleting()).count();
        vec![
            Family::count("weir_intents", "Intents", Kind::Gauge, count(intents.len())),
            Family::count(
                "weir_intents_deleting",
                "Intents that wait for nodes that may hold them",
                Kind::Gauge,
                count(deleting),
            ),
            Family::count(
                "weir_intents_left_out",
                "Intents whose nodes are not told, as there are too many",
                Kind::Gauge,
                count(intents.len().saturating_sub(MOST)),
            ),
            nodes,
        ]
    }

    fn work(&self) -> Vec<Family> {
        let inner = &self.counters.inner;
        let mut calls =
            Family::new("weir_controller_calls", "Calls that do not stream, by method and code", Kind::Counter);
        for ((method, code), times) in &*inner.calls.lock().unwrap_or_else(PoisonError::into_inner) {
            calls =
                calls.with(vec![("method", (*method).to_owned()), ("code", (*code).to_owned())], Value::Count(*times));
        }
        let mut refused =
            Family::new("weir_controller_plans_refused", "Plans that agents refused, by reason", Kind::Counter);
        for (reason, times) in &*inner.refused.lock().unwrap_or_else(PoisonError::into_inner) {
            refused = refused.with(vec![("reason", reason.clone())], Value::Count(*times));
        }
        let seen = *inner.store_seen.lock().unwrap_or_else(PoisonError::into_inner);
        let mut families = vec![
            Family::new("weir_controller_info", "This controller", Kind::Gauge)
                .with(vec![("version", env!("CARGO_PKG_VERSION").to_owned())], Value::Count(1)),
            Family::count(
                "weir_controller_leads",
                "Whether this controller does what must be single",
                Kind::Gauge,
                u64::from(inner.leads.load(Ordering::Relaxed)),
            ),
            Family::count(
                "weir_controller_sessions",
                "Agents with a session here",
                Kind::Gauge,
                count(self.hub.sessions()),
            ),
            Family::count(
                "weir_store_revision",
                "Revision of the store as it is seen here",
                Kind::Gauge,
                self.hub.revision().0,
            ),
            calls,
            Family::new("weir_controller_call_seconds", "Time that calls took", Kind::Histogram)
                .with(Vec::new(), inner.call_time.value()),
            Family::new(
                "weir_controller_plan_seconds",
                "Time from sending a plan until its agent accepted it",
                Kind::Histogram,
            )
            .with(Vec::new(), inner.push_time.value()),
            refused,
        ];
        if let Some(seen) = seen {
            let age = seen.elapsed().as_secs_f64();
            families.push(Family::number(
                "weir_store_seen_age_seconds",
                "Time since the store last answered",
                Kind::Gauge,
                age,
            ));
        }
        families
    }
}

impl Answers for ControllerOps {
    fn live(&self) -> Result<(), String> {
        // Everything that must not die ends the process when it does.
        Ok(())
    }

    fn ready(&self) -> Result<(), String> {
        let seen = *self.counters.inner.store_seen.lock().unwrap_or_else(PoisonError::into_inner);
        match seen.map(|seen| seen.elapsed()) {
            Some(age) if age <= STORE_WITHIN => Ok(()),
            Some(age) => Err(format!("the store has not answered for {} s", age.as_secs())),
            None => Err("the store has not answered yet".to_owned()),
        }
    }

    fn metrics(&self) -> Vec<Family> {
        let mut families = self.work();
        families.extend(self.nodes());
        families.extend(self.intents());
        families
    }
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}
