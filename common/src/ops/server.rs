//! The HTTP server. Its answers are short and never wait for what they are about.

use std::{fmt, io, net::SocketAddr, sync::Arc};

use axum::{
    Router,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse as _, Response},
    routing::get,
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::metrics::{Family, Format, encode};

/// What a process answers with.
pub trait Answers: Send + Sync + 'static {
    /// Whether it does its work, or why not: a process that answers with an error should be started again.
    ///
    /// # Errors
    /// What hangs, one sentence.
    fn live(&self) -> Result<(), String>;

    /// Whether it is of use to others now, or why not.
    ///
    /// # Errors
    /// What is missing, one sentence.
    fn ready(&self) -> Result<(), String>;

    /// Its metrics.
    fn metrics(&self) -> Vec<Family>;
}

/// An address to listen on, or none: `off`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addressed(pub Option<SocketAddr>);

impl std::str::FromStr for Addressed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Addressed(None));
        }
        text.parse().map(|address| Addressed(Some(address))).map_err(|_| "is neither ADDRESS:PORT nor `off`".to_owned())
    }
}

impl fmt::Display for Addressed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(address) => address.fmt(f),
            None => f.write_str("off"),
        }
    }
}

/// It cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum OpsError {
    /// The address is not to be had.
    #[error(
        "{address} cannot be listened on for metrics and health (--ops-listen gives another, `off` none): {source}"
    )]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
}

/// Listens, without serving yet; `None` where nothing is to be served. Where no address was given, `port` on loopback is
/// tried: a second process on the machine goes on without it, and says so.
///
/// # Errors
/// The address that was given is not to be had.
pub async fn bind(given: Option<Addressed>, port: u16) -> Result<Option<TcpListener>, OpsError> {
    let Some(Addressed(given)) = given else {
        let usual = SocketAddr::from(([127, 0, 0, 1], port));
        let bound = TcpListener::bind(usual).await;
        return Ok(bound
            .inspect_err(|error| tracing::warn!(%usual, %error, "no metrics and health are served: --ops-listen"))
            .ok());
    };
    let Some(address) = given else { return Ok(None) };
    TcpListener::bind(address).await.map(Some).map_err(|source| OpsError::Bind { address, source })
}

/// Serves until `shutdown`.
///
/// # Errors
/// The server failed.
pub async fn serve(listener: TcpListener, answers: Arc<dyn Answers>, shutdown: CancellationToken) -> io::Result<()> {
    let router = Router::new()
        .route("/metrics", get(metrics))
        .route("/livez", get(|State(answers): State<Arc<dyn Answers>>| async move { health(answers.live()) }))
        .route("/readyz", get(|State(answers): State<Arc<dyn Answers>>| async move { health(answers.ready()) }))
        .with_state(answers);
    axum::serve(listener, router).with_graceful_shutdown(async move { shutdown.cancelled().await }).await
}

fn health(result: Result<(), String>) -> Response {
    match result {
        Ok(()) => "ok\n".into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
    }
}

async fn metrics(State(answers): State<Arc<dyn Answers>>, headers: HeaderMap) -> Response {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let format = Format::accepted(accept);
    match encode(answers.metrics(), format) {
        Ok(text) => ([(header::CONTENT_TYPE, format.content_type())], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
