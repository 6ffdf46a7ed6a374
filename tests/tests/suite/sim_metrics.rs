//! Metrics and health of real programs over HTTP, as a scraper and a kubelet ask for them.

use std::{
    collections::BTreeMap,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use rustix::process::Signal;
use weir_proto::v1;
use weir_tests::{
    etcd::{self, Etcd},
    fleet::{self, Clients, Scratch, eventually},
    require,
    sim::Simulation,
};

const SOON: Duration = Duration::from_secs(20);

/// An address that is free now.
fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// Status code and body of a GET.
fn get(address: SocketAddr, path: &str, accept: &str) -> (u16, String) {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// Values of a scrape, by name with labels.
fn scrape(address: SocketAddr) -> BTreeMap<String, f64> {
    let (status, body) = get(address, "/metrics", "text/plain");
    assert_eq!(status, 200);
    let value = |line: &str| {
        let (name, value) = line.rsplit_once(' ')?;
        Some((name.to_owned(), value.parse().ok()?))
    };
    body.lines().filter(|line| !line.starts_with('#')).filter_map(value).collect()
}

struct Fleet {
    agent: SocketAddr,
    controller: SocketAddr,
    clients: Clients,
    _controller: weir_tests::process::Daemon,
    simulation: Simulation,
    _scratch: Scratch,
}

async fn start() -> Fleet {
    let scratch = Scratch::new();
    let dir = scratch.path();
    let (agent, controller) = (free(), free());
    let (daemon, address) =
        fleet::controller_with(&dir, "127.0.0.1:0", &["--ops-listen", &controller.to_string()]).unwrap();
    let more = ["--node", "sim", "--ops-listen", &agent.to_string()];
    let simulation = Simulation::with(&more, &dir.join("sim"), &[&address], 2).unwrap();
    simulation.until("both connect", SOON, |total| total.connected == 2).await.unwrap();
    let clients = Clients::connect(&address).await.unwrap();
    Fleet { agent, controller, clients, _controller: daemon, simulation, _scratch: scratch }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_three_numbers_and_what_was_done_are_told() {
    let Fleet { agent, controller, mut clients, _controller, simulation, _scratch } = start().await;
    let intent = fleet::read_limit("a", "/sim/w*", Path::new("/dev/nvme0n1"), Some(1 << 20));
    clients.intents.create_intent(fleet::create(intent)).await.unwrap();
    clients.intents.get_intent(v1::GetIntentRequest { name: fleet::full("b") }).await.unwrap_err();
    simulation.until("all is held", SOON, |total| total.settings_held == 6).await.unwrap();

    let of = "{intent=\"projects/default/intents/a\",device=\"nvme0n1\",key=\"rbps\"}";
    let wanted = format!("weir_limit_effective{of}");
    let told = eventually("the limit is told", SOON, || async {
        Some(scrape(agent)).filter(|told| told.contains_key(&wanted))
    })
    .await;
    let three = 3.0 * f64::from(1 << 20);
    assert_eq!((told[&wanted], told[&format!("weir_limit_intended{of}")]), (three, three));
    assert_eq!(told[&format!("weir_limit_settings{of}")], 3.0);
    assert_eq!(told["weir_agent_settings_written_total{cause=\"change\"}"], 3.0);
    assert_eq!(
        (told["weir_agent_settings_held"], told["weir_agent_connected"], told["weir_agent_stale"]),
        (3.0, 1.0, 0.0)
    );
    assert_eq!(told["weir_agent_rules{state=\"applied\"}"], 1.0);
    assert_eq!(told["weir_limit_left_out"], 0.0);
    assert!(told["weir_agent_passes_total"] >= 1.0 && told["weir_agent_pass_seconds_total"] > 0.0);
    assert!(told["weir_agent_plan_age_seconds"] < 60.0 && told["weir_agent_plan_revision"] >= 1.0);
    assert!(told["weir_agent_samples_total"] >= 1.0);

    let applied = "weir_intent_nodes{intent=\"projects/default/intents/a\",state=\"applied\"}";
    let told = eventually("the controller tells the same", SOON, || async {
        let told = scrape(controller);
        (told.get(applied) == Some(&2.0)).then_some(told)
    })
    .await;
    assert_eq!((told["weir_nodes{phase=\"connected\"}"], told["weir_controller_sessions"]), (2.0, 2.0));
    assert_eq!((told["weir_intents"], told["weir_settings_held"], told["weir_controller_leads"]), (1.0, 6.0, 1.0));
    let call = |method: &str, code: &str| {
        told[&format!("weir_controller_calls_total{{method=\"weir.v1.IntentService/{method}\",code=\"{code}\"}}")]
    };
    assert_eq!((call("CreateIntent", "OK"), call("GetIntent", "NOT_FOUND")), (1.0, 1.0));
    assert!(told["weir_controller_call_seconds_count"] >= 2.0);
    assert!(told["weir_controller_plan_seconds_count"] >= 2.0, "both nodes accepted a plan");
    assert!(told["weir_store_seen_age_seconds"] < 10.0);
    // Each is documented, and each that is documented is served.
    let served = [agent, controller].map(|address| get(address, "/metrics", "text/plain").1).concat();
    let types = served.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next().map(str::to_owned));
    assert_eq!(types.collect::<std::collections::BTreeSet<_>>(), crate::docs_metrics::documented());
    for address in [agent, controller] {
        assert_eq!(get(address, "/livez", "*/*"), (200, "ok\n".into()));
        assert_eq!(get(address, "/readyz", "*/*"), (200, "ok\n".into()));
        let (_, open) = get(address, "/metrics", "application/openmetrics-text; version=1.0.0");
        assert!(open.ends_with("# EOF\n"), "{open}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn promtool_finds_nothing_to_say_about_the_metrics() {
    if !require::on_path("promtool") {
        let missing = ["promtool (Debian: prometheus; ./test installs it)".to_owned()];
        require::met("promtool_finds_nothing_to_say_about_the_metrics", &missing);
        return;
    }
    let Fleet { agent, controller, mut clients, _controller, simulation, _scratch } = start().await;
    let intent = fleet::read_limit("a", "/sim/w1", Path::new("/dev/nvme0n1"), Some(1 << 20));
    clients.intents.create_intent(fleet::create(intent)).await.unwrap();
    simulation.until("it is held", SOON, |total| total.settings_held == 2).await.unwrap();
    for address in [agent, controller] {
        let (_, body) = get(address, "/metrics", "text/plain");
        let mut promtool = Command::new("promtool")
            .args(["check", "metrics"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        promtool.stdin.take().unwrap().write_all(body.as_bytes()).unwrap();
        let out = promtool.wait_with_output().unwrap();
        let said = [out.stdout, out.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        assert!(out.status.success() && said.trim().is_empty(), "{said}\n{body}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_whose_store_is_away_is_alive_and_not_ready() {
    if !etcd::controllers_can("a_controller_whose_store_is_away_is_alive_and_not_ready") {
        return;
    }
    let etcd = Etcd::start();
    let scratch = Scratch::new();
    let ops = free();
    let more = ["--store", &etcd.location("/w"), "--ops-listen", &ops.to_string()];
    let (_controller, _) = fleet::controller_with(&scratch.path(), "127.0.0.1:0", &more).unwrap();
    assert_eq!(get(ops, "/readyz", "*/*").0, 200);
    etcd.pause(0);
    let began = Instant::now();
    loop {
        let (status, why) = get(ops, "/readyz", "*/*");
        assert_eq!(get(ops, "/livez", "*/*").0, 200);
        if status == 503 {
            assert!(why.contains("the store has not answered"), "{why}");
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(40), "still ready");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    etcd.resume(0);
    eventually("ready again", SOON, || async { (get(ops, "/readyz", "*/*").0 == 200).then_some(()) }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_is_taken_is_an_error_only_where_it_was_asked_for() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let scratch = Scratch::new();
    let more = ["--ops-listen", &taken.local_addr().unwrap().to_string()];
    let error = fleet::controller_with(&scratch.path(), "127.0.0.1:0", &more).unwrap_err().to_string();
    assert!(error.contains("--ops-listen"), "{error}");
    // A second one on this machine goes on without.
    let dirs = ["one", "two"].map(|name| scratch.path().join(name));
    let started = dirs.map(|dir| {
        std::fs::create_dir(&dir).unwrap();
        fleet::controller(&dir, "127.0.0.1:0").unwrap().0
    });
    for daemon in &started {
        daemon.signal(Signal::TERM);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_prometheus_scrapes_both() {
    if !require::on_path("prometheus") {
        require::met(
            "a_real_prometheus_scrapes_both",
            &["prometheus (Debian: prometheus; ./test installs it)".to_owned()],
        );
        return;
    }
    let Fleet { agent, controller, mut clients, _controller, simulation, _scratch } = start().await;
    let intent = fleet::read_limit("a", "/sim/w1", Path::new("/dev/nvme0n1"), Some(1 << 20));
    clients.intents.create_intent(fleet::create(intent)).await.unwrap();
    simulation.until("it is held", SOON, |total| total.settings_held == 2).await.unwrap();

    let dir = _scratch.path().join("prometheus");
    std::fs::create_dir(&dir).unwrap();
    let config = format!(
        "global: {{ scrape_interval: 1s }}\nscrape_configs:\n- job_name: weir\n  static_configs: [{{ targets: ['{agent}', \
         '{controller}'] }}]\n"
    );
    std::fs::write(dir.join("prometheus.yml"), config).unwrap();
    let api = free();
    let log = std::fs::File::create(dir.join("log")).unwrap();
    let mut prometheus = Command::new("prometheus")
        .arg(format!("--config.file={}", dir.join("prometheus.yml").display()))
        .arg(format!("--storage.tsdb.path={}", dir.join("data").display()))
        .arg(format!("--web.listen-address={api}"))
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap();
    let began = Instant::now();
    let answered = loop {
        let up = TcpStream::connect_timeout(&api, Duration::from_secs(1)).is_ok();
        let answer = if up { get(api, "/api/v1/query?query=weir_limit_effective", "*/*").1 } else { String::new() };
        let nodes = if up { get(api, "/api/v1/query?query=weir_nodes", "*/*").1 } else { String::new() };
        if answer.contains("1048576") && nodes.contains("connected") {
            break Ok(());
        }
        if began.elapsed() > Duration::from_secs(40) {
            break Err(format!("{answer}\n{nodes}"));
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    };
    prometheus.kill().unwrap();
    prometheus.wait().unwrap();
    answered.unwrap();
}
