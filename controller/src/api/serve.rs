//! How the services are served: TLS, limits of messages, keepalive, health, reflection, an orderly end.

use std::{fmt, io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use weir_common::tls::ServerTls;
use weir_proto::v1::{
    FILE_DESCRIPTOR_SET, agent_service_server::AgentServiceServer, fleet_service_server::FleetServiceServer,
    intent_service_server::IntentServiceServer, peer_service_server::PeerServiceServer,
};

use super::{FleetApi, IntentApi, accept, authorize::AuthorizeLayer, observe::ObserveLayer};
use crate::{
    access::{Authenticator, Loopback},
    ops::Counters,
    peers::{PeerApi, PeerTls},
    session::{AgentApi, Hub, Relay, SessionOptions, Shared},
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
         give --tls-cert, --tls-key and --tls-client-ca (`weirctl certs init` makes them), or say --insecure where the \
         network itself keeps strangers out"
    )]
    NotLoopback(SocketAddr),
    /// The address is not loopback, and clients are not asked who they are.
    #[error(
        "{0} is no loopback address and no client is asked for a certificate: anybody who reaches it could change limits; \
         give --tls-client-ca or --token-audience, or say --insecure where the network itself keeps strangers out"
    )]
    NobodyIsAsked(SocketAddr),
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
    /// Permits other than loopback addresses where clients are not asked who they are.
    pub insecure: bool,
    /// There is TLS.
    pub tls: bool,
    /// Clients are asked who they are.
    pub asks: bool,
}

/// How connections are secured, and how callers are known.
#[derive(Clone)]
pub struct Security {
    /// TLS; plain text without it.
    pub tls: Option<Arc<ServerTls>>,
    /// Who calls.
    pub authenticator: Arc<dyn Authenticator>,
    /// How other controllers are connected to; in plain text without it.
    pub peers: Option<PeerTls>,
}

impl Security {
    /// Plain text for loopback, or for everybody where `insecure`; whoever is admitted may do everything.
    pub fn plain(insecure: bool) -> Security {
        Security { tls: None, authenticator: Arc::new(Loopback { insecure }), peers: None }
    }
}

impl fmt::Debug for Security {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Security").field("tls", &self.tls).finish_non_exhaustive()
    }
}

/// Listens, without serving yet.
///
/// # Errors
/// The address is not permitted or not free.
pub async fn bind(addresses: Addresses) -> Result<TcpListener, ServeError> {
    let Addresses { listen, insecure, tls, asks } = addresses;
    if !insecure && !asks && !listen.ip().to_canonical().is_loopback() {
        return Err(if tls { ServeError::NobodyIsAsked(listen) } else { ServeError::NotLoopback(listen) });
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
    /// TLS and identities.
    pub security: Security,
    /// What is counted.
    pub counters: Counters,
}

/// Serves until the token of the session options is cancelled.
///
/// # Errors
/// The server failed.
pub async fn serve<S: Store>(listener: TcpListener, serving: Serving<S>) -> Result<(), ServeError> {
    let Serving { store, hub, board, relay, sessions, security, counters } = serving;
    let Security { tls, authenticator, peers: _ } = security;
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
    let agents = AgentServiceServer::new(AgentApi::new(Shared {
        store,
        hub,
        board,
        relay,
        options: sessions,
        counters: counters.clone(),
    }))
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
        .layer(ObserveLayer(counters.clone()))
        .layer(AuthorizeLayer(authenticator))
        .add_service(health_service)
        .add_service(reflection().build_v1().map_err(failed)?)
        .add_service(reflection().build_v1alpha().map_err(failed)?)
        .add_service(intents)
        .add_service(fleet)
        .add_service(agents)
        .add_service(peers)
        .serve_with_incoming_shutdown(accept::connections(listener, tls), ending)
        .await?;
    Ok(())
}
