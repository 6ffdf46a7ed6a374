//! A controller and an agent on loopback, with clients, in a directory of their own.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use tonic::transport::Channel;
use weir_proto::v1::{self, fleet_service_client::FleetServiceClient, intent_service_client::IntentServiceClient};

use crate::process::Daemon;

/// Starts a controller on `listen` (`127.0.0.1:0` for any port) with its state in `dir`.
///
/// # Errors
/// It was not ready in time.
pub fn controller(dir: &Path, listen: &str) -> anyhow::Result<(Daemon, String)> {
    controller_with(dir, listen, &[])
}

/// As `controller`, with more arguments; a `--store` among them takes the place of the file in `dir`.
///
/// # Errors
/// It was not ready in time.
pub fn controller_with(dir: &Path, listen: &str, more: &[&str]) -> anyhow::Result<(Daemon, String)> {
    let mut args = ["--listen", listen].map(str::to_owned).to_vec();
    if !more.contains(&"--store") {
        args.extend(["--store".to_owned(), dir.join("store.redb").display().to_string()]);
    }
    args.extend(more.iter().map(|arg| (*arg).to_owned()));
    let daemon = Daemon::start("weir-controller", &args, "listening on ", &dir.join("controller.log"))?;
    let address = daemon.ready.rsplit(' ').next().unwrap_or_default().to_owned();
    Ok((daemon, address))
}

/// Starts an agent named `node` against `controller` (`host:port`) with its state in `dir`.
///
/// # Errors
/// It was not ready in time.
pub fn agent(dir: &Path, controller: &str, node: &str, more: &[&str]) -> anyhow::Result<Daemon> {
    let mut args = agent_args(dir, controller, node);
    args.extend(more.iter().map(|arg| (*arg).to_owned()));
    Daemon::start("weir-agent", &args, AGENT_READY, &dir.join("agent.log"))
}

/// What an agent prints when it reconciles.
pub const AGENT_READY: &str = "running node=";

/// The arguments by which `agent` starts one.
pub fn agent_args(dir: &Path, controller: &str, node: &str) -> Vec<String> {
    let state = dir.join("agent").display().to_string();
    let controller = format!("http://{controller}");
    ["--controller", &controller, "--node", node, "--state-dir", &state].map(str::to_owned).into()
}

/// Clients of a controller.
#[derive(Clone)]
pub struct Clients {
    /// Intents.
    pub intents: IntentServiceClient<Channel>,
    /// Fleet.
    pub fleet: FleetServiceClient<Channel>,
}

impl Clients {
    /// Connects to `host:port`.
    ///
    /// # Errors
    /// No connection within 5 s.
    pub async fn connect(address: &str) -> anyhow::Result<Clients> {
        let channel = tonic::transport::Endpoint::new(format!("http://{address}"))?
            .connect_timeout(Duration::from_secs(5))
            .connect()
            .await?;
        Ok(Clients { intents: IntentServiceClient::new(channel.clone()), fleet: FleetServiceClient::new(channel) })
    }

    /// The settings of one intent on one node, as last reported.
    ///
    /// # Errors
    /// The call failed.
    pub async fn status(&mut self, intent: &str) -> Result<Option<v1::IntentNodeStatus>, tonic::Status> {
        let request = v1::ListIntentNodeStatusesRequest { intent: full(intent), ..Default::default() };
        Ok(self.fleet.list_intent_node_statuses(request).await?.into_inner().statuses.into_iter().next())
    }
}

/// The full name of an intent of the default project.
pub fn full(intent: &str) -> String {
    format!("projects/default/intents/{intent}")
}

/// An intent on every node that limits reads of one cgroup on one device; `None` for unlimited.
pub fn read_limit(id: &str, cgroup: &str, device: &Path, bytes_per_second: Option<i64>) -> v1::Intent {
    use v1::byte_rate_limit::Limit;
    let limit = bytes_per_second.map_or(Limit::Unlimited(true), Limit::BytesPerSecond);
    v1::Intent {
        name: full(id),
        spec: Some(v1::IntentSpec {
            nodes: Some(v1::NodeSelector {
                any_of: vec![v1::NodeTerm { all: true, ..Default::default() }],
                exclude: vec![],
            }),
            workloads: Some(v1::WorkloadSelector {
                any_of: vec![v1::WorkloadTerm { cgroup_path: cgroup.to_owned(), ..Default::default() }],
                exclude: vec![],
            }),
            devices: Some(v1::DeviceSelector {
                any_of: vec![v1::DeviceTerm { path: device.display().to_string(), ..Default::default() }],
                exclude: vec![],
            }),
            controls: Some(v1::Controls {
                limits: Some(v1::Limits { rbps: Some(v1::ByteRateLimit { limit: Some(limit) }), ..Default::default() }),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// A create request for an intent of the default project.
pub fn create(intent: v1::Intent) -> v1::CreateIntentRequest {
    v1::CreateIntentRequest { intent: Some(intent), ..Default::default() }
}

/// Polls until `check` returns something, up to `limit`.
///
/// # Panics
/// It did not in time; `what` says what was waited for.
pub async fn eventually<T, F>(what: &str, limit: Duration, mut check: impl FnMut() -> F) -> T
where
    F: Future<Output = Option<T>>,
{
    let deadline = Instant::now() + limit;
    loop {
        if let Some(value) = check().await {
            return value;
        }
        assert!(Instant::now() < deadline, "not within {limit:?}: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A directory for one test's state: kept, and named, when the test fails.
#[derive(Debug)]
pub struct Scratch {
    dir: Option<tempfile::TempDir>,
}

impl Scratch {
    /// A new one.
    ///
    /// # Panics
    /// It could not be made.
    pub fn new() -> Scratch {
        Scratch { dir: Some(tempfile::Builder::new().prefix("weir-test-").tempdir().expect("a temporary directory")) }
    }

    /// Its path.
    pub fn path(&self) -> PathBuf {
        self.dir.as_ref().map(|dir| dir.path().to_owned()).unwrap_or_default()
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Scratch::new()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(dir) = self.dir.take()
        {
            eprintln!("kept for a look: {}", dir.keep().display());
        }
    }
}
