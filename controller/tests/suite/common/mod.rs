//! A controller in this process, served on loopback, and a scripted agent.
#![allow(dead_code, reason = "each test crate uses a part of it")]

pub(crate) mod tls;

use std::{collections::BTreeMap, net::SocketAddr, path::Path, sync::Arc, time::Duration};

use tokio::{net::TcpListener, sync::mpsc, task::JoinHandle};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming, transport::Channel};
use weir_common::tasks::{TaskDied, TaskSet};
use weir_controller::{
    api::Security,
    controller::{self, Options},
    leader::{Replica, ReplicaId, Sole},
    session::SessionOptions,
    store::{EmbeddedStore, OpenError},
};
use weir_proto::v1::{
    self, agent_service_client::AgentServiceClient, fleet_service_client::FleetServiceClient,
    intent_service_client::IntentServiceClient, session_request, session_response,
};

/// How long anything may take.
pub(crate) const SOON: Duration = Duration::from_secs(10);
/// After so long without contact a node is gone.
pub(crate) const GONE_AFTER: Duration = Duration::from_secs(2);

pub(crate) struct Controller {
    pub(crate) store: Arc<EmbeddedStore>,
    pub(crate) address: SocketAddr,
    shutdown: CancellationToken,
    running: JoinHandle<Result<(), TaskDied>>,
}

impl Controller {
    pub(crate) async fn start(directory: &Path) -> Self {
        Self::start_with(directory, |_| {}).await
    }

    pub(crate) async fn start_with(directory: &Path, change: impl FnOnce(&mut SessionOptions)) -> Self {
        Self::start_secured(directory, Security::plain(false), change).await
    }

    pub(crate) async fn start_secured(
        directory: &Path,
        security: Security,
        change: impl FnOnce(&mut SessionOptions),
    ) -> Self {
        let path = directory.join("store.redb");
        let store = loop {
            match EmbeddedStore::open(&path) {
                // The one before has just ended.
                Err(OpenError::InUse { .. }) => tokio::time::sleep(Duration::from_millis(10)).await,
                other => break Arc::new(other.unwrap()),
            }
        };
        let shutdown = CancellationToken::new();
        let mut tasks = TaskSet::new(shutdown.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut sessions = SessionOptions::new(shutdown.clone());
        change(&mut sessions);
        let replica = Replica::at(listener.local_addr().unwrap().to_string());
        let elect = Arc::new(Sole::new(ReplicaId::random(), replica));
        let options = Options { sessions, security, keep_revisions: 10_000, gone_after: GONE_AFTER, ops: None };
        let address = controller::start(Arc::clone(&store), elect, listener, options, &mut tasks).await.unwrap();
        let running = tokio::spawn(tasks.run(Duration::from_millis(1500)));
        Controller { store, address, shutdown, running }
    }

    /// Ends as on SIGTERM.
    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        tokio::time::timeout(Duration::from_secs(2), self.running).await.expect("within 2 s").unwrap().unwrap();
    }

    pub(crate) async fn channel(&self) -> Channel {
        Channel::from_shared(format!("http://{}", self.address)).unwrap().connect().await.unwrap()
    }

    pub(crate) async fn intents(&self) -> IntentServiceClient<Channel> {
        IntentServiceClient::new(self.channel().await)
    }

    pub(crate) async fn fleet(&self) -> FleetServiceClient<Channel> {
        FleetServiceClient::new(self.channel().await)
    }

    pub(crate) async fn agents(&self) -> AgentServiceClient<Channel> {
        AgentServiceClient::new(self.channel().await)
    }

    pub(crate) async fn revision(&self) -> u64 {
        use weir_controller::store::Store;
        self.store.revision().await.unwrap().0
    }
}

/// An intent with one limit, as a person would write it.
pub(crate) fn intent(id: &str, nodes: &[&str], rbps: i64) -> v1::Intent {
    let limit = v1::ByteRateLimit { limit: Some(v1::byte_rate_limit::Limit::BytesPerSecond(rbps)) };
    let term = |name: &&str| v1::NodeTerm { names: vec![(*name).to_owned()], ..Default::default() };
    v1::Intent {
        name: format!("projects/default/intents/{id}"),
        spec: Some(v1::IntentSpec {
            nodes: Some(v1::NodeSelector { any_of: nodes.iter().map(term).collect(), exclude: vec![] }),
            workloads: Some(v1::WorkloadSelector {
                any_of: vec![v1::WorkloadTerm { cgroup_path: "/demo".into(), ..Default::default() }],
                exclude: vec![],
            }),
            devices: Some(v1::DeviceSelector {
                any_of: vec![v1::DeviceTerm { all: true, ..Default::default() }],
                exclude: vec![],
            }),
            controls: Some(v1::Controls {
                limits: Some(v1::Limits { rbps: Some(limit), ..Default::default() }),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    }
}

pub(crate) fn create(intent: v1::Intent) -> v1::CreateIntentRequest {
    v1::CreateIntentRequest { intent: Some(intent), ..Default::default() }
}

pub(crate) fn update(intent: v1::Intent) -> v1::UpdateIntentRequest {
    v1::UpdateIntentRequest { intent: Some(intent), ..Default::default() }
}

/// An agent that does what it is told when it is told.
pub(crate) struct Agent {
    pub(crate) node: String,
    pub(crate) instance: String,
    to: mpsc::Sender<v1::SessionRequest>,
    from: Streaming<v1::SessionResponse>,
    pub(crate) fence: Option<v1::Fence>,
    pub(crate) rules: BTreeMap<String, v1::Rule>,
    pub(crate) directive: v1::Directive,
    pub(crate) pushes: usize,
}

/// What came from the controller.
#[derive(Debug)]
pub(crate) enum Pushed {
    Whole(v1::Fence),
    Delta(v1::PlanDelta),
    Query(v1::Query),
}

impl Agent {
    pub(crate) fn hello(node: &str, uid: &str, instance: &str) -> v1::AgentHello {
        v1::AgentHello {
            node: node.into(),
            node_uid: uid.into(),
            instance: instance.into(),
            agent_version: "test".into(),
            contract_version: 1,
            features: ["control.limits", "scope.node", "query.explain", "query.workloads"].map(Into::into).to_vec(),
            fence: None,
            facts: Some(v1::FactsUpdate { facts_generation: 1, facts: Some(v1::NodeFacts::default()) }),
            settings_held: 0,
            boot_id: "boot".into(),
            store_uid: String::new(),
        }
    }

    pub(crate) async fn connect(controller: &Controller, node: &str) -> Self {
        let hello = Self::hello(node, &format!("uid-{node}"), "1");
        Self::connect_with(controller, hello).await.unwrap()
    }

    pub(crate) async fn connect_with(controller: &Controller, hello: v1::AgentHello) -> Result<Self, Status> {
        let (to, messages) = mpsc::channel(16);
        let (node, instance, fence) = (hello.node.clone(), hello.instance.clone(), hello.fence);
        to.send(v1::SessionRequest { message: Some(session_request::Message::Hello(hello)) }).await.unwrap();
        let from = controller.agents().await.session(ReceiverStream::new(messages)).await?.into_inner();
        let mut agent = Agent {
            node,
            instance,
            to,
            from,
            fence,
            rules: BTreeMap::new(),
            directive: v1::Directive::Unspecified,
            pushes: 0,
        };
        match agent.receive().await? {
            Some(session_response::Message::Hello(hello)) => assert_eq!(hello.contract_version, 1),
            other => panic!("Hello comes first: {other:?}"),
        }
        Ok(agent)
    }

    pub(crate) async fn receive(&mut self) -> Result<Option<session_response::Message>, Status> {
        let response = tokio::time::timeout(SOON, self.from.message()).await.expect("a message soon")?;
        Ok(response.and_then(|response| response.message))
    }

    /// Nothing comes for a while.
    pub(crate) async fn quiet(&mut self) {
        let waited = tokio::time::timeout(Duration::from_millis(300), self.from.message()).await;
        assert!(waited.is_err(), "{waited:?}");
    }

    pub(crate) async fn send(&self, message: session_request::Message) {
        self.to.send(v1::SessionRequest { message: Some(message) }).await.unwrap();
    }

    /// Takes the next plan or question, without an answer.
    pub(crate) async fn next(&mut self) -> Pushed {
        use session_response::Message;
        match self.receive().await.unwrap().expect("the stream goes on") {
            Message::Init(v1::Init { fence }) => {
                let mut rules = BTreeMap::new();
                loop {
                    match self.receive().await.unwrap().unwrap() {
                        Message::InitApply(v1::InitApply { rule }) => {
                            let rule = rule.unwrap();
                            assert!(rules.insert(rule.uid.clone(), rule).is_none());
                        }
                        Message::InitDone(done) => {
                            assert_eq!(done.fence, fence);
                            self.directive = done.directive();
                            break;
                        }
                        other => panic!("{other:?}"),
                    }
                }
                let fence = fence.unwrap();
                self.accept(fence);
                self.rules = rules;
                Pushed::Whole(fence)
            }
            Message::Delta(delta) => {
                assert_eq!(delta.from, self.fence, "a difference begins where the agent is");
                self.accept(delta.fence.unwrap());
                for rule in &delta.apply {
                    self.rules.insert(rule.uid.clone(), rule.clone());
                }
                for uid in &delta.delete {
                    assert!(self.rules.remove(uid).is_some());
                }
                self.directive = delta.directive();
                Pushed::Delta(delta)
            }
            Message::Query(query) => Pushed::Query(query),
            other => panic!("{other:?}"),
        }
    }

    fn accept(&mut self, fence: v1::Fence) {
        let order = |fence: v1::Fence| (fence.store_epoch, fence.revision, fence.facts_generation);
        if let Some(held) = self.fence {
            assert!(order(fence) > order(held), "fences rise: {held:?} {fence:?}");
        }
        self.fence = Some(fence);
        self.pushes += 1;
    }

    /// Takes the next plan and acknowledges it: every rule applied on one setting.
    pub(crate) async fn take(&mut self) -> Pushed {
        let pushed = self.next().await;
        self.ack(&[]).await;
        pushed
    }

    /// Every rule applied, each on one setting of its own.
    pub(crate) fn statuses(&self) -> (Vec<v1::RuleStatus>, Vec<v1::SettingStatus>) {
        let setting = |rule: &v1::Rule| v1::SettingStatus {
            cgroup_path: "/demo".into(),
            cgroup_id: 42,
            device: Some(v1::DeviceId { major: 7, minor: 0, diskseq: Some(3) }),
            device_name: "loop0".into(),
            key: v1::LimitKey::Rbps.into(),
            intended: Some(v1::LimitValue { value: Some(v1::limit_value::Value::Finite(1 << 20)) }),
            effective: Some(v1::LimitValue { value: Some(v1::limit_value::Value::Finite(1 << 20)) }),
            file: "/sys/fs/cgroup/demo/io.max".into(),
            intent: rule.intent.clone(),
            ..Default::default()
        };
        let status = |(rule, place): (&v1::Rule, i32)| v1::RuleStatus {
            uid: rule.uid.clone(),
            intent: rule.intent.clone(),
            generation: rule.generation,
            state: v1::RuleState::Applied.into(),
            conditions: vec![],
            settings: vec![place],
        };
        (self.rules.values().zip(0..).map(status).collect(), self.rules.values().map(setting).collect())
    }

    /// Acknowledges the plan; `lingering` are uids of intents that are not in it but hold settings.
    pub(crate) async fn ack(&self, lingering: &[String]) {
        let uids_held = self.rules.keys().chain(lingering).cloned().collect();
        let (rules, settings) = self.statuses();
        let ack = v1::Ack {
            fence: self.fence,
            rules,
            settings,
            settings_held: i32::try_from(self.rules.len() + lingering.len()).unwrap(),
            conditions: vec![],
            uids_held,
        };
        self.send(session_request::Message::Ack(ack)).await;
    }

    pub(crate) async fn status(&self, lingering: &[String]) {
        let (rules, settings) = self.statuses();
        let update = v1::StatusUpdate {
            fence: self.fence,
            rules,
            settings,
            settings_held: 0,
            conditions: vec![],
            uids_held: self.rules.keys().chain(lingering).cloned().collect(),
        };
        self.send(session_request::Message::Status(update)).await;
    }
}

/// Repeats until it is so.
pub(crate) async fn eventually<T>(mut check: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = tokio::time::Instant::now() + SOON;
    loop {
        if let Some(found) = check().await {
            return found;
        }
        assert!(tokio::time::Instant::now() < deadline, "it did not become so");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
