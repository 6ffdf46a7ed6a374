//! Metrics as plain values, and their two text forms: that of Prometheus, and OpenMetrics.

use std::{fmt, sync::Mutex, sync::PoisonError, time::Duration};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric as _, NoLabelSet, prometheus_text, text},
    metrics::MetricType,
    registry::Registry,
};

/// What a family's values are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only rises, from 0 at the process's start. Its name has no `_total`: that is added.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts by size.
    Histogram,
}

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A whole number.
    Count(u64),
    /// Any number.
    Number(f64),
    /// Sum, count, and how many in each bucket up to its bound, the last bound infinite; each counted once.
    Buckets(f64, u64, Vec<(f64, u64)>),
}

/// A value with its labels.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Labels, in a fixed order.
    pub labels: Vec<(&'static str, String)>,
    /// The value.
    pub value: Value,
}

/// A metric with all its values.
#[derive(Clone, Debug, PartialEq)]
pub struct Family {
    /// Name with its unit at its end, without `_total`.
    pub name: &'static str,
    /// One sentence, without the full stop.
    pub help: &'static str,
    /// What its values are.
    pub kind: Kind,
    /// Values.
    pub samples: Vec<Sample>,
}

impl Family {
    /// One without values yet.
    pub fn new(name: &'static str, help: &'static str, kind: Kind) -> Family {
        Family { name, help, kind, samples: Vec::new() }
    }

    /// One with a single number.
    pub fn number(name: &'static str, help: &'static str, kind: Kind, value: f64) -> Family {
        Family::new(name, help, kind).with(Vec::new(), Value::Number(value))
    }

    /// One with a single count.
    pub fn count(name: &'static str, help: &'static str, kind: Kind, value: u64) -> Family {
        Family::new(name, help, kind).with(Vec::new(), Value::Count(value))
    }

    /// With one more value.
    #[must_use]
    pub fn with(mut self, labels: Vec<(&'static str, String)>, value: Value) -> Family {
        self.samples.push(Sample { labels, value });
        self
    }
}

/// Durations, counted by size.
pub struct Histogram {
    counted: Mutex<(f64, u64, Vec<u64>)>,
}

/// Upper bounds of durations, seconds.
const BOUNDS: [f64; 14] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, f64::INFINITY];

impl Default for Histogram {
    fn default() -> Self {
        Histogram { counted: Mutex::new((0.0, 0, vec![0; BOUNDS.len()])) }
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Histogram").field(&self.value()).finish()
    }
}

impl Histogram {
    /// Counts one.
    pub fn observe(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        counted.0 += seconds;
        counted.1 += 1;
        if let Some(bucket) = BOUNDS.iter().position(|bound| seconds <= *bound) {
            counted.2[bucket] += 1;
        }
    }

    /// What was counted so far.
    pub fn value(&self) -> Value {
        let (sum, count, buckets) = self.counted.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Value::Buckets(sum, count, BOUNDS.into_iter().zip(buckets).collect())
    }
}

/// The form that a scrape asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Prometheus,
    OpenMetrics,
}

impl Format {
    /// By the header `Accept`.
    pub(super) fn accepted(accept: &str) -> Format {
        if accept.contains("application/openmetrics-text") { Format::OpenMetrics } else { Format::Prometheus }
    }

    pub(super) fn content_type(self) -> &'static str {
        match self {
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// The text of a scrape.
pub(super) fn encode(families: Vec<Family>, format: Format) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Once(families)));
    let mut out = String::new();
    match format {
        Format::Prometheus => prometheus_text::encode(&mut out, &registry)?,
        Format::OpenMetrics => text::encode(&mut out, &registry)?,
    }
    Ok(out)
}

#[derive(Debug)]
struct Once(Vec<Family>);

impl Collector for Once {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for Family { name, help, kind, samples } in &self.0 {
            let kind = match kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
                Kind::Histogram => MetricType::Histogram,
            };
            let mut family = encoder.encode_descriptor(name, help, None, kind)?;
            for Sample { labels, value } in samples {
                encode_sample(&mut family, labels, value, kind)?;
            }
        }
        Ok(())
    }
}

fn encode_sample(
    family: &mut prometheus_client::encoding::MetricEncoder<'_>,
    labels: &Vec<(&'static str, String)>,
    value: &Value,
    kind: MetricType,
) -> Result<(), fmt::Error> {
    let mut one = family.encode_family(labels)?;
    match (kind, value) {
        (MetricType::Counter, Value::Count(value)) => one.encode_counter::<NoLabelSet, _, u64>(value, None),
        (MetricType::Counter, Value::Number(value)) => one.encode_counter::<NoLabelSet, _, u64>(value, None),
        (_, Value::Count(value)) => {
            let value = prometheus_client::metrics::gauge::ConstGauge::new(*value);
            value.encode(one)
        }
        (_, Value::Number(value)) => one.encode_gauge(value),
        (_, Value::Buckets(sum, count, buckets)) => one.encode_histogram::<NoLabelSet>(*sum, *count, buckets, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn families() -> Vec<Family> {
        let histogram = Histogram::default();
        histogram.observe(Duration::from_millis(3));
        histogram.observe(Duration::from_secs(90));
        vec![
            Family::new("weir_writes", "Writes", Kind::Counter)
                .with(vec![("result", "failed".into()), ("why", "a\"b\\c\nd".into())], Value::Count(3)),
            Family::number("weir_age_seconds", "Age", Kind::Gauge, 1.5),
            Family::new("weir_took_seconds", "Time", Kind::Histogram).with(Vec::new(), histogram.value()),
            Family::new("weir_nothing", "Without values", Kind::Gauge),
        ]
    }

    #[test]
    fn both_forms_have_what_a_scraper_needs() {
        let classic = encode(families(), Format::Prometheus).unwrap();
        for line in [
            "# TYPE weir_writes_total counter",
            "weir_writes_total{result=\"failed\",why=\"a\\\"b\\\\c\\nd\"} 3",
            "# TYPE weir_age_seconds gauge",
            "weir_age_seconds 1.5",
            "weir_took_seconds_bucket{le=\"0.005\"} 1",
            "weir_took_seconds_bucket{le=\"+Inf\"} 2",
            "weir_took_seconds_count 2",
        ] {
            assert!(classic.lines().any(|found| found == line), "{line}\n--\n{classic}");
        }
        let open = encode(families(), Format::OpenMetrics).unwrap();
        assert!(open.ends_with("# EOF\n") && open.contains("# TYPE weir_writes counter"), "{open}");
        assert_eq!(
            Format::accepted("application/openmetrics-text;version=1.0.0,text/plain;q=0.5"),
            Format::OpenMetrics
        );
        assert_eq!(Format::accepted("*/*"), Format::Prometheus);
    }
}
