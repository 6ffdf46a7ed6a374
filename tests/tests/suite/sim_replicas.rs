//! Several controllers on one etcd, each with agents of its own: any of them answers for all.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use weir_proto::v1;
use weir_tests::{
    etcd::{self, Etcd},
    fleet::{self, Clients, Scratch, eventually},
    process::{Daemon, binary},
    sim::Simulation,
};

const SOON: Duration = Duration::from_secs(30);

struct Replica {
    daemon: Daemon,
    address: String,
    clients: Clients,
}

async fn replica(dir: PathBuf, store: &str) -> Replica {
    std::fs::create_dir_all(&dir).unwrap();
    let args = ["--listen", "127.0.0.1:0", "--store", store].map(str::to_owned);
    let daemon = Daemon::start("weir-controller", &args, "listening on ", &dir.join("controller.log")).unwrap();
    let address = daemon.ready.rsplit(' ').next().unwrap().to_owned();
    let clients = Clients::connect(&address).await.unwrap();
    Replica { daemon, address, clients }
}

impl Replica {
    async fn phases(&self) -> Vec<(String, v1::NodePhase)> {
        let list = v1::ListNodesRequest { page_size: 100, ..Default::default() };
        let nodes = self.clients.clone().fleet.list_nodes(list).await.unwrap().into_inner().nodes;
        nodes.iter().map(|node| (node.name.clone(), node.phase())).collect()
    }

    async fn connected(&self, wanted: &[&str]) {
        eventually(&format!("{wanted:?} are connected for {}", self.address), SOON, || async {
            let phases = self.phases().await;
            let is = |name: &str| phases.contains(&(format!("nodes/{name}"), v1::NodePhase::Connected));
            wanted.iter().all(|name| is(name)).then_some(())
        })
        .await;
    }

    async fn statuses(&self, intent: &str) -> Vec<v1::IntentNodeStatus> {
        let request = v1::ListIntentNodeStatusesRequest { intent: fleet::full(intent), ..Default::default() };
        let answer = self.clients.clone().fleet.list_intent_node_statuses(request).await;
        answer.map(|answer| answer.into_inner().statuses).unwrap_or_default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn any_replica_answers_for_the_whole_fleet() {
    if !etcd::controllers_can("any_replica_answers_for_the_whole_fleet") {
        return;
    }
    let scratch = Scratch::new();
    let etcd = Etcd::start();
    let store = etcd.location("/replicas/");
    let dir = |name: &str| scratch.path().join(name);
    let mut one = replica(dir("one"), &store).await;
    let two = replica(dir("two"), &store).await;
    // Agents of both, and some that may go to either.
    let at_one = Simulation::named("one", &dir("at-one"), &[&one.address], 2).unwrap();
    let _at_two = Simulation::named("two", &dir("at-two"), &[&two.address], 2).unwrap();
    let all = ["one-0001", "one-0002", "two-0001", "two-0002"];
    one.connected(&all).await;
    two.connected(&all).await;

    let intent = fleet::read_limit("a", "/sim/w1", Path::new("/dev/nvme0n1"), Some(1 << 20));
    one.clients.intents.create_intent(fleet::create(intent)).await.unwrap();
    for replica in [&one, &two] {
        eventually("all four report to both that it is applied", SOON, || async {
            let statuses = replica.statuses("a").await;
            let applied = |status: &v1::IntentNodeStatus| {
                status.state() == v1::RuleState::Applied && !status.stale && status.age.is_some()
            };
            (statuses.len() == 4 && statuses.iter().all(applied)).then_some(())
        })
        .await;
        // What a node's agent alone can tell goes by way of the replica that serves it.
        for node in ["one-0001", "two-0001"] {
            let request = v1::ExplainRequest { node: format!("nodes/{node}"), ..Default::default() };
            let settings = replica.clients.clone().fleet.explain(request).await.unwrap().into_inner().settings;
            assert_eq!(settings.len(), 1, "{node}");
            let request = v1::ListWorkloadsRequest { parent: format!("nodes/{node}"), ..Default::default() };
            assert!(
                !replica.clients.clone().fleet.list_workloads(request).await.unwrap().into_inner().workloads.is_empty()
            );
        }
    }

    // A second machine with the name of a node that the other replica serves.
    let _twin = Simulation::named("one", &dir("twin"), &[&two.address], 1);
    for replica in [&one, &two] {
        eventually("both replicas tell of the second agent with the name", SOON, || async {
            let request = v1::GetNodeRequest { name: "nodes/one-0001".into() };
            let node = replica.clients.clone().fleet.get_node(request).await.unwrap().into_inner();
            let conflict = node.conditions.iter().any(|condition| condition.r#type == "NameConflict");
            (conflict && node.phase() == v1::NodePhase::Connected).then_some(())
        })
        .await;
    }

    // The leader, whichever it is, knows that the other's nodes hold nothing any more.
    let name = fleet::full("a");
    let mut clients = two.clients.clone();
    clients.intents.delete_intent(v1::DeleteIntentRequest { name: name.clone(), ..Default::default() }).await.unwrap();
    eventually("it is gone", SOON, || async {
        let got = two.clients.clone().intents.get_intent(v1::GetIntentRequest { name: name.clone() }).await;
        got.is_err_and(|status| status.code() == tonic::Code::NotFound).then_some(())
    })
    .await;
    at_one.until("nothing is held", SOON, |total| total.settings_held == 0).await.unwrap();

    one.daemon.kill();
    eventually("nodes of a replica that died are out of contact", SOON, || async {
        let phases = two.phases().await;
        let stale = |node: &str| phases.contains(&(format!("nodes/{node}"), v1::NodePhase::Stale));
        (stale("one-0002") && !stale("two-0001")).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_know_each_other_by_their_certificates() {
    if !etcd::controllers_can("replicas_know_each_other_by_their_certificates") {
        return;
    }
    let scratch = Scratch::new();
    let etcd = Etcd::start();
    let store = etcd.location("/replicas/");
    let certs = scratch.path().join("certs");
    let mut init = Command::new(binary("weirctl"));
    init.args(["certs", "init"]).arg(&certs).args(["--node", "n-0001", "--client", "ann"]);
    assert!(init.output().unwrap().status.success());
    let path = |name: &str| certs.join(name).display().to_string();
    let secured = |name: &str| {
        let flags = [
            ["--listen".into(), "127.0.0.1:0".into()],
            ["--store".into(), store.clone()],
            ["--tls-cert".into(), path("controller.crt")],
            ["--tls-key".into(), path("controller.key")],
            ["--tls-client-ca".into(), path("ca.crt")],
            ["--access".into(), path("access.yaml")],
        ];
        let log = scratch.path().join(format!("{name}.log"));
        let daemon = Daemon::start("weir-controller", &flags.concat(), "listening on ", &log).unwrap();
        let address = format!("https://{}", daemon.ready.rsplit(' ').next().unwrap());
        (daemon, address)
    };
    let (_one, one) = secured("one");
    let (_two, two) = secured("two");
    let flags = [
        ["--simulate".into(), "1".into()],
        ["--node".into(), "n".into()],
        ["--controller".into(), one],
        ["--state-dir".into(), scratch.path().join("state").display().to_string()],
        ["--tls-ca".into(), path("ca.crt")],
        ["--tls-cert".into(), path("node-n-0001.crt")],
        ["--tls-key".into(), path("node-n-0001.key")],
    ];
    let log = scratch.path().join("agent.log");
    let _agent = Daemon::start("weir-agent", &flags.concat(), fleet::AGENT_READY, &log).unwrap();
    eventually("the other replica tells of the node", SOON, || async {
        let mut weirctl = Command::new(binary("weirctl"));
        weirctl.args(["--server", &two, "-o", "json", "nodes", "--tls-ca", &path("ca.crt")]);
        weirctl.args(["--tls-cert", &path("client-ann.crt"), "--tls-key", &path("client-ann.key")]);
        let output = weirctl.output().unwrap();
        String::from_utf8_lossy(&output.stdout).contains("NODE_PHASE_CONNECTED").then_some(())
    })
    .await;
}
