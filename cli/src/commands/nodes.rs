//! pause, resume, release, forget: the emergency brake.

use tokio::time::Instant;
use weir_proto::v1;

use crate::{
    args::{Release, Target},
    client::Client,
    failure::Failure,
    names, print,
};

fn name(target: &Target) -> String {
    target.node.as_deref().map_or_else(|| "nodes/-".to_owned(), names::node)
}

fn called(name: &str) -> &str {
    if name == "nodes/-" { "the whole fleet" } else { names::short(name, "") }
}

/// Stops changes.
///
/// # Errors
/// The controller's.
pub async fn pause(client: &mut Client, target: &Target) -> Result<(), Failure> {
    let name = name(target);
    client.fleet.pause_node(v1::PauseNodeRequest { name: name.clone() }).await?;
    print::line(&format!("paused {}: nothing is changed until it is resumed", called(&name)))
}

/// Undoes a pause or release.
///
/// # Errors
/// The controller's.
pub async fn resume(client: &mut Client, target: &Target) -> Result<(), Failure> {
    let name = name(target);
    client.fleet.resume_node(v1::ResumeNodeRequest { name: name.clone() }).await?;
    print::line(&format!("resumed {}", called(&name)))?;
    if name == "nodes/-" {
        return Ok(());
    }
    // The stricter of the node's own directive and the fleet's holds.
    let node = client.fleet.get_node(v1::GetNodeRequest { name }).await?.into_inner();
    match node.directive() {
        v1::Directive::Paused => print::line("it stays paused: the whole fleet is (weirctl resume --all)"),
        v1::Directive::Released => print::line("it stays released: the whole fleet is (weirctl resume --all)"),
        v1::Directive::Active | v1::Directive::Unspecified => Ok(()),
    }
}

/// Puts everything back; with `--wait`, returns when nothing is held any more.
///
/// # Errors
/// The controller's, or the time is up.
pub async fn release(client: &mut Client, options: &Release) -> Result<(), Failure> {
    let name = name(&options.target);
    client.fleet.release_node(v1::ReleaseNodeRequest { name: name.clone() }).await?;
    print::line(&format!("released {}: everything is put back, and stays so until it is resumed", called(&name)))?;
    if !options.wait.wait {
        return Ok(());
    }
    let deadline = Instant::now() + options.wait.timeout;
    loop {
        let asked = if name == "nodes/-" {
            client.all_nodes().await.map(|(nodes, _)| nodes)
        } else {
            let node = client.fleet.get_node(v1::GetNodeRequest { name: name.clone() }).await;
            node.map(|node| vec![node.into_inner()])
        };
        let nodes = match asked {
            Ok(nodes) => nodes,
            Err(status) => {
                super::wait::outage(status, deadline).await?;
                continue;
            }
        };
        let holding: Vec<&v1::Node> = nodes.iter().filter(|node| !is_released(node)).collect();
        if holding.is_empty() {
            return print::line("nothing is held any more");
        }
        if Instant::now() >= deadline {
            let told: Vec<String> = holding
                .iter()
                .map(|node| format!("{} holds {}", names::short(&node.name, ""), node.settings_held))
                .collect();
            return Err(Failure::TimedOut(format!("not all is put back in time: {}", told.join(", "))));
        }
        tokio::time::sleep(super::wait::INTERVAL).await;
    }
}

/// The agent itself said so: nothing held, under the directive.
fn is_released(node: &v1::Node) -> bool {
    node.settings_held == 0
        && node.phase() == v1::NodePhase::Connected
        && node.conditions.iter().any(|condition| condition.r#type == "Released")
}

/// Forgets a node.
///
/// # Errors
/// The controller's; FAILED_PRECONDITION while it is connected.
pub async fn forget(client: &mut Client, node: &str) -> Result<(), Failure> {
    let name = names::node(node);
    client.fleet.forget_node(v1::ForgetNodeRequest { name: name.clone() }).await?;
    print::line(&format!("forgot {}", called(&name)))
}
