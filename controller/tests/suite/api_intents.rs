//! IntentService as a client sees it: violations, conflicts, masks, pages, watches.

use crate::common;

use common::{Controller, create, intent, update};
use tonic::{Code, transport::Channel};
use tonic_types::StatusExt;
use weir_controller::store::{Revision, Store};
use weir_proto::{
    FieldMask,
    v1::{self, WatchEventKind as Kind, intent_service_client::IntentServiceClient},
};

fn fields(status: &tonic::Status) -> Vec<String> {
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    let details = status.get_error_details();
    details.bad_request().unwrap().field_violations.iter().map(|violation| violation.field.clone()).collect()
}

fn get(id: &str) -> v1::GetIntentRequest {
    v1::GetIntentRequest { name: format!("projects/default/intents/{id}") }
}

#[tokio::test]
async fn every_violated_field_is_named_and_nothing_stored() {
    let directory = tempfile::tempdir().unwrap();
    let controller = Controller::start(directory.path()).await;
    let mut intents = controller.intents().await;
    let before = controller.revision().await;
    let mut bad = intent("a", &[], -5);
    bad.labels.insert(String::new(), "v".into());
    let spec = bad.spec.as_mut().unwrap();
    spec.workloads.as_mut().unwrap().any_of[0].cgroup_path = "relative".into();
    spec.priority = 5000;
    let request = v1::CreateIntentRequest { required_features: vec!["control.magic".into()], ..create(bad.clone()) };
    let status = intents.create_intent(request).await.unwrap_err();
    assert_eq!(
        fields(&status),
        [
            "required_features[0]",
            "intent.labels[\"\"]",
            "intent.spec.nodes.any_of",
            "intent.spec.workloads.any_of[0].cgroup_path",
            "intent.spec.controls.limits.rbps.bytes_per_second",
            "intent.spec.priority",
        ]
    );
    assert_eq!(fields(&intents.create_intent(v1::CreateIntentRequest::default()).await.unwrap_err()), ["intent"]);
    let both = v1::CreateIntentRequest { intent_id: "b".into(), ..create(intent("a", &["n"], 1 << 20)) };
    assert_eq!(fields(&intents.create_intent(both).await.unwrap_err()), ["intent.name"]);
    let status = intents.get_intent(v1::GetIntentRequest { name: "a".into() }).await.unwrap_err();
    assert_eq!(fields(&status), ["name"]);

    intents.create_intent(create(intent("a", &["n"], 1 << 20))).await.unwrap();
    assert!(fields(&intents.update_intent(update(bad)).await.unwrap_err()).len() >= 4);
    assert_eq!(controller.revision().await, before + 1);
    controller.stop().await;
}

#[tokio::test]
async fn a_name_exists_once_and_an_old_etag_is_answered_with_the_present_one() {
    let directory = tempfile::tempdir().unwrap();
    let controller = Controller::start(directory.path()).await;
    let mut intents = controller.intents().await;
    let created = intents.create_intent(create(intent("a", &["n"], 1 << 20))).await.unwrap().into_inner();
    let status = intents.create_intent(create(intent("a", &["n"], 1 << 20))).await.unwrap_err();
    assert_eq!(status.code(), Code::AlreadyExists);

    let with_etag = |etag: &str, rbps| v1::Intent { etag: etag.into(), ..intent("a", &["n"], rbps) };
    let changed = intents.update_intent(update(with_etag(&created.etag, 2 << 20))).await.unwrap().into_inner();
    let status = intents.update_intent(update(with_etag(&created.etag, 3 << 20))).await.unwrap_err();
    assert_eq!(status.code(), Code::Aborted);
    let info = status.get_error_details().error_info().unwrap().clone();
    assert_eq!((info.reason.as_str(), &info.metadata["etag"]), ("ETAG_MISMATCH", &changed.etag));
    let old = v1::DeleteIntentRequest { name: changed.name.clone(), etag: created.etag, ..Default::default() };
    assert_eq!(intents.delete_intent(old).await.unwrap_err().code(), Code::Aborted);
    let now = intents.get_intent(get("a")).await.unwrap().into_inner();
    assert_eq!((now.etag, now.generation, now.uid), (changed.etag, 2, created.uid));
    controller.stop().await;
}

#[tokio::test]
async fn concurrent_unconditional_updates_all_take_place() {
    let directory = tempfile::tempdir().unwrap();
    let controller = Controller::start(directory.path()).await;
    let mut intents = controller.intents().await;
    intents.create_intent(create(intent("a", &["n"], 1 << 20))).await.unwrap();
    let tasks: Vec<_> = (0..4)
        .map(|task: i32| {
            let mut intents = intents.clone();
            tokio::spawn(async move {
                let mut changed = intent("a", &["n"], 1 << 20);
                changed.spec.as_mut().unwrap().priority = task + 1;
                let mask = Some(FieldMask { paths: vec!["spec.priority".into()] });
                intents.update_intent(v1::UpdateIntentRequest { update_mask: mask, ..update(changed) }).await
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    assert_eq!(intents.get_intent(get("a")).await.unwrap().into_inner().generation, 5);
    controller.stop().await;
}

#[tokio::test]
async fn masks_dry_runs_and_missing_ones() {
    let directory = tempfile::tempdir().unwrap();
    let controller = Controller::start(directory.path()).await;
    let mut intents = controller.intents().await;
    let before = controller.revision().await;
    let dry = v1::CreateIntentRequest { validate_only: true, ..create(intent("a", &["n"], 1 << 20)) };
    let dry = intents.create_intent(dry).await.unwrap().into_inner();
    assert_eq!((dry.generation, dry.uid.as_str(), dry.etag.as_str()), (1, "", ""));
    assert_eq!(controller.revision().await, before);

    let missing = intents.update_intent(update(intent("a", &["n"], 1 << 20))).await.unwrap_err();
    assert_eq!(missing.code(), Code::NotFound);
    let upsert = v1::UpdateIntentRequest { allow_missing: true, ..update(intent("a", &["n"], 1 << 20)) };
    assert_eq!(intents.update_intent(upsert.clone()).await.unwrap().into_inner().generation, 1);
    assert_eq!(intents.update_intent(upsert).await.unwrap().into_inner().generation, 1);

    let mask = |paths: &[&str]| Some(FieldMask { paths: paths.iter().map(|&path| path.to_owned()).collect() });
    let mut only_limit = v1::Intent { name: get("a").name, ..Default::default() };
    only_limit.spec =
        Some(v1::IntentSpec { controls: intent("a", &[], 5 << 20).spec.unwrap().controls, ..Default::default() });
    let request =
        v1::UpdateIntentRequest { update_mask: mask(&["spec.controls.limits.rbps"]), ..update(only_limit.clone()) };
    let changed = intents.update_intent(request).await.unwrap().into_inner();
    let spec = changed.spec.unwrap();
    assert_eq!(spec.nodes.unwrap().any_of[0].names, ["n"]);
    assert_eq!(spec.controls, only_limit.spec.as_ref().unwrap().controls);
    let wrong = mask(&["spec.controls.limits.rbps", "spec.colour", "uid"]);
    let status =
        intents.update_intent(v1::UpdateIntentRequest { update_mask: wrong, ..update(only_limit.clone()) }).await;
    assert_eq!(fields(&status.unwrap_err()), ["update_mask.paths[1]", "update_mask.paths[2]"]);
    // Without a mask the whole spec is replaced, and what is missing is missing.
    let status = intents.update_intent(update(only_limit)).await.unwrap_err();
    assert_eq!(fields(&status), ["nodes", "workloads", "devices"].map(|field| format!("intent.spec.{field}")));
    let dry = v1::DeleteIntentRequest { name: get("a").name, validate_only: true, ..Default::default() };
    assert!(intents.delete_intent(dry).await.unwrap().into_inner().delete_time.is_some());
    assert!(intents.get_intent(get("a")).await.unwrap().into_inner().delete_time.is_none());
    controller.stop().await;
}

#[tokio::test]
async fn pages_cover_everything_once_and_tokens_are_bound() {
    let directory = tempfile::tempdir().unwrap();
    let controller = Controller::start(directory.path()).await;
    let mut intents = controller.intents().await;
    for project in ["default", "other", "default-b"] {
        for i in 0..7 {
            let mut one = intent(&format!("i{i}"), &["n"], 1 << 20);
            one.name = format!("projects/{project}/intents/i{i}");
            one.labels.insert("even".into(), (i % 2 == 0).to_string());
            intents.create_intent(create(one)).await.unwrap();
        }
    }
    let mut list = async |parent: &str, even: bool| {
        let mut names = Vec::new();
        let mut token = String::new();
        loop {
            let mut request =
                v1::ListIntentsRequest { parent: parent.into(), page_size: 3, page_token: token, ..Default::default() };
            if even {
                request.match_labels.insert("even".into(), "true".into());
            }
            let page = intents.list_intents(request).await.unwrap().into_inner();
            assert!(page.intents.len() <= 3 && !page.intents.is_empty());
            names.extend(page.intents.into_iter().map(|intent| intent.name));
            token = page.next_page_token;
            if token.is_empty() {
                return names;
            }
        }
    };
    let all = list("", false).await;
    assert_eq!(all.len(), 21);
    assert!(all.is_sorted());
    assert_eq!(list("projects/-", true).await.len(), 12);
    let one = list("projects/default", false).await;
    assert!(one.len() == 7 && one.iter().all(|name| name.starts_with("projects/default/")));

    let request = |parent: &str, token: &str, size| v1::ListIntentsRequest {
        parent: parent.into(),
        page_token: token.into(),
        page_size: size,
        ..Default::default()
    };
    let token = intents.list_intents(request("", "", 2)).await.unwrap().into_inner().next_page_token;
    for (parent, token, size, field) in [
        ("projects/other", token.as_str(), 2, "page_token"),
        ("", "x", 2, "page_token"),
        ("", "", -1, "page_size"),
        ("other", "", 1, "parent"),
    ] {
        assert_eq!(fields(&intents.list_intents(request(parent, token, size)).await.unwrap_err()), [field]);
    }
    controller.stop().await;
}

async fn watch(
    intents: &mut IntentServiceClient<Channel>,
    resume_revision: i64,
) -> Result<tonic::Streaming<v1::WatchIntentsResponse>, tonic::Status> {
    let request = v1::WatchIntentsRequest { parent: String::new(), resume_revision };
    intents.watch_intents(request).await.map(tonic::Response::into_inner)
}

async fn next(stream: &mut tonic::Streaming<v1::WatchIntentsResponse>) -> v1::WatchIntentsResponse {
    tokio::time::timeout(common::SOON, stream.message()).await.unwrap().unwrap().unwrap()
}

#[tokio::test]
async fn a_watch_begins_with_a_list_and_resumes_without_a_gap() {
    let directory = tempfile::tempdir().unwrap();
    let controller = Controller::start(directory.path()).await;
    let mut intents = controller.intents().await;
    let a = intents.create_intent(create(intent("a", &["n"], 1 << 20))).await.unwrap().into_inner();
    let mut stream = watch(&mut intents, 0).await.unwrap();
    let first = next(&mut stream).await;
    assert_eq!((first.kind(), first.intent.unwrap().etag), (Kind::Initial, a.etag));
    let bookmark = next(&mut stream).await;
    assert_eq!((bookmark.kind(), bookmark.intent), (Kind::Bookmark, None));
    let b = intents.create_intent(create(intent("b", &["n"], 1 << 20))).await.unwrap().into_inner();
    let put = next(&mut stream).await;
    assert_eq!((put.kind(), put.revision), (Kind::Put, b.create_revision));
    assert_eq!(put.intent.unwrap().etag, b.etag);
    drop(stream);

    intents.delete_intent(v1::DeleteIntentRequest { name: b.name.clone(), ..Default::default() }).await.unwrap();
    let mut resumed = watch(&mut intents, put.revision).await.unwrap();
    let deleting = next(&mut resumed).await;
    assert!(deleting.kind() == Kind::Put && deleting.intent.unwrap().delete_time.is_some());
    let deleted = next(&mut resumed).await;
    let expected = v1::Intent { name: b.name, uid: b.uid, ..Default::default() };
    assert_eq!((deleted.kind(), deleted.intent), (Kind::Delete, Some(expected)));

    let keep = controller.store.revision().await.unwrap();
    controller.store.compact(keep).await.unwrap();
    let status = watch(&mut intents, bookmark.revision).await.err().unwrap();
    assert_eq!(status.code(), Code::OutOfRange);
    let info = status.get_error_details().error_info().unwrap().clone();
    assert_eq!(info.metadata["oldest_revision"], Revision(keep.0 - 1).to_string());
    assert_eq!(watch(&mut intents, i64::MAX).await.err().unwrap().code(), Code::OutOfRange);
    assert_eq!(fields(&watch(&mut intents, -1).await.err().unwrap()), ["resume_revision"]);
    assert_eq!(next(&mut watch(&mut intents, 0).await.unwrap()).await.kind(), Kind::Initial);

    // A shutdown ends the streams that are open, and says so.
    let mut open = watch(&mut intents, 0).await.unwrap();
    next(&mut open).await;
    controller.stop().await;
    let ended = loop {
        match open.message().await {
            Ok(Some(_)) => {}
            other => break other,
        }
    };
    assert_eq!(ended.unwrap_err().code(), Code::Unavailable);
}

#[tokio::test]
async fn health_and_reflection_are_served() {
    use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};
    use tonic_reflection::pb::v1::{
        ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
        server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
    };
    let directory = tempfile::tempdir().unwrap();
    let controller = Controller::start(directory.path()).await;
    let mut health = HealthClient::new(controller.channel().await);
    for service in ["", "weir.v1.IntentService", "weir.v1.FleetService", "weir.v1.AgentService"] {
        let answer = health.check(HealthCheckRequest { service: service.into() }).await.unwrap().into_inner();
        assert_eq!(answer.status(), ServingStatus::Serving, "{service}");
    }
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut reflection = ServerReflectionClient::new(controller.channel().await);
    let mut answers = reflection.server_reflection_info(tokio_stream::iter([request])).await.unwrap().into_inner();
    let Some(MessageResponse::ListServicesResponse(list)) = answers.message().await.unwrap().unwrap().message_response
    else {
        panic!("a list was expected");
    };
    let names: Vec<String> = list.service.into_iter().map(|service| service.name).collect();
    for expected in ["weir.v1.IntentService", "weir.v1.FleetService", "weir.v1.AgentService", "grpc.health.v1.Health"] {
        assert!(names.iter().any(|name| name == expected), "{expected} in {names:?}");
    }
    controller.stop().await;
}
