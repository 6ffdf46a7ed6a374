//! One session from Hello to its end.

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use tokio::sync::mpsc;
use tonic::{Status, Streaming};
use weir_common::fence::Fence;
use weir_proto::{CONTRACT_VERSION, v1};

use super::{
    Hub,
    attach::{AttachError, Attached},
    node_record,
    options::Shared,
    plan_sync::{AfterNack, NackReason, Push},
    queries::Open,
    relay::Relay,
    remote::{Left, RemoteSession},
    trace::OnTheirWay,
};
use crate::{
    access::Principal,
    model::{Condition, NodeFacts, NodeName},
    plan::features,
    status::{AgentIdentity, Board},
    store::{Revision, Store},
    wire::{
        condition_to_wire, directive_to_wire, duration_to_wire, errors::reconnect_elsewhere, facts_from_wire,
        fence_from_wire, fence_to_wire, rule_to_wire, status_update_from_wire, to_i64, update_of_ack,
    },
};

type Sender = mpsc::Sender<Result<v1::SessionResponse, Status>>;

/// Longest identity or version that an agent may send, bytes.
const MAX_IDENTITY: usize = 256;
/// A generation of facts in an agent's fence from which it is not counted on: the contract's fields end at 2^63 - 1, and a
/// fence that cannot rise would hold the node's plan back for good. No agent gets there by connecting.
const WORN_OUT: u64 = 1 << 62;
/// Most features that an agent may name.
const MAX_FEATURES: usize = 256;

/// What an agent said of itself, checked.
pub(crate) struct Hello {
    pub(crate) node: NodeName,
    pub(crate) agent: AgentIdentity,
    pub(crate) fence: Option<Fence>,
    pub(crate) facts: NodeFacts,
    pub(crate) settings_held: u32,
    boot_id: String,
    store_uid: String,
}

/// Reads a Hello; the error is for the agent.
pub(crate) fn check(hello: v1::AgentHello) -> Result<Hello, Status> {
    let v1::AgentHello {
        node,
        node_uid,
        instance,
        agent_version,
        contract_version,
        features,
        fence,
        facts,
        settings_held,
        boot_id,
        store_uid,
    } = hello;
    let node = node.parse().map_err(|error| Status::invalid_argument(format!("hello.node: {error}")))?;
    for (name, value) in [("boot_id", &boot_id), ("store_uid", &store_uid)] {
        if value.len() > MAX_IDENTITY {
            return Err(Status::invalid_argument(format!("hello.{name} has at most {MAX_IDENTITY} bytes")));
        }
    }
    for (name, value) in [("node_uid", &node_uid), ("instance", &instance)] {
        if value.is_empty() || value.len() > MAX_IDENTITY {
            return Err(Status::invalid_argument(format!("hello.{name} has 1 to {MAX_IDENTITY} bytes")));
        }
    }
    if agent_version.len() > MAX_IDENTITY || features.len() > MAX_FEATURES {
        return Err(Status::invalid_argument("hello: the version or the list of features is too long"));
    }
    if contract_version < 1 {
        return Err(Status::failed_precondition(format!(
            "the agent speaks version {contract_version} of the contract, this controller 1 to {CONTRACT_VERSION}"
        )));
    }
    let missing = || Status::invalid_argument("hello.facts: is required");
    let v1::FactsUpdate { facts_generation: _, facts } = facts.ok_or_else(missing)?;
    Ok(Hello {
        node,
        agent: AgentIdentity { uid: node_uid, instance, version: agent_version, features },
        fence: fence.map(fence_from_wire),
        facts: facts_from_wire(facts.ok_or_else(missing)?),
        settings_held: u32::try_from(settings_held).unwrap_or(0),
        boot_id,
        store_uid,
    })
}

/// Gives the name back however the session ends.
struct Guard<'a> {
    hub: &'a Hub,
    board: &'a Board,
    relay: &'a Relay,
    node: NodeName,
    instance: String,
    id: u64,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let left = self.hub.detach(&self.node, self.id);
        match left {
            Left::NotOurs => return,
            Left::Away => self.board.disconnected(&self.node, &self.instance),
            Left::Elsewhere(moved) => {
                let (RemoteSession { agent, facts, settings_held, fence, heard }, unshown) = *moved;
                self.board.connected(&self.node, agent, facts, settings_held, fence, heard);
                if let Some((report, at)) = unshown {
                    self.board.report(&self.node, report, true, at);
                }
            }
        }
        self.relay.ended(&self.node, &self.instance);
        tracing::info!(node = %self.node, "the agent's session ended");
    }
}

/// Runs a session until it ends; the error is for the agent.
pub(super) async fn run<S: Store>(
    shared: &Arc<Shared<S>>,
    caller: &Principal,
    mut inbound: Streaming<v1::SessionRequest>,
    outbound: &Sender,
) -> Result<(), Status> {
    let Shared { store, hub, board, relay, options, counters: _ } = &**shared;
    let first = tokio::select! {
        first = tokio::time::timeout(options.hello_within, inbound.message()) => first,
        () = options.shutdown.cancelled() => return Err(shutting_down()),
    };
    let first = first.map_err(|_| Status::deadline_exceeded("no Hello"))??;
    let Some(v1::session_request::Message::Hello(hello)) = first.and_then(|request| request.message) else {
        return Err(Status::invalid_argument("the first message of a session is Hello"));
    };
    let said = hello.clone();
    let Hello { node, agent, fence, facts, settings_held, boot_id, store_uid } = check(hello)?;
    caller.check_node(&node)?;

    let features = agent.features.iter().cloned().collect();
    let attached = hub.attach(&node, &agent.uid, &agent.instance, facts.labels.clone(), features).map_err(
        |error @ AttachError::NameTaken { .. }| {
            tracing::warn!(%node, refused = agent.uid, %error, "an agent is refused");
            relay.conflict(&node, &agent.uid);
            Status::already_exists(error.to_string())
        },
    )?;
    let guard = Guard { hub, board, relay, node: node.clone(), instance: agent.instance.clone(), id: attached.id };
    let present = store.revision().await.map_err(|error| Status::unavailable(error.to_string()))?;
    // A plan of another store says nothing about this one: the agent refuses what it does not follow.
    let of_this_store = store_uid.is_empty() || store_uid == store.uid();
    let ahead = fence.filter(|held| of_this_store && held.store_epoch == store.epoch() && held.revision > present.0);
    let worn_out = fence.is_some_and(|held| held.facts_generation >= WORN_OUT);
    let ledger = node_record::LedgerId { uid: agent.uid.clone(), boot_id, ahead, worn_out };
    let known_at =
        node_record::remember(&**store, &node, &ledger, &facts.labels, SystemTime::now()).await.map_err(|error| {
            tracing::error!(%node, %error, "the node's record cannot be stored");
            Status::unavailable(format!("the node's record cannot be stored: {error}"))
        })?;
    // Everybody else is to know the node before it is given anything to hold.
    hub.caught_up(known_at).await;
    if worn_out && hub.revision() < known_at {
        return Err(Status::unavailable("the store's changes are not seen: connect again"));
    }
    tracing::info!(%node, uid = ledger.uid, instance = agent.instance, version = agent.version, "the agent connected");
    let labels = facts.labels.clone();
    board.connected(&node, agent, facts, settings_held, fence, Instant::now());
    relay.session(&node, said, Instant::now());

    let hello = v1::ControllerHello {
        controller_version: env!("CARGO_PKG_VERSION").to_owned(),
        contract_version: CONTRACT_VERSION,
        features: features::BUILT.iter().map(|&feature| feature.to_owned()).collect(),
        store_epoch: to_i64(store.epoch()),
        report_period: Some(duration_to_wire(options.report_period)),
        store_uid: store.uid(),
    };
    let now = Instant::now();
    let mut session = Running {
        shared,
        node,
        ledger,
        labels,
        outbound,
        open: Open::default(),
        last_message: now,
        last_probe: now,
        retry_at: None,
        other_store_holds: None,
        aged_at: options.max_age.map(|age| now + jittered(age, fastrand::f64())),
        on_their_way: OnTheirWay::default(),
        pushed_at: None,
    };
    session.send(v1::session_response::Message::Hello(hello)).await?;
    match hub.node(&session.node).and_then(|known| known.record.ahead) {
        Some(ahead) if ahead.store_epoch >= store.epoch() => session.hold_back(attached.id, ahead, present),
        _ => hub.activate(&session.node, attached.id, fence),
    }
    let result = session.serve(attached, &mut inbound).await;
    drop(guard);
    result
}

/// A tenth more or less, so that sessions that began together do not end together. `random` is in 0.0..1.0.
fn jittered(age: Duration, random: f64) -> Duration {
    age.mul_f64(0.9 + 0.2 * random.clamp(0.0, 1.0))
}

fn replaced() -> Status {
    Status::aborted("the node's name went to another stream: the same agent came back, or one with another ledger")
}

fn shutting_down() -> Status {
    Status::unavailable("the controller is shutting down")
}

struct Running<'a, S> {
    shared: &'a Arc<Shared<S>>,
    node: NodeName,
    ledger: node_record::LedgerId,
    labels: crate::model::Labels,
    outbound: &'a Sender,
    open: Open,
    last_message: Instant,
    last_probe: Instant,
    retry_at: Option<Instant>,
    /// Settings that the agent holds of another store, whose plan it follows and not ours.
    other_store_holds: Option<i32>,
    /// When the session is to end, with what is on its way let through.
    aged_at: Option<Instant>,
    on_their_way: OnTheirWay,
    /// The plan on its way, and since when.
    pushed_at: Option<(Fence, Instant)>,
}

impl<S: Store> Running<'_, S> {
    async fn serve(
        &mut self,
        mut attached: Attached,
        inbound: &mut Streaming<v1::SessionRequest>,
    ) -> Result<(), Status> {
        let options = &self.shared.options;
        let mut tick = tokio::time::interval(options.probe_after.min(Duration::from_secs(1)));
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                message = inbound.message() => {
                    let Some(request) = message? else { return Ok(()) };
                    // What was still on its way from a stream that was replaced is older than what the new one said.
                    if attached.replaced.is_cancelled() {
                        return Err(replaced());
                    }
                    self.last_message = Instant::now();
                    self.shared.board.contact(&self.node, self.last_message);
                    self.shared.relay.heard(&self.node, self.last_message);
                    if let Some(message) = request.message {
                        self.receive(attached.id, message).await?;
                    }
                }
                // Over its age, what is not on its way yet is for the next session to send.
                () = attached.wake.notified(), if !self.is_aged() => {
                    while let Some((push, traces)) = self.shared.hub.next_push(&self.node, attached.id) {
                        self.on_their_way = OnTheirWay::sent(&traces, &self.node, push.fence());
                        self.pushed_at = Some((push.fence(), Instant::now()));
                        self.push(push).await?;
                    }
                }
                Some(ask) = attached.asks.recv() => {
                    if let Some(query) = self.open.begin(ask) {
                        self.send(v1::session_response::Message::Query(query)).await?;
                    }
                }
                _ = tick.tick() => {
                    self.look_after(attached.id).await?;
                    self.end_of_age(attached.id)?;
                }
                () = attached.replaced.cancelled() => {
                    return Err(replaced());
                }
                () = options.shutdown.cancelled() => return Err(shutting_down()),
            }
        }
    }

    async fn send(&self, message: v1::session_response::Message) -> Result<(), Status> {
        let response = v1::SessionResponse { message: Some(message) };
        let sent = self.outbound.send_timeout(Ok(response), self.shared.options.send_within).await;
        sent.map_err(|_| Status::deadline_exceeded("the agent does not take its messages"))
    }

    async fn push(&self, push: Push) -> Result<(), Status> {
        use v1::session_response::Message;
        match push {
            Push::Whole(sent) => {
                let fence = Some(fence_to_wire(sent.fence));
                self.send(Message::Init(v1::Init { fence })).await?;
                for rule in &sent.plan.rules {
                    let rule = Some(rule_to_wire(rule));
                    self.send(Message::InitApply(v1::InitApply { rule })).await?;
                }
                let directive = directive_to_wire(sent.directive);
                let traces = self.on_their_way.to_wire();
                self.send(Message::InitDone(v1::InitDone { fence, directive, traces })).await
            }
            Push::Delta { from, fence, delta, directive } => {
                let delta = v1::PlanDelta {
                    from: Some(fence_to_wire(from)),
                    fence: Some(fence_to_wire(fence)),
                    apply: delta.apply.iter().map(rule_to_wire).collect(),
                    delete: delta.delete,
                    directive: directive_to_wire(directive),
                    traces: self.on_their_way.to_wire(),
                };
                self.send(Message::Delta(delta)).await
            }
        }
    }

    async fn receive(&mut self, id: u64, message: v1::session_request::Message) -> Result<(), Status> {
        use v1::session_request::Message;
        match message {
            Message::Hello(_) => return Err(Status::invalid_argument("Hello comes once, at the beginning")),
            Message::Facts(update) => self.facts(id, update).await?,
            Message::Ack(ack) => self.report(id, update_of_ack(ack), true).await,
            Message::Status(update) => self.report(id, update, false).await,
            Message::Nack(nack) => self.refused(id, nack),
            Message::Reply(reply) => self.open.reply(reply),
        }
        Ok(())
    }

    async fn facts(&mut self, id: u64, update: v1::FactsUpdate) -> Result<(), Status> {
        let said = update.clone();
        let v1::FactsUpdate { facts_generation: _, facts } = update;
        let Some(facts) = facts.map(facts_from_wire) else { return Ok(()) };
        if facts.labels != self.labels {
            // Durable before a plan for them is sent, so that nobody forgets what the node may hold.
            let known_at =
                node_record::remember(&*self.shared.store, &self.node, &self.ledger, &facts.labels, SystemTime::now())
                    .await
                    .map_err(|error| Status::unavailable(format!("the node's record cannot be stored: {error}")))?;
            self.shared.hub.caught_up(known_at).await;
            self.labels.clone_from(&facts.labels);
        }
        self.shared.relay.facts(&self.node, &said, Instant::now());
        self.shared.hub.facts_changed(&self.node, id, facts.labels.clone());
        self.shared.board.facts(&self.node, facts);
        Ok(())
    }

    async fn report(&mut self, id: u64, update: v1::StatusUpdate, acknowledges: bool) {
        let Shared { store, hub, board, relay, counters, .. } = &**self.shared;
        relay.report(&self.node, &update, Instant::now());
        if let Some(before) = self.other_store_holds {
            self.other_store_holds = (!acknowledges).then_some(update.settings_held);
            if before > 0 && update.settings_held == 0 {
                // The release that the other store ordered has ended: the node may be free to follow this one.
                hub.retry(&self.node, id);
            }
        }
        let report = status_update_from_wire(update);
        let (held, fence) = (report.uids_held.clone(), report.fence);
        board.report(&self.node, report, acknowledges, Instant::now());
        let mut settled = false;
        match fence {
            Some(fence) if acknowledges => {
                let acknowledged = hub.acknowledged(&self.node, id, fence, &held);
                settled = acknowledged.settled;
                if acknowledged.accepted {
                    relay.accepted(&self.node);
                }
                self.on_their_way.accepted(fence);
                if let Some(took) = self.pushed_at.take().filter(|(pushed, _)| *pushed == fence) {
                    counters.accepted(took.1.elapsed());
                }
            }
            _ => hub.held(&self.node, id, &held),
        }
        if settled && let Err(error) = node_record::settle(&**store, &self.node, &self.ledger.uid, &self.labels).await {
            // The next acknowledgement tries again.
            tracing::warn!(node = %self.node, %error, "earlier labels of the node stay remembered");
        }
    }

    fn refused(&mut self, id: u64, nack: v1::Nack) {
        let v1::Nack { fence, reason, message, held } = nack;
        let known = match reason.as_str() {
            "LowerFence" | "OtherStore" => NackReason::LowerFence,
            "UnexpectedBase" => NackReason::UnexpectedBase,
            _ => NackReason::Other,
        };
        let fence = fence.map(fence_from_wire).unwrap_or_default();
        self.on_their_way.refused(fence, &reason);
        if reason == "OtherStore" && self.other_store_holds.is_none() {
            self.other_store_holds = Some(i32::MAX);
        }
        self.shared.counters.refused(&reason);
        let held = held.map_or_else(|| "none".to_owned(), |held| fence_from_wire(held).to_string());
        tracing::warn!(node = %self.node, %fence, %held, reason, message, "the agent refused a plan");
        let mut text = format!("the agent refused the plan {fence}, it holds {held}: {message}");
        if reason == "LowerFence" {
            text += "; an older state of the store was brought back: where the fleet is to follow it, raise its epoch \
                     (weir-controller store raise-epoch --store STORE)";
        }
        let condition = Condition::holds("PlanRefused", if reason.is_empty() { "Unknown" } else { &reason }, text);
        let told = condition_to_wire(&condition);
        let after = self.shared.hub.refused(&self.node, id, fence, &known, condition);
        match after {
            AfterNack::RetryLater => self.retry_at = Some(Instant::now() + self.shared.options.retry_after),
            AfterNack::Wait => {}
            // Nothing is said of it: the plan goes again at once, or is not the one on its way.
            AfterNack::PushAgain | AfterNack::Ignore => return,
        }
        self.shared.relay.refusal(&self.node, told);
    }

    /// The agent follows a state that this store has lost: to go on from an earlier one would pass unnoticed once its
    /// revision has caught up.
    fn hold_back(&self, id: u64, ahead: Fence, present: Revision) {
        tracing::warn!(node = %self.node, %ahead, revision = %present, "the agent is ahead of the store: no plan is sent");
        let text = format!(
            "the agent follows {ahead}, which this store has not reached ({present}) or had lost: an older state of it was \
             brought back, so no plan is sent and the node keeps what it has; where the fleet is to follow this state, \
             raise its epoch (weir-controller store raise-epoch --store STORE)"
        );
        let condition = Condition::holds("PlanRefused", "LowerFence", text);
        self.shared.relay.refusal(&self.node, condition_to_wire(&condition));
        self.shared.hub.hold_back(&self.node, id, condition);
    }

    fn is_aged(&self) -> bool {
        self.aged_at.is_some_and(|at| at <= Instant::now())
    }

    /// Ends a session that is over its age once nothing is on its way, or the grace is over.
    fn end_of_age(&self, id: u64) -> Result<(), Status> {
        let Some(at) = self.aged_at.filter(|_| self.is_aged()) else { return Ok(()) };
        let busy = self.shared.hub.is_in_flight(&self.node, id) || self.open.is_awaited();
        if busy && at.elapsed() < self.shared.options.age_grace {
            return Ok(());
        }
        tracing::info!(node = %self.node, busy, "the session has reached its age");
        Err(reconnect_elsewhere())
    }

    /// Is the agent still there? Is a refused plan to be sent again?
    async fn look_after(&mut self, id: u64) -> Result<(), Status> {
        let Shared { hub, board, options, .. } = &**self.shared;
        let now = Instant::now();
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
            hub.retry(&self.node, id);
        }
        let heard = board.last_contact(&self.node).map_or(self.last_message, |at| at.max(self.last_message));
        let silent = now.saturating_duration_since(heard);
        if silent > options.end_after {
            return Err(Status::deadline_exceeded(format!("no message for {} s", silent.as_secs())));
        }
        if silent >= options.probe_after && now.saturating_duration_since(self.last_probe) >= options.probe_after {
            self.last_probe = now;
            let probe = self.open.probe();
            self.send(v1::session_response::Message::Query(probe)).await?;
        }
        Ok(())
    }
}
