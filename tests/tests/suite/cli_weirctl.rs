//! weirctl as scripts use it, against a real controller: what it prints, and its exit codes.

use std::{
    io::Write as _,
    process::{Command, Output, Stdio},
};

use weir_tests::{
    fleet::{self, Scratch},
    process::{Daemon, binary},
    sim::Simulation,
};

const GOOD: &str = "\
name: one
spec:
  nodes: { anyOf: [{ all: true }] }
  workloads: { anyOf: [{ cgroupPath: /a }] }
  devices: { anyOf: [{ kinds: [LOOP] }] }
  controls:
    limits:
      rbps: 10MiB
";

struct World {
    address: String,
    _controller: Daemon,
    _scratch: Scratch,
}

impl World {
    fn new() -> World {
        let scratch = Scratch::new();
        let (controller, address) = fleet::controller(&scratch.path(), "127.0.0.1:0").unwrap();
        World { address, _controller: controller, _scratch: scratch }
    }

    fn weirctl(&self, args: &[&str], stdin: &str) -> (i32, String, String) {
        let mut command = Command::new(binary("weirctl"));
        command.args(["--server", &format!("http://{}", self.address)]).args(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(stdin.as_bytes()).unwrap();
        let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (status.code().unwrap(), text(stdout), text(stderr))
    }
}

#[test]
fn apply_creates_then_leaves_alone_then_updates() {
    let world = World::new();
    let apply = ["apply", "-f", "-"];
    let (code, out, err) = world.weirctl(&["apply", "-f", "-", "--dry-run"], GOOD);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert_eq!(world.weirctl(&["get", "intent", "one"], "").0, 4, "a dry run stores nothing");
    for (manifest, verb) in [
        (GOOD.to_owned(), "created projects/default/intents/one (generation 1)"),
        (GOOD.to_owned(), "unchanged projects/default/intents/one (generation 1)"),
        (GOOD.replace("10MiB", "20MiB"), "updated projects/default/intents/one (generation 2)"),
    ] {
        let (code, out, err) = world.weirctl(&apply, &manifest);
        assert_eq!((code, err.as_str()), (0, ""));
        assert!(out.contains(verb), "{out}");
    }
    // What is printed can be applied again, and is the same.
    for format in ["json", "yaml"] {
        let (code, printed, _) = world.weirctl(&["get", "intent", "one", "-o", format], "");
        assert_eq!(code, 0);
        let (code, out, err) = world.weirctl(&apply, &printed);
        assert_eq!(code, 0, "{err}");
        assert!(out.contains("unchanged"), "{out}");
    }
    let (_, list, _) = world.weirctl(&["get", "intents", "-o", "json"], "");
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    assert_eq!(list["intents"][0]["spec"]["controls"]["limits"]["rbps"]["bytesPerSecond"], "20971520");
    let (code, out, err) = world.weirctl(&["delete", "intent", "one", "--wait"], "");
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out.contains("gone"), "{out}");
}

#[test]
fn errors_say_where_and_have_their_codes() {
    let world = World::new();
    for (manifest, code, says) in [
        (GOOD.replace("10MiB", "10M"), 3, "standard input:8:13: rbps: `10M`: `M` could mean two things"),
        (GOOD.replace("10MiB", "-4"), 3, "standard input:8:"),
        (GOOD.replace("rbps", "speed"), 3, "standard input:8:7"),
        (GOOD.replace("/a }", "a }"), 3, "cgroup_path"),
        (GOOD.replace("name: one", "name: One"), 3, "standard input:1:1"),
        (String::new(), 3, "no document"),
        (format!("{GOOD}---\n{GOOD}"), 3, "twice"),
    ] {
        let (got, out, err) = world.weirctl(&["apply", "-f", "-"], &manifest);
        assert_eq!(got, code, "{out}{err}");
        assert!(err.contains(says), "{says} is not in: {err}");
        assert!(!err.contains("panicked"));
    }
    let (code, _, err) = world.weirctl(&["get", "intents"], "");
    assert_eq!((code, err.as_str()), (0, ""));
    assert_eq!(world.weirctl(&["get", "intent", "none"], "").0, 4);
    assert_eq!(world.weirctl(&["explain", "nobody"], "").0, 4);
    assert_eq!(world.weirctl(&["pause", "nobody"], "").0, 4);
    assert_eq!(world.weirctl(&["nonsense"], "").0, 2);
    let nobody = Command::new(binary("weirctl")).args(["--server", "http://127.0.0.1:1", "nodes"]).output().unwrap();
    assert_eq!(nobody.status.code(), Some(6));
    assert_eq!(world.weirctl(&["apply", "-f", "/nowhere.yaml"], "").0, 3);
    let (code, _, err) = world.weirctl(&["apply", "-f", "-", "--wait", "--timeout", "300ms"], GOOD);
    assert_eq!(code, 8, "{err}");
    assert!(err.contains("no node matches"), "{err}");
    let stale = GOOD.replace("10MiB", "11MiB").replace("name: one", "name: one\netag: old");
    assert_eq!(world.weirctl(&["apply", "-f", "-"], &stale).0, 5);
}

#[test]
fn completions_and_a_closed_pipe() {
    let world = World::new();
    for shell in ["bash", "zsh", "fish"] {
        let (code, out, _) = world.weirctl(&["completions", shell], "");
        assert!(code == 0 && out.contains("weirctl"), "{shell}");
    }
    let weirctl = binary("weirctl");
    let script = format!("{} completions bash | head -c 10 >/dev/null; echo ${{PIPESTATUS[0]}}", weirctl.display());
    let out = Command::new("bash").args(["-c", &script]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&out.stdout).trim(), "0");
    assert!(out.stderr.is_empty(), "{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn who_waits_for_nodes_waits_for_the_controller_too() {
    let scratch = Scratch::new();
    // A port that is free now, and soon a controller's.
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let nodes = |wanted: &str, timeout: &str| {
        let mut command = Command::new(binary("weirctl"));
        command.args(["--server", &format!("http://{address}"), "nodes", "--connected", wanted, "--timeout", timeout]);
        command
    };
    let alone = nodes("1", "1s").output().unwrap();
    assert_eq!(alone.status.code(), Some(6), "nobody answers");
    let mut waiting = nodes("2", "40s").stdout(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(1500));
    let (_controller, _) = fleet::controller(&scratch.path(), &address).unwrap();
    let late = nodes("1", "1s").output().unwrap();
    assert_eq!(late.status.code(), Some(8));
    assert!(String::from_utf8_lossy(&late.stderr).contains("0 of 1 nodes"), "{late:?}");
    let _fleet = Simulation::start(&scratch.path().join("fleet"), &[&address], 2).unwrap();
    assert_eq!(waiting.wait().unwrap().code(), Some(0));
}
