//! The exporter: what the environment says, and an end that never takes long. Spans wait in a bounded queue and are sent from
//! a thread of their own; with a collector that is dead or slow they are dropped, and nobody waits.

use std::{env, time::Duration};

use opentelemetry::{KeyValue, trace::TracerProvider as _};
use opentelemetry_otlp::{ExporterBuildError, SpanExporter};
use opentelemetry_sdk::{
    Resource,
    trace::{SdkTracer, SdkTracerProvider},
};

/// How long the last spans may take at the end of the process.
const SHUTDOWN: Duration = Duration::from_secs(2);

/// What the process says of itself in its spans.
#[derive(Clone, Debug)]
pub struct Service {
    /// `service.name`, where `OTEL_SERVICE_NAME` gives no other.
    pub name: &'static str,
    /// `service.version`.
    pub version: &'static str,
    /// `service.instance.id`: another one at every start.
    pub instance: String,
}

/// Traces cannot be had as the environment asks for them.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// `RUST_LOG` is no filter.
    #[error("RUST_LOG={directives} is no filter of log lines, such as info or weir_agent=debug: {cause}")]
    Filter {
        /// What it holds.
        directives: String,
        /// What is wrong with it.
        cause: String,
    },
    /// The exporter does not take its settings.
    #[error("traces cannot be exported as the OTEL_* variables say: {0}")]
    Exporter(#[from] ExporterBuildError),
    /// A value that is not built.
    #[error("{variable}={value} is not built: {allowed}")]
    Value {
        /// The variable.
        variable: &'static str,
        /// What it holds.
        value: String,
        /// What it may hold.
        allowed: &'static str,
    },
}

/// The export of traces, as long as the process lives.
#[derive(Debug, Default)]
pub struct Traces {
    provider: Option<SdkTracerProvider>,
}

impl Traces {
    /// Whether anything is exported.
    pub fn are_exported(&self) -> bool {
        self.provider.is_some()
    }

    /// Sends what waits, for 2 s at most. To be called in a tokio runtime.
    pub async fn end(self) {
        let Some(provider) = self.provider else { return };
        // It blocks.
        let ended = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(SHUTDOWN)).await;
        if let Ok(Err(error)) = ended {
            tracing::warn!(%error, "the last spans were not taken by the collector");
        }
    }
}

/// The first of the variables that is set and not empty.
fn variable(names: [&'static str; 2]) -> Option<(&'static str, String)> {
    names.into_iter().find_map(|name| env::var(name).ok().filter(|value| !value.is_empty()).map(|value| (name, value)))
}

/// Whether the environment asks for traces: an endpoint is given, and nothing switches them off.
fn wanted() -> Result<bool, TelemetryError> {
    let off = env::var("OTEL_SDK_DISABLED").is_ok_and(|value| value.eq_ignore_ascii_case("true"));
    match env::var("OTEL_TRACES_EXPORTER").unwrap_or_default().as_str() {
        "" | "otlp" => {}
        "none" => return Ok(false),
        other => {
            let (variable, value) = ("OTEL_TRACES_EXPORTER", other.to_owned());
            return Err(TelemetryError::Value { variable, value, allowed: "otlp or none" });
        }
    }
    let endpoint = variable(["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"]);
    if off || endpoint.is_none() {
        return Ok(false);
    }
    if let Some((variable, value)) = variable(["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"])
        && value != "grpc"
    {
        return Err(TelemetryError::Value { variable, value, allowed: "grpc (the collector's port 4317)" });
    }
    Ok(true)
}

/// Starts the exporter if it is wanted.
pub(super) fn start(service: Service) -> Result<(Traces, Option<SdkTracer>), TelemetryError> {
    if !wanted()? {
        return Ok((Traces::default(), None));
    }
    let Service { name, version, instance } = service;
    let exporter = SpanExporter::builder().with_tonic().build()?;
    // OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES come last, and win.
    let resource = Resource::builder_empty()
        .with_attributes([
            KeyValue::new("service.name", name),
            KeyValue::new("service.namespace", "weir"),
            KeyValue::new("service.version", version),
            KeyValue::new("service.instance.id", instance),
        ])
        .with_detector(Box::new(opentelemetry_sdk::resource::EnvResourceDetector::new()))
        .build();
    let resource = match env::var("OTEL_SERVICE_NAME") {
        Ok(given) if !given.is_empty() => {
            let attributes = resource.iter().map(|(key, value)| KeyValue::new(key.clone(), value.clone()));
            let named = Resource::builder_empty().with_attributes(attributes);
            named.with_attribute(KeyValue::new("service.name", given)).build()
        }
        _ => resource,
    };
    let provider = SdkTracerProvider::builder().with_resource(resource).with_batch_exporter(exporter).build();
    let tracer = provider.tracer("weir");
    Ok((Traces { provider: Some(provider) }, Some(tracer)))
}
