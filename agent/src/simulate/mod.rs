//! Many modelled nodes in one process (`weir-agent --simulate N`), for tests, benches and whoever wants to see a fleet. Each has
//! the parts of a real agent (link, acceptance of plans, resolve, enforcement, ledger) on a fake kernel; one thread samples for
//! all. Touches the state directory and the network; no kernel file, and needs no root.

pub mod model;
pub mod observer;
pub mod report;

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::{mpsc, oneshot, watch},
};
use tokio_util::sync::CancellationToken;
use weir_common::{
    ops::{self, Addressed},
    tasks::{OnDeath, TaskSet, shutdown_on_signals},
    telemetry,
    tls::Remote,
    units::Floor,
};

use crate::{
    config::{Options, SimulateOptions, is_node_name},
    devices::DeviceSnapshot,
    enforce::{Enforcer, report::Report},
    kernel::CgroupVersion,
    ledger::Ledger,
    link::{self, Identity, Link, STALL_MARGIN, state::LinkState},
    measure::Meter,
    ops::AgentOps,
    reconcile::{NodeFacts, Reconciler},
    resolve::NodeSettings,
    trace,
};

use model::ModelNode;
use observer::Observer;
use report::Reporter;

/// What tasks get to end in order.
const GRACE: Duration = Duration::from_millis(1500);
/// Stack of a thread, bytes: each node has one for its loop.
const STACK: usize = 1 << 20;
/// Threads that may block besides the loops.
const MORE_THREADS: usize = 64;
/// Name before the numbers, without --node.
const PREFIX: &str = "sim";

/// A node that runs.
struct Node {
    name: String,
    model: ModelNode,
    observer: Observer,
    meter: Meter,
    reports: watch::Receiver<Arc<Report>>,
    link: watch::Receiver<LinkState>,
}

/// What all nodes have in common.
struct Common {
    controllers: Vec<Remote>,
    state_dir: PathBuf,
    labels: Vec<(String, String)>,
    settings: NodeSettings,
    period: Duration,
    devices: u8,
    workloads: u16,
    /// Names the present life of the fake kernels, which end with this process.
    boot_id: String,
    shutdown: CancellationToken,
}

/// Runs a simulation until a signal ends it; `count` is how many nodes there are.
///
/// # Errors
/// It could not be started, or a part of it died.
pub fn run(options: Options, count: u16) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_stack_size(STACK)
        .max_blocking_threads(usize::from(count) + MORE_THREADS)
        .build()
        .context("start the runtime")?;
    runtime.block_on(simulate(options, count))
}

#[allow(clippy::print_stdout, reason = "the line of readiness is for whoever started it")]
async fn simulate(options: Options, count: u16) -> anyhow::Result<()> {
    let traces = telemetry::init(options.log_format, Some(trace::service(&uuid::Uuid::new_v4().to_string())))?;
    let period = options.period();
    let Options {
        controller,
        tls,
        node,
        state_dir,
        labels,
        cgroup_root: _,
        host_root: _,
        period_ms: _,
        floor_bytes_per_second: bytes_per_second,
        floor_operations_per_second: operations_per_second,
        ops_listen,
        simulate: SimulateOptions { simulate: _, simulate_report, simulate_devices, simulate_workloads },
        log_format: _,
    } = options;
    let prefix = node.unwrap_or_else(|| PREFIX.to_owned());
    ensure!(is_node_name(&format!("{prefix}-0001")), "`{prefix}` cannot begin a node's name (a-z, 0-9, `-`, `.`)");
    let mut reporter = Reporter::open(simulate_report.as_deref()).context("open the report of the simulation")?;
    let shutdown = shutdown_on_signals()?;
    let common = Common {
        controllers: link::remotes(&controller, tls)?,
        state_dir,
        labels,
        settings: NodeSettings { floor: Floor { bytes_per_second, operations_per_second }, version: CgroupVersion::V2 },
        period,
        devices: simulate_devices,
        workloads: simulate_workloads,
        boot_id: uuid::Uuid::new_v4().to_string(),
        shutdown: shutdown.clone(),
    };
    let mut tasks = TaskSet::new(shutdown.clone());
    let mut nodes = Vec::new();
    let mut ready = Vec::new();
    for number in 1..=count {
        let (node, first_pass) = start(&common, format!("{prefix}-{number:04}"), &mut tasks)?;
        nodes.push(node);
        ready.push(first_pass);
    }
    let meters: Vec<Meter> = nodes.iter().map(|node| node.meter.clone()).collect();
    let sampling = shutdown.clone();
    tasks.spawn("sampler", OnDeath::EndProcess, async move { sample(meters, period, sampling).await });
    for first_pass in ready {
        // A loop that died ends the process through its task.
        let _died = first_pass.await;
    }
    // Of one node: what many say together would be no agent's metrics.
    if let (Some(Addressed(Some(address))), Some(node)) = (ops_listen, nodes.first()) {
        let answers = AgentOps {
            node: node.name.clone(),
            reports: node.reports.clone(),
            link: node.link.clone(),
            meter: node.meter.clone(),
            pass_within: period * 3 + STALL_MARGIN,
            started: Instant::now(),
        };
        let listener = ops::bind(Some(Addressed(Some(address))), 0).await?;
        if let Some(listener) = listener {
            tasks.spawn("ops", OnDeath::EndProcess, ops::serve(listener, Arc::new(answers), shutdown.clone()));
        }
    }
    // Before the line of readiness: until then the signal would end the process.
    let mut asked = signal(SignalKind::user_defined1()).context("install the handler of SIGUSR1")?;
    println!("weir-agent running node={prefix} simulate={count}");

    let ending = shutdown.clone();
    tasks.spawn("report", OnDeath::EndProcess, async move {
        let mut ticks = tokio::time::interval(Duration::from_secs(1));
        loop {
            tokio::select! {
                _ = ticks.tick() => reporter.totals(&nodes),
                _ = asked.recv() => reporter.nodes(&nodes),
                () = ending.cancelled() => break,
            }
        }
        reporter.totals(&nodes);
        reporter.nodes(&nodes);
        Ok::<(), std::convert::Infallible>(())
    });
    let ended = tasks.run(GRACE).await;
    traces.end().await;
    Ok(ended?)
}

/// Starts one node: as `main` does for a real one, but on a model.
fn start(common: &Common, name: String, tasks: &mut TaskSet) -> anyhow::Result<(Node, oneshot::Receiver<()>)> {
    let Common { controllers, state_dir, labels, settings, period, devices, workloads, boot_id, shutdown } = common;
    let model = ModelNode::new(&name, *devices, *workloads);
    let kernel = model.kernel();
    let (ledger, quarantined) = Ledger::open(&state_dir.join(&name), boot_id)?;
    let observer = Observer::default();
    observer.acts_upon(ledger.plan().map(|plan| plan.fence));
    let facts = NodeFacts {
        labels: labels.iter().cloned().collect(),
        kernel_release: "simulated".to_owned(),
        node: *settings,
        devices: DeviceSnapshot::default(),
    };
    let identity = Identity {
        node: name.clone(),
        node_uid: ledger.node_uid().to_owned(),
        instance: uuid::Uuid::new_v4().to_string(),
        boot_id: boot_id.clone(),
    };
    let meter = Meter::unattended(kernel.clone(), *period);
    let (facts_out, facts_in) = watch::channel(facts);
    let (reports_out, reports_in) = watch::channel(Arc::new(Report::default()));
    let (from_link_out, from_link) = mpsc::channel(16);
    let (to_loop, commands) = mpsc::channel(16);
    let (ready_out, ready_in) = oneshot::channel();
    let (first_pass_out, first_pass) = oneshot::channel();
    let (state, link_state) = watch::channel(LinkState::default());
    let reconciler = Reconciler {
        enforcer: Enforcer::new(kernel, ledger),
        meter: meter.clone(),
        view: Box::new(model.clone()),
        node: *settings,
        period: *period,
        quarantined,
        facts: facts_out,
        reports: reports_out,
    };
    let stop = shutdown.clone();
    tasks.spawn("reconcile", OnDeath::EndProcess, async move {
        let ready = move || {
            let _gone = ready_out.send(());
        };
        tokio::task::spawn_blocking(move || reconciler.run(commands, &stop, ready)).await
    });
    let node = Node {
        name,
        model,
        observer: observer.clone(),
        meter: meter.clone(),
        reports: reports_in.clone(),
        link: link_state,
    };
    tasks.spawn("observe", OnDeath::Continue, async move {
        observer.relay(from_link, to_loop).await;
        Ok::<(), std::convert::Infallible>(())
    });
    let link = Link {
        controllers: controllers.clone(),
        identity,
        commands: from_link_out,
        facts: facts_in,
        reports: reports_in,
        pass_within: *period * 3 + STALL_MARGIN,
        meter,
        state,
    };
    let stop = shutdown.clone();
    tasks.spawn("link", OnDeath::EndProcess, async move {
        // The first pass comes first: its report goes with the hello.
        if ready_in.await.is_ok() {
            let _gone = first_pass_out.send(());
        }
        link.run(stop).await
    });
    Ok((node, first_pass))
}

/// Samples for all nodes, one after the other, each period.
async fn sample(
    meters: Vec<Meter>,
    period: Duration,
    shutdown: CancellationToken,
) -> Result<(), tokio::task::JoinError> {
    let meters = Arc::new(meters);
    let mut ticks = tokio::time::interval(period);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = shutdown.cancelled() => return Ok(()),
        }
        let meters = Arc::clone(&meters);
        tokio::task::spawn_blocking(move || meters.iter().for_each(Meter::sample)).await?;
    }
}
