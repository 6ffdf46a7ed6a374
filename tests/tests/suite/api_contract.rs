//! The contract, black box: a real controller, asked as any client would.

use std::{collections::BTreeSet, path::Path, process::Command, time::Duration};

use tonic::Code;
use tonic_types::StatusExt as _;
use weir_proto::v1::{self, byte_rate_limit::Limit};
use weir_tests::{
    fleet::{self, Clients, Scratch},
    process::{BUF_MISSING, Daemon, binary, buf},
    require,
};

struct Server {
    clients: Clients,
    address: String,
    _controller: Daemon,
    scratch: Scratch,
}

async fn server() -> Server {
    let scratch = Scratch::new();
    let (controller, address) = fleet::controller(&scratch.path(), "127.0.0.1:0").expect("a controller");
    let clients = Clients::connect(&address).await.expect("clients");
    Server { clients, address, _controller: controller, scratch }
}

fn valid(id: &str) -> v1::Intent {
    fleet::read_limit(id, "/a", Path::new("/dev/sda"), Some(1 << 20))
}

/// Fields that an INVALID_ARGUMENT names.
fn fields(status: &tonic::Status) -> BTreeSet<String> {
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    let details = status.get_error_details();
    let bad = details.bad_request().expect("google.rpc.BadRequest");
    bad.field_violations.iter().map(|violation| violation.field.clone()).collect()
}

fn with(change: impl FnOnce(&mut v1::IntentSpec)) -> v1::Intent {
    let mut intent = valid("invalid");
    change(intent.spec.as_mut().unwrap());
    intent
}

fn limits(spec: &mut v1::IntentSpec) -> &mut v1::Limits {
    spec.controls.as_mut().unwrap().limits.as_mut().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_invalid_intent_is_refused_by_its_field() {
    let mut server = server().await;
    let rbps =
        |value| with(|spec| limits(spec).rbps = Some(v1::ByteRateLimit { limit: Some(Limit::BytesPerSecond(value)) }));
    let cases: Vec<(&str, v1::Intent, &str)> = vec![
        ("negative", rbps(-1), "rbps"),
        ("zero", rbps(0), "rbps"),
        ("below the floor", rbps(65_535), "rbps"),
        ("neither value", with(|s| limits(s).rbps = Some(v1::ByteRateLimit { limit: None })), "rbps"),
        (
            "unlimited: false",
            with(|s| limits(s).rbps = Some(v1::ByteRateLimit { limit: Some(Limit::Unlimited(false)) })),
            "rbps",
        ),
        (
            "percent",
            with(|s| limits(s).rbps = Some(v1::ByteRateLimit { limit: Some(Limit::PercentOfCapacity(f64::NAN)) })),
            "rbps",
        ),
        (
            "iops above 32 bits",
            with(|s| {
                limits(s).riops = Some(v1::OperationRateLimit {
                    limit: Some(v1::operation_rate_limit::Limit::OperationsPerSecond(1 << 32)),
                });
            }),
            "riops",
        ),
        ("no controls", with(|s| s.controls = None), "controls"),
        ("empty controls", with(|s| s.controls = Some(v1::Controls::default())), "controls"),
        ("empty limits", with(|s| *limits(s) = v1::Limits::default()), "limits"),
        ("no nodes", with(|s| s.nodes = None), "nodes"),
        ("no workloads", with(|s| s.workloads = Some(v1::WorkloadSelector::default())), "workloads"),
        ("empty term", with(|s| s.workloads.as_mut().unwrap().any_of[0] = v1::WorkloadTerm::default()), "workloads"),
        ("no devices", with(|s| s.devices = None), "devices"),
        ("all and more", with(|s| s.devices.as_mut().unwrap().any_of[0].all = true), "devices"),
        (
            "excludes all",
            with(|s| {
                s.nodes.as_mut().unwrap().exclude.push(v1::NodeTerm { all: true, ..Default::default() });
            }),
            "nodes",
        ),
        (
            "excludes what it chooses",
            with(|s| {
                let selector = s.workloads.as_mut().unwrap();
                selector.exclude = selector.any_of.clone();
            }),
            "workloads",
        ),
        (
            "a relative cgroup",
            with(|s| s.workloads.as_mut().unwrap().any_of[0].cgroup_path = "a/b".into()),
            "cgroup_path",
        ),
        (
            "a cgroup that climbs",
            with(|s| s.workloads.as_mut().unwrap().any_of[0].cgroup_path = "/a/../b".into()),
            "cgroup_path",
        ),
        ("priority", with(|s| s.priority = 1001), "priority"),
        ("an unknown mode", with(|s| s.mode = 99), "mode"),
    ];
    for (what, intent, field) in cases {
        let status = server.clients.intents.create_intent(fleet::create(intent)).await.expect_err(what);
        let named = fields(&status);
        assert!(named.iter().any(|name| name.contains(field)), "{what}: {named:?}");
    }
    let all = server.clients.intents.list_intents(v1::ListIntentsRequest::default()).await.unwrap().into_inner();
    assert!(all.intents.is_empty(), "nothing invalid is stored");
}

#[tokio::test(flavor = "multi_thread")]
async fn all_violations_are_named_at_once() {
    let mut server = server().await;
    let intent = with(|spec| {
        spec.priority = 5000;
        spec.nodes = None;
        limits(spec).rbps = Some(v1::ByteRateLimit { limit: Some(Limit::BytesPerSecond(-5)) });
        limits(spec).wbps = Some(v1::ByteRateLimit { limit: Some(Limit::BytesPerSecond(1)) });
    });
    let status = server.clients.intents.create_intent(fleet::create(intent)).await.unwrap_err();
    let named = fields(&status);
    for field in ["priority", "nodes", "rbps", "wbps"] {
        assert!(named.iter().any(|name| name.contains(field)), "{field} is missing in {named:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn names_and_etags() {
    let mut server = server().await;
    let created = server.clients.intents.create_intent(fleet::create(valid("one"))).await.unwrap().into_inner();
    assert_eq!(created.generation, 1);
    assert!(!created.uid.is_empty() && !created.etag.is_empty());
    let again = server.clients.intents.create_intent(fleet::create(valid("one"))).await.unwrap_err();
    assert_eq!(again.code(), Code::AlreadyExists);

    let update = |etag: &str, limit| {
        let mut intent = fleet::read_limit("one", "/a", Path::new("/dev/sda"), Some(limit));
        intent.etag = etag.to_owned();
        v1::UpdateIntentRequest { intent: Some(intent), ..Default::default() }
    };
    let updated = server.clients.intents.update_intent(update(&created.etag, 2 << 20)).await.unwrap().into_inner();
    assert_eq!(updated.generation, 2);
    assert_eq!(updated.uid, created.uid);
    let stale = server.clients.intents.update_intent(update(&created.etag, 3 << 20)).await.unwrap_err();
    assert_eq!(stale.code(), Code::Aborted);
    let details = stale.get_error_details();
    let info = details.error_info().expect("google.rpc.ErrorInfo");
    assert!(info.metadata.values().any(|value| *value == updated.etag), "the current etag is in {info:?}");

    let missing = v1::GetIntentRequest { name: fleet::full("none") };
    assert_eq!(server.clients.intents.get_intent(missing).await.unwrap_err().code(), Code::NotFound);
    let only = v1::CreateIntentRequest { intent: Some(valid("dry")), validate_only: true, ..Default::default() };
    server.clients.intents.create_intent(only).await.unwrap();
    let dry = v1::GetIntentRequest { name: fleet::full("dry") };
    assert_eq!(server.clients.intents.get_intent(dry).await.unwrap_err().code(), Code::NotFound);
    let unknown = v1::CreateIntentRequest { required_features: vec!["no.such".into()], ..fleet::create(valid("two")) };
    fields(&server.clients.intents.create_intent(unknown).await.unwrap_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_built_is_said_even_where_no_node_matches() {
    let mut server = server().await;
    let intent = with(|spec| {
        spec.controls.as_mut().unwrap().weight = Some(v1::Weight { weight: 200 });
        spec.workloads
            .as_mut()
            .unwrap()
            .any_of
            .push(v1::WorkloadTerm { namespaces: vec!["prod".into()], ..Default::default() });
    });
    let name = intent.name.clone();
    server.clients.intents.create_intent(fleet::create(intent)).await.unwrap();
    let got = server.clients.intents.get_intent(v1::GetIntentRequest { name }).await.unwrap().into_inner();
    let conditions = got.status.unwrap().conditions;
    let not_built: Vec<_> = conditions.iter().filter(|c| c.r#type == "NotImplemented").collect();
    let said = format!("{not_built:?}");
    assert!(said.contains("weight") && said.contains("namespaces"), "{conditions:?}");
    assert!(not_built.iter().all(|c| c.status() == v1::ConditionStatus::True));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_lists_marks_follows_and_resumes() {
    let mut server = server().await;
    server.clients.intents.create_intent(fleet::create(valid("first"))).await.unwrap();
    let mut watch =
        server.clients.intents.watch_intents(v1::WatchIntentsRequest::default()).await.unwrap().into_inner();
    let mut next =
        async || tokio::time::timeout(Duration::from_secs(10), watch.message()).await.unwrap().unwrap().unwrap();
    assert_eq!(next().await.kind(), v1::WatchEventKind::Initial);
    let mark = next().await;
    assert_eq!(mark.kind(), v1::WatchEventKind::Bookmark);
    server.clients.intents.create_intent(fleet::create(valid("second"))).await.unwrap();
    let put = next().await;
    assert_eq!(put.kind(), v1::WatchEventKind::Put);
    assert_eq!(put.intent.unwrap().name, fleet::full("second"));
    assert!(put.revision > mark.revision);

    let resume = v1::WatchIntentsRequest { resume_revision: mark.revision, ..Default::default() };
    let mut watch = server.clients.intents.watch_intents(resume).await.unwrap().into_inner();
    let first = tokio::time::timeout(Duration::from_secs(10), watch.message()).await.unwrap().unwrap().unwrap();
    assert_eq!((first.kind(), first.revision), (v1::WatchEventKind::Put, put.revision));
}

#[tokio::test(flavor = "multi_thread")]
async fn reflection_and_health_are_served() {
    use tonic_reflection::pb::v1::{
        ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
        server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
    };
    let server = server().await;
    let channel =
        tonic::transport::Endpoint::new(format!("http://{}", server.address)).unwrap().connect().await.unwrap();
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut answers = ServerReflectionClient::new(channel)
        .server_reflection_info(tokio_stream::once(request))
        .await
        .unwrap()
        .into_inner();
    let answer = answers.message().await.unwrap().unwrap().message_response.unwrap();
    let MessageResponse::ListServicesResponse(list) = answer else { panic!("{answer:?}") };
    let names: BTreeSet<String> = list.service.into_iter().map(|service| service.name).collect();
    for service in ["weir.v1.IntentService", "weir.v1.FleetService", "weir.v1.AgentService", "grpc.health.v1.Health"] {
        assert!(names.contains(service), "{service} is not in {names:?}");
    }
}

/// Runs the controller to its end and returns what it said.
fn refused(args: &[&str]) -> String {
    let out = Command::new(binary("weir-controller")).args(args).output().unwrap();
    assert!(!out.status.success(), "{args:?} must not start");
    String::from_utf8_lossy(&out.stderr).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_that_must_not_start_says_why() {
    let server = server().await;
    let store = server.scratch.path().join("store.redb").display().to_string();
    let other = server.scratch.path().join("other.redb").display().to_string();
    let open = refused(&["--listen", "0.0.0.0:0", "--store", &other]);
    assert!(open.contains("--insecure"), "{open}");
    let locked = refused(&["--listen", "127.0.0.1:0", "--store", &store]);
    assert!(locked.contains(&store), "{locked}");
    let etcd = refused(&["--listen", "127.0.0.1:0", "--store", "etcd://127.0.0.1:2379"]);
    assert!(etcd.contains("etcd"), "{etcd}");
}

#[test]
fn the_protos_pass_buf_lint() {
    let Some(buf) = buf() else {
        require::met("the_protos_pass_buf_lint", &[BUF_MISSING.to_owned()]);
        return;
    };
    let proto = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("proto");
    let out = Command::new(buf).arg("lint").current_dir(proto).output().unwrap();
    assert!(out.status.success(), "{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
}
