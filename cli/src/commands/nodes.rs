//! pause, resume, release, forget: the emergency brake.

use serde::Serialize;
use tokio::time::Instant;
use tonic::Code;
use weir_proto::v1;

use crate::{
    args::{Output, Release, Target},
    client::Client,
    failure::Failure,
    names, print, text,
};

fn name(target: &Target) -> String {
    target.node.as_deref().map_or_else(|| "nodes/-".to_owned(), names::node)
}

fn called(name: &str) -> &str {
    if name == "nodes/-" { "the whole fleet" } else { names::short(name, "") }
}

/// For people a sentence, for programs the response.
fn answered<T: Serialize>(response: &T, output: Output, sentence: &str) -> Result<(), Failure> {
    if print::structured(response, output)? { Ok(()) } else { print::line(sentence) }
}

/// Stops changes.
///
/// # Errors
/// The controller's.
pub async fn pause(client: &mut Client, target: &Target, output: Output) -> Result<(), Failure> {
    let name = name(target);
    let response = client.fleet.pause_node(v1::PauseNodeRequest { name: name.clone() }).await?.into_inner();
    answered(&response, output, &format!("paused {}: nothing is changed until it is resumed", called(&name)))
}

/// Undoes a pause or release.
///
/// # Errors
/// The controller's.
pub async fn resume(client: &mut Client, target: &Target, output: Output) -> Result<(), Failure> {
    let name = name(target);
    let response = client.fleet.resume_node(v1::ResumeNodeRequest { name: name.clone() }).await?.into_inner();
    answered(&response, output, &format!("resumed {}", called(&name)))?;
    if target.node.is_some() {
        let node = client.fleet.get_node(v1::GetNodeRequest { name: name.clone() }).await?.into_inner();
        if let Some(told) = text::suspending(node.directive()) {
            print::remark(&format!(
                "{} stays {told}: the whole fleet is told so; undo that with weirctl resume --all",
                called(&name)
            ));
        }
    }
    Ok(())
}

/// Puts everything back; with `--wait`, returns when nothing is held any more.
///
/// # Errors
/// The controller's, or the time is up.
pub async fn release(client: &mut Client, options: &Release, output: Output) -> Result<(), Failure> {
    let name = name(&options.target);
    let response = client.fleet.release_node(v1::ReleaseNodeRequest { name: name.clone() }).await?.into_inner();
    let sentence = format!("releasing {}: everything is put back, and stays so until it is resumed", called(&name));
    answered(&response, output, &sentence)?;
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
            return if output == Output::Table { print::line("nothing is held any more") } else { Ok(()) };
        }
        if Instant::now() >= deadline {
            let told: Vec<String> = holding
                .iter()
                .map(|node| {
                    let why = node.conditions.iter().find(|condition| condition.r#type == "PlanRefused");
                    let why = why.map(|why| format!(" ({})", why.message)).unwrap_or_default();
                    let name = names::short(&node.name, "");
                    if node.phase() == v1::NodePhase::Connected {
                        format!("{name} holds {}{why}", node.settings_held)
                    } else if is_unheard(node) {
                        format!("{name} is out of contact, and what it holds is not known{why}")
                    } else {
                        format!("{name} is out of contact, and held {} at its last report{why}", node.settings_held)
                    }
                })
                .collect();
            return Err(Failure::TimedOut(format!("not all is put back in time: {}", told.join(", "))));
        }
        tokio::time::sleep(super::wait::INTERVAL).await;
    }
}

/// The controller began anew and the node is not back yet: its zeros do not say that it holds nothing.
pub(super) fn is_unheard(node: &v1::Node) -> bool {
    node.phase() != v1::NodePhase::Connected
        && node.settings_held == 0
        && node.facts.clone().unwrap_or_default() == v1::NodeFacts::default()
}

/// The agent itself said so: nothing held, under a plan that has the release in it. While it has not, the condition is the
/// controller's (reason Directive), and the number of settings may be of before the agent's last writes.
fn is_released(node: &v1::Node) -> bool {
    node.settings_held == 0
        && node.phase() == v1::NodePhase::Connected
        && node.conditions.iter().any(|condition| condition.r#type == "Released" && condition.reason == "AskedFor")
}

/// Forgets a node.
///
/// # Errors
/// The controller's; FAILED_PRECONDITION while it is connected.
pub async fn forget(client: &mut Client, node: &str, output: Output) -> Result<(), Failure> {
    let name = names::node(node);
    let response = client.fleet.forget_node(v1::ForgetNodeRequest { name: name.clone() }).await?.into_inner();
    answered(&response, output, &format!("forgot {}", called(&name)))
}

/// Forgets the nodes that are GONE; one that comes back meanwhile stays.
///
/// # Errors
/// The controller's, after the others were forgotten.
pub async fn forget_gone(client: &mut Client, output: Output) -> Result<(), Failure> {
    #[derive(Default, Serialize)]
    struct Forgotten {
        forgotten: Vec<String>,
    }
    let (nodes, _) = client.all_nodes().await?;
    let mut done = Forgotten::default();
    let mut failed = None;
    for node in nodes.into_iter().filter(|node| node.phase() == v1::NodePhase::Gone) {
        match client.fleet.forget_node(v1::ForgetNodeRequest { name: node.name.clone() }).await {
            Ok(_) => done.forgotten.push(node.name),
            Err(status) if matches!(status.code(), Code::NotFound | Code::FailedPrecondition) => {
                print::remark(&format!("{}: {}", called(&node.name), status.message()));
            }
            Err(status) => failed = Some(status),
        }
    }
    let sentence = if done.forgotten.is_empty() {
        "no node is gone".to_owned()
    } else {
        let names: Vec<&str> = done.forgotten.iter().map(|name| called(name)).collect();
        format!("forgot {}", names.join(", "))
    };
    answered(&done, output, &sentence)?;
    failed.map_or(Ok(()), |status| Err(status.into()))
}
