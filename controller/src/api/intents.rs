//! IntentService.

use std::{
    sync::Arc,
    time::{Instant, SystemTime},
};

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};
use weir_common::telemetry::TraceContext;
use weir_proto::v1::{self, intent_service_server::IntentService};

use super::{
    commit::commit,
    mask,
    names::{list_prefix, new_name, parse_name},
    paging,
    views::Views,
    watch::{self, WatchStream},
};
use crate::{
    access::Principal,
    catalog::{decode_intent, encode, intent_key},
    model::{Earlier, FieldPath, Intent, IntentName, IntentRecord, IntentSpec, Labels, Violations, WallTime},
    plan::features,
    session::Hub,
    status::Board,
    store::{CommitError, Item, Op, Precondition, Revision, Store, Txn},
    wire::{errors, etag, intent_from_wire, intent_to_wire, to_i64},
};

/// Most intents that a store may hold.
pub const MAX_INTENTS: usize = 10_000;
/// Attempts of an unconditional change against other writers of the same intent.
const ATTEMPTS: usize = 8;
/// Watches at a time.
const MAX_WATCHES: usize = 1024;

/// IntentService over a store.
#[derive(Debug)]
pub struct IntentApi<S> {
    store: Arc<S>,
    hub: Arc<Hub>,
    board: Arc<Board>,
    watches: Arc<Semaphore>,
    shutdown: CancellationToken,
}

impl<S: Store> IntentApi<S> {
    /// The service over these; `shutdown` ends its watches.
    pub fn new(store: Arc<S>, hub: Arc<Hub>, board: Arc<Board>, shutdown: CancellationToken) -> Self {
        IntentApi { store, hub, board, watches: Arc::new(Semaphore::new(MAX_WATCHES)), shutdown }
    }

    fn etag(&self, intent: &Intent) -> String {
        etag(self.store.epoch(), intent)
    }

    fn answer(&self, intent: &Intent) -> v1::Intent {
        let views = Views { hub: &self.hub, board: &self.board, now: Instant::now() };
        let mut wire = intent_to_wire(intent, self.etag(intent));
        wire.status = Some(views.intent_status(intent));
        wire
    }

    /// What would be stored: without an etag, which only storing gives.
    fn would_be(&self, record: IntentRecord, create_revision: u64) -> v1::Intent {
        let mut wire = self.answer(&Intent { record, create_revision, mod_revision: 0 });
        wire.etag.clear();
        wire
    }

    async fn stored(&self, name: &IntentName) -> Result<Option<Intent>, Status> {
        let item = self.store.get(&intent_key(name)).await.map_err(|error| errors::store(&error))?;
        item.map(|item| decode_intent(&item)).transpose().map_err(|error| errors::record(&error))
    }

    /// Stores a new intent.
    async fn insert(
        &self,
        name: IntentName,
        spec: IntentSpec,
        labels: Labels,
        validate_only: bool,
    ) -> Result<v1::Intent, Status> {
        let now = WallTime::from(SystemTime::now());
        let mut record = IntentRecord {
            name,
            uid: String::new(),
            generation: 1,
            labels,
            spec,
            earlier_nodes: Earlier::default(),
            create_time: now,
            update_time: now,
            delete_time: None,
            trace: TraceContext::current(),
        };
        if let Some(existing) = self.stored(&record.name).await? {
            return Err(errors::already_exists(&record.name.to_string(), existing.record.is_deleting()));
        }
        if self.hub.intents() >= MAX_INTENTS {
            return Err(Status::resource_exhausted(format!("there are {MAX_INTENTS} intents, the most that are kept")));
        }
        if validate_only {
            return Ok(self.would_be(record, 0));
        }
        record.uid = uuid::Uuid::new_v4().to_string();
        let key = intent_key(&record.name);
        let txn = Txn::default().when(Precondition::Absent(key.clone())).then(Op::Put(key, encode(&record)));
        match commit(&*self.store, txn).await {
            Ok(Revision(revision)) => {
                self.hub.caught_up(Revision(revision)).await;
                tracing::info!(intent = %record.name, uid = record.uid, revision, "created");
                Ok(self.answer(&Intent { record, create_revision: revision, mod_revision: revision }))
            }
            Err(CommitError::Conflict { .. }) => Err(errors::already_exists(&record.name.to_string(), false)),
            Err(error) => Err(errors::commit(&error)),
        }
    }

    /// Stores a change of `before`; `None` where somebody else was faster.
    async fn replace(&self, before: &Intent, mut record: IntentRecord) -> Result<Option<Intent>, Status> {
        record.trace = TraceContext::current();
        let key = intent_key(&record.name);
        let condition = Precondition::ModRevision(key.clone(), Revision(before.mod_revision));
        let txn = Txn::default().when(condition).then(Op::Put(key, encode(&record)));
        match commit(&*self.store, txn).await {
            Ok(Revision(revision)) => {
                self.hub.caught_up(Revision(revision)).await;
                let create_revision = before.create_revision;
                Ok(Some(Intent { record, create_revision, mod_revision: revision }))
            }
            Err(CommitError::Conflict { .. }) => Ok(None),
            Err(error) => Err(errors::commit(&error)),
        }
    }

    fn check_etag(&self, intent: &Intent, expected: &str) -> Result<(), Status> {
        let current = self.etag(intent);
        if expected.is_empty() || expected == current {
            return Ok(());
        }
        Err(errors::etag_mismatch(&intent.record.name.to_string(), &current))
    }
}

fn contended(name: &IntentName) -> Status {
    Status::aborted(format!("{name} is changed by others all the time; try again"))
}

fn check_features(required: &[String], out: &mut Violations) {
    let at = FieldPath::root("required_features");
    for (i, feature) in required.iter().enumerate() {
        if !features::BUILT.contains(&feature.as_str()) {
            out.add(
                &at.index(i),
                format!("this server has no feature {:?}", feature.chars().take(80).collect::<String>()),
            );
        }
    }
}

#[tonic::async_trait]
impl<S: Store> IntentService for IntentApi<S> {
    async fn create_intent(&self, request: Request<v1::CreateIntentRequest>) -> Result<Response<v1::Intent>, Status> {
        let caller = Principal::of(&request)?;
        let v1::CreateIntentRequest { parent, intent_id, intent, validate_only, required_features } =
            request.into_inner();
        let mut out = Violations::default();
        check_features(&required_features, &mut out);
        let Some(intent) = intent else {
            out.add(&FieldPath::root("intent"), "is required");
            return Err(errors::invalid(&out));
        };
        let name = new_name(&parent, &intent_id, &intent.name, &mut out);
        if let Some(name) = &name {
            caller.check_edit(&name.project)?;
        }
        let valid = intent_from_wire(intent, &mut out);
        match (name, valid) {
            (Some(name), Some((spec, labels))) if out.is_empty() => {
                self.insert(name, spec, labels, validate_only).await.map(Response::new)
            }
            _ => Err(errors::invalid(&out)),
        }
    }

    async fn get_intent(&self, request: Request<v1::GetIntentRequest>) -> Result<Response<v1::Intent>, Status> {
        let caller = Principal::of(&request)?;
        let v1::GetIntentRequest { name } = request.into_inner();
        let name = parse_name("name", &name)?;
        caller.check_view(&name.project)?;
        let intent = self.stored(&name).await?.ok_or_else(|| errors::not_found(&name.to_string()))?;
        Ok(Response::new(self.answer(&intent)))
    }

    async fn list_intents(
        &self,
        request: Request<v1::ListIntentsRequest>,
    ) -> Result<Response<v1::ListIntentsResponse>, Status> {
        let caller = Principal::of(&request)?;
        let v1::ListIntentsRequest { parent, page_size, page_token, match_labels } = request.into_inner();
        let prefix = list_prefix(&parent, &caller)?;
        let size = paging::size(page_size)?;
        let mut query = vec!["ListIntents", parent.as_str()];
        query.extend(match_labels.iter().flat_map(|(key, value)| [key.as_str(), value.as_str()]));
        let after = paging::after(&query, &page_token)?;

        let listing = self.store.list(&prefix).await.map_err(|error| errors::store(&error))?;
        let wanted = |item: &Item| {
            let intent = decode_intent(item).map_err(|error| errors::record(&error)).ok()?;
            if !caller.may_view(&intent.record.name.project) {
                return None;
            }
            let labels = &intent.record.labels;
            match_labels.iter().all(|(key, value)| labels.get(key) == Some(value)).then_some(intent)
        };
        let items = listing.items.iter().filter(|item| after.as_ref().is_none_or(|after| item.key > *after));
        let mut page: Vec<Intent> = items.filter_map(wanted).take(size + 1).collect();
        let more = page.len() > size;
        page.truncate(size);
        let last = page.last().map(|intent| intent_key(&intent.record.name));
        let next_page_token = match last {
            Some(last) if more => paging::token(&query, &last),
            _ => String::new(),
        };
        Ok(Response::new(v1::ListIntentsResponse {
            intents: page.iter().map(|intent| self.answer(intent)).collect(),
            next_page_token,
            revision: to_i64(listing.revision.0),
        }))
    }

    async fn update_intent(&self, request: Request<v1::UpdateIntentRequest>) -> Result<Response<v1::Intent>, Status> {
        let caller = Principal::of(&request)?;
        let v1::UpdateIntentRequest { intent, update_mask, validate_only, allow_missing, required_features } =
            request.into_inner();
        let mut out = Violations::default();
        check_features(&required_features, &mut out);
        let Some(intent) = intent else {
            out.add(&FieldPath::root("intent"), "is required");
            return Err(errors::invalid(&out));
        };
        let name = match intent.name.parse::<IntentName>() {
            Ok(name) => name,
            Err(error) => {
                out.add(&FieldPath::root("intent.name"), error.to_string());
                return Err(errors::invalid(&out));
            }
        };
        caller.check_edit(&name.project)?;
        let paths = update_mask.map(|mask| mask.paths).unwrap_or_default();
        for _ in 0..ATTEMPTS {
            let mut out = out.clone();
            let Some(before) = self.stored(&name).await? else {
                if !allow_missing || !intent.etag.is_empty() {
                    return Err(errors::not_found(&name.to_string()));
                }
                return match intent_from_wire(intent, &mut out) {
                    Some((spec, labels)) if out.is_empty() => {
                        self.insert(name, spec, labels, validate_only).await.map(Response::new)
                    }
                    _ => Err(errors::invalid(&out)),
                };
            };
            let mut target = intent_to_wire(&before, String::new());
            if let Err(wrong) = mask::apply(&mut target, &intent, &paths) {
                let at = FieldPath::root("update_mask.paths");
                wrong.into_iter().for_each(|(i, why)| out.add(&at.index(i), why));
            }
            let valid = intent_from_wire(target, &mut out);
            let (spec, labels) = match valid {
                Some(valid) if out.is_empty() => valid,
                _ => return Err(errors::invalid(&out)),
            };
            if before.record.is_deleting() {
                return Err(errors::is_deleting(&name.to_string()));
            }
            self.check_etag(&before, &intent.etag)?;
            if spec == before.record.spec && labels == before.record.labels {
                return Ok(Response::new(self.answer(&before)));
            }
            let mut record = before.record.clone();
            if spec != record.spec {
                record.generation += 1;
                if spec.nodes != record.spec.nodes {
                    record.earlier_nodes.remember(record.spec.nodes.clone());
                }
                record.spec = spec;
            }
            record.labels = labels;
            record.update_time = SystemTime::now().into();
            if validate_only {
                return Ok(Response::new(self.would_be(record, before.create_revision)));
            }
            if let Some(after) = self.replace(&before, record).await? {
                tracing::info!(intent = %name, generation = after.record.generation, revision = after.mod_revision, "updated");
                return Ok(Response::new(self.answer(&after)));
            }
        }
        Err(contended(&name))
    }

    async fn delete_intent(&self, request: Request<v1::DeleteIntentRequest>) -> Result<Response<v1::Intent>, Status> {
        let caller = Principal::of(&request)?;
        let v1::DeleteIntentRequest { name, etag, force, validate_only } = request.into_inner();
        let name = parse_name("name", &name)?;
        caller.check_edit(&name.project)?;
        for _ in 0..ATTEMPTS {
            let before = self.stored(&name).await?.ok_or_else(|| errors::not_found(&name.to_string()))?;
            self.check_etag(&before, &etag)?;
            let mut record = before.record.clone();
            record.delete_time.get_or_insert_with(|| SystemTime::now().into());
            if validate_only {
                return Ok(Response::new(self.would_be(record, before.create_revision)));
            }
            if force {
                let key = intent_key(&name);
                let condition = Precondition::ModRevision(key.clone(), Revision(before.mod_revision));
                match commit(&*self.store, Txn::default().when(condition).then(Op::Delete(key))).await {
                    Ok(Revision(revision)) => {
                        self.hub.caught_up(Revision(revision)).await;
                        tracing::info!(intent = %name, revision, "removed at once, as was asked");
                        return Ok(Response::new(self.would_be(record, before.create_revision)));
                    }
                    Err(CommitError::Conflict { .. }) => continue,
                    Err(error) => return Err(errors::commit(&error)),
                }
            }
            if before.record.is_deleting() {
                return Ok(Response::new(self.answer(&before)));
            }
            if let Some(after) = self.replace(&before, record).await? {
                tracing::info!(intent = %name, revision = after.mod_revision, "deletion was asked for");
                return Ok(Response::new(self.answer(&after)));
            }
        }
        Err(contended(&name))
    }

    type WatchIntentsStream = WatchStream;

    async fn watch_intents(
        &self,
        request: Request<v1::WatchIntentsRequest>,
    ) -> Result<Response<Self::WatchIntentsStream>, Status> {
        let caller = Principal::of(&request)?;
        let v1::WatchIntentsRequest { parent, resume_revision } = request.into_inner();
        let prefix = list_prefix(&parent, &caller)?;
        let resume =
            u64::try_from(resume_revision).map_err(|_| errors::invalid_field("resume_revision", "is negative"))?;
        let permit = Arc::clone(&self.watches)
            .try_acquire_owned()
            .map_err(|_| Status::resource_exhausted(format!("there are {MAX_WATCHES} watches already")))?;
        let resume = (resume > 0).then_some(Revision(resume));
        let wanted = watch::Wanted { prefix, caller };
        watch::start(&self.store, wanted, resume, permit, self.shutdown.clone()).await.map(Response::new)
    }
}
