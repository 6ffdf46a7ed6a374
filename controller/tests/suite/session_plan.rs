//! From an intent to an agent and back: push, acknowledge, status, directives, questions.

use crate::common;

use common::{Agent, Controller, GONE_AFTER, Pushed, create, eventually, intent, update};
use weir_proto::v1::{self, session_request, session_response};

fn get(name: &str) -> v1::GetIntentRequest {
    v1::GetIntentRequest { name: format!("projects/default/intents/{name}") }
}

#[tokio::test]
async fn an_intent_is_pushed_acknowledged_and_its_status_shown() {
    let directory = tempfile::tempdir().unwrap();
    let controller = Controller::start(directory.path()).await;
    let mut intents = controller.intents().await;
    let mut agent = Agent::connect(&controller, "n1").await;
    assert!(matches!(agent.take().await, Pushed::Whole(_)));
    assert_eq!(agent.directive, v1::Directive::Active);

    let created = intents.create_intent(create(intent("a", &["n1"], 1 << 20))).await.unwrap().into_inner();
    assert_eq!((created.generation, created.uid.is_empty(), created.etag.is_empty()), (1, false, false));
    let status = created.status.unwrap();
    assert_eq!((status.nodes_matched, status.nodes_pending), (1, 1));
    match agent.next().await {
        Pushed::Delta(delta) => {
            let rule = &delta.apply[0];
            assert_eq!((rule.uid.as_str(), rule.generation, rule.rank), (created.uid.as_str(), 1, 0));
            assert_eq!(rule.create_revision, created.create_revision);
            assert_eq!(delta.fence.unwrap().revision, created.create_revision);
        }
        other => panic!("{other:?}"),
    }
    agent.ack(&[]).await;
    eventually(async || {
        let status = intents.get_intent(get("a")).await.unwrap().into_inner().status.unwrap();
        (status.nodes_applied == 1 && status.nodes_pending == 0).then_some(())
    })
    .await;

    // An intent elsewhere is none of its business, and another etag without another spec neither.
    intents.create_intent(create(intent("b", &["n2"], 1 << 20))).await.unwrap();
    let mut labelled = intent("a", &["n1"], 1 << 20);
    labelled.labels.insert("team".into(), "storage".into());
    let updated = intents.update_intent(update(labelled.clone())).await.unwrap().into_inner();
    assert_eq!(updated.generation, 1);
    assert_ne!(updated.etag, created.etag);
    agent.quiet().await;
    // The same again changes nothing at all.
    assert_eq!(intents.update_intent(update(labelled)).await.unwrap().into_inner().etag, updated.etag);

    let changed = intents.update_intent(update(intent("a", &["n1"], 2 << 20))).await.unwrap().into_inner();
    assert_eq!(changed.generation, 2);
    assert_eq!(changed.status.unwrap().nodes_pending, 1, "the old generation's answer is none");
    match agent.take().await {
        Pushed::Delta(delta) => assert_eq!((delta.apply.len(), delta.apply[0].generation), (1, 2)),
        other => panic!("{other:?}"),
    }

    // No longer chosen: taken away.
    intents.update_intent(update(intent("a", &["n7"], 2 << 20))).await.unwrap();
    match agent.take().await {
        Pushed::Delta(delta) => assert_eq!(delta.delete, [created.uid]),
        other => panic!("{other:?}"),
    }
    controller.stop().await;
}

#[tokio::test]
async fn newer_plans_coalesce_while_one_is_on_its_way() {
    let directory = tempfile::tempdir().unwrap();
    let controller = Controller::start(directory.path()).await;
    let mut intents = controller.intents().await;
    let mut agent = Agent::connect(&controller, "n1").await;
    agent.take().await;
    intents.create_intent(create(intent("a", &["n1"], 1 << 20))).await.unwrap();
    agent.next().await;
    for i in 2..20 {
        intents.update_intent(update(intent("a", &["n1"], i << 20))).await.unwrap();
    }
    agent.quiet().await;
    agent.ack(&[]).await;
    agent.take().await;
    assert_eq!(agent.rules.values().next().unwrap().generation, 19);
    agent.quiet().await;
    assert_eq!(agent.pushes, 3);
    controller.stop().await;
}

#[tokio::test]
async fn refused_plans_are_sent_whole_or_wait_and_the_session_stays() {
    let directory = tempfile::tempdir().unwrap();
    let controller = Controller::start(directory.path()).await;
    let (mut intents, mut fleet) = (controller.intents().await, controller.fleet().await);
    let mut agent = Agent::connect(&controller, "n1").await;
    agent.take().await;
    intents.create_intent(create(intent("a", &["n1"], 1 << 20))).await.unwrap();
    agent.next().await;
    let nack = |fence, reason: &str| {
        session_request::Message::Nack(v1::Nack { fence, reason: reason.into(), message: "no".into(), held: None })
    };
    agent.send(nack(agent.fence, "UnexpectedBase")).await;
    assert!(matches!(agent.next().await, Pushed::Whole(_)));
    agent.send(nack(agent.fence, "LowerFence")).await;
    let node = v1::GetNodeRequest { name: "nodes/n1".into() };
    let condition = eventually(async || {
        let node = fleet.get_node(node.clone()).await.unwrap().into_inner();
        node.conditions.into_iter().find(|condition| condition.r#type == "PlanRefused")
    })
    .await;
    assert_eq!(condition.reason, "LowerFence");
    agent.quiet().await;
    intents.update_intent(update(intent("a", &["n1"], 2 << 20))).await.unwrap();
    assert!(matches!(agent.take().await, Pushed::Whole(_)));
    eventually(async || {
        let node = fleet.get_node(node.clone()).await.unwrap().into_inner();
        node.conditions.is_empty().then_some(())
    })
    .await;
    controller.stop().await;
}

#[tokio::test]
async fn a_node_that_followed_another_store_is_asked_again_once_it_holds_nothing_of_it() {
    let directory = tempfile::tempdir().unwrap();
    let controller = Controller::start(directory.path()).await;
    let mut agent = Agent::connect(&controller, "n1").await;
    agent.next().await;
    let nack = v1::Nack { fence: agent.fence, reason: "OtherStore".into(), message: "no".into(), held: None };
    agent.send(session_request::Message::Nack(nack)).await;
    agent.quiet().await;
    let holds =
        |settings_held| session_request::Message::Status(v1::StatusUpdate { settings_held, ..Default::default() });
    for held in [3, 2, 2] {
        agent.send(holds(held)).await;
    }
    agent.quiet().await;
    agent.send(holds(0)).await;
    assert!(matches!(agent.take().await, Pushed::Whole(_)));
    for held in [1, 0] {
        agent.send(holds(held)).await;
    }
    agent.quiet().await;
    controller.stop().await;
}

#[tokio::test]
async fn pause_and_release_are_durable_and_the_stricter_holds() {
    let directory = tempfile::tempdir().unwrap();
    let controller = Controller::start(directory.path()).await;
    let mut fleet = controller.fleet().await;
    let mut agent = Agent::connect(&controller, "n1").await;
    agent.take().await;

    let name = || "nodes/n1".to_owned();
    let paused = fleet.pause_node(v1::PauseNodeRequest { name: name() }).await.unwrap().into_inner();
    agent.take().await;
    assert_eq!(agent.directive, v1::Directive::Paused);
    assert_eq!(agent.fence.unwrap().revision, paused.revision);
    let again = fleet.pause_node(v1::PauseNodeRequest { name: name() }).await.unwrap().into_inner();
    assert_eq!(again.revision, paused.revision);
    fleet.release_node(v1::ReleaseNodeRequest { name: "nodes/-".into() }).await.unwrap();
    agent.take().await;
    assert_eq!(agent.directive, v1::Directive::Released);
    fleet.resume_node(v1::ResumeNodeRequest { name: name() }).await.unwrap();
    agent.quiet().await;

    let missing = fleet.pause_node(v1::PauseNodeRequest { name: "nodes/n9".into() }).await.unwrap_err();
    assert_eq!(missing.code(), tonic::Code::NotFound);
    drop(agent);
    controller.stop().await;

    let controller = Controller::start(directory.path()).await;
    let mut fleet = controller.fleet().await;
    let mut agent = Agent::connect(&controller, "n1").await;
    agent.take().await;
    assert_eq!(agent.directive, v1::Directive::Released);
    let nodes = fleet.list_nodes(v1::ListNodesRequest::default()).await.unwrap().into_inner();
    assert_eq!(nodes.fleet_directive(), v1::Directive::Released);
    assert_eq!(nodes.nodes[0].conditions[0].r#type, "Released");
    fleet.resume_node(v1::ResumeNodeRequest { name: "nodes/-".into() }).await.unwrap();
    agent.take().await;
    assert_eq!(agent.directive, v1::Directive::Active);
    controller.stop().await;
}

#[tokio::test]
async fn what_is_not_built_is_said_on_the_intent_and_the_limits_beside_it_apply() {
    let directory = tempfile::tempdir().unwrap();
    let controller = Controller::start(directory.path()).await;
    let mut intents = controller.intents().await;
    let mut agent = Agent::connect(&controller, "n1").await;
    agent.take().await;
    let mut mixed = intent("a", &["n1"], 1 << 20);
    mixed.spec.as_mut().unwrap().controls.as_mut().unwrap().weight = Some(v1::Weight { weight: 5 });
    let mut nowhere = mixed.clone();
    nowhere.name = "projects/default/intents/b".into();
    let spec = nowhere.spec.as_mut().unwrap();
    spec.nodes.as_mut().unwrap().any_of[0].names = vec!["n9".into()];
    spec.workloads.as_mut().unwrap().any_of[0].namespaces = vec!["prod".into()];
    intents.create_intent(create(mixed)).await.unwrap();
    match agent.take().await {
        Pushed::Delta(delta) => {
            let controls = delta.apply[0].controls.as_ref().unwrap();
            assert!(controls.limits.is_some() && controls.weight.is_none());
        }
        other => panic!("{other:?}"),
    }
    let created = intents.create_intent(create(nowhere)).await.unwrap().into_inner();
    let reasons: Vec<String> = created.status.unwrap().conditions.into_iter().map(|c| c.reason).collect();
    assert_eq!(reasons, ["ControlNotImplemented", "SelectorNotImplemented"]);

    // With nothing left of it, the node has nothing to answer: that is a failure, not silence.
    let mut weight_alone = intent("c", &["n1"], 1 << 20);
    weight_alone.spec.as_mut().unwrap().controls =
        Some(v1::Controls { weight: Some(v1::Weight { weight: 5 }), ..Default::default() });
    intents.create_intent(create(weight_alone)).await.unwrap();
    eventually(async || {
        let status = intents.get_intent(get("c")).await.unwrap().into_inner().status.unwrap();
        (status.nodes_failed == 1).then_some(())
    })
    .await;
    agent.quiet().await;
    let mut fleet = controller.fleet().await;
    let request =
        v1::ListIntentNodeStatusesRequest { intent: "projects/default/intents/c".into(), ..Default::default() };
    let statuses = fleet.list_intent_node_statuses(request).await.unwrap().into_inner().statuses;
    assert_eq!(statuses[0].state(), v1::RuleState::Failed);
    assert_eq!(statuses[0].conditions[0].r#type, "NotImplemented");
    controller.stop().await;
}

#[tokio::test]
async fn questions_are_answered_by_the_agent_or_with_a_reason() {
    let directory = tempfile::tempdir().unwrap();
    let controller = Controller::start(directory.path()).await;
    let mut fleet = controller.fleet().await;
    let mut agent = Agent::connect(&controller, "n1").await;
    agent.take().await;
    let asked = tokio::spawn({
        let mut fleet = fleet.clone();
        async move {
            let request = v1::ListWorkloadsRequest { parent: "nodes/n1".into(), cgroup_path: "/d*".into() };
            fleet.list_workloads(request).await
        }
    });
    let Pushed::Query(query) = agent.next().await else { panic!("a question was expected") };
    let workload = |path: &str| v1::Workload { cgroup_path: path.into(), ..Default::default() };
    let reply = v1::Reply {
        query_id: query.query_id,
        done: true,
        answer: Some(v1::reply::Answer::Workloads(v1::WorkloadsReply {
            workloads: vec![workload("/demo"), workload("/db")],
        })),
        ..Default::default()
    };
    agent.send(session_request::Message::Reply(reply)).await;
    let workloads = asked.await.unwrap().unwrap().into_inner().workloads;
    assert_eq!(workloads.iter().map(|w| w.cgroup_path.as_str()).collect::<Vec<_>>(), ["/db", "/demo"]);

    // The agent goes away while it is asked.
    let asked = tokio::spawn({
        let mut fleet = fleet.clone();
        async move { fleet.explain(v1::ExplainRequest { node: "nodes/n1".into(), ..Default::default() }).await }
    });
    assert!(matches!(agent.next().await, Pushed::Query(_)));
    drop(agent);
    assert_eq!(asked.await.unwrap().unwrap_err().code(), tonic::Code::Unavailable);
    let away = fleet.explain(v1::ExplainRequest { node: "nodes/n1".into(), ..Default::default() }).await;
    assert_eq!(away.unwrap_err().code(), tonic::Code::Unavailable);
    let unknown = fleet.explain(v1::ExplainRequest { node: "nodes/n9".into(), ..Default::default() }).await;
    assert_eq!(unknown.unwrap_err().code(), tonic::Code::NotFound);
    let intent = "projects/default/intents/nosuch".to_owned();
    let request = v1::ExplainRequest { node: "nodes/n1".into(), intent: intent.clone(), ..Default::default() };
    let no_intent = fleet.explain(request).await.unwrap_err();
    assert!(no_intent.code() == tonic::Code::NotFound && no_intent.message().contains(&intent), "{no_intent}");

    let mut hello = Agent::hello("n1", "uid-n1", "2");
    hello.features.clear();
    let _old = Agent::connect_with(&controller, hello).await.unwrap();
    let lacking = fleet.explain(v1::ExplainRequest { node: "nodes/n1".into(), ..Default::default() }).await;
    assert_eq!(lacking.unwrap_err().code(), tonic::Code::Unimplemented);
    controller.stop().await;
}

#[tokio::test]
async fn the_three_numbers_come_together() {
    let directory = tempfile::tempdir().unwrap();
    let controller = Controller::start(directory.path()).await;
    let mut intents = controller.intents().await;
    let mut fleet = controller.fleet().await;
    intents.create_intent(create(intent("a", &["n*"], 1 << 20))).await.unwrap();
    let mut agent = Agent::connect(&controller, "n1").await;
    agent.take().await;
    let setting = async |fleet: &mut v1::fleet_service_client::FleetServiceClient<_>| {
        let request = v1::ListIntentNodeStatusesRequest { node: "nodes/n1".into(), ..Default::default() };
        let status = fleet.list_intent_node_statuses(request).await.unwrap().into_inner().statuses.remove(0);
        status.settings.into_iter().next().map(|setting| (setting, status.stale))
    };
    let (before, _) = eventually(async || setting(&mut fleet).await).await;
    assert!(before.achieved.is_none() && before.achieved_unknown.contains("no measurement"));

    let second = 1_000_000_000;
    let row = |at: u64, diskseq, bytes| v1::Measurement {
        cgroup_id: 42,
        device: Some(v1::DeviceId { major: 7, minor: 0, diskseq: Some(diskseq) }),
        source: v1::CounterSource::V1Throttle.into(),
        since_monotonic_ns: 0,
        at_monotonic_ns: at * second,
        read_bytes: bytes,
        reasons: vec![v1::ReasonTime {
            key: v1::LimitKey::Rbps.into(),
            reason: v1::ShortfallReason::OwnLimit.into(),
            nanoseconds: at * second,
        }],
        ..Default::default()
    };
    let batch = |node: &str, instance: &str, at: u64, rows| v1::ReportMeasurementsRequest {
        node: node.into(),
        instance: instance.into(),
        sent_monotonic_ns: at * second,
        measurements: rows,
    };
    let mut batches: Vec<v1::ReportMeasurementsRequest> = vec![
        // Garbage of all kinds first.
        batch("n1", "another", 1, vec![row(1, 3, 99 << 40)]),
        batch("n9", "1", 1, vec![row(1, 3, 99 << 40)]),
        batch("NO NAME", "1", 1, vec![]),
        batch("n1", "1", 1, vec![v1::Measurement::default(), row(1, 9, 5 << 40)]),
    ];
    batches.extend((1..=12).map(|at| batch("n1", "1", at, vec![row(at, 3, at << 20)])));
    let sent = batches.len();
    let mut receipts =
        controller.agents().await.report_measurements(tokio_stream::iter(batches)).await.unwrap().into_inner();
    let mut received = 0;
    while let Some(receipt) = receipts.message().await.unwrap() {
        received += 1;
        assert_eq!(receipt.received, received);
    }
    assert_eq!(usize::try_from(received).unwrap(), sent);

    let (with, stale) = setting(&mut fleet).await.unwrap();
    let achieved = with.achieved.unwrap();
    assert_eq!((achieved.per_second, achieved.window.unwrap().seconds), (f64::from(1 << 20), 10));
    assert_eq!(achieved.reason(), v1::ShortfallReason::OwnLimit);
    assert!(!stale && with.intended.is_some() && with.effective.is_some());
    drop(agent);
    eventually(async || setting(&mut fleet).await.filter(|(_, stale)| *stale)).await;
    controller.stop().await;
}

#[tokio::test]
async fn a_silent_agent_is_asked_and_then_stale() {
    let directory = tempfile::tempdir().unwrap();
    let controller = Controller::start_with(directory.path(), |options| {
        options.probe_after = std::time::Duration::from_millis(200);
        options.end_after = std::time::Duration::from_millis(900);
    })
    .await;
    let mut fleet = controller.fleet().await;
    let mut agent = Agent::connect(&controller, "n1").await;
    agent.take().await;
    // As long as it answers it stays.
    for _ in 0..8 {
        let Pushed::Query(query) = agent.next().await else { panic!("a question was expected") };
        let reply = v1::Reply { query_id: query.query_id, done: true, error: "no".into(), ..Default::default() };
        agent.send(session_request::Message::Reply(reply)).await;
    }
    let ended = loop {
        match agent.receive().await {
            Ok(Some(session_response::Message::Query(_))) => {}
            other => break other,
        }
    };
    assert_eq!(ended.unwrap_err().code(), tonic::Code::DeadlineExceeded);
    let node = eventually(async || {
        let node = fleet.get_node(v1::GetNodeRequest { name: "nodes/n1".into() }).await.unwrap().into_inner();
        (node.phase() == v1::NodePhase::Stale).then_some(node)
    })
    .await;
    assert_eq!(node.conditions[0].r#type, "Stale");
    assert!(node.last_contact_age.is_some());
    let gone = eventually(async || {
        let node = fleet.get_node(v1::GetNodeRequest { name: "nodes/n1".into() }).await.unwrap().into_inner();
        (node.phase() == v1::NodePhase::Gone).then_some(node)
    })
    .await;
    let age = std::time::Duration::try_from(gone.last_contact_age.unwrap()).unwrap();
    assert!(age >= GONE_AFTER, "{age:?}");
    assert!(gone.conditions.iter().any(|condition| condition.r#type == "Gone" && condition.message.contains("forget")));
    controller.stop().await;
}
