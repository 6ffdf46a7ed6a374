//! A collector of traces in this process: OTLP over gRPC, as a real one takes it, with what it received at hand.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    common::v1::{KeyValue, any_value::Value},
    trace::v1::{Span as WireSpan, status::StatusCode},
};
use tokio::net::TcpListener;
use tonic::{Request, Response, Status, codec::CompressionEncoding};

/// A span as it was received.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// `service.name` of its resource.
    pub service: String,
    /// The resource's attributes.
    pub resource: BTreeMap<String, String>,
    /// Trace id, hexadecimal.
    pub trace: String,
    /// Its id, hexadecimal.
    pub id: String,
    /// Its parent's id; empty for a root.
    pub parent: String,
    /// Name.
    pub name: String,
    /// 1 internal, 2 server, 3 client, 4 producer, 5 consumer.
    pub kind: i32,
    /// Attributes as text.
    pub attributes: BTreeMap<String, String>,
    /// Whether its status is an error.
    pub is_error: bool,
    /// Start and end, nanoseconds since 1970.
    pub time: (u64, u64),
}

impl Span {
    /// An attribute; empty where it has none of this name.
    pub fn attribute(&self, name: &str) -> &str {
        self.attributes.get(name).map_or("", String::as_str)
    }
}

#[derive(Clone, Debug, Default)]
struct Received(Arc<Mutex<Vec<Span>>>);

/// The collector. It ends with the runtime.
#[derive(Clone, Debug)]
pub struct Collector {
    /// Where it listens.
    pub address: SocketAddr,
    received: Received,
}

impl Collector {
    /// Starts one on loopback. `delay` is how long it takes for each answer.
    ///
    /// # Errors
    /// It cannot listen.
    pub async fn start(delay: Duration) -> anyhow::Result<Collector> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let received = Received::default();
        let service = TraceServiceServer::new(Answering { received: received.clone(), delay })
            .accept_compressed(CompressionEncoding::Gzip);
        let incoming = tonic::transport::server::TcpIncoming::from(listener);
        tokio::spawn(tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming));
        Ok(Collector { address, received })
    }

    /// Everything so far.
    pub fn spans(&self) -> Vec<Span> {
        self.received.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Spans of the trace that has a span as wanted, once the trace is as wanted too.
    ///
    /// # Errors
    /// Not within `limit`; what was received is in the message.
    pub async fn trace(
        &self,
        limit: Duration,
        of: impl Fn(&Span) -> bool,
        complete: impl Fn(&Trace) -> bool,
    ) -> anyhow::Result<Trace> {
        let deadline = Instant::now() + limit;
        loop {
            let spans = self.spans();
            if let Some(id) = spans.iter().find(|span| of(span)).map(|span| span.trace.clone()) {
                let trace = Trace(spans.iter().filter(|span| span.trace == id).cloned().collect());
                if complete(&trace) {
                    return Ok(trace);
                }
                anyhow::ensure!(Instant::now() < deadline, "not complete within {limit:?}:\n{}", trace.tree());
            }
            anyhow::ensure!(Instant::now() < deadline, "not within {limit:?}: {spans:#?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// The spans of one trace.
#[derive(Clone, Debug)]
pub struct Trace(pub Vec<Span>);

impl Trace {
    /// Spans of a name.
    pub fn named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Span> {
        self.0.iter().filter(move |span| span.name == name)
    }

    /// The span with this id.
    pub fn span(&self, id: &str) -> Option<&Span> {
        self.0.iter().find(|span| span.id == id)
    }

    /// Spans whose parent was not received.
    pub fn orphans(&self) -> Vec<&Span> {
        let ids: BTreeSet<&str> = self.0.iter().map(|span| span.id.as_str()).collect();
        self.0.iter().filter(|span| !span.parent.is_empty() && !ids.contains(span.parent.as_str())).collect()
    }

    /// Names from the root to a span.
    pub fn path(&self, span: &Span) -> Vec<&str> {
        let mut path = Vec::new();
        let mut next = self.span(&span.id);
        while let Some(span) = next {
            path.insert(0, span.name.as_str());
            next = self.span(&span.parent);
        }
        path
    }

    /// The longest way from a root to a leaf, in spans.
    pub fn depth(&self) -> usize {
        self.0.iter().map(|span| self.path(span).len()).max().unwrap_or(0)
    }

    /// As text, for people: each span below its parent, with service, duration and attributes.
    pub fn tree(&self) -> String {
        let mut out = String::new();
        let mut roots: Vec<&Span> = self.0.iter().filter(|span| self.span(&span.parent).is_none()).collect();
        roots.sort_by_key(|span| span.time);
        for root in roots {
            self.branch(root, 0, &mut out);
        }
        out
    }

    fn branch(&self, span: &Span, depth: usize, out: &mut String) {
        let attributes: Vec<String> = span.attributes.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let micros = span.time.1.saturating_sub(span.time.0) / 1000;
        let error = if span.is_error { " ERROR" } else { "" };
        out.push_str(&format!(
            "{}{} [{}] {micros} us{error} {}\n",
            "  ".repeat(depth),
            span.name,
            span.service,
            attributes.join(" ")
        ));
        let mut children: Vec<&Span> = self.0.iter().filter(|child| child.parent == span.id).collect();
        children.sort_by_key(|child| child.time);
        for child in children {
            self.branch(child, depth + 1, out);
        }
    }
}

struct Answering {
    received: Received,
    delay: Duration,
}

#[tonic::async_trait]
impl TraceService for Answering {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        tokio::time::sleep(self.delay).await;
        let mut spans = Vec::new();
        for resource_spans in request.into_inner().resource_spans {
            let resource = attributes(resource_spans.resource.map(|resource| resource.attributes).unwrap_or_default());
            let all = resource_spans.scope_spans.into_iter().flat_map(|scope| scope.spans);
            spans.extend(all.map(|span| received(&resource, span)));
        }
        self.received.0.lock().unwrap_or_else(PoisonError::into_inner).extend(spans);
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

fn received(resource: &BTreeMap<String, String>, span: WireSpan) -> Span {
    Span {
        service: resource.get("service.name").cloned().unwrap_or_default(),
        resource: resource.clone(),
        trace: hex(&span.trace_id),
        id: hex(&span.span_id),
        parent: hex(&span.parent_span_id),
        name: span.name,
        kind: span.kind,
        attributes: attributes(span.attributes),
        is_error: span.status.is_some_and(|status| status.code() == StatusCode::Error),
        time: (span.start_time_unix_nano, span.end_time_unix_nano),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn attributes(attributes: Vec<KeyValue>) -> BTreeMap<String, String> {
    let text = |value: Option<Value>| match value {
        Some(Value::StringValue(text)) => text,
        Some(Value::BoolValue(value)) => value.to_string(),
        Some(Value::IntValue(value)) => value.to_string(),
        Some(Value::DoubleValue(value)) => value.to_string(),
        Some(other) => format!("{other:?}"),
        None => String::new(),
    };
    attributes.into_iter().map(|pair| (pair.key, text(pair.value.and_then(|value| value.value)))).collect()
}
