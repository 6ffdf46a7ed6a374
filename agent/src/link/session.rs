//! One session: hello, then whatever comes, until the stream ends.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, SystemTime},
};

use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::task::AbortOnDropHandle;
use tonic_types::StatusExt as _;
use weir_common::{fence::Fence, tls::Connection};
use weir_proto::v1::{
    self, agent_service_client::AgentServiceClient, session_request::Message as Out, session_response::Message as In,
};

use super::{FEATURES, Link, answers, from_wire, measurements, state::Contact, to_wire};
use crate::{
    condition::{ConditionType, Finding, timed},
    enforce::report::Report,
    plan::{Offer, Plan, Refusal},
    reconcile::{Command, Taken},
    trace::Contexts,
};

/// Statuses without a new plan are sent at most this often.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);
/// Until the controller says otherwise.
const REPORT_PERIOD: Duration = Duration::from_secs(2);
/// Largest message from a controller, bytes: a delta may hold many rules.
const MAX_MESSAGE: usize = 64 * 1024 * 1024;
/// Messages to the controller that may wait.
const QUEUE: usize = 64;

/// There was no session.
#[derive(Debug, thiserror::Error)]
pub(super) enum SessionError {
    /// No connection.
    #[error(transparent)]
    Connect(#[from] weir_common::tls::ConnectError),
    /// The connection broke, and TLS says why.
    #[error("the connection broke: {0}")]
    Broken(String),
    /// The controller refused it.
    #[error("refused: {} ({:?})", .0.message(), .0.code())]
    Refused(Box<tonic::Status>),
    /// The stream ended before the controller's Hello.
    #[error("the controller closed the stream before its Hello")]
    NoHello,
    /// The controller took the connection and said nothing.
    #[error("no Hello from the controller within 10 s")]
    NoHelloInTime,
}

impl SessionError {
    /// Whether another live agent has this node's name, which no quick attempt will change.
    pub(super) fn is_name_taken(&self) -> bool {
        matches!(self, SessionError::Refused(status) if status.code() == tonic::Code::AlreadyExists)
    }
}

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The stream ended or broke, or the loop has ended.
    Broke,
    /// The controller asked to connect again, elsewhere where there is a choice.
    Elsewhere,
}

/// Whether a status is the documented "connect again, elsewhere".
fn is_elsewhere(status: &tonic::Status) -> bool {
    status.code() == tonic::Code::Unavailable
        && status.get_details_error_info().is_some_and(|info| info.reason == weir_proto::RECONNECT_ELSEWHERE)
}

impl SessionError {
    /// The same, with what the connection has to say of it.
    pub(super) fn explained(self) -> SessionError {
        let cause = match &self {
            SessionError::Refused(status) => weir_common::tls::explain_call(status),
            SessionError::Connect(_)
            | SessionError::Broken(_)
            | SessionError::NoHello
            | SessionError::NoHelloInTime => None,
        };
        cause.map_or(self, SessionError::Broken)
    }
}

/// A whole plan while it comes in.
struct Incoming {
    store_uid: String,
    fence: Fence,
    rules: Vec<crate::plan::Rule>,
}

/// Speaks with the controller behind `channel` until the stream ends; its Hello must come before `deadline`.
pub(super) async fn run(
    link: &mut Link,
    channel: Connection,
    address: &str,
    contact: &Contact,
    deadline: Instant,
) -> Result<Ended, SessionError> {
    let (out, queue) = mpsc::channel::<v1::SessionRequest>(QUEUE);
    // Everything up to here goes with the hello.
    let facts = link.facts.borrow_and_update().clone();
    let report = link.reports.borrow_and_update().clone();
    // Counted within the session; the fence's own count is the controller's, which goes on from the plan held.
    let mut facts_generation = 1;
    let hello = v1::AgentHello {
        node: link.identity.node.clone(),
        node_uid: link.identity.node_uid.clone(),
        instance: link.identity.instance.clone(),
        agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        contract_version: weir_proto::CONTRACT_VERSION,
        features: FEATURES.map(str::to_owned).to_vec(),
        fence: report.fence.map(to_wire::fence),
        facts: Some(to_wire::facts(&facts, facts_generation)),
        settings_held: i32::try_from(report.settings_held).unwrap_or(i32::MAX),
        boot_id: link.identity.boot_id.clone(),
        store_uid: report.store_uid.clone(),
    };
    let mut sender = Sender { out };
    sender.send(Out::Hello(hello)).await;

    let mut client = AgentServiceClient::new(channel.clone()).max_decoding_message_size(MAX_MESSAGE);
    let refused = |status| SessionError::Refused(Box::new(status));
    let greeting = async {
        let mut inbound = client.session(ReceiverStream::new(queue)).await.map_err(refused)?.into_inner();
        let first = inbound.message().await.map_err(refused)?.and_then(|response| response.message);
        let Some(In::Hello(theirs)) = first else { return Err(SessionError::NoHello) };
        Ok((inbound, theirs))
    };
    let greeted = tokio::time::timeout_at(deadline, greeting).await;
    let (mut inbound, theirs) = greeted.map_err(|_| SessionError::NoHelloInTime)??;
    contact.heard();
    link.state.send_modify(|state| {
        state.controller = Some(address.to_owned());
        state.name_taken = None;
        state.sessions += 1;
    });
    tracing::info!(version = theirs.controller_version, epoch = theirs.store_epoch, "a session with a controller");
    let period = theirs.report_period.and_then(|period| Duration::try_from(period).ok()).unwrap_or(REPORT_PERIOD);
    let _measurements = AbortOnDropHandle::new(tokio::spawn(measurements::run(
        channel,
        link.meter.clone(),
        link.identity.clone(),
        contact.clone(),
        period.clamp(Duration::from_millis(100), Duration::from_secs(60)),
    )));

    let store_uid = theirs.store_uid;
    let mut incoming: Option<Incoming> = None;
    let mut sent: Option<Arc<Report>> = None;
    let mut next_status = Instant::now();
    let mut status_due = false;
    let mut offered = VecDeque::new();
    let mut last_pass = Instant::now();
    let mut stall_told = false;
    loop {
        tokio::select! {
            message = inbound.message() => match message {
                Ok(Some(response)) => {
                    contact.heard();
                    let Some(message) = response.message else { continue };
                    if let Some((offer, contexts)) = offer(message, &store_uid, &mut incoming, link, &sender) {
                        offered.push_back(Offered::to(&link.commands, offer, contexts));
                    }
                }
                Ok(None) => return Ok(Ended::Broke),
                Err(status) if is_elsewhere(&status) => return Ok(Ended::Elsewhere),
                Err(status) => {
                    tracing::info!(code = ?status.code(), message = status.message(), "the stream broke");
                    return Ok(Ended::Broke);
                }
            },
            answer = Offered::first(&mut offered), if !offered.is_empty() => {
                let Some(answer) = answer else { return Ok(Ended::Broke) };
                sent = answer.report.clone().or(sent);
                sender.send(answer.message).await;
            }
            () = tokio::time::sleep_until(last_pass + link.pass_within), if !stall_told => {
                stall_told = true;
                let report = Arc::new(stalled(&link.reports.borrow(), last_pass.elapsed()));
                tracing::error!(since = ?last_pass.elapsed(), "enforcement hangs");
                sender.send(Out::Status(to_wire::status(&report))).await;
                sent = Some(report);
            }
            changed = link.facts.changed() => {
                if changed.is_err() { return Ok(Ended::Broke) }
                facts_generation += 1;
                let update = to_wire::facts(&link.facts.borrow_and_update().clone(), facts_generation);
                sender.send(Out::Facts(update)).await;
            }
            changed = link.reports.changed() => {
                if changed.is_err() { return Ok(Ended::Broke) }
                link.reports.mark_unchanged();
                (last_pass, stall_told) = (Instant::now(), false);
                status_due = true;
            }
            () = tokio::time::sleep_until(next_status), if status_due => {
                status_due = false;
                next_status = Instant::now() + STATUS_INTERVAL;
                let report = link.reports.borrow().clone();
                if report.fence.is_some() && sent.as_ref().is_none_or(|sent| differs(sent, &report)) {
                    sender.send(Out::Status(to_wire::status(&report))).await;
                    sent = Some(report);
                }
            }
        }
        if sender.out.is_closed() {
            return Ok(Ended::Broke);
        }
    }
}

/// Whether a controller would learn anything.
fn differs(old: &Report, new: &Report) -> bool {
    (&old.fence, &old.rules, &old.settings, old.settings_held, &old.uids_held, &old.node)
        != (&new.fence, &new.rules, &new.settings, new.settings_held, &new.uids_held, &new.node)
}

#[derive(Clone)]
struct Sender {
    out: mpsc::Sender<v1::SessionRequest>,
}

impl Sender {
    /// A closed stream is seen by the loop.
    async fn send(&mut self, message: Out) {
        let _closed = self.out.send(v1::SessionRequest { message: Some(message) }).await;
    }
}

/// What a message asks of the loop; queries are answered beside.
fn offer(
    message: In,
    store_uid: &str,
    incoming: &mut Option<Incoming>,
    link: &Link,
    sender: &Sender,
) -> Option<(Offer, Contexts)> {
    match message {
        In::Hello(_) => None,
        In::Init(v1::Init { fence }) => {
            *incoming =
                Some(Incoming { store_uid: store_uid.to_owned(), fence: from_wire::fence(fence), rules: Vec::new() });
            None
        }
        In::InitApply(v1::InitApply { rule }) => {
            if let (Some(incoming), Some(rule)) = (incoming, rule) {
                incoming.rules.push(from_wire::rule(rule));
            }
            None
        }
        In::InitDone(done) => {
            let Incoming { store_uid, fence, rules } = incoming.take()?;
            if fence != from_wire::fence(done.fence) {
                tracing::error!(%fence, "a whole plan ended with another fence than it began with: not taken");
                return None;
            }
            let directive = known(from_wire::directive(done.directive), fence, link, sender)?;
            let offer = Offer::Whole(Plan { store_uid, fence, directive, rules });
            Some((offer, from_wire::traces(done.traces)))
        }
        In::Delta(delta) => {
            let fence = from_wire::fence(delta.fence);
            let directive = known(from_wire::directive(delta.directive), fence, link, sender)?;
            let contexts = from_wire::traces(delta.traces);
            let offer = Offer::Delta {
                from: from_wire::fence(delta.from),
                fence,
                apply: delta.apply.into_iter().map(from_wire::rule).collect(),
                delete: delta.delete,
                directive,
            };
            Some((offer, contexts))
        }
        In::Query(query) => {
            let (commands, meter, report) = (link.commands.clone(), link.meter.clone(), link.reports.borrow().clone());
            let mut sender = sender.clone();
            tokio::spawn(async move {
                for reply in answers::to(query, &commands, &meter, &report).await {
                    sender.send(Out::Reply(reply)).await;
                }
            });
            None
        }
    }
}

/// What was read of a plan, which is refused where that is not possible.
fn known<T>(read: Result<T, Refusal>, fence: Fence, link: &Link, sender: &Sender) -> Option<T> {
    let refusal = match read {
        Ok(known) => return Some(known),
        Err(refusal) => refusal,
    };
    let Answered { message, .. } = answered(fence, Err((refusal, link.reports.borrow().fence)));
    let mut sender = sender.clone();
    tokio::spawn(async move { sender.send(message).await });
    None
}

/// The last report, with the word that it is an old one.
fn stalled(last: &Report, since: Duration) -> Report {
    let message = format!("no pass of enforcement has ended for {} s", since.as_secs());
    let finding = Finding::holds(ConditionType::EnforcementStalled, "NoPass", message);
    let mut report = last.clone();
    report.node.extend(timed(vec![finding], 0, &[], SystemTime::now()));
    report
}

struct Answered {
    message: Out,
    report: Option<Arc<Report>>,
}

/// A plan that the loop was given and has not answered yet. The session goes on meanwhile: a loop that hangs is told of.
struct Offered {
    fence: Fence,
    answer: oneshot::Receiver<Taken>,
}

impl Offered {
    /// Has a plan taken and enforced.
    fn to(commands: &mpsc::Sender<Command>, offer: Offer, contexts: Contexts) -> Offered {
        let fence = offer.fence();
        let (reply, answer) = oneshot::channel();
        let commands = commands.clone();
        // Where the loop has ended, the reply is dropped with the command.
        tokio::spawn(async move { commands.send(Command::Offer(offer, contexts, reply)).await });
        Offered { fence, answer }
    }

    /// The answer about the oldest one; `None` where the loop has ended. Nothing is lost when the future is dropped.
    async fn first(offered: &mut VecDeque<Offered>) -> Option<Answered> {
        let Offered { fence, answer } = offered.front_mut()?;
        let (fence, taken) = (*fence, answer.await);
        offered.pop_front();
        Some(answered(fence, taken.ok()?))
    }
}

fn answered(fence: Fence, taken: Taken) -> Answered {
    match taken {
        Ok(report) => {
            tracing::info!(%fence, writes = report.writes, held = report.settings_held, "a plan is in force");
            Answered { message: Out::Ack(to_wire::ack(&report)), report: Some(report) }
        }
        Err((refusal, held)) => {
            tracing::warn!(%fence, %refusal, "a plan is refused");
            let nack = v1::Nack {
                fence: Some(to_wire::fence(fence)),
                reason: refusal.reason().to_owned(),
                message: refusal.to_string(),
                held: held.map(to_wire::fence),
            };
            Answered { message: Out::Nack(nack), report: None }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_offer_waits_for_its_answer_however_often_the_wait_is_dropped() {
        let (commands, mut queue) = mpsc::channel(1);
        let fence = Fence { store_epoch: 1, revision: 3, facts_generation: 1 };
        let plan = Plan { store_uid: String::new(), fence, directive: crate::plan::Directive::Active, rules: vec![] };
        let mut offered = VecDeque::from([Offered::to(&commands, Offer::Whole(plan), Contexts::new())]);
        for _ in 0..3 {
            assert!(tokio::time::timeout(Duration::from_millis(1), Offered::first(&mut offered)).await.is_err());
        }
        let Some(Command::Offer(_, _, reply)) = queue.recv().await else { panic!("the loop is given the offer") };
        let _taken = reply.send(Ok(Arc::new(Report { fence: Some(fence), ..Report::default() })));
        let answer = Offered::first(&mut offered).await.unwrap();
        assert!(matches!(answer.message, Out::Ack(_)));
        assert!(offered.is_empty());
    }

    #[test]
    fn a_loop_that_hangs_is_told_with_what_was_last_known() {
        let last = Report { settings_held: 4, ..Report::default() };
        let told = stalled(&last, Duration::from_secs(25));
        assert_eq!(told.settings_held, 4);
        assert!(told.node[0].finding.message.contains("25 s"));
        assert!(differs(&told, &last), "the next pass takes it back");
    }
}
