//! A mirror of what the agents say that another replica serves.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};
use weir_common::{
    backoff::Backoff,
    tls::{Connection, Remote},
};
use weir_proto::v1::{self, peer_service_client::PeerServiceClient, relay_response::Message};

use super::{PeerTls, Peers};
use crate::{
    leader::{Replica, ReplicaId},
    model::{Measurement, NodeName},
    session::{AskFailure, Hello, RemoteAsk, RemoteSession, check_hello},
    wire::{condition_from_wire, duration_from_wire, facts_from_wire, measurement_from_wire, status_update_from_wire},
};

/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(3);
/// A replica that does not answer a ping in time is away: its nodes are shown as out of contact.
const KEEPALIVE: Duration = Duration::from_secs(4);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(4);
/// A stream that held for so long was no failed attempt.
const HELD: Duration = Duration::from_secs(10);
/// Largest message from a replica, bytes.
const MAX_MESSAGE: usize = 64 << 20;
/// Questions to a replica's agents that may wait.
const ASKS: usize = 256;
/// How long a replica may take to answer a question.
const ANSWER: Duration = Duration::from_secs(6);

/// Mirrors a replica until `ending`; takes back what it told then, and while the replica is away.
pub(super) async fn keep(peers: Peers, id: ReplicaId, replica: Replica, ending: CancellationToken) {
    let mut attempt = 0;
    loop {
        let began = Instant::now();
        let status = tokio::select! {
            status = mirror(&peers, &id, &replica) => status,
            () = ending.cancelled() => Status::cancelled("it left"),
        };
        // Out of contact as far as this replica knows; what was last reported stays, with its age.
        take_back(&peers, &id, &BTreeSet::new());
        if ending.is_cancelled() {
            tracing::info!(%id, "the other controller left");
            return;
        }
        attempt = if began.elapsed() > HELD { 0 } else { attempt + 1 };
        let wait = Backoff::RECONNECT.wait(attempt, fastrand::f64());
        tracing::warn!(%id, address = replica.address, code = ?status.code(), error = status.message(), ?wait,
            "another controller is not heard; again after a wait");
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = ending.cancelled() => {}
        }
    }
}

fn take_back(peers: &Peers, id: &ReplicaId, left: &BTreeSet<NodeName>) {
    for (node, instance) in peers.hub.remote_only(id, left) {
        if !peers.hub.serves(&node) {
            peers.board.disconnected(&node, &instance);
        }
    }
}

async fn connect(peers: &Peers, address: &str) -> Result<Connection, Status> {
    let scheme = if peers.tls.is_some() { "https" } else { "http" };
    let (tls, token) = peers.tls.clone().map_or((None, None), |PeerTls { tls, token }| (Some(tls), token));
    let remote = Remote::new(&format!("{scheme}://{address}"), tls, None)
        .and_then(|remote| remote.with_token(token))
        .map_err(|error| Status::invalid_argument(error.to_string()))?
        .map(|endpoint| {
            endpoint
                .connect_timeout(CONNECT)
                .http2_keep_alive_interval(KEEPALIVE)
                .keep_alive_timeout(KEEPALIVE_TIMEOUT)
                .keep_alive_while_idle(true)
        });
    remote.connect().await.map_err(|error| Status::unavailable(error.to_string()))
}

/// One stream, to its end.
async fn mirror(peers: &Peers, id: &ReplicaId, replica: &Replica) -> Status {
    match follow(peers, id, replica).await {
        Ok(()) => Status::unavailable("the stream ended"),
        Err(status) => status,
    }
}

async fn follow(peers: &Peers, id: &ReplicaId, replica: &Replica) -> Result<(), Status> {
    let channel = connect(peers, &replica.address).await?;
    let mut client = PeerServiceClient::new(channel).max_decoding_message_size(MAX_MESSAGE);
    let (asks, mut asked) = mpsc::channel::<RemoteAsk>(ASKS);
    let request = v1::RelayRequest { replica: peers.me.to_string() };
    let mut stream = client.relay(request).await?.into_inner();
    let mut known = Some(BTreeSet::new());
    loop {
        tokio::select! {
            message = stream.message() => {
                let Some(response) = message? else { return Ok(()) };
                let Some(message) = response.message else { continue };
                if matches!(message, Message::All(_)) {
                    if let Some(known) = known.take() {
                        take_back(peers, id, &known);
                        tracing::info!(%id, nodes = known.len(), "mirrored another controller");
                    }
                } else {
                    let node = told(peers, id, message, &asks);
                    if let (Some(known), Some(node)) = (&mut known, node) {
                        known.insert(node);
                    }
                }
            }
            Some((node, ask)) = asked.recv() => {
                let mut client = client.clone();
                tokio::spawn(async move {
                    let answer = put(&mut client, &node, ask.question()).await;
                    ask.answer(answer);
                });
            }
        }
    }
}

/// Notes what an agent said; the node of a session.
fn told(peers: &Peers, id: &ReplicaId, message: Message, asks: &mpsc::Sender<RemoteAsk>) -> Option<NodeName> {
    let Peers { me: _, hub, board, tls: _ } = peers;
    let now = Instant::now();
    let ago = |age: Option<weir_proto::Duration>| {
        age.and_then(duration_from_wire).and_then(|age| now.checked_sub(age)).unwrap_or(now)
    };
    // What a session here says is the fresher: an agent that moved is told of by both for a moment.
    let elsewhere = |node: &str| node.parse::<NodeName>().ok().filter(|node| !hub.serves(node));
    match message {
        Message::Session(v1::RelayedSession { hello, age }) => {
            // Said to another replica, which took it: what this one cannot read is left out.
            let hello = check_hello(hello?).ok()?;
            let node = hello.node;
            let Hello { node: _, agent, fence, facts, settings_held, .. } = hello;
            let heard = ago(age);
            if !hub.serves(&node) {
                board.connected(&node, agent.clone(), facts.clone(), settings_held, fence, heard);
            }
            let session = RemoteSession { agent, facts, settings_held, fence, heard };
            hub.remote_session(id, &node, session, asks.clone());
            return Some(node);
        }
        Message::Facts(v1::RelayedFacts { node, update }) => {
            let (node, facts) = (node.parse::<NodeName>().ok()?, facts_from_wire(update?.facts?));
            if !hub.serves(&node) {
                board.contact(&node, now);
                board.facts(&node, facts.clone());
            }
            hub.remote_facts(id, &node, facts);
        }
        Message::Report(v1::RelayedReport { node, status, age }) => {
            let (node, report) = (node.parse::<NodeName>().ok()?, status_update_from_wire(status?));
            hub.remote_report(id, &node, report.fence, &report.uids_held);
            if hub.serves(&node) {
                hub.remote_unshown(id, &node, report, ago(age));
            } else {
                board.contact(&node, ago(age));
                board.report(&node, report, true, ago(age));
            }
        }
        Message::Refusal(v1::RelayedRefusal { node, condition }) => {
            hub.remote_refused(id, &node.parse().ok()?, condition.map(condition_from_wire));
        }
        Message::Conflict(v1::RelayedConflict { node, refused_uid }) => hub.conflict(&node.parse().ok()?, &refused_uid),
        Message::Measurements(batch) => {
            let v1::ReportMeasurementsRequest { node, instance, sent_monotonic_ns, measurements } = batch;
            let node = elsewhere(&node)?;
            let rows: Vec<Measurement> = measurements.into_iter().filter_map(measurement_from_wire).collect();
            board.measured(&node, &instance, sent_monotonic_ns, &rows, now);
        }
        Message::End(v1::RelayedEnd { node, instance }) => {
            let node = node.parse().ok()?;
            hub.remote_end(id, &node, &instance);
            if !hub.serves(&node) {
                board.disconnected(&node, &instance);
            }
        }
        Message::Contacts(v1::RelayedContacts { contacts }) => {
            for v1::RelayedContact { node, age } in contacts {
                if let Some(node) = elsewhere(&node) {
                    board.contact(&node, ago(age));
                }
            }
        }
        Message::All(_) => {}
    }
    None
}

/// Puts a question to an agent by way of the replica that serves it.
async fn put(
    client: &mut PeerServiceClient<Connection>,
    node: &NodeName,
    question: v1::query::Question,
) -> Result<v1::reply::Answer, AskFailure> {
    use v1::{ask_node_request as asked, ask_node_response as told, query::Question, reply::Answer};
    let question = match question {
        Question::Explain(query) => asked::Question::Explain(query),
        Question::Workloads(query) => asked::Question::Workloads(query),
    };
    let request = v1::AskNodeRequest { node: node.to_string(), question: Some(question) };
    match tokio::time::timeout(ANSWER, client.ask_node(request)).await {
        Ok(Ok(response)) => match response.into_inner().answer {
            Some(told::Answer::Explain(reply)) => Ok(Answer::Explain(reply)),
            Some(told::Answer::Workloads(reply)) => Ok(Answer::Workloads(reply)),
            None => Err(AskFailure::Refused("the answer is empty".to_owned())),
        },
        Ok(Err(status)) if status.code() == Code::ResourceExhausted => Err(AskFailure::Busy),
        Ok(Err(status)) => Err(AskFailure::Refused(status.message().to_owned())),
        Err(_) => Err(AskFailure::Refused("the controller that serves it did not answer in time".to_owned())),
    }
}
