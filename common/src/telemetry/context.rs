//! A place in a trace that can be stored and sent: a change of an intent is one trace, from the call to the kernel's answer,
//! over several processes and through the store.

use std::{collections::HashMap, fmt};

use opentelemetry::{propagation::TextMapPropagator as _, trace::TraceContextExt as _};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use serde::{Deserialize, Serialize};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

/// The header, and the key under which W3C Trace Context has it.
const TRACEPARENT: &str = "traceparent";
/// Length of a `traceparent` of version 00.
const LENGTH: usize = 55;

/// A span as W3C Trace Context writes it: `00-{trace id}-{span id}-{flags}`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TraceContext(String);

impl TraceContext {
    /// The context of a span; `None` where nothing is traced.
    pub fn of(span: &Span) -> Option<Self> {
        let context = span.context();
        if !context.span().span_context().is_valid() {
            return None;
        }
        let mut carrier = HashMap::new();
        TraceContextPropagator::new().inject_context(&context, &mut carrier);
        carrier.remove(TRACEPARENT).map(TraceContext)
    }

    /// The context of the span that is entered.
    pub fn current() -> Option<Self> {
        Self::of(&Span::current())
    }

    /// What somebody sent; `None` where it is no valid context. What a later version adds at the end is left out.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let known = text.is_char_boundary(LENGTH).then(|| &text[..LENGTH])?;
        let context = TraceContext(known.to_owned());
        context.remote().span().span_context().is_valid().then_some(context)
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Makes a span, which was not entered yet, a child of this one.
    pub fn adopt(&self, span: &Span) {
        // Fails only where nothing is traced.
        let _nothing_traced = span.set_parent(self.remote());
    }

    fn remote(&self) -> opentelemetry::Context {
        let carrier = HashMap::from([(TRACEPARENT.to_owned(), self.0.clone())]);
        TraceContextPropagator::new().extract_with_context(&opentelemetry::Context::new(), &carrier)
    }
}

impl fmt::Debug for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn only_what_is_valid_is_a_context() {
        assert_eq!(TraceContext::parse(GOOD).unwrap().as_str(), GOOD);
        assert_eq!(TraceContext::parse(&format!(" {GOOD}\n")).unwrap().as_str(), GOOD);
        for bad in [
            "",
            "00",
            "ä",
            &GOOD[1..],
            &GOOD.replace('b', "g"),
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            &"ä".repeat(60),
        ] {
            assert_eq!(TraceContext::parse(bad), None, "{bad}");
        }
        assert_eq!(TraceContext::current(), None, "nothing is traced in a test");
    }
}
