//! Deletion: listed until no node can hold the intent, then gone.

use crate::common;

use common::{Agent, Controller, create, eventually, intent, update};
use tonic::{Code, transport::Channel};
use weir_proto::v1::{self, intent_service_client::IntentServiceClient};

fn name(id: &str) -> String {
    format!("projects/default/intents/{id}")
}

fn delete(id: &str) -> v1::DeleteIntentRequest {
    v1::DeleteIntentRequest { name: name(id), ..Default::default() }
}

async fn holding(intents: &mut IntentServiceClient<Channel>, id: &str) -> Vec<String> {
    let got = intents.get_intent(v1::GetIntentRequest { name: name(id) }).await.unwrap().into_inner();
    got.status.unwrap().nodes_holding
}

async fn gone(intents: &mut IntentServiceClient<Channel>, id: &str) {
    eventually(async || {
        let got = intents.get_intent(v1::GetIntentRequest { name: name(id) }).await;
        got.err().filter(|status| status.code() == Code::NotFound).map(drop)
    })
    .await;
}

async fn stays(intents: &mut IntentServiceClient<Channel>, id: &str) {
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    intents.get_intent(v1::GetIntentRequest { name: name(id) }).await.unwrap();
}

async fn away(controller: &Controller, node: &str) {
    let mut fleet = controller.fleet().await;
    eventually(async || {
        let request = v1::GetNodeRequest { name: format!("nodes/{node}") };
        let node = fleet.get_node(request).await.unwrap().into_inner();
        (node.phase() == v1::NodePhase::Stale).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_connected_node_holds_until_it_has_put_back() {
    let directory = tempfile::tempdir().unwrap();
    let controller = Controller::start(directory.path()).await;
    let mut intents = controller.intents().await;
    let created = intents.create_intent(create(intent("a", &["n1"], 1 << 20))).await.unwrap().into_inner();
    let mut agent = Agent::connect(&controller, "n1").await;
    agent.take().await;
    let deleting = intents.delete_intent(delete("a")).await.unwrap().into_inner();
    let status = deleting.status.unwrap();
    assert_eq!(status.state(), v1::IntentState::Deleting);
    assert_eq!((status.nodes_holding.as_slice(), deleting.delete_time.is_some()), (&["nodes/n1".to_owned()][..], true));
    assert!(status.conditions.iter().any(|condition| condition.r#type == "Deleting"));

    // The name is not free, nor can it be changed; asking again is no error.
    let refused = intents.create_intent(create(intent("a", &["n1"], 1 << 20))).await.unwrap_err();
    assert_eq!((refused.code(), refused.message().contains("being deleted")), (Code::AlreadyExists, true));
    let refused = intents.update_intent(update(intent("a", &["n1"], 2 << 20))).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert_eq!(intents.delete_intent(delete("a")).await.unwrap().into_inner().etag, deleting.etag);

    // The plan without it, but a setting that could not be put back yet.
    agent.next().await;
    assert!(agent.rules.is_empty());
    stays(&mut intents, "a").await;
    agent.ack(std::slice::from_ref(&created.uid)).await;
    stays(&mut intents, "a").await;
    assert_eq!(holding(&mut intents, "a").await, ["nodes/n1"]);
    agent.status(&[]).await;
    gone(&mut intents, "a").await;

    let again = intents.create_intent(create(intent("a", &["n1"], 1 << 20))).await.unwrap().into_inner();
    assert_ne!(again.uid, created.uid);
    controller.stop().await;
}

#[tokio::test]
async fn without_any_node_it_is_gone_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let controller = Controller::start(directory.path()).await;
    let mut intents = controller.intents().await;
    let mut agent = Agent::connect(&controller, "n1").await;
    agent.take().await;
    intents.create_intent(create(intent("a", &["n2"], 1 << 20))).await.unwrap();
    intents.delete_intent(delete("a")).await.unwrap();
    gone(&mut intents, "a").await;
    assert_eq!(intents.delete_intent(delete("a")).await.unwrap_err().code(), Code::NotFound);
    controller.stop().await;
}

#[tokio::test]
async fn an_offline_node_holds_until_it_returns_also_over_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let controller = Controller::start(directory.path()).await;
    let mut intents = controller.intents().await;
    intents.create_intent(create(intent("a", &["n1"], 1 << 20))).await.unwrap();
    let mut agent = Agent::connect(&controller, "n1").await;
    agent.take().await;
    let held = agent.fence;
    drop(agent);
    away(&controller, "n1").await;
    // By its present selector the intent has nothing to do with n1.
    intents.update_intent(update(intent("a", &["n2"], 1 << 20))).await.unwrap();
    intents.delete_intent(delete("a")).await.unwrap();
    stays(&mut intents, "a").await;
    controller.stop().await;

    let controller = Controller::start(directory.path()).await;
    let mut intents = controller.intents().await;
    assert_eq!(holding(&mut intents, "a").await, ["nodes/n1"]);
    stays(&mut intents, "a").await;
    let mut hello = Agent::hello("n1", "uid-n1", "1");
    hello.fence = held;
    let mut agent = Agent::connect_with(&controller, hello).await.unwrap();
    agent.next().await;
    stays(&mut intents, "a").await;
    assert!(agent.rules.is_empty());
    agent.ack(&[]).await;
    gone(&mut intents, "a").await;
    controller.stop().await;
}

#[tokio::test]
async fn a_node_that_let_go_before_it_left_holds_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let controller = Controller::start(directory.path()).await;
    let mut intents = controller.intents().await;
    intents.create_intent(create(intent("a", &["n*"], 1 << 20))).await.unwrap();
    let mut first = Agent::connect(&controller, "n1").await;
    first.take().await;
    let mut second = Agent::connect(&controller, "n2").await;
    second.take().await;
    intents.delete_intent(delete("a")).await.unwrap();
    first.take().await;
    eventually(async || (holding(&mut intents, "a").await == ["nodes/n2"]).then_some(())).await;
    drop(first);
    away(&controller, "n1").await;
    assert_eq!(holding(&mut intents, "a").await, ["nodes/n2"]);
    second.take().await;
    gone(&mut intents, "a").await;
    controller.stop().await;
}

#[tokio::test]
async fn forgetting_the_node_or_force_end_the_wait() {
    let directory = tempfile::tempdir().unwrap();
    let controller = Controller::start(directory.path()).await;
    let (mut intents, mut fleet) = (controller.intents().await, controller.fleet().await);
    for id in ["a", "b"] {
        intents.create_intent(create(intent(id, &["n*"], 1 << 20))).await.unwrap();
    }
    let mut agent = Agent::connect(&controller, "n1").await;
    agent.take().await;
    let forget = v1::ForgetNodeRequest { name: "nodes/n1".into() };
    let refused = fleet.forget_node(forget.clone()).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    let held = agent.fence;
    drop(agent);
    away(&controller, "n1").await;

    intents.delete_intent(delete("a")).await.unwrap();
    stays(&mut intents, "a").await;
    let forced = intents.delete_intent(v1::DeleteIntentRequest { force: true, ..delete("a") }).await.unwrap();
    assert!(forced.into_inner().delete_time.is_some());
    let missing = intents.get_intent(v1::GetIntentRequest { name: name("a") }).await.unwrap_err();
    assert_eq!(missing.code(), Code::NotFound);

    intents.delete_intent(delete("b")).await.unwrap();
    stays(&mut intents, "b").await;
    fleet.forget_node(forget.clone()).await.unwrap();
    gone(&mut intents, "b").await;
    assert_eq!(fleet.forget_node(forget).await.unwrap_err().code(), Code::NotFound);
    assert!(fleet.list_nodes(v1::ListNodesRequest::default()).await.unwrap().into_inner().nodes.is_empty());

    // When it returns, its whole plan says what it is to put back.
    let mut hello = Agent::hello("n1", "uid-n1", "1");
    hello.fence = held;
    let mut agent = Agent::connect_with(&controller, hello).await.unwrap();
    agent.take().await;
    assert!(agent.rules.is_empty());
    controller.stop().await;
}
