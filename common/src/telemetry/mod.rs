//! Logs of both binaries, to standard error, and traces, by OTLP. The only module that may configure them, and the only one
//! that knows OpenTelemetry: elsewhere a span is one of `tracing`, with the target [`TRACE`].
//!
//! Spans with that target are for the collector alone: where nobody asked for traces they are not even made, and the log
//! does not repeat them.

mod context;
mod otlp;
pub mod rpc;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::{
    EnvFilter, Layer as _, filter::FilterExt as _, filter::filter_fn, layer::SubscriberExt as _,
    util::SubscriberInitExt as _,
};

pub use context::TraceContext;
pub use otlp::{Service, TelemetryError, Traces};

/// Target of the spans that are exported.
pub const TRACE: &str = "weir::trace";

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

impl std::str::FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "text" => Ok(LogFormat::Text),
            "json" => Ok(LogFormat::Json),
            other => Err(format!("`{other}` is neither `text` nor `json`")),
        }
    }
}

/// Starts logging, and tracing where the environment asks for it (the standard `OTEL_*` variables; see docs/traces.md). The
/// log's filter is the environment's `RUST_LOG`, `info` without one. To be called in a tokio runtime. A second call starts
/// nothing.
///
/// `None` in the place of the service traces nothing.
///
/// # Errors
/// The environment asks for logs or traces in a way that cannot be had.
pub fn init(format: LogFormat, service: Option<Service>) -> Result<Traces, TelemetryError> {
    let filter = match std::env::var(EnvFilter::DEFAULT_ENV) {
        Ok(directives) if !directives.trim().is_empty() => EnvFilter::try_new(&directives)
            .map_err(|cause| TelemetryError::Filter { directives, cause: cause.to_string() })?,
        // As little as a variable that is not set says one that is no text.
        _ => EnvFilter::new("info"),
    };
    let filter = filter.and(filter_fn(|metadata| metadata.target() != TRACE));
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_target(true);
    let lines = match format {
        LogFormat::Text => lines.with_ansi(false).with_filter(filter).boxed(),
        LogFormat::Json => lines.json().with_filter(filter).boxed(),
    };
    let (traces, tracer) = service.map(otlp::start).transpose()?.unwrap_or_default();
    let spans = tracer.map(|tracer| {
        tracing_opentelemetry::layer()
            .with_tracer(tracer)
            .with_location(false)
            .with_threads(false)
            .with_target(false)
            .with_tracked_inactivity(false)
            // What the exporter itself does is never among them.
            .with_filter(filter_fn(|metadata| metadata.target() == TRACE && *metadata.level() <= LevelFilter::INFO))
    });
    // An error means that a subscriber is set already, as in tests.
    let _already_set = tracing_subscriber::registry().with(lines).with(spans).try_init();
    Ok(traces)
}
