//! What a simulation says of itself, as lines of JSON in a file: for tests and benches, which judge by it.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Write as _},
    path::Path,
    time::Duration,
};

use serde::Serialize;
use tokio::time::Instant;
use weir_common::fence::Fence;

use super::Node;
use crate::{enforce::report::RuleState, kernel::Kernel as _};

/// All nodes together.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Total {
    kind: &'static str,
    /// Since the start, seconds.
    pub elapsed_s: f64,
    /// Nodes.
    pub agents: usize,
    /// Nodes with a session.
    pub connected: usize,
    /// Nodes out of contact for 30 s or more.
    pub stale: usize,
    /// Sessions so far.
    pub sessions: u64,
    /// Lowest and highest fence held.
    pub fence_min: Option<Fence>,
    /// See `fence_min`.
    pub fence_max: Option<Fence>,
    /// Rules in the plans held.
    pub rules: usize,
    /// Rules that are APPLIED.
    pub rules_applied: usize,
    /// Rules that FAILED.
    pub rules_failed: usize,
    /// Settings owned.
    pub settings_held: usize,
    /// Writes that reached the kernels so far, refused ones too.
    pub writes: u64,
    /// Of these, writes of what the kernel held already.
    pub needless_writes: u64,
    /// Plans offered so far.
    pub offered: u64,
    /// Plans with a lower fence that were refused so far.
    pub lower_refused: u64,
    /// Plans with a lower fence that were acted upon so far: must be 0.
    pub lower_applied: u64,
}

/// One node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NodeLine {
    kind: &'static str,
    /// Its name.
    pub node: String,
    /// The controller that it has a session with.
    pub controller: Option<String>,
    /// Out of contact for 30 s or more.
    pub stale: bool,
    /// Sessions so far.
    pub sessions: u64,
    /// The fence held.
    pub fence: Option<Fence>,
    /// Rules in the plan held.
    pub rules: usize,
    /// Rules that are APPLIED.
    pub rules_applied: usize,
    /// Rules that FAILED.
    pub rules_failed: usize,
    /// Settings owned.
    pub settings_held: usize,
    /// Writes that reached the kernel so far, refused ones too.
    pub writes: u64,
    /// Of these, writes of what the kernel held already.
    pub needless_writes: u64,
    /// Plans offered so far.
    pub offered: u64,
    /// Plans with a lower fence that were refused so far.
    pub lower_refused: u64,
    /// Plans with a lower fence that were acted upon so far: must be 0.
    pub lower_applied: u64,
    /// Limits in its kernel, straight from there: `CGROUP MAJ:MIN` -> key -> value.
    pub limits: BTreeMap<String, BTreeMap<String, u64>>,
}

/// How a node is now.
pub(super) fn line(node: &Node) -> NodeLine {
    // The fence of every report counts, not only of those that answer an offer.
    let mut report = None;
    node.observer.looked(|| report.insert(node.reports.borrow().clone()).fence);
    let report = report.unwrap_or_default();
    let seen = node.observer.seen();
    let link = node.link.borrow().clone();
    let count = |state| report.rules.iter().filter(|rule| rule.state == state).count();
    let kernel = node.model.kernel();
    let mut limits: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
    for cgroup in kernel.cgroups() {
        for (device, set) in kernel.read_limits(&cgroup).unwrap_or_default() {
            let values = set.iter().filter_map(|(key, value)| Some((key.to_string(), value.get()?)));
            limits.insert(format!("{} {device}", cgroup.path), values.collect());
        }
    }
    NodeLine {
        kind: "agent",
        node: node.name.clone(),
        controller: link.controller,
        stale: link.stale,
        sessions: link.sessions,
        fence: report.fence,
        rules: report.rules.len(),
        rules_applied: count(RuleState::Applied),
        rules_failed: count(RuleState::Failed),
        settings_held: report.settings_held,
        writes: kernel.writes_seen(),
        needless_writes: kernel.needless_writes(),
        offered: seen.offered,
        lower_refused: seen.lower_refused,
        lower_applied: seen.lower_applied,
        limits,
    }
}

fn total(lines: &[NodeLine], elapsed: Duration) -> Total {
    let mut total = Total { kind: "total", elapsed_s: elapsed.as_secs_f64(), agents: lines.len(), ..Total::default() };
    total.fence_min = lines.iter().map(|line| line.fence).min().flatten();
    total.fence_max = lines.iter().map(|line| line.fence).max().flatten();
    for line in lines {
        total.connected += usize::from(line.controller.is_some());
        total.stale += usize::from(line.stale);
        total.sessions += line.sessions;
        total.rules += line.rules;
        total.rules_applied += line.rules_applied;
        total.rules_failed += line.rules_failed;
        total.settings_held += line.settings_held;
        total.writes += line.writes;
        total.needless_writes += line.needless_writes;
        total.offered += line.offered;
        total.lower_refused += line.lower_refused;
        total.lower_applied += line.lower_applied;
    }
    total
}

/// Where the lines go.
pub(super) struct Reporter {
    file: Option<File>,
    began: Instant,
}

impl Reporter {
    /// Appends to the file at `path`; without one nothing is written.
    pub(super) fn open(path: Option<&Path>) -> io::Result<Reporter> {
        let file = path.map(|path| File::options().create(true).append(true).open(path)).transpose()?;
        Ok(Reporter { file, began: Instant::now() })
    }

    /// The line of all nodes together.
    pub(super) fn totals(&mut self, nodes: &[Node]) {
        let lines: Vec<NodeLine> = nodes.iter().map(line).collect();
        let text = serde_json::to_string(&total(&lines, self.began.elapsed()));
        self.append(text.into_iter());
    }

    /// A line for each node, and the end.
    pub(super) fn nodes(&mut self, nodes: &[Node]) {
        let lines: Vec<NodeLine> = nodes.iter().map(line).collect();
        let end = serde_json::json!({ "kind": "end", "agents": lines.len() }).to_string();
        self.append(lines.iter().flat_map(serde_json::to_string).chain([end]));
    }

    /// One write for all: a reader sees whole lines, but for the last.
    fn append(&mut self, lines: impl Iterator<Item = String>) {
        let Some(file) = &mut self.file else { return };
        let text: String = lines.flat_map(|line| [line, "\n".to_owned()]).collect();
        if let Err(error) = file.write_all(text.as_bytes()) {
            tracing::error!(%error, "the report of the simulation cannot be written");
        }
    }
}
