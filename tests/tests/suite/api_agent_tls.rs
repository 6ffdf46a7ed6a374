//! The agent's link over mutual TLS, against a controller's binary: let in as its own node, and as no other.

use std::{path::PathBuf, process::Command, sync::Arc, time::Duration};

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use weir_agent::{
    config::Tls,
    enforce::report::Report,
    kernel::{CgroupVersion, fake::FakeKernel},
    link::{self, Identity, Link, state::LinkState},
    measure::Meter,
    reconcile::NodeFacts,
    resolve::NodeSettings,
};
use weir_common::units::Floor;
use weir_tests::{
    fleet::{Scratch, eventually},
    process::{Daemon, binary},
};

struct World {
    certs: PathBuf,
    address: String,
    _controller: Daemon,
    _scratch: Scratch,
}

impl World {
    fn new() -> World {
        let scratch = Scratch::new();
        let certs = scratch.path().join("certs");
        let mut init = Command::new(binary("weirctl"));
        init.args(["certs", "init"]).arg(&certs).args(["--node", "n1", "--client", "ann"]);
        assert!(init.output().unwrap().status.success());
        let path = |name: &str| certs.join(name).display().to_string();
        let store = scratch.path().join("store.redb").display().to_string();
        let args = [
            ["--listen".into(), "127.0.0.1:0".into()],
            ["--store".into(), store],
            ["--tls-cert".into(), path("controller.crt")],
            ["--tls-key".into(), path("controller.key")],
            ["--tls-client-ca".into(), path("ca.crt")],
            ["--access".into(), path("access.yaml")],
        ];
        let log = scratch.path().join("controller.log");
        let daemon = Daemon::start("weir-controller", &args.concat(), "listening on ", &log).unwrap();
        let address = format!("https://{}", daemon.ready.rsplit(' ').next().unwrap());
        World { certs, address, _controller: daemon, _scratch: scratch }
    }

    /// Runs the link of an agent of `node` with the certificate of n1 until the token is cancelled.
    fn agent(&self, node: &str, stop: &CancellationToken) {
        let floor = Floor { bytes_per_second: 65_536, operations_per_second: 10 };
        let facts = NodeFacts {
            labels: [("by".to_owned(), node.to_owned())].into(),
            kernel_release: "test".to_owned(),
            node: NodeSettings { floor, version: CgroupVersion::V2 },
            devices: Default::default(),
        };
        let identity = Identity {
            node: node.to_owned(),
            node_uid: format!("uid-{node}"),
            instance: "1".to_owned(),
            boot_id: "boot".to_owned(),
        };
        // The other ends are kept open for as long as the link runs.
        let (commands, mut orders) = mpsc::channel(16);
        let (facts_out, facts) = watch::channel(facts);
        let (reports_out, reports) = watch::channel(Arc::new(Report::default()));
        let meter = Meter::start(Arc::new(FakeKernel::new(CgroupVersion::V2)), Duration::from_secs(1)).unwrap();
        let path = |name: &str| Some(self.certs.join(name));
        let tls = Tls {
            ca: path("ca.crt"),
            certificate: path("node-n1.crt"),
            key: path("node-n1.key"),
            server_name: None,
            token_file: None,
        };
        let controllers = link::remotes(std::slice::from_ref(&self.address), tls).unwrap();
        let (state, _state) = watch::channel(LinkState::default());
        let pass_within = Duration::from_secs(60);
        let link = Link { controllers, identity, commands, facts, reports, pass_within, meter, state };
        let stop = stop.clone();
        tokio::spawn(async move {
            let ends = async { while orders.recv().await.is_some() {} };
            let _ended = tokio::join!(link.run(stop), ends);
            drop((facts_out, reports_out));
        });
    }

    fn nodes(&self) -> String {
        let path = |name: &str| self.certs.join(name).display().to_string();
        let mut command = Command::new(binary("weirctl"));
        command.args(["--server", &self.address, "-o", "json", "nodes", "--tls-ca", &path("ca.crt")]);
        command.args(["--tls-cert", &path("client-ann.crt"), "--tls-key", &path("client-ann.key")]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_is_let_in_as_its_own_node() {
    let world = World::new();
    let stop = CancellationToken::new();
    // The impostor first: when the other one is there, it has had its turn.
    world.agent("n2", &stop);
    tokio::time::sleep(Duration::from_millis(500)).await;
    world.agent("n1", &stop);
    eventually("the node n1", Duration::from_secs(20), async || world.nodes().contains("\"nodes/n1\"").then_some(()))
        .await;
    assert!(!world.nodes().contains("nodes/n2"), "{}", world.nodes());
    stop.cancel();
}
