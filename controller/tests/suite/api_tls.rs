//! TLS on the wire: rotation under open streams, agents that speak for another node, and peers that do not speak properly.

use crate::common;

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use common::{
    Agent, Controller, eventually,
    tls::{Authority, connect, security},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::mpsc,
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::Code;
use weir_common::tls::{Remote, explain_call};
use weir_proto::v1::{
    self, agent_service_client::AgentServiceClient, intent_service_client::IntentServiceClient, session_request,
};

struct Secured {
    directory: tempfile::TempDir,
    authority: Authority,
    controller: Controller,
    address: String,
    _stop: tokio_util::sync::DropGuard,
}

impl Secured {
    async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::new(directory.path(), "ca");
        let stop = CancellationToken::new();
        let security = security(directory.path(), &authority, &stop);
        let controller = Controller::start_secured(directory.path(), security, |_| {}).await;
        let address = controller.address.to_string();
        Secured { directory, authority, controller, address, _stop: stop.drop_guard() }
    }

    fn admin(&self) -> Option<(PathBuf, PathBuf)> {
        Some(self.authority.client("admin", "spiffe://weir/client/admin"))
    }

    async fn works(&self, ca: &Path) -> Result<(), String> {
        let channel = connect(&self.address, ca, self.admin()).await?;
        let list = IntentServiceClient::new(channel).list_intents(v1::ListIntentsRequest::default()).await;
        list.map(drop).map_err(|status| status.to_string())
    }
}

#[tokio::test]
async fn certificates_rotate_under_an_open_stream() {
    let secured = Secured::start().await;
    let channel = connect(&secured.address, &secured.authority.ca, secured.admin()).await.unwrap();
    let mut intents = IntentServiceClient::new(channel);
    let mut watch = intents.watch_intents(v1::WatchIntentsRequest::default()).await.unwrap().into_inner();
    assert_eq!(watch.message().await.unwrap().unwrap().kind(), v1::WatchEventKind::Bookmark);

    // A key that is no pair of the certificate, for longer than two looks: the old ones stay in use.
    let key = secured.directory.path().join("server.key");
    let good = std::fs::read(&key).unwrap();
    std::fs::write(&key, "broken").unwrap();
    tokio::time::sleep(5 * common::tls::LOOK).await;
    secured.works(&secured.authority.ca).await.unwrap();
    std::fs::write(&key, good).unwrap();

    // From another authority: whoever trusts that alone gets in as soon as the files are in use, and the others do not.
    let next = Authority::new(secured.directory.path(), "next");
    next.server("server");
    eventually(async || secured.works(&next.ca).await.ok()).await;
    let refused = secured.works(&secured.authority.ca).await.unwrap_err();
    assert!(refused.contains("another authority than --tls-ca names (between controllers"), "{refused}");

    // The stream that was open goes on.
    intents.create_intent(common::create(common::intent("a", &["n1"], 1 << 20))).await.unwrap();
    let event = watch.message().await.unwrap().unwrap();
    assert_eq!(event.kind(), v1::WatchEventKind::Put);
    secured.controller.stop().await;
}

#[tokio::test]
async fn an_agent_speaks_for_its_own_node_alone() {
    let secured = Secured::start().await;
    let pair = secured.authority.client("n1", "spiffe://weir/node/n1");
    let channel = connect(&secured.address, &secured.authority.ca, Some(pair)).await.unwrap();
    let session = async |node: &str| {
        let (to, messages) = mpsc::channel(1);
        let hello = session_request::Message::Hello(Agent::hello(node, "uid", "1"));
        to.send(v1::SessionRequest { message: Some(hello) }).await.unwrap();
        let mut agents = AgentServiceClient::new(channel.clone());
        agents.session(ReceiverStream::new(messages)).await.unwrap().into_inner().message().await
    };
    let report = async |node: &str| {
        let (to, messages) = mpsc::channel(1);
        let batch = v1::ReportMeasurementsRequest { node: node.into(), instance: "1".into(), ..Default::default() };
        to.send(batch).await.unwrap();
        let mut agents = AgentServiceClient::new(channel.clone());
        agents.report_measurements(ReceiverStream::new(messages)).await.unwrap().into_inner().message().await
    };
    assert!(session("n1").await.unwrap().is_some());
    assert!(report("n1").await.unwrap().is_some());
    for refused in [session("n2").await.map(drop), report("n2").await.map(drop)] {
        let status = refused.unwrap_err();
        assert_eq!(status.code(), Code::PermissionDenied);
        assert!(status.message().contains("node n1 cannot speak for node n2"), "{status}");
    }
    // What was refused left no trace.
    let admin = connect(&secured.address, &secured.authority.ca, secured.admin()).await.unwrap();
    let mut fleet = v1::fleet_service_client::FleetServiceClient::new(admin);
    let unknown = fleet.get_node(v1::GetNodeRequest { name: "nodes/n2".into() }).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);
    secured.controller.stop().await;
}

#[tokio::test]
async fn slow_and_broken_peers_hold_up_nobody() {
    let secured = Secured::start().await;
    let mut silent = Vec::new();
    for _ in 0..50 {
        silent.push(TcpStream::connect(&secured.address).await.unwrap());
    }
    // The first byte of a handshake, and no more.
    for stream in &mut silent[..25] {
        stream.write_all(&[0x16]).await.unwrap();
    }
    let begun = Instant::now();
    secured.works(&secured.authority.ca).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());

    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 4096], &[0x16, 3, 1, 0xff, 0xff, 1, 2, 3]] {
        let mut stream = TcpStream::connect(&secured.address).await.unwrap();
        stream.write_all(garbage).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut rest = Vec::new();
        // A reset is an end as well.
        let _end = tokio::time::timeout(common::SOON, stream.read_to_end(&mut rest)).await.expect("it is closed");
    }
    secured.works(&secured.authority.ca).await.unwrap();
    drop(silent);
    secured.controller.stop().await;
}

#[tokio::test]
async fn plain_and_tls_tell_each_other_apart() {
    let secured = Secured::start().await;
    let plain = Remote::new(&format!("http://{}", secured.address), None, None).unwrap();
    let channel = plain.connect().await.unwrap();
    let status = IntentServiceClient::new(channel).list_intents(v1::ListIntentsRequest::default()).await.unwrap_err();
    let text = explain_call(&status).unwrap_or_else(|| panic!("{status:?}"));
    assert!(text.contains("https://"), "{text}");

    let directory = tempfile::tempdir().unwrap();
    let open = Controller::start(directory.path()).await;
    let refused = connect(&open.address.to_string(), &secured.authority.ca, secured.admin()).await.unwrap_err();
    assert!(refused.contains("does not speak TLS") && refused.contains("http://"), "{refused}");
    open.stop().await;
    secured.controller.stop().await;
}

#[tokio::test]
async fn another_name_than_the_certificates() {
    let secured = Secured::start().await;
    let port = secured.address.rsplit(':').next().unwrap();
    let refused = connect(&format!("localhost:{port}"), &secured.authority.ca, secured.admin()).await.unwrap_err();
    assert!(refused.contains("--tls-server-name"), "{refused}");
    secured.controller.stop().await;
}
