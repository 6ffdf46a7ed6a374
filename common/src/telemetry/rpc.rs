//! Spans of gRPC calls that are served, by the semantic conventions of RPC.

use http::HeaderMap;
use tracing::{Span, field::Empty, info_span};

use super::{TRACE, TraceContext};

/// The span of a call to `method` (`package.Service/Method`), a child of what the caller sent, if it sent anything.
pub fn server_span(method: &str, headers: &HeaderMap) -> Span {
    let span = info_span!(
        target: TRACE,
        "rpc",
        otel.name = method,
        otel.kind = "server",
        rpc.system.name = "grpc",
        rpc.method = method,
        rpc.response.status_code = Empty,
        error.type = Empty,
        otel.status_code = Empty,
        weir.principal = Empty,
    );
    let sent = headers.get("traceparent").and_then(|value| value.to_str().ok()).and_then(TraceContext::parse);
    if let Some(parent) = sent
        && !span.is_disabled()
    {
        parent.adopt(&span);
    }
    span
}

/// Notes how the call ended: the name of its status code. Only what is the server's fault makes the span an error.
pub fn ended(span: &Span, code: tonic::Code) {
    use tonic::Code;
    let name = code_name(code);
    span.record("rpc.response.status_code", name);
    match code {
        Code::Unknown
        | Code::DeadlineExceeded
        | Code::Unimplemented
        | Code::Internal
        | Code::Unavailable
        | Code::DataLoss => {
            span.record("error.type", name);
            span.record("otel.status_code", "ERROR");
        }
        _ => {}
    }
}

/// The name of a status code as gRPC writes it.
pub fn code_name(code: tonic::Code) -> &'static str {
    use tonic::Code;
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}
