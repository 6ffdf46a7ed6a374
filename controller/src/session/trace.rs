//! What a change of an intent becomes here, as parts of its trace: the plans that are made of it, and each way to an agent
//! until that has answered.

use std::{collections::BTreeMap, sync::Arc};

use tracing::{Span, field::Empty, info_span};
use weir_common::{
    fence::Fence,
    telemetry::{TRACE, TraceContext},
};
use weir_proto::v1;

use crate::model::{Intent, IntentName, NodeName};

/// Making the plans of all nodes that a change touches.
pub(super) struct PlanTrace {
    uid: String,
    /// `None` where the change is not traced.
    span: Option<Span>,
}

impl PlanTrace {
    /// It begins; it lasts until this is dropped.
    pub(super) fn begin(name: &IntentName, intent: Option<&Arc<Intent>>) -> PlanTrace {
        let Some((intent, trace)) = intent.and_then(|intent| Some((intent, intent.record.trace.as_ref()?))) else {
            return PlanTrace { uid: String::new(), span: None };
        };
        let span = info_span!(
            target: TRACE,
            parent: None,
            "plan.make",
            weir.intent.name = %name,
            weir.intent.uid = intent.record.uid,
            weir.intent.generation = intent.record.generation,
            weir.nodes = Empty,
        );
        trace.adopt(&span);
        PlanTrace { uid: intent.record.uid.clone(), span: Some(span) }
    }

    /// The parent of what is sent, by uid of the intent.
    pub(super) fn context(&self) -> Option<(String, TraceContext)> {
        let context = TraceContext::of(self.span.as_ref()?)?;
        Some((self.uid.clone(), context))
    }

    /// How many nodes it touches.
    pub(super) fn nodes(&self, count: usize) {
        if let Some(span) = &self.span {
            span.record("weir.nodes", count);
        }
    }
}

/// Changes on their way to an agent, until it has answered.
#[derive(Default)]
pub(super) struct OnTheirWay {
    fence: Fence,
    spans: BTreeMap<String, Span>,
}

impl OnTheirWay {
    /// They are sent to a node, in a plan of this fence.
    pub(super) fn sent(traces: &BTreeMap<String, TraceContext>, node: &NodeName, fence: Fence) -> OnTheirWay {
        let spans = traces.iter().map(|(uid, parent)| {
            let span = info_span!(
                target: TRACE,
                parent: None,
                "plan.push",
                otel.kind = "producer",
                weir.intent.uid = uid,
                weir.node = %node,
                weir.fence = %fence,
                weir.answer = Empty,
                error.type = Empty,
                otel.status_code = Empty,
            );
            parent.adopt(&span);
            (uid.clone(), span)
        });
        OnTheirWay { fence, spans: spans.collect() }
    }

    /// For the agent.
    pub(super) fn to_wire(&self) -> Vec<v1::ChangeTrace> {
        let context = |(uid, span): (&String, &Span)| {
            let traceparent = TraceContext::of(span)?.as_str().to_owned();
            Some(v1::ChangeTrace { uid: uid.clone(), traceparent })
        };
        self.spans.iter().filter_map(context).collect()
    }

    /// The agent accepted the plan of this fence.
    pub(super) fn accepted(&mut self, fence: Fence) {
        self.answered(fence, |span| {
            span.record("weir.answer", "accepted");
        });
    }

    /// The agent refused the plan of this fence.
    pub(super) fn refused(&mut self, fence: Fence, reason: &str) {
        self.answered(fence, |span| {
            span.record("weir.answer", "refused").record("error.type", reason).record("otel.status_code", "ERROR");
        });
    }

    fn answered(&mut self, fence: Fence, record: impl Fn(&Span)) {
        if fence == self.fence {
            std::mem::take(&mut self.spans).values().for_each(record);
        }
    }
}
