//! Waiting until the fleet has answered.

use std::time::Duration;

use tokio::time::Instant;
use weir_proto::v1;

use crate::{client::Client, failure::Failure, names, text};

const INTERVAL: Duration = Duration::from_millis(200);

/// Waits until every node that an intent matches has applied or refused its present generation.
///
/// # Errors
/// A node refused it, or the time is up; the text says which nodes, and why.
pub async fn applied(client: &mut Client, name: &str, timeout: Duration) -> Result<v1::IntentStatus, Failure> {
    let deadline = Instant::now() + timeout;
    loop {
        let intent = client.intent(name).await?;
        let status = intent.status.unwrap_or_default();
        if status.nodes_matched > 0 && status.nodes_pending == 0 {
            return if status.nodes_failed == 0 {
                Ok(status)
            } else {
                Err(Failure::NodesFailed(failing(client, name).await?))
            };
        }
        if Instant::now() >= deadline {
            let waiting = if status.nodes_matched == 0 {
                "no node matches it".to_owned()
            } else {
                format!(
                    "{} of {} nodes have not answered ({} out of contact)",
                    status.nodes_pending, status.nodes_matched, status.nodes_stale
                )
            };
            return Err(Failure::TimedOut(format!("{name}: not applied within {timeout:?}: {waiting}")));
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// The nodes that failed, with their conditions.
async fn failing(client: &mut Client, name: &str) -> Result<String, Failure> {
    let statuses = client.statuses(name, "").await?;
    let mut lines = vec![format!("{name}: some nodes did not apply it")];
    for status in statuses.iter().filter(|status| status.state() == v1::RuleState::Failed) {
        lines.push(format!("  {}:", names::short(&status.node, "")));
        lines.extend(status.conditions.iter().map(|c| format!("    {}", text::condition(c).replace('\n', "\n  "))));
    }
    Ok(lines.join("\n"))
}

/// Waits until an intent is gone.
///
/// # Errors
/// The time is up; the text says which nodes still hold it.
pub async fn gone(client: &mut Client, name: &str, uid: &str, timeout: Duration) -> Result<(), Failure> {
    let deadline = Instant::now() + timeout;
    loop {
        let intent = match client.intent(name).await {
            Ok(intent) => intent,
            Err(status) if status.code() == tonic::Code::NotFound => return Ok(()),
            Err(status) => return Err(status.into()),
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
                holding.join(", ")
            )));
        }
        tokio::time::sleep(INTERVAL).await;
    }
}
