//! Controllers fail while intents change. What is judged comes from three sides: what the API acknowledged, what the modelled
//! kernels hold, and what an observer beside each agent saw.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use clap::ValueEnum;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use weir_proto::v1::{self, byte_rate_limit::Limit};
use weir_tests::{
    fleet::{self, Clients, Scratch},
    sim::Simulation,
};

use super::{
    Missing, Outcome,
    cluster::{Cluster, programs},
    timeline::Timeline,
};

/// Intents that change in turn, one for each modelled workload.
const INTENTS: usize = 3;
/// The values of an intent rise by this much, from this on; bytes per second.
const STEP: u64 = 64 << 10;
/// A call that takes longer is tried at another controller.
const CALL: Duration = Duration::from_secs(3);
/// Least time between looks at all kernels, which is in the time to converge.
const LOOK: Duration = Duration::from_millis(200);
/// After the last fault everything must be as stored within this time.
const SETTLE: Duration = Duration::from_secs(90);
/// Time of undisturbed change around the faults.
const CALM: Duration = Duration::from_secs(5);
const DOWN: Duration = Duration::from_secs(3);
/// Long enough for keep-alives to give a stopped controller up.
const STOPPED: Duration = Duration::from_secs(20);
/// The only controller is stopped for less: nothing else could serve meanwhile.
const STOPPED_ALONE: Duration = Duration::from_secs(8);
/// A file system in memory.
const MEMORY: &str = "/dev/shm";
/// Thresholds of the time to converge, seconds: the second covers a stopped controller, which is given up within 15 s.
const P50_S: f64 = 1.0;
const MAX_S: f64 = 30.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Store {
    /// One controller with an embedded store, killed and restarted.
    Embedded,
    /// Several controllers on one etcd.
    Etcd,
}

/// Arguments.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// What holds desired state; etcd where it is at hand and the controller was built with it, else the embedded store.
    #[arg(long, value_enum)]
    store: Option<Store>,
    /// Controllers, on etcd.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=9))]
    controllers: u16,
    /// Modelled nodes.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u16).range(1..=5000))]
    agents: u16,
    /// Time between changes, milliseconds.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(10..))]
    pace_ms: u64,
    /// One round of faults instead of three.
    #[arg(long)]
    quick: bool,
}

fn path_of(intent: usize) -> String {
    format!("/sim/w{}", intent + 1)
}

fn intent(number: usize, value: u64) -> anyhow::Result<v1::Intent> {
    let (id, value) = (format!("bench-{number}"), i64::try_from(value)?);
    Ok(fleet::read_limit(&id, &path_of(number), Path::new("/dev/nvme0n1"), Some(value)))
}

fn value_of(intent: &v1::Intent) -> Option<u64> {
    let limits = intent.spec.as_ref()?.controls.as_ref()?.limits.as_ref()?;
    match limits.rbps.as_ref()?.limit.as_ref()? {
        Limit::BytesPerSecond(value) => u64::try_from(*value).ok(),
        _ => None,
    }
}

/// Changes intents, one call at a time, by whichever controller answers.
struct Editor {
    addresses: Vec<String>,
    at: usize,
    clients: Option<Clients>,
    /// The etag of each intent as it was last seen; without one it is to be looked up.
    etags: Vec<Option<String>>,
    /// The highest value that was tried.
    tried: Vec<u64>,
    failed_calls: u64,
    /// Times that a look found less than what had been acknowledged.
    lost: u64,
}

impl Editor {
    fn new(addresses: Vec<String>) -> Editor {
        let (etags, tried) = (vec![None; INTENTS], vec![0; INTENTS]);
        Editor { addresses, at: 0, clients: None, etags, tried, failed_calls: 0, lost: 0 }
    }

    async fn clients(&mut self) -> anyhow::Result<Clients> {
        if self.clients.is_none() {
            let address = &self.addresses[self.at % self.addresses.len()];
            self.clients = Some(tokio::time::timeout(CALL, Clients::connect(address)).await??);
        }
        self.clients.clone().context("connected")
    }

    /// Where the outcome of a call is unknown, the next one goes elsewhere and looks first.
    fn failed(&mut self, number: usize) {
        self.failed_calls += 1;
        self.at += 1;
        self.clients = None;
        self.etags[number] = None;
    }

    /// The intent as a controller has it, which may lack nothing of what was `acknowledged`; `None` where there is none.
    async fn look_up(&mut self, number: usize, acknowledged: Option<u64>) -> anyhow::Result<Option<v1::Intent>> {
        let mut clients = self.clients().await?;
        let request = v1::GetIntentRequest { name: fleet::full(&format!("bench-{number}")) };
        let found = match tokio::time::timeout(CALL, clients.intents.get_intent(request)).await? {
            Ok(found) => Some(found.into_inner()),
            Err(status) if status.code() == tonic::Code::NotFound => None,
            Err(status) => return Err(status.into()),
        };
        let holds = found.as_ref().and_then(value_of);
        if acknowledged > holds {
            println!("LOST bench-{number}: {acknowledged:?} was acknowledged, and {holds:?} is there");
            self.lost += 1;
        }
        Ok(found)
    }

    /// Makes the intent, or changes it under its etag, so that a call that a stopped controller still holds cannot undo a later
    /// one. Returns the value that was acknowledged.
    async fn try_change(&mut self, number: usize, acknowledged: Option<u64>) -> anyhow::Result<u64> {
        if self.etags[number].is_none() && self.tried[number] > 0 {
            self.etags[number] = self.look_up(number, acknowledged).await?.map(|found| found.etag);
        }
        let value = self.tried[number] + STEP;
        self.tried[number] = value;
        let mut intent = intent(number, value)?;
        let mut clients = self.clients().await?;
        let stored = match self.etags[number].take() {
            None => tokio::time::timeout(CALL, clients.intents.create_intent(fleet::create(intent))).await??,
            Some(etag) => {
                intent.etag = etag;
                let request = v1::UpdateIntentRequest { intent: Some(intent), ..Default::default() };
                tokio::time::timeout(CALL, clients.intents.update_intent(request)).await??
            }
        };
        self.etags[number] = Some(stored.into_inner().etag);
        Ok(value)
    }

    async fn run(mut self, timeline: Arc<Mutex<Timeline>>, pace: Duration, stop: CancellationToken) -> Editor {
        let mut ticks = tokio::time::interval(pace);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        for number in (0..INTENTS).cycle() {
            ticks.tick().await;
            if stop.is_cancelled() {
                break;
            }
            let acknowledged = lock(&timeline).last(number);
            match self.try_change(number, acknowledged).await {
                Ok(value) => lock(&timeline).acknowledged(number, value, Instant::now()),
                Err(_) => self.failed(number),
            }
        }
        self
    }
}

fn lock(timeline: &Mutex<Timeline>) -> std::sync::MutexGuard<'_, Timeline> {
    timeline.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Looks at all kernels until told to stop.
fn look(simulation: &Simulation, timeline: &Mutex<Timeline>, stop: &CancellationToken) -> anyhow::Result<()> {
    while !stop.is_cancelled() {
        let began = Instant::now();
        let nodes = simulation.nodes()?;
        let at = Instant::now();
        for number in 0..INTENTS {
            let key = format!("{} 259:0", path_of(number));
            let held = |node: &weir_tests::sim::Node| node.limits.get(&key)?.get("rbps").copied();
            let lowest = nodes.iter().map(|node| held(node).unwrap_or(0)).min().unwrap_or(0);
            lock(timeline).all_hold(number, lowest, at);
        }
        // Looking is not to take more than a quarter of the time.
        std::thread::sleep(LOOK.max(3 * (at - began)));
    }
    Ok(())
}

async fn faults(cluster: &mut Cluster, rounds: usize) -> anyhow::Result<()> {
    for round in 1..=rounds {
        tokio::time::sleep(CALM).await;
        let leader = cluster.leader();
        println!("round {round}: kill -9 of controller {}", leader + 1);
        cluster.kill(leader);
        tokio::time::sleep(DOWN).await;
        // Another one than that is stopped while it is still down, where there are enough.
        let other = (leader + round) % cluster.len();
        if other != leader {
            println!("round {round}: SIGSTOP of controller {}", other + 1);
            cluster.stop(other);
            tokio::time::sleep(DOWN).await;
        }
        cluster.restart(leader)?;
        if other == leader {
            tokio::time::sleep(CALM).await;
            println!("round {round}: SIGSTOP of controller {}", other + 1);
            cluster.stop(other);
        }
        tokio::time::sleep(if other == leader { STOPPED_ALONE } else { STOPPED }).await;
        cluster.go_on(other);
        tokio::time::sleep(CALM).await;
    }
    Ok(())
}

/// Runs it.
pub(crate) async fn run(args: Args) -> anyhow::Result<Outcome> {
    let Args { store, controllers, agents, pace_ms, quick } = args;
    programs();
    let scratch = Scratch::new();
    let dir = scratch.path();
    let (store, mut cluster) = match store {
        Some(Store::Embedded) => (Store::Embedded, Cluster::embedded(&dir)?),
        Some(Store::Etcd) => (Store::Etcd, Cluster::on_etcd(&dir, usize::from(controllers))?),
        None => match Cluster::on_etcd(&dir, usize::from(controllers)) {
            Ok(cluster) => (Store::Etcd, cluster),
            Err(error) if error.is::<Missing>() => {
                println!("NOT on etcd, which {error}: one controller with the embedded store instead");
                (Store::Embedded, Cluster::embedded(&dir)?)
            }
            Err(error) => return Err(error),
        },
    };
    let addresses = cluster.addresses();
    let all: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let agents = usize::from(agents);
    // Hundreds of nodes that share one disk would wait for its syncs, as nodes of their own do not.
    let memory = Path::new(MEMORY).is_dir();
    let state =
        tempfile::Builder::new().prefix("weir-bench-").tempdir_in(if memory { Path::new(MEMORY) } else { &dir })?;
    println!(
        "the modelled nodes' ledgers lie {}",
        if memory { "in memory" } else { "on the disk of the temporary directory" }
    );
    let simulation = Arc::new(Simulation::start(state.path(), &all, agents)?);
    simulation.until("all connect", SETTLE, |total| total.connected == agents).await?;

    let timeline = Arc::new(Mutex::new(Timeline::default()));
    let (stop_editing, stop_looking) = (CancellationToken::new(), CancellationToken::new());
    let editing = tokio::spawn(Editor::new(addresses.clone()).run(
        Arc::clone(&timeline),
        Duration::from_millis(pace_ms),
        stop_editing.clone(),
    ));
    let looking = {
        let (simulation, timeline, stop) = (Arc::clone(&simulation), Arc::clone(&timeline), stop_looking.clone());
        tokio::task::spawn_blocking(move || look(&simulation, &timeline, &stop))
    };
    faults(&mut cluster, if quick { 1 } else { 3 }).await?;
    let over = Instant::now();
    stop_editing.cancel();
    let mut editor = editing.await?;

    let stored = stored(&mut editor, &timeline).await?;
    let lost = editor.lost;
    let unconverged = settle(&simulation, &stored).await?;
    // One more look, so that the last change has its time.
    tokio::time::sleep(2 * LOOK).await;
    stop_looking.cancel();
    looking.await??;
    let idle_writes = restart_all(&mut cluster, &simulation, agents).await?;
    let total = simulation.total()?;
    drop(cluster);

    let timeline = lock(&timeline);
    let seconds = timeline.seconds_to_converge();
    let never = timeline.len() - seconds.len();
    // Where nothing converged at all, the times are without end (null in JSON).
    let (p50, max) = (seconds.get(seconds.len() / 2), seconds.last());
    let (p50, max) = (p50.copied().unwrap_or(f64::INFINITY), max.copied().unwrap_or(f64::INFINITY));
    // A lone controller's outages are in every time: then nothing can be said of them.
    let timed = all.len() > 1;
    let needless = total.needless_writes + idle_writes;
    // A run in which little was acknowledged says nothing: every intent was, and changes go on after the last fault.
    let patience = CALM.max(Duration::from_millis(pace_ms) * 3);
    let served = (0..INTENTS).all(|number| timeline.last(number).is_some())
        && timeline.last_at().is_some_and(|at| over.saturating_duration_since(at) < patience);
    let pass = served
        && lost == 0
        && unconverged == 0
        && never == 0
        && total.lower_applied == 0
        && needless == 0
        && (!timed || (p50 <= P50_S && max <= MAX_S));
    let row = |what: &str, figure: String, threshold: &str| (what.to_owned(), figure, threshold.to_owned());
    Ok(Outcome {
        rows: vec![
            row("acknowledged changes", timeline.len().to_string(), ""),
            row(
                "changes of each intent, and after the last fault",
                if served { "yes" } else { "NO" }.to_owned(),
                "yes",
            ),
            row("calls that failed and went elsewhere", editor.failed_calls.to_string(), ""),
            row(
                "longest time without an acknowledgement, s",
                format!("{:.1}", timeline.longest_pause().as_secs_f64()),
                "",
            ),
            row("acknowledged changes lost", lost.to_string(), "0"),
            row("plans with a lower fence applied", total.lower_applied.to_string(), "0"),
            row("plans with a lower fence refused", total.lower_refused.to_string(), ""),
            row("nodes not as stored at the end", unconverged.to_string(), "0"),
            row("changes never seen in every kernel", never.to_string(), "0"),
            row("needless kernel writes", needless.to_string(), "0"),
            row("seconds to converge, p50", format!("{p50:.2}"), if timed { "<= 1" } else { "" }),
            row("seconds to converge, max", format!("{max:.2}"), if timed { "<= 30" } else { "" }),
        ],
        json: json!({
            "bench": "failover",
            "store": match store { Store::Embedded => "embedded", Store::Etcd => "etcd" },
            "controllers": all.len(),
            "agents": agents,
            "ledgers_in_memory": memory,
            "quick": quick,
            "figures": {
                "acknowledged": timeline.len(),
                "served": served,
                "failed_calls": editor.failed_calls,
                "longest_pause_s": timeline.longest_pause().as_secs_f64(),
                "acknowledged_lost": lost,
                "lower_fences_applied": total.lower_applied,
                "lower_fences_refused": total.lower_refused,
                "unconverged": unconverged,
                "never_converged": never,
                "needless_writes": needless,
                "writes": total.writes,
                "sessions": total.sessions,
                "converge_p50_s": p50,
                "converge_max_s": max,
            },
            "thresholds": {
                "served": true, "acknowledged_lost": 0, "lower_fences_applied": 0, "unconverged": 0, "never_converged": 0,
                "needless_writes": 0, "converge_p50_s": timed.then_some(P50_S), "converge_max_s": timed.then_some(MAX_S),
            },
            "pass": pass,
        }),
        pass,
    })
}

/// What the store holds in the end, by intent.
async fn stored(editor: &mut Editor, timeline: &Mutex<Timeline>) -> anyhow::Result<BTreeMap<usize, u64>> {
    let deadline = Instant::now() + SETTLE;
    let mut all = BTreeMap::new();
    for number in 0..INTENTS {
        loop {
            let acknowledged = lock(timeline).last(number);
            match editor.look_up(number, acknowledged).await {
                Ok(found) => {
                    all.extend(found.as_ref().and_then(value_of).map(|value| (number, value)));
                    break;
                }
                Err(error) if Instant::now() > deadline => return Err(error),
                Err(_) => {
                    editor.failed(number);
                    tokio::time::sleep(LOOK).await;
                }
            }
        }
    }
    Ok(all)
}

/// Waits until every kernel holds what is stored and nothing else. How many do not in the end.
async fn settle(simulation: &Simulation, stored: &BTreeMap<usize, u64>) -> anyhow::Result<usize> {
    let limits = |(number, value): (&usize, &u64)| {
        (format!("{} 259:0", path_of(*number)), BTreeMap::from([("rbps".to_owned(), *value)]))
    };
    let expected: BTreeMap<_, _> = stored.iter().map(limits).collect();
    let deadline = Instant::now() + SETTLE;
    loop {
        let off = simulation.nodes()?.iter().filter(|node| node.limits != expected).count();
        if off == 0 || Instant::now() > deadline {
            return Ok(off);
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Restarts every controller at once with nothing changed; how many kernel writes that made.
async fn restart_all(cluster: &mut Cluster, simulation: &Simulation, agents: usize) -> anyhow::Result<u64> {
    // Totals are up to a second old.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let before = simulation.total()?;
    println!("all controllers restart");
    for number in 0..cluster.len() {
        cluster.kill(number);
    }
    for number in 0..cluster.len() {
        cluster.restart(number)?;
    }
    let again = before.sessions + agents as u64;
    let back = simulation.until("all reconnect", SETTLE, |t| t.connected == agents && t.sessions >= again).await?;
    tokio::time::sleep(Duration::from_millis(2500)).await;
    let after = simulation.total()?;
    if after.connected < agents {
        bail!("agents lost their sessions after a restart: {back:?} then {after:?}");
    }
    Ok(after.writes - before.writes)
}
