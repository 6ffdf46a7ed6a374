//! apply: what is created, updated, left alone, and refused.

use crate::mock::{Server, weirctl};
use weir_proto::v1;

pub const ONE: &str = "\
name: backup
spec:
  nodes: { anyOf: [{ all: true }] }
  workloads: { anyOf: [{ cgroupPath: /backup }] }
  devices: { anyOf: [{ kinds: [NVME] }] }
  controls:
    limits: { rbps: 10MiB }
";
pub const BACKUP: &str = "projects/default/intents/backup";

pub fn two(second_limit: &str) -> String {
    format!("{ONE}---\n{}", ONE.replace("name: backup", "name: second").replace("10MiB", second_limit))
}

#[test]
fn the_second_apply_of_the_same_file_writes_nothing() {
    let server = Server::start();
    let first = server.run_with(&["apply", "-f", "-"], ONE).good();
    assert_eq!(first, format!("created {BACKUP} (generation 1)\n"));
    // The controller filled in mode and scope meanwhile.
    assert_eq!(server.state().intents[BACKUP].spec.as_ref().unwrap().mode(), v1::Mode::Enforce);
    let second = server.run_with(&["apply", "-f", "-"], ONE).good();
    assert_eq!(second, format!("unchanged {BACKUP} (generation 1)\n"));
    assert_eq!(server.state().writes.len(), 1);
    let third = server.run_with(&["apply", "-f", "-"], &ONE.replace("10MiB", "20MiB")).good();
    assert_eq!(third, format!("updated {BACKUP} (generation 2)\n"));
    // Labels alone are a change too.
    let labelled = format!("{}labels: {{ a: b }}\n", ONE.replace("10MiB", "20MiB"));
    assert!(server.run_with(&["apply", "-f", "-"], &labelled).good().starts_with("updated"));
}

#[test]
fn a_dry_run_stores_nothing() {
    let server = Server::start();
    let text = server.run_with(&["apply", "--dry-run", "-f", "-"], ONE).good();
    assert_eq!(text, format!("created {BACKUP} (generation 1) (dry run: nothing stored)\n"));
    assert!(server.state().writes.is_empty() && server.state().intents.is_empty());
}

#[test]
fn several_files_and_documents_are_applied_in_order() {
    let server = Server::start();
    let dir = tempfile::tempdir().unwrap();
    let (first, third) = (dir.path().join("first.yaml"), dir.path().join("third.json"));
    std::fs::write(&first, two("1MB")).unwrap();
    std::fs::write(&third, r#"{"name": "third", "spec": {"nodes": {"anyOf": [{"all": true}]}}}"#).unwrap();
    let args = ["-p", "tenant", "apply", "-f", first.to_str().unwrap(), third.to_str().unwrap()];
    let text = server.run(&args).good();
    let expected: Vec<String> = ["backup", "second", "third"]
        .map(|name| format!("created projects/tenant/intents/{name} (generation 1)"))
        .to_vec();
    assert_eq!(text.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn where_one_document_is_wrong_none_is_stored() {
    let server = Server::start();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("m.yaml");
    // The first kind of fault weirctl finds itself; the second only the controller.
    for (limit, at, what) in [("10M", ":15:21", "MiB"), ("1kB", ":15:15", "below the floor"), ("-5", ":15:15", "floor")]
    {
        std::fs::write(&file, two(limit)).unwrap();
        let error = server.run(&["apply", "-f", file.to_str().unwrap()]).failed(3);
        assert!(error.contains(&format!("m.yaml{at}: ")) && error.contains(what), "{error}");
        assert!(error.contains("  15 |     limits: { rbps: "), "{error}");
        assert!(server.state().writes.is_empty());
    }
}

#[test]
fn every_field_that_the_controller_refuses_is_shown_where_it_stands() {
    let server = Server::start();
    let text = ONE.replace("anyOf: [{ all: true }]", "anyOf: []").replace("10MiB", "1B");
    let error = server.run_with(&["apply", "-f", "-"], &text).failed(3);
    assert!(error.starts_with("weirctl: INVALID_ARGUMENT: fields are invalid\n"), "{error}");
    assert!(error.contains("standard input:3:12: intent.spec.nodes.any_of: at least one term"), "{error}");
    assert!(error.contains("standard input:7:15: intent.spec.controls.limits.rbps.bytes_per_second: "), "{error}");
}

#[test]
fn faults_of_files_and_usage() {
    let server = Server::start();
    assert!(server.run(&["apply", "-f", "/nowhere/x.yaml"]).failed(3).contains("/nowhere/x.yaml: "));
    assert!(server.run_with(&["apply", "-f", "-"], "").failed(3).contains("no document"));
    assert!(server.run_with(&["apply", "-f", "-"], &format!("{ONE}---\n{ONE}")).failed(3).contains("twice"));
    assert!(server.run_with(&["apply", "-f", "-"], &ONE.replace("limits", "limit")).failed(3).contains(":7:5: "));
    for args in [&["apply"][..], &["frobnicate"], &["watch", "--for", "5parsecs"], &["delete", "node", "x"]] {
        assert_eq!(server.run(args).code, 2, "{args:?}");
    }
    assert!(server.run(&["--server", "ftp://x", "get", "nodes"]).failed(2).contains("http://"));
}

#[test]
fn a_change_in_between_is_not_overwritten() {
    let server = Server::start();
    server.run_with(&["apply", "-f", "-"], ONE).good();
    let old = server.run(&["get", "intent", "backup", "-o", "json"]).good();
    server.run_with(&["apply", "-f", "-"], &ONE.replace("10MiB", "20MiB")).good();
    // What was printed before carries the old etag.
    let error = server.run_with(&["apply", "-f", "-"], &old).failed(5);
    assert!(error.contains("ABORTED") && error.contains("etag: e2") && error.contains("hint: "), "{error}");
}

#[test]
fn what_get_prints_can_be_applied() {
    let server = Server::start();
    server.run_with(&["apply", "-f", "-"], &two("1MB")).good();
    for format in ["json", "yaml"] {
        let one = server.run(&["get", "intent", "backup", "-o", format]).good();
        let all = server.run(&["get", "intents", "-o", format]).good();
        for (text, count) in [(one, 1), (all, 2)] {
            let again = server.run_with(&["apply", "-f", "-"], &text).good();
            assert_eq!(again.matches("unchanged ").count(), count, "{text}\n{again}");
        }
    }
    let applied = server.run_with(&["apply", "-o", "json", "-f", "-"], ONE).good();
    assert_eq!(serde_json::from_str::<serde_json::Value>(&applied).unwrap()["intents"][0]["name"], BACKUP);
}

#[test]
fn without_a_controller() {
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let error = weirctl(&format!("http://127.0.0.1:{port}"), &["get", "nodes"], "").failed(6);
    assert!(error.contains("cannot reach a controller") && error.contains("hint: "), "{error}");
    // A manifest is checked before anybody is asked.
    let error = weirctl(&format!("http://127.0.0.1:{port}"), &["apply", "-f", "-"], "spec: {}").failed(3);
    assert!(error.contains("standard input:1:1"), "{error}");
}
