//! A layer around all services: each unary call is counted, and is a span, a child of what the caller sent as `traceparent`. Calls that stream
//! for as long as they can are none: sessions, watches, and what replicas tell each other.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Instant,
};

use http::{Request, Response};
use tonic::{Code, body::Body};
use tower::{Layer, Service};
use tracing::Instrument as _;
use weir_common::telemetry::rpc;

use super::authorize::rule;
use crate::ops::Counters;

/// Services of which every call that does not stream is traced.
const TRACED: [&str; 2] = ["weir.v1.IntentService/", "weir.v1.FleetService/"];
/// Calls of these that stream.
const STREAMS: [&str; 1] = ["weir.v1.IntentService/WatchIntents"];

/// Puts [`Observe`] around services.
#[derive(Clone, Debug)]
pub(super) struct ObserveLayer(pub(super) Counters);

impl<S> Layer<S> for ObserveLayer {
    type Service = Observe<S>;

    fn layer(&self, inner: S) -> Observe<S> {
        Observe { inner, counters: self.0.clone() }
    }
}

/// Traces calls.
#[derive(Clone)]
pub(super) struct Observe<S> {
    inner: S,
    counters: Counters,
}

impl<S> Service<Request<Body>> for Observe<S>
where
    S: Service<Request<Body>, Response = Response<Body>> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let path = request.uri().path();
        let method = path.trim_start_matches('/');
        // A path that is no method of ours would become a series of its own, and anybody can make up many.
        if rule(path).is_none()
            || STREAMS.contains(&method)
            || !TRACED.iter().any(|service| method.starts_with(service))
        {
            return Box::pin(self.inner.call(request));
        }
        let (method, began, counters) = (method.to_owned(), Instant::now(), self.counters.clone());
        let span = rpc::server_span(&method, request.headers());
        let call = self.inner.call(request).instrument(span.clone());
        Box::pin(async move {
            let response = call.await?;
            // An error without a message is in the headers; a success is in the trailers.
            let code = response.headers().get("grpc-status").map_or(Code::Ok, |code| Code::from_bytes(code.as_bytes()));
            rpc::ended(&span, code);
            counters.call(&method, code, began.elapsed());
            Ok(response)
        })
    }
}
