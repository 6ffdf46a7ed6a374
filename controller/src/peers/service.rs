//! The side of the replica that serves the agents: passes on what they say, and puts questions to them.

use std::{
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::{broadcast::error::RecvError, mpsc};
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};
use weir_proto::v1::{self, peer_service_server::PeerService, relay_response::Message};

use crate::{
    model::NodeName,
    plan::features,
    session::{AskError, Hub, Relay, Subscription},
    wire::errors,
};

/// How often replicas are told when agents were last heard of.
const CONTACTS: Duration = Duration::from_secs(5);
/// Messages that may wait for a replica.
const QUEUE: usize = 64;

/// PeerService.
#[derive(Debug)]
pub struct PeerApi {
    hub: Arc<Hub>,
    relay: Arc<Relay>,
    shutdown: CancellationToken,
}

impl PeerApi {
    /// The service over these.
    pub fn new(hub: Arc<Hub>, relay: Arc<Relay>, shutdown: CancellationToken) -> Self {
        PeerApi { hub, relay, shutdown }
    }
}

type Outbound = Pin<Box<dyn Stream<Item = Result<v1::RelayResponse, Status>> + Send>>;
type Sender = mpsc::Sender<Result<v1::RelayResponse, Status>>;

#[tonic::async_trait]
impl PeerService for PeerApi {
    type RelayStream = Outbound;

    async fn relay(&self, request: Request<v1::RelayRequest>) -> Result<Response<Outbound>, Status> {
        let v1::RelayRequest { replica } = request.into_inner();
        let subscription = self.relay.subscribe(Instant::now());
        let subscription =
            subscription.ok_or_else(|| Status::failed_precondition("this controller shares its store with nobody"))?;
        tracing::info!(replica, "another controller listens to what agents say here");
        let (sender, receiver) = mpsc::channel(QUEUE);
        let (relay, shutdown) = (Arc::clone(&self.relay), self.shutdown.clone());
        tokio::spawn(async move {
            let ended = tokio::select! {
                ended = pass_on(&relay, subscription, &sender) => ended,
                () = shutdown.cancelled() => Err(Status::unavailable("the controller is shutting down")),
            };
            if let Err(status) = ended {
                let _gone = sender.try_send(Err(status));
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn ask_node(&self, request: Request<v1::AskNodeRequest>) -> Result<Response<v1::AskNodeResponse>, Status> {
        use v1::{ask_node_request as asked, ask_node_response as told, query::Question, reply::Answer};
        let v1::AskNodeRequest { node, question } = request.into_inner();
        let node: NodeName = node.parse().map_err(|error| Status::invalid_argument(format!("node: {error}")))?;
        let (feature, question) = match question {
            Some(asked::Question::Explain(query)) => (features::QUERY_EXPLAIN, Question::Explain(query)),
            Some(asked::Question::Workloads(query)) => (features::QUERY_WORKLOADS, Question::Workloads(query)),
            None => return Err(Status::invalid_argument("question: is required")),
        };
        // Asked of a session here alone: two replicas that take each other to serve the node would ask in a circle.
        if !self.hub.serves(&node) {
            return Err(errors::ask(&AskError::Away(node)));
        }
        let answer = self.hub.ask(&node, feature, question).await.map_err(|error| errors::ask(&error))?;
        let answer = match answer {
            Answer::Explain(reply) => told::Answer::Explain(reply),
            Answer::Workloads(reply) => told::Answer::Workloads(reply),
        };
        Ok(Response::new(v1::AskNodeResponse { answer: Some(answer) }))
    }
}

/// Sends everything, then every change, until the replica goes.
async fn pass_on(relay: &Relay, subscription: Subscription, sender: &Sender) -> Result<(), Status> {
    let Subscription { known, mut changes } = subscription;
    let gone = |_| Status::cancelled("the replica went away");
    let message = |message| Ok(v1::RelayResponse { message: Some(message) });
    for known in known.into_iter().chain([Message::All(v1::RelayedAll {})]) {
        sender.send(message(known)).await.map_err(gone)?;
    }
    let mut ticks = tokio::time::interval(CONTACTS);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let next = tokio::select! {
            change = changes.recv() => match change {
                Ok(change) => Ok((*change).clone()),
                Err(RecvError::Lagged(_)) => return Err(Status::aborted("too slow: begin again with everything")),
                Err(RecvError::Closed) => return Ok(()),
            },
            _ = ticks.tick() => message(Message::Contacts(relay.contacts(Instant::now()))),
        };
        sender.send(next).await.map_err(gone)?;
    }
}
