//! Nodes, the brake, explain, watch, and what needs no controller.

use std::io::Read as _;

use tonic_types::StatusExt as _;
use weir_proto::{Duration, v1};

use crate::mock::{Server, command, weirctl};

const MIB_10: u64 = 10 << 20;

fn seconds(seconds: i64) -> Option<Duration> {
    Some(Duration { seconds, nanos: 0 })
}

fn finite(value: u64) -> Option<v1::LimitValue> {
    Some(v1::LimitValue { value: Some(v1::limit_value::Value::Finite(value)) })
}

fn setting() -> v1::SettingStatus {
    v1::SettingStatus {
        cgroup_path: "/backup".to_owned(),
        device: Some(v1::DeviceId { major: 259, minor: 3, diskseq: Some(7) }),
        device_name: "nvme0n1".to_owned(),
        key: v1::LimitKey::Rbps.into(),
        intended: finite(MIB_10),
        effective: finite(MIB_10),
        achieved: Some(v1::Achieved {
            per_second: 10_380_902.4,
            window: seconds(5),
            reason: v1::ShortfallReason::OwnLimit.into(),
            ..Default::default()
        }),
        file: "/sys/fs/cgroup/backup/io.max".to_owned(),
        intent: "projects/default/intents/backup".to_owned(),
        ..Default::default()
    }
}

/// Two nodes, the first connected and with an intent.
fn fleet() -> Server {
    let server = Server::start();
    let device = v1::Device {
        kernel_name: "nvme0n1".to_owned(),
        id: Some(v1::DeviceId { major: 259, minor: 3, diskseq: Some(7) }),
        kind: v1::DeviceKind::Nvme.into(),
        size_bytes: 1 << 40,
        mount_paths: vec!["/data".to_owned()],
        ..Default::default()
    };
    let facts = v1::NodeFacts {
        kernel_release: "6.1.0".to_owned(),
        cgroup_version: v1::CgroupVersion::V2.into(),
        devices: vec![device],
        ..Default::default()
    };
    let node = |name: &str, phase: v1::NodePhase| v1::Node {
        name: format!("nodes/{name}"),
        phase: phase.into(),
        directive: v1::Directive::Active.into(),
        settings_held: 4,
        last_contact_age: seconds(3),
        ..Default::default()
    };
    {
        let mut state = server.state();
        let connected = v1::Node { facts: Some(facts), ..node("n1", v1::NodePhase::Connected) };
        state.nodes = vec![connected, node("n2", v1::NodePhase::Stale)];
        state.statuses = vec![v1::IntentNodeStatus {
            intent: "projects/default/intents/backup".to_owned(),
            node: "nodes/n1".to_owned(),
            state: v1::RuleState::Applied.into(),
            settings: vec![setting()],
            ..Default::default()
        }];
        let claim = |intent: &str, won: bool, why: &str| v1::Claim {
            intent: format!("projects/default/intents/{intent}"),
            value: finite(MIB_10),
            won,
            why: why.to_owned(),
            ..Default::default()
        };
        state.settings = vec![v1::ExplainedSetting {
            status: Some(setting()),
            claims: vec![claim("backup", true, "strictest"), claim("other", false, "looser")],
            baseline: Some(v1::LimitValue { value: Some(v1::limit_value::Value::Unlimited(true)) }),
            written: finite(MIB_10),
            drift_repairs: 2,
            ..Default::default()
        }];
    }
    server
}

/// The words of a line that begins with this word.
#[track_caller]
fn row(text: &str, first: &str) -> Vec<String> {
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(first));
    line.unwrap_or_else(|| panic!("no row {first} in\n{text}")).split_whitespace().map(str::to_owned).collect()
}

#[test]
fn lists_of_a_fleet() {
    let server = fleet();
    for command in [&["nodes"][..], &["get", "nodes"]] {
        let text = server.run(command).good();
        let expected = ["n1", "connected", "active", "4", "1", "v2", "6.1.0", "-", "3s"];
        assert_eq!(row(&text, "n1"), expected);
        assert_eq!(row(&text, "n2")[1], "stale");
    }
    let text = server.run(&["get", "devices", "n1"]).good();
    assert_eq!(row(&text, "nvme0n1")[..5], ["nvme0n1", "259:3", "nvme", "1", "TiB"]);
    assert_eq!(row(&server.run(&["devices", "n1"]).good(), "nvme0n1")[5..], ["-", "here", "/data"]);
    assert_eq!(row(&server.run(&["workloads", "n1"]).good(), "/batch/one")[0], "/batch/one");
    assert_eq!(row(&server.run(&["get", "workloads", "nodes/n1"]).good(), "/batch/one"), ["/batch/one", "3", "backup"]);
    assert_eq!(row(&server.run(&["get", "workloads", "n1", "--cgroup", "/x"]).good(), "/x")[0], "/x");
    let json = server.run(&["get", "nodes", "-o", "json"]).good();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&json["nodes"][0]["name"], &json["nodes"][1]["phase"]),
        (&"nodes/n1".into(), &"NODE_PHASE_STALE".into())
    );
    // An empty list is a list.
    let json = server.run(&["get", "intents", "-o", "json"]).good();
    assert_eq!(serde_json::from_str::<serde_json::Value>(&json).unwrap(), serde_json::json!({"intents": []}));
    assert!(server.run(&["get", "intents"]).good().contains("no intents"));
    assert!(server.run(&["describe", "node", "n1"]).good().contains("nvme0n1"));
    let error = server.run(&["get", "node", "n3"]).failed(4);
    assert!(error.contains("NOT_FOUND: nodes/n3") && error.contains("hint: "), "{error}");
}

#[test]
fn the_brake() {
    let server = fleet();
    server.run(&["pause", "n1"]).good();
    assert_eq!(row(&server.run(&["nodes"]).good(), "n1")[2], "paused");
    server.run(&["resume", "n1"]).good();
    // That the controller told it so is no answer of the node.
    server.state().agents_silent = true;
    let error = server.run(&["release", "n1", "--wait", "--timeout", "300ms"]).failed(8);
    assert!(error.contains("n1"), "{error}");
    server.state().agents_silent = false;
    server.run(&["release", "n1", "--wait"]).good();
    assert_eq!(row(&server.run(&["nodes"]).good(), "n1")[2..4], ["released", "0"]);
    // n2 is out of contact and still holds what it held.
    let error = server.run(&["release", "--all", "--wait", "--timeout", "300ms"]).failed(8);
    assert!(error.contains("n2 is out of contact, and held 4") && !error.contains("n1"), "{error}");
    assert!(server.run(&["nodes"]).good().starts_with("the whole fleet is released"));
    // What the fleet is told holds for a node that is resumed by itself.
    let resumed = server.run(&["resume", "n1"]);
    assert!(resumed.stderr.contains("n1 stays released") && resumed.stderr.contains("resume --all"), "{resumed:?}");
    assert!(server.run(&["explain", "n1"]).good().starts_with("n1 is released: nothing is enforced there"));
    server.run(&["resume", "--all"]).good();
    let json = server.run(&["pause", "n2", "-o", "json"]).good();
    assert!(serde_json::from_str::<serde_json::Value>(&json).unwrap()["revision"].is_string(), "{json}");
    assert_eq!(
        server.state().writes,
        [
            "pause nodes/n1",
            "resume nodes/n1",
            "release nodes/n1",
            "release nodes/n1",
            "release nodes/-",
            "resume nodes/n1",
            "resume nodes/-",
            "pause nodes/n2"
        ]
    );
    assert!(server.run(&["forget", "n1"]).failed(5).contains("FAILED_PRECONDITION"));
    assert!(server.run(&["forget", "--gone"]).good().contains("no node is gone"));
    server.run(&["forget", "n2"]).good();
    assert_eq!(server.state().nodes.len(), 1);
    for name in ["nodes/n4", "nodes/n5"] {
        let gone = v1::Node { name: name.to_owned(), phase: v1::NodePhase::Gone.into(), ..Default::default() };
        server.state().nodes.push(gone);
    }
    // Which nodes is always said.
    for (arguments, said) in [(&["forget"][..], "<NODE|--gone>"), (&["forget", "n4", "--gone"], "cannot be used with")]
    {
        let outcome = server.run(arguments);
        assert!(outcome.code == 2 && outcome.stderr.contains(said), "{outcome:?}");
    }
    assert_eq!(server.state().nodes.len(), 3);
    assert!(server.run(&["forget", "--gone"]).good().contains("forgot n4, n5"));
    assert_eq!(server.state().nodes.len(), 1);
}

#[test]
fn explaining() {
    let server = fleet();
    let text = server.run(&["explain", "n1"]).good();
    for line in [
        "rbps on nvme0n1 (259:3) in /backup",
        "  intended   10 MiB/s",
        "  effective  10 MiB/s",
        "  won  backup wants 10 MiB/s (priority 0): strictest",
        "  lost other wants 10 MiB/s (priority 0): looser",
        "  before     unlimited; written 10 MiB/s; put right 2 time(s)",
    ] {
        assert!(text.lines().any(|is| is == line), "{line:?} is not in\n{text}");
    }
    let error = server.run(&["explain", "n3"]).failed(4);
    assert!(error.contains("NOT_FOUND"), "{error}");
}

#[test]
fn watching() {
    let server = fleet();
    let text = server.run(&["watch", "--for", "700ms", "--interval", "300ms"]).good();
    let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("backup")).collect();
    assert!((2..=4).contains(&rows.len()), "{text}");
    assert!(!text.contains('\x1b'), "{text:?}");
    assert_eq!(
        row(&text, "backup").join(" "),
        "backup n1 /backup nvme0n1 rbps 10 MiB/s 10 MiB/s 9.90 MiB/s -1.0 % at its limit"
    );
    {
        let mut state = server.state();
        let status = &mut state.statuses[0];
        status.set_state(v1::RuleState::Suspended);
        let condition =
            v1::Condition { r#type: "Suspended".to_owned(), reason: "Paused".to_owned(), ..Default::default() };
        status.conditions = vec![condition];
    }
    let text = server.run(&["watch", "--for", "0s"]).good();
    assert!(row(&text, "backup").join(" ").ends_with("-1.0 % paused; at its limit"), "{text}");
    // One line of JSON a look.
    let json = server.run(&["watch", "--for", "0s", "-o", "json", "--node", "n1"]).good();
    assert_eq!(json.lines().count(), 1);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["statuses"][0]["settings"][0]["intended"]["finite"], MIB_10.to_string());
    assert!(server.run(&["watch", "--for", "0s", "--node", "n2"]).good().contains("no intent applies"));
}

#[test]
fn errors_carry_their_details() {
    let server = fleet();
    let details = tonic_types::ErrorDetails::with_retry_info(Some(std::time::Duration::from_secs(2)));
    let status = tonic::Status::with_error_details(tonic::Code::Unavailable, "the store is away", details);
    server.state().refuse = vec![status];
    let error = server.run(&["get", "nodes"]).failed(6);
    assert!(error.starts_with("weirctl: UNAVAILABLE: the store is away\n  retry in 2s\nhint: "), "{error}");
    server.state().refuse = vec![tonic::Status::internal("broken")];
    assert_eq!(server.run(&["get", "nodes"]).failed(1), "weirctl: INTERNAL: broken\n");
    // The one violated field is not told twice.
    let details = tonic_types::ErrorDetails::with_bad_request_violation("page_size", "is negative");
    let code = tonic::Code::InvalidArgument;
    server.state().refuse = vec![tonic::Status::with_error_details(code, "page_size: is negative", details)];
    let error = server.run(&["get", "nodes"]).failed(3);
    assert_eq!(error, "weirctl: INVALID_ARGUMENT: one field is invalid\n  page_size: is negative\n");
}

#[test]
fn a_reader_that_has_enough_ends_the_command_quietly() {
    let server = fleet();
    for args in [&["watch", "--interval", "100ms"][..], &["completions", "bash"], &["explain", "n1"]] {
        let mut child = command(&server.address).args(args).spawn().unwrap();
        drop(child.stdout.take());
        let status = child.wait().unwrap();
        let mut error = String::new();
        child.stderr.take().unwrap().read_to_string(&mut error).unwrap();
        assert_eq!((status.code(), error.as_str()), (Some(0), ""), "{args:?}");
    }
}

#[test]
fn what_needs_no_controller() {
    let nobody = "http://127.0.0.1:1";
    assert!(weirctl(nobody, &["version"], "").good().starts_with("weirctl 0."));
    for shell in ["bash", "zsh", "fish"] {
        assert!(weirctl(nobody, &["completions", shell], "").good().contains("weirctl"));
    }
    assert!(weirctl(nobody, &["version", "-o", "json"], "").good().contains("\"version\": \"0."));
    assert_eq!(
        weirctl(nobody, &["delete", "intent"], "").failed(2),
        "weirctl: which one? weirctl delete intent NAME\n"
    );
    let help = weirctl(nobody, &["--help"], "").good();
    assert!(help.contains("Exit codes:") && help.contains("8  waited, and the time was up"), "{help}");
}
