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

use super::authorize::RULES;
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
        let Some(method) = observed(request.uri().path()) else { return Box::pin(self.inner.call(request)) };
        let (began, counters) = (Instant::now(), self.counters.clone());
        let span = rpc::server_span(method, request.headers());
        let call = self.inner.call(request).instrument(span.clone());
        Box::pin(async move {
            let response = call.await?;
            // An error without a message is in the headers; a success is in the trailers.
            let code = response.headers().get("grpc-status").map_or(Code::Ok, |code| Code::from_bytes(code.as_bytes()));
            rpc::ended(&span, code);
            counters.call(method, code, began.elapsed());
            Ok(response)
        })
    }
}

/// The method of a path, where it is one of ours that is counted and traced.
fn observed(path: &str) -> Option<&'static str> {
    let (name, _) = RULES.iter().find(|(name, _)| *name == path)?;
    let method = name.trim_start_matches('/');
    let traced = TRACED.iter().any(|service| method.starts_with(service)) && !STREAMS.contains(&method);
    traced.then_some(method)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_anybody_can_make_up_is_not_counted() {
        assert_eq!(observed("/weir.v1.IntentService/GetIntent"), Some("weir.v1.IntentService/GetIntent"));
        for path in [
            "/weir.v1.IntentService/WatchIntents",
            "/weir.v1.AgentService/Session",
            "/weir.v1.IntentService/MadeUp",
            "/weir.v1.IntentService/GetIntent/",
            "//weir.v1.IntentService/GetIntent",
            "weir.v1.IntentService/GetIntent",
            "",
        ] {
            assert_eq!(observed(path), None, "{path}");
        }
    }
}
