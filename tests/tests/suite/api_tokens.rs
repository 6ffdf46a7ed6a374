//! Callers by service-account tokens, with the binaries and an API server that the tests answer for.

use std::{
    path::PathBuf,
    process::{Command, Output},
    time::Duration,
};

use weir_tests::{
    etcd::{self, Etcd},
    fleet::{Scratch, eventually},
    kube_api::{KubeApi, Mood},
    process::{Daemon, binary},
};

const SOON: Duration = Duration::from_secs(40);

struct World {
    dir: PathBuf,
    api: KubeApi,
    _scratch: Scratch,
}

/// A controller that asks for tokens, and for certificates too where it has --tls-client-ca.
struct Controller {
    daemon: Daemon,
    address: String,
}

impl World {
    async fn new() -> World {
        let scratch = Scratch::new();
        let dir = scratch.path().to_owned();
        let certs = dir.join("certs");
        let mut init = Command::new(binary("weirctl"));
        init.args(["certs", "init"]).arg(&certs).args(["--node", "n1", "--client", "ann"]);
        assert!(init.output().unwrap().status.success());
        let bindings =
            "bindings:\n- { client: ann, role: ADMIN }\n- { client: 'serviceaccount:ops/admin', role: ADMIN }\n";
        std::fs::write(certs.join("access.yaml"), bindings).unwrap();
        let api = KubeApi::start(&dir).await;
        World { dir, api, _scratch: scratch }
    }

    fn cert(&self, name: &str) -> String {
        self.dir.join("certs").join(name).display().to_string()
    }

    /// A token of a service account, in a file of this name.
    fn token(&self, name: &str, account: &str, extra: &[(&str, &str)]) -> String {
        self.api.token(name, account, extra);
        self.file(name, name)
    }

    fn file(&self, name: &str, token: &str) -> String {
        let path = self.dir.join(format!("{name}.token"));
        std::fs::write(&path, format!("{token}\n")).unwrap();
        path.display().to_string()
    }

    fn controller(&self, name: &str, more: &[&str]) -> Controller {
        let kubeconfig = self.api.kubeconfig.display().to_string();
        let store = format!("{}/{name}.redb", self.dir.display());
        let (certificate, key, access) =
            (self.cert("controller.crt"), self.cert("controller.key"), self.cert("access.yaml"));
        let mut args = vec!["--tls-cert", &certificate, "--tls-key", &key, "--access", &access];
        args.extend(["--token-audience", "weir", "--token-agents", "weir/agent", "--kubeconfig", &kubeconfig]);
        for (flag, value) in [("--listen", "127.0.0.1:0"), ("--store", &store)] {
            if !more.contains(&flag) {
                args.extend([flag, value]);
            }
        }
        args.extend(more);
        let args: Vec<String> = args.into_iter().map(str::to_owned).collect();
        let log = self.dir.join(format!("{name}.log"));
        let daemon = Daemon::start("weir-controller", &args, "listening on ", &log).unwrap();
        let address = daemon.ready.rsplit(' ').next().unwrap().to_owned();
        Controller { daemon, address }
    }

    /// A simulated agent; its node is NAME-0001.
    fn agent(&self, controller: &str, name: &str, token_file: &str) -> Daemon {
        let dir = self.dir.join(format!("agent-{name}"));
        std::fs::create_dir_all(&dir).unwrap();
        let (state, controller, ca) = (dir.display().to_string(), format!("https://{controller}"), self.cert("ca.crt"));
        let args = ["--simulate", "1", "--node", name, "--controller", &controller, "--state-dir", &state];
        let args = [&args[..], &["--tls-ca", &ca, "--token-file", token_file]].concat();
        let args: Vec<String> = args.into_iter().map(str::to_owned).collect();
        Daemon::start("weir-agent", &args, "running", &dir.join("log")).unwrap()
    }

    fn weirctl(&self, controller: &Controller, who: &[&str]) -> Output {
        let mut command = Command::new(binary("weirctl"));
        command.args(["--server", &format!("https://{}", controller.address), "-o", "json", "nodes"]);
        command.args(["--tls-ca", &self.cert("ca.crt")]).args(who);
        command.output().unwrap()
    }

    /// The nodes that are connected, as somebody with a token of an administrator sees them.
    fn connected(&self, controller: &Controller, admin: &str) -> Vec<String> {
        let output = self.weirctl(controller, &["--token-file", admin]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let Ok(nodes) = serde_json::from_str::<serde_json::Value>(&text) else { return Vec::new() };
        let nodes = nodes["nodes"].as_array().cloned().unwrap_or_default();
        let connected = nodes.iter().filter(|node| node["phase"] == "NODE_PHASE_CONNECTED");
        connected.filter_map(|node| node["name"].as_str().map(str::to_owned)).collect()
    }
}

fn said(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn log(daemon: &Daemon) -> String {
    std::fs::read_to_string(&daemon.log).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_is_the_node_of_its_token_and_no_other() {
    let world = World::new().await;
    let controller = world.controller("controller", &[]);
    let admin = world.token("admin", "ops:admin", &[]);
    let by_claim = world.token("claim", "weir:agent", &[("node-name", "claim-0001")]);
    world.api.pod("weir/agent-x", "uid-x", "pod-0001");
    let by_pod = world.token("pod", "weir:agent", &[("pod-name", "agent-x"), ("pod-uid", "uid-x")]);
    let stale = world.token("stale", "weir:agent", &[("pod-name", "agent-x"), ("pod-uid", "earlier")]);
    let stranger = world.token("stranger", "default:agent", &[("node-name", "stranger-0001")]);
    let _agents =
        [world.agent(&controller.address, "claim", &by_claim), world.agent(&controller.address, "pod", &by_pod)];
    let impostor = world.agent(&controller.address, "impostor", &by_claim);
    let refused =
        [world.agent(&controller.address, "stale", &stale), world.agent(&controller.address, "stranger", &stranger)];
    let both = ["nodes/claim-0001".to_owned(), "nodes/pod-0001".to_owned()];
    eventually("both agents", SOON, async || (world.connected(&controller, &admin) == both).then_some(())).await;
    for (daemon, says) in [
        (&impostor, "cannot speak for node impostor-0001"),
        (&refused[0], "names no node"),
        (&refused[1], "serviceaccount:default/agent"),
    ] {
        eventually(says, SOON, async || log(daemon).contains(says).then_some(())).await;
    }
    assert_eq!(world.connected(&controller, &admin), both);
    let all_logs = [&controller.daemon, &impostor, &refused[0], &refused[1]].map(log).concat();
    for token in ["Bearer", "the-controllers-own"] {
        assert!(!all_logs.contains(token), "a log shows {token}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_have_the_roles_of_their_accounts_and_certificates_go_on() {
    let world = World::new().await;
    let client_ca = world.cert("ca.crt");
    let controller = world.controller("controller", &["--tls-client-ca", &client_ca]);
    let admin = world.token("admin", "ops:admin", &[]);
    assert!(world.weirctl(&controller, &["--token-file", &admin]).status.success());
    let roleless = world.token("roleless", "ops:reader", &[]);
    let (code, text) = said(&world.weirctl(&controller, &["--token-file", &roleless]));
    assert!(code == Some(1) && text.contains("serviceaccount:ops/reader"), "{code:?} {text}");
    let unknown = world.file("unknown", "never-issued");
    let (code, text) = said(&world.weirctl(&controller, &["--token-file", &unknown]));
    assert!(
        code == Some(1) && text.contains("invalid bearer token") && !text.contains("never-issued"),
        "{code:?} {text}"
    );
    let (_, text) = said(&world.weirctl(&controller, &[]));
    assert!(text.contains("--token-file"), "{text}");
    let (_, text) = said(&world.weirctl(&controller, &["--token-file", "/no/such/file"]));
    assert!(text.contains("/no/such/file"), "{text}");
    let ann = [world.cert("client-ann.crt"), world.cert("client-ann.key")];
    assert!(world.weirctl(&controller, &["--tls-cert", &ann[0], "--tls-key", &ann[1]]).status.success());
    // Where both are shown, the certificate counts.
    let both = ["--tls-cert", &ann[0], "--tls-key", &ann[1], "--token-file", &unknown];
    assert!(world.weirctl(&controller, &both).status.success());
    // A token is for an address with TLS alone.
    let mut plain = Command::new(binary("weirctl"));
    plain.args(["--server", &format!("http://{}", controller.address), "nodes", "--token-file", &admin]);
    let (code, text) = said(&plain.output().unwrap());
    assert!(code == Some(2) && text.contains("https://"), "{code:?} {text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_api_server_cannot_answer_the_known_go_on() {
    let world = World::new().await;
    let controller = world.controller("controller", &[]);
    let admin = world.token("admin", "ops:admin", &[]);
    let later = world.token("later", "ops:admin", &[("pod-name", "later"), ("pod-uid", "u")]);
    assert!(world.weirctl(&controller, &["--token-file", &admin]).status.success());
    for (mood, says) in [
        (Mood::Forbidding, "create tokenreviews"),
        (Mood::Broken, "cannot be asked"),
        (Mood::Silent, "no answer within"),
    ] {
        // Whoever failed a moment ago is left alone for 2 s.
        tokio::time::sleep(Duration::from_millis(2100)).await;
        world.api.mood(mood);
        let (code, text) = said(&world.weirctl(&controller, &["--token-file", &later]));
        assert!(code == Some(6) && text.contains(says), "{mood:?}: {code:?} {text}");
        assert!(world.weirctl(&controller, &["--token-file", &admin]).status.success(), "{mood:?}");
    }
    world.api.mood(Mood::Well);
    let back = async || world.weirctl(&controller, &["--token-file", &later]).status.success().then_some(());
    eventually("the API server to be asked again", SOON, back).await;
    assert!(log(&controller.daemon).contains("answers again"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_was_replaced_is_the_one_that_is_shown() {
    let world = World::new().await;
    let controller = world.controller("controller", &[]);
    let admin = world.token("admin", "ops:admin", &[]);
    let file = world.token("agent", "weir:agent", &[("node-name", "n-0001")]);
    let agent = world.agent(&controller.address, "n", &file);
    let there = ["nodes/n-0001".to_owned()];
    eventually("the agent", SOON, async || (world.connected(&controller, &admin) == there).then_some(())).await;

    // Replaced and withdrawn, as a kubelet does before it expires; then all that the controller had verified is gone.
    world.api.token("second", "weir:agent", &[("node-name", "n-0001")]);
    std::fs::write(&file, "second").unwrap();
    world.api.withdraw("agent");
    let port = controller.address.clone();
    drop(controller);
    let controller = world.controller("controller", &["--listen", &port]);
    eventually("the agent again", SOON, async || (world.connected(&controller, &admin) == there).then_some(())).await;
    // One that is missing for a while is waited for.
    std::fs::remove_file(&file).unwrap();
    drop(controller);
    let controller = world.controller("controller", &["--listen", &port]);
    eventually("the reason", SOON, async || log(&agent).contains("cannot be read").then_some(())).await;
    std::fs::write(&file, "second").unwrap();
    eventually("the agent again", SOON, async || (world.connected(&controller, &admin) == there).then_some(())).await;
    assert!(world.api.reviews() > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn controllers_know_each_other_by_tokens() {
    if !etcd::controllers_can("controllers_know_each_other_by_tokens") {
        return;
    }
    let world = World::new().await;
    let etcd = Etcd::start();
    let store = etcd.location("/tokens/");
    let ca = world.cert("ca.crt");
    let admin = world.token("admin", "ops:admin", &[]);
    let own = world.token("peer", "weir:controller", &[("pod-name", "weir-0"), ("pod-uid", "u")]);
    let flags = |own: &str| -> Vec<String> {
        let flags =
            ["--store", &store, "--peer-ca", &ca, "--token-file", own, "--token-controllers", "weir/controller"];
        flags.map(str::to_owned).to_vec()
    };
    let with = |name: &str, own: &str| {
        let flags = flags(own);
        world.controller(name, &flags.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let (one, two) = (with("one", &own), with("two", &own));
    let agent_token = world.token("agent", "weir:agent", &[("node-name", "n-0001")]);
    let _agent = world.agent(&one.address, "n", &agent_token);
    let there = ["nodes/n-0001".to_owned()];
    for controller in [&one, &two] {
        eventually("the agent, anywhere", SOON, async || (world.connected(controller, &admin) == there).then_some(()))
            .await;
    }
    // Somebody else's token opens nothing between controllers.
    let three = with("three", &admin);
    let says = "serviceaccount:ops/admin";
    eventually(says, SOON, async || log(&three.daemon).contains(says).then_some(())).await;
    assert!(world.connected(&three, &admin).is_empty());
}
