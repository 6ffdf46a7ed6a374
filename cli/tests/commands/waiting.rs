//! `--wait`, and delete.

use weir_proto::v1;

use crate::{
    apply::{BACKUP, ONE, two},
    mock::Server,
};

#[test]
fn waiting_until_every_node_has_applied() {
    let server = Server::start();
    server.state().looks_until = 2;
    server.state().becomes = v1::IntentStatus { nodes_matched: 2, nodes_applied: 2, ..Default::default() };
    let text = server.run_with(&["apply", "--wait", "-f", "-"], ONE).good();
    assert!(text.ends_with(&format!("applied {BACKUP} on 2 nodes\n")), "{text}");
    server.state().becomes = v1::IntentStatus {
        nodes_matched: 4,
        nodes_applied: 2,
        nodes_no_match: 1,
        nodes_suspended: 1,
        ..Default::default()
    };
    let text = server.run_with(&["apply", "--wait", "-f", "-"], ONE).good();
    assert!(text.contains(&format!("applied {BACKUP} on 2 nodes; 1 node with nothing to apply it to")), "{text}");
    assert!(text.contains("; 1 node paused or released"), "{text}");
    let json = server.run_with(&["apply", "--wait", "-o", "json", "-f", "-"], ONE).good();
    assert_eq!(serde_json::from_str::<serde_json::Value>(&json).unwrap()["intents"][0]["status"]["nodesApplied"], 2);
}

#[test]
fn waiting_tells_which_node_failed_and_why() {
    let server = Server::start();
    let write = v1::KernelWrite {
        file: "/sys/fs/cgroup/backup/io.max".to_owned(),
        value: "7:0 rbps=10485760".to_owned(),
        errno: 19,
        errno_name: "ENODEV".to_owned(),
        ..Default::default()
    };
    let condition = v1::Condition {
        r#type: "WriteFailed".to_owned(),
        status: v1::ConditionStatus::True.into(),
        reason: "KernelRefused".to_owned(),
        message: "the kernel refused it".to_owned(),
        detail: Some(v1::condition::Detail::KernelWrite(write)),
        ..Default::default()
    };
    server.state().statuses = vec![v1::IntentNodeStatus {
        intent: BACKUP.to_owned(),
        node: "nodes/n1".to_owned(),
        state: v1::RuleState::Failed.into(),
        conditions: vec![condition],
        ..Default::default()
    }];
    server.state().becomes =
        v1::IntentStatus { nodes_matched: 2, nodes_applied: 1, nodes_failed: 1, ..Default::default() };
    let error = server.run_with(&["apply", "--wait", "-f", "-"], ONE).failed(7);
    for part in ["n1: failed", "WriteFailed (KernelRefused)", "io.max", "7:0 rbps=10485760", "ENODEV"] {
        assert!(error.contains(part), "{part}: {error}");
    }
}

#[test]
fn waiting_ends_with_the_time() {
    let server = Server::start();
    let none = server.run_with(&["apply", "--wait", "--timeout", "300ms", "-f", "-"], ONE).failed(8);
    assert!(none.contains("no node matches"), "{none}");
    server.state().becomes =
        v1::IntentStatus { nodes_matched: 2, nodes_applied: 1, nodes_pending: 1, nodes_stale: 1, ..Default::default() };
    let late = server.run_with(&["apply", "--wait", "--timeout", "300ms", "-f", "-"], ONE).failed(8);
    assert!(late.contains("1 of 2 nodes have not answered (1 out of contact)"), "{late}");
}

#[test]
fn a_controller_that_is_away_for_a_moment_is_waited_for() {
    let server = Server::start();
    server.run_with(&["apply", "-f", "-"], ONE).good();
    server.state().deleting_looks_refused = 2;
    let text = server.run(&["delete", "intent", "backup", "--wait"]).good();
    assert_eq!(text, format!("deleting {BACKUP}\ngone {BACKUP}\n"));
    assert_eq!(server.state().deleting_looks_refused, 0);
    // One that stays away is told as such.
    server.run_with(&["apply", "-f", "-"], ONE).good();
    server.state().deleting_looks_refused = 1000;
    let error = server.run(&["delete", "intent", "backup", "--wait", "--timeout", "300ms"]).failed(6);
    assert!(error.contains("UNAVAILABLE: restarting"), "{error}");
}

#[test]
fn deleting() {
    let server = Server::start();
    let manifest = two("1MB");
    server.run_with(&["apply", "-f", "-"], &manifest).good();
    // What is missing is told, the rest is deleted nevertheless.
    let error = server.run(&["delete", "intent", "missing", "backup", "--force", "--wait"]).failed(4);
    assert!(error.contains("NOT_FOUND") && error.contains("intents/missing"), "{error}");
    assert!(server.state().writes.contains(&format!("delete by force {BACKUP}")));
    assert!(!server.state().intents.contains_key(BACKUP));
    // By manifest; one that never goes.
    server.state().deleted_after = None;
    server.state().becomes.nodes_holding = vec!["nodes/n9".to_owned()];
    let text = manifest.replace("name: backup", "name: second-too");
    server.run_with(&["apply", "-f", "-"], &text).good();
    let error = server.run_with(&["delete", "--wait", "--timeout", "300ms", "-f", "-"], &text).failed(8);
    assert!(error.contains("still held by nodes/n9") && error.contains("weirctl forget"), "{error}");
}
