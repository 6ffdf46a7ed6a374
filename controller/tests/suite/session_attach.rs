//! Who may have a session, what a reconnect costs, and what survives a restart of the controller.

use crate::common;

use common::{Agent, Controller, Pushed, create, eventually, intent, update};
use std::time::Duration;

use tonic_types::StatusExt as _;
use weir_controller::store::Store as _;
use weir_proto::v1::{self, session_request};

#[tokio::test]
async fn two_agents_with_one_name() {
    let directory = tempfile::tempdir().unwrap();
    let controller = Controller::start(directory.path()).await;
    let mut first = Agent::connect(&controller, "n1").await;
    first.take().await;
    let refused = Agent::connect_with(&controller, Agent::hello("n1", "other-ledger", "1")).await.err().unwrap();
    assert_eq!(refused.code(), tonic::Code::AlreadyExists);
    assert!(refused.message().contains("uid-n1"), "{refused}");

    // The same ledger again: the newer stream replaces the older.
    let mut second = Agent::connect_with(&controller, Agent::hello("n1", "uid-n1", "2")).await.unwrap();
    assert_eq!(first.receive().await.unwrap_err().code(), tonic::Code::Aborted);
    second.take().await;

    // Once the first is gone, the name can move to another machine.
    drop(second);
    let mut fleet = controller.fleet().await;
    let mut third =
        eventually(async || Agent::connect_with(&controller, Agent::hello("n1", "other-ledger", "1")).await.ok()).await;
    third.take().await;
    eventually(async || {
        let node = fleet.get_node(v1::GetNodeRequest { name: "nodes/n1".into() }).await.unwrap().into_inner();
        (node.uid == "other-ledger").then_some(())
    })
    .await;
    controller.stop().await;
}

#[tokio::test]
async fn what_is_no_hello_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let controller = Controller::start(directory.path()).await;
    for (change, code) in [
        ((|hello: &mut v1::AgentHello| hello.node = "-".into()) as fn(&mut _), tonic::Code::InvalidArgument),
        (|hello| hello.node = "A B".into(), tonic::Code::InvalidArgument),
        (|hello| hello.node_uid.clear(), tonic::Code::InvalidArgument),
        (|hello| hello.instance = "x".repeat(1000), tonic::Code::InvalidArgument),
        (|hello| hello.facts = None, tonic::Code::InvalidArgument),
        (|hello| hello.contract_version = 0, tonic::Code::FailedPrecondition),
    ] {
        let mut hello = Agent::hello("n1", "u", "1");
        change(&mut hello);
        assert_eq!(Agent::connect_with(&controller, hello).await.err().unwrap().code(), code);
    }
    let first = v1::SessionRequest { message: Some(session_request::Message::Ack(v1::Ack::default())) };
    let stream = tokio_stream::iter([first]);
    let mut answers = controller.agents().await.session(stream).await.unwrap().into_inner();
    assert_eq!(answers.message().await.unwrap_err().code(), tonic::Code::InvalidArgument);
    controller.stop().await;
}

#[tokio::test]
async fn a_session_over_its_age_ends_once_nothing_is_on_its_way() {
    let directory = tempfile::tempdir().unwrap();
    let controller = Controller::start_with(directory.path(), |sessions| {
        sessions.max_age = Some(Duration::from_secs(1));
        sessions.age_grace = Duration::from_secs(60);
    })
    .await;
    let mut agent = Agent::connect(&controller, "n1").await;
    // The plan is on its way until it is acknowledged, however old the session.
    agent.next().await;
    let waited = tokio::time::timeout(Duration::from_millis(2500), agent.receive()).await;
    assert!(waited.is_err(), "it ended with a plan on its way: {waited:?}");
    agent.ack(&[]).await;
    let status = agent.receive().await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::Unavailable);
    let info = status.get_details_error_info().expect("google.rpc.ErrorInfo");
    assert_eq!(info.reason, weir_proto::RECONNECT_ELSEWHERE);
    controller.stop().await;
}

#[tokio::test]
async fn a_session_over_its_age_waits_no_longer_than_its_grace() {
    let directory = tempfile::tempdir().unwrap();
    let controller = Controller::start_with(directory.path(), |sessions| {
        sessions.max_age = Some(Duration::from_secs(1));
        sessions.age_grace = Duration::from_millis(500);
    })
    .await;
    let mut agent = Agent::connect(&controller, "n1").await;
    agent.next().await;
    let status = agent.receive().await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::Unavailable);
    controller.stop().await;
}

#[tokio::test]
async fn a_restart_forgets_nothing_and_a_reconnect_writes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let controller = Controller::start(directory.path()).await;
    let mut intents = controller.intents().await;
    let mut agent = Agent::connect(&controller, "n1").await;
    agent.take().await;
    intents.create_intent(create(intent("a", &["n1"], 1 << 20))).await.unwrap();
    agent.take().await;
    let revision = controller.revision().await;
    let held = agent.fence;
    controller.stop().await;
    drop(agent);

    let controller = Controller::start(directory.path()).await;
    let mut fleet = controller.fleet().await;
    let node = fleet.get_node(v1::GetNodeRequest { name: "nodes/n1".into() }).await.unwrap().into_inner();
    assert_eq!((node.phase(), node.facts), (v1::NodePhase::Stale, None));
    // The same revision, and facts counted anew: the fence must rise all the same.
    let mut hello = Agent::hello("n1", "uid-n1", "2");
    hello.fence = held;
    let mut agent = Agent::connect_with(&controller, hello).await.unwrap();
    assert!(matches!(agent.take().await, Pushed::Whole(_)));
    assert_eq!(agent.rules.len(), 1);
    assert_eq!(controller.revision().await, revision, "nothing changed, nothing is written");
    agent.quiet().await;
    let node = fleet.get_node(v1::GetNodeRequest { name: "nodes/n1".into() }).await.unwrap().into_inner();
    assert_eq!(node.phase(), v1::NodePhase::Connected);
    controller.stop().await;
}

#[tokio::test]
async fn the_fence_counts_sessions_and_never_comes_to_its_end() {
    let directory = tempfile::tempdir().unwrap();
    let controller = Controller::start(directory.path()).await;
    let mut agent = Agent::connect(&controller, "n1").await;
    agent.take().await;
    let first = agent.fence.unwrap();
    for session in 1..=100 {
        let mut hello = Agent::hello("n1", "uid-n1", "1");
        hello.fence = agent.fence;
        // As agents of contract 1 counted them: from the fence that they hold.
        hello.facts.as_mut().unwrap().facts_generation = agent.fence.unwrap().facts_generation + 1;
        agent = Agent::connect_with(&controller, hello).await.unwrap();
        agent.take().await;
        let expected = v1::Fence { facts_generation: first.facts_generation + session, ..first };
        assert_eq!(agent.fence, Some(expected));
    }
    // A ledger from a time when each session doubled it.
    let mut hello = Agent::hello("n1", "uid-n1", "1");
    hello.fence = Some(v1::Fence { facts_generation: i64::MAX, ..first });
    let mut agent = Agent::connect_with(&controller, hello).await.unwrap();
    agent.take().await;
    let healed = agent.fence.unwrap();
    assert!(healed.revision > first.revision && healed.facts_generation == 1, "{healed:?}");
    let node = v1::GetNodeRequest { name: "nodes/n1".into() };
    let node = controller.fleet().await.get_node(node).await.unwrap().into_inner();
    assert!(!node.conditions.iter().any(|condition| condition.r#type == "PlanRefused"), "{node:?}");
    controller.stop().await;
}

#[tokio::test]
async fn an_agent_ahead_of_a_store_that_went_back_is_sent_nothing_until_the_epoch_is_raised() {
    let directory = tempfile::tempdir().unwrap();
    let controller = Controller::start(directory.path()).await;
    let mut hello = Agent::hello("n1", "uid-n1", "1");
    let far = controller.revision().await + 3;
    hello.fence = Some(v1::Fence { store_epoch: 1, revision: far.try_into().unwrap(), facts_generation: 1 });
    let mut agent = Agent::connect_with(&controller, hello.clone()).await.unwrap();
    let refused = async |controller: &Controller| {
        let request = v1::GetNodeRequest { name: "nodes/n1".into() };
        let node = controller.fleet().await.get_node(request).await.unwrap().into_inner();
        node.conditions.into_iter().find(|condition| condition.r#type == "PlanRefused")
    };
    eventually(async || refused(&controller).await).await;

    // The revision catches up: that heals nothing, not over reconnects and restarts either.
    let mut intents = controller.intents().await;
    for i in 0..8 {
        intents.create_intent(create(intent(&format!("i{i}"), &["n1"], 1 << 20))).await.unwrap();
    }
    assert!(controller.revision().await > far);
    agent.quiet().await;
    drop(agent);
    controller.stop().await;
    let controller = Controller::start(directory.path()).await;
    hello.instance = "2".into();
    let mut agent = Agent::connect_with(&controller, hello.clone()).await.unwrap();
    agent.quiet().await;
    let condition = refused(&controller).await.expect("it is said");
    assert!(condition.reason == "LowerFence" && condition.message.contains("raise-epoch"), "{condition:?}");

    controller.store.raise_epoch(5).await.unwrap();
    drop(agent);
    controller.stop().await;
    let controller = Controller::start(directory.path()).await;
    hello.instance = "3".into();
    let mut agent = Agent::connect_with(&controller, hello).await.unwrap();
    assert!(matches!(agent.take().await, Pushed::Whole(_)));
    assert_eq!(agent.rules.len(), 8);
    assert_eq!(refused(&controller).await, None);
    controller.stop().await;
}

#[tokio::test]
async fn other_labels_are_durable_before_their_plan() {
    let directory = tempfile::tempdir().unwrap();
    let controller = Controller::start(directory.path()).await;
    let mut intents = controller.intents().await;
    let labelled =
        |value: &str| v1::NodeFacts { labels: [("disk".to_owned(), value.to_owned())].into(), ..Default::default() };
    let mut nvme = intent("a", &[], 1 << 20);
    nvme.spec.as_mut().unwrap().nodes.as_mut().unwrap().any_of =
        vec![v1::NodeTerm { match_labels: labelled("nvme").labels, ..Default::default() }];
    intents.create_intent(create(nvme)).await.unwrap();
    let mut agent = Agent::connect(&controller, "n1").await;
    agent.take().await;
    assert!(agent.rules.is_empty());
    let facts = v1::FactsUpdate { facts_generation: 2, facts: Some(labelled("nvme")) };
    agent.send(session_request::Message::Facts(facts)).await;
    agent.take().await;
    assert_eq!((agent.rules.len(), agent.fence.unwrap().facts_generation), (1, 2));
    // Facts that change no plan push none.
    let mut more = labelled("nvme");
    more.kernel_release = "6.1".into();
    agent.send(session_request::Message::Facts(v1::FactsUpdate { facts_generation: 3, facts: Some(more) })).await;
    agent.quiet().await;
    let facts = v1::FactsUpdate { facts_generation: 4, facts: Some(labelled("hdd")) };
    agent.send(session_request::Message::Facts(facts)).await;
    agent.next().await;
    assert!(agent.rules.is_empty());
    // It leaves before it has acknowledged: by its present labels it holds nothing, by its earlier ones it may.
    drop(agent);
    let deleted = v1::DeleteIntentRequest { name: "projects/default/intents/a".into(), ..Default::default() };
    let mut fleet = controller.fleet().await;
    eventually(async || {
        let node = fleet.get_node(v1::GetNodeRequest { name: "nodes/n1".into() }).await.unwrap().into_inner();
        (node.phase() == v1::NodePhase::Stale).then_some(())
    })
    .await;
    let deleting = intents.delete_intent(deleted).await.unwrap().into_inner();
    assert_eq!(deleting.status.unwrap().nodes_holding, ["nodes/n1"]);
    controller.stop().await;
}

#[tokio::test]
async fn an_agent_that_never_says_hello_is_sent_away() {
    let directory = tempfile::tempdir().unwrap();
    let controller = Controller::start_with(directory.path(), |options| {
        options.hello_within = std::time::Duration::from_millis(100);
    })
    .await;
    let (_keep, messages) = tokio::sync::mpsc::channel(1);
    let stream = tokio_stream::wrappers::ReceiverStream::new(messages);
    let mut answers = controller.agents().await.session(stream).await.unwrap().into_inner();
    assert_eq!(answers.message().await.unwrap_err().code(), tonic::Code::DeadlineExceeded);
    controller.stop().await;
}

#[tokio::test]
async fn many_nodes_get_only_what_is_theirs() {
    let directory = tempfile::tempdir().unwrap();
    let controller = Controller::start(directory.path()).await;
    let mut intents = controller.intents().await;
    let mut agents = Vec::new();
    for i in 0..8 {
        let mut agent = Agent::connect(&controller, &format!("n{i}")).await;
        agent.take().await;
        agents.push(agent);
    }
    intents.create_intent(create(intent("one", &["n3"], 1 << 20))).await.unwrap();
    agents[3].take().await;
    intents.create_intent(create(intent("all", &["n*"], 1 << 20))).await.unwrap();
    intents.update_intent(update(intent("one", &["n4"], 1 << 20))).await.unwrap();
    for (i, agent) in agents.iter_mut().enumerate() {
        while agent.rules.len() != if i == 4 { 2 } else { 1 }
            || agent.rules.values().all(|r| !r.intent.ends_with("all"))
        {
            agent.take().await;
        }
    }
    controller.stop().await;
}
