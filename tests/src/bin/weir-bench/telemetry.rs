//! What telemetry shows, and what it costs: traces of changes as a collector receives them, and the time that an agent with
//! traces and scrapes takes beyond two without, all at once, each with 500 modelled workloads.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use serde_json::json;
use weir_proto::v1;
use weir_tests::{
    collector::{Collector, Trace},
    fleet::{self, AGENT_READY, Clients, Scratch},
    process::{Daemon, binary},
};

use super::Outcome;

/// Cgroups of each modelled node.
const WORKLOADS: usize = 500;
/// Time between changes: a thousand spans come with each, and a queue that is full drops what comes next.
const PACE: Duration = Duration::from_secs(1);
/// Until everything is as it should be.
const SOON: Duration = Duration::from_secs(60);
/// What telemetry may add to an agent at rest, percent of a core.
const MOST_ADDED_PERCENT: f64 = 0.1;

/// Arguments.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Time at rest, seconds.
    #[arg(long, default_value_t = 120, value_parser = clap::value_parser!(u64).range(10..))]
    rest_s: u64,
    /// Time between scrapes of the traced agent, seconds; 15 is common for Prometheus.
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..))]
    scrape_s: u64,
    /// Changes that are traced.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    changes: u64,
}

struct Agent {
    daemon: Daemon,
    ops: SocketAddr,
}

impl Agent {
    fn start(name: &str, dir: &Path, controller: &str, collector: Option<SocketAddr>) -> anyhow::Result<Agent> {
        let dir = dir.join(name);
        std::fs::create_dir(&dir)?;
        // It is taken by the agent at once; another program could be faster, and the agent then says so.
        let ops = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let mut command = Command::new(binary("weir-agent"));
        command.args(["--simulate", "1", "--node", name, "--controller", &format!("http://{controller}")]);
        command.args(["--simulate-workloads", &WORKLOADS.to_string(), "--ops-listen", &ops.to_string()]);
        command.arg("--state-dir").arg(dir.join("state"));
        if let Some(collector) = collector {
            command.env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{collector}"));
        }
        let daemon = Daemon::start_command(command, AGENT_READY, &dir.join("log"))?;
        Ok(Agent { daemon, ops })
    }

    /// Time on CPUs so far, of all its threads.
    fn cpu(&self) -> anyhow::Result<Duration> {
        let mut sum = 0;
        for task in std::fs::read_dir(format!("/proc/{}/task", self.daemon.pid()))? {
            let text = std::fs::read_to_string(task?.path().join("schedstat"))?;
            sum += text.split(' ').next().and_then(|ns| ns.parse::<u64>().ok()).context("schedstat has a time")?;
        }
        Ok(Duration::from_nanos(sum))
    }

    fn scrape(&self) -> anyhow::Result<String> {
        let mut stream = TcpStream::connect(self.ops)?;
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    }
}

async fn applied(clients: &Clients, generation: i64) -> anyhow::Result<()> {
    let deadline = Instant::now() + SOON;
    loop {
        let request = v1::GetIntentRequest { name: fleet::full("all") };
        let intent = clients.clone().intents.get_intent(request).await?.into_inner();
        let status = intent.status.unwrap_or_default();
        if intent.generation == generation && status.nodes_applied == 3 {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "not applied within {SOON:?}: {status:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub(crate) async fn run(args: Args) -> anyhow::Result<Outcome> {
    let Args { rest_s, scrape_s, changes } = args;
    let scratch = Scratch::new();
    let dir = scratch.path();
    let collector = Collector::start(Duration::ZERO).await?;
    let mut command = Command::new(binary("weir-controller"));
    command.args(["--listen", "127.0.0.1:0", "--ops-listen", "off", "--store"]).arg(dir.join("store.redb"));
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{}", collector.address));
    let controller = Daemon::start_command(command, "listening on ", &dir.join("controller.log"))?;
    let address = controller.ready.rsplit(' ').next().unwrap_or_default().to_owned();
    let told = Agent::start("told", &dir, &address, Some(collector.address))?;
    let plain = [Agent::start("plain1", &dir, &address, None)?, Agent::start("plain2", &dir, &address, None)?];
    let mut clients = Clients::connect(&address).await?;
    let intent = |value: u64| fleet::read_limit("all", "/sim/*", Path::new("/dev/nvme0n1"), i64::try_from(value).ok());
    clients.intents.create_intent(fleet::create(intent(1 << 20))).await?;
    applied(&clients, 1).await?;

    println!("three agents at rest for {rest_s} s, {WORKLOADS} workloads each, one of them traced and scraped");
    let before = [told.cpu()?, plain[0].cpu()?, plain[1].cpu()?];
    let began = Instant::now();
    let mut scraped = String::new();
    while began.elapsed() < Duration::from_secs(rest_s) {
        scraped = told.scrape()?;
        tokio::time::sleep(Duration::from_secs(scrape_s)).await;
    }
    let rest = began.elapsed();
    let percent = |agent: &Agent, before: Duration| -> anyhow::Result<f64> {
        Ok((agent.cpu()? - before).as_secs_f64() / rest.as_secs_f64() * 100.0)
    };
    let cpu = [percent(&told, before[0])?, percent(&plain[0], before[1])?, percent(&plain[1], before[2])?];
    let added = cpu[0] - f64::midpoint(cpu[1], cpu[2]);
    let noise = (cpu[1] - cpu[2]).abs();
    let series = scraped.lines().filter(|line| line.starts_with("weir_")).count();

    println!("{changes} changes, each of {WORKLOADS} settings on each agent");
    for change in 0..changes {
        let generation = 2 + i64::try_from(change)?;
        let update = v1::UpdateIntentRequest { intent: Some(intent((2 + change) << 20)), ..Default::default() };
        clients.intents.update_intent(update).await?;
        applied(&clients, generation).await?;
        tokio::time::sleep(PACE).await;
    }
    let deadline = Instant::now() + SOON;
    let (whole, orphans, depth, spans) = loop {
        let all = collector.spans();
        let roots = all.iter().filter(|span| span.name == "weir.v1.IntentService/UpdateIntent");
        let of = |id: &str| Trace(all.iter().filter(|span| span.trace == id).cloned().collect());
        let traces: Vec<Trace> = roots.map(|root| of(&root.trace)).collect();
        let whole = traces.iter().filter(|trace| trace.named("kernel.write").count() == WORKLOADS).count();
        let whole = u64::try_from(whole)?;
        let orphans: usize = traces.iter().map(|trace| trace.orphans().len()).sum();
        if (whole == changes && orphans == 0) || Instant::now() > deadline {
            let depth = traces.iter().map(Trace::depth).max().unwrap_or(0);
            break (whole, orphans, depth, traces.iter().map(|trace| trace.0.len()).sum::<usize>());
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    };
    let pass = whole == changes && orphans == 0 && added <= MOST_ADDED_PERCENT;
    let row = |what: &str, figure: String, threshold: String| (what.to_owned(), figure, threshold);
    Ok(Outcome {
        rows: vec![
            row("changes with one whole trace", whole.to_string(), changes.to_string()),
            row("spans without their parent", orphans.to_string(), "0".to_owned()),
            row("spans from the call to the write", depth.to_string(), String::new()),
            row("spans in these traces", spans.to_string(), String::new()),
            row("agent at rest, % of a core, with telemetry", format!("{:.3}", cpu[0]), String::new()),
            row("the same without, first", format!("{:.3}", cpu[1]), String::new()),
            row("the same without, second", format!("{:.3}", cpu[2]), String::new()),
            row("added, % of a core", format!("{added:.3}"), format!("<= {MOST_ADDED_PERCENT}")),
            row(&format!("metric series at {WORKLOADS} workloads"), series.to_string(), String::new()),
        ],
        json: json!({
            "bench": "telemetry",
            "workloads": WORKLOADS,
            "rest_s": rest.as_secs_f64(),
            "scrape_s": scrape_s,
            "figures": {
                "changes": changes, "whole_traces": whole, "orphans": orphans, "depth": depth, "spans": spans,
                "cpu_percent_with": cpu[0], "cpu_percent_without": [cpu[1], cpu[2]],
                "added_percent": added, "noise_percent": noise, "series": series,
            },
            "thresholds": { "whole_traces": changes, "orphans": 0, "added_percent": MOST_ADDED_PERCENT },
            "pass": pass,
        }),
        pass,
    })
}
