//! Who may call what: every method that is served, called by every kind of caller over real TLS. `--nocapture` prints the matrix.

use crate::common;

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use common::{
    Controller,
    tls::{Authority, connect, security},
};
use prost::Message as _;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, client::Grpc};
use weir_common::tls::Connection;
use weir_proto::v1;

/// Callers, in the order of the columns below.
const CALLERS: [&str; 12] = [
    "nobody",
    "other-ca",
    "expired",
    "stranger",
    "no-role",
    "node",
    "controller",
    "viewer",
    "web-viewer",
    "web-editor",
    "editor",
    "admin",
];

/// What is expected: `x` no connection, `-` refused, `+` admitted; with an empty request, so that what the content decides
/// is tested apart.
const EXPECTED: [(&str, &str); 24] = [
    // nobody, other-ca, expired; stranger, no-role, node, controller; viewer, web-viewer, web-editor, editor, admin
    ("/grpc.health.v1.Health/Check", "xxx ++++ +++++"),
    ("/grpc.health.v1.Health/Watch", "xxx ++++ +++++"),
    ("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "xxx -+++ +++++"),
    ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "xxx -+++ +++++"),
    ("/weir.v1.AgentService/ReportMeasurements", "xxx --+- -----"),
    ("/weir.v1.AgentService/Session", "xxx --+- -----"),
    ("/weir.v1.FleetService/Explain", "xxx ---- +++++"),
    ("/weir.v1.FleetService/ForgetNode", "xxx ---- ----+"),
    ("/weir.v1.FleetService/GetNode", "xxx ---- +++++"),
    ("/weir.v1.FleetService/ListDevices", "xxx ---- +++++"),
    ("/weir.v1.FleetService/ListIntentNodeStatuses", "xxx ---- +++++"),
    ("/weir.v1.FleetService/ListNodes", "xxx ---- +++++"),
    ("/weir.v1.FleetService/ListWorkloads", "xxx ---- +++++"),
    ("/weir.v1.FleetService/PauseNode", "xxx ---- ----+"),
    ("/weir.v1.FleetService/ReleaseNode", "xxx ---- ----+"),
    ("/weir.v1.FleetService/ResumeNode", "xxx ---- ----+"),
    ("/weir.v1.IntentService/CreateIntent", "xxx ---- --+++"),
    ("/weir.v1.IntentService/DeleteIntent", "xxx ---- --+++"),
    ("/weir.v1.IntentService/GetIntent", "xxx ---- +++++"),
    ("/weir.v1.IntentService/ListIntents", "xxx ---- +++++"),
    ("/weir.v1.IntentService/UpdateIntent", "xxx ---- --+++"),
    ("/weir.v1.IntentService/WatchIntents", "xxx ---- +++++"),
    ("/weir.v1.PeerService/AskNode", "xxx ---+ -----"),
    ("/weir.v1.PeerService/Relay", "xxx ---+ -----"),
];

/// Full names of all methods that the descriptors have.
fn methods() -> Vec<String> {
    let sets = [
        weir_proto::v1::FILE_DESCRIPTOR_SET,
        tonic_health::pb::FILE_DESCRIPTOR_SET,
        tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
        tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET,
    ];
    let mut all = Vec::new();
    for set in sets {
        for file in prost_types::FileDescriptorSet::decode(set).unwrap().file {
            for service in &file.service {
                let methods = service.method.iter();
                all.extend(methods.map(|method| format!("/{}.{}/{}", file.package(), service.name(), method.name())));
            }
        }
    }
    all.sort();
    all.dedup();
    all
}

/// Calls with an empty message, and waits for the first answer or the end; a stream that says nothing was admitted.
async fn call(channel: Connection, method: &str) -> Code {
    let mut grpc = Grpc::new(channel);
    grpc.ready().await.unwrap();
    // `()` encodes as no bytes, and decodes from any message.
    let codec = tonic_prost::ProstCodec::<(), ()>::default();
    let request = Request::new(tokio_stream::once(()));
    let answer = async {
        match grpc.streaming(request, method.parse().unwrap(), codec).await {
            Err(status) => status.code(),
            Ok(response) => response.into_inner().message().await.map_or_else(|status| status.code(), |_| Code::Ok),
        }
    };
    tokio::time::timeout(Duration::from_secs(1), answer).await.unwrap_or(Code::Ok)
}

#[tokio::test]
async fn every_method_by_every_caller() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new(directory.path(), "ca");
    let other = Authority::new(directory.path(), "other");
    let stop = CancellationToken::new();
    let security = security(directory.path(), &authority, &stop);
    let controller = Controller::start_secured(directory.path(), security, |_| {}).await;
    let address = controller.address.to_string();
    let pair = |caller: &str| -> Option<(PathBuf, PathBuf)> {
        let named = format!("spiffe://weir/client/{caller}");
        match caller {
            "nobody" => None,
            "other-ca" => Some(other.client("other-ca", "spiffe://weir/client/admin")),
            "expired" => Some(authority.expired_client("expired", "spiffe://weir/client/admin")),
            "stranger" => Some(authority.client("stranger", "spiffe://elsewhere/client/admin")),
            "node" => Some(authority.client("node", "spiffe://weir/node/n1")),
            "controller" => Some(authority.client("controller", "spiffe://weir/controller/c1")),
            caller => Some(authority.client(caller, &named)),
        }
    };

    let mut got: BTreeMap<String, String> = methods().into_iter().map(|method| (method, String::new())).collect();
    for caller in CALLERS {
        let connected = connect(&address, &authority.ca, pair(caller)).await;
        if let Err(why) = &connected {
            let says = match caller {
                "nobody" => "wants a client certificate",
                "other-ca" => "authority that it does not know",
                "expired" => "has expired",
                other => panic!("{other}: {why}"),
            };
            assert!(why.contains(says), "{caller}: {why}");
        }
        for (method, row) in &mut got {
            row.push(match &connected {
                Err(_) => 'x',
                Ok(channel) => match call(channel.clone(), method).await {
                    Code::Unauthenticated | Code::PermissionDenied => '-',
                    _ => '+',
                },
            });
        }
    }
    println!("{}", CALLERS.join(" "));
    for (method, row) in &got {
        println!("{row}  {method}");
    }
    let expected: BTreeMap<String, String> =
        EXPECTED.iter().map(|(method, row)| ((*method).to_owned(), row.replace(' ', ""))).collect();
    assert_eq!(got, expected);
    controller.stop().await;
}

#[test]
fn every_method_has_a_rule_and_every_rule_a_method() {
    let methods = methods();
    for method in &methods {
        assert!(weir_controller::api::rule(method).is_some(), "{method} has no rule, so nobody may call it");
    }
    for (method, _) in weir_controller::api::RULES {
        assert!(methods.iter().any(|known| known == method), "{method} has a rule and is no method");
    }
}

/// What the request's content decides: the project.
#[tokio::test]
async fn roles_end_at_their_projects() {
    use v1::{fleet_service_client::FleetServiceClient, intent_service_client::IntentServiceClient};
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new(directory.path(), "ca");
    let stop = CancellationToken::new();
    let security = security(directory.path(), &authority, &stop);
    let controller = Controller::start_secured(directory.path(), security, |_| {}).await;
    let address = controller.address.to_string();
    let as_client = async |name: &str| {
        let pair = authority.client(name, &format!("spiffe://weir/client/{name}"));
        connect(&address, &authority.ca, Some(pair)).await.unwrap()
    };
    let mut admin = IntentServiceClient::new(as_client("admin").await);
    let of = |project: &str| {
        let mut intent = common::intent("a", &["n1"], 1 << 20);
        intent.name = format!("projects/{project}/intents/a");
        intent
    };
    for project in ["default", "web"] {
        admin.create_intent(common::create(of(project))).await.unwrap();
    }

    let get = |project: &str| v1::GetIntentRequest { name: of(project).name };
    let list = |parent: &str| v1::ListIntentsRequest { parent: parent.into(), ..Default::default() };
    let delete = |project: &str| v1::DeleteIntentRequest { name: of(project).name, ..Default::default() };
    let denied = |status: tonic::Status| {
        assert_eq!(status.code(), Code::PermissionDenied, "{status}");
        assert!(status.message().contains("project default"), "{status}");
    };
    for caller in ["web-viewer", "web-editor"] {
        let channel = as_client(caller).await;
        let mut intents = IntentServiceClient::new(channel.clone());
        intents.get_intent(get("web")).await.unwrap();
        denied(intents.get_intent(get("default")).await.unwrap_err());
        denied(intents.list_intents(list("projects/default")).await.unwrap_err());
        let seen = intents.list_intents(list("projects/-")).await.unwrap().into_inner().intents;
        assert_eq!(seen.iter().map(|intent| intent.name.as_str()).collect::<Vec<_>>(), ["projects/web/intents/a"]);
        let mut watch = intents.watch_intents(v1::WatchIntentsRequest::default()).await.unwrap().into_inner();
        let first = watch.message().await.unwrap().unwrap();
        assert_eq!(first.intent.unwrap().name, "projects/web/intents/a");
        assert_eq!(watch.message().await.unwrap().unwrap().kind(), v1::WatchEventKind::Bookmark);
        let statuses = v1::ListIntentNodeStatusesRequest { intent: of("default").name, ..Default::default() };
        denied(FleetServiceClient::new(channel).list_intent_node_statuses(statuses).await.unwrap_err());
    }
    let mut editor = IntentServiceClient::new(as_client("web-editor").await);
    denied(editor.create_intent(common::create(of("default"))).await.unwrap_err());
    denied(editor.update_intent(common::update(of("default"))).await.unwrap_err());
    denied(editor.delete_intent(delete("default")).await.unwrap_err());
    editor.update_intent(common::update(of("web"))).await.unwrap();
    editor.delete_intent(delete("web")).await.unwrap();

    // A role that is withdrawn is gone at the next call.
    std::fs::write(directory.path().join("access.yaml"), "bindings: []").unwrap();
    common::eventually(async || {
        let refused =
            editor.get_intent(get("web")).await.err().is_some_and(|status| status.code() == Code::PermissionDenied);
        refused.then_some(())
    })
    .await;
    controller.stop().await;
}
