//! Traces over OTLP, from real programs to a collector in this process: one change is one trace, from the call to the kernel.

use std::{
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use tonic::{Request, metadata::MetadataValue};
use weir_proto::v1;
use weir_tests::{
    collector::{Collector, Span, Trace},
    fleet::{self, AGENT_READY, Clients, Scratch, eventually},
    process::{Daemon, binary},
};

const SOON: Duration = Duration::from_secs(20);
/// Spans are sent this often, milliseconds.
const SCHEDULE_MS: &str = "100";

/// A program with the standard variables.
fn traced(name: &str, endpoint: &str) -> Command {
    let mut command = Command::new(binary(name));
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint).env("OTEL_BSP_SCHEDULE_DELAY", SCHEDULE_MS);
    command.env("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test");
    command
}

struct Fleet {
    clients: Clients,
    _controller: Daemon,
    _agents: Daemon,
    scratch: Scratch,
}

/// A controller and two modelled nodes, all traced.
async fn start(endpoint: &str) -> Fleet {
    let scratch = Scratch::new();
    let dir = scratch.path();
    let mut controller = traced("weir-controller", endpoint);
    controller.args(["--listen", "127.0.0.1:0", "--store"]).arg(dir.join("store.redb"));
    let controller = Daemon::start_command(controller, "listening on ", &dir.join("controller.log")).unwrap();
    let address = controller.ready.rsplit(' ').next().unwrap().to_owned();
    let mut agents = traced("weir-agent", endpoint);
    agents.args(["--simulate", "2", "--controller", &format!("http://{address}"), "--state-dir"]).arg(dir.join("sim"));
    let agents = Daemon::start_command(agents, AGENT_READY, &dir.join("agents.log")).unwrap();
    let clients = Clients::connect(&address).await.unwrap();
    eventually("both nodes are connected", SOON, || async {
        let nodes = clients.clone().fleet.list_nodes(v1::ListNodesRequest::default()).await.unwrap().into_inner().nodes;
        (nodes.iter().filter(|node| node.phase() == v1::NodePhase::Connected).count() == 2).then_some(())
    })
    .await;
    Fleet { clients, _controller: controller, _agents: agents, scratch }
}

async fn applied(clients: &Clients, name: &str) {
    eventually("applied on both", SOON, || async {
        let request = v1::GetIntentRequest { name: name.to_owned() };
        let status = clients.clone().intents.get_intent(request).await.ok()?.into_inner().status?;
        (status.nodes_applied == 2 && status.nodes_pending == 0).then_some(())
    })
    .await;
}

fn call<'a>(method: &'a str) -> impl Fn(&Span) -> bool + 'a {
    move |span| span.name == format!("weir.v1.IntentService/{method}") && !span.is_error
}

/// Both nodes wrote and answered.
fn is_complete(trace: &Trace) -> bool {
    let writes = trace.named("kernel.write").count();
    let pushes = trace.named("plan.push").filter(|span| span.attribute("weir.answer") == "accepted").count();
    writes == 2 && pushes == 2 && trace.orphans().is_empty()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_is_one_trace_from_the_call_to_the_kernel() {
    let collector = Collector::start(Duration::ZERO).await.unwrap();
    let Fleet { mut clients, _controller, _agents, scratch: _scratch } =
        start(&format!("http://{}", collector.address)).await;
    let intent = |value| fleet::read_limit("a", "/sim/w1", Path::new("/dev/nvme0n1"), Some(value));
    let name = fleet::full("a");
    clients.intents.create_intent(fleet::create(intent(1 << 20))).await.unwrap();
    applied(&clients, &name).await;
    let created = collector.trace(SOON, call("CreateIntent"), is_complete).await.unwrap();
    println!("{}", created.tree());

    let write = created.named("kernel.write").next().unwrap();
    let path = ["weir.v1.IntentService/CreateIntent", "plan.make", "plan.push", "plan.apply", "kernel.write"];
    assert_eq!(created.path(write), path);
    assert!(write.attribute("file.path").ends_with("/sim/w1/io.max"), "{write:#?}");
    assert_eq!(write.attribute("weir.value"), "259:0 rbps=1048576");
    assert_eq!(write.attribute("weir.read_back"), "rbps=1048576");
    assert_eq!(write.attribute("weir.cause"), "change");
    for step in ["plan.store", "resolve"] {
        let step = created.named(step).next().unwrap();
        assert_eq!(created.path(step)[..4], path[..4]);
    }
    let commit = created.named("store.commit").next().unwrap();
    assert_eq!(created.path(commit), ["weir.v1.IntentService/CreateIntent", "store.commit"]);
    assert!(commit.attribute("weir.store.revision").parse::<u64>().unwrap() > 0);

    let root = created.named("weir.v1.IntentService/CreateIntent").next().unwrap();
    assert_eq!((root.kind, root.parent.as_str()), (2, ""));
    assert_eq!(root.attribute("rpc.system.name"), "grpc");
    assert_eq!(root.attribute("rpc.method"), "weir.v1.IntentService/CreateIntent");
    assert_eq!(root.attribute("rpc.response.status_code"), "OK");
    assert_eq!(root.service, "weir-controller");
    assert_eq!(root.resource["deployment.environment.name"], "test");
    assert_eq!(root.resource["service.version"], env!("CARGO_PKG_VERSION"));
    assert!(!root.resource["service.instance.id"].is_empty());
    assert_eq!(write.service, "weir-agent");
    let nodes: Vec<&str> = created.named("plan.push").map(|span| span.attribute("weir.node")).collect();
    assert!(nodes.contains(&"sim-0001") && nodes.contains(&"sim-0002"), "{nodes:?}");
    // A push lasts until the agent has answered.
    for push in created.named("plan.push") {
        let apply = created.0.iter().find(|span| span.parent == push.id).unwrap();
        assert!(push.time.0 <= apply.time.0 && apply.time.1 <= push.time.1, "{push:#?} {apply:#?}");
    }

    // Each change is a trace of its own; a caller's trace is gone on with.
    let mut update = Request::new(v1::UpdateIntentRequest { intent: Some(intent(2 << 20)), ..Default::default() });
    let (trace, parent) = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331");
    let context: MetadataValue<_> = format!("00-{trace}-{parent}-01").parse().unwrap();
    update.metadata_mut().insert("traceparent", context);
    clients.intents.update_intent(update).await.unwrap();
    let of_caller = |span: &Span| span.trace == trace;
    let complete = |trace: &Trace| trace.named("kernel.write").count() == 2 && trace.orphans().len() == 1;
    let updated = collector.trace(SOON, of_caller, complete).await.unwrap();
    assert_eq!(updated.orphans()[0].parent, parent);
    assert_eq!(updated.named("kernel.write").next().unwrap().attribute("weir.value"), "259:0 rbps=2097152");

    clients.intents.delete_intent(v1::DeleteIntentRequest { name, ..Default::default() }).await.unwrap();
    let finalized = |trace: &Trace| is_complete(trace) && trace.named("intent.finalize").count() == 1;
    let deleted = collector.trace(SOON, call("DeleteIntent"), finalized).await.unwrap();
    assert_eq!(deleted.named("kernel.write").next().unwrap().attribute("weir.value"), "259:0 rbps=max");

    // What is wrong is an error where it happened; what the caller did wrong is not the server's error.
    let bad = v1::GetIntentRequest { name: fleet::full("nothing") };
    clients.intents.get_intent(bad).await.unwrap_err();
    let missing = |span: &Span| span.attribute("rpc.response.status_code") == "NOT_FOUND";
    let missing = collector.trace(SOON, missing, |_| true).await.unwrap();
    assert!(!missing.0[0].is_error);
    for span in collector.spans() {
        assert!(!span.name.contains("Export") && !span.name.starts_with("h2"), "the exporter is not traced: {span:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_dead_or_slow_slows_nothing() {
    // Nobody listens on the first; the second takes a minute for each answer.
    let slow = Collector::start(Duration::from_secs(60)).await.unwrap();
    for endpoint in ["http://127.0.0.1:1".to_owned(), format!("http://{}", slow.address)] {
        let Fleet { mut clients, _controller: mut controller, _agents: mut agents, scratch } = start(&endpoint).await;
        for value in 1..=20 {
            let intent =
                fleet::read_limit(&format!("i{value}"), "/sim/w1", Path::new("/dev/nvme0n1"), Some(value << 20));
            clients.intents.create_intent(fleet::create(intent)).await.unwrap();
        }
        applied(&clients, &fleet::full("i20")).await;
        let began = Instant::now();
        assert!(agents.stop() && controller.stop(), "both end in order");
        assert!(began.elapsed() < Duration::from_secs(10), "{:?} for the ends of both", began.elapsed());
        drop(scratch);
    }
}

#[test]
fn what_cannot_be_exported_as_asked_is_refused_with_its_variable() {
    let asked = [
        ("OTEL_TRACES_EXPORTER", "zipkin"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
        ("RUST_LOG", "weir_agent=loudly"),
    ];
    for (variable, value) in asked {
        let scratch = Scratch::new();
        let dir = scratch.path();
        let mut controller = traced("weir-controller", "http://127.0.0.1:1");
        controller.args(["--listen", "127.0.0.1:0", "--store"]).arg(dir.join("s"));
        let mut agent = traced("weir-agent", "http://127.0.0.1:1");
        agent.args(["--controller", "http://127.0.0.1:1", "--state-dir"]).arg(dir.join("state"));
        for mut command in [controller, agent] {
            let out = command.env(variable, value).output().unwrap();
            let said = String::from_utf8_lossy(&out.stderr).into_owned();
            assert!(!out.status.success() && said.contains(variable) && said.contains(value), "{command:?}: {said}");
        }
    }
}
