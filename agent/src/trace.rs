//! The traces of the changes that a plan brings: what this agent does for one is a child of what the controller did. Spans
//! are of `tracing` alone; where nothing is exported nothing is made.

use std::collections::BTreeMap;

use tracing::{Span, field::Empty, info_span};
use weir_common::telemetry::{Service, TRACE, TraceContext};

use crate::condition::{Access, Finding};

/// What this process is in its traces.
pub fn service(instance: &str) -> Service {
    Service { name: "weir-agent", version: env!("CARGO_PKG_VERSION"), instance: instance.to_owned() }
}

/// Contexts of changes, by uid of the intent that changed.
pub type Contexts = BTreeMap<String, TraceContext>;

/// Spans of the changes that are being carried out, by uid of the intent.
#[derive(Debug, Default)]
pub struct Traces(BTreeMap<String, Span>);

impl Traces {
    /// A plan with these changes is being carried out, until this is dropped.
    pub fn begin(contexts: &Contexts, fence: impl std::fmt::Display) -> Traces {
        let begun = contexts.iter().map(|(uid, context)| {
            let span = info_span!(
                target: TRACE,
                parent: None,
                "plan.apply",
                otel.kind = "consumer",
                weir.intent.uid = uid,
                weir.fence = %fence,
                weir.refused = Empty,
                otel.status_code = Empty,
            );
            context.adopt(&span);
            (uid.clone(), span)
        });
        Traces(begun.collect())
    }

    /// A step that concerns all of the changes; it lasts until the spans are dropped.
    pub fn step(&self, name: &'static str) -> Vec<Span> {
        let child = |parent| info_span!(target: TRACE, parent: parent, "step", otel.name = name);
        self.0.values().map(child).collect()
    }

    /// The plan was refused.
    pub fn refused(&self, why: impl std::fmt::Display) {
        for span in self.0.values() {
            span.record("weir.refused", tracing::field::display(&why)).record("otel.status_code", "ERROR");
        }
    }

    /// Spans of one write to the kernel, for each of the intents that it is for. One that no change asked for, as where
    /// somebody else's change is put right, is a trace of its own.
    pub fn write<'a>(&self, uids: impl Iterator<Item = &'a str>, file: &str, value: &str) -> Writing {
        let mut uids: Vec<&str> = uids.collect();
        uids.sort_unstable();
        uids.dedup();
        let spans = uids.into_iter().map(|uid| {
            let parent = self.0.get(uid);
            info_span!(
                target: TRACE,
                parent: parent.and_then(Span::id),
                "kernel.write",
                weir.intent.uid = uid,
                weir.cause = if parent.is_some() { "change" } else { "repair" },
                file.path = file,
                weir.value = value,
                weir.read_back = Empty,
                weir.errno = Empty,
                error.type = Empty,
                otel.status_code = Empty,
                otel.status_description = Empty,
            )
        });
        Writing(spans.collect())
    }
}

/// A write that is going on; it ends when this is dropped.
#[derive(Debug)]
pub struct Writing(Vec<Span>);

impl Writing {
    /// What the kernel holds afterwards, and what went wrong, if anything did.
    pub fn ended(&self, read_back: &str, failure: Option<&Finding>) {
        let access = failure.and_then(|finding| finding.access.as_ref());
        let errno = access.and_then(|access| access.errno);
        for span in &self.0 {
            span.record("weir.read_back", read_back);
            let Some(finding) = failure else { continue };
            let kind = access.filter(|_| errno.is_some()).map_or_else(|| finding.reason.to_owned(), Access::errno_name);
            span.record("otel.status_code", "ERROR").record("otel.status_description", finding.message.as_str());
            span.record("error.type", kind);
            if let Some(errno) = errno {
                span.record("weir.errno", errno);
            }
        }
    }
}
