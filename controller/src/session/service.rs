//! The gRPC side of sessions: AgentService.

use std::{pin::Pin, sync::Arc, time::Instant};

use tokio::sync::mpsc;
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tonic::{Request, Response, Status, Streaming};
use weir_proto::v1::{self, agent_service_server::AgentService};

use super::{options::Shared, run};
use crate::{
    access::Principal,
    model::{Measurement, NodeName},
    status::Board,
    store::Store,
    wire::measurement_from_wire,
};

/// Messages to an agent that may wait for it.
const QUEUE: usize = 64;

/// AgentService.
#[derive(Debug)]
pub struct AgentApi<S> {
    pub(super) shared: Arc<Shared<S>>,
}

impl<S: Store> AgentApi<S> {
    /// The service over these.
    pub fn new(shared: Shared<S>) -> Self {
        AgentApi { shared: Arc::new(shared) }
    }
}

type Outbound<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl<S: Store> AgentService for AgentApi<S> {
    type SessionStream = Outbound<v1::SessionResponse>;
    type ReportMeasurementsStream = Outbound<v1::ReportMeasurementsResponse>;

    async fn session(
        &self,
        request: Request<Streaming<v1::SessionRequest>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        // The response begins at once: an agent may wait for it before it says Hello. A refusal comes on the stream.
        let caller = Principal::of(&request)?;
        let (sender, receiver) = mpsc::channel(QUEUE);
        let shared = Arc::clone(&self.shared);
        tokio::spawn(async move {
            if let Err(status) = run::run(&shared, &caller, request.into_inner(), &sender).await {
                let _gone = sender.send_timeout(Err(status), shared.options.send_within).await;
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn report_measurements(
        &self,
        request: Request<Streaming<v1::ReportMeasurementsRequest>>,
    ) -> Result<Response<Self::ReportMeasurementsStream>, Status> {
        let caller = Principal::of(&request)?;
        let (sender, receiver) = mpsc::channel(QUEUE);
        let shared = Arc::clone(&self.shared);
        tokio::spawn(async move {
            let mut inbound = request.into_inner();
            let mut received = 0;
            loop {
                let batch = tokio::select! {
                    batch = inbound.message() => batch,
                    () = shared.options.shutdown.cancelled() => {
                        let _gone = sender.try_send(Err(Status::unavailable("the controller is shutting down")));
                        return;
                    }
                };
                let Ok(Some(batch)) = batch else { return };
                let relayed = batch.clone();
                if let Err(status) = accept(&shared.board, &caller, batch) {
                    let _gone = sender.send_timeout(Err(status), shared.options.send_within).await;
                    return;
                }
                shared.relay.measurements(&relayed, Instant::now());
                received += 1;
                // An agent that does not take its receipts sends nothing more.
                if sender.send(Ok(v1::ReportMeasurementsResponse { received })).await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }
}

fn accept(board: &Board, caller: &Principal, batch: v1::ReportMeasurementsRequest) -> Result<(), Status> {
    let v1::ReportMeasurementsRequest { node, instance, sent_monotonic_ns, measurements } = batch;
    let Ok(node) = node.parse::<NodeName>() else { return Ok(()) };
    caller.check_node(&node)?;
    let rows: Vec<Measurement> = measurements.into_iter().filter_map(measurement_from_wire).collect();
    board.measured(&node, &instance, sent_monotonic_ns, &rows, Instant::now());
    Ok(())
}
