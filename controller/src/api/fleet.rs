//! FleetService.

use std::{sync::Arc, time::Instant};

use tonic::{Request, Response, Status};
use weir_proto::v1::{self, fleet_service_server::FleetService};

use super::{commit::commit, paging, views::Views};
use crate::{
    access::Principal,
    catalog::{DirectiveRecord, FLEET, directive_key, encode, node_key},
    model::{Directive, Intent, IntentName, NodeName},
    plan::features,
    session::{AskError, Hub},
    status::Board,
    store::{CommitError, Op, Precondition, Revision, Store, Txn},
    wire::{
        achieved_to_wire, device_id_from_wire, device_to_wire, directive_to_wire, errors, limit_key_from_wire,
        rule_status_from_wire, to_i64,
    },
};

/// FleetService over a store.
#[derive(Debug)]
pub struct FleetApi<S> {
    store: Arc<S>,
    hub: Arc<Hub>,
    board: Arc<Board>,
}

impl<S: Store> FleetApi<S> {
    /// The service over these.
    pub fn new(store: Arc<S>, hub: Arc<Hub>, board: Arc<Board>) -> Self {
        FleetApi { store, hub, board }
    }

    fn views(&self) -> Views<'_> {
        Views { hub: &self.hub, board: &self.board, now: Instant::now() }
    }

    fn known(&self, node: &NodeName) -> Result<crate::session::NodeState, Status> {
        self.hub.node(node).ok_or_else(|| errors::not_found(&node.resource()))
    }

    /// Sets what a node, or the fleet, is told; the revision at which that is durable.
    async fn direct(&self, name: &str, directive: Directive) -> Result<i64, Status> {
        let node = if name.strip_prefix("nodes/") == Some(FLEET) { None } else { Some(parse_node("name", name)?) };
        if let Some(node) = &node {
            self.known(node)?;
        }
        let key = directive_key(node.as_ref());
        let current = self.store.get(&key).await.map_err(|error| errors::store(&error))?;
        let value = encode(&DirectiveRecord { directive });
        let op = match (directive, current) {
            (Directive::Active, _) => Op::Delete(key),
            (_, Some(item)) if item.value == value => return Ok(to_i64(item.mod_revision.0)),
            _ => Op::Put(key, value),
        };
        let revision = commit(&*self.store, Txn::default().then(op)).await.map_err(|error| errors::commit(&error))?;
        self.hub.caught_up(revision).await;
        tracing::info!(name, ?directive, %revision, "directive");
        Ok(to_i64(revision.0))
    }
}

fn parse_node(field: &str, name: &str) -> Result<NodeName, Status> {
    let node = name.strip_prefix("nodes/").ok_or_else(|| errors::invalid_field(field, "is nodes/{node}"))?;
    node.parse().map_err(|error| errors::invalid_field(field, format!("{error}")))
}

fn parse_optional_intent(name: &str) -> Result<Option<IntentName>, Status> {
    if name.is_empty() {
        return Ok(None);
    }
    name.parse().map(Some).map_err(|error| errors::invalid_field("intent", format!("{error}")))
}

#[tonic::async_trait]
impl<S: Store> FleetService for FleetApi<S> {
    async fn get_node(&self, request: Request<v1::GetNodeRequest>) -> Result<Response<v1::Node>, Status> {
        let v1::GetNodeRequest { name } = request.into_inner();
        let node = self.known(&parse_node("name", &name)?)?;
        Ok(Response::new(self.views().node(&node)))
    }

    async fn list_nodes(
        &self,
        request: Request<v1::ListNodesRequest>,
    ) -> Result<Response<v1::ListNodesResponse>, Status> {
        let v1::ListNodesRequest { page_size, page_token } = request.into_inner();
        let size = paging::size(page_size)?;
        let query = ["ListNodes"];
        let after = paging::after(&query, &page_token)?.map(|after| parse_node("page_token", &after)).transpose()?;
        let mut nodes = self.hub.nodes(after.as_ref(), size + 1);
        let more = nodes.len() > size;
        nodes.truncate(size);
        let next_page_token = match nodes.last() {
            Some(last) if more => paging::token(&query, &last.name.resource()),
            _ => String::new(),
        };
        let views = self.views();
        Ok(Response::new(v1::ListNodesResponse {
            nodes: nodes.iter().map(|node| views.node(node)).collect(),
            next_page_token,
            fleet_directive: directive_to_wire(self.hub.fleet_directive()),
        }))
    }

    async fn list_devices(
        &self,
        request: Request<v1::ListDevicesRequest>,
    ) -> Result<Response<v1::ListDevicesResponse>, Status> {
        let v1::ListDevicesRequest { parent } = request.into_inner();
        let node = parse_node("parent", &parent)?;
        self.known(&node)?;
        let snapshot = self.board.node(&node, Instant::now()).ok_or_else(|| errors::ask(&AskError::Away(node)))?;
        let devices = snapshot.facts.devices.iter().map(device_to_wire).collect();
        Ok(Response::new(v1::ListDevicesResponse { devices }))
    }

    async fn list_workloads(
        &self,
        request: Request<v1::ListWorkloadsRequest>,
    ) -> Result<Response<v1::ListWorkloadsResponse>, Status> {
        let caller = Principal::of(&request)?;
        let v1::ListWorkloadsRequest { parent, cgroup_path } = request.into_inner();
        let node = parse_node("parent", &parent)?;
        self.known(&node)?;
        let question = v1::query::Question::Workloads(v1::WorkloadsQuery { cgroup_path });
        match self.hub.ask(&node, features::QUERY_WORKLOADS, question).await {
            Ok(v1::reply::Answer::Workloads(v1::WorkloadsReply { mut workloads })) => {
                for workload in &mut workloads {
                    workload.intents.retain(|intent| caller.may_view_named(intent));
                }
                workloads.sort_by(|a, b| a.cgroup_path.cmp(&b.cgroup_path));
                Ok(Response::new(v1::ListWorkloadsResponse { workloads }))
            }
            Ok(v1::reply::Answer::Explain(_)) => Err(another_answer(&node)),
            Err(error) => Err(errors::ask(&error)),
        }
    }

    async fn list_intent_node_statuses(
        &self,
        request: Request<v1::ListIntentNodeStatusesRequest>,
    ) -> Result<Response<v1::ListIntentNodeStatusesResponse>, Status> {
        let caller = Principal::of(&request)?;
        let v1::ListIntentNodeStatusesRequest { intent, node, page_size, page_token } = request.into_inner();
        let size = paging::size(page_size)?;
        let only_intent = parse_optional_intent(&intent)?;
        if let Some(name) = &only_intent {
            caller.check_view(&name.project)?;
        }
        let only_node = if node.is_empty() { None } else { Some(parse_node("node", &node)?) };
        if let Some(node) = &only_node {
            self.known(node)?;
        }
        let query = ["ListIntentNodeStatuses", intent.as_str(), node.as_str()];
        let after = paging::after(&query, &page_token)?.map(|after| parse_position(&after)).transpose()?;
        let intents: Vec<Arc<Intent>> = match &only_intent {
            Some(name) => vec![self.hub.intent(name).ok_or_else(|| errors::not_found(&intent))?],
            None => self.hub.all_intents(),
        };

        let views = self.views();
        let mut statuses = Vec::new();
        let mut next_page_token = String::new();
        let mut last = String::new();
        'page: for intent in &intents {
            let name = &intent.record.name;
            if after.as_ref().is_some_and(|(after, _)| name < after) || !caller.may_view(&name.project) {
                continue;
            }
            for (node, connected) in nodes_of(&self.hub, intent) {
                let before = after.as_ref().is_some_and(|(intent, last)| name == intent && node <= *last);
                if before || only_node.as_ref().is_some_and(|only| *only != node) {
                    continue;
                }
                if statuses.len() == size {
                    next_page_token = paging::token(&query, &last);
                    break 'page;
                }
                statuses.push(views.intent_on_node(intent, &node, connected));
                last = format!("{name} {node}");
            }
        }
        Ok(Response::new(v1::ListIntentNodeStatusesResponse { statuses, next_page_token }))
    }

    async fn explain(&self, request: Request<v1::ExplainRequest>) -> Result<Response<v1::ExplainResponse>, Status> {
        let caller = Principal::of(&request)?;
        let v1::ExplainRequest { node, intent, cgroup_path } = request.into_inner();
        let node = parse_node("node", &node)?;
        self.known(&node)?;
        if let Some(name) = parse_optional_intent(&intent)? {
            caller.check_view(&name.project)?;
            self.hub.intent(&name).ok_or_else(|| errors::not_found(&intent))?;
        }
        let question = v1::query::Question::Explain(v1::ExplainQuery { intent, cgroup_path });
        let reply = match self.hub.ask(&node, features::QUERY_EXPLAIN, question).await {
            Ok(v1::reply::Answer::Explain(reply)) => reply,
            Ok(v1::reply::Answer::Workloads(_)) => return Err(another_answer(&node)),
            Err(error) => return Err(errors::ask(&error)),
        };
        let v1::ExplainReply { mut settings, mut without_setting } = reply;
        // Who takes part in a setting sees all that take part in it: otherwise it could not learn why it lost.
        settings.retain(|setting| {
            let shown = setting.status.as_ref().is_some_and(|status| caller.may_view_named(&status.intent));
            shown || setting.claims.iter().any(|claim| caller.may_view_named(&claim.intent))
        });
        without_setting.retain(|rule| caller.may_view_named(&rule.intent));
        let views = self.views();
        for status in settings.iter_mut().filter_map(|setting| setting.status.as_mut()) {
            fill_achieved(&views, &node, status);
        }
        let stale = !self.hub.is_connected(&node);
        let without_setting = without_setting
            .into_iter()
            .map(|rule| views.rule_status(&rule_status_from_wire(rule, &[]), &node, stale))
            .collect();
        Ok(Response::new(v1::ExplainResponse { settings, without_setting }))
    }

    async fn pause_node(
        &self,
        request: Request<v1::PauseNodeRequest>,
    ) -> Result<Response<v1::PauseNodeResponse>, Status> {
        let revision = self.direct(&request.into_inner().name, Directive::Paused).await?;
        Ok(Response::new(v1::PauseNodeResponse { revision }))
    }

    async fn resume_node(
        &self,
        request: Request<v1::ResumeNodeRequest>,
    ) -> Result<Response<v1::ResumeNodeResponse>, Status> {
        let revision = self.direct(&request.into_inner().name, Directive::Active).await?;
        Ok(Response::new(v1::ResumeNodeResponse { revision }))
    }

    async fn release_node(
        &self,
        request: Request<v1::ReleaseNodeRequest>,
    ) -> Result<Response<v1::ReleaseNodeResponse>, Status> {
        let revision = self.direct(&request.into_inner().name, Directive::Released).await?;
        Ok(Response::new(v1::ReleaseNodeResponse { revision }))
    }

    async fn forget_node(
        &self,
        request: Request<v1::ForgetNodeRequest>,
    ) -> Result<Response<v1::ForgetNodeResponse>, Status> {
        let v1::ForgetNodeRequest { name } = request.into_inner();
        let node = parse_node("name", &name)?;
        let connected = || Status::failed_precondition(format!("{name} is connected: stop its agent first"));
        let key = node_key(&node);
        let item = self.store.get(&key).await.map_err(|error| errors::store(&error))?;
        let item = item.ok_or_else(|| errors::not_found(&name))?;
        if self.hub.is_connected(&node) {
            return Err(connected());
        }
        let condition = Precondition::ModRevision(key.clone(), item.mod_revision);
        let txn = Txn::default().when(condition).then(Op::Delete(key.clone()));
        let revision = self.store.commit(txn).await.map_err(|error| errors::commit(&error))?;
        self.hub.caught_up(revision).await;
        if self.hub.is_connected(&node) {
            // It came back at that very moment, and found its record unchanged.
            let restore = Txn::default().when(Precondition::Absent(key.clone())).then(Op::Put(key, item.value));
            match self.store.commit(restore).await {
                Ok(Revision(_)) | Err(CommitError::Conflict { .. }) => return Err(connected()),
                Err(error) => return Err(errors::commit(&error)),
            }
        }
        self.board.forget(&node);
        tracing::info!(%node, "forgotten");
        Ok(Response::new(v1::ForgetNodeResponse {}))
    }
}

fn another_answer(node: &NodeName) -> Status {
    Status::internal(format!("the agent of {node} answered another question"))
}

/// Nodes whose status of an intent is listed: those that it matches, or that may hold it on its way out.
fn nodes_of(hub: &Hub, intent: &Intent) -> Vec<(NodeName, bool)> {
    let mut nodes = if intent.record.is_deleting() {
        hub.holders(intent).into_iter().map(|node| (node.clone(), hub.is_connected(&node))).collect()
    } else {
        hub.matched(intent)
    };
    nodes.sort();
    nodes
}

/// `{intent} {node}`.
fn parse_position(text: &str) -> Result<(IntentName, NodeName), Status> {
    let parsed = text.split_once(' ').and_then(|(intent, node)| Some((intent.parse().ok()?, node.parse().ok()?)));
    parsed.ok_or_else(|| errors::invalid_field("page_token", "is none that this server gave"))
}

fn fill_achieved(views: &Views<'_>, node: &NodeName, status: &mut v1::SettingStatus) {
    let device = status.device.and_then(device_id_from_wire);
    let (Some(device), Some(key)) = (device, limit_key_from_wire(status.key)) else { return };
    match views.achieved_of(node, status.cgroup_id, device, key) {
        Ok(achieved) => {
            status.achieved = Some(achieved_to_wire(&achieved));
            status.achieved_unknown.clear();
        }
        Err(why) if status.achieved_unknown.is_empty() => status.achieved_unknown = why,
        Err(_) => {}
    }
}
