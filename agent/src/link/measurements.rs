//! Measurements, on a stream of their own: when the controller is slow, samples are skipped, which loses nothing, since they
//! are cumulative.

use std::time::Duration;

use tokio::{sync::mpsc, time::MissedTickBehavior};
use tokio_stream::wrappers::ReceiverStream;
use weir_common::{backoff::Backoff, tls::Connection};
use weir_proto::v1::{self, agent_service_client::AgentServiceClient};

use super::{Identity, state::Contact, to_wire};
use crate::measure::{Meter, monotonic_ns};

/// Batches that may wait for the controller.
const QUEUE: usize = 2;

/// Reports each `period` until it is dropped.
pub(super) async fn run(channel: Connection, meter: Meter, identity: Identity, contact: Contact, period: Duration) {
    for attempt in 0.. {
        if let Err(status) = stream(channel.clone(), &meter, &identity, &contact, period).await {
            tracing::debug!(code = ?status.code(), message = status.message(), "the measurements' stream broke");
        }
        tokio::time::sleep(Backoff::RECONNECT.wait(attempt, fastrand::f64())).await;
    }
}

async fn stream(
    channel: Connection,
    meter: &Meter,
    identity: &Identity,
    contact: &Contact,
    period: Duration,
) -> Result<(), tonic::Status> {
    let (out, queue) = mpsc::channel(QUEUE);
    let mut client = AgentServiceClient::new(channel);
    let receipts = client.report_measurements(ReceiverStream::new(queue));
    let mut ticks = tokio::time::interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let feed = async {
        loop {
            ticks.tick().await;
            let batch = v1::ReportMeasurementsRequest {
                node: identity.node.clone(),
                instance: identity.instance.clone(),
                sent_monotonic_ns: monotonic_ns(),
                measurements: meter.latest().iter().map(to_wire::measurement).collect(),
            };
            match out.try_send(batch) {
                Ok(()) | Err(mpsc::error::TrySendError::Full(_)) => {}
                Err(mpsc::error::TrySendError::Closed(_)) => return,
            }
        }
    };
    let receive = async {
        let mut receipts = receipts.await?.into_inner();
        while receipts.message().await?.is_some() {
            contact.heard();
        }
        Ok(())
    };
    tokio::select! {
        () = feed => Ok(()),
        ended = receive => ended,
    }
}
