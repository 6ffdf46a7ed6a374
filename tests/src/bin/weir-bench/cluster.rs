//! Controllers at addresses that stay, on a store that they share, and the etcd under them where there is one.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use rustix::process::Signal;
use weir_tests::{
    etcd::{self, Etcd},
    fleet,
    process::{Daemon, binary},
};

use super::Missing;

/// What a controller logs when it becomes the leader.
const LEADS: &str = "this controller leads";

/// One controller.
struct Slot {
    dir: PathBuf,
    address: String,
    daemon: Option<Daemon>,
    stopped: bool,
}

/// The controllers.
pub(crate) struct Cluster {
    slots: Vec<Slot>,
    store: Option<String>,
    _etcd: Option<Etcd>,
}

impl Cluster {
    /// One controller with an embedded store.
    pub(crate) fn embedded(dir: &Path) -> anyhow::Result<Cluster> {
        Cluster::start(dir, 1, None, None)
    }

    /// `controllers` controllers on an etcd of their own.
    pub(crate) fn on_etcd(dir: &Path, controllers: usize) -> anyhow::Result<Cluster> {
        let missing = etcd::missing();
        if !missing.is_empty() {
            return Err(Missing(format!("needs {}", missing.join(", "))).into());
        }
        let etcd = Etcd::start();
        let store = etcd.location("/weir-bench/");
        Cluster::start(dir, controllers, Some(store), Some(etcd))
    }

    fn start(dir: &Path, count: usize, store: Option<String>, etcd: Option<Etcd>) -> anyhow::Result<Cluster> {
        let mut cluster = Cluster { slots: Vec::new(), store, _etcd: etcd };
        for number in 1..=count {
            let dir = dir.join(format!("controller-{number}"));
            std::fs::create_dir_all(&dir).with_context(|| format!("mkdir {}", dir.display()))?;
            cluster.slots.push(Slot { dir, address: "127.0.0.1:0".to_owned(), daemon: None, stopped: false });
            cluster.restart(number - 1)?;
        }
        Ok(cluster)
    }

    /// Their addresses, `host:port`.
    pub(crate) fn addresses(&self) -> Vec<String> {
        self.slots.iter().map(|slot| slot.address.clone()).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Starts one that was killed, or for the first time.
    pub(crate) fn restart(&mut self, number: usize) -> anyhow::Result<()> {
        let store = self.store.clone();
        let more: Vec<&str> = store.iter().flat_map(|store| ["--store", store.as_str()]).collect();
        let slot = &mut self.slots[number];
        let started = fleet::controller_with(&slot.dir, &slot.address, &more);
        let (daemon, address) = started.map_err(|error| {
            let text = format!("{error:#}");
            if text.contains("--features weir-controller/etcd") {
                let how = "needs a controller with etcd: build with `--features weir-controller/etcd`";
                return anyhow::Error::from(Missing(how.to_owned()));
            }
            error
        })?;
        slot.address = address;
        slot.daemon = Some(daemon);
        Ok(())
    }

    /// kill -9.
    pub(crate) fn kill(&mut self, number: usize) {
        if let Some(mut daemon) = self.slots[number].daemon.take() {
            daemon.kill();
        }
    }

    /// SIGSTOP: it keeps its connections and says nothing.
    pub(crate) fn stop(&mut self, number: usize) {
        self.signal(number, Signal::STOP, true);
    }

    /// SIGCONT.
    pub(crate) fn go_on(&mut self, number: usize) {
        self.signal(number, Signal::CONT, false);
    }

    fn signal(&mut self, number: usize, signal: Signal, stopped: bool) {
        let slot = &mut self.slots[number];
        slot.stopped = stopped;
        if let Some(daemon) = &slot.daemon {
            daemon.signal(signal);
        }
    }

    /// The one that became the leader last, of those that run; the first that runs where none says so.
    pub(crate) fn leader(&self) -> usize {
        let runs = |slot: &&(usize, &Slot)| slot.1.daemon.is_some() && !slot.1.stopped;
        let said = |slot: &Slot| {
            let log = std::fs::read_to_string(slot.dir.join("controller.log")).unwrap_or_default();
            // Lines begin with their time, in one form: their order is that of time.
            log.lines().rfind(|line| line.contains(LEADS)).map(str::to_owned)
        };
        let slots: Vec<(usize, &Slot)> = self.slots.iter().enumerate().collect();
        let leader = slots.iter().filter(runs).filter_map(|(number, slot)| Some((said(slot)?, *number))).max();
        let first = || slots.iter().find(runs).map(|(number, _)| *number);
        leader.map(|(_, number)| number).or_else(first).unwrap_or(0)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // A stopped process dies of kill -9 too; the order is for their logs.
        for number in 0..self.slots.len() {
            self.kill(number);
        }
    }
}

/// Panics early, with what to build, where the programs are missing.
pub(crate) fn programs() {
    for name in ["weir-controller", "weir-agent"] {
        binary(name);
    }
}
