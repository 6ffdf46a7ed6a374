//! How the services are served: limits of messages, keepalive, health, reflection, an orderly end.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::{
    service::InterceptorLayer,
    transport::{Server, server::TcpIncoming},
};
use weir_proto::v1::{
    FILE_DESCRIPTOR_SET, agent_service_server::AgentServiceServer, fleet_service_server::FleetServiceServer,
    intent_service_server::IntentServiceServer, peer_service_server::PeerServiceServer,
};

use super::{FleetApi, IntentApi, authorize::Authorize};
use crate::{
    peers::{PeerApi, Relay},
    session::{AgentApi, Hub, SessionOptions},
    status::Board,
    store::Store,
};

/// Largest request of people and programs, bytes: the largest intent is far below.
const MAX_REQUEST: usize = 1 << 20;
/// Largest message of an agent, bytes: a report of some ten thousand settings.
const MAX_AGENT_MESSAGE: usize = 16 << 20;
/// Largest answer, bytes.
const MAX_RESPONSE: usize = 64 << 20;
/// A connection that does not answer a ping within [`KEEPALIVE_TIMEOUT`] is dead.
const KEEPALIVE: Duration = Duration::from_secs(10);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Streams that one connection may have open.
const MAX_STREAMS: u32 = 1024;
/// Largest list of headers, bytes.
const MAX_HEADERS: u32 = 64 << 10;

/// The server could not begin, or failed.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address is not loopback.
    #[error(
        "{0} is no loopback address and this controller has no TLS: anybody who reaches it could change limits; \
         say --insecure where the network itself keeps strangers out"
    )]
    NotLoopback(SocketAddr),
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// Reflection cannot be built from the descriptors.
    #[error("the contract's descriptors make no reflection service: {0}")]
    Reflection(String),
    /// The server failed.
    #[error("the server failed: {0}")]
    Transport(#[from] tonic::transport::Error),
}

/// Where to listen.
#[derive(Clone, Copy, Debug)]
pub struct Addresses {
    /// Address and port; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Permits other than loopback addresses.
    pub insecure: bool,
}

/// Listens, without serving yet.
///
/// # Errors
/// The address is not permitted or not free.
pub async fn bind(addresses: Addresses) -> Result<TcpListener, ServeError> {
    let Addresses { listen, insecure } = addresses;
    if !insecure && !listen.ip().to_canonical().is_loopback() {
        return Err(ServeError::NotLoopback(listen));
    }
    TcpListener::bind(listen).await.map_err(|source| ServeError::Bind { address: listen, source })
}

/// What is served.
#[derive(Debug)]
pub struct Serving<S> {
    /// Desired state.
    pub store: Arc<S>,
    /// Sessions.
    pub hub: Arc<Hub>,
    /// Reports.
    pub board: Arc<Board>,
    /// What agents say, for other replicas.
    pub relay: Arc<Relay>,
    /// Times of sessions, and the token that ends everything.
    pub sessions: SessionOptions,
    /// Admits other than loopback peers.
    pub insecure: bool,
}

/// Serves until the token of the session options is cancelled.
///
/// # Errors
/// The server failed.
pub async fn serve<S: Store>(listener: TcpListener, serving: Serving<S>) -> Result<(), ServeError> {
    let Serving { store, hub, board, relay, sessions, insecure } = serving;
    let shutdown: CancellationToken = sessions.shutdown.clone();
    let intents = IntentServiceServer::new(IntentApi::new(
        Arc::clone(&store),
        Arc::clone(&hub),
        Arc::clone(&board),
        shutdown.clone(),
    ))
    .max_decoding_message_size(MAX_REQUEST)
    .max_encoding_message_size(MAX_RESPONSE);
    let fleet = FleetServiceServer::new(FleetApi::new(Arc::clone(&store), Arc::clone(&hub), Arc::clone(&board)))
        .max_decoding_message_size(MAX_REQUEST)
        .max_encoding_message_size(MAX_RESPONSE);
    let peers = PeerServiceServer::new(PeerApi::new(Arc::clone(&hub), Arc::clone(&relay), shutdown.clone()))
        .max_decoding_message_size(MAX_REQUEST)
        .max_encoding_message_size(MAX_RESPONSE);
    let agents = AgentServiceServer::new(AgentApi::new(store, hub, board, relay, sessions))
        .max_decoding_message_size(MAX_AGENT_MESSAGE)
        .max_encoding_message_size(MAX_RESPONSE);

    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<IntentServiceServer<IntentApi<S>>>().await;
    health.set_serving::<FleetServiceServer<FleetApi<S>>>().await;
    health.set_serving::<AgentServiceServer<AgentApi<S>>>().await;
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let failed = |error: tonic_reflection::server::Error| ServeError::Reflection(error.to_string());

    let ending = async move {
        shutdown.cancelled().await;
        health.set_not_serving::<IntentServiceServer<IntentApi<S>>>().await;
        health.set_not_serving::<FleetServiceServer<FleetApi<S>>>().await;
        health.set_not_serving::<AgentServiceServer<AgentApi<S>>>().await;
    };
    Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .max_concurrent_streams(MAX_STREAMS)
        .http2_max_header_list_size(MAX_HEADERS)
        .layer(InterceptorLayer::new(Authorize { insecure }))
        .add_service(health_service)
        .add_service(reflection().build_v1().map_err(failed)?)
        .add_service(reflection().build_v1alpha().map_err(failed)?)
        .add_service(intents)
        .add_service(fleet)
        .add_service(agents)
        .add_service(peers)
        .serve_with_incoming_shutdown(TcpIncoming::from(listener).with_nodelay(Some(true)), ending)
        .await?;
    Ok(())
}
