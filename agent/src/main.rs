//! Wiring of the agent: parts are made here and put together, nothing else.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the line of readiness, and the table of a release, are for whoever started it"
)]

use std::{
    path::Path,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use clap::Parser as _;
use tokio::sync::{mpsc, watch};
use weir_agent::{
    config::{Cli, Command, Options, is_node_name},
    devices::DeviceSnapshot,
    enforce::{Enforcer, report::Report},
    kernel::{CgroupVersion, Kernel, hierarchy, real::RealKernel, sole::SoleAgent},
    ledger::{Ledger, OpenError, Quarantine},
    link::{self, Identity, Link, STALL_MARGIN, state::LinkState},
    measure::Meter,
    ops::AgentOps,
    reconcile::{self, NodeFacts, Reconciler},
    resolve::NodeSettings,
    simulate, trace,
    view::Machine,
};
use weir_common::{
    errors::chain,
    ops,
    tasks::{OnDeath, TaskSet, shutdown_on_signals},
    telemetry,
    units::Floor,
};

/// Port for metrics and health, where none is given.
const OPS_PORT: u16 = 7422;

/// What tasks get to end in order.
const GRACE: Duration = Duration::from_millis(1500);

fn main() -> ExitCode {
    let Cli { options, command } = Cli::parse();
    let outcome = match command {
        Some(Command::Release) => release(&options),
        None if let Some(count) = options.simulate.simulate => {
            simulate::run(options, count).map(|()| ExitCode::SUCCESS)
        }
        None => run(options).map(|()| ExitCode::SUCCESS),
    };
    outcome.unwrap_or_else(|error| {
        let text = chain(error.as_ref());
        if tracing::dispatcher::has_been_set() {
            tracing::error!("{text}");
        } else {
            // It is about the log itself, or came before.
            eprintln!("weir-agent: {text}");
        }
        ExitCode::FAILURE
    })
}

/// What a start of the agent, or a release, stands on.
struct Opened {
    kernel: Arc<dyn Kernel>,
    ledger: Ledger,
    quarantined: Vec<Quarantine>,
    boot_id: String,
    sole: SoleAgent,
}

/// Opens or makes a ledger: `Ledger::open` or `Ledger::open_present`.
type OpenLedger = fn(&Path, &str) -> Result<(Ledger, Vec<Quarantine>), OpenError>;

fn open(options: &Options, open_ledger: OpenLedger) -> anyhow::Result<Opened> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "weir-agent must run as root: the throttle files can be written by nobody else"
    );
    ensure!(options.host_root.is_dir(), "--host-root {} is no directory", options.host_root.display());
    let hierarchy = hierarchy::find(options.cgroup_root.as_deref())?;
    let root = hierarchy.root.clone();
    let sole = SoleAgent::take(&hierarchy)?;
    let kernel = RealKernel::open(hierarchy).with_context(|| format!("open {}", root.display()))?;
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").context("read the boot id")?;
    let boot_id = boot_id.trim().to_owned();
    let (ledger, quarantined) = open_ledger(&options.state_dir, &boot_id)?;
    for set_aside in &quarantined {
        tracing::error!(cause = set_aside.cause, kept_as = %set_aside.kept_as.display(), "a damaged file is set aside");
    }
    Ok(Opened { kernel: Arc::new(kernel), ledger, quarantined, boot_id, sole })
}

fn release(options: &Options) -> anyhow::Result<ExitCode> {
    telemetry::init(options.log_format, None)?;
    let Opened { kernel, ledger, sole: _sole, .. } = open(options, Ledger::open_present)?;
    let lost = ledger.journal_lost();
    let released = reconcile::release(kernel.clone(), ledger, &Machine::new(kernel, &options.host_root))?;
    for setting in &released {
        let mark = if setting.done { "ok    " } else { "FAILED" };
        println!("{mark} {}: {}", setting.key, setting.outcome);
    }
    let failed = released.iter().filter(|setting| !setting.done).count();
    let given_up = released.len() - failed;
    println!("{given_up} {} given up, {failed} failed", if given_up == 1 { "setting" } else { "settings" });
    if lost {
        println!("FAILED the journal was lost: limits that this agent wrote may be left, clear them by hand or reboot");
    }
    Ok(if failed == 0 && !lost { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[tokio::main]
async fn run(options: Options) -> anyhow::Result<()> {
    let instance = uuid::Uuid::new_v4().to_string();
    let traces = telemetry::init(options.log_format, Some(trace::service(&instance)))?;
    let Opened { kernel, ledger, quarantined, boot_id, sole: _sole } = open(&options, Ledger::open)?;
    let period = options.period();
    let Options {
        controller,
        tls,
        node,
        state_dir,
        labels,
        cgroup_root: _,
        host_root,
        period_ms: _,
        floor_bytes_per_second: bytes_per_second,
        floor_operations_per_second: operations_per_second,
        ops_listen,
        simulate: _,
        log_format: _,
    } = options;
    let started = Instant::now();
    let ops_listener = ops::bind(ops_listen, OPS_PORT).await?;
    let uname = rustix::system::uname();
    let node = node.unwrap_or_else(|| uname.nodename().to_string_lossy().to_lowercase());
    ensure!(is_node_name(&node), "`{node}` is no node name (a-z, 0-9, `-`, `.`); give one with --node");
    let controllers = link::remotes(&controller, tls)?;
    let settings = NodeSettings { floor: Floor { bytes_per_second, operations_per_second }, version: kernel.version() };
    let facts = NodeFacts {
        labels: labels.into_iter().collect(),
        kernel_release: uname.release().to_string_lossy().into_owned(),
        node: settings,
        devices: DeviceSnapshot::default(),
    };
    let identity = Identity { node: node.clone(), node_uid: ledger.node_uid().to_owned(), instance, boot_id };

    let shutdown = shutdown_on_signals()?;
    let meter = Meter::start(kernel.clone(), period).context("start the sampler")?;
    let (facts_out, facts_in) = watch::channel(facts);
    let (reports_out, reports_in) = watch::channel(Arc::new(Report::default()));
    let (commands_out, commands_in) = mpsc::channel(16);
    let (ready_out, ready_in) = tokio::sync::oneshot::channel();
    let reconciler = Reconciler {
        enforcer: Enforcer::new(kernel.clone(), ledger),
        meter: meter.clone(),
        view: Box::new(Machine::new(kernel, &host_root)),
        node: settings,
        period,
        quarantined,
        facts: facts_out,
        reports: reports_out,
    };
    let mut tasks = TaskSet::new(shutdown.clone());
    let stop = shutdown.clone();
    tasks.spawn("reconcile", OnDeath::EndProcess, async move {
        // Whoever waits for readiness may be gone.
        let ready = move || {
            let _gone = ready_out.send(());
        };
        tokio::task::spawn_blocking(move || reconciler.run(commands_in, &stop, ready)).await
    });
    let (state, link_state) = watch::channel(LinkState::default());
    if let Some(listener) = ops_listener {
        let answers = AgentOps {
            node: node.clone(),
            reports: reports_in.clone(),
            link: link_state.clone(),
            meter: meter.clone(),
            pass_within: period * 3 + STALL_MARGIN,
            started,
        };
        let address = listener.local_addr().context("ask for the address of metrics and health")?;
        tracing::info!(%address, "metrics and health are served");
        tasks.spawn("ops", OnDeath::EndProcess, ops::serve(listener, Arc::new(answers), shutdown.clone()));
    }
    tasks.spawn("link-state", OnDeath::Continue, link::state::keep(state_dir, link_state));
    let link = Link {
        controllers,
        identity,
        commands: commands_out,
        facts: facts_in,
        reports: reports_in,
        pass_within: period * 3 + STALL_MARGIN,
        meter,
        state,
    };
    let version = if settings.version == CgroupVersion::V1 { "v1" } else { "v2" };
    let stop = shutdown.clone();
    tasks.spawn("link", OnDeath::EndProcess, async move {
        // The first pass comes first: its report goes with the hello.
        if ready_in.await.is_ok() {
            println!("weir-agent running node={node} cgroup={version}");
        }
        link.run(stop).await
    });
    let ended = tasks.run(GRACE).await;
    traces.end().await;
    Ok(ended?)
}
