//! Waiting until the fleet has answered.

use std::time::Duration;

use tokio::time::Instant;
use tonic::Code;
use weir_proto::v1;

use crate::{args::Output, client::Client, failure::Failure, names, print, text};

/// Time between two looks.
pub const INTERVAL: Duration = Duration::from_millis(200);

/// Waits for several intents, with one time for all of them, and reports every one that is not applied.
///
/// # Errors
/// A node refused one of them, or the time is up; the text says which nodes, and why.
pub async fn all_applied(
    client: &mut Client,
    names: &[&str],
    timeout: Duration,
    output: Output,
) -> Result<(), Failure> {
    let deadline = Instant::now() + timeout;
    let (mut failed, mut late) = (Vec::new(), Vec::new());
    for name in names {
        match applied(client, name, deadline, timeout).await {
            Ok(status) if output == Output::Table => print::line(&done(name, &status))?,
            Ok(_) => {}
            Err(Failure::NodesFailed(text)) => failed.push(text),
            Err(Failure::TimedOut(text)) => late.push(text),
            Err(other) => return Err(other),
        }
    }
    let a_node_failed = !failed.is_empty();
    failed.append(&mut late);
    match (failed.is_empty(), a_node_failed) {
        (true, _) => Ok(()),
        (false, true) => Err(Failure::NodesFailed(failed.join("\n"))),
        (false, false) => Err(Failure::TimedOut(failed.join("\n"))),
    }
}

/// Waits until so many nodes are connected.
///
/// # Errors
/// The time is up; the text says how many are.
pub async fn connected(client: &mut Client, wanted: usize, timeout: Duration) -> Result<(), Failure> {
    let deadline = Instant::now() + timeout;
    loop {
        let mut there = 0;
        match client.all_nodes().await {
            Ok((nodes, _)) => there = nodes.iter().filter(|node| node.phase() == v1::NodePhase::Connected).count(),
            Err(status) => outage(status, deadline).await?,
        }
        if there >= wanted {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(Failure::TimedOut(format!("{there} of {wanted} nodes are connected after {timeout:?}")));
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

fn done(name: &str, status: &v1::IntentStatus) -> String {
    let nodes = |count: i32| format!("{count} {}", if count == 1 { "node" } else { "nodes" });
    let told = |count: i32, what: &str| if count > 0 { format!("; {} {what}", nodes(count)) } else { String::new() };
    format!(
        "applied {name} on {}{}{}",
        nodes(status.nodes_applied),
        told(status.nodes_no_match, "with nothing to apply it to at present (weirctl describe intent NAME)"),
        told(status.nodes_suspended, "paused or released, where it waits for weirctl resume"),
    )
}

/// Waits until every node that an intent matches has applied or refused its present generation.
async fn applied(
    client: &mut Client,
    name: &str,
    deadline: Instant,
    timeout: Duration,
) -> Result<v1::IntentStatus, Failure> {
    loop {
        let status = match client.intent(name).await {
            Ok(intent) => intent.status.unwrap_or_default(),
            Err(error) => {
                outage(error, deadline).await?;
                continue;
            }
        };
        if status.nodes_matched > 0 && status.nodes_pending == 0 {
            return if status.nodes_failed == 0 {
                Ok(status)
            } else {
                Err(Failure::NodesFailed(failing(client, name).await?))
            };
        }
        if Instant::now() >= deadline {
            return Err(Failure::TimedOut(late(client, name, &status, timeout).await?));
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// A controller that is away for a moment, as one that restarts, is waited for as long as there is time.
///
/// # Errors
/// Any other error, and this one when the time is up.
pub async fn outage(status: tonic::Status, deadline: Instant) -> Result<(), Failure> {
    if status.code() != Code::Unavailable || Instant::now() >= deadline {
        return Err(status.into());
    }
    tokio::time::sleep(INTERVAL).await;
    Ok(())
}

/// The nodes that failed, with their conditions.
async fn failing(client: &mut Client, name: &str) -> Result<String, Failure> {
    let statuses = client.statuses(name, "").await?;
    let mut lines = vec![format!("{name}: not every node applied it")];
    for status in statuses.iter().filter(|status| status.state() == v1::RuleState::Failed) {
        lines.extend(answer(status));
    }
    Ok(lines.join("\n"))
}

/// The nodes that have not answered, or why there are none.
async fn late(
    client: &mut Client,
    name: &str,
    status: &v1::IntentStatus,
    timeout: Duration,
) -> Result<String, Failure> {
    if status.nodes_matched == 0 {
        return Ok(format!(
            "{name}: not applied within {timeout:?}: no node matches it\nhint: weirctl nodes shows which there are, \
             weirctl describe node NAME their labels"
        ));
    }
    let mut lines = vec![format!(
        "{name}: not applied within {timeout:?}: {} of {} nodes have not answered ({} out of contact)",
        status.nodes_pending, status.nodes_matched, status.nodes_stale
    )];
    let generation = client.intent(name).await?.generation;
    let statuses = client.statuses(name, "").await?;
    let settled = [v1::RuleState::Applied, v1::RuleState::NoMatch];
    let pending = |status: &v1::IntentNodeStatus| {
        status.state() == v1::RuleState::Pending || status.observed_generation < generation
    };
    for status in statuses.iter().filter(|s| !settled.contains(&s.state()) || s.stale || pending(s)) {
        lines.extend(answer(status));
        // What is true of the node as such keeps this rule from it too.
        if pending(status) && !status.stale {
            let node = client.fleet.get_node(v1::GetNodeRequest { name: status.node.clone() }).await?.into_inner();
            let said = node.conditions.iter().map(|c| format!("    {}", text::condition(c).replace('\n', "\n    ")));
            lines.extend(said);
        }
    }
    Ok(lines.join("\n"))
}

/// A node's state and what it says about it.
fn answer(status: &v1::IntentNodeStatus) -> Vec<String> {
    let state = text::word(status.state().as_str_name(), "RULE_STATE_");
    let contact = if status.stale { ", out of contact" } else { "" };
    let mut lines = vec![format!("  {}: {state}{contact}", names::short(&status.node, ""))];
    lines.extend(status.conditions.iter().map(|c| format!("    {}", text::condition(c).replace('\n', "\n    "))));
    lines
}

/// Waits until an intent is gone.
///
/// # Errors
/// The time is up; the text says which nodes still hold it.
pub async fn gone(
    client: &mut Client,
    name: &str,
    uid: &str,
    deadline: Instant,
    timeout: Duration,
) -> Result<(), Failure> {
    loop {
        let intent = match client.intent(name).await {
            Ok(intent) => intent,
            Err(status) if status.code() == Code::NotFound => return Ok(()),
            Err(status) => {
                outage(status, deadline).await?;
                continue;
            }
        };
        // Another intent under the name: the one that was deleted is gone.
        if intent.uid != uid {
            return Ok(());
        }
        if Instant::now() >= deadline {
            let holding = intent.status.unwrap_or_default().nodes_holding;
            return Err(Failure::TimedOut(format!(
                "{name}: not gone within {timeout:?}; still held by {}\nhint: nodes that will not return can be forgotten \
                 (weirctl forget NODE), or the delete forced (--force)",
                if holding.is_empty() { "no node that is known".to_owned() } else { holding.join(", ") }
            )));
        }
        tokio::time::sleep(INTERVAL).await;
    }
}
