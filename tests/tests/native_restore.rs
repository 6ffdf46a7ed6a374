//! A store that is lost, and one that is restored: what agents do about each.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    reason = "a test fails by panicking, and speaks to a person"
)]

use std::{
    path::Path,
    process::{Command, Output},
};

use weir_proto::v1;
use weir_tests::{
    fleet::{Clients, eventually},
    process::binary,
    require,
    rig::{Rig, SOON},
};

const LIMIT: u64 = 7 << 20;

/// `weir-controller store ...` on a store of the rig.
fn store(rig: &Rig, name: &str, args: &[&str]) -> Output {
    let path = rig.dir().join(name);
    Command::new(binary("weir-controller")).arg("--store").arg(path).arg("store").args(args).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

async fn node_condition(rig: &Rig, kind: &str) -> Option<v1::Condition> {
    let mut clients = Clients::connect(&rig.address).await.ok()?;
    let node = clients.fleet.get_node(v1::GetNodeRequest { name: "nodes/n1".into() }).await.ok()?.into_inner();
    node.conditions.into_iter().find(|condition| condition.r#type == kind)
}

async fn start_with(rig: &mut Rig, copy: Option<&Path>) {
    let live = rig.dir().join("store.redb");
    std::fs::remove_file(&live).unwrap();
    if let Some(copy) = copy {
        std::fs::copy(copy, &live).unwrap();
    }
    rig.start_controller();
    rig.clients = Clients::connect(&rig.address).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_store_releases_nothing_and_a_restored_one_is_followed() {
    if !require::met("a_lost_store_releases_nothing_and_a_restored_one_is_followed", &require::throttle()) {
        return;
    }
    let mut rig = Rig::new("restore").await;
    rig.tree.child("a").unwrap();
    let intent = rig.read_limit("kept", "a", Some(LIMIT.try_into().unwrap()));
    rig.create(intent).await;
    rig.kernel_holds("a", Some(LIMIT)).await;

    let busy = store(&rig, "store.redb", &["backup", "-"]);
    assert!(!busy.status.success() && said(&busy).contains("in use"), "{}", said(&busy));
    assert!(rig.controller.take().unwrap().stop());
    let backup = rig.dir().join("backup").display().to_string();
    let done = store(&rig, "store.redb", &["backup", &backup]);
    assert!(done.status.success(), "{}", said(&done));
    let again = store(&rig, "store.redb", &["backup", &backup]);
    assert!(!again.status.success() && said(&again).contains("exists"), "never over a backup: {}", said(&again));
    let absent = store(&rig, "nothing.redb", &["raise-epoch"]);
    assert!(!absent.status.success() && !rig.dir().join("nothing.redb").exists(), "{}", said(&absent));

    // The store is gone, and a controller began with an empty one: nobody said that the limits are to go.
    start_with(&mut rig, None).await;
    let refused =
        eventually("the plan of another store is refused", SOON, || node_condition(&rig, "PlanRefused")).await;
    assert_eq!(refused.reason, "OtherStore");
    assert!(refused.message.contains("raise-epoch"), "the remedy is named: {}", refused.message);
    assert_eq!(rig.kernel_rbps("a"), Some(LIMIT));
    assert!(rig.controller.take().unwrap().stop());

    let restored = store(&rig, "restored.redb", &["restore", &backup]);
    assert!(restored.status.success(), "{}", said(&restored));
    let full = store(&rig, "restored.redb", &["restore", &backup]);
    assert!(!full.status.success() && said(&full).contains("holds"), "{}", said(&full));
    let restored = rig.dir().join("restored.redb");
    start_with(&mut rig, Some(&restored)).await;
    rig.reported("kept", "applied", |status| status.state == i32::from(v1::RuleState::Applied) && !status.stale).await;
    assert!(node_condition(&rig, "PlanRefused").await.is_none());
    assert_eq!(rig.kernel_rbps("a"), Some(LIMIT));
    rig.delete("kept").await;
    assert_eq!(rig.kernel_rbps("a"), None, "the restored store governs");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_that_was_released_follows_the_next_installation() {
    if !require::met("a_fleet_that_was_released_follows_the_next_installation", &require::throttle()) {
        return;
    }
    let mut rig = Rig::new("reinstall").await;
    for child in ["a", "b"] {
        rig.tree.child(child).unwrap();
    }
    let intent = rig.read_limit("first", "a", Some(LIMIT.try_into().unwrap()));
    rig.create(intent).await;
    rig.kernel_holds("a", Some(LIMIT)).await;
    rig.clients.fleet.release_node(v1::ReleaseNodeRequest { name: "nodes/-".into() }).await.unwrap();
    rig.kernel_holds("a", None).await;

    // Its store goes, and the next one is empty; the agent's state stays on the node.
    assert!(rig.controller.take().unwrap().stop());
    assert!(rig.agent.take().unwrap().stop());
    start_with(&mut rig, None).await;
    rig.start_agent();
    let intent = rig.read_limit("second", "b", Some(LIMIT.try_into().unwrap()));
    rig.create(intent).await;
    rig.kernel_holds("b", Some(LIMIT)).await;
    assert_eq!(rig.kernel_rbps("a"), None);
    assert!(node_condition(&rig, "PlanRefused").await.is_none());
    rig.delete("second").await;
    assert_eq!(rig.kernel_rbps("b"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_copy_of_the_store_is_followed_once_its_epoch_is_raised() {
    if !require::met("an_older_copy_of_the_store_is_followed_once_its_epoch_is_raised", &require::throttle()) {
        return;
    }
    let mut rig = Rig::new("rollback").await;
    rig.tree.child("a").unwrap();
    assert!(rig.controller.take().unwrap().stop());
    let copy = rig.dir().join("copy");
    std::fs::copy(rig.dir().join("store.redb"), &copy).unwrap();
    rig.start_controller();
    let intent = rig.read_limit("later", "a", Some(LIMIT.try_into().unwrap()));
    rig.clients = Clients::connect(&rig.address).await.unwrap();
    rig.create(intent).await;
    rig.kernel_holds("a", Some(LIMIT)).await;
    assert!(rig.controller.take().unwrap().stop());

    start_with(&mut rig, Some(&copy)).await;
    let refused = eventually("an older state is refused", SOON, || node_condition(&rig, "PlanRefused")).await;
    assert_eq!(refused.reason, "LowerFence");
    assert!(refused.message.contains("raise-epoch"), "the remedy is named: {}", refused.message);
    assert_eq!(rig.kernel_rbps("a"), Some(LIMIT));
    assert!(rig.controller.take().unwrap().stop());

    let raised = store(&rig, "store.redb", &["raise-epoch"]);
    assert!(raised.status.success(), "{}", said(&raised));
    rig.start_controller();
    rig.kernel_holds("a", None).await;
    assert!(node_condition(&rig, "PlanRefused").await.is_none());
}
