//! FleetService of the mock.

use tonic::{Request, Response, Status};
use weir_proto::v1::{self, fleet_service_server::FleetService};

use super::Mock;

fn known<'a>(nodes: &'a mut [v1::Node], name: &str) -> Result<&'a mut v1::Node, Status> {
    nodes.iter_mut().find(|node| node.name == name).ok_or_else(|| Status::not_found(format!("{name} does not exist")))
}

impl Mock {
    /// Notes a directive, and has the node follow it.
    fn directive(&self, verb: &str, name: &str, directive: v1::Directive) -> Result<i64, Status> {
        let mut state = self.state();
        state.refusal()?;
        if name == "nodes/-" {
            state.fleet_directive = directive.into();
        } else {
            known(&mut state.nodes, name)?;
        }
        // The fleet's directive holds for a node that is told nothing itself.
        let told = if directive == v1::Directive::Active {
            v1::Directive::try_from(state.fleet_directive).unwrap_or_default()
        } else {
            directive
        };
        let agents_reason = if state.agents_silent { "Directive" } else { "AskedFor" }.to_owned();
        for node in state.nodes.iter_mut().filter(|node| name == "nodes/-" || node.name == name) {
            node.set_directive(told);
            if directive == v1::Directive::Released && node.phase() == v1::NodePhase::Connected {
                node.settings_held = 0;
                node.conditions.push(v1::Condition {
                    r#type: "Released".to_owned(),
                    reason: agents_reason.clone(),
                    ..Default::default()
                });
            }
        }
        state.writes.push(format!("{verb} {name}"));
        Ok(state.next_revision())
    }
}

#[tonic::async_trait]
impl FleetService for Mock {
    async fn get_node(&self, request: Request<v1::GetNodeRequest>) -> Result<Response<v1::Node>, Status> {
        let mut state = self.state();
        state.refusal()?;
        Ok(Response::new(known(&mut state.nodes, &request.into_inner().name)?.clone()))
    }

    async fn list_nodes(
        &self,
        _request: Request<v1::ListNodesRequest>,
    ) -> Result<Response<v1::ListNodesResponse>, Status> {
        let mut state = self.state();
        state.refusal()?;
        Ok(Response::new(v1::ListNodesResponse {
            nodes: state.nodes.clone(),
            next_page_token: String::new(),
            fleet_directive: state.fleet_directive,
        }))
    }

    async fn list_devices(
        &self,
        request: Request<v1::ListDevicesRequest>,
    ) -> Result<Response<v1::ListDevicesResponse>, Status> {
        let mut state = self.state();
        let devices = known(&mut state.nodes, &request.into_inner().parent)?.facts.clone().unwrap_or_default().devices;
        Ok(Response::new(v1::ListDevicesResponse { devices }))
    }

    async fn list_workloads(
        &self,
        request: Request<v1::ListWorkloadsRequest>,
    ) -> Result<Response<v1::ListWorkloadsResponse>, Status> {
        let v1::ListWorkloadsRequest { parent, cgroup_path } = request.into_inner();
        known(&mut self.state().nodes, &parent)?;
        let workload = v1::Workload {
            cgroup_path: if cgroup_path.is_empty() { "/batch/one".to_owned() } else { cgroup_path },
            processes: 3,
            intents: vec!["projects/default/intents/backup".to_owned()],
            ..Default::default()
        };
        Ok(Response::new(v1::ListWorkloadsResponse { workloads: vec![workload] }))
    }

    async fn list_intent_node_statuses(
        &self,
        request: Request<v1::ListIntentNodeStatusesRequest>,
    ) -> Result<Response<v1::ListIntentNodeStatusesResponse>, Status> {
        let mut state = self.state();
        state.refusal()?;
        let request = request.into_inner();
        let asked = |wanted: &str, is: &str| wanted.is_empty() || wanted == is;
        let all = state.statuses.iter().filter(|s| asked(&request.intent, &s.intent) && asked(&request.node, &s.node));
        Ok(Response::new(v1::ListIntentNodeStatusesResponse {
            statuses: all.cloned().collect(),
            next_page_token: String::new(),
        }))
    }

    async fn explain(&self, request: Request<v1::ExplainRequest>) -> Result<Response<v1::ExplainResponse>, Status> {
        let mut state = self.state();
        state.refusal()?;
        known(&mut state.nodes, &request.into_inner().node)?;
        Ok(Response::new(v1::ExplainResponse { settings: state.settings.clone(), without_setting: Vec::new() }))
    }

    async fn pause_node(
        &self,
        request: Request<v1::PauseNodeRequest>,
    ) -> Result<Response<v1::PauseNodeResponse>, Status> {
        let revision = self.directive("pause", &request.into_inner().name, v1::Directive::Paused)?;
        Ok(Response::new(v1::PauseNodeResponse { revision }))
    }

    async fn resume_node(
        &self,
        request: Request<v1::ResumeNodeRequest>,
    ) -> Result<Response<v1::ResumeNodeResponse>, Status> {
        let revision = self.directive("resume", &request.into_inner().name, v1::Directive::Active)?;
        Ok(Response::new(v1::ResumeNodeResponse { revision }))
    }

    async fn release_node(
        &self,
        request: Request<v1::ReleaseNodeRequest>,
    ) -> Result<Response<v1::ReleaseNodeResponse>, Status> {
        let revision = self.directive("release", &request.into_inner().name, v1::Directive::Released)?;
        Ok(Response::new(v1::ReleaseNodeResponse { revision }))
    }

    async fn forget_node(
        &self,
        request: Request<v1::ForgetNodeRequest>,
    ) -> Result<Response<v1::ForgetNodeResponse>, Status> {
        let name = request.into_inner().name;
        let mut state = self.state();
        if known(&mut state.nodes, &name)?.phase() == v1::NodePhase::Connected {
            return Err(Status::failed_precondition(format!("{name} is connected")));
        }
        state.nodes.retain(|node| node.name != name);
        Ok(Response::new(v1::ForgetNodeResponse {}))
    }
}
