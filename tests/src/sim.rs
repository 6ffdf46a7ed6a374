//! A simulated fleet (`weir-agent --simulate`) as a process, and what it says of itself.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use serde::Deserialize;

use crate::{fleet::AGENT_READY, process::Daemon};

/// All nodes together, as the simulation says each second.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Total {
    /// Since its start, seconds.
    pub elapsed_s: f64,
    /// Nodes with a session.
    pub connected: usize,
    /// Nodes out of contact for 30 s or more.
    pub stale: usize,
    /// Sessions so far.
    pub sessions: u64,
    /// Rules that are APPLIED.
    pub rules_applied: usize,
    /// Settings owned.
    pub settings_held: usize,
    /// Kernel writes so far.
    pub writes: u64,
    /// Of these, writes of what the kernel held already.
    pub needless_writes: u64,
    /// Plans with a lower fence that were refused so far.
    pub lower_refused: u64,
    /// Plans with a lower fence that were acted upon so far.
    pub lower_applied: u64,
}

/// One node.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Node {
    /// Its name.
    pub node: String,
    /// The controller that it has a session with.
    pub controller: Option<String>,
    /// Kernel writes so far.
    pub writes: u64,
    /// Plans with a lower fence that were acted upon so far.
    pub lower_applied: u64,
    /// `CGROUP MAJ:MIN` -> key -> value, as its kernel holds them.
    pub limits: BTreeMap<String, BTreeMap<String, u64>>,
}

#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum Line {
    Total(Total),
    Agent(Node),
    End {},
}

/// A simulation that runs. Ended on drop.
#[derive(Debug)]
pub struct Simulation {
    /// The process.
    pub daemon: Daemon,
    /// How many nodes.
    pub agents: usize,
    report: PathBuf,
}

impl Simulation {
    /// Starts `agents` nodes (`sim-0001` and so on) against `controllers` (`host:port` each), with their state in `dir`.
    ///
    /// # Errors
    /// It was not ready in time.
    pub fn start(dir: &Path, controllers: &[&str], agents: usize) -> anyhow::Result<Simulation> {
        Self::with(&["--node", "sim"], dir, controllers, agents)
    }

    /// The same with another beginning of the nodes' names.
    ///
    /// # Errors
    /// It was not ready in time.
    pub fn named(prefix: &str, dir: &Path, controllers: &[&str], agents: usize) -> anyhow::Result<Simulation> {
        Self::with(&["--node", prefix], dir, controllers, agents)
    }

    /// The same with more arguments.
    ///
    /// # Errors
    /// It was not ready in time.
    pub fn with(more: &[&str], dir: &Path, controllers: &[&str], agents: usize) -> anyhow::Result<Simulation> {
        std::fs::create_dir_all(dir).with_context(|| format!("mkdir {}", dir.display()))?;
        let controllers: Vec<String> = controllers.iter().map(|address| format!("http://{address}")).collect();
        let report = dir.join("report.jsonl");
        let pairs = [
            ("--simulate", agents.to_string()),
            ("--controller", controllers.join(",")),
            ("--state-dir", dir.join("state").display().to_string()),
            ("--simulate-report", report.display().to_string()),
        ];
        let mut args: Vec<String> = pairs.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]).collect();
        args.extend(more.iter().map(|arg| (*arg).to_owned()));
        let daemon = Daemon::start("weir-agent", &args, AGENT_READY, &dir.join("simulation.log"))?;
        Ok(Simulation { daemon, agents, report })
    }

    /// Lines from `offset` on that are whole and can be read.
    fn lines(&self, offset: u64) -> Vec<Line> {
        let mut bytes = Vec::new();
        let read = File::open(&self.report).and_then(|mut file| {
            file.seek(SeekFrom::Start(offset))?;
            file.read_to_end(&mut bytes)
        });
        let text = read.map_or_else(|_| String::new(), |_| String::from_utf8_lossy(&bytes).into_owned());
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// The latest totals, at most a second old.
    ///
    /// # Errors
    /// There are none yet.
    pub fn total(&self) -> anyhow::Result<Total> {
        // The end of the file holds them, unless lines of nodes have just come.
        let length = std::fs::metadata(&self.report)?.len();
        let find = |offset| {
            self.lines(offset).into_iter().rev().find_map(|line| match line {
                Line::Total(total) => Some(total),
                Line::Agent(_) | Line::End {} => None,
            })
        };
        find(length.saturating_sub(8192)).or_else(|| find(0)).context("no totals yet")
    }

    /// Asks for every node, and waits for the answer.
    ///
    /// # Errors
    /// None within 20 s.
    pub fn nodes(&self) -> anyhow::Result<Vec<Node>> {
        let offset = std::fs::metadata(&self.report).map_or(0, |metadata| metadata.len());
        self.daemon.signal(rustix::process::Signal::USR1);
        let deadline = Instant::now() + Duration::from_secs(20);
        while Instant::now() < deadline {
            let lines = self.lines(offset);
            if lines.iter().any(|line| matches!(line, Line::End {})) {
                let nodes = lines.into_iter().filter_map(|line| match line {
                    Line::Agent(node) => Some(node),
                    Line::Total(_) | Line::End {} => None,
                });
                return Ok(nodes.collect());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        bail!("the simulation did not report its nodes within 20 s:\n{}", self.daemon.log_tail())
    }

    /// Waits until the totals are as wanted.
    ///
    /// # Errors
    /// Not within `limit`; the latest totals are in the message.
    pub async fn until(&self, what: &str, limit: Duration, wanted: impl Fn(&Total) -> bool) -> anyhow::Result<Total> {
        let deadline = Instant::now() + limit;
        loop {
            let total = self.total().unwrap_or_default();
            if wanted(&total) {
                return Ok(total);
            }
            if Instant::now() > deadline {
                bail!("not within {limit:?}: {what}; {total:?}\n{}", self.daemon.log_tail());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}
