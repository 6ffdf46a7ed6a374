//! IntentService of the mock.

use std::{collections::HashMap, pin::Pin};

use tokio_stream::Stream;
use tonic::{Code, Request, Response, Status};
use tonic_types::{ErrorDetails, StatusExt as _};
use weir_proto::v1::{self, intent_service_server::IntentService};

use super::{Mock, State};

/// The real controller fills these in, so what comes back is not what was sent.
fn normalise(intent: &mut v1::Intent) {
    if let Some(spec) = &mut intent.spec {
        if spec.mode() == v1::Mode::Unspecified {
            spec.set_mode(v1::Mode::Enforce);
        }
        if spec.scope() == v1::Scope::Unspecified {
            spec.set_scope(v1::Scope::Pod);
        }
    }
}

/// Only the floor for reads, and the selector of nodes: enough to have two fields violated at once.
fn validate(intent: &v1::Intent) -> Result<(), Status> {
    let mut details = ErrorDetails::new();
    let spec = intent.spec.clone().unwrap_or_default();
    if spec.nodes.is_none_or(|nodes| nodes.any_of.is_empty()) {
        details.add_bad_request_violation("intent.spec.nodes.any_of", "at least one term is required");
    }
    let rbps = spec.controls.and_then(|controls| controls.limits).and_then(|limits| limits.rbps);
    if let Some(v1::byte_rate_limit::Limit::BytesPerSecond(value)) = rbps.and_then(|rbps| rbps.limit)
        && value < 65_536
    {
        details.add_bad_request_violation("intent.spec.controls.limits.rbps.bytes_per_second", "is below the floor");
    }
    if details.has_bad_request_violations() {
        return Err(Status::with_error_details(Code::InvalidArgument, "fields are invalid", details));
    }
    Ok(())
}

fn store(state: &mut State, mut intent: v1::Intent, validate_only: bool, verb: &str) -> v1::Intent {
    if validate_only {
        intent.etag.clear();
        return intent;
    }
    let revision = state.next_revision();
    intent.etag = format!("e{revision}");
    state.writes.push(format!("{verb} {}", intent.name));
    state.intents.insert(intent.name.clone(), intent.clone());
    intent
}

fn absent(name: &str) -> Status {
    Status::not_found(format!("{name} does not exist"))
}

#[tonic::async_trait]
impl IntentService for Mock {
    async fn create_intent(&self, request: Request<v1::CreateIntentRequest>) -> Result<Response<v1::Intent>, Status> {
        let mut state = self.state();
        state.refusal()?;
        let v1::CreateIntentRequest { intent, validate_only, .. } = request.into_inner();
        let mut intent = intent.unwrap();
        validate(&intent)?;
        if state.intents.contains_key(&intent.name) {
            return Err(Status::already_exists(format!("{} exists", intent.name)));
        }
        normalise(&mut intent);
        intent.generation = 1;
        intent.uid = format!("u{}", state.revision + 1);
        Ok(Response::new(store(&mut state, intent, validate_only, "create")))
    }

    async fn get_intent(&self, request: Request<v1::GetIntentRequest>) -> Result<Response<v1::Intent>, Status> {
        let mut state = self.state();
        state.refusal()?;
        let name = request.into_inner().name;
        let mut intent = state.intents.get(&name).cloned().ok_or_else(|| absent(&name))?;
        if intent.delete_time.is_some() {
            if state.deleting_looks_refused > 0 {
                state.deleting_looks_refused -= 1;
                return Err(Status::unavailable("restarting"));
            }
            match state.deleted_after {
                Some(0) => {
                    state.intents.remove(&name);
                    return Err(absent(&name));
                }
                Some(looks) => state.deleted_after = Some(looks - 1),
                None => {}
            }
        }
        if state.looks_until == 0 {
            intent.status = Some(state.becomes.clone());
        } else {
            state.looks_until -= 1;
            intent.status = Some(v1::IntentStatus { nodes_matched: 1, nodes_pending: 1, ..Default::default() });
        }
        Ok(Response::new(intent))
    }

    async fn list_intents(
        &self,
        request: Request<v1::ListIntentsRequest>,
    ) -> Result<Response<v1::ListIntentsResponse>, Status> {
        let mut state = self.state();
        state.refusal()?;
        let request = request.into_inner();
        // One a page, so that a client that stops after the first is found out.
        let mut rest = state.intents.values().filter(|intent| intent.name.starts_with(&request.parent));
        let page = rest.find(|intent| intent.name > request.page_token).cloned();
        let next_page_token = if rest.next().is_some() { page.as_ref().unwrap().name.clone() } else { String::new() };
        Ok(Response::new(v1::ListIntentsResponse {
            intents: page.into_iter().collect(),
            next_page_token,
            revision: state.revision,
        }))
    }

    async fn update_intent(&self, request: Request<v1::UpdateIntentRequest>) -> Result<Response<v1::Intent>, Status> {
        let mut state = self.state();
        state.refusal()?;
        let v1::UpdateIntentRequest { intent, validate_only, .. } = request.into_inner();
        let mut intent = intent.unwrap();
        validate(&intent)?;
        normalise(&mut intent);
        let before = state.intents.get(&intent.name).cloned().ok_or_else(|| absent(&intent.name))?;
        if !intent.etag.is_empty() && intent.etag != before.etag {
            let facts = HashMap::from([("etag".to_owned(), before.etag)]);
            let details = ErrorDetails::with_error_info("ETAG_MISMATCH", "weir.v1", facts);
            return Err(Status::with_error_details(Code::Aborted, format!("{} was changed", intent.name), details));
        }
        if intent.spec == before.spec && intent.labels == before.labels {
            return Ok(Response::new(before));
        }
        let after =
            v1::Intent { generation: before.generation + 1, spec: intent.spec, labels: intent.labels, ..before };
        Ok(Response::new(store(&mut state, after, validate_only, "update")))
    }

    async fn delete_intent(&self, request: Request<v1::DeleteIntentRequest>) -> Result<Response<v1::Intent>, Status> {
        let mut state = self.state();
        state.refusal()?;
        let v1::DeleteIntentRequest { name, force, .. } = request.into_inner();
        let intent = state.intents.get_mut(&name).ok_or_else(|| absent(&name))?;
        intent.delete_time = Some(weir_proto::Timestamp::default());
        let intent = intent.clone();
        state.writes.push(format!("delete{} {name}", if force { " by force" } else { "" }));
        Ok(Response::new(intent))
    }

    type WatchIntentsStream = Pin<Box<dyn Stream<Item = Result<v1::WatchIntentsResponse, Status>> + Send>>;

    async fn watch_intents(
        &self,
        _request: Request<v1::WatchIntentsRequest>,
    ) -> Result<Response<Self::WatchIntentsStream>, Status> {
        Err(Status::unimplemented("weirctl does not watch intents"))
    }
}
