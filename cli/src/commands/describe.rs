//! describe: everything about one thing, for people.

use weir_proto::v1;

use crate::{args::Output, client::Client, failure::Failure, names, print, text};

/// An intent with its spec, conditions and what became of it on each node.
///
/// # Errors
/// The controller's.
pub async fn intent(client: &mut Client, name: &str, project: &str, output: Output) -> Result<(), Failure> {
    let intent = client.intent(&names::intent(name, project)).await?;
    if print::structured(&intent, output)? {
        return Ok(());
    }
    let bare = v1::Intent { status: None, ..intent.clone() };
    print::structured(&bare, Output::Yaml)?;
    let status = intent.status.unwrap_or_default();
    print::line(&format!(
        "\nNodes: {} matched: {} applied, {} failed, {} with nothing to apply it to, {} paused or released, {} pending; {} out \
         of contact",
        status.nodes_matched,
        status.nodes_applied,
        status.nodes_failed,
        status.nodes_no_match,
        status.nodes_suspended,
        status.nodes_pending,
        status.nodes_stale
    ))?;
    if !status.nodes_holding.is_empty() {
        print::line(&format!("Still held by: {}", status.nodes_holding.join(", ")))?;
    }
    conditions("Conditions", &status.conditions)?;
    let statuses = client.statuses(&intent.name, "").await?;
    for status in &statuses {
        print::line(&format!(
            "\n{}: {}, generation {}, {}{}",
            status.node,
            text::word(status.state().as_str_name(), "RULE_STATE_"),
            status.observed_generation,
            text::reported(status.age),
            if status.stale { ", out of contact" } else { "" },
        ))?;
        for condition in &status.conditions {
            print::line(&format!("  {}", text::condition(condition)))?;
        }
    }
    if statuses.iter().any(|status| !status.settings.is_empty()) {
        print::line("")?;
        print::line(&super::watch::table(&statuses, project))?;
    }
    Ok(())
}

/// A node with its facts, conditions and intents.
///
/// # Errors
/// The controller's.
pub async fn node(client: &mut Client, name: &str, project: &str, output: Output) -> Result<(), Failure> {
    let node = client.fleet.get_node(v1::GetNodeRequest { name: names::node(name) }).await?.into_inner();
    if print::structured(&node, output)? {
        return Ok(());
    }
    print::structured(&v1::Node { conditions: Vec::new(), ..node.clone() }, Output::Yaml)?;
    conditions("Conditions", &node.conditions)?;
    let statuses = client.statuses("", &node.name).await?;
    print::line("")?;
    if statuses.is_empty() {
        return print::line("No intent applies to it.");
    }
    print::line(&super::watch::table(&statuses, project))
}

fn conditions(head: &str, all: &[v1::Condition]) -> Result<(), Failure> {
    if all.is_empty() {
        return Ok(());
    }
    print::line(&format!("\n{head}:"))?;
    for condition in all {
        print::line(&format!("  {}", text::condition(condition)))?;
    }
    Ok(())
}
